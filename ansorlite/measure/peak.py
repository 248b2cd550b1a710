"""What the machine can do: multiply-adds per second and bytes copied per second, measured.

In: a `Target` that this machine can run. Out: a `Peak`, the limit that every report quotes. A
measurement takes well under a second; it is kept for the process and, by the target's fingerprint,
in a file (see `measure.machine_cache`). What a busy machine showed lies in a file of its own: the
next process measures it again.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import cache
from pathlib import Path

import numpy as np

from ansorlite.calls import aligned_copy, aligned_empty, resident_empty
from ansorlite.codegen.loader import load_image
from ansorlite.codegen.microbenchmarks import (
    READS,
    copy_kernel,
    fma_accumulators,
    fma_kernel,
    read_kernel,
)
from ansorlite.errors import MachineError
from ansorlite.measure.machine_cache import keep, kept_file, read_kept
from ansorlite.target import MIB, Target

RUN_S = 0.012  # one timed run; some 10,000 times the cost of starting a parallel region
REPEATS = 9
ATTEMPTS = 3
# Runs are steady where the quartiles of their times lie within this share of the median, and
# where the threads had their cores for themselves for all but this share of the time.
STEADY = 0.1


@dataclass(frozen=True)
class Peak:
    """Limits of a machine: float32 operations per second (an FMA is two) on all cores of the
    target and on one, and bytes per second, read plus written, of a copy on all cores."""

    flops_all: float
    flops_one: float
    copy_bytes_per_s: float

    def __str__(self) -> str:
        return (
            f"{self.flops_all / 1e9:.1f} GFLOP/s ({self.flops_one / 1e9:.1f} on one core),"
            f" copy {self.copy_bytes_per_s / 1e9:.1f} GB/s"
        )


@cache
def measure_peak(target: Target) -> Peak:
    """The machine's limits with the target's vectors and number of cores; cached.

    Raises MachineError where this machine cannot run the target's code.
    """
    host = Target.detect()
    if target.arch != host.arch or target.vector_bytes > host.vector_bytes:
        raise MachineError(
            f"cannot measure {target.cpu} ({target.arch}, vectors of {target.vector_bytes} B) here:"
            f" this machine is {host.cpu} ({host.arch}, {host.vector_bytes} B)"
        )
    known = kept_peak(target)
    if known is not None:
        return known
    peak, steady = run_benchmarks(target)
    # A busy machine shows less than it can do: of what several processes saw, the most is right.
    path = cache_file() if steady else kept_file("peak_of_busy_machine")
    entries = _read(path)
    if not steady and (seen := entries.get(target.fingerprint)) is not None:
        peak = Peak(*map(max, astuple(peak), astuple(seen)))
    keep(path, {key: asdict(p) for key, p in entries.items()} | {target.fingerprint: asdict(peak)})
    return peak


def run_benchmarks(target: Target) -> tuple[Peak, bool]:
    """Measure now, without any cache: medians, or the best of some attempts on a busy machine.

    Returns the limits, and whether the runs were steady: only then are they worth keeping.
    """
    best, steady = Peak(0.0, 0.0, 0.0), False
    for _ in range(ATTEMPTS):
        one_core, one_steady = _flops(target, 1)
        all_cores, all_steady = _flops(target, target.cores)
        copied = _copy_bytes_per_s(target)
        best = Peak(
            max(best.flops_all, all_cores),
            max(best.flops_one, one_core),
            max(best.copy_bytes_per_s, copied),
        )
        steady = one_steady and all_steady
        if steady:
            break
    return best, steady


def cache_file() -> Path | None:
    """Where measured limits are kept between processes."""
    return kept_file("peak")


def kept_peak(target: Target) -> Peak | None:
    """What was measured and kept before; None if nothing was."""
    return _read(cache_file()).get(target.fingerprint)


def fma_run(target: Target, threads: int, run_s: float = RUN_S) -> tuple[Callable[[], None], float]:
    """A run of multiply-adds in registers that takes about `run_s`, and its operations."""
    lanes = target.lanes("float32")
    kernel = load_image(fma_kernel(target))
    # s * 0.5 + 1 stays between 0 and 24, so that no operand is subnormal, infinite or NaN.
    operands = aligned_copy(np.repeat(np.array([[0.5], [1.0]], np.float32), lanes, axis=1))
    work = aligned_copy(np.array([100_000, 1], np.int64))
    out = aligned_empty((target.cores, lanes), "float32")
    kept = [work, operands, out]
    args = kernel.pointer_array(kept)

    def run(_owners: object = kept) -> None:
        kernel.call(args)

    # One thread tells how long an iteration takes: many may wait for a core longer than they run.
    work[:] = int(100_000 * run_s / min(_seconds(run) for _ in range(3))), threads
    out[:] = np.nan
    run()
    # There may be fewer threads than asked for: a limit of processes, or a system without a pool.
    ran = int(np.count_nonzero(np.isfinite(out[:, 0])))
    return run, 2.0 * lanes * fma_accumulators(target) * ran * int(work[0])


def _flops(target: Target, threads: int) -> tuple[float, bool]:
    """Operations per second of multiply-adds in registers on some threads, and if steady."""
    run, flop = fma_run(target, threads)
    seconds, steady = _median(run, threads)
    return flop / seconds, steady


def _copy_bytes_per_s(target: Target) -> float:
    """Bytes per second of a copy between arrays that are each twice the largest cache."""
    return copy_speed(target, target.cores, uncached_bytes(target), 1)


def uncached_bytes(target: Target) -> int:
    """Size of an array that no cache of the target holds; at most 512 MiB."""
    return min(512 * MIB, max(64 * MIB, 2 * target.l3_bytes))


def copy_speed(target: Target, threads: int, size_bytes: int, times: int) -> float:
    """Bytes per second, read plus written, of `times` copies of an array of this size."""
    lanes = target.lanes("float32")
    n = max(1, size_bytes // 4 // lanes) * lanes
    kernel = load_image(copy_kernel(target, n))
    work = aligned_copy(np.array([n // lanes, threads, times], np.int64))
    scale = aligned_copy(np.ones(lanes, np.float32))
    x, y = (resident_empty((n,), "float32") for _ in range(2))
    x[:] = 1.0
    args = kernel.pointer_array([work, scale, x, y])
    seconds, _ = _median(lambda: kernel.call(args), threads)
    return 2.0 * 4 * n * times / seconds


def read_speed(target: Target, threads: int, size_bytes: int, times: int) -> float:
    """Bytes per second of reading an array of this size `times` times."""
    lanes = target.lanes("float32")
    n = max(1, size_bytes // 4 // (lanes * READS)) * lanes * READS
    kernel = load_image(read_kernel(target, n))
    work = aligned_copy(np.array([n // (lanes * READS), threads, times], np.int64))
    x, out = resident_empty((n,), "float32"), aligned_empty((target.cores, lanes), "float32")
    x[:] = 1.0
    args = kernel.pointer_array([work, x, out])
    seconds, _ = _median(lambda: kernel.call(args), threads)
    return 4.0 * n * times / seconds


def _median(run: Callable[[], None], threads: int) -> tuple[float, bool]:
    """Median seconds of some runs, after one that does not count, and whether they were steady."""
    run()
    cores = min(threads, Target.detect().cores)
    start, start_cpu = time.perf_counter(), time.process_time()
    times = [_seconds(run) for _ in range(REPEATS)]
    # Threads that wait for each other spin: with a core each they use all of its time.
    busy = (time.process_time() - start_cpu) / (time.perf_counter() - start) / cores
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) <= STEADY * middle and busy >= 1.0 - STEADY


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)


def _read(path: Path | None) -> dict[str, Peak]:
    found: dict[str, Peak] = {}
    for key, entry in read_kept(path).items():
        try:
            peak = Peak(**{k: float(v) for k, v in entry.items()})
        except (TypeError, ValueError):
            continue
        if all(math.isfinite(v) and v > 0 for v in asdict(peak).values()):
            found[key] = peak
    return found
