"""Sketch rules in Ansor's order and with Ansor's names (paper, section 4.1, table 1).

A rule is a function (state, position of the stage, target) -> None if its condition does not hold,
or an `Outcome`: successor states, each with the position of the next stage to visit, and whether
later rules are skipped. `SKETCH_RULES` lists the rules; `SpaceOptions.rules` replaces the list.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const
from ansorlite.ir.traverse import tensors_read
from ansorlite.schedule.holes import (
    Hole,
    exact_options,
    partial_tiles,
    reduce_options,
    tile_options,
)
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FollowSplit,
    Reorder,
    Rfactor,
    Split,
)
from ansorlite.target import Target
from ansorlite.te.access import (
    contiguous_axis,
    elementwise_match,
    extent,
    has_data_reuse,
    has_more_reduction_parallel,
    is_strictly_inlineable,
)

MAX_INNERMOST_FACTOR = 64


@dataclass(frozen=True)
class Outcome:
    """Successors (state, next stage position) of a rule; `skip_rest` skips the later rules."""

    successors: tuple[tuple[State, int], ...]
    skip_rest: bool = False


SketchRule = Callable[[State, int, Target], Outcome | None]


def node_of(stage: str) -> str:
    """The DAG operation that owns the holes of a stage."""
    return stage.removesuffix(".cache")


def fusible_consumer(state: State, stage: Stage) -> Stage | None:
    """The only reader, if it matches element by element (paper: HasFusibleConsumer); else None."""
    readers = state.schedule.readers(stage.name)
    if len(readers) != 1 or stage.name in state.schedule.outputs:
        return None
    consumer = readers[0]
    if consumer.compute.reduce_axes and stage.compute.reduce_axes:
        return None
    if consumer.tiling or not elementwise_match(consumer.compute, stage.compute):
        return None
    return consumer


def _stage(state: State, position: int) -> Stage:
    return state.schedule.stages[position]


def always_inline(state: State, position: int, target: Target) -> Outcome | None:
    """Rule AlwaysInline. Condition: strictly inlineable and not an output. Effect: inline."""
    s = _stage(state, position)
    if not s.has_loops or s.name in state.schedule.outputs:
        return None
    if not is_strictly_inlineable(s.compute):
        return None
    try:
        return Outcome(((state.apply(ComputeInline(s.name)), position - 1),), True)
    except ScheduleError:  # inlining would exceed the size limit
        return None


def simplify_const_tensor(state: State, position: int, target: Target) -> Outcome | None:
    """Rule for attribute `simplify_const_indices`. Effect: the listed axes are unrolled, innermost.

    A stage without reduction is computed one vector of its contiguous axis at a time, with the
    copies for the listed axes in registers, and may be attached to a reader with the same
    attribute.
    """
    s = _stage(state, position)
    if not s.has_loops or not s.compute.attr("simplify_const_indices"):
        return None
    along = contiguous_axis(s.compute)
    listed = tuple(s.compute.attr("simplify_const_indices"))
    if s.compute.combiner or along is None or along.name in listed:
        return _two_levels(state, position)
    lanes, options = _whole_vectors(extent(along), target.lanes(s.compute.dtype))
    hole = Hole(f"{node_of(s.name)}.{along.name}", node_of(s.name), "tile", options)
    unlisted = [a.name for a in s.compute.axes if a.name not in (*listed, along.name)]
    outer, inner = f"{along.name}.0", f"{along.name}.1"
    state = state.open(hole).apply(
        Split(s.name, along.name, hole.columns),
        Reorder(s.name, (*unlisted, outer, *listed, inner)),
        *(Annotate(s.name, name, "register", 1) for name in (*listed, inner)),
        Annotate(s.name, inner, "lanes", lanes),
    )
    at = _row_of_reader(state, s)
    if at is not None:
        state = state.apply(ComputeAt(s.name, *at))
    return Outcome(((state, position - 1),), True)


def _whole_vectors(n: int, most: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Widest vector that tiles the axis with little waste, and its options."""
    lanes = most
    while lanes > 1:
        options = tuple(o for o in tile_options(n, 1, lanes) if o[-1] == lanes)
        if options:
            return lanes, options
        lanes //= 2
    return 1, ((1,),)


def _row_of_reader(state: State, s: Stage) -> tuple[str, str] | None:
    """(stage, iterator) that consumes one row of tiles of `s`, the attach point of `s`; or None.

    A reader with the same attribute shares columns between the tiles of a row; an element-wise
    reader consumes row by row.
    """
    readers = state.schedule.readers(s.name)
    if len(readers) != 1:
        return None
    reader = readers[0]
    listed = reader.compute.attr("simplify_const_indices")
    if listed:
        if not any(key == "register" for _, key, _ in reader.notes):
            return None
        shared = [a for a in reader.compute.axes if a.name not in listed][:-1]
        rows = [a.name for a in shared if extent(a) > 1][:-1]
        return (reader.name, rows[-1]) if rows else None
    if not elementwise_match(reader.compute, s.compute):
        return None
    own = [a.name for a in s.compute.axes]
    k = own.index(s.compute.attr("simplify_const_indices")[0]) - 1
    row = reader.compute.axes[k].name
    return (reader.name, row) if k >= 0 and row in {it.name for it in reader.iters} else None


def _two_levels(state: State, position: int) -> Outcome:
    """Two-level tiles of the axes that are not listed; the listed axes are unrolled."""
    s = _stage(state, position)
    op = s.compute
    listed = [n for n in op.attr("simplify_const_indices")]
    unlisted = [a for a in op.axes if a.name not in listed]
    outer, inner = [], []
    for a in unlisted:
        if extent(a) > 1 and isinstance(a.extent, Const):
            options = tile_options(a.extent.value, 1, MAX_INNERMOST_FACTOR)
            hole = Hole(f"{node_of(s.name)}.{a.name}", node_of(s.name), "tile", options)
            state = state.open(hole).apply(Split(s.name, a.name, hole.columns))
            outer.append(f"{a.name}.0")
            inner.append(f"{a.name}.1")
        else:
            outer.append(a.name)
    rest = [a.name for a in op.axes + op.reduce_axes if a.name not in {o.name for o in unlisted}]
    state = state.apply(Reorder(s.name, (*outer, *inner, *rest)))
    for name in rest:
        if name in listed:
            state = state.apply(Annotate(s.name, name, "unroll", 1 << 16))
    return Outcome(((state, position - 1),), True)


def add_rfactor(state: State, position: int, target: Target) -> Outcome | None:
    """Rule AddRfactor. Condition: HasMoreReductionParallel. Effect: two successors.

    One factors out the outer part of the first reduction axis, the other the inner part of the
    last.
    """
    s = _stage(state, position)
    if not s.has_loops or s.name.endswith((".cache", ".rf")):
        return None
    op = s.compute
    if not has_more_reduction_parallel(op, target.cores):
        return None
    axes = [a for a in op.reduce_axes if extent(a) > 1 and isinstance(a.extent, Const)]
    if not axes:
        return None
    successors = []
    for keep, axis in (("outer", axes[0]), ("inner", axes[-1])):
        assert isinstance(axis.extent, Const)
        most = axis.extent.value if keep == "outer" else MAX_INNERMOST_FACTOR
        hole = Hole(
            f"{s.name}.rf.{axis.name}", s.name, "factor", exact_options(axis.extent.value, most)
        )
        step = Rfactor(s.name, axis.name, hole.columns[0], keep)
        successors.append((state.open(hole).apply(step), position - 1))
    return Outcome(tuple(successors))


def add_cache_write(state: State, position: int, target: Target) -> Outcome | None:
    """Rule AddCacheStage. Condition: HasDataReuse and no fusible consumer. Effect: CacheWrite."""
    s = _stage(state, position)
    if not s.has_loops or not has_data_reuse(s.compute):
        return None
    if fusible_consumer(state, s) is not None or s.name.endswith(".cache"):
        return None
    return Outcome(((state.apply(CacheWrite(s.name)), position),))


def tile(
    state: State,
    name: str,
    target: Target,
    structure: str = "",
    unsplit: tuple[str, ...] = (),
    partial: bool = False,
) -> State:
    """Multi-level tiling with a structure, by default the target's, "SSRSRS" on CPUs.

    The axes `unsplit` have one loop. With `partial`, and in products of transformed data, which may
    be computed in blocks of results, blocks of tiles need not divide their number.
    """
    s = state.schedule[name]
    partial = partial or _reads_transformed(state, s)
    structure = structure or target_structure(target)
    op, node = s.compute, node_of(name)
    whole = tuple(op.attr("no_split_at_inner", ()))
    for axes, letter, options_of in (
        (op.axes, "S", partial_tiles if partial else tile_options),
        (op.reduce_axes, "R", reduce_options),
    ):
        inner = structure.count(letter) - 1
        for a in axes:
            if (
                a.name in (*whole, *unsplit)
                or not isinstance(a.extent, Const)
                or a.extent.value == 1
            ):
                continue
            options = options_of(a.extent.value, inner)
            hole = Hole(f"{node}.{a.name}", node, "tile", options)
            state = state.open(hole).apply(Split(name, a.name, hole.columns))
    return state.apply(Reorder(name, tile_order(state.schedule[name], structure, whole)))


def _reads_transformed(state: State, s: Stage) -> bool:
    """True for the products of a form by transforms, and for other sums over listed axes."""
    read = tensors_read(s.compute.body)
    ops = (t.compute for t in state.schedule.stages if t.name in read and not t.is_placeholder)
    return any(op.attr("simplify_const_indices") for op in ops)


def target_structure(target: Target) -> str:
    """The tile structure of a target: "S" a spatial level, "R" a reduction level."""
    return "SSRSRS"


def tile_order(s: Stage, structure: str, whole: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Iterators by level of the structure: unsplit axes first, axes kept whole last."""
    order: list[str] = []
    seen = {"S": 0, "R": 0}
    for letter in structure:
        level = seen[letter]
        seen[letter] += 1
        axes = s.compute.axes if letter == "S" else s.compute.reduce_axes
        for a in axes:
            if s.factors(a.name):
                order.append(f"{a.name}.{level}")
            elif level == (structure.count(letter) - 1 if a.name in whole else 0):
                order.append(a.name)
    return tuple(order)


def multi_level_tiling_with_fusion(state: State, position: int, target: Target) -> Outcome | None:
    """Rule MultiLevelTilingWithFusion. Condition: HasDataReuse and HasFusibleConsumer.

    Effect: tile the stage and attach it to the consumer after one or two spatial levels (a
    successor each).
    """
    s = _stage(state, position)
    if not s.has_loops or not has_data_reuse(s.compute) or s.tiling:
        return None
    consumer = fusible_consumer(state, s)
    if consumer is None:
        return None
    tiled = tile(state, s.name, target).apply(FollowSplit(consumer.name, s.name))
    follower = tiled.schedule[consumer.name]
    own = {a.name: b.name for a, b in zip(s.compute.axes, consumer.compute.axes, strict=True)}
    whole = tuple(own[n] for n in s.compute.attr("no_split_at_inner", ()) if n in own)
    spatial = target_structure(target).replace("R", "")
    order = tile_order(follower, spatial, whole)
    tiled = tiled.apply(Reorder(consumer.name, order))
    successors = []
    for level in (1, 2):
        at = last_of_level(tiled.schedule[consumer.name], level)
        if at is not None:
            fused = tiled.apply(ComputeAt(s.name, consumer.name, at))
            successors.append((fused, position - 1))
    return Outcome(tuple(successors), skip_rest=s.name.endswith(".cache"))


def last_of_level(s: Stage, level: int) -> str | None:
    """The innermost iterator of the first `level` spatial levels."""
    found = [it.name for it in s.iters if it.level < level and (it.split or level == 1)]
    return found[-1] if found else None


def multi_level_tiling(state: State, position: int, target: Target) -> Outcome | None:
    """Rule MultiLevelTiling. Condition: HasDataReuse. Effect: tile; later rules are skipped."""
    s = _stage(state, position)
    if not s.has_loops or not has_data_reuse(s.compute) or s.tiling:
        return None
    return Outcome(((tile(state, s.name, target), position - 1),), True)


def skip_stage(state: State, position: int, target: Target) -> Outcome | None:
    """Rule SkipStage. Condition: always. Effect: continue with the previous stage."""
    return Outcome(((state, position - 1),))


SKETCH_RULES: tuple[SketchRule, ...] = (
    always_inline,
    simplify_const_tensor,
    add_rfactor,
    add_cache_write,
    multi_level_tiling_with_fusion,
    multi_level_tiling,
    skip_stage,
)


def derive(
    state: State,
    target: Target,
    rules: tuple[SketchRule, ...] = SKETCH_RULES,
    follow: Callable[[State], bool] = lambda state: True,
) -> list[tuple[State, tuple[str, ...]]]:
    """All states that the rules reach, with the names of the applied rules, without duplicates.

    The stages are visited from the output backwards, and every rule is tried at every stage (paper,
    section 4.1). Only states that `follow` holds for lead to others.
    """
    done: list[tuple[State, tuple[str, ...]]] = []
    seen: set[tuple[object, ...]] = set()
    work: list[tuple[State, int, tuple[str, ...]]] = [(state, len(state.schedule.stages) - 1, ())]
    while work:
        current, position, fired = work.pop(0)
        if position < 0:
            if current.steps not in seen:
                seen.add(current.steps)
                done.append((current, fired))
            continue
        for rule in rules:
            outcome = rule(current, position, target)
            if outcome is None:
                continue
            name = getattr(rule, "__name__", str(rule))
            applied = fired if name == "skip_stage" else (*fired, name)
            work.extend((s, p, applied) for s, p in outcome.successors if follow(s))
            if outcome.skip_rest:
                break
    return done
