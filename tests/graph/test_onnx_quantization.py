"""Integers of few bytes and half precision in ONNX models: to the bit as onnxruntime has them."""

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_runtime_cases import (
    BF16,
    F16,
    I8,
    I16,
    I32,
    U8,
    U16,
    F,
    check,
    expected,
    model_of,
    weights,
)

from ansorlite.errors import ModelError
from ansorlite.graph.ir import evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.passes import optimize

RNG = np.random.default_rng(5)
X = (RNG.standard_normal((4, 33)) * 100).astype(np.float32)
X[0, :4], X[1, :2] = [0.5, 1.5, -0.5, 2.5], [np.inf, -np.inf]
BYTES, SIGNED = RNG.integers(0, 256, (4, 33)).astype(np.uint8), RNG.integers(-128, 128, (4, 33))
SIGNED = SIGNED.astype(np.int8)
SCALES = np.float32([0.3, 1, 0.25, 2])
BLOCKS = (RNG.random((4, 3)) + 0.1).astype(np.float32)
POINTS = RNG.integers(0, 9, (4, 3)).astype(np.uint8)
IMAGE, KERNEL = RNG.integers(0, 256, (1, 3, 8, 9)), RNG.integers(-127, 128, (4, 3, 3, 3))
IMAGE, KERNEL = IMAGE.astype(np.uint8), KERNEL.astype(np.int8)
A, B = BYTES[:3, :7], weights(SIGNED.ravel()[:35].reshape(7, 5))
# operator -> (data, constants, attributes, dtypes of the outputs)
Row = tuple[str, Any, list[Any], dict[str, Any], list[int]]
F32, U, S = np.float32, np.uint8, np.int8
ROWS: dict[str, Row] = {
    "to uint8": ("QuantizeLinear", X, [F32(0.37), U(7)], {}, [U8]),
    "to int8": ("QuantizeLinear", X, [F32(0.37), S(-3)], {}, [I8]),
    "to uint16": ("QuantizeLinear", X, [F32(0.01), np.uint16(999)], {}, [U16]),
    "to int16": ("QuantizeLinear", X, [F32(0.01), np.int16(-5)], {}, [I16]),
    "by axis": ("QuantizeLinear", X, [SCALES, U([1, 2, 3, 4])], {"axis": 0}, [U8]),
    "by block": ("QuantizeLinear", X, [BLOCKS, POINTS], {"axis": 1, "block_size": 11}, [U8]),
    "from uint8": ("DequantizeLinear", BYTES, [F32(0.37), U(9)], {}, [F]),
    "from int8": ("DequantizeLinear", SIGNED, [SCALES, S([1, -2, 3, 4])], {"axis": 0}, [F]),
    "from blocks": ("DequantizeLinear", SIGNED, [BLOCKS], {"axis": 1, "block_size": 11}, [F]),
    "from int32": ("DequantizeLinear", np.int32([2**31 - 1, -(2**31), 7]), [F32(0.3)], {}, [F]),
    "own range": ("DynamicQuantizeLinear", X[2:], [], {}, [U8, F, U8]),
    "range above 0": ("DynamicQuantizeLinear", np.abs(X[2:]), [], {}, [U8, F, U8]),
    "range of zeros": ("DynamicQuantizeLinear", X[2:] * 0, [], {}, [U8, F, U8]),
    "product": ("MatMulInteger", A, [B, U(9), S([1, 2, 3, 4, 5])], {}, [I32]),
    "product without points": ("MatMulInteger", A, [B], {}, [I32]),
    "convolution": (
        "ConvInteger", IMAGE, [KERNEL.view(U), U(5), U(7)], {"pads": [1] * 4}, [I32]
    ),
    "scaled product": (
        "QLinearMatMul", A, [F32(0.02), U(5), B, F32(0.1), S(3), F32(0.5), U(99)], {}, [U8]
    ),
    "scaled convolution": (
        "QLinearConv",
        IMAGE,
        [
            F32(0.02), U(5), weights(KERNEL), SCALES, S([0] * 4), F32(9), U(99),
            np.int32([7, -99, 0, 5000]),
        ],
        {"pads": [1] * 4, "strides": [2, 2]},
        [U8],
    ),
    "relu": ("Relu", SIGNED, [], {}, [I8]),
    "largest": ("MaxPool", IMAGE, [], {"kernel_shape": [3, 3], "pads": [1] * 4}, [U8]),
    "padded": ("Pad", BYTES, [np.int64([1, 2, 0, 1]), U(77)], {}, [U8]),
    "moved": ("Transpose", BYTES, [], {"perm": [1, 0]}, [U8]),
    "joined": ("Concat", BYTES, [BYTES], {"axis": 1}, [U8]),
}  # fmt: skip


def _model(row: Row) -> Any:
    op, x, constants, attrs, dtypes = row
    named = {f"c{k}": v for k, v in enumerate(constants)}
    outputs = {f"y{k}": t for k, t in enumerate(dtypes)}
    node = helper.make_node(op, ["x", *named], list(outputs), "the_node", **attrs)
    return model_of([node], {"x": x}, outputs, named, opset=21)


@pytest.mark.parametrize("row", ROWS)
def test_quantised_operators_are_right_to_the_bit(row: str) -> None:
    model, inputs = _model(ROWS[row]), {"x": ROWS[row][1]}
    check(model, inputs, expected(model, inputs))


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min"])
@pytest.mark.parametrize("x", [BYTES, SIGNED], ids=["uint8", "int8"])
def test_arithmetic_of_few_bits_wraps(op: str, x: Any) -> None:
    other = np.where(x[:1] == 0, 3, x[:1]).astype(x.dtype)
    functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}
    functions |= {"Max": np.maximum, "Min": np.minimum}
    with np.errstate(all="ignore"):
        if op == "Div":  # towards zero; -128 / -1 wraps
            want = np.trunc(x.astype(np.float64) / other).astype(np.int64).astype(x.dtype)
        else:
            want = functions[op](x, other)
    kind = U8 if x.dtype == np.uint8 else I8
    model = model_of([helper.make_node(op, ["x", "c"], ["y"])], {"x": x}, {"y": kind}, {"c": other})
    check(model, {"x": x}, [want])


EXTREMES = np.float32([1, 2049, 2051, 1e9, -1e9, np.nan, np.inf, 1e-8, 6e-8, 65519, 65520, 0.1])


@pytest.mark.parametrize("back", [False, True], ids=["stays", "back"])
@pytest.mark.parametrize("low", [F16, BF16], ids=["float16", "bfloat16"])
def test_casts_round_to_half_precision(low: int, back: bool) -> None:
    if low == BF16 and not back:
        pytest.skip("numpy has no bfloat16")
    nodes = [helper.make_node("Cast", ["x"], ["t"], to=low)]
    nodes += [helper.make_node("Cast", ["t"], ["y"], to=F)] if back else []
    name = "y" if back else "t"
    model = model_of(nodes, {"x": EXTREMES}, {name: F if back else low})
    check(model, {"x": EXTREMES}, expected(model, {"x": EXTREMES}))


HALVES = (RNG.standard_normal((3, 8)) * 3).astype(np.float16)
WEIGHTS = RNG.standard_normal((8, 4)).astype(np.float16)


def test_half_precision_at_the_interface_and_in_weights() -> None:
    make = helper.make_node
    nodes = [make("MatMul", ["x", "w"], ["t"]), make("Softmax", ["t"], ["y"])]
    model = model_of(nodes, {"x": HALVES}, {"y": F16}, {"w": WEIGHTS})
    wide = HALVES.astype(np.float64) @ WEIGHTS.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    want = (e / e.sum(axis=1, keepdims=True)).astype(np.float16)
    check(model, {"x": HALVES}, [want], rtol=1e-3)


def test_bfloat16_is_float32_at_the_interface_and_takes_arrays_of_ml_dtypes() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.float32([[1, 2.5, -3.140625]]).astype(bfloat16)
    node = helper.make_node("Mul", ["x", "c"], ["y"])
    model = model_of([node], {"x": x}, {"y": BF16}, {"c": np.asarray([1.0078125], bfloat16)})
    graph = load_onnx(model)
    want = (x * np.asarray([1.0078125], bfloat16)).astype(np.float32)
    for given in (x, x.astype(np.float32)):
        (got,) = evaluate(graph, [given])
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("low", [np.float16, np.int8], ids=["half", "int8"])
def test_weights_that_are_stored_low_fold(low: Any) -> None:
    """No node of a cast is left; bytes stay as they are, and are scaled by the passes."""
    w = RNG.integers(-9, 9, (8, 4)).astype(low)
    make, x = helper.make_node, X[2:, :8]
    constants: dict[str, Any] = {"w": w}
    wide, first = w.astype(np.float32), make("Cast", ["w"], ["wf"], to=F)
    if low is np.int8:
        constants |= {"s": np.float32(0.02), "z": np.int8(3)}
        wide, first = (
            (wide - 3) * np.float32(0.02),
            make("DequantizeLinear", ["w", "s", "z"], ["wf"]),
        )
    model = model_of([first, make("MatMul", ["x", "wf"], ["y"])], {"x": x}, {"y": F}, constants)
    graph = load_onnx(model)
    assert [n.op for n in graph.nodes] == ["dequantize"] * (low is np.int8) + ["matmul"]
    best = optimize(graph)
    assert [n.op for n in best.nodes] == ["matmul"]
    np.testing.assert_array_equal(next(iter(best.constants.values())), wide)


def test_what_cannot_be_quantised_is_refused_by_name() -> None:
    node = helper.make_node(
        "QuantizeLinear",
        ["x", "s"],
        ["y"],
        "q",
        output_dtype=helper.np_dtype_to_tensor_dtype(np.dtype(np.int8)) + 14,
    )
    model = model_of([node], {"x": X}, {"y": F}, {"s": np.float32(0.5)}, opset=21)
    with pytest.raises(ModelError, match=r"node q \(QuantizeLinear\)"):
        load_onnx(model)


def test_errors_name_the_model_s_own_operator() -> None:
    """The operator of the model, not the graph's; the function that was called, not its parts."""
    make = helper.make_node
    node = make("MatMulInteger", ["x", "w"], ["y"], "product")
    model = model_of([node], {"x": A}, {"y": I32}, {"w": B[:3]})
    with pytest.raises(ModelError, match=r"^node product \(MatMulInteger\): cannot multiply"):
        load_onnx(model)
    model = model_of([make("Twice", ["x"], ["y"], "call", domain="own")], {"x": X}, {"y": F})
    body = [make("MatMul", ["a", "a"], ["t"]), make("Add", ["t", "a"], ["b"])]
    versions = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], body, versions))
    model.opset_import.append(helper.make_opsetid("own", 1))
    with pytest.raises(ModelError, match=r"^node call \(own\.Twice\): cannot multiply"):
        load_onnx(model)
