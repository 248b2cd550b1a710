"""Small ONNX files that need much memory or time are refused at once, with size and limit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from test_onnx_errors import FLOAT, model, node, refused

from ansorlite.errors import ModelError
from ansorlite.graph import limits
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.limits import Room, most_bytes, peak_bytes
from ansorlite.graph.onnx.load import load_onnx
from ansorlite.graph.onnx.read import MOST_NODES
from ansorlite.graph.passes import optimize
from ansorlite.graph.types import TensorType
from ansorlite.settings import settings
from ansorlite.workloads import network

HUGE = np.asarray([1_000_000, 1_000_000], np.int64)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A limit of 1 MB."""
    monkeypatch.setenv("ANSORLITE_MAX_BYTES", "1000000")
    settings.cache_clear()
    yield 1_000_000
    monkeypatch.undo()
    settings.cache_clear()


def one(op: str, inputs: str, arrays: dict[str, Any], **attrs: Any) -> onnx.ModelProto:
    return model([node(op, *inputs, **attrs)], (1, 1), arrays=arrays)


@pytest.mark.parametrize(
    ("op", "inputs", "arrays", "attrs"),
    [
        ("ConstantOfShape", "s", {"s": HUGE}, {}),
        ("Expand", "vs", {"v": np.ones((1, 1), np.float32), "s": HUGE}, {}),
        ("Tile", "vs", {"v": np.ones((1, 1), np.float32), "s": HUGE}, {}),
        ("Range", "abd", {"a": np.float32(0), "b": np.float32(1e12), "d": np.float32(1)}, {}),
        ("Range", "abd", {"a": np.int64(0), "b": np.int64(1 << 60), "d": np.int64(1)}, {}),
        ("Expand", "xs", {"s": HUGE}, {}),
        ("Tile", "xs", {"s": HUGE}, {}),
        ("Pad", "xs", {"s": np.asarray([10**6, 10**6, 0, 0], np.int64)}, {}),
        ("Pad", "xs", {"s": np.asarray([0, 10**12, 0, 0], np.int64)}, {"mode": "edge"}),
        ("Upsample", "xs", {"s": np.float32([1e6, 1e6])}, {}),
    ],
)
def test_one_operator(op: str, inputs: str, arrays: Any, attrs: Any) -> None:
    proto = one(op, inputs, arrays, **attrs)
    if op == "Upsample":
        proto.opset_import[0].version = 9
    refused(proto, rf"node n1 \((?i:{op})\).* takes [\d,]+ MB, more than the limit of [\d,]+ MB")


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), 1e30, -1.0, 0.0])
def test_scales_that_are_no_factors(scale: float) -> None:
    arrays = {"s": np.asarray([1.0, scale], np.float32)}
    proto = model([node("Resize", "x", "", "s")], (4, 4), arrays=arrays)
    refused(proto, r"node n1 \(Resize\): scale \S+ of extent 4 gives")


def test_ranges_without_end() -> None:
    for a, b, d in ((0, 1, 0), (0, np.inf, 1), (np.nan, 1, 1)):
        arrays = {k: np.float32(v) for k, v in zip("abd", (a, b, d), strict=True)}
        refused(one("Range", "abd", arrays), "has no end")


def test_constants_that_double(limit: int) -> None:
    nodes = [
        node("Concat", *(2 * [f"v{k}"]), out=f"v{k + 1}", name=f"n{k}", axis=0) for k in range(40)
    ]
    nodes.append(node("Add", "x", "v40"))
    proto = model(nodes, (1,), arrays={"v0": np.ones(100, np.float32)})
    refused(proto, r"node n10 \(Concat\): the sum of the constants computed .* of 1 MB")


def test_constants_that_take_long(limit: int) -> None:
    square = np.ones((300, 300), np.float32)
    nodes = [node("MatMul", "w", "w", out="v"), node("Add", "x", "v")]
    proto = model(nodes, (300, 300), arrays={"w": square})
    refused(
        proto, r"node n1 .*operations to compute, more than 1\.0e\+06: set ANSORLITE_MAX_BYTES="
    )


def test_inputs_and_what_callers_give() -> None:
    proto = model([node("Relu", "x")], ("N", 3))
    takes = "input x, float32.*, takes 12,000 MB" if most_bytes() < 12e9 else "takes"
    refused(proto, takes, batch=10**12)
    refused(proto, "takes .* more than the limit", dims={"N": 1 << 40})
    refused(proto, r"an extent has to be below 2\^62", dims={"N": 1 << 70})
    refused(model([node("Relu", "x")], (1 << 40, 1 << 40)), "more than the limit")
    refused(model([node("Relu", "x")], (1,) * 40), "input x has 40 axes, more than the 32")


@pytest.mark.parametrize("given", [2.5, "2", True, [2, "3"], {2: 3}])
def test_extents_are_whole_numbers(given: Any) -> None:
    proto = model([node("Relu", "x")], ("N", 3))
    refused(proto, "the extent 'batch' is .*: give a whole number", batch=given)
    refused(proto, "the extent 'N' is .*: give a whole number", dims={"N": given})
    refused(proto, "dims is a int: give a mapping", dims=3)


def test_networks_of_the_package_too() -> None:
    with pytest.raises(ModelError, match=r"input data, float32.*more than the limit"):
        network("resnet18", batch=10**9)


def test_dimensions_that_a_header_claims() -> None:
    proto = model([node("Add", "x", "w")], arrays={"w": np.ones((2, 3), np.float32)})
    proto.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    refused(proto, "initializer w with dimensions .* takes .* MB, more than the limit")


def test_all_values_together(limit: int) -> None:
    """Each value fits, all weights do not; nor do activations that live at the same time."""
    arrays = {f"w{k}": np.ones(100_000, np.float32) for k in range(3)}
    adds = [node("Add", f"x{k or ''}", f"w{k}", out=f"x{k + 1}", name=f"n{k}") for k in range(3)]
    refused(
        model(adds, (1,), arrays=arrays, output="x3"),
        r"the sum of all constants up to w2 takes 1 MB",
    )
    wide = [node("Relu", "x", out=f"a{k}", name=f"n{k}") for k in range(3)]
    wide.append(node("Sum", "a0", "a1", "a2"))
    refused(model(wide, (90_000,)), "network net takes 1 MB, more than the limit of 1 MB")
    chain = [node("Relu", f"a{k}" if k else "x", out=f"a{k + 1}", name=f"n{k}") for k in range(9)]
    assert load_onnx(model(chain, (90_000,), output="a9")).outputs


def test_windows_without_measure() -> None:
    """Where windows are larger than the data they may still be many."""
    k = 1_000_000
    attrs: Any = {"kernel_shape": [k], "pads": [k - 1, k - 1]}
    proto = model([node("AveragePool", "x", **attrs)], (1, 1, 4))
    refused(proto, r"node n1 \(.*operations, more than .*: set ANSORLITE_MAX_BYTES=\d+")
    far = {"kernel_shape": [2], "dilations": [1 << 40], "pads": [(1 << 40) - 1, 1]}
    proto = model([node("AveragePool", "x", **far)], (1, 1, 4), opset=19)
    refused(proto, r"the padded data of node n1 \(AveragePool\), .* more than the limit")
    attrs = {"kernel_shape": [k], "pads": [k, k]}
    refused(
        model([node("MaxPool", "x", **attrs)], (1, 1, 4)), "pads .* not smaller than the windows"
    )
    proto = model([node("LRN", "x", size=1 << 40)], (1, 3, 4, 4))
    refused(proto, "size 1099511627776 is no window over 3 channels")


def _functions(bodies: dict[str, list[str]]) -> onnx.ModelProto:
    """A model of one call of the last function; a body is a chain of calls."""
    uses = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    proto = model([helper.make_node([*bodies][-1], ["x"], ["y"], domain="own")])
    proto.opset_import.append(uses[1])
    for name, calls in bodies.items():
        nodes = [
            helper.make_node(op, [f"a{k}"], [f"a{k + 1}"], domain="own" if op in bodies else "")
            for k, op in enumerate(calls)
        ]
        function = helper.make_function("own", name, ["a0"], [f"a{len(calls)}"], nodes, uses)
        proto.functions.append(function)
    return proto


def test_functions_that_grow() -> None:
    bodies = {"F0": ["Relu", "Relu"], **{f"F{k}": [f"F{k - 1}"] * 2 for k in range(1, 26)}}
    refused(
        _functions(bodies),
        f"functions written out, own.F25 above all, are 67108864 nodes, more than the limit of "
        f"{MOST_NODES}",
    )
    assert len(load_onnx(_functions({"F0": ["Relu", "Relu"], "F1": ["F0", "F0"]})).nodes) == 4


def test_functions_that_call_themselves() -> None:
    refused(_functions({"F": ["F"]}), r"function own\.F calls itself")
    refused(_functions({"F": ["Relu", "G"], "G": ["F"]}), r"function own\.[FG] calls itself")


def test_functions_that_call_deep() -> None:
    bodies = {"F0": ["Relu"], **{f"F{k}": [f"F{k - 1}"] for k in range(1, 200)}}
    refused(_functions(bodies), "functions that call more than 64 deep")


def test_graphs_within_graphs() -> None:
    inner = helper.make_graph([node("Relu", "x", out="z")], "g", [], [])
    for _ in range(25):
        branch = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=inner)
        del branch.attribute[1]
        inner = helper.make_graph([branch], "g", [], [])
    refused(model(list(inner.node)), "graphs nested more than 20 deep")


def test_many_nodes() -> None:
    proto = model([node("Relu", "x")] * (MOST_NODES + 1))
    refused(proto, f"net has {MOST_NODES + 1} nodes, more than the limit of {MOST_NODES}")


def test_more_of_anything_than_networks_have() -> None:
    proto = model([node("Concat", *["x"] * 70_000, axis=0)])
    refused(proto, "node 0 has 70000 operands, outputs or attributes, more than the limit of 65536")
    proto = model([node("Add", "x", "w")], arrays={"w": np.ones(3, np.float32)})
    proto.graph.initializer[0].dims[:] = [1] * 5_000
    refused(proto, "initializer w has 5000 axes, more than the 32 possible")
    proto = model([node("Relu", "x")])
    proto.graph.value_info.extend([proto.graph.output[0]] * (MOST_NODES + 1))
    refused(proto, f"has more than {MOST_NODES} of the kind value_info")


def test_messages_are_short() -> None:
    proto = model([node("MaxPool", "x", kernel_shape=[2] * 20_000)], (1, 1, 4, 4))
    refused(proto, r"node n1 \(MaxPool\)")
    conv, weights = node("Conv", "x", "w", strides=[2] * 20_000), np.ones((1, 1, 2, 2), np.float32)
    proto = model([conv], (1, 1, 4, 4), arrays={"w": weights})
    with pytest.raises(ModelError) as caught:
        load_onnx(proto)
    assert 800 < len(str(caught.value)) <= 900


def test_files_larger_than_the_limit(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(bytes(limit + 1))
    refused(path, r"net\.onnx has 1 MB, more than the limit of 1 MB")


def test_passes_keep_the_limit(limit: int) -> None:
    builder = GraphBuilder("net")
    total = builder.input("x", (1,))
    for _ in range(4):
        w = builder.constant(np.ones(1000, np.float32))
        w = builder.emit("concat", [w] * 100, axis=0)
        w = builder.emit("reduce_sum", [w], axes=(0,), keepdims=True)
        total = builder.emit("add", [total, w])
    graph = builder.finish([total])
    with pytest.raises(ModelError, match="the sum of the constants computed up to node concat"):
        optimize(graph)


def test_views_are_counted_once() -> None:
    room, array = Room(most=5000), np.ones(1000, np.float32)
    for view in (array, array.reshape(10, 100), array):
        room.keep("w", view, computed=False)
    assert room.given == 4000
    with pytest.raises(ModelError, match="the sum of all constants up to v takes"):
        room.keep("v", array.copy(), computed=False)


def test_computed_constants_are_bounded_by_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANSORLITE_MAX_BYTES", raising=False)
    settings.cache_clear()
    room = Room(most=1 << 40)
    room.another("v", TensorType((1 << 28,)))
    with pytest.raises(ModelError, match=r"more than the limit of 1,074 MB"):
        room.another("v", TensorType(((1 << 28) + 1,)))
    room.keep("w", np.ones(1000, np.float32), computed=False)
    room.another("v", TensorType(((1 << 28) + 16_000,)))
    room.compute("v", 1 << 32)
    with pytest.raises(ModelError, match="operations to compute, more than 4"):
        room.compute("v", 64_001)


def test_the_default_is_half_of_the_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ANSORLITE_MAX_BYTES", raising=False)
    settings.cache_clear()
    no_limit = (limits.resource.RLIM_INFINITY,) * 2
    monkeypatch.setattr(limits.resource, "getrlimit", lambda kind: no_limit)
    monkeypatch.setattr(limits, "_memory", lambda: 1000)
    assert most_bytes() == 500
    monkeypatch.setattr(limits.resource, "getrlimit", lambda kind: (600, 600))
    assert most_bytes() == 300
    (tmp_path / "own").write_text("1:name=systemd:/s\n0::/a/b\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("70\n")
    assert list(limits._of_groups(tmp_path, tmp_path / "own")) == [70]
    settings.cache_clear()


def test_peaks() -> None:
    assert peak_bytes([]) == 0
    assert peak_bytes([(10, 0, 1), (20, 2, 2), (5, 1, 2)]) == 25
    assert limits.size_bytes(TensorType((2, 3), "int64")) == 48


def test_element_types_are_those_of_the_schema() -> None:
    half = np.ones((2, 3), np.float32)
    proto = model([node("Gather", "x", "w")], arrays={"w": half}, dtype=FLOAT)
    refused(proto, r"node n1 \(Gather\): operand 1 \(indices\) may not be of dtype float32")


def test_names_that_are_all_the_same() -> None:
    """Numbers behind names are given in one step each."""
    nodes = [node("Relu", f"a{k}" if k else "x", out=f"a{k + 1}", name="n") for k in range(6000)]
    graph = load_onnx(model(nodes, output="a6000"))
    assert [n.name for n in graph.nodes[:3]] == ["n", "n.1", "n.2"]
    builder = GraphBuilder("net")
    assert [builder.constant(np.ones(1), "w") for _ in range(6000)][-1] == "w.5999"
