"""Number semantics of element types: ranges, wrapping, rounding and conversion of constants.

In: Python numbers and dtype names. Integers wrap in two's complement; floats round to nearest and
overflow to infinity. A float converted to an integer is truncated; NaN, infinity and values out of
range become the smallest integer, as on x86. Elements of `WIDE` are stored in few bytes: arithmetic
has them in the wider dtype, through which conversions from floats go, too. The numpy evaluation,
the interpreter and native code all follow these rules.
"""

import struct
from typing import Any

BITS = {  # of the integer types
    **{"int8": 8, "int16": 16, "int32": 32, "int64": 64},
    **{"uint8": 8, "uint16": 16, "uint32": 32},
}
WIDE = {  # the dtype of arithmetic on elements that are only stored in theirs
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), "int32"),
    **{"uint32": "int64", "float16": "float32"},
}
BYTES = {  # of an element in memory
    **{k: n // 8 for k, n in BITS.items()},
    **{"float16": 2, "float32": 4, "float64": 8, "bool": 1},
}


def least(dtype: str) -> int:
    """The smallest integer of the dtype."""
    return 0 if dtype.startswith("uint") else -(1 << (BITS[dtype] - 1))


def range_of(dtype: str) -> tuple[int, int]:
    """The smallest and the largest integer of the dtype."""
    return least(dtype), least(dtype) + (1 << BITS[dtype]) - 1


def wrapped(value: int, dtype: str) -> int:
    """An integer modulo 2^bits, in the range of the dtype."""
    low = least(dtype)
    return value if low <= value < -low else ((value - low) & ((1 << BITS[dtype]) - 1)) + low


def rounded(value: float, dtype: str) -> float:
    """The nearest float of the dtype; of float16, the nearest to the nearest float32."""
    if dtype == "float16":
        value = rounded(value, "float32")
    code = {"float16": "e", "float32": "f"}.get(dtype)
    if code is None:
        return value
    try:
        return float(struct.unpack(code, struct.pack(code, value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def bfloat16(value: float) -> float:
    """The nearest float32 whose last 16 bits are 0, halves to even; NaN stays NaN."""
    if value != value:
        return value
    (bits,) = struct.unpack("I", struct.pack("f", rounded(value, "float32")))
    even = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("f", struct.pack("I", even))[0])


def converted(value: float | bool, dtype: str) -> Any:
    """A number converted to another dtype."""
    if dtype == "bool":
        return bool(value)
    if dtype not in BITS:
        try:
            return rounded(float(value), dtype)
        except OverflowError:  # integer beyond the float range
            return float("inf") if value > 0 else float("-inf")
    if isinstance(value, float) and dtype in WIDE:
        return wrapped(converted(value, WIDE[dtype]), dtype)
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
