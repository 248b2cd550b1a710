"""Template search with and without what was measured of other tasks (some five minutes a seed).

Claim: with a global model learned from ResNet-50's other tasks, annealing reaches 90 % of the speed
that it finds in 400 trials without, for a task that was held out, in at most a third of the trials
that it needs without. The other tasks are measured once a seed. Runs what is missing in
results/transfer.jsonl, then writes the table and the plots beside it.
Usage: python scripts/transfer.py [--network resnet50] [--held-out 3] [--others 8]
       [--other-trials 100] [--trials 400] [--seeds 3] [--table]
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ansorlite.baselines.runs import geometric_mean
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.search.tune import tune
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads import network
from bench.experiment import RESULTS, exit_status
from bench.programs import search_once
from bench.runs import RacedRun, draw, experiment_of_runs

WITH, WITHOUT = "template-xgb-transfer", "template-xgb"
ROUND = 16
ENOUGH = 0.9  # of the speed that the search without transfer ends with


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--held-out", type=int, default=3, help="tasks, evenly chosen")
    parser.add_argument("--others", type=int, default=8, help="tasks that are learned from")
    parser.add_argument("--other-trials", type=int, default=100)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true", help="run nothing: only show what is there")
    args = parser.parse_args()
    experiment = experiment_of_runs(RESULTS / "transfer.jsonl")
    done = {r.key for r in experiment.rows() if r.budget >= args.trials}
    held_out, others = chosen(args.network, args.held_out, args.others)
    for seed in [] if args.table else range(args.seeds):
        wanted = [t for t in held_out if {(p, t.name, seed) for p in (WITH, WITHOUT)} - done]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            known = Path(folder) / "others.jsonl"
            measure(others, args.other_trials, seed, known)
            for task in wanted:
                log = Path(folder) / "with.jsonl"
                shutil.copy(known, log)
                for policy, more in ((WITHOUT, {}), (WITH, {"log": log, "others": others})):
                    options: dict[str, Any] = {"policy": policy, "round_size": ROUND, **more}
                    run = search_once(task, task.name, policy, seed, args.trials, **options)
                    experiment.add(run)
    runs = experiment.rows()
    experiment.finish(table(runs))
    draw(experiment, runs)
    return 0


def chosen(name: str, n_held_out: int, n_others: int) -> tuple[list[SearchTask], list[SearchTask]]:
    """Tasks of convolutions: some evenly chosen ones, and so many of the rest."""
    weighted = network_tasks(partition(optimize(network(name))), Target.detect())
    tasks = list({w.task.workload_key: w.task for w in weighted if w.task.flop > 1e7}.values())
    step = max(1, len(tasks) // max(1, n_held_out))
    held_out = tasks[step // 2 :: step][:n_held_out]
    rest = [t for t in tasks if t not in held_out]
    return held_out, rest[:: max(1, len(rest) // max(1, n_others))][:n_others]


def measure(tasks: list[SearchTask], trials: int, seed: int, log: Path) -> None:
    """Measure so many programs of every task, task by task; each learns from those before."""
    for k, task in enumerate(tasks):
        tune(
            task,
            trials,
            seed=seed,
            log=log,
            policy=WITH,
            round_size=ROUND,
            progress=False,
            others=tasks[:k],
        )


def table(found: list[RacedRun]) -> str:
    """Trials to `ENOUGH` of the speed found without transfer, by task and seed."""
    runs = {r.key: r for r in found}
    lines = [f"{'task':40} seed   without   with  share of the trials"]
    shares = []
    for (policy, case, seed), run in runs.items():
        other = runs.get((WITH, case, seed))
        if policy != WITHOUT or other is None:
            continue
        goal_s = float(run.best()[-1]) / ENOUGH
        n, m = run.trials_to(goal_s), other.trials_to(goal_s)
        assert n is not None
        share = "not reached" if m is None else f"{m / n:.0%}"
        shares.append((m or len(other.latency_s)) / n)
        lines.append(f"{case:40.40} {seed:4} {n:9} {m or '-':>6}  {share}")
    if shares:
        lines.append(f"geometric mean {geometric_mean(shares):.0%} of the trials")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(exit_status(main))
