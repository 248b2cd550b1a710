"""Networks after few seconds of tuning against onnxruntime and OpenVINO (two hours for all).

Claim: after 10 seconds ResNet-18, after 30 seconds ResNet-50, MobileNetV2, nudenet (a YOLO
detector) and EfficientNet-B0 are as fast as the faster peer; after 60 seconds all are within 5 %
of what 300 seconds reach. Each run of `ansorlite tune` is a process of its own, with an empty cache
(but for the machine's limits) and a log of its own; --learned gives it what was learned from the
60 seconds of the other networks; --seconds 0 compiles what is predicted, without any measurement.
All runs of a network and both peers (float32) then take turns.
Writes results/seconds.jsonl, a row a network and a kind of start, and the table beside it.
Usage: python scripts/seconds.py [--only resnet18 ...] [--seconds 10 30 60 300] [--learned]
       [--turns N] [--folder DIR] [--output FILE]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ansorlite.baselines.runs import geometric_mean
from ansorlite.cli.options import count, positive
from ansorlite.errors import MeasureError
from ansorlite.measure.machine_cache import cache_file
from ansorlite.measure.peak import measure_peak
from ansorlite.records import read_log
from ansorlite.target import Target
from ansorlite.units import format_latency
from bench.contest import Spec, paired_ratio, take_turns
from bench.experiment import RESULTS, Experiment, exit_status, kept_folder, machine_line, stamp
from bench.model_files import NAMES, model_file
from bench.networks import output_error
from bench.ops import peer_specs

HERE = ("resnet18", "resnet50", "mobilenet_v2", "nudenet", "efficientnet_b0")
PEERS = ("onnxruntime", "openvino")
SECONDS = (10, 30, 60, 300)
TOLD = (0, 5, 10, 15, 30, 60, 300)  # columns of the table
LEARNED_S = 60  # runs of other networks that are known
TURN_S = 0.4
LIMITS = ("peak", "calibration")  # of the machine; no run measures them again
GRACE_S = 120.0


@dataclass(frozen=True)
class SecondsRow:
    """A network: by seconds of tuning the latency, seconds on the wall, trials; latencies of peers.

    `turns` has the medians of every turn by contender; runs are named by their seconds.
    """

    network: str
    learned: bool
    latency_s: dict[str, float]
    wall_s: dict[str, float]
    trials: dict[str, int]
    error: float
    turns: dict[str, list[float]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    date: str = ""

    def ratio(self, run: str) -> float:
        """How many times as fast as the faster peer a run is."""
        return min(paired_ratio(self.turns, p, run) for p in PEERS)


# What runs keep for later ones, of logs that are named, each after its model file.
KEEPING = """
import sys
from ansorlite import load_onnx
from ansorlite.cli.tasks import tasks_of
from ansorlite.records import read_log
from ansorlite.search import knowledge
for model, log in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
    found = read_log(log).records
    knowledge.keep(found, tasks_of(found, [load_onnx(model)]).values())
"""


# A network without any measurement: `tune` would run its plain schedules, too.
COMPILING = """
import sys
import ansorlite as al
al.auto_schedule(al.load_onnx(sys.argv[1]), n_trials=0, progress=False)
"""


def model_of(log: Path) -> Path:
    """The model file beside a log that is named by network and seconds."""
    return log.with_name(f"{log.name.partition('.')[0]}.onnx")


def tuned(model: Path, seconds: int, log: Path, learned: Sequence[Path]) -> float:
    """Seconds on the wall of a process that tunes a model file with an empty cache."""
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        for name in LIMITS:
            known = cache_file(name)
            if known is not None and known.exists():
                shutil.copy(known, cache)
        environment = {**os.environ, "ANSORLITE_CACHE_DIR": cache}
        if learned:
            named = [str(p) for log in learned for p in (model_of(log), log)]
            command = [sys.executable, "-c", KEEPING, *named]
            own = {**environment, "ANSORLITE_KNOWLEDGE": "1"}
            subprocess.run(command, env=own, check=True, capture_output=True)
        command = [sys.executable, "-m", "ansorlite", "tune", str(model), "-q", "--log", str(log)]
        command += ["--timeout", str(seconds)]
        if not seconds:
            command = [sys.executable, "-c", COMPILING, str(model)]
        began = time.perf_counter()
        ran = subprocess.run(
            command,
            env={**environment, "ANSORLITE_KNOWLEDGE": "1"},
            capture_output=True,
            text=True,
            timeout=seconds + GRACE_S,
            check=False,
        )
        wall = time.perf_counter() - began
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        raise MeasureError(f"tuning {model.name} for {seconds} s: {last}")
    return wall


def measured(name: str, args: argparse.Namespace) -> SecondsRow:
    """Tune for each number of seconds, then race."""
    import ansorlite as al
    from ansorlite.graph.inputs import random_inputs

    target, model = Target.detect(), model_file(name, args.folder)
    kind = ".learned" if args.learned else ""
    others = [args.folder / f"{n}.{LEARNED_S}.jsonl" for n in HERE if n != name]
    learned = [p for p in others if p.exists()] if args.learned else []
    if args.learned and not learned:
        raise MeasureError(f"no logs of other networks in {args.folder}: run without --learned")
    wall, trials, specs, error = dict[str, float](), dict[str, int](), dict[str, Spec](), 0.0
    for seconds in args.seconds:
        log = args.folder / f"{name}{kind}.{seconds}.jsonl"
        wall[str(seconds)] = round(tuned(model, seconds, log, learned), 1)
        kept = str(log) if seconds else None
        trials[str(seconds)] = len(read_log(kept).records) if kept else 0
        options = {"model": str(model), "log": kept, "options": {"known": False}}
        specs[str(seconds)] = Spec("ours", options)
        graph = al.load_onnx(model)
        module = al.auto_schedule(graph, n_trials=0, log=kept, progress=False, known=False)
        inputs = random_inputs(graph)
        error = max(error, output_error(module(*inputs), model, inputs, target.cores))
    specs |= peer_specs(PEERS, {"model": str(model), "threads": target.cores}, None)
    turns, _ = take_turns(specs, args.turns, TURN_S)
    latency = {n: median(t) for n, t in turns.items()}
    return SecondsRow(
        name,
        args.learned,
        latency,
        wall,
        trials,
        error,
        turns,
        **stamp(target, measure_peak(target)),
    )


def head() -> str:
    runs = " ".join(f"{f'{s} s':>10} {'wall':>5} {'trials':>6} {'ratio':>5}" for s in TOLD)
    return f"{'network':20} {'start':8} {' '.join(f'{p:>11}' for p in PEERS)} {runs} {'error':>8}"


def line(row: SecondsRow) -> str:
    cells = []
    for run in map(str, TOLD):
        if run in row.wall_s:
            cells.append(
                f"{format_latency(row.latency_s[run]):>10} {row.wall_s[run]:5.1f} "
                f"{row.trials[run]:6} {row.ratio(run):5.2f}"
            )
        else:
            cells.append(f"{'-':>10} {'':5} {'':6} {'':5}")
    peers = " ".join(f"{format_latency(row.latency_s[p]):>11}" for p in PEERS)
    start = "learned" if row.learned else "empty"
    return f"{row.network:20} {start:8} {peers} {' '.join(cells)} {row.error:8.1e}"


def foot(rows: Sequence[SecondsRow]) -> list[str]:
    """Geometric means over the networks of each kind of start, and the machine."""
    lines = []
    for learned in (False, True):
        for run in map(str, TOLD):
            ratios = [r.ratio(run) for r in rows if r.learned == learned and run in r.wall_s]
            if ratios:
                start = "what others learned" if learned else "an empty cache"
                lines.append(
                    f"{run} s from {start}: geometric mean of {len(ratios)} ratios to the faster "
                    f"peer {geometric_mean(ratios):.2f}, least {min(ratios):.2f}"
                )
    return [*lines, *(machine_line(r.machine, r.date) for r in rows[-1:])]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(HERE), metavar="NAME")
    parser.add_argument("--seconds", nargs="+", type=count, default=list(SECONDS), metavar="S")
    parser.add_argument("--learned", action="store_true", help="from logs of the other networks")
    parser.add_argument("--turns", type=positive, metavar="N", default=9, help="of each (9)")
    parser.add_argument("--folder", type=Path, default=kept_folder("seconds"), help="models, logs")
    parser.add_argument("--output", type=Path, default=RESULTS / "seconds.jsonl", metavar="F")
    args = parser.parse_args()
    experiment: Experiment[SecondsRow] = Experiment(
        args.output,
        key=lambda r: (r.network, r.learned),
        line=line,
        head=head(),
        foot=foot,
        make=SecondsRow,
        order=lambda r: (r.learned, NAMES.index(r.network)),
        what="rows of seconds of tuning",
    )
    failed = experiment.run(
        [(name, args.learned) for name in args.only], lambda k: measured(k[0], args), again=True
    )
    experiment.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
