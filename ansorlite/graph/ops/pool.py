"""Pools: the maximum, the sum and, before the passes, the mean of each window.

Padding counts as no data, other than for the mean with `count_include_pad`.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.movement import Pads, spatial_names
from ansorlite.graph.ops.op import (
    Arrays,
    Meaning,
    Op,
    Orders,
    Placed,
    Trait,
    Types,
    named,
    wide,
)
from ansorlite.graph.ops.ranking import counting
from ansorlite.graph.ops.reduce import reduce
from ansorlite.graph.ops.windows import (
    channel_axis,
    channels_back,
    channels_last,
    check_channels_last,
    data_shape,
    padded_type,
    shifted,
    spatial_axes,
    window,
    window_extents,
    windows_attrs,
    windows_perm,
)
from ansorlite.graph.types import Array, Attrs, TensorType, ints, pairs, text, type_of
from ansorlite.ir.expr import Expr, is_float
from ansorlite.ir.logic import combiner_identity
from ansorlite.te.tensor import Tensor

ATTRS = ("kernel", "strides", "pads", "dilations", "ceil_mode", "layout")


def _type(attrs: Attrs, types: Types) -> TensorType:
    (x,) = types
    if x.rank < 3:
        raise ModelError(f"data {x} has no spatial axes")
    channels = x.shape[channel_axis(attrs, x.rank)]
    spatial = window_extents(attrs, x, ints(attrs, "kernel"))
    return TensorType(data_shape(attrs, x.shape[0], spatial, channels), x.dtype)


# ---- meaning ------------------------------------------------------------------------------------


def _spatial(attrs: Attrs, x: Array) -> tuple[int, ...]:
    """The spatial extents of the result."""
    shape = _type(attrs, (type_of(x),)).shape
    return tuple(shape[a] for a in spatial_axes(attrs, len(shape)))


def _max(attrs: Attrs, xs: Arrays) -> Array:
    """Maximum of the elements inside the data; a window without any gives -inf."""
    (x,) = xs
    data, spatial = channels_last(attrs, x), _spatial(attrs, x)
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    acc = np.full((x.shape[0], *spatial, data.shape[-1]), low, x.dtype)
    for _, view in shifted(data, attrs, ints(attrs, "kernel"), spatial, low):
        np.maximum(acc, view, out=acc)
    return channels_back(attrs, acc)


def _sum(attrs: Attrs, xs: Arrays) -> Array:
    """Sum of the elements inside the data."""
    (x,) = xs
    data, spatial = wide(channels_last(attrs, x)), _spatial(attrs, x)
    acc = np.zeros((x.shape[0], *spatial, data.shape[-1]), data.dtype)
    for _, view in shifted(data, attrs, ints(attrs, "kernel"), spatial, 0.0):
        acc += view
    return channels_back(attrs, acc.astype(x.dtype))


def window_counts(
    attrs: Attrs, spatial: Sequence[int], out: Sequence[int]
) -> npt.NDArray[np.floating[Any]]:
    """float64[*out]: how many elements an average pool divides by, over data of extents `spatial`.

    Padding counts with `count_include_pad`; elements that `ceil_mode` adds beyond it never count.
    """
    total: npt.NDArray[np.floating[Any]] = np.ones((), np.float64)
    rows = zip(
        spatial,
        out,
        ints(attrs, "kernel"),
        ints(attrs, "strides"),
        ints(attrs, "dilations"),
        pairs(attrs, "pads"),
        strict=True,
    )
    for n, o, k, s, d, (lo, hi) in rows:
        at = np.arange(o) * s - lo
        first, last = (-lo, n + hi) if attrs["count_include_pad"] else (0, n)
        count = np.minimum(-((at - last) // d), k) - np.maximum(-((at - first) // d), 0)
        total = total[..., None] * np.maximum(count, 1)
    return total


def _mean(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    out = _spatial(attrs, x)
    spatial = [x.shape[a] for a in spatial_axes(attrs, x.ndim)]
    counts = window_counts(attrs, spatial, out)
    first = text(attrs, "layout") == "channels_first"
    total = wide(_sum(attrs, (wide(x),)))
    return np.asarray((total / (counts if first else counts[..., None])).astype(x.dtype))


def _places(attrs: Attrs, xs: Arrays) -> Array:
    """The place of the first maximum of each window in the data, channels first, as one number."""
    (x,) = xs
    data, spatial = channels_last(attrs, x), _spatial(attrs, x)
    extents = data.shape[1:-1]
    steps = np.arange(math.prod(extents), dtype=np.int64).reshape(1, *extents, 1)
    best = np.zeros((x.shape[0], *spatial, data.shape[-1]), x.dtype)
    place: Any = np.full(best.shape, -1, np.int64)
    views = shifted(data, attrs, ints(attrs, "kernel"), spatial, 0)
    numbers = shifted(steps, attrs, ints(attrs, "kernel"), spatial, -1)
    for (_, view), (_, number) in zip(views, numbers, strict=True):
        at: Any = number
        better = (place < 0) | (view > best) | ((view != view) & (best == best))
        better = better & (at >= 0)
        best, place = np.where(better, view, best), np.where(better, at, place)
    if attrs["column_major"]:
        turned = np.ravel_multi_index(np.unravel_index(place, extents)[::-1], extents[::-1])
        place = turned.astype(np.int64)
    n = np.arange(x.shape[0], dtype=np.int64).reshape(-1, *(1,) * (x.ndim - 1))
    planes = n * data.shape[-1] + np.arange(data.shape[-1], dtype=np.int64)
    return np.ascontiguousarray(channels_back(attrs, planes * math.prod(extents) + place))


# ---- expressions --------------------------------------------------------------------------------


def pool_nhwc(
    x: Tensor,
    combiner: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    ceil_mode: bool = False,
    name: str = "pool",
) -> Tensor:
    """data [n, *s, c] -> [n, *out, c]: "max" or "sum" of each window; padding does not count."""
    fill = combiner_identity("max", x.dtype).value if combiner == "max" else 0
    padded, out, ks, under = window(x, kernel, strides, pads, dilations, fill, ceil_mode)

    def element(n: Any, *at: Any) -> Expr:
        value = padded[(n, *under(at[:-1]), at[-1])]
        return te.max(value, axis=ks) if combiner == "max" else te.sum(value, axis=ks)

    names = ("n", *spatial_names(len(kernel)), "c")
    return te.compute((x.shape[0], *out, x.shape[-1]), named(names, element), name=name)


def max_pool2d(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """data [n, h, w, c] -> [n, oh, ow, c]."""
    pads = ((padding, padding),) * 2
    return pool_nhwc(x, "max", (kernel,) * 2, (stride,) * 2, pads, (1, 1))


def avg_pool2d(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """data [n, h, w, c] -> [n, oh, ow, c]; padding counts as zeros."""
    pads = ((padding, padding),) * 2
    total = pool_nhwc(x, "sum", (kernel,) * 2, (stride,) * 2, pads, (1, 1))
    return te.compute(total.shape, lambda n, h, w, c: total[n, h, w, c] * (1.0 / kernel**2), "mean")


def global_avg_pool(x: Tensor) -> Tensor:
    """data [n, *s, c] -> [n, c]."""
    total = reduce(x, "sum", range(1, len(x.shape) - 1))
    count = math.prod(x.shape[1:-1])
    return te.compute(total.shape, lambda n, c: total[n, c] * (1.0 / count), name="mean")


def _places_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    """int64 [n, *out, c]: the least place of a window whose element is the maximum or NaN."""
    check_channels_last(attrs)
    (x,), kernel = xs, ints(attrs, "kernel")
    strides, pads, dilations = (
        ints(attrs, "strides"),
        pairs(attrs, "pads"),
        ints(attrs, "dilations"),
    )
    top = pool_nhwc(x, "max", kernel, strides, pads, dilations, bool(attrs["ceil_mode"]), "top")
    extents, names = x.shape[1:-1], spatial_names(len(kernel))
    ks = tuple(te.reduce_axis(k, name=f"j{n}") for k, n in zip(kernel, names, strict=True))
    count, channels = math.prod(extents), x.shape[-1]
    exact = counting(count)
    nowhere = te.const(count - 1, exact)

    def first(n: Any, *at: Any) -> Expr:
        rows = zip(at[:-1], ks, strides, dilations, pads, extents, strict=True)
        tests, source, number = [], [], 0
        for i, k, s, d, (lo, _), e in rows:
            where = i * s + k * d - lo
            tests += [where >= 0, where < e]
            source.append(te.minimum(te.maximum(where, 0), e - 1))
            number = number * e + where
        value = x[(n, *source, at[-1])]
        found = te.equal(value, top[(n, *at)])
        if is_float(value):
            found = te.any(found, te.not_equal(value, value))
        place = te.select(te.all(*tests, found), te.cast(number, exact), nowhere)
        return te.min(place, axis=ks)

    axes = ("n", *names, "c")
    places = te.compute(top.shape, named(axes, first), name="place")

    def whole(n: Any, *at: Any) -> Any:
        place: Any = te.cast(places[(n, *at)], "int64")
        if attrs["column_major"]:
            rest, place, step = place, te.const(0, "int64"), count
            for e in reversed(extents):
                step //= e
                place, rest = place + (rest % e) * step, rest // e
        return (n * channels + at[-1]) * count + place

    return te.compute(top.shape, named(axes, whole), name="max_pool_places")


def _layout(attrs: Attrs, types: Types, orders: Orders) -> Placed | None:
    if attrs["layout"] == "channels_last":
        return None
    data = windows_perm(orders, types[0].rank)
    return Placed((data,), data, windows_attrs(attrs, data))


def _work(attrs: Attrs, types: Types, result: TensorType) -> int:
    return types[0].size + result.size * math.prod(ints(attrs, "kernel"))


def _pool(name: str, combiner: Literal["max", "sum"], meaning: Meaning, *traits: Trait) -> Op:
    def tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
        check_channels_last(attrs)
        return pool_nhwc(
            xs[0],
            combiner,
            ints(attrs, "kernel"),
            ints(attrs, "strides"),
            pairs(attrs, "pads"),
            ints(attrs, "dilations"),
            bool(attrs["ceil_mode"]),
        )

    return Op(
        name,
        "anchor",
        _type,
        meaning,
        attrs=ATTRS,
        tensor=tensor,
        layout=_layout,
        traits=traits,
        work=_work,
        padded=padded_type,
        free_window=True,
    )


def _places_type(attrs: Attrs, types: Types) -> TensorType:
    return TensorType(_type(attrs, types).shape, "int64")


OPS = (
    Op(
        "max_pool_places",
        "anchor",
        _places_type,
        _places,
        attrs=(*ATTRS, "column_major"),
        tensor=_places_tensor,
        layout=_layout,
        work=_work,
        padded=padded_type,
        free_window=True,
    ),
    _pool("max_pool", "max", _max, "reads_windows"),
    _pool("sum_pool", "sum", _sum, "rounded_sum", "keeps_not_negative", "reads_windows"),
    Op(
        "avg_pool",
        "source",
        _type,
        _mean,
        attrs=(*ATTRS, "count_include_pad"),
        layout=_layout,
        traits=("keeps_not_negative",),
        work=_work,
        padded=padded_type,
        free_window=True,
    ),
)
