"""Damaged ONNX files and external data files: one line of error that names the node or tensor."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_onnx_errors import FLOAT, RELU, model, node, refused

from ansorlite.errors import ModelError
from ansorlite.graph.ir import check_inputs, evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.names import brief

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from damaged_models import damaged, models  # noqa: E402

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
Edit = Callable[[onnx.ModelProto], Any]


# ---- data in files of its own -------------------------------------------------------------------


def external(name: str = "w", **entries: Any) -> TensorProto:
    tensor = TensorProto(
        name=name, data_type=FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def with_initializer(**entries: Any) -> onnx.ModelProto:
    proto = model([node("Add", "x", "w")])
    proto.graph.initializer.append(external(**entries))
    return proto


def with_attribute(**entries: Any) -> onnx.ModelProto:
    constant = node("Constant", out="w", name="c", value=numpy_helper.from_array(WEIGHT))
    constant.attribute[0].t.CopyFrom(external("v", **entries))
    return model([constant, node("Add", "x", "w")])


def with_function(**entries: Any) -> onnx.ModelProto:
    constant = with_attribute(**entries).graph.node[0]
    uses = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [constant, helper.make_node("Add", ["a", "w"], ["b"])]
    proto = model([helper.make_node("F", ["x"], ["y"], domain="own")])
    proto.opset_import.append(uses[1])
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], body, uses))
    return proto


PLACES = (with_initializer, with_attribute, with_function)


def saved(folder: Path, proto: onnx.ModelProto) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "net.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("place", PLACES)
def test_data_beside_the_model(tmp_path: Path, place: Any) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "w.bin").write_bytes(b"1234" + WEIGHT.tobytes() + b"more")
    path = saved(tmp_path, place(location="below/w.bin", offset=4, length=24))
    (got,) = evaluate(load_onnx(path), [np.ones((2, 3), np.float32)])
    np.testing.assert_array_equal(got, WEIGHT + 1)


@pytest.mark.parametrize("place", PLACES)
def test_data_outside_of_the_folder(tmp_path: Path, place: Any) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHT.tobytes())
    folder = tmp_path / "models"
    (folder / "deep").mkdir(parents=True)
    (folder / "link.bin").symlink_to(secret)
    (folder / "up").symlink_to(tmp_path)
    for location in ("../secret.bin", secret, "deep/../../secret.bin", "a\0b", ""):
        path = saved(folder, place(location=location))
        refused(path, "net: tensor [vw] names the file .*, which is not below the model's folder")
    for location in ("link.bin", "up/secret.bin"):
        refused(saved(folder, place(location=location)), "a link out of the model's folder")
    refused(saved(folder, place(location="none.bin")), "'none.bin', which does not exist")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(saved(tmp_path, with_initializer(location="pipe")), "'pipe', which is no regular file")
    (tmp_path / "folder").mkdir()
    refused(saved(tmp_path, with_initializer(location="folder")), "'folder', which is no regular")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": 8}, "needs bytes 8 to 32 of w.bin, which has 24"),
        ({"offset": -8}, "the offset '-8' of its data is no whole number"),
        ({"offset": 1 << 62}, "which has 24"),
        ({"offset": "9" * 30}, "is no whole number"),
        ({"length": 20}, "tensor w needs 24 bytes, its entry in w.bin has 20"),
        ({"length": "all"}, "the length 'all' of its data is no whole number"),
    ],
)
def test_offsets_and_lengths(tmp_path: Path, entries: Any, message: str) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    refused(saved(tmp_path, with_initializer(**entries)), message)


@pytest.mark.parametrize("place", PLACES)
def test_without_a_folder(place: Any) -> None:
    proto = place()
    for source in (proto, proto.SerializeToString()):
        refused(source, "tensor [vw] keeps its data in another file, which only a path leads to")
    assert proto == place()


# ---- damages ------------------------------------------------------------------------------------


def weighted() -> onnx.ModelProto:
    return model([node("Add", "x", "w", scale_free=None)], arrays={"w": WEIGHT})


def tensor(proto: onnx.ModelProto) -> TensorProto:
    return proto.graph.initializer[0]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: setattr(t, "raw_data", t.raw_data[:-4]), "needs 24 bytes, the file has 20"),
        (lambda t: t.dims.append(2), r"dimensions \[2, 3, 2\] needs 48 bytes, the file has 24"),
        (lambda t: t.dims.__setitem__(0, -2), r"has the negative dimensions \[-2, 3\]"),
        (lambda t: setattr(t, "data_type", 77), "has the unknown element type 77"),
        (lambda t: setattr(t, "data_type", 8), "holds strings, which are not supported"),
        (lambda t: setattr(t, "data_type", 11), "needs 48 bytes, the file has 24"),
        (lambda t: (t.ClearField("raw_data"), t.float_data.append(1)), "needs 6 numbers, .* has 1"),
        (lambda t: t.ClearField("raw_data"), "needs 6 numbers, the file has 0"),
        (lambda t: t.segment.SetInParent(), "is a segment of a tensor"),
    ],
)
def test_tensors_that_do_not_fit(edit: Any, message: str) -> None:
    proto = weighted()
    edit(tensor(proto))
    refused(proto, f"initializer w .*{message}")


def test_conditions_of_any_bytes_are_conditions() -> None:
    given = np.asarray([[0, 1, 2], [3, 0, 255]], np.uint8)
    proto = model([node("Where", "w", "x", "x")], arrays={"w": given != 0})
    tensor(proto).raw_data = given.tobytes()
    assert load_onnx(proto).constants["w"].view(np.uint8).max() == 1


def _twice(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(proto.graph.initializer[0])


def _attribute(**values: Any) -> Edit:
    return lambda p: p.graph.node[0].attribute.extend(
        helper.make_attribute(k, v) for k, v in values.items()
    )


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_twice, "defines the initializer w twice"),
        (lambda p: p.graph.input.append(p.graph.input[0]), "input x is defined twice"),
        (lambda p: p.graph.node.append(p.graph.node[0]), r"n1 \(Add\) computes y, .* before"),
        (
            lambda p: p.graph.node[0].input.__setitem__(0, "y"),
            "reads y before it is computed",
        ),
        (lambda p: p.graph.node[0].input.append("x"), r"n1 \(Add\) has 3 operands, not 2"),
        (lambda p: p.graph.node[0].input.__setitem__(1, ""), r"operand 1 \(B\) is missing"),
        (lambda p: p.graph.node[0].output.append("z"), r"n1 \(Add\) has 2 outputs, not 1"),
        (_attribute(axis=1), "has the attribute axis, which Add of opset 17 does not have"),
        (lambda p: setattr(p.graph.node[0], "op_type", "a\x1b[2J\nb"), r"a\\x1b\[2J\\nb \(node n1"),
        (lambda p: setattr(p.graph.output[0], "name", "z" * 20_000), r"the output z+\.\.\.z+$"),
        (lambda p: setattr(p.graph.input[0].type.tensor_type, "elem_type", 99), "dtype undefined"),
        (lambda p: p.graph.input[0].ClearField("type"), "input x has no tensor shape"),
        (lambda p: p.graph.ClearField("output"), r"no node computes the output \(none\)"),
        (lambda p: p.ClearField("opset_import"), "uses opset 1; supported are"),
    ],
)
def test_parts_that_do_not_fit(edit: Edit, message: str) -> None:
    proto = weighted()
    edit(proto)
    refused(proto, message)
    refused(proto.SerializeToString(), message)


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("Softmax", {"axis": 2}, "axis 2 is none of the 2 axes"),
        ("Softmax", {"axis": 1.5}, "attribute axis is of kind FLOAT, not INT"),
        ("Softmax", {"axis": "a"}, "attribute axis is of kind STRING, not INT"),
        ("Softmax", {"axis": [1]}, "attribute axis is of kind INTS, not INT"),
        ("Flatten", {"axis": 3}, "axis 3 is none of the 2 axes"),
        ("Flatten", {"axis": -3}, "axis -3 is none of the 2 axes"),
        ("ArgMax", {"axis": 5}, "axis 5 is none of the 2 axes"),
        ("Transpose", {"perm": [0, 0]}, "is no permutation"),
        ("Concat", {"axis": -3}, "axis -3 is none of the 2 axes"),
        ("Concat", {}, "has no attribute 'axis'"),
        ("ReduceMean", {"keepdims": 3}, "attribute keepdims is 3, neither 0 nor 1"),
        ("ReduceMean", {"axes": [2]}, "axis 2 is none of the 2 axes"),
        ("ReduceMax", {"axes": [0, -2]}, r"axes \[0, 0\] name an axis twice"),
        ("LayerNormalization", {"axis": 9}, "axis 9 is none of the 2 axes"),
        ("Split", {"axis": 4}, "axis 4 is none of the 2 axes"),
        ("Cast", {"to": 1000}, "cast to undefined is not supported"),
        ("DepthToSpace", {"blocksize": 0}, "blocksize 0 for data"),
        ("GlobalMaxPool", {}, "has no spatial axes"),
    ],
)
def test_axes_and_attributes(op: str, attrs: Any, message: str) -> None:
    inputs = ("x", "w") if op == "LayerNormalization" else ("x",)
    proto = model([node(op, *inputs, **attrs)], arrays={"w": np.ones(3, np.float32)})
    refused(proto, rf"node n1 \((?i:{op})\).*{message}")


IMAGE = (1, 4, 6, 6)


@pytest.mark.parametrize(
    ("op", "attrs", "message"),
    [
        ("MaxPool", {"kernel_shape": [0, 2]}, r"kernel_shape \[0, 2\]: 2 numbers of at least 1"),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [0, 1]}, r"strides \[0, 1\]: 2 numbers"),
        ("MaxPool", {"kernel_shape": [2, 2], "strides": [1]}, r"strides \[1\]: 2 numbers"),
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [-1, 1]}, "dilations"),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [0, 0, -1, 0]}, "pads"),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [2, 0, 0, 0]}, "not smaller than the windows"),
        ("Conv", {"group": 0}, "with 0 groups"),
        ("Conv", {"group": -4}, "with -4 groups"),
        ("Conv", {"strides": [1, 1, 1]}, "2 numbers of at least 1"),
        ("ConvTranspose", {"group": 0}, "with 0 groups"),
        ("ConvTranspose", {"strides": [0, 1]}, "2 numbers of at least 1"),
        ("ConvTranspose", {"output_padding": [-1, 0]}, "2 numbers of at least 0"),
        ("ConvTranspose", {"auto_pad": "LEFT"}, "auto_pad 'LEFT' is none of"),
        ("LRN", {"size": 0}, "size 0 is no window over 4 channels"),
    ],
)
def test_windows(op: str, attrs: Any, message: str) -> None:
    inputs = ("x", "w") if op.startswith("Conv") else ("x",)
    arrays = {"w": np.ones((4, 4, 2, 2), np.float32)}
    proto = model([node(op, *inputs, **attrs)], IMAGE, arrays=arrays)
    refused(proto, rf"node n1 \((?i:{op})\).*{message}")


def _ints(*values: int) -> Any:
    return np.asarray(values, np.int64)


@pytest.mark.parametrize(
    ("op", "operands", "message"),
    [
        ("Gather", [_ints(2)], r"index 2 is outside of axis 0 of float32\[2, 3\]"),
        ("Gather", [_ints(0, -3)], "index -3 is outside of axis 0"),
        ("Squeeze", [_ints(2)], "axis 2 is none of the 2 axes"),
        ("Squeeze", [_ints(0)], "cannot squeeze axis 0 of extent 2"),
        ("Unsqueeze", [_ints(3)], "axis 3 is none of the 3 axes"),
        ("Unsqueeze", [_ints(0, -4)], "name an axis twice"),
        ("Reshape", [_ints(-2, -3)], "leaves more than one extent open"),
        ("Reshape", [_ints(-1, -1)], "leaves more than one extent open"),
        ("Reshape", [_ints(4, -1)], "cannot reshape"),
        ("Expand", [_ints(-1, 3)], r"shapes .* do not broadcast"),
        ("Slice", [_ints(0), _ints(1), _ints(2)], "axis 2 is none of the 2 axes"),
        ("Slice", [_ints(0, 0), _ints(1, 1), _ints(1, -1)], "name an axis twice"),
        ("Slice", [_ints(0), _ints(1, 2)], "do not fit together"),
        ("Slice", [_ints(0), _ints(1), _ints(0), _ints(0)], "do not fit together"),
        ("Pad", [_ints(1, 2)], "2 pads for 2 axes: two per axis are needed"),
        ("Tile", [_ints(1, -1)], "one of at least 0 per axis"),
        ("Split", [_ints(3, -1)], "cannot split extent 2 into"),
        ("ReduceSum", [_ints(-3)], "axis -3 is none of the 2 axes"),
        ("Trilu", [_ints(1, 2)], "has 2 elements, not one"),
    ],
)
def test_constant_operands(op: str, operands: list[Any], message: str) -> None:
    arrays = {f"c{k}": v for k, v in enumerate(operands)}
    refused(model([node(op, "x", *arrays)], arrays=arrays), rf"node n1 \((?i:{op})\).*{message}")


def test_negative_indices_count_from_the_end() -> None:
    proto = model([node("Gather", "x", "i")], arrays={"i": _ints(-2, 1)})
    x = WEIGHT
    np.testing.assert_array_equal(evaluate(load_onnx(proto), [x])[0], x[[-2, 1]])


def test_names_that_are_no_text() -> None:
    data = model([node("Relu", "x", name="QQQQ")]).SerializeToString()
    refused(data.replace(b"QQQQ", b"\xff\xfe\xfd\xfc"), r"node 0 is damaged: a name is no UTF-8")
    data = model([node("Relu", "x"), node("Foo", "x", out="z", key="QQQQ")]).SerializeToString()
    refused(data.replace(b"QQQQ", b"\xff\xfe\xfd\xfc"), r"unsupported operator: Foo")
    data = model([node("Pad", "x", "x", mode="QQQQ")]).SerializeToString()
    refused(data.replace(b"QQQQ", b"\xff\xfe\xfd\xfc"), r"node n1 \(Pad\) has a damaged attribute")


def test_references_outside_of_functions() -> None:
    proto = model([node("Softmax", "x", axis=1)])
    proto.graph.node[0].attribute[0].ref_attr_name = "axis"
    refused(proto, "attribute axis refers to axis of a function, but stands in no function")


def test_names_in_messages() -> None:
    assert brief("conv1/weight é") == "conv1/weight é"
    assert brief("a\nb\x1b\u202e\x00\ud800") == "a\\nb\\x1b\\u202e\\x00\\ud800"
    assert len(brief("a" * 81)) == 80


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, 3), FLOAT, ""),
        (("N", None), FLOAT, ""),
        (None, FLOAT, ""),
        (
            (2, 3),
            TensorProto.INT64,
            r"output y is float32\[2, 3\], the model declares int64\[2, 3\]: correct the",
        ),
    ],
)
def test_declared_outputs(shape: Any, dtype: int, message: str) -> None:
    proto = model(RELU)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", dtype, shape))
    if message:
        refused(proto, message)
    else:
        assert load_onnx(proto).types["y"].shape == (2, 3)


@pytest.mark.parametrize("shape", [(2, 4), (2, 3, 1), (6,)])
def test_declared_shapes_that_are_wrong_are_told(shape: tuple[int, ...]) -> None:
    """Exporters leave such declarations behind, and every runtime takes the model."""
    proto = model(RELU)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, shape))
    wrong = re.escape(f"output y is float32[2, 3], the model declares float32{list(shape)}")
    with pytest.warns(UserWarning, match=wrong):
        assert load_onnx(proto).types["y"].shape == (2, 3)


def test_declared_extents_are_those_of_the_file() -> None:
    """A batch that the caller gives changes the outputs that a file declares."""
    proto = model(RELU, ("N", 3))
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, (2, 3)))
    assert load_onnx(proto, batch=5).types["y"].shape == (5, 3)


def test_operators_are_named_as_the_file_names_them() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "dq"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["t"], "de"),
        helper.make_node("StringNormalizer", ["t"], ["y"], "words"),
    ]
    refused(model(nodes), r"1 unsupported operator: StringNormalizer \(node words\)$")


def test_outputs_that_are_not_computed() -> None:
    norm = helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y", "mean"], "norm1")
    scale = {v: np.ones(4, np.float32) for v in "sbmv"}
    assert len(load_onnx(model([norm], IMAGE, arrays=scale)).outputs) == 1
    message = r"node norm1 \(BatchNormalization\): its output 2, mean, is not supported"
    refused(model([norm], IMAGE, output="mean", arrays=scale), message)
    reader = node("Cast", "mean", out="z", name="n2", to=1)
    both = model([norm, reader], IMAGE, output="z", arrays=scale)
    refused(both, rf"{message}, but node n2 \(Cast\) reads it")


def test_places_of_named_axes() -> None:
    proto = model(RELU, ("N", 3, "?", "?"))
    graph = load_onnx(proto, dims={"N": 1, "x.2": 48, "x.3": 192})
    assert graph.types["x"].shape == (1, 3, 48, 192)
    refused(proto, "dims names '.'; the dynamic dimensions of net: N, x.2, x.3", dims={"?": 7})
    refused(proto, "dims names 'x.1'; the dynamic dimensions of net: ", dims={"x.1": 2})


def test_functions_of_initializers_without_declared_types() -> None:
    scale = np.linspace(0.5, 2, 3, dtype=np.float32)
    proto = model([node("RMSNormalization", "x", "s")], arrays={"s": scale}, opset=23)
    x = WEIGHT + 1
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    np.testing.assert_allclose(evaluate(load_onnx(proto), [x])[0], want, rtol=1e-5)


def test_operands_without_elements_are_left_out() -> None:
    empty = np.zeros((2, 0), np.float32)
    proto = model([node("Concat", "x", "e", axis=1)], arrays={"e": empty})
    assert evaluate(load_onnx(proto), [WEIGHT])[0].tolist() == WEIGHT.tolist()
    proto = model([node("Concat", "x", "e", axis=1)], arrays={"e": empty[:1]})
    refused(proto, r"node n1 \(Concat\): cannot concatenate")


def test_inputs_that_are_no_arrays() -> None:
    graph = load_onnx(model(RELU))
    with pytest.raises(ModelError, match="input x is no array"):
        check_inputs(graph, [[[1.0], [2.0, 3.0]]])


def test_damaged_files_by_chance() -> None:
    """Many of them, in this process: a ModelError in one line, or a network."""
    sound, counts = list(models().values()), [0, 0]
    for k in range(240):
        data, how = damaged(sound[k % len(sound)], np.random.default_rng((7, k)))
        try:
            load_onnx(data).verify()
            counts[0] += 1
        except ModelError as error:
            assert str(error).isprintable() and len(str(error)) < 1000, (k, how, str(error))
            counts[1] += 1
    assert min(counts) > 20


def test_operands_that_old_opsets_align_by_an_axis() -> None:
    x, k = np.zeros((2, 2, 4, 4), np.float32), np.asarray([1, 5], np.float32)
    proto = model([node("Add", "x", "k", broadcast=1, axis=1)], x.shape, arrays={"k": k}, opset=6)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, x.shape))
    want = x + k[:, None, None]
    np.testing.assert_array_equal(evaluate(load_onnx(proto), [x])[0], want)


def test_replaced_operators_do_not_hide_others() -> None:
    """GroupNormalization of opset 18 was replaced; Mish beside it is still written out."""
    ones = np.ones(2, np.float32)
    nodes = [
        node("GroupNormalization", "x", "s", "s", out="g", name="n0", num_groups=2),
        node("Mish", "g"),
    ]
    proto = model(nodes, IMAGE, arrays={"s": ones}, opset=18)
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, IMAGE))
    assert load_onnx(proto).types["y"].shape == IMAGE


def test_functions_that_are_not_sound() -> None:
    proto = with_function()
    proto.functions[0].node[0].CopyFrom(helper.make_node("Relu", ["nothing"], ["w"]))
    refused(proto, "net is no valid ONNX model: ")


def test_empty_images_are_resized_to_empty_ones() -> None:
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    proto = model([node("Resize", "x", "", "s")], (1, 0, 4, 4), arrays=scales)
    (y,) = evaluate(load_onnx(proto), [np.zeros((1, 0, 4, 4), np.float32)])
    assert y.shape == (1, 0, 8, 8)
    sizes = {"z": np.array([1, 0, 8, 8])}
    proto = model([node("Resize", "x", "", "", "z")], (1, 0, 4, 4), arrays=sizes)
    assert load_onnx(proto).types[load_onnx(proto).outputs[0]].shape == (1, 0, 8, 8)
    proto = model([node("Resize", "x", "", "", "z")], (1, 2, 4, 4), arrays=sizes)
    refused(proto, r"node n1 \(Resize\): sizes \[1, 0, 8, 8\] of \[1, 2, 4, 4\]: at least 1 each")
