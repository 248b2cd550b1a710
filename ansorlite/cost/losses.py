"""Pack-sum losses: one label per program, several feature rows per program (Ansor, section 5.2).

Flow: `cost.model` turns training groups into `Packs` and boosts on the gradients computed here. A
pack is a program and its rows are the statements; the score of a program is the sum of the scores
of its rows. In: latencies in seconds (inf = failed) and `float32[S, F]` features. Out: gradient and
hessian per row, in the form LightGBM expects.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Smallest weight of a program: with weight 0, failed programs (label 0) would not affect training.
MIN_WEIGHT = 0.1
PAIRS_PER_PROGRAM = 32


@dataclass(frozen=True)
class TrainingGroup:
    """Measurements of one task: `features[i]` is float32[S_i, F], one row per statement.

    `latency_s` is float[P] in seconds; inf or NaN means that the program failed. `round_index` is
    int[P] or None: the round of the whole run, counted over all tasks, in which each result
    arrived.
    """

    task_key: str
    features: Sequence[Features]
    latency_s: Floats
    round_index: Ints | None = None


@dataclass(frozen=True)
class Packs:
    """Training data in one array: R rows of P programs of several groups.

    `features` float32[R, F]; `pack` int64[R], the program of each row; `n_rows` int64[P]; `label`
    float64[P] in [0, 1]; `group` int64[P], the index into `keys` of the task of each program.
    """

    features: Features
    pack: Ints
    n_rows: Ints
    label: Floats
    group: Ints
    keys: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def weight(self) -> Floats:
        """float64[P]: the label, at least `MIN_WEIGHT` (Ansor weights by the label alone)."""
        return np.maximum(self.label, MIN_WEIGHT)

    def sums(self, row_scores: Floats) -> Floats:
        """float64[P]: the score of each program from the scores of the rows."""
        return _sums_by(self.pack, row_scores, len(self))

    def take(self, keep: npt.NDArray[np.bool_]) -> "Packs":
        """The programs that `keep` (bool[P]) marks, in order."""
        rows = keep[self.pack]
        renumbered = np.cumsum(keep) - 1
        return Packs(
            self.features[rows],
            renumbered[self.pack[rows]],
            self.n_rows[keep],
            self.label[keep],
            self.group[keep],
            self.keys,
        )


def labels(latency_s: Floats) -> Floats:
    """float64[P]: best / this in (0, 1]; 0 for failed programs.

    Raises ValueError for a latency that is zero or negative.
    """
    latency_s = np.asarray(latency_s, np.float64)
    ok = np.isfinite(latency_s)
    if (latency_s[ok] <= 0).any():
        raise ValueError(f"latency {latency_s[ok].min()} s is not positive")
    if not ok.any():
        return np.zeros(len(latency_s))
    return np.where(ok, latency_s[ok].min() / np.where(ok, latency_s, 1.0), 0.0)


def pack_groups(groups: Sequence[TrainingGroup]) -> Packs | None:
    """All groups in one `Packs`, without programs that have no row; None if no program remains.

    Raises ValueError if numbers of programs or features disagree, or if a feature is not finite.
    """
    arrays: list[Features] = []
    label: list[Floats] = []
    group: list[Ints] = []
    for index, data in enumerate(groups):
        if len(data.features) != len(data.latency_s):
            raise ValueError(
                f"task {data.task_key}: {len(data.features)} programs have features, "
                f"{len(data.latency_s)} have a latency"
            )
        rows = np.array([len(f) > 0 for f in data.features], np.bool_)
        arrays += [f for f in data.features if len(f)]
        label.append(labels(data.latency_s)[rows])
        group.append(np.full(rows.sum(), index, np.int64))
    if not arrays:
        return None
    widths = {f.shape[1] for f in arrays}
    if len(widths) > 1:
        raise ValueError(f"programs have different numbers of features: {sorted(widths)}")
    features = np.concatenate(arrays).astype(np.float32, copy=False)
    n_rows = np.array([len(f) for f in arrays], np.int64)
    pack = np.repeat(np.arange(len(n_rows)), n_rows)
    keys = tuple(g.task_key for g in groups)
    packs = Packs(features, pack, n_rows, np.concatenate(label), np.concatenate(group), keys)
    if not np.isfinite(features).all():
        row, column = np.argwhere(~np.isfinite(features))[0]
        task = groups[int(packs.group[pack[row]])].task_key
        raise ValueError(f"task {task}: feature {column} is {features[row, column]}")
    return packs


def base_score(packs: Packs, target: Floats | None = None) -> float:
    """The constant row score that fits the target (default: the labels) best: w n y / w n n."""
    wn, y = packs.weight * packs.n_rows, packs.label if target is None else target
    return float((wn * y).sum() / (wn * packs.n_rows).sum())


@dataclass(frozen=True)
class Loss:
    """A loss on a set of packs, as functions of the row scores (float64[R]).

    `derivatives` returns gradient and hessian, float64[R] each; `value` returns the loss.
    """

    derivatives: Callable[[Floats], tuple[Floats, Floats]]
    value: Callable[[Floats], float]


def squared_loss(packs: Packs, target: Floats | None = None, weight: Floats | None = None) -> Loss:
    """Weighted squared error of the program scores: w (sum - y)^2 / 2.

    y is `target` (default: the labels); w is `weight` (default: `packs.weight`). gradient = w (sum
    - y) on every row of the pack; hessian = w n with n rows in the pack. With hessian w alone, all
    n rows may land in one leaf and the Newton step overshoots n times; w n bounds the curvature of
    the sum from above (Jensen).
    """
    y = packs.label if target is None else target
    weight = packs.weight if weight is None else weight
    hessian = (weight * packs.n_rows)[packs.pack]

    def derivatives(row_scores: Floats) -> tuple[Floats, Floats]:
        gradient = weight * (packs.sums(row_scores) - y)
        return gradient[packs.pack], hessian

    def value(row_scores: Floats) -> float:
        return float(weight @ np.square(packs.sums(row_scores) - y) / 2)

    return Loss(derivatives, value)


def rank_loss(packs: Packs, rng: np.random.Generator) -> Loss:
    """RankNet on pairs of programs of one task, each pair weighted by the difference of its labels.

    loss = |y_a - y_b| log(1 + exp(-(s_a - s_b))) for y_a > y_b. With linear gains this weight is
    the factor of LambdaRank, so separating good from bad programs matters more than the order of
    the second and third. Every program is compared with up to `PAIRS_PER_PROGRAM` programs, drawn
    once. Gradients are computed per program and copied to its rows; the hessian is multiplied by
    the number of rows as in `squared_loss`.
    """
    better, worse = _pairs(packs, rng)
    weight = packs.label[better] - packs.label[worse]
    met = np.bincount(better, minlength=len(packs)) + np.bincount(worse, minlength=len(packs))
    scale = 1.0 / max(1.0, float(met.mean()))

    def derivatives(row_scores: Floats) -> tuple[Floats, Floats]:
        sums = packs.sums(row_scores)
        wrong = logistic(sums[worse] - sums[better])
        push = weight * wrong * scale
        curve = push * (1.0 - wrong)
        gradient = _sums_by(worse, push, len(packs)) - _sums_by(better, push, len(packs))
        hessian = _sums_by(worse, curve, len(packs)) + _sums_by(better, curve, len(packs))
        return gradient[packs.pack], (hessian * packs.n_rows)[packs.pack]

    def value(row_scores: Floats) -> float:
        sums = packs.sums(row_scores)
        return float(weight @ np.logaddexp(0.0, sums[worse] - sums[better]) * scale)

    return Loss(derivatives, value)


def _pairs(packs: Packs, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Pairs of programs of the same group with different labels: (better, worse)."""
    order = np.argsort(packs.group, kind="stable")
    size = np.bincount(packs.group)[packs.group]
    first = np.searchsorted(packs.group[order], packs.group)
    partner = first[:, None] + rng.integers(0, size[:, None], (len(packs), PAIRS_PER_PROGRAM))
    a = np.repeat(np.arange(len(packs)), PAIRS_PER_PROGRAM)
    b = order[partner.ravel()]
    differ = packs.label[a] != packs.label[b]
    a, b = a[differ], b[differ]
    a_better = packs.label[a] > packs.label[b]
    return np.where(a_better, a, b), np.where(a_better, b, a)


def _sums_by(index: Ints, values: Floats, n: int) -> Floats:
    """float64[n]: the sum of the values at each index."""
    return np.bincount(index, values, n).astype(np.float64, copy=False)


def logistic(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))
