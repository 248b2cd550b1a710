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
from ansorlite.ir.expr import Expr
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


OPS = (
    _pool("max_pool", "max", _max),
    _pool("sum_pool", "sum", _sum, "rounded_sum", "keeps_not_negative"),
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
