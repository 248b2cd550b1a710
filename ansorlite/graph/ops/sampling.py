"""Operators that read between elements, at positions that are data: grid_sample, roi_align.

Data is [n, c, *spatial]. A position is a floating-point number; its elements are weighted by their
distances. Indices are clamped to the data whatever the position is: NaN and infinity read nothing
else.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.elementwise import round_even
from ansorlite.graph.ops.indexing import clamped
from ansorlite.graph.ops.op import Arrays, Op, Types, named, wide
from ansorlite.graph.types import Array, Attrs, TensorType, ints, number, text
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

MODES = ("linear", "nearest", "cubic")
PADDINGS = ("zeros", "border", "reflection")
TAPS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}
CUBIC = -0.75  # the parameter of the cubic convolution, as PyTorch has it


class _Numpy:
    """The functions of positions on arrays; `_Expressions` has the same on expressions."""

    @staticmethod
    def number(value: float, like: Any) -> Any:
        return like.dtype.type(value)

    floor, absolute = staticmethod(np.floor), staticmethod(np.abs)
    minimum, maximum = staticmethod(np.minimum), staticmethod(np.maximum)
    select, nearest = staticmethod(np.where), staticmethod(np.rint)
    either = staticmethod(np.logical_or)


class _Expressions:
    @staticmethod
    def number(value: float, like: Any) -> Any:
        return te.const(value, like.dtype)

    floor, absolute = staticmethod(te.floor), staticmethod(te.abs)
    minimum, maximum = staticmethod(te.minimum), staticmethod(te.maximum)
    select, nearest = staticmethod(te.select), staticmethod(round_even)
    either = staticmethod(te.any)


Maths = Any  # _Numpy or _Expressions


# ---- grid_sample --------------------------------------------------------------------------------


def _grid_type(attrs: Attrs, types: Types) -> TensorType:
    """x [n, c, *spatial] at grid [n, *out, axes], whose last number is the first spatial axis.

    With `scaled` the numbers -1 and 1 are the ends of an axis, else numbers count elements.
    """
    x, grid = types
    axes = x.rank - 2
    if grid.rank != x.rank or axes not in (1, 2, 3) or grid.shape[-1] != axes:
        raise ModelError(f"data {x} and grid {grid}: 1 to 3 spatial axes, a number for each")
    if grid.shape[0] != x.shape[0]:
        raise ModelError(f"data {x} and grid {grid} have different batches")
    if not x.dtype.startswith("float") or not grid.dtype.startswith("float"):
        raise ModelError(f"data {x} and grid {grid}: floating-point numbers are needed")
    mode, padding = text(attrs, "mode"), text(attrs, "padding")
    if mode not in MODES or padding not in PADDINGS:
        raise ModelError(f"mode {mode!r}, padding {padding!r}: {', '.join((*MODES, *PADDINGS))}")
    if min(x.shape[2:]) < 1 and grid.size:
        raise ModelError(f"there is nothing to sample of {x}")
    return TensorType((*x.shape[:2], *grid.shape[1:-1]), x.dtype)


def _reflected(m: Maths, at: Any, extent: int, align: bool) -> Any:
    """`at` mirrored at both ends until it is between them."""
    first = 0.0 if align else -0.5
    span = float(extent - 1 if align else extent)
    low = m.number(first, at)
    if span == 0:
        return at * m.number(0, at)
    twice = m.number(2 * span, at)
    away = m.absolute(at - low)
    away = away - m.floor(away / twice) * twice
    return m.minimum(away, twice - away) + low


def _position(m: Maths, g: Any, extent: int, attrs: Attrs) -> Any:
    """The position of grid number `g` along an axis, as the mode and the padding have it."""
    align, padding = bool(attrs["align"]), text(attrs, "padding")
    one, half = m.number(1, g), m.number(0.5, g)
    if not attrs["scaled"]:
        at = g
    elif align:
        at = (g + one) * half * m.number(extent - 1, g)
    else:
        at = ((g + one) * m.number(extent, g) - one) * half
    if text(attrs, "mode") == "nearest":
        at = m.nearest(at)
    low, high = m.number(0 if align else -0.5, g), m.number(extent - (1 if align else 0.5), g)
    outside = m.either(at < low, at > high)
    if padding == "border":
        inside = m.minimum(m.maximum(at, m.number(0, g)), m.number(extent - 1, g))
        at = m.select(outside, inside, at)
    elif padding == "reflection":
        at = m.select(outside, _reflected(m, at, extent, align), at)
    # Beyond three elements outside nothing changes: indices stay small.
    return m.minimum(m.maximum(at, m.number(-4, g)), m.number(extent + 3, g))


def _weights(m: Maths, mode: str, f: Any) -> list[Any]:
    """The weights of the taps at distance `f` behind the element below."""
    one = m.number(1, f)
    if mode == "linear":
        return [one - f, f]

    def near(x: Any) -> Any:
        a, b = m.number(CUBIC + 2, f), m.number(CUBIC + 3, f)
        return (a * x - b) * x * x + one

    def far(x: Any) -> Any:
        k = [m.number(v * CUBIC, f) for v in (1, 5, 8, 4)]
        return ((k[0] * x - k[1]) * x + k[2]) * x - k[3]

    return [far(f + one), near(f), near(one - f), far(m.number(2, f) - f)]


def _tap(m: Maths, at: Any, extent: int, attrs: Attrs) -> Any:
    """The whole position `at` as the padding has it."""
    if text(attrs, "padding") == "reflection":
        return _reflected(m, at, extent, bool(attrs["align"]))
    return at


def _grid_sample(attrs: Attrs, xs: Arrays) -> Array:
    x, grid = xs
    mode, zeros = text(attrs, "mode"), text(attrs, "padding") == "zeros"
    spatial, offsets = x.shape[2:], TAPS[mode]
    columns = []  # for each axis its taps: index, whether inside, weight
    for d, extent in enumerate(spatial):
        g = grid[..., len(spatial) - 1 - d]
        at = _position(_Numpy, g, extent, attrs)
        below = np.floor(at)
        weights = [None] if mode == "nearest" else _weights(_Numpy, mode, wide(at - below))
        column = []
        for offset, weight in zip(offsets, weights, strict=True):
            place = _tap(_Numpy, below + g.dtype.type(offset), extent, attrs)
            with np.errstate(invalid="ignore"):
                index = np.where(np.isnan(place), -1, np.floor(place)).astype(np.int64)
            inside = (index >= 0) & (index < extent)
            column.append((np.clip(index, 0, extent - 1), inside, weight))
        columns.append(column)
    batch = np.arange(x.shape[0]).reshape(-1, *(1,) * len(spatial))
    total: Any = 0.0
    for taps in itertools.product(*columns):
        value = np.moveaxis(wide(x)[(batch, slice(None), *(t[0] for t in taps))], -1, 1)
        if zeros:
            inside = np.logical_and.reduce([t[1] for t in taps])
            value = np.where(inside[:, None], value, 0)
        if mode == "nearest":
            total = value
            break
        weight = math.prod(t[2] for t in taps)
        total = total + value * np.asarray(weight)[:, None]
    return np.asarray(total).astype(x.dtype)


def _grid_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, grid = xs
    mode, zeros = text(attrs, "mode"), text(attrs, "padding") == "zeros"
    spatial, offsets = x.shape[2:], TAPS[mode]
    batch, out = x.shape[0], grid.shape[1:-1]
    m = _Expressions
    positions: list[Tensor] = []
    for d, extent in enumerate(spatial):

        def position(*i: Any, d: int = d, extent: int = extent) -> Expr:
            at: Expr = _position(m, grid[(*i, len(spatial) - 1 - d)], extent, attrs)
            return at

        names = ("n", *(f"o{k}" for k in range(len(out))))
        positions.append(te.compute((batch, *out), named(names, position), name=f"at{d}"))

    def element(*i: Any) -> Any:
        own = (i[0], *i[2:])
        columns = []
        for d, extent in enumerate(spatial):
            at = positions[d][own]
            below = te.floor(at)
            distance = te.cast(at - below, x.dtype)
            weights = [None] if mode == "nearest" else _weights(m, mode, distance)
            column = []
            for offset, weight in zip(offsets, weights, strict=True):
                place = _tap(m, below + te.const(offset, grid.dtype), extent, attrs)
                index = te.cast(te.floor(place), "int64")
                inside = te.all(index >= 0, index < extent)
                index = te.minimum(te.maximum(index, 0), extent - 1)
                column.append((index, inside, weight))
            columns.append(column)
        total: Any = None
        for taps in itertools.product(*columns):
            value = x[(i[0], i[1], *(t[0] for t in taps))]
            if zeros:
                inside = te.all(*(t[1] for t in taps))
                value = te.select(inside, value, te.const(0, x.dtype))
            for t in taps:
                value = value if t[2] is None else value * t[2]
            total = value if total is None else total + value
        return total

    return te.compute((batch, x.shape[1], *out), element, name="grid_sample")


# ---- roi_align ----------------------------------------------------------------------------------


def _roi_type(attrs: Attrs, types: Types) -> TensorType:
    """x [n, c, h, w], boxes [r, 4] of x1, y1, x2, y2, and the image of each: [r, c, *size]."""
    x, boxes, images = types
    size, samples = ints(attrs, "size"), ints(attrs, "samples")
    if x.rank != 4 or boxes.rank != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1]:
        raise ModelError(f"data {x}, boxes {boxes} and images {images} do not fit together")
    if len(size) != 2 or len(samples) != 2 or min(*size, *samples) < 0:
        raise ModelError(f"{list(samples)} samples in each of {list(size)} parts of a box")
    if x.dtype != boxes.dtype or not x.dtype.startswith("float") or images.dtype != "int64":
        raise ModelError(f"data {x}, boxes {boxes}, images {images}: one dtype, int64 for images")
    if text(attrs, "mode") not in ("avg", "max"):
        raise ModelError(f"mode {text(attrs, 'mode')!r} is none of avg, max")
    return TensorType((boxes.shape[0], x.shape[1], *size), x.dtype)


def _sample_position(
    m: Maths, ends: tuple[Any, Any], part: Any, sample: Any, attrs: Attrs, axis: int
) -> Any:
    """The position of a sample along an axis, from the two ends of a box."""
    parts, samples = ints(attrs, "size")[axis], ints(attrs, "samples")[axis]
    like = ends[0]
    scale, shift = m.number(number(attrs, "scale"), like), m.number(number(attrs, "shift"), like)
    start, end = (v * scale - shift for v in ends)
    length = end - start
    if number(attrs, "shift") == 0:
        length = m.maximum(length, m.number(1, like))
    size = length / m.number(parts, like)
    return start + part * size + (sample + m.number(0.5, like)) * size / m.number(samples, like)


def _roi_positions(attrs: Attrs, boxes: Array, axis: int, extent: int) -> tuple[Any, ...]:
    """For each box and sample [r, parts, samples]: the two elements, distance, whether inside."""
    parts, samples = ints(attrs, "size")[axis], ints(attrs, "samples")[axis]
    kind: Any = boxes.dtype.type
    ends: Any = tuple(boxes[:, k, None, None] for k in (1 - axis, 3 - axis))
    part = np.arange(parts).astype(kind)[:, None]
    at = _sample_position(_Numpy, ends, part, np.arange(samples).astype(kind), attrs, axis)
    inside = (at >= -1) & (at <= extent)
    at = np.minimum(np.maximum(at, kind(0)), kind(extent - 1))
    low = np.where(np.isnan(at), 0, at).astype(np.int64)
    return low, np.minimum(low + 1, extent - 1), wide(at - low), inside


def _roi_align(attrs: Attrs, xs: Arrays) -> Array:
    x, boxes, images = xs
    h, w = x.shape[2:]
    rows = _roi_positions(attrs, boxes, 0, h)
    columns = _roi_positions(attrs, boxes, 1, w)
    y_low, y_high, fy, y_in = (v[:, :, :, None, None] for v in rows)
    x_low, x_high, fx, x_in = (v[:, None, None, :, :] for v in columns)
    n = np.where(images < 0, images + x.shape[0], images).clip(0, x.shape[0] - 1)
    n = n[:, None, None, None, None]
    data = np.moveaxis(wide(x), 1, -1)
    taps = [
        ((1 - fy) * (1 - fx), data[n, y_low, x_low]),
        ((1 - fy) * fx, data[n, y_low, x_high]),
        (fy * (1 - fx), data[n, y_high, x_low]),
        (fy * fx, data[n, y_high, x_high]),
    ]
    inside = (y_in & x_in)[..., None]
    values = [weight[..., None] * value for weight, value in taps]
    if text(attrs, "mode") == "avg":
        value = np.where(inside, sum(values), 0)
        count = max(1, math.prod(ints(attrs, "samples")))
        out = value.sum(axis=(2, 4)) / count
    else:
        value = np.where(inside, np.maximum.reduce(values), 0)
        out = value.max(axis=(2, 4))
    return np.ascontiguousarray(np.moveaxis(out, -1, 1).astype(x.dtype))


def _roi_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, boxes, images = xs
    size, samples, mode = ints(attrs, "size"), ints(attrs, "samples"), text(attrs, "mode")
    positions: list[Tensor] = []
    for axis in range(2):

        def position(r: Any, p: Any, s: Any, axis: int = axis) -> Expr:
            ends = boxes[r, 1 - axis], boxes[r, 3 - axis]
            part, sample = te.cast(p, x.dtype), te.cast(s, x.dtype)
            at: Expr = _sample_position(_Expressions, ends, part, sample, attrs, axis)
            return at

        shape = (boxes.shape[0], size[axis], samples[axis])
        own = named(("r", "p", "s"), position)
        positions.append(te.compute(shape, own, name=f"at{axis}"))
    ks = tuple(te.reduce_axis(n, name=k) for n, k in zip(samples, ("ky", "kx"), strict=True))
    one = te.const(1, x.dtype)

    def element(r: Any, c: Any, p: Any, q: Any) -> Expr:
        taps, tests = [], []
        for axis, part in enumerate((p, q)):
            extent, at = x.shape[2 + axis], positions[axis][r, part, ks[axis]]
            last = te.const(extent - 1, x.dtype)
            tests += [at >= te.const(-1, x.dtype), at <= te.const(extent, x.dtype)]
            kept = te.minimum(te.maximum(at, te.const(0, x.dtype)), last)
            whole = te.floor(kept)
            low = te.minimum(te.maximum(te.cast(whole, "int64"), 0), extent - 1)
            taps.append((low, te.minimum(low + 1, extent - 1), kept - whole))
        (y_low, y_high, fy), (x_low, x_high, fx) = taps
        n = clamped(images[r], x.shape[0])
        values = [
            (one - fy) * (one - fx) * x[n, c, y_low, x_low],
            (one - fy) * fx * x[n, c, y_low, x_high],
            fy * (one - fx) * x[n, c, y_high, x_low],
            fy * fx * x[n, c, y_high, x_high],
        ]
        if mode == "avg":
            value = values[0] + values[1] + values[2] + values[3]
            return te.sum(te.select(te.all(*tests), value, te.const(0, x.dtype)), axis=ks)
        top = te.maximum(*values)
        return te.max(te.select(te.all(*tests), top, te.const(0, x.dtype)), axis=ks)

    full = (boxes.shape[0], x.shape[1], *size)
    total = te.compute(full, element, name="samples")
    if mode == "max":
        return total
    share = te.const(max(1, math.prod(samples)), x.dtype)
    return te.compute(full, lambda r, c, p, q: total[r, c, p, q] / share, name="roi_align")


OPS = (
    Op(
        "grid_sample",
        "anchor",
        _grid_type,
        _grid_sample,
        attrs=("mode", "padding", "align", "scaled"),
        arity=(2, 2),
        tensor=_grid_tensor,
        work=lambda attrs, types, result: (
            sum(t.size for t in types)
            + result.size * len(TAPS[text(attrs, "mode")]) ** (types[0].rank - 2)
        ),
    ),
    Op(
        "roi_align",
        "anchor",
        _roi_type,
        _roi_align,
        attrs=("size", "samples", "scale", "shift", "mode"),
        arity=(3, 3),
        tensor=_roi_tensor,
        indices=lambda attrs, types: ((2, 0, types[0].shape[0]),),
        work=lambda attrs, types, result: (
            types[0].size + 4 * result.size * math.prod(ints(attrs, "samples"))
        ),
        free_window=True,
    ),
)
