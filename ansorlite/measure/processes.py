"""The processes of a run, started before there is anything to build or to measure.

In: what is to be tuned for, and how kernels are timed. Out: options of a session: a builder and a
runner whose processes import and compile what is their own, a second's work of another core, while
the caller imports, loads and splits a network. This module imports little, so that it comes first.
More processes than cores take turns, and the caller waits: builders may start one after the other.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.runner import LocalRunner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.target import Target


def started(
    stack: ExitStack,
    n_trials: int | None,
    target: Target,
    policy: TimingPolicy,
    given: Mapping[str, Any],
    at_once: int | None = None,
) -> dict[str, Any]:
    """Options of a session with processes that start now and end with `stack`.

    The runner starts first; so many builders start `at_once`, by default all of them. No options
    where nothing is measured here, or where those that are `given` have processes.
    """
    if n_trials == 0 or target.is_foreign or given.get("builder") or given.get("runner"):
        return {}
    runner, builder = LocalRunner(policy=policy), PoolBuilder(at_once=False)
    builder.warm_up(at_once)
    for process in (runner, builder):
        stack.callback(process.close)
    return {"builder": builder, "runner": runner}
