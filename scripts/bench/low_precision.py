"""Networks in low precision: ours against float32 and against OpenVINO, in speed and in error.

In: names of `workloads.networks`, a precision, seconds of tuning for it and for float32. Out: a row
a network with latencies of contenders that took turns, and the largest error of each output against
numpy's float32, in units of its largest value. Logs are kept, so that a run continues.
"""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ansorlite.baselines.runs import geometric_mean
from ansorlite.errors import MeasureError
from ansorlite.graph.accuracy import compared
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.measure.peak import measure_peak
from ansorlite.pipeline import auto_schedule
from ansorlite.target import Target
from ansorlite.units import format_latency
from ansorlite.workloads.networks import network
from bench.as_convolutions import as_convolutions
from bench.contest import OURS, SCRIPTS, Spec, paired_ratio, take_turns
from bench.experiment import Experiment, machine_line, stamp
from bench.onnx_export import export_onnx
from bench.ops import peer_specs
from bench.peers import PEERS, interpreter
from bench.suite import PAPER

FLOAT32 = "ansorlite-float32"
PEERS_HERE = ("openvino-default", "openvino-bf16", "openvino")
CONTENDERS = (OURS, FLOAT32, *PEERS_HERE)
CONVOLVED = "openvino-bf16 of convolutions"  # in place of transposed ones, which it has no bf16 of
TURN_S = 0.5
PATIENCE_S = 600.0  # for one call of a peer that starts


@dataclass(frozen=True)
class LowPrecisionOptions:
    """`timeout` seconds of tuning in each precision; `logs` is a folder that is kept."""

    precision: str = "bf16"
    timeout: float = 300.0
    max_error: float | None = None
    turns: int = 9
    seed: int = 0
    logs: Path = Path()
    peers: tuple[str, ...] = PEERS_HERE
    peer_python: str | None = None
    trials: int | None = None

    @property
    def ours(self) -> dict[str, dict[str, Any]]:
        """Options of `auto_schedule` by contender."""
        low: dict[str, Any] = {"precision": self.precision}
        if self.max_error is not None:
            low["max_error"] = self.max_error
        return {OURS: low, FLOAT32: {"precision": "float32"}}


@dataclass(frozen=True)
class LowPrecisionRow:
    """One network: medians in seconds, largest errors, and how its kernels compute."""

    network: str
    precision: str
    timeout: float
    latency_s: dict[str, float]
    error: dict[str, float]
    mode: dict[str, str]
    kernels: dict[str, int]
    moved: dict[str, int]
    turns: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""

    def ratio(self, peer: str) -> float:
        """A contender's time in units of ours: the median over the turns."""
        return float(paired_ratio(self.turns, peer))


def bench_network(name: str, options: LowPrecisionOptions) -> LowPrecisionRow:
    """Tune a network in both precisions, race it; MeasureError where a contender cannot run it."""
    target, graph = Target.detect(), network(name)
    peak = measure_peak(target)
    inputs = random_inputs(graph)
    wanted = evaluate(graph, inputs)
    error, kernels, moved = dict[str, float](), dict[str, int](), dict[str, int]()
    options.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{name}.onnx"
        proto = export_onnx(graph)
        model.write_bytes(proto.SerializeToString())
        specs: dict[str, Spec] = {}
        for who, own in options.ours.items():
            log = options.logs / f"{name}.{own['precision']}.jsonl"
            module = auto_schedule(
                graph,
                options.trials,
                options.timeout,
                log=log,
                seed=options.seed,
                progress=False,
                **own,
            )
            made = module(*inputs)
            error[who] = largest_error(graph, made if isinstance(made, tuple) else (made,), wanted)
            found = module.report.arithmetic
            assert found is not None
            moved[who] = found.moved
            if who == OURS:
                for k in found.kernels:
                    kernels[k.computes_in] = kernels.get(k.computes_in, 0) + k.like
            at = {"model": str(model), "log": str(log), "options": own}
            specs[who] = Spec("ours", at)
        shared = {"model": str(model), "threads": target.cores}
        for peer in options.peers:
            python = interpreter(peer, options.peer_python)
            got = peer_outputs(peer, shared, inputs, python, Path(folder))
            error[peer] = largest_error(graph, got, wanted)
        convolved = as_convolutions(proto)
        if convolved is not None and PEERS_HERE[1] in options.peers:
            model.write_bytes(convolved.SerializeToString())
            python = interpreter(PEERS_HERE[1], options.peer_python)
            got = peer_outputs(PEERS_HERE[1], shared, inputs, python, Path(folder))
            error[CONVOLVED] = largest_error(graph, got, wanted)
            model.write_bytes(proto.SerializeToString())
        specs |= peer_specs(options.peers, shared, options.peer_python)
        turns, modes = take_turns(specs, options.turns, TURN_S)
    latency = {n: median(times) for n, times in turns.items()}
    known = name, options.precision, options.timeout, latency, error, modes, kernels, moved, turns
    return LowPrecisionRow(*known, **stamp(target, peak))


def largest_error(graph: Graph, got: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest error of an output, in units of its largest value."""
    rows = zip(graph.outputs, got, wanted, strict=True)
    return max(compared(name, np.reshape(x, y.shape), y).largest for name, x, y in rows)


def peer_outputs(
    peer: str, shared: dict[str, Any], inputs: Sequence[Any], python: str, folder: Path
) -> list[Any]:
    """What a peer gives for the inputs, in a process of its own."""
    given, made = folder / "inputs.npz", folder / f"{peer}.npz"
    np.savez(given, *inputs)
    files = {"inputs": str(given), "outputs": str(made)}
    what = json.dumps({**shared, **PEERS[peer].options, **files})
    command = [python, "-m", f"bench.peers.{PEERS[peer].module}", what]
    ran = subprocess.run(
        command, cwd=SCRIPTS, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if ran.returncode:
        said = ran.stderr.strip().splitlines()[-1:] or [f"status {ran.returncode}"]
        raise MeasureError(f"{peer}: {said[0]}")
    with np.load(made) as arrays:
        return [arrays[name] for name in arrays.files]


# ---- the table ----------------------------------------------------------------------------------


def experiment(path: Path) -> Experiment[LowPrecisionRow]:
    """The rows of a file: one a network and precision."""
    place = {name: k for k, name in enumerate(PAPER)}
    return Experiment(
        path,
        key=lambda r: (r.precision, r.network),
        line=row_text,
        head=head_text(),
        foot=closing,
        make=LowPrecisionRow,
        order=lambda r: (r.precision, place.get(r.network, len(place))),
        what="rows of networks in low precision",
    )


def head_text() -> str:
    names = " ".join(f"{n.removeprefix('ansorlite-'):>16}" for n in CONTENDERS[1:])
    return (
        f"{'network':14} {'precision':9} {'ours':>10} {names} {'ratio':>6} {'f32':>5} "
        f"{'error':>8} {'OpenVINO':>8}  kernels"
    )


def row_text(row: LowPrecisionRow) -> str:
    """One line: latencies, our speed relative to OpenVINO as it comes and to float32, errors."""
    times = [format_latency(row.latency_s.get(n)) for n in CONTENDERS]
    peer = f"{row.ratio(PEERS_HERE[0]):.2f}" if PEERS_HERE[0] in row.turns else "-"
    theirs = max((e for n, e in row.error.items() if n in PEERS_HERE[:2]), default=None)
    kinds = ", ".join(f"{n} {kind}" for kind, n in row.kernels.items())
    others = " ".join(f"{t:>16}" for t in times[1:])
    return (
        f"{row.network:14} {row.precision:9} {times[0]:>10} {others} {peer:>6} "
        f"{row.ratio(FLOAT32):5.2f} {row.error[OURS]:8.1e} "
        f"{'-' if theirs is None else f'{theirs:.1e}':>8}  {kinds}"
    )


def closing(rows: Sequence[LowPrecisionRow]) -> list[str]:
    """Geometric means of the ratios of every precision, and the machine of the last row."""
    lines = []
    for precision in dict.fromkeys(r.precision for r in rows):
        own = [r for r in rows if r.precision == precision]
        for who, text in ((PEERS_HERE[0], "OpenVINO as it comes"), (FLOAT32, "our float32")):
            ratios = [r.ratio(who) for r in own if who in r.turns]
            if ratios:
                lines.append(
                    f"{precision} against {text}: geometric mean of {len(ratios)} ratios "
                    f"{geometric_mean(ratios):.3f}, least {min(ratios):.3f}"
                )
    lines += [
        f"{r.network}: error {r.error[CONVOLVED]:.1e} of OpenVINO's bfloat16 with convolutions in "
        "place of transposed ones, which it computes in float32"
        for r in {r.network: r for r in rows if CONVOLVED in r.error}.values()
    ]
    return [*lines, *(machine_line(r.machine, r.date) for r in rows[-1:])]


def measured(row: LowPrecisionRow, options: LowPrecisionOptions, fingerprint: str) -> bool:
    """Whether a row is of this machine and of at least this much tuning."""
    return row.timeout >= options.timeout and row.machine.get("fingerprint") == fingerprint
