"""Boosted trees that correct the analytic score: what is known of machines is not learned again.

In: `TrainingGroup`s and float32[P, S, F] of `cost.features`. Out: about best/this. A program is one
row: its costliest statement, sums and maxima over all of them, and cycles of each kind per
operation. Log2 of the speed starts at the analytic estimate's and trees learn what that leaves to
explain. A few dozen programs then refine the order of the estimate where they have something to
say, and leave it as it is elsewhere; trees that must learn everything from them order what they
have not seen at random. Most of the error is of slow ones, while a search asks which of the fast
are fastest: `cost.task_residual` tells, where programs of the task have been measured. For tasks of
which nothing is known, further trees may learn from fast programs alone, and add to their scores
alone. They need thousands, and training them takes longer than measuring a round, so no search
retrains them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ansorlite.cost.losses import (
    Features,
    Floats,
    Loss,
    Packs,
    TrainingGroup,
    base_score,
    pack_groups,
    squared_loss,
)
from ansorlite.cost.model import GBDTModel, PathLike, TreeStage
from ansorlite.cost.names import ARITHMETIC, AT, CYCLES, LOGGED, PLAIN
from ansorlite.cost.task_residual import OwnPrograms
from ansorlite.cost.training_cutoff import is_history
from ansorlite.cost.trees import GBDTParams, sum_of_trees

LEAST_PART = 2.0**-10  # cycles an operation, which make no difference
LEAST_SHARE = 2.0**-6  # of the best speed; failures count as that
FAST = (0.5, 0.85)  # shares of the best speed: not yet fast, and fast for certain
FAST_POWER = 20.0  # of the label: half as fast as the best counts next to nothing


class CorrectionModel(GBDTModel):
    """A `GBDTModel` of whole programs; log2 of best/this is the analytic one plus a sum of trees.

    Objective "regression" fits log2 of best/this, weighted as there, "rank" the order in a task.
    With `fast`, such as `FAST_PARAMS`, regression on `fast.min_programs` or more programs has trees
    of the fast ones, too: for models that are trained once.
    """

    KIND = "correction"
    PARAMS = GBDTParams(
        n_trees=450,
        rows_per_tree=10.0,
        learning_rate=0.1,
        feature_fraction=0.3,
        l2=1.0,
        min_hessian_in_leaf=1e-3,
        min_programs=64,  # what fewer say of the estimate's errors is mostly their luck
        holdout=0.0,
    )
    FAST_PARAMS = replace(
        PARAMS,
        n_leaves=63,
        max_bins=255,
        l2=0.1,
        min_hessian_in_leaf=1e-4,
        min_programs=8000,
    )

    def __init__(
        self,
        seed: int = 0,
        num_threads: int = 1,
        objective: Literal["regression", "rank"] = "regression",
        params: GBDTParams | None = None,
        fast: GBDTParams | None = None,
    ) -> None:
        super().__init__(seed, num_threads, objective, params)
        self._fast = fast if objective == "regression" else None
        self._own = OwnPrograms(seed, num_threads)

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """As ever; what a task's own programs say is that of all of them, the last ones, too."""
        if not is_history(groups):
            self._own = OwnPrograms(self._seed, self._num_threads)
        super().update(groups)
        if self.objective == "regression" and self.is_trained:
            self._own.know(groups, _whole)

    def load(self, path: PathLike) -> None:
        """As ever; programs of single tasks are no part of what is saved, and are forgotten."""
        super().load(path)
        self._own = OwnPrograms(self._seed, self._num_threads)

    def _packs(self, groups: Sequence[TrainingGroup]) -> Packs | None:
        return pack_groups([_whole(g) for g in groups])

    def _view(self, features: Features) -> Features:
        return program_rows(features)[:, None]

    def _constant(self, packs: Packs) -> float:
        return base_score(packs, _wanted(packs) - self._start(packs.features))

    def _start(self, rows: Features) -> Floats:
        """Log2 of operations a cycle, by the analytic estimate."""
        return -rows[:, -1].astype(np.float64)

    def _regression(self, packs: Packs) -> Loss:
        return squared_loss(packs, _wanted(packs))

    def _learned(self, packs: Packs) -> list[TreeStage]:
        found = super()._learned(packs)
        if self._fast is not None and len(packs) >= self._fast.min_programs:
            fast = packs.take(packs.label >= FAST[0])
            trees = self._train(fast, self._fast, _loss_of_fast, self._loaded + found)
            found.append(TreeStage(trees, of_fast=True))
        if self.objective == "regression":
            self._own.learn(packs)
        return found

    def _refined(self, shares: Floats, seen: Features, task_key: str) -> Floats:
        return self._own.refined(task_key, seen[:, 0], shares)

    def _added(self, stage: TreeStage, rows: Features, scores: Floats) -> Floats:
        if not stage.of_fast:
            return super()._added(stage, rows, scores)
        low, high = FAST
        share = np.clip((self._shares(scores + self._base) - low) / (high - low), 0.0, 1.0)
        out = np.zeros(len(rows))
        at = np.flatnonzero(share)
        if len(at):
            out[at] = share[at] * sum_of_trees(stage.booster, rows[at], self._num_threads)
        return out

    def _shares(self, scores: Floats) -> Floats:
        found: Floats = np.exp2(np.clip(scores, -60.0, 60.0))
        return found


def _loss_of_fast(packs: Packs, rng: np.random.Generator) -> Loss:
    return squared_loss(packs, _wanted(packs), packs.label**FAST_POWER)


def _wanted(packs: Packs) -> Floats:
    found: Floats = np.log2(np.maximum(packs.label, LEAST_SHARE))
    return found


def _whole(group: TrainingGroup) -> TrainingGroup:
    """The same programs, a row each; those without a statement stay without."""
    rows: list[Features] = list(group.features)
    sizes = np.array([len(f) for f in rows], np.int64)
    for size in np.unique(sizes[sizes > 0]):
        at = np.flatnonzero(sizes == size)
        for k, row in zip(at, program_rows(np.stack([rows[i] for i in at])), strict=True):
            rows[k] = row[None]
    return replace(group, features=rows)


def program_rows(features: Features) -> Features:
    """float32[P, 3 F + kinds of cycles + 1] from float32[P, S, F].

    The last columns are log2 of the cycles an operation by kind, and of all of them.
    """
    n, _, width = features.shape
    magnitude = features.astype(np.float64)
    magnitude[:, :, LOGGED] = np.exp2(magnitude[:, :, LOGGED]) - 1.0
    costliest = magnitude[:, :, AT["cycles_all"]].argmax(axis=1)
    total: npt.NDArray[np.float64] = magnitude.sum(axis=1)
    work = sum(total[:, AT[k]] for k in (*ARITHMETIC, "executions"))
    kinds = total[:, [AT[f"cycles_{k}"] for k in (*CYCLES, "all")]]
    out = np.empty((n, 3 * width + kinds.shape[1]), np.float32)
    out[:, :width] = features[np.arange(n), costliest]
    out[:, width + PLAIN] = total[:, PLAIN]
    out[:, width + LOGGED] = np.log2(1.0 + total[:, LOGGED])
    out[:, 2 * width : 3 * width] = features.max(axis=1)
    out[:, 3 * width :] = np.log2(kinds / np.maximum(work, 1.0)[:, None] + LEAST_PART)
    return out
