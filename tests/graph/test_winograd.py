"""Winograd convolution: matrices, values, and its choice in networks."""

import itertools
from typing import Any

import numpy as np
import pytest
from sampled import sampled

from ansorlite import te
from ansorlite.codegen.build import build_program
from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.kernels import plain_image
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.ops import conv_forms
from ansorlite.graph.ops.bilinear import correlation, gain, strided
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.ops.winograd import fast_conv_nhwc, matrices, winograd_conv_nhwc
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.measure.compare import relative_error
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target
from ansorlite.task import SearchTask

RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (2, 5), (3, 2), (1, 3)])
def test_matrices_give_the_correlation(m: int, r: int) -> None:
    data, weight, inverse = (np.asarray(x) for x in matrices(m, r))
    d, g = RNG.standard_normal(m + r - 1), RNG.standard_normal(r)
    np.testing.assert_allclose(
        inverse @ ((weight @ g) * (data @ d)), np.correlate(d, g), rtol=1e-9, atol=1e-9
    )


def test_what_has_no_winograd_form() -> None:
    x, w = te.placeholder((1, 8, 8, 4)), te.placeholder((3, 2, 4, 4), name="w")
    with pytest.raises(ModelError, match="no Winograd form"):
        winograd_conv_nhwc(x, w, ((0, 0), (0, 0)), 2)
    with pytest.raises(ModelError, match=r"an algorithm of 3 taps for a kernel of \[3, 2\]"):
        fast_conv_nhwc(x, w, ((0, 0), (0, 0)), (correlation(2, 3),) * 2)
    with pytest.raises(ModelError, match="does not fit"):
        fast_conv_nhwc(x, w, ((0, 0), (-7, 0)), (correlation(2, 3), None))


CASES = [
    # data, weight, padding, tile
    ((2, 7, 9, 3), (3, 3, 3, 5), ((1, 1), (1, 0)), 4),
    ((1, 8, 6, 4), (3, 3, 4, 2), ((0, 0), (0, 0)), 2),
    ((1, 9, 9, 2), (5, 5, 2, 3), ((2, 2), (2, 2)), 2),
    ((1, 5, 8, 8, 3), (3, 3, 3, 3, 4), ((1, 1), (1, 1), (1, 1)), 4),
    ((1, 4, 6, 6, 2), (1, 3, 3, 2, 2), ((0, 0), (1, 1), (1, 1)), 2),
]


@pytest.mark.parametrize(("data", "weight", "pads", "m"), CASES)
def test_it_means_a_convolution(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
    m: int,
) -> None:
    x, w = normal(*data), normal(*weight)
    attrs = {"strides": (1,) * len(pads), "dilations": (1,) * len(pads), "pads": pads}
    want = OPERATORS["conv"].meaning({**attrs, "groups": 1, "layout": "channels_last"}, (x, w))
    divides = not any(e % m for e in want.shape[-3:-1])
    for joined in (True, False) if divides else (True,):
        tensors = te.placeholder(data, name="x"), te.placeholder(weight, name="w")
        out = winograd_conv_nhwc(*tensors, pads, m, joined=joined)
        got = te.ComputeDAG([out]).evaluate({"x": x, "w": w})["conv"].reshape(want.shape)
        assert relative_error(got, want) < 5e-6


F = correlation
GENERAL = [
    # data, weight, padding, strides, dilations, algorithms
    ((1, 13, 14, 3), (3, 3, 3, 5), ((1, 1), (1, 1)), (1, 1), (1, 1), (F(6, 3), F(6, 3))),
    ((1, 9, 14, 3), (1, 7, 3, 5), ((0, 0), (3, 3)), (1, 1), (1, 1), (None, F(2, 7))),
    ((1, 13, 9, 3), (7, 1, 3, 5), ((3, 3), (0, 0)), (1, 1), (1, 1), (strided(4, 7, 1, 4), None)),
    ((2, 13, 15, 3), (3, 3, 3, 5), ((1, 1), (1, 1)), (2, 2), (1, 1), (strided(4, 3, 2),) * 2),
    ((1, 14, 15, 3), (3, 3, 3, 5), ((0, 1), (1, 0)), (2, 1), (1, 1), (None, F(4, 3))),
    ((1, 13, 15, 3), (3, 3, 3, 5), ((5, 5), (5, 5)), (1, 1), (5, 5), (F(4, 3), F(2, 3))),
    ((1, 6, 7, 8, 2), (3, 3, 3, 2, 4), ((1, 1),) * 3, (1,) * 3, (1,) * 3, (F(2, 3),) * 3),
    ((1, 16, 3), (5, 3, 5), ((2, 2),), (1,), (1,), (F(4, 5),)),
]


@pytest.mark.parametrize(("data", "weight", "pads", "strides", "dilations", "axes"), GENERAL)
def test_an_algorithm_for_each_axis(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    pads: Any,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    axes: Any,
) -> None:
    x, w = normal(*data), normal(*weight)
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "groups": 1}
    want = OPERATORS["conv"].meaning({**attrs, "layout": "channels_last"}, (x, w))
    tensors = te.placeholder(data, name="x"), te.placeholder(weight, name="w")
    out = fast_conv_nhwc(*tensors, pads, axes, strides, dilations)
    got = te.ComputeDAG([out]).evaluate({"x": x, "w": w})["conv"]
    assert got.shape == want.shape
    assert relative_error(got, want) < 1e-5


def other_net(kind: str) -> Graph:
    """One layer of a kind that has forms, behind a relu, with bias and relu."""
    b = GraphBuilder("net")
    taps: tuple[int, ...] = {"row": (1, 7), "column": (5, 1), "volume": (3, 3, 3)}.get(kind, (3, 3))
    rank = len(taps)
    x = b.input("x", (1, 16, *(11,) * rank))
    stride, dilation = (2 if kind == "stride" else 1), (2 if kind == "dilation" else 1)
    attrs = {"layout": "channels_first", "strides": (stride,) * rank}
    if kind == "transposed":
        attrs |= {"strides": (2, 2), "pads": ((1, 1), (1, 0))}
        y = b.emit("conv_transpose", [x, b.constant(normal(16, 16, 4, 4) * 0.1)], **attrs)
    else:
        attrs |= {"pads": tuple(((k - 1) // 2 * dilation,) * 2 for k in taps), "groups": 1}
        w = b.constant(normal(16, 16, *taps) * 0.1)
        y = b.emit("conv", [x, w], dilations=(dilation,) * rank, **attrs)
    y = b.emit("add", [y, b.constant(normal(16, *(1,) * rank))])
    return b.finish([b.emit("relu", [y])])


KINDS = ["row", "column", "stride", "dilation", "transposed", "volume"]


@pytest.mark.parametrize("kind", sampled(KINDS, 3))
def test_forms_of_other_layers_agree_natively(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Layers this small are faster as written.
    conv_forms.best_axes.cache_clear()
    monkeypatch.setattr(conv_forms, "ELEMENT", 0.1)
    monkeypatch.setattr(conv_forms, "COPIED", 0.1)
    monkeypatch.setattr(conv_forms, "MOST_PRODUCTS", 30)
    target = Target.detect()
    graph = other_net(kind)
    parts = partition(optimize(graph))
    conv_forms.best_axes.cache_clear()
    found = tasks(parts)
    (at,) = (k for k, t in enumerate(found) if t.others)
    plain = [plain_image(SearchTask(t.dag, target)) for t in found]
    x = normal(*graph.types["x"].shape)
    (want,) = evaluate(graph, [x])
    for k, dag in enumerate(found[at].others[:1], 1):
        meant = SearchTask(dag, target, meaning=found[at].dag)
        images = [*plain[:at], plain_image(meant), *plain[at + 1 :]]
        got = CompiledModule(parts, images, [k * (n == at) for n in range(len(found))])(x)
        assert relative_error(np.asarray(got), want) < 1e-5, k


def test_forms_that_err_too_much_are_refused() -> None:
    graph = optimize(small_net(13))
    found = [len(s.others) for s in partition(graph, form_rtol=1e-3).subgraphs]
    few = [len(s.others) for s in partition(graph, form_rtol=1e-6).subgraphs]
    assert max(found) == 2
    assert all(0 < b < a for a, b in zip(found, few, strict=True) if a)
    assert not any(s.others for s in partition(graph, form_rtol=1e-8).subgraphs)


def test_errors_follow_the_weights() -> None:
    """Taps of which the transform takes differences err more, and weights without an end most."""
    axes = (None, correlation(4, 3))
    w = normal(1, 3, 16, 16)
    usual = conv_forms.error_of(axes, w)
    assert usual == pytest.approx(2 * 2.0**-24 * gain(axes[1:]), rel=0.1)
    assert conv_forms.error_of(axes, w * np.array([1, 1e-3, 1]).reshape(3, 1, 1)) != pytest.approx(
        usual, rel=0.1
    )
    assert conv_forms.error_of(axes, w, bf16=True) == pytest.approx(usual * 2**15)
    assert conv_forms.error_of(axes, 0 * w) == 0.0
    w[0, 0, 0, 0] = np.inf
    assert conv_forms.error_of(axes, w) == np.inf


def test_equal_layers_have_the_forms_that_all_weights_allow() -> None:
    counts = []
    for element in (1.0, np.nan):
        b = GraphBuilder("net")
        x = b.input("x", (1, 16, 12, 12))
        attrs = {"strides": (1, 1), "pads": ((0, 0),) * 2, "dilations": (1, 1), "groups": 1}
        outputs = []
        for first in (1.0, element):
            w = normal(16, 16, 3, 3)
            w[0, 0, 0, 0] = first
            y = b.emit("conv", [x, b.constant(w)], layout="channels_first", **attrs)
            outputs.append(b.emit("relu", [y]))
        found = tasks(partition(optimize(b.finish(outputs))))
        (task,) = (t for t in found if t.dag.flop > 1e5)
        assert task.weight == 2
        counts.append(len(task.others))
    assert counts[0] > 1
    assert counts[1] == 0


def test_an_infinity_spreads_over_its_tile_alone() -> None:
    """What is documented of NaN and infinities: the other tiles are as in the direct form."""
    x, w = normal(1, 12, 12, 4), normal(3, 3, 4, 2)
    x[0, 2, 3, 1] = np.inf
    tensors = te.placeholder(x.shape, name="x"), te.placeholder(w.shape, name="w")
    dag = te.ComputeDAG([winograd_conv_nhwc(*tensors, ((1, 1), (1, 1)), 6)])
    with np.errstate(all="ignore"):
        got = dag.evaluate({"x": x, "w": w})["conv"]
    attrs = {"strides": (1, 1), "dilations": (1, 1), "pads": ((1, 1),) * 2, "groups": 1}
    want = OPERATORS["conv"].meaning({**attrs, "layout": "channels_last"}, (x, w))
    assert not np.isfinite(got[0, 1:4, 2:5]).any()
    assert not np.isfinite(want[0, 1:4, 2:5]).any()
    np.testing.assert_allclose(got[0, 6:], want[0, 6:], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got[0, :, 6:], want[0, :, 6:], rtol=1e-3, atol=1e-4)


def small_net(size: int, rank: int = 2, channels: int = 16) -> Graph:
    """Two 3x3 convolutions with bias and relu, the second with a residual sum."""
    b = GraphBuilder("net")
    x = b.input("x", (1, channels, *(3,) * (rank - 2), size, size))
    y = x
    for k in range(2):
        y = b.emit(
            "conv",
            [y, b.constant(normal(channels, channels, *(3,) * rank) * 0.1, "w")],
            strides=(1,) * rank,
            pads=((1, 1),) * rank,
            dilations=(1,) * rank,
            groups=1,
            layout="channels_first",
        )
        y = b.emit("add", [y, b.constant(normal(channels, *(1,) * rank), "b")])
        y = b.emit("add", [y, x]) if k else y
        y = b.emit("relu", [y])
    return b.finish([y])


@pytest.mark.parametrize(
    ("size", "rank", "channels"),
    sampled([(8, 2, 16), (13, 2, 16), (9, 3, 16), (8, 2, 20), (9, 2, 17)], 5),
)
def test_forms_of_a_network_agree_natively(size: int, rank: int, channels: int) -> None:
    """Every combination of forms: kernels of different forms read each other's results."""
    target = Target.detect()
    graph = small_net(size, rank, channels)
    parts = partition(optimize(graph))
    found = tasks(parts)
    assert sum(bool(t.others) for t in found) == 2
    images = [[_image(SearchTask(dag, target)) for dag in (t.dag, *t.others[:2])] for t in found]
    x = normal(*graph.types["x"].shape)
    (want,) = evaluate(graph, [x])
    for forms in itertools.product(*(range(len(i)) for i in images)):
        chosen = [i[k] for i, k in zip(images, forms, strict=True)]
        got = CompiledModule(parts, chosen, forms)(x)
        assert relative_error(np.asarray(got), want) < 1e-5, forms


def _image(task: SearchTask) -> object:
    sketch = sketches(task.dag, task.target, SpaceOptions(max_sketches=4))[0]
    rng = np.random.default_rng(0)
    return build_program(sketch.fill(sketch.sample(1, rng)[0]), task.target)


def test_few_channels_have_no_other_form() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 3, 12, 12))
    attrs = {"dilations": (1, 1), "groups": 1, "layout": "channels_first"}
    y = b.emit(
        "conv", [x, b.constant(normal(16, 3, 3, 3))], strides=(1, 1), pads=((1, 1),) * 2, **attrs
    )
    parts = partition(optimize(b.finish([y])))
    assert all(s.others == () for s in parts.subgraphs)


def test_a_meaning_has_the_same_inputs_and_outputs() -> None:
    x = te.placeholder((4, 4), name="x")
    y = te.relu(x, "y")
    other = te.relu(te.placeholder((4, 5), name="x"), "y")
    with pytest.raises(ModelError, match="no views of its meaning"):
        SearchTask(y, meaning=te.ComputeDAG([other]))
