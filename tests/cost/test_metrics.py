"""Quality figures of cost models, on cases small enough to count by hand."""

import math

import numpy as np
import pytest

from ansorlite.cost.metrics import pairwise_accuracy, r_squared, recall_at_k, rmse


def test_pairwise_accuracy() -> None:
    latency = np.array([1.0, 2.0, 4.0])
    assert pairwise_accuracy(np.array([3.0, 2.0, 1.0]), latency) == 1.0
    assert pairwise_accuracy(np.array([1.0, 2.0, 3.0]), latency) == 0.0
    assert pairwise_accuracy(np.array([3.0, 1.0, 2.0]), latency) == pytest.approx(2 / 3)
    assert pairwise_accuracy(np.zeros(3), latency) == 0.5


def test_close_pairs_and_pairs_of_failures_do_not_count() -> None:
    assert math.isnan(pairwise_accuracy(np.array([1.0, 2.0]), np.array([1.0, 1.04])))
    assert pairwise_accuracy(np.array([1.0, 2.0]), np.array([1.0, 1.06])) == 0.0
    assert pairwise_accuracy(np.array([1.0, 2.0]), np.array([1.0, 1.04]), min_gap=0.0) == 0.0
    latency = np.array([1.0, np.inf, np.inf])
    assert pairwise_accuracy(np.array([2.0, 1.0, 3.0]), latency) == 0.5
    assert math.isnan(pairwise_accuracy(np.array([2.0, 1.0]), latency[1:]))
    assert math.isnan(pairwise_accuracy(np.array([]), np.array([])))


def test_pairwise_accuracy_equals_the_double_loop() -> None:
    rng = np.random.default_rng(0)
    scores, latency = rng.integers(0, 5, 40).astype(float), rng.random(40) + 0.1
    counts = [
        0.5
        if scores[i] == scores[j]
        else float((scores[i] > scores[j]) == (latency[i] < latency[j]))
        for i in range(40)
        for j in range(i)
        if max(latency[i], latency[j]) > 1.05 * min(latency[i], latency[j])
    ]
    assert pairwise_accuracy(scores, latency) == pytest.approx(np.mean(counts))


def test_recall_at_k() -> None:
    latency = np.array([4.0, 1.0, np.inf, 2.0])
    scores = np.array([0.1, 0.9, 0.8, 0.2])
    assert recall_at_k(scores, latency, 1) == 1.0
    assert recall_at_k(scores, latency, 2) == 0.5
    assert recall_at_k(scores, latency, 9) == 1.0
    assert math.isnan(recall_at_k(scores, latency, 0))


def test_rmse_and_r_squared() -> None:
    label = np.array([0.0, 1.0])
    assert rmse(np.array([0.5, 0.5]), label) == 0.5
    assert r_squared(np.array([0.5, 0.5]), label) == 0.0
    assert r_squared(label, label) == 1.0
    assert r_squared(np.array([1.0, 0.0]), label) == pytest.approx(-3.0)
    assert math.isnan(r_squared(np.array([1.0]), np.array([0.3])))
