"""Networks in bfloat16: which nodes, how far from float32, and native code that agrees."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forced_targets import TARGETS
from onnx_backend import compiled

import ansorlite as al
from ansorlite.errors import UsageError
from ansorlite.graph.accuracy import compared
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import Lowering
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.lower import BF16_LOSS, FORM_RTOL
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.shared_tasks import network_tasks, rounds
from ansorlite.target import Target

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same numbers, whichever ran before."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


WINDOW = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}
POINT = {"strides": (1, 1), "pads": ((0, 0), (0, 0)), "dilations": (1, 1)}


def weight(*shape: int) -> Any:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def net(odd: bool = False) -> Graph:
    """Convolutions (plain, of single channels, strided), a residual, a pool, a dense layer."""
    b = GraphBuilder("net")

    def conv(x: str, co: int, ci: int, groups: int = 1, **window: Any) -> str:
        size = 3 if window["pads"][0][0] else 1
        w = b.constant(weight(co, ci // groups, size, size))
        return b.emit("conv", [x, w], groups=groups, layout="channels_first", **window)

    n = 9 if odd else 10
    y = b.emit("relu", [conv(b.input("x", (1, 3, 13, 15)), n, 3, **WINDOW)])
    z = b.emit("relu", [conv(y, n, n, **WINDOW)])
    z = b.emit("relu", [conv(z, n, n, groups=n, **WINDOW)])
    y = b.emit("relu", [b.emit("add", [conv(z, n, n, **POINT), y])])
    y = conv(y, n, n, **{**WINDOW, "strides": (2, 2)})
    y = b.emit(
        "max_pool",
        [y],
        kernel=(2, 2),
        ceil_mode=False,
        layout="channels_first",
        **{**POINT, "strides": (2, 2)},
    )
    y = b.emit("reshape", [y], shape=(1, n * 12))
    y = b.emit("matmul", [y, b.constant(weight(n * 12, 7))])
    return b.finish([b.emit("softmax", [y], axes=(1,))])


def picture() -> Any:
    return RNG.standard_normal((1, 3, 13, 15)).astype(np.float32)


def test_products_of_even_numbers_of_terms_are_lowered() -> None:
    graph = optimize(net(), precision="bf16")
    ops = [n.op for n in graph.nodes]
    assert ops.count("conv_bf16") == 3  # the others have three channels, or one
    assert ops.count("conv_read_bf16") == 2 and ops.count("matmul_bf16") == 1
    kernels = partition(graph).subgraphs  # between them all is bfloat16 but what softmax reads
    written = [graph.types[k.outputs[0]].dtype for k in kernels]
    assert written == ["uint16"] * (len(kernels) - 2) + ["float32"] * 2
    assert [n.op for n in optimize(net(odd=True), precision="bf16").nodes].count("conv_bf16") == 0


@pytest.mark.parametrize("odd", [False, True])
def test_all_levels_agree(odd: bool) -> None:
    graph, x = net(odd), picture()
    exactly = evaluate(graph, [x])[0]
    low = optimize(graph, precision="bf16")
    wanted = evaluate(low, [x])[0]
    assert np.abs(wanted - exactly).max() <= 1e-2 * np.abs(exactly).max()
    for target in TARGETS:
        got = compiled(partition(low), target)(x)
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=1e-5)


def test_special_values_go_through() -> None:
    b = GraphBuilder("dense")
    y = b.emit("matmul", [b.emit("relu", [b.input("x", (4, 6))]), b.constant(weight(6, 5))])
    graph = optimize(b.finish([y]), precision="bf16")
    x = RNG.standard_normal((4, 6)).astype(np.float32)
    x[1, 2], x[2, 3] = np.nan, np.inf
    got = compiled(partition(graph), Target.detect())(x)
    wanted = evaluate(graph, [x])[0]
    assert np.isnan(got[1]).all() and not np.isfinite(got[2]).any()
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_finite_stay() -> None:
    b = GraphBuilder("dense")
    w = weight(6, 5)
    w[0, 0] = np.inf
    graph = b.finish([b.emit("matmul", [b.emit("relu", [b.input("x", (4, 6))]), b.constant(w)])])
    assert [n.op for n in optimize(graph, precision="bf16").nodes] == ["relu", "matmul"]


def test_tuned_and_compiled() -> None:
    """Winograd's forms, in float32 and bfloat16, are forms of a convolution of bfloat16."""
    graph, x = net(), picture()
    parts = partition(optimize(graph, precision="bf16"))
    module = al.auto_schedule(graph, n_trials=6, precision="bf16", progress=False, round_size=1)
    wanted = evaluate(parts.graph, [x])[0]
    np.testing.assert_allclose(module(x), wanted, rtol=5e-3, atol=1e-5)
    b = GraphBuilder("wide")
    y = b.emit("relu", [b.input("x", (1, 16, 12, 12))])
    y = b.emit(
        "conv", [y, b.constant(weight(16, 16, 3, 3))], groups=1, layout="channels_first", **WINDOW
    )
    wide = partition(optimize(b.finish([y]), precision="bf16"))
    (task,) = (s for s in wide.subgraphs if s.others)
    data = RNG.standard_normal((1, 16, 12, 12)).astype(np.float32)
    outs = []
    for form in task.forms:
        values = dict(
            zip((p.name for p in form.dag.inputs), _operands(wide, form, data), strict=True)
        )
        outs.append(next(iter(form.dag.evaluate(values).values())))
    assert [rounds(f.dag) for f in task.forms] == [False, False, False, True]
    for out, loss in zip(outs[1:], (1e-3, 1e-3, 1e-2), strict=True):
        wanted = outs[0].reshape(out.shape)
        np.testing.assert_allclose(out, wanted, rtol=loss, atol=loss * np.abs(wanted).max())
    (weighted,) = (w for w in network_tasks(wide, Target.detect()) if len(w.forms) == 4)
    assert [f.rtol for f in weighted.other_forms] == [FORM_RTOL, FORM_RTOL, FORM_RTOL * BF16_LOSS]


def attention(length: int, size: int = 16) -> Graph:
    """Softmax of queries times keys, times values, of two heads; and a projection."""
    b = GraphBuilder("attention")
    x = b.emit("relu", [b.input("x", (length, 2 * size))])
    heads = []
    for perm in ((1, 0, 2), (1, 2, 0), (1, 0, 2)):
        y = b.emit("matmul", [x, b.constant(weight(2 * size, 2 * size))])
        y = b.emit("reshape", [y], shape=(length, 2, size))
        heads.append(b.emit("transpose", [y], perm=perm))
    p = b.emit("softmax", [b.emit("matmul", heads[:2])], axes=(2,))
    y = b.emit("transpose", [b.emit("matmul", [p, heads[2]])], perm=(1, 0, 2))
    y = b.emit("reshape", [y], shape=(length, 2 * size))
    return b.finish([b.emit("matmul", [y, b.constant(weight(2 * size, 3))])])


def generator() -> Graph:
    """Transposed convolutions of two and of one dimension."""
    b = GraphBuilder("generator")
    y = b.emit("relu", [b.input("x", (1, 6, 4, 5))])
    plain = {"layout": "channels_first"}
    w = b.constant(weight(6, 4, 3, 4))
    y = b.emit("conv_transpose", [y, w], strides=(2, 2), pads=((1, 1), (1, 0)), **plain)
    y = b.emit("reshape", [b.emit("tanh", [y])], shape=(1, 4, 7 * 11))
    y = b.emit(
        "conv_transpose", [y, b.constant(weight(4, 3, 3))], strides=(2,), pads=((0, 1),), **plain
    )
    return b.finish([y])


@pytest.mark.parametrize("length", [17, 18])
def test_products_of_activations(length: int) -> None:
    graph = attention(length)
    low = optimize(graph, precision="bf16")
    assert [n.op for n in low.nodes].count("product_bf16") == 2
    parts = Lowering(precision="bf16").partition(graph)
    assert len(parts.subgraphs) == 6  # no pass of its own converts or moves anything
    written = [low.types[k.outputs[0]].dtype for k in parts.subgraphs]
    # What softmax reads, the result, and the last product's data: it is small, so in float32.
    assert written.count("float32") == 3 and low.nodes[-1].op == "matmul"
    _agrees(graph, RNG.standard_normal((length, 32)).astype(np.float32))


def test_transposed_convolutions() -> None:
    graph = generator()
    assert [n.op for n in optimize(graph, precision="bf16").nodes].count("conv_transpose_bf16") == 2
    _agrees(graph, RNG.standard_normal((1, 6, 4, 5)).astype(np.float32))


def _agrees(graph: Graph, x: Any) -> None:
    """numpy's meaning in bfloat16 is near that in float32, and native code near to the former."""
    low = optimize(graph, precision="bf16")
    exactly, wanted = evaluate(graph, [x])[0], evaluate(low, [x])[0]
    assert np.abs(wanted - exactly).max() <= 1e-2 * np.abs(exactly).max()
    host = Target.detect()
    for target in (host, replace(host, features=host.features.replace("+avx512bf16", ""))):
        got = compiled(partition(low), target)(x)
        np.testing.assert_allclose(got, wanted, rtol=5e-3, atol=5e-3 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("spatial", "kernel", "stride", "ci"),
    [
        ((9,), (3,), 2, 3),
        ((9, 8), (3, 3), 2, 3),
        ((5, 6, 7), (3, 2, 3), 2, 1),
        ((6, 7), (3, 3), 1, 3),
    ],
)
def test_odd_channels_have_forms_in_pairs(spatial: Any, kernel: Any, stride: int, ci: int) -> None:
    b, rank = GraphBuilder("odd"), len(spatial)
    y = b.emit("relu", [b.emit("relu", [b.input("x", (2, ci, *spatial))])])
    y = b.emit(
        "max_pool",
        [y],
        kernel=(1,) * rank,
        strides=(1,) * rank,
        pads=((0, 0),) * rank,
        dilations=(1,) * rank,
        ceil_mode=False,
        layout="channels_first",
    )
    y = b.emit(
        "conv",
        [y, b.constant(weight(5, ci, *kernel))],
        strides=(stride,) * rank,
        pads=((1, 0),) * rank,
        dilations=(1,) * rank,
        groups=1,
        layout="channels_first",
    )
    parts = partition(optimize(b.finish([y]), precision="bf16"))
    (task,) = (s for s in parts.subgraphs if "conv_read" in s.name)
    assert len(task.forms) == 1 + (stride * ci % 2 == 0) + ci % 2
    data = RNG.standard_normal((2, ci, *spatial)).astype(np.float32)
    outs = []
    for form in task.forms:
        names = (p.name for p in form.dag.inputs)
        values = dict(zip(names, _operands(parts, form, data), strict=True))
        outs.append(next(iter(form.dag.evaluate(values).values())))
    for out in outs[1:]:
        np.testing.assert_allclose(out.reshape(outs[0].shape), outs[0], rtol=1e-4, atol=1e-5)


def _operands(parts: Any, form: Any, data: Any) -> list[Any]:
    """Arrays of a form's placeholders: weights, and bits of data."""
    from ansorlite.ir.packed import bits_of

    found = []
    for p, v in zip(form.dag.inputs, form.inputs, strict=True):
        known = parts.graph.constants.get(v)
        array = bits_of(np.moveaxis(data, 1, -1)) if known is None else known
        found.append(np.ascontiguousarray(array).reshape(p.shape))
    return found


def test_a_saved_network_gives_the_same(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("saving a network needs cc")
    module = compiled(partition(optimize(net(), precision="bf16")), Target.detect())
    module.save(tmp_path / "saved")
    x = picture()
    np.testing.assert_array_equal(al.load_module(tmp_path / "saved")(x), module(x))


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(UsageError, match="precision is 'fp8': choose one of float32, bf16"):
        al.auto_schedule(net(), n_trials=0, precision="fp8", progress=False)


def test_the_error_is_told() -> None:
    graph = net()
    low = compiled(partition(optimize(graph, precision="bf16")), Target.detect())
    (found,) = al.accuracy(low, graph)
    assert 1e-6 < found.mean <= found.largest < 1e-2 and found.cosine > 0.9999
    assert found.same_top in (0.0, 1.0) and "top class" in str(found)
    (none,) = al.accuracy(lambda x: evaluate(graph, [x])[0], graph, [picture()])
    assert (none.largest, none.same_top) == (0.0, 1.0)
    odd = np.float32([[np.nan, 1, 2], [np.inf, 1, 0]])
    assert compared("y", odd, odd).largest == 0.0
    assert compared("y", np.zeros((0, 3)), np.zeros((0, 3))).mean == 0.0
