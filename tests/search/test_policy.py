"""The contract of every search policy: a new policy is a line in POLICIES."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_cases import matmul, vector

from ansorlite.baselines.annealing import AnnealingParams
from ansorlite.baselines.annealing import make as annealing
from ansorlite.baselines.genetic import GeneticParams, GeneticPolicy, GridPolicy
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import Features
from ansorlite.cost.model import GBDTModel
from ansorlite.schedule.holes import population_columns
from ansorlite.search.evolve import Rows
from ansorlite.search.history import Candidate, History
from ansorlite.search.policy import (
    EvolutionaryPolicy,
    EvolutionParams,
    RandomPolicy,
    SearchPolicy,
)
from ansorlite.search.searchers import SEARCHERS, Context
from ansorlite.search.select import unique_rows
from ansorlite.space.legality import legal
from ansorlite.space.sketch import Sketch, sketches
from ansorlite.task import SearchTask

Factory = Callable[[SearchTask, Sequence[Sketch], int], SearchPolicy]
FAILED = float("inf")


def random_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    return RandomPolicy(space, task.target, seed, task.workload_key)


def evolutionary_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    params = EvolutionParams(population=128, generations=2)
    model = CorrectionModel(seed=seed)
    return EvolutionaryPolicy(space, task.target, seed, task.workload_key, model, params)


def crossing_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> EvolutionaryPolicy:
    params = EvolutionParams(population=128, generations=2, mutation=0.5)
    model = CorrectionModel(seed=seed)
    return EvolutionaryPolicy(space, task.target, seed, task.workload_key, model, params)


def visiting_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> EvolutionaryPolicy:
    params = EvolutionParams(population=128, generations=2, visited=1.0)
    model = CorrectionModel(seed=seed)
    return EvolutionaryPolicy(space, task.target, seed, task.workload_key, model, params)


def annealing_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    params = AnnealingParams(chains=32, steps=20)
    return annealing(space, Context(task, seed, GBDTModel()), params=params)


def exploring_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    params = AnnealingParams(chains=32, steps=20)
    return annealing(
        space, Context(task, seed, GBDTModel()), "knobs", "regression", "ei", params=params
    )


def genetic_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    params = GeneticParams(population=40)
    return GeneticPolicy(space, task.target, seed, task.workload_key, params)


def grid_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    return GridPolicy(space, task.target, seed, task.workload_key)


def beam_policy(task: SearchTask, space: Sequence[Sketch], seed: int) -> SearchPolicy:
    return SEARCHERS["beam"].make(space, Context(task, seed, GBDTModel(seed=seed)))


POLICIES = {
    "random": random_policy,
    "evolutionary": evolutionary_policy,
    "crossing": crossing_policy,
    "visiting": visiting_policy,
    "annealing": annealing_policy,
    "exploring": exploring_policy,
    "beam": beam_policy,
    "genetic": genetic_policy,
    "grid": grid_policy,
}
BY_ROUND = (
    "random",
    "evolutionary",
    "crossing",
    "visiting",
    "annealing",
    "exploring",
    "beam",
)  # what they draw depends on it

TASK = matmul()
SPACE = sketches(TASK.dag, TASK.target)


@pytest.fixture(params=POLICIES)
def make(request: pytest.FixtureRequest) -> Factory:
    return POLICIES[request.param]


def keys(candidates: Sequence[Candidate]) -> list[tuple[str, tuple[int, ...]]]:
    return [c.key for c in candidates]


def check_legal(candidates: Sequence[Candidate], task: SearchTask = TASK) -> None:
    for c in candidates:
        row = np.asarray([c.row], dtype=np.int32)
        sizes = [len(h.options) for h in c.sketch.holes]
        assert row.shape == (1, len(sizes)) and ((row >= 0) & (row < sizes)).all()
        columns = population_columns(c.sketch.holes, row)
        assert legal(c.sketch.program, columns, 1, task.target).all(), c.key


def test_asks_for_as_many_as_it_is_told_to_and_for_none_twice(make: Factory) -> None:
    policy = make(TASK, SPACE, 0)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for round_, n in enumerate((1, 2, 7, 24), start=1):
        asked = policy.ask(n, round_)
        assert len(asked) == n
        check_legal(asked)
        assert len(set(keys(asked))) == n and not seen & set(keys(asked))
        seen |= set(keys(asked))
        policy.tell(asked, [1e-3 * (k + 1) for k in range(n)])
    assert policy.ask(0, 9) == []


def test_the_same_seed_and_history_ask_the_same(make: Factory) -> None:
    def rounds(policy: SearchPolicy) -> list[tuple[str, tuple[int, ...]]]:
        first = policy.ask(8, 1)
        policy.tell(first, [1e-3, FAILED, 3e-3, 2e-3, FAILED, 5e-3, 4e-3, 1e-3])
        return keys(first) + keys(policy.ask(8, 2))

    one = rounds(make(TASK, SPACE, 3))
    assert rounds(make(TASK, SPACE, 3)) == one
    assert make is grid_policy or rounds(make(TASK, SPACE, 4)) != one


def test_asking_again_changes_nothing(make: Factory) -> None:
    policy = make(TASK, SPACE, 0)
    first = keys(policy.ask(8, 1))
    policy.ask(5, 2)
    assert keys(policy.ask(8, 1)) == first
    assert make not in [POLICIES[p] for p in BY_ROUND] or keys(policy.ask(8, 2)) != first


def test_failures_are_learned_not_asked_again(make: Factory) -> None:
    policy = make(TASK, SPACE, 0)
    seen: list[tuple[str, tuple[int, ...]]] = []
    for round_ in range(1, 5):
        asked = policy.ask(6, round_)
        assert len(asked) == 6
        check_legal(asked)
        seen += keys(asked)
        policy.tell(asked, [FAILED] * 6 if round_ < 4 else [FAILED, 1e-3] * 3)
    assert len(set(seen)) == len(seen)


def test_history_that_it_did_not_ask_for_counts(make: Factory) -> None:
    """As a log brings it: told before the first ask, and in several parts."""
    history = make(TASK, SPACE, 7).ask(12, 1)
    policy = make(TASK, SPACE, 0)
    policy.tell(history[:5], [1e-3] * 5)
    policy.tell(history[5:], [FAILED] * 7)
    policy.tell([], [])
    asked = policy.ask(16, 3)
    assert len(asked) == 16 and not set(keys(asked)) & set(keys(history))


def test_a_space_is_used_up_and_then_empty(make: Factory) -> None:
    task = vector(2)
    space = sketches(task.dag, task.target)
    policy = make(task, space, 0)
    size = sum(int(np.prod([len(h.options) for h in s.holes])) for s in space)
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for round_ in range(1, 40):
        asked = policy.ask(5, round_)
        if not asked:
            break
        check_legal(asked, task)
        assert not seen & set(keys(asked))
        seen |= set(keys(asked))
        policy.tell(asked, [1e-3 * (1 + k) for k in range(len(asked))])
    assert not policy.ask(5, 40)
    assert 0 < len(seen) <= size


def test_groups_hold_all_results_failures_too(make: Factory) -> None:
    policy = make(TASK, SPACE, 0)
    asked = policy.ask(6, 1)
    latency_s = [2e-3, FAILED, 1e-3, FAILED, 4e-3, 3e-3]
    policy.tell(asked, latency_s)
    for group in (policy.training_group(), policy.transfer_group()):
        if group is not None:
            assert group.task_key == TASK.workload_key and len(group.features) == 6
            assert sorted(group.latency_s) == sorted(latency_s)


def test_models_learn_of_the_policies_that_use_them() -> None:
    groups = {name: make(TASK, SPACE, 0).training_group() for name, make in POLICIES.items()}
    assert {name for name, group in groups.items() if group is not None} == {
        "evolutionary",
        "crossing",
        "visiting",
        "beam",
    }


def test_a_guess_is_a_legal_candidate_whatever_was_hinted(make: Factory) -> None:
    policy = make(TASK, SPACE, 0)
    policy.hint([SPACE[0].name, "unknown"])
    first = policy.ask(2, 1)
    policy.tell(first, [1e-3, FAILED])
    (guess,) = policy.guess(2)
    check_legal([guess])
    assert guess.key not in keys(first)


FIRST = """
import sys
sys.path.insert(0, {folder!r})
import test_policy
for name, make in test_policy.POLICIES.items():
    asked = make(test_policy.TASK, test_policy.SPACE, 11).ask(64, 1)
    print(name, test_policy.keys(asked))
"""


def test_another_process_with_another_hash_seed_asks_the_same() -> None:
    code = FIRST.format(folder=str(Path(__file__).parent))
    env = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    ).stdout
    lines = [f"{name} {keys(make(TASK, SPACE, 11).ask(64, 1))}" for name, make in POLICIES.items()]
    assert out.splitlines() == lines


def test_hinted_sketches_are_looked_at_and_few_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sketches that a similar task liked leave the first round little else to lower."""
    params = EvolutionParams(population=64, generations=1, alive=2, looked_at=3)
    counts = []
    for hints in ((), (SPACE[-1].name, "unknown")):
        policy = EvolutionaryPolicy(
            SPACE, TASK.target, 0, TASK.workload_key, GBDTModel(seed=0), params
        )
        policy.hint(hints)
        looked_at: set[str] = set()
        samples = policy.history.samples

        def seen(names: Any, *args: Any, _to: set[str] = looked_at, _by: Any = samples) -> Any:
            _to.update(names)
            return _by(names, *args)

        monkeypatch.setattr(policy.history, "samples", seen)
        check_legal(policy.ask(8, 1))
        counts.append(looked_at)
    assert SPACE[-1].name in counts[1] and len(counts[1]) < len(counts[0])


def test_features_of_what_was_asked_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[np.ndarray] = []

    class Counted(History):
        def features_of(self, rows: Mapping[str, Rows]) -> dict[str, Features]:
            made.extend(row for own in rows.values() for row in own)
            return super().features_of(rows)

    monkeypatch.setattr("ansorlite.search.policy.History", Counted)
    model = CorrectionModel(seed=1)
    policy = EvolutionaryPolicy(SPACE, TASK.target, 1, TASK.workload_key, model)
    for round_ in range(1, 4):  # the first is scored by the estimate alone
        asked = policy.ask(48, round_)
        assert made
        made.clear()
        policy.tell(asked, [1e-3 + k * 1e-5 for k in range(len(asked))])
        assert not made
        model.update([policy.history.group(TASK.workload_key)])
    assert model.is_trained
    told = policy.history.told
    for s in SPACE:
        again = History(SPACE, TASK.target).features(s.name, policy.history.measured_rows(s.name))
        assert len(again) == len(told[s.name].features)
        for found, own in zip(told[s.name].features, again, strict=True):
            np.testing.assert_array_equal(found, own)


def test_a_round_has_tiles_that_were_not_measured() -> None:
    """However good the variants of one tile are predicted to be."""
    policy = evolutionary_policy(TASK, SPACE, 3)
    told: set[tuple[str, tuple[int, ...]]] = set()

    def tiles(c: Candidate, last: bool) -> tuple[str, tuple[int, ...]]:
        values = [c.values[h.name] for h in c.sketch.holes if h.kind == "tile"]
        inner = [v[-1:] if last else v for v in values if not last or len(v) > 1]
        return c.sketch.name, tuple(x for v in inner for x in v)

    for round_ in range(1, 9):
        asked = policy.ask(16, round_)
        assert sum(tiles(c, last=False) not in told for c in asked) >= 8
        assert sum(tiles(c, last=True) not in told for c in asked) >= 4
        told |= {tiles(c, last) for c in asked for last in (False, True)}
        policy.tell(asked, [1e-3 if len(c.row) % 2 else 2e-3 for c in asked])


def test_what_is_visited_is_not_only_the_best() -> None:
    """A sample of the generations lies far below what the same search would pick of them."""
    picked = evolutionary_policy(TASK, SPACE, 0).ask(24, 1)
    visited = visiting_policy(TASK, SPACE, 0).ask(24, 1)
    best = np.sort([c.score for c in picked])[-20:]  # some are drawn at random, without a score
    assert np.median([c.score for c in visited]) < best.min()


def test_a_thorough_search_predicts_faster_programs() -> None:
    """It looks at more rows than a round of one candidate, and at those of all sketches."""
    gained = []
    for seed in range(4):
        policy = evolutionary_policy(TASK, SPACE, seed)
        short, thorough = policy.ask(1, 1), policy.ask(1, 1, thorough=True)
        check_legal(thorough)
        assert len(short) == len(thorough) == 1
        gained.append(thorough[0].score - short[0].score)
    assert sum(gained) > 0


@pytest.mark.parametrize(("n", "draws"), [(0, 8), (1, 1), (7, 3), (40, 16), (4000, 2)])
def test_samples_are_the_first_legal_draws(n: int, draws: int) -> None:
    """However many are made at a time; none is drawn twice, and there are bounds."""
    history = History(SPACE, TASK.target)
    names = list(history.sketches)
    found = history.samples(names, n, draws, lambda name: np.random.default_rng(len(name)))
    for name in names:
        rows, rng = found[name], np.random.default_rng(len(name))
        assert len(rows) <= n and len(unique_rows(rows)) == len(rows)
        assert history.legal(name, rows).all()
        most = max(64, n * draws)
        first = history.sketches[name].sample(min(max(64, 2 * n), most), rng)
        first = first[unique_rows(first)]
        first = first[history.legal(name, first)][:n]
        np.testing.assert_array_equal(rows[: len(first)], first)
        every = history.sketches[name].sample(4 * most, rng)  # far more than may be drawn
        legal = int(history.legal(name, every[unique_rows(every)]).sum())
        assert len(rows) == n or len(rows) < max(legal, 1)


def test_distinct_rows_do_not_depend_on_how_many_are_looked_at_together() -> None:
    history = History(SPACE, TASK.target)
    rng = np.random.default_rng(0)
    ranked = [
        (name, row, 0.0)
        for name, rows in history.samples(history.sketches, 12, 4, lambda _: rng).items()
        for row in (*rows, *rows[:3])  # copies, too
    ]

    def found(block: int) -> list[tuple[str, bytes]]:
        return [(name, row.tobytes()) for name, row, _ in history.distinct(ranked, block, set())]

    assert 0 < len(found(1)) < len(ranked)
    assert found(1) == found(5) == found(len(ranked))
