"""Convolutions, in groups or not: data [n, c, *s] and weight [co, c/g, *k], 1 to 3 spatial axes.

Channels last: data [n, *s, c] and weight [*k, c/g, co]. Forms by fast algorithms are in
`conv_forms`.
Axis names are the field's: n, d, h, w, ci, co, g, and kd, kh, kw of the kernel.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.bilinear import correlation
from ansorlite.graph.ops.conv_forms import LEAST_CHANNELS, Layer, best_axes, form_of
from ansorlite.graph.ops.matmul import dense
from ansorlite.graph.ops.movement import Pads, spatial_names
from ansorlite.graph.ops.op import (
    Arrays,
    Form,
    Index,
    Op,
    Orders,
    Placed,
    Shape,
    Types,
    named,
    wide,
)
from ansorlite.graph.ops.strassen import product_forms
from ansorlite.graph.ops.windows import (
    channel_axis,
    channels_back,
    channels_last,
    check_channels_last,
    data_shape,
    padded_type,
    shifted,
    window,
    window_extents,
    windows_attrs,
    windows_perm,
)
from ansorlite.graph.ops.winograd import Axes, is_winograd
from ansorlite.graph.types import Array, Attrs, TensorType, integer, ints, pairs, same_dtype, text
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import ReduceAxis, Tensor


def _type(attrs: Attrs, types: Types) -> TensorType:
    x, w = types[0], types[1]
    if w.rank != x.rank or x.rank < 3:
        raise ModelError(f"data {x} and weight {w} need the same rank, at least 3")
    groups, first = integer(attrs, "groups"), text(attrs, "layout") == "channels_first"
    channels = x.shape[channel_axis(attrs, x.rank)]
    co, ci = (w.shape[0], w.shape[1]) if first else (w.shape[-1], w.shape[-2])
    kernel = w.shape[2:] if first else w.shape[:-2]
    if groups < 1 or channels != ci * groups or co % groups:
        raise ModelError(
            f"weight {w} with {groups} groups wants {ci * groups} input channels and output "
            f"channels divisible by {groups}; data {x} has {channels}, the weight {co}"
        )
    if len(types) > 2 and types[2].shape != (co,):
        raise ModelError(f"bias {types[2]} must have {co} elements")
    spatial = window_extents(attrs, x, kernel)
    return TensorType(data_shape(attrs, x.shape[0], spatial, co), same_dtype(types))


def _meaning(attrs: Attrs, xs: Arrays) -> Array:
    x, w = xs[0], xs[1]
    if text(attrs, "layout") == "channels_first":
        w = np.moveaxis(w, (0, 1), (-1, -2))
    data, w = wide(channels_last(attrs, x)), wide(w)
    groups, (ci, co) = integer(attrs, "groups"), w.shape[-2:]
    batch = TensorType(data.shape), TensorType(w.shape)
    out = _type({**attrs, "layout": "channels_last"}, batch).shape
    acc = np.zeros((math.prod(out[:-1]), groups, co // groups), data.dtype)
    for offset, view in shifted(data, attrs, w.shape[:-2], out[1:-1], 0.0):
        rows = view.reshape(len(acc), groups, ci)
        part = w[offset].reshape(ci, groups, co // groups)
        if ci == 1:
            acc += rows * part[0]
        else:
            for g in range(groups):
                acc[:, g] += rows[:, g] @ part[:, g]
    if len(xs) > 2:
        acc += wide(xs[2]).reshape(groups, co // groups)
    return channels_back(attrs, acc.reshape(out).astype(x.dtype))


# ---- expressions --------------------------------------------------------------------------------

# (batch, place in the output, channel of the data, index of the weight) -> their product
Tap = Callable[[Any, Sequence[Any], Any, Index], Expr]


def _taps(
    x: Tensor,
    w: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    guarded: bool,
) -> tuple[tuple[int, ...], tuple[ReduceAxis, ...], Tap]:
    """Output extents, reduction axes, and the products of a convolution.

    Products with the border are weights times 0; with `guarded` they are left out, which differs
    for weights that are infinite or NaN. Data of uint16 are the bits of bfloat16.
    """
    padded, out, ks, under = window(x, kernel, strides, pads, dilations)
    if x.dtype == "uint16":
        return out, ks, lambda n, at, c, i: te.bfloat16_value(padded[(n, *under(at), c)]) * w[i]
    if not guarded:
        return out, ks, lambda n, at, c, index: padded[(n, *under(at), c)] * w[index]
    lows = [lo for lo, _ in pads]

    def product(n: Any, at: Sequence[Any], c: Any, index: Index) -> Expr:
        where = [i - lo for i, lo in zip(under(at), lows, strict=True)]
        inside = [te.all(i >= 0, i < e) for i, e in zip(where, x.shape[1:-1], strict=True)]
        return te.select(te.all(*inside), x[(n, *where, c)] * w[index], te.const(0.0, x.dtype))

    return out, ks, product


def conv_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co], any of 1, 2, 3 spatial axes."""
    *kernel, ci, co = w.shape
    out, ks, tap = _taps(x, w, kernel, strides, pads, dilations, guarded)
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        return te.sum(tap(n, at[:-1], c, (*ks, c, at[-1])), axis=[*ks, c])

    names = ("n", *spatial_names(len(kernel)), "co")
    return te.compute((x.shape[0], *out, co), named(names, element), name=name)


def grouped_conv_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, g*ci] and weight [*k, ci, g, co] -> [n, *out, g, co] (g*co channels)."""
    *kernel, ci, groups, co = w.shape
    out, ks, tap = _taps(x, w, kernel, strides, pads, dilations, guarded)
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        *s, g, o = at
        return te.sum(tap(n, s, g * ci + c, (*ks, c, g, o)), axis=[*ks, c])

    names = ("n", *spatial_names(len(kernel)), "g", "co")
    return te.compute((x.shape[0], *out, groups, co), named(names, element), name=name)


def depthwise_conv_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, c] and weight [*k, c] -> [n, *out, c]; weight [*k, c, m] -> [n, *out, c, m]."""
    rank = len(x.shape) - 2
    kernel, rest = w.shape[:rank], w.shape[rank:]
    out, ks, tap = _taps(x, w, kernel, strides, pads, dilations, guarded)

    def element(n: Any, *at: Any) -> Expr:
        s, channel = at[:rank], at[rank:]
        return te.sum(tap(n, s, channel[0], (*ks, *channel)), axis=ks)

    names = ("n", *spatial_names(rank), "c", "m")[: rank + 1 + len(rest)]
    return te.compute((x.shape[0], *out, *rest), named(names, element), name=name)


def conv2d_nhwc(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """data [n, h, w, ci] and weight [kh, kw, ci, co] with the same stride, padding both ways."""
    return conv_nhwc(x, w, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def grouped_conv2d_nhwc(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """data [n, h, w, g*ci] and weight [kh, kw, ci, g, co] -> [n, oh, ow, g, co]."""
    return grouped_conv_nhwc(x, w, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def depthwise_conv2d_nhwc(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """data [n, h, w, c] and weight [kh, kw, c] -> [n, oh, ow, c]."""
    return depthwise_conv_nhwc(x, w, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def _tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    check_channels_last(attrs)
    x, w = xs
    if len(x.shape) == 2:
        return dense(x, w, name="conv")
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    pads = pairs(attrs, "pads")
    guarded = bool(attrs.get("guarded"))
    if integer(attrs, "groups") == 1:
        return conv_nhwc(x, w, strides, pads, dilations, guarded=guarded)
    # Weights are [*k, ci, g, co/g], but [*k, c] or [*k, c, m] where each group has one channel.
    if len(w.shape) - len(strides) == 3:
        return grouped_conv_nhwc(x, w, strides, pads, dilations, guarded=guarded)
    return depthwise_conv_nhwc(x, w, strides, pads, dilations, guarded=guarded)


def _views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """Weights [*k, ci, co] as [*k, ci, g, co/g]; without the ci of depthwise convolutions.

    A 1x1 convolution that reads every pixel is a matrix product of pixels and weights.
    """
    x, w = types[0].shape, types[1].shape
    groups = integer(attrs, "groups")
    *kernel, ci, co = w
    if groups == 1:
        matrices = _matrices(attrs, types)
        return ((x, w),) if matrices is None else (matrices, (x, w))
    if ci > 1:
        return ((x, (*kernel, ci, groups, co // groups)),)
    return ((x, (*kernel, groups) if co == groups else (*kernel, groups, co // groups)),)


def _matrices(attrs: Attrs, types: Types) -> tuple[Shape, Shape] | None:
    """Pixels and weights of a 1x1 convolution that reads every pixel; None for others."""
    x, w = types[0].shape, types[1].shape
    *kernel, ci, co = w
    apart = {*kernel, *ints(attrs, "strides"), integer(attrs, "groups")} != {1}
    if apart or any(map(any, pairs(attrs, "pads"))):
        return None
    return (math.prod(x[:-1]), ci), (ci, co)


def _forms(attrs: Attrs, types: Types) -> tuple[Form, ...]:
    matrices = _matrices(attrs, types)
    if matrices is not None:
        return product_forms(matrices[0][0], *matrices[1])
    return fast_forms(attrs, types)


def fast_forms(attrs: Attrs, types: Types, faster: float = 1.0) -> tuple[Form, ...]:
    """By fast algorithms: Winograd's square tiles first, then the most promising of all others.

    The products of the convolution as written are so many times `faster`.
    """
    layer = _layer(attrs, types)
    if layer is None:
        return ()
    square = _square(layer)
    return tuple(
        _form(attrs, layer, a) for a in (*square, *best_axes(layer, False, tuple(square), faster))
    )


def bf16_forms(attrs: Attrs, types: Types) -> tuple[Form, ...]:
    """Those with products of bfloat16: of 3x3 in tiles of 2 x 2, of others what errs little."""
    layer = _layer(attrs, types)
    if layer is None:
        return ()
    small = _square_axes(layer, 2) if _is_square(layer) and min(layer.out[-2:]) >= 2 else None
    axes = [small] if small else best_axes(layer, bf16=True)[:1]
    return tuple(_form(attrs, layer, a, bf16=True) for a in axes)


def _layer(attrs: Attrs, types: Types) -> Layer | None:
    """What a convolution's forms depend on; None for groups, and for few channels."""
    x, w = types[0].shape, types[1].shape
    *kernel, ci, co = w
    if integer(attrs, "groups") > 1 or min(ci, co) < LEAST_CHANNELS:
        return None
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    out = window_extents(attrs, TensorType(x), kernel)
    return Layer(tuple(kernel), strides, dilations, tuple(out), (ci, co))


def _is_square(layer: Layer) -> bool:
    """Whether it is a 3x3 convolution, maybe over a third axis, of stride 1."""
    return is_winograd(layer.taps, layer.strides, layer.dilations) and layer.taps[-1] == 3


def _square(layer: Layer) -> list[Axes]:
    """Tiles of 4 x 4 and, for small images, of 2 x 2 results.

    No copy follows tiles that divide the image.
    """
    least = min(layer.out[-2:]) if _is_square(layer) else 0
    sizes = [4] * (least >= 8) + [2] * (2 <= least < 20)
    return [_square_axes(layer, m) for m in sizes]


def _square_axes(layer: Layer, m: int) -> Axes:
    return (*(None,) * (len(layer.taps) - 2), *(correlation(m, layer.taps[-1]),) * 2)


def _form(attrs: Attrs, layer: Layer, axes: Axes, bf16: bool = False) -> Form:
    return form_of(layer, axes, pairs(attrs, "pads"), bf16)


def _guard(attrs: Attrs, known: Sequence[Array | None]) -> Attrs:
    """Products with the border are left out if the weights are constant and not finite.

    For finite weights zeros around the data give the same result and are faster; 0 * inf is NaN.
    ONNX's reference has zeros; onnxruntime leaves out these products for constant weights, too.
    """
    w, padded = known[1], any(map(any, pairs(attrs, "pads")))
    if w is None or not padded or bool(np.isfinite(w).all()):
        return attrs
    return {**attrs, "guarded": True}


# ---- passes -------------------------------------------------------------------------------------


def _layout(attrs: Attrs, types: Types, orders: Orders) -> Placed | None:
    if attrs["layout"] == "channels_last":
        return None
    data = windows_perm(orders, types[0].rank)
    perms = (data, (*data[1:-1], 1, 0), (0,))[: len(types)]
    return Placed(perms, data, windows_attrs(attrs, data))


def _scaled_by(attrs: Attrs, types: Types) -> tuple[int, int]:
    rank = types[0].rank
    first = text(attrs, "layout") == "channels_first"
    return channel_axis(attrs, rank), 0 if first else rank - 1


def _work(attrs: Attrs, types: Types, result: TensorType) -> int:
    channels = min(types[1].shape[0], types[1].shape[-1]) or 1
    return sum(t.size for t in types) + result.size * (types[1].size // channels)


OPS = (
    Op(
        "conv",
        "anchor",
        _type,
        _meaning,
        attrs=("strides", "pads", "dilations", "groups", "layout"),
        arity=(2, 3),
        tensor=_tensor,
        views=_views,
        forms=_forms,
        names=("data", "weight"),
        refine=_guard,
        layout=_layout,
        scaled_by=_scaled_by,
        traits=("rounded_sum",),
        work=_work,
        padded=padded_type,
    ),
)
