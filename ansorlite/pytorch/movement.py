"""Readers of aten operators that move, join and choose elements.

Views have the shape that torch computed. Positions that are data are checked as any index of the
graph is: a call with one outside of its axis is a ModelError.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import movement
from ansorlite.pytorch.context import Context, Result, Value

Reader = Callable[..., Result]


def same(c: Context, x: Value, *options: Any) -> Value:
    return x


def view(c: Context, x: Value, *options: Any) -> Value:
    """Any reshape: view, unsqueeze, squeeze, flatten."""
    return c.reshape(x, c.result_shape())


def permute(c: Context, x: Value, dims: Sequence[int]) -> Value:
    rank = c.rank(x)
    return c.emit("transpose", [x], perm=tuple(c.axis(d, rank) for d in dims)) if rank else x


def transpose(c: Context, x: Value, a: int, b: int) -> Value:
    rank = c.rank(x)
    perm = list(range(rank))
    if rank:
        a, b = c.axis(a, rank), c.axis(b, rank)
        perm[a], perm[b] = perm[b], perm[a]
    return c.emit("transpose", [x], perm=tuple(perm)) if rank else x


def matrix_transpose(c: Context, x: Value) -> Value:
    return transpose(c, x, 0, 1) if c.rank(x) == 2 else x


def expand(c: Context, x: Value, *options: Any) -> Value:
    full = c.result_shape()
    return x if c.shape(x) == full else c.emit("expand", [x], shape=full)


def copied(c: Context, x: Value, source: Value, *options: Any) -> Value:
    """copy(x, source): the elements of the source in shape and dtype of x."""
    return expand(c, c.cast(source, c.dtype()))


def part(c: Context, x: Value, axis: int, start: int, size: int, step: int = 1) -> Value:
    """Elements start, start + step, ... of the axis."""
    shape = c.shape(x)
    if (start, size, step) == (0, shape[axis], 1):
        return x
    rows = [(start, size, step) if d == axis else (0, n, 1) for d, n in enumerate(shape)]
    starts, sizes, steps = (tuple(r[k] for r in rows) for k in range(3))
    return c.emit("slice", [x], starts=starts, sizes=sizes, steps=steps)


def slice_(c: Context, x: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    axis = c.axis(dim, c.rank(x))
    index = range(*slice(start, end, step).indices(c.shape(x)[axis]))
    return part(c, x, axis, index.start if index else 0, len(index), step)


def select(c: Context, x: Value, dim: int, index: Any) -> Value:
    if isinstance(index, Value):
        raise ModelError("its index is data: use index_select")
    axis = c.axis(dim, c.rank(x))
    return c.reshape(part(c, x, axis, index % c.shape(x)[axis], 1), c.result_shape())


def unbind(c: Context, x: Value, dim: int) -> Result:
    axis, shape = c.axis(dim, c.rank(x)), c.shape(x)
    rest = (*shape[:axis], *shape[axis + 1 :])
    return tuple(c.reshape(part(c, x, axis, k, 1), rest) for k in range(shape[axis]))


def split_sizes(c: Context, x: Value, sizes: Sequence[int], dim: int) -> Result:
    axis = c.axis(dim, c.rank(x))
    return tuple(part(c, x, axis, sum(sizes[:k]), n) for k, n in enumerate(sizes))


def split(c: Context, x: Value, size: int, dim: int) -> Result:
    extent = c.shape(x)[c.axis(dim, c.rank(x))]
    sizes = [min(size, extent - k) for k in range(0, extent, size)] if size else [0]
    return split_sizes(c, x, sizes, dim)


def cat(c: Context, values: Sequence[Value], dim: int) -> Value:
    """Vectors without elements join anything, as in torch."""
    kept = [v for v in values if c.shape(v) != (0,)] or [values[0]]
    dtype = c.dtype()
    return c.by_onnx("Concat", *(c.cast(v, dtype) for v in kept), axis=c.axis(dim, c.rank(kept[0])))


def stack(c: Context, values: Sequence[Value], dim: int) -> Value:
    axis, dtype = c.axis(dim, c.rank(values[0]) + 1), c.dtype()
    shape = c.shape(values[0])
    wide = (*shape[:axis], 1, *shape[axis:])
    return c.by_onnx("Concat", *(c.reshape(c.cast(v, dtype), wide) for v in values), axis=axis)


def repeat(c: Context, x: Value, times: Sequence[int]) -> Value:
    x = c.reshape(x, (*(1,) * (len(times) - c.rank(x)), *c.shape(x)))
    return c.by_onnx("Tile", x, c.constant(np.asarray(times, np.int64))) if times else x


def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    for axis in {c.axis(d, c.rank(x)) for d in dims}:
        n = c.shape(x)[axis]
        x = part(c, x, axis, n - 1, n, -1) if n > 1 else x
    return x


def _widths(rank: int, pad: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """torch's pads, last axis first, as (before, after) of every axis."""
    pairs = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)]
    return (*((0, 0),) * (rank - len(pairs)), *reversed(pairs))


def constant_pad(c: Context, x: Value, pad: Sequence[int], value: Any) -> Value:
    fill = float(value) if c.type(x).dtype.startswith("float") else int(value)
    return Value(movement.padded(c.onnx(), x, _widths(c.rank(x), pad), fill))


def pad_by(mode: str) -> Reader:
    """reflection_pad and replication_pad."""

    def convert(c: Context, x: Value, pad: Sequence[int]) -> Value:
        widths = _widths(c.rank(x), pad)
        flat = [lo for lo, _ in widths] + [hi for _, hi in widths]
        return c.by_onnx("Pad", x, c.constant(np.asarray(flat, np.int64)), mode=mode)

    return convert


def slice_scatter(
    c: Context, x: Value, source: Value, dim: int, start: Any, end: Any, step: int
) -> Value:
    """x with the source in place of a slice."""
    axis = c.axis(dim, c.rank(x))
    extent = c.shape(x)[axis]
    index = range(*slice(start, end, step).indices(extent))
    if step != 1:
        raise ModelError(f"step {step} is not supported: only 1")
    if not index:
        return x
    source = c.cast(source, c.type(x).dtype)
    ends = part(c, x, axis, 0, index.start), part(c, x, axis, index.stop, extent - index.stop)
    return c.by_onnx("Concat", ends[0], source, ends[1], axis=axis)


def select_scatter(c: Context, x: Value, source: Value, dim: int, index: int) -> Value:
    axis = c.axis(dim, c.rank(x))
    shape = c.shape(x)
    at = index % shape[axis]
    row = c.reshape(source, (*shape[:axis], 1, *shape[axis + 1 :]))
    return slice_scatter(c, x, row, axis, at, at + 1, 1)


def full_like(c: Context, x: Value, value: Any, *options: Any) -> Value:
    shape, dtype = c.result_shape(), c.dtype()
    c.room(shape, dtype)
    return c.constant(np.full(shape, value, dtype))


# ---- positions that are data --------------------------------------------------------------------


def _taken(c: Context, x: Value, places: Value, axis: int) -> Value:
    """x at the places along an axis, which the axes of the places replace."""
    shape = c.shape(x)
    known = c.known(places)
    if (
        known is not None
        and known.size
        and not -shape[axis] <= known.min() <= known.max() < shape[axis]
    ):
        raise ModelError(f"an index is outside of axis {axis} of {c.type(x)}")
    flat = c.reshape(places, (c.type(places).size,))
    out = c.emit("take", [x, flat], axis=axis)
    return c.reshape(out, (*shape[:axis], *c.shape(places), *shape[axis + 1 :]))


def embedding(c: Context, table: Value, places: Value, *options: Any) -> Value:
    return _taken(c, table, places, 0)


def unfold(c: Context, x: Value, dim: int, size: int, step: int) -> Value:
    """Windows along an axis; their elements become the last axis."""
    axis, rank = c.axis(dim, c.rank(x)), c.rank(x)
    count = (c.shape(x)[axis] - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    out = _taken(c, x, c.constant(places.astype(np.int64)), axis)
    perm = (*(d for d in range(rank + 1) if d != axis + 1), axis + 1)
    return c.emit("transpose", [out], perm=perm)


def index_select(c: Context, x: Value, dim: int, places: Value) -> Value:
    axis = c.axis(dim, c.rank(x))
    return c.reshape(_taken(c, x, places, axis), c.result_shape())


def gather(c: Context, x: Value, dim: int, places: Value, sparse: bool) -> Value:
    return c.by_onnx("GatherElements", x, c.cast(places, "int64"), axis=c.axis(dim, c.rank(x)))


def scatter(reduce: str = "none") -> Reader:
    """scatter of a tensor, or of one number."""

    def convert(c: Context, x: Value, dim: int, places: Value, source: Any) -> Value:
        dtype = c.type(x).dtype
        if not isinstance(source, Value):
            source = c.constant(np.full(c.shape(places), source, dtype))
        rows = [part_of for part_of in zip(c.shape(source), c.shape(places), strict=True)]
        for axis, (_, n) in enumerate(rows):
            source = part(c, source, axis, 0, n)
        options = {"axis": c.axis(dim, c.rank(x)), "reduction": reduce}
        return c.by_onnx("ScatterElements", x, places, c.cast(source, dtype), **options)

    return convert


def index(c: Context, x: Value, places: Sequence[Value | None]) -> Value:
    """x[i, :, j]: indexed axes are brought together and become one, of combined positions.

    The axes of the indices stand where the indexed axes stood, or in front if those were apart.
    """
    at = [axis for axis, p in enumerate(places) if p is not None]
    found = [_whole_numbers(c, p) for p in places if p is not None]
    if len(at) == 1:
        return c.reshape(_taken(c, x, found[0], at[0]), c.result_shape())
    together = at == list(range(at[0], at[-1] + 1))
    rest = [d for d in range(c.rank(x)) if d not in at]
    first = at[0] if together else 0
    order = (*rest[:first], *at, *rest[first:])
    x = c.emit("transpose", [x], perm=order) if order != tuple(range(c.rank(x))) else x
    shape = c.shape(x)
    indexed = shape[first : first + len(at)]
    total = math.prod(indexed)
    place: Value | None = None
    inside: Value | None = None
    for p, n in zip(found, indexed, strict=True):
        extent, zero = c.cast(n, "int64"), c.cast(0, "int64")
        p = c.cast(p, "int64")
        front = c.emit("where", [c.emit("less", [p, zero]), c.emit("add", [p, extent]), p])
        fits = c.emit("less_equal", [zero, front])
        fits = c.emit("logical_and", [fits, c.emit("less", [front, extent])])
        inside = fits if inside is None else c.emit("logical_and", [inside, fits])
        place = front if place is None else c.emit("add", [c.emit("mul", [place, extent]), front])
    assert place is not None and inside is not None
    place = c.emit("where", [inside, place, c.cast(total, "int64")])  # one outside is an error
    flat = c.reshape(x, (*shape[:first], total, *shape[first + len(at) :]))
    return c.reshape(_taken(c, flat, place, first), c.result_shape())


def _whole_numbers(c: Context, places: Value) -> Value:
    if c.type(places).dtype == "bool":
        raise ModelError("the size of its result depends on data: use torch.where")
    return places


def index_put(
    c: Context, x: Value, places: Sequence[Value | None], source: Value, accumulate: bool, *_: Any
) -> Value:
    """x with the source at positions of some axes; under a condition, a choice.

    Indexed axes are brought to the front and back.
    """
    at = [axis for axis, p in enumerate(places) if p is not None]
    found = [p for p in places if p is not None]
    dtype, rank = c.type(x).dtype, c.rank(x)
    if len(found) == 1 and c.type(found[0]).dtype == "bool":
        rest = rank - at[0] - c.rank(found[0])
        if accumulate or (c.type(source).size != 1 and (at[0] or c.rank(source) > rest)):
            raise ModelError("only x[condition] = number is supported: use torch.where")
        mask = c.reshape(found[0], (*c.shape(found[0]), *(1,) * rest))
        source = c.cast(source, dtype)
        return c.emit(
            "where", [mask, c.reshape(source, c.shape(source)[-rest:] if rest else ()), x]
        )
    shape = np.broadcast_shapes(*(c.shape(_whole_numbers(c, p)) for p in found))
    rows = []
    for p in found:
        p = c.cast(p, "int64")
        p = p if c.shape(p) == shape else c.emit("expand", [p], shape=shape)
        rows.append(c.reshape(p, (*shape, 1)))
    others = [d for d in range(rank) if d not in at]
    order = (*at, *others)
    source, first = c.cast(source, dtype), at[0] if at == [*range(at[0], at[-1] + 1)] else 0
    extents = [c.shape(x)[d] for d in others]
    full = (*extents[:first], *shape, *extents[first:])
    source = source if c.shape(source) == full else c.emit("expand", [source], shape=full)
    if first and shape:  # the axes of the positions go to the front
        own = range(first, first + len(shape))
        perm = (*own, *range(first), *range(own.stop, len(full)))
        source = c.emit("transpose", [source], perm=perm)
    if order != tuple(range(rank)):
        x = c.emit("transpose", [x], perm=order)
    joined = c.by_onnx("Concat", *rows, axis=len(shape))
    out = c.by_onnx("ScatterND", x, joined, source, reduction="add" if accumulate else "none")
    if order == tuple(range(rank)):
        return out
    return c.emit("transpose", [out], perm=tuple(order.index(d) for d in range(rank)))


def diagonal(c: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Elements [..., k, k + offset] of two axes; these become one, the last."""
    rank = c.rank(x)
    a, b = c.axis(dim1, rank), c.axis(dim2, rank)
    rest = tuple(d for d in range(rank) if d not in (a, b))
    x = c.emit("transpose", [x], perm=(*rest, a, b)) if (*rest, a, b) != (*range(rank),) else x
    *lead, rows, columns = c.shape(x)
    count = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    flat = c.reshape(x, (*lead, rows * columns))
    start = (max(offset, 0) - min(offset, 0) * columns) if count else 0
    return part(c, flat, rank - 2, start, count, columns + 1)


def as_strided(
    c: Context, x: Value, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Value:
    """Elements by their places in memory, which are known: those of the operand in torch."""
    source = c.node.args[0].meta["val"]
    c.room([max(c.type(x).size, math.prod(size))], "int64")
    own = _places(source.shape, source.stride(), source.storage_offset())
    wanted = _places(size, stride, source.storage_offset() if offset is None else offset)
    order = np.argsort(own)
    k = np.searchsorted(own, wanted, sorter=order).clip(max=max(own.size - 1, 0))
    found = order[k] if own.size else k
    if not np.array_equal(own[found] if own.size else own, wanted):
        raise ModelError("it reads memory that is no element of its operand")
    if np.array_equal(found, np.arange(c.type(x).size)):
        return c.reshape(x, c.result_shape())
    flat = c.reshape(x, (c.type(x).size,))
    return c.reshape(_taken(c, flat, c.constant(found.astype(np.int64)), 0), c.result_shape())


def _places(size: Sequence[int], stride: Sequence[int], offset: int) -> Any:
    """The place in memory of each element, in order."""
    places = np.full((), int(offset), np.int64)
    for n, step in zip(size, stride, strict=True):
        places = places[..., None] + np.arange(int(n)) * int(step)
    return places.ravel()
