"""Constants of several networks, each held once in every layout that a kernel reads.

In: arrays as networks have them. Out: copies in the kernels' layouts. Arrays are told apart by
their bytes (SHA-256), so a weight that several sizes of a network have is packed and held once,
whatever passes made of its name. `CompiledModule`s that are made with one pool share its arrays.
"""

import hashlib
from collections.abc import Callable, Hashable

import numpy as np

from ansorlite.calls import Array


class ConstantPool:
    """Arrays by what they are made of."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Array] = {}
        self._digests: dict[int, tuple[Array, bytes]] = {}  # by identity; keeps the array alive

    def digest(self, x: Array) -> bytes:
        """What tells the array's values, dtype and number of elements from others."""
        known = self._digests.get(id(x))
        if known is None or known[0] is not x:
            found = hashlib.sha256(f"{x.dtype} {x.size} ".encode())
            found.update(np.ascontiguousarray(x).reshape(-1).view(np.uint8).data)
            known = self._digests[id(x)] = x, found.digest()
        return known[1]

    def kept(self, key: Hashable, make: Callable[[], Array]) -> Array:
        """The array of that key, made where it is not there yet."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def forget_sources(self) -> None:
        """Let go of arrays that were only looked at."""
        self._digests.clear()
