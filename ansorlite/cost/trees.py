"""Training of boosted trees (LightGBM) for the losses of `cost.losses`.

In: `Packs`, a loss, and initial row scores. Out: a booster whose predictions are added to the
initial scores. LightGBM is imported when trees are trained or parsed, see `cost.model`.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ansorlite.cost.losses import Features, Floats, Loss, Packs
from ansorlite.cost.tree_text import check_trees

if TYPE_CHECKING:
    import lightgbm as lgb

MakeLoss = Callable[[Packs, np.random.Generator], Loss]


@dataclass(frozen=True)
class GBDTParams:
    """Size and training parameters of a `GBDTModel`; prediction time limits the number of trees.

    A tree has one leaf per `rows_per_leaf` rows of training data, at least 7 and at most
    `n_leaves`. With `rows_per_tree` > 0 there is one tree per `rows_per_tree` rows, at least 60 and
    at most `n_trees`. Below `min_programs` programs the model stays untrained. From `holdout_from`
    programs on, a share `holdout` is held out for early stopping after `patience` trees without
    improvement; with fewer programs the held-out loss is too noisy and would stop training far too
    early.
    """

    n_trees: int = 100
    n_leaves: int = 31
    rows_per_leaf: int = 100
    rows_per_tree: float = 0.0
    learning_rate: float = 0.2
    min_rows_in_leaf: int = 5
    feature_fraction: float = 0.8
    l2: float = 0.1
    # Ranking hessians are weights far below 1; LightGBM's default minimum is meant for counts.
    min_hessian_in_leaf: float = 0.0
    max_bins: int = 63
    min_programs: int = 16
    holdout_from: int = 2000
    holdout: float = 0.1
    patience: int = 20

    def sizes(self, rows: int) -> tuple[int, int]:
        """(number of trees, leaves per tree) for a number of training rows."""
        trees = self.n_trees
        if self.rows_per_tree:
            trees = min(trees, max(60, round(rows / self.rows_per_tree)))
        return trees, min(self.n_leaves, max(7, rows // self.rows_per_leaf))


def train_trees(
    packs: Packs,
    p: GBDTParams,
    make_loss: MakeLoss,
    start: Floats,
    seed: int,
    num_threads: int,
) -> "lgb.Booster":
    """Trees that predict the residual of the scores `start`, float64[R]."""
    import lightgbm as lgb

    rng = np.random.default_rng(seed)
    common = common_params(seed, num_threads)
    train, own = packs, start
    held_out = None
    if p.holdout > 0.0 and len(packs) >= p.holdout_from:
        held_out = rng.random(len(packs)) < p.holdout
        train, own = packs.take(~held_out), start[~held_out[packs.pack]]
    loss = make_loss(train, rng)
    data = _dataset(train, p, own, common)
    stopping: dict[str, Any] = {}
    if held_out is not None:
        check = packs.take(held_out)
        check_loss = make_loss(check, rng)
        asked = _dataset(check, p, start[held_out[packs.pack]], common, reference=data)
        stopping = {
            "valid_sets": [asked],
            "feval": lambda scores, _: ("loss", check_loss.value(scores), False),
            "callbacks": [lgb.early_stopping(p.patience, verbose=False)],
        }
    trees, leaves = p.sizes(len(train.features))
    settings = {
        **common,
        "objective": lambda scores, _: loss.derivatives(scores),
        "metric": "None",
        "learning_rate": p.learning_rate,
        "num_leaves": leaves,
        "min_data_in_leaf": p.min_rows_in_leaf,
        "min_sum_hessian_in_leaf": p.min_hessian_in_leaf,
        "lambda_l2": p.l2,
        "feature_fraction": p.feature_fraction,
    }
    booster = lgb.train(settings, data, num_boost_round=trees, **stopping)
    booster.free_dataset()
    _give_back()
    return booster


def _dataset(
    packs: Packs,
    p: GBDTParams,
    start: Floats,
    common: dict[str, Any],
    reference: "lgb.Dataset | None" = None,
) -> "lgb.Dataset":
    import lightgbm as lgb

    # boost_from_average has no effect on custom losses, so the start is given per row. The start is
    # part of the scores in training, but not of the result of Booster.predict.
    return lgb.Dataset(
        packs.features,
        label=np.zeros(len(packs.features)),
        init_score=start,
        reference=reference,
        params={**common, "max_bin": p.max_bins, "min_data_in_leaf": p.min_rows_in_leaf},
    )


def sum_of_trees(booster: "lgb.Booster", rows: Features, num_threads: int) -> Floats:
    """float64[R] raw scores from float32[R, F]."""
    return np.asarray(booster.predict(rows, raw_score=True, num_threads=num_threads), np.float64)


def common_params(seed: int, num_threads: int) -> dict[str, Any]:
    """Settings of every training that make the trees reproducible."""
    return {
        "seed": seed,
        "num_threads": num_threads,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def parse_booster(text: str, trusted: bool = False) -> "lgb.Booster":
    """Trees from the text of `Booster.model_to_string`; TypeError or ValueError otherwise.

    The text of the package's own file is `trusted`: checks take longer than LightGBM does.
    """
    import lightgbm as lgb

    if not isinstance(text, str):
        raise TypeError(f"trees are {type(text).__name__}, not text")
    if not trusted:
        check_trees(text)
    try:
        return lgb.Booster(model_str=text)
    except lgb.basic.LightGBMError as error:
        raise ValueError(str(error)) from error


def _give_back() -> None:
    """Return freed heap memory to the system; glibc would keep it, and a long search would grow."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
