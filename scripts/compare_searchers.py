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
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from ansorlite.baselines.compare import CompareOptions
from ansorlite.workloads import network
from bench.experiment import RESULTS, Experiment, exit_status
from bench.in_step import networks_in_step
from bench.programs import race_all
from bench.runs import RacedRun, draw, experiment_of_runs
from bench.searchers import case_by_case, claims_text, outside_templates, run_case, space_of
from bench.suite import CASES

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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--searchers", nargs="+", help="those of the claim if none are named")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--networks", nargs="+", default=[], help="instead of cases")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, help="of each (as the claim has it)")
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    parser.add_argument("--no-race", action="store_true", help="figures as each run measured them")
    args = parser.parse_args()
    name = "searchers_networks" if args.networks else "searchers"
    experiment = experiment_of_runs(RESULTS / f"{name}.jsonl")
    if not args.table:
        (run_networks if args.networks else run_cases)(experiment, args)
    runs = experiment.rows()
    raced = None if args.networks or args.no_race else race_all(runs, space_of)
    text = claims_text(runs, raced, FIGURES.values())
    if raced is not None:
        # The few that this is about alone, and for longer: they are as fast within a percent.
        last = [replace(r, programs=last_program(r)) for r in runs if r.policy in RIVALS]
        finals = race_all(last, space_of, FINAL_RACE_S, races=FINAL_RACES)
        text += case_by_case(last, finals, *RIVALS, WITHIN)
    if not args.networks:
        text += "\n".join(outside_templates(runs)) + "\n"
    experiment.finish(text)
    for suffix, names in FIGURES.items():
        if any(r.policy in names[1:] for r in runs):
            draw(experiment, runs, names, suffix)
    return 0


def last_program(run: RacedRun) -> dict[str, Any]:
    """Of a run's programs the one at the end, or after the trials that Ansor's search is given."""
    budget = str(WITHIN if run.policy == RIVALS[0] else run.budget)
    return {budget: run.programs[budget]} if budget in run.programs else {}


def run_cases(experiment: Experiment[RacedRun], args: argparse.Namespace) -> None:
    """The runs of cases that are missing."""

    def trials_of(searcher: str) -> int:
        return args.trials or TRIALS.get(searcher, WITHIN)

    experiment.run(
        [(p, c, s) for s, c, p in product(range(args.seeds), args.cases, args.searchers or TRIALS)],
        lambda key: run_case(key[1], key[0], key[2], trials_of(key[0])),
        done=lambda run: run.budget >= trials_of(run.policy),
    )


def run_networks(experiment: Experiment[RacedRun], args: argparse.Namespace) -> None:
    """The same of networks, those of a network and seed in step."""
    trials = args.trials or OF_NETWORKS
    done = {r.key for r in experiment.rows() if r.budget >= trials}
    for seed, what in product(range(args.seeds), args.networks):
        graph = network(what)
        names: Sequence[str] = args.searchers or RIVALS
        left = [n for n in names if (n, graph.name, seed) not in done]
        options = CompareOptions(trials=trials)
        for run in networks_in_step(graph, [(n, options) for n in left], seed):
            experiment.add(run)


if __name__ == "__main__":
    sys.exit(exit_status(main))
