"""Operators as tensor expressions against the graph's numpy meaning of the same operator."""

from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.conv import conv2d_nhwc, depthwise_conv2d_nhwc, grouped_conv2d_nhwc
from ansorlite.graph.ops.matmul import batch_matmul
from ansorlite.graph.ops.movement import spatial_names
from ansorlite.graph.ops.normalization import softmax
from ansorlite.graph.ops.pool import avg_pool2d, global_avg_pool, max_pool2d
from ansorlite.graph.ops.reduce import reduce
from ansorlite.graph.ops.table import OPERATORS

RNG = np.random.default_rng(11)


def values(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def run(build: Any, *arrays: Any) -> Any:
    """The result of `build(placeholders)` on arrays."""
    tensors = [te.placeholder(a.shape, name=f"x{k}") for k, a in enumerate(arrays)]
    out = build(*tensors)
    dag = te.ComputeDAG([out])
    (result,) = dag.evaluate({f"x{k}": a for k, a in enumerate(arrays)}).values()
    return result


def conv_attrs(stride: int, padding: int, dilation: int, groups: int) -> dict[str, Any]:
    return {
        "strides": (stride,) * 2,
        "pads": ((padding,) * 2,) * 2,
        "dilations": (dilation,) * 2,
        "groups": groups,
        "layout": "channels_last",
    }


WINDOWS = [(1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 1, 2)]


@pytest.mark.parametrize("window", WINDOWS)
def test_conv2d(window: tuple[int, int, int]) -> None:
    x, w = values(2, 7, 8, 4), values(3, 3, 4, 5)
    got = run(lambda a, b: conv2d_nhwc(a, b, *window), x, w)
    want = OPERATORS["conv"].meaning(conv_attrs(*window, 1), (x, w))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
def test_grouped_conv2d(window: tuple[int, int, int]) -> None:
    x, w = values(2, 7, 8, 4), values(3, 3, 2, 2, 3)
    got = run(lambda a, b: grouped_conv2d_nhwc(a, b, *window), x, w)
    want = OPERATORS["conv"].meaning(conv_attrs(*window, 2), (x, w.reshape(3, 3, 2, 6)))
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("multiplier", [(), (2,)])
def test_depthwise_conv2d(window: tuple[int, int, int], multiplier: tuple[int, ...]) -> None:
    x, w = values(2, 7, 8, 4), values(3, 3, 4, *multiplier)
    got = run(lambda a, b: depthwise_conv2d_nhwc(a, b, *window), x, w)
    want = OPERATORS["conv"].meaning(conv_attrs(*window, 4), (x, w.reshape(3, 3, 1, -1)))
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)


def test_pools() -> None:
    x = values(2, 7, 8, 3)
    attrs = conv_attrs(2, 1, 1, 1) | {"kernel": (3, 3), "ceil_mode": False}
    got = run(lambda a: max_pool2d(a, 3, 2, 1), x)
    np.testing.assert_array_equal(got, OPERATORS["max_pool"].meaning(attrs, (x,)))
    got = run(lambda a: avg_pool2d(a, 3, 2, 1), x)
    want = OPERATORS["avg_pool"].meaning(attrs | {"count_include_pad": True}, (x,))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    got = run(global_avg_pool, x)
    np.testing.assert_allclose(got, x.mean(axis=(1, 2)), rtol=1e-5, atol=1e-6)


def test_max_pool_of_negative_data_ignores_the_padding() -> None:
    x = -np.ones((1, 3, 3, 1), np.float32)
    assert run(lambda a: max_pool2d(a, 3, 2, 1), x).max() == -1


@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)])
def test_softmax_and_reductions_over_axes(axes: tuple[int, ...]) -> None:
    x = values(3, 4, 5)
    got = run(lambda a: softmax(a, axes), x)
    np.testing.assert_allclose(got, OPERATORS["softmax"].meaning({"axes": axes}, (x,)), rtol=1e-5)
    got = run(lambda a: reduce(a, "max", axes), x)
    np.testing.assert_array_equal(got, x.max(axis=axes).reshape(got.shape))


def test_softmax_of_large_values_does_not_overflow() -> None:
    x = np.asarray([[1000.0, 999.0, -1000.0]], np.float32)
    got = run(lambda a: softmax(a, (1,)), x)
    np.testing.assert_allclose(got, [[0.7310586, 0.2689414, 0.0]], rtol=1e-5)


@pytest.mark.parametrize(
    ("shape_a", "shape_b", "perm_a", "perm_b"),
    [
        ((2, 3, 4), (2, 4, 5), None, None),
        ((3, 4), (2, 4, 5), None, None),
        ((2, 1, 3, 4), (6, 4, 5), None, None),
        ((2, 3, 6, 4), (2, 5, 6, 4), (0, 2, 1, 3), (0, 2, 3, 1)),
        ((4, 3), (5, 4), (1, 0), (1, 0)),
    ],
)
def test_batch_matmul(shape_a: Any, shape_b: Any, perm_a: Any, perm_b: Any) -> None:
    a, b = values(*shape_a), values(*shape_b)
    got = run(lambda x, y: batch_matmul(x, y, perm_a, perm_b), a, b)
    left = a.transpose(perm_a) if perm_a else a
    right = b.transpose(perm_b) if perm_b else b
    np.testing.assert_allclose(got, left @ right, rtol=1e-5, atol=1e-5)


def test_axes_have_the_fields_names() -> None:
    x, w = te.placeholder((1, 5, 5, 4), name="x"), te.placeholder((3, 3, 4, 8), name="w")
    conv = te.ComputeDAG([conv2d_nhwc(x, w, 1, 1)]).computes[-1]
    assert [a.name for a in conv.axes] == ["n", "h", "w", "co"]
    assert [a.name for a in conv.reduce_axes] == ["kh", "kw", "ci"]


def test_padding_that_no_window_reads_is_left_out() -> None:
    """224 pixels, 7x7, stride 2, padding 3: the last window ends one short of the padding."""
    x, w = te.placeholder((1, 224, 224, 3), name="x"), te.placeholder((7, 7, 3, 8), name="w")
    padded = te.ComputeDAG([conv2d_nhwc(x, w, 2, 3)]).computes[0]
    assert padded.shape == (1, 229, 229, 3)


def test_errors_say_what_does_not_fit() -> None:
    a, b = te.placeholder((2, 3), name="a"), te.placeholder((4, 5), name="b")
    with pytest.raises(ModelError, match=r"cannot multiply \[2, 3\] and \[4, 5\]: inner extents"):
        batch_matmul(a, b)
    with pytest.raises(ModelError, match="4 spatial axes: only 1, 2 and 3 are supported"):
        spatial_names(4)
