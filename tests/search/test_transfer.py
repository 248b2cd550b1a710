"""First candidates from other tasks: same structure, other extents."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_cases import record
from sampled import sampled
from search_cases import PEAK, Pretender, matmul, vector

import ansorlite.search.session as session_module
from ansorlite.baselines.annealing import AnnealingParams
from ansorlite.cost.losses import TrainingGroup
from ansorlite.cost.model import GBDTModel
from ansorlite.errors import AnsorliteError
from ansorlite.records import Record
from ansorlite.search.budget import FIRST_ROUND
from ansorlite.search.families import FAMILY_ROUND
from ansorlite.search.forms import Forms
from ansorlite.search.policy import EvolutionaryPolicy, EvolutionParams
from ansorlite.search.searchers import SEARCHERS
from ansorlite.search.session import Session
from ansorlite.search.shrink_task import adapted
from ansorlite.search.transfer import LATER, start_from_others, transferred
from ansorlite.search.tune import tune
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.space.sketch import sketches
from ansorlite.task import SearchTask


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)


def other() -> SearchTask:
    """The same computation under other names, half as large again."""
    return matmul(48, "XYZr")


def test_values_are_those_of_the_other_task_where_they_fit() -> None:
    source, task = matmul(32), other()
    space = sketches(task.dag, task.target)
    records = [record(source, k) for k in range(12)]
    found = transferred(task, space, records, 12)
    assert 0 < len(found) <= 12 and len({c.key for c in found}) == len(found)
    theirs = sketches(source.dag, source.target)[0]
    for c in found:
        assert c.sketch.name in {s.name for s in space}
        assert c.row == tuple(adapted(c.sketch, c.values))
    lanes = next(h.name for h in theirs.holes if h.kind == "lanes")
    wanted = {tuple(r.holes[k]) for r in records for k in r.holes if k.endswith("lanes")}
    assert lanes and {c.values["Z.lanes"] for c in found} <= wanted


def test_what_does_not_fit_is_left_out() -> None:
    task = other()
    space = sketches(task.dag, task.target)
    own = record(task, 0)
    failed = record(matmul(32), 1, status="RUN_ERROR", latency_s=None)
    foreign = record(vector(), 2)
    nameless = record(matmul(32), 3, holes={"T9.a0": [1]})
    odd = [record(matmul(32), k, steps=x) for k, x in enumerate([(5,), (["x"],), (None, {})])]
    short = record(matmul(32), 4, holes={h: [] for h in record(matmul(32)).holes})
    assert transferred(task, space, [own, failed, foreign, nameless, *odd], 8) == []
    assert len(transferred(task, space, [short], 8)) <= 1  # values of no option are the nearest
    assert len(transferred(task, space, [record(matmul(32), k) for k in range(9)], 2)) == 2


def _first_round(task: SearchTask, log: Path) -> tuple[Record, ...]:
    both = Pretender()
    result = tune(
        task, 17, log=log, builder=both, runner=both, progress=False, round_size=8, seed=2
    )
    return tuple(r for r in result.records if r.round == 1)


def test_a_log_of_other_extents_is_where_the_search_begins(tmp_path: Path) -> None:
    alone = _first_round(other(), tmp_path / "alone")
    source = _first_round(matmul(32), tmp_path / "log")
    assert source
    after = _first_round(other(), tmp_path / "log")
    assert len(after) == len(alone) == 8
    assert after[0].holes != alone[0].holes
    best = min(
        (r for r in tune(matmul(32), 0, log=tmp_path / "log", progress=False).records if r.round),
        key=lambda r: r.latency_s or 0.0,
    )
    task = other()
    (expected,) = transferred(task, sketches(task.dag, task.target), [best], 1)
    assert list(after[0].holes.values()) == [list(v) for v in expected.values.values()]


def _taught(policy: str, log: Path, others: Sequence[SearchTask]) -> list[Record]:
    """A short search that goes on from a log of another task."""
    both = Pretender()
    result = tune(
        other(),
        25,
        log=log,
        builder=both,
        runner=both,
        policy=policy,
        progress=False,
        round_size=8,
        others=others,
    )
    return [r for r in result.records if r.round]


@pytest.mark.parametrize("policy", sampled(["evolutionary", "annealing"], 2))
def test_models_learn_what_a_log_has_of_other_tasks(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = tmp_path / "source"
    _first_round(matmul(32), space)
    learned: list[set[str]] = []
    update = GBDTModel.update

    def noted(self: GBDTModel, groups: Sequence[TrainingGroup]) -> None:
        learned.append({g.task_key for g in groups})
        update(self, groups)

    monkeypatch.setattr(GBDTModel, "update", noted)
    options = {
        "features": "relation",
        "transfer": True,
        "params": AnnealingParams(chains=32, steps=20),
    }
    chosen = {"annealing": replace(SEARCHERS["annealing"], options=options)}
    monkeypatch.setattr("ansorlite.search.searchers.SEARCHERS", SEARCHERS | chosen)
    source, task = matmul(32), other()
    for k, others in enumerate([[], [source, task]]):
        log = tmp_path / f"log{k}"
        log.write_bytes(space.read_bytes())
        learned.clear()
        records = _taught(policy, log, others)
        assert len(records) == 24 and {r.task for r in records} == {task.workload_key}
        assert any(source.workload_key in keys for keys in learned) is bool(others)


def test_later_rounds_begin_with_what_others_have_found_since() -> None:
    both = Pretender()
    options: dict[str, Any] = {"builder": both, "runner": both, "policy": "random"}
    with Session(200, None, progress=False, **options) as session:
        source, near = session.tuner(matmul(32)), session.tuner(other())
        for tuner in (source, near):
            tuner.round(1)
            start_from_others(tuner, [source, near], (), 8)
            tuner.round(8)
        rng, found = np.random.default_rng(1), source.best
        while found == source.best:  # until there is something to pass on
            source.round(int(rng.integers(4, 9)))
        begun = len(near.records)
        for _ in range(2):
            start_from_others(near, [source, near], (), 8)
            near.round(8)
        assert source.best is not None
        (expected,) = transferred(near.task, near.sketches, [source.best], LATER)
        places = [k for k, r in enumerate(near.records) if near._candidate(r) == expected]
        assert places == [begun]  # first in the next round, and never again


def test_other_tasks_are_known_from_a_log_only() -> None:
    with pytest.raises(AnsorliteError, match="log"):
        tune(other(), 8, others=[matmul(32)])


def test_against_the_clock_a_family_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One task of each family is searched; the first rounds of the others are adapted programs."""
    both, asked = Pretender(), list[str]()
    ask = EvolutionaryPolicy.ask

    def noted(self: EvolutionaryPolicy, n: int, round_: int, thorough: bool = False) -> Any:
        asked.append(self._key)
        return ask(self, n, round_, thorough)

    monkeypatch.setattr(EvolutionaryPolicy, "ask", noted)
    tasks = [matmul(8 * k) for k in range(2, 9)] + [vector()]

    def stop(found: Sequence[Forms]) -> None:
        if all(f.tuners[0].rounds > 1 for f in found):
            raise KeyboardInterrupt

    few = EvolutionParams(population=64, generations=1, looked_at_first=8)
    options: dict[str, Any] = {"builder": both, "runner": both, "params": few}
    for timeout in (1000.0, None):
        asked.clear()
        trials = None if timeout else 1000
        with Session(trials, timeout, progress=False, **options) as session:
            weighted = [WeightedTask(t, 1.0) for t in tasks]
            results = tune_tasks(session, weighted, on_round=stop)
        searched = len(set(asked))
        # The programs of one size of eight do not fit every other, whatever is drawn.
        assert searched <= 5 if timeout else searched == len(tasks)
        rounds = [[r for r in x.records if r.round == 1] for x in results]
        assert all(1 <= len(own) <= FIRST_ROUND for own in rounds)
        adapted_only = sum(len(own) <= FAMILY_ROUND for own in rounds)
        assert adapted_only >= 4 if timeout else adapted_only <= 1
    assert FAMILY_ROUND < FIRST_ROUND
