"""64 trials of ten cases against TVM's MetaSchedule (about five minutes).

Claim: better programs than MetaSchedule's on all ten cases, each in under 30 s. MetaSchedule's
figures were taken on the same kind of machine (two Zen 3 cores, 64 trials, GMM:3 96) and are
constants here, since installing TVM takes longer than the comparison. Every case is tuned from
nothing and its best program is timed in a process of its own. Writes results/metaschedule.jsonl and
the table beside it.
Usage: python scripts/compare_metaschedule.py [--only C2D:1 ...]
"""

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from ansorlite.bench.ops import BenchOptions, BenchRow, bench_ops, write_results

OUTPUT = Path(__file__).parents[1] / "results" / "metaschedule.jsonl"
TRIALS = 64
# Case -> (milliseconds, seconds of tuning) of MetaSchedule.
THEIRS = {
    "C2D:1": (0.195, 90),
    "C2D:2": (1.918, 181),
    "GMM:2": (2.55, 127),
    "GMM:3": (31.9, 440),
    "DEP:0": (0.112, 151),
    "GRP:2": (0.466, 114),
    "T2D:1": (2.02, 165),
    "CAP:0": (0.612, 129),
    "NRM:1": (0.014, 120),
    "SFM:1": (0.457, 131),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=THEIRS, default=list(THEIRS))
    args = parser.parse_args()
    head = f"{'case':8} {'ours':>9} {'tuned':>6} {'MetaSchedule':>12} {'tuned':>6} {'ratio':>6}"
    lines = [head]
    print(head, flush=True)

    def each(row: BenchRow) -> None:
        ours = row.latency_s["ansorlite"] * 1e3
        theirs, tuning_s = THEIRS[row.case]
        line = (
            f"{row.case:8} {ours:6.3f} ms {row.tuning_s:4.0f} s {theirs:9.3f} ms {tuning_s:4} s "
            f"{theirs / ours:6.2f}"
        )
        lines.append(line)
        print(line, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        options = BenchOptions(1, TRIALS, 60.0, (), log=Path(folder) / "log.jsonl")
        rows = bench_ops(args.only, options, each)
    last = rows[-1]
    lines.append(", ".join(f"{k} {v}" for k, v in last.machine.items()) + f", {last.date}")
    records = [
        {
            **asdict(r),
            "metaschedule_s": THEIRS[r.case][0] / 1e3,
            "metaschedule_tuning_s": THEIRS[r.case][1],
        }
        for r in rows
    ]
    write_results(OUTPUT, records, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
