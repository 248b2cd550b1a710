"""Readers of `Resize` and `Upsample`: the source elements of each result, axis by axis.

In: a `Context` and an `OnnxNode` with constant scales or sizes. Out: per axis that changes one
`expand` (whole factors, nearest), `take` (nearest) or `resample` (linear, cubic: a weighted sum of
neighbours); positions and weights are computed here, as the operator's specification has them.
Extents, and positions that are rounded, come from float32 scales, as onnxruntime computes them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, axes_of

Float = npt.NDArray[np.float64]
HALF = 1e-6  # tolerance of a position computed in float32, as in onnxruntime
LARGEST = float(1 << 62)  # extent
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class AxisResize:
    """One axis: `n` elements become `out`; `scale` is the factor that positions are mapped by.

    `single` computes positions in float32.
    """

    n: int
    out: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)
    single: bool = False

    def positions(self, mode: str) -> Float:
        """float64[out]: where each result lies between the elements, by the named convention."""
        real = np.float32 if self.single else np.float64
        return np.asarray(self._positions(mode, np.arange(self.out).astype(real)), np.float64)

    def _positions(self, mode: str, y: Any) -> Any:
        real = y.dtype.type
        n, scale, half = real(self.n), real(self.scale), real(0.5)
        full = scale * n  # the length before it is cut off to a whole number
        match mode:
            case "half_pixel":
                return (y + half) / scale - half
            case "half_pixel_symmetric":
                return n * half * (1 - real(self.out) / full) + (y + half) / scale - half
            case "pytorch_half_pixel":
                return y * 0.0 if self.out == 1 else (y + half) / scale - half
            case "tf_half_pixel_for_nn":
                return (y + half) / scale
            case "align_corners":
                return y * 0.0 if full == 1 else y * (self.n - 1) / (full - 1)
            case "asymmetric":
                return y / scale
            case "tf_crop_and_resize":
                first, last = (r * (self.n - 1) for r in self.roi)
                step = (last - first) / 2 if full == 1 else (last - first) / (full - 1)
                return first + (y + 1.0 if full == 1 else y) * step
        raise ModelError(f"coordinate_transformation_mode {mode!r} is not known")


def rounded(at: Float, mode: str) -> Float:
    """Positions rounded by `nearest_mode`; fractions within HALF of 0.5 count as 0.5."""
    low = np.floor(at)
    match mode:
        case "round_prefer_floor":
            return np.where(at - low < 0.5 + HALF, low, low + 1)
        case "round_prefer_ceil":
            return np.where(at - low > 0.5 - HALF, low + 1, low)
        case "floor":
            return low
        case "ceil":
            return np.ceil(at)
    raise ModelError(f"nearest_mode {mode!r} is none of {', '.join(ROUNDINGS)}")


def _cubic(x: Float, a: float) -> Float:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    out: Float = np.where(x <= 1, near, np.where(x < 2, far, 0.0))
    return out


def _linear(x: Float) -> Float:
    out: Float = np.clip(1 - np.abs(x), 0.0, 1.0)
    return out


def neighbours(
    at: Float, n: int, scale: float, mode: str, a: float, antialias: bool, exclude: bool
) -> tuple[npt.NDArray[np.int64], Float]:
    """(int64[out, taps], float64[out, taps]): the elements of each result, and their weights.

    `scale` below 1 widens the window with `antialias`. Elements outside repeat the border, or
    count nothing with `exclude`. Weights of a result sum to 1.
    """
    width = 1 if mode == "linear" else 2
    scale = min(scale, 1.0) if antialias else 1.0
    first = math.floor(-width / scale) + 1
    base = np.ceil(at) - 1  # so that the distance of the next element is in (0, 1]
    offsets = np.arange(first, 2 - first)
    distance = (offsets - (at - base)[:, None]) * scale
    weights = _linear(distance) if mode == "linear" else _cubic(distance, a)
    index = (base[:, None] + offsets).astype(np.int64)
    if exclude:
        weights = np.where((index >= 0) & (index < n), weights, 0.0)
    return np.clip(index, 0, n - 1), weights / weights.sum(axis=1, keepdims=True)


def resize(c: Context, n: OnnxNode) -> str:
    """Resize of opset 10 and later: scales or sizes, per axis or for the axes of an attribute."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axes = axes_of(n.attrs.get("axes", range(len(shape))), len(shape))
    places = (1, 2, 3) if n.opset >= 11 else (None, 1, None)
    roi, scales, sizes = (
        _numbers(c.required(n, k)) if k is not None and c.has(n, k) else np.zeros(0) for k in places
    )
    mode = n.attrs.get("coordinate_transformation_mode", "half_pixel")
    if n.opset < 11:
        mode = "asymmetric"
    if len(sizes) == len(scales):
        raise ModelError("it needs either scales or sizes")
    rows = _by_sizes(n, shape, axes, sizes) if len(sizes) else _by_scales(shape, axes, scales)
    if mode == "tf_crop_and_resize":
        if len(roi) != 2 * len(axes) or not np.isfinite(roi).all():
            raise ModelError(f"roi {roi.tolist()}: {2 * len(axes)} finite numbers are needed")
        ends = zip(roi[: len(axes)], roi[len(axes) :], strict=True)
        rows = {
            d: replace(r, roi=(float(lo), float(hi)))
            for (d, r), (lo, hi) in zip(rows.items(), ends, strict=True)
        }
    rounding = n.attrs.get("nearest_mode", "round_prefer_floor" if n.opset >= 11 else "outwards")
    return _resized(c, n, x, rows, mode, rounding)


def _numbers(array: npt.NDArray[Any]) -> Float:
    return np.asarray(array.ravel(), np.float64)


def upsample(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    scales = n.attrs["scales"] if n.opset < 9 else c.required(n, 1)
    rows = _by_scales(c.shape(x), range(len(c.shape(x))), _numbers(np.asarray(scales)))
    return _resized(c, n, x, rows, "asymmetric", "floor")


def _by_scales(shape: tuple[int, ...], axes: Iterable[int], scales: Float) -> dict[int, AxisResize]:
    found = list(axes)
    if len(scales) != len(found):
        raise ModelError(f"{len(scales)} scales for {len(found)} axes")
    rows = {}
    for d, s in zip(found, scales, strict=True):
        extent = float(np.float32(shape[d]) * np.float32(s))
        if not 0 < s < math.inf or not min(shape[d], 1) <= extent < LARGEST:
            raise ModelError(f"scale {s} of extent {shape[d]} gives {extent:.6g} elements")
        rows[d] = AxisResize(shape[d], math.floor(extent), float(s))
    return rows


def _by_sizes(
    n: OnnxNode, shape: tuple[int, ...], axes: list[int], sizes: Float
) -> dict[int, AxisResize]:
    if len(sizes) != len(axes):
        raise ModelError(f"{len(sizes)} sizes for {len(axes)} axes")
    policy = n.attrs.get("keep_aspect_ratio_policy", "stretch")
    wanted = {d: int(s) for d, s in zip(axes, sizes, strict=True)}
    if any((s < 1 or shape[d] < 1) and s != shape[d] for d, s in wanted.items()):
        raise ModelError(f"sizes {list(wanted.values())} of {list(shape)}: at least 1 each")
    if policy == "stretch" or 0 in wanted.values():
        return {d: AxisResize(shape[d], s, s / max(1, shape[d])) for d, s in wanted.items()}
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(f"keep_aspect_ratio_policy {policy!r} is not known")
    pick = min if policy == "not_larger" else max
    scale = pick(s / shape[d] for d, s in wanted.items())
    rows = {d: AxisResize(shape[d], math.floor(scale * shape[d] + 0.5), scale) for d in axes}
    if any(r.out < 1 for r in rows.values()):
        raise ModelError(f"sizes {list(wanted.values())} leave nothing of {list(shape)}")
    return rows


def _resized(
    c: Context, n: OnnxNode, x: str, rows: dict[int, AxisResize], mode: str, rounding: str
) -> str:
    kind = n.attrs.get("mode", "nearest")
    if kind not in ("nearest", "linear", "cubic"):
        raise ModelError(f"mode {kind!r} is none of nearest, linear, cubic")
    if not c.type(x).size:
        extents = [rows[d].out if d in rows else e for d, e in enumerate(c.shape(x))]
        c.room(extents, c.type(x).dtype)
        return c.constant(np.zeros(extents, c.type(x).dtype))
    repeats: dict[int, int] = {}  # by axis, of nearest elements in whole numbers
    # Fewer elements first; among equals later axes, whose elements lie next to each other.
    for axis, r in sorted(rows.items(), key=lambda row: (row[1].scale, -row[0])):
        if r.out == r.n and r.scale == 1.0 and mode != "tf_crop_and_resize":
            continue
        c.room([r.out], cost=16)
        at = replace(r, single=kind == "nearest").positions(mode)
        if kind == "nearest":
            outwards = "ceil" if r.scale < 1 else "floor"  # opset 10, as onnxruntime has that
            whole = rounded(at, outwards if rounding == "outwards" else rounding)
            index = np.clip(whole, 0, r.n - 1).astype(np.int64)
            times = _repeats(r.n, index)
            if times and mode != "tf_crop_and_resize":
                repeats[axis] = times
            else:
                x = c.emit("take", [x, c.constant(index)], axis=axis)
        else:
            a, alias = float(n.attrs.get("cubic_coeff_a", -0.75)), bool(n.attrs.get("antialias", 0))
            exclude = bool(n.attrs.get("exclude_outside", 0))
            widening = 1 / min(r.scale, 1.0) if alias else 1.0
            c.room([r.out, math.ceil(4 * widening) + 2], cost=16)
            taken, weights = neighbours(at, r.n, r.scale, kind, a, alias, exclude)
            dtype = c.type(x).dtype
            operands = [x, c.constant(taken), c.constant(weights.astype(dtype))]
            x = c.emit("resample", operands, axis=axis)
        if mode == "tf_crop_and_resize":
            x = _filled(c, n, x, axis, (at < 0) | (at > r.n - 1))
    return _repeated(c, x, repeats)


def _filled(c: Context, n: OnnxNode, x: str, axis: int, outside: npt.NDArray[np.bool_]) -> str:
    """The extrapolation value where a position lies outside of the data."""
    if not outside.any():
        return x
    shape = tuple(len(outside) if d == axis else 1 for d in range(len(c.shape(x))))
    value = c.scalar(float(n.attrs.get("extrapolation_value", 0.0)), x)
    return c.emit("where", [c.constant(outside.reshape(shape)), value, x])


def nearest(c: Context, x: str, index: Mapping[int, npt.NDArray[np.int64]]) -> str:
    """The elements of x at `index[axis]` along each axis."""
    repeats: dict[int, int] = {}
    for axis, at in index.items():
        times = _repeats(c.shape(x)[axis], at)
        if times:
            repeats[axis] = times
        else:
            x = c.emit("take", [x, c.constant(at)], axis=axis)
    return _repeated(c, x, repeats)


def _repeats(n: int, index: npt.NDArray[np.int64]) -> int:
    """How often each of n elements is repeated, one after the other; 0 if not all equally often."""
    times = len(index) // n if n else 0
    return times if np.array_equal(index, np.repeat(np.arange(n), times)) else 0


def _repeated(c: Context, x: str, times: dict[int, int]) -> str:
    """Every element `times[axis]` times along each axis: one `expand` for all axes."""
    if not times:
        return x
    split, full, out = list[int](), list[int](), list[int]()
    for axis, n in enumerate(c.shape(x)):
        k = times.get(axis, 1)
        split += [n, 1] if k > 1 else [n]
        full += [n, k] if k > 1 else [n]
        out.append(n * k)
    x = c.emit("reshape", [x], shape=tuple(split))
    x = c.emit("expand", [x], shape=tuple(full))
    return c.emit("reshape", [x], shape=tuple(out))
