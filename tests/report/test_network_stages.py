"""Stages of a network as text, and the picture of its partition."""

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from ansorlite.errors import AnsorliteError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, Step
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import PASSES, optimize
from ansorlite.report.networks import network_stage, partition_svg, passes_text

SVG = "{http://www.w3.org/2000/svg}"


def two_branches() -> Graph:
    """max(x, 0) @ x and a copy of x: two kernels, a graph output that is an input."""
    builder = GraphBuilder("two <branches>")
    x = builder.input("x", (8, 8))
    y = builder.emit("matmul", [builder.emit("relu", [x]), x], "product")
    z = builder.emit("reduce_sum", [y], "total", axes=(1,), keepdims=True)
    return builder.finish([z, builder.emit("tanh", [y], "bent")])


def test_the_picture_has_a_box_a_kernel_and_terminal() -> None:
    graph = two_branches()
    parts = partition(optimize(graph))
    root = ET.fromstring(partition_svg(graph))
    boxes = root.findall(f"{SVG}g")
    assert len(boxes) == len(parts.subgraphs) + len(graph.inputs) + len(graph.outputs)
    titles = [t.text or "" for b in boxes for t in b.findall(f"{SVG}title")]
    for s in parts.subgraphs:
        assert any(t.startswith(s.name) for t in titles)
    arrows = [p for p in root.findall(f"{SVG}path")]
    values = [t.text or "" for a in arrows for t in a.findall(f"{SVG}title")]
    assert any(v.startswith("x: float32[8, 8]") for v in values)


def test_boxes_do_not_overlap() -> None:
    root = ET.fromstring(partition_svg(two_branches()))
    at = [(r.get("x"), r.get("y")) for r in root.iter(f"{SVG}rect")]
    assert len(set(at)) == len(at)


def test_every_pass_is_told() -> None:
    text = passes_text(two_branches())
    assert text.startswith("# import\n")
    for step in PASSES:
        assert f"# {step.__name__}" in text


def test_the_passes_end_with_what_transposes_cost() -> None:
    builder = GraphBuilder("turned")
    x = builder.input("x", (2, 3, 4, 5))
    turned = builder.emit("transpose", [x], "turned", perm=(0, 1, 3, 2))
    product = builder.emit("matmul", [x, turned], "product")
    last = builder.emit("transpose", [builder.emit("relu", [x])], perm=(1, 0, 3, 2))
    text = passes_text(builder.finish([product, last])).splitlines()[-1]
    assert text == "# transposes: 1, 120 elements to move: relu.t 120; 1 more are part of products"
    assert passes_text(two_branches()).splitlines()[-1] == "# transposes: 0, 0 elements to move"


ODD = ['a"b', "a\nb", "<&>", "\0", "\x1b[31m", "\ud800", "\u202e", "", "x" * 10_000, "日本"]


@pytest.mark.parametrize("name", ODD, ids=range(len(ODD)))
def test_any_name_is_text(name: str) -> None:
    builder = GraphBuilder(name)
    x = builder.input(name, (8, 8))
    y = builder.emit("matmul", [builder.emit("relu", [x], f"{name}!"), x], f"{name}?")
    graph = builder.finish([y, builder.emit("reshape", [y], f"{name} view", shape=(64,))])
    root = ET.fromstring(network_stage(graph, "svg").encode("utf-8"))
    assert all(len(t.text or "") <= 28 for t in root.iter(f"{SVG}text"))
    for stage in ("passes", "partition"):
        assert network_stage(graph, stage).replace("\n", "").isprintable()
    assert str(graph).count("\n") == 5 and network_stage(graph, "partition").count("\n") == 5


def test_an_unknown_stage_is_named() -> None:
    with pytest.raises(AnsorliteError, match="passes, partition, svg"):
        network_stage(two_branches(), "dag")


def test_the_kernels_of_a_loop_have_boxes_of_their_own() -> None:
    """Those of the first step and those of the rest; arrows never lead back."""
    b = GraphBuilder("step")
    state, row = b.input("state", (2, 3)), b.input("row", (2, 3))
    step = Step(b.finish([b.emit("tanh", [b.emit("add", [state, row])])]))
    outer = GraphBuilder("net")
    x, start = outer.input("x", (4, 2, 3)), outer.input("start", (2, 3))
    attrs: dict[str, Any] = {"times": 4, "states": 1, "scanned": 1, "reverse": False}
    y = outer.emit("loop", [start, x], "y", body=step, **attrs)
    root = ET.fromstring(partition_svg(outer.finish([y])))
    assert len(root.findall(f"{SVG}g")) == 2 + 2 + 1
