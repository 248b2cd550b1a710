"""Rounds in windows: what is searched while builds go on, in which order, and what is measured."""

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_cases import LATE_S, PEAK, SOON_S, Pretender, Sabotaged, matmul, vector

import ansorlite.search.session as session_module
from ansorlite.codegen import object_cache
from ansorlite.codegen.build import BuildRequest
from ansorlite.errors import MachineError
from ansorlite.measure.builder import BuildOutcome, PoolBuilder
from ansorlite.measure.peak import Peak
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.records import distill, read_log
from ansorlite.search.ahead import BuildsAhead
from ansorlite.search.budget import Budget
from ansorlite.search.clock import PhaseClock
from ansorlite.search.forms import Forms
from ansorlite.search.measuring import Measuring, TaskMeasuring
from ansorlite.search.policy import EvolutionaryPolicy, EvolutionParams
from ansorlite.search.roles import family_of
from ansorlite.search.session import Session
from ansorlite.search.spaces import SpaceRequest, SpacesAhead, kept_looks, kept_sketches
from ansorlite.search.transfer import KnownPrograms
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.settings import settings
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target

FEW = EvolutionParams(population=32, generations=1, looked_at_first=2, looked_at=2)
SMALL = SpaceOptions(packing=False, locations=False, max_sketches=6)
RUN_S = 0.05


class Watched(Pretender):
    """A builder and runner on a pretended clock that note what they do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.building = 0
        self.events: list[str] = []

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        self.building += 1
        found = super().build(requests)
        self.building -= 1
        return found

    def run(self, task_key: str, *args: Any) -> MeasureResult:
        assert not self.building, "something is built while a kernel is measured"
        self.now += RUN_S
        self.events.append(task_key)
        return super().run(task_key, *args)

    def race(self, task_key: str, images: Sequence[Any], budget_s: float) -> list[MeasureResult]:
        return [Pretender.run(self, task_key, image) for image in images]


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "measure_peak", lambda *_: PEAK)
    monkeypatch.setattr(session_module, "peak_soon", lambda *_: PEAK)
    monkeypatch.setattr(session_module, "seen_again", lambda target, known, ops: known)


def tuned(weighted: Sequence[WeightedTask], timeout: float, log: Path) -> list[tuple[str, int]]:
    """(name of the task, round) of the records of a run, in order, without plain schedules."""
    both = Watched()
    options = {"clock": PhaseClock(lambda: both.now), "params": FEW, "space": SMALL}
    with Session(
        None, timeout, builder=both, runner=both, log=log, progress=False, **options
    ) as session:
        tune_tasks(session, weighted)
    return [(r.task_name, r.round) for r in read_log(log).records if r.round]


def test_every_task_has_a_program_before_any_has_a_second_round(tmp_path: Path) -> None:
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(8)]
    tasks.append(WeightedTask(vector(64), 1.0))
    found = tuned(tasks, 4.0, tmp_path / "log")
    rounds = [n for _, n in found]
    second = rounds.index(2)
    assert {name for name, _ in found[:second]} == {w.task.name for w in tasks}
    assert set(rounds[:second]) == {1}


@pytest.mark.parametrize("recovers", [True, False])
def test_limits_measured_while_the_machine_was_busy_do_not_end_the_search(
    tmp_path: Path, recovers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = Peak(1e3, 1e3, 1e3)  # every program seems to be as fast as the machine allows
    looks: list[Peak] = []

    def seen_again(target: Target, known: Peak, ops: set[str]) -> Peak:
        looks.append(known)
        return PEAK if recovers else known

    monkeypatch.setattr(session_module, "peak_soon", lambda *_: low)
    monkeypatch.setattr(session_module, "seen_again", seen_again)
    found = tuned(
        [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(3)], 40.0, tmp_path / "log"
    )
    assert looks[0] == low
    assert (max((n for _, n in found), default=0) > 3) == recovers
    if recovers:  # at 10 seconds or more, and again at twice that at the earliest
        assert all(known == PEAK for known in looks[1:]) and len(looks) in (2, 3)


@pytest.mark.parametrize("more", [True, False])
def test_the_search_goes_on_with_a_larger_budget(tmp_path: Path, more: bool) -> None:
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(4)]
    both, asked = Watched(), list[int]()
    options = {"clock": PhaseClock(lambda: both.now), "params": FEW, "space": SMALL}
    with Session(None, 8.0, builder=both, runner=both, progress=False, **options) as session:
        whole = session.budget
        session.budget = whole.part(0.5)

        def go_on(found: Sequence[Forms]) -> Budget | None:
            asked.append(len(both.events))
            assert 3.0 < both.now < 5.0
            return whole if more else None

        tune_tasks(session, tasks, go_on=go_on)
    assert len(asked) == 1
    assert (len(both.events) > 1.5 * asked[0]) == more
    assert (session.budget is whole) == more


def test_the_first_of_a_family_is_searched_before_its_relatives(tmp_path: Path) -> None:
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0 + (k == 5) * 9) for k in range(8)]
    assert len({family_of(w.task) for w in tasks}) == 1
    found = tuned(tasks, 2.5, tmp_path / "log")
    names = list(dict.fromkeys(name for name, n in found if n == 1))
    assert names[0] == "m5"  # where most is at stake
    assert all(sum(x == (name, 1) for x in found) <= 3 for name in names[1:])


def test_programs_of_a_family_are_told_to_the_policy_that_is_made_later(tmp_path: Path) -> None:
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(8)]
    both = Watched()
    options = {"clock": PhaseClock(lambda: both.now), "params": FEW, "space": SMALL}
    with Session(None, 8.0, builder=both, runner=both, progress=False, **options) as session:
        results = tune_tasks(session, tasks)
        tuners = [t for t in session._tuners if t.has_begun]
        assert len(tuners) == len(tasks)
        for t in tuners:
            group = t.policy.training_group()
            assert group is not None
            assert len(group.latency_s) == sum(1 for r in t.records if r.round)
            programs = [(r.steps, str(r.holes)) for r in t.records]
            assert len(set(map(str, programs))) == len(programs)  # nothing is measured twice
    assert all(r.best is not None for r in results)


def test_what_a_run_in_windows_found_goes_on_without_a_loss(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(8)]
    before = len(tuned(tasks, 2.0, log))
    with Session(0, log=log, progress=False, space=SMALL) as session:
        results = tune_tasks(session, tasks)
    assert not session.store.problems
    assert sum(len([r for r in x.records if r.round]) for x in results) == before
    assert len(tuned(tasks, 2.0, log)) > before


def test_known_programs_are_measured_first_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(8)]
    tuned(tasks, 4.0, tmp_path / "before")
    before = [r for r in read_log(tmp_path / "before").records if r.round == 1]
    # One of each task, and of all but the first the family's best one adapted: some are the same.
    best = [next(r for r in before if r.task == task) for task in {r.task: 0 for r in before}]
    best[0] = distill([r for r in before if r.task == best[0].task])[0]
    known = KnownPrograms(best)
    monkeypatch.setattr(Session, "known", lambda self, target: known)
    tuned(tasks, 6.0, tmp_path / "log")
    found = [r for r in read_log(tmp_path / "log").records if r.round]
    for task in {r.task for r in found}:
        own = [str((r.steps, r.holes)) for r in found if r.task == task]
        wanted = {str((r.steps, r.holes)) for r in best if r.task == task}
        assert set(own[: len(wanted)]) == wanted
        assert len(set(own)) == len(own)


def test_with_little_time_all_known_programs_come_before_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program of each task, though a window is smaller than that and families differ."""
    tasks = [WeightedTask(matmul(8 + k, name=f"m{k}"), 1.0) for k in range(20)]
    tuned(tasks, 9.0, tmp_path / "before")
    known = KnownPrograms(distill([r for r in read_log(tmp_path / "before").records if r.round]))
    assert all(known.latency_s(w.task) is not None for w in tasks)
    monkeypatch.setattr(Session, "known", lambda self, target: known)
    found = tuned(tasks, 4.0, tmp_path / "log")
    assert len({name for name, _ in found[:20]}) == 20


def test_the_garbage_collector_is_as_before_after_a_session() -> None:
    before = gc.get_threshold()
    both = Watched()
    with Session(4, builder=both, runner=both, progress=False):
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before


# ---- builds in the background -------------------------------------------------------------------


def test_builds_that_were_begun_end_before_later_ones() -> None:
    both = Watched()
    ahead = BuildsAhead(both)
    request = BuildRequest("x/s0", {}, Target.detect())
    first = ahead.begin({}, [request, request])
    assert len(ahead.build({}, [request])) == 1
    assert both.built == 3
    assert len(first.outcomes()) == 2
    assert 0 < (before_s := ahead.built_s()) == ahead.built_s()
    assert len(ahead.build({}, [request])) == 1
    assert ahead.built_s() > before_s
    ahead.close()


def test_batches_share_the_processes_of_a_builder() -> None:
    quick = Sabotaged("worker raises")
    with PoolBuilder(2, timeout_s=10 * SOON_S, entry="search_cases:build") as builder:
        ahead = BuildsAhead(builder)
        ahead.build({}, [quick, quick])  # both processes start, which may take long
        late = ahead.begin({}, [Sabotaged("worker hangs")])
        (soon,) = ahead.begin({}, [quick]).outcomes()
        assert soon.status is Status.BUILD_ERROR
        assert not late.done
        assert late.outcomes()[0].status is Status.BUILD_TIMEOUT
        assert ahead.begin({}, []).outcomes() == []
        (last,) = ahead.build({}, [quick], forget=True)
        assert last.status is Status.BUILD_ERROR
        ahead.close()
        (again,) = ahead.build({}, [quick])  # a closed one serves again
        assert again.status is Status.BUILD_ERROR


def test_a_builder_that_fails_fails_all_that_was_begun_and_serves_again() -> None:
    class Failing(PoolBuilder):
        fails = True

        def serve(self, wanted: Any, woken: int) -> None:
            if self.fails:
                time.sleep(SOON_S)
                raise MachineError("no processes")
            super().serve(wanted, woken)

    with Failing(1, timeout_s=LATE_S, entry="search_cases:build", at_once=False) as builder:
        ahead = BuildsAhead(builder)
        for batch in [ahead.begin({}, [Sabotaged("worker raises")] * n) for n in (1, 2)]:
            with pytest.raises(MachineError, match="no processes"):
                batch.outcomes()
        ahead.settle()
        builder.fails = False
        (outcome,) = ahead.begin({}, [Sabotaged("worker raises")]).outcomes()
        assert outcome.status is Status.BUILD_ERROR
        ahead.close()


def test_a_build_that_nobody_waits_for_is_given_up_at_the_end() -> None:
    builder = PoolBuilder(1, timeout_s=LATE_S, entry="search_cases:build")
    ahead = BuildsAhead(builder)
    batch = ahead.begin({}, [Sabotaged("worker hangs")])
    (worker,) = builder._workers
    while worker.idle or worker.starting:
        time.sleep(0.01)
    began = time.monotonic()
    ahead.close()
    assert time.monotonic() - began < LATE_S / 2
    with pytest.raises(MachineError, match="stopped"):
        batch.outcomes()
    builder.close()


def test_what_is_not_built_in_time_is_left_out() -> None:
    with PoolBuilder(1, timeout_s=LATE_S, entry="search_cases:build") as builder:
        measuring = Measuring(builder, Pretender(), PhaseClock())
        ahead, task = measuring.builds, TaskMeasuring(matmul(16), measuring)
        busy = ahead.begin({}, [Sabotaged("worker hangs")])
        (worker,) = builder._workers
        while worker.idle or worker.starting:
            time.sleep(0.01)
        task.begin_prepare()
        batch = ahead.begin({}, [Sabotaged("worker raises")] * 2)
        measuring.forget()
        assert batch.is_lost and busy.is_lost and not measuring.references
        assert batch.image(0) is None
        with pytest.raises(MachineError, match="not needed"):
            batch.outcomes()
        ahead.close()
        (again,) = ahead.build({}, [Sabotaged("worker raises")])
        assert again.status is Status.BUILD_ERROR
        measuring.close()


# ---- spaces -------------------------------------------------------------------------------------


def test_spaces_and_looks_are_made_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_cache, "MOST_BYTES", 1 << 24)
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ANSORLITE_VERIFY", "0")
    settings.cache_clear()
    try:
        task = matmul(24)
        spaces = SpacesAhead()
        try:
            spaces.want("m", SpaceRequest(task, None, 3, 4))
            spaces.want("n", SpaceRequest(matmul(25), None, 3, 4))
            spaces.forget("n")
            while spaces.in_work is None:
                spaces.step()
            spaces.pause()
            spaces.resume()
            spaces.wait()
        finally:
            spaces.close()
        made = sketches(task.dag, task.target)

        def never() -> list[Any]:
            raise AssertionError("the space was not kept")

        known = kept_sketches(task, None, never)
        assert [s.name for s in known] == [s.name for s in made]
        assert [s.state.steps for s in known] == [s.state.steps for s in made]
        looks = kept_looks(task, None, 3)
        model: Any = None
        policy = EvolutionaryPolicy(made, task.target, 3, task.workload_key, model)
        assert len(looks) == 4
        own = policy.first_looks(4)
        assert looks.keys() == own.keys()
        assert all(np.array_equal(looks[name], own[name]) for name in own)
        assert not kept_looks(task, None, 4)
        for file in (tmp_path / "objects").iterdir():
            file.write_bytes(b"damaged")
        assert [s.name for s in kept_sketches(task, None, lambda: made)] == [s.name for s in made]
    finally:
        settings.cache_clear()
