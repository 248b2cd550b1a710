"""Records against the space of their task: nothing that a log says is run.

In: a `SearchTask` and records of a log, which may be damaged, edited or of another version. Out:
candidates and programs that the rules, tables of options and masks of this process make, where a
record names one of them; ScheduleError, which says what does not fit, for all others. Steps are
compared and hole values are looked up, neither is executed, so what is compiled is what the search
itself could have asked for. Records name tensors and axes canonically (see `schedule.naming`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ansorlite.errors import AnsorliteError, ScheduleError
from ansorlite.ir.inside import verify_inside
from ansorlite.ir.program import Program, verify
from ansorlite.records import LogContents, Record, chosen, for_task
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.state import State
from ansorlite.search.history import Candidate
from ansorlite.search.searchers import template_sketches
from ansorlite.space.legality import legal
from ansorlite.space.plain import PLAIN, plain_state
from ansorlite.space.sketch import Sketch, SpaceOptions, sketch_of
from ansorlite.task import SearchTask

Found = Candidate | ScheduleError | None  # None: the plain schedule


class RecordedSpace:
    """All that records of a task may be of.

    `own` are the sketches that are known already; a record of one of them is a candidate of it.
    Others are made when a record asks for them: with `options`, or those that are usual, of this
    task's template, or by the rules without variants.
    """

    def __init__(
        self,
        task: SearchTask,
        own: Callable[[], Mapping[str, Sketch]] = dict,
        options: SpaceOptions | None = None,
    ) -> None:
        self.task, self._options = task, options
        self._make_own = own
        self._names = canonical_names(task.dag)
        self._by_steps: dict[int, tuple[Any, Sketch | None]] = {}  # by identity: they are shared
        # By identity: what records of this process are of
        self._of: dict[int, tuple[Record, Candidate]] = {}
        self._last: tuple[Record, tuple[Candidate | None, Program]] | None = None

    @cached_property
    def _own(self) -> dict[str, tuple[Sketch, tuple[dict[str, Any], ...]]]:
        """(sketch, its canonical steps) by its canonical name."""
        out = {}
        for s in self._make_own().values():
            steps = s.state.to_json()
            out[self._names.sketch(s.name, steps)] = s, self._names.frozen(steps)
        return out

    @cached_property
    def _plain(self) -> tuple[State, tuple[dict[str, Any], ...]]:
        state = plain_state(self.task.dag, self.task.target)
        return state, self._names.frozen(state.to_json())

    @cached_property
    def _templates(self) -> list[tuple[Sketch, tuple[dict[str, Any], ...]]]:
        try:
            found = template_sketches(self.task)
        except AnsorliteError:
            return []
        return [(s, self._names.frozen(s.state.to_json())) for s in found]

    def know(self, record: Record, candidate: Candidate) -> None:
        """A record is of this candidate, which is legal: the search itself asked for it."""
        self._of[id(record)] = record, candidate

    # ---- one record -----------------------------------------------------------------------------

    def candidate(self, record: Record) -> Candidate | None:
        """What a record is of, None for the plain schedule; ScheduleError if of nothing."""
        found = self.candidates([record])[0]
        if isinstance(found, ScheduleError):
            raise found
        return found

    def state(self, record: Record) -> State:
        """The complete state that a record describes; ScheduleError if it does not fit."""
        c = self.candidate(record)
        return self._plain[0] if c is None else c.sketch.state.fill(c.values)

    def program(self, record: Record) -> Program:
        """The verified program of a record; ScheduleError if it does not fit."""
        return self.verified(record)[1]

    def verified(self, record: Record) -> tuple[Candidate | None, Program]:
        """`candidate` and `program`; those of the last record are kept, as it is compiled next."""
        if self._last is None or self._last[0] is not record:
            c = self.candidate(record)
            if c is None:
                program = lower(self._plain[0])
            else:
                program = c.sketch.fill(np.asarray(c.row, np.int32))
                verify(program)
                verify_inside(program)
            self._last = record, (c, program)
        return self._last[1]

    def sketch_name(self, record: Record) -> str:
        """The name of a record's sketch in the task's own names; ScheduleError if it has none."""
        c = self.candidate(record)
        return PLAIN if c is None else c.sketch.name

    # ---- many -----------------------------------------------------------------------------------

    def candidates(self, records: Sequence[Record]) -> list[Found]:
        """What each is of: None for the plain schedule, the error for what fits nothing."""
        found: list[Found] = []
        rows: dict[int, list[int]] = {}  # places by sketch, to look at their legality at once
        for k, r in enumerate(records):
            try:
                c = self._named(r)
            except ScheduleError as error:
                found.append(error)
                continue
            found.append(c)
            if c is not None:
                rows.setdefault(id(c.sketch), []).append(k)
        for places in rows.values():
            several = [named for k in places if isinstance(named := found[k], Candidate)]
            for k, why in zip(places, self._illegal(several), strict=True):
                found[k] = found[k] if why is None else why
        return found

    def _named(self, record: Record) -> Candidate | None:
        """The candidate whose steps and values a record has, legal or not."""
        known, candidate = self._of.get(id(record), (None, None))
        if known is record:
            return candidate
        if record.sketch == PLAIN:
            if record.steps != self._plain[1] or record.holes:
                raise ScheduleError("its steps are not those of the plain schedule")
            return None
        sketch = self._sketch(record)
        if sketch is None:
            raise ScheduleError("its steps are those of no sketch of the task")
        names = {self._names.hole(h.name): h.name for h in sketch.holes}
        odd = sorted(names.keys() ^ record.holes.keys())
        if odd:
            what = "gives no values for" if odd[0] in names else "has values for"
            raise ScheduleError(f"it {what} hole {odd[0][:40]!r} of sketch {sketch.name}")
        row = sketch.row({own: tuple(record.holes[name]) for name, own in names.items()})
        return Candidate(sketch, tuple(int(v) for v in row))

    def _sketch(self, record: Record) -> Sketch | None:
        sketch, steps = self._own.get(record.sketch, (None, None))
        if sketch is not None and steps == record.steps:
            return sketch
        key = id(record.steps)
        if key not in self._by_steps:
            self._by_steps[key] = record.steps, self._look_for(record.steps)
        return self._by_steps[key][1]

    def _look_for(self, steps: tuple[Any, ...]) -> Sketch | None:
        for sketch, known in (*self._own.values(), *self._templates):
            if known == steps:
                return sketch
        return sketch_of(self.task.dag, self.task.target, steps, self._options)

    def _illegal(self, several: Sequence[Candidate]) -> list[ScheduleError | None]:
        """Of candidates of one sketch: why each must not be built, None where it may be."""
        sketch, n = several[0].sketch, len(several)
        rows = np.asarray([c.row for c in several], np.int32).reshape(n, len(sketch.holes))
        try:
            program = sketch.program
        except ScheduleError as error:
            return [error] * n
        good = legal(program, population_columns(sketch.holes, rows), n, self.task.target)
        return [
            None if ok else ScheduleError(f"its values are not legal together in {sketch.name}")
            for ok in good
        ]


@lru_cache(maxsize=16)
def _space(task: SearchTask) -> RecordedSpace:
    return RecordedSpace(task)


def record_program(task: SearchTask, record: Record) -> Program:
    """The program that a record describes; ScheduleError if the record does not fit the task."""
    return _space(task).program(record)


def record_state(task: SearchTask, record: Record) -> State:
    """The complete state that a record describes; ScheduleError if it does not fit the task."""
    return _space(task).state(record)


def record_sketch(task: SearchTask, record: Record) -> str:
    """The name of a record's sketch in the task's own names."""
    return _space(task).sketch_name(record)


def record_candidate(
    task: SearchTask, space: Mapping[str, Sketch], record: Record
) -> Candidate | None:
    """The candidate of a record, if its sketch and values are in the space (by name)."""
    return record_candidates(task, space, [record])[0]


def record_candidates(
    task: SearchTask, space: Mapping[str, Sketch], records: Sequence[Record]
) -> list[Candidate | None]:
    """The candidates of records; None for what is not in the space (by name)."""
    known = RecordedSpace(task, lambda: space).candidates(records)
    return [
        c if isinstance(c, Candidate) and space.get(c.sketch.name) is c.sketch else None
        for c in known
    ]


def best_of_log(
    contents: LogContents, task: SearchTask
) -> tuple[Record | None, list[tuple[Record, ScheduleError]]]:
    """What a run settled on, else the fastest record, among those that fit; and those that do not.

    Only records that are faster than the best, and choices, are looked at.
    """
    space = _space(task)
    key, target = task.workload_key, task.target.fingerprint
    refused: list[tuple[Record, ScheduleError]] = []

    def fits(record: Record) -> bool:
        error = next((e for r, e in refused if r is record), None)
        if error is None:
            try:
                space.program(record)
                return True
            except ScheduleError as found:
                refused.append((record, found))
        return False

    settled = chosen(contents, [key], target, fits)
    if settled is not None:
        return settled, refused
    ok = [r for r in for_task(contents.records, key, target) if r.ok]
    ranked = sorted(ok, key=lambda r: r.latency_s or 0.0)
    return next(filter(fits, ranked), None), refused
