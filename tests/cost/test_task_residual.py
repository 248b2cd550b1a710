"""Residuals per task: learned from the task's own programs, applied to fast programs only."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import Packs, TrainingGroup, pack_groups
from ansorlite.cost.metrics import recall_at_k
from ansorlite.cost.names import AT, N_FEATURES
from ansorlite.cost.task_residual import FAST_RANGE, TaskResidual
from ansorlite.cost.training_cutoff import before_cutoff

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
BEST = {"a": (3.0, 4.0, 2.0), "b": (1.0, 2.0, 5.0)}  # tiles


def programs(n: int, seed: int, key: str) -> tuple[Rows, Floats]:
    """Features of a statement, and latencies that tell apart what the estimate does not."""
    rng = np.random.default_rng(seed)
    x = np.zeros((n, 1, N_FEATURES), np.float32)
    tiles = rng.integers(0, 7, (n, 3)).astype(np.float32)
    for name in ("mad", "executions"):
        x[:, :, AT[name]] = 24.0
    for k, name in enumerate(("vectors", "unroll", "rows")):
        x[:, 0, AT[name]] = tiles[:, k]
    x[:, 0, AT["cycles_all"]] = 20.0 + 0.01 * rng.random(n)
    slower = 0.03 * np.square(tiles - np.array(BEST[key])).sum(axis=1)
    return x, np.exp2(slower + rng.normal(0.0, 0.005, n)) * 1e-3


def group(n: int, seed: int, key: str) -> TrainingGroup:
    x, latency_s = programs(n, seed, key)
    return TrainingGroup(key, list(x), latency_s)


def packs(*groups: TrainingGroup) -> Packs:
    found = pack_groups(groups)
    assert found is not None
    return found


def test_each_task_has_its_own() -> None:
    own = TaskResidual(0, 1)
    own.train(packs(group(250, 1, "a"), group(250, 2, "b")))
    for key in BEST:
        x, latency_s = programs(600, 3, key)
        shares = np.full(600, 0.95)
        found = {k: recall_at_k(own.refined(k, x[:, 0], shares), latency_s, 30) for k in BEST}
        assert found[key] > 0.6 and found[key] > max(f for k, f in found.items() if k != key)


def test_others_keep_what_was_expected_of_them() -> None:
    own = TaskResidual(0, 1)
    own.train(packs(group(150, 1, "a")))
    x, _ = programs(40, 4, "a")
    shares = np.linspace(0.1, 1.0, 40)
    assert np.array_equal(own.refined("c", x[:, 0], shares), shares)
    found = own.refined("a", x[:, 0], shares)
    slow = shares <= FAST_RANGE[0]
    assert np.array_equal(found[slow], shares[slow])
    assert (found[~slow] != shares[~slow]).all()


def test_failures_and_few_programs() -> None:
    g = group(60, 1, "a")
    g.latency_s[5:] = np.inf
    own = TaskResidual(0, 1)
    own.train(packs(g))
    x, _ = programs(10, 4, "a")
    assert np.array_equal(own.refined("a", x[:, 0], np.ones(10)), np.ones(10))


def test_it_learns_anew_what_has_changed() -> None:
    """The same, whether other programs were known before or not."""
    first, second = group(100, 1, "a"), group(160, 1, "a")
    other = group(90, 2, "b")
    long, short = TaskResidual(0, 1), TaskResidual(0, 1)
    long.train(packs(first, other))
    long.train(packs(second, other))
    short.train(packs(second, other))
    for key in BEST:
        x, _ = programs(50, 5, key)
        shares = np.full(50, 0.9)
        said = long.refined(key, x[:, 0], shares)
        assert np.array_equal(said, short.refined(key, x[:, 0], shares))
    long.update_processes([other], lambda g: g)  # drops tasks that are not among the groups
    x, _ = programs(50, 5, "a")
    assert np.array_equal(long.refined("a", x[:, 0], shares), shares)


def test_the_model_asks_them_where_it_is_told_the_task() -> None:
    model = CorrectionModel()
    model.update([group(150, 1, "a"), group(150, 2, "b")])
    x, latency_s = programs(600, 6, "a")
    recall = {k: recall_at_k(model.predict(x, k), latency_s, 30) for k in ("", "a", "c")}
    assert recall["a"] > recall[""] + 0.1
    assert recall["c"] == recall[""]


def test_the_last_programs_are_known_before_trees_learn_from_them() -> None:
    """The same whether they came one round after the other or all at once."""
    whole = replace(group(1032, 1, "a"), round_index=np.arange(1032) // 8)
    assert sum(len(g.latency_s) for g in before_cutoff([whole])) < 1032
    once, twice, before = CorrectionModel(), CorrectionModel(), CorrectionModel()
    first = before_cutoff([whole])
    for model in (twice, before):
        model.update(first)
    for model in (once, twice):
        model.update([whole])
    x, _ = programs(100, 6, "a")
    assert np.array_equal(once.predict(x, "a"), twice.predict(x, "a"))
    assert not np.array_equal(once.predict(x, "a"), before.predict(x, "a"))
    assert np.array_equal(once.predict(x), before.predict(x))  # trees are those of before


def test_ranks_are_left_as_they_are() -> None:
    model = CorrectionModel(objective="rank")
    model.update([group(150, 1, "a")])
    x, _ = programs(100, 6, "a")
    assert np.array_equal(model.predict(x, "a"), model.predict(x))


@pytest.mark.parametrize("seed", [0, 3])
def test_a_loaded_model_knows_no_task(tmp_path: Path, seed: int) -> None:
    model = CorrectionModel(seed=seed)
    model.update([group(150, 1, "a")])
    model.save(tmp_path / "model.json")
    model.load(tmp_path / "model.json")
    x, _ = programs(100, 6, "a")
    found = model.predict(x, "a")
    assert np.array_equal(found, model.predict(x))
    model.update([group(150, 1, "a")])
    assert not np.array_equal(model.predict(x, "a"), model.predict(x))


def test_groups_that_are_no_history_are_learned_anew() -> None:
    """The same latencies of other programs, without numbers of rounds: nothing stays."""
    a, b = group(150, 1, "a"), group(150, 7, "a")
    other = replace(b, latency_s=a.latency_s)
    long, short = CorrectionModel(), CorrectionModel()
    long.update([a])
    for model in (long, short):
        model.update([other])
    x, _ = programs(100, 6, "a")
    assert np.array_equal(long.predict(x, "a"), short.predict(x, "a"))
