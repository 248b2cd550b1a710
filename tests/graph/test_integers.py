"""Products of bytes by dot-product instructions are exact, with any zero points and at the ends."""

from typing import Any

import numpy as np
import pytest
from forced_targets import TARGETS
from onnx_backend import compiled
from sampled import some_or_all

from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize

ENDS = {"uint8": (0, 255), "int8": (-128, 127)}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Bytes by chance, or the ends of their range."""
    low, high = ENDS[dtype]
    if rng.random() < 0.3:
        return rng.choice([low, high], shape).astype(dtype)
    return rng.integers(low, high + 1, shape).astype(dtype)


def weights(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """int8, or uint8 less a zero point, which has nine bits."""
    if rng.random() < 0.5:
        return drawn(rng, shape, "int8").astype(np.int32)
    return drawn(rng, shape, "uint8").astype(np.int32) - int(rng.integers(0, 256))


def product(rng: np.random.Generator) -> tuple[Graph, list[Any]]:
    """int32(x) - z times constant weights, as a product of matrices or a convolution."""
    dtype = str(rng.choice(["uint8", "int8"]))
    b, depth = GraphBuilder("product"), int(rng.integers(3, 25))
    columns = int(rng.integers(1, 40))
    matrices = rng.random() < 0.5
    shape = (int(rng.integers(1, 9)), depth) if matrices else (1, depth, *rng.integers(3, 9, 2))
    arrays = [drawn(rng, tuple(map(int, shape)), dtype)]
    x = b.emit("cast", [b.input("x", arrays[0].shape, dtype)], dtype="int32")
    place = rng.integers(0, 3)  # no zero point, a constant one, one that is given
    zero = drawn(rng, (), dtype).astype(np.int32)
    if place == 1:
        x = b.emit("sub", [x, b.constant(zero)])
    elif place == 2:
        arrays.append(zero.astype(dtype))
        x = b.emit("sub", [x, b.emit("cast", [b.input("z", (), dtype)], dtype="int32")])
    if matrices:
        w = weights(rng, (depth, columns))
        return b.finish([b.emit("matmul", [x, b.constant(w)])]), arrays
    kernel = tuple(map(int, rng.integers(1, 4, 2)))
    groups = int(rng.choice([1, 1, depth]))
    columns = columns if groups == 1 else groups * int(rng.integers(1, 3))
    w = weights(rng, (columns, depth // groups, *kernel))
    pads = tuple((int(p), int(q)) for p, q in rng.integers(0, 2, (2, 2)))
    strides = tuple(map(int, rng.integers(1, 3, 2)))
    y = b.emit("conv", [x, b.constant(w)], groups=groups, layout="channels_first", strides=strides,
               pads=pads, dilations=(1, 1))  # fmt: skip
    return b.finish([y]), arrays


@some_or_all(100)
def test_products_of_bytes_are_exact(every: int) -> None:
    for seed in (*range(1000)[::every], 677):  # the last: words of three channels, a given border
        graph, arrays = product(np.random.default_rng(seed))
        best = optimize(graph)
        given = len(arrays) > 1 and any(n.attrs.get("groups", 1) > 1 for n in graph.nodes)
        assert given or any(n.op.endswith(("u8s8", "u8")) for n in best.nodes), seed
        wanted = evaluate(graph, arrays)[0]  # in int64, wrapped
        np.testing.assert_array_equal(evaluate(best, arrays)[0], wanted, err_msg=str(seed))
        got = compiled(partition(best), TARGETS[seed // every % len(TARGETS)])(*arrays)
        np.testing.assert_array_equal(got, wanted, err_msg=str(seed))


@pytest.mark.parametrize("case", ["two rows", "weights beyond a byte", "no bytes"])
def test_others_stay(case: str) -> None:
    b = GraphBuilder("product")
    depth = 2 if case == "two rows" else 8
    w = np.full((depth, 3), 300 if case == "weights beyond a byte" else 5, np.int32)
    dtype = "int32" if case == "no bytes" else "uint8"
    x = b.emit("cast", [b.input("x", (2, depth), dtype)], dtype="int32")
    graph = b.finish([b.emit("matmul", [x, b.constant(w)])])
    assert all("u8s8" not in n.op for n in optimize(graph).nodes)
