"""Readers of conditions and integers: comparisons, selection, casts, positions of extremes.

In: a `Context` and an `OnnxNode`. Out: emitted `less`, `where`, `cast`, ... nodes; nodes of
constants are computed at once, as all shape arithmetic is.
"""

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
        shape = c.shape(x)
        axis = axis_of(int(n.attrs.get("axis", 0)), len(shape))
        last = bool(n.attrs.get("select_last_index", 0))
        if shape[axis] == 0:
            raise ModelError(f"axis {axis} of {list(shape)} has no element to choose")
        c.room([shape[axis]])
        extreme = c.emit(op, [x], axes=(axis,), keepdims=True)
        places = np.arange(shape[axis], dtype=np.int64)
        places = places.reshape([-1 if d == axis else 1 for d in range(len(shape))])
        nowhere = c.constant(np.asarray(-1 if last else shape[axis], np.int64))
        here = c.emit("equal", [x, extreme])
        if c.type(x).dtype.startswith("float"):
            here = c.emit("logical_or", [here, c.emit("logical_not", [c.emit("equal", [x, x])])])
        found = c.emit("where", [here, c.constant(places), nowhere])
        keep = bool(n.attrs.get("keepdims", 1))
        return c.emit("reduce_max" if last else "reduce_min", [found], axes=(axis,), keepdims=keep)

    return convert


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
    """Mod of integers; of floating-point numbers only where the operands are constant."""
    fmod = bool(n.attrs.get("fmod", 0))
    if "int" in c.type(c.operand(n, 0)).dtype:
        return c.emit("mod", c.operands(n), fmod=fmod)
    a, b = c.required(n, 0), c.required(n, 1)
    if not fmod:
        raise ModelError("Mod of floating-point numbers needs fmod=1")
    with np.errstate(all="ignore"):
        return c.constant(np.fmod(a, b))
