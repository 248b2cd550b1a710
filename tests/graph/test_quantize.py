"""Quantising a float network: bytes between layers, methods, layers that stay float, bad inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_backend import compiled

import ansorlite as al
from ansorlite.cli import _parser, main
from ansorlite.cli.calibrated import calibrated
from ansorlite.errors import AnsorliteError, ModelError, UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.calibration import METHODS, Range, Ranges
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.graph.quantize import QuantizedGraph
from ansorlite.target import Target

RNG = np.random.default_rng(4)
SHAPE = (1, 3, 13, 14)


def weight(*shape: int) -> Any:
    return (RNG.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def net(coarse: bool = False) -> Graph:
    """A stem, a pool, single channels, a sum, a mean, a dense layer; with `coarse` one layer whose
    channels lie orders of magnitude apart in its data."""
    b = GraphBuilder("net")

    def conv(x: str, co: int, ci: int, size: int, groups: int = 1) -> str:
        w = weight(co, ci // groups, size, size)
        pads = ((size // 2, size // 2),) * 2
        ones: Any = {"strides": (1, 1), "dilations": (1, 1), "layout": "channels_first"}
        y = b.emit("conv", [x, b.constant(w)], pads=pads, groups=groups, **ones)
        return b.emit("add", [y, b.constant(weight(co, 1, 1))])

    y = b.emit("relu", [conv(b.input("x", SHAPE), 8, 3, 3)])
    pool = {"kernel": (2, 2), "strides": (2, 2), "pads": ((0, 0), (0, 0)), "dilations": (1, 1)}
    y = b.emit("max_pool", [y], ceil_mode=False, layout="channels_first", **pool)
    z = b.emit("relu", [conv(y, 12, 8, 1)])
    z = b.emit("relu", [conv(z, 12, 12, 3, groups=12)])
    y = b.emit("relu", [b.emit("add", [conv(z, 8, 12, 1), y])])
    if coarse:
        y = b.emit("mul", [y, b.constant(np.logspace(0, 4, 8, dtype=np.float32).reshape(8, 1, 1))])
        y = b.emit("mul", [conv(y, 8, 8, 1), b.constant(np.asarray(1e-4, np.float32))])
    y = b.emit("reduce_mean", [y], axes=(2, 3), keepdims=False)
    return b.finish([b.emit("matmul", [y, b.constant(weight(8, 5))])])


def pictures(count: int) -> list[Any]:
    return [RNG.standard_normal(SHAPE).astype(np.float32) for _ in range(count)]


@pytest.mark.parametrize("method", METHODS)
def test_a_quantised_network_reads_and_writes_bytes(method: Any) -> None:
    graph = net()
    small = al.quantize(graph, pictures(4), method=method)
    assert isinstance(small, QuantizedGraph)
    parts = partition(optimize(small))
    stored = {parts.graph.types[v].dtype for s in parts.subgraphs[:-1] for v in s.outputs}
    assert stored == {"uint8", "int32"}, parts  # three channels as words
    (x,) = pictures(1)
    exactly, meant = evaluate(graph, [x])[0], evaluate(small, [x])[0]
    size, got = np.abs(exactly).max(), meant
    if method == "minmax":
        got = compiled(parts, Target.detect())(x)
        assert np.abs(got - meant).max() <= 0.02 * size
    assert np.abs(got - exactly).max() <= 0.1 * size
    report = small.quantization
    assert {layer.runs_in for layer in report.layers} == {"int8"} and len(report.layers) == 5
    (found,) = report.accuracy
    assert 0 < found.mean <= found.largest < 0.1
    assert str(report).startswith(f"5 of 5 layers in int8 ({method})\nmatmul: error at most")


def test_layers_that_lose_most_stay_float() -> None:
    graph, given = net(coarse=True), pictures(2)
    small = al.quantize(graph, given)
    worst = max(small.quantization.layers, key=lambda layer: layer.error)
    bound = small.quantization.accuracy[0].largest / 2
    mixed = al.quantize(graph, given, max_error=bound)
    assert mixed.quantization.accuracy[0].largest <= bound
    kept = [layer for layer in mixed.quantization.layers if layer.runs_in == "float32"]
    assert worst.name in [layer.name for layer in kept] and len(kept) < 6
    assert f"{worst.name} (conv) stays float32" in str(mixed.quantization)
    ops = [n.op for n in optimize(mixed).nodes]
    assert "conv" in ops and "conv_u8s8" in ops
    none = al.quantize(graph, given, max_error=0)
    assert {layer.runs_in for layer in none.quantization.layers} == {"float32"}


@pytest.mark.slow
def test_a_quantised_network_is_tuned_like_any_other() -> None:
    small = al.quantize(net(), pictures(2))
    module = al.auto_schedule(small, n_trials=4, progress=False, round_size=1)
    (x,) = pictures(1)
    (found,) = al.accuracy(module, small, [x])
    assert found.largest < 0.02


def test_ranges_follow_their_method() -> None:
    x = np.concatenate([RNG.standard_normal(100_000), [40.0]]).astype(np.float32)
    spans = {}
    for method in METHODS:
        watched = Ranges({"x"}, method, 99.9)
        for _ in range(watched.passes):
            watched.see("x", x)
            watched.see("y", x)
            watched.next_pass()
        spans[method] = watched.found()["x"]
    assert spans["minmax"] == Range(float(x.min()), 40.0)
    assert 2.5 < spans["percentile"].high < 4 and -4 < spans["percentile"].low < -2.5
    assert 3 < spans["entropy"].high < 20
    assert Range(0.0, 0.0).rounded(np.zeros(3)).tolist() == [0, 0, 0]
    assert Range(-1.0, 3.0).point == 64 and Range(0.0, 5.0).point == 0


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "none": ([], {}, "there are no calibration inputs"),
    "no list": (3, {}, "calibration_inputs is int: give a list"),
    "a shape": ([np.zeros(SHAPE, "f"), np.zeros((1, 3), "f")], {}, "calibration inputs 2: input x"),
    "a dtype": ([np.zeros(SHAPE)], {}, "calibration inputs 1: input x is float64"),
    "no number": ([np.full(SHAPE, np.nan, "f")], {}, "input x has values that are not finite"),
    "a name": ([{"z": np.zeros(SHAPE, "f")}], {}, "calibration inputs 1: x has no value"),
    "two names": ([{"x": 0, "z": 0}], {}, "calibration inputs 1: z is no input"),
    "a method": ([np.zeros(SHAPE, "f")], {"method": "best"}, "method is 'best': choose one of min"),
    "an error": ([np.zeros(SHAPE, "f")], {"max_error": -1}, "max_error is -1"),
    "a share": ([np.zeros(SHAPE, "f")], {"percentile": 10}, "percentile is 10"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_calibration_is_one_clear_error(case: str) -> None:
    given, options, text = BAD[case]
    with pytest.raises(AnsorliteError, match=text):
        al.quantize(net(), given, **options)


def test_a_network_without_products_is_refused() -> None:
    b = GraphBuilder("flat")
    graph = b.finish([b.emit("relu", [b.input("x", (4,))])])
    with pytest.raises(ModelError, match="network flat has no convolution or product"):
        al.quantize(graph, [np.zeros(4, np.float32)])
    with pytest.raises(UsageError, match="str is no network"):
        al.quantize("flat", [np.zeros(4, np.float32)])


@pytest.fixture
def on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with calibration inputs of `net`, which the command line knows as resnet18."""
    monkeypatch.setattr(al, "network", lambda name, batch: net(), raising=False)
    np.savez(tmp_path / "sets.npz", x=np.stack(pictures(2)))
    np.savez(tmp_path / "other.npz", y=np.zeros(3))
    (tmp_path / "text.npz").write_text("no archive")
    return tmp_path


def test_the_command_line_quantises(on_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["--calibration", str(on_disk / "sets.npz")]
    args = _parser().parse_args(["tune", "resnet18", *sets, "--max-error", "0.5"])
    small = calibrated(args, net())
    assert isinstance(small, QuantizedGraph)
    assert str(small.quantization).startswith("5 of 5 layers in int8 (minmax)\nmatmul: error at")
    bad = {
        "other.npz has no array x, only y": ["--calibration", str(on_disk / "other.npz")],
        "text.npz is no file of numpy.savez": ["--calibration", str(on_disk / "text.npz")],
        "or with --calibration FILE.npz": ["--max-error", "0.1"],
        "leave out --precision": [*sets, "--precision", "bf16"],
        "which --exact rules out": [*sets, "--exact"],
        "leave out --task": [*sets, "--task", "0"],
    }
    for text, options in bad.items():
        assert main(["tune", "resnet18", "--trials", "2", "-q", *options]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert text in line
