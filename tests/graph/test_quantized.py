"""Networks that onnxruntime's tool quantised: bytes between layers, results within one step."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx_backend import compiled
from onnx_runtime_cases import SATURATES
from sampled import some_or_all

from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import EXACT_PASSES, optimize
from ansorlite.target import Target

RNG = np.random.default_rng(11)
SHAPE = (1, 3, 11, 13)
WAYS = [
    (form, per_channel, activation)
    for form in ("QDQ", "QOperator")
    for per_channel in (True, False)
    for activation in ("QUInt8", "QInt8")
]


class Net:
    """Nodes of an ONNX model in float32."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {}

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [*inputs], [out], f"n{len(self.nodes)}", **attrs))
        return out

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        scale = np.sqrt(max(np.prod(shape[1:]), 1))
        self.weights[name] = (RNG.standard_normal(shape) / scale).astype(np.float32)
        return name

    def conv(self, x: str, co: int, ci: int, size: int, group: int = 1, stride: int = 1) -> str:
        return self.node(
            "Conv", x, self.weight(co, ci // group, size, size), self.weight(co),
            pads=[size // 2] * 4, group=group, strides=[stride] * 2,
        )  # fmt: skip

    def model(self, out: str) -> Any:
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "net",
            [value("x", 1, SHAPE)],
            [value(out, 1, None)],
            [numpy_helper.from_array(v, k) for k, v in self.weights.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual() -> Any:
    """A stem of three channels, pools, single channels, a sum, joined parts, a dense layer."""
    n = Net()
    x = n.node("MaxPool", n.node("Relu", n.conv("x", 8, 3, 3)), kernel_shape=[2, 2], strides=[2, 2])
    y = n.node("Relu", n.conv(n.node("Relu", n.conv(x, 12, 8, 1)), 12, 12, 3, group=12))
    y = n.node("Relu", n.node("Add", n.conv(y, 8, 12, 1), x))
    y = n.node("Concat", n.conv(y, 6, 8, 3, group=2), y, axis=1)
    y = n.node("Flatten", n.node("GlobalAveragePool", y))
    return n.model(n.node("Gemm", y, n.weight(5, 14), n.weight(5), transB=1))


def smooth() -> Any:
    """Activations that are no clips, a clip, a stride, a product of matrices behind a transpose."""
    n = Net()
    y = n.conv("x", 8, 3, 3, stride=2)
    y = n.node("Mul", y, n.node("Sigmoid", y))
    n.weights |= {"low": np.float32(0), "high": np.float32(0.5)}
    y = n.node("Clip", n.conv(y, 8, 8, 3), "low", "high")
    y = n.node("AveragePool", y, kernel_shape=[2, 2])
    y = n.node("Transpose", y, perm=[0, 2, 3, 1])
    return n.model(n.node("MatMul", y, n.weight(8, 6)))


def quantised(model: Any, folder: Path, form: str, per_channel: bool, activation: str) -> Any:
    """The model as onnxruntime's tool quantises it, calibrated by real numbers."""
    tool = pytest.importorskip("onnxruntime.quantization")

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            self.arrays = iter([{"x": RNG.standard_normal(SHAPE).astype(np.float32)}] * 2)

        def get_next(self) -> Any:
            return next(self.arrays, None)

    onnx.save(model, folder / "float.onnx")
    tool.quantize_static(
        folder / "float.onnx",
        folder / "bytes.onnx",
        Reader(),
        quant_format=getattr(tool.QuantFormat, form),
        per_channel=per_channel,
        activation_type=getattr(tool.QuantType, activation),
        weight_type=tool.QuantType.QInt8,
        reduce_range=SATURATES,
    )
    return onnx.load(folder / "bytes.onnx")


def by_onnxruntime(model: Any, x: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return runtime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


def last_step(model: Any) -> float:
    """The scale of the model's output."""
    (last,) = (n for n in model.graph.node if n.output[0] == model.graph.output[0].name)
    (scale,) = (t for t in model.graph.initializer if t.name == last.input[1])
    return float(numpy_helper.to_array(scale))


@some_or_all(7)
def test_quantised_networks_are_as_in_onnxruntime(every: int, tmp_path: Path) -> None:
    cases = [(make, *way) for make in (residual, smooth) for way in WAYS]
    for make, *way in cases[::every]:
        model = quantised(make(), tmp_path, *way)
        x = RNG.standard_normal(SHAPE).astype(np.float32)
        graph = load_onnx(model)
        best = optimize(graph)
        parts = partition(best)
        got, wanted = compiled(parts, Target.detect())(x), by_onnxruntime(model, x)
        step, case = last_step(model), f"{make.__name__} {way}"
        assert np.abs(got - wanted).max() <= 1.01 * step, case
        assert np.abs(evaluate(graph, [x])[0] - wanted).max() <= 1.01 * step, case
        products = [n.op for n in best.nodes if n.op.startswith(("conv", "matmul"))]
        assert products and all("u8" in op for op in products), case
        kinds = {best.types[v].dtype for s in parts.subgraphs[:-1] for v in s.outputs}
        assert kinds <= {"uint8", "int32"}, f"{case}: {parts}"  # three channels as words


def test_exact_networks_compute_in_floats(tmp_path: Path) -> None:
    graph = load_onnx(quantised(residual(), tmp_path, "QDQ", True, "QUInt8"))
    assert len(EXACT_PASSES) > 9
    best = optimize(graph, exact=True)
    assert {n.op for n in best.nodes if n.op.startswith(("conv", "matmul"))} == {"conv", "matmul"}


def one_layer(**types: Any) -> Any:
    """dequantize(x) @ dequantize(w) -> quantize, in the given dtypes."""
    x, w, zero = (types[k] for k in ("x", "w", "zero"))
    make = helper.make_node
    nodes = [
        make("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        make("DequantizeLinear", ["w", "sw", "zw"], ["wf"], axis=types.get("axis", 1)),
        make("MatMul", ["xf", "wf"], ["y"]),
        make("QuantizeLinear", ["y", "sy", "zy"], ["q"]),
    ]
    columns = w.shape[types.get("axis", 1)]
    constants = {
        "w": w, "sw": np.full(columns, 0.01, np.float32),
        "zw": np.full(columns, types.get("zw", 0), w.dtype),
        "sx": np.float32(0.1), "zx": zero, "sy": np.float32(0.5), "zy": np.asarray(types["to"]),
    }  # fmt: skip
    value = helper.make_tensor_value_info
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        "layer",
        [value("x", kind(x.dtype), x.shape)],
        [value("q", kind(constants["zy"].dtype), None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def rounded(x: Any, w: Any, zero: Any, to: Any, zw: int = 0) -> Any:
    """The layer in integers, rounded once."""
    total = (x.astype(np.int64) - int(zero)) @ (w.astype(np.int64) - zw)
    factor = np.float32(0.01) * np.float32(0.1) / np.float32(0.5)
    ends = np.iinfo(to.dtype)
    whole = np.round(total.astype(np.float32) * factor).astype(np.int64) + int(to)
    return np.clip(whole, ends.min, ends.max).astype(to.dtype)


@pytest.mark.parametrize("unsigned", [True, False], ids=["uint8", "int8"])
@pytest.mark.parametrize("end", [0, 1], ids=["least", "greatest"])
def test_zero_points_at_the_ends_and_saturation(unsigned: bool, end: int) -> None:
    dtype = np.dtype("uint8" if unsigned else "int8")
    ends = (np.iinfo(dtype).min, np.iinfo(dtype).max)
    x = RNG.choice(np.asarray(ends, dtype), (7, 10))
    w = RNG.integers(-128, 128, (10, 9)).astype(np.int8)
    zero, to = dtype.type(ends[end]), dtype.type(ends[1 - end])
    best = optimize(load_onnx(one_layer(x=x, w=w, zero=zero, to=to)))
    assert "matmul_u8s8" in [n.op for n in best.nodes]
    got = compiled(partition(best), Target.detect())(x)
    np.testing.assert_array_equal(got, rounded(x, w, zero, to))
    assert {ends[0], ends[1]} & {*np.unique(got).tolist()}


def test_weights_with_a_zero_point_have_nine_bits() -> None:
    x = RNG.integers(0, 256, (4, 8)).astype(np.uint8)
    w = RNG.integers(0, 256, (8, 5)).astype(np.uint8)
    model = one_layer(x=x, w=w, zero=np.uint8(3), to=np.uint8(128), zw=201)
    got = compiled(partition(optimize(load_onnx(model))), Target.detect())(x)
    np.testing.assert_array_equal(got, rounded(x, w, 3, np.uint8(128), 201))


def test_scales_along_the_axis_that_is_summed_stay_floats() -> None:
    x = RNG.integers(0, 256, (4, 8)).astype(np.uint8)
    w = RNG.integers(-128, 128, (8, 5)).astype(np.int8)
    graph = load_onnx(one_layer(x=x, w=w, zero=np.uint8(3), to=np.uint8(128), axis=0))
    best: Graph = optimize(graph)
    assert "matmul" in [n.op for n in best.nodes]
    got = compiled(partition(best), Target.detect())(x)
    assert np.abs(got.astype(int) - evaluate(graph, [x])[0].astype(int)).max() <= 1


def test_what_is_not_a_number_becomes_the_zero_point() -> None:
    make, value = helper.make_node, helper.make_tensor_value_info
    x = np.float32([[np.nan, np.inf, -np.inf, 0.5, 1.5, -1e30, 2.5]])
    nodes = [make("QuantizeLinear", ["x", "s", "z"], ["q"])]
    constants = {"s": np.float32(1), "z": np.uint8(7)}
    graph = load_onnx(
        helper.make_model(
            helper.make_graph(
                nodes,
                "q",
                [value("x", 1, x.shape)],
                [value("q", 2, None)],
                [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=9,
        )
    )
    wanted = np.uint8([[7, 255, 0, 7, 9, 0, 9]])
    np.testing.assert_array_equal(evaluate(graph, [x])[0], wanted)
    got = compiled(partition(optimize(graph)), Target.detect())(x)
    np.testing.assert_array_equal(got, wanted)
