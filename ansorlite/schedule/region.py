"""Region inference: which part of a stage is required, by interval arithmetic over holes and loops.

In: the schedule and the loops in scope. Out: for each axis of an attached stage an `AxisRange` with
the start, the nominal length and the loops of the required region. Every decision follows from the
structure of the schedule and of the expressions, never from values of holes.
"""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Var, add, ceildiv, mul, sub, terms_of
from ansorlite.ir.extremum import maximum, minimum
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads, substitute
from ansorlite.schedule.stage import Factor, Schedule, Stage, factor_expr
from ansorlite.schedule.steps import packed_axes
from ansorlite.te.tensor import Axis

ZERO, ONE = Const(0), Const(1)


@dataclass(frozen=True)
class AxisRange:
    """The loops of one axis of a stage at one attach point.

    - `lo`: first index computed; `origin`: `lo` before clamping, the index at position 0 of a local
      buffer; `ext`: nominal length; `limit`: end of the tensor
    - `whole`: by structure lo = 0 and ext = limit; `aligned`: the region is a tile of the
      consumer's loops; `start`: first level with a loop of its own
    - `vars[l]`: loop variable of level l; `steps[l]`: its stride; `nominal[l]`: its nominal extent
    - `stop`: end of the loops where that is before `limit`, else None; `inside`: it always is;
      `digits`: all loops start at 0, so the loop variables are the digits of the index
    - `total`: elements of all iterations of the loop over which they are kept, if they are

    Register tiles of a region with a start of its own are whole (`_moved_range`): the region is a
    number of them, and ends at `limit` at the latest.
    """

    lo: Expr
    origin: Expr
    ext: Expr
    limit: Expr
    whole: bool
    aligned: bool
    start: int
    vars: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    nominal: tuple[Expr, ...]
    stop: Expr | None
    digits: bool
    inside: bool = False
    total: Expr | None = None
    _clamped: dict[int, Expr] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def elements(self) -> Expr:
        """How many are computed at a time, or in all iterations over which they are kept."""
        return self.ext if self.total is None else self.total

    @property
    def value(self) -> Expr:
        """The axis as an expression over its loop variables."""
        return self.partial(len(self.vars))

    def partial(self, levels: int) -> Expr:
        """`lo` plus the contribution of the loops of levels below `levels`."""
        out = self.lo
        for lv in range(self.start, levels):
            out = add(out, mul(self.vars[lv], self.steps[lv]))
        return out

    def clamped(self, level: int) -> Expr:
        """Extent of the loop of `level`, clamped by the region and the tensor."""
        if level not in self._clamped:
            self._clamped[level] = self._trips(level)
        return self._clamped[level]

    def _trips(self, level: int) -> Expr:
        here = self.partial(level)
        step = self.steps[level]
        bounds = [] if self.whole and level == self.start else [self.nominal[level]]
        if not self.inside:
            bounds.append(ceildiv(sub(self.limit, here), step))
        if self.stop is not None:
            bounds.append(ceildiv(sub(self.stop, here), step))
        return minimum(*bounds)


class _Levels(NamedTuple):
    """Loop variables of the levels of an axis, outermost first, their strides, inner factors."""

    vars: tuple[Expr, ...]
    steps: tuple[Expr, ...]
    factors: tuple[Expr, ...]


def _levels(stage: Stage, axis: str) -> _Levels:
    return _levels_of(stage.name, axis, stage.factors(axis))


@lru_cache(maxsize=1 << 12)
def _levels_of(stage: str, axis: str, factors: tuple[Factor, ...]) -> _Levels:
    own = tuple(map(factor_expr, factors))
    steps: list[Expr] = [ONE]
    for f in reversed(own):
        steps.insert(0, mul(steps[0], f))
    name = f"{stage}.{axis}"
    names = [f"{name}.{lv}" for lv in range(len(steps))] if factors else [name]
    return _Levels(tuple(map(Var, names)), tuple(steps), own)


def make_range(
    stage: Stage, axis: Axis, lo: Expr, origin: Expr, ext: Expr, whole: bool
) -> AxisRange:
    """Loops over [lo, lo + ext) of an axis, with a loop for every level."""
    return _made_range(_levels(stage, axis.name), axis.extent, lo, origin, ext, whole)


@lru_cache(maxsize=1 << 12)
def _made_range(
    levels: _Levels, limit: Expr, lo: Expr, origin: Expr, ext: Expr, whole: bool
) -> AxisRange:
    """`make_range`; sketches of a task have many ranges in common."""
    step = levels.steps[0]
    return AxisRange(
        lo,
        origin,
        ext,
        limit,
        whole,
        False,
        0,
        levels.vars,
        levels.steps,
        (minimum(ceildiv(ext, step), ceildiv(limit, step)), *levels.factors),
        None if whole else add(origin, ext),
        lo == ZERO,
    )


def _moved_range(stage: Stage, axis: Axis, lo: Expr, ext: Expr) -> AxisRange:
    """Loops over [lo, lo + ext) of an axis, rounded up to whole tiles and moved into the tensor.

    Some elements beyond the region are computed in place of tiles of several sizes: no innermost
    loop has a clamp, unless the tiles do not fit into the tensor.
    """
    limit, most = axis.extent, minimum(ext, axis.extent)
    tile = minimum(factor_expr(stage.factors(axis.name)[-1]), most)
    size = minimum(mul(ceildiv(most, tile), tile), limit)
    first = maximum(ZERO, minimum(lo, sub(limit, size)))
    made = make_range(stage, axis, first, first, size, False)
    return replace(made, inside=True, digits=False)  # whatever the values of holes are


def whole_range(stage: Stage, axis: Axis) -> AxisRange:
    """Loops over the whole axis."""
    return make_range(stage, axis, ZERO, ZERO, axis.extent, True)


def aligned_range(stage: Stage, axis: Axis, follower: AxisRange, fixed: int) -> AxisRange:
    """Loops that continue the follower's loops over the same axis from level `fixed` on."""
    own, steps, factors = _levels(stage, axis.name)
    nominal = (follower.nominal[0], *factors)
    lo = follower.partial(fixed)
    if fixed == 0:
        own_range = make_range(stage, axis, lo, lo, follower.ext, follower.whole)
        stop = own_range.stop if follower.total is None else follower.stop
        return replace(own_range, inside=follower.inside, stop=stop, total=follower.total)
    ext = steps[fixed - 1]
    variables = (*follower.vars[:fixed], *own[fixed:])
    limit = axis.extent
    # The tile has the size of the follower's tile and ends early where the follower needs less.
    return replace(
        follower,
        lo=lo,
        origin=lo,
        ext=ext,
        limit=limit,
        whole=False,
        aligned=True,
        start=fixed,
        vars=variables,
        steps=steps,
        nominal=nominal,
        total=None,
    )


def packed_range(stage: Stage, axis: Axis, reader: AxisRange, fixed: int) -> AxisRange:
    """Loops over the part of the reader's axis that remains inside its outer `fixed` levels.

    Of a reader that computes a part of the axis, with loops of its own, all of that part. Raises
    ScheduleError where the loop variables of the reader are not the digits of the axis.
    """
    if fixed == 0 and reader.start == 0 and not reader.digits:
        return make_range(stage, axis, reader.lo, reader.origin, reader.ext, False)
    if fixed < 0 or not reader.digits or reader.stop is not None:
        raise ScheduleError(
            f"cannot pack {stage.name} there: tiles of {axis.name} have an unaligned start"
        )
    if fixed == 0:
        return whole_range(stage, axis)
    whole = whole_range(stage, axis)
    lo: Expr = ZERO
    for var, step in zip(reader.vars[:fixed], whole.steps, strict=False):
        lo = add(lo, mul(var, step))
    variables = (*reader.vars[:fixed], *whole.vars[fixed:])
    ext = whole.steps[fixed - 1]
    return replace(
        whole, lo=lo, origin=lo, ext=ext, whole=False, aligned=True, start=fixed, vars=variables
    )


Ranges = dict[str, AxisRange]


@dataclass
class Scope:
    """The loops in scope at an attach point, and the ranges of the surrounding stages."""

    schedule: Schedule
    ranges: dict[str, Ranges]
    loops: frozenset[str]

    def fixed_levels(self, stage: Stage, axis: str) -> int:
        """Number of outer levels of an axis in scope; -1 if the levels in scope are no prefix."""
        flags = [
            v.name in self.loops for v in self.ranges[stage.name][axis].vars if isinstance(v, Var)
        ]
        n = sum(flags)
        return n if all(flags[:n]) else -1

    def starts_at_0(self, stage: Stage, axis: str) -> bool:
        """Is the first index of `span` 0, whatever the values of loops and holes are?"""
        r, n = self.ranges[stage.name][axis], self.fixed_levels(stage, axis)
        return n < 0 or (n <= r.start and r.digits and not r.aligned)

    def span(self, stage: Stage, axis: str) -> tuple[Expr, Expr, bool]:
        """(first index, width, covers the whole axis) of one iteration of the loops in scope."""
        r = self.ranges[stage.name][axis]
        n = self.fixed_levels(stage, axis)
        if n < 0:
            return ZERO, r.limit, True
        if n <= r.start and not (r.aligned and n == r.start):
            return r.lo, r.ext, r.whole
        return r.partial(n), r.steps[n - 1], False


def required(scope: Scope, stage: Stage) -> Ranges:
    """The ranges of the axes of an attached stage at the attach point of `scope`."""
    op = stage.compute
    target = scope.schedule[stage.location[0]]
    reads = _reads(scope, stage)
    out: Ranges = {}
    if stage.packed_for is not None:
        reader = scope.schedule[stage.packed_for]
        for axis, name in zip(op.axes, packed_axes(reader, stage), strict=True):
            own, fixed = scope.ranges[reader.name][name], scope.fixed_levels(reader, name)
            out[axis.name] = packed_range(stage, axis, own, fixed)
        return out
    for d, axis in enumerate(op.axes):
        if target.leader == stage.name and len(reads) == 1:
            follower = target.compute.axes[d]
            n = scope.fixed_levels(target, follower.name)
            if n >= 0 and reads[0][0].name == target.name:
                lead = scope.ranges[target.name][follower.name]
                out[axis.name] = aligned_range(stage, axis, lead, n)
                continue
        out[axis.name] = _hull(scope, stage, axis, [(r, idx[d]) for r, idx in reads])
    for axis in op.reduce_axes:
        out[axis.name] = whole_range(stage, axis)
    return out


def _reads(scope: Scope, stage: Stage) -> list[tuple[Stage, tuple[Expr, ...]]]:
    """(reader, indices) of each distinct read of a stage, whose readers then have ranges."""
    found: list[tuple[Stage, tuple[Expr, ...]]] = []
    for r in scope.schedule.readers(stage.name):
        if r.name not in scope.ranges:
            scope.ranges[r.name] = required(scope, r)
        for x in dict.fromkeys(loads(r.compute.body)):
            if x.tensor == stage.name:
                found.append((r, x.indices))
    return found


def _tile_around(scope: Scope, stage: Stage, axis: Axis, lo: Expr, ext: Expr) -> AxisRange | None:
    """Loops that continue those around the stage, of which [lo, lo + ext) is a tile of its factors.

    Operands can then be packed; None for any other region.
    """
    factors, target = stage.factors(axis.name), scope.schedule[stage.location[0]]
    for around in target.compute.axes if factors else ():
        n = scope.fixed_levels(target, around.name)
        if n < 1 or target.factors(around.name) != factors or around.extent != axis.extent:
            continue
        lead = scope.ranges[target.name][around.name]
        if lead.start == 0 and (lo, ext) == (lead.partial(n), lead.steps[n - 1]):
            return aligned_range(stage, axis, lead, n)
    return None


def kept_ranges(scope: Scope, stage: Stage, around: Ranges, loop: Var) -> Ranges:
    """The ranges of a stage in one iteration of `loop`, of what no iteration before computed.

    `around` are its ranges outside of that loop. Along the axis that moves with the loop the part
    that is new: of [lo, lo + ext), which moves by `step`, the last `step` elements; at first all of
    it. Raises ScheduleError where no axis or several move, or by what is not known.
    """
    out = dict(around)
    moving = []
    reads = _reads(scope, stage)
    for d, axis in enumerate(stage.compute.axes):
        found = _interval(scope, stage, axis, [(r, indices[d]) for r, indices in reads])
        if found is None or loop.name not in (found.lo.free | found.ext.free):
            continue
        step = coefficient(found.lo, loop.name)
        plain = loop.name not in found.ext.free and not stage.factors(axis.name)
        if step is None or _sign(step) < 1 or not plain:
            raise ScheduleError(f"cannot keep {stage.name}: {axis.name} moves in no plain steps")
        moving.append(axis.name)
        again = mul(maximum(ZERO, sub(found.ext, step)), minimum(loop, ONE))
        lo, end = add(found.lo, again), add(found.lo, found.ext)
        first = maximum(ZERO, lo) if found.negative else lo
        made = make_range(stage, axis, first, around[axis.name].origin, found.ext, False)
        out[axis.name] = replace(made, stop=end, digits=False, total=around[axis.name].ext)
    if len(moving) != 1:
        raise ScheduleError(f"cannot keep {stage.name}: {len(moving)} of its axes move with {loop}")
    return out


class _Interval(NamedTuple):
    """[lo, lo + ext) of an axis: may `lo` be negative; is it 0 whatever the loops and holes are?"""

    lo: Expr
    ext: Expr
    negative: bool
    starts_at_0: bool


def _hull(scope: Scope, stage: Stage, axis: Axis, reads: list[tuple[Stage, Expr]]) -> AxisRange:
    """Hull of the readers' requirements along an axis; the whole axis if none is expressible."""
    found = _interval(scope, stage, axis, reads)
    if found is None:
        return whole_range(stage, axis)
    lo, ext, negative, starts_at_0 = found
    if stage.factors(axis.name) and not starts_at_0 and _has_sums(scope.schedule, stage):
        around = _tile_around(scope, stage, axis, lo, ext)
        return around or _moved_range(stage, axis, lo, ext)
    first = maximum(ZERO, lo) if negative else lo
    return replace(make_range(stage, axis, first, lo, ext, False), digits=starts_at_0)


def _interval(
    scope: Scope, stage: Stage, axis: Axis, reads: list[tuple[Stage, Expr]]
) -> _Interval | None:
    """Hull of the readers' requirements along an axis; None if it is not expressible."""
    spans: list[tuple[Expr, Expr, bool, dict[str, Expr]]] = []
    starts_at_0 = True
    distinct = {(reader.name, index): reader for reader, index in reads}
    for (_, index), reader in distinct.items():
        one = _one_read(scope, reader, index)
        if one is None:
            return None
        spans.append(one)
        used = [a.name for a in reader.compute.axes + reader.compute.reduce_axes]
        moving = [name for name in used if name in index.free]
        starts_at_0 &= all(scope.starts_at_0(reader, name) for name in moving)
    lo, ext, negative, coefs = spans[0]
    for lo2, ext2, negative2, coefs2 in spans[1:]:
        if coefs2 != coefs:
            return None
        gap = sub(lo2, lo)
        low = minimum(ZERO, gap)
        ext = sub(maximum(ext, add(gap, ext2)), low)
        lo = add(lo, low)
        negative = negative or negative2
    return _Interval(lo, ext, negative, starts_at_0 and lo == ZERO)


def _has_sums(schedule: Schedule, stage: Stage) -> bool:
    """Is the stage a reduction, or one that has a reduction computed at its tiles?"""
    inside = (s for s in schedule.stages if s.has_loops and s.location[0] == stage.name)
    return bool(stage.compute.combiner) or any(s.compute.combiner for s in inside)


def _sign(c: Expr) -> int:
    """1 or -1 for a sum of products of holes and numbers with one sign; otherwise 0.

    Such a sum keeps its sign for all hole values, so no decision depends on values.
    """
    signs = set()
    for mono, k in terms_of(c).items():
        if any(not (isinstance(a, Var) and a.role == "hole") for a in mono):
            return 0
        signs.add(1 if k > 0 else -1)
    return signs.pop() if len(signs) == 1 else 0


@lru_cache(maxsize=1 << 12)
def _affine(
    index: Expr, names: tuple[str, ...]
) -> tuple[tuple[tuple[str, Expr, int], ...] | None, Expr]:
    """((name, coefficient, its sign) of each variable, the rest); None where not affine in one."""
    moves: list[tuple[str, Expr, int]] = []
    for name in names:
        c = coefficient(index, name)
        sign = 0 if c is None else _sign(c)
        if c is None or sign == 0:
            return None, index
        moves.append((name, c, sign))
    return tuple(moves), substitute(index, dict.fromkeys(names, ZERO))


def _one_read(
    scope: Scope, reader: Stage, index: Expr
) -> tuple[Expr, Expr, bool, dict[str, Expr]] | None:
    """(lo, width, lo may be negative, coefficients) of one read; None if not affine.

    `coefficients` gives the coefficient of each part of `lo` that varies with loops.
    """
    lo: Expr = index
    width: Expr = ONE
    negative = False
    moving: dict[str, Expr] = {}
    values: dict[str, Expr] = {}
    op = reader.compute
    free = index.free
    names = tuple([a.name for a in op.axes + op.reduce_axes if a.name in free])
    moves, constant = _affine(index, names)
    if moves is None:
        return None
    for name, c, sign in moves:
        base, span, whole = scope.span(reader, name)
        grow = mul(sub(span, ONE), mul(c, sign))
        width = add(width, grow)
        values[name] = base
        if sign < 0:
            negative = True
            lo = sub(lo, grow)
        if not whole:
            moving[str(base)] = add(moving.get(str(base), ZERO), c)
    if not isinstance(constant, Const):
        return None  # index read from a tensor
    negative = negative or constant.value < 0
    return substitute(lo, values), width, negative, {k: moving[k] for k in sorted(moving)}
