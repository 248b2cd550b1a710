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
from collections.abc import Sequence
from dataclasses import asdict

from bench.contest import OURS
from bench.experiment import RESULTS, Experiment, Row, exit_status, machine_line
from bench.ops import bench_case
from bench.options import BenchOptions

OPTIONS = BenchOptions(trials=64, timeout=60.0)
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


def table_line(row: Row) -> str:
    ours, theirs = row["latency_s"][OURS] * 1e3, row["metaschedule_s"] * 1e3
    return (
        f"{row['case']:8} {ours:6.3f} ms {row['tuning_s']:4.0f} s {theirs:9.3f} ms "
        f"{row['metaschedule_tuning_s']:4} s {theirs / ours:6.2f}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    return [machine_line(r["machine"], r["date"]) for r in rows[-1:]]


def once(case: str) -> Row:
    latency_ms, tuning_s = THEIRS[case]
    theirs = {"metaschedule_s": latency_ms / 1e3, "metaschedule_tuning_s": tuning_s}
    return asdict(bench_case(case, OPTIONS)) | theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=THEIRS, default=list(THEIRS))
    args = parser.parse_args()
    experiment = Experiment[Row](
        RESULTS / "metaschedule.jsonl",
        key=lambda r: r["case"],
        line=table_line,
        head=f"{'case':8} {'ours':>9} {'tuned':>6} {'MetaSchedule':>12} {'tuned':>6} {'ratio':>6}",
        foot=closing,
        order=lambda r: list(THEIRS).index(r["case"]),
    )
    experiment.run(args.only, once, again=True)
    experiment.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
