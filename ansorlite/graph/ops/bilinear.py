"""Fast algorithms for sums of products along one axis of a convolution (Winograd, Toom-Cook).

y = inverse ((weight g) * (data d)): a tile of results from the elements `d` of a line of data and
the taps `g` of a kernel, with fewer products than as written. Matrices are exact fractions, made
from interpolation points; algorithms for strides, phases and long kernels are joined from those of
parts. Over several axes the algorithms nest: products and `gain` multiply.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from ansorlite.errors import ModelError

Matrix = tuple[tuple[float, ...], ...]
Exact = tuple[tuple[Fraction, ...], ...]
_PAIRS = ((1, 1), (2, 1), (1, 2), (3, 2), (2, 3))  # of each point its negative, too
POINTS = (
    Fraction(0),
    *(s * Fraction(*p) for p in _PAIRS for s in (1, -1)),
)


@dataclass(frozen=True)
class Algorithm:
    """Products along one axis: `data` [n, span], `weight` [n, taps], `inverse` [results, n].

    The tile of number t reads the elements from `start + step * t` on.
    """

    data: Exact
    weight: Exact
    inverse: Exact
    step: int
    start: int = 0

    @property
    def products(self) -> int:
        return len(self.data)

    @property
    def results(self) -> int:
        return len(self.inverse)

    @property
    def span(self) -> int:
        """Elements of data that a tile reads."""
        return len(self.data[0])

    @property
    def taps(self) -> int:
        return len(self.weight[0])

    @cached_property
    def gain(self) -> float:
        """How much larger errors of transformed data become in results, at most over the tile.

        Relative errors, independent and of mean 0; those of the plain algorithm stay as they are.
        """
        data, weight, inverse = (np.array(floats(m)) for m in self.matrices)
        errors = inverse**2 @ ((data**2).sum(1) * (weight**2).sum(1))
        terms = np.einsum("ik,kj,kl->ijl", inverse, weight, data) ** 2
        return float(np.sqrt(np.max(errors / terms.sum((1, 2)))))

    @property
    def matrices(self) -> tuple[Exact, Exact, Exact]:
        return self.data, self.weight, self.inverse


def floats(matrix: Exact) -> Matrix:
    return tuple(tuple(float(v) for v in row) for row in matrix)


def _product(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, lowest power first."""
    out = [Fraction(1)]
    for root in roots:
        up = [Fraction(0), *out]
        out = [u - root * c for u, c in zip(up, [*out, Fraction(0)], strict=True)]
    return out


@lru_cache(maxsize=64)
def correlation(m: int, r: int) -> Algorithm:
    """F(m, r): m results of r taps by m + r - 1 products (Toom-Cook); of one tap as written.

    Raises ModelError where there are not enough points.
    """
    n = m + r - 1
    if m < 1 or r < 1 or n - 1 > len(POINTS):
        raise ModelError(f"F({m}, {r}) needs {n - 1} points: at most {len(POINTS)} are known")
    if r == 1 or m == 1:
        unit = tuple(tuple(Fraction(int(i == j)) for j in range(n)) for i in range(n))
        ones = ((Fraction(1),) * n,)
        column = tuple(zip(*ones, strict=True))
        return Algorithm(unit, column if r == 1 else unit, unit if r == 1 else ones, m)
    points = POINTS[: n - 1]
    data, weight = list[tuple[Fraction, ...]](), list[tuple[Fraction, ...]]()
    for i, at in enumerate(points):
        others = [p for k, p in enumerate(points) if k != i]
        scale = Fraction(math.prod(at - p for p in others))
        sign = -1 if scale < 0 else 1  # so that results are not subtracted without need
        data.append((*(sign * c for c in _product(others)), Fraction(0)))
        weight.append(tuple(sign * at**j / scale for j in range(r)))
    data.append(tuple(_product(points)))
    weight.append(tuple(Fraction(int(j == r - 1)) for j in range(r)))
    inverse = tuple((*(at**i for at in points), Fraction(int(i == m - 1))) for i in range(m))
    return Algorithm(tuple(data), tuple(weight), inverse, step=m)


@dataclass(frozen=True)
class Part:
    """An algorithm whose taps, data and results are some of those of a larger one."""

    algorithm: Algorithm
    taps: Sequence[int]
    data: Sequence[int]
    results: Sequence[int]


def joined(parts: Iterable[Part], taps: int, step: int, start: int = 0) -> Algorithm:
    """The sum of parts: their products side by side; `start` is the place of data element 0."""
    own = list(parts)
    span = 1 + max(max(p.data) for p in own)
    results = 1 + max(max(p.results) for p in own)
    data, weight = list[tuple[Fraction, ...]](), list[tuple[Fraction, ...]]()
    columns = list[tuple[Fraction, ...]]()
    for p in own:
        data += [_spread(row, p.data, span) for row in p.algorithm.data]
        weight += [_spread(row, p.taps, taps) for row in p.algorithm.weight]
        turned = zip(*p.algorithm.inverse, strict=True)
        columns += [_spread(column, p.results, results) for column in turned]
    inverse = tuple(zip(*columns, strict=True))
    return Algorithm(tuple(data), tuple(weight), inverse, step, start)


def _spread(row: Sequence[Fraction], places: Sequence[int], size: int) -> tuple[Fraction, ...]:
    out = [Fraction(0)] * size
    for at, value in zip(places, row, strict=True):
        out[at] = value
    return tuple(out)


@lru_cache(maxsize=64)
def strided(m: int, r: int, stride: int = 1, most: int = 0) -> Algorithm:
    """m results of r taps with a stride: the taps of each phase apart, at most `most` at a time.

    A kernel of many taps is cut into parts, whose results add up; 0 for no limit.
    """
    parts = []
    for phase in range(min(stride, r)):
        taps = range(phase, r, stride)
        size = most or len(taps)
        for at in range(0, len(taps), size):
            own = taps[at : at + size]
            part = correlation(m, len(own))
            data = [own[0] + stride * k for k in range(part.span)]
            parts.append(Part(part, own, data, range(m)))
    return parts[0].algorithm if stride == len(parts) == 1 else joined(parts, r, stride * m)


@lru_cache(maxsize=64)
def transposed(m: int, r: int, stride: int, low: int) -> Algorithm:
    """stride * m results of a transposed convolution, whose padding begins with `low`.

    Element `stride * t + phase` sums the taps `(phase + low) % stride + stride * j` times the data
    `t + (phase + low) // stride - j`. Of kernels as long as the stride at least.
    """
    if r < stride:
        raise ModelError(f"a transposed kernel of {r} taps leaves gaps with stride {stride}")
    phases = []
    for phase in range(stride):
        first = (phase + low) % stride
        # Taps from the last to the first meet data from left to right.
        taps = [*range(first, r, stride)][::-1]
        phases.append((phase, taps, (phase + low) // stride - len(taps) + 1))
    start = min(at for _, _, at in phases)
    parts = []
    for phase, taps, at in phases:
        part = correlation(m, len(taps))
        data = [at - start + k for k in range(part.span)]
        parts.append(Part(part, taps, data, [phase + stride * i for i in range(m)]))
    return joined(parts, r, m, start)


def gain(axes: Iterable[Algorithm]) -> float:
    """How much larger relative errors become, over all axes."""
    return math.prod(a.gain for a in axes)
