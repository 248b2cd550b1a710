"""Memory footprint of a statement for a whole population at once; the base of the features.

In: a store with its loops, and hole columns as int64[P]. Out: a `Footprint` per buffer: elements
touched inside each loop level, strides and contiguous runs, as float64[P]. Index coefficients are
extracted from the program once (`Access`) and evaluated per population (`Batch`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Const, Expr
from ansorlite.ir.program import Buffer, For, Store
from ansorlite.ir.ranges import Evaluator, coefficient
from ansorlite.ir.traverse import loads

Values = npt.NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
CACHE_WAYS = 8  # associativity of the private caches (typical value)


class Batch:
    """Evaluates expressions over hole columns as float64[n], memoised."""

    def __init__(self, columns: Mapping[str, Any], n: int) -> None:
        self.int = Evaluator(columns)
        self.n = n
        self._memo: dict[Expr, Values] = {}

    def __call__(self, e: Expr) -> Values:
        known = self._memo.get(e)
        if known is None:
            value = np.asarray(self.int(e), dtype=np.float64)
            known = self._memo[e] = value if value.ndim else np.full(self.n, float(value))
        return known

    def product(self, factors: tuple[Expr, ...]) -> Values:
        """float64[n]: the product of the factors."""
        out = np.ones(self.n)
        for f in factors:
            out = out * self(f)
        return out


@dataclass(frozen=True)
class Access:
    """All accesses of one statement to one buffer.

    `moves[level]` lists (dimension, coefficients) for the loop of that level; an empty tuple of
    coefficients means that the index is not affine in the loop variable.
    """

    buffer: Buffer
    writes: bool
    reads: bool
    moves: tuple[tuple[tuple[int, tuple[Expr, ...]], ...], ...]

    @cached_property
    def moving(self) -> list[int]:
        """Levels whose loops change the address, innermost first."""
        return [k for k in reversed(range(len(self.moves))) if self.moves[k]]

    @cached_property
    def moving_inside(self) -> npt.NDArray[np.intp]:
        """intp[levels + 1]: number of moving loops inside each level."""
        each = [bool(found) for found in self.moves]
        return np.array([sum(each[k:]) for k in range(len(each) + 1)], dtype=np.intp)

    @cached_property
    def dims(self) -> list[int]:
        """The dimensions whose indices change in some loop."""
        return sorted({d for found in self.moves for d, _ in found})


def accesses(
    store: Store, loops: tuple[For, ...], buffers: Mapping[str, Buffer]
) -> tuple[Access, ...]:
    """One `Access` per buffer: the written buffer first, then the others in order of appearance."""
    indices: dict[str, list[tuple[Expr, ...]]] = {store.buffer: [store.indices]}
    for x in dict.fromkeys(loads(store.value)):
        indices.setdefault(x.tensor, [])
        if x.indices not in indices[x.tensor]:
            indices[x.tensor].append(x.indices)
    read = {x.tensor for x in loads(store.value)} | ({store.buffer} if store.combiner else set())
    return tuple(
        Access(
            buffers[name],
            name == store.buffer,
            name in read,
            tuple(_moves(found, lp.var) for lp in loops),
        )
        for name, found in indices.items()
        if name in buffers
    )


def _moves(indices: list[tuple[Expr, ...]], var: str) -> tuple[tuple[int, tuple[Expr, ...]], ...]:
    """(dimension, distinct coefficients) of the dimensions whose indices depend on `var`."""
    out = []
    for d in range(len(indices[0])):
        coefs: list[Expr] = []
        affine = True
        for idx in indices:
            if var in idx[d].free:
                c = coefficient(idx[d], var)
                affine = affine and c is not None
                if c is not None:
                    coefs.append(c)
        if coefs or not affine:
            out.append((d, tuple(dict.fromkeys(coefs)) if affine else ()))
    return tuple(out)


class Levels:
    """The loops around a statement, outermost first, for a population of n.

    [loops, n]: `extents`; `steps` (iterations after the first); `runs` (more than one iteration);
    `innermost` (runs, and no inner loop runs). [loops + 1, n]: `inside[l]`, iterations of loops l
    and deeper; `outside[l]`, iterations of the loops before l.
    """

    def __init__(self, extents: list[Values], n: int) -> None:
        self.n, self.depth = n, len(extents)
        self._column = np.arange(n)
        self.extents = np.array(extents, dtype=np.float64).reshape(self.depth, n)
        self.steps = self.extents - 1
        self.runs = self.extents > 1
        # Level by level, because numpy's accumulations along the first axis are several times
        # slower.
        self.inside, self.outside = np.ones((2, self.depth + 1, n))
        self.innermost = self.runs.copy()
        deeper = np.zeros(n, dtype=bool)
        for k in range(self.depth):
            np.multiply(self.outside[k], self.extents[k], out=self.outside[k + 1])
        for k in range(self.depth - 1, -1, -1):
            np.multiply(self.inside[k + 1], self.extents[k], out=self.inside[k])
            self.innermost[k] &= ~deeper
            deeper |= self.runs[k]

    def at(self, values: npt.NDArray[T], level: npt.NDArray[np.integer]) -> npt.NDArray[T]:
        """values[level[..., n], n] for values of shape [levels, n]."""
        place = np.multiply(level, self.n, dtype=np.intp)
        place += self._column
        picked: npt.NDArray[T] = values.reshape(-1).take(place)
        return picked


@dataclass
class Footprint:
    """Footprint of one buffer under one statement; arrays are [levels, n] or [n].

    - `inner[l]`: elements touched by loops l and deeper (l = number of loops: one execution)
    - `moves[l]`: loop l changes the address; `steps[l]`: stride of loop l in elements, 0 if the
      loop has one iteration
    - `around[l]`: number of loops outside level l, without the directly surrounding loops that do
      not change the address
    - `stride`: stride in elements of the innermost loop that runs; `run`: contiguous elements in
      the innermost dimension
    - `lines[l]`: bytes of the cache lines touched
    - `conflict_bytes[c][l]`: `lines[l]`, or the larger capacity that cache c would need where the
      lines fall into few of its sets
    """

    buffer: Buffer
    writes: bool
    reads: bool
    inner: Values
    moves: npt.NDArray[np.bool_]
    around: npt.NDArray[np.int8]
    steps: Values
    stride: Values
    run: Values
    itemsize: int
    lines: Values
    conflict_bytes: tuple[Values, ...]


def footprint(
    access: Access, ev: Batch, levels: Levels, line: int = 64, caches: tuple[int, ...] = ()
) -> Footprint:
    """The footprint of an access.

    `line`: bytes of a cache line; `caches`: bytes of the caches that are checked for set conflicts.
    """
    buffer, n = access.buffer, ev.n
    shape = [float(e.value) if isinstance(e, Const) else ev(e) for e in buffer.shape]
    rank = len(shape)
    strides: list[Values | float] = [1.0] * rank
    for d in range(rank - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    itemsize = np.dtype(buffer.dtype).itemsize
    # The arrays of `_spreads` and `_around` have one entry per moving loop, innermost first, and
    # are expanded to all levels below.
    moving, inside = access.moving, access.moving_inside
    spreads, step, moved = _spreads(access, ev, levels, shape, strides)
    moves, steps = np.zeros(levels.runs.shape, dtype=bool), np.zeros(levels.runs.shape)
    moves[moving], steps[moving] = moved, step
    inner = np.ones((len(spreads), n))
    for d in access.dims:
        inner *= spreads[:, d]
    lines, conflict_bytes = _lines(spreads, strides, itemsize, line, caches)
    return Footprint(
        buffer,
        access.writes,
        access.reads,
        inner[inside],
        moves,
        _around(moving, moves)[len(moving) - inside],
        steps,
        np.einsum("ln,ln->n", step, levels.innermost[moving]),
        spreads[-1, -1] if rank else np.ones(n),
        itemsize,
        lines[inside],
        tuple(c[inside] for c in conflict_bytes),
    )


def _spreads(
    access: Access,
    ev: Batch,
    levels: Levels,
    shape: list[Values | float],
    strides: list[Values | float],
) -> tuple[Values, Values, npt.NDArray[np.bool_]]:
    """(extents touched, strides, moves) of the M loops that move the address, innermost first.

    Extents touched: [M + 1, dimensions, n], inside each loop. Strides: [M, n] in elements, 0 for a
    loop of one iteration. Moves: bool[M, n], the loop changes the address.
    """
    moving, n = access.moving, ev.n
    largest = [np.maximum(extent, 1.0) for extent in shape]
    runs, trips, moved = levels.runs[moving], levels.steps[moving], levels.runs[moving]
    spreads = np.ones((len(moving) + 1, len(shape), n))
    step = np.zeros((len(moving), n))
    for j, level in enumerate(moving):
        np.copyto(spreads[j + 1], spreads[j])
        # known: the loop changes the address for every candidate; may: for these candidates
        known, may = False, np.zeros(n, dtype=bool)
        for d, coefs in access.moves[level]:
            spread = spreads[j + 1, d]
            if not coefs:  # not affine: the whole dimension may be touched
                np.copyto(spread, shape[d], where=runs[j])
                np.copyto(step[j], strides[d], where=runs[j])
                known = True
                continue
            size = _size(coefs, ev)
            spread += size * trips[j]
            np.minimum(spread, largest[d], out=spread)
            step[j] += size * strides[d]
            if isinstance(size, float):
                known = known or size > 0
            else:
                may |= size > 0
        if not known:
            moved[j] &= may
    step *= runs
    return spreads, step, moved


def _around(moving: list[int], moves: npt.NDArray[np.bool_]) -> npt.NDArray[np.int8]:
    """`around` of `Footprint` after each moving loop, outermost first: int8[M + 1, n]."""
    around = np.zeros((len(moving) + 1, moves.shape[1]), dtype=np.int8)
    for k, level in enumerate(reversed(moving)):
        np.copyto(around[k + 1], around[k])
        np.copyto(around[k + 1], level + 1, where=moves[level])
    return around


def _size(coefficients: tuple[Expr, ...], ev: Batch) -> Values | float:
    """The largest absolute value of the coefficients; a number if all are constants."""
    first, *remaining = (
        abs(float(c.value)) if isinstance(c, Const) else np.abs(ev(c)) for c in coefficients
    )
    for size in remaining:
        first = np.maximum(first, size)
    return first


def _lines(
    spreads: Values,
    strides: list[Values | float],
    itemsize: int,
    line: int,
    caches: tuple[int, ...],
) -> tuple[Values, list[Values]]:
    """`lines` and `conflict_bytes` of a footprint, from extents touched [levels, dimensions, n]."""
    if spreads.shape[1] == 0:
        lines = np.full((len(spreads), spreads.shape[2]), float(line))
        return lines, [lines for _ in caches]
    row = np.minimum(strides[-2] * itemsize, line) if len(strides) > 1 else float(line)
    first = np.maximum(spreads[:, -1] * itemsize, row)
    outer = [d for d in range(spreads.shape[1] - 1) if (spreads[-1, d] > 1).any()]
    lines = first.copy()
    for d in outer:
        lines *= spreads[:, d]
    conflict_bytes = []
    for cache in caches:
        way = max(1, cache // CACHE_WAYS)
        cover = np.minimum(first, way)
        for d in outer:
            cover *= np.minimum(spreads[:, d], _way_offsets(strides[d] * itemsize, way))
            np.minimum(cover, way, out=cover)
        deep = lines / cover  # lines per set in the fullest sets
        conflict_bytes.append(np.where(deep > CACHE_WAYS, deep * way, lines))
    return lines, conflict_bytes


def _way_offsets(stride: Values | float, way: int) -> Values | float:
    """Number of distinct offsets in a cache way of multiples of a stride (both in bytes)."""
    if isinstance(stride, float):
        return way / math.gcd(int(stride), way)
    size = stride.astype(np.int64)
    # A bit mask is faster than the remainder where the way size is a power of two.
    rest = size & (way - 1) if way & (way - 1) == 0 else size % way
    return _offsets_by_rest(way).take(rest)


@lru_cache(maxsize=16)
def _offsets_by_rest(way: int) -> Values:
    """float64[way]: way / gcd(rest, way)."""
    return np.asarray(way / np.gcd(np.arange(way), way), dtype=np.float64)
