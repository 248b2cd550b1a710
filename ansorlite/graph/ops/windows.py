"""Windows that slide over spatial axes: the common parts of convolutions and pools.

Data is [n, c, *spatial] or, channels last, [n, *spatial, c]: the attribute `layout` says which.
Networks arrive channels first and the passes make them channels last; only those become kernels.
Extents follow ONNX: floor((n + pads - dilation*(k-1) - 1) / stride) + 1, or the ceiling with
`ceil_mode`. Paddings are one (before, after) pair for each spatial axis.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.movement import Pads, pad, spatial_names
from ansorlite.graph.ops.op import Index, Orders, Perm
from ansorlite.graph.types import Array, Attr, Attrs, TensorType, ints, pairs, text
from ansorlite.te.tensor import ReduceAxis, Tensor

# ---- shapes -------------------------------------------------------------------------------------


def window_extent(
    n: int, kernel: int, stride: int, dilation: int, pad: tuple[int, int], ceil_mode: bool = False
) -> int:
    """Number of windows along one axis; a window never starts in the padding after the data."""
    if min(kernel, stride, dilation) < 1:
        raise ModelError(
            f"a window of {kernel} with stride {stride} and dilation {dilation}: at least 1 each"
        )
    room = n + sum(pad) - dilation * (kernel - 1) - 1
    out = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (out - 1) * stride >= n + pad[0]:
        out -= 1
    if out < 1:
        raise ModelError(
            f"a window of {kernel} (dilation {dilation}) does not fit extent {n} with padding {pad}"
        )
    return out


def spatial_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes of a data tensor that a window slides over."""
    first = text(attrs, "layout") == "channels_first"
    return tuple(range(2, rank)) if first else tuple(range(1, rank - 1))


def channel_axis(attrs: Attrs, rank: int) -> int:
    return 1 if text(attrs, "layout") == "channels_first" else rank - 1


def data_shape(attrs: Attrs, batch: int, spatial: Sequence[int], channels: int) -> tuple[int, ...]:
    if text(attrs, "layout") == "channels_first":
        return (batch, channels, *spatial)
    return (batch, *spatial, channels)


def window_extents(attrs: Attrs, x: TensorType, kernel: Sequence[int]) -> tuple[int, ...]:
    """Numbers of windows along the spatial axes; a ModelError unless the attributes fit the data"""
    axes = spatial_axes(attrs, x.rank)
    strides, dilations, pad = ints(attrs, "strides"), ints(attrs, "dilations"), pairs(attrs, "pads")
    lengths = {len(kernel), len(strides), len(dilations), len(pad), len(axes)}
    if len(lengths) != 1 or not axes:
        raise ModelError(
            f"data {x} needs {len(axes)} kernel extents, strides, dilations and pads, got "
            f"{len(kernel)}, {len(strides)}, {len(dilations)} and {len(pad)}"
        )
    ceil = bool(attrs.get("ceil_mode", False))
    return tuple(
        window_extent(x.shape[a], k, s, d, p, ceil)
        for a, k, s, d, p in zip(axes, kernel, strides, dilations, pad, strict=True)
    )


def padded_type(attrs: Attrs, data: TensorType) -> TensorType:
    """The data under windows with the padding around."""
    shape = list(data.shape)
    for axis, pair in zip(spatial_axes(attrs, data.rank), pairs(attrs, "pads"), strict=True):
        shape[axis] += sum(pair)
    return TensorType(tuple(shape), data.dtype)


# ---- meaning ------------------------------------------------------------------------------------


def channels_last(attrs: Attrs, x: Array) -> Array:
    """The data with the channels as its last axis."""
    return np.moveaxis(x, 1, -1) if text(attrs, "layout") == "channels_first" else x


def channels_back(attrs: Attrs, x: Array) -> Array:
    """Channels-last data in the operator's own layout."""
    return np.moveaxis(x, -1, 1) if text(attrs, "layout") == "channels_first" else x


def shifted(
    x: Array, attrs: Attrs, kernel: Sequence[int], out: Sequence[int], fill: float
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each kernel offset the [n, *out, c] view of padded `x` [n, *spatial, c] under it.

    Adding up one view for each offset takes seconds for a network of a few GFLOP.
    """
    strides, dilations, pad = ints(attrs, "strides"), ints(attrs, "dilations"), pairs(attrs, "pads")
    widths = [(0, 0)]
    for n, o, k, s, d, (lo, _) in zip(
        x.shape[1:-1], out, kernel, strides, dilations, pad, strict=True
    ):
        widths.append((lo, max(0, (o - 1) * s + (k - 1) * d + 1 - n - lo)))
    padded = np.pad(x, [*widths, (0, 0)], constant_values=fill)
    for offset in itertools.product(*(range(k) for k in kernel)):
        at = [
            slice(k * d, k * d + (o - 1) * s + 1, s)
            for k, d, o, s in zip(offset, dilations, out, strides, strict=True)
        ]
        yield offset, padded[(slice(None), *at)]


# ---- expressions --------------------------------------------------------------------------------


def window(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    fill: float = 0.0,
    ceil_mode: bool = False,
) -> tuple[Tensor, tuple[int, ...], tuple[ReduceAxis, ...], Callable[[Sequence[Any]], Index]]:
    """Padded data, output extents, reduction axes and the data index under an output index.

    Padding is a stage of its own, there only if needed.
    """
    rows = list(zip(x.shape[1:-1], kernel, strides, dilations, pads, strict=True))
    out = tuple(window_extent(n, k, s, d, p, ceil_mode) for n, k, s, d, p in rows)
    widths = [(0, 0)]
    for (n, k, s, d, (lo, _)), o in zip(rows, out, strict=True):
        widths.append((lo, max(0, (o - 1) * s + (k - 1) * d + 1 - n - lo)))
    padded = pad(x, [*widths, (0, 0)], fill)
    names = spatial_names(len(kernel))
    axes = tuple(te.reduce_axis(k, name=f"k{n}") for k, n in zip(kernel, names, strict=True))

    def under(at: Sequence[Any]) -> Index:
        moved = zip(at, axes, strides, dilations, strict=True)
        return tuple(i * s + k * d for i, k, s, d in moved)

    return padded, out, axes, under


def check_channels_last(attrs: Attrs) -> None:
    if text(attrs, "layout") != "channels_last":
        raise ModelError("only channels-last operators become kernels: run the passes first")


# ---- layout -------------------------------------------------------------------------------------


def last_channels(rank: int) -> Perm:
    """The perm of [n, c, *spatial] that gives [n, *spatial, c]."""
    return (0, *range(2, rank), 1)


def windows_perm(orders: Orders, rank: int) -> Perm:
    """The order in which windows slide over the data: channels last, spatial axes as they lie."""
    perm = orders.operands[0]
    return perm if (perm[0], perm[-1]) == (0, 1) else last_channels(rank)


def windows_attrs(attrs: Attrs, perm: Perm) -> dict[str, Attr]:
    """The attributes for data in the order `perm`, where each axis keeps its window."""
    moved: dict[str, Attr] = {"layout": "channels_last"}
    for key in ("kernel", "strides", "pads", "dilations"):
        rows: Any = attrs.get(key)
        if rows is not None:
            moved[key] = tuple(rows[a - 2] for a in perm[1:-1])
    return moved
