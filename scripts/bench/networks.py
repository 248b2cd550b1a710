"""Networks against peers: tune one, then time every contender in turn on the same model file.

In: names of `workloads.networks`, a batch size, budgets. Out: a row a network in
results/networks.jsonl and a table beside it. Contenders start in fresh processes, which then take
turns, as in `bench.ops`. Outputs are compared with onnxruntime's before anything is timed.
"""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ansorlite.baselines.runs import geometric_mean
from ansorlite.errors import MeasureError, MissingExtra
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.measure.compare import relative_error
from ansorlite.measure.peak import measure_peak
from ansorlite.pipeline import auto_schedule
from ansorlite.search.forms import Forms
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from ansorlite.units import format_latency
from ansorlite.workloads.networks import network
from bench.contest import OURS, Spec, paired_ratio, take_turns
from bench.experiment import Experiment, machine_line, stamp
from bench.onnx_export import export_onnx
from bench.ops import latencies, peer_specs, peers_in
from bench.options import BenchOptions
from bench.suite import PAPER

MOST_ERROR = 1e-3  # relative, of a network with Winograd's convolutions
TURN_CALLS = 6  # of the slowest contender, about
WHAT = "rows of networks"


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


def bench_network(name: str, options: BenchOptions) -> NetworkRow:
    """Tune a network and time it; MeasureError where a contender cannot run it."""
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
        error = output_error(module(*inputs), model, inputs, target.cores)
        shared = {"model": str(model), "threads": target.cores}
        specs = {OURS: Spec("ours", {"model": str(model), "log": str(log)})}
        specs |= peer_specs(options.peers, shared, options.peer_python)
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
        module.partition.flop / latency[OURS] / peak.flops_all,
        sum(r.trials for r in report.rows),
        round(tuning_s, 1),
        sum(r.task.meaning is not None for r in report.results),
        error,
        curve,
        turns,
        **stamp(target, peak),
    )


def output_error(got: Any, model: Path, inputs: Sequence[Any], threads: int) -> float:
    """The greatest difference from onnxruntime's outputs; MeasureError above `MOST_ERROR`."""
    from bench.peers.onnxruntime import session

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


def experiment(path: Path, peers: Sequence[str] = ()) -> Experiment[NetworkRow]:
    """The rows of a file, a new one in place of an older one of its network and batch."""
    place = {name: k for k, name in enumerate(PAPER)}
    shown = list(dict.fromkeys([*peers_in(path, WHAT), *peers]))
    return Experiment(
        path,
        key=lambda r: (r.batch, r.network),
        line=partial(row_text, peers=shown),
        head=head_text(shown),
        foot=closing,
        make=NetworkRow,
        order=lambda r: (r.batch, place.get(r.network, len(place))),
        what=WHAT,
    )


def head_text(peers: Sequence[str]) -> str:
    names = " ".join(f"{p:>11}" for p in peers)
    return (
        f"{'network':14} {'batch':>5} {'ours':>10} {names} {'ratio':>6} {'peak':>6} {'trials':>6} "
        f"{'tuned s':>7} {'forms':>5} {'error':>8}"
    )


def row_text(row: NetworkRow, peers: Sequence[str] = ()) -> str:
    """One line of the table, blank where the row has no such peer."""
    ratio = "      " if row.ratio is None else f"{row.ratio:6.2f}"
    error = "-" if row.error is None else f"{row.error:.1e}"
    return (
        f"{row.network:14} {row.batch:5} {format_latency(row.latency_s[OURS]):>10} "
        f"{latencies(row.latency_s, peers, 11)} {ratio} {row.share_of_peak:6.0%} {row.trials:6} "
        f"{row.tuning_s:7.1f} {row.forms:5} {error:>8}"
    )


def closing(rows: Sequence[NetworkRow]) -> list[str]:
    """The geometric mean of the ratios of every batch, and the machine of the last row."""
    lines = []
    for batch in dict.fromkeys(r.batch for r in rows):
        ratios = [r.ratio for r in rows if r.batch == batch and r.ratio is not None]
        if ratios:
            mean = geometric_mean(ratios)
            lines.append(f"batch {batch}: geometric mean of {len(ratios)} ratios {mean:.3f}")
    return [*lines, *(machine_line(r.machine, r.date) for r in rows[-1:])]
