"""Schedulers of the tasks of a network against each other (2,000 trials: five minutes a run).

Claim: shared out by gradient, trials bring ResNet-50's tasks to what round-robin reaches in the end
in at most 60 % of its trials. The latency is the weighted sum over the tasks, as of every round.
Runs what is missing in results/task_schedulers.jsonl, those of a seed in step, so that a machine
that slows down does so to all alike, then writes table and plots beside it.
Usage: python scripts/task_schedulers.py [--network resnet50] [--schedulers gradient ucb ...]
       [--trials 2000] [--seeds 1] [--table]
"""

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from ansorlite.bench.compare import CompareOptions, run_network
from ansorlite.bench.in_step import Turn, in_step
from ansorlite.bench.runs import Run, append_run, draw, geometric_mean, read_runs
from ansorlite.graph.ir import Graph
from ansorlite.search.task_scheduler import SCHEDULERS
from ansorlite.workloads import network

RESULTS = Path(__file__).parents[1] / "results" / "task_schedulers.jsonl"
GOAL = "round-robin"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=list(SCHEDULERS))
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    args = parser.parse_args()
    graph = network(args.network)
    done = {r.key for r in read_runs(RESULTS) if r.budget >= args.trials}
    for seed in [] if args.table else range(args.seeds):
        left = [s for s in args.schedulers if (s, graph.name, seed) not in done]
        for run in in_step([partial(once, graph, s, seed, args.trials) for s in left]):
            append_run(RESULTS, run)
            best = f"{run.best()[-1] * 1e3:.3f} ms"
            print(f"{run.policy:12} seed {seed}: {best} in {run.wall_s:.0f} s", flush=True)
    text = table()
    RESULTS.with_suffix(".txt").write_text(text)
    print(text, end="")
    draw(read_runs(RESULTS), RESULTS)
    return 0


def once(graph: Graph, scheduler: str, seed: int, trials: int, turn: Turn) -> Run:
    """One search of a network, which lets others have their turns."""
    options = CompareOptions(trials=trials, scheduler=scheduler, turn=turn)
    return replace(run_network(graph, "ansor", seed, options), policy=scheduler)


def table() -> str:
    """The last latency of every run, and after how many of round-robin's trials it was there."""
    runs = read_runs(RESULTS)
    goals = {(r.case, r.seed): r for r in runs if r.policy == GOAL}
    lines = [f"{'scheduler':12} network       seed  trials      ms  trials to {GOAL}'s last, share"]
    shares: dict[str, list[float]] = {}
    for r in runs:
        goal = goals.get((r.case, r.seed))
        n = None if goal is None else r.trials_to(float(goal.best()[-1]))
        share = "not reached" if n is None or goal is None else f"{n / len(goal.latency_s):.0%}"
        if n is not None and goal is not None:
            shares.setdefault(r.policy, []).append(n / len(goal.latency_s))
        lines.append(
            f"{r.policy:12} {r.case:12} {r.seed:5} {len(r.latency_s):7} {r.best()[-1] * 1e3:7.3f}"
            f"  {n or '':>5} {share:>6}"
        )
    for name, reached in shares.items():
        n = sum(r.policy == name and (r.case, r.seed) in goals for r in runs)
        share = f"{geometric_mean(reached):.0%} of the trials"
        lines.append(f"{name}: reached in {len(reached)} of {n} runs, after {share} there")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
