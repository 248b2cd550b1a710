"""Folding of a DAG before the sketch rules: constant stages and copies; then row fusion."""

import numpy as np
import pytest
from sampled import sampled
from space_cases import check

from ansorlite import te
from ansorlite.codegen.kernel import Kernel
from ansorlite.errors import ScheduleError
from ansorlite.graph.ops.conv import depthwise_conv2d_nhwc
from ansorlite.graph.ops.matmul import batch_matmul
from ansorlite.graph.ops.movement import pad
from ansorlite.graph.ops.normalization import softmax
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import EvaluateAtBind
from ansorlite.space.legality import legal
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target

HOST = Target.detect()
RNG = np.random.default_rng(5)


def scaled_product() -> te.ComputeDAG:
    """x times the constant w, which is scaled before: the scaled weights are a constant stage."""
    x = te.placeholder((6, 8), name="x")
    w = te.placeholder((8, 12), name="w", constant=True)
    ws = te.compute((12, 8), lambda j, k: te.exp(w[k, j]) * 0.5, name="ws")
    k = te.reduce_axis(8, "k")
    y = te.compute((6, 12), lambda i, j: te.sum(x[i, k] * ws[j, k], axis=k), name="y")
    return te.ComputeDAG([y])


def attention(n: int, d: int) -> te.ComputeDAG:
    q, v = (te.placeholder((1, n, 2, d), name=name) for name in "qv")
    qt = te.compute((1, 2, n, d), lambda b, h, i, k: q[b, i, h, k], name="qt")
    vt = te.compute((1, 2, d, n), lambda b, h, k, j: v[b, j, h, k], name="vt")
    return te.ComputeDAG([softmax(batch_matmul(qt, vt), (3,))])


def test_a_stage_of_constants_is_evaluated_at_bind() -> None:
    dag = scaled_product()
    sketch = sketches(dag, HOST)[0]
    assert sketch.program.by_name["ws"].role == "derived"
    assert sketch.program.bound is not None and "exp" in str(sketch.program.bound)
    assert "exp" not in str(sketch.program).partition("def kernel")[2]
    check(dag, sketch, 4)


def test_constants_may_come_with_the_call_or_be_bound() -> None:
    dag = scaled_product()
    sketch = sketches(dag, HOST)[0]
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((6, 8), (8, 12)))
    rows = sketch.sample(500, RNG)
    ok = legal(sketch.program, population_columns(sketch.holes, rows), len(rows), HOST)
    kernel = Kernel(sketch.fill(rows[ok][0]), HOST)
    assert [p.name for p in kernel.inputs] == ["x", "w"]
    bound = kernel.bind(w=w)
    assert [p.name for p in bound.inputs] == ["x"]
    np.testing.assert_array_equal(kernel(x, w), bound(x))
    np.testing.assert_allclose(bound(x), x @ (np.exp(w) * 0.5), rtol=1e-4)


def test_only_constants_are_evaluated_at_bind() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + 1.0, name="y")
    z = te.compute((4,), lambda i: y[i] * 2.0, name="z")
    state = State(te.ComputeDAG([z]))
    with pytest.raises(ScheduleError, match="cannot evaluate y at bind: not all of it is constant"):
        state.apply(EvaluateAtBind("y"))
    with pytest.raises(ScheduleError, match="it is an output"):
        state.apply(EvaluateAtBind("z"))


def test_copies_are_inlined_in_some_sketches_and_kept_in_others() -> None:
    dag = attention(16, 8)
    space = sketches(dag, HOST)
    loops = [{s.name for s in x.state.schedule.stages if s.has_loops} for x in space]
    assert any({"qt", "vt"} <= names for names in loops)
    assert any("qt" not in names and "vt" in names for names in loops)
    assert any(not {"qt", "vt"} & names for names in loops)
    plain = sketches(dag, HOST, SpaceOptions(folding=False, packing=False, locations=False))
    assert all({"qt", "vt"} <= {s.name for s in x.state.schedule.stages} for x in plain)
    assert len(plain) < len(space) and not any(x.beyond_paper for x in plain)


@pytest.mark.parametrize(("n", "d"), sampled([(13, 9), (16, 8)], 2))
def test_row_fusion_of_attention(n: int, d: int) -> None:
    dag = attention(n, d)
    fused = [s for s in sketches(dag, HOST) if s.name.endswith("-rows")]
    assert fused
    for sketch in fused[:4]:
        roots = {s.name for s in sketch.state.schedule.stages if s.location == "root"}
        assert {"matmul", "softmax_max", "softmax_exp", "softmax_sum"}.isdisjoint(roots)
        check(dag, sketch, 4)


def test_row_fusion_of_softmax() -> None:
    dag = te.ComputeDAG([softmax(te.placeholder((11, 19), name="x"), (1,))])
    (sketch,) = (s for s in sketches(dag, HOST) if s.name.endswith("-rows"))
    check(dag, sketch, 8)


def test_row_fusion_of_tiles_that_start_anywhere() -> None:
    """The columns that a row needs begin where the row says: packed weights have no such tiles."""
    x = te.placeholder((8, 6), name="x")
    w = te.placeholder((6, 23), name="w", constant=True)
    k = te.reduce_axis(6, "k")
    t = te.compute((8, 23), lambda i, c: te.sum(x[i, k] * w[k, c], axis=k), name="t")
    y = te.compute((8, 11), lambda i, j: t[i, 7 - i] * (j + 1), name="y")
    dag = te.ComputeDAG([y])
    fused = [s for s in sketches(dag, HOST) if s.name.endswith("-rows")]
    assert fused
    for sketch in fused:
        check(dag, sketch, 4)


def test_pads_are_read_in_place_where_lanes_agree() -> None:
    """With channels last all lanes are inside or outside; along a row they are not."""
    x = te.placeholder((1, 6, 6, 8), name="x")
    w = te.placeholder((3, 3, 8), name="w", constant=True)
    space = sketches(te.ComputeDAG([depthwise_conv2d_nhwc(x, w, padding=1)]), HOST)
    in_place = [s for s in space if not s.state.schedule["pad"].has_loops]
    assert in_place and all(s.beyond_paper for s in in_place)
    for sketch in in_place[:3]:
        check(sketch.state.dag, sketch, 3)
    rows = te.placeholder((4, 20), name="rows")
    k = te.reduce_axis(3, "k")
    padded = pad(rows, [(0, 0), (1, 1)])
    y = te.compute((4, 20), lambda i, j: te.sum(padded[i, j + k], axis=k), name="y")
    for s in sketches(te.ComputeDAG([y]), HOST):
        assert s.state.schedule["pad"].has_loops


def test_bind_computes_what_is_bound_and_nothing_else() -> None:
    """The output is constant, too, but it is the kernel that computes it."""
    w = te.placeholder((8,), name="w", constant=True)
    e = te.compute((8,), lambda i: te.exp(w[i]), name="e")
    dag = te.ComputeDAG([te.compute((8,), lambda i: e[7 - i] + 1, name="y")])
    program = lower(State(dag).apply(EvaluateAtBind("e")))
    assert program.bound is not None
    assert [b.name for b in program.bound.buffers] == ["w", "e"]
