"""The guarded buffers of the runner's requests, in memory that is used again and again.

Flow: `measure.runner_child` asks for scratch buffers, which serve until the end of a request, and
for constants in the layouts of kernels, which serve later requests as well. Memory that no process
has touched before costs more time than all else in a check: a virtual machine may have to ask its
host for each page.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence

import numpy.typing as npt

from ansorlite.calls import Array
from ansorlite.measure.memory import GuardedBuffer, GuardedPool

# Of kept constants: enough for the kernels of a round, which often share a layout. More would
# seldom be used again.
MOST_KEPT_BYTES = 1 << 26


class Buffers:
    """Buffers that are valid until `settle`, which ends a request, and kept constants.

    Example: `b = buffers.scratch((64,), "float32")`, then `buffers.settle()`.
    """

    def __init__(self, most_kept_bytes: int = MOST_KEPT_BYTES) -> None:
        self._pool, self._most_kept_bytes = GuardedPool(), most_kept_bytes
        self._scratch: list[GuardedBuffer] = []
        self._kept: OrderedDict[Hashable, GuardedBuffer] = OrderedDict()

    def scratch(self, shape: Sequence[int], dtype: npt.DTypeLike) -> GuardedBuffer:
        """A buffer with any contents, for this request."""
        buffer = self._pool.empty(shape, dtype)
        self._scratch.append(buffer)
        return buffer

    def keep(self, key: Hashable, buffer: GuardedBuffer) -> GuardedBuffer:
        """Have `kept` find a scratch buffer from now on, which becomes read-only.

        A buffer that the key had before serves until the end of the request.
        """
        buffer.protect()
        self._scratch = [b for b in self._scratch if b is not buffer]
        if key in self._kept:
            self._scratch.append(self._kept.pop(key))
        self._kept[key] = buffer
        return buffer

    def kept(self, key: Hashable) -> GuardedBuffer | None:
        """The buffer of `keep` if it is still kept; then it is valid for this request."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def kept_copy(self, key: Hashable, x: Array) -> GuardedBuffer:
        """Keep the elements of `x` in a new buffer."""
        buffer = self.scratch(x.shape, x.dtype)
        buffer.array[...] = x
        return self.keep(key, buffer)

    def settle(self) -> None:
        """End a request: its scratch buffers and the constants in excess must not be used more."""
        for buffer in self._scratch:
            self._pool.release(buffer)
        self._scratch.clear()
        held = sum(b.size_bytes for b in self._kept.values())
        while held > self._most_kept_bytes:
            _, buffer = self._kept.popitem(last=False)
            held -= buffer.size_bytes
            self._pool.release(buffer)
