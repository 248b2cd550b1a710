"""The limits of a task on a machine: no program is faster than its arithmetic or than its data.

In: a `SearchTask` and what was measured of its target, a `Calibration` or a `Peak`. Out: `Roof`s,
each an amount (FLOP or bytes) and the most of it in a second, and the least time they allow.
"""

import math
from dataclasses import dataclass

import numpy as np

from ansorlite.measure.calibrate import Calibration, calibration, level_bytes
from ansorlite.measure.peak import Peak
from ansorlite.task import SearchTask


@dataclass(frozen=True)
class Roof:
    """One limit: FLOP or bytes, and the most of them in a second."""

    name: str
    amount: float
    per_s: float
    is_flop: bool = False

    @property
    def seconds(self) -> float:
        return self.amount / self.per_s


def least_bytes(task: SearchTask) -> float:
    """Every input read and every output written once."""
    shapes = [(p.shape, p.dtype) for p in task.dag.inputs]
    shapes += [(op.shape, op.dtype) for op in task.dag.outputs]
    return sum(
        math.prod(float(str(e)) for e in shape) * np.dtype(dtype).itemsize
        for shape, dtype in shapes
    )


def task_roofs(task: SearchTask, limits: Calibration | Peak) -> list[Roof]:
    """The limits of any program: its FLOP, and its operands once out of the level they fit into.

    A `Peak` knows the speed of memory alone: operands that the caches hold then take no time.
    """
    size = least_bytes(task)
    if isinstance(limits, Calibration):
        held = limits.copy_of(size, task.target)
        peak, level, speed = limits.peak, held.level, held.all_cores
    else:
        fits = size <= max(level_bytes(task.target).values())
        peak, level = limits, "caches" if fits else "memory"
        speed = math.inf if fits else limits.copy_bytes_per_s
    return [
        Roof("multiply-adds", task.flop, peak.flops_all, is_flop=True),
        Roof(f"operands once, {level}", size, speed),
    ]


def least_seconds(task: SearchTask, peak: Peak) -> float:
    """What no program of the task can beat, by the machine's calibration where one is kept."""
    limits = calibration(task.target) or peak
    return max(roof.seconds for roof in task_roofs(task, limits))
