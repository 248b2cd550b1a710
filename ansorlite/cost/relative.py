"""Features of a program relative to the machine: what a model carries from one CPU to another.

In: features float32[P, S, F] of `cost.features` and their `Target`. Out: float32[P, N_RELATIVE], a
row a program. Bytes stand relative to cache levels, lanes to the vector's width, parallel grains to
the cores, instructions and traffic to the arithmetic, time to the cycles of the analytic estimate.
A row describes the costliest statement in full, the second costliest in brief, and the program.
What a register tile reaches is looked up in a table of the machine, or of its instruction set.
"""

import numpy as np
import numpy.typing as npt

from ansorlite.cost.analytic import rates_of
from ansorlite.cost.names import ARITHMETIC, AT, CYCLES, LOGGED
from ansorlite.target import Target

Rows = npt.NDArray[np.float32]
Values = npt.NDArray[np.float64]

BUFFERS = 4  # of the costliest statement
# Logarithms of sizes relative to a cache are cut off here: beyond, the size tells nothing more.
FITS, EXCEEDS = -5.0, 3.0
LEAST = 2.0**-12
MIX = ("mad", "div", "math", "compare", "select")
POINTS = (1, 3, 5, 7, 9)  # of the curve of arithmetic intensity
PLACES = (("l1", True), ("l1", False), ("l2", True), ("l2", False))  # operands: level, packed?
SLOWEST = -6.0  # log2 of the share of the peak
_BUFFER = (
    *("read", "write", "unique_l1", "unique_l2", "unique_l3", "reuse_l1", "reuse_l2"),
    *("by_loop", "by_serial", "count", "stride", "run", "lines"),
)
_LOOPS = (
    *("rows", "vectors", "lanes", "registers", "fill", "unroll", "steps", "prefetch", "stream"),
    *("grains", "balance", "share", "inner_reduction", "outer_reduction"),
)
_BRIEF = ("part", "lanes", "fill", "registers", "grains", "balance", "share", "gathered", "select")
RELATIVE_NAMES: tuple[str, ...] = (
    *(f"share_{k}" for k in CYCLES),
    "cycles",
    *_LOOPS,
    *("register_loads", "gathered", "executions", "allocated_l1", "allocated_l2"),
    *(f"tile_{level}{'_packed' if packed else ''}" for level, packed in PLACES),
    *(f"bytes_{k}" for k in CYCLES[3:]),
    *(f"mix_{k}" for k in MIX),
    *(f"intensity_{k}" for k in POINTS),
    *(f"buffer{b}_{n}" for b in range(BUFFERS) for n in _BUFFER),
    *(f"second_{n}" for n in (*_BRIEF, *(f"share_{k}" for k in CYCLES))),
    *("statements", "costliest", "total_cycles"),
    *(f"total_{k}" for k in CYCLES),
    *("vector_bytes", "vector_registers"),
)
N_RELATIVE = len(RELATIVE_NAMES)


# [PLACES, rows, vectors]: log2 of the speed as a share of the peak
Tiles = npt.NDArray[np.float32]


def no_tiles(target: Target) -> Tiles:
    """What register tiles reach by the latency of multiply-adds alone; none were measured."""
    n, rates = target.vector_registers, rates_of(target)
    chains = np.outer(np.arange(n), np.arange(n)) / (rates.fma * rates.fma_latency)
    share = np.log2(np.clip(chains, 2.0**SLOWEST, 1.0)).astype(np.float32)
    return np.stack([share] * len(PLACES))


def relative_rows(
    features: npt.NDArray[np.float32], target: Target, tiles: Tiles | None = None
) -> Rows:
    """float32[P, N_RELATIVE] from float32[P, S, F]; `tiles` by default `no_tiles(target)`."""
    n, count, _ = features.shape
    if n == 0:
        return np.zeros((0, N_RELATIVE), np.float32)
    cycles = np.exp2(features[:, :, AT["cycles_all"]].astype(np.float64)) - 1.0
    order = np.argsort(-cycles, axis=1, kind="stable")
    every = np.arange(n)
    total = np.maximum(cycles.sum(axis=1), 1.0)
    kinds = np.stack(
        [np.exp2(features[:, :, AT[f"cycles_{k}"]].astype(np.float64)).sum(axis=1) for k in CYCLES]
    )
    first = _Statement(features[every, order[:, 0]], target)
    columns = first.in_full(no_tiles(target) if tiles is None else tiles)
    if count > 1:
        columns += _Statement(features[every, order[:, 1]], target).in_brief(total)
    else:
        columns += [np.zeros(n)] * (len(_BRIEF) + len(CYCLES))
    columns += [
        np.full(n, np.log2(count)),
        first.cycles / total,
        np.log2(total / target.cores),
        *(kinds / total),
        np.full(n, np.log2(target.vector_bytes)),
        np.full(n, float(target.vector_registers)),
    ]
    out = np.empty((n, N_RELATIVE), np.float32)
    for k, column in enumerate(columns):
        out[:, k] = column
    return out


class _Statement:
    """One statement of each program: features float32[P, F]."""

    def __init__(self, features: npt.NDArray[np.float32], target: Target) -> None:
        self._features, self._target = features.astype(np.float64), target
        self._magnitude = self._features.copy()
        self._magnitude[:, LOGGED] = np.exp2(self._features[:, LOGGED]) - 1.0
        self.cycles = np.maximum(self.of("cycles_all"), 1.0)
        self._lanes = np.maximum(self.of("lanes"), 1.0)
        work = sum((self.of(k) for k in (*ARITHMETIC, "math")), np.zeros(len(features)))
        self._work = np.maximum(work, 0.5 * self.of("executions") + 0.5)

    def of(self, name: str) -> Values:
        """The magnitude of a feature, float64[P]."""
        found: Values = self._magnitude[:, AT[name]]
        return found

    def _log(self, name: str) -> Values:
        """log2(1 + magnitude) of a feature that is stored so."""
        found: Values = self._features[:, AT[name]]
        return found

    def _per_work(self, name: str) -> Values:
        return np.asarray(np.log2(self.of(name) * self._lanes / self._work + LEAST))

    def _in_cache(self, name: str, size_bytes: int) -> Values:
        """log2 of bytes relative to a cache level; the next larger one where there is none."""
        size = size_bytes or self._target.l2_bytes or self._target.l1_bytes
        return np.clip(np.log2(np.maximum(self.of(name), 1.0) / size), FITS, EXCEEDS)

    def _shares(self) -> list[Values]:
        return [self.of(f"cycles_{k}") / self.cycles for k in CYCLES]

    def _lanes_share(self) -> Values:
        return self._lanes * 4.0 / self._target.vector_bytes

    def _grains(self) -> Values:
        return np.log2(np.maximum(self.of("parallel_grains"), 1.0) / self._target.cores)

    def in_brief(self, total: Values) -> list[Values]:
        """The columns of the second costliest statement."""
        return [
            self.cycles / total,
            self._lanes_share(),
            self.of("vector_fill"),
            self.of("registers"),
            self._grains(),
            self.of("parallel_balance"),
            self.of("parallel_share"),
            self._per_work("gathered"),
            self.of("select") / self._work,
            *self._shares(),
        ]

    def _tile(self, tiles: Tiles) -> list[Values]:
        """What the register tile reaches; 1 where nothing is multiplied and added."""
        last = np.array(tiles.shape[1:]) - 1
        rows = np.clip(np.rint(self.of("rows")), 1, last[0]).astype(np.int64)
        vectors = np.clip(np.rint(self.of("vectors")), 1, last[1]).astype(np.int64)
        return [np.where(self.of("mad") > 0, own[rows, vectors], 0.0) for own in tiles]

    def in_full(self, tiles: Tiles) -> list[Values]:
        """The columns of the costliest statement."""
        t = self._target
        chains = np.maximum(self.of("rows") * self.of("vectors"), 1.0)
        inner = np.maximum(self.of("inner_reduction"), 1.0)
        steps = np.maximum(np.minimum(np.floor(self.of("unroll") / chains + 1e-3), inner), 1.0)
        columns = [
            *self._shares(),
            np.log2(self.cycles / t.cores),
            self.of("rows"),
            self.of("vectors"),
            self._lanes_share(),
            self.of("registers"),
            self.of("vector_fill"),
            self._log("unroll"),
            np.log2(steps),
            self._log("prefetch"),
            self.of("stream"),
            self._grains(),
            self.of("parallel_balance"),
            self.of("parallel_share"),
            np.log2(inner),
            self._log("outer_reduction"),
            self.of("register_loads"),
            self._per_work("gathered"),
            np.log2(self.of("executions") / self._work + LEAST),
            self._in_cache("alloc_bytes", t.l1_bytes),
            self._in_cache("alloc_bytes", t.l2_bytes),
            *self._tile(tiles),
            *(self._per_work(k) for k in CYCLES[3:]),
            *(self.of(k) / self._work for k in MIX),
            *(self.of(f"intensity_{k}") for k in POINTS),
        ]
        for b in range(BUFFERS):
            columns += self._buffer(f"buffer{b}_")
        return columns

    def _buffer(self, at: str) -> list[Values]:
        t = self._target
        unique = np.maximum(self.of(f"{at}unique_bytes"), 1.0)
        whole = np.maximum(self.of(f"{at}unique_lines"), 1.0) * t.cache_line
        run = np.maximum(self.of(f"{at}contiguous") * 4.0, 1.0) / t.cache_line
        return [
            self.of(f"{at}read"),
            self.of(f"{at}write"),
            self._in_cache(f"{at}unique_bytes", t.l1_bytes),
            self._in_cache(f"{at}unique_bytes", t.l2_bytes),
            self._in_cache(f"{at}unique_bytes", t.l3_bytes),
            self._in_cache(f"{at}reuse_bytes", t.l1_bytes),
            self._in_cache(f"{at}reuse_bytes", t.l2_bytes),
            self.of(f"{at}reuse_loop"),
            self.of(f"{at}reuse_serial"),
            self._log(f"{at}reuse_count"),
            np.minimum(self._log(f"{at}inner_stride"), 6.0),
            np.clip(np.log2(run), FITS, EXCEEDS),
            np.clip(np.log2(whole / unique), 0.0, 4.0),
        ]
