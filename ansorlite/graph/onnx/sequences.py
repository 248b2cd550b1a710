"""Readers of sequences, which exist at import only: lists of values whose length is known.

In: tensors, or sequences that earlier nodes made. Out: a sequence (`Context.listed`), or the tensor
that is read from one. No kernel sees a sequence. A sequence as input or output of a network, or a
position that depends on the input, is an error by name.
"""

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader, axis_of
from ansorlite.names import brief


def _items(c: Context, n: OnnxNode, k: int = 0) -> tuple[str, ...]:
    """The elements of operand k, a sequence."""
    found = c.sequences.get(c.operand(n, k))
    if found is None:
        raise ModelError(f"operand {brief(n.inputs[k])} is no sequence")
    return found


def _position(c: Context, n: OnnxNode, k: int, count: int) -> int:
    """Operand k, a position among `count`; negative ones count from the end."""
    at = c.number(n, k)
    if not -count <= at < count:
        raise ModelError(f"position {at} is outside of a sequence of {count}")
    return at % count


def construct(c: Context, n: OnnxNode) -> str:
    return c.listed(c.operands(n))


def empty(c: Context, n: OnnxNode) -> str:
    return c.listed([])


def at(c: Context, n: OnnxNode) -> str:
    items = _items(c, n)
    return items[_position(c, n, 1, len(items))]


def length(c: Context, n: OnnxNode) -> str:
    return c.constant(np.int64(len(_items(c, n))))


def insert(c: Context, n: OnnxNode) -> str:
    items, value = list(_items(c, n)), c.operand(n, 1)
    place = _position(c, n, 2, len(items) + 1) if c.has(n, 2) else len(items)
    if c.has(n, 2) and c.number(n, 2) < 0:
        place -= 1  # counted from the last element, before which the value comes
    items.insert(place, value)
    return c.listed(items)


def erase(c: Context, n: OnnxNode) -> str:
    items = list(_items(c, n))
    del items[_position(c, n, 1, len(items)) if c.has(n, 1) else -1]
    return c.listed(items)


def concat(c: Context, n: OnnxNode) -> str:
    """The elements along an axis, or stacked along a new one."""
    items = list(_items(c, n))
    if not items:
        raise ModelError("a sequence without elements cannot be joined")
    new, rank = bool(n.attrs.get("new_axis", 0)), len(c.shape(items[0]))
    axis = axis_of(int(n.attrs["axis"]), rank + new)
    if new:
        shape = c.shape(items[0])
        items = [c.emit("reshape", [v], shape=(*shape[:axis], 1, *shape[axis:])) for v in items]
    return c.emit("concat", items, axis=axis)


def split(c: Context, n: OnnxNode) -> str:
    """Pieces along an axis: of given sizes, of one size, or single elements."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axis = axis_of(int(n.attrs.get("axis", 0)), len(shape))
    if not c.has(n, 1):
        sizes = [1] * shape[axis]
    elif c.shape(c.operand(n, 1)) == ():
        step = c.number(n, 1)
        if step < 1:
            raise ModelError(f"pieces of {step} elements: at least 1 is needed")
        sizes = [min(step, shape[axis] - k) for k in range(0, shape[axis], step)]
    else:
        sizes = c.numbers(n, 1)
    if sum(sizes) != shape[axis] or min(sizes, default=0) < 0:
        raise ModelError(f"cannot split extent {shape[axis]} into {sizes}")
    drop = not c.has(n, 1) and not int(n.attrs.get("keepdims", 1))
    out, begin = [], 0
    for size in sizes:
        starts = tuple(begin if d == axis else 0 for d in range(len(shape)))
        extents = tuple(size if d == axis else e for d, e in enumerate(shape))
        piece = c.emit("slice", [x], starts=starts, sizes=extents, steps=(1,) * len(shape))
        if drop:
            piece = c.emit("reshape", [piece], shape=(*shape[:axis], *shape[axis + 1 :]))
        out.append(piece)
        begin += size
    return c.listed(out)


READERS: dict[str, Reader] = {
    "ConcatFromSequence": concat,
    "SequenceAt": at,
    "SequenceConstruct": construct,
    "SequenceEmpty": empty,
    "SequenceErase": erase,
    "SequenceInsert": insert,
    "SequenceLength": length,
    "SplitToSequence": split,
}
