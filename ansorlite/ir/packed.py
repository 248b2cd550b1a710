"""Arithmetic on numbers that lie in pairs or fours in an int32: bfloat16, and integers of 8 bits.

In: Python numbers, or arrays of them. Out: the results, for the interpreter and for numpy; native
code has the machine's dot-product instructions (`codegen.dot`). A number of bfloat16 is the upper
half of a float32. The first number of a pair has the lower bits, as in memory.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ansorlite.ir.literals import bfloat16, rounded, wrapped

Array = Any


class Packed(NamedTuple):
    """An operation: how many operands, dtype of the result, its meaning for numbers and arrays.

    `depth` is the number of products that are summed, 0 for other operations. `takes` is the dtype
    of the operands.
    """

    arity: int
    dtype: str
    number: Callable[..., Any]
    array: Callable[..., Array]
    depth: int = 0
    takes: str = "int32"


def _float(bits: int) -> float:
    return float(struct.unpack("f", struct.pack("I", bits & 0xFFFFFFFF))[0])


def _bits(x: float) -> int:
    (bits,) = struct.unpack("I", struct.pack("f", rounded(bfloat16(x), "float32")))
    return int(bits) >> 16


def _halves(word: int) -> tuple[float, float]:
    return _float(word << 16), _float(word & 0xFFFF0000)


def _dot_halves(a: int, b: int) -> float:
    return sum(x * y for x, y in zip(_halves(a), _halves(b), strict=True))


LEAST = -(1 << 31)  # what NaN becomes: no byte and no number of 16 bits has a bit of it


def _nearest(x: float, low: float, high: float) -> int:
    """The whole number nearest to x in [low, high], halves to even; LEAST for NaN."""
    return LEAST if x != x else round(min(max(x, low), high))


def _array_nearest(x: Array, low: Array, high: Array) -> Array:
    held = np.minimum(np.maximum(np.asarray(x, np.float32), low), high)
    return np.where(np.isnan(held), LEAST, np.nan_to_num(np.rint(held))).astype(np.int64)


def _pack(bits: int, *parts: int) -> int:
    """The parts side by side, the first in the lowest bits, as an int32."""
    mask = (1 << bits) - 1
    return wrapped(sum((int(p) & mask) << bits * k for k, p in enumerate(parts)), "int32")


def _dot_bytes(a: int, b: int) -> int:
    left = [(a >> 8 * k) & 0xFF for k in range(4)]
    right = [wrapped((b >> 8 * k) & 0xFF, "int8") for k in range(4)]
    return sum(x * y for x, y in zip(left, right, strict=True))


def float_of(bits: Array) -> Array:
    """float32 of the bits of bfloat16, integers of 16 bits."""
    return (np.asarray(bits, np.int64) << 16).astype(np.uint32).view(np.float32)


def bits_of(x: Array) -> Array:
    """The bits, as uint16, of the nearest numbers that bfloat16 has: halves to even, NaN stays."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    bits = np.where(np.isnan(x), bits | np.uint32(1 << 22), even)
    return (bits >> np.uint32(16)).astype(np.uint16)


def _array_pack(bits: int, *parts: Array) -> Array:
    mask, total = np.int64((1 << bits) - 1), np.asarray(0, np.int64)
    for k, p in enumerate(parts):
        total = total | ((np.asarray(p, np.int64) & mask) << np.int64(bits * k))
    return np.asarray(total).astype(np.uint32).view(np.int32).astype(np.int64)


def _array_dot_halves(a: Array, b: Array) -> Array:
    total = np.float64(0)
    with np.errstate(all="ignore"):
        for k in (16, 0):
            x, y = (float_of((np.asarray(v, np.int64) << k >> 16) & 0xFFFF) for v in (a, b))
            total = total + x.astype(np.float64) * y
    return np.asarray(total).astype(np.float32)


def _array_dot_bytes(a: Array, b: Array) -> Array:
    total = np.asarray(0, np.int64)
    for k in range(4):
        x = (np.asarray(a, np.int64) >> 8 * k) & 0xFF
        y = (((np.asarray(b, np.int64) >> 8 * k) & 0xFF) ^ 0x80) - 0x80
        total = total + x * y
    return np.asarray(total)


PACKED: dict[str, Packed] = {
    # the bits of the nearest bfloat16, and the float32 of such bits
    "bf16_bits": Packed(1, "int32", _bits, lambda x: bits_of(x).astype(np.int64), takes="float32"),
    "bf16_value": Packed(1, "float32", lambda v: _float(int(v) << 16), float_of),
    # two numbers of 16 bits, four of 8
    "pack16": Packed(2, "int32", lambda *v: _pack(16, *v), lambda *v: _array_pack(16, *v)),
    "pack8": Packed(4, "int32", lambda *v: _pack(8, *v), lambda *v: _array_pack(8, *v)),
    # the nearest whole number of a float32 that is held between two others
    "nearest": Packed(3, "int32", _nearest, _array_nearest, takes="float32"),
    # sums of products of two bfloat16, and of four unsigned and signed bytes
    "dot_bf16": Packed(2, "float32", _dot_halves, _array_dot_halves, 2),
    "dot_u8s8": Packed(2, "int32", _dot_bytes, _array_dot_bytes, 4),
}
DOTS = tuple(name for name, rule in PACKED.items() if rule.depth)
