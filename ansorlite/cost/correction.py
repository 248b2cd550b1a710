"""Correction model: boosted trees that learn the error of the analytic cost model.

In: `TrainingGroup`s, and features float32[P, S, F] of `cost.features`. Out: predicted best/this.
One row describes a whole program: features of the costliest statement, sums and maxima over all
statements, and cycles per operation by kind. The log2 of the speed starts at the analytic estimate,
and the trees predict the remaining difference. A few dozen programs therefore refine the order
given by the estimate where the data supports a change; trees trained from scratch on so few
programs would order unseen programs at random.

Most of the squared error comes from slow programs, while a search needs the order of the fast
programs. Where fast programs of the task itself have been measured, `cost.task_residual` refines
that order. For tasks without measurements, additional trees may be trained on fast programs alone
(`fast`); they apply only to programs predicted to be fast. Such trees need thousands of programs
and longer training than one measuring round, so a search never retrains them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ansorlite.cost.analytic import analytic_score
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
from ansorlite.cost.model import CostModel, GBDTModel, PathLike, TreeStage
from ansorlite.cost.names import ARITHMETIC, AT, CYCLES, LOGGED, PLAIN
from ansorlite.cost.prior import Prior
from ansorlite.cost.task_residual import TaskResidual
from ansorlite.cost.training_cutoff import has_rounds
from ansorlite.cost.trees import GBDTParams, sum_of_trees

MIN_CYCLES_PER_OP = 2.0**-10  # cycles per operation; smaller values count as this value
WORK = (*ARITHMETIC, "executions")
WORK_AT = [AT[k] for k in WORK]
MIN_LABEL = 2.0**-6  # smallest label; failed programs get this label
# Predicted best/this where the fast-program trees start to count, and where they count fully.
FAST_RANGE = (0.5, 0.85)
# The weight is label**FAST_EXPONENT: a program at half the best speed has almost no weight.
FAST_EXPONENT = 20.0


class CorrectionModel(GBDTModel):
    """A `GBDTModel` over whole programs: log2(best/this) = analytic estimate + sum of trees.

    `objective` "regression" fits log2(best/this) with the weights of `cost.losses`; "rank" fits the
    order within each task. With `fast`, such as `FAST_PARAMS`, regression on at least
    `fast.min_programs` programs also trains trees on fast programs; intended for models that are
    trained once. Example: `model = CorrectionModel(seed=0); model.update(groups);
    model.predict(features)`.
    """

    KIND = "correction"
    PARAMS = GBDTParams(
        n_trees=450,
        rows_per_tree=10.0,
        learning_rate=0.1,
        feature_fraction=0.3,
        l2=1.0,
        min_hessian_in_leaf=1e-3,
        min_programs=64,  # the errors of fewer programs are mostly noise
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
        prior: Prior | None = None,
    ) -> None:
        """With a `prior` the estimate that the trees correct is that of the prior."""
        super().__init__(seed, num_threads, objective, params)
        self._fast = fast if objective == "regression" else None
        self._residual = TaskResidual(seed, num_threads)
        self._prior = prior
        self._least_work: dict[str, float] = {}  # by task

    @property
    def is_trained(self) -> bool:
        """With a prior from the start."""
        return self._prior is not None or super().is_trained

    @property
    def has_only_prior(self) -> bool:
        """Is there a prior, and nothing learned yet?"""
        return self._prior is not None and not self._stages

    def begin_with(self, prior: Prior) -> None:
        """Take a prior, before anything was learned."""
        if not super().is_trained:
            self._prior = prior

    def predict(self, features: Features, task_key: str = "") -> Floats:
        """As `GBDTModel.predict`; before training, with a prior, the speed up to a factor."""
        if self._stages or self._prior is None or not len(features):
            return super().predict(features, task_key)
        return self._shares(self._start(self._view(features, task_key)[:, 0]))

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Update the trees, then each task's Gaussian process with all its programs.

        The processes also use programs after the training cutoff of the trees.
        """
        if not has_rounds(groups):
            self._residual = TaskResidual(self._seed, self._num_threads)
        super().update(groups)
        if self.objective == "regression" and self._stages:
            self._residual.update_processes(groups, self._as_program_rows)

    def load(self, path: PathLike) -> None:
        """Load the trees; Gaussian processes of single tasks are not saved and start empty."""
        super().load(path)
        self._residual = TaskResidual(self._seed, self._num_threads)

    def _packs(self, groups: Sequence[TrainingGroup]) -> Packs | None:
        return pack_groups([self._as_program_rows(g) for g in groups])

    def _view(self, features: Features, task_key: str) -> Features:
        return self._program_rows(features, task_key)[:, None]

    def _program_rows(self, features: Features, task_key: str) -> Features:
        """`program_rows`; with a prior one more column, whose estimate takes the last place.

        There cycles stand to the least work that any program of the task does: programs that
        compute values several times are to be as slow as they are.
        """
        rows = program_rows(features)
        if self._prior is None or not len(rows):
            return rows
        work = work_of(features)
        least = min(float(work.min()), self._least_work.get(task_key, np.inf))
        self._least_work[task_key] = least
        own = -analytic_score(features) - np.log2(least) - self._prior.correction(features)
        return np.concatenate([rows, own[:, None].astype(np.float32)], axis=1)

    def _as_program_rows(self, group: TrainingGroup) -> TrainingGroup:
        """The same programs with one row each; a program without statements keeps no row."""
        rows: list[Features] = list(group.features)
        sizes = np.array([len(f) for f in rows], np.int64)
        for size in np.unique(sizes[sizes > 0]):
            at = np.flatnonzero(sizes == size)
            found = self._program_rows(np.stack([rows[i] for i in at]), group.task_key)
            for k, row in zip(at, found, strict=True):
                rows[k] = row[None]
        return replace(group, features=rows)

    def _constant(self, packs: Packs) -> float:
        return base_score(packs, _log_label(packs) - self._start(packs.features))

    def _start(self, rows: Features) -> Floats:
        """The estimate, analytic or the prior's: log2 of operations per cycle."""
        return -rows[:, -1].astype(np.float64)

    def _regression(self, packs: Packs) -> Loss:
        return squared_loss(packs, _log_label(packs))

    def _learned(self, packs: Packs) -> list[TreeStage]:
        found = super()._learned(packs)
        if self._fast is not None and len(packs) >= self._fast.min_programs:
            fast = packs.take(packs.label >= FAST_RANGE[0])
            trees = self._train(fast, self._fast, _loss_of_fast, self._loaded + found)
            found.append(TreeStage(trees, of_fast=True))
        if self.objective == "regression":
            self._residual.train(packs)
        return found

    def _refined(self, shares: Floats, seen: Features, task_key: str) -> Floats:
        return self._residual.refined(task_key, seen[:, 0], shares)

    def _added(self, stage: TreeStage, rows: Features, scores: Floats) -> Floats:
        if not stage.of_fast:
            return super()._added(stage, rows, scores)
        low, high = FAST_RANGE
        share = np.clip((self._shares(scores + self._base) - low) / (high - low), 0.0, 1.0)
        out = np.zeros(len(rows))
        at = np.flatnonzero(share)
        if len(at):
            out[at] = share[at] * sum_of_trees(stage.booster, rows[at], self._num_threads)
        return out

    def _shares(self, scores: Floats) -> Floats:
        """best/this from its logarithm."""
        found: Floats = np.exp2(np.clip(scores, -60.0, 60.0))
        return found


def is_only_prior(model: CostModel) -> bool:
    """Does the model know what a prior says, and nothing yet of the run's own measurements?"""
    return isinstance(model, CorrectionModel) and model.has_only_prior


def _loss_of_fast(packs: Packs, rng: np.random.Generator) -> Loss:
    """Squared error with weight label**FAST_EXPONENT."""
    return squared_loss(packs, _log_label(packs), packs.label**FAST_EXPONENT)


def _log_label(packs: Packs) -> Floats:
    """Training target: log2 of the label."""
    found: Floats = np.log2(np.maximum(packs.label, MIN_LABEL))
    return found


def work_of(features: Features) -> Floats:
    """float64[P]: operations and executions of all statements, at least 1."""
    total = (np.exp2(features[:, :, WORK_AT].astype(np.float64)) - 1.0).sum(axis=(1, 2))
    found: Floats = np.maximum(total, 1.0)
    return found


def program_rows(features: Features) -> Features:
    """Program rows float32[P, 3 F + len(CYCLES) + 1] from statement features float32[P, S, F].

    Columns: F features of the costliest statement, F sums over statements, F maxima over
    statements, log2 of cycles per operation by kind, and log2 of total cycles per operation.
    """
    n, _, width = features.shape
    magnitude = features.astype(np.float64)
    magnitude[:, :, LOGGED] = np.exp2(magnitude[:, :, LOGGED]) - 1.0
    costliest = magnitude[:, :, AT["cycles_all"]].argmax(axis=1)
    total: npt.NDArray[np.float64] = magnitude.sum(axis=1)
    work = sum(total[:, AT[k]] for k in WORK)
    kinds = total[:, [AT[f"cycles_{k}"] for k in (*CYCLES, "all")]]
    out = np.empty((n, 3 * width + kinds.shape[1]), np.float32)
    out[:, :width] = features[np.arange(n), costliest]
    out[:, width + PLAIN] = total[:, PLAIN]
    out[:, width + LOGGED] = np.log2(1.0 + total[:, LOGGED])
    out[:, 2 * width : 3 * width] = features.max(axis=1)
    out[:, 3 * width :] = np.log2(kinds / np.maximum(work, 1.0)[:, None] + MIN_CYCLES_PER_OP)
    return out
