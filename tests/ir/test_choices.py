"""Loops over lists of different expressions are written out, others are not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.graph.ops.combinations import chosen
from ansorlite.graph.ops.strassen import fast_dense
from ansorlite.ir.choices import MOST, write_out
from ansorlite.ir.expr import Const, Var
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import For, Program, block, map_exprs, walk
from ansorlite.ir.specialize import specialize
from ansorlite.ir.traverse import substitute
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

HOST = Target.detect()
ROWS, COLUMNS = 3, 20


def program_of(listed: int, value: Callable[[Any, Any, Any], Any]) -> Program:
    x = te.placeholder((ROWS, COLUMNS), name="X")
    y = te.compute((ROWS, listed, COLUMNS), lambda i, a, j: value(x[i, j], i, a), name="Y")
    return lower(State(te.ComputeDAG([y])))


def unrolled(p: Program) -> list[int]:
    marked = [s for s in walk(specialize(p).body) if isinstance(s, For) and s.mark == "unroll"]
    return [int(str(s.extent)) for s in marked]


@pytest.mark.parametrize("listed", [2, 7, MOST, MOST + 1])
def test_a_list_of_expressions_is_written_out_up_to_a_limit(listed: int) -> None:
    p = program_of(listed, lambda x, i, a: chosen(a, [x * float(k) for k in range(listed)]))
    assert unrolled(p) == [listed] * (listed <= MOST)
    data = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    data[0, :3] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        expected = data[:, None] * np.arange(listed, dtype=np.float32)[:, None]
    for got in (interpret(p, {"X": data}), run_native(p, {"X": data}, HOST)):
        np.testing.assert_array_equal(got["Y"], expected)


def test_a_loop_that_is_compared_with_few_numbers_stays() -> None:
    border = lambda x, i, a: te.select(te.equal(a, 0), 0.0, x)  # noqa: E731
    assert unrolled(program_of(40, border)) == []
    assert unrolled(program_of(2, border)) == [2]
    two = lambda x, i, a: te.select(te.equal(a, i), 0.0, x)  # noqa: E731
    assert unrolled(program_of(2, two)) == []


def test_lists_of_lists_share_the_limit() -> None:
    def both(x: Any, i: Any, a: Any) -> Any:
        return chosen(a, [chosen(i, [x + float(3 * k + q) for q in range(ROWS)]) for k in range(n)])

    for n, expected in ((4, [ROWS, 4]), (MOST // ROWS + 1, [MOST // ROWS + 1])):
        assert unrolled(program_of(n, both)) == expected


def test_lists_are_right_in_sums_and_side_by_side() -> None:
    """Of every program of five sketches: a list along a sum, inside a maximum, innermost."""
    x = te.placeholder((9, 33), name="X")
    k, k3 = te.reduce_axis(9, name="k"), te.reduce_axis(3, name="k3")
    terms = chosen(k, [x[k, 0] * float(q) for q in range(9)])

    def signed(a: Any, j: Any) -> Any:
        return te.max(chosen(k3, [chosen(a, [x[k3, j], -x[k3, j]])] * 2 + [x[k3 + a, j]]), axis=k3)

    rng = np.random.default_rng(1)
    data = rng.standard_normal((9, 33)).astype(np.float32)
    data[0, 1:4] = np.nan, np.inf, -np.inf
    for y in (
        te.compute((4,), lambda i: te.sum(terms, axis=k), name="Y"),
        te.compute((2, 33), signed, name="Y"),
        te.compute((33, 5), lambda j, a: chosen(a, [x[q, j] for q in range(5)]), name="Y"),
    ):
        dag = te.ComputeDAG([y])
        programs = [s.fill(row) for s in sketches(dag, HOST)[:4] for row in s.sample(2, rng)]
        plain = lower(State(dag))
        expected = interpret(plain, {"X": data})["Y"]
        for p in (plain, *programs):
            got = run_native(p, {"X": data}, HOST)["Y"]
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_the_longest_list_under_a_loop_counts() -> None:
    """Of two stores one tests all numbers of the loop around them, in either order."""
    x = te.placeholder((COLUMNS,), name="X")
    long = te.compute((7, COLUMNS), lambda a, j: chosen(a, [x[j] * float(k) for k in range(7)]))
    short = te.compute((7, COLUMNS), lambda a, j: te.select(te.equal(a, 2), x[j], 0.0))
    bodies = [lower(State(te.ComputeDAG([t]))).body for t in (long, short)]
    loops = [next(s for s in walk(b) if isinstance(s, For)) for b in bodies]
    same = [map_exprs(lp.body, lambda e, v=lp.var: substitute(e, {v: Var("a")})) for lp in loops]
    for parts in (same, same[::-1]):
        around = For("a", Const(7), Const(7), False, block(parts))
        written = write_out(around)
        assert isinstance(written, For) and written.mark == "unroll"


def test_transforms_leave_no_test_to_run_time() -> None:
    x, w = te.placeholder((32, 512), name="X"), te.placeholder((512, 512), name="W", constant=True)
    dag = te.ComputeDAG([fast_dense(x, w, levels=2)])
    sketch = sketches(dag, HOST)[0]
    p = sketch.fill(sketch.sample(1, np.random.default_rng(0))[0])
    assert {4, 49} <= set(unrolled(p))
