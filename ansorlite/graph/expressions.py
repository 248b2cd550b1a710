"""Graph operators as tensor expressions: attributes in, calls of `te_ops` out.

Element-wise operators give the expression of one element. Anchors and layout operators give a
tensor; `views` tells as what shapes they read their operands, row-major views of the graph's values
(a grouped convolution sees weights [kh, kw, ci, g, co], a dense layer a matrix), best first.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph import te_ops
from ansorlite.graph.shapes import Types
from ansorlite.graph.types import Attrs, TensorType, integer, ints, literal, number, pairs, text
from ansorlite.graph.winograd import is_winograd, winograd_conv_nhwc
from ansorlite.ir.expr import Const, Expr, is_float
from ansorlite.te.tensor import Tensor

Shape = tuple[int, ...]
Scalars = Sequence[Expr]
Tensors = Sequence[Tensor]
ScalarFn = Callable[[Attrs, Scalars], Expr]
TensorFn = Callable[[Attrs, Tensors], Tensor]
Forms = Callable[[Attrs, Types], tuple[TensorFn, ...]]
LEAST_CHANNELS = 16  # of input and output, for Winograd's forms


def relu(attrs: Attrs, xs: Scalars) -> Expr:
    return te.maximum(xs[0], te.const(0, xs[0].dtype))


def leaky_relu(attrs: Attrs, xs: Scalars) -> Expr:
    """A factor of 0 is no maximum: infinity times 0 is no number."""
    x, alpha = xs[0], number(attrs, "alpha")
    return te.maximum(x, x * alpha) if 0 < alpha <= 1 else te.select(x < 0, x * alpha, x)


def clip(attrs: Attrs, xs: Scalars) -> Expr:
    x, low, high = xs[0], literal(attrs, "min"), literal(attrs, "max")
    if low != -math.inf:
        x = te.maximum(x, te.const(low, x.dtype))
    return te.minimum(x, te.const(high, x.dtype)) if high != math.inf else x


def ceil(attrs: Attrs, xs: Scalars) -> Expr:
    return -te.floor(-xs[0])


def round_even(attrs: Attrs, xs: Scalars) -> Expr:
    """The nearest whole number, of two the even one; zeros keep the sign of what was rounded."""
    low = te.floor(xs[0])
    rest = xs[0] - low
    tie = te.floor((low + 1.0) * 0.5) * 2.0
    whole = te.select(rest < 0.5, low, te.select(rest > 0.5, low + 1.0, tie))
    return te.select(te.abs(xs[0]) <= 0.5, xs[0] * 0.0, whole)


def sign(attrs: Attrs, xs: Scalars) -> Expr:
    """-1, 0 or 1; NaN stays, and both zeros give 0."""
    (x,) = xs
    one, minus, zero = (te.const(v, x.dtype) for v in (1, -1, 0))
    return te.select(x > zero, one, te.select(x < zero, minus, x + zero))


def _quotient(a: Expr, b: Expr) -> Expr:
    """floor(a / b) of int64; 0 for a divisor of 0, and -a, which may wrap, for one of -1."""
    if isinstance(b, Const):
        return te.const(0, "int64") if b.value == 0 else -a if b.value == -1 else a // b
    plain = te.any(te.equal(b, 0), te.equal(b, -1))
    # The processor stops at these two divisors: nothing is ever divided by them.
    down = a // te.select(plain, te.const(1, "int64"), b)
    return te.select(plain, te.select(te.equal(b, 0), te.const(0, "int64"), -a), down)


def _towards_zero(a: Expr, b: Expr) -> Expr:
    """a / b of int64 without its fraction; 0 for a divisor of 0."""
    down = _quotient(a, b)
    mixed = te.any(te.all(a < 0, b > 0), te.all(a > 0, b < 0))
    return te.select(te.all(mixed, te.not_equal(down * b, a)), down + 1, down)


def _wide(xs: Scalars) -> list[Expr]:
    """Integers as int64, where -2^31 / -1 has its value, as operands that no rewrite looks into."""
    return [te.cast(x, "int64") for x in xs]


def divide(attrs: Attrs, xs: Scalars) -> Expr:
    """Integers truncate towards zero; divided by zero they give zero."""
    if is_float(xs[0]):
        return xs[0] / xs[1]
    return te.cast(_towards_zero(*_wide(xs)), xs[0].dtype)


def modulo(attrs: Attrs, xs: Scalars) -> Expr:
    """a - a/b*b of integers: with the sign of b, or with `fmod` of a; modulo zero it is zero."""
    a, b = _wide(xs)
    quotient = _towards_zero(a, b) if attrs["fmod"] else _quotient(a, b)
    rest = te.select(te.equal(b, 0), te.const(0, "int64"), a - quotient * b)
    return te.cast(rest, xs[0].dtype)


POWER_BITS = 6  # of the exponents of integers: 2^64 is beyond every integer


def power(attrs: Attrs, xs: Scalars) -> Expr:
    """Integers by squaring; to a negative power 1 and -1 stay, and the others become 0."""
    x, y = xs
    if is_float(x):
        return te.pow(x, y)
    one, zero = te.const(1, x.dtype), te.const(0, x.dtype)
    if isinstance(y, Const) and 0 <= y.value < 8:
        out: Expr = one
        for _ in range(y.value):
            out = out * x
        return out
    odd = te.equal(y % 2, 1)
    unit = te.select(
        te.equal(x, 1), one, te.select(te.equal(x, -1), te.select(odd, -one, one), zero)
    )
    out, square = one, x
    for k in range(POWER_BITS):
        out = out * te.select(te.equal((y // 2**k) % 2, 1), square, one)
        square = square * square
    inside = te.all(y >= 0, y < 2**POWER_BITS)
    return te.select(inside, out, unit)


def where(attrs: Attrs, xs: Scalars) -> Expr:
    return te.select(xs[0], xs[1], xs[2])


def cast(attrs: Attrs, xs: Scalars) -> Expr:
    (x,), dtype = xs, text(attrs, "dtype")
    if dtype == "bool" and x.dtype != "bool":
        return te.not_equal(x, te.const(0, x.dtype))
    return te.cast(x, dtype)


def unary(fn: Callable[[Any], Expr]) -> ScalarFn:
    return lambda attrs, xs: fn(xs[0])


def binary(fn: Callable[[Any, Any], Expr]) -> ScalarFn:
    return lambda attrs, xs: fn(xs[0], xs[1])


def as_they_are(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """The operands as the graph has them; scalars as one element."""
    return (tuple(t.shape or (1,) for t in types),)


def no_other(attrs: Attrs, types: Types) -> tuple[TensorFn, ...]:
    return ()


def _channels_last(attrs: Attrs) -> None:
    if text(attrs, "layout") != "channels_last":
        raise ModelError("only channels-last operators become kernels: run the passes first")


def conv_views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """Weights [*k, ci, co] as [*k, ci, g, co/g]; without the ci of depthwise convolutions.

    A 1x1 convolution that reads every pixel is a matrix product of pixels and weights.
    """
    x, w = types[0].shape, types[1].shape
    groups = integer(attrs, "groups")
    *kernel, ci, co = w
    if groups == 1:
        pointwise = {*kernel, *ints(attrs, "strides")} == {1} and not any(
            map(any, pairs(attrs, "pads"))
        )
        matrices = (((math.prod(x[:-1]), ci), (ci, co)),) if pointwise else ()
        return (*matrices, (x, w))
    if ci > 1:
        return ((x, (*kernel, ci, groups, co // groups)),)
    return ((x, (*kernel, groups) if co == groups else (*kernel, groups, co // groups)),)


def conv_forms(attrs: Attrs, types: Types) -> tuple[TensorFn, ...]:
    """Winograd's, in tiles of 4 x 4 and, for small images, of 2 x 2 results.

    Few channels do not pay for the transforms; tiles that divide the image need no copy after.
    """
    x, w = types[0].shape, types[1].shape
    *kernel, ci, co = w
    window = ints(attrs, "strides"), ints(attrs, "dilations")
    if integer(attrs, "groups") > 1 or not is_winograd(kernel, *window) or kernel[-1] != 3:
        return ()
    if min(ci, co) < LEAST_CHANNELS:
        return ()
    pads = pairs(attrs, "pads")
    out = [e - 2 + sum(p) for e, p in zip(x[-3:-1], pads[-2:], strict=True)]
    sizes = [4] * (min(out) >= 8) + [2] * (2 <= min(out) < 20)

    def form(m: int) -> TensorFn:
        joined = any(e % m for e in out)
        return lambda _, xs: winograd_conv_nhwc(xs[0], xs[1], pads, m, "conv", joined)

    return tuple(form(m) for m in sizes)


def conv(attrs: Attrs, xs: Tensors) -> Tensor:
    _channels_last(attrs)
    x, w = xs
    if len(x.shape) == 2:
        return te_ops.dense(x, w, name="conv")
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    pads = pairs(attrs, "pads")
    guarded = bool(attrs.get("guarded"))
    if integer(attrs, "groups") == 1:
        return te_ops.conv_nhwc(x, w, strides, pads, dilations, guarded=guarded)
    # Weights are [*k, ci, g, co/g], but [*k, c] or [*k, c, m] where each group has one channel.
    if len(w.shape) - len(strides) == 3:
        return te_ops.grouped_conv_nhwc(x, w, strides, pads, dilations, guarded=guarded)
    return te_ops.depthwise_conv_nhwc(x, w, strides, pads, dilations, guarded=guarded)


def conv_transpose(attrs: Attrs, xs: Tensors) -> Tensor:
    _channels_last(attrs)
    strides, pads = ints(attrs, "strides"), pairs(attrs, "pads")
    guarded = bool(attrs.get("guarded"))
    return te_ops.conv_transpose_nhwc(xs[0], xs[1], strides, pads, guarded=guarded)


def matmul_views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """[..., m, k] x [k, n] as one matrix product; equal leading axes as one batch axis."""
    a, b = types[0].shape, types[1].shape
    lead = b[:-2]
    if math.prod(lead) == 1 and len(a) >= len(b):
        merged: tuple[Shape, ...] = ((math.prod(a[:-1]), a[-1]), b[-2:])
    elif a[:-2] == lead:
        merged = ((math.prod(lead), *a[-2:]), (math.prod(lead), *b[-2:]))
    else:
        return ((a, b),)
    return (merged,) if merged == (a, b) else (merged, (a, b))


def matmul(attrs: Attrs, xs: Tensors) -> Tensor:
    a, b = xs
    dense = len(a.shape) == len(b.shape) == 2
    return te_ops.dense(a, b) if dense else te_ops.batch_matmul(a, b)


def _pool(combiner: str, attrs: Attrs, xs: Tensors) -> Tensor:
    _channels_last(attrs)
    return te_ops.pool_nhwc(
        xs[0],
        combiner,
        ints(attrs, "kernel"),
        ints(attrs, "strides"),
        pairs(attrs, "pads"),
        ints(attrs, "dilations"),
        bool(attrs["ceil_mode"]),
    )


def max_pool(attrs: Attrs, xs: Tensors) -> Tensor:
    return _pool("max", attrs, xs)


def sum_pool(attrs: Attrs, xs: Tensors) -> Tensor:
    return _pool("sum", attrs, xs)


def reduce(combiner: str) -> TensorFn:
    return lambda attrs, xs: te_ops.reduce(xs[0], combiner, ints(attrs, "axes"))


def softmax(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.softmax(xs[0], ints(attrs, "axes"))


def lrn(attrs: Attrs, xs: Tensors) -> Tensor:
    alpha, beta, bias = number(attrs, "alpha"), number(attrs, "beta"), number(attrs, "bias")
    return te_ops.lrn(xs[0], integer(attrs, "axis"), integer(attrs, "size"), alpha, beta, bias)


def transpose(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.transpose(xs[0], ints(attrs, "perm"))


def concat(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.concat(xs, integer(attrs, "axis"))


def pad(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.pad(xs[0], pairs(attrs, "pads"), literal(attrs, "value"))


def slice_(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.slice_(xs[0], ints(attrs, "starts"), ints(attrs, "sizes"), ints(attrs, "steps"))


def expand(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.expand(xs[0], ints(attrs, "shape"))


def take(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.take(xs[0], xs[1], integer(attrs, "axis"))


def resample(attrs: Attrs, xs: Tensors) -> Tensor:
    return te_ops.resample(xs[0], xs[1], xs[2], integer(attrs, "axis"))


def result_type(tensor: Tensor) -> TensorType:
    return TensorType(tensor.shape, tensor.dtype)
