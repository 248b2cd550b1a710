"""Ansor's search and AutoTVM's on the operator suite (all of it: some 3 h).

Claim: annealing over a learned model reaches genetic search's 400-trial result in at most half of
its trials (geometric mean), and Ansor's search reaches its 1,000-trial result within 100 trials on
at least ten of twelve cases, in less time. Runs what is missing in
results/searchers.jsonl, so it can be stopped and continued, races what was found in one process,
then writes the table and the plots beside it. With `--networks` Ansor's search and the template
search share so many trials out among the tasks of each, in step, so that a machine that slows down
does so to both alike (results/searchers_networks.jsonl).
Usage: python scripts/compare_searchers.py [--searchers ansor ...] [--cases C2D:2 ...]
       [--networks resnet50 ...] [--seeds 3] [--trials N] [--table] [--no-race]
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ansorlite.bench.ablations import CASES
from ansorlite.bench.compare import (
    CompareOptions,
    case_by_case,
    claims_text,
    run_case,
    run_network,
    space_of,
)
from ansorlite.bench.in_step import Turn, in_step
from ansorlite.bench.programs import program_at, race_all, structure, structures
from ansorlite.bench.runs import Key, Run, append_run, draw, read_runs
from ansorlite.graph.ir import Graph
from ansorlite.workloads import network, workload

RESULTS = Path(__file__).parents[1] / "results"
WITHIN = 100  # trials for Ansor's search
TRIALS = {  # of a case
    "ansor": WITHIN,
    "template-xgb": 1000,
    "template-ga": 400,
    "template-xgb-reg": 400,
    "template-xgb-ei": 400,
    "template-xgb-ucb": 400,
    "template-random": 400,
}
RIVALS = "ansor", "template-xgb"
FIGURES = {  # beside the raw data: what is added to its name, who is compared
    "": ("ansor", "template-xgb", "template-ga", "template-random"),
    "_losses": ("template-xgb", "template-xgb-reg"),
    "_acquisition": ("template-xgb-reg", "template-xgb-ei", "template-xgb-ucb"),
}
OF_NETWORKS = 1000  # trials of each
FINAL_RACE_S = 40.0  # of a case
FINAL_RACES = 10  # processes that share it: where memory lies is worth a percent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--searchers", nargs="+", help="those of the claim if none are named")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--networks", nargs="+", default=[], help="instead of cases")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, help="of each (as the claim has it)")
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    parser.add_argument("--no-race", action="store_true", help="figures as each run measured them")
    args = parser.parse_args()
    path = RESULTS / ("searchers_networks.jsonl" if args.networks else "searchers.jsonl")
    if not args.table:
        each = networks if args.networks else cases
        for run in each(args, {r.key: r.budget for r in read_runs(path)}):
            append_run(path, run)
            best = f"{run.best()[-1] * 1e3:.4f} ms in {run.wall_s:.0f} s"
            print(f"{run.policy:18} {run.case:12} seed {run.seed}: {best}", flush=True)
    runs = read_runs(path)
    raced = None if args.networks or args.no_race else race_all(runs, space_of)
    text = claims_text(runs, raced, FIGURES.values())
    if raced is not None:
        # The few that this is about alone, and for longer: they are as fast within a percent.
        last = [replace(r, programs=kept(r)) for r in runs if r.policy in RIVALS]
        finals = race_all(last, space_of, FINAL_RACE_S, races=FINAL_RACES)
        text += case_by_case(last, finals, *RIVALS, WITHIN)
    if not args.networks:
        text += "\n".join(outside_templates(runs)) + "\n"
    path.with_suffix(".txt").write_text(text)
    print(text, end="")
    for suffix, names in FIGURES.items():
        if any(r.policy in names[1:] for r in runs):
            draw(runs, path.with_stem(path.stem + suffix), names)
    return 0


def kept(run: Run) -> dict[str, Any]:
    """Of a run's programs the one at the end, or after the trials that Ansor's search is given."""
    budget = str(WITHIN if run.policy == RIVALS[0] else run.budget)
    return {budget: run.programs[budget]} if budget in run.programs else {}


def cases(args: argparse.Namespace, done: Mapping[Key, int]) -> Iterator[Run]:
    """The runs of cases that are missing: `done` has the trials of those that are not."""
    for seed, case in product(range(args.seeds), args.cases):
        for name in args.searchers or TRIALS:
            trials = args.trials or TRIALS.get(name, WITHIN)
            if done.get((name, case, seed), 0) < trials:
                yield run_case(case, name, seed, CompareOptions(trials=trials))


def networks(args: argparse.Namespace, done: Mapping[Key, int]) -> Iterator[Run]:
    """The same of networks, those of a network and seed in step."""
    trials = args.trials or OF_NETWORKS
    for seed, what in product(range(args.seeds), args.networks):
        graph = network(what)
        left = [n for n in args.searchers or RIVALS if done.get((n, graph.name, seed), 0) < trials]
        yield from in_step([partial(in_turn, graph, n, seed, trials) for n in left])


def in_turn(graph: Graph, name: str, seed: int, trials: int, turn: Turn) -> Run:
    """One search of a network, which lets others have their turns."""
    return run_network(graph, name, seed, CompareOptions(trials=trials, turn=turn))


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
