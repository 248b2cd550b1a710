"""Clamps that the tidy pass decides: whole register tiles inside clamped loops."""

import pytest

from ansorlite.ir.expr import Const, Expr, Var, ceildiv, coefficients
from ansorlite.ir.extremum import minimum
from ansorlite.ir.program import Buffer, For, Program, Stmt, Store, walk
from ansorlite.ir.tidy import tidy


def program(n: int, block: int, step: int) -> Program:
    """for b: for i: for r: X[..] = 0 over blocks of n, cut into steps."""
    b, i, r = Var("b"), Var("i"), Var("r")
    left = n - b * block
    body: Stmt = Store("X", (b * block + i * step + r,), Const(0.0, "float32"), None, "X")
    inside = minimum(step, block - i * step, left - i * step)
    loops: list[tuple[Var, Expr]] = [
        (r, inside),
        (i, minimum(ceildiv(block, step), ceildiv(left, step))),
        (b, ceildiv(Const(n), block)),
    ]
    for var, extent in loops:
        body = For(var.name, extent, extent, False, body)
    size = (Const(n),)
    return Program("p", (Buffer("X", size, "float32", "global", "output", size),), body)


def extent_of(p: Program, var: str) -> str:
    (loop,) = (s for s in walk(p.body) if isinstance(s, For) and s.var == var)
    return str(loop.extent)


@pytest.mark.parametrize(("n", "block", "step"), [(128, 12, 4), (24, 12, 4), (120, 40, 8)])
def test_rests_that_are_whole_steps_are_no_clamps(n: int, block: int, step: int) -> None:
    assert extent_of(tidy(program(n, block, step)), "r") == str(step)


@pytest.mark.parametrize(("n", "block", "step"), [(127, 12, 4), (128, 12, 5), (90, 12, 4)])
def test_other_rests_stay(n: int, block: int, step: int) -> None:
    assert extent_of(tidy(program(n, block, step)), "r").startswith("min(")


def test_coefficients_over_holes() -> None:
    t, s, i = Var("t", "hole"), Var("s", "hole"), Var("i")
    found = coefficients(12 * t - i * t * s + i * 3 + 5)
    assert sorted(map(str, found)) == sorted(["t*12 + 5", "-s*t + 3"])
    assert coefficients(Const(4)) == (Const(4),)
