"""Policies on recorded programs: the results they get, and that a better policy scores better."""

from dataclasses import replace

import numpy as np
import pytest
from log_cases import record

import ansorlite
from ansorlite.baselines.simulate import RecordedTask, simulate, simulate_policy
from ansorlite.cost.analytic import analytic_score
from ansorlite.cost.features import FeaturePlan
from ansorlite.errors import LogError
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.naming import canonical_names
from ansorlite.search.policy import RandomPolicy
from ansorlite.space.legality import legal
from ansorlite.space.sketch import sketches
from ansorlite.task import SearchTask

N = 160


@pytest.fixture(scope="module")
def task() -> SearchTask:
    found: SearchTask = ansorlite.workload("GMM:0")
    return found


@pytest.fixture(scope="module")
def recorded(task: SearchTask) -> RecordedTask:
    """Candidates of one sketch, as fast as the analytic score says, a tenth of them failures."""
    space, names = sketches(task.dag, task.target), canonical_names(task.dag)
    sketch = space[0]
    rows = sketch.sample(16 * N, np.random.default_rng(0))
    columns = population_columns(sketch.holes, rows)
    rows = rows[legal(sketch.program, columns, len(rows), task.target)][:N]
    columns = population_columns(sketch.holes, rows)
    scores = analytic_score(FeaturePlan(sketch.program)(columns, len(rows), task.target))
    first = record(task)
    records = [
        replace(
            first,
            trial=k,
            holes=names.holes(sketch.values(row)),
            status="OK" if k % 10 else "RUN_ERROR",
            latency_s=1e-9 * float(np.exp2(-score)) if k % 10 else None,
        )
        for k, (row, score) in enumerate(zip(rows, scores, strict=True))
    ]
    return RecordedTask(task, space, records)


def test_every_record_is_given_out_once(recorded: RecordedTask) -> None:
    for name in ("evolutionary", "random"):
        run = simulate_policy(recorded, name, 2 * N, seed=0)
        assert len({c.key for c in run.candidates}) == len(run.latency_s) == len(recorded)
        assert run.best_s(len(recorded)) == recorded.best_s
        assert np.isinf(run.latency_s).sum() == np.isinf(recorded.latency_s).sum() > 0


def test_a_record_that_was_asked_is_the_answer(recorded: RecordedTask) -> None:
    given = np.zeros(len(recorded), dtype=bool)
    for k in (0, 7, len(recorded) - 1):
        assert recorded.nearest(recorded.candidate(k), given) == k
    given[7] = True
    assert recorded.nearest(recorded.candidate(7), given) != 7
    given[:] = True
    assert recorded.nearest(recorded.candidate(7), given) is None


def test_a_seed_says_everything(recorded: RecordedTask) -> None:
    first, again, other = (simulate_policy(recorded, "evolutionary", 48, s) for s in (3, 3, 4))
    assert [c.key for c in first.candidates] == [c.key for c in again.candidates]
    assert [c.key for c in first.candidates] != [c.key for c in other.candidates]


def test_the_search_beats_chance(recorded: RecordedTask) -> None:
    """The records are as fast as the draft says, so that a search has something to find."""
    found = {
        name: np.mean([simulate_policy(recorded, name, 24, seed).best_s(24) for seed in range(5)])
        for name in ("evolutionary", "random")
    }
    assert found["evolutionary"] < found["random"]


def test_the_budget_and_the_size_of_rounds(recorded: RecordedTask, task: SearchTask) -> None:
    sizes: list[int] = []

    class Counting(RandomPolicy):
        def ask(self, n: int, round_: int) -> list:  # type: ignore[type-arg]
            sizes.append(n)
            return super().ask(n, round_)

    key = task.workload_key
    run = simulate(recorded, lambda s: Counting(s, task.target, 0, key), 20, round_size=8)
    assert len(run.latency_s) == 20 and sizes == [8, 8, 4]


def test_bad_input(recorded: RecordedTask, task: SearchTask) -> None:
    with pytest.raises(ValueError, match="no policy is called 'best'"):
        simulate_policy(recorded, "best", 8, 0)
    with pytest.raises(LogError, match="no valid record"):
        RecordedTask(task, sketches(task.dag, task.target), [record(task, 0, holes={})])
