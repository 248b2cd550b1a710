"""Odd extents against the next power of two: matrix products and convolutions (about 20 minutes).

Claim: with an extent of 7, 13, 97, 100, 127 or 1000 in any axis, a kernel reaches at least 0.9 of
the GFLOP/s of the same kernel with the next power of two there, times the share of useful lanes
(n over the next multiple of a vector, on the axis that is stored contiguously; 1 elsewhere). Both
are tuned with the same budget and timed in turn. Writes results/odd_extents.jsonl and the table.
Usage: python scripts/odd_extents.py [--trials 64] [--timeout 20] [--only matmul.n ...]
       [--extents 7 13 ...]
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import cache
from statistics import median
from typing import Any

import ansorlite as al
from ansorlite import te
from ansorlite.graph.ops.conv import conv2d_nhwc
from ansorlite.graph.ops.matmul import dense
from ansorlite.target import Target
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp
from bench.peers.ours import kernel_call

EXTENTS = (7, 13, 97, 100, 127, 1000)
TURNS, TURN_S = 7, 0.15


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
    return kernel_call(al.tune(task, n_trials=trials, timeout=timeout, progress=False).kernel)


HEAD = f"{'axis':10} {'extent':>6} {'GFLOP/s':>8} {'next':>5} {'GFLOP/s':>8} {'lanes':>6} ratio"


def table_line(row: Row) -> str:
    return (
        f"{row['axis']:10} {row['extent']:6} {row['gflops']:8.1f} {row['power_of_two']:5} "
        f"{row['power_gflops']:8.1f} {row['useful_lanes']:6.0%} {row['ratio']:5.2f}"
    )


def closing(rows: Sequence[Row]) -> list[str]:
    low = min((r["ratio"] for r in rows), default=float("nan"))
    return [", ".join([f"lowest ratio: {low:.2f}", *map(str, rows[-1]["machine"].values())])]


EXPERIMENT = Experiment[Row](
    RESULTS / "odd_extents.jsonl",
    key=lambda r: (r["axis"], r["extent"]),
    line=table_line,
    head=HEAD,
    foot=closing,
    order=lambda r: (list(AXES).index(r["axis"]), r["extent"]),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--timeout", type=float, default=20.0)
    parser.add_argument("--only", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--extents", nargs="+", type=int, default=list(EXTENTS))
    args = parser.parse_args()
    target = Target.detect()
    lanes = target.lanes("float32")

    @cache
    def kernel(axis: str, extent: int) -> tuple[al.SearchTask, Callable[[], Any]]:
        make, _ = AXES[axis]
        task = al.SearchTask(make(extent), target)
        return task, tuned(task, args.trials, args.timeout)

    def once(key: tuple[str, int]) -> Row:
        axis, n = key
        (even, even_call), (odd, odd_call) = kernel(axis, next_power(n)), kernel(axis, n)
        turns = in_turn([odd_call, even_call], TURNS, TURN_S)
        useful = n / (-(-n // lanes) * lanes) if AXES[axis][1] else 1.0
        return {
            "axis": axis,
            "extent": n,
            "gflops": odd.flop / median(t for t, _ in turns) / 1e9,
            "power_of_two": next_power(n),
            "power_gflops": even.flop / median(t for _, t in turns) / 1e9,
            "useful_lanes": useful,
            "ratio": median((odd.flop / a) / (even.flop / b) for a, b in turns) / useful,
            "turns_s": turns,
            "trials": args.trials,
            **stamp(target),
        }

    EXPERIMENT.run([(a, n) for a in args.only for n in args.extents], once, again=True)
    EXPERIMENT.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
