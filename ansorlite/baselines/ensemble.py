"""Models with an uncertainty, and models that begin with measurements of other tasks.

In: `TrainingGroup`s. Out: `predict`, about best/this, and `spread`, its standard deviation over
trees trained on resampled programs (bootstrap), for the acquisitions of `annealing` that explore.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import GBDTModel

Features = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
MEMBERS = 5


class SingleModel:
    """One `GBDTModel`; its spread is 0.

    With `transfer`, groups of other tasks train a global model first; the trees of the task at hand
    fit its residual (AutoTVM's global and local model).
    """

    def __init__(
        self,
        seed: int = 0,
        objective: Literal["regression", "rank"] = "regression",
        transfer: bool = False,
    ) -> None:
        self._seed, self._objective, self._transfer = seed, objective, transfer
        self._global = GBDTModel(seed, objective=objective)
        self._model = self._global
        self._known = -1

    @property
    def is_trained(self) -> bool:
        return self._model.is_trained

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Learn from all groups; the last one is the task at hand."""
        if not self._transfer:
            self._model.update(groups)
            return
        other_tasks, own = groups[:-1], groups[-1:]
        known = sum(len(g.latency_s) for g in other_tasks)
        if known != self._known:
            self._global = GBDTModel(self._seed, objective=self._objective)
            self._global.update(other_tasks)
            self._known = known
        self._model = GBDTModel(self._seed, objective=self._objective)
        if self._global.is_trained:
            self._model.start_from(self._global)
        self._model.update(own)

    def predict(self, features: Features) -> Floats:
        return self._model.predict(features)

    def spread(self, features: Features) -> Floats:
        return np.zeros(len(features))


class BootstrapEnsemble:
    """`MEMBERS` models, each trained on as many programs drawn with replacement."""

    def __init__(
        self,
        seed: int = 0,
        objective: Literal["regression", "rank"] = "regression",
        members: int = MEMBERS,
    ) -> None:
        self._seed = seed
        self._members = [GBDTModel(seed + k, objective=objective) for k in range(members)]

    @property
    def is_trained(self) -> bool:
        return all(m.is_trained for m in self._members)

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Retrain all members."""
        for k, member in enumerate(self._members):
            rng = np.random.default_rng([self._seed, k])
            member.update([_resampled(g, rng) for g in groups])

    def predict(self, features: Features) -> Floats:
        return np.asarray(np.mean(self._all(features), axis=0), np.float64)

    def spread(self, features: Features) -> Floats:
        return np.asarray(np.std(self._all(features), axis=0), np.float64)

    def _all(self, features: Features) -> Floats:
        return np.stack([m.predict(features) for m in self._members])


def _resampled(group: TrainingGroup, rng: np.random.Generator) -> TrainingGroup:
    n = len(group.latency_s)
    drawn = rng.integers(0, n, n) if n else np.empty(0, np.int64)
    # The best one belongs to every sample: labels are relative to it.
    if n and np.isfinite(group.latency_s).any():
        drawn[0] = int(np.argmin(group.latency_s))
    return TrainingGroup(
        group.task_key, [group.features[int(i)] for i in drawn], group.latency_s[drawn]
    )
