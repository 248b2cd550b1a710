"""Programs that nothing was measured for, against the best known ones (about a minute).

Claim: with `n_trials=0` the program that the analytic score predicts to be the fastest reaches 70 %
of the speed of the best program known, for dense operators (geometric mean). What is known comes
from the searches of this machine that results/, or another folder, keeps. Writes untuned.jsonl and
a table there.
Usage: python scripts/untuned.py [--cases C2D:2 ...] [--seeds 3] [--results DIR]
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import ansorlite as al
from ansorlite.bench.ops import machine, write_results
from ansorlite.bench.ours import prepared
from ansorlite.bench.runs import geometric_mean, read_runs
from ansorlite.bench.serve import timed
from ansorlite.measure.peak import measure_peak
from ansorlite.target import Target

DENSE = ("C1D:1", "C2D:2", "C3D:1", "GMM:1", "GRP:1", "DIL:1", "T2D:1", "CAP:1")
TURNS, TURN_S = 7, 0.1
RESULTS = Path(__file__).parents[1] / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", default=list(DENSE))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    args = parser.parse_args()
    target = Target.detect()
    kept = [args.results / f"{name}.jsonl" for name in ("ablations", "searchers")]
    runs = [r for path in kept for r in read_runs(path) if r.target == target.fingerprint]
    rows, lines, shares = [], [f"{'case':6} {'seed':>4} {'untuned':>10} {'best':>10} share"], []
    for case in args.cases:
        known = min((float(r.best()[-1]) for r in runs if r.case == case), default=float("nan"))
        for seed in range(args.seeds):
            task = al.workload(case)
            found = al.tune(task, n_trials=0, seed=seed, progress=False)
            call = prepared(found.kernel)
            timed(call, TURN_S)
            latency = median(timed(call, TURN_S)[0] for _ in range(TURNS))
            shares.append(known / latency)
            lines.append(
                f"{case:6} {seed:4} {latency * 1e6:7.1f} us {known * 1e6:7.1f} us {shares[-1]:5.0%}"
            )
            print(lines[-1], flush=True)
            rows.append(
                {
                    "case": case,
                    "seed": seed,
                    "latency_s": latency,
                    "best_known_s": known,
                    "machine": machine(target, measure_peak(target)),
                    "date": time.strftime("%Y-%m-%d"),
                }
            )
    lines.append(f"geometric mean {geometric_mean(shares):.1%}")
    print(lines[-1])
    write_results(args.results / "untuned.jsonl", rows, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
