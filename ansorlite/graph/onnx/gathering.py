"""Readers of gathers, scatters and rankings: positions along axes that are data of the network.

In: a `Context` and an `OnnxNode`. Out: `take`, `take_along`, `gather_nd`, `scatter_nd`,
`scatter_along`, `top_places` nodes. Scatters at constant positions become a `take` of the updates
and a `where`; others compare each place with each update, whose number is bounded here.
"""

import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, axis_of
from ansorlite.graph.ops.gathering import MOST_INDICES, REDUCTIONS
from ansorlite.graph.types import Array

MOST_COMPARISONS = 1 << 32  # of one scatter or ranking: about a second of a core
MOST_FACTORS = 1 << 26  # elements that the products of a scatter keep in memory
LEAST_BLOCKED = 512  # elements of an axis that is ranked in blocks
MOST_ROUNDS = 32  # updates of one place that are combined one after the other
MERGED = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


def bounded(count: int, what: str) -> None:
    """Raise a ModelError for more comparisons than a call may take."""
    if count > MOST_COMPARISONS:
        raise ModelError(
            f"{what} take {count:.1e} comparisons, more than the limit of {MOST_COMPARISONS:.1e}: "
            "make the positions constant, or split the axis"
        )


def _known_places(known: Array, extent: int, axis: int) -> Any:
    """Constant positions counted from the front; a ModelError for one outside of the axis."""
    if known.size:
        for i in (int(known.min()), int(known.max())):
            if not -extent <= i < extent:
                raise ModelError(
                    f"index {i} is outside of axis {axis}, which has {extent}: indices are from "
                    f"{-extent} to {extent - 1}"
                )
    places = known.astype(np.int64)
    return np.where(places < 0, places + extent, places)


def _columns(c: Context, indices: str, shape: tuple[int, ...]) -> list[str]:
    """indices [*rows, k] as k values of `shape`, as many elements as rows."""
    full = c.shape(indices)
    columns = []
    for k in range(full[-1]):
        starts = (*(0,) * (len(full) - 1), k)
        sizes, steps = (*full[:-1], 1), (1,) * len(full)
        part = c.emit("slice", [indices], starts=starts, sizes=sizes, steps=steps)
        columns.append(c.emit("reshape", [part], shape=shape))
    return columns


# ---- gathers ------------------------------------------------------------------------------------


def gather_elements(c: Context, n: OnnxNode) -> str:
    x, indices = c.operand(n, 0), c.operand(n, 1)
    axis = axis_of(int(n.attrs.get("axis", 0)), len(c.shape(x)))
    known = c.known(n, 1)
    if known is not None:
        _known_places(known, c.shape(x)[axis], axis)
    return c.emit("take_along", [x, indices], axis=axis, checked=True)


def gather_nd(c: Context, n: OnnxNode) -> str:
    """Constant positions become numbers of rows, and a `take`; others a `gather_nd`."""
    x, indices = c.operand(n, 0), c.operand(n, 1)
    shape, places = c.shape(x), c.shape(indices)
    lead = int(n.attrs.get("batch_dims", 0))
    if not 0 <= lead < min(len(shape), len(places)) or shape[:lead] != places[:lead]:
        raise ModelError(f"batch_dims {lead} of data {list(shape)} and indices {list(places)}")
    depth = places[-1]
    if not 1 <= depth <= len(shape) - lead or depth > MOST_INDICES:
        most = min(len(shape) - lead, MOST_INDICES)
        raise ModelError(f"indices {list(places)} name {depth} axes of data, not 1 to {most}")
    batch, rest = math.prod(shape[:lead]), shape[lead + depth :]
    named, result = shape[lead : lead + depth], (*places[:-1], *rest)
    known = c.known(n, 1)
    if known is not None:
        parts = known.reshape(batch, -1, depth)
        at = np.arange(batch)[:, None]
        for k, extent in enumerate(named):
            at = at * extent + _known_places(parts[:, :, k], extent, lead + k)
        data = c.emit("reshape", [x], shape=(batch * math.prod(named), math.prod(rest)))
        out = c.emit("take", [data, c.constant(at.ravel().astype(np.int64))], axis=0)
    else:
        rows = (batch, math.prod(places[lead:-1]))
        data = c.emit("reshape", [x], shape=(batch, *named, math.prod(rest)))
        out = c.emit("gather_nd", [data, *_columns(c, indices, rows)])
    return c.emit("reshape", [out], shape=result)


def reverse_sequence(c: Context, n: OnnxNode) -> str:
    """Along the time axis the first `sequence_lens[b]` elements of batch entry b in reverse."""
    x, lengths = c.operand(n, 0), c.operand(n, 1)
    shape = c.shape(x)
    rank, time, batch = len(shape), int(n.attrs.get("time_axis", 0)), n.attrs.get("batch_axis", 1)
    if {time, batch} != {0, 1} or rank < 2 or c.shape(lengths) != (shape[batch],):
        raise ModelError(f"axes {time} (time) and {batch} (batch) of {c.type(x)}: 0 and 1 or 1, 0")
    steps = np.arange(shape[time], dtype=np.int64)
    t = c.constant(steps.reshape([-1 if d == time else 1 for d in range(rank)]))
    ends = [shape[batch] if d == batch else 1 for d in range(rank)]
    lengths = c.emit("reshape", [lengths], shape=tuple(ends))
    if c.type(lengths).dtype != "int64":
        lengths = c.emit("cast", [lengths], dtype="int64")
    last = c.emit("sub", [lengths, c.scalar(1, lengths)])
    places = c.emit("where", [c.emit("less", [t, lengths]), c.emit("sub", [last, t]), t])
    places = c.emit("expand", [places], shape=shape)
    return c.emit("take_along", [x, places], axis=time, checked=True)


# ---- scatters -----------------------------------------------------------------------------------


def _reduction(n: OnnxNode) -> str:
    reduction = str(n.attrs.get("reduction", "none"))
    if reduction not in REDUCTIONS:
        raise ModelError(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    return reduction


def _rounds(places: Any, rows: int, reduction: str) -> list[Any]:
    """For each round and row the number of an update, or -1: combined in the order of updates."""
    if reduction == "none":
        last = np.full(rows, -1, np.int64)
        last[places] = np.arange(len(places))
        return [last]
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    turn = np.empty(len(places), np.int64)
    turn[order] = np.arange(len(places)) - starts
    rounds = []
    for k in range(int(turn.max()) + 1 if turn.max() < MOST_ROUNDS else 0):
        own = np.full(rows, -1, np.int64)
        own[places[turn == k]] = np.flatnonzero(turn == k)
        rounds.append(own)
    return rounds


def _at_known(c: Context, x: str, updates: str, rounds: list[Any], reduction: str) -> str:
    """x [n, r] with updates [q, r] in rounds, by a `take` and a `where` each."""
    for own in rounds:
        at = c.constant(np.maximum(own, 0))
        value = c.emit("take", [updates, at], axis=0)
        if reduction != "none":
            value = c.emit(MERGED[reduction], [x, value])
        if np.any(own < 0):
            value = c.emit("where", [c.constant((own >= 0)[:, None]), value, x])
        x = value
    return x


def _check_factors(reduction: str, elements: int, count: int) -> None:
    if reduction == "mul" and elements * -(-count // 2) > MOST_FACTORS:
        raise ModelError(
            f"{count} updates multiplied into {elements} elements, more than the limit of "
            f"{MOST_FACTORS} factors: make the positions constant"
        )


def scatter_nd(c: Context, n: OnnxNode) -> str:
    x, indices, updates = (c.operand(n, k) for k in range(3))
    shape, places, reduction = c.shape(x), c.shape(indices), _reduction(n)
    depth = places[-1] if places else 0
    if not 1 <= depth <= min(len(shape), MOST_INDICES):
        raise ModelError(f"indices {list(places)} name {depth} axes of data {list(shape)}")
    if c.shape(updates) != (*places[:-1], *shape[depth:]):
        raise ModelError(f"updates {c.type(updates)} for indices {list(places)} of {c.type(x)}")
    if not c.type(updates).size:
        return x
    named, count, width = shape[:depth], math.prod(places[:-1]), math.prod(shape[depth:])
    rows = math.prod(named)
    data = c.emit("reshape", [x], shape=(rows, width))
    updates = c.emit("reshape", [updates], shape=(count, width))
    known, rounds = c.known(n, 1), []
    if known is not None:
        parts = known.reshape(-1, depth)
        columns = [_known_places(parts[:, k], e, k) for k, e in enumerate(named)]
        rounds = _rounds(np.ravel_multi_index(tuple(columns), named), rows, reduction)
    if rounds:
        out = _at_known(c, data, updates, rounds, reduction)
    else:
        cost = rows * count * (1 if reduction == "none" else width)
        bounded(cost, f"{count} updates of {rows} rows of {width}")
        _check_factors(reduction, rows * width, count)
        operands = [data, updates, *_columns(c, indices, (count,))]
        out = c.emit("scatter_nd", operands, shape=named, reduction=reduction)
    return c.emit("reshape", [out], shape=shape)


def scatter_elements(c: Context, n: OnnxNode) -> str:
    x, indices, updates = (c.operand(n, k) for k in range(3))
    shape, places, reduction = c.shape(x), c.shape(indices), _reduction(n)
    axis = axis_of(int(n.attrs.get("axis", 0)), len(shape))
    if places != c.shape(updates) or len(places) != len(shape):
        raise ModelError(f"indices {c.type(indices)} and updates {c.type(updates)} for {c.type(x)}")
    if any(p > e for d, (p, e) in enumerate(zip(places, shape, strict=True)) if d != axis):
        raise ModelError(f"indices {c.type(indices)} are beyond data {c.type(x)}")
    if not c.type(updates).size:
        return x
    known, count = c.known(n, 1), places[axis]
    if known is not None:
        at = list(np.indices(places, sparse=True))
        at[axis] = _known_places(known, shape[axis], axis)
        flat = np.ravel_multi_index(tuple(np.broadcast_arrays(*at)), shape).ravel()
        if rounds := _rounds(flat, math.prod(shape), reduction):
            data = c.emit("reshape", [x], shape=(math.prod(shape), 1))
            updates = c.emit("reshape", [updates], shape=(known.size, 1))
            out = _at_known(c, data, updates, rounds, reduction)
            return c.emit("reshape", [out], shape=shape)
    bounded(math.prod(shape) * count, f"{count} updates along axis {axis} of {c.type(x)}")
    _check_factors(reduction, math.prod(shape), count)
    return c.emit("scatter_along", [x, indices, updates], axis=axis, reduction=reduction)


def tensor_scatter(c: Context, n: OnnxNode) -> str:
    """A cache with the updates of each batch entry from its own place on, or around its end."""
    x, updates = c.operand(n, 0), c.operand(n, 1)
    shape, rank, mode = c.shape(x), len(c.shape(x)), n.attrs.get("mode", "linear")
    axis = axis_of(int(n.attrs.get("axis", -2)), rank)
    count = c.shape(updates)[axis]
    if mode not in ("linear", "circular") or axis == 0 or count > shape[axis]:
        raise ModelError(f"mode {mode!r}, axis {axis}, {count} updates of {c.type(x)}")
    steps = np.arange(shape[axis], dtype=np.int64)
    t = c.constant(steps.reshape([-1 if d == axis else 1 for d in range(rank)]))
    if c.has(n, 2):
        first = c.emit("reshape", [c.operand(n, 2)], shape=(shape[0], *(1,) * (rank - 1)))
        t = c.emit("sub", [t, first])
    if mode == "circular":
        t = c.emit("mod", [t, c.scalar(shape[axis], t)], fmod=False)
    own = c.emit("less", [t, c.scalar(count, t)])
    if mode == "linear":
        own = c.emit("logical_and", [own, c.emit("less_equal", [c.scalar(0, t), t])])
    at = c.emit("clip", [t], min=0, max=count - 1)
    at = c.emit("expand", [at], shape=shape) if c.shape(at) != shape else at
    value = c.emit("take_along", [updates, at], axis=axis, checked=False)
    return c.emit("where", [own, value, x])


# ---- rankings -----------------------------------------------------------------------------------


def top_k(c: Context, n: OnnxNode) -> tuple[str, str]:
    """The k largest (smallest) elements of an axis in order, and their positions."""
    x = c.operand(n, 0)
    shape = c.shape(x)
    axis = axis_of(int(n.attrs.get("axis", -1)), len(shape))
    count = int(n.attrs["k"]) if n.opset < 10 else c.number(n, 1)
    if not 0 <= count <= shape[axis]:
        raise ModelError(f"k is {count}, but axis {axis} of {c.type(x)} has {shape[axis]} elements")
    places = _places(c, x, axis, count, bool(n.attrs.get("largest", 1)))
    return c.emit("take_along", [x, places], axis=axis, checked=False), places


def _places(c: Context, x: str, axis: int, count: int, largest: bool) -> str:
    """Positions of the first elements of an axis: those of each block, then the first of those.

    Equal elements stay in order: blocks follow each other, and so do the elements of a block.
    """
    shape, attrs = c.shape(x), {"count": count, "largest": largest}
    extent, block = shape[axis], _block(shape[axis], count)
    blocks = -(-extent // block) if block else 1
    cost = blocks * block**2 + (blocks * count) ** 2 if block else extent * max(extent, count)
    cost = 2 * extent if count == 1 else cost
    bounded(cost * math.prod(shape) // max(extent, 1), f"the first {count} elements of {c.type(x)}")
    if not block:
        return c.emit("top_places", [x], axis=axis, **attrs)
    pads = tuple((0, blocks * block - extent if d == axis else 0) for d in range(len(shape)))
    dtype = c.type(x).dtype
    # Behind all elements of their kind: never among the first.
    last: Any = -np.inf if largest else np.nan
    if not dtype.startswith("float"):
        last = int(np.iinfo(dtype).min if largest else np.iinfo(dtype).max)
    rows = c.emit("pad", [x], pads=pads, value=last) if pads[axis][1] else x
    split = (*shape[:axis], blocks, block, *shape[axis + 1 :])
    rows = c.emit("reshape", [rows], shape=split)
    own = c.emit("top_places", [rows], axis=axis + 1, **attrs)
    best = c.emit("take_along", [rows, own], axis=axis + 1, checked=False)
    first = np.arange(blocks, dtype=np.int64) * block
    ones = [blocks if d == axis else 1 for d in range(len(split))]
    own = c.emit("add", [own, c.constant(first.reshape(ones))])
    joined = (*shape[:axis], blocks * count, *shape[axis + 1 :])
    own, best = (c.emit("reshape", [v], shape=joined) for v in (own, best))
    chosen = c.emit("top_places", [best], axis=axis, **attrs)
    return c.emit("take_along", [own, chosen], axis=axis, checked=False)


def _block(extent: int, count: int) -> int:
    """The length of blocks for which a ranking takes the fewest comparisons; 0 for one block."""
    if extent <= LEAST_BLOCKED or count < 2:
        return 0
    lengths = [2**k for k in range(5, 20) if 2 * count <= 2**k < extent]
    return min(lengths, key=lambda b: extent * b + (-(-extent // b) * count) ** 2, default=0)
