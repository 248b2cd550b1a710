"""Precision "auto": which layers stay in float32, what the log keeps, and what reports tell."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_precision import generator, net, picture, weight

import ansorlite as al
from ansorlite.errors import ModelError, UsageError
from ansorlite.graph.accuracy import compared
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import (
    Choice,
    Lowering,
    choose,
    digest,
    lowerings,
    note,
    noted,
    tuned_ways,
)
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import evaluate_partition
from ansorlite.graph.passes import optimize
from ansorlite.graph.precision import products
from ansorlite.records import LogContents, read_log


def small() -> Graph:
    """Two dense layers."""
    b = GraphBuilder("small")
    y = b.emit("matmul", [b.input("x", (3, 16)), b.constant(weight(16, 8))])
    return b.finish([b.emit("matmul", [b.emit("relu", [y]), b.constant(weight(8, 4))])])


def error_of(graph: Any, way: Lowering, x: Any) -> float:
    low = optimize(graph, way.exact, way.precision, way.kept)
    return compared("y", evaluate(low, [x])[0], evaluate(graph, [x])[0]).largest


@pytest.mark.parametrize("network", [net, generator])
def test_layers_fall_back_until_the_error_is_allowed(network: Any) -> None:
    graph = network()
    wide = optimize(graph)
    x = np.random.default_rng(3).standard_normal(graph.types["x"].shape).astype(np.float32)
    kept = []
    for allowed in (1.0, 1e-3, 1e-4, 1e-9):
        choice = choose(wide, allowed, [x])
        way = Lowering(False, "auto", choice.values(wide))
        assert choice.error is not None
        assert choice.error == pytest.approx(error_of(graph, way, x), abs=1e-7)
        assert choice.error <= allowed
        kept.append(len(choice.kept))
    assert kept[0] == 0 and kept[-1] == len(products(wide)) and kept == sorted(kept)
    assert network is generator or kept[1] < kept[-1]  # what may is still bfloat16


def test_what_stays_reads_float32() -> None:
    graph = optimize(generator())
    names = products(graph)
    low = optimize(generator(), precision="auto", kept=names)
    assert {t.dtype for t in low.types.values()} == {"float32"}
    first = optimize(generator(), precision="auto", kept=names[1:])
    assert [n.op for n in first.nodes if "conv" in n.op] == [
        "conv_transpose_bf16",
        "conv_transpose",
    ]


def test_float32_is_a_form_of_what_is_lowered() -> None:
    graph, x = net(), picture()
    parts = Lowering(precision="auto").partition(graph)
    with_forms = [s for s in parts.subgraphs if s.name.startswith(("conv_bf16", "matmul_bf16"))]
    assert len(with_forms) == 4 and all(len(s.forms) >= 2 for s in with_forms)
    (wanted,) = evaluate_partition(parts, [x])
    for s in with_forms:
        alone = type(parts)(
            parts.graph,
            tuple(_form(t, len(t.forms) - 1) if t is s else t for t in parts.steps),
        )
        np.testing.assert_allclose(evaluate_partition(alone, [x])[0], wanted, rtol=1e-2, atol=1e-6)


def _form(step: Any, k: int) -> Any:
    return replace(step, dag=step.forms[k].dag, inputs=step.forms[k].inputs)


def test_a_log_keeps_the_choice(tmp_path: Path) -> None:
    graph, log = small(), tmp_path / "auto.jsonl"
    shape = graph.types["x"].shape
    x = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    wide = optimize(graph)
    most = choose(wide, 1.0, [x]).error
    assert most is not None
    known = {"precision": "auto", "max_error": 0.9 * most, "progress": False, "log": log}
    module = al.auto_schedule(graph, n_trials=2, round_size=1, error_inputs=[x], **known)
    (line,) = [c for c in read_log(log).choices if c.task.startswith("precision:")]
    (choice,) = filter(None, [noted([line], line.task)])
    assert choice.kept
    again = al.auto_schedule(graph, n_trials=0, **known)  # on no inputs
    np.testing.assert_array_equal(again(x), module(x))
    assert [r.task.workload_key for r in again.report.results] == [
        r.task.workload_key for r in module.report.results
    ]
    # Another error is another choice.
    ways, notes = lowerings([graph], precision="auto", max_error=0.5, log=log)
    assert notes and ways[0].kept == frozenset()
    assert lowerings([graph], precision="auto", max_error=0.9 * most, log=log)[1] == []
    assert ways[0].exact is False and len([*tuned_ways(graph, [line])]) == 6


def test_the_report_tells_precision_and_error() -> None:
    module = al.auto_schedule(small(), n_trials=0, precision="bf16", progress=False)
    found = module.report.precision
    assert found is not None
    assert [(k.computes_in, k.reads, k.writes) for k in found.kernels] == [
        ("float32", "float32", "bf16"),
        ("bf16", "bf16", "bf16"),
        ("bf16", "bf16", "float32"),
    ]
    assert found.moved == 3 * 16 * 6 + (3 * 16 + 16 * 8 + 3 * 8) * 2 + (3 * 8 + 32) * 2 + 3 * 4 * 4
    (error,) = found.errors
    assert 0 < error.largest < 1e-2 and error.same_top is not None
    text = str(module.report)
    assert "precision bf16" in text and "against float32, matmul.1: error at most" in text
    plain = al.auto_schedule(small(), n_trials=0, progress=False).report
    assert plain.accuracy == () and "against float32" not in str(plain)
    wide = plain.precision
    assert wide is not None and {k.computes_in for k in wide.kernels} == {"float32"}


def test_page_of_a_log_tells_precision() -> None:
    pytest.importorskip("jinja2", reason="extra report")
    pytest.importorskip("matplotlib", reason="extra report")
    from ansorlite.cli.report import _precision
    from ansorlite.cli.tasks import tuned_network
    from ansorlite.report.page import Page, html

    graph = small()
    wide = optimize(graph)
    line = note(Choice((1,), seconds=1.0), digest(wide, 1e-3), "small", "here")
    parts = Lowering(False, "auto", Choice((1,)).values(wide)).partition(graph)
    keys = {s.dag.workload_key for s in parts.subgraphs}
    tuned = tuned_network(graph, keys, [line])
    assert (tuned.way.precision, tuned.way.kept) == ("auto", Choice((1,)).values(wide))
    text = _precision(graph, tuned, LogContents((), (), (line,)))
    assert "matmul_bf16_relu_1" in text and "against float32, matmul" in text
    assert text.replace(">", "&gt;") in html(Page(("a.jsonl",), "small", (), precision=text))
    assert 'id="precision"' not in html(Page(("a.jsonl",), "small", ()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "bf16", "max_error": 1e-3}, "goes with precision='auto', not with 'bf16'"),
        ({"precision": "auto", "max_error": 0.0}, "max_error is 0.0: give a number above 0"),
        ({"precision": "auto", "max_error": float("nan")}, "give a number above 0"),
        ({"precision": "auto", "max_error": "small"}, "max_error is 'small': give a number"),
        ({"precision": "bf16", "error_inputs": []}, "error_inputs are for precision='auto'"),
    ],
)
def test_bad_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        al.auto_schedule(net(), n_trials=0, progress=False, **options)


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ModelError, match="takes 1 inputs"):
        al.auto_schedule(net(), n_trials=0, progress=False, precision="auto", error_inputs=[])
