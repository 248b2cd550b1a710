"""Readers of reductions: sums, means, extremes, products, norms over axes.

Out: `reduce_sum`, ... nodes with the element-wise operators before and after them.
"""

import numpy as np

from ansorlite.graph.onnx.context import Context, OnnxNode, Reader, axis_of


def _reduced_axes(c: Context, n: OnnxNode, x: str) -> tuple[int, ...] | None:
    """The axes: an attribute, or an operand since opset 13 (sums) and 18; None for none at all."""
    rank = len(c.shape(x))
    given = c.axes(n, 1, rank)
    if not given and n.attrs.get("noop_with_empty_axes", 0):
        return None
    return tuple(sorted(given)) if given else tuple(range(rank))


def reduce(op: str, before: str = "", after: str = "") -> Reader:
    """`op` over axes, with an element-wise operator before ("square", "abs") and after it."""

    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        axes = _reduced_axes(c, n, x)
        if before:
            x = c.emit("mul", [x, x]) if before == "square" else c.emit(before, [x])
        if axes:
            x = c.emit(op, [x], axes=axes, keepdims=bool(n.attrs.get("keepdims", 1)))
        return c.emit(after, [x]) if after else x

    return convert


def cumsum(c: Context, n: OnnxNode) -> str:
    """The running sum along an axis, which is a constant operand."""
    x = c.operand(n, 0)
    axis = axis_of(c.number(n, 1), len(c.shape(x)))
    flags = {k: bool(n.attrs.get(k, 0)) for k in ("exclusive", "reverse")}
    return c.emit("cumsum", [x], axis=axis, **flags)


def cumprod(c: Context, n: OnnxNode) -> str:
    """The running product: factors at distances 1, 2, 4, ... are multiplied in turn."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axis = axis_of(c.number(n, 1), len(shape))
    extent, back = shape[axis], bool(n.attrs.get("reverse", 0))
    if not c.type(x).size:
        return x

    def moved(v: str, distance: int) -> str:
        """Each element is the one `distance` before (behind, where back), or 1."""
        some = tuple(distance if d == axis else e for d, e in enumerate(shape))
        c.room(some, c.type(v).dtype)
        ones = c.constant(np.ones(some, c.type(v).dtype))
        if distance == extent:
            return ones
        kept = _part(c, v, axis, distance if back else 0, extent - distance)
        return c.emit("concat", [kept, ones] if back else [ones, kept], axis=axis)

    x = moved(x, 1) if n.attrs.get("exclusive", 0) else x
    distance = 1
    while distance < extent:
        x = c.emit("mul", [x, moved(x, distance)])
        distance *= 2
    return x


def reduce_log_sum_exp(c: Context, n: OnnxNode) -> str:
    """m + log(sum(exp(x - m))) with m = max(x) where that is finite, so that nothing overflows."""
    x = c.operand(n, 0)
    axes = _reduced_axes(c, n, x)
    if not axes:
        return x
    top = c.emit("reduce_max", [x], axes=axes, keepdims=True)
    largest = float(np.finfo(c.type(x).dtype).max)
    top = c.emit("clip", [top], min=-largest, max=largest)
    e = c.emit("exp", [c.emit("sub", [x, top])])
    out = c.emit("add", [top, c.emit("log", [c.emit("reduce_sum", [e], axes=axes, keepdims=True)])])
    if n.attrs.get("keepdims", 1):
        return out
    kept = tuple(e for d, e in enumerate(c.shape(x)) if d not in axes)
    return c.emit("reshape", [out], shape=kept)


def reduce_prod(c: Context, n: OnnxNode) -> str:
    """Halves of an axis multiplied until one element is left."""
    x = c.operand(n, 0)
    axes = _reduced_axes(c, n, x)
    if not axes:
        return x
    kept = tuple(e for d, e in enumerate(c.shape(x)) if d not in axes)
    full = tuple(1 if d in axes else e for d, e in enumerate(c.shape(x)))
    if any(c.shape(x)[a] == 0 for a in axes):
        return c.constant(np.ones(full if n.attrs.get("keepdims", 1) else kept, c.type(x).dtype))
    for axis in axes:
        while (extent := c.shape(x)[axis]) > 1:
            half = extent // 2
            parts = [_part(c, x, axis, k * half, half) for k in range(2)]
            rest = _part(c, x, axis, 2 * half, 1) if extent % 2 else None
            x = c.emit("mul", parts)
            x = x if rest is None else c.emit("concat", [x, rest], axis=axis)
    keep = bool(n.attrs.get("keepdims", 1))
    return c.emit("reshape", [x], shape=full if keep else kept)


def _part(c: Context, x: str, axis: int, start: int, size: int) -> str:
    shape = c.shape(x)
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    sizes = tuple(size if d == axis else e for d, e in enumerate(shape))
    return c.emit("slice", [x], starts=starts, sizes=sizes, steps=(1,) * len(shape))
