"""Which part of a stage is needed: conservative interval arithmetic over holes and loop variables.

In: the schedule, the loops in scope. Out: per axis of an attached stage its `AxisRange`: where the
needed region starts, how long it nominally is, and the levels of its loops. Decisions go by the
structure of the schedule and of the te expressions, never by values.
"""

from dataclasses import dataclass, field, replace

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Var, add, ceildiv, mul, sub, terms_of
from ansorlite.ir.extremum import maximum, minimum
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads, substitute
from ansorlite.schedule.stage import Schedule, Stage, factor_expr
from ansorlite.schedule.steps import packed_axes
from ansorlite.te.tensor import Axis

ZERO, ONE = Const(0), Const(1)


@dataclass(frozen=True)
class AxisRange:
    """The loops of one axis of a stage at one place.

    `lo`: first index computed; `origin`: unclamped lo, the index stored at position 0 of a local
    buffer; `ext`: nominal length; `limit`: end of the tensor; `whole`: lo = 0 and ext = limit by
    structure; `aligned`: starts at a level of a follower's loops; `start`: first level with a loop
    of its own; `vars[l]`: the variable of level l, `steps[l]` its stride, `nominal[l]` its extent;
    `stop`: where the loops end before the tensor does, if they do; `digits`: the loops start at 0,
    so that their variables are the digits of the index.
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
    _clamped: dict[int, Expr] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def value(self) -> Expr:
        """The axis as an expression over its loops."""
        return self.partial(len(self.vars))

    def partial(self, levels: int) -> Expr:
        """lo plus the contribution of the levels before `levels`."""
        out = self.lo
        for lv in range(self.start, levels):
            out = add(out, mul(self.vars[lv], self.steps[lv]))
        return out

    def clamped(self, level: int) -> Expr:
        """Trips of the loop of `level` given the loops before it."""
        if level not in self._clamped:
            self._clamped[level] = self._trips(level)
        return self._clamped[level]

    def _trips(self, level: int) -> Expr:
        here = self.partial(level)
        step = self.steps[level]
        bounds = [] if self.whole and level == self.start else [self.nominal[level]]
        bounds.append(ceildiv(sub(self.limit, here), step))
        if self.stop is not None:
            bounds.append(ceildiv(sub(self.stop, here), step))
        return minimum(*bounds)


def loop_name(stage: Stage, axis: str, level: int) -> str:
    return f"{stage.name}.{axis}.{level}" if stage.factors(axis) else f"{stage.name}.{axis}"


def _steps(stage: Stage, axis: str) -> list[Expr]:
    steps: list[Expr] = [ONE]
    for f in reversed(stage.factors(axis)):
        steps.insert(0, mul(steps[0], factor_expr(f)))
    return steps


def make_range(
    stage: Stage, axis: Axis, lo: Expr, origin: Expr, ext: Expr, whole: bool
) -> AxisRange:
    """Loops over [lo, lo + ext) of an axis, all levels of its own."""
    steps = _steps(stage, axis.name)
    factors = [factor_expr(f) for f in stage.factors(axis.name)]
    return AxisRange(
        lo,
        origin,
        ext,
        axis.extent,
        whole,
        False,
        0,
        tuple(Var(loop_name(stage, axis.name, lv)) for lv in range(len(steps))),
        tuple(steps),
        (minimum(ceildiv(ext, steps[0]), ceildiv(axis.extent, steps[0])), *factors),
        None if whole else add(origin, ext),
        lo == ZERO,
    )


def whole_range(stage: Stage, axis: Axis) -> AxisRange:
    return make_range(stage, axis, ZERO, ZERO, axis.extent, True)


def aligned_range(stage: Stage, axis: Axis, follower: AxisRange, fixed: int) -> AxisRange:
    """Loops that start at level `fixed` of the follower's loops over the same axis."""
    steps = _steps(stage, axis.name)
    own = tuple(Var(loop_name(stage, axis.name, lv)) for lv in range(len(steps)))
    factors = tuple(factor_expr(f) for f in stage.factors(axis.name))
    nominal = (follower.nominal[0], *factors)
    lo = follower.partial(fixed)
    if fixed == 0:
        return make_range(stage, axis, lo, lo, follower.ext, follower.whole)
    ext = steps[fixed - 1]
    variables = (*follower.vars[:fixed], *own[fixed:])
    limit = axis.extent
    # The tile is the follower's; it ends earlier where the follower itself needs less.
    stop, digits = follower.stop, follower.digits
    return AxisRange(
        lo, lo, ext, limit, False, True, fixed, variables, tuple(steps), nominal, stop, digits
    )


def packed_range(stage: Stage, axis: Axis, reader: AxisRange, fixed: int) -> AxisRange:
    """Loops over what is left of the reader's axis when its outer `fixed` levels are in scope.

    Raises ScheduleError where the reader's loops are not the digits of the axis.
    """
    if fixed < 0 or not reader.digits or reader.stop is not None:
        raise ScheduleError(f"cannot pack {stage.name} there: tiles of {axis.name} start anywhere")
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
    """The loops in scope at an attach point and the ranges of the stages around it."""

    schedule: Schedule
    ranges: dict[str, Ranges]
    loops: frozenset[str]

    def fixed_levels(self, stage: Stage, axis: str) -> int:
        """How many outer levels of an axis are in scope; -1 if they are no prefix."""
        flags = [
            v.name in self.loops for v in self.ranges[stage.name][axis].vars if isinstance(v, Var)
        ]
        n = sum(flags)
        return n if all(flags[:n]) else -1

    def span(self, stage: Stage, axis: str) -> tuple[Expr, Expr, bool]:
        """(first index, width, whole axis?) that one trip of the loops in scope covers."""
        r = self.ranges[stage.name][axis]
        n = self.fixed_levels(stage, axis)
        if n < 0:
            return ZERO, r.limit, True
        if n <= r.start and not (r.aligned and n == r.start):
            return r.lo, r.ext, r.whole
        return r.partial(n), r.steps[n - 1], False


def required(scope: Scope, stage: Stage) -> Ranges:
    """The ranges of an attached stage's axes at the place described by `scope`."""
    op = stage.compute
    target = scope.schedule[stage.location[0]]
    reads: list[tuple[Stage, tuple[Expr, ...]]] = []
    for r in scope.schedule.readers(stage.name):
        if r.name not in scope.ranges:
            inner = required(scope, r)
            scope.ranges[r.name] = inner
        for x in dict.fromkeys(loads(r.compute.body)):
            if x.tensor == stage.name:
                reads.append((r, x.indices))
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


def _hull(scope: Scope, stage: Stage, axis: Axis, reads: list[tuple[Stage, Expr]]) -> AxisRange:
    """Hull of what the readers need along one axis; the whole axis where it is not expressible."""
    spans: list[tuple[Expr, Expr, bool, dict[str, Expr]]] = []
    for reader, index in reads:
        one = _one_read(scope, reader, index)
        if one is None:
            return whole_range(stage, axis)
        spans.append(one)
    lo, ext, negative, coefs = spans[0]
    for lo2, ext2, negative2, coefs2 in spans[1:]:
        if coefs2 != coefs:
            return whole_range(stage, axis)
        gap = sub(lo2, lo)
        low = minimum(ZERO, gap)
        ext = sub(maximum(ext, add(gap, ext2)), low)
        lo = add(lo, low)
        negative = negative or negative2
    first = maximum(ZERO, lo) if negative else lo
    return make_range(stage, axis, first, lo, ext, False)


def _sign(c: Expr) -> int:
    """1 or -1 for a sum of products of holes and numbers of one sign; 0 for anything else.

    Such sums keep their sign when the holes are filled, so that no decision depends on values.
    """
    signs = set()
    for mono, k in terms_of(c).items():
        if any(not (isinstance(a, Var) and a.role == "hole") for a in mono):
            return 0
        signs.add(1 if k > 0 else -1)
    return signs.pop() if len(signs) == 1 else 0


def _one_read(
    scope: Scope, reader: Stage, index: Expr
) -> tuple[Expr, Expr, bool, dict[str, Expr]] | None:
    """(lo, width, may lo be negative, what lo depends on) of one read; None if not affine."""
    lo: Expr = index
    width: Expr = ONE
    negative = False
    moving: dict[str, Expr] = {}
    values: dict[str, Expr] = {}
    op = reader.compute
    names = [a.name for a in op.axes + op.reduce_axes if a.name in index.free]
    constant = substitute(index, {n: ZERO for n in names})
    for name in names:
        c = coefficient(index, name)
        sign = 0 if c is None else _sign(c)
        if c is None or sign == 0:
            return None
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
        return None  # read from a tensor
    negative = negative or constant.value < 0
    return substitute(lo, values), width, negative, {k: moving[k] for k in sorted(moving)}
