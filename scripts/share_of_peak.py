"""Matrix products and convolutions as shares of the FMA limit (about eight minutes).

Claim: matrix products of 512 and 1024 reach 84 % of what the cores do with multiply-adds in
registers, and 90 % with a constant operand; convolutions at 14x14x256 80 % and at 7x7x512 65 %. The
kernel and the multiply-adds are timed in turn in one process, since a shared machine is not always
equally fast; the share is the median over the turns. Writes results/share_of_peak.jsonl, a table.
Usage: python scripts/share_of_peak.py [--trials 200] [--timeout 60] [--only GMM:2 ...]
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import ansorlite as al
from ansorlite.bench.ops import machine, write_results
from ansorlite.bench.ours import prepared
from ansorlite.bench.serve import timed
from ansorlite.measure.peak import fma_run, measure_peak
from ansorlite.target import Target

# Case, with constant weights, claimed share
CLAIMS = (
    ("GMM:2", False, 0.84),
    ("GMM:2", True, 0.90),
    ("GMM:3", False, 0.84),
    ("GMM:3", True, 0.90),
    ("C2D:2", True, 0.80),
    ("C2D:3", True, 0.65),
)
TURNS, TURN_S = 21, 0.15
OUTPUT = Path(__file__).parents[1] / "results" / "share_of_peak.jsonl"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=[])
    args = parser.parse_args()
    target = Target.detect()
    peak = measure_peak(target)
    limit, flop = fma_run(target, target.cores)
    lines = [f"{'case':6} {'weights':>8} {'GFLOP/s':>8} {'FMA now':>8} {'share':>6} claimed"]
    print(lines[0], flush=True)
    rows = []
    for case, constant, claimed in CLAIMS:
        if args.only and case not in args.only:
            continue
        task = al.workload(case, constant_weights=constant)
        found = al.tune(task, n_trials=args.trials, timeout=args.timeout, progress=False)
        call = prepared(found.kernel)
        turns = [(timed(call, TURN_S)[0], timed(limit, TURN_S)[0]) for _ in range(TURNS)]
        share = median((task.flop / a) / (flop / b) for a, b in turns)
        ours, now = (median(work / t[k] for t in turns) for k, work in enumerate((task.flop, flop)))
        line = (
            f"{case:6} {'constant' if constant else 'given':>8} {ours / 1e9:8.1f} {now / 1e9:8.1f} "
            f"{share:6.0%} {claimed:6.0%}"
        )
        print(line, flush=True)
        lines.append(line)
        rows.append(
            {
                "case": case,
                "constant": constant,
                "gflops": ours / 1e9,
                "fma_gflops": now / 1e9,
                "share": share,
                "claimed": claimed,
                "turns_s": turns,
                "trials": found.trials,
                "tuning_s": found.wall_s,
                "machine": machine(target, peak),
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    lines.append(", ".join(map(str, machine(target, peak).values())))
    print(lines[-1])
    write_results(OUTPUT, rows, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
