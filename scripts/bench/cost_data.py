"""How good the cost model is on programs, and on tasks, that it was not trained on.

In: tasks and a time to measure in, half of it for random programs, half for those that a search
visits: a sample of all that its generations hold, which is what it asks the model about; or of
those alone that it would measure, picked by the model as the best of them. One measurement of a
fast program can be a tenth off, and twice as long while the machine is busy: more than there is
between the fastest. Those near a task's fastest are measured again, rounds later, several times a
build; the lowest of all repeats counts, as disturbances only ever make a run slower.
Out: a `TrainingGroup` a task, random programs first; scores of every program from models that have
not seen it (`folds` parts of the programs, or of the tasks, are left out in turn); `Accuracy` of
them. Labels are best/this within a task, the metrics those of Ansor section 7.5.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.cost.losses import Features, TrainingGroup, labels
from ansorlite.cost.metrics import pairwise_accuracy, r_squared, recall_at_k
from ansorlite.cost.model import CostModel
from ansorlite.measure.builder import Builder
from ansorlite.measure.result import MeasureResult
from ansorlite.measure.runner import Runner
from ansorlite.records import Record, RecordLog, for_task
from ansorlite.search.history import Candidate, History
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.recorded import record_candidate
from ansorlite.search.session import Session
from ansorlite.search.tuner import TaskTuner
from ansorlite.task import SearchTask

Floats = npt.NDArray[np.float64]
# What programs are measured: a searcher, and of "visited" ones how it picks
KINDS: dict[str, tuple[str, EvolutionParams | None]] = {
    "random": ("random", None),
    "visited": ("evolutionary", EvolutionParams(visited=1.0)),
    "picked": ("evolutionary", None),
}
ROUND = 32
TOP, AMONG = 30, 500
TIE = 1.05
AGAIN = "again"  # the log of what is measured again
NEAR = 1.08  # times the `TOP`th fastest: programs that are measured again
PASSES = 4  # of a round of these, once built
MOST = 6  # records of a program
ENOUGH = 300  # random programs of a task, for a recall of them alone


@dataclass(frozen=True)
class Accuracy:
    """Means over tasks of the share of pairs in order (that differ by more than 5 %) and of the
    fastest `TOP` of `AMONG` programs that are among the `TOP` best scored; R2 over all labels, of
    scores as shares of the best speed, which are at most 1. Of the programs that a search picks
    hundreds lie within a few per cent of the best, less than two measurements of one of them
    differ by; `recall_random` is that of the random programs alone, `close` the share of the
    `TOP` best scored that are at most `TIE` times as slow as the `TOP`th fastest.
    """

    pairwise: float
    recall: float
    r_squared: float
    recall_random: float
    close: float


class Measured(NamedTuple):
    """What was measured of a task: random programs, the first `n_random` ones, and others.

    Latencies in `group` are the lowest of each program. `first_s` and `later_s` are float[P], the
    first one and the lowest of the later ones, which of programs measured once is the same.
    """

    group: TrainingGroup
    n_random: int
    first_s: Floats
    later_s: Floats


Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Program:
    """A record of a log, its candidate, and every latency that it had, of failures infinity."""

    record: Record
    candidate: Candidate
    is_random: bool
    measured_s: list[float]

    @property
    def latency_s(self) -> float:
        return min(self.measured_s)


def collect(
    folder: Path,
    tasks: Sequence[SearchTask],
    seconds: float,
    builder: Builder,
    runner: Runner,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    kind: str = "visited",
    again_s: float = 0.0,
) -> list[Measured]:
    """Measure rounds of all tasks in turn, random programs and `kind`; then, for `again_s` more
    seconds, those within `NEAR` of the `TOP`th fastest again, the least known and of these the
    fastest first. Logs in `folder` count.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        tuners: dict[str, list[TaskTuner]] = {}
        sessions = {}
        both = ("random", kind)
        for name in both:
            policy, params = KINDS[name]
            sessions[name] = stack.enter_context(
                Session(
                    None,
                    seconds,
                    seed=seed,
                    log=folder / f"{name}.jsonl",
                    policy=policy,
                    builder=builder,
                    runner=runner,
                    progress=False,
                    params=params,
                )
            )
            tuners[name] = [sessions[name].tuner(t) for t in tasks]
        log = stack.enter_context(RecordLog(folder / f"{AGAIN}.jsonl"))
        left = [(name, k) for k in range(len(tasks)) for name in both]
        while left and sessions["random"].budget.left_s() > 0:
            sessions[kind].train(tuners[kind])
            for name, k in list(left):
                if sessions[name].budget.left_s() <= 0:
                    break
                if tuners[name][k].round(ROUND) == 0:
                    left.remove((name, k))  # its space is used up
            tell(f"{sum(t.trials for found in tuners.values() for t in found)} programs")
        programs = [
            _programs(pair, log.contents.records) for pair in zip(*tuners.values(), strict=True)
        ]
        _again(tuners[kind], programs, again_s, log, tell)
        return [_measured(tuner, own) for tuner, own in zip(tuners[kind], programs, strict=True)]


def _programs(pair: Sequence[TaskTuner], again: Sequence[Record]) -> list[_Program]:
    """All programs of a task that are in its space, those of an open round included, each once."""
    found: dict[Key, _Program] = {}
    for tuner in pair:
        space = {s.name: s for s in tuner.sketches}
        for r in tuner.records:
            if _key(r) in found:
                found[_key(r)].measured_s.append(r.lowest_s)
                continue
            c = record_candidate(tuner.task, space, r)
            if c is not None:
                found[_key(r)] = _Program(r, c, tuner is pair[0], [r.lowest_s])
    for r in for_task(again, pair[0].task.workload_key):
        if _key(r) in found:
            found[_key(r)].measured_s.append(r.lowest_s)
    return list(found.values())


def _key(r: Record) -> Key:
    return r.task, r.sketch, str(sorted(r.holes.items()))


def _again(
    tuners: Sequence[TaskTuner],
    programs: Sequence[Sequence[_Program]],
    seconds: float,
    log: RecordLog,
    tell: Callable[[str], None],
) -> None:
    """Rounds of all tasks in turn, until none has any left or the time is over."""
    until = time.monotonic() + seconds
    left = list(zip(tuners, programs, strict=True))
    done = 0
    while left and time.monotonic() < until:
        for tuner, known in list(left):
            asked = _nearest(known)
            if time.monotonic() >= until:
                break
            if not asked:
                left.remove((tuner, known))
            found = tuner.again([p.candidate for p in asked], PASSES)
            for p, results in zip(asked, found, strict=True):
                r = _record(p.record, results)
                p.measured_s.append(r.lowest_s)
                log.append(r)
            done += len(asked)
        tell(f"{done} programs again")


def _nearest(programs: Sequence[_Program]) -> list[_Program]:
    """A round of those to be measured again, of the fewest records the fastest."""
    top = sorted(p.latency_s for p in programs)[:TOP]
    limit = NEAR * max((t for t in top if math.isfinite(t)), default=0.0)
    near = [p for p in programs if len(p.measured_s) < MOST and p.latency_s <= limit]
    ranked = sorted(near, key=lambda p: (len(p.measured_s), p.latency_s))
    return ranked[:ROUND]


def _record(first: Record, results: Sequence[MeasureResult]) -> Record:
    """Of measurements in several passes; one that failed leaves what the others say."""
    fine = [r for r in results if r.ok] or results[:1]
    return replace(
        first,
        status=str(fine[0].status),
        latency_s=min((r.latency_s for r in fine if r.latency_s is not None), default=None),
        times_s=[t for r in fine for t in r.times_s],
        error=fine[0].error,
        timestamp=time.time(),
        build_s=fine[0].build_s,
        run_s=sum(r.run_s for r in results),
    )


def _group(tuner: TaskTuner, programs: Sequence[_Program]) -> TrainingGroup:
    history = History(tuner.sketches, tuner.task.target)
    features: dict[int, Features] = {}
    of: dict[str, list[int]] = {}
    for k, p in enumerate(programs):
        of.setdefault(p.candidate.sketch.name, []).append(k)
    for name, at in of.items():
        rows = np.asarray([programs[k].candidate.row for k in at], np.int32)
        for k, found in zip(at, history.features(name, rows), strict=True):
            features[k] = found
    latency_s = np.asarray([p.latency_s for p in programs], np.float64)
    return TrainingGroup(
        tuner.task.workload_key, [features[k] for k in range(len(programs))], latency_s
    )


def _measured(tuner: TaskTuner, programs: Sequence[_Program]) -> Measured:
    return Measured(
        _group(tuner, programs),
        sum(p.is_random for p in programs),
        np.array([p.measured_s[0] for p in programs], np.float64),
        np.array([min(p.measured_s[1:] or p.measured_s) for p in programs], np.float64),
    )


def scores_by_program(
    groups: Sequence[TrainingGroup], make: Callable[[], CostModel], folds: int = 5, seed: int = 0
) -> list[Floats]:
    """Scores of all programs, each from a model that was trained without its part of them."""
    rng = np.random.default_rng(seed)
    parts = [rng.permutation(len(g.latency_s)) % folds for g in groups]
    out = [np.zeros(len(g.latency_s)) for g in groups]
    for fold in range(folds):
        model = make()
        kept = [_take(g, part != fold) for g, part in zip(groups, parts, strict=True)]
        model.update([g for g in kept if len(g.latency_s)])
        for g, part, scores in zip(groups, parts, out, strict=True):
            asked = part == fold
            scores[asked] = predicted(model, _take(g, asked))
    return out


def scores_by_task(
    groups: Sequence[TrainingGroup], make: Callable[[], CostModel], folds: int = 5, seed: int = 0
) -> list[Floats]:
    """Scores of all programs, each from a model that was trained on other tasks alone."""
    part = np.random.default_rng(seed).permutation(len(groups)) % folds
    out: dict[int, Floats] = {}
    for fold in range(min(folds, len(groups))):
        model = make()
        model.update([g for g, p in zip(groups, part, strict=True) if p != fold])
        for k in np.flatnonzero(part == fold):
            out[int(k)] = predicted(model, groups[int(k)])
    return [out[k] for k in range(len(groups))]


def _take(group: TrainingGroup, keep: npt.NDArray[np.bool_]) -> TrainingGroup:
    features = [f for f, k in zip(group.features, keep, strict=True) if k]
    return TrainingGroup(group.task_key, features, group.latency_s[keep])


def predicted(model: CostModel, group: TrainingGroup) -> Floats:
    """Scores of a task's programs, with different numbers of statements."""
    features = group.features
    out = np.zeros(len(features))
    sizes = np.array([len(f) for f in features], dtype=np.int64)
    for size in np.unique(sizes):
        at = np.flatnonzero(sizes == size)
        out[at] = model.predict(np.stack([features[int(k)] for k in at]), group.task_key)
    return out


def accuracy(
    groups: Sequence[TrainingGroup],
    scores: Sequence[Floats],
    seed: int = 0,
    n_random: Sequence[int] | None = None,
) -> Accuracy:
    """Of tasks with at least two programs; the recall of those with at least `AMONG`.

    `n_random` are numbers of programs, the first of each group, that were drawn at random: all of
    them where it is not given.
    """
    rng = np.random.default_rng(seed)
    pairs, recalls, among_random, close = [], [], [], []
    drawn = n_random or [len(s) for s in scores]
    for g, s, n in zip(groups, scores, drawn, strict=True):
        pairs.append(pairwise_accuracy(s, g.latency_s))
        if len(s) >= AMONG:
            some = rng.permutation(len(s))[:AMONG]
            recalls.append(recall_at_k(s[some], g.latency_s[some], TOP))
            close.append(_close(s[some], g.latency_s[some]))
        if n >= ENOUGH:
            some = rng.permutation(n)[:AMONG]
            among_random.append(recall_at_k(s[some], g.latency_s[some], TOP))
    label = np.concatenate([labels(g.latency_s) for g in groups])
    return Accuracy(
        float(np.nanmean(pairs)),
        _mean(recalls),
        r_squared(np.clip(np.concatenate(scores), 0.0, 1.0), label),
        _mean(among_random),
        _mean(close),
    )


def repeatability(measured: Sequence[Measured], seed: int = 0) -> Accuracy:
    """The accuracy of one measurement, where later ones tell what is true.

    It is the scale for a model's, which can exceed it only by averaging over like programs.
    """
    later = [TrainingGroup(m.group.task_key, m.group.features, m.later_s) for m in measured]
    scores = [labels(m.first_s) for m in measured]
    return accuracy(later, scores, seed, [m.n_random for m in measured])


def _close(scores: Floats, latency_s: Floats) -> float:
    best_scored = np.argsort(-scores, kind="stable")[:TOP]
    return float(np.mean(latency_s[best_scored] <= TIE * np.sort(latency_s)[TOP - 1]))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
