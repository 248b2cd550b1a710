"""Zero terms, transposing copies and borders without branches, in native code."""

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.codegen.build import llvm_ir
from ansorlite.codegen.zeros import decided, is_zero
from ansorlite.ir.expr import Const, Expr, Var
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Reorder, Split
from ansorlite.target import Target


def test_conditions_over_known_variables() -> None:
    i, j = Var("i"), Var("j")
    assert decided(te.equal(i % 2, 0), {"i": (4, 4)}) is True
    assert decided(te.equal(i % 2, 0), {}) is None
    assert decided(te.all(i >= 1, j >= 1), {"i": (0, 0)}) is False
    assert decided(te.any(i >= 1, j >= 1), {"i": (1, 1)}) is True
    assert decided(te.all(i >= 1, j >= 1), {"i": (1, 1)}) is None
    # a range is enough, of all lanes of a vector too
    assert decided(2 * i + j >= 1, {"i": (1, 7), "j": (0, 3)}) is True
    assert decided(2 * i + j >= 3, {"i": (1, 7), "j": (0, 3)}) is None
    assert decided(te.equal(i % 4, 3), {"i": (8, 10)}) is False


def test_products_with_a_zero_are_zero() -> None:
    x = te.placeholder((8,), name="x")
    guarded = te.select(Var("i") >= 1, x[Var("i")], 0.0)
    assert is_zero(guarded * x[0], {"i": (0, 0)})
    assert not is_zero(guarded * x[0], {"i": (1, 1)})
    assert not is_zero(guarded * x[0], {})
    assert is_zero(Const(0.0, "float32"), {}) and not is_zero(x[0], {})
    # a zero that is written as a factor is multiplied: infinity times it is NaN
    assert not is_zero(x[0] * 0.0, {}) and not is_zero(0.0 * guarded, {})


def test_an_unrolled_sum_skips_zeros() -> None:
    """Every other term is a zero: half of the products are left."""
    x, w = te.placeholder((8,), name="x"), te.placeholder((8, 16), name="w")
    k = te.reduce_axis(8, "k")
    y = te.compute(
        (16,), lambda j: te.sum(te.select(te.equal(k % 2, 0), x[k], 0.0) * w[k, j], k), name="y"
    )
    steps = (
        Split("y", "j", (16,)),
        Reorder("y", ("j.0", "k", "j.1")),
        Annotate("y", "j.1", "register", 1),
        Annotate("y", "j.1", "lanes", 8),
        Annotate("y", "k", "unroll", 1 << 16),
    )
    dag = te.ComputeDAG([y])
    program = lower(State(dag).apply(*steps))
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal(8).astype(np.float32),
        "w": rng.standard_normal((8, 16)).astype(np.float32),
    }
    got = run_native(program, arrays, Target())["y"]
    np.testing.assert_allclose(got, dag.evaluate(arrays)["y"], rtol=1e-5, atol=1e-6)
    assert llvm_ir(program, Target(), optimized=False).count("fmul") == 4 * 2


@pytest.mark.parametrize(("n", "m"), [(8, 8), (24, 16), (19, 13), (9, 30)])
@pytest.mark.parametrize("lanes", [4, 8])
def test_transposing_copies(n: int, m: int, lanes: int) -> None:
    x = te.placeholder((3, m, n), name="x")
    y = te.compute((3, n, m), lambda b, i, j: x[b, j, i], name="y")
    dag = te.ComputeDAG([y])
    program = lower(State(dag).apply(Annotate("y", "j", "lanes", lanes)))
    assert ("transpose for" in str(specialize(program))) == (min(n, m) >= lanes)
    values = np.random.default_rng(1).standard_normal((3, m, n)).astype(np.float32)
    got = run_native(program, {"x": values}, Target())["y"]
    np.testing.assert_array_equal(got, values.transpose(0, 2, 1))


def test_a_scalar_is_no_transposing_copy() -> None:
    x = te.placeholder((), name="x")
    dag = te.ComputeDAG([te.compute((16, 16), lambda i, j: x[()], name="y")])
    program = lower(State(dag).apply(Annotate("y", "j", "lanes", 8)))
    got = run_native(program, {"x": np.array(3, np.float32)}, Target())["y"]
    np.testing.assert_array_equal(got, np.full((16, 16), 3, np.float32))


def test_a_test_on_the_lane_of_a_vector_decides_nothing() -> None:
    """The first lane's terms are zeros, those of the other lanes are not."""
    x = te.placeholder((9,), name="x")
    k = te.reduce_axis(2, "k")
    inside = lambda j: te.select(j + k >= 1, x[j + k], 0.0)  # noqa: E731
    dag = te.ComputeDAG([te.compute((8,), lambda j: te.sum(inside(j), k), name="y")])
    steps = (
        Split("y", "j", (8,)),
        Reorder("y", ("j.0", "k", "j.1")),
        Annotate("y", "j.1", "register", 1),
        Annotate("y", "j.1", "lanes", 8),
        Annotate("y", "k", "unroll", 1 << 16),
    )
    values = {"x": np.random.default_rng(0).standard_normal(9).astype(np.float32)}
    got = run_native(lower(State(dag).apply(*steps)), values, Target())["y"]
    np.testing.assert_allclose(got, dag.evaluate(values)["y"], rtol=1e-6)


def padded_window(fill: float) -> te.ComputeDAG:
    """Sums over 3 by 3 windows of an image with a border of one value, tested in place."""
    x, w = te.placeholder((6, 7, 16), name="x"), te.placeholder((3, 3, 16), name="w")
    r, s = te.reduce_axis(3, "r"), te.reduce_axis(3, "s")

    def term(i: Expr, j: Expr, c: Expr) -> Expr:
        inside = te.all(i + r >= 1, i + r < 7, j + s >= 1, j + s < 8)
        return te.sum(te.select(inside, x[i + r - 1, j + s - 1, c], fill) * w[r, s, c], [r, s])

    return te.ComputeDAG([te.compute((6, 7, 16), term, name="y")])


@pytest.mark.parametrize("fill", [0.0, -1.5])
@pytest.mark.parametrize("limit", [0, 256])
def test_a_border_is_read_from_a_block_of_its_value(fill: float, limit: int) -> None:
    """No branch: the pointer goes to the image or to the block."""
    dag = padded_window(fill)
    steps = (
        Split("y", "c", (16,)),
        Reorder("y", ("i", "j", "c.0", "r", "s", "c.1")),
        Annotate("y", "c.1", "register", 1),
        Annotate("y", "c.1", "lanes", 8),
        Annotate("y", "r", "unroll", limit),
        Annotate("y", "s", "unroll", limit),
    )
    program = lower(State(dag).apply(*steps))
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.standard_normal((6, 7, 16)).astype(np.float32),
        "w": rng.standard_normal((3, 3, 16)).astype(np.float32),
    }
    got = run_native(program, arrays, Target())["y"]
    np.testing.assert_allclose(got, dag.evaluate(arrays)["y"], rtol=1e-5, atol=1e-5)
    text = llvm_ir(program, Target(), optimized=False)
    assert "fill.float32" in text and "join" not in text
    assert ("unroll for y.r " in str(specialize(program))) == bool(limit)
