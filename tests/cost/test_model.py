"""Contract of the cost models, and what each of them must learn."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ansorlite.cost.losses import Features, TrainingGroup, labels
from ansorlite.cost.metrics import pairwise_accuracy, r_squared
from ansorlite.cost.model import (
    CostModel,
    GBDTModel,
    GBDTParams,
    RandomModel,
    ValidityModel,
)
from ansorlite.errors import AnsorliteError

N_FEATURES = 8
Floats = npt.NDArray[np.float64]

MODELS: dict[str, Callable[[], CostModel]] = {
    "random": lambda: RandomModel(np.random.default_rng(0)),
    "gbdt": lambda: GBDTModel(seed=3),
    "gbdt-rank": lambda: GBDTModel(seed=3, objective="rank"),
    "validity": lambda: ValidityModel(seed=3),
}
LEARNERS = [name for name in MODELS if name != "random"]


def programs(n: int, statements: int, seed: int) -> tuple[Features, Floats]:
    """Features, and a latency that is a sum of kinked functions of each statement's features."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, (n, statements, N_FEATURES)).astype(np.float32)
    cost = 1.0 + np.abs(x[..., 0] - 3.0) + np.maximum(x[..., 1], x[..., 2]) + (x[..., 3] > 4) * 6.0
    return x, cost.sum(axis=1) * 1e-4


def group(n: int = 300, statements: int = 3, seed: int = 0, key: str = "a") -> TrainingGroup:
    x, latency = programs(n, statements, seed)
    return TrainingGroup(key, list(x), np.where(failing(x), np.inf, latency))


def failing(x: Features) -> npt.NDArray[np.bool_]:
    """Which programs fail: about a fifth of those with three statements."""
    return ((x[..., 4] == 5) & (x[..., 5] >= 3)).any(axis=1)


def accuracy(model: CostModel) -> float:
    """Pairwise accuracy on 400 unseen programs, failures included."""
    unseen = group(400, seed=1)
    return pairwise_accuracy(model.predict(np.stack(unseen.features)), unseen.latency_s)


@pytest.mark.parametrize("name", MODELS)
def test_contract_before_training(name: str) -> None:
    model = MODELS[name]()
    assert model.is_trained == (name == "random")
    model.update([])
    model.update([group(n=4)])
    x, _ = programs(5, 2, 1)
    scores = model.predict(x)
    assert scores.shape == (5,) and scores.dtype == np.float64
    if name != "random":
        assert not model.is_trained
        assert len(set(scores.tolist())) == 1


@pytest.mark.parametrize("name", MODELS)
def test_contract_after_training(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    # Programs of one task may have different numbers of statements.
    mixed = TrainingGroup(
        "b",
        [*group(40, 2).features, *group(40, 4).features],
        np.concatenate([group(40, 2).latency_s, group(40, 4).latency_s]),
    )
    model.update([group(), mixed])
    assert model.is_trained
    x, _ = programs(50, 3, 1)
    before = x.copy()
    scores = model.predict(x)
    assert scores.shape == (50,) and scores.dtype == np.float64 and np.isfinite(scores).all()
    assert np.array_equal(x, before)
    assert model.predict(x[:0]).shape == (0,)
    assert model.predict(x[:, :1]).shape == (50,)
    path = tmp_path / "model.json"
    model.save(path)
    assert isinstance(json.loads(path.read_text()), dict)
    loaded = MODELS[name]()
    loaded.load(path)
    assert loaded.is_trained
    if name != "random":
        assert np.array_equal(loaded.predict(x), scores)
        assert model.predict(x[7:8])[0] == pytest.approx(scores[7], abs=1e-12)
        with pytest.raises(ValueError, match="trained on 8 features, these rows have 7"):
            model.predict(x[:, :, :7])


@pytest.mark.parametrize("name", LEARNERS)
def test_same_seed_same_model(name: str) -> None:
    x, _ = programs(50, 3, 1)
    scores = []
    for _ in range(2):
        model = MODELS[name]()
        model.update([group()])
        scores.append(model.predict(x))
    assert np.array_equal(*scores)
    model.update([group(seed=9)])
    model.update([group()])  # an update forgets what the one before it learned
    assert np.array_equal(model.predict(x), scores[0])


@pytest.mark.parametrize("name", LEARNERS)
def test_an_untrained_model_can_be_saved(name: str, tmp_path: Path) -> None:
    MODELS[name]().save(tmp_path / "model.json")
    model = MODELS[name]()
    model.load(tmp_path / "model.json")
    assert not model.is_trained


@pytest.mark.parametrize("name", MODELS)
def test_files_that_are_no_model_are_refused(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    path = tmp_path / "model.json"
    with pytest.raises(AnsorliteError, match="cannot read the model"):
        model.load(path)
    with pytest.raises(AnsorliteError, match="cannot write the model"):
        model.save(tmp_path / "missing" / "model.json")
    for text in ("", "[1]", "{}", "tree\nversion=v4\n", "[" * 100_000, '"\\ud800"'):
        path.write_text(text)
        with pytest.raises(AnsorliteError, match="no usable cost model"):
            model.load(path)
    path.write_text('{"ansorlite_model": 99, "kind": "gbdt"}')
    with pytest.raises(AnsorliteError, match="has format 99, this version reads 1"):
        model.load(path)
    path.write_text('{"ansorlite_model": 1, "kind": "other"}')
    with pytest.raises(AnsorliteError, match="is of kind 'other', not "):
        model.load(path)


def test_a_damaged_model_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model = MODELS["gbdt"]()
    model.update([group()])
    x, _ = programs(9, 3, 1)
    scores = model.predict(x)
    model.save(path)
    content = json.loads(path.read_text())
    changes = ({"boosters": [3]}, {"boosters": ["no trees"]}, {"base": None}, {"base": 1e999})
    for change in changes:
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(AnsorliteError, match="its SHA-256 differs"):
            model.load(path)
        content.pop("sha256")
        path.write_text(json.dumps({**content, **change}))
        with pytest.raises(AnsorliteError, match="no usable cost model"):
            model.load(path)
        content["sha256"] = ""
    assert np.array_equal(model.predict(x), scores)


def test_rank_and_regression_models_do_not_mix(tmp_path: Path) -> None:
    MODELS["gbdt"]().save(tmp_path / "model.json")
    with pytest.raises(AnsorliteError, match="trained for 'regression', this one is for 'rank'"):
        MODELS["gbdt-rank"]().load(tmp_path / "model.json")


@pytest.mark.parametrize("name", ["gbdt", "gbdt-rank"])
def test_order_of_unseen_programs(name: str) -> None:
    model = MODELS[name]()
    model.update([group(600)])
    assert accuracy(model) > 0.85


def test_regression_predicts_best_over_this() -> None:
    model = GBDTModel()
    x, latency = programs(800, 3, 0)
    model.update([TrainingGroup("a", list(x), latency)])
    unseen, unseen_latency = programs(400, 3, 1)
    expected = latency.min() / unseen_latency
    assert r_squared(model.predict(unseen), expected) > 0.8


def test_labels_are_per_task() -> None:
    """A task that is slow as a whole is no reason to score its programs low."""
    fast = group(200, seed=0)
    slow = group(200, seed=1, key="b")
    alone, scaled = GBDTModel(), GBDTModel()
    alone.update([fast, slow])
    scaled.update([fast, TrainingGroup("b", slow.features, slow.latency_s * 1000)])
    x, _ = programs(50, 3, 2)
    assert scaled.predict(x) == pytest.approx(alone.predict(x), abs=1e-9)


@pytest.mark.parametrize("name", ["gbdt", "gbdt-rank", "validity"])
def test_failures_teach(name: str) -> None:
    model = MODELS[name]()
    model.update([group(600)])
    x, _ = programs(400, 3, 1)
    fails = failing(x)
    scores = model.predict(x)
    assert scores[fails].mean() < 0.7 * scores[~fails].mean()


def test_only_failures_or_only_equals_teach_nothing() -> None:
    x, _ = programs(50, 3, 0)
    model = GBDTModel()
    model.update([TrainingGroup("a", list(x), np.full(50, np.inf))])
    model.update([TrainingGroup("a", list(x), np.full(50, 1e-3))])
    assert not model.is_trained


def test_early_stopping_on_held_out_programs() -> None:
    """On pure noise more trees only fit the noise, so training stops early."""
    rng = np.random.default_rng(0)
    x, _ = programs(400, 3, 0)
    noise = TrainingGroup("a", list(x), rng.random(400) + 0.5)
    n_trees = []
    for holdout_from in (400, 401):
        model = GBDTModel(params=GBDTParams(holdout_from=holdout_from))
        model.update([noise])
        (stage,) = model._trained
        n_trees.append(stage.booster.current_iteration())
    assert n_trees[0] < 60 and n_trees[1] == 100


def test_a_loaded_model_is_kept_and_adapted(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    pretrained = GBDTModel()
    pretrained.update([group(600)])
    pretrained.save(path)
    x, _ = programs(400, 3, 1)

    adapted, fresh = GBDTModel(), GBDTModel()
    adapted.load(path)
    few = group(32, seed=5)
    adapted.update([few])
    fresh.update([few])
    assert not np.array_equal(adapted.predict(x), pretrained.predict(x))
    assert accuracy(adapted) > accuracy(fresh) + 0.05
    adapted.save(path)
    again = GBDTModel()
    again.load(path)
    assert again.predict(x) == pytest.approx(adapted.predict(x), abs=1e-12)
    with pytest.raises(ValueError, match="trained on 8 features, these rows have 5"):
        adapted.update([TrainingGroup("a", [f[:, :5] for f in few.features], few.latency_s)])


def test_validity_needs_ten_of_each() -> None:
    x, latency = programs(60, 3, 0)
    for n_failed, trained in ((9, False), (10, True), (50, True), (51, False)):
        model = ValidityModel()
        failed = np.where(np.arange(60) < n_failed, np.inf, latency)
        model.update([TrainingGroup("a", list(x), failed)])
        assert model.is_trained == trained
        scores = model.predict(x)
        assert (scores.min() >= 0) and (scores.max() <= 1)
        assert trained or (scores == 1.0).all()


def test_labels_of_a_group_are_what_is_fitted() -> None:
    """With one statement and a feature that tells programs apart, the fit is close."""
    x = np.repeat(np.arange(8, dtype=np.float32), 20)[:, None, None]
    latency = 1e-3 * (1.0 + x[:, 0, 0].astype(np.float64))
    model = GBDTModel()
    model.update([TrainingGroup("a", list(x), latency)])
    assert model.predict(x) == pytest.approx(labels(latency), abs=0.02)


def test_importing_the_model_does_not_import_lightgbm() -> None:
    code = "import sys, ansorlite.cost.model; sys.exit('lightgbm' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)})
    assert run.returncode == 0
