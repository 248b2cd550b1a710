"""Which memory a statement touches, for a whole population at once: the ground of the features.

In: a store with its loops, and hole columns as int64[P]. Out: `Touched` per buffer: elements
touched inside of each loop level, strides and contiguous runs, as float64[P]. Index coefficients
are taken from the program once (`Access`), their values evaluated per population (`Batch`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Const, Expr
from ansorlite.ir.program import Buffer, For, Store
from ansorlite.ir.ranges import Evaluator, coefficient
from ansorlite.ir.traverse import loads

Values = npt.NDArray[np.float64]
T = TypeVar("T", bound=np.generic)
WAYS = 8  # of the caches of a core, as with most


class Batch:
    """Expressions as float64[n]."""

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
        out = np.ones(self.n)
        for f in factors:
            out = out * self(f)
        return out


@dataclass(frozen=True)
class Access:
    """All accesses of one statement to one buffer.

    `moves[level]` lists (dimension, coefficients) of the loops that change the address; no
    coefficients means that the index is not affine in the loop variable.
    """

    buffer: Buffer
    writes: bool
    reads: bool
    moves: tuple[tuple[tuple[int, tuple[Expr, ...]], ...], ...]


def accesses(
    store: Store, loops: tuple[For, ...], buffers: Mapping[str, Buffer]
) -> tuple[Access, ...]:
    """The written buffer first, then the others in order of appearance."""
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

    `extents`, `steps` (iterations but for the first), `runs` (more than one iteration) and
    `innermost` (runs, and none inside of it does) are [loops, n]; `inside[l]` and `outside[l]`,
    [loops + 1, n], are the iterations of loops l and deeper, and of the loops before l.
    """

    def __init__(self, extents: list[Values], n: int) -> None:
        self.n, self.depth = n, len(extents)
        self._column = np.arange(n)
        self.extents = np.array(extents, dtype=np.float64).reshape(self.depth, n)
        self.steps = self.extents - 1
        self.runs = self.extents > 1
        # Level by level: numpy's accumulations along the first axis are several times slower.
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
        """values[level[..., n], n] of [levels, n]."""
        place = np.multiply(level, self.n, dtype=np.intp)
        place += self._column
        picked: npt.NDArray[T] = values.reshape(-1).take(place)
        return picked


@dataclass
class Touched:
    """One buffer under one statement: elements touched inside of each loop level.

    `inner[l]`: elements touched by loops l and deeper (l = number of loops: one execution);
    `moves[l]`: loop l changes the address; `around[l]`: number of loops around level l, but for
    for those right around it that do not; `steps[l]`: by how many elements, 0 if it does not run;
    `stride`: elements between neighbours in the innermost loop that runs; `run`: contiguous
    elements in the innermost dimension. `lines[l]`: bytes of the cache lines that hold them;
    `crowded[c][l]`: the same for cache c, or more, if they fall on so few of its sets that it would
    have to be that large to hold them. Arrays are [levels, n] or
    [n].
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
    crowded: tuple[Values, ...]


def touch(
    access: Access, ev: Batch, levels: Levels, line: int = 64, caches: tuple[int, ...] = ()
) -> Touched:
    """`line`: bytes of a cache line; `caches`: bytes of those whose sets may be crowded."""
    buffer, n, depth = access.buffer, ev.n, levels.depth
    shape = [float(e.value) if isinstance(e, Const) else ev(e) for e in buffer.shape]
    rank = len(shape)
    ones = np.ones(n)
    strides: list[Values | float] = [1.0] * rank
    for d in range(rank - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    size_bytes = np.dtype(buffer.dtype).itemsize
    spread = [ones] * rank  # extent touched per dimension
    spreads = [list(spread)]  # the same inside of each level that changes it, innermost first
    at = np.zeros(depth + 1, dtype=np.intp)  # which of them a level has
    inner = np.empty((depth + 1, n))
    inner[depth] = 1.0
    moves, steps = np.zeros((depth, n), dtype=bool), np.zeros((depth, n))
    stride = np.zeros(n)
    for level in range(depth - 1, -1, -1):
        if not access.moves[level]:
            inner[level], at[level] = inner[level + 1], at[level + 1]
            continue
        runs, trips = levels.runs[level], levels.steps[level]
        step: Any = 0.0
        for d, coefs in access.moves[level]:
            if not coefs:
                spread[d] = np.where(runs, shape[d], spread[d])
                step = np.where(runs, strides[d], step)
                moves[level] |= runs
                continue
            size = _size(coefs, ev)
            spread[d] = np.minimum(spread[d] + size * trips, np.maximum(shape[d], 1.0))
            step = step + size * strides[d]
            moves[level] |= runs & (size > 0)
        steps[level] = np.where(runs, step, 0.0)
        stride += np.where(levels.innermost[level], steps[level], 0.0)
        np.copyto(inner[level], spread[0])
        for s in spread[1:]:
            inner[level] *= s
        at[level] = len(spreads)
        spreads.append(list(spread))
    run = spread[-1] if rank else ones
    around = np.zeros((depth + 1, n), dtype=np.int8)
    for k in range(depth):
        np.copyto(around[k + 1], around[k])
        if access.moves[k]:
            np.copyto(around[k + 1], k + 1, where=moves[k])
    extents = np.array(spreads).reshape(len(spreads), rank, n)
    lines, crowded = _lines(extents, strides, size_bytes, line, caches)
    return Touched(
        buffer,
        access.writes,
        access.reads,
        inner,
        moves,
        around,
        steps,
        stride,
        run,
        size_bytes,
        lines[at],
        tuple(c[at] for c in crowded),
    )


def _size(coefficients: tuple[Expr, ...], ev: Batch) -> Values | float:
    """The largest of some coefficients' sizes; a number where they are."""
    first, *others = (
        abs(float(c.value)) if isinstance(c, Const) else np.abs(ev(c)) for c in coefficients
    )
    for size in others:
        first = np.maximum(first, size)
    return first


def _lines(
    spreads: Values,
    strides: list[Values | float],
    itemsize: int,
    line: int,
    caches: tuple[int, ...],
) -> tuple[Values, list[Values]]:
    """`lines` and `crowded` of `Touched` from the extents touched, [levels, dimensions, n]."""
    if spreads.shape[1] == 0:
        lines = np.full((len(spreads), spreads.shape[2]), float(line))
        return lines, [lines for _ in caches]
    row = np.minimum(strides[-2] * itemsize, line) if len(strides) > 1 else float(line)
    first = np.maximum(spreads[:, -1] * itemsize, row)
    outer = [d for d in range(spreads.shape[1] - 1) if (spreads[-1, d] > 1).any()]
    lines = first.copy()
    for d in outer:
        lines *= spreads[:, d]
    crowded = []
    for cache in caches:
        way = max(1, cache // WAYS)
        cover = np.minimum(first, way)
        for d in outer:
            cover *= np.minimum(spreads[:, d], _places(strides[d] * itemsize, way))
            np.minimum(cover, way, out=cover)
        deep = lines / cover  # lines in the fullest sets
        crowded.append(np.where(deep > WAYS, deep * way, lines))
    return lines, crowded


def _places(stride: Values | float, way: int) -> Values | float:
    """How many places of a way of a cache multiples of a stride (both in bytes) fall on."""
    if isinstance(stride, float):
        return way / math.gcd(int(stride), way)
    size = stride.astype(np.int64)
    # a remainder is a division; caches whose ways are powers of two need none
    rest = size & (way - 1) if way & (way - 1) == 0 else size % way
    return _places_by_rest(way).take(rest)


@lru_cache(maxsize=16)
def _places_by_rest(way: int) -> Values:
    """float64[way]: way / gcd(rest, way)."""
    return np.asarray(way / np.gcd(np.arange(way), way), dtype=np.float64)
