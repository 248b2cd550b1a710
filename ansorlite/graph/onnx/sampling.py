"""Readers of sampling: GridSample, AffineGrid, DeformConv, RoiAlign, MaxUnpool, Col2Im, ...

In: a `Context` and an `OnnxNode`. Out: `grid_sample`, `roi_align`, or scatters and sums. What has a
size that depends on data is computed here where everything is constant, else refused.
"""

import itertools
import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import movement
from ansorlite.graph.onnx.context import Context, OnnxNode
from ansorlite.graph.onnx.gathering import bounded
from ansorlite.graph.onnx.windows import conv_window, numbers, with_zeros_between

MOST_OFFSETS = 1024  # elements of a block of Col2Im
MOST_GROUPS = 64  # numbers of samples among the boxes of a RoiAlign
OLD_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # of opset 16


def grid_sample(c: Context, n: OnnxNode) -> str:
    x, grid = c.operand(n, 0), c.operand(n, 1)
    mode = str(n.attrs.get("mode", "linear"))
    mode = OLD_MODES.get(mode, mode)
    if mode == "cubic" and len(c.shape(x)) > 4:
        raise ModelError(f"mode cubic of {c.type(x)}: only data of one or two spatial axes")
    padding, align = str(n.attrs.get("padding_mode", "zeros")), n.attrs.get("align_corners", 0)
    attrs: dict[str, Any] = {"mode": mode, "padding": padding, "align": bool(align)}
    return c.emit("grid_sample", [x, grid], scaled=True, **attrs)


def affine_grid(c: Context, n: OnnxNode) -> str:
    """The grid of a `grid_sample`: each place of the result in homogeneous form times a matrix."""
    theta, size = c.operand(n, 0), c.numbers(n, 1)
    rank, batch = len(size) - 2, c.shape(theta)[0]
    if rank not in (2, 3) or c.shape(theta)[1:] != (rank, rank + 1) or min(size) < 1:
        raise ModelError(f"theta {c.type(theta)} for a result of {size}: [n, {rank}, {rank + 1}]")
    c.room([*size[2:], rank + 1], np.float64, cost=4)
    ends = []
    for extent in size[2:]:
        at = np.arange(extent)
        if n.attrs.get("align_corners", 0):
            ends.append(2 * at / max(extent - 1, 1) - 1)
        else:
            ends.append((2 * at + 1) / extent - 1)
    axes = np.meshgrid(*ends, indexing="ij")[::-1]
    whole = np.stack([*axes, np.ones_like(axes[0])], axis=-1).reshape(-1, rank + 1)
    places = c.constant(whole.astype(c.type(theta).dtype))
    turned = c.emit("transpose", [theta], perm=(0, 2, 1))
    out = c.emit("matmul", [places, turned])
    return c.emit("reshape", [out], shape=(batch, *size[2:], rank))


def deform_conv(c: Context, n: OnnxNode) -> str:
    """Elements sampled at moved places, times the mask; then a product with the weights."""
    x, w, moves = (c.operand(n, k) for k in range(3))
    if len(c.shape(x)) != 4 or len(c.shape(w)) != 4 or len(c.shape(moves)) != 4:
        raise ModelError(f"data {c.type(x)}, weights {c.type(w)}: two spatial axes are supported")
    (batch, channels, *spatial), (out, per, *kernel) = c.shape(x), c.shape(w)
    groups, shared = (int(n.attrs.get(k, 1)) for k in ("group", "offset_group"))
    attrs = conv_window(c, n, tuple(kernel))
    rows = zip(spatial, kernel, attrs["strides"], attrs["pads"], attrs["dilations"], strict=True)
    places = [(e + sum(p) - d * (k - 1) - 1) // s + 1 for e, k, s, p, d in rows]
    size, count = math.prod(kernel), math.prod(places)
    fits = groups > 0 and shared > 0 and channels == per * groups and out % groups == 0
    if not fits or channels % shared or min(places) < 1:
        raise ModelError(f"{groups} groups, {shared} offset groups, weights {c.type(w)}")
    if c.shape(moves) != (batch, shared * size * 2, *places):
        raise ModelError(f"offsets {c.type(moves)}: {shared} x {size} x 2 for each of {places}")
    rows = zip(kernel, places, attrs["strides"], attrs["pads"], attrs["dilations"], strict=True)
    ends = [np.arange(k)[:, None] * d + np.arange(o) * s - p[0] for k, o, s, p, d in rows]
    c.room([size, 2, count], np.float64)
    full = (*kernel, *places)
    start = np.stack(
        [
            np.broadcast_to(ends[0][:, None, :, None], full),
            np.broadcast_to(ends[1][None, :, None, :], full),
        ],
        axis=2,
    ).reshape(size, 2, *places)
    moved = c.emit("reshape", [moves], shape=(batch * shared, size, 2, *places))
    at = c.emit("add", [moved, c.constant(start.astype(c.type(x).dtype))])
    at = c.emit("transpose", [at], perm=(0, 1, 3, 4, 2))
    lead = (batch * shared, size * places[0], places[1])
    at = c.emit("reshape", [at], shape=(*lead, 2))
    at = c.emit("take", [at, c.constant(np.asarray([1, 0], np.int64))], axis=3)
    data = c.emit("reshape", [x], shape=(batch * shared, channels // shared, *spatial))
    flags = {"align": True, "scaled": False}
    value = c.emit("grid_sample", [data, at], mode="linear", padding="zeros", **flags)
    if c.has(n, 4):
        value = c.emit("reshape", [value], shape=(batch, shared, channels // shared, size, count))
        mask = c.emit("reshape", [c.operand(n, 4)], shape=(batch, shared, 1, size, count))
        value = c.emit("mul", [value, mask])
    value = c.emit("reshape", [value], shape=(batch, groups, per * size, count))
    weights = c.emit("reshape", [w], shape=(groups, out // groups, per * size))
    value = c.emit("matmul", [weights, value])
    value = c.emit("reshape", [value], shape=(batch, out, *places))
    if not c.has(n, 3):
        return value
    bias = c.emit("reshape", [c.operand(n, 3)], shape=(out, 1, 1))
    return c.emit("add", [value, bias])


def roi_align(c: Context, n: OnnxNode) -> str:
    """Boxes that are constant may have numbers of samples of their own; they run in groups."""
    x, boxes, images = (c.operand(n, k) for k in range(3))
    size = tuple(int(n.attrs.get(k, 1)) for k in ("output_height", "output_width"))
    ratio, scale = int(n.attrs.get("sampling_ratio", 0)), float(n.attrs.get("spatial_scale", 1.0))
    default = "half_pixel" if n.opset >= 16 else "output_half_pixel"
    spelled = str(n.attrs.get("coordinate_transformation_mode", default))
    if spelled not in ("half_pixel", "output_half_pixel") or min(size) < 1 or ratio < 0:
        raise ModelError(f"mode {spelled!r}, {list(size)} parts, sampling_ratio {ratio}")
    shift = 0.5 if spelled == "half_pixel" else 0.0
    attrs: dict[str, Any] = {"size": size, "scale": scale, "shift": shift}
    attrs["mode"] = str(n.attrs.get("mode", "avg"))
    if ratio:
        return c.emit("roi_align", [x, boxes, images], samples=(ratio, ratio), **attrs)
    known = c.known(n, 1)
    if known is None:
        raise ModelError(
            "sampling_ratio 0 takes as many samples as a box is large, which depends on the input: "
            "set sampling_ratio, or make the boxes constant"
        )
    ends: Any = known
    lengths = (ends[:, 2:] - ends[:, :2]).astype(np.float32) * np.float32(scale)
    lengths = lengths if shift else np.maximum(lengths, np.float32(1))
    counts = np.ceil(lengths[:, ::-1] / np.asarray(size, np.float32)).astype(np.int64)
    kinds = sorted({(int(a), int(b)) for a, b in np.maximum(counts, 0)})
    if len(kinds) > MOST_GROUPS:
        raise ModelError(f"boxes of {len(kinds)} numbers of samples: set sampling_ratio")
    parts, order = [], []
    for kind in kinds:
        rows = np.flatnonzero(np.all(np.maximum(counts, 0) == kind, axis=1))
        order += rows.tolist()
        at = c.constant(rows.astype(np.int64))
        operands = [x, *(c.emit("take", [v, at], axis=0) for v in (boxes, images))]
        parts.append(c.emit("roi_align", operands, samples=kind, **attrs))
    if not parts:
        return c.constant(np.zeros((0, c.shape(x)[1], *size), c.type(x).dtype))
    whole = c.emit("concat", parts, axis=0) if len(parts) > 1 else parts[0]
    return c.emit("take", [whole, c.constant(np.argsort(order).astype(np.int64))], axis=0)


def max_unpool(c: Context, n: OnnxNode) -> str:
    """Zeros with the elements of each plane at their places, the second output of a MaxPool."""
    x, places = c.operand(n, 0), c.operand(n, 1)
    shape, rank = c.shape(x), len(n.attrs["kernel_shape"])
    if len(shape) != rank + 2 or c.shape(places) != shape:
        raise ModelError(f"data {c.type(x)} and places {c.type(places)} for {rank} spatial axes")
    kernel, strides = numbers(n, "kernel_shape", rank), numbers(n, "strides", rank)
    flat = numbers(n, "pads", 2 * rank, least=0)
    rows = zip(shape[2:], kernel, strides, flat[:rank], flat[rank:], strict=True)
    full = tuple((e - 1) * s - lo - hi + k for e, k, s, lo, hi in rows)
    wanted = tuple(c.numbers(n, 2))[2:] if c.has(n, 2) else full
    if (
        min(full) < 1
        or len(wanted) != rank
        or any(w < e for w, e in zip(wanted, full, strict=True))
    ):
        raise ModelError(f"output_shape {list(wanted)} has no room for the {list(full)} of a pool")
    planes, plane, count = math.prod(shape[:2]), math.prod(full), math.prod(shape[2:])
    bounded(planes * plane * count, f"{count} places in each of {planes} planes of {plane}")
    c.room([planes, plane], c.type(x).dtype)
    first = np.arange(planes, dtype=np.int64)[:, None] * plane
    own = c.emit("reshape", [places], shape=(planes, count))
    own = c.emit("sub", [own, c.constant(first)])
    # A place in another plane is one beyond the last: the check of indices tells of it.
    wrong = c.emit("less", [own, c.scalar(0, own)])
    own = c.emit("where", [wrong, c.scalar(plane, own), own])
    nothing = c.constant(np.zeros((planes, plane), c.type(x).dtype))
    data = c.emit("reshape", [x], shape=(planes, count))
    out = c.emit("scatter_along", [nothing, own, data], axis=1, reduction="none")
    out = c.emit("reshape", [out], shape=(*shape[:2], *full))
    behind = tuple((0, w - e) for w, e in zip(wanted, full, strict=True))
    return movement.padded(c, out, ((0, 0), (0, 0), *behind), 0)


def col2im(c: Context, n: OnnxNode) -> str:
    """The sum of blocks at their places in the image: one shifted image for each block element."""
    x, image, block = c.operand(n, 0), c.numbers(n, 1), c.numbers(n, 2)
    rank, size = len(image), math.prod(block)
    if len(c.shape(x)) != 3 or len(block) != rank or min(block, default=0) < 1:
        raise ModelError(f"data {c.type(x)} for an image {image} and blocks {block}")
    strides, dilations = numbers(n, "strides", rank), numbers(n, "dilations", rank)
    flat = numbers(n, "pads", 2 * rank, least=0)
    rows = zip(image, block, strides, dilations, flat[:rank], flat[rank:], strict=True)
    blocks = tuple((e + lo + hi - d * (k - 1) - 1) // s + 1 for e, k, s, d, lo, hi in rows)
    batch, channels, count = c.shape(x)
    if channels % size or min(blocks) < 1 or math.prod(blocks) != count or size > MOST_OFFSETS:
        raise ModelError(
            f"data {c.type(x)}: blocks {block} make {list(blocks)} of an image {image}, at most "
            f"{MOST_OFFSETS} elements a block"
        )
    channels //= size
    x = c.emit("reshape", [x], shape=(batch, channels, size, *blocks))
    total = ""
    for k, offset in enumerate(itertools.product(*map(range, block))):
        starts, sizes = (0, 0, k, *(0,) * rank), (batch, channels, 1, *blocks)
        part = c.emit("slice", [x], starts=starts, sizes=sizes, steps=(1,) * (rank + 3))
        part = c.emit("reshape", [part], shape=(batch, channels, *blocks))
        part = with_zeros_between(c, part, strides)
        widths = [(0, 0), (0, 0)]
        for axis, (at, e) in enumerate(zip(offset, image, strict=True)):
            before = at * dilations[axis] - flat[axis]
            widths.append((before, e - c.shape(part)[axis + 2] - before))
        part = movement.padded(c, part, tuple(widths), 0)
        total = c.emit("add", [total, part]) if total else part
    return total


# ---- suppression --------------------------------------------------------------------------------


def non_max_suppression(c: Context, n: OnnxNode) -> str:
    """The boxes that are chosen, where everything is constant: their number depends on the data."""
    operands = [c.known(n, k) if c.has(n, k) else np.zeros(0) for k in range(5)]
    if any(v is None for v in operands):
        raise ModelError(
            "the number of boxes that are chosen depends on the input: end the model before this "
            "node and choose the boxes afterwards"
        )
    boxes, scores, count, overlap, least = (np.asarray(v) for v in operands)
    most = int(count.ravel()[0]) if count.size else 0
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4:
        raise ModelError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)}")
    if scores.shape[0] != boxes.shape[0] or scores.shape[2] != boxes.shape[1]:
        raise ModelError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)}")
    limit = np.float32(overlap.ravel()[0]) if overlap.size else np.float32(0)
    c.room([scores.size], cost=boxes.shape[1])
    found: list[tuple[int, int, int]] = []
    for image, label in np.ndindex(*scores.shape[:2]):
        own, corners = scores[image, label], _corners(n, boxes[image])
        order = np.argsort(-own, kind="stable")
        if least.size:
            order = order[own[order] > least.ravel()[0]]
        kept: list[int] = []
        for k in order.tolist():
            if len(kept) >= most:
                break
            if not np.any(_overlaps(corners[k], corners[kept]) > limit):
                kept.append(k)
        found += [(image, label, k) for k in kept]
    return c.constant(np.asarray(found, np.int64).reshape(-1, 3))


def _corners(n: OnnxNode, boxes: Any) -> Any:
    """Boxes as [low, low, high, high]."""
    if n.attrs.get("center_point_box", 0):
        half = boxes[:, 2:] / 2
        return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], axis=1)


def _overlaps(box: Any, others: Any) -> Any:
    """Intersection over union of a box with others; 0 where one of them is empty."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    own = np.prod(box[2:] - box[:2])
    union = own + areas - shared
    valid = (shared > 0) & (areas > 0) & (own > 0) & (union > 0)
    return np.where(valid, shared / np.where(valid, union, 1), 0)
