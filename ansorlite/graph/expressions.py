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
from ansorlite.graph.types import Attrs, TensorType, integer, ints, number, pairs, text
from ansorlite.graph.winograd import is_winograd, winograd_conv_nhwc
from ansorlite.ir.expr import Expr
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
    x, alpha = xs[0], number(attrs, "alpha")
    return te.maximum(x, x * alpha) if 0 <= alpha <= 1 else te.select(x < 0, x * alpha, x)


def clip(attrs: Attrs, xs: Scalars) -> Expr:
    x, low, high = xs[0], number(attrs, "min"), number(attrs, "max")
    if low > -math.inf:
        x = te.maximum(x, te.const(low, x.dtype))
    return te.minimum(x, te.const(high, x.dtype)) if high < math.inf else x


def ceil(attrs: Attrs, xs: Scalars) -> Expr:
    return -te.floor(-xs[0])


def round_even(attrs: Attrs, xs: Scalars) -> Expr:
    """The nearest whole number, of two the even one."""
    low = te.floor(xs[0])
    rest = xs[0] - low
    tie = te.floor((low + 1.0) * 0.5) * 2.0
    return te.select(rest < 0.5, low, te.select(rest > 0.5, low + 1.0, tie))


def sign(attrs: Attrs, xs: Scalars) -> Expr:
    (x,) = xs
    one, minus = te.const(1, x.dtype), te.const(-1, x.dtype)
    return te.select(x > te.const(0, x.dtype), one, te.select(x < te.const(0, x.dtype), minus, x))


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
    if integer(attrs, "groups") == 1:
        return te_ops.conv_nhwc(x, w, strides, pads, dilations)
    # Weights are [*k, ci, g, co/g], but [*k, c] or [*k, c, m] where each group has one channel.
    if len(w.shape) - len(strides) == 3:
        return te_ops.grouped_conv_nhwc(x, w, strides, pads, dilations)
    return te_ops.depthwise_conv_nhwc(x, w, strides, pads, dilations)


def conv_transpose(attrs: Attrs, xs: Tensors) -> Tensor:
    _channels_last(attrs)
    return te_ops.conv_transpose_nhwc(xs[0], xs[1], ints(attrs, "strides"), pairs(attrs, "pads"))


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
    return te_ops.pad(xs[0], pairs(attrs, "pads"), number(attrs, "value"))


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
