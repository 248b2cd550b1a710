"""Concatenations and slices in place: what moves, the same numbers in every way of running."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ansorlite as al
from ansorlite.deployed import load_module
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import Lowering
from ansorlite.graph.in_place import without_copies
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import Buffer, Partition, evaluate_partition, partition
from ansorlite.graph.passes import optimize
from ansorlite.graph.places import Place, width
from ansorlite.pipeline import compile_plain

RNG = np.random.default_rng(0)


def conv(b: GraphBuilder, x: str, channels: int, k: int = 3) -> str:
    w = RNG.standard_normal((channels, b.shape(x)[1], k, k)).astype(np.float32)
    pads = ((k // 2, k // 2),) * 2
    y = b.emit("conv", [x, b.constant(w)], groups=1, layout="channels_first", strides=(1, 1),
               pads=pads, dilations=(1, 1))  # fmt: skip
    return b.emit("relu", [y])


def channels(b: GraphBuilder, x: str, first: int, count: int, axis: int = 1) -> str:
    shape = b.shape(x)
    starts = tuple(first * (d == axis) for d in range(len(shape)))
    sizes = tuple(count if d == axis else n for d, n in enumerate(shape))
    return b.emit("slice", [x], starts=starts, sizes=sizes, steps=(1,) * len(shape))


def split_and_joined() -> Graph:
    """A convolution, the second half of which goes through two more, and all of them together."""
    b = GraphBuilder("halves")
    x = conv(b, b.input("x", (1, 3, 7, 5)), 16, 1)
    halves = [channels(b, x, 0, 8), channels(b, x, 8, 8)]
    inner = conv(b, conv(b, halves[1], 8), 8)
    y = b.emit("concat", [*halves, b.emit("add", [inner, halves[1]])], axis=1)
    return b.finish([conv(b, y, 4, 1)])


def dense() -> Graph:
    """Each layer reads all before it: concatenations of concatenations."""
    b = GraphBuilder("dense")
    y = conv(b, b.input("x", (2, 4, 6, 5)), 5)
    for _ in range(3):
        y = b.emit("concat", [y, conv(b, y, 3)], axis=1)
    window = {"kernel": (2, 2), "strides": (2, 2), "pads": ((0, 0),) * 2, "dilations": (1, 1)}
    pool = b.emit("max_pool", [y], layout="channels_first", ceil_mode=False, **window)
    return b.finish([pool])


def upsampled() -> Graph:
    """An upsampled map beside a skipped one, each written by a kernel that only moves elements."""
    b = GraphBuilder("upsampled")
    x, skip = b.input("x", (1, 8, 3, 4)), b.input("skip", (1, 4, 6, 8))
    small = conv(b, x, 8, 1)
    tall = b.emit("reshape", [small], shape=(1, 8, 3, 1, 4, 1))
    wide = b.emit("expand", [tall], shape=(1, 8, 3, 2, 4, 2))
    big = b.emit("reshape", [wide], shape=(1, 8, 6, 8))
    return b.finish([conv(b, b.emit("concat", [big, skip], axis=1), 6)])


def rows() -> Graph:
    """Products and rows: slices of a wide product, concatenated along the last axis again."""
    b = GraphBuilder("rows")
    x = b.input("x", (9, 12))
    w = b.constant(RNG.standard_normal((12, 48)).astype(np.float32))
    y = b.emit("matmul", [x, w])
    q, k, v = (channels(b, y, 16 * n, 16, axis=1) for n in range(3))
    p = b.emit("softmax", [b.emit("matmul", [q, b.emit("transpose", [k], perm=(1, 0))])], axes=(1,))
    out = b.emit("matmul", [p, v])
    square = b.constant(RNG.standard_normal((16, 16)).astype(np.float32))
    again = [b.emit("matmul", [out, square]), b.emit("softmax", [out], axes=(1,))]
    return b.finish([b.emit("concat", [*again, out], axis=1)])


NETWORKS: dict[str, Callable[[], Graph]] = {
    "halves": split_and_joined,
    "dense": dense,
    "upsampled": upsampled,
    "rows": rows,
}


def data(graph: Graph) -> list[Any]:
    out = []
    for v in graph.inputs:
        x = RNG.standard_normal(graph.types[v].shape).astype(np.float32)
        x.flat[[0, x.size // 2]] = [np.nan, np.inf]
        out.append(x)
    return out


def copies(parts: Partition) -> int:
    return sum(s.name.startswith(("copy", "concat", "slice")) for s in parts.subgraphs)


def same(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-3)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_numbers(name: str, tmp_path: Path) -> None:
    graph = NETWORKS[name]()
    parts = partition(optimize(graph))
    placed = without_copies(parts)
    assert copies(placed) < copies(parts), str(placed)
    arrays = [RNG.standard_normal(graph.types[v].shape).astype(np.float32) for v in graph.inputs]
    (wanted,) = evaluate(graph, arrays)
    same(evaluate_partition(placed, arrays)[0], wanted)
    module = compile_plain(graph)
    assert copies(module.partition) == copies(placed)
    same(module(*arrays), wanted)
    same(pickle.loads(pickle.dumps(module))(*arrays), wanted)
    same(load_module(module.save(tmp_path / "net"))(*arrays), wanted)
    assert len(module.profile(*arrays, repeats=1).rows) == len(placed.subgraphs)


@pytest.mark.parametrize("name", NETWORKS)
def test_infinities_stay_where_they_are(name: str) -> None:
    graph = NETWORKS[name]()
    arrays = data(graph)
    with np.errstate(all="ignore"):
        (wanted,) = evaluate(graph, arrays)
    got = compile_plain(graph)(*arrays)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))


def test_halves_are_written_once() -> None:
    """Slices that a concatenation puts side by side again are what they were taken from."""
    placed = Lowering().partition(split_and_joined())
    assert copies(placed) == 0
    buffers = [s.value for s in placed.steps if isinstance(s, Buffer)]
    assert len(buffers) == 1
    inside = [p for p in placed.places.values() if p.owner == buffers[0] and p.rows > 1]
    assert {(p.start, p.rows, p.pitch) for p in inside} >= {(0, 35, 24), (8, 35, 24), (16, 35, 24)}


def test_dense_layers_share_one_value() -> None:
    placed = Lowering().partition(dense())
    assert copies(placed) == 0
    assert sum(isinstance(s, Buffer) for s in placed.steps) == 1


def test_an_input_is_copied_into_its_part() -> None:
    b = GraphBuilder("beside")
    x = b.input("x", (5, 6))
    both = b.emit("concat", [b.emit("softmax", [x], axes=(1,)), x], axis=1)
    graph = b.finish([b.emit("matmul", [both, b.constant(np.eye(12, 3, dtype=np.float32))])])
    placed = Lowering().partition(graph)
    (copy,) = [s for s in placed.subgraphs if s.name.startswith("copy")]
    assert placed.place(copy.outputs[0])[1:] == (6, 0, 5, 12)
    arrays = data(graph)
    np.testing.assert_allclose(compile_plain(graph)(*arrays), evaluate(graph, arrays)[0], rtol=1e-5)


def test_outputs_of_the_network_stay() -> None:
    b = GraphBuilder("outputs")
    x = b.input("x", (5, 6))
    p = b.emit("softmax", [x], axes=(1,))
    q = b.emit("matmul", [x, b.constant(np.eye(6, 8, dtype=np.float32))])
    graph = b.finish([b.emit("concat", [p, q], axis=1), p])
    module = compile_plain(graph)
    assert module.partition.place(q).rows == 5 and module.partition.place(p) == Place(p)
    arrays = [RNG.standard_normal((5, 6)).astype(np.float32)]
    for got, wanted in zip(module(*arrays), evaluate(graph, arrays), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_concatenation_of_inputs_stays_a_kernel() -> None:
    b = GraphBuilder("inputs")
    x, y = b.input("x", (5, 6)), b.input("y", (5, 6))
    both = b.emit("concat", [x, y, b.emit("softmax", [x], axes=(1,))], axis=1)
    graph = b.finish([b.emit("matmul", [both, b.constant(np.eye(18, 3, dtype=np.float32))])])
    parts = partition(optimize(graph))
    placed = without_copies(parts)
    assert placed is parts and placed.graph.types == parts.graph.types
    arrays = data(graph)
    np.testing.assert_allclose(compile_plain(graph)(*arrays), evaluate(graph, arrays)[0], rtol=1e-5)


def test_twice_in_one_concatenation() -> None:
    b = GraphBuilder("twice")
    x = conv(b, b.input("x", (1, 4, 5, 6)), 8)
    graph = b.finish([conv(b, b.emit("concat", [x, x], axis=1), 3)])
    arrays = [RNG.standard_normal((1, 4, 5, 6)).astype(np.float32)]
    same(compile_plain(graph)(*arrays), evaluate(graph, arrays)[0])


@pytest.mark.slow
def test_tuned_kernels_in_place() -> None:
    for name, make in NETWORKS.items():
        graph = make()
        arrays = [RNG.standard_normal(graph.types[v].shape).astype("float32") for v in graph.inputs]
        module = al.auto_schedule(graph, n_trials=60, progress=False)
        np.testing.assert_allclose(
            module(*arrays), evaluate(graph, arrays)[0], rtol=2e-3, atol=2e-3, err_msg=name
        )


def test_places() -> None:
    whole = Place("a", 5, 0, 6, 20)  # six rows of 8
    assert whole.part(Place("b", 2, 0, 6, 8), 48, 18) == Place("a", 7, 0, 6, 20)
    assert whole.part(Place("b", 3, 0, 3, 16), 48, 15) == Place("a", 8, 0, 3, 40)
    assert whole.part(Place("b", 16), 48, 16) == Place("a", 45, 0, 2, 20)
    assert whole.part(Place("b", 17), 48, 5) == Place("a", 46)
    assert whole.part(Place("b", 17), 48, 12) is None
    assert whole.part(Place("b", 0, 0, 4, 12), 48, 8) is None
    assert Place("a", 3).part(whole, 200, 48) == Place("a", 8, 0, 6, 20)
    assert width((2, 3, 8), whole) == (True, (2, 20))
    assert width((6, 2, 4), whole) == (True, (1, 5))
    assert width((6, 1, 8), whole) == (True, (2, 20))
    assert width((48,), whole) == (False, None)
    assert width((6, 2, 4), Place("a", 0, 0, 6, 21)) == (False, None)
    assert width((48,), Place("a", 7)) == (True, None)
