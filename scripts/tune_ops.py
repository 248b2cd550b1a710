"""Tunes ten cases of the operator suite with 64 trials each (some three minutes on two cores).

Claim: one case takes seconds where TVM's MetaSchedule takes minutes. Writes results/ops.jsonl (a
line a case: latency, GFLOP/s, share of the measured FMA limit, seconds of tuning), prints a table.
Usage: python scripts/tune_ops.py [--trials 64] [--cases C2D:1,GMM:2]
"""

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import ansorlite as al
from ansorlite.target import Target

CASES = "C2D:1,C2D:2,GMM:2,GMM:3,DEP:0,GRP:2,T2D:1,CAP:0,NRM:1,SFM:1"
RESULTS = Path(__file__).parent.parent / "results" / "ops.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--cases", default=CASES, help="comma separated")
    args = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    print(f"{'case':8} {'latency':>10} {'GFLOP/s':>8} {'of limit':>8} {'failed':>6} {'seconds':>8}")
    for case in args.cases.split(","):
        began = time.perf_counter()
        result = al.tune(al.workload(case), n_trials=args.trials, progress=False)
        seconds = time.perf_counter() - began
        best = result.best
        if best is None:
            print(f"{case:8} nothing ran: {result.records[-1].error}")
            return 1
        failed = sum(not r.ok for r in result.records)
        share = best.share_of_peak or 0.0
        row = {
            "case": case,
            "trials": result.trials,
            "failed": failed,
            "latency_s": best.latency_s,
            "gflops": round(best.gflops, 1),
            "share_of_limit": round(share, 3),
            "tuning_s": round(seconds, 1),
            "sketch": best.record.sketch,
            "target": Target.detect().fingerprint,
            "python": platform.python_version(),
            "date": time.strftime("%Y-%m-%d"),
        }
        with RESULTS.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(
            f"{case:8} {best.latency_s * 1e3:7.3f} ms {best.gflops:8.1f} {share:8.2f} "
            f"{failed:6} {seconds:8.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
