"""Tensor expressions (step `expression` of the flow): user code -> `ComputeDAG`.

`placeholder`, `reduce_axis` and `compute` write the computation; `sum`, `max` and `min` reduce;
the rest are functions of expressions. Element access is `A[i, j]`. Numbers follow numpy: integers
wrap at the width of their type in every intermediate, NaN passes through `maximum` and `minimum`
and through reductions, a division of integers by zero gives zero, and a float that is cast to an
integer type without that number (NaN, infinities) becomes the least one. Expressions of indices
alone are exact. Sums are added in any order, products fused with them (FMA), and left out where a
`select` makes a factor 0: what overflows on the way may be another infinity or NaN.
"""

from typing import Any

from ansorlite.ir.expr import Const, Expr, cast, compare, int_divide, settled, wrap
from ansorlite.ir.extremum import extremum
from ansorlite.ir.logic import all_of as all
from ansorlite.ir.logic import any_of as any
from ansorlite.ir.logic import call, negate, select
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.evaluate import evaluate_points
from ansorlite.te.tensor import (
    ComputeOp,
    Placeholder,
    Tensor,
    compute,
    elementwise,
    placeholder,
    reduce_axis,
    reduction,
    relu,
)

__all__ = [
    "ComputeDAG",
    "ComputeOp",
    "Expr",
    "Placeholder",
    "Tensor",
    "abs",
    "all",
    "any",
    "cast",
    "ceildiv",
    "compute",
    "const",
    "elementwise",
    "equal",
    "erf",
    "evaluate_points",
    "exp",
    "floor",
    "floordiv",
    "log",
    "logical_not",
    "max",
    "maximum",
    "min",
    "minimum",
    "not_equal",
    "placeholder",
    "pow",
    "reduce_axis",
    "relu",
    "select",
    "sigmoid",
    "sqrt",
    "sum",
    "tanh",
]


def sum(value: Any, axis: Any) -> Expr:
    """Sum of `value` over one reduce axis or a sequence of them."""
    return reduction("sum", value, axis)


def max(value: Any, axis: Any) -> Expr:
    """Maximum of `value` over one reduce axis or a sequence of them."""
    return reduction("max", value, axis)


def min(value: Any, axis: Any) -> Expr:
    """Minimum of `value` over one reduce axis or a sequence of them."""
    return reduction("min", value, axis)


def const(value: float, dtype: str = "float32") -> Const:
    return Const(value, dtype)


def equal(a: Any, b: Any) -> Expr:
    return compare("eq", settled(a), settled(b))


def not_equal(a: Any, b: Any) -> Expr:
    return compare("ne", settled(a), settled(b))


def maximum(*args: Any) -> Expr:
    """The largest of the arguments; a NaN among them is the result."""
    return extremum("max", [settled(a) for a in args])


def minimum(*args: Any) -> Expr:
    """The smallest of the arguments; a NaN among them is the result."""
    return extremum("min", [settled(a) for a in args])


def floordiv(a: Any, b: Any) -> Expr:
    """The quotient of integers rounded down; 0 where the divisor is zero."""
    return int_divide("floordiv", settled(a), settled(b))


def ceildiv(a: Any, b: Any) -> Expr:
    """The quotient of integers rounded up; 0 where the divisor is zero."""
    return int_divide("ceildiv", settled(a), settled(b))


def logical_not(a: Any) -> Expr:
    return negate(wrap(a))


def exp(x: Any) -> Expr:
    return call("exp", x)


def log(x: Any) -> Expr:
    return call("log", x)


def sqrt(x: Any) -> Expr:
    return call("sqrt", x)


def tanh(x: Any) -> Expr:
    return call("tanh", x)


def erf(x: Any) -> Expr:
    return call("erf", x)


def sigmoid(x: Any) -> Expr:
    return call("sigmoid", x)


def floor(x: Any) -> Expr:
    return call("floor", x)


def abs(x: Any) -> Expr:
    return call("abs", x)


def pow(x: Any, y: Any) -> Expr:
    """x to the power y, as C's pow."""
    return call("pow", x, y)
