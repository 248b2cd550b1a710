"""Recorded programs again: lowered from their steps, built, checked and timed anew.

In: records of a log and the tasks that they may belong to. Out: one `Replayed` a record, in order,
that says what came of it now. Nothing is searched and nothing is written.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from ansorlite.errors import ScheduleError
from ansorlite.measure.builder import Builder, PoolBuilder
from ansorlite.measure.result import Status
from ansorlite.measure.runner import LocalRunner, Runner
from ansorlite.records import Record
from ansorlite.search.clock import PhaseClock
from ansorlite.search.measuring import Measuring, TaskMeasuring
from ansorlite.search.recorded import record_program
from ansorlite.task import SearchTask

NO_TASK = "NO_TASK"  # none of the tasks given is the one that was measured
OTHER_TARGET = "OTHER_TARGET"  # measured for another machine


@dataclass(frozen=True)
class Replayed:
    """`status` is a `Status`, or why nothing was run; `latency_s` is None unless it is OK."""

    record: Record
    status: str
    latency_s: float | None = None
    error: str = ""

    @property
    def ratio(self) -> float | None:
        """Seconds now over seconds then; None where either is not known."""
        then = self.record.latency_s
        return self.latency_s / then if self.latency_s is not None and then else None


def replay(
    records: Iterable[Record],
    tasks: Mapping[str, SearchTask],
    builder: Builder | None = None,
    runner: Runner | None = None,
) -> Iterator[Replayed]:
    """Lower, build, check and time records; `tasks` are found by workload key.

    Raises AnsorliteError where the reference of a task fails, or no process can be started.
    """
    with ExitStack() as own:
        built_by = builder or own.enter_context(PoolBuilder(1))
        run_by = runner or own.enter_context(LocalRunner())
        measuring = Measuring(built_by, run_by, PhaseClock())
        of_task: dict[str, TaskMeasuring] = {}
        for r in records:
            task = tasks.get(r.task)
            if task is None:
                yield Replayed(r, NO_TASK, error="no task has its workload key")
            elif r.target != task.target.fingerprint:
                yield Replayed(r, OTHER_TARGET, error=f"it is for {r.target}")
            else:
                if r.task not in of_task:
                    of_task[r.task] = TaskMeasuring(task, measuring)
                    of_task[r.task].prepare()
                yield _again(r, of_task[r.task])


def _again(record: Record, measuring: TaskMeasuring) -> Replayed:
    try:
        program = record_program(measuring.task, record)
    except ScheduleError as error:
        return Replayed(record, Status.BUILD_ERROR, error=str(error))
    result = measuring.run_program(program)
    latency_s = result.latency_s if result.ok else None
    return Replayed(record, str(result.status), latency_s, result.error)
