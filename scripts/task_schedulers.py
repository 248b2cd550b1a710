"""Schedulers of the tasks of a network against each other (2,000 trials: five minutes a run).

Claim: shared out by gradient, trials bring ResNet-50's tasks to what round-robin, which is no task
scheduler at all, reaches in the end in at most 60 % of its trials. The latency is the weighted sum
over the tasks, as of every round. Two runs that differ by their seeds alone differ by a percent or
two, which is a third of the trials late in a run: the last lines are of means over the seeds.
Runs what is missing in results/task_schedulers.jsonl, those of a seed in step, so that a machine
that slows down does so to all alike, then writes table and plots beside it. Runs of other machines
count for nothing: give each a folder.
Usage: python scripts/task_schedulers.py [--network resnet50] [--schedulers gradient ucb ...]
       [--trials 2000] [--seeds 3] [--table] [--results DIR]
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from ansorlite.bench.compare import CompareOptions, run_network
from ansorlite.bench.in_step import Turn, in_step
from ansorlite.bench.runs import Float, Run, append_run, draw, read_runs
from ansorlite.graph.ir import Graph
from ansorlite.search.task_scheduler import SCHEDULERS
from ansorlite.target import Target
from ansorlite.workloads import network

RESULTS = Path(__file__).parents[1] / "results"
GOAL = "round-robin"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder (results)")
    args = parser.parse_args()
    graph, machine = network(args.network), Target.detect().fingerprint
    path = args.results / "task_schedulers.jsonl"

    def own() -> list[Run]:
        return [r for r in read_runs(path) if r.target == machine]

    done = {r.key for r in own() if r.budget >= args.trials}
    for seed in [] if args.table else range(args.seeds):
        left = [s for s in args.schedulers if (s, graph.name, seed) not in done]
        for run in in_step([partial(once, graph, s, seed, args.trials) for s in left]):
            append_run(path, run)
            best = f"{run.best()[-1] * 1e3:.3f} ms"
            print(f"{run.policy:12} seed {seed}: {best} in {run.wall_s:.0f} s", flush=True)
    text = table(own())
    path.with_suffix(".txt").write_text(text)
    print(text, end="")
    draw(own(), path)
    return 0


def once(graph: Graph, scheduler: str, seed: int, trials: int, turn: Turn) -> Run:
    """One search of a network, which lets others have their turns."""
    options = CompareOptions(trials=trials, scheduler=scheduler, turn=turn)
    return replace(run_network(graph, "ansor", seed, options), policy=scheduler)


def table(runs: Sequence[Run]) -> str:
    """The last latency of every run, and after how many of round-robin's trials it was there."""
    goals = {(r.case, r.seed): r for r in runs if r.policy == GOAL}
    lines = [f"{'scheduler':18} network       seed  trials      ms  trials to {GOAL}'s last, share"]
    for r in runs:
        goal = goals.get((r.case, r.seed))
        n = None if goal is None else r.trials_to(float(goal.best()[-1]))
        share = "not reached" if n is None or goal is None else f"{n / len(goal.latency_s):.0%}"
        lines.append(
            f"{r.policy:18} {r.case:12} {r.seed:5} {len(r.latency_s):7} {r.best()[-1] * 1e3:7.3f}"
            f"  {n or '':>5} {share:>6}"
        )
    for case in dict.fromkeys(r.case for r in runs):
        lines += means(runs, case)
    return "\n".join(lines) + "\n"


def means(runs: Sequence[Run], case: str) -> list[str]:
    """The same of the geometric means over the seeds, a line a scheduler."""
    lines = []
    for name in dict.fromkeys(r.policy for r in runs):
        own = {r.seed: r for r in runs if (r.policy, r.case) == (name, case)}
        goals = {r.seed: r for r in runs if (r.policy, r.case) == (GOAL, case)}
        seeds = sorted(own.keys() & goals.keys())
        if not seeds:
            continue
        mine, goal = (_mean([found[k] for k in seeds]) for found in (own, goals))
        there = np.flatnonzero(mine <= goal[-1])
        share = f"after {(there[0] + 1) / len(goal):.0%} of the trials" if there.size else "never"
        lines.append(
            f"{name:18} {case:12} mean of {len(seeds)} seeds: {mine[-1] * 1e3:.3f} ms, as fast as "
            f"{GOAL}'s {goal[-1] * 1e3:.3f} ms {share}"
        )
    return lines


def _mean(runs: Sequence[Run]) -> Float:
    n = min(len(r.latency_s) for r in runs)
    logs: Float = np.log([r.best()[:n] for r in runs]).mean(axis=0)
    return np.exp(logs)


if __name__ == "__main__":
    sys.exit(main())
