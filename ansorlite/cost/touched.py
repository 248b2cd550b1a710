"""Which memory a statement touches, for a whole population at once: the ground of the features.

In: a store with its loops, and hole columns as int64[P]. Out: `Touched` per buffer: elements
touched inside of each loop level, strides and contiguous runs, as float64[P]. Index coefficients
are taken from the program once (`Access`), their values evaluated per population (`Batch`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Expr
from ansorlite.ir.program import Buffer, For, Store
from ansorlite.ir.ranges import Evaluator, coefficient
from ansorlite.ir.traverse import loads

Values = npt.NDArray[np.float64]


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
            known = self._memo[e] = np.broadcast_to(value, (self.n,))
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


def log(x: Any) -> Values:
    return np.asarray(np.log2(1.0 + np.maximum(x, 0.0)))


@dataclass
class Touched:
    """One buffer under one statement: elements touched inside of each loop level.

    `inner[l]`: elements touched by loops l and deeper (l = number of loops: one execution);
    `moves[l]`: bool[n], loop l changes the address; `steps[l]`: by how many elements, 0 if it does
    not run; `stride`: elements between neighbours in the innermost loop that runs; `run`:
    contiguous elements in the innermost dimension.
    """

    buffer: Buffer
    writes: bool
    reads: bool
    inner: list[Values]
    moves: list[Any]
    steps: list[Any]
    stride: Values
    run: Values
    itemsize: int


def touch(access: Access, ev: Batch, extents: list[Values]) -> Touched:
    buffer = access.buffer
    shape = [ev(e) for e in buffer.shape]
    rank, depth = len(shape), len(extents)
    ones = np.ones(ev.n)
    strides: list[Values] = [ones] * rank
    for d in range(rank - 2, -1, -1):
        strides[d] = strides[d + 1] * shape[d + 1]
    spread = [ones] * rank  # extent touched per dimension
    inner: list[Values] = [ones] * (depth + 1)
    moves: list[Any] = [np.zeros(ev.n, dtype=bool)] * depth
    steps: list[Any] = [np.zeros(ev.n)] * depth
    stride, found = np.zeros(ev.n), np.zeros(ev.n, dtype=bool)
    for level in range(depth - 1, -1, -1):
        runs = extents[level] > 1
        step: Any = 0.0
        moving: Any = moves[level]
        for d, coefs in access.moves[level]:
            if not coefs:
                spread[d] = np.where(runs, shape[d], spread[d])
                step, moving = np.where(runs, strides[d], step), moving | runs
                continue
            size = np.abs(ev(coefs[0]))
            for c in coefs[1:]:
                size = np.maximum(size, np.abs(ev(c)))
            grown = spread[d] + size * (extents[level] - 1)
            spread[d] = np.minimum(grown, np.maximum(shape[d], 1.0))
            step, moving = step + size * strides[d], moving | (runs & (size > 0))
        moves[level], steps[level] = moving, np.where(runs, step, 0.0)
        stride = np.where(runs & ~found, step, stride)
        found = found | runs
        if access.moves[level]:
            total = ones
            for s in spread:
                total = total * s
            inner[level] = total
        else:
            inner[level] = inner[level + 1]
    run = spread[-1] if rank else ones
    size_bytes = np.dtype(buffer.dtype).itemsize
    return Touched(
        buffer, access.writes, access.reads, inner, moves, steps, stride, run, size_bytes
    )
