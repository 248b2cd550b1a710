"""A session: one run of the tuner, with what it is asked for and what it works with.

In: `TuneOptions`. Out: `TaskTuner`s of tasks, on one budget, one store, one set of processes and
one cost model, which are opened and closed together.
"""

import gc
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from zipfile import is_zipfile

import numpy as np

from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.object_cache import compiled
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import CostModel, ValidityModel, expanded
from ansorlite.cost.names import N_FEATURES
from ansorlite.cost.prior import RowGroup, row_group
from ansorlite.errors import UsageError
from ansorlite.ir.program import Program
from ansorlite.measure.builder import Builder, PoolBuilder
from ansorlite.measure.peak import Peak, measure_peak, peak_soon, seen_again
from ansorlite.measure.runner import LocalRunner, Runner, SideBySide
from ansorlite.search import knowledge, lessons
from ansorlite.search.arguments import check_able, check_budget, check_path
from ansorlite.search.budget import Budget
from ansorlite.search.clock import PhaseClock
from ansorlite.search.debug import trace_of
from ansorlite.search.estimate import EstimatingBuilder, EstimatingRunner
from ansorlite.search.history import Guess
from ansorlite.search.measuring import Measuring
from ansorlite.search.policy import EvolutionaryPolicy, EvolutionParams, SearchPolicy
from ansorlite.search.progress import Progress
from ansorlite.search.run import Run
from ansorlite.search.searchers import Context, loaded, searcher
from ansorlite.search.spaces import (
    SpaceRequest,
    SpacesAhead,
    can_be_kept,
    kept_looks,
    kept_sketches,
)
from ansorlite.search.store import Store
from ansorlite.search.transfer import KnownPrograms
from ansorlite.search.tuner import TaskTuner
from ansorlite.search.untuned import Untuned
from ansorlite.settings import learns, settings
from ansorlite.space.plain import PLAIN
from ansorlite.space.sketch import Sketch, SpaceOptions
from ansorlite.target import Target
from ansorlite.task import SearchTask

USUAL = "evolutionary"  # the policy
SHORT_RUN_S = 100.0  # a run that has less does not wait until the machine's limits are steady
FIRST_LOOK_S = 10.0  # of a run, after which its limits are looked at again, and after twice that
COLLECT_FROM = 100_000  # new objects, from which the garbage collector runs
LEARNING_S = 1.5  # left of the budget, so that a model may be trained at the end
OVERDUE = 2.0  # times as many programs as that model has seen, where no time is left for it
SKETCHES_OF_FORMS = 8  # of each other form of a task
MACHINES: tuple[type, ...] = (LocalRunner, SideBySide)  # runners whose latencies others may use


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What a caller may ask of a run.

    `n_trials` counts measured programs, those of the log included; `timeout` is wall-clock seconds
    for everything. `policy` is a row of `search.searchers`, `pretrained` a file of
    `baselines.pretrain`. The session makes its own `model`, `builder` or `runner` where None.
    `round_size` fixes the candidates of a round; `space` and `params` replace the searcher's.
    With `known`, the search begins with what earlier runs on this machine found, and what this run
    finds is kept (`search.knowledge`, `search.lessons`).
    `clock` and `measuring` are those of the run, where the run began before its session did. With a
    runner of `search.estimate` nothing is measured: latencies are estimates of what is built.
    """

    n_trials: int | None = None
    timeout: float | None = None
    seed: int = 0
    log: str | Path | None = None
    policy: str = USUAL
    model: CostModel | None = None
    builder: Builder | None = None
    runner: Runner | None = None
    space: SpaceOptions | None = None
    progress: bool = True
    round_size: int | None = None
    params: EvolutionParams | None = None
    pretrained: str | Path | None = None
    known: bool = True
    clock: PhaseClock | None = None
    measuring: Measuring | None = None

    def check(self) -> None:
        """UsageError that names the first option without a meaning."""
        check_budget(self.n_trials, self.timeout, self.seed, self.round_size)
        check_path("log", self.log)
        check_path("pretrained", self.pretrained)
        check_able("model", self.model, "predict")
        check_able("builder", self.builder, "build")
        check_able("runner", self.runner, "run")


class Session:
    """A run of the tuner, to be used in a `with` statement.

    >>> with Session(64, log="run.jsonl") as session:
    ...     session.tuner(task).round(8)
    """

    def __init__(
        self, n_trials: int | None = None, timeout: float | None = None, **options: Any
    ) -> None:
        """The fields of `TuneOptions`."""
        self.options = TuneOptions(n_trials=n_trials, timeout=timeout, **options)
        self.interrupted = False
        self.params = self.options.params
        self.untuned: Untuned | None = None
        self._policies: list[SearchPolicy] = []
        self._tuners: list[TaskTuner] = []
        self._trained_on = -1
        self._spaces: SpacesAhead | None = None
        self._wants_prior = False
        self._peak: Peak | None = None
        self._look_s = FIRST_LOOK_S  # of the run, when the limits are looked at again
        self.keeps_lessons = learns(os.environ)
        self._known: dict[str, KnownPrograms] = {}
        self.merged: set[str] = set()  # workload keys of kernels in place of several tasks
        self.builders = 1  # processes that build side by side
        self.later_s = 0.0  # that the end of an earlier search of this run still takes
        self.placed = Counter[str]()  # kernels built for where operands lie, by workload key

    def __enter__(self) -> Self:
        """Open log and processes; UsageError, LogError or MachineError where that fails."""
        o = self.options
        o.check()
        self.searcher = searcher(o.policy)
        self.budget = Budget(o.n_trials, o.timeout, o.clock, o.round_size)
        with ExitStack() as stack:
            self.estimated = isinstance(o.runner, EstimatingRunner)
            self.store = Store(o.log, read_only=not self.searches, estimated=self.estimated)
            stack.callback(self.store.close)
            builder = o.builder or _closed_by(stack, PoolBuilder(at_once=self.searches))
            if isinstance(builder, PoolBuilder):
                self.builders = builder.n_workers
            runner = o.runner or _closed_by(stack, LocalRunner(at_once=self.searches))
            if self.estimated:
                builder = EstimatingBuilder(builder)
            self.cost_model = self._cost_model()
            stack.enter_context(few_collections())
            self._stack = stack.pop_all()
        self.validity = ValidityModel(seed=o.seed)
        measuring = o.measuring or Measuring(builder, runner, self.budget.clock)
        self._stack.callback(measuring.close)
        self.run = Run(self.budget, self.store, measuring, o.seed, trace_of(settings()))
        if self._is_plain_guess():
            self.untuned = _closed_by(self._stack, Untuned(o.seed, self.run.trace))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        if self.searches and self._is_measured:
            found = [r for t in self._tuners for r in t.records if r.ok and r.sketch != PLAIN]
            knowledge.keep(found, [t.task for t in self._tuners])
            if self.keeps_lessons:
                self._keep_lessons(learns=not (self.interrupted or any(exc)))

    def _keep_lessons(self, learns: bool) -> None:
        """Keep what models learn from, and train the machine's own where that is due.

        A run that was cut off trains none, so that its continuation asks for what it would have.
        """
        by_target: dict[str, tuple[Target, list[RowGroup]]] = {}
        for t in self._tuners:
            group = t.policy.training_group() if t.has_begun and t.trials > t.resumed else None
            if group is None or not len(group.latency_s):
                continue
            if group.features[0].shape[1] == N_FEATURES:  # template searches have their own
                target = t.task.target
                _, groups = by_target.setdefault(target.fingerprint, (target, []))
                groups.append(row_group(group, target, lessons.tiles(target)))
        for target, groups in by_target.values():
            lessons.keep(target, groups)
            in_time = self.budget.left_s() > LEARNING_S
            if learns and lessons.is_due(target, lessons.GROWTH if in_time else OVERDUE):
                lessons.learn(target)

    @property
    def _is_measured(self) -> bool:
        """Are latencies those of a machine, so that other runs may learn of them?"""
        runner = self.options.runner
        machine = runner is None or isinstance(runner, MACHINES)
        return self.options.known and machine and not self.estimated

    def known(self, target: Target) -> KnownPrograms:
        """Programs that earlier runs found for a target, without those of this run's log."""
        if not self._is_measured:
            return KnownPrograms(())
        if target.fingerprint not in self._known:
            own = {(r.task, r.timestamp) for r in self.store.history}
            found = knowledge.programs(target)
            self._known[target.fingerprint] = KnownPrograms(
                [r for r in found if (r.task, r.timestamp) not in own],
                knowledge.kinships(target),
            )
        return self._known[target.fingerprint]

    @property
    def searches(self) -> bool:
        """Is anything to be measured?"""
        return self.options.n_trials != 0

    def _is_plain_guess(self) -> bool:
        """Is nothing measured, and nothing known that predicts better than the analytic score?"""
        o = self.options
        given = (o.model, o.pretrained, o.space, o.params)
        return not self.searches and o.policy == USUAL and all(x is None for x in given)

    def predicted(self, tuner: TaskTuner, n_tasks: int) -> tuple[Program, Guess | None]:
        """The program to take for one of so many tasks that nothing was measured of.

        With what it is of in a record's words, where the policy of the task has proposed it.
        """
        if self.untuned is None or any(r.round for r in tuner.records):
            return tuner.guessed()
        with self.budget.clock.phase("search"):
            known = self.known(tuner.task.target).program(tuner)
            return known or (self.untuned.program(tuner.task, n_tasks), None)

    def _cost_model(self) -> CostModel:
        """The model given, or a pretrained one, or one that knows nothing yet."""
        o = self.options
        if o.model is not None:
            return o.model
        if self.searcher.loader:
            if o.pretrained is None:
                raise UsageError(
                    f"{o.policy} search needs a pretrained model: make one with `ansorlite "
                    "pretrain` and name it (pretrained=, --pretrained)"
                )
            found: CostModel = loaded(self.searcher.loader)(o.pretrained, o.seed)
            return found
        model = CorrectionModel(seed=o.seed)
        self._wants_prior = o.pretrained is None and self.searches and self._is_measured
        if o.pretrained is not None:
            if is_zipfile(expanded(o.pretrained)):
                raise UsageError(
                    f"{o.pretrained} is a neural model, which only one-shot search can use: "
                    "choose policy one-shot, or a model of trees"
                )
            model.load(o.pretrained)
        return model

    def peak(self, target: Target, tasks: Sequence[SearchTask] = ()) -> Peak | None:
        """The machine's limits, for reports; None where nothing is to be measured.

        A short run measures those of packed products only that the `tasks` have.
        """
        if not self.searches or self.estimated:
            return None
        runner = self.options.runner
        if isinstance(runner, SideBySide):
            return runner.peak()
        if self._peak is None:
            short = (self.options.timeout or SHORT_RUN_S) < SHORT_RUN_S
            with self.run.measuring.paused():
                self._peak = peak_soon(target, _dots(tasks)) if short else measure_peak(target)
        return self._peak

    def look_again(
        self, target: Target, tasks: Sequence[SearchTask], now: bool = False
    ) -> Peak | None:
        """The machine's limits, if a look at them, that is due or wanted now, shows more.

        Too low a limit would end the search of every task that comes near it.
        """
        budget, known = self.budget, self._peak
        due = now or budget.elapsed_s >= self._look_s
        if known is None or not due or budget.search_left_s() <= 0:
            return None
        self._look_s = max(self._look_s, 2.0 * budget.elapsed_s)
        with budget.clock.phase("measuring"), self.run.measuring.paused():
            self._peak = seen_again(target, known, _dots(tasks))
        return None if self._peak == known else self._peak

    @contextmanager
    def show(self, peak_flop_per_s: float | None) -> Iterator[Progress]:
        """Progress of this run, and what is left out of its log; tells if Ctrl-C ended it."""
        o = self.options
        with Progress(o.n_trials, o.timeout, peak_flop_per_s, quiet=not o.progress) as show:
            told = self.store.problems
            for problem in told:
                show.note(f"log: {problem}")
            try:
                yield show
            except KeyboardInterrupt:
                show.note("interrupted: the best so far is kept")
                raise
            for problem in self.store.problems:  # records are looked at when they are needed
                if problem not in told:
                    show.note(f"log: {problem}")

    # ---- tasks ----------------------------------------------------------------------------------

    def answered(self, task: SearchTask) -> bool:
        """Nothing is to be searched: the log alone answers, if one of its records fits."""
        return not self.searches and self.store.has_answer(task)

    def tuner(self, task: SearchTask) -> TaskTuner:
        """The tuner of a task, which makes its sketches when it first needs them."""
        o = self.options
        self._begin_with_prior(task.target)

        def space() -> Sequence[Sketch]:
            options = self._space(task)
            if not self._keeps_spaces:
                return self.searcher.space(task, options)
            return kept_sketches(task, options, lambda: self.searcher.space(task, options))

        def policy(found: Sequence[Sketch]) -> SearchPolicy:
            model, validity = self.cost_model, self.validity
            context = Context(task, o.seed, model, self.params, validity, other_tasks)
            made = self.searcher.make(found, context)
            if self._keeps_spaces and isinstance(made, EvolutionaryPolicy):
                made.know_looks(lambda: kept_looks(task, self._space(task), o.seed))
            self._policies.append(made)
            return made

        def other_tasks() -> list[TrainingGroup]:
            own = task.workload_key
            groups = [g for p in self._policies if (g := p.transfer_group()) is not None]
            return [g for g in groups if g.task_key != own and len(g.latency_s)]

        made = TaskTuner(
            task,
            space,
            policy,
            self.run,
            plain=self.searcher.plain,
            options=o.space,
            answered=self.answered(task),
        )
        self._tuners.append(made)
        return made

    @property
    def _keeps_spaces(self) -> bool:
        """Are spaces made ahead, and kept for later runs? Only Ansor's, against the clock."""
        return self.options.timeout is not None and self.options.policy == USUAL

    def spaces_ahead(self) -> SpacesAhead | None:
        """A process that makes spaces of tasks in the background; None where none can be used."""
        starts = self.options.builder is None  # are processes started here?
        usable = starts and self._keeps_spaces and can_be_kept(self.options.space)
        if self._spaces is None and usable:
            self._spaces = _closed_by(self._stack, SpacesAhead())
        return self._spaces

    def space_request(self, task: SearchTask, looks: int) -> SpaceRequest:
        """The sketches of a task, so many of which are looked at."""
        return SpaceRequest(task, self._space(task), self.options.seed, looks)

    def compile_all(self, programs: Sequence[tuple[Program, Target]]) -> list[KernelImage]:
        """Object code of concrete programs, by the processes that build candidates.

        Where nothing is searched, no process is started for it.
        """
        if len(programs) < 2 or not self.searches or self.estimated:
            return [compiled(program, target) for program, target in programs]
        with self.budget.clock.phase("building"):
            return self.run.measuring.builds.compiled(programs)

    def _begin_with_prior(self, target: Target) -> None:
        """Have the model begin with what is shipped and what this machine learned."""
        if not self._wants_prior:
            return
        self._wants_prior = False
        found = lessons.prior(target)
        if found is not None and isinstance(self.cost_model, CorrectionModel):
            self.cost_model.begin_with(found)

    def _space(self, task: SearchTask) -> SpaceOptions | None:
        """Other forms of a computation have few sketches: their stages have their places.

        Kernels that were merged have only sketches that fuse: the others are tasks of their own.
        """
        if task.workload_key in self.merged:
            return replace(self.options.space or SpaceOptions(), apart=False)
        if self.options.space is not None or task.meaning is None:
            return self.options.space
        return SpaceOptions(max_sketches=SKETCHES_OF_FORMS)

    def train(self, tuners: Sequence[TaskTuner], news: float = 0.0) -> None:
        """Train the models on all results of these tasks, if more than a share `news` is new."""
        known = sum(n for t in tuners for _, n in t.told)
        if self._trained_on >= known * (1.0 - news):
            return
        groups = [g for t in tuners if (g := _training_group(t)) is not None and len(g.latency_s)]
        if groups:
            with self.budget.clock.phase("training"):
                if self.searcher.learns:
                    self.cost_model.update(groups)
                self.validity.update(groups)
        self._trained_on = known


@contextmanager
def few_collections() -> Iterator[None]:
    """Have the garbage collector run rarely in the body.

    A search makes millions of small objects and few cycles, and each collection looks at all that
    a process has loaded: by default that takes a quarter of the time.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < COLLECT_FROM:  # off, or rare already
        yield
        return
    gc.set_threshold(COLLECT_FROM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _dots(tasks: Sequence[SearchTask]) -> set[str]:
    """The packed products that tasks have."""
    return {op for t in tasks for op in t.dag.run_flop_by_dot}


def _closed_by(stack: ExitStack, thing: Any) -> Any:
    """The thing, which the stack closes."""
    stack.callback(thing.close)
    return thing


def _training_group(tuner: TaskTuner) -> TrainingGroup | None:
    """What a cost model learns of a task, if its policy has such a model.

    Nothing before the task is searched: programs of kin, which are good ones all, teach little, and
    a model that knows nothing else leads a search astray.
    """
    searched = tuner.has_searched or tuner.resumed
    group = tuner.policy.training_group() if tuner.has_begun and searched else None
    if group is None:
        return None
    numbers, counts = np.array(tuner.told, np.int64).reshape(-1, 2).T
    return replace(group, round_index=np.repeat(numbers, counts))
