"""Accuracy of cost models on programs outside their training data."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from search_cases import Pretender, vector

from ansorlite.codegen.image import KernelImage
from ansorlite.cost.losses import TrainingGroup, labels
from ansorlite.cost.model import GBDTModel
from ansorlite.measure.result import MeasureResult
from ansorlite.records import read_log
from bench.cost_data import (
    AMONG,
    ENOUGH,
    MOST,
    NEAR,
    PASSES,
    Measured,
    accuracy,
    collect,
    repeatability,
    scores_by_program,
    scores_by_task,
)


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

    def predict(self, features: np.ndarray, task_key: str = "") -> np.ndarray:
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
    assert found.close == 1.0
    found = accuracy(groups, [np.zeros(AMONG)])
    assert found.pairwise == 0.5
    found = accuracy(groups, [-labels(groups[0].latency_s)])
    assert found.pairwise == found.recall == found.close == 0.0


def test_one_measurement_is_as_good_as_it_repeats() -> None:
    """What is measured once counts as certain; noise within a few per cent leaves only ties."""
    rng = np.random.default_rng(4)
    whole = group("a", AMONG, rng)
    latency_s = whole.latency_s
    assert repeatability([Measured(whole, AMONG, latency_s, latency_s)]).recall == 1.0
    noisy = latency_s * rng.uniform(1.0, 1.04, AMONG)
    found = repeatability([Measured(whole, AMONG, noisy, latency_s)])
    assert found.recall < 1.0 == found.close and found.pairwise > 0.95


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
    tasks = [vector(24), vector(48)]  # spaces that are soon used up
    told: list[str] = []
    first = collect(tmp_path, tasks, 60.0, both, both, tell=told.append, kind=kind)
    assert {p.name for p in tmp_path.iterdir()} == {"random.jsonl", f"{kind}.jsonl", "again.jsonl"}
    assert told and all(len(g.latency_s) == len(g.features) > 1 for g, *_ in first)
    assert all(0 < n <= len(g.latency_s) for g, n, *_ in first)
    again = collect(tmp_path, tasks, 0.0, both, both, kind=kind)
    sizes = [[(len(m.first_s), m.n_random) for m in found] for found in (first, again)]
    assert sizes[0] == sizes[1]
    assert sorted(again[0].group.latency_s) == pytest.approx(sorted(first[0].group.latency_s))


SLOWEST = 1.2


class Slowing(Pretender):
    """Every measurement but each third one is disturbed, by what differs from time to time."""

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        result = super().run(task_key, image, best_latency_s)
        slower = 1.0 + (SLOWEST - 1.0) * (self.ran % 3) / 2
        latency_s = (result.latency_s or 0.0) * slower
        return replace(result, latency_s=latency_s, times_s=(latency_s,))


def test_what_is_near_the_fastest_is_measured_again_and_the_lowest_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.cost_data.TOP", 2)
    slow, tasks = Slowing(), [vector(8), vector(12)]
    found = collect(tmp_path, tasks, 60.0, slow, slow, again_s=60.0)
    again = read_log(tmp_path / "again.jsonl").records
    for group, _, first_s, later_s in found:
        assert (np.minimum(first_s, later_s) == group.latency_s).all()
        assert (first_s != later_s).any()
        own = [r for r in again if r.task == group.task_key]
        times = Counter(str(r.holes) + r.sketch for r in own)
        near = sorted(group.latency_s)[: len(times)]
        fastest = min(2, len(group.latency_s))  # wide vectors leave one program of eight elements
        assert sum(n >= MOST - 2 for n in times.values()) >= fastest
        assert max(near) <= NEAR * SLOWEST * near[:2][-1]  # it looked slower at first
        assert all(len(r.times_s) == PASSES for r in own)
        assert min(r.latency_s or 1.0 for r in own) >= min(near)
    resumed = collect(tmp_path, tasks, 0.0, slow, slow)
    sorted_s = [[sorted(m.group.latency_s) for m in some] for some in (found, resumed)]
    assert sorted_s[0] == sorted_s[1]
    for m in collect(tmp_path, tasks, 0.0, Pretender(), Pretender()):
        assert len(m.group.features) == len(m.group.latency_s)


def test_programs_of_both_kinds_count_once(tmp_path: Path) -> None:
    both, task = Pretender(), vector(48)
    ((group, n, *_),) = collect(tmp_path, [task], 60.0, both, both)
    logs = [read_log(tmp_path / f"{name}.jsonl").records for name in ("random", "visited")]
    keys = [{(r.sketch, str(r.holes)) for r in log if r.sketch != "plain"} for log in logs]
    assert keys[0] & keys[1]
    assert len(group.latency_s) == len(keys[0] | keys[1]) and n == len(keys[0])
