"""Blocks of tiles: the stages of a convolution by transforms, computed for some tiles at a time.

rewrite: `for tiles: v = transform(x); for tiles: p = v * u; for tiles: y = inverse(p)` ->
`for block: (v, p, y of the tiles of the block)`. Transformed data and products then stay in the
caches, however large the image is. In: a state after the rules, in which the stages of transforms
are those with the attribute `simplify_const_indices`. Out: the state with two levels of loops over
the last axes that count tiles, and all stages at the inner one of the outer loops.
"""

from ansorlite.errors import ScheduleError
from ansorlite.schedule.holes import Hole, tile_options
from ansorlite.schedule.lower import check
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import ComputeAt, Reorder, Split
from ansorlite.space.rows import dependencies
from ansorlite.te.access import elementwise_match, extent
from ansorlite.te.tensor import Axis

LISTED = "simplify_const_indices"
MOST = 64  # tiles of a block along an axis
AXES = 2  # that are cut


def fuse_tiles(state: State) -> State | None:
    """The state with all stages in blocks of tiles; None where there are no tiles."""
    inverse = _inverse(state)
    if inverse is None:
        return None
    root = _root(state, inverse)
    if root is None:
        return None
    listed = inverse.compute.attr(LISTED)
    own = dict(zip([a.name for a in inverse.compute.axes], root.compute.axes, strict=True))
    tiles = [a for n, a in own.items() if n not in listed][:-1]  # without channels
    cut = [a for a in tiles if extent(a) > 1][-AXES:]
    if not cut or any(root.factors(a.name) for a in cut):
        return None
    whole = next(a.name for a in (*tiles, *root.compute.axes) if a not in cut)
    try:  # a loop to which a stage is attached cannot be split: out of the way
        aside = [ComputeAt(s.name, root.name, whole) for s in _attached(state, root)]
        blocked = _blocked(state.apply(*aside), root, cut)
    except ScheduleError:
        return None
    at = f"{cut[-1].name}.0"
    needs = dependencies(state, root.name)
    for s in reversed(state.schedule.stages):
        moves = s.location == "root" or (s.location or ("",))[0] == root.name
        if s.name == root.name or not s.has_loops or not moves:
            continue
        if s.name in state.schedule.outputs or s.packed_for:
            continue
        if not {a.name for a in cut} & needs.get(s.name, set()):
            continue
        try:
            blocked = blocked.apply(ComputeAt(s.name, root.name, at))
        except ScheduleError:
            return None
    try:
        check(blocked)
    except ScheduleError:
        return None
    return blocked


def _inverse(state: State) -> Stage | None:
    """The last stage of transforms that reads what a sum computes, on the way."""
    found = [
        s
        for s in state.schedule.stages
        if s.has_loops and s.compute.attr(LISTED) and not s.compute.combiner
    ]
    return found[-1] if found else None


def _root(state: State, inverse: Stage) -> Stage | None:
    """The stage at root that computes tiles of results: itself, or the element-wise one after."""
    if inverse.location == "root":
        return inverse
    if not isinstance(inverse.location, tuple):
        return None
    around = state.schedule[inverse.location[0]]
    fits = around.location == "root" and not around.tiling
    return around if fits and elementwise_match(around.compute, inverse.compute) else None


def _attached(state: State, root: Stage) -> list[Stage]:
    return [
        s
        for s in state.schedule.stages
        if isinstance(s.location, tuple) and s.location[0] == root.name
    ]


def _blocked(state: State, root: Stage, cut: list[Axis]) -> State:
    """The loops of the root with the axes to cut in two levels, the outer ones first."""
    names = [a.name for a in cut]
    for a in cut:
        hole = Hole(f"{root.name}.{a.name}", root.name, "tile", tile_options(extent(a), 1, MOST))
        state = state.open(hole).apply(Split(root.name, a.name, hole.columns))
    iters = state.schedule[root.name].iters
    first = min(k for k, it in enumerate(iters) if it.axis in names)
    outer = [f"{n}.0" for n in names]
    before = [it.name for it in iters[:first]]
    rest = [it.name for it in iters[first:] if it.name not in outer]
    return state.apply(Reorder(root.name, (*before, *outer, *rest)))
