"""Tensor expressions (step `expression` of the flow): user code -> `ComputeDAG`.

`placeholder`, `reduce_axis` and `compute` write the computation; `sum`, `max` and `min` reduce; the
other functions map expressions to expressions. Example, a matrix product:

    A, B = te.placeholder((64, 32), name="A"), te.placeholder((32, 48), name="B")
    k = te.reduce_axis(32, "k")
    C = te.compute((64, 48), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), "C")
    dag = te.ComputeDAG([C])

An element access is written `A[i, j]`. `compute` proves that every index stays inside its tensor,
from the extents of the axes and the conditions of the selects around the access; otherwise
`compute` raises a ModelError. Clamp such an index with `minimum` and `maximum`, or guard the access
with `select`; this holds also for indices that are read from a tensor.

Numerics follow numpy. Integers wrap at the width of their type in every intermediate result. NaN
propagates through `maximum`, `minimum` and reductions. An integer division by zero gives zero. A
float that an integer type cannot represent (NaN, infinity, too large) is cast to the smallest
integer of the type. Expressions of indices alone are exact. The order of a sum is free, products
may be fused with sums (FMA), and terms are left out where a `select` makes a factor 0; therefore an
overflow on the way may yield another infinity or NaN.
"""

from typing import Any

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import Const, Expr, cast, compare, int_divide, wrap, wrapped_int
from ansorlite.ir.extremum import extremum
from ansorlite.ir.logic import all_of as all
from ansorlite.ir.logic import any_of as any
from ansorlite.ir.logic import bitwise, call, negate, packed, select, shift
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.points import evaluate_points
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
    "acos",
    "acosh",
    "all",
    "any",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bfloat16",
    "bfloat16_bits",
    "bfloat16_value",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "cast",
    "ceildiv",
    "compute",
    "const",
    "cos",
    "cosh",
    "dot_bfloat16",
    "dot_int8",
    "elementwise",
    "equal",
    "erf",
    "evaluate_points",
    "exp",
    "floor",
    "floordiv",
    "fmod",
    "log",
    "logical_not",
    "max",
    "maximum",
    "min",
    "minimum",
    "nearest",
    "not_equal",
    "pack",
    "placeholder",
    "pow",
    "reduce_axis",
    "relu",
    "select",
    "shift_left",
    "shift_right",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "sum",
    "tan",
    "tanh",
]


def sum(value: Any, axis: Any) -> Expr:
    """Sum of `value` over one or several reduce axes; the body of a `compute`.

    Example: `te.sum(A[i, k] * B[k, j], axis=k)`. Raises ModelError if `axis` is not made by
    `reduce_axis`, if `value` is a reduction, or if `value` is boolean.
    """
    return reduction("sum", value, axis)


def max(value: Any, axis: Any) -> Expr:
    """Maximum of `value` over one or several reduce axes; the body of a `compute`.

    Example: `te.max(A[i, k], axis=k)`. Raises ModelError as `sum` does; NaN propagates.
    """
    return reduction("max", value, axis)


def min(value: Any, axis: Any) -> Expr:
    """Minimum of `value` over one or several reduce axes; the body of a `compute`.

    Example: `te.min(A[i, k], axis=k)`. Raises ModelError as `sum` does; NaN propagates.
    """
    return reduction("min", value, axis)


def const(value: float, dtype: str = "float32") -> Const:
    """A literal. Example: `te.const(0.5)`, `te.const(True, "bool")`."""
    return Const(value, dtype)


def equal(a: Any, b: Any) -> Expr:
    """Element-wise `a == b`, dtype bool. (Python's `==` compares the structure of expressions.)"""
    return compare("eq", wrapped_int(a), wrapped_int(b))


def not_equal(a: Any, b: Any) -> Expr:
    """Element-wise `a != b`, dtype bool. (Python's `!=` compares the structure of expressions.)"""
    return compare("ne", wrapped_int(a), wrapped_int(b))


def maximum(*args: Any) -> Expr:
    """The largest argument, NaN if an argument is NaN. Example: `te.maximum(x, 0)`."""
    return extremum("max", [wrapped_int(a) for a in args])


def minimum(*args: Any) -> Expr:
    """The smallest argument, NaN if an argument is NaN. Example: `te.minimum(i + 1, n - 1)`."""
    return extremum("min", [wrapped_int(a) for a in args])


def floordiv(a: Any, b: Any) -> Expr:
    """Integer quotient rounded down, 0 for a zero divisor. AnsorliteError for floats."""
    return int_divide("floordiv", wrapped_int(a), wrapped_int(b))


def ceildiv(a: Any, b: Any) -> Expr:
    """Integer quotient rounded up, 0 for a zero divisor. AnsorliteError for floats."""
    return int_divide("ceildiv", wrapped_int(a), wrapped_int(b))


def logical_not(a: Any) -> Expr:
    """Negation of a boolean expression. AnsorliteError for other dtypes."""
    return negate(wrap(a))


def exp(x: Any, most: float | None = None) -> Expr:
    """e to the power x, for float32 and float64.

    With `most` the caller promises that x is at most so much, or NaN: kernels then need fewer
    instructions for a `most` of 40 or less, and may return anything for a larger x; for a `most` of
    0 or less, the error may be a few ulp where x < -16, and results below 2^-126 may be 0.
    """
    return call("exp", x) if most is None else call("exp", x, float(most))


def log(x: Any) -> Expr:
    """Natural logarithm, for float32 and float64."""
    return call("log", x)


def sqrt(x: Any) -> Expr:
    """Square root, for float32 and float64."""
    return call("sqrt", x)


def tanh(x: Any) -> Expr:
    """Hyperbolic tangent, for float32 and float64."""
    return call("tanh", x)


def erf(x: Any) -> Expr:
    """Gauss error function, for float32 and float64."""
    return call("erf", x)


def sigmoid(x: Any) -> Expr:
    """1 / (1 + exp(-x)), for float32 and float64."""
    return call("sigmoid", x)


def floor(x: Any) -> Expr:
    """Largest integral float that is not above x, for float32 and float64."""
    return call("floor", x)


def bfloat16(x: Any) -> Expr:
    """The nearest number that bfloat16 has, for float32; halves to even, NaN stays."""
    return call("bfloat16", x)


def abs(x: Any) -> Expr:
    """Absolute value of floats and integers."""
    return call("abs", x)


def pow(x: Any, y: Any) -> Expr:
    """x to the power y with the special cases of C's `pow`, for float32 and float64."""
    return call("pow", x, y)


def sin(x: Any) -> Expr:
    """Sine of x radians, for float32 and float64; NaN for infinities."""
    return call("sin", x)


def cos(x: Any) -> Expr:
    """Cosine of x radians, for float32 and float64; NaN for infinities."""
    return call("cos", x)


def tan(x: Any) -> Expr:
    """Tangent of x radians, for float32 and float64; NaN for infinities."""
    return call("tan", x)


def asin(x: Any) -> Expr:
    """Arc sine, for float32 and float64; NaN outside of [-1, 1]."""
    return call("asin", x)


def acos(x: Any) -> Expr:
    """Arc cosine, for float32 and float64; NaN outside of [-1, 1]."""
    return call("acos", x)


def atan(x: Any) -> Expr:
    """Arc tangent, for float32 and float64."""
    return call("atan", x)


def sinh(x: Any) -> Expr:
    """Hyperbolic sine, for float32 and float64."""
    return call("sinh", x)


def cosh(x: Any) -> Expr:
    """Hyperbolic cosine, for float32 and float64."""
    return call("cosh", x)


def asinh(x: Any) -> Expr:
    """Inverse hyperbolic sine, for float32 and float64."""
    return call("asinh", x)


def acosh(x: Any) -> Expr:
    """Inverse hyperbolic cosine, for float32 and float64; NaN below 1."""
    return call("acosh", x)


def atanh(x: Any) -> Expr:
    """Inverse hyperbolic tangent, for float32 and float64; NaN outside of [-1, 1]."""
    return call("atanh", x)


def fmod(x: Any, y: Any) -> Expr:
    """Remainder of x / y with the sign of x, as C's `fmod`, for float32 and float64."""
    return call("fmod", x, y)


def bitwise_and(a: Any, b: Any) -> Expr:
    """The bits that both integers have. AnsorliteError for other dtypes."""
    return bitwise("bit_and", a, b)


def bitwise_or(a: Any, b: Any) -> Expr:
    """The bits that one of the integers has, or both. AnsorliteError for other dtypes."""
    return bitwise("bit_or", a, b)


def bitwise_xor(a: Any, b: Any) -> Expr:
    """The bits in which the integers differ. AnsorliteError for other dtypes."""
    return bitwise("bit_xor", a, b)


def shift_left(a: Any, b: Any) -> Expr:
    """The integer `a` moved by `b` bits, wrapped to its width. AnsorliteError for other dtypes."""
    return shift("shift_left", a, b)


def shift_right(a: Any, b: Any) -> Expr:
    """The integer `a` moved by `b` bits, its sign kept. AnsorliteError for other dtypes."""
    return shift("shift_right", a, b)


def bfloat16_bits(x: Any) -> Expr:
    """int32: the upper 16 bits of the nearest bfloat16 of a float32; halves to even, NaN stays."""
    return packed("bf16_bits", x)


def bfloat16_value(bits: Any) -> Expr:
    """float32: the number whose upper 16 bits are the lower ones of an int32."""
    return packed("bf16_value", bits)


def nearest(x: Any, low: Any, high: Any) -> Expr:
    """int32: the whole number nearest to a float32 that is held between two others.

    Halves go to the even number; NaN becomes the least int32. The ends are whole numbers.
    """
    return packed("nearest", x, low, high)


def pack(*parts: Any) -> Expr:
    """int32: two numbers of 16 bits, or four of 8, side by side, the first in the lowest bits."""
    if len(parts) not in (2, 4):
        raise AnsorliteError(f"{len(parts)} numbers do not fill 32 bits: give two or four")
    return packed("pack16" if len(parts) == 2 else "pack8", *parts)


def dot_bfloat16(a: Any, b: Any) -> Expr:
    """float32: the sum of products of two pairs of bfloat16, each pair an int32."""
    return packed("dot_bf16", a, b)


def dot_int8(a: Any, b: Any) -> Expr:
    """int32: the sum of products of four bytes, unsigned of `a` and signed of `b`."""
    return packed("dot_u8s8", a, b)
