"""Digests: equal for equal structure in any process, different where anything differs."""

import pickle
import subprocess
import sys
from dataclasses import replace

import pytest

from ansorlite import te
from ansorlite.ir.digest import digest
from ansorlite.ir.expr import Const, Expr, Var, add
from ansorlite.ir.program import Program
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State

MAKE = """
from ansorlite import te
from ansorlite.ir.digest import digest
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
A = te.placeholder((6, 4), name="A")
B = te.compute((6, 4), lambda i, j: A[i, j] * 2.0 + A[i, 0], name="B")
print(digest(lower(State(te.ComputeDAG([B])))))
"""


def program(dtype: str = "float32") -> Program:
    A = te.placeholder((6, 4), name="A", dtype=dtype)
    B = te.compute((6, 4), lambda i, j: A[i, j] * 2.0 + A[i, 0], name="B")
    return lower(State(te.ComputeDAG([B])))


def test_another_process_has_the_same_digest() -> None:
    made = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == digest(program())


def test_what_an_object_has_cached_does_not_count() -> None:
    used = program()
    assert used.by_name and used.register_clamps == ()
    assert digest(used) == digest(program()) == digest(pickle.loads(pickle.dumps(used)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (program(), program("float64")),
        (program(), replace(program(), name="f")),
        (Const(1), Const(1, "int64")),
        (Const(0.0, "float32"), Const(-0.0, "float32")),
        (Const(1), Const(True, "bool")),
        (Var("a"), Var("a", "hole")),
        (("ab", "c"), ("a", "bc")),
        ((1, (2, 3)), ((1, 2), 3)),
        (({"a": 1},), ({"a": 2},)),
    ],
)
def test_any_difference_counts(one: object, other: object) -> None:
    assert digest(one) != digest(other)


def test_deep_expressions_have_one() -> None:
    def chain(last: float) -> Expr:
        x: Expr = te.placeholder((1,), name="A")[Const(0)]
        for _ in range(3000):
            x = add(te.sqrt(x), Const(1.0, "float32"))
        return add(x, Const(last, "float32"))

    assert digest(chain(1.0)) == digest(chain(1.0)) != digest(chain(2.0))
