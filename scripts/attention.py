"""Attention as one kernel against three kernels (about nine minutes).

Claim: the products and the softmax of attention computed tile by tile in one kernel take at most
1/1.3 of the time of three kernels, each tuned, with 12 heads and 128 or 512 places as in BERT-base.
Each kernel has the same budget; both networks are then timed in turn.
Writes results/attention.jsonl and the table.
Usage: python scripts/attention.py [--timeout 30] [--only bert.128 ...]
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

import ansorlite as al
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import Lowering
from ansorlite.graph.cuts import merges, with_merges
from ansorlite.graph.ir import evaluate
from ansorlite.graph.kernels import compile_tasks
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import Partition
from ansorlite.shared_tasks import network_tasks
from ansorlite.space.sketch import SpaceOptions
from ansorlite.target import Target
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp

TURNS, TURN_S = 9, 0.2


class Heads(NamedTuple):
    """Attention over so many places, in heads of so many channels."""

    places: int
    heads: int
    channels: int


CASES = {
    "bert.128": Heads(128, 12, 64),
    "vit.197": Heads(197, 12, 64),
    "bert.512": Heads(512, 12, 64),
    "whisper.1500": Heads(1500, 6, 64),
}


def network(case: Heads) -> al.Graph:
    """Queries, keys and values [1, places, heads, channels] -> the same shape."""
    b = GraphBuilder("attention")
    q, k, v = (b.input(name, (1, case.places, case.heads, case.channels)) for name in "qkv")
    rows, columns = (0, 2, 1, 3), (0, 2, 3, 1)
    left, right = (b.emit("transpose", [x], perm=p) for x, p in ((q, rows), (k, columns)))
    scale = b.constant(np.array(case.channels**-0.5, np.float32))
    scores = b.emit("mul", [b.emit("matmul", [left, right]), scale])
    shares = b.emit("softmax", [scores], axes=(3,))
    y = b.emit("matmul", [shares, b.emit("transpose", [v], perm=rows)])
    return b.finish([b.emit("transpose", [y], perm=rows)])


def tuned(parts: Partition, target: Target, seconds: float, joined: bool) -> CompiledModule:
    """The network with the best kernels that so many seconds find for each."""
    weighted = network_tasks(parts, target)
    space = SpaceOptions(apart=False) if joined else None
    results = [al.tune(w.task, None, seconds, space=space, progress=False) for w in weighted]
    forms = [0] * len(results)
    return CompiledModule(parts, compile_tasks(parts, results, forms), forms)


HEAD = (
    f"{'attention':14} {'kernels':>8} {'ms':>8} {'one, ms':>8} {'times as fast':>13} {'error':>8}"
)


def table_line(row: Row) -> str:
    return (
        f"{row['attention']:14} {row['kernels']:8} {1e3 * row['apart_s']:8.3f} "
        f"{1e3 * row['one_s']:8.3f} {row['ratio']:13.2f} {row['error']:8.1e}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    return [", ".join(map(str, rows[-1]["machine"].values()))]


EXPERIMENT = Experiment[Row](
    RESULTS / "attention.jsonl",
    key=lambda r: r["attention"],
    line=table_line,
    head=HEAD,
    foot=closing,
    order=lambda r: list(CASES).index(r["attention"]),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--timeout", type=float, default=30.0)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    args = parser.parse_args()
    target = Target.detect()

    def once(name: str) -> Row:
        case = CASES[name]
        graph = network(case)
        apart = Lowering().partition(graph)
        whole = max(merges(apart), key=lambda m: len(m.replaces))
        one = tuned(with_merges(apart, [whole]), target, args.timeout, joined=True)
        several = tuned(apart, target, args.timeout, joined=False)
        rng = np.random.default_rng(0)
        inputs = [rng.standard_normal((1, *case), np.float32) for _ in range(3)]
        (want,) = evaluate(graph, inputs)
        error = max(float(np.abs(m(*inputs) - want).max()) for m in (one, several))
        turns = in_turn([lambda: one(*inputs), lambda: several(*inputs)], TURNS, TURN_S)
        return {
            "attention": name,
            "kernels": len(apart.subgraphs),
            "one_s": median(a for a, _ in turns),
            "apart_s": median(b for _, b in turns),
            "ratio": median(b / a for a, b in turns),
            "turns_s": turns,
            "error": error / float(np.abs(want).max()),
            "timeout": args.timeout,
            **stamp(target),
        }

    EXPERIMENT.run(args.only, once, again=True)
    EXPERIMENT.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
