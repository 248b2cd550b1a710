"""Networks of extreme sizes: hundreds of operands, values with no element, one element, no axis."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ansorlite
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.fuse import MOST_NODES, fuse
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.graph.rewrites import MOST_OPERANDS
from ansorlite.pipeline import auto_schedule, compile_plain

Arrays = tuple[npt.NDArray[Any], ...]


def results(out: Any) -> Arrays:
    return out if isinstance(out, tuple) else (out,)


def check(graph: Graph, *inputs: Any) -> Any:
    """The compiled network computes what its operators mean; returns the module."""
    module = compile_plain(graph)
    for got, want in zip(results(module(*inputs)), evaluate(graph, inputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return module


def test_concat_of_hundreds() -> None:
    b = GraphBuilder("wide")
    xs = [b.input(f"x{k}", (2, 1 + k % 2)) for k in range(300)]
    graph = b.finish([b.emit("concat", xs, axis=1)])
    parts = partition(optimize(graph))
    assert max(len(s.inputs) for s in parts.subgraphs) <= MOST_OPERANDS
    assert len(tasks(parts)) <= 4  # equal parts are one task
    check(graph, *random_inputs(graph))


@pytest.mark.parametrize("op", ["add", "maximum"])
def test_a_chain_of_hundreds(op: str) -> None:
    b = GraphBuilder("long")
    xs = [b.input(f"x{k}", (2, 3)) for k in range(200)]
    y = xs[0]
    for x in xs[1:]:
        y = b.emit(op, [y, x])
    graph = b.finish([y])
    assert max(len(g.nodes) for g in fuse(optimize(graph))) <= MOST_NODES
    check(graph, *random_inputs(graph))


def test_products_of_integers_are_no_large_polynomials() -> None:
    b = GraphBuilder("polynomial")
    xs = [b.input(f"x{k}", (3,), "int32") for k in range(24)]
    one = b.constant(np.asarray(1, np.int32))
    y = one
    for x in xs:
        y = b.emit("mul", [y, b.emit("add", [x, one])])
    graph = b.finish([y])
    rng = np.random.default_rng(0)
    check(graph, *(rng.integers(-1, 2, 3).astype(np.int32) for _ in xs))


def test_nothing_in_the_middle() -> None:
    """Values of no element vanish, and what is computed from them is constant."""
    b = GraphBuilder("empty")
    x = b.input("x", (2, 3))
    none = b.emit("slice", [x], starts=(0, 0), sizes=(2, 0), steps=(1, 1))
    joined = b.emit("concat", [none, x, none], axis=1)
    sums = [
        b.emit(f"reduce_{op}", [none], axes=(1,), keepdims=False) for op in ("sum", "max", "min")
    ]
    product = b.emit("matmul", [none, b.constant(np.zeros((0, 4), np.float32))])
    padded = b.emit("pad", [none], pads=((0, 0), (1, 0)), value=2.5)
    graph = b.finish([joined, *sums, product, padded, b.emit("exp", [none])])
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = check(graph, data)(data)
    assert [v.tolist() for v in got[1:4]] == [[0, 0], [-np.inf] * 2, [np.inf] * 2]
    assert got[5].tolist() == [[2.5], [2.5]] and got[6].shape == (2, 0)


def test_means_and_integers_over_nothing() -> None:
    b = GraphBuilder("empty")
    x, i = b.input("x", (0, 2)), b.input("i", (0, 2), "int64")
    mean = b.emit("reduce_mean", [x], axes=(0,), keepdims=True)
    ends = [b.emit(f"reduce_{op}", [i], axes=(0,), keepdims=False) for op in ("max", "min", "mean")]
    graph = b.finish([mean, *ends, b.emit("softmax", [x], axes=(1,))])
    arrays = np.zeros((0, 2), np.float32), np.zeros((0, 2), np.int64)
    got = check(graph, *arrays)(*arrays)
    info = np.iinfo(np.int64)
    assert np.isnan(got[0]).all()
    assert [v.tolist() for v in got[1:4]] == [[info.min] * 2, [info.max] * 2, [0, 0]]


def small_network() -> Graph:
    """Inputs and outputs of no axis, of one element and of no element."""
    b = GraphBuilder("small")
    x, one, none = b.input("x", ()), b.input("one", (1, 1)), b.input("none", (3, 0))
    y = b.emit("add", [b.emit("tanh", [x]), b.emit("reshape", [one], shape=())])
    total = b.emit("reduce_sum", [none], axes=(1,), keepdims=False)
    z = b.emit("add", [total, b.emit("reduce_mean", [one], axes=(0, 1), keepdims=False)])
    return b.finish([y, z, b.emit("relu", [none])])


def test_values_of_no_axis_in_every_path(tmp_path: Path) -> None:
    graph = small_network()
    inputs = (
        np.asarray(0.5, np.float32),
        np.asarray([[2.0]], np.float32),
        np.zeros((3, 0), np.float32),
    )
    module = check(graph, *inputs)
    want = evaluate(graph, inputs)
    ways = [auto_schedule(graph, n_trials=0, progress=False)]
    ways.append(ansorlite.load_module(module.save(tmp_path / "net")))
    for way in ways:
        for got, right in zip(results(way(*inputs)), want, strict=True):
            assert got.shape == right.shape
            np.testing.assert_allclose(got, right, rtol=1e-5)


def test_a_network_without_kernels() -> None:
    b = GraphBuilder("views")
    x = b.input("x", (2, 3))
    graph = b.finish([b.emit("reshape", [x], shape=(3, 2)), b.constant(np.ones(2, np.float32))])
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    for module in (compile_plain(graph), auto_schedule(graph, n_trials=0, progress=False)):
        out = module(data)
        assert out[0].tolist() == data.reshape(3, 2).tolist() and out[1].tolist() == [1, 1]
