"""Comparison of an output with the reference, element by element.

In: the reference output, made once per task, and a candidate's output. Out: a `Deviation`: the
largest error and the first wrong element. A float x is right if |x - ref| <= tolerance * max(|ref|,
rms(ref)): the rounding errors of a sum grow with its terms, not with its value, since terms may
cancel. NaN and infinities must have the same places as in the reference; integers and booleans must
be equal, but for a few of 8 or 16 bits. Of bfloat16 a few may be rounded to the other neighbour.
"""

import math
from dataclasses import dataclass

import numpy as np

from ansorlite.calls import Array
from ansorlite.ir.packed import float_of

SAFETY = 32.0  # factor of `default_tolerance`
# Of the elements of a quantised output, so many may differ by one step: sums of floats, added up in
# another order, round to the other neighbour where they lie halfway between two.
MOST_ROUNDED = 0.01
BF16_STEP = 2.0**-7  # the largest distance of two neighbours of bfloat16, relative to the number
PART = 1 << 14  # elements compared at a time, so that all arrays stay in the caches


def default_tolerance(dtype: str, reduction_length: int) -> float:
    """Relative tolerance for a sum of `reduction_length` products: 32 eps sqrt(length); integers 0.

    The rounding error of n additions of random terms, relative to the rms of the sums, is typically
    0.3 eps sqrt(n), and below 2 eps sqrt(n) for all of millions of outputs.
    """
    if not np.issubdtype(np.dtype(dtype), np.floating):
        return 0.0
    return SAFETY * float(np.finfo(dtype).eps) * math.sqrt(max(reduction_length, 1))


@dataclass(frozen=True)
class Deviation:
    """The deviation of an output from its reference; the first wrong element if `n_wrong` > 0.

    `max_error` is the largest |x - ref| / max(|ref|, rms(ref)), for integers the largest
    |x - ref|; infinite where one is NaN or infinite and the other is not. `index` is the place of
    the first wrong element, `got` and `expected` are its values as text.
    """

    max_error: float = 0.0
    n_wrong: int = 0
    index: tuple[int, ...] = ()
    got: str = ""
    expected: str = ""


class Expected:
    """The reference for one output, prepared for many comparisons.

    `tolerance` is relative and used for floats only. `weight` is 1 / (largest tolerated deviation)
    per element, so that a comparison is four passes over parts that fit into the caches.
    """

    def __init__(self, reference: Array, tolerance: float) -> None:
        self.reference, self.tolerance = reference, tolerance
        self.is_float = reference.dtype.kind == "f"
        if self.is_float:
            size = np.where(np.isfinite(reference), np.abs(reference), 0)
            count = max(int(np.isfinite(reference).sum()), 1)
            rms = math.sqrt(float(np.sum(np.square(size, dtype=np.float64))) / count)
            limit = tolerance * np.maximum(size, rms or 1.0)
            # at least the smallest normal number, so that the inverse is finite
            limit = np.maximum(limit, np.finfo(reference.dtype).tiny)
            self.weight: Array = (1 / limit).astype(reference.dtype)

    @property
    def nbytes(self) -> int:
        return self.reference.nbytes * (2 if self.is_float else 1)

    def compare(self, actual: Array) -> Deviation:
        """The deviation of `actual` (same shape and dtype as the reference)."""
        return self._compared(actual)

    def _compared(self, actual: Array) -> Deviation:
        if not self.is_float:
            # Compared as bytes: a bool byte of a wrong kernel may be neither 0 nor 1, and numpy
            # would take it for True.
            wrong = np.asarray(_raw(actual) != _raw(self.reference))
            if not wrong.any():
                return Deviation()
            distance = np.abs(actual.astype(np.float64) - self.reference.astype(np.float64))
            if actual.dtype.itemsize <= 2 and actual.dtype.kind in "iu":
                few = int(wrong.sum()) <= max(1, actual.size * MOST_ROUNDED)
                if few and float(distance.max()) <= 1.0:
                    return Deviation(1.0)
            return self._deviation(actual, wrong, float(distance.max()))
        with np.errstate(all="ignore"):
            worst = self._worst(actual)
            if worst <= 1.0:
                return Deviation(worst * self.tolerance)
            scaled = np.asarray(np.abs(actual - self.reference) * self.weight)
            same = (actual == self.reference) | (np.isnan(actual) & np.isnan(self.reference))
            scaled[same] = 0.0
            wrong = ~(scaled <= 1.0)
            worst = float(np.where(np.isnan(scaled), np.inf, scaled).max(initial=0.0))
        return self._deviation(actual, wrong, worst * self.tolerance)

    def _worst(self, actual: Array) -> float:
        """The largest deviation as a multiple of the tolerated one; NaN if an element gives NaN.

        In parts that fit into the caches: otherwise an output of 50 MB would be read from memory
        four times. Stops at the first part with a wrong element.
        """
        arrays = [x.reshape(-1) for x in (actual, self.reference, self.weight)]
        worst, scratch = 0.0, np.empty(min(PART, actual.size), actual.dtype)
        for first in range(0, actual.size, PART):
            x, reference, weight = (a[first : first + PART] for a in arrays)
            part = scratch[: len(x)]
            np.subtract(x, reference, out=part)
            np.abs(part, out=part)
            part *= weight
            largest = float(part.max())
            if not largest <= 1.0:
                return largest
            worst = max(worst, largest)
        return worst

    def _deviation(self, actual: Array, wrong: Array, max_error: float) -> Deviation:
        if not wrong.any():
            return Deviation(max_error)
        first = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        got, expected = str(actual[first]), str(self.reference[first])
        return Deviation(max_error, int(wrong.sum()), first, got, expected)


class ExpectedBfloat16(Expected):
    """The reference of an output that holds the bits of bfloat16, compared as the numbers.

    Sums that differ within the tolerance may be rounded to neighbours: a few elements may differ by
    a step beside the tolerance.
    """

    def __init__(self, reference: Array, tolerance: float) -> None:
        super().__init__(float_of(reference).reshape(reference.shape), tolerance)

    def compare(self, actual: Array) -> Deviation:
        numbers = float_of(actual).reshape(actual.shape)
        found = self._compared(numbers)
        if not 0 < found.n_wrong <= max(1, actual.size * MOST_ROUNDED):
            return found
        with np.errstate(all="ignore"):
            step = BF16_STEP * np.maximum(np.abs(numbers), np.abs(self.reference))
            near = np.abs(numbers - self.reference) <= step + 1 / self.weight
            same = (numbers == self.reference) | (np.isnan(numbers) & np.isnan(self.reference))
        return Deviation(found.max_error) if (near | same).all() else found


def describe(
    name: str, deviation: Deviation, expected: Expected, index: tuple[int, ...] | None = None
) -> str:
    """The first wrong element in words; `index` is its place, where only samples are compared."""
    place = ", ".join(map(str, deviation.index if index is None else index))
    within = f" within a relative {expected.tolerance:.2g}" if expected.is_float else ""
    return (
        f"{name}[{place}] is {deviation.got}, expected {deviation.expected}{within};"
        f" {deviation.n_wrong} of {expected.reference.size} elements are wrong"
    )


def _raw(x: Array) -> Array:
    return x.view(np.uint8) if x.dtype.kind == "b" else x


def relative_error(got: Array, want: Array) -> float:
    """The greatest difference, in units of the greatest element of the reference."""
    wide = np.asarray(want, np.float64)
    scale = float(np.abs(wide).max()) or 1.0
    return float(np.abs(np.asarray(got, np.float64) - wide).max()) / scale
