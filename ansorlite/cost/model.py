"""Learned cost models: score the candidates of a population (Ansor, section 5.2).

Flow: `search` updates a model with all measurements so far, then scores populations with the model.
In: `TrainingGroup`s (features and latencies in seconds, one group per task) and `float32[P, S, F]`
(P candidates of one sketch, S statements, F features). Out: `float64[P]`, higher is better,
approximately best/this, so 1 means as fast as the best program of the task.

LightGBM is imported when a model is trained or loaded, not with this module: OpenMP must not be
active in processes that measure or fork. Saved models are JSON around LightGBM's text format;
loading a model executes no code.
"""

import json
import math
import os
from collections.abc import Sequence
from hashlib import sha256
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
from ansorlite.cost.training_cutoff import Contents, before_cutoff, contents, has_rounds
from ansorlite.cost.trees import (
    GBDTParams,
    MakeLoss,
    common_params,
    parse_booster,
    sum_of_trees,
    train_trees,
)
from ansorlite.errors import MachineError, UsageError
from ansorlite.files import write_whole

if TYPE_CHECKING:
    import lightgbm as lgb

FORMAT = 1
PathLike = str | os.PathLike[str]


class CostModel(Protocol):
    """Protocol of cost models: learn from measurements, score populations."""

    @property
    def is_trained(self) -> bool:
        """False while `predict` returns a constant and the caller should use another score."""
        ...

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Train on all measurements so far (not only on new measurements)."""
        ...

    def predict(self, features: Features, task_key: str = "") -> Floats:
        """float64[P] from float32[P, S, F], higher is better; a constant while untrained.

        `task_key` is the task of the programs; measurements of the same task may have more weight.
        """
        ...

    def save(self, path: PathLike) -> None:
        """Write the model as JSON. Raises MachineError if the file cannot be written."""
        ...

    def load(self, path: PathLike) -> None:
        """Replace the model by a saved model. Raises UsageError for an unusable file."""
        ...


class RandomModel:
    """Uniform random scores in [0, 1), for ablations; counts as trained from the start."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @property
    def is_trained(self) -> bool:
        return True

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Do nothing."""

    def predict(self, features: Features, task_key: str = "") -> Floats:
        """float64[P], uniform in [0, 1)."""
        return self._rng.random(len(features))

    def save(self, path: PathLike) -> None:
        _save(path, {"kind": "random"})

    def load(self, path: PathLike) -> None:
        _load(path, "random")


class TreeStage(NamedTuple):
    """Trees added to the scores before; `of_fast`: only where a program is predicted fast."""

    booster: "lgb.Booster"
    of_fast: bool = False


class GBDTModel:
    """Boosted trees (LightGBM) with the pack-sum loss: score = sum over the statements.

    `objective` "regression" fits best/this; "rank" fits the order within each task, and rank scores
    are squashed into (0, 1), so both kinds serve as weights. One model serves all tasks. Every
    update retrains from scratch, in well under a second for 1,000 programs, because incremental
    boosting would keep the bins and labels of old rounds. After `load` the loaded trees stay, and
    updates train further trees on the residual, so a pretrained model adapts and keeps its
    knowledge.

    Deterministic: the same seed, groups and parameters give the same model. `num_threads` is the
    number of idle cores: OpenMP threads on busy cores make training many times slower, so the
    default is one thread, and no training may run during a measurement. Example: `model =
    GBDTModel(seed=0); model.update(groups); scores = model.predict(features)`.
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
        self._loaded: list[TreeStage] = []
        self._trained: list[TreeStage] = []
        self._n_features = 0
        self._learned_from: Contents = []

    @property
    def is_trained(self) -> bool:
        return bool(self._stages)

    @property
    def _stages(self) -> list[TreeStage]:
        return self._loaded + self._trained

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Retrain on the programs before the training cutoff, if any program is new.

        Raises ValueError for features with different widths or non-finite values. See
        `cost.training_cutoff`.
        """
        groups = before_cutoff(groups)
        if self._trained and has_rounds(groups) and contents(groups) == self._learned_from:
            return
        packs = self._packs(groups)
        if packs is None:
            return
        if self._loaded:
            _check_width(packs.features.shape[1], self._n_features)
        if len(packs) < self.params.min_programs or len(np.unique(packs.label)) < 2:
            return
        if not self._loaded:
            self._base = self._constant(packs) if self.objective == "regression" else 0.0
        self._trained, self._learned_from = self._learned(packs), contents(groups)
        self._n_features = packs.features.shape[1]

    # Hooks that `cost.correction` overrides: rows and labels of programs, initial row scores,
    # training, contribution of a stage, conversion of a summed score, refinement for one task.

    def _packs(self, groups: Sequence[TrainingGroup]) -> Packs | None:
        """The training data."""
        return pack_groups(groups)

    def _view(self, features: Features, task_key: str) -> Features:
        """float32[P, rows per program, F'] from float32[P, S, F]."""
        return features

    def _constant(self, packs: Packs) -> float:
        """The constant row score."""
        return base_score(packs)

    def _start(self, rows: Features) -> Floats:
        """Initial score of each row, before the trees."""
        return np.zeros(len(rows))

    def _regression(self, packs: Packs) -> Loss:
        """The regression loss."""
        return squared_loss(packs)

    def _learned(self, packs: Packs) -> list[TreeStage]:
        """The stages trained on `packs`."""
        return [TreeStage(self._train(packs, self.params, self._loss, self._loaded))]

    def _added(self, stage: TreeStage, rows: Features, scores: Floats) -> Floats:
        """float64[R]: contribution of a stage, given the row scores of the stages before."""
        return sum_of_trees(stage.booster, rows, self._num_threads)

    def _refined(self, shares: Floats, seen: Features, task_key: str) -> Floats:
        """Predictions refined by the measurements of the task `task_key`."""
        return shares

    def _shares(self, scores: Floats) -> Floats:
        """best/this (or the squashed rank) from summed scores."""
        return scores if self.objective == "regression" else logistic(scores)

    def start_from(self, other: "GBDTModel") -> None:
        """Continue from another model: keep its trees, and train further trees on the residual."""
        self._base, self._n_features = other._base, other._n_features
        self._loaded, self._trained = other._stages, []

    def _train(
        self, packs: Packs, p: GBDTParams, make_loss: MakeLoss, before: Sequence[TreeStage]
    ) -> "lgb.Booster":
        """Trees for the residual of the stages `before`."""
        start = self._base + self._rows(before, packs.features)
        return train_trees(packs, p, make_loss, start, self._seed, self._num_threads)

    def _loss(self, packs: Packs, rng: np.random.Generator) -> Loss:
        return self._regression(packs) if self.objective == "regression" else rank_loss(packs, rng)

    def predict(self, features: Features, task_key: str = "") -> Floats:
        """float64[P], approximately best/this; zeros while untrained.

        Raises ValueError if the number of features differs from training.
        """
        if not self._stages or len(features) == 0:
            return np.zeros(len(features))
        seen = self._view(features, task_key)
        n, count, width = seen.shape
        _check_width(width, self._n_features)
        rows = self._rows(self._stages, seen.reshape(n * count, width))
        shares = self._shares((rows.reshape(n, count) + self._base).sum(axis=1))
        return self._refined(shares, seen, task_key)

    def _rows(self, stages: Sequence[TreeStage], rows: Features) -> Floats:
        """float64[R]: row scores after the stages."""
        scores = self._start(rows)
        for stage in stages:
            scores += self._added(stage, rows, scores)
        return scores

    def save(self, path: PathLike) -> None:
        """Write the model as JSON. Raises MachineError if the file cannot be written."""
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
        """Replace the model by a saved model of the same objective. Raises UsageError otherwise."""
        content = _load(path, self.KIND)
        if content.get("objective") != self.objective:
            raise UsageError(
                f"the model {path} was trained for {content.get('objective')!r}, "
                f"this one is for {self.objective!r}: create it with the same objective"
            )
        try:
            base, n_features = float(content["base"]), int(content["n_features"])
            if not math.isfinite(base):
                raise ValueError(f"its base is {base}")
            of_fast = content.get("of_fast") or [False] * len(content["boosters"])
            loaded = [
                TreeStage(parse_booster(text), bool(fast))
                for text, fast in zip(content["boosters"], of_fast, strict=True)
            ]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _broken(path, error) from error
        self._base, self._n_features, self._loaded = base, n_features, loaded
        self._trained = []


class ValidityModel:
    """The probability that a candidate builds, finishes in time and is correct.

    A LightGBM classifier over each program's features, summed and maximised over its statements.
    The prediction is 1 until at least `MIN_OF_EACH` programs have failed and as many have
    succeeded. `predict` may be multiplied with the scores of the models above.
    """

    MIN_OF_EACH = 10

    def __init__(self, seed: int = 0, num_threads: int = 1, n_trees: int = 50) -> None:
        self._seed = seed
        self._num_threads = num_threads
        self._n_trees = n_trees
        self._booster: lgb.Booster | None = None
        self._learned_from: Contents = []

    @property
    def is_trained(self) -> bool:
        return self._booster is not None

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Retrain on which programs failed (latency inf), when `GBDTModel.update` would."""
        groups = before_cutoff(groups)
        if has_rounds(groups) and contents(groups) == self._learned_from:
            return
        self._learned_from = contents(groups)
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
            **common_params(self._seed, self._num_threads),
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
        """Write the model as JSON. Raises MachineError if the file cannot be written."""
        booster = self._booster
        _save(path, {"kind": "validity", "booster": booster and booster.model_to_string()})

    def load(self, path: PathLike) -> None:
        """Replace the model by a saved model. Raises UsageError for an unusable file."""
        text = _load(path, "validity").get("booster")
        try:
            self._booster = None if text is None else parse_booster(text)
        except (TypeError, ValueError) as error:
            raise _broken(path, error) from error


def _check_width(width: int, expected: int) -> None:
    """ValueError if rows have another number of features than the model."""
    if width != expected:
        raise ValueError(f"the model was trained on {expected} features, these rows have {width}")


def expanded(path: PathLike) -> Path:
    """The path of a model with ~ expanded. Raises UsageError if the home directory is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"cannot find the model {os.fspath(path)}: {error}") from error


def _save(path: PathLike, content: dict[str, Any]) -> None:
    """Write the content with format version and SHA-256."""
    path = expanded(path)
    whole = {"ansorlite_model": FORMAT, **content}
    whole["sha256"] = _digest(whole)
    try:
        write_whole(path, json.dumps(whole))
    except OSError as error:
        raise MachineError(f"cannot write the model {path}: {error.strerror}") from error


def _load(path: PathLike, kind: str) -> dict[str, Any]:
    """The content of a saved model of this kind, after checks of format and SHA-256."""
    path = expanded(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the model {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    if not isinstance(content, dict) or "ansorlite_model" not in content:
        raise _broken(path, "it was not saved by a cost model")
    if content["ansorlite_model"] != FORMAT:
        raise UsageError(
            f"the model {path} has format {content['ansorlite_model']}, this version reads "
            f"{FORMAT}: retrain the model from its tuning log"
        )
    # Files of older versions have no SHA-256.
    if "sha256" in content and content["sha256"] != _digest(content):
        raise _broken(path, "its SHA-256 differs: the file is damaged or was edited")
    if content.get("kind") != kind:
        raise UsageError(f"the model {path} is of kind {content.get('kind')!r}, not {kind!r}")
    return content


def _digest(content: dict[str, Any]) -> str:
    """SHA-256 of the content without the digest itself."""
    rest = {name: value for name, value in content.items() if name != "sha256"}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _broken(path: PathLike, why: object) -> UsageError:
    return UsageError(
        f"{path} is no usable cost model ({why}): retrain the model from its tuning log"
    )
