"""The cost model on programs of ResNet-50's tasks that it has not seen (an hour of measuring).

Claim: trained on half random and half search-visited programs, it orders at least 88 % of the pairs
of unseen programs of the same tasks that differ by more than 5 %, explains 95 % of the variance of
the speeds (R2), and finds 70 % of the 30 fastest of 500 random ones. Reported are the same of tasks
that it has not seen, and the recall of both kinds together, whose fastest differ by less than two
measurements of one program do. Measuring continues what lies in the folder of logs; writes
results/cost_model.jsonl, a line a model, and a table.
Usage: python scripts/cost_model.py [--minutes 60] [--logs DIR] [--network resnet50] [--seed 0]
       [--models default ...]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from ansorlite.bench.cost_data import accuracy, collect, scores_by_program, scores_by_task
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.model import CostModel, GBDTModel
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.kept import kept_file
from ansorlite.measure.runner import LocalRunner
from ansorlite.pipeline import network_tasks
from ansorlite.target import Target
from ansorlite.workloads import network

RESULTS = Path(__file__).parents[1] / "results" / "cost_model.jsonl"
CORES = Target.detect().cores
LARGE = replace(CorrectionModel.PARAMS, n_trees=600, n_leaves=63)
MODELS: dict[str, Callable[[], CostModel]] = {
    "default": lambda: CorrectionModel(num_threads=CORES),
    "rank": lambda: CorrectionModel(num_threads=CORES, objective="rank"),
    "large": lambda: CorrectionModel(num_threads=CORES, params=LARGE),
    "paper": lambda: GBDTModel(num_threads=CORES),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of measuring; 0: evaluate")
    parser.add_argument("--logs", type=Path, default=kept_file("cost_model").with_suffix(""))
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    args = parser.parse_args()
    target = Target.detect()
    weighted = network_tasks(partition(optimize(network(args.network))), target)
    tasks = list({w.task.workload_key: w.task for w in weighted}.values())
    with PoolBuilder() as builder, LocalRunner() as runner:
        found = collect(
            args.logs, tasks, 60 * args.minutes, builder, runner, args.seed, lambda s: print(s)
        )
    found = [(g, n) for g, n in found if len(g.latency_s) > 1]
    groups, drawn = [g for g, _ in found], [n for _, n in found]
    programs = sum(len(g.latency_s) for g in groups)
    if not groups:
        print("nothing was measured yet: give it minutes", file=sys.stderr)
        return 1
    rows, lines = [], [f"{programs} programs of {len(groups)} tasks of {args.network}"]
    lines.append(
        f"{'model':8} {'left out':8} {'pairs':>6} {'recall@30':>9} {'random':>6} {'R2':>6} "
        f"{'seconds':>7}"
    )
    for name in args.models:
        make = MODELS[name]
        for left_out, predict in (("programs", scores_by_program), ("tasks", scores_by_task)):
            began = time.perf_counter()
            scores = predict(groups, make, seed=args.seed)
            known = accuracy(groups, scores, args.seed, drawn)
            spent_s = time.perf_counter() - began
            row = {"model": name, "left_out": left_out, **asdict(known), "programs": programs}
            rows.append(
                row
                | {"network": args.network, "target": target.fingerprint}
                | {"date": time.strftime("%Y-%m-%d"), "seconds": spent_s}
            )
            lines.append(
                f"{name:8} {left_out:8} {known.pairwise:6.3f} {known.recall:9.3f} "
                f"{known.recall_random:6.3f} {known.r_squared:6.3f} {spent_s:7.1f}"
            )
            print(lines[-1], flush=True)
    RESULTS.write_text("".join(json.dumps(r) + "\n" for r in rows))
    RESULTS.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
