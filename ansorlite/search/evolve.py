"""Moves on populations: tile neighbours, mutation, crossover by DAG node.

Everything works on int32[P, holes] matrices of option indices with tables made once per hole; no
Python object is made per candidate (paper section 5.1; TVM has no crossover).
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ansorlite.schedule.holes import Hole

Rows = npt.NDArray[np.int32]
MAX_NEIGHBOURS = 32
BESIDE = (-2, -1, 1, 2)  # steps in the sorted list of register factors
VECTORS = (-16, -8, 8, 16)  # elements of an AVX2 or AVX-512 vector, added to a register factor
REDRAW = 0.25  # share of tile mutations that draw any option
KIND_WEIGHTS = {
    "tile": 1.0,
    "factor": 0.8,
    "parallel": 0.3,
    "lanes": 0.3,
    "unroll": 0.4,
    "prefetch": 0.2,
    "stream": 0.2,
}


class Neighbours:
    """int32[n_options, MAX_NEIGHBOURS]: options one move away, repeated to fill each line.

    A move multiplies or divides one level by a small factor (the outermost level takes up the
    rest), shifts a factor between two levels, or changes the register factor by a little or by a
    vector, where the other levels stay as near to what they were as their options allow. Lines are
    made when they are asked for: a short search asks for few of thousands.
    """

    def __init__(self, options: tuple[tuple[int, ...], ...]) -> None:
        self._options = options
        self._where = {o: k for k, o in enumerate(options)}
        self._table = np.empty((len(options), MAX_NEIGHBOURS), dtype=np.int32)
        self._made = np.zeros(len(options), np.bool_)
        # [n_options, levels]; outer levels by their logarithm
        values = np.asarray(options, dtype=np.int64).reshape(len(options), -1)
        self._last, self._outer = values[:, -1], np.log2(values[:, :-1])

    def of(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """int32[len(rows), MAX_NEIGHBOURS] of options by their numbers."""
        missing = np.unique(rows[~self._made[rows]])
        if len(missing):
            for k, resized in zip(missing, self._other_registers(missing), strict=True):
                self._table[k] = self._line(int(k), resized)
            self._made[missing] = True
        return self._table[rows]

    def _line(self, k: int, resized: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        where, o = self._where, self._options[k]
        found: list[int] = []
        width = len(o)
        for a in range(width):
            for p in (2, 3, 5, 7):
                up = (*o[:a], o[a] * p, *o[a + 1 :])
                found.append(where.get(up, -1))
                if o[a] % p == 0:
                    down = (*o[:a], o[a] // p, *o[a + 1 :])
                    found.append(where.get(down, -1))
                    for b in range(width):
                        if b != a:
                            moved = list(down)
                            moved[b] *= p
                            found.append(where.get(tuple(moved), -1))
        near = dict.fromkeys([*resized, *found])
        some = [n for n in near if n >= 0 and n != k][:MAX_NEIGHBOURS]
        return np.resize(np.asarray(some or [k], dtype=np.int32), MAX_NEIGHBOURS)

    def _other_registers(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """int64[rows, moves]: the nearest option of every other register factor nearby, or -1.

        Inexact tiles come in other numbers, whose divisors the outer levels have to be.
        """
        kinds = np.unique(self._last)
        last, outer = self._last[rows], self._outer[rows]
        rank = np.searchsorted(kinds, last)
        wanted = [kinds[np.clip(rank + s, 0, len(kinds) - 1)] for s in BESIDE]  # at an end: its own
        wanted += [last + s for s in VECTORS]
        out = np.full((len(rows), len(wanted)), -1, dtype=np.int64)
        asked = np.unique(np.concatenate(wanted))
        for kind in kinds[np.isin(kinds, asked)]:
            to = np.flatnonzero(self._last == kind)
            for column, factor in enumerate(wanted):
                of = np.flatnonzero((factor == kind) & (last != kind))
                if len(of):
                    distance = np.abs(outer[of, None] - self._outer[None, to]).sum(axis=2)
                    out[of, column] = to[np.argmin(distance, axis=1)]
        return out


@lru_cache(maxsize=512)
def neighbours(options: tuple[tuple[int, ...], ...]) -> Neighbours:
    """The moves between options of a hole."""
    return Neighbours(options)


def mutate(rows: Rows, holes: tuple[Hole, ...], rng: np.random.Generator) -> Rows:
    """A copy with one hole of each row changed, chosen by the weight of its kind."""
    n = len(rows)
    out = rows.copy()
    if n == 0 or not holes:
        return out
    weights = np.asarray([KIND_WEIGHTS[h.kind] * (len(h.options) > 1) for h in holes])
    if weights.sum() == 0:
        return out
    chosen = rng.choice(len(holes), size=n, p=weights / weights.sum())
    redraw = rng.random(n) < REDRAW
    draw = rng.random(n)
    slot = rng.integers(0, MAX_NEIGHBOURS, size=n)
    for k, h in enumerate(holes):
        at = np.flatnonzero(chosen == k)
        if at.size == 0:
            continue
        anywhere = (draw[at] * len(h.options)).astype(np.int32)
        near = neighbours(h.options).of(out[at, k])[np.arange(at.size), slot[at]]
        out[at, k] = np.where(redraw[at], anywhere, near)
    return out


def crossover(
    mothers: Rows, fathers: Rows, holes: tuple[Hole, ...], rng: np.random.Generator
) -> Rows:
    """Children take all holes of a DAG node from one parent (paper section 5.1)."""
    if not holes:
        return mothers.astype(np.int32)
    nodes = list(dict.fromkeys(h.node for h in holes))  # names must not matter
    if len(nodes) == 1:  # one node: mix by axis, so that crossing means something
        nodes = [h.name for h in holes]
        member = np.arange(len(holes))
    else:
        member = np.asarray([nodes.index(h.node) for h in holes])
    side = rng.random((len(mothers), len(nodes))) < 0.5
    return np.where(side[:, member], mothers, fathers).astype(np.int32)
