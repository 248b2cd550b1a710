"""Conditions and zero terms that the ranges of loop variables decide at compile time.

`acc += select(hit, x, 0) * w` does nothing in those copies of an unrolled body where `hit` is
false, so the emitter leaves the term out: a transposed or sparse computation written with tests
costs no products with zeros. Where `w` is infinite or NaN, a program may therefore leave out the
product or give NaN. Both occur elsewhere: for a padded convolution, ONNX's reference leaves the
product out and onnxruntime gives NaN. The numpy meaning and the interpreter multiply. A product
with a literal zero is never left out.
"""

from collections.abc import Mapping
from functools import lru_cache

from ansorlite.ir.expr import COMPARE, Const, Expr, Op, is_int
from ansorlite.ir.ranges import Interval, compared

Ranges = Mapping[str, Interval]


def is_zero(e: Expr, ranges: Ranges) -> bool:
    """Is a value zero by construction, given ranges (first, last) of some variables?"""
    if isinstance(e, Const):
        return bool(e.value == 0)
    if not isinstance(e, Op):
        return False
    match e.name:
        case "mul":
            return any([is_zero(a, ranges) for a in e.args if isinstance(a, Op)])
        case "add" | "sub":
            return is_zero(e.args[0], ranges) and is_zero(e.args[1], ranges)
        case "select":
            flag = decided(e.args[0], ranges)
            if flag is None:
                return is_zero(e.args[1], ranges) and is_zero(e.args[2], ranges)
            return is_zero(e.args[1 if flag else 2], ranges)
    return False


def decided(e: Expr, ranges: Ranges) -> bool | None:
    """The truth of a condition where the ranges decide it, otherwise None."""
    if isinstance(e, Const):
        return bool(e.value)
    if not isinstance(e, Op):
        return None
    if e.name in ("and", "or"):
        parts = [decided(a, ranges) for a in e.args]
        deciding = e.name == "or"
        if deciding in parts:
            return deciding
        return None if None in parts else not deciding
    if e.name == "not":
        flag = decided(e.args[0], ranges)
        return None if flag is None else not flag
    if e.name in COMPARE and is_int(e.args[0]):
        return _compared(e, tuple([(name, ranges[name]) for name in e.free if name in ranges]))
    return None


@lru_cache(maxsize=1 << 14)
def _compared(e: Op, ranges: tuple[tuple[str, Interval], ...]) -> bool | None:
    return compared(e, dict(ranges))
