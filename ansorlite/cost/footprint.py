"""Which memory a statement touches, for a whole population at once: the ground of the features.

In: a store with its loops, and hole columns as int64[P]. Out: `Touched` per buffer: elements
touched inside of each loop level, strides and contiguous runs, as float64[P]. Index coefficients
are taken from the program once (`Access`), their values evaluated per population (`Batch`).
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

    @cached_property
    def moving(self) -> list[int]:
        """The levels whose loops change the address, innermost first."""
        return [k for k in reversed(range(len(self.moves))) if self.moves[k]]

    @cached_property
    def moving_inside(self) -> npt.NDArray[np.intp]:
        """How many of these there are inside of each level, which [levels + 1] are."""
        each = [bool(found) for found in self.moves]
        return np.array([sum(each[k:]) for k in range(len(each) + 1)], dtype=np.intp)

    @cached_property
    def dims(self) -> list[int]:
        """The dimensions in which it changes."""
        return sorted({d for found in self.moves for d, _ in found})


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
    buffer, n = access.buffer, ev.n
    shape = [float(e.value) if isinstance(e, Const) else ev(e) for e in buffer.shape]
    rank = len(shape)
    strides: list[Values | float] = [1.0] * rank
    for d in range(rank - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    most = [np.maximum(shape[d], 1.0) for d in range(rank)]
    size_bytes = np.dtype(buffer.dtype).itemsize
    # What follows has a place a loop that changes the address, and is spread over the levels last.
    moving, inside = access.moving, access.moving_inside
    runs, trips, moved = levels.runs[moving], levels.steps[moving], levels.runs[moving]
    spreads = np.ones((len(moving) + 1, rank, n))  # extents touched, by dimension
    step = np.zeros((len(moving), n))
    for j, level in enumerate(moving):
        np.copyto(spreads[j + 1], spreads[j])
        known, may = False, np.zeros(n, dtype=bool)  # is it certain to move the address?
        for d, coefs in access.moves[level]:
            own = spreads[j + 1, d]
            if not coefs:
                np.copyto(own, shape[d], where=runs[j])
                np.copyto(step[j], strides[d], where=runs[j])
                known = True
                continue
            size = _size(coefs, ev)
            own += size * trips[j]
            np.minimum(own, most[d], out=own)
            step[j] += size * strides[d]
            if isinstance(size, float):
                known = known or size > 0
            else:
                may |= size > 0
        if not known:
            moved[j] &= may
    step *= runs
    stride = np.einsum("ln,ln->n", step, levels.innermost[moving])
    moves, steps = np.zeros(levels.runs.shape, dtype=bool), np.zeros(levels.runs.shape)
    moves[moving], steps[moving] = moved, step
    inner = np.ones((len(spreads), n))
    for d in access.dims:
        inner *= spreads[:, d]
    around = np.zeros((len(moving) + 1, n), dtype=np.int8)  # outermost first
    for k, level in enumerate(reversed(moving)):
        np.copyto(around[k + 1], around[k])
        np.copyto(around[k + 1], level + 1, where=moves[level])
    lines, crowded = _lines(spreads, strides, size_bytes, line, caches)
    return Touched(
        buffer,
        access.writes,
        access.reads,
        inner[inside],
        moves,
        around[len(moving) - inside],
        steps,
        stride,
        spreads[-1, -1] if rank else np.ones(n),
        size_bytes,
        lines[inside],
        tuple(c[inside] for c in crowded),
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
