"""One task under tuning: rounds of ask, build, run, tell, with every result recorded.

In: a `SearchTask`, a policy and the `Run` of all tasks. Out: records in the log and the best
program so far. The plain schedule is the first trial; a log's records count as trials, and an
interrupted round is finished by asking for it again and measuring the missing candidates. Records
name tensors and axes canonically (see `schedule.naming`), so a log serves the task under any names.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

import ansorlite
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import ScheduleError
from ansorlite.ir.program import Program
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.records import Record, for_task
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.state import State
from ansorlite.search.ahead import Batch
from ansorlite.search.alike import SketchesAlike
from ansorlite.search.history import Candidate, Guess, Key
from ansorlite.search.measuring import SLOW_PLAIN_S, TaskMeasuring
from ansorlite.search.policy import SearchPolicy
from ansorlite.search.recorded import Found, RecordedSpace
from ansorlite.search.reference import is_heavy
from ansorlite.search.run import Run
from ansorlite.search.shrink_task import adapted, first_legal
from ansorlite.space.plain import PLAIN, plain_state
from ansorlite.space.sketch import Pattern, Sketch, SpaceOptions
from ansorlite.task import SearchTask


@dataclass
class Round:
    """A round that was asked: what the log holds of it, what is missing, its builds if begun."""

    number: int
    asked: dict[Key, Candidate]
    known: dict[Key, tuple[Candidate, Record]]
    missing: list[Candidate]
    batch: Batch | None = None


class TaskTuner:
    """The state of one task; `round` measures some more candidates."""

    def __init__(
        self,
        task: SearchTask,
        sketches: Callable[[], Sequence[Sketch]],
        policy: Callable[[Sequence[Sketch]], SearchPolicy],
        run: Run,
        *,
        plain: bool = True,
        options: SpaceOptions | None = None,
        answered: bool = False,
    ) -> None:
        """`sketches`, and `policy` with them, are called when they are first needed.

        The first round is the plain schedule alone, or, without `plain`, like all others. Records
        of other sketches count if `options` have them. Where the history has `answered` all,
        nothing of it is told to the policy, and a record is looked at when it is asked for.
        """
        self.task, self.run = task, run
        self.measuring = TaskMeasuring(task, run.measuring)
        history = run.store.history
        self._make_sketches, self._make_policy = sketches, policy
        self._begins_plain = plain and task.meaning is None and not is_heavy(task)
        self.records: list[Record] = []
        self.rounds = 0
        self._names = canonical_names(task.dag)
        self._pending: dict[tuple[str, tuple[int, ...]], tuple[Candidate, Record]] = {}
        self._alike = SketchesAlike(task, options)  # made before the space, which then holds them
        self._space: dict[str, Sketch] | None = None  # the whole of it, once it is needed
        self.space = RecordedSpace(task, dict if answered else lambda: self._sketches, options)
        # By identity, as trials may have a number twice: (record, what it is of, whether its
        # program is known to be sound)
        self._fitting: dict[int, tuple[Record, Found, bool]] = {}
        self._suggested: list[Candidate] = []
        self._seen: dict[int, Record] = {}  # of other tasks, by identity
        self.has_searched = False  # did the policy propose anything?
        self._begun: Round | None = None  # the last round whose builds were begun
        self._before = len(history)
        self.told: list[tuple[int, int]] = []  # number over all tasks, candidates told
        self._next_trial = 0
        self._resume(history, answered)
        self.resumed = len(self.records)  # trials that the log held

    # ---- what is known --------------------------------------------------------------------------

    @cached_property
    def _plain(self) -> State:
        return plain_state(self.task.dag, self.task.target)

    @property
    def _sketches(self) -> dict[str, Sketch]:
        """The whole space, which the policy searches from now on."""
        if self._space is None:
            with self.run.measuring.clock.phase("search"):
                made = self._make_sketches()
            self.run.trace.task(self.task, made)
            steps = {s.state.steps for s in self._alike.all}
            more = [s for s in made if s.state.steps not in steps]
            self._space = {s.name: s for s in (*self._alike.all, *more)}
            if self.has_begun:
                self.policy.widen(more)
        return self._space

    def widen(self) -> None:
        """Search the whole space from now on, not only the sketches that kin have."""
        _ = self._sketches

    @property
    def _known(self) -> Mapping[str, Sketch]:
        """The space; those sketches that were made before it, as long as it is not needed."""
        if self._space is None and self._alike:
            return {s.name: s for s in self._alike.all}
        return self._sketches

    @cached_property
    def policy(self) -> SearchPolicy:
        return self._make_policy(tuple(self._known.values()))

    def alike(self, patterns: Sequence[Pattern]) -> Sequence[Sketch]:
        """Sketches with these patterns, as far as the task has them, or the whole space if made.

        They take a fraction of the time of the space.
        """
        if self._space is not None:
            return self.sketches
        with self.run.measuring.clock.phase("search"):
            found = self._alike.of(patterns)
        if self.has_begun:
            self.policy.widen(found)
        return found

    def suggest_of(self, patterns: Sequence[Pattern], n: int) -> int:
        """Suggest the best n candidates of the sketches with these patterns; how many there are."""
        if not self.alike(patterns):
            return 0
        policy = self.policy
        with self.run.measuring.clock.phase("search"):
            found = policy.ask(n, 1)
        self.suggest(found, n)
        return min(n, self.n_suggested)

    def best_first(self, found: Sequence[tuple[Candidate, float]]) -> list[Candidate]:
        """Candidates in the order of what the policy expects, if it has scores.

        To the score of each a number of one's own is added.
        """
        candidates = [c for c, _ in found]
        if len(found) < 2:
            return candidates
        policy = self.policy
        with self.run.measuring.clock.phase("search"):
            scores = np.add(policy.scores_of(candidates), [own for _, own in found])
        return [candidates[int(k)] for k in np.argsort(-scores, kind="stable")]

    @property
    def has_begun(self) -> bool:
        """Has the search of this task been needed yet?"""
        return "policy" in self.__dict__

    @property
    def trials(self) -> int:
        return len(self.records)

    @property
    def sketches(self) -> tuple[Sketch, ...]:
        """The space of the task."""
        return tuple(self._sketches.values())

    @property
    def best(self) -> Record | None:
        while True:
            ok = [r for r in self.records if r.ok]
            found = min(ok, key=lambda r: r.latency_s or 0.0, default=None)
            if found is None or self.fits(found):  # what does not fit is no record any more
                return found

    @property
    def has_image(self) -> bool:
        """Is the object code of the best program at hand, so that nothing remains to be built?"""
        best = self.best
        if best is None:
            return self.measuring.has_reference
        return self.measuring.kept_image(best) is not None

    @property
    def best_latency_s(self) -> float | None:
        best = self.best
        return None if best is None else best.latency_s

    @property
    def pending(self) -> int:
        """Trials in the log that belong to the round that comes next."""
        return len(self._pending)

    @property
    def rounds_told(self) -> list[list[Record]]:
        """Records of the complete rounds after the plain one, in order."""
        rounds: dict[int, list[Record]] = {}
        for r in self.records:
            rounds.setdefault(r.round, []).append(r)
        return [rounds[k] for k in sorted(rounds) if 0 < k < self.rounds]

    def _resume(self, history: Sequence[Record], answered: bool) -> None:
        """Tell the policy all complete rounds; keep the last one open if it may be torn.

        Rounds come one after the other, so only the one that a log ends with can be torn.
        """
        key, target = self.task.workload_key, self.task.target.fingerprint
        own = for_task(history, key, target)
        self._next_trial = 1 + max((r.trial for r in own), default=-1)
        if answered:
            self.records.extend(own)
            return
        rounds: dict[int, list[tuple[Record, Found]]] = {}
        place = {id(r): n for n, r in enumerate(history)}
        for r, found in zip(own, self.space.candidates(own), strict=True):
            if isinstance(found, ScheduleError):
                self.run.store.refused.append((r, str(found)))
                continue
            rounds.setdefault(r.round, []).append((r, found))
            self.records.append(r)
            self._fitting[id(r)] = r, found, False
            self.run.counts[r.status] += 1
        ends_here = bool(history) and (history[-1].task, history[-1].target) == (key, target)
        for number in sorted(rounds):
            rounds[number].sort(key=lambda known: known[0].trial)  # devices end in any order
            known = [(c, r) for r, c in rounds[number] if self._is_own(c)]
            self.rounds = number + 1
            if number > 0 and number == max(rounds) and ends_here:
                self._pending = {c.key: (c, r) for c, r in known}
                self.rounds = number
            elif known:
                last = max(place[id(r)] for r, _ in rounds[number])
                self._tell([c for c, _ in known], [r for _, r in known], last)

    def _is_own(self, found: Found) -> TypeGuard[Candidate]:
        """Is that a candidate of the sketches that are searched?"""
        return isinstance(found, Candidate) and self._known.get(found.sketch.name) is found.sketch

    def _candidate(self, r: Record) -> Candidate | None:
        known, found, _ = self._fitting.get(id(r), (None, None, False))
        if known is not r:
            (found,) = self.space.candidates([r])
        return found if self._is_own(found) else None

    # ---- rounds ---------------------------------------------------------------------------------

    def round(self, n: int) -> int:
        """Measure a round of n candidates, those of it that the log holds included.

        Returns how many trials the round has; 0 if no candidate, or no time, is left.
        """
        if self.rounds == 0 and self._begins_plain:
            return self._plain_round()
        return self.end(self.asked(n))

    def asked(self, n: int) -> Round:
        """The next round, of n candidates, none of which is built or measured yet."""
        self.rounds = max(1, self.rounds)
        number = self.rounds
        with self.run.measuring.clock.phase("search"):
            first, self._suggested = self._suggested[:n], self._suggested[n:]
            asked = {c.key: c for c in first}
        if len(asked) < n:
            self._ask(asked, n, number)
            if len(asked) < n and self._space is None:  # nothing is left of what kin have
                self.widen()
                self._ask(asked, n, number)
        known, self._pending = self._pending, {}
        missing = [c for c in asked.values() if c.key not in known]
        return Round(number, asked, known, missing)

    def _ask(self, asked: dict[Key, Candidate], n: int, number: int) -> None:
        """Ask the policy for what is missing of n candidates."""
        policy, self.has_searched = self.policy, True
        with self.run.measuring.clock.phase("search"):
            for c in policy.ask(n - len(asked), number):
                asked.setdefault(c.key, c)

    def begin(self, round_: Round) -> None:
        """Have what is missing of a round built in the background."""
        if round_.missing:
            round_.batch = self.measuring.begin(round_.missing)
            self._begun = round_

    @property
    def built(self) -> tuple[Candidate, KernelImage] | None:
        """The first candidate that is built by now, of a task that nothing was measured of."""
        begun = self._begun
        if begun is None or begun.batch is None or any(r.round for r in self.records):
            return None
        images = ((c, begun.batch.image(k)) for k, c in enumerate(begun.missing))
        return next(((c, image) for c, image in images if image is not None), None)

    def end(self, round_: Round) -> int:
        """Measure what is missing of a round and tell all of it; returns its trials."""
        asked, known = round_.asked, round_.known
        records = {key: r for key, (_, r) in known.items()}
        records |= self._measure(round_, self._trial_numbers(list(asked), records))
        # The log may hold trials of this round that are not asked again (another round size).
        everyone = {key: c for key, (c, _) in known.items() if key not in asked} | asked
        told = [c for key, c in everyone.items() if key in records]
        if told:
            self._tell(told, [records[c.key] for c in told], self._before + self.run.rounds)
            self.run.rounds += 1
            self.rounds += 1
        found = [records[c.key] for c in told]
        self.run.trace.round(self.task, round_.number, [c.score for c in told], found)
        return len(told)

    def suggest(self, found: Sequence[Candidate], most: int | None = None) -> None:
        """Measure first what is nearest to these, which may be of a task of other extents.

        At most so many, the first that are not measured yet.
        """
        if not found:  # what is known needs the space, which may not have been made yet
            return
        known = {c.key for r in self.records if (c := self._candidate(r)) is not None}
        known -= self._pending.keys()  # a torn round is to be asked as it was
        if self._alike:
            known |= {c.key for c in self._suggested}

        def near() -> Iterator[tuple[Sketch, npt.NDArray[np.int32]]]:
            for c in found:
                sketch = self._known.get(c.sketch.name)
                if sketch is None:
                    continue
                row = adapted(sketch, c.values)
                if (key := Candidate(sketch, tuple(int(v) for v in row)).key) not in known:
                    known.add(key)
                    yield sketch, row

        room = len(found) if most is None else most - len(self._suggested)
        self._suggested.extend(first_legal(near(), room, self.task.target))
        self.policy.hint([c.sketch.name for c in self._suggested])

    def sees(self, record: Record) -> bool:
        """Is that record of another task new to this one? From now on it is not."""
        new = id(record) not in self._seen
        self._seen[id(record)] = record  # which keeps its identity
        return new

    @property
    def n_suggested(self) -> int:
        """Candidates that wait to be measured first."""
        return len(self._suggested)

    def suggested(self) -> Program | None:
        """The program of what is to be measured first, if something was suggested."""
        first = next(iter(self._suggested), None)
        return None if first is None else first.sketch.fill(np.asarray(first.row, np.int32))

    def _tell(self, candidates: Sequence[Candidate], records: Sequence[Record], n: int) -> None:
        """The number of the round grows from one to the next, whatever their tasks."""
        self.policy.tell(candidates, [r.lowest_s for r in records])
        self.told.append((n, len(candidates)))

    def plain_round(self) -> None:
        """The plain schedule as the first trial, timed by the run that its checks take."""
        if self._lacks_plain:
            self._plain_round(0.0)

    def begin_plain_round(self) -> None:
        """Build and check the plain schedule in the background, if the first round needs it."""
        if self._lacks_plain:
            self.measuring.begin_prepare()

    @property
    def _lacks_plain(self) -> bool:
        return self._begins_plain and not any(r.round == 0 for r in self.records)

    def _plain_round(self, slow_s: float = SLOW_PLAIN_S) -> int:
        """The plain schedule, which is the reference too, as the first trial."""
        result, image = self.measuring.reference(self.best_latency_s, slow_s)
        self._record(PLAIN, self._plain, {}, result, 0, image)
        self.rounds = max(1, self.rounds)
        return 1

    def _trial_numbers(self, asked: Sequence[Key], known: Mapping[Key, Record]) -> dict[Key, int]:
        """The number of the trial of each candidate of a round that is not known yet.

        Numbers follow the order in which candidates were asked, whatever the order of results, so
        that a log tells it. In a round that was torn, missing candidates have the numbers that
        known ones leave free.
        """
        begins = {known[key].trial - n for n, key in enumerate(asked) if key in known}
        first = begins.pop() if len(begins) == 1 else None
        taken = {r.trial for r in self.records}
        numbers: dict[Key, int] = {}
        free = self._next_trial
        for n, key in enumerate(asked):
            if key in known:
                continue
            if first is not None and first + n not in taken:
                numbers[key] = first + n
            else:
                numbers[key] = free
            taken.add(numbers[key])
            free = max(free, numbers[key] + 1)
        return numbers

    def _measure(self, round_: Round, trials: Mapping[Key, int]) -> dict[Key, Record]:
        """Build all, then run them; ends (with fewer records) at the deadline. Records by key."""
        candidates, number = round_.missing, round_.number
        if not candidates:
            return {}
        out: dict[Key, Record] = {}
        built, budget = self.measuring.built(candidates, round_.batch), self.run.budget
        results = self.measuring.measure_all(
            built, lambda: self.best_latency_s, lambda: budget.search_left_s() > 0
        )
        with closing(results):
            for k, result in results:
                c = candidates[k]
                r = self._record(
                    c.sketch.name,
                    c.sketch.state,
                    c.values,
                    result,
                    number,
                    built[k].image,
                    c.score,
                    trials[c.key],
                )
                self._fitting[id(r)] = r, c, True
                self.space.know(r, c)
                out[c.key] = r
        return out

    def again(self, candidates: Sequence[Candidate], times: int = 1) -> list[list[MeasureResult]]:
        """Build candidates and time all of them in turn, so many times; nothing is recorded."""
        return self.measuring.again(candidates, times, self.best_latency_s)

    def _record(
        self,
        sketch: str,
        state: State,
        values: Mapping[str, tuple[int, ...]],
        result: MeasureResult,
        number: int,
        image: KernelImage | None,
        score: float | None = None,
        trial: int | None = None,
    ) -> Record:
        steps = state.to_json()
        record = Record(
            target=self.task.target.fingerprint,
            task=self.task.workload_key,
            task_name=self.task.name,
            sketch=self._names.sketch(sketch, steps),
            steps=tuple(self._names.steps(steps)),
            holes=self._names.holes(values),
            status=str(result.status),
            times_s=list(result.times_s),
            latency_s=result.latency_s if result.status is Status.OK else None,
            error=result.error,
            round=number,
            trial=self._next_trial if trial is None else trial,
            seed=self.run.seed,
            timestamp=time.time(),
            build_s=result.build_s,
            run_s=result.run_s,
            version=ansorlite.__version__,
            device=result.device,
        )
        self.run.store.append(record)
        self.records.append(record)
        self._next_trial = max(self._next_trial, record.trial + 1)
        self._fitting[id(record)] = record, None, True
        self.run.counts[record.status] += 1
        if image is not None and record.ok:
            self.measuring.keep(record, image)
        self.run.trace.trial(self.task, record, sketch, values, state, score)
        return record

    def predicted(self) -> Program:
        """The best that the policy predicts; the plain schedule if it proposes nothing."""
        return self.guessed()[0]

    def guessed(self) -> tuple[Program, Guess | None]:
        """`predicted`, and in a record's words what it is of; None for the plain schedule."""
        policy = self.policy
        with self.run.measuring.clock.phase("search"):
            candidates = policy.guess(max(1, self.rounds))
        if not candidates:
            return lower(self._plain), None
        return self.program(candidates[0])

    def program(self, c: Candidate) -> tuple[Program, Guess]:
        """The program of a candidate, and in a record's words what it is of."""
        steps = tuple(self._names.steps(c.sketch.state.to_json()))
        guess = Guess(self.task.workload_key, steps, self._names.holes(c.values))
        return c.sketch.fill(np.asarray(c.row, dtype=np.int32)), guess

    # ---- the end --------------------------------------------------------------------------------

    def contenders(self, n: int, records: Sequence[Record] | None = None) -> list[Record]:
        """The n best `records` (by default all) that fit the task, best first; equal code once."""
        found: dict[tuple[float | None, ...], Record] = {}
        known = self.records if records is None else records
        # Equal code is measured once: its records share their times.
        for r in sorted((r for r in known if r.ok), key=lambda r: r.lowest_s):
            if len(found) < n and (r.latency_s, *r.times_s) not in found and self.fits(r):
                found[r.latency_s, *r.times_s] = r
        return list(found.values())

    def fastest(self, n: int) -> list[Candidate]:
        """The n best measured candidates that are in the space, best first."""
        ok = sorted((r for r in self.records if r.ok), key=lambda r: r.lowest_s)
        return list(islice((c for r in ok if (c := self._candidate(r)) is not None), n))

    def fits(self, record: Record) -> bool:
        """Can the record's program be made (a log may be damaged, or come from another version)?

        A record that does not fit is dropped, and told of.
        """
        known, _, sound = self._fitting.get(id(record), (None, None, False))
        if known is record and sound:
            return True
        if any(r is record for r, _ in self.run.store.refused):
            return False
        try:
            found, _ = self.space.verified(record)
        except ScheduleError as error:
            self.run.store.refused.append((record, str(error)))
            self.records = [r for r in self.records if r is not record]
            return False
        self._fitting[id(record)] = (
            record,
            found,
            True,
        )
        return True

    def settle(
        self, n: int, most_s: float, records: Sequence[Record] | None = None
    ) -> tuple[Record, float] | None:
        """The winner of the n best `records` (by default all) and its seconds; None without any.

        The race takes about `most_s` seconds (see `TaskMeasuring.race`).
        """
        left_s = self.run.budget.search_left_s()
        return self.measuring.race(self.contenders(n, records), self.space, most_s, left_s)
