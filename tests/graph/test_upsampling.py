"""Repetitions of pixels before convolutions: the same values as onnxruntime's, with less work."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_runtime_cases import check, expected, model_of

from ansorlite.graph.ir import Graph
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.passes import optimize

FLOAT = TensorProto.FLOAT


def upsample(factors: tuple[int, ...], x: str = "x", y: str = "u", **attrs: Any) -> Any:
    wanted = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", **attrs}
    return helper.make_node(
        "Resize", [x, "", f"scales_{len(factors)}"], [y], nearest_mode="floor", **wanted
    )


def scales(*factors: int) -> dict[str, Any]:
    return {f"scales_{len(factors)}": np.array([1, 1, *factors], np.float32)}


def ops(graph: Graph) -> Counter[str]:
    return Counter(n.op for n in graph.nodes)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


CASES = {
    "3 x 3": ((2, 2), (3, 3), (1, 1, 1, 1), {}),
    "without padding": ((2, 2), (3, 3), (0, 0, 0, 0), {}),
    "one side": ((2, 2), (3, 3), (2, 0, 1, 2), {}),
    "5 x 5": ((2, 2), (5, 5), (2, 2, 2, 2), {}),
    "even kernel": ((2, 2), (4, 4), (1, 1, 2, 2), {}),
    "factors of 3 and 2": ((3, 2), (3, 3), (1, 1, 1, 1), {}),
    "factor of 4": ((4, 4), (3, 3), (1, 1, 1, 1), {}),
    "one axis": ((1, 2), (3, 3), (1, 1, 1, 1), {}),
    "signals": ((2,), (3,), (1, 1), {}),
    "volumes": ((2, 2, 2), (3, 3, 3), (1,) * 6, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_convolution_of_repeated_pixels_is_a_transposed_one(case: str) -> None:
    factors, kernel, pads, attrs = CASES[case]
    x, w, b = normal(2, 3, *(5, 4, 3)[: len(kernel)]), normal(6, 3, *kernel), normal(6)
    nodes = [
        upsample(factors),
        helper.make_node("Conv", ["u", "w", "b"], ["c"], pads=pads, **attrs),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    model = model_of(nodes, {"x": x}, {"y": FLOAT}, {"w": w, "b": b, **scales(*factors)})
    # A stride of one is left of axes that are not repeated.
    best = ops(optimize(load_onnx(model)))
    assert best["expand"] == 0 and best["conv"] == 0 and best["conv_transpose"] == 1
    check(model, {"x": x}, expected(model, {"x": x}), rtol=2e-5)
    exactly = ops(optimize(load_onnx(model), exact=True))
    assert exactly["expand"] == 1 and exactly["conv_transpose"] == 0


OTHERS = {
    "strides": {"strides": (2, 2)},
    "dilations": {"dilations": (2, 2)},
    "groups": {"group": 3},
    "wide padding": {"pads": (3, 3, 3, 3)},
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_convolutions_stay(case: str) -> None:
    x, w = normal(1, 3, 5, 4), normal(6, 1 if "group" in OTHERS[case] else 3, 3, 3)
    nodes = [upsample((2, 2)), helper.make_node("Conv", ["u", "w"], ["y"], **OTHERS[case])]
    model = model_of(nodes, {"x": x}, {"y": FLOAT}, {"w": w, **scales(2, 2)})
    assert ops(optimize(load_onnx(model)))["conv"] == 1
    check(model, {"x": x}, expected(model, {"x": x}), rtol=2e-5)


def test_weights_that_are_not_known_stay() -> None:
    x, w = normal(1, 3, 5, 4), normal(6, 3, 3, 3)
    nodes = [upsample((2, 2)), helper.make_node("Conv", ["u", "w"], ["y"])]
    model = model_of(nodes, {"x": x, "w": w}, {"y": FLOAT}, scales(2, 2))
    assert ops(optimize(load_onnx(model)))["conv"] == 1
    check(model, {"x": x, "w": w}, expected(model, {"x": x, "w": w}), rtol=2e-5)


def test_weights_with_sums_beyond_floats_stay() -> None:
    x, w = normal(1, 3, 5, 4), np.full((6, 3, 3, 3), 2e38, np.float32)
    nodes = [upsample((2, 2)), helper.make_node("Conv", ["u", "w"], ["y"])]
    model = model_of(nodes, {"x": x}, {"y": FLOAT}, {"w": w, **scales(2, 2)})
    assert ops(optimize(load_onnx(model)))["conv"] == 1


def test_what_is_alike_for_all_pixels_comes_before_the_repetition() -> None:
    x, w = normal(1, 3, 5, 4), normal(6, 3, 1, 1)
    nodes = [
        upsample((2, 3)),
        helper.make_node("Conv", ["u", "w"], ["c"]),
        helper.make_node("Add", ["shift", "c"], ["d"]),
        helper.make_node("Sigmoid", ["d"], ["s"]),
        helper.make_node("Where", ["positive", "s", "c0"], ["y"]),
    ]
    constants = {
        "w": w,
        "shift": normal(6, 1, 1),
        "positive": normal(1, 6, 1, 1) > 0,
        "c0": np.float32(2.0),
        **scales(2, 3),
    }
    model = model_of(nodes, {"x": x}, {"y": FLOAT}, constants)
    best = optimize(load_onnx(model))
    assert all(best.types[n.output].size <= 6 * 5 * 4 for n in best.nodes if n.op == "sigmoid")
    assert all(best.types[n.inputs[0]].size == 3 * 5 * 4 for n in best.nodes if n.op == "matmul")
    check(model, {"x": x}, expected(model, {"x": x}), rtol=2e-6)
    exactly = optimize(load_onnx(model), exact=True)
    assert all(exactly.types[n.output].size <= 120 for n in exactly.nodes if n.op == "sigmoid")


def test_what_differs_between_pixels_or_is_read_twice_stays() -> None:
    x = normal(1, 3, 5, 4)
    nodes = [
        upsample((2, 2)),
        helper.make_node("Add", ["u", "own"], ["a"]),
        helper.make_node("Sigmoid", ["u"], ["s"]),
        helper.make_node("Mul", ["a", "s"], ["y"]),
    ]
    constants = {"own": normal(1, 1, 10, 8), **scales(2, 2)}
    model = model_of(nodes, {"x": x}, {"y": FLOAT}, constants)
    check(model, {"x": x}, expected(model, {"x": x}), rtol=2e-6)


def test_two_readers_of_a_repetition_each_read_what_is_repeated() -> None:
    x, w, v = normal(1, 3, 5, 4), normal(6, 3, 3, 3), normal(2, 3, 5, 5)
    nodes = [
        upsample((2, 2)),
        helper.make_node("Conv", ["u", "w"], ["y"], pads=(1, 1, 1, 1)),
        helper.make_node("Conv", ["u", "v"], ["z"], pads=(2, 2, 2, 2)),
    ]
    constants = {"w": w, "v": v, **scales(2, 2)}
    model = model_of(nodes, {"x": x}, {"y": FLOAT, "z": FLOAT}, constants)
    assert ops(optimize(load_onnx(model)))["conv_transpose"] == 2
    check(model, {"x": x}, expected(model, {"x": x}), rtol=2e-5)


def test_a_repetition_of_channels_is_none_of_pixels() -> None:
    x, w = normal(1, 3, 5, 4), normal(6, 6, 3, 3)
    nodes = [
        helper.make_node("Resize", ["x", "", "all"], ["u"], mode="nearest"),
        helper.make_node("Conv", ["u", "w"], ["y"], pads=(1, 1, 1, 1)),
    ]
    constants = {"w": w, "all": np.array([1, 2, 2, 2], np.float32)}
    model = model_of(nodes, {"x": x}, {"y": FLOAT}, constants)
    assert ops(optimize(load_onnx(model)))["conv"] == 1
    check(model, {"x": x}, expected(model, {"x": x}), rtol=2e-5)
