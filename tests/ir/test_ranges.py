"""`ir.ranges`: bounds against every value of small ranges, simplification and coefficients."""

import itertools
from typing import Any

import numpy as np
import pytest

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    cast,
    ceildiv,
    compare,
    floordiv,
    mod,
    wrap,
)
from ansorlite.ir.extremum import maximum, minimum
from ansorlite.ir.logic import all_of, any_of, negate, select
from ansorlite.ir.ranges import INF, Evaluator, bounds, coefficient, simplify

a, b, i, j = Var("a"), Var("b"), Var("i"), Var("j")
h = Var("h", "hole")
n = Load("N", (i,), "int32")

OPERATIONS: dict[str, Expr] = {
    "add": a + b * 2,
    "sub": a - b,
    "mul": a * b,
    "square": a * a * -3,
    "min": minimum(a, b),
    "max": maximum(a - 1, b),
    "floordiv": Op("floordiv", (a, b), "int32"),
    "ceildiv": Op("ceildiv", (a, b), "int32"),
    "mod": Op("mod", (a, b), "int32"),
    "select": select(a < b, a, b * 3),
    "lt": a < b,
    "le": a <= b,
    "eq": compare("eq", a, b),
    "ne": compare("ne", a, b),
    "clamp": minimum(4, maximum(a, 0)),
    "mod4": mod(a, 4),
}
INTERVALS = [(low, high) for low in range(-5, 5) for high in (low, low + 1, low + 4)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_all_values_of_small_ranges(name: str) -> None:
    """Values lie within the bounds and keep after simplification, for every pair of intervals."""
    e = OPERATIONS[name]
    divides = name in ("floordiv", "ceildiv", "mod")
    for ra, rb in itertools.product(INTERVALS, INTERVALS):
        if divides and rb[0] < 1:
            continue
        ranges = {"a": ra, "b": rb}
        low, high = bounds(e, ranges)
        simple = simplify(e, ranges, {})
        for x, y in itertools.product(range(ra[0], ra[1] + 1), range(rb[0], rb[1] + 1)):
            at = Evaluator({"a": x, "b": y})
            assert low <= at(e) <= high, (ra, rb)
            assert at(simple) == at(e), (ra, rb, str(simple))


@pytest.mark.parametrize(
    ("expr", "interval"),
    [
        (i * 4 + j, (0, 27)),
        (i - j, (-3, 6)),
        (i * j - 2, (-2, 16)),
        (floordiv(i + 1, 2), (0, 3)),
        (floordiv(j - i, 2), (-3, 1)),
        (ceildiv(i * 5 + 100, 8) - j, (10, 17)),
        (ceildiv(i, h), (0, 6)),
        (floordiv(i, n), (-INF, INF)),
        (h, (1, INF)),
        (h + 1, (2, INF)),
        (Var("free"), (0, INF)),
        (n, (-(1 << 31), (1 << 31) - 1)),
        (n * 2, (-(1 << 32), (1 << 32) - 2)),
        (minimum(n, i), (-(1 << 31), 6)),
        (mod(n, 8), (0, 7)),
        (cast(i, "int64"), (0, 6)),
        (cast(cast(n, "int64") + 1, "int32"), (-(1 << 31), (1 << 31) - 1)),
        (wrap(3), (3, 3)),
    ],
)
def test_bounds(expr: Expr, interval: tuple[int, int]) -> None:
    assert bounds(expr, {"i": (0, 6), "j": (0, 3)}) == interval


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (minimum(8, 100 - i * 8), "8"),
        (minimum(8, 20 - i * 8), "min(-i*8 + 20, 8)"),
        (minimum(2, ceildiv(100 - i * 8, 3)), "2"),
        (maximum(i - 10, 0), "0"),
        (maximum(i, j, 2), "max(2, i, j)"),
        (minimum(i + 4, j, i + j), "j"),
        (mod(i, 8), "i"),
        (mod(i + 8, 8), "i"),
        (mod(i - 1, 8), "(i + 7) % 8"),
        (floordiv(i, 7), "0"),
        (ceildiv(i + 1, 7), "1"),
        (floordiv(i + 1, 7), "(i + 1) // 7"),
        (select(i < 7, n, 0), "N[i]"),
        (select(i < 6, n, 0), "select(i < 6, N[i], 0)"),
        (select(all_of(i >= 0, i + j <= 9), n, 0), "N[i]"),
        (all_of(i >= 0, j < 2), "j < 2"),
        (any_of(i > 6, j < 2), "j < 2"),
        (negate(i <= 6), "False"),
        (compare("eq", i, 7), "False"),
        (compare("ne", i, j + 7), "True"),
        (compare("eq", i, 3), "i == 3"),
        (minimum(minimum(i, 9) * 2, 12), "i*2"),
        (Load("A", (minimum(i, 6), maximum(j, 0)), "float32"), "A[i, j]"),
        (cast(minimum(i, 6), "float32") * 2.0, "float32(i) * 2.0"),
        (n * minimum(i, 100), "N[i]*i"),
    ],
)
def test_simplify(expr: Expr, text: str) -> None:
    assert str(simplify(expr, {"i": (0, 6), "j": (0, 3)}, {})) == text


@pytest.mark.parametrize(
    ("expr", "factor"),
    [
        (i * 4 + j, "4"),
        (j * 3, "0"),
        (i, "1"),
        (i * h * 2 + i + j * h, "h*2 + 1"),
        (i - i * j, "-j + 1"),
        (i * i, None),
        (minimum(i, 3), None),
        (i + minimum(i, j), None),
        (i * minimum(i, j), None),
        (i * minimum(h, j), "min(h, j)"),
        (mod(i, 4), None),
        (Load("A", (i,), "float32"), None),
        (Load("A", (j,), "float32"), "0.0"),
    ],
)
def test_coefficient(expr: Expr, factor: str | None) -> None:
    got = coefficient(expr, "i")
    assert (None if got is None else str(got)) == factor


def test_evaluator_takes_a_population() -> None:
    columns = {"a": np.array([1, 5, 9]), "b": np.array([4, 4, 2]), "h": 3}
    at = Evaluator(columns)
    assert at(ceildiv(a, b) * h).tolist() == [3, 6, 15]
    assert at(minimum(a, b, h)).tolist() == [1, 3, 2]
    assert at(maximum(a * b, 10)).tolist() == [10, 20, 18]
    assert at(select(a < b, a, 0)).tolist() == [1, 0, 0]
    assert at(all_of(a > 1, negate(b < 3))).tolist() == [False, True, False]
    assert at(any_of(a > 8, compare("eq", a, 1))).tolist() == [True, False, True]
    assert at(h + 1) == 4


def test_evaluator_on_ints_gives_ints() -> None:
    at = Evaluator({"a": 7, "b": 2})
    big = minimum(a, b) * (1 << 70)
    assert at(big) == 1 << 71
    assert type(at(select(a < b, a, maximum(a, b)))) is int


def test_evaluator_leaves_the_branch_that_is_not_taken() -> None:
    assert Evaluator({"a": 7, "b": 0})(select(b >= 1, Op("floordiv", (a, b), "int32"), -1)) == -1


@pytest.mark.parametrize(
    ("expr", "message"),
    [
        (i + a, "no value is given for i"),
        (n, "no integer expression"),
        (Op("exp", (a,), "float32"), "exp has no integer meaning"),
    ],
)
def test_errors_of_the_evaluator(expr: Any, message: str) -> None:
    with pytest.raises(AnsorliteError, match=message):
        Evaluator({"a": 1})(expr)


def test_constants_have_values_without_an_environment() -> None:
    assert Evaluator({})(Const(5)) == 5
