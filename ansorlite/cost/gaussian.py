"""A Gaussian process over the fast programs of one task: which of them are the fastest.

In: `float32[P, F]` rows of programs and their best/this. Out: log2 of best/this of other programs
of the same task. Trees cut the space into boxes and average over each; what differs between the
fastest programs, a few per cent, is smaller than their steps. Programs that differ little run
alike, which a kernel knows from the start: after a hundred programs of a task it finds as many of
the fastest as trees do after hundreds of each of many tasks. A measurement counts by a power of its
label, so slow programs say next to nothing, and far from all that is known the answer is the
average of the fast: whether a program is fast at all has to be asked of another model.
Method: Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.2 and 5.4.2.
"""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

LEAST = 0.5  # of best/this: what is slower is left out
MOST = 1000  # programs, the fastest: the time to learn grows with their cube
MIN_PROGRAMS = 8
NOISE = 1e-3  # variance of log2 of the fastest one's speed, where that of the process is 1
POWERS = (40.0, 30.0, 20.0, 15.0, 10.0, 5.0)  # of the label, which the variance is divided by:
ENOUGH = 8.0  # the first for which powers sum to this, so that a few fast programs are not alone
LEAST_WEIGHT = 1e-5  # power of a label that counts as little as any
REACH = 4.0  # length scale, in median distances
BINS = 256  # of the range of a column


class GaussianProcess:
    """The posterior mean given programs of a task; `at` int64[N] are those it learned from.

    `left_out` float64[N] is what it would say of each of these if it had not learned from it.
    Kernel: Matern 3/2 on the ranks of the columns. Raises ValueError for fewer than `MIN_PROGRAMS`
    fast programs, see `enough`.
    """

    def __init__(self, rows: Rows, label: Floats) -> None:
        """`rows` float32[P, F] and `label` float64[P], best/this, of all programs of the task."""
        self.at = _fast(label)
        if len(self.at) < MIN_PROGRAMS:
            raise ValueError(f"{len(self.at)} fast programs are fewer than {MIN_PROGRAMS}")
        known, share = rows[self.at], label[self.at] / label.max()
        self._view = _Ranks(known)
        self._known = self._view.of(known)
        distance = _distances(self._known, self._known)
        middle = float(np.median(distance))
        self._scale = 3.0**0.5 / (REACH * middle) if middle > 0.0 else 1.0
        kernel = _matern(distance * self._scale).astype(np.float64)
        weight = np.maximum(share ** _power(share), LEAST_WEIGHT)
        wanted = np.log2(share)
        self._mean = float(weight @ wanted / weight.sum())
        inverse = np.linalg.inv(kernel + np.diag(NOISE / weight))
        pull = inverse @ (wanted - self._mean)
        self.left_out: Floats = wanted - pull / np.diag(inverse)
        self._pull = pull.astype(np.float32)

    @staticmethod
    def enough(label: Floats) -> bool:
        """Whether so many programs are fast that there can be a process of them."""
        return len(_fast(label)) >= MIN_PROGRAMS

    def predict(self, rows: Rows) -> Floats:
        """float64[P], log2 of best/this, from float32[P, F]."""
        distance = _distances(self._view.of(rows), self._known)
        distance *= np.float32(self._scale)
        found: Floats = self._mean + (_matern(distance) @ self._pull).astype(np.float64)
        return found


class _Ranks:
    """Columns as shares of the known rows below, of unit variance; equal columns count once.

    Ranks give every step of a tile the same length, however the features it moves are scaled. A
    table of `BINS` values a column stands in for a search, which would take most of the time.
    """

    def __init__(self, known: Rows) -> None:
        low, high = known.min(axis=0), known.max(axis=0)
        varied = np.flatnonzero(low < high)
        _, first = np.unique(known[:, varied], axis=1, return_index=True)
        self._columns = varied[np.sort(first)]
        self._low = low[self._columns]
        self._step = (BINS - 1) / np.maximum(high[self._columns] - self._low, 1e-30)
        bins = self._bins(known)
        n, width = bins.shape
        count = np.zeros((width, BINS))
        np.add.at(count, (np.arange(width), bins), 1.0)
        rank = (count.cumsum(axis=1) - count / 2) / n
        own = np.take_along_axis(rank.T, bins, axis=0)
        spread = np.maximum(own.std(axis=0), 1e-9)
        self._table = ((rank - own.mean(axis=0)[:, None]) / spread[:, None]).astype(np.float32)

    def _bins(self, rows: Rows) -> npt.NDArray[np.int32]:
        at = (rows[:, self._columns] - self._low) * self._step
        found: npt.NDArray[np.int32] = np.clip(np.rint(at), 0, BINS - 1).astype(np.int32)
        return found

    def of(self, rows: Rows) -> Rows:
        """float32[P, columns that vary] from float32[P, F]."""
        bins = self._bins(rows)
        bins += np.arange(bins.shape[1], dtype=np.int32) * BINS
        found: Rows = self._table.ravel()[bins]
        return found


def _fast(label: Floats) -> npt.NDArray[np.int64]:
    """The `MOST` fastest programs of those that are fast, fastest first."""
    order = np.argsort(-label, kind="stable")[:MOST]
    fast: npt.NDArray[np.int64] = order[label[order] >= LEAST * label.max(initial=0.0)]
    return fast[label[fast] > 0.0]


def _power(share: Floats) -> float:
    return next((p for p in POWERS if (share**p).sum() >= ENOUGH), POWERS[-1])


def _distances(a: Rows, b: Rows) -> Rows:
    """Euclidean, float32[A, B] from float32[A, C] and float32[B, C]."""
    square = np.einsum("ac,ac->a", a, a)[:, None] + np.einsum("bc,bc->b", b, b)
    square -= np.float32(2.0) * (a @ b.T)
    np.maximum(square, np.float32(0.0), out=square)
    found: Rows = np.sqrt(square)
    return found


def _matern(distance: Rows) -> Rows:
    """Matern 3/2 of distances in length scales, times the square root of 3."""
    found: Rows = np.exp(-distance)
    found *= distance + np.float32(1.0)
    return found
