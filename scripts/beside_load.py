"""Latency of a network beside busy processes, saved and as compiled, against onnxruntime (minutes).

Claim: beside 1, 2 and 4 busy processes the mean is at most onnxruntime's, the 99th percentile at
most 1.5 times onnxruntime's. Contenders take turns in processes of their own, which are warm before
the busy ones start. Writes results/beside_load.jsonl and the table beside it.
Usage: python scripts/beside_load.py [--network mobilenet_v2] [--log FILE] [--timeout 120]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import ansorlite as al
from ansorlite.target import Target
from bench.contest import Contender, Spec
from bench.experiment import RESULTS, Experiment, Row, exit_status
from bench.onnx_export import export_onnx

LOADS = (0, 1, 2, 4)
BUSY = [sys.executable, "-c", "while True: pass"]
WARM_UP_S = 0.5


def contenders(folder: Path, name: str, log: str, timeout: float) -> dict[str, Spec]:
    """Tune and save the network: what the processes are to run."""
    net, model = al.network(name), str(folder / "net.onnx")
    al.auto_schedule(net, timeout=timeout, log=log).save(folder / "net")
    Path(model).write_bytes(export_onnx(net).SerializeToString())
    return {
        "compiled": Spec("ours", {"model": model, "log": log}),
        "saved": Spec("ours", {"folder": str(folder / "net")}),
        "onnxruntime": Spec("onnxruntime", {"model": model, "threads": Target.detect().cores}),
    }


def latencies(running: list[Contender], load: int, turns: int, turn_s: float) -> list[list[float]]:
    """Seconds of every call of each contender, in turn, beside `load` busy processes."""
    times: list[list[float]] = [[] for _ in running]
    busy = [subprocess.Popen(BUSY) for _ in range(load)]
    try:
        for _ in range(turns):
            for contender, own in zip(running, times, strict=True):
                own += contender.calls(turn_s)
    finally:
        for process in busy:
            process.kill()
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="mobilenet_v2")
    parser.add_argument("--log", help="of an earlier tuning")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of tuning (120)")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-s", type=float, default=4)
    args = parser.parse_args()
    experiment = Experiment[Row](
        RESULTS / "beside_load.jsonl",
        key=lambda r: (r["network"], r["busy"], r["contender"]),
        line=lambda r: (
            f"{r['busy']:4}  {r['contender']:12} {r['median_ms']:8.2f} {r['mean_ms']:8.2f}"
            f" {r['p99_ms']:8.2f}"
        ),
        head=f"{'busy':>4}  {'contender':12} {'median':>8} {'mean':>8} {'99th':>8}  ms",
    )
    print(experiment.head)
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        log = args.log or str(Path(made) / "log.jsonl")
        specs = contenders(Path(made), args.network, log, args.timeout)
        running = [stack.enter_context(Contender(n, spec)) for n, spec in specs.items()]
        for contender in running:
            contender.calls(WARM_UP_S)
        for load in LOADS:
            found = latencies(running, load, args.turns, args.turn_s)
            for contender, times in zip(running, found, strict=True):
                row = {"network": args.network, "busy": load, "contender": contender.name}
                row |= {"mean_ms": 1e3 * np.mean(times), "p99_ms": 1e3 * np.percentile(times, 99)}
                row |= {"median_ms": 1e3 * np.median(times), "calls": len(times)}
                experiment.add({**row, "date": time.strftime("%Y-%m-%d")})
    experiment.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
