"""The machine's limits, measured: operations per second in registers, bytes copied per second.

In: a `Target` that this machine can run. Out: a `Peak`, the limit that every report quotes. A
measurement takes less than a second. It is cached in the process and, by the target's fingerprint,
in a file (`measure.machine_cache`). A measurement on a busy machine goes to a separate file, and
the next process measures again. Long runs look again as they go on: a neighbour that was busy all
the time leaves figures that are steady, and too low.
"""

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.calls import Array, aligned_copy, aligned_empty, resident_empty
from ansorlite.codegen.dot import vector_dots
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.loader import load_image
from ansorlite.codegen.microbenchmarks import (
    READS,
    copy_kernel,
    dot_kernel,
    fma_accumulators,
    fma_kernel,
    read_kernel,
)
from ansorlite.errors import MachineError
from ansorlite.ir.packed import PACKED
from ansorlite.measure.machine_cache import cache_file, read_cache, write_cache
from ansorlite.presets import MIB
from ansorlite.target import Target
from ansorlite.units import format_gflops

RUN_S = 0.012  # length of one timed run, about 10,000 times the start of a parallel region
SOON_S = 0.004  # the same for runs of a few seconds
REPEATS = 9
ATTEMPTS = 3
BUSY = "peak_of_busy_machine"  # the file with figures that were not steady
# Runs are steady if the quartiles of their times differ by at most this share of the median, and
# if the threads had their cores to themselves for all but this share of the time.
STEADY = 0.1
MORE = 1.01  # times as high is more
# Both operands of a lane, whose products cancel, so that sums stay what they are: for bfloat16
# (1, 1) and (0.5, -0.5), for bytes (1, 1, 1, 1) and (1, -1, 1, -1).
DOT_OPERANDS = {
    "dot_bf16": np.array([0x3F803F80, 0xBF003F00], np.uint32).view(np.int32),
    "dot_u8s8": np.array([0x01010101, 0xFF01FF01], np.uint32).view(np.int32),
}


@dataclass(frozen=True)
class Peak:
    """Limits of a machine: `flops_all` and `flops_one` are float32 operations per second on all
    cores of the target and on one core (an FMA counts as two); `copy_bytes_per_s` counts the bytes
    read plus written by a copy on all cores. `dots_all` and `dots_one` are operations per second by
    the packed products ("dot_bf16") for which the target has an instruction; a product and its
    addition count as two. Example: `measure_peak(Target.detect()).flops_all`."""

    flops_all: float
    flops_one: float
    copy_bytes_per_s: float
    dots_all: Mapping[str, float] = field(default_factory=dict)
    dots_one: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        dots = "".join(
            f", {op.removeprefix('dot_')} {format_gflops(speed)}"
            for op, speed in self.dots_all.items()
        )
        return (
            f"{self.flops_all / 1e9:.1f} GFLOP/s ({self.flops_one / 1e9:.1f} on one core){dots},"
            f" copy {self.copy_bytes_per_s / 1e9:.1f} GB/s"
        )

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> "Peak":
        """The inverse of `asdict`, older entries too; TypeError, ValueError for anything else."""
        figures = {k: v for k, v in entry.items() if k not in ("dots_all", "dots_one")}
        dots = [{str(op): float(v) for op, v in _dict(entry, k)} for k in ("dots_all", "dots_one")]
        return Peak(**{k: float(v) for k, v in figures.items()}, dots_all=dots[0], dots_one=dots[1])

    @property
    def figures(self) -> tuple[float, ...]:
        """All speeds."""
        speeds = (self.flops_all, self.flops_one, self.copy_bytes_per_s)
        return (*speeds, *self.dots_all.values(), *self.dots_one.values())


def _dict(entry: Mapping[str, Any], name: str) -> Sequence[tuple[Any, Any]]:
    found = entry.get(name, {})
    if not isinstance(found, Mapping):
        raise TypeError(f"{name} is {found!r}")
    return tuple(found.items())


def best_of(first: Peak, second: Peak) -> Peak:
    """The larger of each figure: disturbances only lower figures."""
    return Peak(
        max(first.flops_all, second.flops_all),
        max(first.flops_one, second.flops_one),
        max(first.copy_bytes_per_s, second.copy_bytes_per_s),
        _larger(first.dots_all, second.dots_all),
        _larger(first.dots_one, second.dots_one),
    )


def _larger(a: Mapping[str, float], b: Mapping[str, float]) -> dict[str, float]:
    return {op: max(a.get(op, 0.0), b.get(op, 0.0)) for op in (*a, *(x for x in b if x not in a))}


@cache
def measure_peak(target: Target) -> Peak:
    """The machine's limits with the target's vectors and number of cores, from the cache if there.

    Raises MachineError where this machine cannot run the target's code.
    """
    _check_runs(target)
    known = cached_peak(target)
    missing = vector_dots(target)
    if known is not None:
        missing = tuple(op for op in missing if op not in known.dots_all)
        if not missing:
            return known
        dots_all, dots_one, steady = run_dots(target, missing)
        own = {**known.dots_all, **dots_all}, {**known.dots_one, **dots_one}
        peak = replace(known, dots_all=own[0], dots_one=own[1])
    else:
        peak, steady = run_benchmarks(target)
    path, entries = _kept(target, peak, steady)
    write_cache(path, {key: asdict(p) for key, p in entries.items()})
    return entries[target.fingerprint]


def _kept(target: Target, peak: Peak, steady: bool) -> tuple[Path | None, dict[str, Peak]]:
    """(file of figures, its new entries): of several processes' figures the largest is right."""
    path = peak_file() if steady else cache_file(BUSY)
    entries = _read(path)
    if not steady and (seen := entries.get(target.fingerprint)) is not None:
        peak = best_of(peak, seen)
    return path, {**entries, target.fingerprint: peak}


def _check_runs(target: Target) -> None:
    host = Target.detect()
    if target.arch != host.arch or target.vector_bytes > host.vector_bytes:
        raise MachineError(
            f"cannot measure {target.cpu} ({target.arch}, vectors of {target.vector_bytes} B) here:"
            f" this machine is {host.cpu} ({host.arch}, {host.vector_bytes} B)"
        )


def peak_soon(target: Target, ops: Collection[str] = ()) -> Peak:
    """`measure_peak`, or what a busy machine showed before, or what a first attempt shows.

    For runs of a few seconds, to which the limits are a guide: runs are shorter, and of packed
    products only `ops` are measured. On a busy machine, `measure_peak` takes several seconds each
    time.
    """
    _check_runs(target)
    wanted = [op for op in vector_dots(target) if op in ops]
    known = cached_peak(target) or _read(cache_file(BUSY)).get(target.fingerprint)
    if known is not None and all(op in known.dots_all for op in wanted):
        return known
    path, entries = _kept(target, *run_benchmarks(target, 1, wanted, SOON_S))
    write_cache(path, {key: asdict(p) for key, p in entries.items()})
    return entries[target.fingerprint]


def seen_again(target: Target, known: Peak, ops: Collection[str] = ()) -> Peak:
    """`known` limits, or each as high as a short look shows it now, if one is 1 % higher.

    Packed products `ops` are looked at, too. The files keep what is higher: disturbances only
    lower figures.
    """
    wanted = [op for op in vector_dots(target) if op in ops]
    seen, steady = run_benchmarks(target, 1, wanted, SOON_S)
    peak = best_of(known, seen)
    both = zip(peak.figures, known.figures, strict=False)
    if len(peak.figures) == len(known.figures) and all(b <= MORE * a for b, a in both):
        return known
    path, entries = _kept(target, peak, steady or cached_peak(target) is not None)
    write_cache(path, {key: asdict(p) for key, p in entries.items()})
    measure_peak.cache_clear()
    return peak


def run_benchmarks(
    target: Target,
    attempts: int = ATTEMPTS,
    ops: Sequence[str] | None = None,
    run_s: float | None = None,
) -> tuple[Peak, bool]:
    """Measure without any cache: (limits, whether the runs were steady).

    On a busy machine the limits are the best of so many attempts and not steady. Packed products
    are `ops`, by default all that the target has an instruction for; runs in registers take
    `run_s`, by default `RUN_S`.
    """
    length_s = run_s or RUN_S
    best, steady = Peak(0.0, 0.0, 0.0), False
    for _ in range(attempts):
        one_core, one_steady = _flops(target, 1, length_s)
        all_cores, all_steady = _flops(target, target.cores, length_s)
        copied = _copy_bytes_per_s(target)
        best = best_of(best, Peak(all_cores, one_core, copied))
        steady = one_steady and all_steady
        if steady:
            break
    dots = vector_dots(target) if ops is None else ops
    dots_all, dots_one, steady_dots = run_dots(target, dots, attempts, length_s)
    return replace(best, dots_all=dots_all, dots_one=dots_one), steady and steady_dots


def run_dots(
    target: Target, ops: Sequence[str], attempts: int = ATTEMPTS, run_s: float = RUN_S
) -> tuple[dict[str, float], dict[str, float], bool]:
    """Operations per second of packed products on all cores and on one; whether it was steady."""
    dots_all: dict[str, float] = {}
    dots_one: dict[str, float] = {}
    steady = True
    for op in ops:
        for _ in range(attempts):
            one_core, one_steady = _speed(dot_run(target, op, 1, run_s), 1)
            made = dot_run(target, op, target.cores, run_s)
            all_cores, all_steady = _speed(made, target.cores)
            dots_one[op] = max(dots_one.get(op, 0.0), one_core)
            dots_all[op] = max(dots_all.get(op, 0.0), all_cores)
            if one_steady and all_steady:
                break
        steady = steady and one_steady and all_steady
    return dots_all, dots_one, steady


def peak_file() -> Path | None:
    """The file that keeps measured limits between processes."""
    return cache_file("peak")


def cached_peak(target: Target) -> Peak | None:
    """The limits that an earlier steady measurement left in the cache, or None."""
    return _read(peak_file()).get(target.fingerprint)


def fma_run(target: Target, threads: int, run_s: float = RUN_S) -> tuple[Callable[[], None], float]:
    """(a function that runs multiply-adds in registers for about `run_s`, its operations)."""
    # s * 0.5 + 1 stays between 0 and 24, so that no operand is subnormal, infinite or NaN.
    operands = np.array([0.5, 1.0], np.float32)
    return _sums_run(target, threads, run_s, fma_kernel(target), operands, 2.0)


def dot_run(
    target: Target, op: str, threads: int, run_s: float = RUN_S
) -> tuple[Callable[[], None], float]:
    """Like `fma_run`, of the target's code for sums of packed products `op`, all in registers."""
    return _sums_run(
        target, threads, run_s, dot_kernel(target, op), DOT_OPERANDS[op], 2.0 * PACKED[op].depth
    )


def _sums_run(
    target: Target, threads: int, run_s: float, image: KernelImage, given: Array, flop: float
) -> tuple[Callable[[], None], float]:
    """`given` are both operands of every lane, `flop` the operations of one lane."""
    lanes = target.lanes("float32")
    kernel = load_image(image)
    operands = aligned_copy(np.repeat(given[:, None], lanes, axis=1))
    work = aligned_copy(np.array([100_000, 1], np.int64))
    out = aligned_empty((target.cores, lanes), image.params[2].dtype)
    unset = np.nan if out.dtype.kind == "f" else -1  # what no sum is
    kept = [work, operands, out]
    args = kernel.pointer_array(kept)

    def run(_owners: object = kept) -> None:
        kernel.call(args)

    # The time of an iteration is measured on one thread: several may wait for a core.
    work[:] = int(100_000 * run_s / min(_seconds(run) for _ in range(3))), threads
    out[:] = unset
    run()
    # Fewer threads than requested may run: a process limit, or a system without thread support.
    ran = int(np.count_nonzero(out[:, 0] >= 0))
    return run, flop * lanes * fma_accumulators(target) * ran * int(work[0])


def _flops(target: Target, threads: int, run_s: float) -> tuple[float, bool]:
    """(operations per second of multiply-adds in registers, whether the runs were steady)."""
    return _speed(fma_run(target, threads, run_s), threads)


def _speed(made: tuple[Callable[[], None], float], threads: int) -> tuple[float, bool]:
    run, flop = made
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
            peak = Peak.from_json(entry)
        except (TypeError, ValueError, AttributeError):
            continue
        if all(math.isfinite(v) and v > 0 for v in peak.figures):
            found[key] = peak
    return found
