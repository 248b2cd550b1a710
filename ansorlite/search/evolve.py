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


@lru_cache(maxsize=512)
def neighbours(options: tuple[tuple[int, ...], ...]) -> npt.NDArray[np.int32]:
    """int32[n_options, MAX_NEIGHBOURS]: options one move away, repeated to fill each line.

    A move multiplies or divides one level by a small factor (the outermost level takes up the
    rest), shifts a factor between two levels, or changes the register factor by a little or by a
    vector, where the other levels stay as near to what they were as their options allow.
    """
    where = {o: k for k, o in enumerate(options)}
    table = np.empty((len(options), MAX_NEIGHBOURS), dtype=np.int32)
    resized = _other_registers(options)
    for k, o in enumerate(options):
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
        near = dict.fromkeys([*resized[k], *found])
        some = [n for n in near if n >= 0 and n != k][:MAX_NEIGHBOURS]
        table[k] = np.resize(np.asarray(some or [k], dtype=np.int32), MAX_NEIGHBOURS)
    return table


def _other_registers(options: tuple[tuple[int, ...], ...]) -> npt.NDArray[np.int64]:
    """int64[n_options, moves]: the nearest option of every other register factor nearby, or -1.

    Inexact tiles come in other numbers, whose divisors the outer levels have to be.
    """
    values = np.asarray(options, dtype=np.int64).reshape(len(options), -1)
    last, outer = values[:, -1], np.log2(values[:, :-1])
    kinds, rank = np.unique(last, return_inverse=True)
    wanted = [kinds[np.clip(rank + s, 0, len(kinds) - 1)] for s in BESIDE]  # at an end: its own
    wanted += [last + s for s in VECTORS]
    out = np.full((len(options), len(wanted)), -1, dtype=np.int64)
    for kind in kinds:
        to = np.flatnonzero(last == kind)
        for column, factor in enumerate(wanted):
            of = np.flatnonzero((factor == kind) & (last != kind))
            distance = np.abs(outer[of, None] - outer[None, to]).sum(axis=2)
            out[of, column] = to[np.argmin(distance, axis=1)]
    return out


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
        near = neighbours(h.options)[out[at, k], slot[at]]
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
