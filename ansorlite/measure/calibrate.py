"""The speeds of a machine's register tiles and memory levels, measured once and cached.

In: a `Target` that this machine can run. Out: a `Calibration`: the limits (`measure.peak`), the
copy and read speed of each memory level, and the speed of each register tile that the search space
allows, with operands in the first- or second-level cache, packed or in rows. The tiles are programs
of this package, so the figures are those that kernels can reach. A calibration takes about ten
seconds and is cached in `calibration.json` (`measure.machine_cache`) by the target's fingerprint.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.calls import resident_copy, resident_empty
from ansorlite.codegen.build import build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.loader import NativeFunction, load_image
from ansorlite.measure.machine_cache import cache_file, read_cache, write_cache
from ansorlite.measure.peak import (
    Peak,
    cached_peak,
    copy_speed,
    measure_peak,
    read_speed,
    uncached_bytes,
)
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.target import Target

BODY_S = 0.002  # length of one timed run of a register tile
BODY_RUNS = 5
COPY_S = 0.01  # approximate length of one timed run of a copy, at 40 GB/s
PANELS = {"l1": 4, "l2": 16}  # panels of B; operands in rows have them side by side
UNROLL = 64  # largest number of vector statements in an unrolled body


@dataclass(frozen=True)
class LevelSpeed:
    """Bytes per second from one level of the memory ("l1", "l2", "l3", "memory").

    `copy_one` and `copy_all`: bytes read plus written by a copy, on one core and on all cores;
    `read_one` and `read_all`: bytes read by a kernel that only reads.
    """

    level: str
    copy_one: float
    copy_all: float
    read_one: float
    read_all: float

    def least_seconds(self, read_bytes: float, written_bytes: float) -> float:
        """Lower bound in seconds for moving the bytes on all cores.

        The smaller amount counts as copied, the rest as only read or only written.
        """
        copied = min(read_bytes, written_bytes)
        rest = max(0.0, written_bytes - copied)
        return (2 * copied + rest) / self.copy_all + (read_bytes - copied) / self.read_all


@dataclass(frozen=True)
class BodySpeed:
    """Operations per second (`flops`) on one core of a register tile of `rows` by `vectors`.

    `level` ("l1", "l2") holds the operands. `packed` operands are read contiguously, others as a
    part of each row of a matrix.
    """

    rows: int
    vectors: int
    level: str
    packed: bool
    flops: float


@dataclass(frozen=True)
class Calibration:
    """A full calibration and its date (`measured`, ISO 8601).

    `levels` go from the smallest to main memory.
    """

    peak: Peak
    levels: tuple[LevelSpeed, ...]
    bodies: tuple[BodySpeed, ...]
    measured: str

    def __str__(self) -> str:
        speeds = ", ".join(f"{x.level} {x.copy_all / 1e9:.1f} GB/s" for x in self.levels)
        return f"measured {self.measured}: {self.peak}; copy on all cores: {speeds}"

    def level_of(self, size_bytes: float, target: Target) -> LevelSpeed:
        """The smallest level that holds so many bytes; the cores' private caches count together."""
        held = level_bytes(target)
        for c in self.levels:
            if size_bytes <= held.get(c.level, float("inf")):
                return c
        return self.levels[-1]


def level_bytes(target: Target) -> dict[str, int]:
    """Level -> bytes that a kernel on all cores can use: private caches together, shared caches."""
    sizes = {
        "l1": target.l1_bytes * target.cores,
        "l2": target.l2_bytes * target.cores,
        "l3": target.l3_bytes,
    }
    return {level: n for level, n in sizes.items() if n}


def calibrate(target: Target) -> Calibration:
    """Measure now, in about ten seconds, and cache the result.

    Raises MachineError where this machine cannot run the target's code. Example:
    `calibrate(Target.detect())`.
    """
    measured = _measure(target)
    path = cache_file("calibration")
    write_cache(path, read_cache(path) | {target.fingerprint: asdict(measured)})
    return measured


def calibration(target: Target) -> Calibration | None:
    """The cached calibration of the target; None without one, or where the entry is damaged."""
    path = cache_file("calibration")
    if path is None:
        return None
    try:
        state = path.stat()
    except OSError:
        return None
    return _read(path, state.st_mtime_ns, state.st_size, target)


@lru_cache(maxsize=8)
def _read(path: Path, _changed_ns: int, _size: int, target: Target) -> Calibration | None:
    """The calibration in a file, read once for each of its states."""
    entry = read_cache(path).get(target.fingerprint)
    if entry is None:
        return None
    try:
        found = Calibration(
            _with_dots(Peak.from_json(entry["peak"]), target),
            tuple(LevelSpeed(**c) for c in entry["levels"]),
            tuple(BodySpeed(**b) for b in entry["bodies"]),
            str(entry["measured"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    parts: list[Peak | LevelSpeed | BodySpeed] = [found.peak, *found.levels, *found.bodies]
    return found if found.levels and all(map(_sensible, parts)) else None


def _with_dots(peak: Peak, target: Target) -> Peak:
    """With the speeds of packed products that were measured since an older calibration."""
    newer = None if peak.dots_all else cached_peak(target)
    if newer is None:
        return peak
    return replace(peak, dots_all=newer.dots_all, dots_one=newer.dots_one)


def _sensible(speeds: Peak | LevelSpeed | BodySpeed) -> bool:
    """Are all figures positive and finite? The cache file may have been edited."""
    if isinstance(speeds, Peak):
        return all(0 < v < float("inf") for v in speeds.figures)
    figures = [v for k, v in asdict(speeds).items() if k not in ("level", "packed")]
    return all(isinstance(v, int | float) and 0 < v < float("inf") for v in figures)


def legal_bodies(target: Target) -> list[tuple[int, int]]:
    """(rows, vectors) of each register tile that fits the vector registers with its operands."""
    n = target.vector_registers
    sizes = range(1, n)
    return [(r, v) for r in sizes for v in sizes if r * v + min(r, v) + 1 <= n]


def _measure(target: Target) -> Calibration:
    peak = measure_peak(target)
    bodies = tuple(
        BodySpeed(rows, vectors, level, packed, _body_speed(target, peak, rows, vectors, *place))
        for rows, vectors in legal_bodies(target)
        for place in _places(target)
        for level, packed, _ in [place]
    )
    return Calibration(peak, tuple(_levels(target)), bodies, date.today().isoformat())


# ---- levels of the memory -----------------------------------------------------------------------


def _levels(target: Target) -> Iterator[LevelSpeed]:
    """Speeds from the smallest level on; source and destination together fill half of a level."""
    for level, size in level_bytes(target).items():
        shared = level == "l3"
        both = size // 2
        one = both if shared else both // target.cores
        times = max(1, round(COPY_S * 40e9 / one))
        yield _level(target, level, one // 2, both // 2, times)
    size = uncached_bytes(target)
    yield _level(target, "memory", size, size, 1)


def _level(target: Target, level: str, one: int, every: int, times: int) -> LevelSpeed:
    """The speeds of one level with arrays of `one` bytes on one core, of `every` bytes on all."""
    return LevelSpeed(
        level,
        copy_speed(target, 1, one, times),
        copy_speed(target, target.cores, every, times),
        read_speed(target, 1, 2 * one, times),
        read_speed(target, target.cores, 2 * every, times),
    )


# ---- register tiles -----------------------------------------------------------------------------


def _places(target: Target) -> list[tuple[str, bool, int]]:
    """(level, packed, bytes of the matrix B in that level) for each place of the operands."""
    sizes = {"l1": target.l1_bytes // 2, "l2": target.l2_bytes // 2}
    return [(name, packed, n) for name, n in sizes.items() if n for packed in (True, False)]


def _body_speed(
    target: Target, peak: Peak, rows: int, vectors: int, level: str, packed: bool, size: int
) -> float:
    width = vectors * target.lanes("float32")
    panels = PANELS[level]
    depth = max(4, size // (4 * width * panels) // 4 * 4)
    flop = 2.0 * rows * width * depth * panels
    times = max(1, round(BODY_S * peak.flops_one / flop))
    state = body_state(rows, width, depth, panels, times, packed, target)
    image = build_program(lower(state), target)
    return times * flop / _shortest_s(load_image(image), _body_arrays(image))


def _body_arrays(image: KernelImage) -> list[Any]:
    """Arrays for all parameters in the kernel's order: random inputs, empty outputs."""
    rng = np.random.default_rng(0)
    return [
        resident_copy(rng.random(p.shape, np.float32))
        if p.role == "input"
        else resident_empty(p.shape, p.dtype)
        for p in image.params
    ]


def body_state(
    rows: int,
    width: int,
    depth: int,
    panels: int,
    times: int,
    packed: bool,
    target: Target,
    cores: int = 1,
) -> State:
    """The schedule of one register tile: C[core, rows, width] = times * sum over panels of A @ B_p.

    Packed: A[depth, rows] and B[panels, depth, width]; otherwise A[rows, depth], and panels are
    columns of B[depth, panels * width]. C stays in registers. All `cores` cores compute the same.
    """
    t, p = te.reduce_axis(times, "t"), te.reduce_axis(panels, "p")
    k = te.reduce_axis(depth, "k")
    a = te.placeholder((depth, rows) if packed else (rows, depth), name="A")
    b = te.placeholder((panels, depth, width) if packed else (depth, panels * width), name="B")

    def term(_core: Any, i: Any, j: Any) -> Any:
        left = a[k, i] if packed else a[i, k]
        right = b[p, k, j] if packed else b[k, p * width + j]
        return te.sum(left * right, axis=[t, p, k])

    c = te.compute((cores, rows, width), term, name="C")
    state = State(te.ComputeDAG([c])).apply(
        Split("C", "i", (rows,)),
        Split("C", "j", (width,)),
        Reorder("C", ("core", "i.0", "j.0", "t", "p", "k", "i.1", "j.1")),
        Annotate("C", "i.1", "register", 1),
        Annotate("C", "j.1", "register", 1),
        Annotate("C", "j.1", "lanes", target.lanes("float32")),
        Annotate("C", "k", "unroll", UNROLL),
    )
    return state.apply(Annotate("C", "core", "parallel", 1)) if cores > 1 else state


def tile_run(target: Target, seconds: float) -> tuple[Callable[[], None], float]:
    """(a function that runs the best register tile on all cores, its operations).

    Operands lie in the first-level cache; a run takes about `seconds`. No matrix product is faster.
    Where another program shares the cores, the tile slows down more than multiply-adds alone
    (`measure.peak.fma_run`), because the tile also loads.
    """
    rows, vectors = min(legal_bodies(target), key=lambda b: ((b[0] + b[1]) / (b[0] * b[1]), b[1]))
    width = vectors * target.lanes("float32")
    depth = max(4, target.l1_bytes // 2 // (4 * width) // 4 * 4)
    flop = 2.0 * rows * width * depth
    peak = measure_peak(target)
    times = max(1, round(seconds * peak.flops_one / flop))
    image = build_program(
        lower(body_state(rows, width, depth, 1, times, True, target, target.cores)), target
    )
    kernel, buffers = load_image(image), _body_arrays(image)
    args = kernel.pointer_array(buffers)

    def run(_owners: object = buffers) -> None:
        kernel.call(args)

    return run, flop * times * target.cores


def _shortest_s(kernel: NativeFunction, arrays: list[Any]) -> float:
    """Seconds of the fastest of `BODY_RUNS` runs after a warm-up: disturbances only slow a run."""
    args = kernel.pointer_array(arrays)
    times = []
    for _ in range(BODY_RUNS + 1):
        start = time.perf_counter()
        kernel.call(args)
        times.append(time.perf_counter() - start)
    return min(times[1:])
