"""ONNX operators that move data: reshapes, transposes, slices, padding, gather.

In: a `Context` and an `OnnxNode` with constant shapes and indices. Out: emitted `reshape`, `slice`,
`pad`, ... nodes with full-rank, non-negative attributes. The table is `onnx_table.IMPORTERS`.
"""

import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx_context import Context, OnnxNode


def identity(c: Context, n: OnnxNode) -> str:
    return c.emit("identity", [c.operand(n, 0)])


def dropout(c: Context, n: OnnxNode) -> str:
    if c.has(n, 2) and np.any(c.required(n, 2)):
        raise ModelError("dropout in training mode: export the model in evaluation mode")
    return identity(c, n)


def reshape(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape, target = c.shape(x), [int(v) for v in c.required(n, 1).ravel()]
    if not n.attrs.get("allowzero", 0):
        if any(v == 0 and d >= len(shape) for d, v in enumerate(target)):
            raise ModelError(f"shape {target} copies a dimension that {list(shape)} has not")
        target = [shape[d] if v == 0 else v for d, v in enumerate(target)]
    if -1 in target:
        rest = math.prod(v for v in target if v != -1)
        target[target.index(-1)] = math.prod(shape) // rest if rest else 0
    return c.emit("reshape", [x], shape=tuple(target))


def flatten(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape, axis = c.shape(x), int(n.attrs.get("axis", 1))
    axis += len(shape) if axis < 0 else 0
    return c.emit("reshape", [x], shape=(math.prod(shape[:axis]), math.prod(shape[axis:])))


def transpose(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    default = tuple(reversed(range(len(c.shape(x)))))
    return c.emit("transpose", [x], perm=tuple(n.attrs.get("perm", default)))


def squeeze(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape, given = c.shape(x), c.axes(n, 1)
    axes = {a % len(shape) for a in given} if given else {d for d, e in enumerate(shape) if e == 1}
    wrong = [a for a in axes if shape[a] != 1]
    if wrong:
        raise ModelError(f"cannot squeeze axis {wrong[0]} of extent {shape[wrong[0]]}")
    return c.emit("reshape", [x], shape=tuple(e for d, e in enumerate(shape) if d not in axes))


def unsqueeze(c: Context, n: OnnxNode) -> str:
    x, given = c.operand(n, 0), c.axes(n, 1)
    shape = list(c.shape(x))
    rank = len(shape) + len(given)
    for a in sorted(a % rank for a in given):
        shape.insert(a, 1)
    return c.emit("reshape", [x], shape=tuple(shape))


def concat(c: Context, n: OnnxNode) -> str:
    rank = len(c.shape(c.operand(n, 0)))
    return c.emit("concat", c.operands(n), axis=int(n.attrs.get("axis", 1)) % rank)


def expand(c: Context, n: OnnxNode) -> str:
    x, shape = c.operand(n, 0), tuple(int(v) for v in c.required(n, 1))
    full = tuple(int(v) for v in np.broadcast_shapes(c.shape(x), shape))
    return x if full == c.shape(x) else c.emit("expand", [x], shape=full)


def padded(c: Context, x: str, widths: tuple[tuple[int, int], ...], value: float) -> str:
    """x with (before, after) elements of `value` around it per axis; negative ones cut off."""
    if any(v < 0 for pair in widths for v in pair):
        starts = tuple(max(0, -lo) for lo, _ in widths)
        cut = zip(c.shape(x), widths, strict=True)
        sizes = tuple(size + min(lo, 0) + min(hi, 0) for size, (lo, hi) in cut)
        if min(sizes) < 1:
            raise ModelError(f"padding {list(widths)} leaves nothing of {list(c.shape(x))}")
        x = c.emit("slice", [x], starts=starts, sizes=sizes, steps=(1,) * len(sizes))
    pairs = tuple((max(lo, 0), max(hi, 0)) for lo, hi in widths)
    return c.emit("pad", [x], pads=pairs, value=value) if any(map(any, pairs)) else x


PAD_MODES = ("reflect", "edge", "wrap")  # of what is repeated, as numpy calls them too


def pad(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape = c.shape(x)
    mode, rank = n.attrs.get("mode", "constant"), len(shape)
    flat = [int(v) for v in (n.attrs["pads"] if n.opset < 11 else c.required(n, 1))]
    value = float(n.attrs.get("value", 0.0))
    if n.opset >= 11 and c.has(n, 2):
        value = float(c.required(n, 2).item())
    axes = [int(a) % rank for a in c.required(n, 3)] if c.has(n, 3) else list(range(rank))
    widths = [(0, 0)] * rank
    for k, a in enumerate(axes):
        widths[a] = flat[k], flat[k + len(axes)]
    if mode == "constant":
        return padded(c, x, tuple(widths), value)
    if mode not in PAD_MODES:
        raise ModelError(f"pad mode {mode!r} is none of constant, {', '.join(PAD_MODES)}")
    for axis, (lo, hi) in enumerate(widths):
        # Which element stands at each place: the cut-off ones are left out of the indices.
        kept = np.arange(max(0, -lo), shape[axis] + min(0, hi))
        if lo or hi:
            around: Any = mode
            index = np.pad(kept, (max(0, lo), max(0, hi)), mode=around)
            x = c.emit("take", [x, c.constant(index.astype(np.int64))], axis=axis)
    return x


def tile(c: Context, n: OnnxNode) -> str:
    """Each axis is repeated as a whole: an axis of repetitions in front of it, expanded."""
    x, times = c.operand(n, 0), [int(v) for v in c.required(n, 1).ravel()]
    shape = c.shape(x)
    if len(times) != len(shape) or any(t < 1 for t in times):
        raise ModelError(f"repeats {times} for {list(shape)}: one of at least 1 per axis is needed")
    if {*times} == {1}:
        return x
    ones = tuple(v for e in shape for v in (1, e))
    full = tuple(v for t, e in zip(times, shape, strict=True) for v in (t, e))
    x = c.emit("expand", [c.emit("reshape", [x], shape=ones)], shape=full)
    return c.emit("reshape", [x], shape=tuple(t * e for t, e in zip(times, shape, strict=True)))


def depth_to_space(c: Context, n: OnnxNode) -> str:
    x, block = c.operand(n, 0), int(n.attrs["blocksize"])
    batch, channels, h, w = c.shape(x)
    rest = channels // block**2
    if n.attrs.get("mode", "DCR") == "DCR":
        split, perm = (batch, block, block, rest, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (batch, rest, block, block, h, w), (0, 1, 4, 2, 5, 3)
    x = c.emit("transpose", [c.emit("reshape", [x], shape=split)], perm=perm)
    return c.emit("reshape", [x], shape=(batch, rest, h * block, w * block))


def space_to_depth(c: Context, n: OnnxNode) -> str:
    x, block = c.operand(n, 0), int(n.attrs["blocksize"])
    batch, channels, h, w = c.shape(x)
    split = (batch, channels, h // block, block, w // block, block)
    perm = (0, 3, 5, 1, 2, 4) if n.attrs.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    x = c.emit("transpose", [c.emit("reshape", [x], shape=split)], perm=perm)
    return c.emit("reshape", [x], shape=(batch, channels * block**2, h // block, w // block))


def slice_(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape = c.shape(x)
    if n.opset < 10:
        first, last = list(n.attrs["starts"]), list(n.attrs["ends"])
        axes, steps = list(n.attrs.get("axes", range(len(first)))), [1] * len(first)
    else:
        first, last = c.required(n, 1).tolist(), c.required(n, 2).tolist()
        axes = c.required(n, 3).tolist() if c.has(n, 3) else list(range(len(first)))
        steps = c.required(n, 4).tolist() if c.has(n, 4) else [1] * len(first)
    rows = [(0, size, 1) for size in shape]
    for lo, hi, a, step in zip(first, last, axes, steps, strict=True):
        at = int(a) % len(shape)
        index = range(*slice(int(lo), int(hi), int(step)).indices(shape[at]))
        rows[at] = (index.start, len(index), int(step))
    starts, sizes, strides = (tuple(r[k] for r in rows) for k in range(3))
    if sizes == shape and set(strides) <= {1}:
        return x
    if 0 in sizes and c.known(n, 0) is None:
        raise ModelError(f"the slice of {list(shape)} is empty")
    return c.emit("slice", [x], starts=starts, sizes=sizes, steps=strides)


def split(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """One slice per output; equal parts (the last may be smaller) where no sizes are given."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axis, parts = int(n.attrs.get("axis", 0)) % len(shape), len(n.outputs)
    if "split" in n.attrs or c.has(n, 1):
        sizes = [int(v) for v in (n.attrs["split"] if "split" in n.attrs else c.required(n, 1))]
    else:
        part = -(-shape[axis] // parts)
        sizes = [min(part, shape[axis] - k * part) for k in range(parts)]
    if sum(sizes) != shape[axis] or len(sizes) != parts:
        raise ModelError(f"cannot split extent {shape[axis]} into {parts} parts {sizes}")
    out = []
    for k, size in enumerate(sizes):
        starts = tuple(sum(sizes[:k]) if d == axis else 0 for d in range(len(shape)))
        extents = tuple(size if d == axis else e for d, e in enumerate(shape))
        out.append(c.emit("slice", [x], starts=starts, sizes=extents, steps=(1,) * len(shape)))
    return tuple(out)


def gather(c: Context, n: OnnxNode) -> str:
    """One index, or a range with a fixed step, is a slice; others, known or not, are taken."""
    x, places = c.operand(n, 0), c.operand(n, 1)
    shape, known = c.shape(x), c.known(n, 1)
    axis = int(n.attrs.get("axis", 0)) % len(shape)
    result = (*shape[:axis], *c.shape(places), *shape[axis + 1 :])
    if known is not None and known.size and c.known(n, 0) is None:
        flat = [int(i) % shape[axis] for i in known.ravel()]
        step = flat[1] - flat[0] if len(flat) > 1 else 1
        if step and flat == [flat[0] + k * step for k in range(len(flat))]:
            starts = tuple(flat[0] if d == axis else 0 for d in range(len(shape)))
            sizes = tuple(len(flat) if d == axis else e for d, e in enumerate(shape))
            steps = tuple(step if d == axis else 1 for d in range(len(shape)))
            out = c.emit("slice", [x], starts=starts, sizes=sizes, steps=steps)
            return c.emit("reshape", [out], shape=result)
    flat_places = c.emit("reshape", [places], shape=(c.type(places).size,))
    return c.emit("reshape", [c.emit("take", [x, flat_places], axis=axis)], shape=result)
