"""A Gaussian process finds the fastest programs of a task among its fast ones."""

import numpy as np
import numpy.typing as npt
import pytest

from ansorlite.cost.gaussian import MAX_PROGRAMS, MIN_LABEL, MIN_PROGRAMS, GaussianProcess
from ansorlite.cost.metrics import recall_at_k

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]


def programs(n: int, seed: int) -> tuple[Rows, Floats]:
    """Tiles as features, some twice or constant, and a speed that is smooth in them, with noise."""
    rng = np.random.default_rng(seed)
    tiles = rng.integers(0, 7, (n, 6)).astype(np.float32)
    x = np.hstack([tiles, np.exp2(tiles), tiles[:, :2], np.full((n, 1), 3.0, np.float32)])
    best = np.array([3.0, 4.0, 2.0, 5.0, 1.0, 3.0])
    slower = 0.015 * np.square(tiles - best).sum(axis=1) + 0.05 * np.abs(tiles[:, 0] - tiles[:, 1])
    label = np.exp2(-slower + rng.normal(0.0, 0.01, n))
    return x.astype(np.float32), label / label.max()


def test_it_finds_the_fastest_from_two_hundred_programs() -> None:
    x, label = programs(1200, 0)
    process = GaussianProcess(x[:200], label[:200])
    found = recall_at_k(process.predict(x[200:]), 1.0 / label[200:], 50)
    assert found > 0.6  # by chance: 0.05


def test_what_is_left_out_is_what_others_say() -> None:
    x, label = programs(80, 1)
    process = GaussianProcess(x, label)
    assert np.array_equal(np.sort(process.at), np.flatnonzero(label >= MIN_LABEL))
    target = np.log2(label[process.at])
    for k in (0, 7, len(process.at) - 1):
        others = np.setdiff1d(process.at, process.at[k])
        # Ranks, scale and mean are those of the others, so the figures are close, not equal.
        said = GaussianProcess(x[others], label[others]).predict(x[process.at[k]][None])[0]
        assert process.leave_one_out[k] == pytest.approx(said, abs=0.1)
    known = np.abs(process.predict(x[process.at]) - target)
    assert known[:5].mean() < np.abs(process.leave_one_out - target)[:5].mean()  # it has seen these


def test_slow_programs_have_no_say() -> None:
    x, label = programs(120, 2)
    fast = label >= MIN_LABEL
    assert not fast.all()
    a, b = GaussianProcess(x, label), GaussianProcess(x[fast], label[fast])
    asked, _ = programs(50, 3)
    assert np.array_equal(a.predict(asked), b.predict(asked))


def test_far_from_what_is_known_it_says_no_more_than_the_best() -> None:
    x, label = programs(200, 4)
    far = x[:5] + 1000.0
    found = GaussianProcess(x, label).predict(far)
    assert np.isfinite(found).all()
    assert (found < 0.3).all()


def test_of_many_programs_the_fastest_are_kept() -> None:
    x, label = programs(4 * MAX_PROGRAMS, 5)
    process = GaussianProcess(x, label)
    assert len(process.at) == len(process.leave_one_out) == MAX_PROGRAMS
    assert label[process.at].min() >= np.sort(label)[-MAX_PROGRAMS]


def test_equal_programs_and_single_columns() -> None:
    """Nothing to tell them apart by: the average."""
    x = np.ones((MIN_PROGRAMS, 3), np.float32)
    label = np.linspace(0.9, 1.0, MIN_PROGRAMS)
    found = GaussianProcess(x, label).predict(x)
    assert np.ptp(found) == 0.0
    assert np.log2(0.9) < found[0] < 0.0


def test_few_fast_programs_are_not_enough() -> None:
    x, _ = programs(50, 6)
    label = np.full(50, 0.1)
    label[: MIN_PROGRAMS - 1] = 1.0
    assert not GaussianProcess.has_enough(label)
    assert not GaussianProcess.has_enough(np.zeros(50)) and not GaussianProcess.has_enough(
        np.empty(0)
    )
    with pytest.raises(ValueError, match="fast programs"):
        GaussianProcess(x, label)
    label[MIN_PROGRAMS - 1] = 1.0
    assert GaussianProcess.has_enough(label)
