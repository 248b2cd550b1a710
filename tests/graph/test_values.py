"""Extreme values of the dtypes in native networks give the results of ONNX and numpy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.pipeline import auto_schedule, compile_plain

INF, NAN = np.inf, np.nan
Array = npt.NDArray[Any]


def run(
    nodes: list[Any], feeds: dict[str, Array], arrays: dict[str, Array] | None = None
) -> list[Array]:
    """The outputs (y0, y1, ...) of a model, compiled with the plain schedule."""

    def info(name: str, array: Array) -> Any:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, array.shape)

    made = [v for n in nodes for v in n.output if v.startswith("y")]
    graph = helper.make_graph(
        nodes,
        "values",
        [info(n, x) for n, x in feeds.items()],
        [onnx.ValueInfoProto(name=v) for v in made],
        [numpy_helper.from_array(np.asarray(x), n) for n, x in (arrays or {}).items()],
    )
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    out = compile_plain(load_onnx(model))(**feeds)
    return list(out) if isinstance(out, tuple) else [out]


def node(op: str, *operands: str, out: str = "y", **attrs: Any) -> Any:
    return helper.make_node(op, operands, [out], **attrs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers_divide_towards_zero(dtype: type) -> None:
    info = np.iinfo(dtype)
    a = np.asarray([7, -7, 7, -7, 6, info.min, info.min, info.max, 5, 0], dtype)
    b = np.asarray([2, 2, -2, -2, -3, -1, 3, info.min, 0, -4], dtype)
    nodes = [
        node("Div", "a", "b", out="y0"),
        node("Mod", "a", "b", out="y1"),
        node("Mod", "a", "b", out="y2", fmod=1),
        node("Div", "a", "c", out="y3"),
        node("Mod", "a", "c", out="y4"),
    ]
    y = run(nodes, {"a": a, "b": b}, {"c": np.asarray(-3, dtype)})
    third = -(int(info.max) + 1) // 3 + 1
    assert y[0].tolist() == [3, -3, -3, 3, -2, info.min, third, 0, 0, 0]
    assert y[1].tolist() == [1, 1, -1, -1, 0, 0, int(info.min) % 3, -1, 0, 0]
    assert y[2].tolist() == [1, -1, 1, -1, 0, 0, -(-int(info.min) % 3), info.max, 0, 0]
    assert y[3].tolist() == [-2, 2, -2, 2, -2, -third, -third, -(int(info.max) // 3), -1, 0]
    assert y[4].tolist() == [int(v) % -3 for v in a]


def test_integers_to_a_power() -> None:
    x = np.asarray([3, -2, 7, 0, 1, -1, -1, 2, 0], np.int64)
    y = np.asarray([4, 3, 20, 0, 99, 99, -2, -1, -1], np.int64)
    nodes = [node("Pow", "x", "y", out="y0"), node("Pow", "x", "two", out="y1")]
    nodes += [node("Pow", "x", "half", out="y2")]
    arrays = {"two": np.asarray(2, np.int64), "half": np.asarray(1.5, np.float32)}
    squared = run(nodes, {"x": x, "y": y}, arrays)
    assert squared[0].tolist() == [81, -8, 7**20, 1, 1, -1, 1, 0, 0]
    assert squared[1].tolist() == [9, 4, 49, 0, 1, 1, 1, 4, 0]
    assert squared[2].tolist()[:1] == [5]


def test_means_of_integers() -> None:
    x = np.asarray([[10, 20, 31], [-3, -3, -5], [0, 0, 2]], np.int32)
    nodes = [node("ReduceMean", v, "axes", out=f"y{k}", keepdims=0) for k, v in enumerate("xw")]
    wide = x.astype(np.int64) * 2**40 + 1
    y = run(nodes, {"x": x, "w": wide}, {"axes": np.asarray([1])})
    assert y[0].tolist() == [20, -3, 0]
    assert y[1].tolist() == [(61 * 2**40 + 3) // 3, -((11 * 2**40 - 3) // 3), (2 * 2**40 + 3) // 3]


def test_integer_limits_are_exact() -> None:
    big = 2**60 + 1
    x = np.asarray([big, -big, 3], np.int64)
    arrays = {"low": np.asarray(-(2**60) - 3, np.int64), "high": np.asarray(2**60 - 1, np.int64)}
    y = run([node("Clip", "x", "low", "high")], {"x": x}, arrays)[0]
    assert y.tolist() == [2**60 - 1, -big, 3]
    b = GraphBuilder("pad")
    graph = b.finish([b.emit("pad", [b.input("x", (3,), "int64")], pads=((1, 0),), value=big)])
    assert np.asarray(compile_plain(graph)(x)).tolist() == [big, *x.tolist()]


def test_backwards_from_before_the_first_element() -> None:
    x = np.asarray([5, 6, 7], np.float32)
    arrays = {"from": np.asarray([-9]), "to": np.asarray([-9]), "a": np.asarray([0])}
    y = run(
        [node("Slice", "x", "from", "to", "a", "s")], {"x": x}, arrays | {"s": np.asarray([-1])}
    )
    assert y[0].tolist() == [5]


def test_signs_of_zeros_and_halves() -> None:
    x = np.asarray([-0.0, 0.0, -0.3, -0.5, 0.5, 1.5, -1.5, -INF, INF, NAN, 1e-40], np.float32)
    nodes = [node(op, "x", out=f"y{k}") for k, op in enumerate(("Round", "Ceil", "Floor", "Sign"))]
    rounded, up, down, sign = run(nodes, {"x": x})
    for got, want in ((rounded, np.round(x)), (up, np.ceil(x)), (down, np.floor(x))):
        np.testing.assert_array_equal(got, want)
        zeros = want == 0
        assert np.array_equal(np.signbit(got[zeros]), np.signbit(want[zeros]))
    np.testing.assert_array_equal(sign, np.sign(x))


def test_activations_at_the_ends() -> None:
    x = np.asarray([-INF, -3e38, -1.0, -0.0, 2.0, 3e38, INF, NAN], np.float32)
    nodes = [
        node("LeakyRelu", "x", out="y0", alpha=0.0),
        node("PRelu", "x", "slopes", out="y1"),
        node("Softplus", "x", out="y2"),
        node("PRelu", "x", "slope", out="y3"),
    ]
    slopes = np.asarray([1, 0.5, INF, NAN, INF, -INF, NAN, 1], np.float32)
    y = run(nodes, {"x": x}, {"slopes": slopes, "slope": np.asarray([0.5], np.float32)})
    np.testing.assert_array_equal(y[0][1:], [-0.0, -0.0, -0.0, 2, np.float32(3e38), INF, NAN])
    assert np.isnan(y[0][0])  # -inf times 0
    np.testing.assert_array_equal(
        y[1], np.asarray([-INF, -1.5e38, -INF, -0.0, 2, 3e38, INF, NAN], np.float32)
    )
    np.testing.assert_allclose(
        y[2], [0, 0, np.log1p(np.exp(-1.0)), np.log(2), 2.126928, 3e38, INF, NAN], 1e-6
    )
    np.testing.assert_array_equal(
        y[3], np.asarray([-INF, -1.5e38, -0.5, 0, 2, 3e38, INF, NAN], np.float32)
    )


def test_sums_of_exponentials_of_infinities() -> None:
    rows = [[-INF, -INF], [INF, 0], [INF, -INF], [3e38, -3e38], [1, 2], [NAN, 1]]
    x = np.asarray(rows, np.float32)
    y = run([node("ReduceLogSumExp", "x", "a", keepdims=0)], {"x": x}, {"a": np.asarray([1])})[0]
    np.testing.assert_allclose(y, [-INF, INF, INF, 3e38, np.log(np.e + np.e**2), NAN], 1e-6)


def test_a_pool_of_nothing_but_minus_infinity() -> None:
    x = np.full((1, 1, 4), -INF, np.float32)
    y = run([node("MaxPool", "x", kernel_shape=[3], pads=[1, 1])], {"x": x})[0]
    assert np.all(y == -INF)


def test_places_of_extremes_with_nan() -> None:
    rows = [[1, NAN, 5, NAN], [2, 2, 1, 1], [-INF, -INF, -INF, -INF]]
    x = np.asarray(rows, np.float32)
    flags = {"axis": 1, "keepdims": 0}
    nodes = [
        node("ArgMax", "x", out="y0", **flags),
        node("ArgMin", "x", out="y1", **flags),
        node("ArgMax", "x", out="y2", select_last_index=1, **flags),
        node("ArgMin", "x", out="y3", select_last_index=1, **flags),
    ]
    y = run(nodes, {"x": x})
    assert [v.tolist() for v in y] == [[1, 0, 0], [1, 2, 0], [3, 1, 3], [3, 3, 3]]


SCALES = [
    ("Mul", 1e30, "Mul", 1e30, [1e-38, 0.0, 1e-30]),
    ("Mul", 1e30, "Mul", 1e-30, [1e20, 1.0, INF]),
    ("Mul", 1e30, "Div", 1e30, [1e20, 1.0, NAN]),
    ("Mul", 1e-30, "Mul", 1e30, [1e-20, 1.0, -0.0]),
    ("Div", 1e-39, "Mul", 1.0, [1e-38, 0.0, 2e-39]),
    ("Div", 3e38, "Mul", 2.0, [3e38, 1e38, 1.0]),
    ("Add", 1e8, "Add", 1e-3, [-1e8, 1.0, 0.0]),
    ("Add", 3e38, "Sub", 3e38, [3e38, 1.0, -3e38]),
    ("Add", 0.0, "Mul", 1.0, [-0.0, 0.0, -1.0]),
    ("Div", INF, "Add", 1.0, [1.0, INF, -2.0]),
]


@pytest.mark.parametrize(("first", "a", "second", "b", "values"), SCALES)
def test_constants_merge_only_where_nothing_changes(
    first: str, a: float, second: str, b: float, values: list[float]
) -> None:
    x, one, other = (np.asarray(v, np.float32) for v in (values, a, b))
    nodes = [node(first, "x", "a", out="t"), node(second, "t", "b")]
    got = run(nodes, {"x": x}, {"a": one, "b": other})[0]
    functions = {"Mul": np.multiply, "Div": np.divide, "Add": np.add, "Sub": np.subtract}
    with np.errstate(all="ignore"):
        want = functions[second](functions[first](x, one), other)
    np.testing.assert_allclose(got, want, 1e-6)
    assert np.array_equal(np.signbit(got), np.signbit(want)) or np.isnan(want).any()


def test_a_scale_that_overflows_stays_out_of_the_weights() -> None:
    x = np.full((1, 1, 3), 1e-38, np.float32)
    nodes = [node("Conv", "x", "w", out="t"), node("Mul", "t", "s")]
    arrays = {"w": np.full((1, 1, 1), 1e30, np.float32), "s": np.asarray(1e30, np.float32)}
    np.testing.assert_allclose(run(nodes, {"x": x}, arrays)[0], np.full((1, 1, 3), 1e22), 1e-5)


def test_a_norm_around_a_distant_mean_does_not_cancel() -> None:
    x = np.asarray([[16777216.0], [16777218.0]], np.float32)
    rows = {"s": 1.0, "b": 0.5, "m": 16777216.0, "v": 1.0}
    arrays = {k: np.asarray([v], np.float32) for k, v in rows.items()}
    y = run([node("BatchNormalization", "x", *rows, epsilon=0.0)], {"x": x}, arrays)[0]
    assert y.ravel().tolist() == [0.5, 2.5]


def test_indices_that_are_wrong_at_run_time() -> None:
    b = GraphBuilder("lookup")
    x, i = b.input("x", (3, 2)), b.input("i", (2,), "int64")
    near = b.emit("take", [x, i], "near", "first", axis=0)
    one = b.constant(np.asarray(1, np.int64))
    far = b.emit("take", [x, b.emit("add", [i, one])], "far", "second", axis=0)
    module = compile_plain(b.finish([near, far]))
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    got = module(data, np.asarray([1, -3]))
    np.testing.assert_array_equal(got[0], data[[1, 0]])
    np.testing.assert_array_equal(got[1], data[[2, 1]])
    with pytest.raises(ModelError, match=r"node '?first'? takes element 3 along axis 0"):
        module(data, np.asarray([0, 3]))
    with pytest.raises(ModelError, match=r"node '?first'? takes element -4"):
        module(data, np.asarray([-4, 0]))
    with pytest.raises(ModelError, match=r"node '?second'? takes element 3"):
        module(data, np.asarray([0, 2]))
    np.testing.assert_array_equal(module(data, np.asarray([1, -3]))[1], data[[2, 1]])


def test_constant_indices_that_are_wrong() -> None:
    b = GraphBuilder("lookup")
    x = b.input("x", (3,))
    y = b.emit("take", [x, b.constant(np.asarray([0, 3]))], "y", "n", axis=0)
    with pytest.raises(ModelError, match=r"node '?n'? takes element 3"):
        compile_plain(b.finish([y]))


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (4, 2), (2, 3), (3, 1)])
def test_infinities_in_transposed_convolutions_stay_under_the_kernel(
    kernel: int, stride: int
) -> None:
    """No tap that is not there, and no border, makes NaN of them."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 2, 5, 5)).astype(np.float32)
    w = np.abs(rng.standard_normal((2, 3, kernel, kernel))).astype(np.float32)
    spoilt = x.copy()
    spoilt[0, 1, 2, 2] = INF
    steps = node("ConvTranspose", "x", "w", strides=[stride] * 2, pads=[1] * 4)
    (plain,), (y,) = run([steps], {"x": x}, {"w": w}), run([steps], {"x": spoilt}, {"w": w})
    under = np.zeros((y.shape[2] + 2 * kernel,) * 2, bool)
    first = 2 * stride - 1 + kernel
    under[first : first + kernel, first : first + kernel] = True
    under = np.broadcast_to(under[kernel:-kernel, kernel:-kernel], y.shape)
    np.testing.assert_array_equal(np.isposinf(y), under)
    np.testing.assert_allclose(y[~under], plain[~under], 1e-5, 1e-5)


def test_infinite_weights_meet_nothing_outside_of_the_data() -> None:
    x = np.ones((1, 1, 4), np.float32)
    w = np.asarray([[[INF, 1, 2]]], np.float32)
    (y,) = run([node("Conv", "x", "w", pads=[1, 1])], {"x": x}, {"w": w})
    np.testing.assert_array_equal(y, [[[3, INF, INF, INF]]])
    (y,) = run([node("ConvTranspose", "x", "w")], {"x": x, "w": w})
    np.testing.assert_array_equal(y, [[[INF, INF, INF, INF, 3, 2]]])


def test_a_product_minus_its_own_maximum_is_zero() -> None:
    """Also where the product is computed again: fused with the difference, it is not rounded."""
    x = np.tanh(np.linspace(0.3, 0.9, 7))
    b = GraphBuilder("peak")
    scaled = b.emit("mul", [b.input("x", (7,), "float64"), b.constant(np.asarray(1e38))])
    peak = b.emit("reduce_max", [scaled], axes=(0,), keepdims=True)
    net = b.finish([b.emit("exp", [b.emit("sub", [scaled, peak])])])
    for module in (compile_plain(net), auto_schedule(net, n_trials=0, progress=False)):
        np.testing.assert_array_equal(module(x), [0, 0, 0, 0, 0, 0, 1])
