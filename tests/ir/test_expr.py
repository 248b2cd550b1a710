"""`ir.expr`, `ir.logic`, `ir.traverse`: normal forms case by case, errors, printing, pickling."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
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
    divide,
    floordiv,
    mod,
    wrap,
)
from ansorlite.ir.extremum import maximum, minimum, provably_nonneg
from ansorlite.ir.logic import all_of, any_of, call, negate, select
from ansorlite.ir.traverse import loads, substitute, transform, walk

i, j = Var("i"), Var("j")
h, g = Var("h", "hole"), Var("g", "hole")
x, y = Load("X", (i,), "float32"), Load("Y", (i, j), "float32")
n = Load("N", (i,), "int32")

PRINTED: list[tuple[Expr, str]] = [
    (i + 0, "i"),
    (i - i, "0"),
    ((i + 1) * (i - 1), "i*i - 1"),
    (2 * j + i * 3 - 4, "i*3 + j*2 - 4"),
    (-i, "-i"),
    (1 - h * i, "-h*i + 1"),
    ((h - 1) * g + (g - 1) + 1, "g*h"),
    (n * i + n, "N[i] + N[i]*i"),
    ((i * 8 + 3) // 8, "i"),
    (floordiv(i + 10, 8), "((i + 2) // 8) + 1"),
    (ceildiv(i + 2, 8) + 1, "ceildiv(i + 2, 8) + 1"),
    (ceildiv(i + 10, 8), "ceildiv(i + 2, 8) + 1"),
    (floordiv(i * 7, 8), "((-i) // 8) + i"),
    (ceildiv(13, 4) + wrap(0), "4"),
    (floordiv(i, 1), "i"),
    (floordiv(i, -2), "-i + (i // 2)"),
    (floordiv(0, h), "0"),
    (mod(i * 9 + 17, 8), "(i + 1) % 8"),
    (mod(i * 8, 4), "0"),
    (mod(i, h), "i % h"),
    (minimum(i, 3, minimum(j, 5)), "min(3, i, j)"),
    (minimum(h, 1), "1"),
    (maximum(h, 1), "h"),
    (minimum(h * g, h), "h"),
    (minimum(i, j), "min(i, j)"),
    (minimum(i - j, i), "i - j"),
    (maximum(i, 0), "i"),
    (maximum(i - 1, 0), "max(0, i - 1)"),
    (minimum(n, n + i), "N[i]"),
    (x * 2 + 1, "(X[i] * 2.0) + 1.0"),
    (1 - x, "1.0 - X[i]"),
    (x / y, "X[i] / Y[i, j]"),
    (maximum(x, 0), "max(X[i], 0.0)"),
    (maximum(n, x), "max(float32(N[i]), X[i])"),
    (minimum(n, 0.5), "min(float32(N[i]), 0.5)"),
    (minimum(0.5, n, 1), "min(min(0.5, float32(N[i])), 1.0)"),
    (select(i < 3, x, 0), "select(i < 3, X[i], 0.0)"),
    (select(i < 3, x, x), "X[i]"),
    (select(compare("lt", 1, 2), x, y), "X[i]"),
    (all_of(i < 3, j >= 1, i < 3), "(i < 3) and (1 <= j)"),
    (all_of(i < 3, all_of(j < 2, i < 3)), "(i < 3) and (j < 2)"),
    (all_of(), "True"),
    (any_of(), "False"),
    (any_of(i < 3, Const(True, "bool")), "True"),
    (all_of(i < 3, Const(True, "bool")), "i < 3"),
    (negate(negate(i < 3)), "i < 3"),
    (negate(compare("eq", 1, 2)), "True"),
    (compare("ne", i, j), "i != j"),
    (call("exp", x), "exp(X[i])"),
    (call("pow", x, 2), "pow(X[i], 2.0)"),
    (call("abs", n), "abs(N[i])"),
    (cast(i, "float32") * 0.5, "float32(i) * 0.5"),
    (cast(Const(2.7, "float32"), "int32"), "2"),
    (cast(i, "int32"), "i"),
    ((i < 3) + 1, "int32(i < 3) + 1"),
    (cast(i, "int64") + 1, "int64(i) + 1"),
    (Load("A", (i * 2 + j, j), "float32") + x, "A[i*2 + j, j] + X[i]"),
]


@pytest.mark.parametrize("case", range(len(PRINTED)), ids=[text for _, text in PRINTED])
def test_normal_form(case: int) -> None:
    expr, text = PRINTED[case]
    assert str(expr) == text


@pytest.mark.parametrize(
    ("expr", "dtype"),
    [
        (i + 1, "int32"),
        (i + cast(j, "int64"), "int64"),
        (x + 1, "float32"),
        (x + Load("D", (i,), "float64"), "float64"),
        (n + 0.5, "float32"),
        (i < x, "bool"),
        (select(i < 1, n, x), "float32"),
        (maximum(n, x), "float32"),
        (wrap(np.float32(3)), "float32"),
        (wrap(np.int64(3)), "int32"),
        (wrap(np.bool_(True)), "bool"),
        (wrap(np.array(2)), "int32"),
    ],
)
def test_dtype(expr: Expr, dtype: str) -> None:
    assert expr.dtype == dtype


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: i / 2, "divides integers"),
        (lambda: divide(n, i), "use // or cast"),
        (lambda: i // 0, "division of i by zero"),
        (lambda: i % 0, "modulus of i is 0"),
        (lambda: i % -3, "must be positive"),
        (lambda: x // 2, "floordiv needs integers, got float32"),
        (lambda: x % 2, "% needs integers"),
        (lambda: (i < 1) + (j < 1), "add of booleans"),
        (lambda: all_of(i), "and needs conditions, got i of int32"),
        (lambda: any_of(x < 1, x), "or needs conditions"),
        (lambda: negate(i), "not needs conditions"),
        (lambda: select(i, x, y), "select needs conditions"),
        (lambda: select(i == 0, x, y), "te.equal"),
        (lambda: all_of(i < 1, i != 0), "te.not_equal"),
        (lambda: call("exp", i), "exp needs floating-point arguments, got int32"),
        (lambda: wrap("i"), "neither an expression nor a number"),
        (lambda: wrap(np.array([1, 2])), "neither an expression nor a number"),
        (lambda: bool(i < 1), "no truth value"),
        (lambda: max(i, j), "te.select"),
    ],
)
def test_errors_of_expressions(make: Any, message: str) -> None:
    with pytest.raises(AnsorliteError, match=message):
        make()


def test_equality_is_structure() -> None:
    assert i * 2 + j == j + i + i
    assert hash(i * 2 + j) == hash(j + i + i)
    assert i != j
    assert Const(1) != Const(1, "float32")
    assert i + 1 != "i + 1"
    assert len({i + j, j + i, i - j}) == 2


def test_parts_of_an_expression() -> None:
    e = select(i < 3, x * Load("A", (n, i + j), "float32"), 0)
    assert [str(a) for a in loads(e)] == ["X[i]", "A[N[i], i + j]", "N[i]"]
    assert e.free == {"i", "j"}
    assert [str(a) for a in walk(i * j + 1)] == ["i*j + 1", "i", "j"]


def test_substitution_reaches_everything() -> None:
    e = select(all_of(i < 3, negate(j < 2)), x * y, cast(maximum(i - 1, 0), "float32"))
    assert str(substitute(e, {"i": j * 2})) == (
        "select(((j*2) < 3) and not(j < 2), X[j*2] * Y[j*2, j], float32(max(0, j*2 - 1)))"
    )
    assert str(substitute(e, {"i": Const(2), "j": Const(5)})) == "X[2] * Y[2, 5]"
    assert str(substitute(e, {"i": Const(4)})) == "3.0"
    assert substitute(e, {"k": i}) is e


def test_substitution_happens_at_once() -> None:
    assert str(substitute(i - j, {"i": j, "j": i})) == "-i + j"


def test_literals_fold_after_substitution_as_before() -> None:
    e = cast(h, "float32") * 2.0 + 1.0
    assert (
        str(substitute(e, {"h": Const(3)})) == str(cast(Const(3), "float32") * 2.0 + 1.0) == "7.0"
    )


def test_min_of_operands_that_become_equal() -> None:
    e = minimum(ceildiv(10 - i, h), g, h)
    assert str(e) == "min(ceildiv(-i + 10, h), g, h)"
    assert str(substitute(e, {"h": Const(1), "i": Const(2)})) == "1"
    assert str(substitute(e, {"h": Const(4), "g": Const(5)})) == "min(4, ceildiv(-i + 2, 4) + 2)"


@pytest.mark.parametrize(
    ("expr", "known"),
    [
        (h - 1, True),
        (h - 2, False),
        (h * g - 1, True),
        (h * g - h, True),
        (h * g - h - g + 1, True),
        (h * g - h - g, False),
        (i * h - i, True),
        (i * j - i, False),
        (i - 1, False),
        (i - j, False),
        (n - n + i, True),
        (wrap(0), True),
        (wrap(-1), False),
        (n * n, False),
        (minimum(h, g), False),
    ],
)
def test_provably_nonneg(expr: Expr, known: bool) -> None:
    assert provably_nonneg(expr) is known


def test_provably_nonneg_asks_for_the_role_of_a_name() -> None:
    """The same printed polynomial, first of a hole, then of a loop."""
    w = Var("w")
    assert provably_nonneg(Var("same", "hole") * w - w)
    assert not provably_nonneg(Var("same", "loop") * w - w)
    assert str(minimum(Var("same") * w, w)) == "min(same*w, w)"


EVERY_KIND: tuple[Expr, ...] = (
    *(e for e, _ in PRINTED),
    Op("select", (i < 2, i, j), "int32"),
    Var("k", "knob"),
)


def test_rebuilding_changes_nothing() -> None:
    """Every kind of node, through the constructors once more."""
    for e in EVERY_KIND:
        same: dict[str, Expr] = {v.name: Var(v.name, v.role) for v in walk(e) if isinstance(v, Var)}
        assert str(substitute(e, same)) == str(e)
        assert substitute(e, same) == e


def test_pickle_keeps_everything() -> None:
    for e in EVERY_KIND:
        back = pickle.loads(pickle.dumps(e))
        assert back == e and hash(back) == hash(e) and type(back) is type(e)
        assert (back.key, back.dtype, back.free) == (e.key, e.dtype, e.free)
    assert pickle.loads(pickle.dumps(h)).role == "hole"


CHILD = """
import pickle, sys
made = pickle.load(sys.stdin.buffer)
table = {e: k for k, e in enumerate(made)}
assert all(made[table[e]] == pickle.loads(pickle.dumps(e)) for e in made)
from random_trees import VARIABLES, build, draw_tree
import numpy as np
drawn = [build(draw_tree(np.random.default_rng(s), 4), VARIABLES) for s in range(40)]
print("\\n".join(str(e) for e in [*made, *drawn]))
"""


def test_other_processes_print_the_same() -> None:
    """Through pickle and from scratch, whatever the seed of Python's hashes."""
    here = Path(__file__).parent
    said = set()
    for seed in ("0", "1", "271828"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{here}:{here.parents[1]}"}
        child = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=pickle.dumps(EVERY_KIND),
            stdout=subprocess.PIPE,
            env=env,
            check=True,
        )
        said.add(child.stdout.decode())
    (text,) = said
    assert text.splitlines()[: len(EVERY_KIND)] == [str(e) for e in EVERY_KIND]
    assert len(text.splitlines()) == len(EVERY_KIND) + 40


@pytest.mark.parametrize("e", [i * 4 + j, minimum(i, h) * x, select(compare("lt", i, j), x, y)])
def test_what_does_not_change_is_the_same_object(e: Expr) -> None:
    assert transform(e, lambda node: None, {}) is e
    assert substitute(e, {"z": Const(1)}) is e
