"""Tuning one task, and the session that tuning of one or of many tasks runs in.

In: `SearchTask`s with weights and a budget (trials, wall-clock seconds). Out: `TuneResult`s. The
loop owns budget, clock, log, progress and Ctrl-C; policies, models, builders and runners are
arguments. An existing log is continued; its trials count.
"""

import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import CostModel, ValidityModel, expanded
from ansorlite.errors import UsageError
from ansorlite.measure.builder import Builder, PoolBuilder
from ansorlite.measure.peak import Peak, measure_peak
from ansorlite.measure.runner import LocalRunner, Runner
from ansorlite.records import LogContents, Record, RecordLog, choice, chosen, for_task, read_log
from ansorlite.search.arguments import check_able, check_budget, check_path, check_tasks
from ansorlite.search.clock import PhaseClock
from ansorlite.search.debug import trace_of
from ansorlite.search.policy import EvolutionParams, SearchPolicy
from ansorlite.search.progress import Progress, Snapshot
from ansorlite.search.result import BestProgram, TuneResult
from ansorlite.search.searchers import Context, Searcher, loaded, searcher
from ansorlite.search.shared import Shared
from ansorlite.search.shrink_task import shrunk
from ansorlite.search.transfer import start_from_others
from ansorlite.search.tuner import TaskTuner
from ansorlite.settings import settings
from ansorlite.space.sketch import Sketch, SpaceOptions
from ansorlite.target import Target
from ansorlite.task import SearchTask

ROUND_SIZE = 64
MIN_ROUND = 8
# Tasks of which each has small rounds: in rounds of 8 ResNet-50's were after 1,000 trials where
# rounds of 13 had them after 2,000, in half the time
MANY = 8
# Contenders of a task raced at the end and seconds of the race.
SETTLE_ALONE = (10, 2.5)
SETTLE_SHARE = 0.06  # of the time budget, kept for that race and for compiling
PRACTICE = 0.5  # of the budget of a heavy task, for a short version of it
SKETCHES_OF_FORMS = 8  # of each other form of a task
SAME_ERRORS = 16  # identical failures in a row that end a task with a diagnosis


@dataclass
class Session:
    """One run of the tuner: budget, clock, log and the processes that build and measure."""

    n_trials: int | None
    timeout: float | None
    seed: int = 0
    log: str | Path | None = None
    policy: str = "evolutionary"
    model: CostModel | None = None
    builder: Builder | None = None
    runner: Runner | None = None
    space: SpaceOptions | None = None
    progress: bool = True
    round_size: int | None = None
    params: EvolutionParams | None = None
    pretrained: str | Path | None = None

    def __enter__(self) -> "Session":
        check_budget(self.n_trials, self.timeout, self.seed, self.round_size)
        check_path("log", self.log)
        check_path("pretrained", self.pretrained)
        check_able("model", self.model, "predict")
        check_able("builder", self.builder, "build")
        check_able("runner", self.runner, "run")
        self.searcher: Searcher = searcher(self.policy)
        self._policies: list[SearchPolicy] = []
        self._began = time.perf_counter()
        self.clock = PhaseClock()
        self._stack = ExitStack()
        self._log: RecordLog | None = None
        self._contents = LogContents((), ())
        self._absent = ""
        self.interrupted = False
        if self.log is not None and self.n_trials == 0:
            self._contents = self._read(self.log)
        elif self.log is not None:
            self._log = RecordLog(self.log)
            self._stack.callback(self._log.close)
            self._contents = self._log.contents
        try:
            self._builder = self.builder or self._own(PoolBuilder())
            self._runner = self.runner or self._own(LocalRunner())
            self.cost_model: CostModel = self._cost_model()
        except BaseException:
            self._stack.close()
            raise
        self.validity = ValidityModel(seed=self.seed)
        self._trained_on = -1
        self.trace = trace_of(settings())
        self.shared = Shared(
            self._builder,
            self._runner,
            self.clock,
            self._append,
            self.left_s,
            self.seed,
            trace=self.trace,
        )
        self.trials_before = 0
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _read(self, log: str | Path) -> LogContents:
        """What a log holds, where nothing will be written: without its lock, none is made."""
        if Path(log).expanduser().exists():
            return read_log(log)
        self._absent = f"there is no log {log}: nothing is known yet"
        return LogContents((), ())

    def _cost_model(self) -> CostModel:
        """The model given, or a pretrained one, or one that knows nothing yet."""
        if self.model is not None:
            return self.model
        if self.searcher.loader:
            if self.pretrained is None:
                raise UsageError(
                    f"{self.policy} search needs a pretrained model: make one with `ansorlite "
                    "pretrain` and name it (pretrained=, --pretrained)"
                )
            found: CostModel = loaded(self.searcher.loader)(self.pretrained, self.seed)
            return found
        model = CorrectionModel(seed=self.seed)
        if self.pretrained is not None:
            if zipfile.is_zipfile(expanded(self.pretrained)):
                raise UsageError(
                    f"{self.pretrained} is a neural model, which only one-shot search can use: "
                    "choose policy one-shot, or a model of trees"
                )
            model.load(self.pretrained)
        return model

    def _own(self, thing: Any) -> Any:
        self._stack.callback(thing.close)
        return thing

    def _append(self, record: Record) -> None:
        if self._log is not None:
            self._log.append(record)

    @property
    def history(self) -> tuple[Record, ...]:
        """What the log held when it was opened."""
        return self._contents.records

    @property
    def problems(self) -> tuple[str, ...]:
        """What of the log is left out so far, and why: a line a kind of damage."""
        refused = self.shared.refused
        told = [self._absent, self._contents.damage]
        if refused:
            record, why = min(refused, key=lambda r: r[0].line)
            told.append(
                f"records that fit no program of their task are left out: {len(refused)}, the first"
                f" is line {record.line}, trial {record.trial} of {record.task_name}: {why}"
            )
        return tuple(filter(None, told))

    def choose(self, winner: tuple[Record, float]) -> None:
        """Note in the log what the run settled on, for all who read it later."""
        self._append(choice(*winner))

    def chosen(self, tuners: Sequence[TaskTuner]) -> tuple[TaskTuner, tuple[Record, float]] | None:
        """What an earlier run settled on for one of these, if nothing was measured since."""
        if any(t.trials > t.resumed for t in tuners):
            return None
        by_key = {t.task.workload_key: t for t in tuners}
        target = tuners[0].task.target.fingerprint
        found = chosen(self._contents, by_key, target, lambda r: by_key[r.task].fits(r))
        winner = None if found is None else (found, float(found.latency_s or 0.0))
        return None if winner is None else (by_key[winner[0].task], winner)

    @property
    def elapsed_s(self) -> float:
        return time.perf_counter() - self._began

    def left_s(self) -> float:
        return float("inf") if self.timeout is None else self.timeout - self.elapsed_s

    def affordable(self, n: int, done: int) -> int:
        """At most n trials, fewer where the time left is not enough for them at the pace so far."""
        new = done - self.trials_before
        if self.timeout is None or new < MIN_ROUND:
            return n if self.left_s() > 0 else 0
        pace_s = self.elapsed_s / new
        return max(0, min(n, int((self.left_s() - SETTLE_SHARE * self.timeout) / pace_s)))

    def peak(self, target: Target) -> Peak | None:
        """The machine's limits, for reports; None where nothing is to be measured."""
        return measure_peak(target) if self.n_trials != 0 else None

    @contextmanager
    def show(self, peak: Peak | None) -> Iterator[Progress]:
        """Progress of this run, and what is left out of its log; says if Ctrl-C ended it."""
        limit = None if peak is None else peak.flops_all
        with Progress(self.n_trials, self.timeout, limit, quiet=not self.progress) as show:
            told = self.problems
            for problem in told:
                show.note(f"log: {problem}")
            try:
                yield show
            except KeyboardInterrupt:
                show.note("interrupted: the best so far is kept")
                raise
            for problem in self.problems:  # records are looked at when they are needed
                if problem not in told:
                    show.note(f"log: {problem}")

    def has_share(self, share: float, done: int) -> bool:
        """Is a share of the budget not yet spent?"""
        spent_s = 0.0 if self.timeout is None else self.elapsed_s / max(self.timeout, 1e-9)
        return spent_s < share and (self.n_trials is None or done < share * self.n_trials)

    def round_of(self, size: int, done: int, pending: int) -> int:
        """Candidates of the next round: `size`, or what trials and time are left for; 0 to end.

        `pending` of the `done` trials belong to that round already (see `TaskTuner.pending`).
        """
        if self.left_s() <= 0 or (self.n_trials is not None and done >= self.n_trials):
            return 0
        n = size if self.n_trials is None else min(size, self.n_trials - done + pending)
        new = max(0, n - pending)
        affordable = self.affordable(new, done)
        if affordable == new:
            return n
        return pending + affordable if affordable else 0

    def answered(self, task: SearchTask) -> bool:
        """Nothing is to be searched: the log alone answers, if one of its records fits."""
        known = for_task(self.history, task.workload_key, task.target.fingerprint)
        return self.n_trials == 0 and any(r.ok for r in known)

    def _space(self, task: SearchTask) -> SpaceOptions | None:
        """Other forms of a computation have few sketches: their stages have their places."""
        if self.space is not None or task.meaning is None:
            return self.space
        return SpaceOptions(max_sketches=SKETCHES_OF_FORMS)

    def tuner(self, task: SearchTask) -> TaskTuner:
        """The tuner of a task, which makes its sketches when it first needs them."""

        def space() -> Sequence[Sketch]:
            return self.searcher.space(task, self._space(task))

        def made(found: Sequence[Sketch]) -> SearchPolicy:
            model, validity = self.cost_model, self.validity
            context = Context(task, self.seed, model, self.params, validity, other_tasks)
            policy = self.searcher.make(found, context)
            self._policies.append(policy)
            return policy

        def other_tasks() -> list[TrainingGroup]:
            own = task.workload_key
            groups = [g for p in self._policies if (g := p.transfer_group()) is not None]
            return [g for g in groups if g.task_key != own and len(g.latency_s)]

        return TaskTuner(
            task,
            space,
            made,
            self.shared,
            self.history,
            self.searcher.plain,
            self.space,
            self.answered(task),
        )

    def train(self, tuners: Sequence[TaskTuner]) -> None:
        """Retrain the cost model on everything told so far, if something is new."""
        groups = [g for t in tuners if (g := _learned(t)) is not None and len(g.latency_s)]
        known = sum(len(g.latency_s) for g in groups)
        if known == self._trained_on:
            return
        if groups:
            with self.clock.phase("training"):
                if self.searcher.learns:
                    self.cost_model.update(groups)
                self.validity.update(groups)
        self._trained_on = known


def _learned(tuner: TaskTuner) -> TrainingGroup | None:
    """What a cost model learns of a task, if its policy has such a model."""
    group = tuner.policy.training_group() if tuner.has_begun else None
    if group is None:
        return None
    numbers, counts = np.array(tuner.told, np.int64).reshape(-1, 2).T
    return replace(group, round_index=np.repeat(numbers, counts))


def tune(
    task: SearchTask,
    n_trials: int | None = 64,
    timeout: float | None = None,
    *,
    seed: int = 0,
    log: str | Path | None = None,
    policy: str = "evolutionary",
    model: CostModel | None = None,
    builder: Builder | None = None,
    runner: Runner | None = None,
    space: SpaceOptions | None = None,
    progress: bool = True,
    round_size: int | None = None,
    params: EvolutionParams | None = None,
    pretrained: str | Path | None = None,
    others: Sequence[SearchTask] = (),
) -> TuneResult:
    """Search for a fast program of one task.

    `n_trials` counts measured candidates, those in the log included; `timeout` is wall-clock
    seconds for everything; the first budget spent ends it. Ctrl-C ends it with the best so far.
    With `n_trials=0` nothing is measured or written: the best of the log, else what the model says.
    `policy` is one of `search.searchers`, `pretrained` a model of `baselines.pretrain`. What the
    log holds of `others` is learned from, too, by evolution's model and by searchers that transfer
    (template-xgb-transfer); no trial of theirs counts, and nothing of them is measured.
    """
    check_tasks((task, *others))
    if others and log is None:
        raise UsageError("what is known of other tasks is read from the log: name one")
    with Session(
        n_trials,
        timeout,
        seed,
        log,
        policy,
        model,
        builder,
        runner,
        space,
        progress,
        round_size,
        params,
        pretrained,
    ) as session:
        return _tune_one(session, task, others)


def _tune_one(session: Session, task: SearchTask, others: Sequence[SearchTask]) -> TuneResult:
    tuner = session.tuner(task)
    short = shrunk(task) if session.n_trials != 0 else None
    small = None if short is None else session.tuner(short)
    session.trials_before = tuner.trials + (small.trials if small else 0)
    peak: Peak | None = None
    winner: tuple[Record, float] | None = None
    try:
        peak = session.peak(task.target)
        winner = _search(session, tuner, small, peak, _known(session, tuner, others))
        if winner is not None:
            session.choose(winner)
        elif known := session.chosen([tuner]):
            winner = known[1]
    except KeyboardInterrupt:
        session.interrupted = True
    result = task_result(session, tuner, winner, peak)
    if small is None:
        return result
    if result.best is None and result.predicted is None:  # it ended before the whole was measured
        tuner.suggest(small.fastest(1))
        result = replace(result, predicted=tuner.suggested())
    return replace(result, practised=small.trials)


def _known(session: Session, tuner: TaskTuner, others: Sequence[SearchTask]) -> list[TaskTuner]:
    """Tuners of those other tasks that the log holds something of, which their policies know."""
    logged = {(r.task, r.target) for r in session.history}
    distinct = {t.workload_key: t for t in others if t.workload_key != tuner.task.workload_key}
    return [
        session.tuner(t)
        for key, t in distinct.items()
        if session.n_trials != 0 and (key, t.target.fingerprint) in logged
    ]


def _search(
    session: Session,
    tuner: TaskTuner,
    small: TaskTuner | None,
    peak: Peak | None,
    known: Sequence[TaskTuner],
) -> tuple[Record, float] | None:
    """Rounds until the budget is spent, then a race of the last contenders: its winner.

    A heavy task is practised on a `small` version first, whose best candidates come first then.
    What is `known` of other tasks is learned from.
    """
    size = round_size(session, 1, 1)
    all_tuners = [tuner] if small is None else [tuner, small]

    def rounds(t: TaskTuner, show: Progress, share: float) -> None:
        while session.has_share(share, done := sum(x.trials for x in all_tuners)):
            wanted = size if session.round_size else grown(size, t.trials - t.pending)
            n = session.round_of(wanted, done, t.pending)
            if share < 1.0 and session.n_trials is not None:
                n = min(n, t.pending + int(share * session.n_trials) - done)
            if n <= 0:
                break
            session.train([*all_tuners, *known])
            if t is tuner and small is None and session.searcher.neighbours:
                start_from_others(t, (), session.history, n)
            if t.round(n) == 0:
                if session.left_s() > 0:
                    show.note(f"{t.task.name}: no candidate is left to measure")
                break
            show.update(snapshot(session, all_tuners, t))
            if stuck := same_failures(t.records):
                show.note(f"{t.task.name}: {SAME_ERRORS} failures alike in a row: {stuck}")
                break

    with session.show(peak) as show:
        if small is not None:
            size = min(size, 2 * MIN_ROUND)
            rounds(small, show, PRACTICE)
            tuner.suggest(small.fastest(MIN_ROUND))
            size = MIN_ROUND
        rounds(tuner, show, 1.0)
        # One that was cut off before its race has that race, even if no trial is missing.
        if session.n_trials != 0 and session.chosen([tuner]) is None:
            return tuner.settle(*SETTLE_ALONE)
        tuner.contenders(1)  # looked at while problems can be told
    return None


def task_result(
    session: Session,
    tuner: TaskTuner,
    winner: tuple[Record, float] | None,
    peak: Peak | None,
    trials: int | None = None,
) -> TuneResult:
    """The result of a task; `trials` counts those of its other forms too."""
    if winner is None and (best := tuner.contenders(1)):
        winner = best[0], float(best[0].latency_s or 0.0)
    if winner is not None:
        session.trace.best(tuner.task, tuner.space.state(winner[0]))
    found = None if winner is None else BestProgram(tuner.task, *winner, peak, tuner.space)
    # Without a measured answer the model's; not that of a model that was to learn first.
    guessed = session.n_trials == 0 or (not session.searcher.plain and session.left_s() > 0)
    return TuneResult(
        tuner.task,
        found,
        tuple(tuner.records),
        session.clock.seconds,
        session.elapsed_s,
        session.interrupted,
        tuner.predicted() if found is None and guessed else None,
        image=None if found is None else tuner.kept_image(found.record),
        of_all_forms=trials,
        problems=session.problems,
    )


def round_size(session: Session, n_tasks: int, n_forms: int) -> int:
    """Candidates a round: so many that every form of a task gets some four of a small budget."""
    if session.round_size is not None:
        return session.round_size
    if n_tasks >= MANY:
        return MIN_ROUND
    if session.n_trials is None:
        return 16
    return int(np.clip(session.n_trials // (4 * max(1, n_forms)), MIN_ROUND, ROUND_SIZE))


def grown(most: int, known: int) -> int:
    """Candidates of a task's next round: half of what is known of it, so that the first are small.

    A round of nothing but guesses is as good as its guesses; feedback after a few improves the
    rest. Later ones are larger, since searching and training cost time for each.
    """
    return min(most, max(MIN_ROUND, known // 2))


def same_failures(records: Sequence[Record]) -> str:
    """The error text if the last trials all failed alike (the first, plain, one not counted)."""
    last = records[-SAME_ERRORS:]
    if len(last) < SAME_ERRORS or any(r.ok for r in last):
        return ""
    first = last[0]
    alike = all(r.status == first.status and r.error[:80] == first.error[:80] for r in last)
    return f"{first.status} {first.error[:200]}" if alike else ""


def snapshot(session: Session, tuners: Sequence[TaskTuner], current: TaskTuner) -> Snapshot:
    failures = {k: n for k, n in session.shared.counts.items() if k != "OK"}
    return Snapshot(
        trials=sum(t.trials for t in tuners),
        elapsed_s=session.elapsed_s,
        latency_s=current.best_latency_s,
        flop=current.task.flop,
        task=current.task.name,
        round=current.rounds,
        failures=failures,
        trials_before=session.trials_before,
    )
