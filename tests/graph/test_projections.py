"""Projections of one input as one product: the same values, fewer products, nothing copied."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ansorlite as al
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import Lowering
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import Subgraph, View
from ansorlite.graph.passes import optimize
from ansorlite.graph.projections import join_projections

ROWS, HEADS, CHANNELS = 10, 2, 4
WIDTH = HEADS * CHANNELS
RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


class Net(GraphBuilder):
    """A builder of attention, of which each test changes one thing."""

    def __init__(self) -> None:
        super().__init__("attention")
        self.x = self.input("x", (1, ROWS, WIDTH))

    def projection(self, name: str, bias: bool = True, of: str = "", width: int = WIDTH) -> str:
        weight = self.constant(normal(WIDTH, width), f"{name}.weight")
        y = self.emit("matmul", [of or self.x, weight], "" if bias else name)
        if not bias:
            return y
        return self.emit("add", [y, self.constant(normal(width), f"{name}.bias")], name)

    def heads(self, x: str, perm: tuple[int, ...], channels: int = CHANNELS) -> str:
        apart = self.emit("reshape", [x], shape=(1, ROWS, HEADS, channels))
        return self.emit("transpose", [apart], perm=perm)

    def attention(self, q: str, k: str, v: str, channels: int = CHANNELS) -> Graph:
        rows, columns = (0, 2, 1, 3), (0, 2, 3, 1)
        scores = self.emit("matmul", [self.heads(q, rows), self.heads(k, columns)])
        shares = self.emit("softmax", [scores], axes=(3,))
        mixed = self.emit("matmul", [shares, self.heads(v, rows, channels)])
        return self.finish([self.emit("transpose", [mixed], "y", perm=rows)])


def products(graph: Graph) -> int:
    """How many products with weights there are."""
    return sum(n.op == "matmul" and n.inputs[1] in graph.constants for n in graph.nodes)


def check(graph: Graph, left: int) -> Graph:
    """The passes keep the meaning, with so many products with weights left."""
    joined = join_projections(graph)
    joined.verify()
    x = [normal(*graph.types[v].shape) for v in graph.inputs]
    x[0][0, 3, 2], x[0][0, 5, 1] = np.inf, np.nan
    with np.errstate(all="ignore"):
        for got, want in zip(evaluate(joined, x), evaluate(graph, x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert products(joined) == left
    assert products(optimize(graph)) == left
    return joined


def test_queries_keys_and_values_are_one_product_whose_parts_nothing_copies() -> None:
    net = Net()
    graph = net.attention(*(net.projection(n) for n in "qkv"))
    check(graph, 1)
    parts = Lowering().partition(graph)
    kinds = Counter(type(s) for s in parts.steps)
    assert kinds[Subgraph] == 4  # the product, scores, softmax, the second product
    (whole,) = {s.source for s in parts.steps if isinstance(s, View) and s.rows > 1}
    assert parts.graph.types[whole].shape == (1, ROWS, 3 * WIDTH)
    places = [parts.place(v) for v in "qkv"]
    assert [p and (p.start, p.rows, p.pitch) for p in places] == [
        (k * WIDTH, ROWS, 3 * WIDTH) for k in range(3)
    ]


@pytest.mark.parametrize("exact", [False, True])
def test_the_kernels_compute_the_same(exact: bool) -> None:
    net = Net()
    graph = net.attention(*(net.projection(n, bias=n != "k") for n in "qkv"))
    x = normal(1, ROWS, WIDTH)
    module = al.auto_schedule(graph, n_trials=0, exact=exact, progress=False)
    np.testing.assert_allclose(module(x), evaluate(graph, [x])[0], rtol=2e-5, atol=2e-6)
    assert len(module.kernels) <= 4


def test_a_missing_bias_is_zero_beside_others_and_missing_where_all_are() -> None:
    net = Net()
    some = check(net.attention(*(net.projection(n, bias=n != "k") for n in "qkv")), 1)
    bias = next(a for v, a in some.constants.items() if v.endswith("joined.bias"))
    assert not bias[WIDTH : 2 * WIDTH].any() and bias.all() is not None
    net = Net()
    none = check(net.attention(*(net.projection(n, bias=False) for n in "qkv")), 1)
    assert all(n.op != "add" for n in none.nodes)


def test_projections_of_several_widths_are_joined() -> None:
    net = Net()
    q, k = net.projection("q"), net.projection("k")
    check(net.attention(q, k, net.projection("v", width=6), channels=3), 1)


def test_what_is_read_element_by_element_stays_apart() -> None:
    net = Net()
    v = net.emit("relu", [net.projection("v")])
    check(net.attention(net.projection("q"), net.projection("k"), v), 2)


def test_projections_of_other_inputs_stay_apart() -> None:
    net = Net()
    memory = net.input("memory", (1, ROWS, WIDTH))
    own = [net.projection(n, of=memory) for n in "kv"]
    check(net.attention(net.projection("q"), *own), 2)


def test_an_output_of_the_network_stays_a_value_of_its_own() -> None:
    net = Net()
    q, k, v = (net.projection(n) for n in "qkv")
    graph = net.attention(q, k, v)
    check(replace(graph, outputs=(*graph.outputs, k)), 2)


def test_matrices_that_are_no_constants_stay_apart() -> None:
    net = Net()
    w = net.input("w", (WIDTH, WIDTH))
    q = net.emit("matmul", [net.x, w], "q")
    check(net.attention(q, net.projection("k"), net.projection("v")), 1)


def test_a_bias_that_adds_an_axis_stays_where_it_is() -> None:
    net = GraphBuilder("axis")
    x = net.input("x", (ROWS, WIDTH))
    q, k = (net.emit("matmul", [x, net.constant(normal(WIDTH, WIDTH))]) for _ in "qk")
    q = net.emit("add", [q, net.constant(normal(1, 1, WIDTH))])
    y = net.emit("matmul", [q, net.emit("transpose", [k], perm=(1, 0))])
    graph = net.finish([y])
    joined = optimize(graph)
    assert joined.types[joined.outputs[0]].shape == (1, ROWS, ROWS)
    assert products(joined) == 2
    data = normal(ROWS, WIDTH)
    for got, want in zip(evaluate(joined, [data]), evaluate(graph, [data]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_the_same_projection_twice_is_computed_once() -> None:
    net = GraphBuilder("twice")
    x, w = net.input("x", (ROWS, WIDTH)), net.constant(normal(WIDTH, WIDTH))
    q, k = (net.emit("matmul", [x, w]) for _ in "qk")
    graph = net.finish([net.emit("matmul", [q, net.emit("transpose", [k], perm=(1, 0))])])
    once = optimize(graph)
    own = [n.inputs[1] for n in once.nodes if n.op == "matmul"]
    (weight,) = (once.constants[v] for v in own if v in once.constants)
    assert weight.shape == (WIDTH, WIDTH)
