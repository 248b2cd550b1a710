"""One network in many hands: forked processes, threads, processes that load one log at once.

Claim: 4 processes forked after a first call, 8 threads on one module, and 4 processes that compile
from one log at a time make 1,000 calls each, all right. Writes results/shared_use.jsonl.
Usage: python scripts/shared_use.py [--calls 1000]
"""

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import ansorlite as al
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from bench.experiment import RESULTS, Experiment, Row

W = np.random.default_rng(0).standard_normal((96, 128)).astype(np.float32)


def graph() -> Graph:
    b = GraphBuilder("shared")
    product = b.emit("matmul", [b.input("x", (64, 96)), b.constant(W)])
    return b.finish([b.emit("softmax", [b.emit("relu", [product])], axes=(1,))])


def wrong_calls(net: al.CompiledModule, calls: int, seed: int) -> int:
    """How many of the calls gave wrong numbers; inputs differ from call to call."""
    rng, wrong = np.random.default_rng(seed), 0
    for _ in range(calls):
        x = rng.standard_normal((64, 96)).astype(np.float32)
        e = np.maximum(x @ W, 0).astype(np.float64)
        e = np.exp(e - e.max(1, keepdims=True))
        wrong += not np.allclose(net(x), e / e.sum(1, keepdims=True), 1e-3, 1e-6)
    return wrong


def forked(net: al.CompiledModule, calls: int) -> list[int]:
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.SimpleQueue[int] = multiprocessing.SimpleQueue()
    children = [
        context.Process(target=lambda k=k: answers.put(wrong_calls(net, calls, k)))
        for k in range(4)
    ]
    for c in children:
        c.start()
    for c in children:
        c.join(120)
        c.kill()
    return [calls if answers.empty() else answers.get() for _ in children]


def threads(net: al.CompiledModule, calls: int) -> list[int]:
    found: list[int] = []
    callers = [
        threading.Thread(target=lambda k=k: found.append(wrong_calls(net, calls, k)))
        for k in range(8)
    ]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    return found


def loaders(log: str, calls: int) -> list[int]:
    command = [sys.executable, __file__, "--load", log, "--calls", str(calls)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    return [int(p.communicate()[0].strip() or calls) for p in running]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--load", help="compile from this log, and print the number of wrong calls")
    args = parser.parse_args()
    if args.load:
        net = al.auto_schedule(graph(), n_trials=0, log=args.load, progress=False)
        print(wrong_calls(net, args.calls, 0))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log.jsonl"
        net = al.auto_schedule(graph(), n_trials=16, log=log, progress=False)
        wrong_calls(net, 1, 0)
        row = {
            "calls": args.calls,
            "wrong_forked": forked(net, args.calls),
            "wrong_threads": threads(net, args.calls),
            "wrong_loaders": loaders(log, args.calls),
            "date": time.strftime("%Y-%m-%d"),
        }
    Experiment[Row](RESULTS / "shared_use.jsonl", key=lambda r: r["calls"], line=str).add(row)
    return int(any(sum(v) for k, v in row.items() if k.startswith("wrong")))


if __name__ == "__main__":
    sys.exit(main())
