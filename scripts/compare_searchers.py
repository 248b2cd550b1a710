"""Ansor's search and AutoTVM's on the operator suite (400 trials: some 35 s a run).

Claim: annealing over a learned model reaches genetic search's last result in at most half of its
trials (geometric mean), and Ansor's search reaches the template search's last result within 100
trials on at least ten of twelve cases, in less time. Runs what is missing in
results/searchers.jsonl, so it can be stopped and continued, races what was found in one process,
then writes the table and the plots beside it. With `--networks` the searchers share so many trials
out among the tasks of each (results/searchers_networks.jsonl).
Usage: python scripts/compare_searchers.py [--searchers ansor ...] [--cases C2D:2 ...]
       [--networks resnet50 ...] [--seeds 3] [--trials 400] [--table] [--no-race]
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ansorlite.bench.ablations import CASES
from ansorlite.bench.compare import CompareOptions, claims_text, run_case, run_network, space_of
from ansorlite.bench.programs import program_at, race_all, structure, structures
from ansorlite.bench.runs import Run, append_run, draw, read_runs
from ansorlite.workloads import network, workload

RESULTS = Path(__file__).parents[1] / "results"
SEARCHERS = ("ansor", "template-xgb", "template-xgb-reg", "template-ga", "template-random")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searchers", nargs="+", default=list(SEARCHERS))
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--networks", nargs="+", default=[], help="instead of cases")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    parser.add_argument("--no-race", action="store_true", help="figures as each run measured them")
    args = parser.parse_args()
    path = RESULTS / ("searchers_networks.jsonl" if args.networks else "searchers.jsonl")
    done = {r.key for r in read_runs(path) if r.budget >= args.trials}
    what = args.networks or args.cases
    wanted = [(s, c, k) for k in range(args.seeds) for c in what for s in args.searchers]
    for name, case, seed in [] if args.table else wanted:
        if (name, case, seed) in done:
            continue
        options = CompareOptions(trials=args.trials)
        if args.networks:
            run = run_network(network(case), name, seed, options)
        else:
            run = run_case(case, name, seed, options)
        append_run(path, run)
        best = f"{run.best()[-1] * 1e3:.4f} ms"
        print(f"{name:18} {case:12} seed {seed}: {best} in {run.wall_s:.0f} s", flush=True)
    runs = read_runs(path)
    raced = None if args.networks or args.no_race else race_all(runs, space_of)
    text = claims_text(runs, raced)
    if not args.networks:
        text += "\n".join(outside_templates(runs)) + "\n"
    path.with_suffix(".txt").write_text(text)
    print(text, end="")
    draw(runs, path)
    return 0


def outside_templates(runs: Sequence[Run]) -> list[str]:
    """Of Ansor's last programs, which have a structure that the case's template cannot have."""
    found = []
    for r in runs:
        budget = max(map(int, r.programs), default=0)
        if r.policy != "ansor" or not budget:
            continue
        task = workload(r.case)
        program = program_at(r, budget, space_of("ansor", task))
        if program is not None:
            known = structures(space_of("template-xgb", task))
            found.append((r.case, structure(program) not in known))
    outside = [case for case, away in found if away]
    if not found:
        return []
    cases = ", ".join(f"{c} ({outside.count(c)})" for c in dict.fromkeys(outside)) or "none"
    return [f"outside of the template's space: {len(outside)} of {len(found)} programs ({cases})"]


if __name__ == "__main__":
    sys.exit(main())
