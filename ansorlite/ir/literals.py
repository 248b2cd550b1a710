"""What numbers mean in an element type: the one place for the ranges and roundings of constants.

In: Python numbers and names of types. Integers wrap in two's complement; floats round to nearest
and become infinite beyond the range. A float that becomes an integer loses its fraction; NaN,
infinities and what is out of range become the least integer, as on x86. The numpy meaning, the
interpreter and native code all follow these rules.
"""

import struct
from typing import Any

BITS = {"int32": 32, "int64": 64}


def least(dtype: str) -> int:
    """The smallest number of an integer type."""
    return -(1 << (BITS[dtype] - 1))


def wrapped(value: int, dtype: str) -> int:
    """An integer modulo 2^32 or 2^64, in the range of the type."""
    low = least(dtype)
    return value if low <= value < -low else ((value - low) & ((1 << BITS[dtype]) - 1)) + low


def rounded(value: float, dtype: str) -> float:
    """The nearest float of the type."""
    if dtype != "float32":
        return value
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def converted(value: float | bool, dtype: str) -> Any:
    """A number cast to another type."""
    if dtype == "bool":
        return bool(value)
    if dtype not in BITS:
        try:
            return rounded(float(value), dtype)
        except OverflowError:  # an integer beyond all floats
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, float):
        low = least(dtype)
        return int(value) if low <= value < -low else low
    return wrapped(int(value), dtype)


def floor_divide(x: int, y: int) -> int:
    """The quotient rounded down; 0 for a divisor of zero."""
    return x // y if y else 0


def ceil_divide(x: int, y: int) -> int:
    """The quotient rounded up; 0 for a divisor of zero."""
    return -(-x // y) if y else 0


def modulo(x: int, y: int) -> int:
    """The remainder of floor division, with the divisor's sign; 0 for a divisor of zero."""
    return x % y if y else 0
