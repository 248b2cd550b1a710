"""Timing with cold constants: each call of a kernel reads another copy of its constants.

In: a loaded kernel with its prepared pointers. Out: a `Rotation`, which calls the kernel with one
copy after another. All copies together are as large as a network's weights. Constants then come
from the place where a network's weights lie (memory, or a last-level cache that holds all of them)
and activations from the caches. Runs in the runner process only.
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
POOL_BYTES = 1 << 26  # least size of all copies, where the last-level cache is small or unknown
# Largest size of all copies: about the weights of a network. A larger last-level cache holds a
# network's weights as well, and filling more memory would take time.
MOST_BYTES = 1 << 27


class Rotation:
    """Calls of one kernel with a list of prepared pointers, used in rotation."""

    def __init__(self, function: NativeFunction, pointers: list[Any]) -> None:
        self._sequence = CallSequence([(function, args) for args in pointers])
        self._count, self._next = len(pointers), 0

    def run(self, n: int) -> None:
        """Call n times, starting with the copy after the last one used."""
        while n > 0:
            part = min(n, self._count - self._next)
            self._sequence.run(self._next, part)
            self._next = (self._next + part) % self._count
            n -= part


def rotated(function: NativeFunction, args: Any, image: KernelImage) -> Rotation | None:
    """The kernel with copies of its constants; None if it has none, or if two copies do not fit."""
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
    """Memory for copies: twice the last-level cache, between `POOL_BYTES` and `MOST_BYTES`."""
    size = min(max(2 * Target.detect().l3_bytes, POOL_BYTES), MOST_BYTES)
    out: npt.NDArray[np.uint8] = resident_empty((size,), "uint8")
    return out
