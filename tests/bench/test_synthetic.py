"""Synthetic machines: their latencies, and searches that improve on them."""

import numpy as np
import pytest

import ansorlite
from ansorlite.cost.analytic import AVX512
from ansorlite.search.history import Candidate, History
from ansorlite.space.sketch import sketches
from ansorlite.task import SearchTask
from bench.synthetic import HERTZ, SyntheticTask, run, synthetic_rates


@pytest.fixture(scope="module")
def task() -> SearchTask:
    found: SearchTask = ansorlite.workload("NRM:1")
    return found


def test_without_spread_and_luck_it_is_the_estimate(task: SearchTask) -> None:
    space = sketches(task.dag, task.target)
    oracle = SyntheticTask(task, space, spread=0.0, luck=0.0)
    rows = space[0].sample(20, np.random.default_rng(0))
    known = History(space, task.target).draft(space[0].name, rows)
    np.testing.assert_allclose(oracle.latency_s(space[0], rows) * HERTZ, np.exp2(-known))


def test_a_program_always_takes_the_same(task: SearchTask) -> None:
    space = sketches(task.dag, task.target)
    rows = space[0].sample(20, np.random.default_rng(0))
    asked = [Candidate(space[0], tuple(int(v) for v in row)) for row in rows]
    first, again = SyntheticTask(task, space).answers(), SyntheticTask(task, space).answers()
    given, times = first(asked)
    assert given == asked and len(set(times)) > 1
    assert again(asked[::-1])[1] == times[::-1]
    assert first([]) == ([], [])


def test_constants_are_off_by_no_more_than_the_spread() -> None:
    found = synthetic_rates(AVX512, np.random.default_rng(0), 0.5)
    ratios = [getattr(found, k) / getattr(AVX512, k) for k in ("fma", "loads", "beyond_l2", "math")]
    assert all(2**-0.5 <= r <= 2**0.5 for r in ratios) and len(set(ratios)) == 4
    assert found.serialised <= 1.0


def test_runs_differ_by_their_seeds_alone() -> None:
    first, again, other = (run("random", "NRM:1", seed, 12) for seed in (0, 0, 1))
    assert first.latency_s == again.latency_s != other.latency_s
    assert first.key == ("random", "NRM:1", 0) and len(first.latency_s) == 12
    assert all(np.isfinite(first.best()))


def test_a_search_repeats_itself() -> None:
    first, again = (run("full", "NRM:1", 0, 12) for _ in range(2))
    assert first.latency_s == again.latency_s and len(first.latency_s) == 12
    assert all(np.isfinite(first.best()))
