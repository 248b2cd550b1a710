"""Programs that nothing was measured for, against the best known ones (about a minute).

Claim: with `n_trials=0` the program that the analytic score predicts to be the fastest reaches 70 %
of the speed of the best program known, for dense operators (geometric mean). What is known comes
from the searches of this machine that results/, or another folder, keeps. Writes untuned.jsonl and
a table there.
Usage: python scripts/untuned.py [--cases C2D:2 ...] [--seeds 3] [--results DIR]
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import median

import ansorlite as al
from ansorlite.baselines.runs import geometric_mean
from ansorlite.target import Target
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp
from bench.peers.ours import kernel_call
from bench.runs import experiment_of_runs
from bench.suite import DENSE

TURNS, TURN_S = 7, 0.1


def share(row: Row) -> float:
    return float(row["best_known_s"] / row["latency_s"])


def table_line(row: Row) -> str:
    return (
        f"{row['case']:6} {row['seed']:4} {row['latency_s'] * 1e6:7.1f} us "
        f"{row['best_known_s'] * 1e6:7.1f} us {share(row):5.0%}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    return [f"geometric mean {geometric_mean(map(share, rows)):.1%}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=list(DENSE))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    args = parser.parse_args()
    target = Target.detect()
    kept = [experiment_of_runs(args.results / f"{n}.jsonl") for n in ("ablations", "searchers")]
    runs = [r for e in kept for r in e.rows() if r.target == target.fingerprint]

    def once(key: tuple[str, int]) -> Row:
        case, seed = key
        found = al.tune(al.workload(case), n_trials=0, seed=seed, progress=False)
        turns = in_turn([kernel_call(found.kernel)], 1 + TURNS, TURN_S)[1:]
        known = min((float(r.best()[-1]) for r in runs if r.case == case), default=float("nan"))
        row = {"case": case, "seed": seed, "latency_s": median(t for (t,) in turns)}
        return {**row, "best_known_s": known, **stamp(target)}

    experiment = Experiment[Row](
        args.results / "untuned.jsonl",
        key=lambda r: (r["case"], r["seed"]),
        line=table_line,
        head=f"{'case':6} {'seed':>4} {'untuned':>10} {'best':>10} share",
        foot=closing,
    )
    experiment.run(product(args.cases, range(args.seeds)), once, again=True)
    experiment.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
