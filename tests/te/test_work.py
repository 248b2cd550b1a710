"""Counts of arithmetic operations, and their lower bound, compared with counts on real data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ansorlite as al
from ansorlite import te
from ansorlite.graph.ops.movement import pad
from ansorlite.graph.ops.winograd import winograd_conv_nhwc
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor
from ansorlite.te.work import body_flop, elements_read, kept_share, least_flop, op_flop


def _products(x: Tensor, kernel: int, stride: int, step: int, both: bool = False) -> al.SearchTask:
    """A convolution of x[n, c] along n; with `both`, of x by itself."""
    n, c = x.shape
    w = te.placeholder((kernel, c, 4), name="w")
    r, k = te.reduce_axis(kernel, name="r"), te.reduce_axis(c, name="k")
    out = (n - (kernel - 1) * step - 1) // stride + 1

    def element(i: Expr, o: Expr) -> Expr:
        at = x[i * stride + r * step, k]
        return te.sum(at * (at if both else w[r, k, o]), axis=[r, k])

    return al.SearchTask(te.compute((out, 4), element, name="conv"))


def _counted(task: al.SearchTask) -> float:
    """The share of products whose padded factor is not 0 for data that is nowhere 0."""
    dag = task.dag
    conv, ones = dag.by_name["conv"], {}
    for p in dag.inputs:
        ones[p.name] = np.ones([int(str(e)) for e in p.shape], np.float32)
    terms = np.prod([int(str(a.extent)) for a in (*conv.axes, *conv.reduce_axes)])
    return float(dag.evaluate(ones)["conv"].sum() / terms)


@given(
    st.integers(3, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 3),
    st.integers(0, 3),
)  # fmt: skip
def test_convolutions(n: int, kernel: int, stride: int, step: int, lo: int, hi: int) -> None:
    x = pad(te.placeholder((n, 5), name="x"), [(lo, hi), (0, 0)])
    if (n + lo + hi) <= (kernel - 1) * step:
        return
    task = _products(x, kernel, stride, step)
    share = _counted(task)
    assert kept_share(task.dag.by_name["conv"], task.dag.by_name) == pytest.approx(share)
    own = [task.dag.flop * share if op.name == "conv" else 0.0 for op in task.dag.computes]
    assert task.dag.run_flop == pytest.approx(sum(own))


def test_zeros_between() -> None:
    """What a pad reads may be spread out itself."""
    a = te.placeholder((6, 5), name="a")
    spread = te.compute(
        (11, 5), lambda i, c: te.select(te.equal(i % 2, 0), a[i // 2, c], te.const(0.0, "float32")),
        name="spread",
    )  # fmt: skip
    task = _products(pad(spread, [(1, 2), (0, 0)]), 3, 1, 1)
    share = kept_share(task.dag.by_name["conv"], task.dag.by_name)
    assert share == pytest.approx(_counted(task)) and 0.4 < share < 0.5


def test_what_is_no_product_with_zeros() -> None:
    x = te.placeholder((8, 5), name="x")
    ones = _products(pad(x, [(1, 1), (0, 0)], value=1.0), 3, 1, 1)
    assert kept_share(ones.dag.by_name["conv"], ones.dag.by_name) == 1.0
    both = _products(pad(x, [(1, 1), (0, 0)]), 3, 1, 1, both=True)
    assert 0.0 < kept_share(both.dag.by_name["conv"], both.dag.by_name) <= _counted(both)
    pool = al.workload("NRM", 0)
    assert pool.dag.run_flop == pool.dag.flop


def test_one_axis_in_two_dimensions() -> None:
    """Along a diagonal the edges are not independent: what is left out is never too much."""
    x = pad(te.placeholder((8, 8), name="x"), [(1, 1), (1, 1)])
    w = te.placeholder((10,), name="w")
    k = te.reduce_axis(10, name="k")
    task = al.SearchTask(te.compute((4,), lambda i: te.sum(x[k, k] * w[k], axis=k), name="conv"))
    share = kept_share(task.dag.by_name["conv"], task.dag.by_name)
    assert share <= _counted(task) and share == pytest.approx(0.6)


def test_body_flop_counts_the_combiner() -> None:
    (op,) = _products(te.placeholder((8, 5), name="x"), 3, 1, 1).dag.computes
    assert body_flop(op) == 2


def test_what_is_unrolled_is_computed_once() -> None:
    """Of Winograd's transforms a point takes one of the cases, and equal terms of several once."""
    x = te.placeholder((8, 4), name="x")

    def case(a: Expr, i: Expr) -> Expr:
        double = x[i, 0] * 2.0
        last = double - x[i, 2]
        return te.select(
            te.equal(a, 0), double, te.select(te.equal(a, 1), double + x[i, 1], last * x[i, a])
        )

    names = {"simplify_const_indices": ("a",)}
    op = al.SearchTask(te.compute((3, 8), case, name="cases", attrs=names)).dag.by_name["cases"]
    assert op_flop(op) == 3 * 8 * 6  # every case of every point
    assert least_flop(op, {}) == 8 * 4  # the double, the sum, the difference, the product


def test_the_least_of_winograd_is_its_products() -> None:
    x, w = te.placeholder((1, 12, 12, 64), name="x"), te.placeholder((3, 3, 64, 64), name="w")
    task = al.SearchTask(winograd_conv_nhwc(x, w, [(1, 1), (1, 1)], 4))
    by_name = task.dag.by_name
    least = {op.name: least_flop(op, by_name) for op in task.dag.computes}
    assert least["conv_products"] == 2 * 36 * 9 * 64 * 64
    transforms = [least[f"conv_{k}"] for k in ("rows", "data", "inverse", "tiles")]
    assert 0 < sum(transforms) < 0.1 * least["conv_products"]
    written = [op_flop(by_name[f"conv_{k}"]) for k in ("rows", "data", "inverse", "tiles")]
    assert all(3 * t < w for t, w in zip(transforms, written, strict=True))


def _row(index: Expr) -> Expr:
    return te.minimum(te.maximum(index, 0), 999)


def test_elements_that_are_read_count_once_and_only_where_they_are() -> None:
    table = te.placeholder((1000, 16), name="table")
    ids = te.placeholder((3,), name="ids", dtype="int64")
    rows = te.compute((3, 16), lambda i, j: table[_row(ids[i]), j] * 2.0, name="rows")
    k = te.reduce_axis(16, name="k")
    w = te.placeholder((16, 40), name="w")
    y = te.compute((3, 40), lambda i, j: te.sum(rows[i, k] * w[k, j], axis=k), name="y")
    found = elements_read(te.ComputeDAG([y]).ops)
    assert found == {"table": 3 * 16, "ids": 3, "rows": 3 * 16, "w": 16 * 40}
