"""Latency of a network beside busy processes, saved and as compiled, against onnxruntime (minutes).

Claim: beside 1, 2 and 4 busy processes the mean is at most onnxruntime's, the 99th percentile at
most 1.5 times onnxruntime's. Contenders take turns in processes of their own, which are warm before
the busy ones start. Writes results/beside_load.jsonl and the table beside it.
Usage: python scripts/beside_load.py [--network mobilenet_v2] [--log FILE] [--timeout 120]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

OUTPUT = Path(__file__).parents[1] / "results" / "beside_load.jsonl"
CONTENDERS = ("compiled", "saved", "onnxruntime")
LOADS = (0, 1, 2, 4)
BUSY = [sys.executable, "-c", "while True: pass"]


def prepared(kind: str, folder: Path, name: str, log: str) -> Any:
    """A call of the network on random data."""
    if kind == "saved":
        from ansorlite.deployed import load_module

        net = load_module(folder / "net")
        shapes = [(v["shape"], v["dtype"]) for v in net.metadata["inputs"]]
    elif kind == "compiled":
        import ansorlite as al

        net = al.auto_schedule(al.network(name), n_trials=0, log=log, progress=False)
        types = net.partition.graph.types
        shapes = [(types[v].shape, types[v].dtype) for v in net.graph_inputs]
    else:
        from ansorlite.bench.peer_onnxruntime_network import prepare
        from ansorlite.target import Target

        call, _ = prepare({"model": str(folder / "net.onnx"), "threads": Target.detect().cores})
        return call
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(d) for s, d in shapes]
    return lambda: net(*inputs)


def child(kind: str, folder: Path, name: str, log: str) -> None:
    """Says when it is ready; then a line with the latencies of as many seconds as it is told."""
    call = prepared(kind, folder, name, log)
    for _ in range(20):
        call()
    print(flush=True)
    for line in sys.stdin:
        times, end = [], time.perf_counter() + float(line)
        while (began := time.perf_counter()) < end:
            call()
            times.append(time.perf_counter() - began)
        print(json.dumps(times), flush=True)


def make(folder: Path, name: str, log: str, timeout: float) -> None:
    import onnx

    import ansorlite as al
    from ansorlite.graph.onnx_export import export_onnx

    net = al.network(name)
    al.auto_schedule(net, timeout=timeout, log=log).save(folder / "net")
    onnx.save(export_onnx(net), folder / "net.onnx")


def main() -> int:
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="mobilenet_v2")
    parser.add_argument("--log", help="of an earlier tuning")
    parser.add_argument("--timeout", type=float, default=120, help="seconds of tuning (120)")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--turn-s", type=float, default=4)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        log = args.log or str(folder / "log.jsonl")
        make(folder, args.network, log, args.timeout)
        own = [sys.executable, __file__, "child"]
        running = {
            kind: subprocess.Popen(
                [*own, kind, made, args.network, log],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind in CONTENDERS
        }
        for process in running.values():
            process.stdout.readline()
        for load in LOADS:
            times: dict[str, list[float]] = {kind: [] for kind in CONTENDERS}
            busy = [subprocess.Popen(BUSY) for _ in range(load)]
            try:
                for _ in range(args.turns):
                    for kind, process in running.items():
                        process.stdin.write(f"{args.turn_s}\n")
                        process.stdin.flush()
                        times[kind] += json.loads(process.stdout.readline())
            finally:
                for process in busy:
                    process.kill()
            for kind, found in times.items():
                row = {"network": args.network, "busy": load, "contender": kind}
                row |= {"mean_ms": 1e3 * np.mean(found), "p99_ms": 1e3 * np.percentile(found, 99)}
                row |= {"median_ms": 1e3 * np.median(found), "calls": len(found)}
                rows.append({**row, "date": time.strftime("%Y-%m-%d")})
        for process in running.values():
            process.stdin.close()
    lines = [f"{'busy':>4}  {'contender':12} {'median':>8} {'mean':>8} {'99th':>8}  ms"]
    lines += [
        f"{r['busy']:4}  {r['contender']:12} {r['median_ms']:8.2f} {r['mean_ms']:8.2f}"
        f" {r['p99_ms']:8.2f}"
        for r in rows
    ]
    print("\n".join(lines))
    OUTPUT.write_text("".join(json.dumps(r) + "\n" for r in rows))
    OUTPUT.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
