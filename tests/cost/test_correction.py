"""A model that corrects the analytic score: no worse with few programs, better with many."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ansorlite.cost.analytic import analytic_score
from ansorlite.cost.correction import CorrectionModel, program_rows
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.metrics import pairwise_accuracy, r_squared
from ansorlite.cost.model import GBDTModel
from ansorlite.cost.names import AT, CYCLES, FEATURE_NAMES, N_FEATURES
from ansorlite.errors import AnsorliteError

Features = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


def programs(n: int, seed: int, statements: int = 2) -> tuple[Features, Floats]:
    """Features, and latencies that the estimate misses by what two of the features say."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, statements, N_FEATURES), np.float32)
    for name in ("mad", "executions"):
        x[:, :, AT[name]] = 24.0
    x[:, :, AT["vectors"]] = rng.integers(1, 5, (n, statements))
    x[:, :, AT["unroll"]] = rng.integers(0, 9, (n, statements))
    x[:, :, AT["cycles_all"]] = rng.uniform(19.0, 23.0, (n, statements))
    missed = 0.3 * x[..., AT["vectors"]].max(axis=1) + 0.8 * (x[..., AT["unroll"]].max(axis=1) > 6)
    return x, np.exp2(-analytic_score(x) + missed + rng.normal(0.0, 0.02, n)) * 1e-9


def group(n: int, seed: int, key: str = "a") -> TrainingGroup:
    x, latency = programs(n, seed)
    return TrainingGroup(key, list(x), latency)


def test_rows_of_programs() -> None:
    """The costliest statement as it is, sums of magnitudes, maxima, cycles an operation."""
    x = np.zeros((1, 2, N_FEATURES), np.float32)
    x[0, :, AT["cycles_all"]] = np.log2([1.0 + 100.0, 1.0 + 300.0])
    x[0, :, AT["mad"]] = np.log2([1.0 + 7.0, 1.0 + 9.0])
    x[0, :, AT["rows"]] = 6.0, 4.0
    (row,) = program_rows(x)
    costliest, sums, most, kinds = np.split(row, [N_FEATURES, 2 * N_FEATURES, 3 * N_FEATURES])
    assert np.array_equal(costliest, x[0, 1])
    assert sums[AT["mad"]] == pytest.approx(np.log2(17.0))
    assert sums[AT["rows"]] == 10.0 and most[AT["rows"]] == 6.0
    assert len(kinds) == len(CYCLES) + 1
    assert kinds[-1] == pytest.approx(np.log2(400.0 / 16.0), abs=1e-3)
    assert len(FEATURE_NAMES) == N_FEATURES


@pytest.mark.parametrize("objective", ["regression", "rank"])
def test_few_programs_keep_the_order_of_the_estimate_and_many_improve_it(objective: str) -> None:
    x, latency = programs(400, 9)
    estimate = pairwise_accuracy(analytic_score(x), latency)
    found = {}
    for n in (63, 64, 600):
        model = CorrectionModel(objective=objective)  # type: ignore[arg-type]
        model.update([group(n, 1)])
        assert model.is_trained == (n >= 64)  # before, the estimate serves alone
        found[n] = pairwise_accuracy(model.predict(x), latency)
    assert found[64] > estimate - 0.03
    assert found[600] > estimate + 0.03
    alone = GBDTModel()
    alone.update([group(64, 1)])
    assert pairwise_accuracy(alone.predict(x), latency) < found[64] - 0.05


def test_it_predicts_best_over_this_whatever_the_task() -> None:
    model = CorrectionModel()
    slow = group(300, 2, "b")
    model.update([group(300, 1), TrainingGroup("b", slow.features, slow.latency_s * 1000.0)])
    x, latency = programs(300, 5)
    assert r_squared(model.predict(x), latency.min() / latency) > 0.9


def test_failures_teach_that_they_are_slow() -> None:
    x, latency = programs(300, 3)
    fails = x[..., AT["vectors"]].max(axis=1) == 4
    model = CorrectionModel()
    model.update([TrainingGroup("a", list(x), np.where(fails, np.inf, latency))])
    scores = model.predict(x)
    assert scores[fails].max() < np.median(scores[~fails])


def test_programs_of_different_numbers_of_statements_train_together() -> None:
    (one, t), (two, u) = programs(50, 1, statements=1), programs(50, 2, statements=3)
    model = CorrectionModel()
    model.update([TrainingGroup("a", [*one, *two], np.concatenate([t, u]))])
    assert model.is_trained
    assert np.isfinite(model.predict(one)).all() and np.isfinite(model.predict(two)).all()


def test_a_loaded_model_is_kept_and_adapted(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    model = CorrectionModel()
    model.update([group(600, 1)])
    model.save(path)
    x, latency = programs(300, 7)
    again, fresh = CorrectionModel(), CorrectionModel()
    again.load(path)
    assert again.predict(x) == pytest.approx(model.predict(x), abs=1e-12)
    for m in (again, fresh):
        m.update([group(24, 8)])
    found, new = (pairwise_accuracy(m.predict(x), latency) for m in (again, fresh))
    assert found > new
    with pytest.raises(AnsorliteError, match="'correction', not 'gbdt'"):
        GBDTModel().load(path)


EARLY = replace(CorrectionModel.FAST_PARAMS, min_programs=500)


def crowded(n: int, seed: int) -> tuple[Features, Floats]:
    """Programs that differ by far more than the fast ones among themselves, which four features
    tell apart by up to one per cent each."""
    x, latency = programs(n, seed)
    rng = np.random.default_rng(seed)
    names = ("rows", "inner_reduction", "alloc_outer", "loops")
    x[..., [AT[k] for k in names]] = rng.integers(0, 4, (n, 1, len(names)))
    little = x[:, 0, [AT[k] for k in names]].sum(axis=1) / 300.0
    return x, np.maximum(latency, np.quantile(latency, 0.3)) * (1.0 + little)


def test_trees_of_fast_programs_tell_these_apart_and_leave_the_slow_ones(tmp_path: Path) -> None:
    train, (x, latency) = crowded(800, 1), crowded(500, 2)
    known = TrainingGroup("a", list(train[0]), train[1])
    plain, fast = CorrectionModel(), CorrectionModel(fast=EARLY)
    for model in (plain, fast):
        model.update([known])
    before, after = plain.predict(x), fast.predict(x)
    slow = before < 0.5
    assert slow.any() and np.array_equal(before[slow], after[slow])
    best = latency < 1.05 * latency.min()
    order = [np.corrcoef(s[best], -latency[best])[0, 1] for s in (before, after)]
    assert order[1] > order[0] + 0.03
    fast.save(tmp_path / "model.json")
    again = CorrectionModel()
    again.load(tmp_path / "model.json")
    assert again.predict(x) == pytest.approx(after, abs=1e-12)
    again.update([group(64, 5)])  # trees for what both kinds leave to explain
    again.save(tmp_path / "model.json")
    once_more = CorrectionModel()
    once_more.load(tmp_path / "model.json")
    assert once_more.predict(x) == pytest.approx(again.predict(x), abs=1e-12)


def test_trees_of_fast_programs_are_asked_for_and_need_many_and_shares_to_learn() -> None:
    known = [group(600, 1)]
    models = {
        CorrectionModel(): 1,
        CorrectionModel(fast=CorrectionModel.FAST_PARAMS): 1,
        CorrectionModel(fast=EARLY): 2,
        CorrectionModel(fast=EARLY, objective="rank"): 1,
    }
    for model, stages in models.items():
        model.update(known)
        assert len(model._trained) == stages


def test_untrained_it_says_nothing() -> None:
    x, _ = programs(5, 1)
    assert not CorrectionModel().is_trained
    assert np.array_equal(CorrectionModel().predict(x), np.zeros(5))
