"""Pack-sum losses: labels, packs, and gradients compared with finite differences."""

from collections.abc import Callable

import numpy as np
import pytest

from ansorlite.cost.losses import (
    MIN_WEIGHT,
    Loss,
    Packs,
    TrainingGroup,
    base_score,
    labels,
    logistic,
    pack_groups,
    rank_loss,
    squared_loss,
)


def group(
    key: str, n_rows: list[int], latency_s: list[float], n_features: int = 3
) -> TrainingGroup:
    rng = np.random.default_rng(sum(n_rows))
    rows = [rng.random((n, n_features), np.float32) for n in n_rows]
    return TrainingGroup(key, rows, np.array(latency_s))


def packs() -> Packs:
    made = pack_groups(
        [
            group("a", [2, 1, 4, 2], [2e-3, 1e-3, np.inf, 4e-3]),
            group("b", [3, 3, 1], [5.0, 4.0, 8.0]),
        ]
    )
    assert made is not None
    return made


def ranked(p: Packs) -> Loss:
    return rank_loss(p, np.random.default_rng(0))


def test_labels() -> None:
    assert labels(np.array([2.0, 1.0, np.inf, np.nan, 4.0])).tolist() == [0.5, 1.0, 0.0, 0.0, 0.25]
    assert labels(np.array([np.inf, np.inf])).tolist() == [0.0, 0.0]
    assert labels(np.array([])).tolist() == []
    with pytest.raises(ValueError, match=r"latency -1.0 s is not positive"):
        labels(np.array([-1.0, 2.0]))


def test_packs_are_laid_end_to_end() -> None:
    p = packs()
    assert p.pack.tolist() == [0, 0, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4, 5, 5, 5, 6]
    assert p.n_rows.tolist() == [2, 1, 4, 2, 3, 3, 1]
    assert p.label.tolist() == [0.5, 1.0, 0.0, 0.25, 0.8, 1.0, 0.5]
    assert p.group.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert p.weight.min() == MIN_WEIGHT
    assert p.sums(np.ones(16)).tolist() == p.n_rows.tolist()


def test_take_keeps_programs_whole() -> None:
    p = packs()
    taken = p.take(np.array([False, True, False, True, False, False, True]))
    assert taken.pack.tolist() == [0, 1, 1, 2]
    assert taken.n_rows.tolist() == [1, 2, 1]
    assert taken.label.tolist() == [1.0, 0.25, 0.5]
    assert taken.group.tolist() == [0, 0, 1]
    assert np.array_equal(taken.features, p.features[[2, 7, 8, 15]])


def test_programs_without_a_row_are_left_out() -> None:
    p = pack_groups([group("a", [0, 2], [1.0, 2.0])])
    assert p is not None
    assert p.label.tolist() == [0.5]
    assert pack_groups([group("a", [0], [1.0])]) is None
    assert pack_groups([]) is None


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="task a: 2 programs have features, 1 have a latency"):
        pack_groups([group("a", [1, 1], [1.0])])
    with pytest.raises(ValueError, match=r"different numbers of features: \[3, 4\]"):
        pack_groups([group("a", [1], [1.0]), group("b", [1], [1.0], n_features=4)])
    bad = group("b", [2], [1.0])
    bad.features[0][1, 2] = np.nan
    with pytest.raises(ValueError, match="task b: feature 2 is nan"):
        pack_groups([group("a", [3], [1.0]), bad])


@pytest.mark.parametrize("make", [squared_loss, ranked])
def test_gradient_is_the_slope_of_the_loss(make: Callable[[Packs], Loss]) -> None:
    p = packs()
    loss = make(p)
    scores = np.random.default_rng(1).normal(size=16)
    gradient, hessian = loss.derivatives(scores)
    for row in range(16):
        step = np.zeros(16)
        step[row] = 1e-5
        slope = (loss.value(scores + step) - loss.value(scores - step)) / 2e-5
        assert gradient[row] == pytest.approx(slope, abs=1e-8)
    assert (hessian >= 0).all()


@pytest.mark.parametrize("make", [squared_loss, ranked])
def test_hessian_bounds_the_curvature_along_a_whole_pack(make: Callable[[Packs], Loss]) -> None:
    """One leaf that takes every row of a program must not overshoot."""
    p = packs()
    loss = make(p)
    scores = np.random.default_rng(2).normal(size=16)
    _, hessian = loss.derivatives(scores)
    for program in range(len(p)):
        step = np.where(p.pack == program, 1e-3, 0.0)
        around = loss.value(scores + step) + loss.value(scores - step) - 2 * loss.value(scores)
        assert around / 1e-6 <= hessian[p.pack == program].sum() * (1 + 1e-3) + 1e-6


def test_newton_step_on_a_pack_lands_on_its_label() -> None:
    p = packs()
    scores = np.random.default_rng(3).normal(size=16)
    gradient, hessian = squared_loss(p).derivatives(scores)
    assert p.sums(scores - gradient / hessian) == pytest.approx(p.label)


def test_base_score_is_the_best_constant() -> None:
    p = packs()
    base = base_score(p)
    value = squared_loss(p).value
    least = value(np.full(16, base))
    assert least < value(np.full(16, base * 1.01))
    assert least < value(np.full(16, base * 0.99))


def test_rank_loss_compares_within_a_task_only() -> None:
    p = pack_groups([group("a", [1, 1], [1.0, 2.0]), group("b", [1, 1], [3.0, 3.0])])
    assert p is not None
    gradient, _ = ranked(p).derivatives(np.zeros(4))
    assert gradient[0] < 0 < gradient[1]
    assert gradient[2:].tolist() == [0.0, 0.0]


def test_failures_move_the_gradient() -> None:
    p = packs()
    failed = p.pack == 2
    for make in (squared_loss, ranked):
        gradient, _ = make(p).derivatives(np.full(16, 0.5))
        assert (gradient[failed] > 0).all()


def test_logistic_does_not_overflow() -> None:
    with np.errstate(all="raise"):
        assert logistic(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]
