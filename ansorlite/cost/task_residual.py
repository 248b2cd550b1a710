"""Task residual: refines predictions for fast programs by the measurements of the task itself.

In: programs with the keys of their tasks, and the predicted best/this of another model for other
programs. Out: the predictions, where those of fast programs are moved to the prediction of the
task's own Gaussian process plus trees shared by all tasks. The trees learn the residual of the
processes from leave-one-out predictions and the features of a program.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.cost.gaussian import GaussianProcess, Rows
from ansorlite.cost.losses import (
    Floats,
    Loss,
    Packs,
    TrainingGroup,
    labels,
    squared_loss,
)
from ansorlite.cost.trees import GBDTParams, sum_of_trees, train_trees

if TYPE_CHECKING:
    import lightgbm as lgb

PARAMS = GBDTParams(
    n_trees=300,
    rows_per_tree=10.0,
    learning_rate=0.1,
    feature_fraction=0.3,
    l2=0.1,
    min_hessian_in_leaf=1e-4,
    min_programs=32,
    holdout=0.0,  # differences of a few per cent are below the noise of a held-out loss
)
ToProgramRows = Callable[[TrainingGroup], TrainingGroup]
LABEL_EXPONENT = 30.0  # the weight of a program is label**LABEL_EXPONENT
# Predicted best/this where the refinement starts, and where it replaces the prediction.
FAST_RANGE = (0.65, 0.9)


class _Known(NamedTuple):
    """The labels of all programs of a task, and the process trained on these programs."""

    label: Floats
    process: GaussianProcess


class TaskResidual:
    """Refines another model's predictions for tasks with fast measured programs."""

    def __init__(self, seed: int, num_threads: int) -> None:
        self._seed, self._num_threads = seed, num_threads
        self._tasks: dict[str, _Known] = {}
        self._trees: lgb.Booster | None = None

    def train(self, packs: Packs) -> None:
        """Retrain the trees on leave-one-out predictions; `packs` has one row per program."""
        self._trees = None
        predicted = np.full(len(packs), np.nan)
        for k, key in enumerate(packs.keys):
            at = np.flatnonzero(packs.group == k)
            known = self._known(key, packs.label[at], partial(_take, packs.features, at))
            if known is not None:
                predicted[at[known.process.at]] = known.process.leave_one_out
        fast = np.isfinite(predicted)
        if fast.sum() < PARAMS.min_programs:
            return
        packs, predicted = packs.take(fast), predicted[fast]
        packs = replace(packs, features=_with_prediction(packs.features, predicted))
        self._trees = train_trees(packs, PARAMS, _loss, predicted, self._seed, self._num_threads)

    def update_processes(self, groups: Sequence[TrainingGroup], to_rows: ToProgramRows) -> None:
        """Update the processes; `to_rows` converts a group to one row per program."""
        for g in groups:
            has_rows = np.array([len(f) > 0 for f in g.features], np.bool_)
            self._known(g.task_key, labels(g.latency_s)[has_rows], partial(_rows, g, to_rows))
        keys = {g.task_key for g in groups}
        self._tasks = {key: known for key, known in self._tasks.items() if key in keys}

    def _known(self, key: str, label: Floats, rows: Callable[[], Rows]) -> _Known | None:
        """The process of a task, retrained only for new programs; None if too few are fast."""
        known = self._tasks.pop(key, None)
        if known is None or not np.array_equal(known.label, label):
            if not GaussianProcess.has_enough(label):
                return None
            known = _Known(label, GaussianProcess(rows(), label))
        self._tasks[key] = known
        return known

    def refined(self, key: str, rows: Rows, shares: Floats) -> Floats:
        """float64[P], refined best/this, for `rows` float32[P, F] with predictions `shares`."""
        low, high = FAST_RANGE
        at = np.flatnonzero(shares > low)
        if key not in self._tasks or not len(at):
            return shares
        found = self._tasks[key].process.predict(rows[at])
        if self._trees is not None:
            found += sum_of_trees(self._trees, _with_prediction(rows[at], found), self._num_threads)
        weight = np.minimum((shares[at] - low) / (high - low), 1.0)
        out = shares.copy()
        out[at] = np.exp2(weight * found + (1.0 - weight) * np.log2(shares[at]))
        return out


def _loss(packs: Packs, rng: np.random.Generator) -> Loss:
    """Squared error of log2(label) with weight label**LABEL_EXPONENT."""
    return squared_loss(packs, np.log2(packs.label), packs.label**LABEL_EXPONENT)


def _with_prediction(rows: Rows, predicted: Floats) -> Rows:
    """Rows with the predictions of the process as an additional column."""
    return np.hstack([rows, predicted[:, None].astype(np.float32)])


def _rows(group: TrainingGroup, to_rows: ToProgramRows) -> Rows:
    return np.concatenate([f for f in to_rows(group).features if len(f)])


def _take(rows: Rows, at: npt.NDArray[np.int64]) -> Rows:
    return rows[at]
