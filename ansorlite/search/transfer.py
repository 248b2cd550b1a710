"""Schedules of other tasks as first candidates: their best programs, with the nearest values.

Steps name operations, axes and holes canonically and hold no extents, so tasks that differ by
extents alone have equal steps. In: records of such tasks, of this run, of the log and of earlier
runs on this machine. Out: candidates of the task at hand, those of the task itself first.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError
from ansorlite.ir.program import Program
from ansorlite.records import Record, distill
from ansorlite.schedule.naming import canonical_names
from ansorlite.search.history import Candidate, Guess, Key
from ansorlite.search.kinship import Kinship, Named, Near, kinship
from ansorlite.search.shrink_task import adapted, first_legal
from ansorlite.search.tuner import TaskTuner
from ansorlite.space.sketch import Pattern, Sketch
from ansorlite.task import SearchTask

AT_FIRST = 0.5  # share of the first round
LATER = 2  # candidates of every other round
LOOKED_AT = 24  # programs of other tasks of earlier runs, the best of which are suggested


def transferred(
    task: SearchTask,
    space: Sequence[Sketch],
    records: Sequence[Record | Guess],
    n: int,
    own: bool = False,
) -> list[Candidate]:
    """At most n candidates, in the order of the records that they are made of.

    Records of the task itself are left out, or with `own` taken as well.
    """
    names = canonical_names(task.dag)
    # Records of other tasks are data: only values of known holes are taken.
    by_pattern = {s.pattern: s for s in reversed(space)}

    def rows() -> Iterator[tuple[Sketch, npt.NDArray[np.int32]]]:
        taken = set[Key]()
        for r in records:
            sketch = by_pattern.get(pattern(r.steps))
            if sketch is None or not r.ok or (r.task == task.workload_key and not own):
                continue
            values = {
                h.name: tuple(r.holes[name])
                for h in sketch.holes
                if (name := names.hole(h.name)) in r.holes
            }
            if any(h.kind in ("tile", "factor") and h.name not in values for h in sketch.holes):
                continue
            row = adapted(sketch, values)
            if (key := Candidate(sketch, tuple(int(v) for v in row)).key) not in taken:
                taken.add(key)
                yield sketch, row

    return list(first_legal(rows(), n, task.target))


def start_from_others(
    tuner: TaskTuner,
    other_tasks: Sequence[TaskTuner],
    history: Sequence[Record],
    n: int,
    known: "KnownPrograms | None" = None,
) -> None:
    """Suggest, before a round of n, the best programs of other tasks of this run.

    The first round has those of the log's tasks, too, and what is `known` of earlier runs: programs
    of the task itself before all others, those of other tasks where there are none, in the order of
    what the policy expects of them. Tasks of this run with nearly as many FLOP come first. Measured
    programs are not suggested again, so a later round has suggestions only when another task has a
    new best program.
    """
    if not tuner.sketches:
        return

    near = sorted((t for t in other_tasks if t is not tuner), key=lambda t: distance(t, tuner))
    here = {t.task.workload_key for t in (*near, tuner)}
    target = tuner.task.target.fingerprint
    logged = [r for r in history if r.target == target and r.task not in here]
    first = tuner.rounds <= 1
    records = [r for t in near if (r := t.best) is not None]
    if first:
        own = known.of(tuner.task) if known else ()
        tuner.suggest(transferred(tuner.task, tuner.sketches, own, len(own), own=True), n)
        records += distill(logged, 1)
    wanted = max(1, int(AT_FIRST * n)) if first else LATER
    if records:
        most = wanted if first else len(records)
        tuner.suggest(transferred(tuner.task, tuner.sketches, records, most), wanted)
    if first and known and not own:
        like = known.like(tuner.sketches)
        found = transferred(tuner.task, tuner.sketches, like, LOOKED_AT)
        tuner.suggest(tuner.best_first([(c, 0.0) for c in found]), wanted)


def distance(one: TaskTuner, other: TaskTuner) -> float:
    """How far two tasks are apart: log of the ratio of their FLOP."""
    return abs(math.log(max(one.task.flop, 1.0) / max(other.task.flop, 1.0)))


class KnownPrograms:
    """Records of earlier runs for one target, found by task, by kin and by structure.

    `kinships` are by workload key, of some of the records' tasks.
    """

    def __init__(
        self, records: Sequence[Record], kinships: Mapping[str, Kinship] | None = None
    ) -> None:
        self._records = records
        self._kinships = kinships or {}

    @cached_property
    def _by_task(self) -> dict[str, list[Record]]:
        out: dict[str, list[Record]] = {}
        for r in self._records:
            out.setdefault(r.task, []).append(r)
        return out

    @cached_property
    def _by_pattern(self) -> dict[Pattern, list[Record]]:
        out: dict[Pattern, list[Record]] = {}
        for own in self._by_task.values():
            out.setdefault(pattern(own[0].steps), []).append(own[0])
        return out

    def of(self, task: SearchTask) -> Sequence[Record]:
        """The fastest programs of the task itself."""
        return self._by_task.get(task.workload_key, ())

    @cached_property
    def _by_kin(self) -> dict[str, list[tuple[Kinship, list[Record]]]]:
        out: dict[str, list[tuple[Kinship, list[Record]]]] = {}
        for task, own in self._by_task.items():
            if (known := self._kinships.get(task)) is not None:
                out.setdefault(known.kin, []).append((known, own))
        return out

    @cached_property
    def _cores(self) -> dict[str, float]:
        """The latency of the fastest program of each core."""
        out: dict[str, float] = {}
        for known, own in (row for rows in self._by_kin.values() for row in rows):
            best_s = min(r.latency_s or math.inf for r in own)
            out[known.core] = min(best_s, out.get(known.core, math.inf))
        return out

    def latency_s(self, task: SearchTask) -> float | None:
        """Of the fastest program of the task, or of one that differs by what follows its sum."""
        own = self.of(task)
        if own:
            return min(r.latency_s or math.inf for r in own)
        return self._cores.get(kinship(task).core) if self._kinships else None

    def of_kin(self, task: SearchTask, n: int) -> tuple[list[Named], list[Near]]:
        """Programs of other tasks of its kin: those of the same extents, and n others.

        Of either, the fastest program of each task, those of the nearest tasks first.
        """
        if not self._kinships:
            return [], []
        mine = kinship(task)
        rows = sorted(self._by_kin.get(mine.kin, ()), key=lambda row: mine.distance(row[0]))
        best = [(k, min(own, key=lambda r: r.latency_s or math.inf)) for k, own in rows]
        same = [(k.roles, r) for k, r in best if k.core == mine.core]
        others = [(k, r) for k, r in best if k.core != mine.core][:n]
        return same, [Near(mine.distance(k), (k.roles, r)) for k, r in others]

    def like(self, space: Sequence[Sketch]) -> list[Record]:
        """The fastest program of each other task that has the steps of one of the sketches."""
        mine = dict.fromkeys(s.pattern for s in space)
        return [r for own in mine for r in self._by_pattern.get(own, ())]

    def program(self, tuner: TaskTuner) -> tuple[Program, Guess | None] | None:
        """The fastest program of a tuner's task, and what it is of; None without one."""
        for r in self.of(tuner.task):
            try:
                program = tuner.space.program(r)
            except ScheduleError:
                continue
            return program, Guess(r.task, r.steps, {k: list(v) for k, v in r.holes.items()})
        return None


def pattern(steps: Sequence[Any]) -> Pattern:
    """The steps of a record without annotations, as `Sketch.pattern` has them."""
    return tuple(
        json.dumps(s, sort_keys=True)
        for s in steps
        if not (isinstance(s, Mapping) and s.get("step") == "annotate")
    )
