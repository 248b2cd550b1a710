"""Row fusion: a chain of stages computed for a few rows of the output at a time.

rewrite: `for i: m = max_j x; for i, j: e = exp(x - m); for i: s = sum_j e; for i, j: y = e / s` ->
`for i.0: (m, e, s of the rows of i.1; for i.1, j: y)`. Intermediate results then stay in the
caches. Every stage moves to the innermost row loop of the output on which its elements depend; a
stage that depends on no row loop stays at root. Tiled stages keep their tiles inside the block of
rows.
"""

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const
from ansorlite.ir.traverse import loads
from ansorlite.schedule.holes import Hole, tile_options
from ansorlite.schedule.lower import check
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeAt, Reorder, Split
from ansorlite.space.annotate import lanes_hole
from ansorlite.target import Target
from ansorlite.te.access import extent

MAX_ROWS = 64


def fuse_rows(state: State, target: Target) -> State | None:
    """The state with row fusion applied to the only output; None where no stage moves."""
    schedule = state.schedule
    if len(schedule.outputs) != 1:
        return None
    out = schedule[schedule.outputs[0]]
    if out.tiling or out.compute.combiner or len(out.compute.axes) < 2:
        return None
    *rows, last = out.compute.axes
    wide = [a for a in rows if extent(a) > 1]
    if not wide or extent(last) == 1 or not isinstance(last.extent, Const):
        return None
    block = wide[-1]
    needs = dependencies(state, out.name)
    loops = [f"{a.name}.0" if a == block else a.name for a in rows]
    hole = Hole(
        f"{out.name}.{block.name}", out.name, "tile", tile_options(extent(block), 1, MAX_ROWS)
    )
    lanes = lanes_hole(out.name, extent(last), out.compute.dtype, target)
    fused = state.open(hole, lanes).apply(
        Split(out.name, block.name, hole.columns),
        Reorder(out.name, (*loops, f"{block.name}.1", last.name)),
        Annotate(out.name, last.name, "lanes", lanes.columns[0]),
    )
    moved = 0
    for s in reversed(schedule.stages):
        if not s.has_loops or s.location != "root" or s.name == out.name or s.packed_for:
            continue
        inner = [k for k, a in enumerate(rows) if a.name in needs.get(s.name, ()) and extent(a) > 1]
        if not inner:
            continue
        try:
            fused = fused.apply(ComputeAt(s.name, out.name, loops[inner[-1]]))
        except ScheduleError:
            continue  # read outside that loop
        moved += 1
    if not moved:
        return None
    try:
        check(fused)
    except ScheduleError:
        return None
    return fused


def dependencies(state: State, output: str) -> dict[str, set[str]]:
    """By stage, the output axes whose index determines which elements of the stage are needed."""
    per_axis = axis_dependencies(state, output)
    return {name: set().union(*axes.values()) for name, axes in per_axis.items()}


def axis_dependencies(state: State, output: str) -> dict[str, dict[str, set[str]]]:
    """`dependencies` of each axis of each stage."""
    schedule = state.schedule
    per_axis = {output: {a.name: {a.name} for a in schedule[output].compute.axes}}
    for s in reversed(schedule.stages):
        if s.name not in per_axis or s.is_placeholder:
            continue
        own = per_axis[s.name]
        for x in loads(s.compute.body):
            source = schedule[x.tensor]
            if not source.has_loops:
                continue
            known = per_axis.setdefault(source.name, {a.name: set() for a in source.compute.axes})
            for axis, index in zip(source.compute.axes, x.indices, strict=True):
                for name in index.free:
                    known[axis.name] |= own.get(name, set())
    return per_axis
