"""Readers of conditions and integers: comparisons, selection, casts, positions of extremes.

In: a `Context` and an `OnnxNode`. Out: emitted `less`, `where`, `cast`, ... nodes; nodes of
constants are computed at once, as all shape arithmetic is.
"""

import math
from collections.abc import Sequence

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import LOWS, Context, OnnxNode, Reader, axis_of


def swapped(op: str) -> Reader:
    """The operator `op` with its two operands exchanged: a > b is b < a."""
    return lambda c, n: c.emit(op, [c.operand(n, 1), c.operand(n, 0)])


def xor(c: Context, n: OnnxNode) -> str:
    a, b = c.operands(n)
    either = c.emit("logical_or", [a, b])
    return c.emit("logical_and", [either, c.emit("logical_not", [c.emit("logical_and", [a, b])])])


def cast(c: Context, n: OnnxNode) -> str:
    """A cast to the operand's own dtype emits no node."""
    return _converted(c, n, c.dtypes.get(int(n.attrs["to"]), "undefined"))


def cast_like(c: Context, n: OnnxNode) -> str:
    return _converted(c, n, c.declared(n.inputs[1]))


def _converted(c: Context, n: OnnxNode, dtype: str) -> str:
    """Operand 0 in another dtype of the model; rounded to float16 or bfloat16, and kept in float32.

    The attribute `saturate` is about dtypes of 8 and fewer bits, which are not supported.
    """
    x, old = c.operand(n, 0), c.declared(n.inputs[0])
    if dtype not in LOWS:
        return cast_to(c, x, dtype)
    c.lows[n.outputs[0]] = dtype
    wide = cast_to(c, x, "float32")
    if old == dtype:
        return wide
    if dtype == "bfloat16":
        return c.emit("bfloat16", [wide])
    return cast_to(c, c.emit("cast", [wide], dtype="float16"), "float32")


def cast_to(c: Context, x: str, dtype: str) -> str:
    return x if c.type(x).dtype == dtype else c.emit("cast", [x], dtype=dtype)


def arg(op: str) -> Reader:
    """Where `op` (reduce_max, reduce_min) is reached along an axis: the first place, or the last.

    The result is the least (greatest) place whose element equals the extreme one or is NaN: where
    there is a NaN it is the extreme, as in numpy.
    """

    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        axis = axis_of(int(n.attrs.get("axis", 0)), len(c.shape(x)))
        last, keep = bool(n.attrs.get("select_last_index", 0)), bool(n.attrs.get("keepdims", 1))
        return _place(c, x, op, axis, last, keep)

    return convert


def _place(c: Context, x: str, op: str, axis: int, last: bool, keep: bool) -> str:
    """The place along `axis` where `op` is reached, int64; see `arg`."""
    shape = c.shape(x)
    if shape[axis] == 0:
        raise ModelError(f"axis {axis} of {list(shape)} has no element to choose")
    extreme = c.emit(op, [x], axes=(axis,), keepdims=True)
    nowhere = c.constant(np.asarray(-1 if last else shape[axis], np.int64))
    here = c.emit("equal", [x, extreme])
    if c.type(x).dtype.startswith("float"):
        here = c.emit("logical_or", [here, c.emit("logical_not", [c.emit("equal", [x, x])])])
    found = c.emit("where", [here, _places(c, shape, axis), nowhere])
    return c.emit("reduce_max" if last else "reduce_min", [found], axes=(axis,), keepdims=keep)


def _places(c: Context, shape: Sequence[int], axis: int) -> str:
    """The constant 0, 1, ... along `axis` of a shape, with extent 1 along the other axes."""
    c.room([shape[axis]])
    places = np.arange(shape[axis], dtype=np.int64)
    return c.constant(places.reshape([-1 if d == axis else 1 for d in range(len(shape))]))


def hardmax(c: Context, n: OnnxNode) -> str:
    """1 at the first greatest element, 0 elsewhere; before opset 13 of the operand as a matrix."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axis = axis_of(int(n.attrs.get("axis", -1 if n.opset >= 13 else 1)), len(shape))
    if not c.type(x).size:
        return x
    if n.opset < 13:
        rows = math.prod(shape[:axis])
        x, axis = c.emit("reshape", [x], shape=(rows, math.prod(shape[axis:]))), 1
    at = _place(c, x, "reduce_max", axis, last=False, keep=True)
    here = c.emit("equal", [at, _places(c, c.shape(x), axis)])
    out = c.emit("where", [here, c.scalar(1, x), c.scalar(0, x)])
    return c.emit("reshape", [out], shape=shape) if n.opset < 13 else out


def one_hot(c: Context, n: OnnxNode) -> str:
    """values[1] where the new axis has the place that the operand names, else values[0].

    A negative place counts from the end; one beyond the axis is nowhere.
    """
    places, values = cast_to(c, c.operand(n, 0), "int64"), c.operand(n, 2)
    depth = c.required(n, 1)
    if depth.size != 1 or depth.item() < 1:
        raise ModelError(f"depth {depth.tolist()} is not one whole number of at least 1")
    if c.shape(values) != (2,):
        raise ModelError(f"values {c.type(values)} are not two: for off and for on")
    shape, extent = c.shape(places), int(depth.item())
    axis = axis_of(int(n.attrs.get("axis", -1)), len(shape) + 1)
    full = (*shape[:axis], extent, *shape[axis:])
    behind = c.emit("add", [places, c.scalar(extent, places)])
    places = c.emit("where", [c.emit("less", [places, c.scalar(0, places)]), behind, places])
    places = c.emit("reshape", [places], shape=(*shape[:axis], 1, *shape[axis:]))
    here = c.emit("equal", [places, _places(c, full, axis)])
    parts = [c.emit("slice", [values], starts=(k,), sizes=(1,), steps=(1,)) for k in range(2)]
    off, on = (c.emit("reshape", [v], shape=()) for v in parts)
    return c.emit("where", [here, on, off])


def trilu(c: Context, n: OnnxNode) -> str:
    """The upper or lower triangle of the last two axes, zeros elsewhere."""
    x = c.operand(n, 0)
    if len(c.shape(x)) < 2:
        raise ModelError(f"{c.type(x)} is no matrix")
    rows, columns = c.shape(x)[-2:]
    c.room([rows, columns], np.bool_)
    k = max(-rows, min(c.number(n, 1), columns)) if c.has(n, 1) else 0
    ones = np.ones((rows, columns), np.bool_)
    mask = np.triu(ones, k) if n.attrs.get("upper", 1) else np.tril(ones, k)
    return c.emit("where", [c.constant(mask), x, c.scalar(0, x)])


def modulo(c: Context, n: OnnxNode) -> str:
    return c.emit("mod", c.operands(n), fmod=bool(n.attrs.get("fmod", 0)))


def is_nan(c: Context, n: OnnxNode) -> str:
    """NaN alone is not equal to itself."""
    x = c.operand(n, 0)
    return c.emit("logical_not", [c.emit("equal", [x, x])])


def is_inf(c: Context, n: OnnxNode) -> str:
    """Infinities of the signs that the attributes ask for."""
    x = c.operand(n, 0)
    above, below = (bool(n.attrs.get(f"detect_{k}", 1)) for k in ("positive", "negative"))
    if not above and not below:
        c.room(c.shape(x), np.bool_)
        return c.constant(np.zeros(c.shape(x), np.bool_))
    if above and below:
        x = c.emit("abs", [x])
    return c.emit("equal", [x, c.scalar(math.inf if above else -math.inf, x)])


def bit_shift(c: Context, n: OnnxNode) -> str:
    direction = n.attrs["direction"]
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"direction {direction!r} is neither LEFT nor RIGHT")
    return c.emit("bit_shift", c.operands(n), left=direction == "LEFT")


def bit_not(c: Context, n: OnnxNode) -> str:
    """All bits changed."""
    x = c.operand(n, 0)
    signed = np.iinfo(c.type(x).dtype).min < 0
    return c.emit("bit_xor", [x, c.scalar(-1 if signed else np.iinfo(c.type(x).dtype).max, x)])
