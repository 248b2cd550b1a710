"""Partition: the kernels' DAGs together compute the graph; fusion; equal kernels are one task."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from random_nets import nets

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.lower import operand_view
from ansorlite.graph.partition import Subgraph, View, evaluate_partition, partition, tasks
from ansorlite.graph.passes import optimize


def check(graph: Graph) -> None:
    best = optimize(graph)
    parts = partition(best)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(graph.types[v].shape).astype(np.float32) for v in graph.inputs]
    for got, want in zip(evaluate_partition(parts, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * max(1, np.abs(want).max()))
    computed = [n for s in parts.subgraphs for n in s.nodes]
    views = [s.result for s in parts.steps if isinstance(s, View)]
    assert sorted(computed) == sorted(n.name for n in best.nodes if n.output not in views)
    weighted = tasks(parts)
    assert sum(t.weight for t in weighted) == len(parts.subgraphs)
    assert math.isclose(sum(t.weight * t.dag.flop for t in weighted), parts.flop)


@given(nets())
@settings(max_examples=60)
def test_kernels_composed_are_the_graph(graph: Graph) -> None:
    check(graph)


@pytest.mark.slow
@given(nets(most=20))
@settings(max_examples=1500)
def test_kernels_composed_are_the_graph_often(graph: Graph) -> None:
    check(graph)


CONV = {
    "strides": (1, 1),
    "pads": ((1, 1), (1, 1)),
    "dilations": (1, 1),
    "layout": "channels_last",
}


def conv(b: GraphBuilder, x: str, co: int, groups: int = 1) -> str:
    w = b.constant(np.ones((3, 3, b.shape(x)[-1] // groups, co), np.float32), "w")
    return b.emit("conv", [x, w], groups=groups, **CONV)


def bias(b: GraphBuilder, x: str) -> str:
    return b.emit("add", [x, b.constant(np.ones(b.shape(x)[-1], np.float32), "b")])


def kernels(b: GraphBuilder, *outputs: str) -> list[str]:
    return [s.name.rsplit("_", 1)[0] for s in partition(b.finish(outputs)).subgraphs]


def test_residual_block_is_two_kernels() -> None:
    b = GraphBuilder("residual")
    x = b.input("x", (1, 5, 5, 4))
    y = b.emit("relu", [bias(b, conv(b, x, 4))])
    y = bias(b, conv(b, y, 4))
    y = b.emit("relu", [b.emit("add", [y, x])])
    assert kernels(b, y) == ["conv_add_relu", "conv_add_add_relu"]


def test_of_two_convolutions_the_later_takes_the_sum() -> None:
    b = GraphBuilder("projection")
    x = b.input("x", (1, 5, 5, 4))
    y = b.emit("add", [conv(b, x, 6), conv(b, x, 6)])
    assert kernels(b, b.emit("relu", [y])) == ["conv", "conv_add_relu"]


def test_swish_joins_its_convolution() -> None:
    b = GraphBuilder("swish")
    y = conv(b, b.input("x", (1, 5, 5, 4)), 4)
    assert kernels(b, b.emit("mul", [y, b.emit("sigmoid", [y])])) == ["conv_sigmoid_mul"]


def test_a_value_that_others_read_ends_its_kernel() -> None:
    b = GraphBuilder("shared")
    y = conv(b, b.input("x", (1, 5, 5, 4)), 4)
    z = b.emit("relu", [y])
    assert kernels(b, z, y) == ["conv", "relu"]


def test_no_cycle_through_a_pool() -> None:
    """conv -> pool -> add(conv): fusing the sum into the convolution would wait for the pool."""
    b = GraphBuilder("cycle")
    y = conv(b, b.input("x", (1, 5, 5, 4)), 4)
    attrs = {k: v for k, v in CONV.items() if k != "groups"}
    p = b.emit("max_pool", [y], kernel=(3, 3), ceil_mode=False, **attrs)
    assert kernels(b, b.emit("add", [y, p])) == ["conv", "max_pool_add"]


def test_elementwise_producer_joins_a_reduction() -> None:
    b = GraphBuilder("squares")
    x = b.input("x", (3, 8))
    total = b.emit("reduce_sum", [b.emit("mul", [x, x])], axes=(1,), keepdims=True)
    assert kernels(b, b.emit("sqrt", [total])) == ["mul_reduce_sum_sqrt"]


def test_transposed_operand_is_read_where_it_lies() -> None:
    b = GraphBuilder("scores")
    q, k = b.input("q", (2, 5, 3, 4)), b.input("k", (2, 6, 3, 4))
    left = b.emit("transpose", [q], perm=(0, 2, 1, 3))
    right = b.emit("transpose", [k], perm=(0, 2, 3, 1))
    (step,) = partition(b.finish([b.emit("matmul", [left, right])])).subgraphs
    assert step.inputs == ("q", "k")
    assert [op.shape for op in step.dag.inputs] == [(2, 5, 3, 4), (2, 6, 3, 4)]
    assert len(step.dag.computes) == 1


def test_producers_of_a_transposed_operand_stay_outside() -> None:
    """Inside, each of their elements would be computed for every row of the product."""
    b = GraphBuilder("rows")
    x, y = b.input("x", (5, 3)), b.input("y", (5, 4))
    left = b.emit("transpose", [b.emit("exp", [x])], perm=(1, 0))
    assert kernels(b, b.emit("matmul", [left, y])) == ["exp", "transpose_matmul"]


def test_a_reduction_that_keeps_the_shape() -> None:
    b = GraphBuilder("unit")
    e = b.emit("exp", [b.input("x", (3, 1))])
    total = b.emit("reduce_sum", [e], axes=(1,), keepdims=True)
    parts = partition(b.finish([b.emit("add", [total, e])]))
    x = np.zeros((3, 1), np.float32)
    assert evaluate_partition(parts, [x])[0].tolist() == [[2.0]] * 3


def layer_norm(b: GraphBuilder, x: str, axes: tuple[int, ...]) -> str:
    def mean(value: str) -> str:
        total = b.emit("reduce_sum", [value], axes=axes, keepdims=True)
        return b.emit("mul", [total, b.constant(np.asarray(0.1, np.float32))])

    centred = b.emit("sub", [x, mean(x)])
    root = b.emit("sqrt", [mean(b.emit("mul", [centred, centred]))])
    return b.emit("mul", [b.emit("div", [centred, root]), b.constant(np.ones(8, np.float32), "s")])


def test_a_normalisation_of_rows_is_one_task_over_a_matrix() -> None:
    b = GraphBuilder("norm")
    y = layer_norm(b, b.input("x", (2, 3, 8)), (2,))
    (s,) = partition(b.finish([y])).subgraphs
    assert [op.shape for op in s.dag.inputs] == [(6, 8), (8,)]
    assert [op.shape for op in s.dag.outputs] == [(6, 8)]
    check(b.finish([y]))


def test_rows_of_several_axes_are_one_where_operands_allow_it() -> None:
    b = GraphBuilder("norm")
    y = layer_norm(b, b.input("x", (2, 3, 4, 8)), (2, 3))
    (s,) = partition(b.finish([y])).subgraphs
    # The scale of the last axis is partly broadcast along a row of both.
    assert [op.shape for op in s.dag.outputs] == [(2, 3, 4, 8)]
    check(b.finish([y]))


def test_everything_is_one_row() -> None:
    b = GraphBuilder("norm")
    y = layer_norm(b, b.input("x", (8,)), (0,))
    (s,) = partition(b.finish([y])).subgraphs
    assert [op.shape for op in s.dag.outputs] == [(1, 8)]
    check(b.finish([y]))


def test_a_mean_that_others_read_leaves_the_normalisation() -> None:
    b = GraphBuilder("norm")
    x = b.input("x", (4, 8))
    high = b.emit("reduce_max", [x], axes=(1,), keepdims=True)
    y = b.emit("exp", [b.emit("sub", [x, high])])
    total = b.emit("reduce_sum", [y], axes=(1,), keepdims=True)
    out = b.emit("div", [y, total])
    assert kernels(b, out) == ["reduce_max_sub_exp_reduce_sum_div"]
    assert kernels(b, out, high) == ["reduce_max", "sub_exp_reduce_sum_div"]
    check(b.finish([out, high]))


def test_reductions_of_other_axes_are_kernels_of_their_own() -> None:
    b = GraphBuilder("norm")
    x = b.input("x", (4, 6, 8))
    high = b.emit("reduce_max", [x], axes=(2,), keepdims=True)
    y = b.emit("sub", [x, high])
    total = b.emit("reduce_sum", [y], axes=(1,), keepdims=True)
    out = b.emit("div", [y, total])
    assert kernels(b, out) == ["reduce_max_sub", "reduce_sum", "div"]
    check(b.finish([out]))


def test_a_larger_shape_starts_a_kernel() -> None:
    b = GraphBuilder("centred")
    x = b.input("x", (3, 4))
    top = b.emit("reduce_max", [x], axes=(0,), keepdims=True)  # not along rows
    y = b.emit("exp", [b.emit("sub", [x, top])])
    assert kernels(b, y) == ["reduce_max", "sub_exp"]


def test_an_output_does_not_vanish_in_its_reader() -> None:
    b = GraphBuilder("both")
    e = b.emit("exp", [b.input("x", (3, 4))])
    total = b.emit("reduce_sum", [e], axes=(1,), keepdims=True)
    assert kernels(b, e, total) == ["exp", "reduce_sum"]


def dag_of(b: GraphBuilder, output: str) -> te.ComputeDAG:
    (step,) = partition(b.finish([output])).subgraphs
    return step.dag


def test_operands_of_grouped_convolutions_are_views() -> None:
    b = GraphBuilder("grouped")
    y = bias(b, conv(b, b.input("x", (1, 5, 5, 4)), 6, groups=2))
    shapes = [op.shape for op in dag_of(b, y).inputs]
    assert shapes == [(1, 5, 5, 4), (3, 3, 2, 2, 3), (2, 3)]


def test_depthwise_weights_have_no_input_channels() -> None:
    b = GraphBuilder("depthwise")
    y = conv(b, b.input("x", (1, 5, 5, 4)), 4, groups=4)
    assert dag_of(b, y).inputs[1].shape == (3, 3, 4)


def test_padding_is_a_stage_only_where_needed() -> None:
    b = GraphBuilder("padding")
    x = b.input("x", (1, 5, 5, 4))
    assert [op.name for op in dag_of(b, conv(b, x, 4)).computes] == ["pad", "conv"]
    w = b.constant(np.ones((3, 3, 4, 4), np.float32), "w")
    y = b.emit("conv", [x, w], groups=1, **{**CONV, "pads": ((0, 0), (0, 0))})
    assert [op.name for op in dag_of(b, y).computes] == ["conv"]


def test_pointwise_convolution_is_a_matrix_product() -> None:
    b = GraphBuilder("pointwise")
    x = b.input("x", (2, 5, 5, 4))
    w = b.constant(np.ones((1, 1, 4, 6), np.float32), "w")
    y = b.emit("conv", [x, w], groups=1, **{**CONV, "pads": ((0, 0), (0, 0))})
    assert [op.shape for op in dag_of(b, y).ops] == [(50, 4), (4, 6), (50, 6)]


def test_partly_broadcast_operand_keeps_the_matrix_unmerged() -> None:
    b = GraphBuilder("positions")
    x, position = b.input("x", (2, 5, 4)), b.input("p", (1, 5, 6))
    w = b.constant(np.ones((4, 6), np.float32), "w")
    dag = dag_of(b, b.emit("add", [b.emit("matmul", [x, w]), position]))
    assert dag.outputs[0].shape == (2, 5, 6)


@pytest.mark.parametrize(
    ("shape", "full", "space", "view"),
    [
        ((6,), (1, 5, 5, 6), (1, 5, 5, 2, 3), (2, 3)),
        ((1, 5, 5, 6), (1, 5, 5, 6), (25, 6), (25, 6)),
        ((2, 1, 1, 6), (2, 5, 5, 6), (2, 5, 5, 2, 3), (2, 1, 1, 2, 3)),
        ((5, 6), (2, 5, 6), (10, 6), None),
        ((2, 1, 6), (2, 5, 6), (2, 5, 6), (2, 1, 6)),
        ((1, 1), (2, 6), (12,), (1,)),
        ((2, 1, 1, 6), (2, 1, 1, 6), (2, 6), (2, 6)),
        ((), (), (1,), (1,)),
    ],
)
def test_operand_view(
    shape: tuple[int, ...], full: tuple[int, ...], space: tuple[int, ...], view: object
) -> None:
    assert operand_view(shape, full, space) == view


def test_equal_kernels_are_one_task() -> None:
    b = GraphBuilder("twice")
    x = b.input("x", (1, 5, 5, 4))
    for _ in range(3):
        x = b.emit("relu", [bias(b, conv(b, x, 4))])
    x = b.emit("relu", [conv(b, x, 4)])
    found = tasks(partition(b.finish([x])))
    assert [(t.weight, t.subgraphs) for t in found] == [(3, (0, 1, 2)), (1, (3,))]


def test_sum_is_one_task_whichever_operand_comes_first() -> None:
    keys = set()
    for flip in (False, True):
        b = GraphBuilder("order")
        x = b.input("x", (1, 5, 5, 4))
        pair = [conv(b, x, 4), x]
        keys.add(dag_of(b, b.emit("add", pair[::-1] if flip else pair)).workload_key)
    assert len(keys) == 1


def test_views_are_aliases_and_results_may_be_inputs() -> None:
    b = GraphBuilder("views")
    x = b.input("x", (2, 6))
    y = b.emit("reshape", [x], "y", shape=(3, 4))
    z = b.emit("reshape", [y], "z", shape=(12,))
    parts = partition(b.finish([z, x]))
    assert parts.aliases == {"y": "x", "z": "x"} and parts.subgraphs == ()
    data = np.arange(12, dtype=np.float32).reshape(2, 6)
    out = evaluate_partition(parts, {"x": data})
    assert out[0].tolist() == list(range(12)) and out[1].shape == (2, 6)


def test_source_operators_are_refused() -> None:
    b = GraphBuilder("raw")
    y = b.emit("identity", [b.input("x", (2, 3))], "y")
    with pytest.raises(ModelError, match=r"node y \(identity\) has no kernel: run graph.passes"):
        partition(b.finish([y]))


def test_channels_first_is_refused() -> None:
    b = GraphBuilder("first")
    w = b.constant(np.ones((2, 3, 1, 1), np.float32), "w")
    y = b.emit(
        "conv", [b.input("x", (1, 3, 4, 4)), w], groups=1, **CONV | {"layout": "channels_first"}
    )
    with pytest.raises(ModelError, match="run the passes first"):
        partition(b.finish([y]))


def test_partition_reads_well(golden) -> None:  # type: ignore[no-untyped-def]
    b = GraphBuilder("tiny")
    x = b.input("data", (1, 4, 6, 6))
    w = b.constant(np.ones((8, 4, 3, 3), np.float32), "w1")
    first = CONV | {"layout": "channels_first", "strides": (2, 2)}
    y = b.emit("conv", [x, w], "conv1", groups=1, **first)
    stats = [b.constant(np.ones(8, np.float32), s) for s in ("scale", "shift", "mean", "var")]
    y = b.emit("relu", [b.emit("batch_norm", [y, *stats], "bn1", epsilon=1e-5)], "relu1")
    y = b.emit("reduce_mean", [y], "pool", axes=(2, 3), keepdims=True)
    y = b.emit("reshape", [y], "flat", shape=(1, 8))
    w2 = b.constant(np.ones((3, 8), np.float32), "w2")
    y = b.emit("gemm", [y, w2], "fc", trans_a=False, trans_b=True, alpha=1.0, beta=1.0)
    graph = b.finish([y])
    parts = partition(optimize(graph))
    dags = "\n".join(f"{s.name}:\n{s.dag}" for s in parts.steps if isinstance(s, Subgraph))
    golden(f"{graph}\n{parts.graph}\n{parts}\n{dags}", "graph_stages")
