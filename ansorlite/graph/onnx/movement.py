"""Readers of operators that move data: reshapes, transposes, slices, padding, gather.

In: a `Context` and an `OnnxNode` with constant shapes and indices. Out: emitted `reshape`, `slice`,
`pad`, ... nodes with full-rank, non-negative attributes.
"""

import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.ir import infer
from ansorlite.graph.onnx.context import Context, OnnxNode, axes_of, axis_of
from ansorlite.graph.types import broadcast


def identity(c: Context, n: OnnxNode) -> str:
    return c.emit("identity", [c.operand(n, 0)])


def dropout(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """The operand itself, and a mask that keeps all of it."""
    if c.has(n, 2) and np.any(c.required(n, 2)):
        raise ModelError("dropout in training mode: export the model in evaluation mode")
    x, out = c.operand(n, 0), identity(c, n)
    if len(n.outputs) == 1:
        return (out,)
    dtype = np.bool_ if n.opset >= 10 else np.dtype(c.type(x).dtype)
    c.room(c.shape(x), dtype)
    return out, c.constant(np.ones(c.shape(x), dtype), f"{n.outputs[0]}.mask")


def reshape(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape, target = c.shape(x), c.numbers(n, 1)
    if not n.attrs.get("allowzero", 0):
        if any(v == 0 and d >= len(shape) for d, v in enumerate(target)):
            raise ModelError(f"shape {target} copies a dimension that {list(shape)} has not")
        target = [shape[d] if v == 0 else v for d, v in enumerate(target)]
    if target.count(-1) > 1 or any(v < -1 for v in target):
        raise ModelError(f"shape {target} leaves more than one extent open")
    if -1 in target:
        rest = math.prod(v for v in target if v != -1)
        target[target.index(-1)] = math.prod(shape) // rest if rest else 0
    return c.emit("reshape", [x], shape=tuple(target))


def flatten(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape, axis = c.shape(x), int(n.attrs.get("axis", 1))
    axis = axis if axis == len(shape) else axis_of(axis, len(shape))
    return c.emit("reshape", [x], shape=(math.prod(shape[:axis]), math.prod(shape[axis:])))


def transpose(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    default = tuple(reversed(range(len(c.shape(x)))))
    return c.emit("transpose", [x], perm=tuple(n.attrs.get("perm", default)))


def squeeze(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape = c.shape(x)
    given = c.axes(n, 1, len(shape))
    axes = {*given} if given else {d for d, e in enumerate(shape) if e == 1}
    wrong = [a for a in axes if shape[a] != 1]
    if wrong:
        raise ModelError(f"cannot squeeze axis {wrong[0]} of extent {shape[wrong[0]]}")
    return c.emit("reshape", [x], shape=tuple(e for d, e in enumerate(shape) if d not in axes))


def unsqueeze(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape = list(c.shape(x))
    count = len(n.attrs["axes"]) if "axes" in n.attrs else len(c.numbers(n, 1))
    for a in sorted(c.axes(n, 1, len(shape) + count)):
        shape.insert(a, 1)
    return c.emit("reshape", [x], shape=tuple(shape))


def concat(c: Context, n: OnnxNode) -> str:
    """Operands without elements are left out after their shapes are checked."""
    values = c.operands(n)
    axis = axis_of(int(n.attrs.get("axis", 1)), len(c.shape(values[0])))
    kept = [v for v in values if c.type(v).size]
    if kept and len(kept) < len(values):
        infer("concat", n.name, {"axis": axis}, [c.type(v) for v in values])
        values = kept
    return c.emit("concat", values, axis=axis)


def expand(c: Context, n: OnnxNode) -> str:
    x, shape = c.operand(n, 0), tuple(c.numbers(n, 1))
    full = broadcast((c.shape(x), shape))
    return x if full == c.shape(x) else c.emit("expand", [x], shape=full)


def padded(c: Context, x: str, widths: tuple[tuple[int, int], ...], value: float) -> str:
    """x with (before, after) elements of `value` along each axis; negative numbers cut off."""
    if any(v < 0 for pair in widths for v in pair):
        starts = tuple(max(0, -lo) for lo, _ in widths)
        cut = zip(c.shape(x), widths, strict=True)
        sizes = tuple(size + min(lo, 0) + min(hi, 0) for size, (lo, hi) in cut)
        if min(sizes, default=0) < 0:
            raise ModelError(f"padding {list(widths)} leaves nothing of {list(c.shape(x))}")
        x = c.emit("slice", [x], starts=starts, sizes=sizes, steps=(1,) * len(sizes))
    pairs = tuple((max(lo, 0), max(hi, 0)) for lo, hi in widths)
    return c.emit("pad", [x], pads=pairs, value=value) if any(map(any, pairs)) else x


PAD_MODES = ("reflect", "edge", "wrap")  # of what is repeated, as numpy calls them too


def pad(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    shape = c.shape(x)
    mode, rank = n.attrs.get("mode", "constant"), len(shape)
    flat = [int(v) for v in n.attrs["pads"]] if n.opset < 11 else c.numbers(n, 1)
    value: int | float = float(n.attrs.get("value", 0.0))
    if n.opset >= 11 and c.has(n, 2):
        value = c.required(n, 2).item()
    axes = axes_of(c.numbers(n, 3), rank) if c.has(n, 3) else list(range(rank))
    if len(flat) != 2 * len(axes):
        raise ModelError(f"{len(flat)} pads for {len(axes)} axes: two per axis are needed")
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
            c.room([len(kept) + max(0, lo) + max(0, hi)], cost=16)
            around: Any = mode
            index = np.pad(kept, (max(0, lo), max(0, hi)), mode=around)
            x = c.emit("take", [x, c.constant(index.astype(np.int64))], axis=axis)
    return x


def center_crop_pad(c: Context, n: OnnxNode) -> str:
    """Axes cut or padded with zeros on both sides, one more at the end where the number is odd."""
    x, wanted = c.operand(n, 0), c.numbers(n, 1)
    shape = c.shape(x)
    axes = axes_of(n.attrs.get("axes", range(len(shape))), len(shape))
    if len(axes) != len(wanted) or min(wanted, default=0) < 0:
        raise ModelError(f"shape {wanted} for axes {axes} of {c.type(x)}: an extent for each")
    widths = [(0, 0)] * len(shape)
    for axis, extent in zip(axes, wanted, strict=True):
        less, more = max(shape[axis] - extent, 0), max(extent - shape[axis], 0)
        before = more // 2 - less // 2
        widths[axis] = (before, extent - shape[axis] - before)
    return padded(c, x, tuple(widths), 0)


def tile(c: Context, n: OnnxNode) -> str:
    """Each axis is repeated as a whole: expanded along a new axis in front."""
    x, times = c.operand(n, 0), c.numbers(n, 1)
    shape = c.shape(x)
    if len(times) != len(shape) or any(t < 0 for t in times):
        raise ModelError(f"repeats {times} for {list(shape)}: one of at least 0 per axis is needed")
    if {*times} == {1}:
        return x
    ones = tuple(v for e in shape for v in (1, e))
    full = tuple(v for t, e in zip(times, shape, strict=True) for v in (t, e))
    x = c.emit("expand", [c.emit("reshape", [x], shape=ones)], shape=full)
    return c.emit("reshape", [x], shape=tuple(t * e for t, e in zip(times, shape, strict=True)))


def _block(c: Context, n: OnnxNode) -> int:
    """The block size over an image, at least 1."""
    block, shape = int(n.attrs["blocksize"]), c.shape(c.operand(n, 0))
    if block < 1 or len(shape) != 4:
        raise ModelError(f"blocksize {block} for data {list(shape)}: at least 1, four axes")
    return block


def depth_to_space(c: Context, n: OnnxNode) -> str:
    x, block = c.operand(n, 0), _block(c, n)
    batch, channels, h, w = c.shape(x)
    rest = channels // block**2
    if n.attrs.get("mode", "DCR") == "DCR":
        split, perm = (batch, block, block, rest, h, w), (0, 3, 4, 1, 5, 2)
    else:
        split, perm = (batch, rest, block, block, h, w), (0, 1, 4, 2, 5, 3)
    x = c.emit("transpose", [c.emit("reshape", [x], shape=split)], perm=perm)
    return c.emit("reshape", [x], shape=(batch, rest, h * block, w * block))


def space_to_depth(c: Context, n: OnnxNode) -> str:
    x, block = c.operand(n, 0), _block(c, n)
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
        first, last = c.numbers(n, 1), c.numbers(n, 2)
        axes = c.numbers(n, 3) if c.has(n, 3) else list(range(len(first)))
        steps = c.numbers(n, 4) if c.has(n, 4) else [1] * len(first)
    if not len(first) == len(last) == len(axes) == len(steps) or 0 in steps:
        raise ModelError(
            f"starts {first}, ends {last}, axes {axes} and steps {steps} do not fit together"
        )
    rows = [(0, size, 1) for size in shape]
    for lo, hi, at, step in zip(first, last, axes_of(axes, len(shape)), steps, strict=True):
        # Backwards a start before the first element is the first element: not so in Python.
        begin = max(int(lo), -shape[at]) if step < 0 else int(lo)
        index = range(*slice(begin, int(hi), int(step)).indices(shape[at]))
        rows[at] = (index.start if index else 0, len(index), int(step))
    starts, sizes, strides = (tuple(r[k] for r in rows) for k in range(3))
    if sizes == shape and set(strides) <= {1}:
        return x
    return c.emit("slice", [x], starts=starts, sizes=sizes, steps=strides)


def split(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """One slice per output; equal parts (the last may be smaller) where no sizes are given."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axis, parts = axis_of(int(n.attrs.get("axis", 0)), len(shape)), len(n.outputs)
    if int(n.attrs.get("num_outputs", parts)) != parts:
        raise ModelError(f"num_outputs is {n.attrs['num_outputs']}, but there are {parts} outputs")
    if "split" in n.attrs or c.has(n, 1):
        sizes = [int(v) for v in n.attrs["split"]] if "split" in n.attrs else c.numbers(n, 1)
    else:
        part = -(-shape[axis] // parts)
        sizes = [min(part, shape[axis] - k * part) for k in range(parts)]
    if sum(sizes) != shape[axis] or len(sizes) != parts or min(sizes) < 0:
        raise ModelError(f"cannot split extent {shape[axis]} into {parts} parts {sizes}")
    out = []
    for k, size in enumerate(sizes):
        starts = tuple(sum(sizes[:k]) if d == axis else 0 for d in range(len(shape)))
        extents = tuple(size if d == axis else e for d, e in enumerate(shape))
        out.append(c.emit("slice", [x], starts=starts, sizes=extents, steps=(1,) * len(shape)))
    return tuple(out)


def in_range(index: int, extent: int) -> bool:
    """Whether an axis has that element, negative ones counted from the end."""
    return -extent <= index < extent


def gather(c: Context, n: OnnxNode) -> str:
    """A constant index, or constant range with a fixed step, is a slice; else a `take`."""
    x, places = c.operand(n, 0), c.operand(n, 1)
    shape, known = c.shape(x), c.known(n, 1)
    axis = axis_of(int(n.attrs.get("axis", 0)), len(shape))
    if known is not None and known.size:
        wrong = [i for i in (int(known.min()), int(known.max())) if not in_range(i, shape[axis])]
        if wrong:
            raise ModelError(f"index {wrong[0]} is outside of axis {axis} of {c.type(x)}")
    result = (*shape[:axis], *c.shape(places), *shape[axis + 1 :])
    few = known is not None and 0 < known.size <= shape[axis]  # a range never has more
    if known is not None and few and c.known(n, 0) is None:
        flat = known.ravel().astype(np.int64) % shape[axis]
        step = int(flat[1] - flat[0]) if len(flat) > 1 else 1
        if step and np.all(np.diff(flat) == step):
            starts = tuple(int(flat[0]) if d == axis else 0 for d in range(len(shape)))
            sizes = tuple(len(flat) if d == axis else e for d, e in enumerate(shape))
            steps = tuple(step if d == axis else 1 for d in range(len(shape)))
            out = c.emit("slice", [x], starts=starts, sizes=sizes, steps=steps)
            return c.emit("reshape", [out], shape=result)
    flat_places = c.emit("reshape", [places], shape=(c.type(places).size,))
    return c.emit("reshape", [c.emit("take", [x, flat_places], axis=axis)], shape=result)
