"""Files as other tools write them: unsorted nodes, sparse and unused data, data of inner graphs."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ansorlite.errors import ModelError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.onnx.order import in_order, used

node, info = helper.make_node, helper.make_tensor_value_info
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def model(nodes: list[onnx.NodeProto], opset: int = 17, **fields: object) -> onnx.ModelProto:
    ends = [info("x", TensorProto.FLOAT, [2, 3])], [info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", *ends, **fields)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def result(proto: onnx.ModelProto) -> np.ndarray:
    (y,) = evaluate(load_onnx(proto), [X])
    return y


def test_nodes_may_stand_in_any_order() -> None:
    nodes = [node("Neg", ["b"], ["y"]), node("Exp", ["a"], ["b"]), node("Abs", ["x"], ["a"])]
    np.testing.assert_allclose(result(model(nodes)), -np.exp(np.abs(X)), rtol=1e-6)
    # Mish is a function: onnx's own tools, which want sorted nodes, write it out.
    written = [node("Neg", ["b"], ["y"]), node("Mish", ["x"], ["b"])]
    mish = X * np.tanh(np.log1p(np.exp(X)))
    np.testing.assert_allclose(result(model(written, 18)), -mish, rtol=1e-5)


def test_sorted_nodes_stay_and_others_keep_their_order() -> None:
    a, b, c = node("Abs", ["x"], ["a"]), node("Neg", ["x"], ["b"]), node("Add", "ab", ["c"])
    assert in_order([a, b, c]) == [a, b, c]
    assert in_order([c, b, a]) == [b, a, c]
    loop = node("Add", ["x", "l"], ["l"])
    assert in_order([loop, c, b, a]) == [b, a, c, loop]


def test_inner_graphs_read_values_around_them() -> None:
    inner = helper.make_graph(
        [node("Add", ["a", "w"], ["t"]), node("Abs", ["t"], ["r"])],
        "then",
        [],
        [info("r", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32([1]), "w")],
    )
    branch = node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    first = node("Neg", ["x"], ["a"])
    assert used([branch]) == {"c", "a"}
    assert in_order([branch, first]) == [first, branch]


def test_a_node_that_reads_its_own_result_is_named() -> None:
    with pytest.raises(ModelError, match=r"node n1 \(Add\) reads y before it is computed"):
        load_onnx(model([node("Add", ["x", "y"], ["y"], "n1")]))


@pytest.mark.parametrize("kind", [TensorProto.STRING, TensorProto.FLOAT8E5M2])
def test_data_that_nothing_reads_is_left_out(kind: int) -> None:
    extra = helper.make_tensor("extra", kind, [1], [b"text"] if kind == TensorProto.STRING else [1])
    proto = model([node("Abs", ["x"], ["y"])], initializer=[extra])
    assert list(load_onnx(proto).constants) == []
    proto.graph.node[0].CopyFrom(node("Add", ["x", "extra"], ["y"]))
    with pytest.raises(ModelError, match="extra"):
        load_onnx(proto)


def sparse(indices: list[object], dims: list[int]) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.float32([5, 7]), "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.int64(indices)), dims)


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_data_becomes_dense(indices: list[object]) -> None:
    dense = np.float32([[0, 5, 0], [0, 0, 7]])
    given = model([node("Add", ["x", "w"], ["y"])], sparse_initializer=[sparse(indices, [2, 3])])
    np.testing.assert_array_equal(result(given), X + dense)
    constant = node("Constant", [], ["c"], sparse_value=sparse(indices, [2, 3]))
    np.testing.assert_array_equal(result(model([constant, node("Add", "xc", "y")])), X + dense)


@pytest.mark.parametrize(
    ("indices", "dims", "message"),
    [
        ([1, 6], [2, 3], "an index is outside of the dimensions"),
        ([-1, 5], [2, 3], "an index is outside of the dimensions"),
        ([[0, 1], [2, 2]], [2, 3], "an index is outside of the dimensions"),
        ([1], [2, 3], "are no places of 2 values"),
        ([1, 5], [1 << 40, 1 << 20], "takes"),
    ],
)
def test_sparse_data_that_does_not_fit(
    indices: list[object], dims: list[int], message: str
) -> None:
    proto = model([node("Add", "xw", "y")], sparse_initializer=[sparse(indices, dims)])
    with pytest.raises(ModelError, match=f"initializer w.* {message}"):
        load_onnx(proto)
