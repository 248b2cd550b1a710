"""What a caller gets of what a tuning run reports: kernels called with plain numpy arrays.

Claim: called with arrays as numpy makes them (aligned to 16 bytes), with and without `out=`, a
kernel takes at most 1.1 times its reported latency plus 5 us; a module of one Relu of 16 elements
at most 8 us a call. Reported and called latencies are of the same program, the lowest of some turns
each, timed in turn. Writes results/call_overhead.jsonl and the table beside it.
Usage: python scripts/call_overhead.py [--cases GMM:2 NRM:2 ...] [--trials 64] [--timeout 30]
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ansorlite as al
from ansorlite.calls import aligned_copy
from ansorlite.graph.build import GraphBuilder
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status

CASES = ("GMM:2", "NRM:2", "DEP:2", "TBG:2", "C2D:2")
MODULE = "a module of Relu"
TURNS, TURN_S = 15, 0.1
FACTOR, MORE_S, MODULE_S = 1.1, 5e-6, 8e-6


def lowest(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of a call of each: the lowest median of turns, which they take in turn."""
    turns = in_turn(list(calls.values()), TURNS, TURN_S)
    return dict(zip(calls, map(min, zip(*turns, strict=True)), strict=True))


def plain(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An array as numpy makes it, 16 bytes behind a line of the cache: the usual case."""
    rng = np.random.default_rng(0)
    while True:
        x = np.empty(shape, dtype)
        x[...] = rng.standard_normal(shape)
        if x.ctypes.data % 64 == 16:
            return x
        _KEPT.append(x)


_KEPT: list[np.ndarray] = []


def kernel_row(case: str, trials: int, timeout: float) -> Row:
    name, _, index = case.partition(":")
    task = al.workload(name, int(index), batch=1)
    result = al.tune(task, n_trials=trials, timeout=timeout, progress=False)
    kernel = result.kernel
    arrays = [plain(p.shape, p.dtype) for p in kernel.inputs]
    out = plain(kernel.outputs[0].shape, kernel.outputs[0].dtype)
    aligned, to = [aligned_copy(x) for x in arrays], aligned_copy(out)
    found = lowest(
        {
            "aligned, prepared": kernel.prepare(*aligned, out=to),
            "plain": lambda: kernel(*arrays),
            "plain, out": lambda: kernel(*arrays, out=out),
        }
    )
    limit_s = FACTOR * result.best.latency_s + MORE_S
    kept = {"reported_s": result.best.latency_s, "limit_s": limit_s, "called_s": found}
    return {"case": case, **kept, "date": time.strftime("%Y-%m-%d")}


def module_row() -> Row:
    b = GraphBuilder("relu")
    net = b.finish([b.emit("relu", [b.input("x", (16,))])])
    module, x = al.auto_schedule(net, n_trials=0, progress=False), plain((16,), "float32")
    found = lowest({"plain": lambda: module(x)})
    date = time.strftime("%Y-%m-%d")
    return {"case": MODULE, "limit_s": MODULE_S, "called_s": found, "date": date}


def table_line(row: Row) -> str:
    called = ", ".join(f"{name} {1e6 * s:.1f}" for name, s in row["called_s"].items())
    reported = f"reported {1e6 * row['reported_s']:.1f}, " if "reported_s" in row else ""
    worst = max(s for name, s in row["called_s"].items() if name.startswith("plain"))
    kept = "kept" if worst <= row["limit_s"] else "missed"
    return f"{row['case']}: {reported}{called} us; {kept}: {1e6 * row['limit_s']:.1f} us"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=30)
    args = parser.parse_args()

    def once(case: str) -> Row:
        return module_row() if case == MODULE else kernel_row(case, args.trials, args.timeout)

    path = RESULTS / "call_overhead.jsonl"
    experiment = Experiment[Row](path, key=lambda r: r["case"], line=table_line)
    experiment.run([MODULE, *args.cases], once, again=True)
    experiment.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
