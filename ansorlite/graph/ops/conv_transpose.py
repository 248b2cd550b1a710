"""Transposed convolutions: data [n, c, *s] and weight [c, co, *k]; extents (s - 1) * stride + k.

Channels last: data [n, *s, c] and weight [*k, c, co]. The padding is taken off the result; after
the data it may be negative. Groups and dilations are another operator's: see the ONNX reader.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.movement import Pads, pad, spatial_names
from ansorlite.graph.ops.op import Arrays, Op, Orders, Placed, Types, named, wide
from ansorlite.graph.ops.windows import (
    channel_axis,
    channels_back,
    channels_last,
    check_channels_last,
    data_shape,
    last_channels,
    spatial_axes,
)
from ansorlite.graph.types import (
    Array,
    Attrs,
    TensorType,
    ints,
    pairs,
    same_dtype,
    text,
    type_of,
)
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor


def _type(attrs: Attrs, types: Types) -> TensorType:
    x, w = types
    if w.rank != x.rank or x.rank < 3:
        raise ModelError(f"data {x} and weight {w} need the same rank, at least 3")
    first = text(attrs, "layout") == "channels_first"
    channels = x.shape[channel_axis(attrs, x.rank)]
    ci, co = (w.shape[0], w.shape[1]) if first else (w.shape[-2], w.shape[-1])
    if channels != ci:
        raise ModelError(f"weight {w} wants {ci} input channels; data {x} has {channels}")
    axes, kernel = spatial_axes(attrs, x.rank), w.shape[2:] if first else w.shape[:-2]
    strides, pad = ints(attrs, "strides"), pairs(attrs, "pads")
    if not len(strides) == len(pad) == len(axes) or min(strides) < 1:
        raise ModelError(f"data {x} needs {len(axes)} strides and pads")
    rows = zip(axes, kernel, strides, pad, strict=True)
    out = tuple((x.shape[a] - 1) * s + k - sum(p) for a, k, s, p in rows)
    if min(out) < 1:
        raise ModelError(f"extents {list(out)} of the result: the padding is too much")
    return TensorType(data_shape(attrs, x.shape[0], out, co), same_dtype(types))


def _meaning(attrs: Attrs, xs: Arrays) -> Array:
    """Every element of the data adds its multiple of the kernel to the result."""
    x, w = xs
    result = np.empty(_type(attrs, tuple(map(type_of, xs))).shape, "b")
    spatial = channels_last(attrs, result).shape[1:-1]
    first = text(attrs, "layout") == "channels_first"
    w = wide(np.moveaxis(w, (0, 1), (-2, -1)) if first else w)
    data, strides, pad = wide(channels_last(attrs, x)), ints(attrs, "strides"), pairs(attrs, "pads")
    *kernel, _, co = w.shape
    rows = list(zip(data.shape[1:-1], kernel, strides, strict=True))
    ends = [
        max(o + lo, (n - 1) * s + k)
        for o, (lo, _), (n, k, s) in zip(spatial, pad, rows, strict=True)
    ]
    low = [max(0, -lo) for lo, _ in pad]
    whole = (e + b for e, b in zip(ends, low, strict=True))
    acc = np.zeros((data.shape[0], *whole, co), data.dtype)
    for offset in itertools.product(*(range(k) for k in kernel)):
        at = [
            slice(b + k, b + k + (n - 1) * s + 1, s)
            for b, k, (n, _, s) in zip(low, offset, rows, strict=True)
        ]
        acc[(slice(None), *at)] += data @ w[offset]
    cut = [slice(lo + b, lo + b + o) for o, (lo, _), b in zip(spatial, pad, low, strict=True)]
    return channels_back(attrs, acc[(slice(None), *cut)].astype(x.dtype))


def conv_transpose_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co], out = (s-1)*stride - pads + k.

    Element h of the result sums data[(h + pad - k) / stride] * weight[k] where that is a whole
    number. Elements of one remainder h mod stride ("phase") use the same taps of the kernel, so
    the weights are regrouped by phase and no product with a zero between elements is left. Phases
    that have fewer taps than others leave the last ones out; with `guarded`, weights over the
    border meet nothing instead of zeros (see `_taps`).
    """
    *kernel, ci, co = w.shape
    rank = len(kernel)
    rows = list(zip(x.shape[1:-1], kernel, strides, pads, strict=True))
    out = [(n - 1) * s - lo - hi + k for n, k, s, (lo, hi) in rows]
    if min(out) < 1:
        raise ModelError(f"transposed convolution of extents {out}: its padding is too much")
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    tiles = [-(-o // s) for o, s in zip(out, strides, strict=True)]

    def tap(phase: Any, k: Any, s: int, lo: int) -> Any:
        return (phase + lo) % s + s * k

    def regrouped(*at: Any) -> Expr:
        phases, ks = at[:rank], at[rank : 2 * rank]
        where = [
            tap(a, j, s, lo) for a, j, (_, _, s, (lo, _)) in zip(phases, ks, rows, strict=True)
        ]
        value = w[(*where, *at[2 * rank :])]
        inside = [i < k for i, k, s in zip(where, kernel, strides, strict=True) if k % s]
        return te.select(te.all(*inside), value, te.const(0.0, w.dtype)) if inside else value

    names = spatial_names(rank)
    weight_names = (*(f"p{a}" for a in names), *(f"k{a}" for a in names), "ci", "co")
    by_phase = te.compute(
        (*strides, *taps, ci, co), named(weight_names, regrouped), name=f"{w.name}_phases"
    )
    widths = [(0, 0)]
    for (n, _, s, (lo, _)), j, t in zip(rows, taps, tiles, strict=True):
        before = max(0, j - 1 - lo // s)
        last = t - 1 + (s - 1 + lo) // s + before
        widths.append((before, max(0, last + 1 - before - n)))
    padded = pad(x, [*widths, (0, 0)])
    ks = tuple(te.reduce_axis(j, name=f"k{a}") for j, a in zip(taps, names, strict=True))
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        tile, phases = at[: 2 * rank : 2], at[1 : 2 * rank : 2]
        under, tests = [], []
        for t, a, j, (e, k, s, (lo, _)), (before, _) in zip(
            tile, phases, ks, rows, widths[1:], strict=True
        ):
            place = t + (a + lo) // s - j
            tests += [tap(a, j, s, lo) < k] if k % s else []
            tests += [place >= 0, place < e] if guarded else []
            under.append(place if guarded else place + before)
        source = x if guarded else padded
        product = source[(n, *under, c)] * by_phase[(*phases, *ks, c, at[-1])]
        if tests:
            product = te.select(te.all(*tests), product, te.const(0.0, x.dtype))
        return te.sum(product, [*ks, c])

    shape = [e for pair in zip(tiles, strides, strict=True) for e in pair]
    tile_names = tuple(e for a in names for e in (a, f"p{a}"))
    phased = te.compute(
        (x.shape[0], *shape, co), named(("n", *tile_names, "co"), element), name=f"{name}_phases"
    )

    def joined(n: Any, *at: Any) -> Expr:
        cut = [e for h, s in zip(at[:-1], strides, strict=True) for e in (h // s, h % s)]
        return phased[(n, *cut, at[-1])]

    return te.compute((x.shape[0], *out, co), named(("n", *names, "co"), joined), name=name)


def _tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    check_channels_last(attrs)
    strides, pads = ints(attrs, "strides"), pairs(attrs, "pads")
    guarded = bool(attrs.get("guarded"))
    return conv_transpose_nhwc(xs[0], xs[1], strides, pads, guarded=guarded)


def _guard(attrs: Attrs, known: Sequence[Array | None]) -> Attrs:
    """Weights over the border meet nothing, as in ONNX's reference: 0 * inf would be NaN.

    Zeros there are as good for weights that are known to be finite, and faster.
    """
    w = known[1]
    if w is not None and bool(np.isfinite(w).all()):
        return attrs
    return {**attrs, "guarded": True}


def _layout(attrs: Attrs, types: Types, orders: Orders) -> Placed | None:
    if attrs["layout"] == "channels_last":
        return None
    rank = types[0].rank
    data, weight = last_channels(rank), (*range(2, rank), 0, 1)
    return Placed((data, weight), data, {"layout": "channels_last"})


def _scaled_by(attrs: Attrs, types: Types) -> tuple[int, int]:
    rank = types[0].rank
    first = text(attrs, "layout") == "channels_first"
    return channel_axis(attrs, rank), 1 if first else rank - 1


def _work(attrs: Attrs, types: Types, result: TensorType) -> int:
    x, w = types
    return x.size + w.size + x.size * (w.size // (min(w.shape) or 1))


OPS = (
    Op(
        "conv_transpose",
        "anchor",
        _type,
        _meaning,
        attrs=("strides", "pads", "layout"),
        arity=(2, 2),
        tensor=_tensor,
        refine=_guard,
        layout=_layout,
        scaled_by=_scaled_by,
        traits=("rounded_sum",),
        work=_work,
    ),
)
