"""What the fast programs of a task itself say, after a model of all tasks has told which are fast.

In: packs of whole programs, a row each, with the keys of their tasks; then shares of the best speed
that another model expects of some. Out: these shares, those of fast programs moved to what the
task's own Gaussian process expects, plus trees that all tasks share, which learn what the processes
leave to explain. They learn from what each would have said of a program without knowing it.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ansorlite.cost.gaussian import GaussianProcess, Rows
from ansorlite.cost.losses import Floats, Loss, Packs, squared_loss
from ansorlite.cost.trees import GBDTParams, sum_of_trees, train_trees

if TYPE_CHECKING:
    import lightgbm as lgb

PARAMS = GBDTParams(
    n_trees=150,
    rows_per_tree=10.0,
    learning_rate=0.1,
    feature_fraction=0.3,
    l2=0.1,
    min_hessian_in_leaf=1e-4,
    min_programs=32,
    holdout=0.0,  # a few per cent are less than what two measurements differ by
)
POWER = 30.0  # of the label, by which programs count
FAST = (0.65, 0.9)  # shares of the best speed: not yet fast, and fast for certain


class _Known(NamedTuple):
    """A process and what it was made of."""

    rows: Rows
    label: Floats
    process: GaussianProcess


class OwnPrograms:
    """Refines another model's scores of programs of tasks that have fast ones of their own."""

    def __init__(self, seed: int, num_threads: int) -> None:
        self._seed, self._num_threads = seed, num_threads
        self._of: dict[str, _Known] = {}
        self._trees: lgb.Booster | None = None

    def update(self, packs: Packs) -> None:
        """Learn anew from all programs; processes of tasks without a new one stay as they are."""
        before, self._of, self._trees = self._of, {}, None
        said = np.full(len(packs), np.nan)
        for k, key in enumerate(packs.keys):
            at = np.flatnonzero(packs.group == k)
            rows, label = packs.features[at], packs.label[at]
            if not GaussianProcess.enough(label):
                continue
            known = before.get(key)
            if known is None or not _same(known, rows, label):
                known = _Known(rows, label, GaussianProcess(rows, label))
            self._of[key] = known
            said[at[known.process.at]] = known.process.left_out
        fast = np.isfinite(said)
        if fast.sum() < PARAMS.min_programs:
            return
        packs, said = packs.take(fast), said[fast]
        packs = replace(packs, features=_with(packs.features, said))
        self._trees = train_trees(packs, PARAMS, _loss, said, self._seed, self._num_threads)

    def refined(self, key: str, rows: Rows, shares: Floats) -> Floats:
        """float64[P], about best/this, of `rows` float32[P, F] for which `shares` are expected."""
        low, high = FAST
        at = np.flatnonzero(shares > low)
        if key not in self._of or not len(at):
            return shares
        found = self._of[key].process.predict(rows[at])
        if self._trees is not None:
            found += sum_of_trees(self._trees, _with(rows[at], found), self._num_threads)
        weight = np.minimum((shares[at] - low) / (high - low), 1.0)
        out = shares.copy()
        out[at] = np.exp2(weight * found + (1.0 - weight) * np.log2(shares[at]))
        return out


def _loss(packs: Packs, rng: np.random.Generator) -> Loss:
    return squared_loss(packs, np.log2(packs.label), packs.label**POWER)


def _with(rows: Rows, said: Floats) -> Rows:
    return np.hstack([rows, said[:, None].astype(np.float32)])


def _same(known: _Known, rows: Rows, label: Floats) -> bool:
    return np.array_equal(known.label, label) and np.array_equal(known.rows, rows)
