"""Blocks of tiles: the stages of a convolution by transforms, computed for some tiles at a time.

rewrite: `for tiles: v = transform(x); for tiles: p = v * u; for tiles: y = inverse(p)` ->
`for block: (v, p, y of the tiles of the block)`. Transformed data and products then stay in the
caches, however large the image is. In: a state after the rules, in which the stages of transforms
are those with the attribute `simplify_const_indices`. Out: the state with outer and inner loops
over the last axes that count tiles, and all stages at the innermost of the outer loops. Channels of
the results may be cut, too, by the factors of the products: stages that depend on channels are then
inside those blocks, the others outside.
"""

from collections.abc import Mapping

from ansorlite.errors import ScheduleError
from ansorlite.schedule.holes import Hole, tile_options
from ansorlite.schedule.lower import check
from ansorlite.schedule.stage import Factor, Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import ComputeAt, Reorder, Split
from ansorlite.space.rows import dependencies
from ansorlite.te.access import elementwise_match, extent
from ansorlite.te.tensor import Axis

LISTED = "simplify_const_indices"
MOST = 64  # tiles of a block along an axis
AXES = 2  # that are cut


def fuse_tiles(state: State, channels: bool = False) -> State | None:
    """The state with all stages in blocks of tiles; None where there are no tiles.

    With `channels` blocks of results' channels, too, inside those of tiles: what does not depend on
    the channel, such as transformed data, is computed once for all of them.
    """
    inverse = _inverse(state)
    if inverse is None:
        return None
    root = _root(state, inverse)
    if root is None:
        return None
    listed = inverse.compute.attr(LISTED)
    own = dict(zip([a.name for a in inverse.compute.axes], root.compute.axes, strict=True))
    *tiles, last = [a for n, a in own.items() if n not in listed]
    cut = [a for a in tiles if extent(a) > 1][-AXES:]
    if not cut or any(root.factors(a.name) for a in (*cut, last)):
        return None
    whole = next(a.name for a in (*tiles, *root.compute.axes) if a not in cut and a is not last)
    leader = _leader(state, root, last) if channels else None
    if channels:
        if leader is None:
            return None
        cut.append(last)
    try:  # a loop to which a stage is attached cannot be split: out of the way
        aside = [ComputeAt(s.name, root.name, whole) for s in _attached(state, root)]
        blocked = _blocked(state.apply(*aside), root, cut, _followed(leader, (*tiles, last)))
    except ScheduleError:
        return None
    needs = dependencies(state, root.name)
    for s in reversed(state.schedule.stages):
        moves = s.location == "root" or (s.location or ("",))[0] == root.name
        if s.name == root.name or not s.has_loops or not moves:
            continue
        if s.name in state.schedule.outputs or s.packed_for:
            continue
        needed = needs.get(s.name, set())
        if needed.isdisjoint(a.name for a in cut):
            continue
        at = next(a for a in reversed(cut) if a is not last or a.name in needed)
        try:
            blocked = blocked.apply(ComputeAt(s.name, root.name, f"{at.name}.0"))
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


def _blocked(
    state: State, root: Stage, cut: list[Axis], followed: Mapping[str, tuple[Factor, ...]]
) -> State:
    """The loops of the root with the axes to cut in levels, the outermost ones first.

    Axes are cut by the factors `followed`, else into blocks of a hole.
    """
    for a in cut:
        factors = followed.get(a.name, ())
        if not factors:
            options = tile_options(extent(a), 1, MOST)
            hole = Hole(f"{root.name}.{a.name}", root.name, "tile", options)
            state, factors = state.open(hole), hole.columns
        state = state.apply(Split(root.name, a.name, factors))
    names = [a.name for a in cut]
    iters = state.schedule[root.name].iters
    first = min(k for k, it in enumerate(iters) if it.axis in names)
    outer = [f"{n}.0" for n in names]
    before = [it.name for it in iters[:first]]
    rest = [it.name for it in iters[first:] if it.name not in outer]
    return state.apply(Reorder(root.name, (*before, *outer, *rest)))


def _leader(state: State, root: Stage, last: Axis) -> Stage | None:
    """The tiled stage at root whose last axis counts the channels of the root: the products."""
    for s in reversed(state.schedule.stages):
        if s.has_loops and s.location == "root" and s.tiling and s.name != root.name:
            own = s.compute.axes[-1]
            if s.factors(own.name) and extent(own) == extent(last):
                return s
    return None


def _followed(leader: Stage | None, axes: tuple[Axis, ...]) -> dict[str, tuple[Factor, ...]]:
    """By axis the factors of the axis of the leader that counts the same, the last of both alike.

    Blocks are then whole tiles of the leader, so that its operands can be packed.
    """
    if leader is None:
        return {}
    pairs = zip(reversed(axes), reversed(leader.compute.axes), strict=False)
    return {a.name: leader.factors(b.name) for a, b in pairs if extent(a) == extent(b)}
