"""Random ONNX graphs with extreme values, against onnxruntime and ONNX's reference (an hour).

Claim: of 2,000 graphs with NaN, infinities, extremes and integers of all widths among their inputs,
and values of no and of one element, none is wrong and none crashes: with the plain schedule, with
n_trials=0, and every tenth with 8 trials. Graphs run in child processes, so a crash costs one graph
and is counted. Prints a table and, for each failure, how to repeat it.
Usage: python scripts/random_graphs.py [--count 2000] [--seed 0] [--ways plain untuned tuned]
       [--json FILE] [--only SEED [--show]]
"""

import argparse
import json
import subprocess
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from random_layers import random_net
from random_onnx import Array, Net, near

WAYS = ("plain", "untuned", "tuned")
TUNED_EVERY, TRIALS = 10, 8
PORTION = 50  # graphs a process
LIMIT_S = 600  # of a process; onnxruntime hangs on a few graphs, too


def outcome(net: Net, way: str) -> tuple[str, str]:
    """("right" | "refused" | "wrong" | "crashed", why) of the graph, compiled in that way."""
    import ansorlite as al
    from ansorlite.pipeline import auto_schedule, compile_plain

    try:
        graph = al.load_onnx(net.model)
        if way == "plain":
            module: Any = compile_plain(graph)
        else:
            trials = TRIALS if way == "tuned" else 0
            module = auto_schedule(graph, n_trials=trials, progress=False)
        out = module(**net.feeds) if net.feeds else module()
    except al.AnsorliteError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return "crashed", f"{type(error).__name__}: {error} ({at.filename}:{at.lineno})"
    results = out if isinstance(out, tuple) else (out,)
    for got, wanted, error in zip(results, net.wanted, net.errors, strict=True):
        if not any(near(got, w, error) for w in wanted):
            return "wrong", difference(net, got, wanted[0], error)
    return "right", ""


def difference(net: Net, got: Array, want: Array, error: Array | None) -> str:
    """Where the arrays differ most, and which operators were at work."""
    operators = " ".join(n.op_type for n in net.model.graph.node)
    if got.shape != want.shape or got.dtype != want.dtype:
        kinds = f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        return f"{operators}: {kinds}"
    with np.errstate(all="ignore"):
        apart = np.abs(got.astype(np.float64) - want) - (0 if error is None else error)
        equal = (got == want) | ((got != got) & (want != want))
    apart = np.where(equal, -1.0, np.nan_to_num(apart, nan=np.inf))
    places = [np.unravel_index(k, want.shape) for k in np.argsort(-apart, axis=None)[:4]]
    shown = ", ".join(f"{[int(v) for v in at]}: {got[at]} not {want[at]}" for at in places)
    return f"{operators}: {shown}"


def run_here(seeds: Sequence[int], ways: Sequence[str]) -> None:
    """Run these graphs and print a JSON line before and after each."""
    warnings.simplefilter("ignore")
    for seed in seeds:
        net = random_net(seed)
        for way in ways:
            if way == "tuned" and seed % TUNED_EVERY:
                continue
            print(json.dumps([seed, way, "crashed", "the process ended"]), flush=True)
            print(json.dumps([seed, way, *outcome(net, way)]), flush=True)


def run_apart(seeds: Sequence[int], ways: Sequence[str]) -> Iterator[tuple[int, str, str, str]]:
    """(seed, way, outcome, why) of all graphs; a child that ends early is followed by another."""
    left = list(seeds)
    while left:
        portion, done = left[:PORTION], dict[tuple[int, str], tuple[str, str]]()
        command = [sys.executable, __file__, "--child", "--ways", *ways]
        command += ["--seeds", *map(str, portion)]
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            text, ended = ran.stdout, ran.returncode
        except subprocess.TimeoutExpired as error:
            raw = error.stdout or b""
            text, ended = raw.decode() if isinstance(raw, bytes) else raw, -1
            if not text.count("right"):  # a peer hangs where the first graph is made
                left = left[1:]
                continue
        last = portion[0]
        for line in text.splitlines():
            if line.startswith("["):
                last, way, what, why = json.loads(line)
                done[last, way] = what, why
        if ended and not done:
            raise SystemExit(f"the child process did not start:\n{ran.stderr}")
        left = [s for s in left if s > last] if ended else left[len(portion) :]
        for (seed, way), (what, why) in done.items():
            yield seed, way, what, why


def reason(why: str) -> str:
    """What is refused, without the names of nodes and values."""
    return why.splitlines()[-1][:100] if why else ""


def report(counts: Counter[tuple[str, str]], ways: Sequence[str]) -> str:
    kinds = ("right", "refused", "wrong", "crashed")
    rows = [f"{'way':10}" + "".join(f"{k:>9}" for k in kinds)]
    for way in ways:
        rows.append(f"{way:10}" + "".join(f"{counts[way, k]:9}" for k in kinds))
    return "\n".join(rows)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--count", type=int, default=2000)
    p.add_argument("--seed", type=int, default=0, help="of the first graph")
    p.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    p.add_argument("--json", type=Path, help="append one line with the counts")
    p.add_argument("--only", type=int, metavar="SEED", help="run this graph here and print it")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--seeds", type=int, nargs="+", default=(), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.child:
        return run_here(args.seeds, args.ways)
    if args.only is not None:
        net = random_net(args.only)
        print(onnx.printer.to_text(net.model))
        for name, x in net.feeds.items():
            print(f"{name} = {np.array_repr(x)}")
        for way in args.ways:
            print(way, *outcome(net, way))
        return None
    counts: Counter[tuple[str, str]] = Counter()
    refused: dict[str, list[int]] = {}
    for seed, way, what, why in run_apart(range(args.seed, args.seed + args.count), args.ways):
        counts[way, what] += 1
        if what == "refused":
            refused.setdefault(reason(why), []).append(seed)
        elif what != "right":
            print(f"{what}: python scripts/random_graphs.py --only {seed} --ways {way}\n{why}\n")
    print(report(counts, args.ways))
    for why, seeds in sorted(refused.items(), key=lambda item: -len(item[1])):
        print(f"refused {len(seeds):5}, such as {seeds[0]}: {why}")
    if args.json:
        row = {"count": args.count, "seed": args.seed}
        row |= {f"{way} {what}": n for (way, what), n in sorted(counts.items())}
        with args.json.open("a") as file:
            file.write(json.dumps(row) + "\n")
    bad = sum(n for (_, what), n in counts.items() if what in ("wrong", "crashed"))
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
