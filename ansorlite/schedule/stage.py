"""The result of schedule steps: stages with iterators, locations and annotations.

A step maps one `Schedule` to the next. An iterator is named `i` (whole axis) or `i.0`, `i.1`, ...
(levels of a split axis, outermost first).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Expr, Var, integer
from ansorlite.ir.traverse import tensors_read
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Axis, ComputeOp, Operation, Placeholder

Factor = int | str  # a number, or a column variable of a hole
# "bound": computed once, when the kernel is bound to its constants; (stage, iterator): attached to
# that loop
Location = Literal["root", "inlined", "bound"] | tuple[str, str]


@dataclass(frozen=True)
class Iterator:
    """One loop of a stage: level `level` of axis `axis` (an unsplit axis has only level 0).

    Its `name` is `i` for a whole axis, `i.1` for level 1 of a split axis.
    """

    axis: str
    level: int
    split: bool
    reduce: bool
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = f"{self.axis}.{self.level}" if self.split else self.axis
        object.__setattr__(self, "name", name)


@dataclass(frozen=True)
class Stage:
    """One operation under a schedule; `tiling` holds the inner factors of each split axis.

    Its `name` is that of the operation.
    """

    op: Operation
    iters: tuple[Iterator, ...] = ()
    tiling: tuple[tuple[str, tuple[Factor, ...]], ...] = ()
    location: Location = "root"
    notes: tuple[tuple[str, str, str], ...] = ()  # annotations: (iterator, key, value token)
    leader: str | None = None  # stage whose tile factors this stage shares
    packed_for: str | None = None  # reader whose loop order is the storage order of this tensor
    kept_at: str | None = None  # loop around that of `location`, over which its elements are kept
    name: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.op.name)

    @property
    def compute(self) -> ComputeOp:
        """The operation; ScheduleError for a placeholder."""
        if isinstance(self.op, Placeholder):
            raise ScheduleError(f"{self.name} is a placeholder: it has no loops")
        return self.op

    @property
    def is_placeholder(self) -> bool:
        """True for an input."""
        return isinstance(self.op, Placeholder)

    @property
    def has_loops(self) -> bool:
        """True if the kernel computes the stage with loops of its own."""
        return not self.is_placeholder and self.location not in ("inlined", "bound")

    def factors(self, axis: str) -> tuple[Factor, ...]:
        """Factors of the inner levels of an axis; () if the axis is not split."""
        for name, factors in self.tiling:
            if name == axis:
                return factors
        return ()

    def position(self, iterator: str) -> int:
        """Position of an iterator in the nest; ScheduleError if the stage has no such iterator."""
        for p, it in enumerate(self.iters):
            if it.name == iterator:
                return p
        known = " ".join(it.name for it in self.iters)
        raise ScheduleError(f"{self.name} has no iterator {iterator} (it has: {known})")

    @property
    def first_reduce(self) -> int:
        """Position of the outermost reduction iterator; the number of iterators without one."""
        return next((p for p, it in enumerate(self.iters) if it.reduce), len(self.iters))

    def __str__(self) -> str:
        if self.is_placeholder:
            return str(self.op)
        where = self.location if isinstance(self.location, str) else f"at {'.'.join(self.location)}"
        loops = " ".join(it.name for it in self.iters)
        return f"{self.name} ({where}): {loops}"


def initial_stage(op: Operation) -> Stage:
    """The unscheduled stage: one loop per axis, spatial before reduction."""
    if isinstance(op, Placeholder):
        return Stage(op)
    spatial = tuple(Iterator(a.name, 0, False, False) for a in op.axes)
    reduce = tuple(Iterator(a.name, 0, False, True) for a in op.reduce_axes)
    return Stage(op, spatial + reduce)


@dataclass(frozen=True)
class Schedule:
    """Stages in topological order; `outputs` are names of stages. `schedule["C"]` is stage C."""

    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]

    def __getitem__(self, name: str) -> Stage:
        found = self._by_name.get(name)
        if found is not None:
            return found
        known = ", ".join(s.name for s in self.stages)
        raise ScheduleError(f"there is no stage {name} (there are: {known})")

    @cached_property
    def _by_name(self) -> dict[str, Stage]:
        return {s.name: s for s in self.stages}

    def has(self, name: str) -> bool:
        """True if there is a stage of this name."""
        return name in self._by_name

    def update(self, name: str, fn: Callable[[Stage], Stage]) -> "Schedule":
        """The schedule with stage `name` replaced by `fn(stage)`."""
        old = self[name]
        new = fn(old)
        made = Schedule(tuple([new if s is old else s for s in self.stages]), self.outputs)
        if new.name == name:
            made.__dict__["_by_name"] = {**self._by_name, name: new}
        return made

    def insert_before(self, name: str, stage: Stage) -> "Schedule":
        """The schedule with a new stage before stage `name`; ScheduleError if its name is taken."""
        if self.has(stage.name):
            raise ScheduleError(f"there is a stage {stage.name} already")
        k = self.stages.index(self[name])
        return replace(self, stages=(*self.stages[:k], stage, *self.stages[k:]))

    def readers(self, name: str) -> list[Stage]:
        """Stages that read the tensor, without inlined stages."""
        return self._readers.get(name, [])

    @cached_property
    def _readers(self) -> dict[str, list[Stage]]:
        found: dict[str, list[Stage]] = {}
        for s in self.stages:
            if not s.is_placeholder and s.location != "inlined":
                for name in tensors_read(s.compute.body):
                    found.setdefault(name, []).append(s)
        return found

    def is_constant(self, name: str) -> bool:
        """True if the tensor depends only on constants."""
        seen, left = {name}, [name]
        while left:
            op = self[left.pop()].op
            if isinstance(op, Placeholder):
                if not op.constant:
                    return False
                continue
            new = tensors_read(op.body) - seen
            seen |= new
            left += new
        return True

    def attached(self, name: str, iterator: str | None = None) -> list[Stage]:
        """Stages attached to a stage (or only to one of its iterators), in order of computation."""
        found = self._attached.get(name, [])
        return [s for s in found if iterator is None or s.location[1] == iterator]

    def kept(self, name: str, iterator: str) -> list[Stage]:
        """Stages attached to a stage whose elements are kept over iterations in this loop."""
        return [s for s in self.attached(name) if s.kept_at == iterator]

    @cached_property
    def _attached(self) -> dict[str, list[Stage]]:
        found: dict[str, list[Stage]] = {}
        for s in self.stages:
            if isinstance(s.location, tuple):
                found.setdefault(s.location[0], []).append(s)
        return found

    def __str__(self) -> str:
        return "\n".join(map(str, self.stages)) + "\n"


def initial_schedule(dag: ComputeDAG) -> Schedule:
    """The schedule without steps: every operation at root."""
    return Schedule(tuple(initial_stage(op) for op in dag.ops), dag.output_names)


@lru_cache(maxsize=1 << 13)
def factor_expr(f: Factor) -> Expr:
    """The expression of a factor: a constant or a hole variable."""
    return integer(f) if isinstance(f, int) else Var(f, "hole")


def axis_of(op: ComputeOp, name: str) -> Axis:
    """The axis of this name; ScheduleError if the operation has none."""
    for a in op.axes + op.reduce_axes:
        if a.name == name:
            return a
    known = ", ".join(a.name for a in op.axes + op.reduce_axes)
    raise ScheduleError(f"stage {op.name} has no axis {name} (it has: {known})")
