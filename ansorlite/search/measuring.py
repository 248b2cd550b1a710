"""Building, checking, timing and racing candidates of a task.

In: a builder and a runner, then candidates of one task. Out: `MeasureResult`s and object code. The
first use of a task makes its inputs and its reference, the output of the plain schedule, which
every other output is compared with. Equal object code runs once.
"""

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Protocol

import numpy as np

from ansorlite.codegen.build import BuildRequest
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.object_cache import compiled
from ansorlite.errors import BuildError, MachineError, MeasureError
from ansorlite.ir.program import Program
from ansorlite.measure.builder import Builder, BuildOutcome, PoolBuilder
from ansorlite.measure.race import LONE_TURNS, MIN_TURNS, race
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, Runner, SideBySide
from ansorlite.records import Record
from ansorlite.schedule.lower import lower
from ansorlite.search.ahead import Batch, BuildsAhead
from ansorlite.search.clock import PhaseClock
from ansorlite.search.history import Candidate
from ansorlite.search.prepares import PreparesAhead
from ansorlite.search.reference import reduction_length, reference_state
from ansorlite.space.plain import PLAIN
from ansorlite.task import SearchTask

CHECK_SEED = 20180
RACE_S = 5.0  # the longest race; slower contenders are told apart well enough by one run
RUN_S = 0.03  # time of measuring a short kernel
SLOW_PLAIN_S = 1.0  # a plain schedule that takes longer is not run again to be timed
KEPT_IMAGES = 8  # of the fastest programs of a task


@dataclass(frozen=True)
class Measuring:
    """The processes that build and run programs for all tasks of a run, and the run's clock."""

    builder: Builder
    runner: Runner
    clock: PhaseClock
    # Of plain computations by workload key: all forms of one are checked against one reference.
    references: dict[str, Batch] = field(default_factory=dict)

    @cached_property
    def builds(self) -> BuildsAhead:
        """The builder, which may go on in the background."""
        ahead = BuildsAhead(self.builder)
        self.clock.count_beside(ahead.built_s)
        return ahead

    @cached_property
    def prepares(self) -> PreparesAhead:
        """The runner, which may prepare tasks in the background."""
        return PreparesAhead(self.runner)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The machine for the body alone: builders stand still, the runner prepares nothing.

        The runner is not stopped amid a task: the reference that it runs is timed.
        """
        with self.prepares.held():
            if not isinstance(self.builder, PoolBuilder):
                yield
                return
            self.builder.pause()
            try:
                yield
            finally:
                self.builder.resume()

    def forget(self) -> None:
        """Leave out what is not built yet; a reference is built again when it is needed."""
        self.builds.forget()
        for key, begun in list(self.references.items()):
            if begun.is_lost:
                del self.references[key]

    def close(self) -> None:
        """Give up what goes on in the background."""
        self.builds.close()
        self.prepares.close()


def _code(built: BuildOutcome) -> Hashable:
    """Equal for equal code. Hashes: kernels of thousands of trials would take much memory."""
    assert built.image is not None
    image = built.image
    return sha256(image.object_bytes).digest(), hash((image.params, image.bound))


class ProgramSource(Protocol):
    """Makes the program of a record (see `search.recorded.RecordedSpace`)."""

    def program(self, record: Record) -> Program: ...


class TaskMeasuring:
    """Measuring for one task."""

    def __init__(self, task: SearchTask, measuring: Measuring) -> None:
        self.task = task
        self._builds, self._prepares = measuring.builds, measuring.prepares
        self._clock, self._references = measuring.clock, measuring.references
        self._reference: KernelImage | None = None
        self._reference_s: float | None = None
        self._by_code: dict[Hashable, MeasureResult] = {}
        self._images: dict[int, tuple[Record, KernelImage]] = {}  # by identity of the record

    # ---- the reference --------------------------------------------------------------------------

    def prepare(self) -> KernelImage:
        """Make inputs and the checked reference, once; MeasureError, BuildError where that fails.

        Returns the object code of the reference.
        """
        if self._reference is not None:
            return self._reference
        with self._clock.phase("building"):
            image = self._build_reference()
        with self._clock.phase("checking"):
            ready = self._prepares.ready(self.task.workload_key, self._spec(image))
        if not ready.ok:
            name = self.task.name
            raise MeasureError(f"the reference of task {name} cannot serve: {ready.error}")
        self._reference, self._reference_s = image, ready.latency_s
        return image

    def _spec(self, image: KernelImage) -> CheckSpec:
        task = self.task
        length = reduction_length(task.plain.dag)
        return CheckSpec(task.dag, CHECK_SEED, image, length, task.rtol, task.meaning)

    @property
    def _runner(self) -> Runner:
        """The runner, which prepares nothing in the background any more."""
        return self._prepares.settled

    def begin_prepare(self) -> None:
        """Make the task ready in the background, once its reference is built."""
        self.begin_reference()
        begun = self._references[self.task.plain.workload_key]

        def spec() -> CheckSpec | None:
            try:
                image = begun.outcomes()[0].image
            except MachineError:  # given up
                return None
            return None if image is None else self._spec(image)

        self._prepares.begin(self.task.workload_key, spec)

    def begin_reference(self) -> None:
        """Have the reference built in the background, if that was not begun before."""
        plain = self.task.plain
        if plain.workload_key not in self._references:
            key = f"{plain.workload_key}/{PLAIN}"
            request = BuildRequest(key, {}, plain.target, kept=True)
            program = lower(reference_state(plain))
            self._references[plain.workload_key] = self._builds.begin({key: program}, [request])

    @property
    def has_reference(self) -> bool:
        """Was the reference built in the background, and kept on disk?"""
        begun = self._references.get(self.task.plain.workload_key)
        return begun is not None and begun.done

    def _build_reference(self) -> KernelImage:
        begun = self._references.get(self.task.plain.workload_key)
        if begun is None:
            outcome = self._built(PLAIN, lower(reference_state(self.task.plain)))
        else:
            (outcome,) = begun.outcomes()
        if outcome.image is None:
            raise BuildError(
                f"the reference of task {self.task.name} does not build: {outcome.error}"
            )
        return outcome.image

    def reference(
        self, best_latency_s: float | None, slow_s: float = SLOW_PLAIN_S
    ) -> tuple[MeasureResult, KernelImage]:
        """The result of the reference, the plain schedule.

        One that took longer than `slow_s` for the checks is not run again to be timed.
        """
        image = self.prepare()
        once_s = self._reference_s
        if once_s is not None and once_s > slow_s:
            return MeasureResult(Status.OK, once_s, (once_s,)), image
        return self._run(image, best_latency_s), image

    # ---- candidates -----------------------------------------------------------------------------

    def build(self, candidates: Sequence[Candidate]) -> list[BuildOutcome]:
        """Object code of candidates, in order, or why there is none."""
        self.prepare()
        with self._clock.phase("building"):
            return self._builds.build(*self._requests(candidates))

    def begin(self, candidates: Sequence[Candidate]) -> Batch:
        """`build` in the background; `built` waits for it."""
        return self._builds.begin(*self._requests(candidates))

    def built(self, candidates: Sequence[Candidate], batch: Batch | None) -> list[BuildOutcome]:
        """The outcomes of candidates whose builds were begun, or `build`."""
        if batch is None:
            return self.build(candidates)
        with self._clock.phase("building"):
            outcomes = batch.outcomes()
        self.prepare()
        return outcomes

    def _requests(
        self, candidates: Sequence[Candidate]
    ) -> tuple[dict[str, Program], list[BuildRequest]]:
        """(shared programs, requests)."""
        task = self.task
        keys = [f"{task.workload_key}/{c.sketch.name}" for c in candidates]
        programs = {k: c.sketch.program for k, c in zip(keys, candidates, strict=True)}
        return programs, [
            BuildRequest(k, c.values, task.target, kept=True)
            for k, c in zip(keys, candidates, strict=True)
        ]

    def measure(self, built: BuildOutcome, best_latency_s: float | None) -> MeasureResult:
        """Check and time what was built; equal code was checked and timed before.

        `best_latency_s` is that of the task, seconds: a clearly slower program is stopped early.
        """
        known = self._known(built)
        if known is not None:
            return known
        assert built.image is not None
        return self._learned(built, self._run(built.image, best_latency_s))

    def measure_all(
        self,
        built: Sequence[BuildOutcome],
        best_latency_s: Callable[[], float | None],
        go_on: Callable[[], bool],
    ) -> Generator[tuple[int, MeasureResult], None, None]:
        """(number, result) of each as it is measured, side by side where the runner does so.

        `best_latency_s` is asked before each; no more are begun once not `go_on()`.
        """
        if not isinstance(self._runner, SideBySide):
            for k, one in enumerate(built):
                if not go_on():
                    return
                yield k, self.measure(one, best_latency_s())
            return
        first: dict[Hashable, int] = {}  # of equal code
        later: list[int] = []
        for k, one in enumerate(built):
            if not go_on():
                return
            known = self._known(one)
            if known is not None:
                yield k, known
            elif first.setdefault(_code(one), k) != k:
                later.append(k)
        numbers = list(first.values())
        images = [image for k in numbers if (image := built[k].image) is not None]
        key = self.task.workload_key
        began = time.perf_counter()
        with closing(self._runner.run_all(key, images, best_latency_s, go_on)) as results:
            for n, result in results:
                self._clock.add("measuring", time.perf_counter() - began)
                yield numbers[n], self._learned(built[numbers[n]], result)
                began = time.perf_counter()
        for k in later:
            if not go_on():
                return
            yield k, self.measure(built[k], best_latency_s())

    def _known(self, built: BuildOutcome) -> MeasureResult | None:
        """The result of what was not built, or of equal code; None where it is to be measured."""
        if built.image is None:
            return built.as_result()
        known = self._by_code.get(_code(built))
        return known and replace(known, run_s=0.0, check_s=0.0, build_s=built.build_s)

    def _learned(self, built: BuildOutcome, result: MeasureResult) -> MeasureResult:
        if result.ok:
            self._by_code[_code(built)] = result
        return replace(result, build_s=built.build_s)

    def again(
        self, candidates: Sequence[Candidate], times: int, best_latency_s: float | None
    ) -> list[list[MeasureResult]]:
        """Build candidates and time all of them in turn, so many times.

        Results of each candidate; one result of a candidate that does not build.
        """
        outcomes = self.build(candidates)
        found: list[list[MeasureResult]] = [[] for _ in outcomes]
        for _ in range(times):
            for o, results in zip(outcomes, found, strict=True):
                if o.image is not None:
                    results.append(self._run(o.image, best_latency_s))
        return [r or [o.as_result()] for o, r in zip(outcomes, found, strict=True)]

    def run_program(self, program: Program) -> MeasureResult:
        """Build, check and time any program of the task."""
        self.prepare()
        built = self._built("replayed", program)
        if built.image is None:
            return built.as_result()
        return self._runner.run(self.task.workload_key, built.image)

    def _built(self, name: str, program: Program) -> BuildOutcome:
        key = f"{self.task.workload_key}/{name}"
        request = BuildRequest(key, {}, self.task.target)
        return self._builds.build({key: program}, [request], forget=True)[0]

    def _run(self, image: KernelImage, best_latency_s: float | None) -> MeasureResult:
        began = time.perf_counter()
        result = self._runner.run(self.task.workload_key, image, best_latency_s)
        spent = time.perf_counter() - began
        self._clock.add("checking", result.check_s)
        self._clock.add("measuring", max(0.0, spent - result.check_s))
        return result

    # ---- object code of records -----------------------------------------------------------------

    def keep(self, record: Record, image: KernelImage) -> None:
        """Keep the object code of a record while it is one of the fastest."""
        self._images[id(record)] = record, image
        if len(self._images) > 4 * KEPT_IMAGES:
            ranked = sorted(self._images.values(), key=lambda kept: kept[0].lowest_s)
            self._images = {id(r): (r, image) for r, image in ranked[:KEPT_IMAGES]}

    def kept_image(self, record: Record) -> KernelImage | None:
        """Object code of a record that was measured in this run, if it was kept."""
        known, image = self._images.get(id(record), (None, None))
        return image if known is record else None

    def image(self, record: Record, source: ProgramSource) -> KernelImage:
        """Object code of a record, built again if it was not kept."""
        kept = self.kept_image(record)
        return kept or compiled(source.program(record), self.task.target)

    # ---- the race -------------------------------------------------------------------------------

    def race(
        self, contenders: Sequence[Record], source: ProgramSource, most_s: float, left_s: float
    ) -> tuple[Record, float] | None:
        """The winner of records, the fastest one first, that run in turn: (record, seconds).

        The race takes about `most_s`, or as long as few turns of slow programs take; contenders
        are dropped, and then the race itself, where `left_s` is too short. None without contenders.
        """
        found = list(contenders)
        if not found:
            return None
        # Each runs a few times for the checks before the first turn.
        costs = [max(RUN_S, 3 * (r.latency_s or 0.0)) for r in found]
        while len(found) > 2 and MIN_TURNS * sum(costs[: len(found)]) > min(RACE_S, left_s):
            found.pop()
        turn_s = sum(r.latency_s or 0.0 for r in found)
        budget_s = min(max(most_s, LONE_TURNS * turn_s), RACE_S, left_s - sum(costs[: len(found)]))
        first = found[0], float(found[0].latency_s or 0.0)
        if len(found) == 1 or budget_s < MIN_TURNS * turn_s:
            return first
        self.prepare()
        images = [self.image(r, source) for r in found]
        with self._clock.phase("measuring"):
            results = race(self._runner, self.task.workload_key, images, budget_s)
        times = [r.latency_s if r.ok and r.latency_s else float("inf") for r in results]
        k = int(np.argmin(times))
        return (found[k], times[k]) if np.isfinite(times[k]) else first
