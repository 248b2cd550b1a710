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
    """One limit: FLOP or bytes, and the least time they take."""

    name: str
    amount: float
    seconds: float
    is_flop: bool = False

    @property
    def per_s(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else math.inf


def task_bytes(task: SearchTask) -> tuple[float, float]:
    """(bytes read, bytes written) where every operand goes through memory once."""
    read = sum(_size_bytes(p.shape, p.dtype) for p in task.dag.inputs)
    return read, sum(_size_bytes(op.shape, op.dtype) for op in task.dag.outputs)


def _size_bytes(shape: tuple[int, ...], dtype: str) -> float:
    return float(math.prod(shape)) * np.dtype(dtype).itemsize


def task_roofs(task: SearchTask, limits: Calibration | Peak) -> list[Roof]:
    """The limits of any program: the FLOP of every run, and its operands once out of the level
    they fit into.

    A `Peak` knows the speed of memory alone: operands that the caches hold then take no time.
    """
    read, written = task_bytes(task)
    size = read + written
    if isinstance(limits, Calibration):
        held = limits.level_of(size, task.target)
        peak, level, seconds = limits.peak, held.level, held.least_seconds(read, written)
    else:
        fits = size <= max(level_bytes(task.target).values())
        peak, level = limits, "caches" if fits else "memory"
        seconds = 0.0 if fits else size / limits.copy_bytes_per_s
    flop = task.dag.run_flop
    return [
        Roof("multiply-adds", flop, flop / peak.flops_all, is_flop=True),
        Roof(f"operands once, {level}", size, seconds),
    ]


def least_seconds(task: SearchTask, peak: Peak) -> float:
    """What no program of the task can beat, by the machine's calibration where one is kept."""
    limits = calibration(task.target) or peak
    return max(roof.seconds for roof in task_roofs(task, limits))
