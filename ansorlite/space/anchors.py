"""Fusion across anchors: heavy stages computed for a tile of the heavy stage that reads them.

rewrite: `for i, j: s = sum_k q * k; for i, j: p = f(s); for i, d: y = sum_j p * v` ->
`for i.0: (s and p of the rows of i.1; tiles of y)`, so that intermediate results stay in the
caches. An anchor is a stage with data reuse and a reduction: a product, a convolution. The last
anchor, with the map that follows it, is the nest; every other stage moves into its outer tile
loops, with a halo where a window reads it. Anchors inside keep register tiles of their own. A
packed operand moves to the outer loops that determine it, so rows that share it pack it once.

Where windows overlap, a second way has no halo between the steps along an axis: `for i.0: for i.1:
(the rows that the window of i.1 is the first to read; tiles of y)`, and rows are kept over i.1.
"""

from collections.abc import Iterable
from contextlib import suppress

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads
from ansorlite.schedule.lower import check
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
    CacheRead,
    ComputeAt,
    ComputeInline,
    FollowSplit,
    LayoutRewrite,
    Reorder,
    StoreAt,
    Transpose,
)
from ansorlite.space.annotate import lanes_hole
from ansorlite.space.rows import axis_dependencies, dependencies
from ansorlite.space.rules import fusible_consumer, last_of_level, tile, tile_order
from ansorlite.target import Target
from ansorlite.te.access import contiguous_axis, extent, has_data_reuse, is_strictly_inlineable
from ansorlite.te.tensor import Axis, ComputeOp

OUTER, INNER = "SSRSRS", "SRSRS"  # tile structures: of the nest, of an anchor inside a tile
ROLLED = "-rolled"


def anchors(state: State) -> list[Stage]:
    """The stages with data reuse and a reduction that the kernel computes, in their order."""
    return [s for s in state.schedule.stages if s.has_loops and is_anchor(s.compute)]


def is_anchor(op: ComputeOp) -> bool:
    """True for a reduction with data reuse, none of whose operands is read once.

    One that reads an element of its own at each step, such as the largest of scores with a mask
    for all rows, gains nothing from tiles.
    """
    wide = {a.name for a in op.axes + op.reduce_axes if extent(a) > 1}
    once = any(
        wide <= x.free and all(len(i.free & wide) < 2 for i in x.indices) for x in loads(op.body)
    )
    return bool(op.combiner) and has_data_reuse(op) and not once


def fuse_anchors(state: State, target: Target) -> Iterable[tuple[str, State]]:
    """(label, state) of each way to compute all stages at tiles of the last anchor.

    Condition: one output, at least two anchors, and the output is the last of them or the only map
    that reads it. The ways differ in the level at which the nest computes the last anchor, in the
    packed operands, and in whether rows that windows share are kept (`keeps_rows`).
    """
    if len(state.schedule.outputs) != 1 or len(anchors(state)) < 2:
        return
    inlined = _inlined(state)
    turned = _turned(inlined)
    rows = _shared_rows(inlined)
    starts: list[tuple[str, State, Axis | None]] = [("-anchors", inlined, None)]
    if turned is not None:
        starts.append(("-turned", turned, None))
    if rows is not None:
        starts.append((ROLLED, inlined, rows))
    levels = (1, 2) if anchors(inlined)[-1].name not in state.schedule.outputs else (1,)
    for name, start, along in starts:
        for level in levels:
            tiled = _tiled(start, target, level, along)
            for label, packed in _packings(tiled, along) if tiled is not None else ():
                with suppress(ScheduleError):
                    fused = _columns_in_registers(_attached(packed, along), target)
                    check(fused)
                    yield f"{name}{level}{label}", fused


def keeps_rows(label: str) -> bool:
    """True for a way of `fuse_anchors` that computes rows once that windows share."""
    return label.startswith(ROLLED)


def can_fuse(state: State) -> bool:
    """True if the last of at least two anchors, or the map that follows it, is the only output."""
    if len(state.schedule.outputs) != 1 or len(anchors(state)) < 2:
        return False
    inlined = _inlined(state)
    last = anchors(inlined)[-1]
    follower = fusible_consumer(inlined, last)
    return inlined.schedule.outputs[0] in (last.name, follower.name if follower else "")


def _inlined(state: State) -> State:
    """The state with maps inlined, except into anchors, which read an element many times."""
    for s in reversed(state.schedule.stages):
        if not s.has_loops or s.name in state.schedule.outputs:
            continue
        readers = state.schedule.readers(s.name)
        again = any(is_anchor(r.compute) for r in readers)
        if is_strictly_inlineable(s.compute) and not again:
            with suppress(ScheduleError):
                state = state.apply(ComputeInline(s.name))
    return state


def _turned(state: State) -> State | None:
    """The state with stages whose rows are reduced stored column by column; None if there are none.

    Then a vector holds an element of each of several rows, and no sum ends within a vector.
    """
    found = []
    for s in state.schedule.stages:
        inside = s.has_loops and s.name not in state.schedule.outputs and len(s.compute.axes) > 1
        if inside and any(_reduces_rows(r, s.name) for r in state.schedule.readers(s.name)):
            found.append(s)
    for s in found:
        *outer, row, column = (a.name for a in s.compute.axes)
        with suppress(ScheduleError):
            state = state.apply(Transpose(s.name, (*outer, column, row)))
    return state if found else None


def _reduces_rows(s: Stage, tensor: str) -> bool:
    """True if the stage reduces the last dimension of the tensor alone, row by row."""
    op = s.compute
    reduced = {a.name for a in op.reduce_axes}
    reads = [x.indices for x in loads(op.body) if x.tensor == tensor]
    return (
        len(reduced) == 1
        and not is_anchor(op)
        and all(i[-1].free == reduced and not i[-2].free & reduced for i in reads)
    )


def _shared_rows(state: State) -> Axis | None:
    """The first axis of the output along which windows of a stage inside have elements in common.

    Rows of that stage may be kept from one step along the axis to the next.
    """
    out = state.schedule[state.schedule.outputs[0]]
    shared = _windowed(state)
    along = (a for a in out.compute.axes[:-1] if extent(a) > 1)
    return next((a for a in along if any(a.name in axes for axes in shared.values())), None)


def _windowed(state: State) -> dict[str, dict[str, str]]:
    """By stage, and by axis of the output, the axis of which windows along that axis share parts.

    Those are read by an index to which an axis of the output and a reduction axis contribute, the
    former in steps that are smaller than the window. Stages that no anchor is needed for, such as
    copies of an input, are none of them: they cost little.
    """
    out = state.schedule.outputs[0]
    moves = axis_dependencies(state, out)
    found: dict[str, dict[str, str]] = {}
    heavy: set[str] = set()  # anchors, and what is computed of them
    for r in (s for s in state.schedule.stages if s.has_loops):
        reads = loads(r.compute.body)
        if is_anchor(r.compute) or any(x.tensor in heavy for x in reads):
            heavy.add(r.name)
        for x in reads if r.compute.reduce_axes else ():
            source = state.schedule[x.tensor]
            if source.name not in heavy:
                continue
            for axis, index in zip(source.compute.axes, x.indices, strict=True):
                if not _overlaps(r.compute, index):
                    continue
                for name in moves.get(source.name, {}).get(axis.name, ()):
                    found.setdefault(source.name, {})[name] = axis.name
    return found


def _overlaps(op: ComputeOp, index: Expr) -> bool:
    """Do windows that are read at an index have elements in common?"""
    reduced = [a for a in op.reduce_axes if a.name in index.free]
    moving = [a for a in op.axes if a.name in index.free]
    if len(reduced) != 1 or len(moving) != 1:
        return False
    step, apart = (coefficient(index, a.name) for a in (*moving, *reduced))
    if not isinstance(step, Const) or not isinstance(apart, Const):
        return False
    return bool(0 < step.value < apart.value * extent(reduced[0]))


def _tiled(state: State, target: Target, level: int, along: Axis | None = None) -> State | None:
    """Tiles of all anchors, each at spatial level `level` of the map that follows it.

    Anchors inside are not tiled `along` an axis of the output, over which rows are to be kept. None
    if neither the last anchor nor the map that follows it is the output.
    """
    found = anchors(state)
    moves = axis_dependencies(state, state.schedule.outputs[0]) if along is not None else {}
    for s in found:
        structure = OUTER if s is found[-1] else INNER
        whole = _without_reuse(s)
        if along is not None and s is not found[-1]:
            whole += tuple(a for a, of in moves.get(s.name, {}).items() if along.name in of)
        state = tile(state, s.name, target, structure, whole, partial=True)
        last, map_after = s.name, fusible_consumer(state, state.schedule[s.name])
        if map_after is not None and not map_after.compute.combiner:
            state = state.apply(FollowSplit(map_after.name, s.name))
            order = tile_order(state.schedule[map_after.name], structure.replace("R", ""))
            state = state.apply(Reorder(map_after.name, order))
            last, at = map_after.name, last_of_level(state.schedule[map_after.name], level)
            if at is not None:
                state = state.apply(ComputeAt(s.name, map_after.name, at))
    return state if last in state.schedule.outputs else None


def _without_reuse(s: Stage) -> tuple[str, ...]:
    """The axes but the last along which the stage reads all tensors anew: a tile gains nothing."""
    reads = [x.free for x in loads(s.compute.body)]
    return tuple(a.name for a in s.compute.axes[:-1] if all(a.name in free for free in reads))


def _packings(state: State, along: Axis | None = None) -> Iterable[tuple[str, State]]:
    """(label, state) with constants packed, as far as the tiles allow; then also with operands of
    the vector axes packed.
    """
    operands: list[tuple[str, str]] = []  # (tensor, anchor)
    for s in anchors(state):
        for tensor in dict.fromkeys(x.tensor for x in loads(s.compute.body)):
            source = state.schedule[tensor]
            vector = [a.name for a in s.compute.axes if s.factors(a.name)][-1:]
            if not source.has_loops and state.schedule.is_constant(tensor):
                with suppress(ScheduleError):  # read from a start that is no multiple of a tile
                    packed = state.apply(LayoutRewrite(tensor, s.name))
                    check(_attached(packed, along))
                    state = packed
            elif source.is_placeholder and _moves_with(s, tensor, vector):
                operands.append((tensor, s.name))
    yield "", state
    for tensor, reader in operands:
        with suppress(ScheduleError):
            pack = CacheRead(tensor, reader), LayoutRewrite(f"{tensor}.packed", reader)
            yield f"+{tensor}.packed", state.apply(*pack)
    with suppress(ScheduleError):
        for tensor, reader in operands if len(operands) > 1 else ():
            state = state.apply(
                CacheRead(tensor, reader), LayoutRewrite(f"{tensor}.packed", reader)
            )
        if len(operands) > 1:
            yield "".join(f"+{tensor}.packed" for tensor, _ in operands), state


def _moves_with(s: Stage, tensor: str, axes: list[str]) -> bool:
    """True if an index of the tensor contains one of the axes."""
    return any(x.tensor == tensor and x.free & set(axes) for x in loads(s.compute.body))


def _attached(state: State, along: Axis | None = None) -> State:
    """All other stages at root moved into the outer loops of the output that determine them.

    The loops that most stages depend on come first. A stage moves to the last of the leading loops
    on which its elements depend; one that depends on no leading loop stays at root. With an axis to
    go `along` rows are kept (`_rolled`).
    """
    out = state.schedule[state.schedule.outputs[0]]
    needs = dependencies(state, out.name)
    moved = [
        s.name
        for s in reversed(state.schedule.stages)
        if s.has_loops and s.location == "root" and s.name != out.name
    ]
    wide = {a.name for a in out.compute.axes if extent(a) > 1}
    outer = [it for it in out.iters if it.level == 0 and not it.reduce and it.axis in wide]
    users = {it.axis: sum(it.axis in needs.get(name, ()) for name in moved) for it in outer}
    outer.sort(key=lambda it: (-users[it.axis], it.split))
    rest = [it for it in out.iters if it not in outer]
    state = state.apply(Reorder(out.name, tuple(it.name for it in (*outer, *rest))))
    for name in moved:
        leading = 0
        while leading < len(outer) and outer[leading].axis in needs.get(name, ()):
            leading += 1
        if leading:
            state = state.apply(ComputeAt(name, out.name, outer[leading - 1].name))
    return state if along is None else _rolled(state, along)


def _rolled(state: State, along: Axis) -> State:
    """The state with stages computed for a step along an axis, which keep what windows share.

    The steps are the next loop over the axis, which moves to where those stages are attached.
    Raises ScheduleError where a stage would be computed again for rows that another one keeps.
    """
    out = state.schedule[state.schedule.outputs[0]]
    shared = [n for n, own in _windowed(state).items() if along.name in own]
    places = [state.schedule[n].location for n in shared]
    at = next((p[1] for p in places if isinstance(p, tuple) and p[0] == out.name), "")
    step = next((it for it in out.iters if it.axis == along.name and it.level == 1), None)
    if not at or step is None:
        raise ScheduleError(f"no stage can keep rows of {out.name}")
    order = [it.name for it in out.iters if it is not step]
    order.insert(order.index(at) + 1, step.name)
    needs = dependencies(state, out.name)
    here = [s.name for s in reversed(state.schedule.attached(out.name, at))]
    state = state.apply(Reorder(out.name, tuple(order)))
    for name in (n for n in here if along.name in needs[n]):
        state = state.apply(ComputeAt(name, out.name, step.name))
        if name in shared:
            state = state.apply(StoreAt(name, out.name, at))
        elif any(r.name in shared for r in state.schedule.readers(name)):
            raise ScheduleError(f"{name} is computed again where its reader keeps rows")
    return state


def _columns_in_registers(state: State, target: Target) -> State:
    """Reductions of columns inside a tile: a vector a few columns, all of them in registers."""
    for s in state.schedule.stages:
        op = s.op
        if not s.has_loops or s.tiling or s.location == "root" or not s.compute.combiner:
            continue
        along = contiguous_axis(s.compute)
        if along is None or along not in s.compute.axes:
            continue
        order = [it.name for it in s.iters if it.axis != along.name] + [along.name]
        lanes = lanes_hole(s.name, extent(along), op.dtype, target)
        state = state.open(lanes).apply(
            Reorder(s.name, tuple(order)),
            Annotate(s.name, along.name, "lanes", lanes.columns[0]),
            Annotate(s.name, along.name, "register", 1),
        )
    return state
