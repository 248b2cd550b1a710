"""Gaussian process over the fast programs of one task: the order of the fastest programs.

In: `float32[P, F]` program rows and their labels best/this. Out: predicted log2(best/this) for
other programs of the same task. Trees are piecewise constant, with steps larger than the few per
cent by which the fastest programs differ. The kernel encodes that similar programs have similar
latencies; after a hundred programs of a task the process finds as many of the fastest programs as
trees do after hundreds of programs of each of many tasks. The weight of a measurement is a power of
its label, so slow programs have almost no influence, and far from all data the prediction is the
mean of the fast programs. Another model must therefore decide whether a program is fast at all.

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning, sections 2.2 and 5.4.2.
"""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

MIN_LABEL = 0.5  # smallest label; slower programs are dropped
# The fastest programs that are used; training time grows with the cube of their number.
MAX_PROGRAMS = 1000
MIN_PROGRAMS = 8
# Noise variance of log2(best/this) of the fastest program, where the process has variance 1.
NOISE = 1e-3
# Exponents of the label whose power divides the noise variance, tried in order.
LABEL_EXPONENTS = (40.0, 30.0, 20.0, 15.0, 10.0, 5.0)
MIN_WEIGHT_SUM = 8.0  # sum of weights to reach, so that a few fast programs do not decide alone
MIN_WEIGHT = 1e-5  # smallest weight of a program
LENGTH_SCALE = 4.0  # length scale in units of the median distance
BINS = 256  # bins per column


class GaussianProcess:
    """The posterior mean given programs of a task.

    `at` int64[N] are the indices of the programs used; `leave_one_out` float64[N] is the
    leave-one-out prediction of each. Kernel: Matern 3/2 on the ranks of the columns. Raises
    ValueError for fewer than `MIN_PROGRAMS` fast programs, see `has_enough`.
    """

    def __init__(self, rows: Rows, label: Floats) -> None:
        """`rows` float32[P, F] and `label` float64[P] (best/this) of all programs of the task."""
        self.at = _fastest(label)
        if len(self.at) < MIN_PROGRAMS:
            raise ValueError(f"{len(self.at)} fast programs are fewer than {MIN_PROGRAMS}")
        known, share = rows[self.at], label[self.at] / label.max()
        self._view = _Ranks(known)
        self._known = self._view.of(known)
        distance = _distances(self._known, self._known)
        middle = float(np.median(distance))
        self._scale = 3.0**0.5 / (LENGTH_SCALE * middle) if middle > 0.0 else 1.0
        kernel = _matern(distance * self._scale).astype(np.float64)
        weight = np.maximum(share ** _label_exponent(share), MIN_WEIGHT)
        target = np.log2(share)
        self._mean = float(weight @ target / weight.sum())
        inverse = np.linalg.inv(kernel + np.diag(NOISE / weight))
        pull = inverse @ (target - self._mean)
        self.leave_one_out: Floats = target - pull / np.diag(inverse)
        self._pull = pull.astype(np.float32)

    @staticmethod
    def has_enough(label: Floats) -> bool:
        """True if there are enough fast programs for a process."""
        return len(_fastest(label)) >= MIN_PROGRAMS

    def predict(self, rows: Rows) -> Floats:
        """float64[P], log2(best/this), from float32[P, F]."""
        distance = _distances(self._view.of(rows), self._known)
        distance *= np.float32(self._scale)
        found: Floats = self._mean + (_matern(distance) @ self._pull).astype(np.float64)
        return found


class _Ranks:
    """Maps columns to ranks among the known rows, with unit variance; equal columns count once.

    Ranks give every step of a tile factor the same length, whatever the scale of the features. A
    lookup table of `BINS` values per column replaces a binary search, which would dominate the
    time.
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
        """int32[P, columns]: the bin of each value."""
        at = (rows[:, self._columns] - self._low) * self._step
        found: npt.NDArray[np.int32] = np.clip(np.rint(at), 0, BINS - 1).astype(np.int32)
        return found

    def of(self, rows: Rows) -> Rows:
        """float32[P, varying columns] from float32[P, F]."""
        bins = self._bins(rows)
        bins += np.arange(bins.shape[1], dtype=np.int32) * BINS
        found: Rows = self._table.ravel()[bins]
        return found


def _fastest(label: Floats) -> npt.NDArray[np.int64]:
    """Indices of the fast programs, fastest first, at most `MAX_PROGRAMS`."""
    order = np.argsort(-label, kind="stable")[:MAX_PROGRAMS]
    fast: npt.NDArray[np.int64] = order[label[order] >= MIN_LABEL * label.max(initial=0.0)]
    return fast[label[fast] > 0.0]


def _label_exponent(share: Floats) -> float:
    """The first exponent for which the weights of the programs reach the required sum."""
    return next(
        (p for p in LABEL_EXPONENTS if (share**p).sum() >= MIN_WEIGHT_SUM), LABEL_EXPONENTS[-1]
    )


def _distances(a: Rows, b: Rows) -> Rows:
    """Euclidean distances float32[A, B] from float32[A, C] and float32[B, C]."""
    square = np.einsum("ac,ac->a", a, a)[:, None] + np.einsum("bc,bc->b", b, b)
    square -= np.float32(2.0) * (a @ b.T)
    np.maximum(square, np.float32(0.0), out=square)
    found: Rows = np.sqrt(square)
    return found


def _matern(distance: Rows) -> Rows:
    """Matern 3/2 kernel of distances given in length scales times sqrt(3)."""
    found: Rows = np.exp(-distance)
    found *= distance + np.float32(1.0)
    return found
