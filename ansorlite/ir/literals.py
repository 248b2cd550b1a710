"""Number semantics of element types: ranges, wrapping, rounding and conversion of constants.

In: Python numbers and dtype names. Integers wrap in two's complement; floats round to nearest and
overflow to infinity. A float converted to an integer is truncated; NaN, infinity and values out of
range become the smallest integer, as on x86. The numpy evaluation, the interpreter and native code
all follow these rules.
"""

import struct
from typing import Any

BITS = {"int32": 32, "int64": 64}  # of the integer types
BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}  # of an element in memory


def least(dtype: str) -> int:
    """The smallest integer of the dtype."""
    return -(1 << (BITS[dtype] - 1))


def wrapped(value: int, dtype: str) -> int:
    """An integer modulo 2^32 or 2^64, in the range of the dtype."""
    low = least(dtype)
    return value if low <= value < -low else ((value - low) & ((1 << BITS[dtype]) - 1)) + low


def rounded(value: float, dtype: str) -> float:
    """The nearest float of the dtype."""
    if dtype != "float32":
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def converted(value: float | bool, dtype: str) -> Any:
    """A number converted to another dtype."""
    if dtype == "bool":
        return bool(value)
    if dtype not in BITS:
        try:
            return rounded(float(value), dtype)
        except OverflowError:  # integer beyond the float range
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, float):
        low = least(dtype)
        return int(value) if low <= value < -low else low
    return wrapped(int(value), dtype)


def floor_divide(x: int, y: int) -> int:
    """Integer quotient rounded down; 0 for a zero divisor."""
    return x // y if y else 0


def ceil_divide(x: int, y: int) -> int:
    """Integer quotient rounded up; 0 for a zero divisor."""
    return -(-x // y) if y else 0


def modulo(x: int, y: int) -> int:
    """Remainder of floor division, with the sign of the divisor; 0 for a zero divisor."""
    return x % y if y else 0
