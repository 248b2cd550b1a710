"""Winograd convolution: matrices, values, and its choice in networks."""

import itertools

import numpy as np
import pytest
from sampled import sampled

from ansorlite import te
from ansorlite.codegen.build import build_program
from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.ops.winograd import matrices, winograd_conv_nhwc
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
    with pytest.raises(ModelError, match=r"F\(7, 3\) needs 8 points"):
        matrices(7, 3)
    x, w = te.placeholder((1, 8, 8, 4)), te.placeholder((3, 2, 4, 4), name="w")
    with pytest.raises(ModelError, match="no Winograd form"):
        winograd_conv_nhwc(x, w, ((0, 0), (0, 0)), 2)


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
    images = [[_image(SearchTask(dag, target)) for dag in (t.dag, *t.others)] for t in found]
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


def test_few_channels_and_strides_have_no_other_form() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (1, 3, 12, 12))
    attrs = {"dilations": (1, 1), "groups": 1, "layout": "channels_first"}
    y = b.emit(
        "conv", [x, b.constant(normal(16, 3, 3, 3))], strides=(1, 1), pads=((1, 1),) * 2, **attrs
    )
    y = b.emit(
        "conv", [y, b.constant(normal(16, 16, 3, 3))], strides=(2, 2), pads=((1, 1),) * 2, **attrs
    )
    parts = partition(optimize(b.finish([y])))
    assert all(s.others == () for s in parts.subgraphs)


def test_a_meaning_has_the_same_inputs_and_outputs() -> None:
    x = te.placeholder((4, 4), name="x")
    y = te.relu(x, "y")
    other = te.relu(te.placeholder((4, 5), name="x"), "y")
    with pytest.raises(ModelError, match="no views of its meaning"):
        SearchTask(y, meaning=te.ComputeDAG([other]))
