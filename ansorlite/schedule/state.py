"""A `State`: a DAG, the transform steps applied to the DAG, and the holes still open in the steps.

In: a ComputeDAG. Out: `schedule` (the steps replayed), `fill` (holes replaced by numbers), and a
JSON form. A sketch is a state with holes; a complete program has a state without holes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from ansorlite.errors import ScheduleError
from ansorlite.schedule.holes import Hole, column_values
from ansorlite.schedule.stage import Factor, Schedule, initial_schedule
from ansorlite.schedule.steps import Step, step_from_json, step_to_json
from ansorlite.te.dag import ComputeDAG


@dataclass(frozen=True)
class State:
    """A DAG, transform steps, and open holes in the order in which they were opened; frozen.

    Example: `State(dag).apply(Split("C", "i", (8,)), Annotate("C", "i.1", "lanes", 8))`.
    """

    dag: ComputeDAG
    steps: tuple[Step, ...] = ()
    holes: tuple[Hole, ...] = ()

    def apply(self, *steps: Step) -> "State":
        """The state with `steps` appended; ScheduleError if a step is illegal here."""
        schedule = self.schedule
        for step in steps:
            schedule = step.apply(schedule)
        new = State(self.dag, (*self.steps, *steps), self.holes)
        new.__dict__["schedule"] = schedule
        return new

    def open(self, *holes: Hole) -> "State":
        """The state with `holes` added; ScheduleError if a known name comes with other options."""
        known = {h.name: h for h in self.holes}
        fresh = []
        for h in holes:
            if h.name in known and known[h.name] != h:
                raise ScheduleError(f"hole {h.name} is opened twice with different options")
            if h.name not in known:
                fresh.append(h)
        new = State(self.dag, self.steps, (*self.holes, *fresh))
        if "schedule" in self.__dict__:
            new.__dict__["schedule"] = self.__dict__["schedule"]
        return new

    @cached_property
    def schedule(self) -> Schedule:
        """The stages after all steps."""
        s = initial_schedule(self.dag)
        for step in self.steps:
            s = step.apply(s)
        return s

    def fill(self, values: Mapping[str, tuple[int, ...]]) -> "State":
        """The complete state for values by hole name.

        Raises ScheduleError if a hole has no values or the wrong number of values.
        """
        for h in self.holes:
            if h.name not in values:
                raise ScheduleError(f"no values are given for hole {h.name}")
            if len(values[h.name]) != h.width:
                raise ScheduleError(f"hole {h.name} takes {h.width} values, got {values[h.name]}")
        columns = column_values(values)
        return State(self.dag, tuple(_fill_step(s, columns) for s in self.steps))

    def to_json(self) -> list[dict[str, Any]]:
        """The steps as JSON values, see `schedule.steps.step_to_json`."""
        return [step_to_json(s) for s in self.steps]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps)) + "\n"


def complete_state(
    dag: ComputeDAG, steps: Sequence[Mapping[str, Any]], values: Mapping[str, Sequence[int]]
) -> State:
    """The complete state of recorded steps and hole values.

    Raises ScheduleError if a step is unknown or uses a hole without values.
    """
    columns = column_values({k: tuple(v) for k, v in values.items()})
    return State(dag, tuple(_fill_step(step_from_json(dict(s)), columns) for s in steps))


def state_from_json(
    dag: ComputeDAG, steps: list[dict[str, Any]], holes: tuple[Hole, ...] = ()
) -> State:
    """The state of recorded steps; `holes` are required only if the steps refer to holes."""
    return State(dag, tuple(step_from_json(s) for s in steps), holes)


def _fill_step(step: Step, columns: Mapping[str, int]) -> Step:
    """The step with hole variables replaced by numbers."""
    changed: dict[str, Any] = {}
    for f in fields(step):
        value = getattr(step, f.name)
        if f.name in ("factors", "factor", "value"):
            parts = value if isinstance(value, tuple) else (value,)
            filled = tuple(_fill_factor(p, columns) for p in parts)
            changed[f.name] = filled if isinstance(value, tuple) else filled[0]
    return replace(step, **changed) if changed else step


def _fill_factor(f: Factor, columns: Mapping[str, int]) -> Factor:
    """The number of a factor, of a hole column, or of `column>n` (1 if the column exceeds n)."""
    if isinstance(f, int):
        return f
    name, _, depth = f.partition(">")
    if name not in columns:
        raise ScheduleError(f"no value is given for {name}")
    value = columns[name]
    return int(value > int(depth)) if depth else value
