"""Networks against peers: tune one, then time every contender in turn on the same model file.

In: names of `workloads.networks`, a batch size, budgets. Out: a row a network in
results/networks.jsonl and a table beside it. Contenders start in fresh processes, which then take
turns, as in `bench.ops`. Outputs are compared with onnxruntime's before anything is timed.
"""

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ansorlite.bench.ops import machine, paired_ratio, peer_interpreter, take_turns
from ansorlite.errors import MeasureError, MissingExtra, UsageError
from ansorlite.files import write_whole
from ansorlite.graph.inputs import random_inputs
from ansorlite.measure.compare import relative_error
from ansorlite.measure.peak import measure_peak
from ansorlite.report.units import format_latency
from ansorlite.target import Target
from ansorlite.workloads.networks import NETWORKS, network

SUITE = ("resnet50", "mobilenet_v2", "resnet18_3d", "dcgan", "bert_base")
MOST_ERROR = 1e-3  # relative, of a network with Winograd's convolutions
TURN_CALLS = 6  # of the slowest contender, about


@dataclass(frozen=True)
class NetworkOptions:
    """Budget of one network, and how it is timed."""

    batch: int = 1
    timeout: float | None = 600.0
    trials: int | None = None
    peers: tuple[str, ...] = ("onnxruntime", "torch")
    turns: int = 7
    seed: int = 0
    log: Path | None = None  # continued where it exists; a temporary one by default
    peer_python: str | None = None


@dataclass(frozen=True)
class NetworkRow:
    """One network: median latencies in seconds, `ratio` = fastest peer's / ours.

    `error` is the greatest difference from onnxruntime's output, in units of its greatest element;
    `curve` the latency (seconds, by the best programs of the tasks) over seconds of tuning.
    """

    network: str
    batch: int
    latency_s: dict[str, float]
    mode: dict[str, str]
    ratio: float | None
    share_of_peak: float
    trials: int
    tuning_s: float
    forms: int
    error: float | None
    curve: list[tuple[float, float]] = field(default_factory=list)
    turns: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""


def suite(only: Sequence[str] = ()) -> list[str]:
    """The paper's five networks, or those given; UsageError for a name that is none."""
    for name in only:
        if name not in NETWORKS:
            raise UsageError(f"there is no network {name!r}: choose among {', '.join(NETWORKS)}")
    return list(dict.fromkeys(only)) or list(SUITE)


def bench_network(name: str, options: NetworkOptions) -> NetworkRow:
    """Tune a network and time it; MeasureError where a contender cannot run it."""
    from ansorlite.graph.onnx_export import export_onnx
    from ansorlite.graph.partition import partition
    from ansorlite.graph.passes import optimize
    from ansorlite.pipeline import auto_schedule, network_tasks
    from ansorlite.search.forms import Forms

    target = Target.detect()
    peak = measure_peak(target)
    graph = network(name, options.batch)
    weighted = network_tasks(partition(optimize(graph)), target)
    began = time.perf_counter()
    curve: list[tuple[float, float]] = []

    def on_round(found: Sequence[Forms]) -> None:
        times = [f.best_latency_s or math.inf for f in found]
        total = sum(w.weight * t for w, t in zip(weighted, times, strict=True))
        curve.append((round(time.perf_counter() - began, 1), total))

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"{name}.onnx"
        model.write_bytes(export_onnx(graph).SerializeToString())
        log = options.log or Path(folder) / "tuning.jsonl"
        module = auto_schedule(
            graph,
            options.trials,
            options.timeout,
            log=log,
            seed=options.seed,
            progress=False,
            on_round=on_round,
        )
        tuning_s = time.perf_counter() - began
        inputs = random_inputs(graph)
        error = _error(module(*inputs), model, inputs, target.cores)
        spec = {"model": str(model), "log": str(log), "threads": target.cores}
        specs = {"ansorlite": (sys.executable, {**spec, "module": "ours_network"})}
        for peer in options.peers:
            python = peer_interpreter(peer, options.peer_python)
            specs[peer] = (python, {**spec, "module": f"peer_{peer}_network"})
        latest = curve[-1][1] if curve else 0.05
        turns, modes = take_turns(specs, options.turns, max(0.3, TURN_CALLS * latest))
    latency = {n: median(times) for n, times in turns.items()}
    report = module.report
    return NetworkRow(
        name,
        options.batch,
        latency,
        modes,
        min((paired_ratio(turns, p) for p in options.peers), default=None),
        module.partition.flop / latency["ansorlite"] / peak.flops_all,
        sum(r.trials for r in report.rows),
        round(tuning_s, 1),
        sum(r.task.meaning is not None for r in report.results),
        error,
        curve,
        turns,
        machine(target, peak),
        time.strftime("%Y-%m-%d"),
    )


def _error(got: Any, model: Path, inputs: Sequence[Any], threads: int) -> float:
    """The greatest difference from onnxruntime's outputs; MeasureError above `MOST_ERROR`."""
    from ansorlite.bench.peer_onnxruntime_network import session

    try:
        runtime = session(str(model), threads)
    except ImportError:
        raise MissingExtra("onnxruntime", "bench") from None
    names = [i.name for i in runtime.get_inputs()]
    wanted = runtime.run(None, dict(zip(names, inputs, strict=True)))
    outputs = got if isinstance(got, tuple) else (got,)
    errors = [relative_error(x, y) for x, y in zip(outputs, wanted, strict=True)]
    wrong = [e for e in errors if not e < MOST_ERROR]  # NaN is wrong, too
    if wrong:
        raise MeasureError(f"outputs differ from onnxruntime's by {wrong[0]:.2g}")
    return max(errors)


def head_text(peers: Sequence[str]) -> str:
    names = " ".join(f"{p:>11}" for p in peers)
    return (
        f"{'network':14} {'batch':>5} {'ours':>10} {names} {'ratio':>6} {'peak':>6} {'trials':>6} "
        f"{'tuned s':>7} {'forms':>5} {'error':>8}"
    )


def row_text(row: NetworkRow) -> str:
    """One line of the table."""
    others = [format_latency(v) for n, v in row.latency_s.items() if n != "ansorlite"]
    ratio = "      " if row.ratio is None else f"{row.ratio:6.2f}"
    error = "-" if row.error is None else f"{row.error:.1e}"
    return (
        f"{row.network:14} {row.batch:5} {format_latency(row.latency_s['ansorlite']):>10} "
        f"{' '.join(f'{o:>11}' for o in others)} {ratio} {row.share_of_peak:6.0%} {row.trials:6} "
        f"{row.tuning_s:7.1f} {row.forms:5} {error:>8}"
    )


def read_rows(path: Path) -> list[NetworkRow]:
    """The rows of a file, none if there is no file; UsageError if it holds anything else."""
    if not path.exists():
        return []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [NetworkRow(**json.loads(line)) for line in lines if line]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} does not hold rows of networks: {error}") from error


def merge_rows(path: Path, new: NetworkRow) -> list[NetworkRow]:
    """Write a row in place of an older one of its network and batch, and the table beside."""
    rows = {(r.batch, r.network): r for r in (*read_rows(path), new)}
    order = {name: k for k, name in enumerate(SUITE)}
    merged = sorted(rows.values(), key=lambda r: (r.batch, order.get(r.network, len(order))))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(asdict(r)) + "\n" for r in merged))
    peers = [n for n in new.latency_s if n != "ansorlite"]
    lines = [head_text(peers), *map(row_text, merged)]
    for batch in dict.fromkeys(r.batch for r in merged):
        ratios = [r.ratio for r in merged if r.batch == batch and r.ratio is not None]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            lines.append(f"batch {batch}: geometric mean of {len(ratios)} ratios {mean:.3f}")
    lines.append(", ".join(f"{k} {v}" for k, v in new.machine.items()) + f", {new.date}")
    write_whole(path.with_suffix(".txt"), "\n".join(lines) + "\n")
    return merged
