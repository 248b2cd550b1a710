"""Tasks that are made ready in the background: one at a time, and never beside a kernel."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ansorlite import te
from ansorlite.errors import MeasureError
from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.runner import LocalRunner, PrepareResult
from ansorlite.search.clock import PhaseClock
from ansorlite.search.early import plain_ahead
from ansorlite.search.measuring import TaskMeasuring
from ansorlite.search.prepares import PreparesAhead
from ansorlite.target import Target
from ansorlite.task import SearchTask


class Waiting(LocalRunner):
    """Prepares nothing, and only once `go_on` is set; never two tasks at a time."""

    def __init__(self) -> None:
        super().__init__(at_once=False)
        self.go_on, self.began = threading.Event(), threading.Event()
        self.prepared: list[str] = []
        self.aborted = False

    def prepare(self, task_key: str, spec: Any) -> PrepareResult:
        self.began.set()
        self.go_on.wait(20)
        if self.aborted:
            return PrepareResult(False, "aborted")
        self.prepared.append(task_key)
        return PrepareResult(True, latency_s=len(self.prepared))

    def abort(self) -> None:
        self.aborted = True
        self.go_on.set()


SPEC: Any = object()


@pytest.fixture
def runner() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.go_on.set()


def begun(runner: Waiting) -> PreparesAhead:
    """The first of two tasks is being prepared."""
    ahead = PreparesAhead(runner)
    for key in ("a", "b"):
        ahead.begin(key, lambda: SPEC)
    assert runner.began.wait(20)
    return ahead


def test_tasks_are_prepared_in_order_and_once(runner: Waiting) -> None:
    ahead = PreparesAhead(runner)
    for key in ("a", "b", "a"):
        ahead.begin(key, lambda: SPEC)
    runner.go_on.set()
    assert [ahead.ready(key, SPEC).latency_s for key in ("b", "a", "c")] == [2, 1, 3]
    assert runner.prepared == ["a", "b", "c"]
    ahead.close()


def test_a_runner_that_is_asked_for_prepares_nothing_any_more(runner: Waiting) -> None:
    ahead = begun(runner)
    threading.Timer(0.01, runner.go_on.set).start()
    assert ahead.settled is runner and runner.prepared == ["a"]
    assert ahead.ready("b", SPEC).ok and runner.prepared == ["a", "b"]
    ahead.close()


def test_what_has_no_reference_is_left_out_and_errors_are_told(runner: Waiting) -> None:
    def fails() -> Any:
        raise MeasureError("no reference")

    runner.go_on.set()
    ahead = PreparesAhead(runner)
    ahead.begin("a", fails)
    with pytest.raises(MeasureError, match="no reference"):
        ahead.ready("a", SPEC)
    ahead.begin("b", lambda: None)
    assert ahead.ready("b", SPEC).ok and runner.prepared == ["b"]
    ahead.close()


def test_close_waits_for_no_task(runner: Waiting) -> None:
    ahead = begun(runner)
    ahead.close()
    assert runner.aborted and not runner.prepared


def test_nothing_is_prepared_while_it_is_held(runner: Waiting) -> None:
    runner.go_on.set()
    ahead = PreparesAhead(runner)
    with ahead.held():
        ahead.begin("a", lambda: SPEC)
        assert not runner.began.wait(0.05)
    assert ahead.ready("a", SPEC).ok
    ahead.close()


def test_plain_schedules_are_checked_before_a_session_begins() -> None:
    x = te.placeholder((64, 4), name="X")
    dag = te.ComputeDAG([te.compute(x.shape, lambda i, j: x[i, j] * 2.0, name="Y")])
    target = Target.detect()
    with ExitStack() as stack, LocalRunner() as runner, PoolBuilder(1) as builder:
        options: dict[str, Any] = {"builder": builder, "runner": runner, "clock": PhaseClock()}
        assert plain_ahead(stack, None, target, options) is None
        begin = plain_ahead(stack, 10.0, target, options)
        assert begin is not None
        begin("task", dag)
        measuring = TaskMeasuring(SearchTask(dag, target, "task"), options["measuring"])
        with options["measuring"].paused():  # builders stand still, and go on
            pass
        result, image = measuring.reference(None, slow_s=0.0)
        assert result.ok and len(result.times_s) == 1 and image.object_bytes
