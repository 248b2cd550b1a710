"""Networks quantised by onnxruntime's own tool, against onnxruntime and OpenVINO (35 minutes).

Claim: a ResNet-50 and a MobileNetV2 quantised statically (random weights, calibrated by real
numbers) and a MiniLM quantised dynamically are at least 1.15 times as fast as the better of both,
in geometric mean, and none below 0.95; ResNet-50 at least 1.8 times our own float32. Outputs are
compared with onnxruntime's: in steps of the output's scale, and, of the MiniLM, beside the
difference between onnxruntime with and without its optimisations. Models lie in a cache; logs stay
beside them and are continued. Contenders take turns in processes of their own. Writes
results/int8.jsonl and .txt.
Usage: python scripts/int8.py [--timeout S] [--only resnet50 ...] [--form QDQ|QOperator]
       [--per-tensor] [--signed] [--no-float32] [--turns N] [--table]
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ansorlite as al
from ansorlite.baselines.runs import geometric_mean
from ansorlite.cli.options import positive, seconds
from ansorlite.errors import AnsorliteError, MissingExtra
from ansorlite.graph.inputs import random_inputs
from ansorlite.measure.peak import measure_peak
from ansorlite.target import Target
from ansorlite.units import format_latency
from ansorlite.workloads.transformers import bert
from bench.contest import OURS, Spec, paired_ratio, take_turns
from bench.experiment import RESULTS, Experiment, exit_status, kept_folder, machine_line, stamp
from bench.onnx_export import export_onnx
from bench.ops import peer_specs
from bench.peers.onnxruntime import session
from bench.quantised_products import largest_steps

NETWORKS: dict[str, Callable[[], Any]] = {
    "resnet50": partial(al.network, "resnet50"),
    "mobilenet_v2": partial(al.network, "mobilenet_v2"),
    "minilm": partial(bert, "minilm", 1, 0, size=128, layers=6, width=384, heads=12),
}
DYNAMIC = ("minilm",)
PEERS = ("onnxruntime", "openvino-default")
FLOAT32 = f"{OURS} float32"
SETS = 4  # of calibration inputs
TURN_S = 0.4


@dataclass(frozen=True)
class Int8Row:
    """One network: median latencies in seconds, `ratio` = the fastest peer's / ours.

    `difference` from onnxruntime's output: in steps of its scale, or in units of its largest
    element, then with `plain`, that of onnxruntime from itself without optimisations, and with
    `products`, how many there are and the largest difference of one on onnxruntime's own values,
    in steps of its range.
    """

    network: str
    form: str
    latency_s: dict[str, float]
    mode: dict[str, str]
    ratio: float | None
    over_float32: float | None
    difference: float
    plain: float | None
    tasks: int
    trials: int
    tuning_s: float
    turns: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    products: tuple[int, float] | None = None


def quantised(name: str, form: str, folder: Path, args: argparse.Namespace) -> tuple[Path, Path]:
    """(the float model, the quantised one); made where the folder lacks them."""
    try:
        import onnx
        from onnxruntime import quantization as tool
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise MissingExtra("onnxruntime", "bench") from None
    plain, small = folder / f"{name}.onnx", folder / f"{name}.{form}.onnx"
    if not plain.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(export_onnx(NETWORKS[name]()), folder / "written.onnx")
        (folder / "written.onnx").replace(plain)
    if small.exists():
        return plain, small
    ready, made = folder / f"{name}.ready.onnx", folder / "quantised.onnx"
    quant_pre_process(plain, ready, skip_symbolic_shape=True)
    if name in DYNAMIC:
        tool.quantize_dynamic(ready, made, weight_type=tool.QuantType.QInt8)
    else:
        (value,) = onnx.load(ready).graph.input
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        rng = np.random.default_rng(1)

        class Reader(tool.CalibrationDataReader):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                sets = (rng.standard_normal(shape).astype(np.float32) for _ in range(SETS))
                self.sets = ({value.name: x} for x in sets)

            def get_next(self) -> Any:
                return next(self.sets, None)

        tool.quantize_static(
            ready,
            made,
            Reader(),
            quant_format=getattr(tool.QuantFormat, args.form),
            per_channel=not args.per_tensor,
            activation_type=tool.QuantType.QInt8 if args.signed else tool.QuantType.QUInt8,
            weight_type=tool.QuantType.QInt8,
        )
    made.replace(small)
    return plain, small


def measured(name: str, folder: Path, args: argparse.Namespace) -> Int8Row:
    """Tune a network, compare its outputs, and time it in turn with its peers."""
    target, form = Target.detect(), form_of(name, args)
    plain, small = quantised(name, form, folder, args)
    graph, log = al.load_onnx(small), folder / f"{name}.{form}.jsonl"
    began = time.perf_counter()
    module = al.auto_schedule(graph, timeout=args.timeout, log=log, progress=False)
    tuning_s = time.perf_counter() - began
    inputs = random_inputs(graph)
    off, own = differences(name, module(*inputs), small, inputs, target.cores)
    specs = {OURS: Spec("ours", {"model": str(small), "log": str(log)})}
    if not args.no_float32:
        known = folder / f"{name}.float32.jsonl"
        al.auto_schedule(al.load_onnx(plain), timeout=args.timeout, log=known, progress=False)
        specs[FLOAT32] = Spec("ours", {"model": str(plain), "log": str(known)})
    shared = {"model": str(small), "threads": target.cores}
    peers = []
    for peer, spec in peer_specs(PEERS, shared, None).items():
        try:  # OpenVINO has no reader for some operators of onnxruntime's own
            take_turns({peer: spec}, 1, 0.1)
        except AnsorliteError as error:
            print(f"{name}: {str(error)[:200]}", file=sys.stderr)
            continue
        specs[peer] = spec
        peers.append(peer)
    turns, modes = take_turns(specs, args.turns, TURN_S)
    report = module.report
    return Int8Row(
        name,
        form,
        {n: median(times) for n, times in turns.items()},
        modes,
        min((paired_ratio(turns, p) for p in peers), default=None),
        None if args.no_float32 else paired_ratio(turns, FLOAT32),
        off,
        own,
        len(report.results),
        sum(r.trials for r in report.rows),
        round(tuning_s, 1),
        turns,
        products=largest_steps(small, inputs) if name in DYNAMIC else None,
        **stamp(target, measure_peak(target)),
    )


def form_of(name: str, args: argparse.Namespace) -> str:
    if name in DYNAMIC:
        return "dynamic"
    parts = "tensor" if args.per_tensor else "channel", "int8" if args.signed else "uint8"
    return "-".join((args.form, *parts))


def differences(
    name: str, got: Any, model: Path, inputs: Sequence[Any], threads: int
) -> tuple[float, float | None]:
    """How far the output is from onnxruntime's, and that from itself without optimisations."""
    import onnx
    import onnxruntime
    from onnx import numpy_helper

    runtime = session(str(model), threads)
    feed = {i.name: x for i, x in zip(runtime.get_inputs(), inputs, strict=True)}
    wanted = runtime.run(None, feed)[0]
    apart = float(np.abs(got - wanted).max())
    proto = onnx.load(model)
    if name not in DYNAMIC:
        (last,) = (n for n in proto.graph.node if n.output[0] == proto.graph.output[0].name)
        (scale,) = (t for t in proto.graph.initializer if t.name == last.input[1])
        return apart / float(numpy_helper.to_array(scale)), None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    again = onnxruntime.InferenceSession(str(model), options).run(None, feed)[0]
    size = float(np.abs(wanted).max())
    return apart / size, float(np.abs(again - wanted).max()) / size


def head() -> str:
    names = " ".join(f"{p:>16}" for p in (FLOAT32, *PEERS))
    return (
        f"{'network':13} {'form':18} {'ours':>9} {names} {'ratio':>6} {'float32':>7} "
        f"{'difference':>12} {'tasks':>5} {'trials':>6} {'tuned s':>7}"
    )


def line(row: Int8Row) -> str:
    def shown(name: str) -> str:
        return format_latency(row.latency_s[name]) if name in row.latency_s else "-"

    ratios = [f"{x:.2f}" if x is not None else "-" for x in (row.ratio, row.over_float32)]
    off = f"{row.difference:.2f} steps" if row.plain is None else f"{row.difference:.1e}"
    others = " ".join(f"{shown(p):>16}" for p in (FLOAT32, *PEERS))
    return (
        f"{row.network:13} {row.form:18} {shown(OURS):>9} {others} {ratios[0]:>6} {ratios[1]:>7} "
        f"{off:>12} {row.tasks:5} {row.trials:6} {row.tuning_s:7.1f}"
    )


def foot(rows: Sequence[Int8Row]) -> list[str]:
    """The geometric mean, the difference that onnxruntime makes by itself, the machine."""
    ratios = [r.ratio for r in rows if r.ratio is not None]
    lines = [f"geometric mean {geometric_mean(ratios):.3f}, least {min(ratios):.2f}"] * bool(ratios)
    lines += [
        f"{r.network}: onnxruntime without its optimisations differs by {r.plain:.1e}"
        for r in rows
        if r.plain is not None
    ]
    lines += [
        f"{r.network}: on onnxruntime's own values each of {r.products[0]} quantised products is "
        f"within {r.products[1]:.1e} steps of its"
        for r in rows
        if r.products is not None
    ]
    return [*lines, *(machine_line(r.machine, r.date) for r in rows[-1:])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--timeout", type=seconds, metavar="S", default=300.0, help="of each (300)")
    parser.add_argument("--only", nargs="+", choices=tuple(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--form", choices=("QDQ", "QOperator"), default="QDQ", help="QDQ")
    parser.add_argument("--per-tensor", action="store_true", help="one scale for all weights")
    parser.add_argument("--signed", action="store_true", help="int8 activations instead of uint8")
    parser.add_argument("--no-float32", action="store_true", help="not beside our own float32")
    parser.add_argument("--turns", type=positive, metavar="N", default=15, help="of each (15)")
    parser.add_argument("--folder", type=Path, default=kept_folder("int8"), help="of models, logs")
    parser.add_argument("--output", type=Path, default=RESULTS / "int8.jsonl", metavar="F")
    parser.add_argument("--table", action="store_true", help="draw the table, measure nothing")
    args = parser.parse_args()
    experiment: Experiment[Int8Row] = Experiment(
        args.output,
        key=lambda r: (r.network, r.form),
        line=line,
        head=head(),
        foot=foot,
        make=Int8Row,
        order=lambda r: (list(NETWORKS).index(r.network), r.form),
        what="rows of quantised networks",
    )
    failed: list[str] = []
    if not args.table:
        wanted = [(name, form_of(name, args)) for name in args.only]
        failed = experiment.run(wanted, lambda key: measured(key[0], args.folder, args), again=True)
    experiment.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
