"""Choosing rows of a population: de-duplication, parents for evolution.

Flow: `search` policies call these between scoring and building. A population is `int32[P, H]`:
one candidate a row, one hole a column, values are indices into the holes' option tables. Scores
are `float[P]`, higher is better; NaN and -inf mark rows that must not be chosen. Results are
row indices, `int64`, so that the caller can index population, scores and features alike. All
randomness comes from the `rng` argument.
"""

import numpy as np
import numpy.typing as npt

Population = npt.NDArray[np.int32]
Scores = npt.NDArray[np.floating]
Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NONE: Indices = np.empty(0, np.int64)


def unique_rows(pop: Population) -> Indices:
    """Return the index of the first occurrence of every distinct row, ascending.

    Rows are compared by a 64-bit hash, and by value where hashes agree, so the answer is exact.
    """
    if len(pop) == 0:
        return _NONE
    _, first, group = np.unique(_row_hashes(pop), return_index=True, return_inverse=True)
    if not np.array_equal(pop, pop[first[group]]):  # two distinct rows share a hash
        _, first = np.unique(pop, axis=0, return_index=True)
    return np.sort(first).astype(np.int64)


def rows_in(pop: Population, other: Population) -> Mask:
    """Return bool[P]: which rows of `pop` also stand in `other` (int32[Q, H]), exactly."""
    if len(pop) == 0 or len(other) == 0:
        return np.zeros(len(pop), np.bool_)
    if pop.shape[1] != other.shape[1]:
        raise ValueError(f"rows have {pop.shape[1]} holes here and {other.shape[1]} there")
    hashes = _row_hashes(other)
    order = np.argsort(hashes, kind="stable")
    wanted = _row_hashes(pop)
    place = np.minimum(np.searchsorted(hashes[order], wanted), len(other) - 1)
    same_hash = hashes[order[place]] == wanted
    same_row: Mask = (pop == other[order[place]]).all(axis=1)
    if np.array_equal(same_hash, same_row):
        return same_row
    known = {row.tobytes() for row in np.ascontiguousarray(other, np.int32)}
    return np.array([row.tobytes() in known for row in np.ascontiguousarray(pop, np.int32)])


def equals_before(pop: Population) -> Indices:
    """Return int64[P]: how many rows before each row are equal to it, by a 64-bit hash."""
    _, group = np.unique(_row_hashes(pop), return_inverse=True)
    order = np.argsort(group, kind="stable")
    counts = np.bincount(group)
    first = np.cumsum(counts) - counts
    before = np.empty(len(pop), np.int64)
    before[order] = np.arange(len(pop)) - np.repeat(first, counts)
    return before


def roulette(scores: Scores, n: int, rng: np.random.Generator) -> Indices:
    """Draw `n` rows with replacement, with probability proportional to max(score, 0).

    Where no score is positive every finite row is as likely as any other; where none is finite
    the result is empty.
    """
    weight = np.where(np.isfinite(scores), np.maximum(scores, 0.0), 0.0).astype(np.float64)
    if not weight.any():
        weight = np.isfinite(scores).astype(np.float64)
    if n <= 0 or not weight.any():
        return _NONE
    bounds = np.cumsum(weight / weight.max())
    drawn = np.searchsorted(bounds, rng.random(n) * bounds[-1], side="right")
    # Rounding may put a draw on the last bound: the last row that can be drawn takes it.
    rows: Indices = np.minimum(drawn, np.flatnonzero(weight)[-1]).astype(np.int64)
    return rows


def _row_hashes(pop: Population) -> npt.NDArray[np.uint64]:
    """Return uint64[P]: equal for equal rows, and hardly ever equal for others."""
    hashes = np.full(len(pop), 0x9E3779B97F4A7C15, np.uint64)
    for column in range(pop.shape[1]):
        hashes ^= pop[:, column].astype(np.uint64)
        hashes *= np.uint64(0xFF51AFD7ED558CCD)
        hashes ^= hashes >> np.uint64(32)
    return hashes
