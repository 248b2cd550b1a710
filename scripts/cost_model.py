"""The cost model on programs of ResNet-50's tasks that it has not seen (an hour of measuring).

Claim: trained on half random and half search-visited programs, it orders at least 88 % of the pairs
of unseen programs of the same tasks that differ by more than 5 %, explains 95 % of the variance of
the speeds (R2), and finds 70 % of the 30 fastest of 500. Reported are the same of tasks that it has
not seen. Visited programs are drawn from all that a search's generations hold; with `--kind picked`
they are those alone that it would measure, most of which are as fast as each other. Half of the
hour goes to further measurements of the fastest; in the row "measured" the first measurement
stands in for a model of what the later ones found. Measuring continues what lies in the
folder of logs; adds to results/cost_model.jsonl a line a model, in the stead of those of the
same machine and kind, and writes a table.
Usage: python scripts/cost_model.py [--minutes 30] [--again-minutes 30] [--logs DIR]
       [--network resnet50] [--seed 0] [--kind visited] [--models default ...]
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.model import CostModel, GBDTModel
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.runner import LocalRunner
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from ansorlite.workloads import network
from bench.cost_data import (
    Accuracy,
    accuracy,
    collect,
    repeatability,
    scores_by_program,
    scores_by_task,
)
from bench.experiment import RESULTS, Experiment, Row, exit_status, kept_folder

CORES = Target.detect().cores
LARGE = replace(CorrectionModel.PARAMS, n_trees=600, n_leaves=63)
MODELS: dict[str, Callable[[], CostModel]] = {
    "default": lambda: CorrectionModel(num_threads=CORES),
    "fast": lambda: CorrectionModel(num_threads=CORES, fast=CorrectionModel.FAST_PARAMS),
    "rank": lambda: CorrectionModel(num_threads=CORES, objective="rank"),
    "large": lambda: CorrectionModel(num_threads=CORES, params=LARGE),
    "paper": lambda: GBDTModel(num_threads=CORES),
}

HEAD = (
    f"{'machine':24} {'programs':8} {'search':8} {'model':8} {'left out':8} {'pairs':>6} "
    f"{'recall@30':>9} {'random':>6} {'close':>6} {'R2':>6} {'seconds':>7}"
)


def line(row: Row) -> str:
    """A row of the table."""
    return (
        f"{row['target']:24} {row['programs']:8} {row['kind']:8} {row['model']:8} "
        f"{row['left_out']:8} {row['pairwise']:6.3f} {row['recall']:9.3f} "
        f"{row['recall_random']:6.3f} {row.get('close', math.nan):6.3f} {row['r_squared']:6.3f} "
        f"{row['seconds']:7.1f}"
    )


EXPERIMENT = Experiment[Row](
    RESULTS / "cost_model.jsonl",
    key=lambda r: (r["kind"], r["target"], r["model"], r["left_out"]),
    line=line,
    head=HEAD,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of new programs; 0: none")
    parser.add_argument("--again-minutes", type=float, default=30.0, help="of the fastest")
    parser.add_argument("--logs", type=Path, default=kept_folder("cost_model"))
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=("visited", "picked"), default="visited")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    args = parser.parse_args()
    target = Target.detect()
    weighted = network_tasks(partition(optimize(network(args.network))), target)
    tasks = list({w.task.workload_key: w.task for w in weighted}.values())
    with PoolBuilder() as builder, LocalRunner() as runner:
        found = collect(
            args.logs,
            tasks,
            60 * args.minutes,
            builder,
            runner,
            args.seed,
            print,
            args.kind,
            60 * args.again_minutes,
        )
    found = [m for m in found if len(m.first_s) > 1]
    groups, drawn = [m.group for m in found], [m.n_random for m in found]
    programs = sum(len(g.latency_s) for g in groups)
    if not groups:
        print("nothing was measured yet: give it minutes", file=sys.stderr)
        return 1
    print(HEAD)

    def tell(model: str, left_out: str, known: Accuracy, seconds: float) -> None:
        EXPERIMENT.add(
            {"kind": args.kind, "model": model, "left_out": left_out, **asdict(known)}
            | {"programs": programs, "tasks": len(groups), "network": args.network}
            | {"target": target.fingerprint, "date": time.strftime("%Y-%m-%d")}
            | {"seconds": seconds}
        )

    tell("measured", "-", repeatability(found, args.seed), 0.0)
    for name in args.models:
        make = MODELS[name]
        for left_out, predict in (("programs", scores_by_program), ("tasks", scores_by_task)):
            began = time.perf_counter()
            scores = predict(groups, make, seed=args.seed)
            known = accuracy(groups, scores, args.seed, drawn)
            tell(name, left_out, known, time.perf_counter() - began)
    EXPERIMENT.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
