"""Passes: each pass alone and all in order preserve values and do what their docstrings say."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from random_nets import nets

from ansorlite.graph import rewrites as rw
from ansorlite.graph.build import GraphBuilder, rewrite
from ansorlite.graph.groups import split_groups
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.layout import blocks, channels_last
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.passes import PASSES, Pass, optimize

FIRST: dict[str, Any] = {
    "strides": (1, 1),
    "pads": ((1, 1), (1, 1)),
    "dilations": (1, 1),
    "layout": "channels_first",
}


def assert_same_meaning(before: Graph, after: Graph) -> None:
    after.verify()
    assert [before.types[v] for v in before.inputs] == [after.types[v] for v in after.inputs]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(before.types[v].shape).astype(np.float32) for v in before.inputs]
    results = zip(evaluate(before, inputs), evaluate(after, inputs), strict=True)
    for want, got in results:
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * max(1, np.abs(want).max()))


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda p: p.__name__)
@given(graph=nets())
@settings(max_examples=25)
def test_a_pass_alone_keeps_the_meaning(step: Pass, graph: Graph) -> None:
    assert_same_meaning(graph, step(graph))


@given(nets())
@settings(max_examples=40)
def test_all_passes_keep_the_meaning_and_lower_everything(graph: Graph) -> None:
    best = optimize(graph)
    assert_same_meaning(graph, best)
    for node in best.nodes:
        assert OPERATORS[node.op].kind != "source", node
        assert node.attrs.get("layout", "channels_last") == "channels_last", node
        assert len(node.inputs) < 3 or node.op in ("concat", "where", "resample"), node


@given(nets())
@settings(max_examples=15)
def test_a_second_time_keeps_meaning_and_anchors(graph: Graph) -> None:
    best = optimize(graph)
    again = optimize(best)
    assert_same_meaning(graph, again)
    anchors = [Counter(n.op for n in g.nodes if n.operator.kind == "anchor") for g in (best, again)]
    assert anchors[0] == anchors[1]


@pytest.mark.parametrize("step", dict.fromkeys(PASSES), ids=lambda p: p.__name__)
def test_a_pass_says_what_it_rewrites(step: Pass) -> None:
    assert step.__doc__ is not None
    assert step.__doc__.startswith("rewrite: ") and "->" in step.__doc__


class Small:
    """A builder with weights of ones and the layers that the tests below need."""

    def __init__(self, *shape: int) -> None:
        self.b = GraphBuilder("small")
        self.x = self.b.input("x", shape)
        self.rng = np.random.default_rng(3)

    def param(self, *shape: int) -> str:
        return self.b.constant(self.rng.uniform(0.5, 1.5, shape).astype(np.float32), "w")

    def conv(self, x: str, co: int, bias: bool = False) -> str:
        operands = [x, self.param(co, self.b.shape(x)[1], 3, 3)]
        operands += [self.param(co)] if bias else []
        return self.b.emit("conv", operands, groups=1, **FIRST)

    def norm(self, x: str) -> str:
        params = [self.param(self.b.shape(x)[1]) for _ in range(4)]
        return self.b.emit("batch_norm", [x, *params], epsilon=1e-5)

    def gemm(self, x: str, n: int) -> str:
        operands = [x, self.param(n, self.b.shape(x)[1]), self.param(n)]
        return self.b.emit("gemm", operands, trans_a=False, trans_b=True, alpha=1.0, beta=1.0)

    def optimized(self, *outputs: str) -> list[str]:
        """The operators after all passes."""
        graph = self.b.finish(outputs)
        best = optimize(graph)
        assert_same_meaning(graph, best)
        return [n.op for n in best.nodes]


def test_a_scale_after_a_bias_that_is_not_split_off_stays() -> None:
    b = GraphBuilder("net")
    rng = np.random.default_rng(0)
    w, bias = (b.constant(rng.standard_normal(s).astype(np.float32)) for s in ((3, 2, 1, 1), (3,)))
    window = {**FIRST, "pads": ((0, 0), (0, 0))}
    y = b.emit("conv", [b.input("x", (1, 2, 3, 3)), w, bias], groups=1, **window)
    graph = b.finish([b.emit("mul", [y, b.constant(np.full((1, 1, 1), 0.5, np.float32))])])
    assert_same_meaning(graph, rw.fold_scales(graph))


def test_batch_norm_and_scale_end_up_in_the_weights() -> None:
    s = Small(1, 3, 5, 5)
    y = s.norm(s.conv(s.x, 4, bias=True))
    y = s.b.emit("mul", [y, s.param(4, 1, 1)])
    y = s.b.emit("add", [y, s.param(4, 1, 1)])
    assert s.optimized(y) == ["transpose", "conv", "add", "transpose"]


def test_batch_norm_and_scale_fold_into_gemm() -> None:
    s = Small(2, 5)
    y = s.b.emit("div", [s.norm(s.gemm(s.x, 4)), s.param(4)])
    assert s.optimized(y) == ["matmul", "add"]


def test_batch_norm_stays_where_others_read_the_convolution() -> None:
    s = Small(1, 3, 5, 5)
    y = s.conv(s.x, 4)
    ops = s.optimized(s.norm(y), y)
    assert ops.count("conv") == 1 and ops.count("mul") == 1 and ops.count("add") == 1


def test_a_factor_per_pixel_does_not_fold() -> None:
    s = Small(1, 3, 5, 5)
    assert "mul" in s.optimized(s.b.emit("mul", [s.conv(s.x, 4), s.param(5, 5)]))


def test_transposes_stay_at_the_borders() -> None:
    s = Small(1, 3, 6, 6)
    y = s.b.emit("relu", [s.conv(s.x, 4)])
    y = s.b.emit("add", [s.conv(y, 4), y])
    y = s.b.emit("concat", [y, s.conv(y, 2)], axis=1)
    y = s.b.emit("pad", [y], pads=((0, 0), (1, 0), (0, 0), (0, 2)), value=0.5)
    y = s.b.emit("lrn", [y], axis=1, size=3, alpha=0.1, beta=0.75, bias=1.0)
    ops = s.optimized(s.conv(y, 5))
    assert ops.count("transpose") == 2 and (ops[0], ops[-1]) == ("transpose", "transpose")


def upsampled(s: Small, y: str) -> str:
    """Every pixel repeated 2 x 2, as a resize to the nearest is imported."""
    n, c, h, w = s.b.shape(y)
    y = s.b.emit("reshape", [y], shape=(n, c, h, 1, w, 1))
    y = s.b.emit("expand", [y], shape=(n, c, h, 2, w, 2))
    return s.b.emit("reshape", [y], shape=(n, c, 2 * h, 2 * w))


def halves(s: Small, y: str, size: int) -> list[str]:
    n, _, h, w = s.b.shape(y)
    cut: dict[str, Any] = {"sizes": (n, size, h, w), "steps": (1,) * 4}
    return [s.b.emit("slice", [y], starts=(0, k * size, 0, 0), **cut) for k in (0, 1)]


def feature_pyramid(s: Small) -> str:
    low = s.conv(s.x, 6)
    high = s.b.emit("max_pool", [low], kernel=(2, 2), ceil_mode=False, **FIRST | STRIDE_2)
    return s.b.emit("add", [upsampled(s, s.conv(high, 6)), low])


def u_net(s: Small) -> str:
    left, right = halves(s, s.conv(s.x, 6), 3)
    down = s.b.emit("max_pool", [left], kernel=(2, 2), ceil_mode=False, **FIRST | STRIDE_2)
    up = upsampled(s, s.conv(down, 5))
    return s.b.emit("concat", [up, right, left], axis=1)


def gated(s: Small) -> str:
    """Softmax over channels, and a factor a channel that is a vector expanded."""
    y = s.b.emit("softmax", [s.conv(s.x, 4)], axes=(1,))
    gate = s.b.emit("reduce_mean", [y], axes=(2, 3), keepdims=False)
    gate = s.b.emit("reshape", [s.b.emit("sigmoid", [gate])], shape=(2, 4, 1, 1))
    return s.b.emit("mul", [y, s.b.emit("expand", [gate], shape=s.b.shape(y))])


def vector_beside_features(s: Small) -> str:
    """A vector, repeated at each pixel, beside the features that it comes from."""
    y = s.conv(s.x, 4)
    vector = s.gemm(s.b.emit("reduce_max", [y], axes=(2, 3), keepdims=False), 3)
    vector = s.b.emit("reshape", [vector], shape=(2, 3, 1, 1))
    return s.b.emit("concat", [s.b.emit("expand", [vector], shape=(2, 3, 8, 8)), y], axis=1)


def group_norm(s: Small) -> str:
    """Mean and variance of two groups of channels, as the operator is imported."""
    y = s.conv(s.x, 6)
    view = s.b.emit("reshape", [y], shape=(2, 2, 3 * 64))
    mean = s.b.emit("reduce_mean", [view], axes=(2,), keepdims=True)
    centred = s.b.emit("sub", [view, mean])
    square = s.b.emit("mul", [centred, centred])
    power = s.b.emit("reduce_mean", [square], axes=(2,), keepdims=True)
    out = s.b.emit("div", [centred, s.b.emit("sqrt", [power])])
    out = s.b.emit("mul", [out, s.param(2, 1)])
    return s.b.emit("mul", [s.b.emit("reshape", [out], shape=(2, 6, 8, 8)), y])


def linear_upsampling(s: Small) -> str:
    y = s.conv(s.x, 4)
    at = s.b.constant(np.array([[0, 1], [1, 2], [2, 3]]), "at")
    half = s.b.constant(np.full((3, 2), 0.5, np.float32), "half")
    for axis in (2, 3):
        y = s.b.emit("resample", [y, at, half], axis=axis)
    return s.b.emit("pad", [y], pads=((0, 0), (0, 0), (1, 1), (0, 1)), value=1.0)


STRIDE_2: dict[str, Any] = {"strides": (2, 2), "pads": ((0, 0), (0, 0))}


MIDDLES = (feature_pyramid, u_net, gated, group_norm, vector_beside_features, linear_upsampling)


@pytest.mark.parametrize("middle", MIDDLES)
def test_only_input_and_output_are_transposed(middle: Any) -> None:
    s = Small(2, 3, 8, 8)
    ops = s.optimized(s.conv(middle(s), 5))
    assert ops.count("transpose") == 2 and (ops[0], ops[-1]) == ("transpose", "transpose")


@pytest.mark.parametrize("first", [(0, 1, 4, 2, 5, 3), (0, 3, 4, 1, 5, 2)])
def test_pixels_of_channels_move_once(first: tuple[int, ...]) -> None:
    """Depth to space of either mode, between convolutions."""
    s = Small(2, 3, 5, 4)
    split = (2, 3, 2, 2, 5, 4) if first[1] == 1 else (2, 2, 2, 3, 5, 4)
    y = s.b.emit("reshape", [s.conv(s.x, 12)], shape=split)
    y = s.b.emit("transpose", [y], perm=first)
    y = s.b.emit("reshape", [y], shape=(2, 3, 10, 8))
    assert s.optimized(s.conv(y, 4)).count("transpose") == 3


def test_a_larger_result_is_made_as_it_lies() -> None:
    """Few elements are transposed before linear upsampling at the end, not many after it."""
    b = GraphBuilder("head")
    x = b.input("x", (1, 4, 3, 3))
    w = b.constant(np.ones((5, 4, 1, 1), np.float32))
    x = b.emit("conv", [x, w], **{**FIRST, "pads": ((0, 0), (0, 0))}, groups=1)
    index = b.constant(np.array([[0, 1]] * 4 + [[1, 2]] * 4))
    share = b.constant(np.full((8, 2), 0.5, np.float32))
    for axis in (3, 2):
        x = b.emit("resample", [x, index, share], axis=axis)
    best = optimize(b.finish([b.emit("relu", [x])]))
    assert [n.op for n in best.nodes] == [
        "transpose",
        "conv",
        "transpose",
        *["resample"] * 2,
        "relu",
    ]


def test_windows_slide_over_spatial_axes_as_they_lie() -> None:
    """Height and width change places between layers: no element moves."""
    s = Small(2, 3, 9, 8)
    y = s.b.emit("transpose", [s.conv(s.x, 4)], perm=(0, 1, 3, 2))
    uneven: dict[str, Any] = {"pads": ((1, 0), (2, 1)), "strides": (1, 2), "dilations": (2, 1)}
    y = s.b.emit("conv", [y, s.param(6, 2, 3, 2)], groups=2, **FIRST | uneven)
    y = s.b.emit("relu", [y])
    slim: dict[str, Any] = {"pads": ((1, 0), (0, 0)), "dilations": (2, 1)}
    y = s.b.emit("max_pool", [y], kernel=(2, 1), ceil_mode=False, **FIRST | slim)
    stretched: dict[str, Any] = {"pads": ((0, 1), (0, 0)), "strides": (2, 1)}
    w = s.param(6, 5, 3, 2)
    y = s.b.emit("conv_transpose", [y, w], layout="channels_first", **stretched)
    assert s.optimized(y).count("transpose") == 2


def test_groups_stay_merged_where_others_read_them() -> None:
    s = Small(1, 3, 5, 5)
    view = s.b.emit("reshape", [s.conv(s.x, 4)], shape=(1, 2, 50))
    mean = s.b.emit("reduce_mean", [view], axes=(2,), keepdims=True)
    centred = s.b.emit("sub", [view, mean])
    by_pixel = s.b.emit("mul", [centred, s.param(50)])
    for outputs in ([centred], [s.b.emit("reshape", [by_pixel], shape=(1, 4, 5, 5))]):
        graph = s.b.finish(outputs)
        assert str(split_groups(graph)) == str(graph)
        assert_same_meaning(graph, optimize(graph))


def test_an_expand_before_arithmetic_goes() -> None:
    s = Small(1, 3)
    y = s.b.emit("expand", [s.x], shape=(4, 3))
    assert s.optimized(s.b.emit("add", [y, s.param(4, 3)])) == ["add"]
    assert s.optimized(s.b.emit("add", [y, s.param(1, 3)])) == ["expand", "add"]
    z = s.b.emit("expand", [s.x], shape=(4, 3))
    assert s.optimized(s.b.emit("maximum", [y, z])) == ["expand", "maximum"]


def test_expanding_adds_axes_in_front_of_any_order() -> None:
    s = Small(2, 3, 5, 5)
    y = s.b.emit("expand", [s.conv(s.x, 4)], shape=(3, 2, 4, 5, 5))
    y = s.b.emit("reduce_max", [y], axes=(3, 4), keepdims=False)
    assert s.optimized(y).count("transpose") == 1


def test_flatten_into_a_dense_layer_moves_the_weights_rows() -> None:
    s = Small(2, 3, 5, 5)
    y = s.conv(s.x, 4)
    y = s.gemm(s.b.emit("reshape", [y], shape=(2, 100)), 7)
    assert s.optimized(y) == ["transpose", "conv", "reshape", "matmul", "add"]


def test_flatten_after_global_pooling_is_a_view() -> None:
    s = Small(2, 3, 5, 5)
    y = s.b.emit("reduce_mean", [s.conv(s.x, 4)], axes=(2, 3), keepdims=True)
    y = s.gemm(s.b.emit("reshape", [y], shape=(2, 4)), 7)
    expected = ["transpose", "conv", "reduce_sum", "mul", "reshape", "matmul", "add"]
    assert s.optimized(y) == expected


def test_a_channel_shuffle_moves_data_once() -> None:
    s = Small(1, 3, 5, 5)
    y = s.conv(s.x, 6)
    y = s.b.emit("reshape", [y], shape=(1, 2, 3, 5, 5))
    y = s.b.emit("transpose", [y], perm=(0, 2, 1, 3, 4))
    y = s.b.emit("reshape", [y], shape=(1, 6, 5, 5))
    y = s.b.emit("reduce_max", [s.conv(y, 4)], axes=(2, 3), keepdims=False)
    assert s.optimized(y).count("transpose") == 2


def test_patches_to_rows_move_nothing() -> None:
    """[n, c, h, w] -> [n, c, h*w] -> [n, h*w, c] is how channels-last data lies already."""
    s = Small(1, 3, 5, 5)
    y = s.b.emit("reshape", [s.conv(s.x, 4)], shape=(1, 4, 25))
    y = s.b.emit("transpose", [y], perm=(0, 2, 1))
    y = s.b.emit("matmul", [y, s.param(4, 6)])
    assert s.optimized(y) == ["transpose", "conv", "reshape", "matmul"]


def test_explicit_padding_goes_into_the_convolution() -> None:
    s = Small(1, 3, 5, 5)
    y = s.b.emit("pad", [s.x], pads=((0, 0), (0, 0), (1, 2), (0, 1)), value=0.0)
    graph = s.b.finish([s.conv(y, 4)])
    (node,) = [n for n in optimize(graph).nodes if n.op == "conv"]
    assert node.attrs["pads"] == ((2, 3), (1, 2))
    assert_same_meaning(graph, optimize(graph))


@pytest.mark.parametrize(
    ("widths", "value"),
    [(((0, 0), (1, 0), (1, 1), (0, 0)), 0.0), (((0, 0),) * 2 + ((1, 1),) * 2, 0.5)],
)
def test_padding_of_channels_or_with_a_value_stays(widths: Any, value: float) -> None:
    s = Small(1, 3, 5, 5)
    ops = s.optimized(s.conv(s.b.emit("pad", [s.x], pads=widths, value=value), 4))
    assert "pad" in ops


@pytest.mark.parametrize("groups", [1, 2])
def test_taps_that_read_padding_only_go(groups: int) -> None:
    rng = np.random.default_rng(9)
    fewer = 0
    for _ in range(150):
        b = GraphBuilder("taps")
        kernel, strides, dilations = (rng.integers(1, m, 2).tolist() for m in (6, 4, 8))
        pads = rng.integers(0, 12, (2, 2)).tolist()
        needed = [d * (k - 1) + 1 - sum(p) for d, k, p in zip(dilations, kernel, pads, strict=True)]
        x = b.input("x", (1, 4, *(max(1, n) + int(rng.integers(0, 4)) for n in needed)))
        w = b.constant(rng.standard_normal((2, 4 // groups, *kernel)).astype(np.float32), "w")
        attrs = {"strides": strides, "dilations": dilations, "pads": tuple(map(tuple, pads))}
        window = {**FIRST, **{k: tuple(v) for k, v in attrs.items()}}
        graph = b.finish([b.emit("conv", [x, w], groups=groups, **window)])
        after = rw.drop_taps(graph)
        assert_same_meaning(graph, after)
        fewer += after != graph
        (conv,) = (n for n in after.nodes if n.op == "conv")
        for low, high in conv.attrs["pads"]:
            assert min(low, high) >= 0
        assert rw.drop_taps(after) == after
    assert fewer > 20


def test_a_dilation_of_the_whole_extent_leaves_a_product() -> None:
    b = GraphBuilder("aspp")
    x = b.input("x", (1, 8, 17, 17))
    w = b.constant(np.random.default_rng(0).standard_normal((4, 8, 3, 3)).astype(np.float32))
    window = {**FIRST, "dilations": (18, 18), "pads": ((18, 18), (18, 18))}
    graph = b.finish([b.emit("conv", [x, w], groups=1, **window)])
    after = rw.drop_taps(graph)
    assert_same_meaning(graph, after)
    (conv,) = (n for n in after.nodes if n.op == "conv")
    assert after.types[conv.inputs[1]].shape == (4, 8, 1, 1)
    assert conv.attrs["pads"] == ((0, 0), (0, 0))


def test_transposed_rows_do_not_go_into_the_weights() -> None:
    s = Small(3, 2, 5)
    y = s.b.emit("transpose", [s.x], perm=(1, 0, 2))
    y = s.b.emit("reshape", [y], shape=(2, 15))
    graph = s.b.finish([s.b.emit("matmul", [y, s.param(15, 4)])])
    assert_same_meaning(graph, rw.fold_flatten(graph))
    assert s.optimized(graph.outputs[0]) == ["transpose", "reshape", "matmul"]


def test_average_pool_divides_by_a_constant_or_by_a_table() -> None:
    attrs = {k: v for k, v in FIRST.items()} | {"kernel": (3, 3), "ceil_mode": False}
    sizes = []
    for include in (True, False):
        s = Small(1, 2, 5, 5)
        graph = s.b.finish([s.b.emit("avg_pool", [s.x], count_include_pad=include, **attrs)])
        low = rw.lower_means(graph)
        assert_same_meaning(graph, low)
        sizes += [a.size for a in low.constants.values()]
    assert sizes == [1, 25]


def arithmetic(op: str, value: float, flip: bool = False) -> list[str]:
    s = Small(2, 3)
    pair = [s.x, s.b.constant(np.full(3, value, np.float32))]
    return s.optimized(s.b.emit("tanh", [s.b.emit(op, pair[::-1] if flip else pair)]))


@pytest.mark.parametrize(
    ("op", "value", "flip", "expected"),
    [
        ("add", 0.0, False, ["add"]),  # -0.0 + 0.0 is 0.0
        ("add", -0.0, False, []),
        ("add", -0.0, True, []),
        ("sub", 0.0, False, []),
        ("sub", -0.0, False, ["add"]),
        ("sub", 0.0, True, ["sub"]),
        ("sub", 2.0, False, ["add"]),
        ("mul", 1.0, True, []),
        ("div", 1.0, False, []),
        ("div", 4.0, False, ["mul"]),
        ("div", 3.0, False, ["mul"]),
        ("div", 1e-39, False, ["div"]),
        ("div", 3e38, False, ["div"]),
        ("div", np.inf, False, ["div"]),
        ("div", np.nan, False, ["div"]),
        ("pow", 0.5, False, ["pow"]),  # of -inf it is inf, and of -0.0 it is 0.0
        ("div", 4.0, True, ["div"]),
        ("pow", 1.0, False, []),
        ("pow", 2.0, False, ["mul"]),
        ("pow", 0.0, True, ["pow"]),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_arithmetic_with_constants(op: str, value: float, flip: bool, expected: list[str]) -> None:
    s = Small(2, 3)
    pair = [s.x, s.b.constant(np.full(3, value, np.float32))]
    graph = s.b.finish([s.b.emit("tanh", [s.b.emit(op, pair[::-1] if flip else pair)])])
    best = optimize(graph)
    assert [n.op for n in best.nodes] == [*expected, "tanh"]
    x = np.asarray([[1.0, 2.0, 3.0], [0.5, 4.0, 0.1]], np.float32)
    np.testing.assert_allclose(evaluate(best, [x])[0], evaluate(graph, [x])[0], rtol=1e-6)


def test_adding_zeros_that_enlarge_stays() -> None:
    s = Small(1, 3)
    zeros = s.b.constant(np.zeros((4, 3), np.float32))
    assert s.optimized(s.b.emit("add", [s.x, zeros])) == ["add"]
    twos = s.b.constant(np.full((4, 3), 2.0, np.float32))
    assert s.optimized(s.b.emit("pow", [s.x, twos])) == ["pow"]


@pytest.mark.parametrize(
    ("starts", "sizes", "steps", "start"),
    [
        ((1, 0, 0), (2, 3, 4), (1, 1, 1), 12),
        ((2, 1, 0), (1, 2, 4), (1, 1, 1), 28),
        ((0, 2, 1), (1, 1, 3), (1, 1, 1), 9),
        ((2, 2, 3), (1, 1, 1), (-1, -1, -1), 35),
        ((0, 0, 0), (2, 2, 4), (1, 1, 1), None),
        ((0, 0, 0), (2, 3, 4), (2, 1, 1), None),
        ((0, 2, 0), (1, 3, 4), (1, -1, 1), None),
    ],
)
def test_a_slice_of_neighbours_is_a_view(
    starts: Any, sizes: Any, steps: Any, start: int | None
) -> None:
    b = GraphBuilder("net")
    x = b.input("x", (3, 3, 4))
    graph = b.finish([b.emit("slice", [x], starts=starts, sizes=sizes, steps=steps)])
    after = rw.view_slices(graph)
    assert_same_meaning(graph, after)
    assert after.nodes[0].attrs.get("start") == start


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_a_slice_of_indices_or_of_a_chain_stays(dtype: str) -> None:
    """Indices are checked value by value; a chain computes the sliced elements alone."""
    b = GraphBuilder("net")
    x = b.input("x", (3, 4), dtype)
    x = b.emit("abs", [x]) if dtype == "float32" else x
    y = b.emit("slice", [x], starts=(1, 0), sizes=(1, 4), steps=(1, 1))
    assert rw.view_slices(b.finish([y])).nodes[-1].op == "slice"


def test_duplicates_and_dead_nodes_go() -> None:
    s = Small(2, 3)
    u, v = s.b.emit("exp", [s.x]), s.b.emit("exp", [s.x])
    s.b.emit("tanh", [u])
    assert s.optimized(s.b.emit("add", [u, v])) == ["exp", "add"]


def test_an_identity_at_the_output_goes() -> None:
    s = Small(2, 3)
    assert s.optimized(s.b.emit("identity", [s.b.emit("identity", [s.x])])) == []


def test_constants_are_computed() -> None:
    s = Small(2, 3)
    w = s.b.emit("transpose", [s.param(3, 2)], perm=(1, 0))
    assert s.optimized(s.b.emit("add", [s.x, s.b.emit("exp", [w])])) == ["add"]


def test_channels_last_leaves_channels_last_alone() -> None:
    s = Small(1, 5, 5, 3)
    y = s.b.emit(
        "conv", [s.x, s.param(3, 3, 3, 4)], groups=1, **FIRST | {"layout": "channels_last"}
    )
    graph = s.b.finish([y])
    assert str(channels_last(graph)) == str(graph)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ((2, 6, 4), (2, 3, 2, 4), [([0], [0]), ([1], [1, 2]), ([2], [3])]),
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((2, 3, 1, 1), (2, 3), [([0], [0]), ([1, 2, 3], [1])]),
        ((4, 3), (3, 4), [([0, 1], [0, 1])]),
        ((), (1, 1), [([], [0, 1])]),
        ((1, 6), (2, 3), [([0, 1], [0, 1])]),
    ],
)
def test_blocks_of_a_reshape(old: Any, new: Any, expected: Any) -> None:
    assert blocks(old, new) == expected


def test_what_no_rule_changes_is_kept() -> None:
    """The same graph, or the same nodes next to those that change."""
    b = GraphBuilder("net")
    x = b.input("x", (2, 4))
    y = b.emit("relu", [b.emit("sigmoid", [x], "s")], "y")
    b.emit("tanh", [x], "unused")
    graph = b.finish([y])
    assert rewrite(graph, lambda rw, node, operands: None) is graph
    changed = rewrite(
        graph,
        lambda rw, node, operands: rw.emit("tanh", operands) if node.op == "relu" else None,
    )
    assert changed.nodes[0] is graph.nodes[0] and [n.op for n in changed.nodes[1:]] == ["tanh"]
    assert_same_meaning(graph, rewrite(graph, lambda rw, node, operands: None))


def test_names_that_a_rule_took_and_known_values_are_no_others() -> None:
    b = GraphBuilder("net")
    x, one = b.input("x", (2, 4)), b.constant(np.ones((4,), np.float32), "one")
    known = b.emit("relu", [one], "known")  # computed by the first pass
    y = b.emit("add", [b.emit("sigmoid", [x], "s"), known], "y")
    graph = b.finish([b.emit("relu", [y], "z")])

    def rule(rw: Any, node: Any, operands: list[str]) -> str | None:
        if node.op != "sigmoid":
            return None
        return str(rw.emit("mul", [rw.emit("sigmoid", operands, "y"), rw.constant(np.float32(1))]))

    found = rewrite(graph, rule)
    assert "known" not in {n.output for n in found.nodes} and len(found.nodes) == 4
    assert_same_meaning(graph, found)
