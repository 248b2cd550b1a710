"""Errors for models that cannot be imported: one clear line each."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ansorlite.errors import MissingExtra, ModelError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx

FLOAT = onnx.TensorProto.FLOAT
Nodes = list[onnx.NodeProto]


def model(
    nodes: Nodes,
    shape: Any = (2, 3),
    dtype: int = FLOAT,
    arrays: dict[str, Any] | None = None,
    opset: int = 17,
    output: str = "y",
) -> onnx.ModelProto:
    info = onnx.helper.make_tensor_value_info
    initializers = [
        onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in (arrays or {}).items()
    ]
    graph = onnx.helper.make_graph(
        nodes, "net", [info("x", dtype, shape)], [info(output, dtype, None)], initializers
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])


def node(op: str, *inputs: str, out: str = "y", name: str = "n1", **attrs: Any) -> onnx.NodeProto:
    return onnx.helper.make_node(op, inputs, [out], name, **attrs)


RELU = [node("Relu", "x")]


def refused(source: Any, message: str, **arguments: Any) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_onnx(source, **arguments)
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", r"there is no file .*none\.onnx")
    refused("a" * 5000 + ".onnx", r"cannot read a+\.\.\.a+\.onnx: File name too")
    refused("a\0.onnx", r"there is no file a\\x00\.onnx")


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"this is text, not a model")
    refused(path, r"net\.onnx is no (readable )?ONNX model")
    path.write_bytes(b"")
    refused(str(path), r"net\.onnx is no ONNX model, or one without nodes")
    refused(b"\xff\xff\xff", "model of 3 bytes is no readable ONNX model")


def test_cut_off_file(tmp_path: Path) -> None:
    whole = model([node("Add", "x", "w")], arrays={"w": np.ones((2, 3), np.float32)})
    refused(whole.SerializeToString()[:-40], "is no readable ONNX model")


def test_not_a_model() -> None:
    refused(3.5, "a float is no ONNX model: give a path or a ModelProto")


def test_path_bytes_and_proto_give_the_same(tmp_path: Path) -> None:
    proto = model(RELU)
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    texts = {str(load_onnx(s)) for s in (proto, proto.SerializeToString(), path, str(path))}
    assert len(texts) == 1


def test_all_unsupported_operators_are_listed() -> None:
    nodes = [
        node("StringNormalizer", "x", out="a", name="first"),
        node("Relu", "a", out="b", name="fine"),
        node("Det", "b", out="c", name="second"),
        onnx.helper.make_node("StringNormalizer", ["c"], ["d"]),
        onnx.helper.make_node("Inverse", ["d"], ["y"], "own", domain="com.microsoft"),
    ]
    refused(
        model(nodes),
        r"3 unsupported operators: Det \(node second\); StringNormalizer \(node first, "
        r"StringNormalizer_3\); com\.microsoft\.Inverse \(node own\)",
    )


@pytest.mark.parametrize("opset", [0, 29])
def test_opset_out_of_range(opset: int) -> None:
    refused(model(RELU, opset=opset), rf"opset {opset}; supported are 7 to 28: convert it")


def test_dynamic_batch() -> None:
    proto = model(RELU, ("N", 3))
    refused(proto, r"input x has the dynamic dimension 0 \(N\): pass dims=\{'N': 1\} or batch=1")
    assert load_onnx(proto, batch=4).types["x"].shape == (4, 3)
    assert load_onnx(proto, dims={"N": 5}).types["x"].shape == (5, 3)


def test_dynamic_image() -> None:
    proto = model(RELU, (1, 3, "height", None))
    refused(
        proto,
        r"dynamic dimensions 2 of input x \(height\), 3 of input x \(x\.3\): "
        r"pass dims=\{'height': 1, 'x\.3': 1\} or shapes=\{'x': \(1, 3, 1, 1\)\}$",
    )
    refused(proto, r"dynamic dimension 3 \(x\.3\): pass", dims={"height": 8})
    assert load_onnx(proto, dims={"height": 8, "x.3": 9}).types["x"].shape == (1, 3, 8, 9)


def test_dims_that_nothing_has() -> None:
    refused(
        model(RELU, ("N", 3)), "dims names 'M'; the dynamic dimensions of net: N", dims={"M": 1}
    )
    refused(model(RELU), "dims names 'M'; the dynamic dimensions of net: none", dims={"M": 1})


def test_extent_below_one() -> None:
    refused(model(RELU, ("N", 3)), "dimension 0 of input x is -1: none is below 0", batch=-1)


def test_batch_replaces_free_first_extents_only() -> None:
    refused(model(RELU), r"batch=7 finds no free first extent, .* \(2 of x\): leave it", batch=7)
    assert load_onnx(model(RELU), batch=2).types["x"].shape == (2, 3)


def test_unsupported_dtypes_are_named() -> None:
    refused(model(RELU, dtype=onnx.TensorProto.COMPLEX64), "input x has dtype complex64: convert")
    refused(model(RELU, dtype=onnx.TensorProto.UINT64), "input x has dtype uint64: convert")
    refused(model(RELU, dtype=onnx.TensorProto.STRING), "input x has dtype string: convert")
    weights = {"w": np.ones((2, 3), np.uint64)}
    refused(model([node("Add", "x", "w")], arrays=weights), "constant w has dtype uint64: convert")


def test_mixed_dtypes_name_the_node() -> None:
    weights = {"w": np.ones((2, 3), np.float64)}
    proto = model([node("Add", "x", "w")], arrays=weights)
    refused(proto, r"node n1 \(Add\): operands have different dtypes float32 and float64")


def test_input_without_shape() -> None:
    proto = model(RELU)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    refused(proto, "input x has no tensor shape: export the model with shapes")


def test_shapes_that_do_not_fit_name_the_node() -> None:
    proto = model([node("MatMul", "x", "w")], arrays={"w": np.ones((4, 2), np.float32)})
    refused(proto, r"node n1 \(MatMul\): cannot multiply matrices")


def test_a_shape_that_depends_on_the_input() -> None:
    shape = node("Cast", "x", out="shape", name="n0", to=onnx.TensorProto.INT64)
    proto = model([shape, node("Reshape", "x", "shape")])
    refused(proto, r"node n1 \(Reshape\): operand shape must be constant: it depends on the input")


def test_missing_pieces_of_a_node() -> None:
    refused(model([node("LRN", "x")]), r"node n1 \(LRN\) has no attribute 'size'")
    refused(model([node("Relu")]), r"node n1 \(Relu\) has 0 operands, not 1")
    refused(model([node("Relu", "q")]), r"node n1 \(Relu\) reads q, which no node computes")
    refused(model(RELU, output="z"), "net: no node computes the output z")


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("BatchNormalization", "xwwww", {"training_mode": 1}, "export in evaluation mode"),
        ("Pad", "xp", {"mode": "mirror"}, "pad mode 'mirror' is none of constant, reflect"),
        ("Cast", "x", {"to": onnx.TensorProto.UINT64}, "cast to uint64 is not supported"),
        ("Resize", "x", {}, "it needs either scales or sizes"),
        ("Tile", "xi", {}, "repeats .* one of at least 0 per axis"),
        ("Squeeze", "xj", {}, "cannot squeeze axis 1 of extent 3"),
        ("Conv", "xw", {}, "a kernel of 0 extents|same rank|spatial"),
        ("MaxPool", "x", {"kernel_shape": [2], "auto_pad": "LEFT"}, "1 extents over 0 spatial"),
        ("Constant", "", {"value_string": "a"}, "constant of kind value_string"),
    ],
)
def test_what_an_operator_cannot_do(op: str, inputs: str, attrs: Any, message: str) -> None:
    arrays = {
        "w": np.ones(3, np.float32),
        "p": np.zeros(4, np.int64),
        "i": np.asarray([0, 1, 0], np.int64),
        "j": np.asarray([1], np.int64),
    }
    refused(
        model([node(op, *inputs, **attrs)], arrays=arrays), rf"node n1 \((?i:{op})\).*{message}"
    )


def test_initializers_that_are_also_inputs_are_constants() -> None:
    proto = model([node("Add", "x", "w")], arrays={"w": np.ones((2, 3), np.float32)})
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", FLOAT, (2, 3)))
    graph = load_onnx(proto)
    assert graph.inputs == ("x",) and list(graph.constants) == ["w"]
    assert evaluate(graph, [np.zeros((2, 3), np.float32)])[0].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ansorlite\[onnx\]'"):
        load_onnx("net.onnx")


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    weight = np.arange(600, dtype=np.float32).reshape(3, 200)
    proto = model([node("MatMul", "x", "w")], arrays={"w": weight})
    path = tmp_path / "net.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(evaluate(load_onnx(path), [x])[0], x @ weight)
    (tmp_path / "w.bin").unlink()
    refused(path, r"net: tensor w names the file 'w\.bin', which does not exist")


# ---- the model's own words ----------------------------------------------------------------------


def test_operators_that_are_written_out_are_told_as_the_model_has_them() -> None:
    """A function of the model becomes its body, whose nodes the model's graph does not have."""
    body = [
        onnx.helper.make_node("Relu", ["a"], ["r"]),
        onnx.helper.make_node("MatMul", ["r", "b"], ["c"]),
    ]
    opsets = [onnx.helper.make_opsetid("", 17)]
    function = onnx.helper.make_function("mine", "Block", ["a", "b"], ["c"], body, opsets)
    call = onnx.helper.make_node("Block", ["x", "w"], ["y"], "block", domain="mine")
    proto = model([call], arrays={"w": np.ones((4, 2), np.float32)})
    proto.functions.append(function)
    proto.opset_import.append(onnx.helper.make_opsetid("mine", 1))
    refused(proto, r"^node block \(mine\.Block\): .*cannot multiply matrices")
