"""Comparison of outputs: tolerated deviations, wrong elements, and their text."""

import numpy as np
import pytest

from ansorlite.ir.packed import bits_of
from ansorlite.measure.compare import (
    PART,
    Deviation,
    Expected,
    ExpectedBfloat16,
    default_tolerance,
    describe,
)

EPS = float(np.finfo(np.float32).eps)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_equal_arrays_have_no_deviation() -> None:
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    assert Expected(x, 1e-6).compare(x.copy()) == Deviation()


def test_the_error_is_relative_to_the_element_or_the_rms() -> None:
    reference = floats(100.0, 1e-6, -2.0, 0.0)  # rms is 50.01
    expected = Expected(reference, 1e-3)
    assert expected.compare(reference + floats(0.09, 0, 0, 0)).n_wrong == 0
    assert expected.compare(reference + floats(0.11, 0, 0, 0)).n_wrong == 1
    assert expected.compare(reference + floats(0, 0.045, 0, -0.045)).n_wrong == 0
    assert expected.compare(reference + floats(0, 0.055, 0, -0.055)).n_wrong == 2
    deviation = expected.compare(reference + floats(0, 0, 0.04, 0))
    assert deviation.max_error == pytest.approx(0.04 / 50.01, rel=1e-3)


def test_the_first_wrong_element_is_reported() -> None:
    reference = np.ones((3, 4), dtype=np.float32)
    actual = reference.copy()
    actual[1, 2], actual[2, 0] = 1.5, 4.0
    expected = Expected(reference, 1e-5)
    deviation = expected.compare(actual)
    assert deviation == Deviation(deviation.max_error, 2, (1, 2), "1.5", "1.0")
    assert deviation.max_error == pytest.approx(3.0)
    text = "C[1, 2] is 1.5, expected 1.0 within a relative 1e-05; 2 of 12 elements are wrong"
    assert describe("C", deviation, expected) == text
    assert describe("C", deviation, expected, (7,)).startswith("C[7] is 1.5")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_must_match(value: float) -> None:
    reference = floats(1.0, value, 3.0)
    assert Expected(reference, 1e-5).compare(reference.copy()).n_wrong == 0
    missing = Expected(reference, 1e-5).compare(floats(1.0, 2.0, 3.0))
    extra = Expected(floats(1.0, 2.0, 3.0), 1e-5).compare(reference)
    for deviation in (missing, extra):
        assert (deviation.n_wrong, deviation.index) == (1, (1,))
        assert deviation.max_error == np.inf
    assert Expected(reference, 1e-5).compare(floats(1.1, value, 3.0)).index == (0,)
    assert Expected(floats(1.0, np.inf), 1e-5).compare(floats(1.0, -np.inf)).n_wrong == 1


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 1e30])
def test_any_magnitude(scale: float) -> None:
    reference = np.full(5, scale, dtype=np.float32)
    expected = Expected(reference, 1e-5)
    assert expected.compare(reference.copy()) == Deviation()
    assert expected.compare(reference + max(scale, 1.0) * floats(0, 0, 1, 0, 0)).index == (2,)


def test_integers_and_booleans_must_be_equal() -> None:
    reference = np.array([[1, 2], [3, 4]], dtype=np.int64)
    assert Expected(reference, 0.0).compare(reference.copy()) == Deviation()
    actual = reference + np.array([[0, 0], [-2, 0]])
    assert Expected(reference, 0.0).compare(actual) == Deviation(2.0, 1, (1, 0), "1", "3")
    truth = np.array([True, False, True])
    odd = np.array([1, 0, 0xA5], dtype=np.uint8).view(np.bool_)
    assert Expected(truth, 0.0).compare(truth.copy()) == Deviation()
    assert Expected(truth, 0.0).compare(odd).index == (2,)


@pytest.mark.parametrize("value", [3.0, np.nan, np.inf])
def test_every_part_of_a_long_output(value: float) -> None:
    reference = np.random.default_rng(0).normal(size=(3, PART // 2 + 7)).astype(np.float32)
    expected = Expected(reference, 1e-5)
    assert expected.compare(reference.copy()).n_wrong == 0
    for at in ((0, 0), (1, PART // 2), (2, PART // 2 + 6)):
        wrong = reference.copy()
        wrong[at] = value
        found = expected.compare(wrong)
        assert (found.n_wrong, found.index) == (1, at)
    assert Expected(reference[:0], 1e-5).compare(reference[:0]).n_wrong == 0


def test_a_scalar() -> None:
    reference = np.array(2.0, dtype=np.float32)
    assert Expected(reference, 1e-5).compare(np.array(2.0, dtype=np.float32)) == Deviation()
    assert Expected(reference, 1e-5).compare(np.array(3.0, dtype=np.float32)).n_wrong == 1


def test_the_tolerance_grows_with_the_root_of_the_reduction() -> None:
    assert default_tolerance("float32", 1) == 32 * EPS
    assert default_tolerance("float32", 100) == pytest.approx(320 * EPS)
    assert default_tolerance("float64", 1) < 1e-14
    assert default_tolerance("int32", 100) == 0.0


@pytest.mark.parametrize("length", [7, 512])
def test_rounding_errors_pass_and_a_dropped_term_does_not(length: int) -> None:
    rng = np.random.default_rng(length)
    a = rng.standard_normal((2000, length), dtype=np.float32)
    b = rng.standard_normal((2000, length), dtype=np.float32)
    exact = (a.astype(np.float64) * b).sum(axis=1).astype(np.float32)
    sequential = np.zeros(2000, dtype=np.float32)
    for k in range(length):
        sequential += a[:, k] * b[:, k]
    expected = Expected(exact, default_tolerance("float32", length))
    deviation = expected.compare(sequential)
    assert deviation.n_wrong == 0 and deviation.max_error < expected.tolerance / 8
    assert expected.compare(sequential - a[:, 3] * b[:, 3]).n_wrong > 1800


def test_few_numbers_of_bfloat16_may_be_rounded_otherwise() -> None:
    x = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    x[7] = 3e-6  # near zero, where the steps are small beside the rounding of sums
    bits = bits_of(x)
    expected = ExpectedBfloat16(bits, 1e-5)
    assert expected.compare(bits.copy()) == Deviation()
    near = bits.copy()
    near[:30] += 1
    near[7] = bits_of(np.float32([5e-6]))[0]
    assert expected.compare(near).n_wrong == 0
    near[:100] = bits[:100] + 1
    assert expected.compare(near).n_wrong > 40
    far = bits.copy()
    far[3] += 3
    assert expected.compare(far).n_wrong == 1
    far[3] = bits_of(np.float32([np.nan]))[0]
    assert expected.compare(far).n_wrong == 1
