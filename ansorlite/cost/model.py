"""Learned cost models: which candidates of a population are worth measuring (Ansor section 5.2).

Flow: `search` updates a model with everything measured so far, and lets it score populations. In:
`TrainingGroup`s (features and latencies in seconds, one group a task) and `float32[P, S, F]`
(P candidates of one sketch, S statements, F features). Out: `float64[P]`, higher is better,
about best/this, so 1 is as good as the best of the task.

LightGBM is imported when a model is trained or loaded, never by importing this module: OpenMP
must not live in processes that measure or that are forked. Saved models are JSON around LightGBM's
own text; loading one executes nothing.
"""

import ctypes
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from ansorlite.cost.losses import (
    Features,
    Floats,
    Loss,
    Packs,
    TrainingGroup,
    base_score,
    logistic,
    pack_groups,
    rank_loss,
    squared_loss,
)
from ansorlite.errors import AnsorliteError

if TYPE_CHECKING:
    import lightgbm as lgb

FORMAT = 1
PathLike = str | os.PathLike[str]


class CostModel(Protocol):
    """Learns from measurements, scores populations."""

    @property
    def is_trained(self) -> bool:
        """False while `predict` has nothing to say and another score should be used."""
        ...

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Learn from all that was measured so far (not only from what is new)."""
        ...

    def predict(self, features: Features) -> Floats:
        """float64[P] from float32[P, S, F], higher is better; one constant while untrained."""
        ...

    def save(self, path: PathLike) -> None:
        """Write the model as JSON."""
        ...

    def load(self, path: PathLike) -> None:
        """Replace the model by a saved one. Raises AnsorliteError if the file is no such model."""
        ...


class RandomModel:
    """Knows nothing: uniform scores in [0, 1), for ablations. Counts as trained from the start."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @property
    def is_trained(self) -> bool:
        return True

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Learn nothing."""

    def predict(self, features: Features) -> Floats:
        return self._rng.random(len(features))

    def save(self, path: PathLike) -> None:
        _save(path, {"kind": "random"})

    def load(self, path: PathLike) -> None:
        _load(path, "random")


@dataclass(frozen=True)
class GBDTParams:
    """Sizes of a `GBDTModel`. Prediction costs more than features, so trees are small and few.

    Trees have a leaf for every `rows_per_leaf` rows of training data, at least 7 and at most
    `n_leaves`; with `rows_per_tree` there is a tree for so many rows, at least 60 and at most
    `n_trees`. Below `min_programs` the model stays untrained. From `holdout_from` programs on,
    a share `holdout` of them decides when to stop: after `patience` trees without a better loss.
    With fewer the held-out loss is so noisy that it stops far too early.
    """

    n_trees: int = 100
    n_leaves: int = 31
    rows_per_leaf: int = 100
    rows_per_tree: float = 0.0
    learning_rate: float = 0.2
    min_rows_in_leaf: int = 5
    feature_fraction: float = 0.8
    l2: float = 0.1
    # Hessians of ranking are weights far below 1; LightGBM's own limit is for counts.
    min_hessian_in_leaf: float = 0.0
    max_bins: int = 63
    min_programs: int = 16
    holdout_from: int = 2000
    holdout: float = 0.1
    patience: int = 20

    def sizes(self, rows: int) -> tuple[int, int]:
        """(trees, leaves of each) for so many rows of training data."""
        trees = self.n_trees
        if self.rows_per_tree:
            trees = min(trees, max(60, round(rows / self.rows_per_tree)))
        return trees, min(self.n_leaves, max(7, rows // self.rows_per_leaf))


class Stage(NamedTuple):
    """Trees that add to the scores of those before; `of_fast` ones to those of fast programs."""

    booster: "lgb.Booster"
    of_fast: bool = False


class GBDTModel:
    """Boosted trees (LightGBM) with the pack-sum loss: score = sum over the statements.

    `objective` "regression" fits best/this, "rank" the order within each task; rank scores are
    squashed into (0, 1), so both serve as weights. One model serves all tasks. Every update
    trains anew, in well under a second for 1,000 programs: incremental boosting would keep the
    bins and labels of old rounds. After `load` the loaded trees stay and updates train trees for
    what is left to explain, so a pretrained model adapts without being forgotten.

    Same seed, groups and parameters: same model. `num_threads` is the number of cores that nobody
    else uses: OpenMP threads that share cores with busy processes make training many times
    slower, so one thread is the default, and no training may run beside a measurement.
    """

    KIND = "gbdt"
    PARAMS = GBDTParams()

    def __init__(
        self,
        seed: int = 0,
        num_threads: int = 1,
        objective: Literal["regression", "rank"] = "regression",
        params: GBDTParams | None = None,
    ) -> None:
        self.objective = objective
        self.params = params or self.PARAMS
        self._seed = seed
        self._num_threads = num_threads
        self._base = 0.0
        self._loaded: list[Stage] = []
        self._trained: list[Stage] = []
        self._n_features = 0

    @property
    def is_trained(self) -> bool:
        return bool(self._stages)

    @property
    def _stages(self) -> list[Stage]:
        return self._loaded + self._trained

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Train anew on all groups. Raises ValueError for features that do not fit together."""
        packs = self._packs(groups)
        if packs is None:
            return
        if self._loaded:
            _check_width(packs.features.shape[1], self._n_features)
        if len(packs) < self.params.min_programs or len(np.unique(packs.label)) < 2:
            return
        if not self._loaded:
            self._base = self._constant(packs) if self.objective == "regression" else 0.0
        self._trained = self._learned(packs)
        self._n_features = packs.features.shape[1]

    # What `cost.correction` does in another way: the rows and labels of programs, where the scores
    # of rows start, what is learned, what it adds to them, and what a sum of scores says.

    def _packs(self, groups: Sequence[TrainingGroup]) -> Packs | None:
        return pack_groups(groups)

    def _view(self, features: Features) -> Features:
        """float32[P, rows of a program, F'] from float32[P, S, F]."""
        return features

    def _constant(self, packs: Packs) -> float:
        return base_score(packs)

    def _start(self, rows: Features) -> Floats:
        return np.zeros(len(rows))

    def _regression(self, packs: Packs) -> Loss:
        return squared_loss(packs)

    def _learned(self, packs: Packs) -> list[Stage]:
        return [Stage(self._train(packs, self.params, self._loss, self._loaded))]

    def _added(self, stage: Stage, rows: Features, scores: Floats) -> Floats:
        """What trees add to the scores that rows have without them."""
        return self._sum_of_trees(stage.booster, rows)

    def _shares(self, scores: Floats) -> Floats:
        return scores if self.objective == "regression" else logistic(scores)

    def start_from(self, other: "GBDTModel") -> None:
        """Keep another model's trees: updates train trees for what they leave to explain."""
        self._base, self._n_features = other._base, other._n_features
        self._loaded, self._trained = other._stages, []

    def _train(
        self,
        packs: Packs,
        p: GBDTParams,
        make_loss: Callable[[Packs, np.random.Generator], Loss],
        before: Sequence[Stage],
    ) -> "lgb.Booster":
        """Trees for what the stages before leave to explain."""
        import lightgbm as lgb

        rng = np.random.default_rng(self._seed)
        train, check = packs, None
        if p.holdout > 0.0 and len(packs) >= p.holdout_from:
            held_out = rng.random(len(packs)) < p.holdout
            train, check = packs.take(~held_out), packs.take(held_out)
        loss = make_loss(train, rng)
        data = self._dataset(train, p, before)
        stopping: dict[str, Any] = {}
        if check is not None:
            check_loss = make_loss(check, rng)
            stopping = {
                "valid_sets": [self._dataset(check, p, before, reference=data)],
                "feval": lambda scores, _: ("loss", check_loss.value(scores), False),
                "callbacks": [lgb.early_stopping(p.patience, verbose=False)],
            }
        trees, leaves = p.sizes(len(train.features))
        settings = {
            **_common_params(self._seed, self._num_threads),
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

    def _loss(self, packs: Packs, rng: np.random.Generator) -> Loss:
        return self._regression(packs) if self.objective == "regression" else rank_loss(packs, rng)

    def _dataset(
        self,
        packs: Packs,
        p: GBDTParams,
        before: Sequence[Stage],
        reference: "lgb.Dataset | None" = None,
    ) -> "lgb.Dataset":
        import lightgbm as lgb

        # boost_from_average does nothing for a custom loss, so the start is given per row. It is
        # part of the scores in training, but not of what Booster.predict returns.
        return lgb.Dataset(
            packs.features,
            label=np.zeros(len(packs.features)),
            init_score=self._base + self._rows(before, packs.features),
            reference=reference,
            params={
                **_common_params(self._seed, self._num_threads),
                "max_bin": p.max_bins,
                "min_data_in_leaf": p.min_rows_in_leaf,
            },
        )

    def predict(self, features: Features) -> Floats:
        """float64[P], about best/this; zeros while untrained."""
        if not self._stages or len(features) == 0:
            return np.zeros(len(features))
        seen = self._view(features)
        n, count, width = seen.shape
        _check_width(width, self._n_features)
        rows = self._rows(self._stages, seen.reshape(n * count, width))
        return self._shares((rows.reshape(n, count) + self._base).sum(axis=1))

    def _rows(self, stages: Sequence[Stage], rows: Features) -> Floats:
        scores = self._start(rows)
        for stage in stages:
            scores += self._added(stage, rows, scores)
        return scores

    def _sum_of_trees(self, booster: "lgb.Booster", rows: Features) -> Floats:
        found = booster.predict(rows, raw_score=True, num_threads=self._num_threads)
        return np.asarray(found, np.float64)

    def save(self, path: PathLike) -> None:
        content = {
            "kind": self.KIND,
            "objective": self.objective,
            "n_features": self._n_features,
            "base": self._base,
            "boosters": [s.booster.model_to_string() for s in self._stages],
            "of_fast": [s.of_fast for s in self._stages],
        }
        _save(path, content)

    def load(self, path: PathLike) -> None:
        content = _load(path, self.KIND)
        if content.get("objective") != self.objective:
            raise AnsorliteError(
                f"the model {path} was trained for {content.get('objective')!r}, "
                f"this one is for {self.objective!r}: create it with the same objective"
            )
        try:
            base, n_features = float(content["base"]), int(content["n_features"])
            of_fast = content.get("of_fast") or [False] * len(content["boosters"])
            loaded = [
                Stage(_parse_booster(text), bool(fast))
                for text, fast in zip(content["boosters"], of_fast, strict=True)
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise _broken(path, error) from error
        self._base, self._n_features, self._loaded = base, n_features, loaded
        self._trained = []


def _give_back() -> None:
    """Return what training freed to the system: glibc keeps it, and a long search would grow."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class FrozenModel:
    """A trained model of any kind that measurements do not change."""

    def __init__(self, model: CostModel) -> None:
        self._model = model

    @property
    def is_trained(self) -> bool:
        return self._model.is_trained

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Keep what was loaded."""

    def predict(self, features: Features) -> Floats:
        return self._model.predict(features)

    def save(self, path: PathLike) -> None:
        self._model.save(path)

    def load(self, path: PathLike) -> None:
        self._model.load(path)


class ValidityModel:
    """The probability that a candidate builds, runs in time and is right: learned from failures.

    A LightGBM classifier on each program's features, summed and maximised over its statements.
    It answers 1 until `MIN_OF_EACH` programs have failed and as many have not. Same protocol as
    the models above, so scores may simply be multiplied by it.
    """

    MIN_OF_EACH = 10

    def __init__(self, seed: int = 0, num_threads: int = 1, n_trees: int = 50) -> None:
        self._seed = seed
        self._num_threads = num_threads
        self._n_trees = n_trees
        self._booster: lgb.Booster | None = None

    @property
    def is_trained(self) -> bool:
        return self._booster is not None

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Train anew on which programs failed (latency inf); raises as `GBDTModel.update`."""
        packs = pack_groups(groups)
        if packs is None:
            return
        valid = packs.label > 0
        if min(valid.sum(), (~valid).sum()) < self.MIN_OF_EACH:
            return
        import lightgbm as lgb

        first = np.cumsum(packs.n_rows) - packs.n_rows
        summed = np.add.reduceat(packs.features, first, axis=0)
        largest = np.maximum.reduceat(packs.features, first, axis=0)
        settings = {
            **_common_params(self._seed, self._num_threads),
            "objective": "binary",
            "learning_rate": 0.1,
            "num_leaves": 8,
            "min_data_in_leaf": 5,
            "max_bin": 63,
        }
        data = lgb.Dataset(np.hstack([summed, largest]), label=valid, params=settings)
        self._booster = lgb.train(settings, data, num_boost_round=self._n_trees)

    def predict(self, features: Features) -> Floats:
        """float64[P] in [0, 1] from float32[P, S, F]; ones while untrained."""
        if self._booster is None or len(features) == 0:
            return np.ones(len(features))
        _check_width(features.shape[2], self._booster.num_feature() // 2)
        pooled = np.hstack([features.sum(axis=1), features.max(axis=1)])
        return np.asarray(
            self._booster.predict(pooled, num_threads=self._num_threads), dtype=np.float64
        )

    def save(self, path: PathLike) -> None:
        booster = self._booster
        _save(path, {"kind": "validity", "booster": booster and booster.model_to_string()})

    def load(self, path: PathLike) -> None:
        text = _load(path, "validity").get("booster")
        try:
            self._booster = None if text is None else _parse_booster(text)
        except (TypeError, ValueError) as error:
            raise _broken(path, error) from error


def _common_params(seed: int, num_threads: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "num_threads": num_threads,
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }


def _check_width(width: int, expected: int) -> None:
    if width != expected:
        raise ValueError(f"the model was trained on {expected} features, these rows have {width}")


def _parse_booster(text: str) -> "lgb.Booster":
    import lightgbm as lgb

    if not isinstance(text, str):
        raise TypeError(f"trees are {type(text).__name__}, not text")
    try:
        return lgb.Booster(model_str=text)
    except lgb.basic.LightGBMError as error:
        raise ValueError(str(error)) from error


def _save(path: PathLike, content: dict[str, Any]) -> None:
    path = Path(path).expanduser()
    try:
        path.write_text(json.dumps({"ansorlite_model": FORMAT, **content}), encoding="utf-8")
    except OSError as error:
        raise AnsorliteError(f"cannot write the model {path}: {error.strerror}") from error


def _load(path: PathLike, kind: str) -> dict[str, Any]:
    path = Path(path).expanduser()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AnsorliteError(f"cannot read the model {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    if not isinstance(content, dict) or "ansorlite_model" not in content:
        raise _broken(path, "it was not saved by a cost model")
    if content["ansorlite_model"] != FORMAT:
        raise AnsorliteError(
            f"the model {path} has format {content['ansorlite_model']}, this version reads "
            f"{FORMAT}: train it anew from its tuning log"
        )
    if content.get("kind") != kind:
        raise AnsorliteError(f"the model {path} is of kind {content.get('kind')!r}, not {kind!r}")
    return content


def _broken(path: PathLike, why: object) -> AnsorliteError:
    return AnsorliteError(f"{path} is no usable cost model ({why}): train it anew from its log")
