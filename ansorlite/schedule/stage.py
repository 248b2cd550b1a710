"""What a schedule has made of each operation: stages with iterators, locations and annotations.

A `Schedule` is the value that steps map to the next one. Iterators are named `i` (whole axis) or
`i.0`, `i.1`, ... (levels of a split axis, outermost first).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Var
from ansorlite.ir.traverse import loads
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Axis, ComputeOp, Operation, Placeholder

Factor = int | str  # a number, or the variable of a hole's column
# "bound": computed when the constants are known; (stage, iterator): attached there
Location = Literal["root", "inlined", "bound"] | tuple[str, str]


@dataclass(frozen=True)
class Iterator:
    """One loop of a stage: level `level` of te axis `axis` (an unsplit axis has level 0 only)."""

    axis: str
    level: int
    split: bool
    reduce: bool

    @property
    def name(self) -> str:
        return f"{self.axis}.{self.level}" if self.split else self.axis


@dataclass(frozen=True)
class Stage:
    """One operation under a schedule. `tiling[axis]` are the factors of its inner levels."""

    op: Operation
    iters: tuple[Iterator, ...] = ()
    tiling: tuple[tuple[str, tuple[Factor, ...]], ...] = ()
    location: Location = "root"
    notes: tuple[tuple[str, str, str], ...] = ()  # (iterator, key, value token)
    leader: str | None = None  # the stage whose tiles this one follows
    packed_for: str | None = None  # the reader in whose loop order this tensor is stored

    @property
    def name(self) -> str:
        return self.op.name

    @property
    def compute(self) -> ComputeOp:
        if isinstance(self.op, Placeholder):
            raise ScheduleError(f"{self.name} is a placeholder: it has no loops")
        return self.op

    @property
    def is_placeholder(self) -> bool:
        return isinstance(self.op, Placeholder)

    @property
    def has_loops(self) -> bool:
        """Is it computed by loops of its own in the kernel?"""
        return not self.is_placeholder and self.location not in ("inlined", "bound")

    def factors(self, axis: str) -> tuple[Factor, ...]:
        return dict(self.tiling).get(axis, ())

    def position(self, iterator: str) -> int:
        for p, it in enumerate(self.iters):
            if it.name == iterator:
                return p
        known = " ".join(it.name for it in self.iters)
        raise ScheduleError(f"{self.name} has no iterator {iterator} (it has: {known})")

    @property
    def first_reduce(self) -> int:
        """Position of the outermost reduction iterator; the number of iterators if none."""
        found = [p for p, it in enumerate(self.iters) if it.reduce]
        return found[0] if found else len(self.iters)

    def __str__(self) -> str:
        if self.is_placeholder:
            return str(self.op)
        where = self.location if isinstance(self.location, str) else f"at {'.'.join(self.location)}"
        loops = " ".join(it.name for it in self.iters)
        return f"{self.name} ({where}): {loops}"


def initial_stage(op: Operation) -> Stage:
    """One loop per axis, spatial before reduction."""
    if isinstance(op, Placeholder):
        return Stage(op)
    spatial = tuple(Iterator(a.name, 0, False, False) for a in op.axes)
    reduce = tuple(Iterator(a.name, 0, False, True) for a in op.reduce_axes)
    return Stage(op, spatial + reduce)


@dataclass(frozen=True)
class Schedule:
    """Stages in topological order; outputs are names of stages."""

    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]

    def __getitem__(self, name: str) -> Stage:
        for s in self.stages:
            if s.name == name:
                return s
        known = ", ".join(s.name for s in self.stages)
        raise ScheduleError(f"there is no stage {name} (there are: {known})")

    def has(self, name: str) -> bool:
        return any(s.name == name for s in self.stages)

    def update(self, name: str, fn: Callable[[Stage], Stage]) -> "Schedule":
        self[name]
        return replace(self, stages=tuple(fn(s) if s.name == name else s for s in self.stages))

    def insert_before(self, name: str, stage: Stage) -> "Schedule":
        if self.has(stage.name):
            raise ScheduleError(f"there is a stage {stage.name} already")
        k = self.stages.index(self[name])
        return replace(self, stages=(*self.stages[:k], stage, *self.stages[k:]))

    def readers(self, name: str) -> list[Stage]:
        """Stages that read the tensor, those inlined away not counted."""
        return [
            s
            for s in self.stages
            if not s.is_placeholder
            and s.location != "inlined"
            and any(x.tensor == name for x in loads(s.compute.body))
        ]

    def is_constant(self, name: str) -> bool:
        """Does the tensor depend on constants alone?"""
        seen, left = {name}, [name]
        while left:
            op = self[left.pop()].op
            if isinstance(op, Placeholder):
                if not op.constant:
                    return False
                continue
            new = {x.tensor for x in loads(op.body)} - seen
            seen |= new
            left += new
        return True

    def attached(self, name: str, iterator: str | None = None) -> list[Stage]:
        """Stages attached to a stage (at one of its iterators), in order of computation."""
        return [
            s
            for s in self.stages
            if isinstance(s.location, tuple)
            and s.location[0] == name
            and iterator in (None, s.location[1])
        ]

    def __str__(self) -> str:
        return "\n".join(map(str, self.stages)) + "\n"


def initial_schedule(dag: ComputeDAG) -> Schedule:
    return Schedule(tuple(initial_stage(op) for op in dag.ops), dag.output_names)


def factor_expr(f: Factor) -> Expr:
    return Const(f) if isinstance(f, int) else Var(f, "hole")


def axis_of(op: ComputeOp, name: str) -> Axis:
    for a in op.axes + op.reduce_axes:
        if a.name == name:
            return a
    known = ", ".join(a.name for a in op.axes + op.reduce_axes)
    raise ScheduleError(f"stage {op.name} has no axis {name} (it has: {known})")
