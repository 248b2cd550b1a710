"""The limits of a task on a machine (roofline): arithmetic and data movement.

In: a `SearchTask` and measured figures of its target, a `Calibration` or a `Peak`. Out: `Roof`s
(Williams et al., CACM 2009), each an amount of FLOP or bytes with the least seconds it takes.
"""

import math
from dataclasses import dataclass

import numpy as np

from ansorlite.codegen.dot import widest
from ansorlite.ir.packed import PACKED
from ansorlite.matrix_units import unit_of
from ansorlite.measure.calibrate import Calibration, calibration, level_bytes
from ansorlite.measure.peak import Peak, measure_peak
from ansorlite.target import Target
from ansorlite.task import SearchTask


@dataclass(frozen=True)
class Roof:
    """One limit: `amount` FLOP or bytes take at least `seconds`."""

    name: str
    amount: float
    seconds: float
    is_flop: bool = False

    @property
    def per_s(self) -> float:
        return self.amount / self.seconds if self.seconds > 0 else math.inf


def task_bytes(task: SearchTask) -> tuple[float, float]:
    """(bytes of all inputs, bytes of all outputs): each operand is moved once."""
    read = sum(_size_bytes(p.shape, p.dtype) for p in task.dag.inputs)
    return read, sum(_size_bytes(op.shape, op.dtype) for op in task.dag.outputs)


def _size_bytes(shape: tuple[int, ...], dtype: str) -> float:
    return float(math.prod(shape)) * np.dtype(dtype).itemsize


def known_limits(target: Target) -> Calibration | Peak:
    """A calibration from the cache, else the machine's peak, measured where it is not known."""
    return calibration(target) or measure_peak(target)


def task_roofs(
    task: SearchTask,
    limits: Calibration | Peak,
    moved: tuple[float, float] | None = None,
) -> list[Roof]:
    """The limits of any program of the task: its FLOP per run, and its operands moved once.

    Operands come from the smallest level of the memory that holds all of them. A `Peak` has the
    speed of main memory only: operands that fit into a cache then take no time. `moved` are the
    bytes (read, written) where these are known better than `task_bytes`.
    """
    read, written = moved or task_bytes(task)
    size = read + written
    if isinstance(limits, Calibration):
        held = limits.level_of(size, task.target)
        peak, level, seconds = limits.peak, held.level, held.least_seconds(read, written)
    else:
        fits = size <= max(level_bytes(task.target).values())
        peak, level = limits, "caches" if fits else "memory"
        seconds = 0.0 if fits else size / limits.copy_bytes_per_s
    return [
        *(Roof(name, flop, flop / rate, is_flop=True) for name, flop, rate in _work(task, peak)),
        Roof(f"operands once, {level}", size, seconds),
    ]


def _work(task: SearchTask, peak: Peak) -> list[tuple[str, float, float]]:
    """(what computes, operations, operations per second) of each kind of work of the task.

    Sums of packed products have the limit of their instruction; where the target has none, numbers
    are widened, and the limit is that of multiply-adds, as for all other work.
    """
    found, plain = [], 0.0
    for op, flop in task.dag.run_flop_by_dot.items():
        known = dot_limit(op, task.target, peak) if op else None
        if known is None:
            plain += flop
        else:
            found.append((known[0], flop, known[1]))
    rest = [("multiply-adds", plain, peak.flops_all)] if plain or not found else []
    return [*found, *rest]


def dot_limit(op: str, target: Target, peak: Peak) -> tuple[str, float] | None:
    """(the instruction for packed products `op`, its operations per second on all cores), or None.

    Where it was not measured, and of matrix units, the rate follows from that of multiply-adds and
    the tables.
    """
    unit = unit_of(target, op)
    if unit is not None:
        products = unit.rows * unit.columns * unit.words * PACKED[op].depth / unit.cycles
        # both by cycle: the unit's, and two multiply-adds of vectors
        return unit.name, peak.flops_all * products / (2 * target.lanes("float32"))
    known = widest(target, op)
    if known is None:
        return None
    measured = peak.dots_all.get(op)
    return known.name, measured or peak.flops_all * PACKED[op].depth * known.rate


def task_peak(task: SearchTask, peak: Peak) -> float:
    """Operations per second that the task's kinds of work allow: the base of a share of the peak.

    Without packed products this is the rate of multiply-adds.
    """
    work = _work(task, peak)
    if len(work) == 1:
        return work[0][2]
    total = sum(n for _, n, _ in work)
    return total / sum(n / rate for _, n, rate in work) if total else peak.flops_all


def least_seconds(task: SearchTask, peak: Peak) -> float:
    """Lower bound in seconds for any program of the task; uses a cached calibration if there."""
    limits = calibration(task.target) or peak
    return max(roof.seconds for roof in task_roofs(task, limits))
