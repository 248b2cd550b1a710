"""`exact=True`: no rewrite or form that changes values beyond rounding."""

from typing import Any

import numpy as np
import pytest

from ansorlite import pipeline
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.passes import EXACT_PASSES, PASSES, optimize
from ansorlite.graph.rewrites import fold_scales
from ansorlite.pipeline import auto_schedule, compile_plain

WINDOW: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "layout": "channels_first"}


class Stop(Exception):
    """Ends `auto_schedule` where tuning would begin."""


def network() -> Graph:
    """A convolution that has a Winograd form, a norm, a quotient and a scale."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("net")
    w = b.constant(rng.standard_normal((16, 16, 3, 3)).astype(np.float32))
    attrs = WINDOW | {"pads": ((1, 1), (1, 1)), "groups": 1}
    y = b.emit("conv", [b.input("x", (1, 16, 8, 8)), w], **attrs)
    rows = [rng.uniform(0.5, 1.5, 16).astype(np.float32) for _ in range(4)]
    y = b.emit("batch_norm", [y, *(b.constant(v) for v in rows)], epsilon=1e-5)
    y = b.emit("div", [y, b.constant(np.asarray(3.0, np.float32))])
    return b.finish([b.emit("mul", [y, b.constant(np.asarray(0.7, np.float32))])])


def test_nothing_is_folded() -> None:
    graph = network()
    moved = ["transpose", "conv", "add", "transpose"]
    assert [n.op for n in optimize(graph).nodes] == moved
    as_written = ["conv", "add", "div", "mul", "add", "div", "mul"]
    assert [n.op for n in optimize(graph, exact=True).nodes] == [
        "transpose",
        *as_written,
        "transpose",
    ]
    assert fold_scales in PASSES and fold_scales not in EXACT_PASSES


def test_results_are_those_of_the_operators() -> None:
    graph = network()
    x = np.random.default_rng(1).standard_normal((1, 16, 8, 8)).astype(np.float32)
    want = evaluate(graph, [x])[0]
    got = np.asarray(compile_plain(graph, exact=True)(x))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("exact", "forms"), [(False, 2), (True, 1)])
def test_there_is_no_other_form(exact: bool, forms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def stop(run: Any, weighted: Any, *rest: Any, **named: Any) -> Any:
        seen.extend(len(w.forms) for w in weighted)
        raise Stop

    monkeypatch.setattr(pipeline, "tune_tasks", stop)
    with pytest.raises(Stop):
        auto_schedule(network(), n_trials=0, progress=False, exact=exact)
    assert max(seen) >= forms if not exact else max(seen) == forms
