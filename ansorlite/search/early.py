"""Plain schedules are built and checked while their network is still split into kernels.

In: the options of a run, with the builder and the runner that were started for it. Out: a function
to be called with each computation as it is found. Other forms of it, and the session, come later:
the processes work meanwhile.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.runner import LocalRunner
from ansorlite.search.measuring import Measuring, TaskMeasuring
from ansorlite.search.reference import is_heavy
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG


def plain_ahead(
    stack: ExitStack, timeout: float | None, target: Target, options: dict[str, Any]
) -> Callable[[str, ComputeDAG], None] | None:
    """What begins with (the name of a task, its computation); None without a limit in seconds.

    The session's `measuring` is put into `options`; it ends with `stack`.
    """
    builder, runner = options.get("builder"), options.get("runner")
    if timeout is None:
        return None
    if not isinstance(builder, PoolBuilder) or not isinstance(runner, LocalRunner):
        return None
    measuring = Measuring(builder, runner, options["clock"])
    stack.callback(measuring.close)
    options["measuring"] = measuring

    def begin(name: str, dag: ComputeDAG) -> None:
        task = SearchTask(dag, target, name)
        if not is_heavy(task):  # its reference takes a search
            TaskMeasuring(task, measuring).begin_prepare()

    return begin
