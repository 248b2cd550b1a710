"""Export: onnx's reference evaluator runs what we export, and importing it again gives the same."""

import sys

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from onnx.reference import ReferenceEvaluator
from random_nets import nets

from ansorlite.errors import MissingExtra, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.passes import optimize
from ansorlite.graph.types import ints, pairs
from bench.onnx_export import export_onnx


def exportable(graph: Graph) -> bool:
    """Whether opset 17 has the graph's operators, and onnx's reference has them right."""
    for n in graph.nodes:
        window = n.op in ("avg_pool", "max_pool")
        if n.op == "avg_pool":
            # The reference has no number for the mean of a window that lies in the padding.
            rows = zip(pairs(n.attrs, "pads"), ints(n.attrs, "kernel"), strict=True)
            if n.attrs["dilations"] != (1, 1) or any(max(p) >= k for p, k in rows):
                return False
        if (window and n.attrs["ceil_mode"]) or n.op == "lrn":
            return False
        if n.op == "softmax" and n.attrs["axes"] not in ((1,), (3,), (2, 3), (2,)):
            return False
    return True


@given(nets())
@settings(max_examples=25, derandomize=True)
def test_reference_evaluator_agrees(graph: Graph) -> None:
    assume(exportable(graph))
    proto = export_onnx(graph)
    onnx.checker.check_model(proto, full_check=True)
    x = np.random.default_rng(0).standard_normal(graph.types["x"].shape).astype(np.float32)
    expected = evaluate(graph, [x])
    for got, want in zip(ReferenceEvaluator(proto).run(None, {"x": x}), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * max(1, np.abs(want).max()))


@given(nets())
@settings(max_examples=25, derandomize=True)
def test_round_trip(graph: Graph) -> None:
    assume(exportable(graph))
    again = load_onnx(export_onnx(graph))
    x = np.random.default_rng(0).standard_normal(graph.types["x"].shape).astype(np.float32)
    for got, want in zip(evaluate(again, [x]), evaluate(graph, [x]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(1, np.abs(want).max()))


def test_optimized_graphs_are_refused() -> None:
    b = GraphBuilder("late")
    w = b.constant(np.ones((2, 3, 1, 1), np.float32), "w")
    y = b.emit(
        "conv",
        [b.input("x", (1, 3, 4, 4)), w],
        "y",
        groups=1,
        strides=(1, 1),
        pads=((0, 0), (0, 0)),
        dilations=(1, 1),
        layout="channels_first",
    )
    with pytest.raises(ModelError, match=r"node y \(conv\) is channels last: export before"):
        export_onnx(optimize(b.finish([y])))


@pytest.mark.parametrize("name", ["a\nb", 'a"*/', "\0", "é 日本", "x" * 10_000, "y.min"])
def test_names_are_kept(name: str) -> None:
    b = GraphBuilder(name)
    y = b.emit("clip", [b.input(name, (4,))], "y", min=-1.0, max=1.0)
    again = load_onnx(export_onnx(b.finish([y])).SerializeToString())
    assert (again.name, again.inputs) == (name, (name,))
    x = np.asarray([-3, -1, 0.5, 2], np.float32)
    np.testing.assert_array_equal(evaluate(again, [x])[0], np.clip(x, -1, 1))


@pytest.mark.parametrize(("name", "why"), [("\ud800", "is no UTF-8 text"), ("", "has no name")])
def test_names_that_onnx_cannot_hold(name: str, why: str) -> None:
    b = GraphBuilder("net")
    with pytest.raises(ModelError, match=why):
        export_onnx(b.finish([b.emit("relu", [b.input(name, (2,))])]))


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder("any")
    graph = b.finish([b.emit("relu", [b.input("x", (2,))])])
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match="onnx"):
        export_onnx(graph)
