"""Lowering (step `lower` of the flow): a State, with or without holes -> `Program`.

Bounds inference and loop generation happen only here. One code path lowers a sketch (tile factors
are hole variables) and a complete state (tile factors are numbers), so `fill(lower(sketch),
values)` prints the same program as `lower(sketch.fill(values))`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Load, Var, ceildiv, integer, sub
from ansorlite.ir.extremum import maximum, minimum
from ansorlite.ir.logic import combiner_identity
from ansorlite.ir.program import (
    Alloc,
    Annotations,
    Buffer,
    BufferLayout,
    For,
    Program,
    Stmt,
    Store,
    block,
    map_program,
    verify,
)
from ansorlite.ir.tidy import tidy
from ansorlite.ir.traverse import loads, substitute, tensors_read, transform
from ansorlite.schedule.holes import column_values
from ansorlite.schedule.region import (
    AxisRange,
    Ranges,
    Scope,
    kept_ranges,
    required,
    whole_range,
)
from ansorlite.schedule.stage import Iterator, Schedule, Stage, initial_stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import packed_axes
from ansorlite.te.access import operation_counts
from ansorlite.te.tensor import Operation, Placeholder


def lower(state: State, name: str = "kernel") -> Program:
    """The program of a state. Concrete programs (no holes) pass through `ir.tidy`.

    Raises ScheduleError if a stage is read where it is not computed. Example:
    `print(lower(State(dag)))`.
    """
    program = _Lowering(state.schedule).program(name)
    columns = tuple(sorted(c for h in state.holes for c in h.columns))
    if columns:
        program = replace(program, columns=columns)
        verify(program)
        return program
    program = tidy(program)
    verify(program)
    return program


def check(state: State) -> None:
    """Raise the ScheduleError that `lower` would raise for a state, in a fraction of its time.

    Ranges of all stages are inferred; no statement is made.
    """
    _Lowering(state.schedule).check()


def fill(program: Program, values: dict[str, tuple[int, ...]]) -> Program:
    """The concrete program for values by hole name: substitution, then the tidy pass, nothing else.

    Raises ScheduleError if a hole has no values.
    """
    columns = {n: integer(v) for n, v in column_values(values).items()}
    missing = [c for c in program.columns if c not in columns]
    if missing:
        raise ScheduleError(f"no values are given for {', '.join(missing)}")
    return tidy(map_program(program, {c: columns[c] for c in program.columns}))


class _Lowering:
    """State of one lowering: ranges of stages with open nests, and visit counts of each."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.ranges: dict[str, Ranges] = {}
        self.visits: dict[str, tuple[Expr, ...]] = {}
        self.buffers: dict[str, Buffer] = {}
        # of stages that are kept over iterations, by name: all that these compute
        self.kept: dict[str, Ranges] = {}
        # (dimension, level) of each stored dimension of a packed buffer
        self.digits: dict[str, tuple[tuple[int, int], ...]] = {}

    def program(self, name: str) -> Program:
        """The program of the schedule, before the tidy pass."""
        roots, bound = self._whole_buffers()
        made = [self.buffers[s.name] for s in (*roots, *bound)]
        params = [b for b in made if b.role != "temp"]
        temps = [b for b in made if b.role == "temp"]
        roles = ("input", "constant", "derived", "output")
        order = {n: k for k, n in enumerate(self.schedule.outputs)}
        params.sort(key=lambda b: (max(1, roles.index(b.role)), order.get(b.name, 0)))
        body = block([self._nest(s, frozenset()) for s in roots if not s.is_placeholder])
        before = _bound_program(self.schedule) if bound else None
        return Program(name, (*params, *temps), body, bound=before)

    def check(self) -> None:
        """Infer all ranges, and look at what every stage reads."""
        roots, _ = self._whole_buffers()
        for s in roots:
            if not s.is_placeholder:
                self._check(s, frozenset())

    def _check(self, s: Stage, scope: frozenset[str]) -> None:
        ranges = self.ranges[s.name]
        for it in s.iters:
            r = ranges[it.axis]
            if it.level < r.start:
                continue
            scope = scope | {str(r.vars[it.level])}
            self._keep(s, it.name, scope)
            here = self.schedule.attached(s.name, it.name)
            self._open(here, r.vars[it.level], scope)
            for a in here:
                self._check(a, scope)
        op = s.compute
        if s.name in self.digits:
            self._packed_place(s, [a.name for a in op.axes], s.name)
        for load in loads(op.body):
            source = self._read(s, load.tensor)
            if load.tensor in self.digits:
                self._packed_place(s, packed_axes(s, source), load.tensor)

    def _whole_buffers(self) -> tuple[list[Stage], list[Stage]]:
        """The stages at root and those evaluated at bind, with their ranges and buffers."""
        roots = [s for s in self.schedule.stages if s.location == "root"]
        for s in roots:
            if not s.is_placeholder:
                self._root_ranges(s)
        bound = [s for s in self.schedule.stages if s.location == "bound"]
        for s in (*roots, *bound):
            self.buffers[s.name] = self._global_buffer(s)
        return roots, bound

    def _root_ranges(self, s: Stage) -> None:
        op = s.compute
        self.ranges[s.name] = {a.name: whole_range(s, a) for a in op.axes + op.reduce_axes}
        self.visits[s.name] = ()

    def _global_buffer(self, s: Stage) -> Buffer:
        op = s.op
        if isinstance(op, Placeholder):
            role = "constant" if op.constant else "input"
        else:
            role = "output" if s.name in self.schedule.outputs else "temp"
            role = "derived" if s.location == "bound" else role
        layout = self._layout(s)
        if layout:
            self.digits[s.name] = layout.order
        shape = layout.shape if layout else op.extents
        return Buffer(s.name, shape, op.dtype, "global", role, op.extents, layout)  # type: ignore[arg-type]

    def _layout(self, s: Stage) -> BufferLayout | None:
        """The packed layout of a tensor that follows its reader's loops; None if not packed."""
        if s.packed_for is None:
            return None
        reader = self.schedule[s.packed_for]
        axes = packed_axes(reader, s)
        by_name = {a.name: a for a in reader.compute.axes + reader.compute.reduce_axes}
        tiles = tuple(whole_range(reader, by_name[a]).nominal for a in axes)
        return BufferLayout(tiles, _reading_order(reader, s))

    # ---- nests ----------------------------------------------------------------------------------

    def _nest(self, s: Stage, outside: frozenset[str]) -> Stmt:
        """The loop nest of a stage inside the loops `outside`."""
        ranges = self.ranges[s.name]
        own = [it for it in s.iters if it.level >= ranges[it.axis].start]
        return self._loops(s, own, 0, outside)

    def _loops(self, s: Stage, own: list[Iterator], p: int, scope: frozenset[str]) -> Stmt:
        """The loops from position `p` of `own` on, with initialisation before the first
        reduction.
        """
        stmts: list[Stmt] = []
        first = next((k for k, it in enumerate(own) if it.reduce), len(own))
        if p == first and s.compute.combiner:
            stmts.append(self._init(s, [it for it in own[p:] if not it.reduce]))
        if p == len(own):
            stmts.append(self._store(s))
            return block(stmts)
        it = own[p]
        r = self.ranges[s.name][it.axis]
        var = r.vars[it.level]
        assert isinstance(var, Var)
        inner = scope | {var.name}
        body = self._with_attached(s, it.name, own, p, inner)
        stmts.append(
            For(
                var.name,
                r.clamped(it.level),
                r.nominal[it.level],
                it.reduce,
                body,
                self._notes(s, it.name),
                axis=(s.name, it.axis, it.level),
            )
        )
        return block(stmts)

    def _with_attached(
        self,
        s: Stage,
        iterator: str,
        own: list[Iterator],
        p: int,
        scope: frozenset[str],
    ) -> Stmt:
        """The body of a loop: the stages attached to the loop, then the rest of the nest."""
        here = self.schedule.attached(s.name, iterator)
        nests: list[Stmt] = []
        kept = self._keep(s, iterator, scope)
        loop = self.ranges[s.name][own[p].axis].vars[own[p].level]
        self._open(here, loop, scope)
        for a in here:
            outside = scope if a.kept_at is None else scope - {str(loop)}
            self.visits[a.name] = self._visits(s, outside)
        for a in here:
            nests.append(self._nest(a, scope))
        body = block([*nests, self._loops(s, own, p + 1, scope)])
        for a in reversed([*(a for a in here if a.kept_at is None), *kept]):
            body = Alloc(self.buffers[a.name], body)
        return body

    def _keep(self, s: Stage, iterator: str, scope: frozenset[str]) -> list[Stage]:
        """The stages whose elements live as long as an iteration of a loop: ranges and buffers."""
        kept = self.schedule.kept(s.name, iterator)
        for a in reversed(kept):
            view = Scope(self.schedule, dict(self.ranges), scope)
            self.kept[a.name] = required(view, a)
            self.buffers[a.name] = self._local_buffer(a, self.kept[a.name])
        return kept

    def _open(self, attached: Sequence[Stage], loop: Expr, scope: frozenset[str]) -> None:
        """Ranges and buffers of the stages attached to the innermost loop in scope."""
        for a in reversed(attached):
            view = Scope(self.schedule, dict(self.ranges), scope)
            if a.kept_at is None:
                self.ranges[a.name] = required(view, a)
                self.buffers[a.name] = self._local_buffer(a, self.ranges[a.name])
                continue
            assert isinstance(loop, Var) and isinstance(a.location, tuple)
            around, at = a.location
            if any((it, key) == (at, "parallel") for it, key, _ in self.schedule[around].notes):
                raise ScheduleError(f"cannot keep {a.name} over {loop}, which is parallel")
            self.ranges[a.name] = kept_ranges(view, a, self.kept[a.name], loop)

    def _local_buffer(self, s: Stage, region: Ranges) -> Buffer:
        """The buffer of an attached stage, as large as the required region."""
        ranges = [region[a.name] for a in s.compute.axes]
        shape = tuple(r.ext for r in ranges)
        if s.packed_for is not None:
            order = _reading_order(self.schedule[s.packed_for], s)
            self.digits[s.name] = tuple((d, lv) for d, lv in order if lv >= ranges[d].start)
            shape = tuple(ranges[d].nominal[lv] for d, lv in self.digits[s.name])
        return Buffer(s.name, shape, s.compute.dtype, "local", "temp", s.compute.extents)

    def _init(self, s: Stage, rest: list[Iterator]) -> Stmt:
        """Initialisation of a reduction, over the spatial loops inside its outermost reduction."""
        op = s.compute
        assert op.combiner is not None
        rename, memo = dict[str, Expr](), dict[Expr, Expr]()
        for it in rest:
            var = self.ranges[s.name][it.axis].vars[it.level]
            rename[str(var)] = Var(f"{var}.init")
        values = self._axis_values(s)
        count = self._count(s, reduce=False)
        identity = combiner_identity(op.combiner, op.dtype)
        indices = self._place(s, [values[a.name] for a in op.axes])
        stmt: Stmt = Store(
            s.name,
            tuple(substitute(i, rename, memo) for i in indices),
            identity,
            None,
            s.name,
            count,
        )
        for it in reversed(rest):
            r = self.ranges[s.name][it.axis]
            notes = tuple(n for n in self._notes(s, it.name) if n[0] != "parallel")
            stmt = For(
                f"{r.vars[it.level]}.init",
                substitute(r.clamped(it.level), rename, memo),
                r.nominal[it.level],
                False,
                stmt,
                notes,
                axis=(s.name, it.axis, it.level),
            )
        return stmt

    def _store(self, s: Stage) -> Stmt:
        """The store of one execution of the body."""
        op = s.compute
        values = self._axis_values(s)
        memo: dict[Expr, Expr] = {}

        def leaf(e: Expr) -> Expr | None:
            if isinstance(e, Var):
                return values.get(e.name)
            if isinstance(e, Load):
                plain = [transform(i, leaf, memo) for i in e.indices]
                return Load(e.tensor, self._read_place(s, e, plain), e.dtype)
            return None

        value = transform(op.body, leaf, memo)
        place = self._place(s, [values[a.name] for a in op.axes])
        count = self._count(s, reduce=True)
        return Store(s.name, place, value, op.combiner, s.name, count, operation_counts(op))

    def _axis_values(self, s: Stage) -> dict[str, Expr]:
        """The expression over loop variables for each axis."""
        return {name: r.value for name, r in self.ranges[s.name].items()}

    def _place(self, s: Stage, index: list[Expr]) -> tuple[Expr, ...]:
        """Indices into the buffer of a stage for the element `index`."""
        buffer = self.buffers[s.name]
        if s.name in self.digits:
            return self._packed_place(s, [a.name for a in s.compute.axes], s.name)
        if buffer.scope == "local":
            ranges = self.ranges[s.name]
            origins = [ranges[a.name].origin for a in s.compute.axes]
            return tuple(sub(i, o) for i, o in zip(index, origins, strict=True))
        return tuple(index)

    def _read_place(self, reader: Stage, load: Load, index: list[Expr]) -> tuple[Expr, ...]:
        """Indices into the buffer of a loaded tensor for the element `index`."""
        source = self._read(reader, load.tensor)
        buffer = self.buffers[load.tensor]
        if load.tensor in self.digits:
            return self._packed_place(reader, packed_axes(reader, source), load.tensor)
        if buffer.scope == "local":
            ranges = self.ranges[load.tensor]
            origins = [ranges[a.name].origin for a in source.compute.axes]
            return tuple(sub(i, o) for i, o in zip(index, origins, strict=True))
        return tuple(index)

    def _read(self, reader: Stage, tensor: str) -> Stage:
        """The stage of a tensor that a stage reads."""
        source = self.schedule[tensor]
        if tensor not in self.buffers:
            raise ScheduleError(
                f"{reader.name} reads {tensor}, which is not computed before it: attached to "
                f"{' at '.join(source.location)}, a loop that is not there"
            )
        return source

    def _packed_place(self, s: Stage, axes: list[str], tensor: str) -> tuple[Expr, ...]:
        """The loop variables that are the digits of the axes, in storage order of the tensor."""
        own, source = self.ranges[s.name], self.schedule[tensor]
        local = self.buffers[tensor].scope == "local"
        for d, a in enumerate(axes):
            first = self.ranges[tensor][source.compute.axes[d].name].lo if local else None
            if not own[a].digits and (own[a].start > 0 or own[a].lo != first):
                raise ScheduleError(
                    f"{s.name} reads {tensor} in tiles with an unaligned start, so {tensor} cannot"
                    " be packed"
                )
        return tuple(own[axes[d]].vars[lv] for d, lv in self.digits[tensor])

    # ---- annotations and counts -----------------------------------------------------------------

    def _notes(self, s: Stage, iterator: str) -> Annotations:
        """The annotations of a loop."""
        return tuple((k, _token(v)) for it, k, v in s.notes if it == iterator)

    def _visits(self, target: Stage, scope: frozenset[str]) -> tuple[Expr, ...]:
        """Executions of the attach point, as factors: iterations of each axis of the target."""
        factors = list(self.visits[target.name])
        for r in self.ranges[target.name].values():
            inside = [v for v in r.vars[r.start :] if isinstance(v, Var) and v.name in scope]
            if inside:
                level = r.start + len(inside) - 1
                factors.append(ceildiv(r.elements, r.steps[level]))
        return tuple(factors)

    def _count(self, s: Stage, reduce: bool) -> tuple[Expr, ...]:
        """Executions of the store of a stage (`reduce=False`: of its initialisation), as factors.

        Exact for stages at root and for aligned stages. Where halos overlap along one axis of the
        target, the closed-form sum; otherwise an upper bound.
        """
        op = s.compute
        axes = op.axes + (op.reduce_axes if reduce else ())
        ranges = self.ranges[s.name]
        if self._once(s):
            return tuple(a.extent for a in axes)
        return (*self.visits[s.name], *(_trips(ranges[a.name]) for a in axes))

    def _once(self, s: Stage) -> bool:
        """True if each element is computed once: at root, or aligned with a stage computed once."""
        if not isinstance(s.location, tuple):
            return True
        if s.packed_for is not None:
            return False  # recomputed for every tile of the reader
        aligned = any(self.ranges[s.name][a.name].aligned for a in s.compute.axes)
        return aligned and self._once(self.schedule[s.location[0]])


def _reading_order(reader: Stage, tensor: Stage) -> tuple[tuple[int, int], ...]:
    """(dimension, level) of the reader's loops over a packed tensor, outermost first."""
    axes = packed_axes(reader, tensor)
    return tuple((axes.index(it.axis), it.level) for it in reader.iters if it.axis in axes)


def _bound_program(schedule: Schedule) -> Program:
    """The unscheduled program of the stages that are evaluated at bind and their dependencies."""
    outputs = tuple(s.name for s in schedule.stages if s.location == "bound")
    needed = set(outputs)
    for s in reversed(schedule.stages):
        if s.name in needed and not s.is_placeholder:
            needed |= tensors_read(s.compute.body)
    return _unscheduled(tuple(s.op for s in schedule.stages if s.name in needed), outputs)


@lru_cache(maxsize=64)
def _unscheduled(ops: tuple[Operation, ...], outputs: tuple[str, ...]) -> Program:
    """The sketches of a task have this in common."""
    stages = tuple(map(initial_stage, ops))
    return tidy(_Lowering(Schedule(stages, outputs)).program("bind"))


def _trips(r: AxisRange) -> Expr:
    """Iterations over the region of one axis."""
    return r.limit if r.whole else minimum(r.elements, r.limit)


@lru_cache(maxsize=1 << 12)
def _token(token: str) -> Expr:
    """An annotation value: an int, a knob, or `knob>n`, which is 1 if the knob exceeds n."""
    name, _, depth = token.partition(">")
    if name.lstrip("-").isdigit():
        return Const(int(name))
    knob = Var(name, "knob")
    return minimum(1, maximum(0, sub(knob, int(depth)))) if depth else knob
