"""The process that runs kernels, without the care that good figures need.

The tests ask whether kernels are right and whether a search goes on, never how fast a kernel is. So
a kernel is timed for two milliseconds, and nothing waits for the machine to be undisturbed.
`conftest.py` puts this entry in the place of `ansorlite.measure.runner_child:serve`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ansorlite.measure import canary, runner_child
from ansorlite.measure.timing import TimingPolicy

QUICK = TimingPolicy(repeat_s=5e-4, least_s=2e-3, min_repeats=2, budget_s=1e-2)


def serve(policy: TimingPolicy, memory_bytes: int) -> Callable[[Any], Any]:
    """As `runner_child.serve`; a policy that a test chose stays."""
    canary.FIRST = 1
    canary.ONCE_S = 0.0
    quick = replace(QUICK, fresh_constants=policy.fresh_constants)
    default = replace(policy, fresh_constants=False) == TimingPolicy()
    return runner_child.serve(quick if default else policy, memory_bytes)
