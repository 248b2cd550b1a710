"""Timing with cold constants: each call of a kernel reads another copy of its constants.

In: a loaded kernel with its prepared pointers. Out: a `Rotation` of the kernel over copies of its
constants. All copies together are as large as a network's weights. Constants then come from the
place where a network's weights lie (memory, or a last-level cache that holds all of them) and
activations from the caches. Floats of a copy are any numbers, the same for all kernels: what they
are does not change how long a kernel takes, and copying them for each kernel would take longer than
its timing. Runs in the runner process only.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from ansorlite.calls import Array, address, aligned_bytes, resident_empty
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.loader import NativeFunction, Rotation
from ansorlite.target import Target

MOST_COPIES = 512
POOL_BYTES = 1 << 26  # least size of all copies, where the last-level cache is small or unknown
# Largest size of all copies: about the weights of a network. A larger last-level cache holds a
# network's weights as well, and filling more memory would take time.
MOST_BYTES = 1 << 27
NUMBER = np.dtype("float32")
BLOCK = 1 << 18  # numbers that are drawn, and repeated


def rotated(function: NativeFunction, args: Any, image: KernelImage) -> Rotation | None:
    """The kernel with copies of its constants; None if it has none, or if two copies do not fit.

    What its calls compute is of no meaning where it has constants of floats.
    """
    params = {
        k: p
        for k, p in enumerate(image.params)
        if p.role in ("constant", "derived") and p.name not in image.unread
    }
    total = sum(aligned_bytes(p.nbytes) for p in params.values())
    copies = min(MOST_COPIES, _pool_bytes() // total) if total else 0
    if copies < 2:
        return None
    copied = {k for k, p in params.items() if not _any_number(p)}
    pointers = np.repeat(np.array([[p or 0 for p in args]], np.int64), copies, axis=0)
    places, at = total * np.arange(copies), 0
    for k, p in params.items():
        pointers[:, k] = address(_pool() if k in copied else _numbers()) + places + at
        at += aligned_bytes(p.nbytes)
    for k in copied:
        for place in pointers[:, k]:
            ctypes.memmove(int(place), args[k], params[k].nbytes)
    return Rotation(function, pointers)


def warm_up() -> None:
    """Make what all rotations share."""
    _numbers()


def _any_number(param: Param) -> bool:
    """May the constant be any numbers? Integers may be places in other arrays."""
    kind = np.dtype(param.dtype)
    return kind.kind == "f" and kind.itemsize >= NUMBER.itemsize


@cache
def _pool() -> Array:
    """uint8: memory for copies."""
    return resident_empty((_pool_bytes(),), "uint8")


@cache
def _numbers() -> Array:
    """Memory in place of copies: numbers from 1/4 to 1/2, all normal in float32 and float64.

    Where a kernel makes an index of them, by floor, rounding or a cast, it is 0, which every array
    has.
    """
    out = resident_empty((_pool_bytes() // NUMBER.itemsize,), NUMBER)
    block = np.random.default_rng(0).uniform(0.25, 0.499, BLOCK).astype(NUMBER)
    for start in range(0, out.size, BLOCK):
        out[start : start + BLOCK] = block[: out.size - start]
    return out


def _pool_bytes() -> int:
    """Of all copies: twice the last-level cache, between `POOL_BYTES` and `MOST_BYTES`."""
    return min(max(2 * Target.detect().l3_bytes, POOL_BYTES), MOST_BYTES)
