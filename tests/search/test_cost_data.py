"""Accuracy on what a model has not seen: what is measured, what is left out, what comes out."""

from pathlib import Path

import numpy as np
import pytest
from search_cases import Pretender, vector

from ansorlite.bench.cost_data import (
    AMONG,
    ENOUGH,
    accuracy,
    collect,
    scores_by_program,
    scores_by_task,
)
from ansorlite.cost.losses import TrainingGroup, labels
from ansorlite.cost.model import GBDTModel


class Memory(GBDTModel):
    """Knows the label of what it was trained on, by the first feature, and 0 of anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[float, float] = {}

    def update(self, groups: object) -> None:
        assert isinstance(groups, list)
        for g in groups:
            found = labels(g.latency_s)
            self.known |= {float(f[0, 0]): y for f, y in zip(g.features, found, strict=True)}

    def predict(self, features: np.ndarray) -> np.ndarray:
        return np.array([self.known.get(float(f[0, 0]), 0.0) for f in features])


def group(key: str, n: int, rng: np.random.Generator) -> TrainingGroup:
    """Programs of one or two statements, whose speed is the sum of a feature of theirs."""
    features = [rng.random((1 + k % 2, 4)).astype(np.float32) for k in range(n)]
    speed = np.array([float(f[:, 1].sum()) + 0.01 for f in features])
    return TrainingGroup(key, features, 1e-3 / speed)


def test_no_program_is_scored_by_a_model_that_has_seen_it() -> None:
    rng = np.random.default_rng(0)
    groups = [group("a", 40, rng), group("b", 30, rng)]
    for scores in (scores_by_program, scores_by_task):
        assert all((s == 0).all() for s in scores(groups, Memory))


def test_a_model_learns_what_can_be_learned() -> None:
    rng = np.random.default_rng(1)
    groups = [group(k, AMONG, rng) for k in "abcd"]
    found = accuracy(groups, scores_by_program(groups, GBDTModel))
    assert found.pairwise > 0.9 and found.recall > 0.5 and found.r_squared > 0.8


def test_perfect_and_empty_scores() -> None:
    groups = [group("a", AMONG, np.random.default_rng(2))]
    found = accuracy(groups, [labels(groups[0].latency_s)])
    assert (found.pairwise, found.recall, found.r_squared) == (1.0, 1.0, 1.0)
    found = accuracy(groups, [np.zeros(AMONG)])
    assert found.pairwise == 0.5


def test_random_programs_are_the_first_of_a_group() -> None:
    """Their recall is that of all where they are alone, and does not see what follows them."""
    rng = np.random.default_rng(3)
    whole = group("a", 2 * ENOUGH, rng)
    scores = labels(whole.latency_s)
    scores[ENOUGH:] = rng.random(ENOUGH)
    found = accuracy([whole], [scores], n_random=[ENOUGH])
    assert found.recall_random == 1.0 > found.recall
    assert np.isnan(accuracy([whole], [scores], n_random=[ENOUGH - 1]).recall_random)
    assert accuracy([whole], [scores]).recall_random < 1.0


@pytest.mark.parametrize("kind", ["visited", "picked"])
def test_both_kinds_are_measured_and_kept(tmp_path: Path, kind: str) -> None:
    both = Pretender()
    tasks = [vector(8), vector(12)]  # spaces that are soon used up
    told: list[str] = []
    first = collect(tmp_path, tasks, 60.0, both, both, tell=told.append, kind=kind)
    assert {p.name for p in tmp_path.iterdir()} == {"random.jsonl", f"{kind}.jsonl"}
    assert told and all(len(g.latency_s) == len(g.features) > 1 for g, _ in first)
    assert all(0 < n < len(g.latency_s) for g, n in first)
    again = collect(tmp_path, tasks, 0.0, both, both, kind=kind)
    assert [(len(g.latency_s), n) for g, n in again] == [(len(g.latency_s), n) for g, n in first]
    assert sorted(again[0][0].latency_s) == pytest.approx(sorted(first[0][0].latency_s))
