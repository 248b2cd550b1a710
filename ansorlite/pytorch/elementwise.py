"""Readers of aten's element-wise operators and reductions.

A reader gets the `Context` and all arguments of the operator's schema in order, defaults included.
Operands are cast as torch promotes them: to the dtype of the result, or for comparisons to the
common dtype of the operands.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.table import READERS as ONNX_READERS
from ansorlite.pytorch.context import Context, Result, Value

Reader = Callable[..., Result]
BITWISE = {"And": "BitwiseAnd", "Or": "BitwiseOr", "Xor": "BitwiseXor"}


# ---- one operand --------------------------------------------------------------------------------


def unary(op: str) -> Reader:
    """The operator `op` of ONNX of one operand, computed in the dtype of the result."""
    return lambda c, x: c.by_onnx(op, c.cast(x, c.dtype()))


def special(op: str) -> Reader:
    """A condition of ONNX of one floating-point operand; no integer is NaN or infinite."""

    def convert(c: Context, x: Value) -> Value:
        if not c.type(x).dtype.startswith("float"):
            return c.constant(np.zeros(c.shape(x), np.bool_))
        if op == "IsNaN" and op not in ONNX_READERS:
            return c.emit("logical_not", [c.emit("equal", [x, x])])
        return c.by_onnx(op, x)

    return convert


def rsqrt(c: Context, x: Value) -> Value:
    dtype = c.dtype()
    return c.emit("div", [c.cast(1, dtype), c.emit("sqrt", [c.cast(x, dtype)])])


def sign(c: Context, x: Value) -> Value:
    """-1, 0 or 1; 0 for NaN, other than in ONNX."""
    out = c.emit("sign", [x])
    if not c.type(x).dtype.startswith("float"):
        return out
    return c.emit("where", [c.emit("equal", [x, x]), out, c.cast(0, c.type(x).dtype)])


def silu(c: Context, x: Value) -> Value:
    return c.emit("mul", [x, c.emit("sigmoid", [x])])


def gelu(c: Context, x: Value, approximate: str) -> Value:
    return c.by_onnx("Gelu", x, approximate=approximate)


def mish(c: Context, x: Value) -> Value:
    return c.emit("mul", [x, c.emit("tanh", [c.by_onnx("Softplus", x)])])


def softplus(c: Context, x: Value, beta: float, threshold: float) -> Value:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    dtype = c.type(x).dtype
    scaled = x if beta == 1 else c.emit("mul", [x, c.cast(beta, dtype)])
    out = c.by_onnx("Softplus", scaled)
    out = out if beta == 1 else c.emit("div", [out, c.cast(beta, dtype)])
    if threshold >= 20:  # there the two are equal in float32
        return out
    return c.emit("where", [c.emit("less", [c.cast(threshold, dtype), scaled]), x, out])


def elu(c: Context, x: Value, alpha: float, scale: float, input_scale: float) -> Value:
    """scale * x above 0, else scale * alpha * (exp(input_scale * x) - 1)."""
    dtype = c.type(x).dtype
    zero, one = c.cast(0, dtype), c.cast(1, dtype)
    low = c.emit("mul", [c.emit("minimum", [x, zero]), c.cast(input_scale, dtype)])
    low = c.emit("mul", [c.emit("sub", [c.emit("exp", [low]), one]), c.cast(alpha, dtype)])
    out = c.emit("where", [c.emit("less", [zero, x]), x, low])
    return out if scale == 1 else c.emit("mul", [out, c.cast(scale, dtype)])


def leaky_relu(c: Context, x: Value, slope: float) -> Value:
    return c.emit("leaky_relu", [x], alpha=float(slope))


def hard_sigmoid(c: Context, x: Value) -> Value:
    return c.by_onnx("HardSigmoid", x, alpha=1 / 6, beta=0.5)


def log1p(c: Context, x: Value) -> Value:
    """log(u) * x / (u - 1) with u = 1 + x, whose error is u's own; x itself where u is 1."""
    dtype = c.dtype()
    x, one = c.cast(x, dtype), c.cast(1, dtype)
    u = c.emit("add", [x, one])
    plain = c.emit(
        "logical_or", [c.emit("equal", [u, one]), c.emit("equal", [x, c.cast(np.inf, dtype)])]
    )
    rest = c.emit("div", [x, c.emit("sub", [u, one])])
    return c.emit("where", [plain, x, c.emit("mul", [c.emit("log", [u]), rest])])


def expm1(c: Context, x: Value) -> Value:
    """tanh(x / 2) * (exp(x) + 1), which loses nothing near zero."""
    dtype = c.dtype()
    x = c.cast(x, dtype)
    half = c.emit("tanh", [c.emit("mul", [x, c.cast(0.5, dtype)])])
    return c.emit("mul", [half, c.emit("add", [c.emit("exp", [x]), c.cast(1, dtype)])])


def log_to(base: float) -> Reader:
    def convert(c: Context, x: Value) -> Value:
        dtype = c.dtype()
        out = c.emit("log", [c.cast(x, dtype)])
        return c.emit("mul", [out, c.cast(1 / math.log(base), dtype)])

    return convert


def exp2(c: Context, x: Value) -> Value:
    dtype = c.dtype()
    return c.emit("pow", [c.cast(2, dtype), c.cast(x, dtype)])


def trunc(c: Context, x: Value) -> Value:
    dtype = c.type(x).dtype
    if not dtype.startswith("float"):
        return x
    down = c.emit("less", [c.cast(0, dtype), x])
    return c.emit("where", [down, c.emit("floor", [x]), c.emit("ceil", [x])])


def rounding(op: str) -> Reader:
    """floor, ceil, round: integers stay."""
    return lambda c, x: c.emit(op, [x]) if c.type(x).dtype.startswith("float") else x


def bitwise_not(c: Context, x: Value) -> Value:
    return c.by_onnx("Not" if c.type(x).dtype == "bool" else "BitwiseNot", x)


def logical_not(c: Context, x: Value) -> Value:
    return c.emit("logical_not", [c.cast(x, "bool")])


def to_copy(c: Context, x: Value, *options: Any) -> Value:
    return c.cast(x, c.dtype())


def clamp(c: Context, x: Value, low: Any, high: Any) -> Value:
    dtype = c.dtype()
    x = c.cast(x, dtype)
    if isinstance(low, Value) or isinstance(high, Value):
        for op, limit in (("maximum", low), ("minimum", high)):
            x = x if limit is None else c.emit(op, [x, c.cast(limit, dtype)])
        return x
    real = float if dtype.startswith("float") else int
    least = -math.inf if low is None else real(low)
    return c.emit("clip", [x], min=least, max=math.inf if high is None else real(high))


# ---- two operands and more ----------------------------------------------------------------------


def _both(c: Context, a: Any, b: Any, dtype: str) -> list[str]:
    return [c.cast(a, dtype), c.cast(b, dtype)]


def binary(op: str) -> Reader:
    return lambda c, a, b: c.emit(op, _both(c, a, b, c.dtype()))


def summed(op: str, swapped: bool = False) -> Reader:
    """a + alpha * b, or a - alpha * b; of conditions a sum is a disjunction."""

    def convert(c: Context, a: Any, b: Any, alpha: Any) -> Value:
        dtype = c.dtype()
        if dtype == "bool":
            return c.emit("logical_or", _both(c, a, b, dtype))
        left, right = _both(c, *((b, a) if swapped else (a, b)), dtype)
        if alpha != 1:
            right = c.emit("mul", [right, c.cast(alpha, dtype)])
        return c.emit(op, [left, right])

    return convert


def mul(c: Context, a: Any, b: Any) -> Value:
    dtype = c.dtype()
    return c.emit("logical_and" if dtype == "bool" else "mul", _both(c, a, b, dtype))


def div(c: Context, a: Any, b: Any, mode: str | None = None) -> Value:
    """A quotient; with a mode cut off towards zero ("trunc") or minus infinity ("floor")."""
    dtype = c.dtype()
    left, right = _both(c, a, b, dtype)
    if not dtype.startswith("float"):
        if mode == "floor":
            left = c.emit("sub", [left, c.emit("mod", [left, right], fmod=False)])
        return c.emit("div", [left, right])
    out = c.emit("div", [left, right])
    if mode is None:
        return out
    known = c.known(right)
    if known is None or not np.all(np.abs(np.frexp(known)[0]) == 0.5):
        raise ModelError(
            f"a {mode} quotient of floating-point numbers needs a divisor that is a power of two: "
            "divide integers"
        )
    return c.emit("floor", [out]) if mode == "floor" else trunc(c, out)


def remainder(fmod: bool) -> Reader:
    return lambda c, a, b: c.by_onnx("Mod", *_both(c, a, b, c.dtype()), fmod=int(fmod))


def pow_(c: Context, a: Any, b: Any) -> Value:
    dtype = c.dtype()
    if not isinstance(b, Value) and b in (2, 3, 0.5):
        x = c.cast(a, dtype)
        if b == 0.5:
            return c.emit("sqrt", [x])
        square = c.emit("mul", [x, x])
        return square if b == 2 else c.emit("mul", [square, x])
    return c.emit("pow", _both(c, a, b, dtype))


def compare(op: str, swapped: bool = False, inverted: bool = False) -> Reader:
    """equal, less, less_equal in the common dtype of both operands; conditions as integers."""

    def convert(c: Context, a: Any, b: Any) -> Value:
        dtype = c.common_dtype()
        dtype = "int32" if dtype == "bool" else dtype
        operands = _both(c, *((b, a) if swapped else (a, b)), dtype)
        out = c.emit(op, operands)
        return c.emit("logical_not", [out]) if inverted else out

    return convert


def logical(op: str) -> Reader:
    return lambda c, a, b: c.by_onnx(op, *_both(c, a, b, "bool"))


def bitwise(op: str) -> Reader:
    def convert(c: Context, a: Any, b: Any) -> Value:
        dtype = c.dtype()
        return c.by_onnx(op if dtype == "bool" else BITWISE[op], *_both(c, a, b, dtype))

    return convert


def where(c: Context, condition: Value, a: Any, b: Any) -> Value:
    return c.emit("where", [c.cast(condition, "bool"), *_both(c, a, b, c.dtype())])


# ---- reductions ---------------------------------------------------------------------------------


def axes_of(c: Context, x: Value, dims: int | Sequence[int] | None) -> tuple[int, ...]:
    """The axes from the front; all where none is given."""
    rank = c.rank(x)
    given = [dims] if isinstance(dims, int) else list(dims or ())
    return tuple(sorted({c.axis(d, rank) for d in given if rank})) if given else tuple(range(rank))


def _reduced(c: Context, op: str, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return c.emit(op, [x], axes=axes, keepdims=keep) if axes else x


def reduction(op: str) -> Reader:
    """sum, mean, amax, amin over dims; `dtype` is that of the result."""

    def convert(
        c: Context, x: Value, dims: Any = None, keep: bool = False, dtype: Any = None
    ) -> Value:
        return _reduced(c, op, c.cast(x, c.dtype()), axes_of(c, x, dims), keep)

    return convert


def whole(op: str) -> Reader:
    """The same of all elements: sum(x, dtype)."""
    return lambda c, x, dtype=None: reduction(op)(c, x)


def condition(op: str) -> Reader:
    """any and all, as the extreme of integers."""

    def convert(c: Context, x: Value, dims: Any = None, keep: bool = False) -> Value:
        bits = c.cast(c.cast(x, "bool"), "int32")
        return c.cast(_reduced(c, op, bits, axes_of(c, x, dims), keep), "bool")

    return convert


def extreme(op: str, place: str) -> Reader:
    """max.dim and min.dim: the extreme elements, and where they are."""

    def convert(c: Context, x: Value, dim: int, keep: bool) -> Result:
        if not c.rank(x):
            return x, c.constant(np.zeros((), np.int64))
        axis = c.axis(dim, c.rank(x))
        values = _reduced(c, op, x, (axis,), keep)
        return values, c.by_onnx(place, x, axis=axis, keepdims=int(keep))

    return convert


def place_of(op: str) -> Reader:
    """argmax and argmin; without a dim over the elements in a row."""

    def convert(c: Context, x: Value, dim: int | None, keep: bool) -> Value:
        if dim is None or not c.rank(x):
            flat = c.reshape(x, (c.type(x).size,))
            return c.reshape(c.by_onnx(op, flat, axis=0, keepdims=0), c.result_shape())
        return c.by_onnx(op, x, axis=c.axis(dim, c.rank(x)), keepdims=int(keep))

    return convert


def _variance(c: Context, x: Value, dims: Any, correction: Any, keep: bool) -> tuple[Value, Value]:
    """(variance, mean) over dims, both with all axes kept or not."""
    axes, dtype = axes_of(c, x, dims), c.dtype()
    count = math.prod(c.shape(x)[a] for a in axes)
    mean = _reduced(c, "reduce_mean", x, axes, True)
    centred = c.emit("sub", [x, mean])
    total = _reduced(c, "reduce_sum", c.emit("mul", [centred, centred]), axes, keep)
    divisor = max(count - (1 if correction is None else correction), 0)
    with np.errstate(all="ignore"):
        out = c.emit("div", [total, c.cast(divisor, dtype)])
    return out, c.reshape(mean, c.shape(out))


def var(c: Context, x: Value, dims: Any, correction: Any, keep: bool) -> Value:
    return _variance(c, x, dims, correction, keep)[0]


def std(c: Context, x: Value, dims: Any, correction: Any, keep: bool) -> Value:
    return c.emit("sqrt", [_variance(c, x, dims, correction, keep)[0]])


def var_mean(c: Context, x: Value, dims: Any, correction: Any, keep: bool) -> Result:
    return _variance(c, x, dims, correction, keep)


def vector_norm(c: Context, x: Value, order: Any, dims: Any, keep: bool, dtype: Any) -> Value:
    x, axes = c.cast(x, c.dtype()), axes_of(c, x, dims)
    if order == 2:
        return c.emit("sqrt", [_reduced(c, "reduce_sum", c.emit("mul", [x, x]), axes, keep)])
    found = {1: "reduce_sum", math.inf: "reduce_max", -math.inf: "reduce_min"}
    if order not in found:
        raise ModelError(f"a norm of order {order}: only 1, 2 and infinity are supported")
    return _reduced(c, found[order], c.emit("abs", [x]), axes, keep)


def product(
    c: Context, x: Value, dim: int | None = None, keep: Any = 0, dtype: Any = None
) -> Value:
    axes = np.asarray(axes_of(c, x, dim), np.int64)
    return c.by_onnx("ReduceProd", c.cast(x, c.dtype()), c.constant(axes), keepdims=int(bool(keep)))


def whole_product(c: Context, x: Value, dtype: Any = None) -> Value:
    return product(c, x)


def running(op: str) -> Reader:
    """cumsum and cumprod along an axis, `op` of ONNX."""

    def convert(c: Context, x: Value, dim: int, dtype: Any) -> Value:
        axis = c.constant(np.asarray(c.axis(dim, c.rank(x)), np.int64))
        x = c.cast(x, c.dtype())
        return c.by_onnx(op, x, axis) if c.rank(x) else x

    return convert


def top_k(c: Context, x: Value, k: int, dim: int, largest: bool, ordered: bool) -> Result:
    axis, count = c.axis(dim, c.rank(x)), c.constant(np.asarray([k], np.int64))
    options = {"axis": axis, "largest": int(largest), "sorted": int(ordered)}
    return c.several_by_onnx("TopK", 2, x, count, **options)


def sort(c: Context, x: Value, dim: int, descending: bool) -> Result:
    return top_k(c, x, c.shape(x)[c.axis(dim, c.rank(x))], dim, descending, True)


def stable_sort(c: Context, x: Value, stable: Any, dim: int, descending: bool) -> Result:
    return sort(c, x, dim, descending)
