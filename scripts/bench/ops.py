"""The operator suite against peers: tune a case, then time every contender in turn.

In: cases, a batch size, budgets. Out: a row a case in results/ops_b<batch>.jsonl and a table beside
it. Contenders of a case start in fresh processes, which then take turns: a latency is the median
over the turns of the median within each turn. FLOPs are those of workloads/ops.toml.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ansorlite.baselines.runs import geometric_mean
from ansorlite.errors import MeasureError
from ansorlite.measure.limits import least_seconds, task_peak
from ansorlite.measure.peak import Peak, measure_peak
from ansorlite.search.tune import tune
from ansorlite.target import Target
from ansorlite.units import format_latency
from ansorlite.workloads import workload
from ansorlite.workloads.ops import find, parse_case
from bench.contest import OURS, Spec, paired_ratio, take_turns
from bench.experiment import Experiment, Row, machine_line, stamp
from bench.options import BenchOptions
from bench.peers import PEERS, interpreter
from bench.suite import cases

TURN_S = 0.25  # of a contender
WHAT = "rows of operators"


@dataclass(frozen=True)
class BenchRow:
    """One case: median latencies in seconds by contender, `ratio` = fastest peer's / ours."""

    case: str
    batch: int
    latency_s: dict[str, float]
    mode: dict[str, str]
    ratio: float | None
    gflops: float
    share_of_peak: float
    trials: int
    tuning_s: float
    turns: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    share_of_limit: float | None = None  # of what arithmetic and data allow


def bench_case(case: str, options: BenchOptions) -> BenchRow:
    """Tune and time a case; MeasureError where no program or a contender does not run."""
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder) / "ops.jsonl"
        return _bench_case(case, options, log, Target.detect())


def _bench_case(case: str, options: BenchOptions, log: Path, target: Target) -> BenchRow:
    peak: Peak = measure_peak(target)
    name, index = parse_case(case)
    op = find(name)
    batch = options.batch if op.batch else 1
    task = workload(case, batch=batch)
    began = time.perf_counter()
    found = tune(task, options.trials, options.timeout, seed=options.seed, log=log, progress=False)
    tuning_s = time.perf_counter() - began
    if found.best is None:
        why = next((f": {r.error}" for r in reversed(found.records) if r.error), "")
        raise MeasureError(f"no program of {task.name} ran in {tuning_s:.0f} s{why}")
    params = op.case(index, batch)
    # The winner of the race at the end, which one lucky measurement in the log may have beaten.
    ours = {"case": case, "batch": batch, "log": str(log), "trial": found.best.record.trial}
    shared = {"name": name, "params": params, "threads": target.cores}
    specs = {OURS: Spec("ours", ours)} | peer_specs(options.peers, shared, options.peer_python)
    turns, modes = take_turns(specs, options.turns, TURN_S)
    latency = {n: median(times) for n, times in turns.items()}
    speed = op.count_flop(params) / latency[OURS]
    return BenchRow(
        case,
        batch,
        latency,
        modes,
        min((paired_ratio(turns, p) for p in options.peers), default=None),
        speed / 1e9,
        speed / task_peak(task, peak),
        found.trials,
        round(tuning_s, 1),
        turns,
        share_of_limit=least_seconds(task, peak) / latency[OURS],
        **stamp(target, peak),
    )


def peer_specs(
    peers: Sequence[str], options: dict[str, Any], python: str | None
) -> dict[str, Spec]:
    """What the processes of the peers are to prepare; see `bench.peers`."""
    return {
        name: Spec(
            PEERS[name].module, options | dict(PEERS[name].options), interpreter(name, python)
        )
        for name in peers
    }


def experiment(path: Path, peers: Sequence[str] = ()) -> Experiment[BenchRow]:
    """The rows of a file, a new one in place of an older one of its case; columns of all peers."""
    place = {case: k for k, case in enumerate(cases())}
    shown = list(dict.fromkeys([*peers_in(path, WHAT), *peers]))
    return Experiment(
        path,
        key=lambda r: r.case,
        line=partial(row_text, peers=shown),
        head=head_text(shown),
        foot=closing,
        make=BenchRow,
        order=lambda r: place.get(r.case, len(place)),
        what=WHAT,
    )


def peers_in(path: Path, what: str) -> list[str]:
    """The peers of a file's rows, in order of first occurrence. Raises UsageError."""
    rows = Experiment[Row](path, key=lambda r: tuple(r["latency_s"]), line=str, what=what).rows()
    return list(dict.fromkeys(n for r in rows for n in r["latency_s"] if n != OURS))


def row_text(row: BenchRow, peers: Sequence[str] = ()) -> str:
    """One line of the table, blank where the row has no such peer."""
    ratio = "" if row.ratio is None else f"{row.ratio:6.2f}"
    limit = "     -" if row.share_of_limit is None else f"{row.share_of_limit:6.0%}"
    return (
        f"{row.case:12} {format_latency(row.latency_s[OURS]):>10} "
        f"{latencies(row.latency_s, peers, 10)} {ratio} "
        f"{row.gflops:8.1f} {row.share_of_peak:6.0%} {limit} {row.trials:6} {row.tuning_s:7.1f}"
    )


def latencies(latency_s: dict[str, float], peers: Sequence[str], width: int) -> str:
    """Columns of the peers."""
    texts = [format_latency(latency_s[p]) if p in latency_s else "" for p in peers]
    return " ".join(f"{t:>{max(width, len(p))}}" for t, p in zip(texts, peers, strict=True))


def head_text(peers: Sequence[str]) -> str:
    names = " ".join(f"{p:>10}" for p in peers)
    return (
        f"{'case':12} {'ours':>10} {names} {'ratio':>6} {'GFLOP/s':>8} {'peak':>6} {'limit':>6} "
        f"{'trials':>6} {'tuned s':>7}"
    )


def closing(rows: Sequence[BenchRow]) -> list[str]:
    """The geometric mean of the ratios, and the machine of the last row."""
    ratios = [r.ratio for r in rows if r.ratio is not None]
    lines = []
    if ratios:
        mean, low = geometric_mean(ratios), min(ratios)
        lines.append(f"geometric mean of {len(ratios)} ratios: {mean:.3f}; the lowest: {low:.2f}")
    return [*lines, *(machine_line(r.machine, r.date) for r in rows[-1:])]
