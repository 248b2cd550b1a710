"""Matrix products and convolutions as shares of the FMA limit (about eight minutes).

Claim: matrix products of 512 and 1024 reach 84 % of what the cores do with multiply-adds in
registers, and 90 % with a constant operand; convolutions at 14x14x256 80 % and at 7x7x512 65 %. The
kernel, the multiply-adds and the best register tile, on operands in the first cache, are timed in
turn in one process, since a shared machine is not always equally fast; shares are medians over the
turns. The tile's share says what the machine leaves to a kernel that loads what it multiplies.
With --avx2 the programs, and the limit, are of 16 registers of 32 bytes: what the search makes of
the smaller register file, on a machine that has more. Writes results/share_of_peak.jsonl (or
share_of_peak_avx2.jsonl), a table.
Usage: python scripts/share_of_peak.py [--trials 200] [--timeout 60] [--only GMM:2 ...] [--avx2]
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
from ansorlite.measure.calibrate import tile_run
from ansorlite.measure.peak import RUN_S, fma_run, measure_peak
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
AVX2_OUTPUT = OUTPUT.with_stem("share_of_peak_avx2")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--avx2", action="store_true", help="x86-64 only")
    args = parser.parse_args()
    target = Target.host_as("x86-avx2") if args.avx2 else Target.detect()
    peak = measure_peak(target)
    runs = [fma_run(target, target.cores), tile_run(target, RUN_S)]
    head = f"{'case':6} {'weights':>8} {'GFLOP/s':>8} {'FMA now':>8} {'share':>6} claimed"
    lines = [f"{head}  tile of tile"]
    print(lines[0], flush=True)
    rows = []
    for case, constant, claimed in CLAIMS:
        if args.only and case not in args.only:
            continue
        task = al.workload(case, constant_weights=constant, target=target)
        found = al.tune(task, n_trials=args.trials, timeout=args.timeout, progress=False)
        calls = [(prepared(found.kernel), task.flop), *runs]
        turns = [[flop / timed(c, TURN_S)[0] for c, flop in calls] for _ in range(TURNS)]
        ours, now, _ = (median(column) for column in zip(*turns, strict=True))
        share = median(a / b for a, b, _ in turns)
        tile = median(c / b for _, b, c in turns)
        of_tile = median(a / c for a, _, c in turns)
        line = (
            f"{case:6} {'constant' if constant else 'given':>8} {ours / 1e9:8.1f} {now / 1e9:8.1f} "
            f"{share:6.0%} {claimed:7.0%} {tile:5.0%} {of_tile:7.0%}"
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
                "tile_share": tile,
                "share_of_tile": of_tile,
                "claimed": claimed,
                "turns_flops": turns,
                "trials": found.trials,
                "tuning_s": found.wall_s,
                "machine": machine(target, peak),
                "date": time.strftime("%Y-%m-%d"),
            }
        )
    lines.append(", ".join(map(str, machine(target, peak).values())))
    print(lines[-1])
    write_results(AVX2_OUTPUT if args.avx2 else OUTPUT, rows, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
