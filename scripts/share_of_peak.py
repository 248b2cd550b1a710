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
from collections.abc import Sequence
from statistics import median

import ansorlite as al
from ansorlite.measure.calibrate import tile_run
from ansorlite.measure.peak import RUN_S, fma_run, measure_peak
from ansorlite.target import Target
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp
from bench.peers.ours import kernel_call

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
HEAD = f"{'case':6} {'weights':>8} {'GFLOP/s':>8} {'FMA now':>8} {'share':>6} claimed  tile of tile"


def table_line(row: Row) -> str:
    weights = "constant" if row["constant"] else "given"
    return (
        f"{row['case']:6} {weights:>8} {row['gflops']:8.1f} {row['fma_gflops']:8.1f} "
        f"{row['share']:6.0%} {row['claimed']:7.0%} {row['tile_share']:5.0%} "
        f"{row['share_of_tile']:7.0%}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    return [", ".join(map(str, r["machine"].values())) for r in rows[-1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--avx2", action="store_true", help="x86-64 only")
    args = parser.parse_args()
    target = Target.host_as("x86-avx2") if args.avx2 else Target.detect()
    peak = measure_peak(target)
    limits = [fma_run(target, target.cores), tile_run(target, RUN_S)]
    claimed = {(case, constant): share for case, constant, share in CLAIMS}

    def once(key: tuple[str, bool]) -> Row:
        task = al.workload(key[0], constant_weights=key[1], target=target)
        found = al.tune(task, n_trials=args.trials, timeout=args.timeout, progress=False)
        calls = [(kernel_call(found.kernel), task.flop), *limits]
        seconds = in_turn([call for call, _ in calls], TURNS, TURN_S)
        turns = [[flop / s for (_, flop), s in zip(calls, t, strict=True)] for t in seconds]
        ours, now, _ = (median(column) for column in zip(*turns, strict=True))
        return {
            "case": key[0],
            "constant": key[1],
            "gflops": ours / 1e9,
            "fma_gflops": now / 1e9,
            "share": median(a / b for a, b, _ in turns),
            "tile_share": median(c / b for _, b, c in turns),
            "share_of_tile": median(a / c for a, _, c in turns),
            "claimed": claimed[key],
            "turns_flops": turns,
            "trials": found.trials,
            "tuning_s": found.wall_s,
            **stamp(target, peak),
        }

    order = list(claimed)
    experiment = Experiment[Row](
        RESULTS / f"share_of_peak{'_avx2' * args.avx2}.jsonl",
        key=lambda r: (r["case"], r["constant"]),
        line=table_line,
        head=HEAD,
        foot=closing,
        order=lambda r: order.index((r["case"], r["constant"])),
    )
    experiment.run([k for k in order if not args.only or k[0] in args.only], once, again=True)
    experiment.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
