"""The machine's limits, measured: multiply-adds per second and bytes copied per second.

In: a `Target` that this machine can run. Out: a `Peak`, the limit that every report quotes. A
measurement takes less than a second. It is cached in the process and, by the target's fingerprint,
in a file (`measure.machine_cache`). A measurement on a busy machine goes to a separate file, and
the next process measures again.
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
from ansorlite.measure.machine_cache import cache_file, read_cache, write_cache
from ansorlite.presets import MIB
from ansorlite.target import Target

RUN_S = 0.012  # length of one timed run, about 10,000 times the start of a parallel region
REPEATS = 9
ATTEMPTS = 3
# Runs are steady if the quartiles of their times differ by at most this share of the median, and
# if the threads had their cores to themselves for all but this share of the time.
STEADY = 0.1


@dataclass(frozen=True)
class Peak:
    """Limits of a machine: `flops_all` and `flops_one` are float32 operations per second on all
    cores of the target and on one core (an FMA counts as two); `copy_bytes_per_s` counts the bytes
    read plus written by a copy on all cores. Example: `measure_peak(Target.detect()).flops_all`."""

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
    """The machine's limits with the target's vectors and number of cores, from the cache if there.

    Raises MachineError where this machine cannot run the target's code.
    """
    host = Target.detect()
    if target.arch != host.arch or target.vector_bytes > host.vector_bytes:
        raise MachineError(
            f"cannot measure {target.cpu} ({target.arch}, vectors of {target.vector_bytes} B) here:"
            f" this machine is {host.cpu} ({host.arch}, {host.vector_bytes} B)"
        )
    known = cached_peak(target)
    if known is not None:
        return known
    peak, steady = run_benchmarks(target)
    # Disturbances only lower the figures: of several processes' figures the largest is right.
    path = peak_file() if steady else cache_file("peak_of_busy_machine")
    entries = _read(path)
    if not steady and (seen := entries.get(target.fingerprint)) is not None:
        peak = Peak(*map(max, astuple(peak), astuple(seen)))
    entries[target.fingerprint] = peak
    write_cache(path, {key: asdict(p) for key, p in entries.items()})
    return peak


def run_benchmarks(target: Target) -> tuple[Peak, bool]:
    """Measure without any cache: (limits, whether the runs were steady).

    On a busy machine the limits are the best of `ATTEMPTS` attempts and not steady.
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


def peak_file() -> Path | None:
    """The file that keeps measured limits between processes."""
    return cache_file("peak")


def cached_peak(target: Target) -> Peak | None:
    """The limits that an earlier steady measurement left in the cache, or None."""
    return _read(peak_file()).get(target.fingerprint)


def fma_run(target: Target, threads: int, run_s: float = RUN_S) -> tuple[Callable[[], None], float]:
    """(a function that runs multiply-adds in registers for about `run_s`, its operations)."""
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

    # The time of an iteration is measured on one thread: several may wait for a core.
    work[:] = int(100_000 * run_s / min(_seconds(run) for _ in range(3))), threads
    out[:] = np.nan
    run()
    # Fewer threads than requested may run: a process limit, or a system without thread support.
    ran = int(np.count_nonzero(np.isfinite(out[:, 0])))
    return run, 2.0 * lanes * fma_accumulators(target) * ran * int(work[0])


def _flops(target: Target, threads: int) -> tuple[float, bool]:
    """(operations per second of multiply-adds in registers, whether the runs were steady)."""
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
    """(median seconds of `REPEATS` runs after a warm-up, whether the runs were steady)."""
    run()
    cores = min(threads, Target.detect().cores)
    start, start_cpu = time.perf_counter(), time.process_time()
    times = [_seconds(run) for _ in range(REPEATS)]
    # Waiting threads spin, so a thread with a core of its own uses all of the core's time.
    busy = (time.process_time() - start_cpu) / (time.perf_counter() - start) / cores
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) <= STEADY * middle and busy >= 1.0 - STEADY


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return max(time.perf_counter() - start, 1e-9)


def _read(path: Path | None) -> dict[str, Peak]:
    found: dict[str, Peak] = {}
    for key, entry in read_cache(path).items():
        try:
            peak = Peak(**{k: float(v) for k, v in entry.items()})
        except (TypeError, ValueError):
            continue
        if all(math.isfinite(v) and v > 0 for v in asdict(peak).values()):
            found[key] = peak
    return found
