"""Ansor's search and AutoTVM's on the operator suite (400 trials: some 35 s a run).

Claim: annealing over a learned model reaches genetic search's last result in at most half of its
trials (geometric mean), and Ansor's search reaches the template search's last result within 100
trials on at least ten of twelve cases, in less time. Runs what is missing in
results/searchers.jsonl, so it can be stopped and continued, then writes the table beside it.
Usage: python scripts/compare_searchers.py [--searchers ansor ...] [--cases C2D:2 ...] [--seeds 3]
       [--trials 400] [--table]
"""

import argparse
import sys
from pathlib import Path

from ansorlite.bench.ablations import CASES
from ansorlite.bench.compare import CompareOptions, claims_text, run_case
from ansorlite.bench.runs import append_run, read_runs

RESULTS = Path(__file__).parents[1] / "results" / "searchers.jsonl"
SEARCHERS = ("ansor", "template-xgb", "template-xgb-reg", "template-ga", "template-random")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searchers", nargs="+", default=list(SEARCHERS))
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    args = parser.parse_args()
    done = {r.key for r in read_runs(RESULTS) if len(r.latency_s) >= args.trials}
    wanted = [(s, c, k) for k in range(args.seeds) for c in args.cases for s in args.searchers]
    for name, case, seed in [] if args.table else wanted:
        if (name, case, seed) in done:
            continue
        run = run_case(case, name, seed, CompareOptions(trials=args.trials))
        append_run(RESULTS, run)
        best = f"{run.best()[-1] * 1e3:.4f} ms"
        print(f"{name:18} {case:6} seed {seed}: {best} in {run.wall_s:.0f} s", flush=True)
    text = claims_text(read_runs(RESULTS))
    RESULTS.with_suffix(".txt").write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
