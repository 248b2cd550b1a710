"""One task under tuning: rounds of ask, build, run, tell, with every result recorded.

In: a `SearchTask`, shared builder and runner, a policy. Out: records in the log and the best
program so far. The plain schedule is the first trial; a log's records count as trials, and an
interrupted round is finished by asking it again and measuring what is missing. Records name tensors
and axes canonically (see `schedule.naming`), so that a log serves the same task under other names.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from itertools import islice
from typing import TypeGuard

import numpy as np

import ansorlite
from ansorlite.codegen.build import BuildRequest, build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import BuildError, MeasureError, ScheduleError
from ansorlite.ir.program import Program
from ansorlite.measure.builder import BuildOutcome
from ansorlite.measure.race import LONE_TURNS, MIN_TURNS, race
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec
from ansorlite.records import Record, for_task
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.state import State
from ansorlite.search.history import Candidate
from ansorlite.search.policy import SearchPolicy
from ansorlite.search.recorded import Found, RecordedSpace
from ansorlite.search.reference import is_heavy, reduction_length, reference_state
from ansorlite.search.shared import Shared
from ansorlite.search.shrink_task import adapted, is_legal
from ansorlite.space.plain import PLAIN, plain_state
from ansorlite.space.sketch import Sketch, SpaceOptions
from ansorlite.task import SearchTask

CHECK_SEED = 20180
RACE_S = 5.0  # the longest race; slower contenders are told apart well enough by one run
RUN_S = 0.03  # what measuring a short kernel takes
SLOW_PLAIN_S = 1.0  # a plain schedule that takes longer is not run again to be timed


class TaskTuner:
    """The state of one task; `round` measures some more candidates."""

    def __init__(
        self,
        task: SearchTask,
        sketches: Sequence[Sketch] | Callable[[], Sequence[Sketch]],
        policy: SearchPolicy | Callable[[Sequence[Sketch]], SearchPolicy],
        shared: Shared,
        history: Sequence[Record] = (),
        plain: bool = True,
        options: SpaceOptions | None = None,
        answered: bool = False,
    ) -> None:
        """Sketches, and the policy on them, may be functions: they are called when first needed.

        The first round is the plain schedule alone, or, without `plain`, like all others. Records
        of other sketches count if `options` have them. Where the history has `answered` all,
        nothing of it is told to the policy, and a record is looked at when it is asked for.
        """
        self.task, self.shared = task, shared
        self._given = sketches, policy
        self._begins_plain = plain and task.meaning is None and not is_heavy(task)
        self.records: list[Record] = []
        self._images: dict[int, tuple[Record, KernelImage]] = {}  # by identity of the record
        self.rounds = 0
        self._plain = plain_state(task.dag, task.target)
        self._names = canonical_names(task.dag)
        self._prepared = False
        self._pending: dict[tuple[str, tuple[int, ...]], tuple[Candidate, Record]] = {}
        self.space = RecordedSpace(task, dict if answered else lambda: self._sketches, options)
        # By identity, as trials may have a number twice: (record, what it is of, whether its
        # program is known to be sound)
        self._fitting: dict[int, tuple[Record, Found, bool]] = {}
        self._suggested: list[Candidate] = []
        self._by_code: dict[Hashable, MeasureResult] = {}
        self._before = len(history)
        self.told: list[tuple[int, int]] = []  # number over all tasks, candidates told
        self._next_trial = 0
        self._resume(history, answered)
        self.resumed = len(self.records)  # trials that the log held

    # ---- what is known --------------------------------------------------------------------------

    @cached_property
    def _sketches(self) -> dict[str, Sketch]:
        given, _ = self._given
        with self.shared.clock.phase("search"):
            made = given() if callable(given) else given
        self.shared.trace.task(self.task, made)
        return {s.name: s for s in made}

    @cached_property
    def policy(self) -> SearchPolicy:
        _, given = self._given
        return given(self.sketches) if callable(given) else given

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
                self.shared.refused.append((r, str(found)))
                continue
            rounds.setdefault(r.round, []).append((r, found))
            self.records.append(r)
            self._fitting[id(r)] = r, found, False
            self.shared.counts[r.status] += 1
        ends_here = bool(history) and (history[-1].task, history[-1].target) == (key, target)
        for number in sorted(rounds):
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
        return (
            isinstance(found, Candidate) and self._sketches.get(found.sketch.name) is found.sketch
        )

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
        self.rounds = max(1, self.rounds)
        number = self.rounds
        with self.shared.clock.phase("search"):
            first, self._suggested = self._suggested[:n], self._suggested[n:]
            asked = {c.key: c for c in first}
            for c in self.policy.ask(n - len(asked), number) if len(asked) < n else ():
                asked.setdefault(c.key, c)
        known, self._pending = self._pending, {}
        missing = [c for c in asked.values() if c.key not in known]
        measured = self._measure(missing, number)
        records = {key: r for key, (_, r) in known.items()}
        records |= {c.key: r for c, r in zip(missing, measured, strict=False)}
        # The log may hold trials of this round that are not asked again (another round size).
        everyone = {key: c for key, (c, _) in known.items() if key not in asked} | asked
        told = [c for key, c in everyone.items() if key in records]
        if told:
            self._tell(told, [records[c.key] for c in told], self._before + self.shared.rounds)
            self.shared.rounds += 1
            self.rounds += 1
        found = [records[c.key] for c in told]
        self.shared.trace.round(self.task, number, [c.score for c in told], found)
        return len(told)

    def suggest(self, found: Sequence[Candidate], most: int | None = None) -> None:
        """Measure first what is nearest to these, which may be of a task of other extents.

        At most so many, the first that are not measured yet.
        """
        known = {c.key for r in self.records if (c := self._candidate(r)) is not None}
        known -= self._pending.keys()  # a torn round is to be asked as it was
        for c in found:
            if most is not None and len(self._suggested) >= most:
                break
            sketch = self._sketches.get(c.sketch.name)
            row = None if sketch is None else adapted(sketch, c.values)
            if sketch is None or row is None or not is_legal(sketch, row, self.task.target):
                continue
            near = Candidate(sketch, tuple(int(v) for v in row))
            if near.key not in known:
                known.add(near.key)
                self._suggested.append(near)
        self.policy.hint([c.sketch.name for c in self._suggested])

    def suggested(self) -> Program | None:
        """The program of what is to be measured first, if something was suggested."""
        first = next(iter(self._suggested), None)
        return None if first is None else first.sketch.fill(np.asarray(first.row, np.int32))

    def _tell(self, candidates: Sequence[Candidate], records: Sequence[Record], n: int) -> None:
        """The number of the round grows from one to the next, whatever their tasks."""
        self.policy.tell(list(candidates), [r.lowest_s for r in records])
        self.told.append((n, len(candidates)))

    def prepare(self) -> None:
        """Make inputs and the checked reference; MeasureError, BuildError where that fails."""
        if self._prepared:
            return
        with self.shared.clock.phase("building"):
            image = self._build_reference()
        task = self.task
        length = reduction_length(task.plain.dag)
        spec = CheckSpec(task.dag, CHECK_SEED, image, length, task.rtol, task.meaning)
        with self.shared.clock.phase("checking"):
            ready = self.shared.runner.prepare(self.task.workload_key, spec)
        if not ready.ok:
            raise MeasureError(
                f"the reference of task {self.task.name} cannot serve as one: {ready.error}"
            )
        self._reference, self._reference_s = image, ready.latency_s
        self._prepared = True

    def _build_reference(self) -> KernelImage:
        key = f"{self.task.workload_key}/{PLAIN}"
        self.shared.builder.share(key, lower(reference_state(self.task.plain)))
        outcome = self.shared.builder.build([BuildRequest(key, {}, self.task.target)])[0]
        self.shared.builder.unshare(key)
        if outcome.image is None:
            raise BuildError(
                f"the reference of task {self.task.name} does not build: {outcome.error}"
            )
        return outcome.image

    def _plain_round(self) -> int:
        """The plain schedule, which is the reference too, as the first trial."""
        self.prepare()
        once = self._reference_s
        if once is not None and once > SLOW_PLAIN_S:
            result = MeasureResult(Status.OK, once, (once,))
        else:
            result = self._run(self._reference)
        self._record(PLAIN, self._plain, {}, result, 0, self._reference)
        self.rounds = 1
        return 1

    def _measure(self, candidates: Sequence[Candidate], number: int) -> list[Record]:
        """Build all, then run one after the other; stops (with fewer records) at the deadline."""
        if not candidates:
            return []
        self.prepare()
        with self.shared.clock.phase("building"):
            outcomes = self._build(candidates)
        out: list[Record] = []
        for c, built in zip(candidates, outcomes, strict=True):
            if self.shared.deadline_s() <= 0:
                break
            result = built.as_result()
            if built.image is not None:
                result = replace(self._measured(built.image), build_s=built.build_s)
            r = self._record(
                c.sketch.name, c.sketch.state, c.values, result, number, built.image, c.score
            )
            self._fitting[id(r)] = r, c, True
            out.append(r)
        return out

    def again(self, candidates: Sequence[Candidate], times: int = 1) -> list[list[MeasureResult]]:
        """Build candidates and time all of them in turn, so many times; nothing is recorded.

        Results of each candidate; of one that does not build there is only that.
        """
        self.prepare()
        outcomes = self._build(candidates)
        found: list[list[MeasureResult]] = [[] for _ in outcomes]
        for _ in range(times):
            for o, results in zip(outcomes, found, strict=True):
                if o.image is not None:
                    results.append(self._run(o.image))
        return [r or [o.as_result()] for o, r in zip(outcomes, found, strict=True)]

    def _build(self, candidates: Sequence[Candidate]) -> list[BuildOutcome]:
        requests = []
        for c in candidates:
            key = f"{self.task.workload_key}/{c.sketch.name}"
            self.shared.builder.share(key, c.sketch.program)
            requests.append(BuildRequest(key, c.values, self.task.target))
        return self.shared.builder.build(requests)

    def _measured(self, image: KernelImage) -> MeasureResult:
        """Run a kernel, unless the same code was run before: rows may differ in nothing else."""
        # Hashes, as kernels of thousands of trials would take more memory than all else.
        code = sha256(image.object_bytes).digest(), hash((image.params, image.bound))
        known = self._by_code.get(code)
        if known is not None:
            return replace(known, run_s=0.0, check_s=0.0)
        result = self._run(image)
        if result.ok:
            self._by_code[code] = result
        return result

    def _run(self, image: KernelImage) -> MeasureResult:
        began = time.perf_counter()
        result = self.shared.runner.run(self.task.workload_key, image, self.best_latency_s)
        spent = time.perf_counter() - began
        self.shared.clock.add("checking", result.check_s)
        self.shared.clock.add("measuring", max(0.0, spent - result.check_s))
        return result

    def _record(
        self,
        sketch: str,
        state: State,
        values: Mapping[str, tuple[int, ...]],
        result: MeasureResult,
        number: int,
        image: KernelImage | None,
        score: float | None = None,
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
            trial=self._next_trial,
            seed=self.shared.seed,
            timestamp=time.time(),
            build_s=result.build_s,
            run_s=result.run_s,
            version=ansorlite.__version__,
        )
        self.shared.record(record)
        self.records.append(record)
        self._next_trial += 1
        self._fitting[id(record)] = record, None, True
        self.shared.counts[record.status] += 1
        if image is not None and record.ok:
            self._images[id(record)] = record, image
            self._drop_images()
        self.shared.trace.trial(self.task, record, sketch, values, state, score)
        return record

    def _drop_images(self, keep: int = 8) -> None:
        """Keep the object code of the best few only."""
        if len(self._images) > 4 * keep:
            ranked = sorted(self._images.values(), key=lambda kept: kept[0].lowest_s)
            self._images = {id(r): (r, image) for r, image in ranked[:keep]}

    def predicted(self) -> Program:
        """The best that the policy predicts; the plain schedule if it proposes nothing."""
        policy = self.policy
        with self.shared.clock.phase("search"):
            candidates = policy.guess(max(1, self.rounds))
        if not candidates:
            return lower(self._plain)
        return candidates[0].sketch.fill(np.asarray(candidates[0].row, dtype=np.int32))

    # ---- the end --------------------------------------------------------------------------------

    def contenders(self, n: int) -> list[Record]:
        """The n best records that still fit the task, best first; equal code only once."""
        found: dict[tuple[float | None, ...], Record] = {}
        # Equal code is measured once: its records share their times.
        for r in sorted((r for r in self.records if r.ok), key=lambda r: r.lowest_s):
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
        if any(r is record for r, _ in self.shared.refused):
            return False
        try:
            found, _ = self.space.verified(record)
        except ScheduleError as error:
            self.shared.refused.append((record, str(error)))
            self.records = [r for r in self.records if r is not record]
            return False
        self._fitting[id(record)] = (
            record,
            found,
            True,
        )
        return True

    def kept_image(self, record: Record) -> KernelImage | None:
        """Object code of a record that was measured in this run, if it was kept."""
        known, image = self._images.get(id(record), (None, None))
        return image if known is record else None

    def image(self, record: Record) -> KernelImage:
        """Object code of a record, built again if it was not kept."""
        kept = self.kept_image(record)
        return kept or build_program(self.space.program(record), self.task.target)

    def settle(self, n: int, most_s: float) -> tuple[Record, float] | None:
        """Race the n last contenders in turn: (winner, its latency in seconds)."""
        found = self.contenders(n)
        if not found:
            return None
        # Each runs a few times for the checks before the first turn.
        costs = [max(RUN_S, 3 * (r.latency_s or 0.0)) for r in found]
        left_s = self.shared.deadline_s()
        while len(found) > 2 and MIN_TURNS * sum(costs[: len(found)]) > min(RACE_S, left_s):
            found.pop()
        turn_s = sum(r.latency_s or 0.0 for r in found)
        budget_s = min(max(most_s, LONE_TURNS * turn_s), RACE_S, left_s - sum(costs[: len(found)]))
        if len(found) == 1 or budget_s < MIN_TURNS * turn_s:
            return found[0], float(found[0].latency_s or 0.0)
        self.prepare()
        images = [self.image(r) for r in found]
        with self.shared.clock.phase("measuring"):
            results = race(self.shared.runner, self.task.workload_key, images, budget_s)
        times = [r.latency_s if r.ok and r.latency_s else float("inf") for r in results]
        k = int(np.argmin(times))
        return (
            (found[k], times[k]) if np.isfinite(times[k]) else (found[0], found[0].latency_s or 0)
        )
