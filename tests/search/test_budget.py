"""Budgets of time: rounds end while there is time for all that follows them."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from search_cases import Pretender, matmul

from ansorlite.graph import contest
from ansorlite.measure.builder import BuildOutcome
from ansorlite.measure.result import MeasureResult
from ansorlite.measure.runner import PrepareResult
from ansorlite.search.ahead import Batch, BuildsAhead
from ansorlite.search.budget import Budget
from ansorlite.search.clock import PhaseClock
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.session import Session
from ansorlite.search.settle import BUILD_S, LINK_S, PACK_S, RIVALS, closing_s
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks

FEW = EvolutionParams(population=32, generations=1, looked_at_first=2)


class Time:
    """A clock that goes on only when something takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(Pretender):
    """A builder and runner of pretended programs that take time on a pretended clock."""

    def __init__(self, time: Time, build_s: float, run_s: float, prepare_s: float = 0.0) -> None:
        super().__init__()
        self.time, self.build_s, self.run_s, self.prepare_s = time, build_s, run_s, prepare_s

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        self.time.now += self.build_s * len(requests)
        return super().build(requests)

    def prepare(self, task_key: str, spec: Any) -> PrepareResult:
        self.time.now += self.prepare_s
        return super().prepare(task_key, spec)

    def run(self, *args: Any) -> MeasureResult:
        self.time.now += self.run_s
        return super().run(*args)

    def race(self, task_key: str, images: Sequence[Any], budget_s: float) -> list[MeasureResult]:
        self.time.now += budget_s
        return [super(Slow, self).run(task_key, image) for image in images]


class AtOnce(BuildsAhead):
    """Builds while the caller waits: a thread would move the pretended clock at any moment."""

    def begin(self, programs: Mapping[str, Any], requests: Sequence[Any]) -> Batch:
        batch = Batch(len(requests))
        self._built(batch, programs, requests)
        return batch


def clocked(timeout: float) -> tuple[Time, Budget]:
    time = Time()
    return time, Budget(None, timeout, PhaseClock(time))


def test_time_for_the_end_is_kept() -> None:
    time, budget = clocked(60.0)
    assert budget.round_of(8, 0, 0) == 8
    time.now, budget.closing_s = 50.0, 9.0
    assert budget.search_left_s() == pytest.approx(1.0)
    assert budget.round_of(8, 400, 0) == 8  # 0.125 s each
    budget.closing_s = 10.0
    assert budget.round_of(8, 400, 0) == 0


def test_no_round_begins_that_cannot_end_in_time() -> None:
    """A round searches and builds before it can stop, whatever its size."""
    time, budget = clocked(60.0)
    for seconds in (2.0, 3.0, 9.0):
        budget.round_took(seconds)
    time.now = 56.9
    assert budget.round_of(1, 4, 0) == 1
    time.now = 57.1
    assert budget.round_of(1, 4, 0) == 0


@pytest.mark.parametrize(
    ("build_s", "run_s", "prepare_s"), [(0.1, 0.1, 0.2), (0.02, 0.3, 0.1), (0.1, 0.05, 1.5)]
)
def test_many_tasks_end_in_time(
    build_s: float, run_s: float, prepare_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    both = Slow(time, build_s, run_s, prepare_s)
    monkeypatch.setattr("ansorlite.search.session.measure_peak", lambda target: None)
    monkeypatch.setattr("ansorlite.search.measuring.BuildsAhead", AtOnce)
    tasks = [WeightedTask(matmul(8 + k), 1.0) for k in range(10)]
    options = {"clock": PhaseClock(time), "params": FEW, "progress": False}
    with Session(None, 8.0, builder=both, runner=both, **options) as session:
        found = tune_tasks(session, tasks, race_follows=True)
        assert session.budget.left_s() >= session.budget.closing_s - 3 * prepare_s - 8 * build_s
    assert time.now <= 8.4
    assert len(found) == len(tasks)


def test_the_end_of_an_earlier_search_keeps_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged kernels are searched last, and all kernels race in their places after that."""
    monkeypatch.setattr("ansorlite.search.session.measure_peak", lambda target: None)
    monkeypatch.setattr("ansorlite.search.measuring.BuildsAhead", AtOnce)
    left = []
    for later_s in (0.0, 3.0):
        time = Time()
        both = Slow(time, 0.1, 0.1, 0.2)
        options = {"clock": PhaseClock(time), "params": FEW, "progress": False}
        with Session(None, 8.0, builder=both, runner=both, **options) as session:
            session.later_s = later_s
            tune_tasks(session, [WeightedTask(matmul(8 + k), 1.0) for k in range(6)])
            left.append(session.budget.left_s())
    assert left[1] >= 3.0 - 0.5
    assert left[1] > left[0] + 1.0


def test_the_end_takes_longer_with_kernels_that_are_not_built_and_with_rivals() -> None:
    class Told:
        ok, build_s = True, 0.0

        def __init__(self, latency_s: float) -> None:
            self.latency_s = latency_s

    class Tuner:
        def __init__(self, has_image: bool, times: Sequence[float]) -> None:
            self.has_image, self.records = has_image, [Told(s) for s in times]

    class Form:
        constants_bytes = 0.0

        def __init__(self, has_image: bool, *times: float) -> None:
            self.fastest = Tuner(has_image, times)
            self.tuners = (self.fastest,)
            self.best_latency_s = min(times, default=None)
            self.stake_s = self.best_latency_s or 0.0
            self.task = SimpleNamespace(workload_key=str(times))

    found: Any = [Form(True, 1.0, 5.0), Form(False, 2.0), Form(False)]
    builds_s = 2 * BUILD_S
    assert closing_s(found, False) == pytest.approx(builds_s + 3 * LINK_S)
    assert closing_s(found, True) == pytest.approx(builds_s + 3 * LINK_S)
    found[0] = Form(True, 5.0, 1.0, 1.1)
    assert closing_s(found, True) == pytest.approx(builds_s + 3 * 3 * LINK_S)
    found[1] = Form(False, *[1.0] * 9)
    assert closing_s(found, True) == pytest.approx(builds_s + 3 * (2 + RIVALS) * LINK_S)
    placed = {found[0].task.workload_key: 5, "another": 7}
    builds_s += 5 * (1 + RIVALS) * BUILD_S / 2 + (2 / 2 - 2) * BUILD_S
    wanted = pytest.approx(builds_s + 3 * (2 + RIVALS) * LINK_S)
    assert closing_s(found, True, placed, builders=2) == wanted
    found[:2] = Form(True, 1000.0), Form(False, *[1.0] * 9)  # too small for a race
    placed = {found[1].task.workload_key: 5}
    builds_s = (2 + 5) * BUILD_S
    assert closing_s(found, True, placed) == pytest.approx(builds_s + 3 * LINK_S)
    before_s = closing_s(found, True, placed)
    found[2].constants_bytes = 1e8
    assert closing_s(found, True, placed) == pytest.approx(before_s + 1e8 * PACK_S)


@pytest.mark.parametrize(("left_s", "linked"), [(0.0, 0), (4.5, 1), (6.5, 3)])
def test_networks_are_linked_for_the_race_while_there_is_time(
    left_s: float, linked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, made = Time(), list[object]()

    def module(*args: Any) -> object:
        time.now += 2.0
        made.append(args)
        return args

    monkeypatch.setattr(contest, "CompiledModule", module)
    monkeypatch.setattr(contest.time, "perf_counter", time)
    monkeypatch.setattr(contest, "random_inputs", lambda graph: [])
    monkeypatch.setattr(contest, "_turns", lambda *args: [])
    image: Any = None
    contenders = [[contest.Contender((image,), 0)] * 3]
    parts: Any = type("Parts", (), {"graph": None})
    left: Callable[[], float] = lambda: left_s - time.now  # noqa: E731
    assert contest.fastest_in_place(parts, contenders, left) == [0]
    assert len(made) == linked
