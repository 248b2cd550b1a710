"""Matrix products and convolutions as shares of the FMA limit (about eight minutes).

Claim: matrix products of 512 and 1024 reach 84 % of what the cores do with multiply-adds in
registers, and 90 % with a constant operand; convolutions at 14x14x256 80 % and at 7x7x512 65 %. The
kernel, the multiply-adds and the best register tile, on operands in the first cache, are timed in
turn in one process, since a shared machine is not always equally fast; shares are medians over the
turns. The tile's share says what the machine leaves to a kernel that loads what it multiplies.
With --avx2 the programs, and the limit, are of 16 registers of 32 bytes: what the search makes of
the smaller register file, on a machine that has more. With --bf16 data and weights are of bfloat16,
and the limit is that of sums of pairs in registers (80 %). Writes results/share_of_peak.jsonl (or
share_of_peak_avx2.jsonl, share_of_peak_bf16.jsonl), a table.
Usage: python scripts/share_of_peak.py [--trials 200] [--timeout 60] [--only GMM:2 ...]
       [--avx2 | --bf16]
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import median

import ansorlite as al
from ansorlite import te
from ansorlite.codegen.dot import widest
from ansorlite.errors import UsageError
from ansorlite.graph.ops.low_precision import BF16
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.measure.calibrate import tile_run
from ansorlite.measure.inputs import random_inputs
from ansorlite.measure.peak import RUN_S, dot_run, fma_run, measure_peak
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads.ops import find, parse_case
from bench.contest import in_turn
from bench.experiment import RESULTS, Experiment, Row, exit_status, stamp
from bench.peers.ours import kernel_call

# Case, with constant weights, claimed share
CLAIMS = (
    ("GMM:2", False, 0.84),
    ("GMM:2", True, 0.90),
    ("GMM:3", False, 0.84),
    ("GMM:3", True, 0.90),
    ("C2D:2", True, 0.80),
    ("C2D:3", True, 0.65),
)
BF16_CLAIMS = (("GMM:3", True, 0.80), ("C2D:2", True, 0.80))
TURNS, TURN_S = 21, 0.15
HEAD = f"{'case':6} {'weights':>8} {'GFLOP/s':>8} {'FMA now':>8} {'share':>6} claimed  tile of tile"


def table_line(row: Row) -> str:
    weights = "constant" if row["constant"] else "given"
    return (
        f"{row['case']:6} {weights:>8} {row['gflops']:8.1f} {row['fma_gflops']:8.1f} "
        f"{row['share']:6.0%} {row['claimed']:7.0%} {row['tile_share']:5.0%} "
        f"{row['share_of_tile']:7.0%}"
    )


def bf16_task(case: str, target: Target) -> SearchTask:
    """A product or convolution of the suite on numbers that are stored as bfloat16."""
    name, index = parse_case(case)
    p, attrs = find(name).case(index, 1), {}
    if name == "GMM":
        data, weight, op = (p["N"], p["K"]), (p["K"] // 2, p["M"]), "matmul_bf16"
    else:
        data, op = (p["N"], p["H"], p["W"], p["CI"]), "conv_bf16"
        weight = (p["k"], p["k"], p["CI"] // 2, p["CO"])
        twice = {n: (p[n], p[n]) for n in "sp"}
        attrs = {"strides": twice["s"], "pads": (twice["p"],) * 2, "dilations": (1, 1), "border": 0}
        attrs["layout"] = "channels_last"
    x = te.placeholder(data, BF16.stored, "data")
    w = te.placeholder(weight, "int32", "weight", constant=True)
    made = OPERATORS[op].tensor
    assert made is not None
    return SearchTask(te.ComputeDAG([made(attrs, (x, w))]), target, f"{case} bf16")


def closing(rows: Sequence[Row]) -> list[str]:
    return [", ".join(map(str, r["machine"].values())) for r in rows[-1:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--timeout", type=float, default=60.0)
    parser.add_argument("--only", nargs="+", default=[])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--avx2", action="store_true", help="x86-64 only")
    which.add_argument("--bf16", action="store_true", help="where the CPU has an instruction")
    args = parser.parse_args()
    target = Target.host_as("x86-avx2") if args.avx2 else Target.detect()
    peak = measure_peak(target)
    limits = [fma_run(target, target.cores), tile_run(target, RUN_S)]
    if args.bf16:
        if widest(target, "dot_bf16") is None:
            raise UsageError(f"{target.cpu} has no instruction for sums of products of bfloat16")
        limits[0] = dot_run(target, "dot_bf16", target.cores)
    claims = BF16_CLAIMS if args.bf16 else CLAIMS
    claimed = {(case, constant): share for case, constant, share in claims}

    def once(key: tuple[str, bool]) -> Row:
        if args.bf16:
            task = bf16_task(key[0], target)
        else:
            task = al.workload(key[0], constant_weights=key[1], target=target)
        found = al.tune(task, n_trials=args.trials, timeout=args.timeout, progress=False)
        values = random_inputs(task.dag, 0) if args.bf16 else None
        calls = [(kernel_call(found.kernel, values), task.flop), *limits]
        seconds = in_turn([call for call, _ in calls], TURNS, TURN_S)
        turns = [[flop / s for (_, flop), s in zip(calls, t, strict=True)] for t in seconds]
        ours, now, _ = (median(column) for column in zip(*turns, strict=True))
        return {
            "case": key[0],
            "constant": key[1],
            "gflops": ours / 1e9,
            "fma_gflops": now / 1e9,
            "share": median(a / b for a, b, _ in turns),
            "tile_share": median(c / b for _, b, c in turns),
            "share_of_tile": median(a / c for a, _, c in turns),
            "claimed": claimed[key],
            "turns_flops": turns,
            "trials": found.trials,
            "tuning_s": found.wall_s,
            **stamp(target, peak),
        }

    order = list(claimed)
    experiment = Experiment[Row](
        RESULTS / f"share_of_peak{'_avx2' * args.avx2}{'_bf16' * args.bf16}.jsonl",
        key=lambda r: (r["case"], r["constant"]),
        line=table_line,
        head=HEAD,
        foot=closing,
        order=lambda r: order.index((r["case"], r["constant"])),
    )
    experiment.run([k for k in order if not args.only or k[0] in args.only], once, again=True)
    experiment.finish()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
