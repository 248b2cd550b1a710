"""One task under tuning: rounds of ask, build, run, tell, with every result recorded.

In: a `SearchTask`, shared builder and runner, a policy. Out: records in the log and the best
program so far. The plain schedule is the first trial; a log's records count as trials, and an
interrupted round is finished by asking it again and measuring what is missing.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import ansorlite
from ansorlite.codegen.build import BuildRequest, build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import AnsorliteError, ScheduleError
from ansorlite.ir.expr import Const
from ansorlite.ir.program import Program
from ansorlite.measure.builder import Builder, BuildOutcome
from ansorlite.measure.race import race
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, Runner
from ansorlite.records import Record, for_task
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import complete_state
from ansorlite.search.clock import PhaseClock
from ansorlite.search.policy import Candidate, SearchPolicy
from ansorlite.space.plain import PLAIN, plain_state, with_double_sums
from ansorlite.space.sketch import Sketch
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

CHECK_SEED = 20180
RACE_HEATS = 3


@dataclass
class Shared:
    """What all tasks of one run use together."""

    builder: Builder
    runner: Runner
    clock: PhaseClock
    record: Callable[[Record], None]
    deadline_s: Callable[[], float]  # seconds left; inf without a budget
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)


def reduction_length(dag: ComputeDAG) -> int:
    """Terms of the longest chain of sums in the DAG, for the tolerance of checks."""
    length: dict[str, int] = {}
    for op in dag.computes:
        own = 1
        for a in op.reduce_axes:
            own *= int(a.extent.value) if isinstance(a.extent, Const) else 1
        before = [length.get(n, 1) for n in dag.graph.predecessors(op.name)]
        length[op.name] = max([own, *before])
    return max(length.values(), default=1)


def record_program(task: SearchTask, record: Record) -> Program:
    """Lower what a record describes; ScheduleError if its steps do not fit the task."""
    dag = with_double_sums(task.dag) if record.sketch == PLAIN else task.dag
    steps = [dict(s) for s in record.steps]
    return lower(complete_state(dag, steps, record.holes))


class TaskTuner:
    """The state of one task; `round` measures some more candidates."""

    def __init__(
        self,
        task: SearchTask,
        sketches: Sequence[Sketch],
        policy: SearchPolicy,
        shared: Shared,
        history: Sequence[Record] = (),
    ) -> None:
        self.task, self.policy, self.shared = task, policy, shared
        self._sketches = {s.name: s for s in sketches}
        self.records: list[Record] = []
        self.images: dict[int, KernelImage] = {}  # by trial
        self.rounds = 0
        self._plain = plain_state(task.dag, task.target)
        self._prepared = False
        self._pending: dict[tuple[str, tuple[int, ...]], Record] = {}
        self._resume(for_task(history, task.workload_key, task.target.fingerprint))

    # ---- what is known --------------------------------------------------------------------------

    @property
    def trials(self) -> int:
        return len(self.records)

    @property
    def best(self) -> Record | None:
        ok = [r for r in self.records if r.ok]
        return min(ok, key=lambda r: r.latency_s or 0.0, default=None)

    @property
    def best_latency_s(self) -> float | None:
        best = self.best
        return None if best is None else best.latency_s

    def _resume(self, history: Sequence[Record]) -> None:
        """Tell the policy all complete rounds; keep the last one open if it may be torn."""
        rounds: dict[int, list[Record]] = {}
        for r in history:
            rounds.setdefault(r.round, []).append(r)
            self.records.append(r)
            self.shared.counts[r.status] += 1
        for number in sorted(rounds):
            if number == 0:
                self.rounds = max(self.rounds, 1)
                continue
            found = [(c, r) for r in rounds[number] if (c := self._candidate(r)) is not None]
            if number == max(rounds):
                self._pending = {c.key: r for c, r in found}
                self.rounds = number
            elif found:
                self._tell([c for c, _ in found], [r for _, r in found])
                self.rounds = number + 1

    def _candidate(self, r: Record) -> Candidate | None:
        """The candidate of a record, if its sketch and values are still in the space."""
        sketch = self._sketches.get(r.sketch)
        if sketch is None:
            return None
        try:
            row = sketch.row({k: tuple(v) for k, v in r.holes.items()})
        except ScheduleError:
            return None
        return Candidate(sketch, tuple(int(v) for v in row))

    # ---- rounds ---------------------------------------------------------------------------------

    def round(self, n: int) -> int:
        """Measure up to n candidates more; the number that cost a trial now (0: none are left)."""
        if self.rounds == 0:
            return self._plain_round()
        number = self.rounds
        done, self._pending = self._pending, {}
        with self.shared.clock.phase("search"):
            candidates = self.policy.ask(n, number)
        if not candidates:
            return 0
        missing = [c for c in candidates if c.key not in done]
        told = [c for c in candidates if c.key in done]
        results = self._measure(missing, number)
        records = [done[c.key] for c in told] + results
        # A log may hold trials of this round that are not asked again (another batch size).
        asked = {c.key for c in candidates}
        for key, r in done.items():
            other = self._candidate(r)
            if key not in asked and other is not None:
                told.insert(0, other)
                records.insert(0, r)
        self._tell([*told, *missing][: len(records)], records)
        self.rounds += 1
        return len(results) or (1 if told else 0)

    def _tell(self, candidates: Sequence[Candidate], records: Sequence[Record]) -> None:
        latency = [r.latency_s if r.ok and r.latency_s else float("inf") for r in records]
        self.policy.tell(list(candidates), latency)

    def prepare(self) -> None:
        """Make inputs and the checked reference; AnsorliteError if the plain schedule fails."""
        if self._prepared:
            return
        with self.shared.clock.phase("building"):
            image = self._build_plain()
        spec = CheckSpec(self.task.dag, CHECK_SEED, image, reduction_length(self.task.dag))
        with self.shared.clock.phase("checking"):
            ready = self.shared.runner.prepare(self.task.workload_key, spec)
        if not ready.ok:
            raise AnsorliteError(
                f"the plain schedule of task {self.task.name} cannot serve as reference: "
                f"{ready.error}"
            )
        self._plain_image = image
        self._prepared = True

    def _build_plain(self) -> KernelImage:
        key = f"{self.task.workload_key}/{PLAIN}"
        self.shared.builder.share(key, lower(self._plain))
        outcome = self.shared.builder.build([BuildRequest(key, {}, self.task.target)])[0]
        self.shared.builder.unshare(key)
        if outcome.image is None:
            raise AnsorliteError(
                f"the plain schedule of task {self.task.name} does not build: {outcome.error}"
            )
        return outcome.image

    def _plain_round(self) -> int:
        self.prepare()
        result = self._run(self._plain_image)
        self._record(PLAIN, self._plain.to_json(), {}, result, 0, self._plain_image)
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
                result = replace(self._run(built.image), build_s=built.build_s)
            steps = c.sketch.state.to_json()
            out.append(self._record(c.sketch.name, steps, c.values, result, number, built.image))
        return out

    def _build(self, candidates: Sequence[Candidate]) -> list[BuildOutcome]:
        requests = []
        for c in candidates:
            key = f"{self.task.workload_key}/{c.sketch.name}"
            self.shared.builder.share(key, c.sketch.program)
            requests.append(BuildRequest(key, c.values, self.task.target))
        return self.shared.builder.build(requests)

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
        steps: list[dict[str, Any]],
        values: Mapping[str, tuple[int, ...]],
        result: MeasureResult,
        number: int,
        image: KernelImage | None,
    ) -> Record:
        record = Record(
            target=self.task.target.fingerprint,
            task=self.task.workload_key,
            task_name=self.task.name,
            sketch=sketch,
            steps=tuple(steps),
            holes={k: list(v) for k, v in values.items()},
            status=str(result.status),
            times_s=list(result.times_s),
            latency_s=result.latency_s if result.status is Status.OK else None,
            error=result.error,
            round=number,
            trial=len(self.records),
            seed=self.shared.seed,
            timestamp=time.time(),
            build_s=result.build_s,
            run_s=result.run_s,
            version=ansorlite.__version__,
        )
        self.shared.record(record)
        self.records.append(record)
        self.shared.counts[record.status] += 1
        if image is not None and record.ok:
            self.images[record.trial] = image
            self._drop_images()
        return record

    def _drop_images(self, keep: int = 8) -> None:
        """Keep the object code of the best few only."""
        if len(self.images) > 4 * keep:
            ranked = sorted(self.images, key=lambda t: self.records[t].latency_s or 0.0)
            self.images = {t: self.images[t] for t in ranked[:keep]}

    # ---- the end --------------------------------------------------------------------------------

    def contenders(self, n: int) -> list[Record]:
        """The n best records, best first."""
        ok = [r for r in self.records if r.ok]
        return sorted(ok, key=lambda r: r.latency_s or 0.0)[:n]

    def image(self, record: Record) -> KernelImage:
        """Object code of a record, built again if it was not kept."""
        for k, r in enumerate(self.records):
            if r is record and k in self.images:
                return self.images[k]
        return build_program(record_program(self.task, record), self.task.target)

    def settle(self, n: int = 3) -> tuple[Record, float] | None:
        """Race the last contenders in turn: (winner, its latency in seconds)."""
        found = self.contenders(n)
        if not found:
            return None
        if len(found) == 1 or self.shared.deadline_s() <= 0:
            return found[0], float(found[0].latency_s or 0.0)
        self.prepare()
        images = [self.image(r) for r in found]
        with self.shared.clock.phase("measuring"):
            results = race(self.shared.runner, self.task.workload_key, images, heats=RACE_HEATS)
        times = [r.latency_s if r.ok and r.latency_s else float("inf") for r in results]
        k = int(np.argmin(times))
        return (
            (found[k], times[k]) if np.isfinite(times[k]) else (found[0], found[0].latency_s or 0)
        )
