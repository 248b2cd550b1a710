"""Moves on populations: tile neighbours, mutation, register tiles of another shape, crossover.

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
PRIMES = (2, 3, 5, 7)  # by which a level changes
REDRAW = 0.25  # share of tile mutations that draw any option
RESHAPED = 0.15  # share of mutants with two other register factors
RATIOS = ((1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2), (3, 4), (4, 3), (1, 4), (4, 1))
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
        self._table = np.empty((len(options), MAX_NEIGHBOURS), dtype=np.int32)
        self._made = np.zeros(len(options), np.bool_)
        # [n_options, levels]; outer levels by their logarithm
        values = np.asarray(options, dtype=np.int64).reshape(len(options), -1)
        self._values = values
        self._last, self._outer = values[:, -1], np.log2(values[:, :-1])
        # Options by register factor, in their order: one factor a line, -1 after the last one.
        self._kinds, own = np.unique(self._last, return_inverse=True)
        counts = np.bincount(own)
        order = np.argsort(own, kind="stable")
        place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._of_kind = np.full((len(counts), counts.max()), -1, dtype=np.int64)
        self._of_kind[own[order], place] = order
        # To find options: the factors of each level, and a number of each option made of them.
        self._factors = [np.unique(column) for column in values.T]
        numbers = self._number(values)[0]
        self._by_number = np.argsort(numbers)
        self._numbers = numbers[self._by_number]

    def of(self, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """int32[len(rows), MAX_NEIGHBOURS] of options by their numbers."""
        missing = np.unique(rows[~self._made[rows]]).astype(np.int64)
        if len(missing):
            near = np.concatenate([self._other_registers(missing), self._moved(missing)], axis=1)
            self._table[missing] = _lines(missing, near)
            self._made[missing] = True
        return self._table[rows]

    def _number(
        self, values: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """(number, do options have such factors?) for int64[n, levels]."""
        number, known = np.zeros(len(values), np.int64), np.ones(len(values), np.bool_)
        for column, factors in zip(values.T, self._factors, strict=True):
            rank = np.minimum(np.searchsorted(factors, column), len(factors) - 1)
            known &= factors[rank] == column
            number = number * len(factors) + rank
        return number, known

    def _find(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64[n]: the options with these factors, int64[n, levels], or -1."""
        number, known = self._number(values)
        at = np.minimum(np.searchsorted(self._numbers, number), len(self._numbers) - 1)
        found: npt.NDArray[np.int64] = np.where(
            known & (self._numbers[at] == number), self._by_number[at], -1
        )
        return found

    def _moved(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64[rows, moves]: one level times or through a prime, or it goes to another; or -1."""
        values = self._values[rows]
        width = values.shape[1]
        moved, whole = [], []
        for a in range(width):
            for p in PRIMES:
                up = values.copy()
                up[:, a] *= p
                down = values.copy()
                down[:, a] //= p
                divides = values[:, a] % p == 0
                moved += [up, down]
                whole += [np.ones(len(rows), np.bool_), divides]
                for b in range(width):
                    if b != a:
                        to = down.copy()
                        to[:, b] *= p
                        moved.append(to)
                        whole.append(divides)
        found = self._find(np.stack(moved, axis=1).reshape(-1, width))
        out: npt.NDArray[np.int64] = np.where(
            np.stack(whole, axis=1), found.reshape(len(rows), -1), -1
        )
        return out

    def _other_registers(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64[rows, moves]: the nearest option of every other register factor nearby, or -1.

        Inexact tiles come in other numbers, whose divisors the outer levels have to be.
        """
        kinds, last = self._kinds, self._last[rows]
        rank = np.searchsorted(kinds, last)
        wanted = [kinds[np.clip(rank + s, 0, len(kinds) - 1)] for s in BESIDE]  # at an end: its own
        wanted += [last + s for s in VECTORS]
        return self.reaching(rows, np.stack(wanted, axis=1))

    def reaching(
        self, rows: npt.NDArray[np.int64], factor: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """int64[rows, moves]: the nearest option with each of these register factors; -1 where
        there is none, or where it is the option's own factor.
        """
        kinds, last = self._kinds, self._last[rows]
        kind = np.minimum(np.searchsorted(kinds, factor), len(kinds) - 1)
        at, move = np.nonzero((kinds[kind] == factor) & (factor != last[:, None]))
        to = self._of_kind[kind[at, move]]  # [pairs, options of a kind]
        outer = self._outer[rows]
        distance = np.abs(outer[at][:, None] - self._outer[to]).sum(axis=2)
        distance[to < 0] = np.inf
        out = np.full(factor.shape, -1, dtype=np.int64)
        out[at, move] = to[np.arange(len(at)), np.argmin(distance, axis=1)]
        return out


def _lines(rows: npt.NDArray[np.int64], near: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The first `MAX_NEIGHBOURS` of int64[rows, moves] that are options, each once, repeated.

    An option without another is its own neighbour.
    """
    again = np.tril(near[:, :, None] == near[:, None, :], -1).any(axis=2)
    some = (near >= 0) & (near != rows[:, None]) & ~again
    order = np.argsort(~some, axis=1, kind="stable")
    count = np.minimum(some.sum(axis=1), MAX_NEIGHBOURS)
    place = np.arange(MAX_NEIGHBOURS) % np.maximum(count, 1)[:, None]
    found = np.take_along_axis(near, np.take_along_axis(order, place, axis=1), axis=1)
    return np.where(count[:, None] > 0, found, rows[:, None]).astype(np.int32)


@lru_cache(maxsize=512)
def neighbours(options: tuple[tuple[int, ...], ...]) -> Neighbours:
    """The moves between options of a hole."""
    return Neighbours(options)


def mutate(rows: Rows, holes: tuple[Hole, ...], rng: np.random.Generator) -> Rows:
    """A copy with one hole of each row changed, chosen by the weight of its kind.

    Of some rows (`RESHAPED`) it is the shape of a register tile, where there is one.
    """
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
    other = rng.random(n) < RESHAPED
    out[other] = reshape(rows[other], out[other], holes, rng)
    return out


def reshape(rows: Rows, otherwise: Rows, holes: tuple[Hole, ...], rng: np.random.Generator) -> Rows:
    """A copy of each row with two register factors of a node changed, their product little.

    Either factor alone leads through tiles that are half as large or do not fit the registers. Rows
    without such a change become what is given `otherwise`.
    """
    out = otherwise.copy()
    by_node: dict[str, list[int]] = {}
    for k, h in enumerate(holes):
        if h.kind == "tile" and h.width > 1 and len(h.options) > 1:
            by_node.setdefault(h.node, []).append(k)
    pairs = [(a, b) for ks in by_node.values() for a in ks for b in ks if a != b]
    if not pairs or not len(rows):
        return out
    pair = rng.integers(len(pairs), size=len(rows))
    ratio = np.asarray(RATIOS)[rng.integers(len(RATIOS), size=len(rows))]
    beside = rng.integers(-1, 2, size=len(rows))
    for k, ends in enumerate(pairs):
        at = np.flatnonzero(pair == k)
        if at.size == 0:
            continue
        own = [rows[at, hole].astype(np.int64) for hole in ends]
        first, second = (holes[hole].table[o, -1] for hole, o in zip(ends, own, strict=True))
        p, q = ratio[at].T
        wanted = (
            np.where(first * p % q == 0, first * p // q, 0),  # 0: no option has it
            second * q // p + beside[at],
        )
        changed = [
            neighbours(holes[hole].options).reaching(o, w[:, None])[:, 0]
            for hole, o, w in zip(ends, own, wanted, strict=True)
        ]
        found = (changed[0] >= 0) & (changed[1] >= 0)
        out[at[found]] = rows[at[found]]
        for hole, to in zip(ends, changed, strict=True):
            out[at[found], hole] = to[found]
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
