"""Tunes ResNet-18 and times it against onnxruntime, the same network for both (some five minutes).

Claim: the whole path gives a network in the range of onnxruntime after minutes of tuning. Each
contender is timed in a process of its own, in turn, five times; the figure is the median of the
medians. Writes results/network.jsonl. Needs the extras `onnx` and `bench`.
Usage: python scripts/compare_network.py [--network resnet18] [--timeout 180]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

import ansorlite as al
from ansorlite.bench.serve import timed
from ansorlite.measure.peak import measure_peak
from ansorlite.target import Target

TURNS, TURN_S = 5, 3.0
RESULTS = Path(__file__).parent.parent / "results" / "network.jsonl"


def contender(name: str, network: str, log: str) -> float:
    """Latency of one contender; runs in a process of its own."""
    graph = al.network(network)
    shape = graph.types[graph.inputs[0]].shape
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if name == "ansorlite":
        module = al.auto_schedule(graph, n_trials=0, log=log, progress=False)
        return timed(lambda: module(x), TURN_S)[0]
    import onnxruntime

    from ansorlite.graph.onnx_export import export_onnx

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = Target.detect().cores
    session = onnxruntime.InferenceSession(export_onnx(graph).SerializeToString(), options)
    feed = {session.get_inputs()[0].name: x}
    return timed(lambda: session.run(None, feed), TURN_S)[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds of tuning")
    parser.add_argument("--contender", choices=("ansorlite", "onnxruntime"), help=argparse.SUPPRESS)
    parser.add_argument("--log", default="compare-network.jsonl", help="tuning log, continued")
    args = parser.parse_args()
    if args.contender:
        print(contender(args.contender, args.network, args.log))
        return 0
    module = al.auto_schedule(al.network(args.network), timeout=args.timeout, log=args.log)
    flop, trials = module.partition.flop, sum(r.trials for r in module.report.rows)
    found: dict[str, list[float]] = {"ansorlite": [], "onnxruntime": []}
    for _ in range(TURNS):
        for name, times in found.items():
            command = [sys.executable, __file__, "--contender", name, "--log", args.log]
            run = subprocess.run([*command, "--network", args.network], check=True, stdout=-1)
            times.append(float(run.stdout))
    ours, theirs = median(found["ansorlite"]), median(found["onnxruntime"])
    peak = measure_peak(Target.detect()).flops_all
    row = {
        "network": args.network,
        "timeout_s": args.timeout,
        "trials": trials,
        "ansorlite_s": ours,
        "onnxruntime_s": theirs,
        "ratio": round(theirs / ours, 3),
        "share_of_limit": round(flop / ours / peak, 3),
        "turns": found,
        "target": Target.detect().fingerprint,
        "date": time.strftime("%Y-%m-%d"),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as out:
        out.write(json.dumps(row) + "\n")
    print(
        f"{args.network}: {ours * 1e3:.1f} ms ({row['share_of_limit']} of the FMA limit) against "
        f"onnxruntime's {theirs * 1e3:.1f} ms: ratio {theirs / ours:.2f}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
