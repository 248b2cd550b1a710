"""Annotation as holes: parallel depth, vector length and unroll limit of every stage of a sketch.

Ansor draws annotations at random after the tile sizes; here annotations are holes of the same
program: `<node>.parallel` (number of outer loops whose iterations are shared among threads),
`<node>.lanes`, `<node>.unroll`, `<node>.prefetch` and `<node>.stream`. Stages at root without tiles
also get a tile of their contiguous axis. In: a state without annotations. Out: the state with
annotation holes.
"""

import math

import numpy as np

from ansorlite.ir.expr import Const
from ansorlite.ir.prefetch import NEXT_BLOCK
from ansorlite.ir.traverse import branches_by_lane, loads
from ansorlite.schedule.holes import SHORT_REDUCE_EXTENT, Hole, column, reduce_options, tile_options
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.space.rules import MAX_INNERMOST_FACTOR, node_of
from ansorlite.target import Target
from ansorlite.te.access import contiguous_axis, extent, transposed_axis
from ansorlite.te.tensor import Axis, ComputeOp

UNROLL_STEPS = ((0,), (16,), (64,))
# Reductions of at most WINDOW_SIZE steps, such as windows, may be unrolled entirely.
WINDOW_SIZE, WINDOW_STEP = 32, (256,)
# Iterations of the innermost reduction loop.
PREFETCH_AHEAD = ((0,), (8,), (32,), (NEXT_BLOCK,))
MAX_USEFUL_GRAINS = 1024  # with this many grains, more grains do not improve the balance
UNROLL_ALL = 1 << 16  # an unroll limit above any loop: always unroll


def annotate(state: State, target: Target) -> State:
    """The state with annotation holes on every stage, outputs first like the sketch rules."""
    for name in [s.name for s in reversed(state.schedule.stages)]:
        s = state.schedule[name]
        if not s.has_loops:
            continue
        state = _inner(state, s, target)
        if s.location == "root" and not any(key == "parallel" for _, key, _ in s.notes):
            state = _parallel(state, state.schedule[name])
    return state


def _inner(state: State, s: Stage, target: Target) -> State:
    """Vector, register and unroll annotations of the innermost loops of a stage."""
    if s.notes or branches_by_lane(s.compute.body):
        return state
    if s.leader is not None:
        return _vector_loop(state, s, node_of(s.leader), target)
    if s.packed_for is not None:
        return _vector_loop(state, s, node_of(s.name), target)
    along = contiguous_axis(s.compute)
    if s.tiling and not s.compute.combiner and along is not None:
        # Cut into blocks for the stages that it reads, such as those of transforms.
        if not s.factors(along.name):
            attached = state.schedule.attached(s.name, along.name)
            return state if attached else _whole_vector(state, s, along, target)
        if state.schedule.attached(s.name, f"{along.name}.0"):
            return _vector_loop(state, s, node_of(s.name), target)
    if s.tiling:
        return _register_tile(state, s, target)
    return _untiled(state, s, target)


def lanes_hole(node: str, n: int, dtype: str, target: Target) -> Hole:
    """Vector lengths for a loop of `n` iterations: the target's full and half vector, or less.

    For a short loop one vector may have more lanes than iterations, but less than twice as many.
    """
    full = target.lanes(dtype)
    options = [v for v in (full, full // 2) if 1 < v < 2 * n] or [1 << (max(1, n).bit_length() - 1)]
    return Hole(f"{node}.lanes", node, "lanes", tuple((v,) for v in sorted(set(options))))


def _vector_loop(state: State, s: Stage, node: str, target: Target) -> State:
    """Annotation "lanes" on the innermost loop of the last axis with extent > 1."""
    wide = [it for it in s.iters if not it.reduce and _size(s, it.axis) > 1]
    if not wide:
        return state
    last = wide[-1]
    hole = next((h for h in state.holes if h.name == f"{node}.lanes"), None)
    if hole is None:
        # The stage that owns the hole.
        first = state.schedule[s.leader] if s.leader is not None else s
        hole = lanes_hole(node, _size(s, last.axis), first.compute.dtype, target)
        state = state.open(hole)
    state = state.apply(Annotate(s.name, last.name, "lanes", hole.columns[0]))
    return _stream(state, s, last.name, target)


def _size(s: Stage, axis: str) -> int:
    """The extent of an axis of a stage."""
    for a in s.compute.axes + s.compute.reduce_axes:
        if a.name == axis:
            return extent(a)
    return 1


def _register_tile(state: State, s: Stage, target: Target) -> State:
    """Annotations of a tiled stage: the innermost spatial level is the register tile.

    The last tiled axis is the vector axis.
    """
    op, node = s.compute, node_of(s.name)
    tiled = [a for a in op.axes if s.factors(a.name)]
    if not tiled:
        return state
    for a in tiled:
        at = f"{a.name}.{len(s.factors(a.name))}"
        state = state.apply(Annotate(s.name, at, "register", 1))
    vector = tiled[-1]
    assert isinstance(vector.extent, Const)
    hole = lanes_hole(node, vector.extent.value, op.dtype, target)
    at = f"{vector.name}.{len(s.factors(vector.name))}"
    state = state.open(hole).apply(Annotate(s.name, at, "lanes", hole.columns[0]))
    state = _stream(_prefetch(state, state.schedule[s.name], vector.name), s, at, target)
    return _unroll(state, state.schedule[s.name])


def _prefetch(state: State, s: Stage, vector: str) -> State:
    """Prefetch distance, if an operand moves with the vectors and the innermost reduction loop."""
    reduces = [it for it in s.iters if it.reduce and _size(s, it.axis) > SHORT_REDUCE_EXTENT]
    if not reduces or reduces[-1].axis != [it for it in s.iters if it.reduce][-1].axis:
        return state
    last = reduces[-1]
    if not any({vector, last.axis} <= x.free for x in loads(s.compute.body)):
        return state
    node = node_of(s.name)
    hole = Hole(f"{node}.prefetch", node, "prefetch", PREFETCH_AHEAD)
    return state.open(hole).apply(Annotate(s.name, last.name, "prefetch", hole.columns[0]))


def _stream(state: State, s: Stage, at: str, target: Target) -> State:
    """Optional non-temporal stores for an output that exceeds the last-level cache."""
    op = s.compute
    size_bytes = math.prod(_size(s, a.name) for a in op.axes) * np.dtype(op.dtype).itemsize
    held = target.l3_bytes or target.l2_bytes * target.cores
    if s.name not in state.schedule.outputs or size_bytes <= held:
        return state
    node = node_of(s.name)
    hole = Hole(f"{node}.stream", node, "stream", ((0,), (1,)))
    return state.open(hole).apply(Annotate(s.name, at, "stream", hole.columns[0]))


def _unroll(state: State, s: Stage) -> State:
    """Unroll limit for the reduction loops, which are unrolled from the innermost outwards."""
    reduces = [it for it in s.iters if it.reduce and _size(s, it.axis) > 1]
    always = s.compute.attr("always_unroll_inner", ())
    inner = {it.axis: it.name for it in s.iters if it.reduce and it.axis in always}
    if inner:
        return state.apply(*(Annotate(s.name, at, "unroll", UNROLL_ALL) for at in inner.values()))
    if not reduces:
        return state
    node = node_of(s.name)
    window = math.prod(_size(s, a.name) for a in s.compute.reduce_axes) <= WINDOW_SIZE
    hole = Hole(
        f"{node}.unroll", node, "unroll", (*UNROLL_STEPS, WINDOW_STEP) if window else UNROLL_STEPS
    )
    notes = [Annotate(s.name, it.name, "unroll", hole.columns[0]) for it in reduces]
    return state.open(hole).apply(*notes)


def _untiled(state: State, s: Stage, target: Target) -> State:
    """Annotations of a stage without tiles: vectors along its contiguous axis."""
    along = contiguous_axis(s.compute)
    if along is None or state.schedule.attached(s.name, along.name):
        return state  # a loop with an attached stage cannot be a vector
    constant = isinstance(along.extent, Const)
    if along in s.compute.reduce_axes:
        return _reduction_vector(state, s, along, target) if constant else state
    if s.location == "root" and constant:
        return _split_vector(state, s, along, target)
    return _whole_vector(state, s, along, target)


def _reduction_vector(state: State, s: Stage, along: Axis, target: Target) -> State:
    """A horizontal reduction: the reduction axis innermost, in vectors."""
    order = [it.name for it in s.iters if it.axis != along.name] + [along.name]
    hole = lanes_hole(node_of(s.name), extent(along), s.compute.dtype, target)
    return state.open(hole).apply(
        Reorder(s.name, tuple(order)), Annotate(s.name, along.name, "lanes", hole.columns[0])
    )


def _whole_vector(state: State, s: Stage, along: Axis, target: Target) -> State:
    """The unsplit axis in vectors: of an attached stage, or of an extent that depends on holes."""
    op = s.compute
    across = _transposed_loop(state, s, along)
    if across is not None:
        order = [it.name for it in s.iters if it.axis not in (across.name, along.name)]
        state = state.apply(Reorder(s.name, (*order, across.name, along.name)))
    n = extent(along) if isinstance(along.extent, Const) else target.lanes(op.dtype)
    hole = lanes_hole(node_of(s.name), n, op.dtype, target)
    state = state.open(hole).apply(Annotate(s.name, along.name, "lanes", hole.columns[0]))
    if not isinstance(along.extent, Const) and op.combiner:
        # The factored part of a reduction is short, so all of it stays in registers.
        state = state.apply(Annotate(s.name, along.name, "register", 1))
    return state


def _split_vector(state: State, s: Stage, along: Axis, target: Target) -> State:
    """A stage at root: the axis split by a tile hole, the inner loop innermost and in vectors."""
    op, node = s.compute, node_of(s.name)
    across = _transposed_loop(state, s, along)
    tile = Hole(f"{node}.{along.name}", node, "tile", _vector_tiles(op, along, target))
    # The last two loops of a copy may become one, see `ir.collapse`.
    row = math.prod(extent(a) for a in op.axes[-2:])
    n = extent(along) if op.combiner or along is not op.axes[-1] else row
    hole = lanes_hole(node, n, op.dtype, target)
    state = state.open(tile, hole).apply(Split(s.name, along.name, tile.columns))
    inner = f"{along.name}.1"
    iters = state.schedule[s.name].iters
    spatial = [it.name for it in iters if not it.reduce and it.name != inner]
    if across is not None:
        spatial = [*(name for name in spatial if name != across.name), across.name]
    reduce = [it.name for it in iters if it.reduce]
    state = state.apply(
        Reorder(s.name, (*spatial, *reduce, inner)),
        Annotate(s.name, inner, "lanes", hole.columns[0]),
    )
    state = _stream(state, s, inner, target)
    if op.combiner:
        state = state.apply(Annotate(s.name, inner, "register", 1))
        state = _unroll(state, state.schedule[s.name])
    return state


def _vector_tiles(op: ComputeOp, along: Axis, target: Target) -> tuple[tuple[int, ...], ...]:
    """Tile options of a vectorised axis; without reduction, tiles of at least one vector."""
    if op.combiner:
        return tile_options(extent(along), 1, MAX_INNERMOST_FACTOR)
    at_least = min(extent(along), target.lanes(op.dtype))
    options = reduce_options(extent(along), 1, 1 << 20)
    return tuple(o for o in options if o[-1] >= at_least)


def _transposed_loop(state: State, s: Stage, along: Axis) -> Axis | None:
    """The axis to place next to the vector axis of a transposing copy; None otherwise."""
    return None if state.schedule.attached(s.name) else transposed_axis(s.compute, along)


def parallel_limit(state: State, s: Stage) -> int:
    """Number of outer loops that may be parallel.

    The count stops before the first reduction or vector loop and after the first attach point, or
    the first loop over which a stage is kept.
    """
    inner = {it for it, key, _ in s.notes if key in ("lanes", "register")}
    n = 0
    for it in s.iters:
        if it.reduce or it.name in inner:
            break
        n += 1
        if state.schedule.attached(s.name, it.name) or state.schedule.kept(s.name, it.name):
            break
    return n


def _parallel(state: State, s: Stage) -> State:
    """Parallel depth of a stage at root."""
    limit = parallel_limit(state, s)
    wide = [d for d in range(1, limit + 1) if _size(s, s.iters[d - 1].axis) > 1]
    if not wide:
        return state
    if len(s.tiling) < 2:
        grains = [math.prod(_size(s, it.axis) for it in s.iters[:d]) for d in wide]
        wide = [d for d, n in zip(wide, [0, *grains], strict=False) if n < MAX_USEFUL_GRAINS]
    node = node_of(s.name)
    # Depths that add only loops of one iteration would repeat a program.
    hole = Hole(f"{node}.parallel", node, "parallel", tuple((d,) for d in (0, *wide)))
    state = state.open(hole)
    knob = column(hole.name, 1)
    notes = [Annotate(s.name, s.iters[d].name, "parallel", f"{knob}>{d}") for d in range(limit)]
    return state.apply(*notes)
