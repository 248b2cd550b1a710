"""Operations of tapes that run natively: what numpy's functions give, and others between them."""

from itertools import pairwise

import numpy as np
import pytest

from ansorlite.ir.evaluation import ABROAD, Candidates, Evaluation, _merged
from ansorlite.ir.expr import Var
from ansorlite.ir.native_tape import CODES
from ansorlite.ir.tape import Function, Tape, Values

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -7.0, 2.0**40, 1e300, 5e-324, np.inf, -np.inf, np.nan)
ARITY = {"absolute": 1, "logical_not": 1, "where": 3}


@pytest.mark.parametrize("fn", CODES, ids=lambda fn: fn.__name__)
def test_each_operation_is_numpys(fn: Function) -> None:
    """Of all pairs of special values and of random ones; remainders of finite ones alone."""
    rng = np.random.default_rng(2)
    values = [*SPECIAL, *(rng.standard_normal(9) * 1e3), *rng.integers(-99, 99, 9).astype(float)]
    if fn is np.remainder:
        values = [v for v in values if np.isfinite(v) and (abs(v) < 2.0**50) and abs(v) > 1e-300]
    columns = dict(zip("xyz", np.meshgrid(values, values, values[::4]), strict=True))
    columns = {name: grid.reshape(-1) for name, grid in columns.items()}
    n = len(columns["x"])
    used = "xyz"[: ARITY.get(fn.__name__, 2)]
    tape = Tape()
    number = tape.apply(fn, *(tape.of(Var(name)) for name in used))
    got = Evaluation([tape.arrays()], [Candidates(columns, n)]).of(0, number)
    with np.errstate(all="ignore"):
        want = np.asarray(fn(*(columns[name] for name in used)), np.float64)
    if fn is np.remainder:
        quotients = np.abs(columns["x"] / columns["y"])
        exact = (quotients < 2.0**50) & (columns["x"] == np.rint(columns["x"]))
        exact &= columns["y"] == np.rint(columns["y"])
        got, want = got[exact], want[exact]
    np.testing.assert_array_equal(got, want)


def twice(x: Values) -> Values:
    """A function that is no native operation."""
    return x + x


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100])
def test_functions_of_python_come_between(n: int) -> None:
    tape = Tape()
    x, y = tape.of(Var("x")), tape.of(Var("y"))
    a = tape.apply(np.add, x, y)
    b = tape.apply(twice, tape.apply(np.multiply, a, x))
    c = tape.apply(np.subtract, tape.apply(np.maximum, b, y), tape.apply(twice, b))
    other = Tape()
    d = other.apply(np.true_divide, other.of(Var("x")), other.const(4.0))
    tapes = [tape.arrays(), other.arrays()]
    rng = np.random.default_rng(n)
    first, second = ({k: rng.integers(-50, 50, m) for k in "xy"} for m in (n, 7))
    found = Evaluation(tapes, [Candidates(first, n), Candidates(second, 7)])
    p = 2.0 * (first["x"] + first["y"]) * first["x"]
    np.testing.assert_array_equal(found.of(0, c), np.maximum(p, first["y"]) - 2 * p)
    np.testing.assert_array_equal(found.of(1, d), second["x"] / 4)
    spans, codes = _merged(tuple(tapes)).spans, _merged(tuple(tapes)).codes
    assert [s[1] for s in spans[:1]] == [0] and spans[-1][2] == len(codes)
    assert all(a[2] == b[1] for a, b in pairwise(spans))
    assert all(native == (codes[begin] != ABROAD) for native, begin, _ in spans)
    assert sum(not native for native, *_ in spans) == sum(codes == ABROAD) == 2


def test_a_tape_without_operations() -> None:
    tape = Tape()
    number = tape.of(Var("x"))
    found = Evaluation([tape.arrays()], [Candidates({"x": np.arange(40)}, 40)])
    np.testing.assert_array_equal(found.of(0, number), np.arange(40.0))
