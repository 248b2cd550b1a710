"""The first round with the model that is shipped, against three rounds without (10 minutes).

Shows, for tasks that the model was not trained on (operators of the suite; layers of ResNet-50,
MobileNetV2 and BERT), how fast the best program of the first round of eight is with the model and
without, against the best of three rounds of a search that begins with nothing. Kept knowledge of
this machine is not used. Writes first_round.jsonl and a table.
Usage: python scripts/first_round.py [--target x86-avx2] [--cases C2D:1 resnet50/7 ...]
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from itertools import product
from math import inf

import ansorlite as al
from ansorlite.baselines.runs import geometric_mean
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.measure.builder import PoolBuilder
from ansorlite.measure.runner import LocalRunner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.search.session import Session
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads import network
from bench.experiment import RESULTS, Experiment, Row, exit_status
from bench.suite import CASES

ROUND, ROUNDS = 8, 3
MOST_TRIALS = 1000
LAYERS = {"resnet50": 9, "mobilenet_v2": 9, "bert_base": 8}  # tasks of each, spread evenly


@cache
def layers(name: str) -> tuple[SearchTask, ...]:
    """The tasks of a network that compute something."""
    weighted = network_tasks(partition(optimize(network(name))), TARGET)
    return tuple(w.task for w in weighted if w.task.flop > 1e5)


def chosen() -> list[str]:
    """All cases: operators, then layers."""
    out = list(CASES)
    for name, n in LAYERS.items():
        known = len(layers(name))
        out += [f"{name}/{known * k // n}" for k in range(n)]
    return out


def task_of(case: str) -> SearchTask:
    name, slash, number = case.partition("/")
    return layers(name)[int(number)] if slash else al.workload(case, target=TARGET)


TARGET = Target.detect()


def searched(
    task: SearchTask, rounds: int, known: bool, builder: PoolBuilder, runner: LocalRunner
) -> list[float]:
    """The fastest program after each round, seconds."""
    options = {"builder": builder, "runner": runner, "progress": False, "known": known}
    with Session(MOST_TRIALS, None, **options) as session:
        tuner = session.tuner(task)
        if session.searcher.plain:
            tuner.round(1)
        found, best = [], inf
        for _ in range(rounds):
            session.train([tuner])
            tuner.round(ROUND)
            best = min([best, *(r.lowest_s for r in tuner.records if r.ok and r.round)])
            found.append(best)
    return found


def line(row: Row) -> str:
    plain, third = row["without_s"][0], row["without_s"][-1]
    return (
        f"{row['case']:16} {row['target']:22} {row['with_s'] * 1e6:8.1f} {plain * 1e6:8.1f} "
        f"{third * 1e6:8.1f} {third / row['with_s']:6.2f} {third / plain:6.2f}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    out = []
    for target in dict.fromkeys(r["target"] for r in rows):
        own = [r for r in rows if r["target"] == target]
        first = geometric_mean(r["without_s"][-1] / r["with_s"] for r in own)
        plain = geometric_mean(r["without_s"][-1] / r["without_s"][0] for r in own)
        out.append(
            f"{target}: {len(own)} tasks; third round without / first with: {first:.3f}, "
            f"third without / first without: {plain:.3f} (geometric means)"
        )
    return out


EXPERIMENT = Experiment[Row](
    RESULTS / "first_round.jsonl",
    key=lambda r: (r["case"], r["target"]),
    line=line,
    head=f"{'case':16} {'target':22} {'first':>8} {'first 0':>8} {'third 0':>8}  ratio  first 0",
    foot=closing,
)


def main() -> int:
    global TARGET
    os.environ["ANSORLITE_KNOWLEDGE"] = "shipped"  # and nothing of this machine
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", help="instructions to use, such as x86-avx2 (the host's)")
    parser.add_argument("--cases", nargs="+")
    args = parser.parse_args()
    if args.target:
        TARGET = Target.host_as(args.target)
    policy = TimingPolicy(fresh_constants=True)
    with PoolBuilder() as builder, LocalRunner(policy=policy) as runner:

        def once(key: tuple[str, str]) -> Row:
            case = key[0]
            task = task_of(case)
            without = searched(task, ROUNDS, False, builder, runner)
            (first,) = searched(task, 1, True, builder, runner)
            row = {"case": case, "target": TARGET.fingerprint, "with_s": first}
            return {**row, "without_s": without, "date": time.strftime("%Y-%m-%d")}

        EXPERIMENT.run(product(args.cases or chosen(), [TARGET.fingerprint]), once)
    EXPERIMENT.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
