"""Algorithms along one axis: exact, with fewer products, and how far they lose digits."""

from fractions import Fraction

import numpy as np
import pytest

from ansorlite.errors import ModelError
from ansorlite.graph.ops.bilinear import Algorithm, correlation, gain, strided, transposed

RNG = np.random.default_rng(3)


def integers(n: int) -> list[Fraction]:
    return [Fraction(int(v)) for v in RNG.integers(-9, 10, n)]


def results(known: Algorithm, data: list[Fraction], taps: list[Fraction]) -> list[Fraction]:
    """Of one tile, exactly."""

    def times(matrix: tuple[tuple[Fraction, ...], ...], v: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, v, strict=True)), Fraction(0)) for row in matrix]

    sums = zip(times(known.data, data), times(known.weight, taps), strict=True)
    return times(known.inverse, [a * b for a, b in sums])


@pytest.mark.parametrize(
    ("m", "r", "stride", "most", "products"),
    [
        (6, 3, 1, 0, 8),
        (2, 7, 1, 0, 8),
        (4, 7, 1, 4, 13),
        (4, 3, 2, 0, 9),
        (3, 5, 2, 0, 9),
        (2, 3, 3, 0, 6),
        (2, 2, 3, 0, 4),
        (1, 3, 1, 0, 3),
        (3, 1, 2, 0, 3),
    ],
)
def test_strided_is_exact(m: int, r: int, stride: int, most: int, products: int) -> None:
    known = strided(m, r, stride, most)
    assert (known.products, known.results, known.step) == (products, m, stride * m)
    data, taps = integers(known.span), integers(r)
    want = [sum(taps[j] * data[stride * i + j] for j in range(r)) for i in range(m)]
    assert results(known, data, taps) == want


@pytest.mark.parametrize(
    ("m", "r", "stride", "low"), [(4, 4, 2, 1), (2, 5, 2, 2), (3, 3, 2, -1), (2, 3, 3, 0)]
)
def test_transposed_is_exact(m: int, r: int, stride: int, low: int) -> None:
    known, n = transposed(m, r, stride, low), 40
    line, taps = integers(n), integers(r)
    whole = [Fraction(0)] * (n * stride + r)
    for k, value in enumerate(line):
        for j, tap in enumerate(taps):
            whole[k * stride + j] += value * tap
    tile = 3
    at = known.start + known.step * tile
    got = results(known, line[at : at + known.span], taps)
    begin = stride * known.step * tile + low
    assert got == whole[begin : begin + known.results]


def test_what_there_is_no_algorithm_for() -> None:
    with pytest.raises(ModelError, match=r"F\(11, 3\) needs 12 points"):
        correlation(11, 3)
    with pytest.raises(ModelError, match="leaves gaps with stride 3"):
        transposed(2, 2, 3, 0)


def test_gain_is_the_growth_of_rounding_errors() -> None:
    """Of data that is rounded to bfloat16 after the transform, over that of the plain sum."""
    assert correlation(1, 3).gain == pytest.approx(1)
    for known in (correlation(2, 3), correlation(4, 3), strided(4, 3, 2)):
        data, weight, inverse = (
            np.array([[float(v) for v in row] for row in m]) for m in known.matrices
        )
        d, g = RNG.standard_normal((known.span, 4000)), RNG.standard_normal((known.taps, 4000))
        wrong = 1 + 1e-3 * RNG.standard_normal((known.products, 4000))
        error = inverse @ ((weight @ g) * (data @ d) * (wrong - 1))
        right = inverse @ ((weight @ g) * (data @ d))
        grown = np.sqrt((error**2).mean(1)).max() / np.sqrt((right**2).mean()) / 1e-3
        assert grown == pytest.approx(known.gain, rel=0.1)
    assert gain([correlation(2, 3)] * 2) == pytest.approx(correlation(2, 3).gain ** 2)
