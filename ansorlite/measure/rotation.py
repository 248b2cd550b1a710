"""Constants that are fresh in every call: copies of them, as many as a network has, used in turn.

In: a loaded kernel with its prepared pointers. Out: `Rotation`, calls with other copies each, so
that weights come from where those of a network lie, memory or a last cache that holds all of them,
and activations from wherever the call before left them. Runs in the runner process only.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.calls import aligned_bytes, resident_empty
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.loader import CallSequence, NativeFunction
from ansorlite.target import Target

MOST_COPIES = 512
POOL_BYTES = 1 << 26  # at least, where the last cache is small or unknown
# At most, about what networks weigh: larger caches hold theirs, too, and filling takes its time.
MOST_BYTES = 1 << 27


class Rotation:
    """Calls of one kernel on pointers that differ from call to call."""

    def __init__(self, function: NativeFunction, pointers: list[Any]) -> None:
        self._sequence = CallSequence([(function, args) for args in pointers])
        self._count, self._next = len(pointers), 0

    def run(self, n: int) -> None:
        """Call n times, going on with the copies after those of the last time."""
        while n > 0:
            part = min(n, self._count - self._next)
            self._sequence.run(self._next, part)
            self._next = (self._next + part) % self._count
            n -= part


def rotated(function: NativeFunction, args: Any, image: KernelImage) -> Rotation | None:
    """The kernel with copies of its constants; None where it has none, or more than fit twice."""
    sizes = {
        k: aligned_bytes(p.nbytes)
        for k, p in enumerate(image.params)
        if p.role in ("constant", "derived") and p.name not in image.unread
    }
    pool, total = _pool(), sum(sizes.values())
    copies = min(MOST_COPIES, pool.nbytes // total) if total else 0
    if copies < 2:
        return None
    made, at = [], 0
    for _ in range(copies):
        own = (ctypes.c_void_p * len(args))(*args)
        for k, size in sizes.items():
            n = image.params[k].nbytes
            ctypes.memmove(pool.ctypes.data + at, args[k], n)
            own[k] = pool.ctypes.data + at
            at += size
        made.append(own)
    return Rotation(function, made)


@cache
def _pool() -> npt.NDArray[np.uint8]:
    """Memory for copies, twice what the last cache holds if that is no more than networks weigh."""
    size = min(max(2 * Target.detect().l3_bytes, POOL_BYTES), MOST_BYTES)
    out: npt.NDArray[np.uint8] = resident_empty((size,), "uint8")
    return out
