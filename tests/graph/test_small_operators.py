"""Elementary functions, bits, sets and running sums of ONNX: by meaning and as native kernels."""

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_backend import Rep
from onnx_cases import check_stages
from typed_cases import IN_OTHER_TYPES

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.load import load_onnx


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Any],
    outputs: list[str],
    constants: dict[str, Any],
    opset: int = 17,
) -> onnx.ModelProto:
    info, dtype_of = onnx.helper.make_tensor_value_info, onnx.helper.np_dtype_to_tensor_dtype
    graph = onnx.helper.make_graph(
        nodes,
        "small",
        [info(k, dtype_of(np.asarray(v).dtype), np.shape(v)) for k, v in inputs.items()],
        [onnx.helper.make_empty_tensor_value_info(o) for o in outputs],
        [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(model: onnx.ModelProto, inputs: dict[str, Any], expected: list[Any]) -> None:
    """Import, passes, partition and native kernels give what is expected."""
    check_stages(model, list(inputs.values()), expected)
    for got, want in zip(Rep(model).run(list(inputs.values())), expected, strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("op", "attrs", "values", "constant", "opset"),
    IN_OTHER_TYPES,
    ids=[f"{op}-{k}" for k, (op, *_) in enumerate(IN_OTHER_TYPES)],
)
def test_operators_in_other_types(
    op: str, attrs: dict[str, Any], values: list[Any], constant: set[int], opset: int
) -> None:
    names = [f"x{k}" for k in range(len(values))]
    outs = [f"y{k}" for k in range(4 if op == "Unique" else 1)]
    known = {names[k]: values[k] for k in sorted(constant)}
    inputs = {name: v for name, v in zip(names, values, strict=True) if name not in known}
    node = onnx.helper.make_node(op, names, outs, **attrs)
    model = model_of([node], inputs, outs, known, opset)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = ReferenceEvaluator(model).run(None, inputs)
    check(model, inputs, [np.asarray(e) for e in expected])


def test_masked_attention_whose_row_is_all_masked() -> None:
    """Softmax of minus infinities is NaN, which exporters replace by zeros."""
    make = onnx.helper.make_node
    nodes = [
        make("Softmax", ["x"], ["p"], axis=-1),
        make("IsNaN", ["p"], ["n"]),
        make("Where", ["n", "zero", "p"], ["y"]),
    ]
    x = np.random.default_rng(0).standard_normal((2, 4, 8)).astype(np.float32)
    x[0, 0], x[1, 2, :5] = -np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(-1, keepdims=True))
        want = np.nan_to_num(e / e.sum(-1, keepdims=True))
    model = model_of(nodes, {"x": x}, ["y"], {"zero": np.float32(0)})
    check(model, {"x": x}, [want])


def test_angles_of_positions() -> None:
    """Rotary embeddings: sines and cosines of a position times frequencies."""
    make = onnx.helper.make_node
    nodes = [
        make("Cast", ["p"], ["pf"], to=onnx.TensorProto.FLOAT),
        make("Mul", ["pf", "f"], ["a"]),
        make("Sin", ["a"], ["s"]),
        make("Cos", ["a"], ["c"]),
        make("Concat", ["s", "c"], ["y"], axis=-1),
    ]
    f = (1 / 10000 ** (np.arange(0, 32, 2) / 32)).astype(np.float32)
    p = np.asarray([[0], [7], [100], [4095], [131071]], np.int64)
    angles = (p.astype(np.float32) * f).astype(np.float64)
    want = np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
    check(model_of(nodes, {"p": p}, ["y"], {"f": f}), {"p": p}, [want])


@pytest.mark.parametrize("op", ["NonZero", "Compress", "Unique"])
def test_numbers_of_elements_that_depend_on_the_input_are_refused(op: str) -> None:
    names = ["c", "x"] if op == "Compress" else ["x"]
    x = np.ones(4, np.bool_ if op == "Compress" else np.float32)
    node = onnx.helper.make_node(op, names, ["y"], "the_node")
    with pytest.raises(ModelError, match=rf"the_node \({op}\): operand x depends on the input"):
        load_onnx(model_of([node], {"x": x}, ["y"], {"c": x}))


def test_numbers_of_elements_that_shapes_decide_are_known() -> None:
    """NonZero of a mask made of a shape, as exporters write index ranges."""
    make = onnx.helper.make_node
    nodes = [
        make("Shape", ["x"], ["s"]),
        make("ConstantOfShape", ["s"], ["ones"], value=onnx.numpy_helper.from_array(np.ones(1))),
        make("NonZero", ["ones"], ["at"]),
    ]
    x = np.zeros((2, 3), np.float32)
    check(model_of(nodes, {"x": x}, ["at"], {}), {"x": x}, [np.argwhere(x == 0).T])


@pytest.mark.parametrize("size", [8, 8192])
def test_functions_of_initializers_without_declared_types(size: int) -> None:
    scale = np.linspace(0.5, 2, size, dtype=np.float32)
    x = np.random.default_rng(1).standard_normal((2, size)).astype(np.float32)
    root = np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-6)
    node = onnx.helper.make_node("RMSNormalization", ["x", "s"], ["y"], epsilon=1e-6)
    model = model_of([node], {"x": x}, ["y"], {"s": scale}, 23)
    check(model, {"x": x}, [(x / root * scale).astype(np.float32)])
    node = onnx.helper.make_node("RotaryEmbedding", ["h", "c", "s"], ["y"])
    h = x.reshape(1, 2, 1, size)
    half = np.linspace(0, 1, size // 2, dtype=np.float32).reshape(1, 1, -1)
    constants = {"c": np.cos(half), "s": np.sin(half)}
    model = model_of([node], {"h": h}, ["y"], constants, 23)
    check(model, {"h": h}, ReferenceEvaluator(model).run(None, {"h": h}))


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "names", "opset"),
    [
        # onnx's converter to a later opset drops the types of initializers
        ("CenterCropPad", {"x": (5, 4)}, {"s": np.asarray([3, 6])}, ["x", "s"], 18),
        # the third operand is left out
        (
            "CausalConvWithState",
            {"x": (2, 4, 8), "w": (4, 1, 4), "p": (2, 4, 3)},
            {},
            ["x", "w", "", "p"],
            27,
        ),
    ],
)
def test_functions_that_depend_on_types(
    op: str, inputs: dict[str, Any], constants: dict[str, Any], names: list[str], opset: int
) -> None:
    rng = np.random.default_rng(3)
    values = {k: rng.standard_normal(shape).astype(np.float32) for k, shape in inputs.items()}
    outs = ["y", "state"] if op == "CausalConvWithState" else ["y"]
    model = model_of([onnx.helper.make_node(op, names, outs)], values, outs, constants, opset)
    check(model, values, ReferenceEvaluator(model).run(None, values))


def test_the_mask_of_dropout_keeps_all() -> None:
    x = np.random.default_rng(4).standard_normal((2, 3)).astype(np.float32)
    node = onnx.helper.make_node("Dropout", ["x"], ["y", "mask"])
    model = model_of([node], {"x": x}, ["y", "mask"], {})
    check(model, {"x": x}, [x, np.ones((2, 3), np.bool_)])
