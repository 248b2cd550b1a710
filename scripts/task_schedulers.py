"""Schedulers of the tasks of a network against each other (2,000 trials: five minutes a run).

Claim: shared out by gradient, trials bring ResNet-50's tasks to what round-robin, which is no task
scheduler at all, reaches in the end in at most 60 % of its trials. The latency is the weighted sum
over the tasks: as of every round, and of what the search would have settled on after every
twentieth of the trials, the programs of all runs of a seed raced in turn in the end. The first is
the least of many measurements, a little of which is luck, more of it where there were more; the
second counts. Two runs that differ by their seeds alone differ by a percent or two, which is a
third of the trials late in a run: the last lines are of means over the seeds.
Runs what is missing in results/task_schedulers.jsonl, those of a seed in step, so that a machine
that slows down does so to all alike, then writes table and plots beside it. Runs of other machines
count for nothing: give each a folder.
Usage: python scripts/task_schedulers.py [--network resnet50] [--schedulers gradient ucb ...]
       [--trials 2000] [--seeds 3] [--race-seconds 4] [--table] [--results DIR] [--logs DIR]
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ansorlite.baselines.compare import CompareOptions, log_name
from ansorlite.baselines.runs import geometric_mean
from ansorlite.graph.ir import Graph
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.search.task_scheduler import SCHEDULERS
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from ansorlite.workloads import network
from bench.checkpoint_race import settled
from bench.experiment import RESULTS, exit_status, kept_folder
from bench.in_step import networks_in_step
from bench.runs import RacedRun, draw, experiment_of_runs

GOAL = "round-robin"
SEARCHER = "ansor"
CHECKPOINTS = 20
TRIALS = 2000  # some 64 a task of ResNet-50; results of other budgets have files of their own


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    parser.add_argument("--race-seconds", type=float, default=4.0, help="of every task (4)")
    parser.add_argument("--logs", type=Path, default=kept_folder("task_schedulers"))
    args = parser.parse_args()
    graph, machine = network(args.network), Target.detect().fingerprint
    kind = "" if args.trials == TRIALS else f"_{args.trials}"
    experiment = experiment_of_runs(args.results / f"task_schedulers{kind}.jsonl")
    own = [r for r in experiment.rows() if r.target == machine]
    done = {r.key for r in own if r.budget >= args.trials}
    for seed in [] if args.table else range(args.seeds):
        left = [s for s in args.schedulers if (s, graph.name, seed) not in done]
        logs = [args.logs / s for s in left]
        for folder in logs:
            (folder / log_name(graph.name, SEARCHER, seed)).unlink(missing_ok=True)
        options = [
            CompareOptions(trials=args.trials, scheduler=s, logs=log)
            for s, log in zip(left, logs, strict=True)
        ]
        found = networks_in_step(graph, [(SEARCHER, o) for o in options], seed)
        runs = [replace(run, policy=s) for s, run in zip(left, found, strict=True)]
        for run in raced(graph, runs, logs, args.race_seconds):
            experiment.add(run)
    own = [r for r in experiment.rows() if r.target == machine]
    experiment.finish(table(own))
    draw(experiment, own)
    return 0


def raced(
    graph: Graph, runs: Sequence[RacedRun], logs: Sequence[Path], seconds: float
) -> list[RacedRun]:
    """The runs of one seed, with what they would have settled on."""
    if not runs:
        return []
    weighted = network_tasks(partition(optimize(graph)), Target.detect())
    most = max(len(r.latency_s) for r in runs)
    checkpoints = sorted({round(most * k / CHECKPOINTS) for k in range(1, CHECKPOINTS + 1)})
    names = [
        folder / log_name(r.case, SEARCHER, r.seed) for r, folder in zip(runs, logs, strict=True)
    ]
    found = settled(names, weighted, checkpoints, seconds)
    return [
        replace(r, settled={str(n): t for n, t in at.items()})
        for r, at in zip(runs, found, strict=True)
    ]


def table(runs: Sequence[RacedRun]) -> str:
    """What every run, and the means over the seeds, settled on, and when they were as fast as
    round-robin in the end.
    """
    lines = [
        f"{'scheduler':18} {'network':12} {'seed':>5} {'trials':>7} {'least ms':>9} {'share':>6} "
        f"{'settled':>9} {'share':>6} of {GOAL}'s trials"
    ]
    seeds = {(r.case, r.seed): r for r in runs if r.policy == GOAL}
    for r in runs:
        goal = seeds.get((r.case, r.seed))
        lines.append(_line(r.policy, r.case, str(r.seed), [r], [goal] if goal else []))
    for case in dict.fromkeys(r.case for r in runs):
        for name in dict.fromkeys(r.policy for r in runs):
            own = [r for r in runs if (r.policy, r.case) == (name, case)]
            goals = [g for r in own if (g := seeds.get((case, r.seed))) is not None]
            if len(own) > 1 and len(own) == len(goals):
                lines.append(_line(name, case, "mean", own, goals))
    return "\n".join(lines) + "\n"


def _line(
    name: str, case: str, seed: str, runs: Sequence[RacedRun], goals: Sequence[RacedRun]
) -> str:
    n = min(len(r.latency_s) for r in runs)
    text = f"{name:18} {case:12} {seed:>5} {n:7}"
    for curve in (_measured, _settled):
        found = curve(runs)
        aim = curve(goals) if goals else {}
        text += f" {list(found.values())[-1] * 1e3 if found else float('nan'):9.3f}"
        there = [n for n, t in found.items() if aim and t <= list(aim.values())[-1]]
        share = f"{there[0] / max(aim):.0%}" if there else "never" if aim and found else "-"
        text += f" {share:>6}"
    return text


def _measured(runs: Sequence[RacedRun]) -> dict[int, float]:
    """Trials -> the least sum of measured latencies (geometric means over the runs)."""
    n = min(len(r.latency_s) for r in runs)
    means = np.exp(np.log([r.best()[:n] for r in runs]).mean(axis=0))
    return dict(enumerate(means.tolist(), 1))


def _settled(runs: Sequence[RacedRun]) -> dict[int, float]:
    """The same of what they would have settled on."""
    at = sorted(set.intersection(*({int(n) for n in r.settled} for r in runs)))
    return {n: geometric_mean(r.settled[str(n)] for r in runs) for n in at}


if __name__ == "__main__":
    sys.exit(exit_status(main))
