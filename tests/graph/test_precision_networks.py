"""Networks in bfloat16 from files: damaged ones, of several sizes, saved, for machines without."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_backend import compiled
from test_precision import attention, generator, net
from test_sized_modules import QUICK, inputs, proto

import ansorlite as al
from ansorlite.errors import AnsorliteError
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import evaluate_partition, partition
from ansorlite.graph.passes import optimize
from ansorlite.pipeline import compile_plain
from ansorlite.target import Target

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from damaged_models import damaged, models  # noqa: E402

NETWORKS = {"net": net, "odd": lambda: net(True), "attention": lambda: attention(17)}
NETWORKS["generator"] = generator


def data(graph: Graph, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(graph.types[v].shape).astype(np.float32) for v in graph.inputs]


def near(got: Any, wanted: Any, step: float = 1e-2) -> None:
    size = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-6)
    np.testing.assert_allclose(got, wanted, rtol=step, atol=step * size)


@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_mean_what_the_graph_means(name: str) -> None:
    graph = NETWORKS[name]()
    low = optimize(graph, precision="bf16")
    (wanted,) = evaluate(low, data(graph))
    near(evaluate_partition(partition(low), data(graph))[0], wanted, 1e-3)
    near(evaluate(graph, data(graph))[0], wanted)


@pytest.mark.parametrize("name", ["net", "attention"])
def test_a_machine_without_the_instruction_widens(name: str) -> None:
    graph, target = NETWORKS[name](), Target.cross("x86-avx2", cores=2)
    if target.is_foreign:
        pytest.skip("needs a processor with AVX2")
    assert not target.has("avx512bf16")
    parts = partition(optimize(graph, precision="bf16"))
    (wanted,) = evaluate(parts.graph, data(graph))
    near(compiled(parts, target)(*data(graph)), wanted, 5e-3)


def test_several_sizes() -> None:
    sized = al.load_onnx(proto(), shapes={"x": [(1, 8, 6), (2, 12, 6)]})
    options = {**QUICK, "precision": "bf16", "on_new_shape": "compile"}
    module = al.auto_schedule(sized, **options)
    for n, w in ((1, 8), (2, 12), (3, 5)):
        given = inputs(n, w)
        graph = al.load_onnx(proto(), dims={"n": n, "w": w})
        near(module(*given), evaluate(optimize(graph, precision="bf16"), given)[0], 5e-3)
    assert [m.report.precision.precision for m in module.modules[:2]] == ["bf16"] * 2
    found = module.report.precision
    assert found is not None and found.errors[0].largest < 1e-2


def test_several_sizes_keep_the_same_layers() -> None:
    sized = al.load_onnx(proto(), shapes={"x": [(1, 8, 6), (2, 12, 6)]})
    module = al.auto_schedule(sized, **QUICK, precision="auto", max_error=1e-9)
    for n, w in ((1, 8), (2, 12)):
        given = inputs(n, w)
        wanted = evaluate(al.load_onnx(proto(), dims={"n": n, "w": w}), given)[0]
        np.testing.assert_allclose(module(*given), wanted, rtol=1e-5, atol=1e-6)


def test_saved_products_of_activations(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("saving a network needs cc")
    graph = attention(17)
    module = compiled(partition(optimize(graph, precision="bf16")), Target.detect())
    module.save(tmp_path / "saved")
    loaded = al.load_module(tmp_path / "saved")
    np.testing.assert_array_equal(loaded(*data(graph)), module(*data(graph)))


def lowered_or_refused(k: int, native: bool) -> str:
    """A damaged file in bfloat16: refused as in float32, or an answer that all levels agree on."""
    rng = np.random.default_rng((7, k))
    sound = list(models().values())
    file, _ = damaged(sound[k % len(sound)], rng)
    try:
        graph = al.load_onnx(file)
    except AnsorliteError:
        return "refused"
    if sum(t.size for t in graph.types.values()) > 1 << 18:
        return "too large"
    given = [
        rng.standard_normal(t.shape).astype(t.dtype)
        if t.dtype.startswith("float")
        else rng.integers(0, 2, t.shape).astype(t.dtype)
        for t in (graph.types[v] for v in graph.inputs)
    ]
    try:
        evaluate(graph, given)
        low = optimize(graph, precision="bf16")
        wanted = evaluate(low, given)
        got = compile_plain(graph, precision="bf16")(*given) if native else None
        made = evaluate_partition(partition(low), given)
    except AnsorliteError:
        return "refused"
    for outs in (made, *([] if got is None else [got if isinstance(got, tuple) else (got,)])):
        for x, y in zip(outs, wanted, strict=True):
            if y.dtype.kind == "f" and np.isfinite(y).all():
                near(x, y, 2e-2)
    return "right"


def test_damaged_files() -> None:
    found = [lowered_or_refused(k, native=False) for k in range(24)]
    assert {"refused", "right"} <= {*found}


@pytest.mark.slow
def test_many_damaged_files() -> None:
    found = [lowered_or_refused(k, native=k % 10 < 4) for k in range(800)]
    assert found.count("right") > 100
