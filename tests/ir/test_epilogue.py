"""Maps that follow a reduction in registers: where they do, where not, and the results."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen.kernel import Kernel
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import Alloc, Program, verify, walk
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeAt, FollowSplit, Reorder, Split, Step
from ansorlite.target import Target

HOST = Target.detect()
Map = Callable[..., Any]
# A row of C in registers, for each row of y.
ROW_BY_ROW: tuple[Step, ...] = (
    ComputeAt("C", "y", "i"),
    Reorder("C", ("i", "r", "j")),
    Annotate("C", "j", "register", 1),
    Annotate("C", "j", "lanes", 4),
)


def product(n: int, m: int, f: Map) -> State:
    """y = f(C, x) for C = A B, where the inner tiles of C are computed at those of y."""
    a, b = te.placeholder((n, 5), name="A"), te.placeholder((5, m), name="B")
    x = te.placeholder((n, m), name="X")
    r = te.reduce_axis(5, "r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    y = te.compute((n, m), lambda i, j: f(c, x, i, j), name="y")
    return State(te.ComputeDAG([y]))


def tiled(state: State, *more: Step) -> Program:
    """The same in register tiles of 2 x 8, vectors of 4 or, where `more` has notes, as it says."""
    state = state.apply(
        Split("C", "i", (2,)),
        Split("C", "j", (8,)),
        Reorder("C", ("i.0", "j.0", "r", "i.1", "j.1")),
        FollowSplit("y", "C"),
        Reorder("y", ("i.0", "j.0", "i.1", "j.1")),
        ComputeAt("C", "y", "j.0"),
        Annotate("C", "i.1", "register", 1),
        Annotate("C", "j.1", "register", 1),
        Annotate("C", "j.1", "lanes", 4),
        *(more or (Annotate("y", "j.1", "lanes", 4),)),
    )
    return lower(state)


def in_registers(program: Program) -> bool:
    """Is no element of C stored? The results must be right."""
    rng = np.random.default_rng(1)
    arrays = {
        b.name: rng.standard_normal([int(str(e)) for e in b.logical]).astype(np.float32)
        for b in program.params
        if b.role != "output"
    }
    for a in arrays.values():
        a.flat[::7] = rng.choice(
            [np.nan, np.inf, -np.inf, 3e38, -0.0, 1e-42], a[...].flat[::7].size
        )
    with np.errstate(all="ignore"):
        want = interpret(program, arrays)["y"]
        made = specialize(program)
        verify(made)
        np.testing.assert_array_equal(interpret(made, arrays)["y"], want)
    got = Kernel(program, HOST)(*arrays.values())
    np.testing.assert_allclose(got, want, rtol=1e-6)
    return not any(isinstance(s, Alloc) and s.buffer.name == "C" for s in walk(made.body))


def relu(c: te.Tensor, x: te.Tensor, i: te.Expr, j: te.Expr) -> te.Expr:
    return te.maximum(c[i, j] + x[i, j], 0.0)


CASES: dict[str, tuple[int, int, Map, bool]] = {
    "whole tiles": (4, 16, relu, True),
    "tails in both axes": (5, 19, relu, True),
    "the element twice": (4, 16, lambda c, x, i, j: c[i, j] * c[i, j] + x[i, j], True),
    "cheap unary": (4, 16, lambda c, x, i, j: te.abs(c[i, j]) - x[i, j], True),
    "a long function": (4, 16, lambda c, x, i, j: te.exp(c[i, j]), False),
    "a chosen element": (4, 16, lambda c, x, i, j: te.select(i < 2, c[i, j], x[i, j]), True),
}


@pytest.mark.parametrize("case", CASES)
def test_a_map_follows_in_registers(case: str) -> None:
    n, m, f, expected = CASES[case]
    assert in_registers(tiled(product(n, m, f))) == expected


def test_a_map_of_many_operations_stays_a_loop() -> None:
    def long(c: te.Tensor, x: te.Tensor, i: te.Expr, j: te.Expr) -> te.Expr:
        y = c[i, j]
        for k in range(14):
            y = y * x[i, j] + float(k)
        return y

    assert not in_registers(tiled(product(4, 16, long)))


def test_vectors_of_other_lengths_stay_apart() -> None:
    assert not in_registers(tiled(product(4, 16, relu), Annotate("y", "j.1", "lanes", 2)))


def test_non_temporal_stores_stay_non_temporal() -> None:
    notes = (Annotate("y", "j.1", "lanes", 4), Annotate("y", "j.1", "stream", 1))
    program = tiled(product(4, 16, relu), *notes)
    assert in_registers(program)
    assert "stream for" in str(specialize(program))


def test_what_a_second_map_reads_is_stored() -> None:
    """C is read again, by the map of a map that is computed at the same loop."""
    a, b = te.placeholder((4, 5), name="A"), te.placeholder((5, 8), name="B")
    r = te.reduce_axis(5, "r")
    c = te.compute((4, 8), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    d = te.compute((4, 8), lambda i, j: c[i, j] + 1.0, name="D")
    y = te.compute((4, 8), lambda i, j: c[i, j] * d[i, 7 - j], name="y")
    state = State(te.ComputeDAG([y])).apply(
        ComputeAt("D", "y", "i"),
        *ROW_BY_ROW,
        Annotate("D", "j", "lanes", 4),
    )
    assert not in_registers(lower(state))


def test_a_neighbour_of_the_element_is_not_in_registers() -> None:
    def beside(c: te.Tensor, x: te.Tensor, i: te.Expr, j: te.Expr) -> te.Expr:
        return te.select(j < 15, c[i, te.minimum(j + 1, 15)], x[i, j])

    state = product(4, 16, beside).apply(
        *ROW_BY_ROW,
        Annotate("y", "j", "lanes", 4),
    )
    assert not in_registers(lower(state))
