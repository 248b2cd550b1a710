"""How good the cost model is on programs, and on tasks, that it was not trained on.

In: tasks and a time to measure in, half of it for random programs, half for those that a search
visits: a sample of all that its generations hold, which is what it asks the model about; or of
those alone that it would measure, picked by the model as the best of them. Out: a `TrainingGroup` a
task, random programs first; scores of every program from models that have not seen it (`folds`
parts of the programs, or of the tasks, are left out in turn); `Accuracy` of them. Labels are
best/this within a task, the metrics those of Ansor section 7.5.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ansorlite.cost.losses import Features, TrainingGroup, labels
from ansorlite.cost.metrics import pairwise_accuracy, r_squared, recall_at_k
from ansorlite.cost.model import CostModel
from ansorlite.measure.builder import Builder
from ansorlite.measure.runner import Runner
from ansorlite.search.history import History
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.tune import Session
from ansorlite.search.tuner import TaskTuner, record_candidate
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
ENOUGH = 300  # random programs of a task, for a recall of them alone


@dataclass(frozen=True)
class Accuracy:
    """Means over tasks of the share of pairs in order (that differ by more than 5 %) and of the
    fastest `TOP` of `AMONG` programs that are among the `TOP` best scored; R2 over all labels, of
    scores as shares of the best speed, which are at most 1. Of the programs that a search picks
    hundreds lie within a few per cent of the best, less than two measurements of one of them
    differ by; `recall_random` is that of the random programs alone.
    """

    pairwise: float
    recall: float
    r_squared: float
    recall_random: float


def collect(
    folder: Path,
    tasks: Sequence[SearchTask],
    seconds: float,
    builder: Builder,
    runner: Runner,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
    kind: str = "visited",
) -> list[tuple[TrainingGroup, int]]:
    """Measure rounds of all tasks in turn, random programs and `kind`; the logs in `folder` count.

    Returns what was measured of every task, and how many programs, the first ones, are random.
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
                    seed,
                    folder / f"{name}.jsonl",
                    policy,
                    builder=builder,
                    runner=runner,
                    progress=False,
                    params=params,
                )
            )
            tuners[name] = [sessions[name].tuner(t) for t in tasks]
        left = [(name, k) for k in range(len(tasks)) for name in both]
        while left and sessions["random"].left_s() > 0:
            sessions[kind].train(tuners[kind])
            for name, k in list(left):
                if sessions[name].left_s() <= 0:
                    break
                if tuners[name][k].round(ROUND) == 0:
                    left.remove((name, k))  # its space is used up
            tell(f"{sum(t.trials for found in tuners.values() for t in found)} programs")
        pairs = zip(*tuners.values(), strict=True)
        return [_merged([_measured(x) for x in pair]) for pair in pairs]


def _measured(tuner: TaskTuner) -> TrainingGroup:
    """All records of a task that are in its space, those of an open round included."""
    space = {s.name: s for s in tuner.sketches}
    rows: dict[str, list[tuple[int, ...]]] = {}
    times: dict[str, list[float]] = {}
    for r in tuner.records:
        c = record_candidate(tuner.task, space, r)
        if c is not None:
            rows.setdefault(c.sketch.name, []).append(c.row)
            latency_s = r.latency_s if r.ok and r.latency_s else float("inf")
            times.setdefault(c.sketch.name, []).append(latency_s)
    history = History(tuner.sketches, tuner.task.target)
    features = [
        f for name, own in rows.items() for f in history.features(name, np.asarray(own, np.int32))
    ]
    latency = np.asarray([t for own in times.values() for t in own], np.float64)
    return TrainingGroup(tuner.task.workload_key, features, latency)


def _merged(parts: Sequence[TrainingGroup]) -> tuple[TrainingGroup, int]:
    features = [f for p in parts for f in p.features]
    latency_s = np.concatenate([p.latency_s for p in parts])
    return TrainingGroup(parts[0].task_key, features, latency_s), len(parts[0].latency_s)


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
            scores[asked] = predicted(model, _take(g, asked).features)
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
            out[int(k)] = predicted(model, groups[int(k)].features)
    return [out[k] for k in range(len(groups))]


def _take(group: TrainingGroup, keep: npt.NDArray[np.bool_]) -> TrainingGroup:
    features = [f for f, k in zip(group.features, keep, strict=True) if k]
    return TrainingGroup(group.task_key, features, group.latency_s[keep])


def predicted(model: CostModel, features: Sequence[Features]) -> Floats:
    """Scores of programs with different numbers of statements."""
    out = np.zeros(len(features))
    sizes = np.array([len(f) for f in features], dtype=np.int64)
    for size in np.unique(sizes):
        at = np.flatnonzero(sizes == size)
        out[at] = model.predict(np.stack([features[int(k)] for k in at]))
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
    pairs, recalls, among_random = [], [], []
    drawn = n_random or [len(s) for s in scores]
    for g, s, n in zip(groups, scores, drawn, strict=True):
        pairs.append(pairwise_accuracy(s, g.latency_s))
        if len(s) >= AMONG:
            recalls.append(_recall(s, g.latency_s, rng))
        if n >= ENOUGH:
            among_random.append(_recall(s[:n], g.latency_s[:n], rng))
    label = np.concatenate([labels(g.latency_s) for g in groups])
    return Accuracy(
        float(np.nanmean(pairs)),
        float(np.mean(recalls)) if recalls else float("nan"),
        r_squared(np.clip(np.concatenate(scores), 0.0, 1.0), label),
        float(np.mean(among_random)) if among_random else float("nan"),
    )


def _recall(scores: Floats, latency_s: Floats, rng: np.random.Generator) -> float:
    some = rng.permutation(len(scores))[:AMONG]
    return recall_at_k(scores[some], latency_s[some], TOP)
