"""Odd extents against the next power of two: matrix products and convolutions (about 20 minutes).

Claim: with an extent of 7, 13, 97, 100, 127 or 1000 in any axis, a kernel reaches at least 0.9 of
the GFLOP/s of the same kernel with the next power of two there, times the share of useful lanes
(n over the next multiple of a vector, on the axis that is stored contiguously; 1 elsewhere). Both
are tuned with the same budget and timed in turn. Writes results/odd_extents.jsonl and the table.
Usage: python scripts/odd_extents.py [--trials 64] [--timeout 20] [--only matmul.n ...]
       [--extents 7 13 ...]
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import ansorlite as al
from ansorlite import te
from ansorlite.bench.ops import machine, write_results
from ansorlite.bench.ours import prepared
from ansorlite.bench.serve import timed
from ansorlite.graph.ops.conv import conv2d_nhwc
from ansorlite.graph.ops.matmul import dense
from ansorlite.measure.peak import measure_peak
from ansorlite.target import Target

EXTENTS = (7, 13, 97, 100, 127, 1000)
TURNS, TURN_S = 7, 0.15
OUTPUT = Path(__file__).parents[1] / "results" / "odd_extents.jsonl"


def matmul(m: int, n: int, k: int) -> te.Tensor:
    return dense(te.placeholder((m, k), name="A"), te.placeholder((k, n), name="B"))


def conv(w: int, ci: int, co: int) -> te.Tensor:
    """3x3 over 14 rows of w pixels."""
    x = te.placeholder((1, 14, w, ci), name="X")
    weight = te.placeholder((3, 3, ci, co), name="W", constant=True)
    return conv2d_nhwc(x, weight, padding=1)


# Axis -> (computation with that extent, is the axis the vector's?)
AXES: dict[str, tuple[Callable[[int], te.Tensor], bool]] = {
    "matmul.m": (lambda e: matmul(e, 512, 512), False),
    "matmul.n": (lambda e: matmul(512, e, 512), True),
    "matmul.k": (lambda e: matmul(512, 512, e), False),
    "conv.w": (lambda e: conv(e, 64, 64), False),
    "conv.ci": (lambda e: conv(28, e, 64), False),
    "conv.co": (lambda e: conv(28, 64, e), True),
}


def next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def tuned(task: al.SearchTask, trials: int, timeout: float) -> Callable[[], Any]:
    """A call of the best program found, constants bound."""
    result = al.tune(task, n_trials=trials, timeout=timeout, progress=False)
    return prepared(result.kernel)


HEAD = f"{'axis':10} {'extent':>6} {'GFLOP/s':>8} {'next':>5} {'GFLOP/s':>8} {'lanes':>6} ratio"


def table_line(row: dict[str, Any]) -> str:
    return (
        f"{row['axis']:10} {row['extent']:6} {row['gflops']:8.1f} {row['power_of_two']:5} "
        f"{row['power_gflops']:8.1f} {row['useful_lanes']:6.0%} {row['ratio']:5.2f}"
    )


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of this run in place of those of the same axis and extent in the file."""
    old = [json.loads(r) for r in OUTPUT.read_text().splitlines()] if OUTPUT.exists() else []
    found = {(r["axis"], r["extent"]): r for r in (*old, *rows)}
    order = list(AXES)
    return [found[key] for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--extents", nargs="+", type=int, default=list(EXTENTS))
    args = parser.parse_args()
    target = Target.detect()
    peak = measure_peak(target)
    lanes = target.lanes("float32")
    print(HEAD, flush=True)
    rows = []
    for axis in args.only:
        make, is_vector = AXES[axis]
        powers: dict[int, tuple[al.SearchTask, Callable[[], Any]]] = {}
        for n in args.extents:
            p = next_power(n)
            if p not in powers:
                task = al.SearchTask(make(p), target)
                powers[p] = task, tuned(task, args.trials, args.timeout)
            task = al.SearchTask(make(n), target)
            call = tuned(task, args.trials, args.timeout)
            other, even = powers[p]
            turns = [(timed(call, TURN_S)[0], timed(even, TURN_S)[0]) for _ in range(TURNS)]
            useful = n / (-(-n // lanes) * lanes) if is_vector else 1.0
            speeds = (
                task.flop / median(t for t, _ in turns),
                other.flop / median(t for _, t in turns),
            )
            ratio = median((task.flop / a) / (other.flop / b) for a, b in turns) / useful
            rows.append(
                {
                    "axis": axis,
                    "extent": n,
                    "gflops": speeds[0] / 1e9,
                    "power_of_two": p,
                    "power_gflops": speeds[1] / 1e9,
                    "useful_lanes": useful,
                    "ratio": ratio,
                    "turns_s": turns,
                    "trials": args.trials,
                    "machine": machine(target, peak),
                    "date": time.strftime("%Y-%m-%d"),
                }
            )
            print(table_line(rows[-1]), flush=True)
    rows = merged(rows)
    low = min(r["ratio"] for r in rows)
    lines = [HEAD, *map(table_line, rows)]
    lines.append(f"lowest ratio: {low:.2f}; " + ", ".join(map(str, machine(target, peak).values())))
    print(lines[-1])
    write_results(OUTPUT, rows, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
