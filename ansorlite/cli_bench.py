"""The command `ansorlite bench ops|networks`: tune, then time against peers in turn.

Functions from parsed arguments to an exit status; rows are printed and written as they come.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ansorlite.errors import AnsorliteError

OK, FAILED = 0, 1
PEERS = {"ops": ("torch", "numpy"), "networks": ("onnxruntime", "torch")}
DEFAULT_PEERS = {"ops": ("torch",), "networks": ("onnxruntime", "torch")}
BUDGETS = {"ops": (200, 60.0), "networks": (None, 600.0)}  # trials, seconds
DEFAULT_BUDGETS = "default: 200 and 60 s a case, 600 s a network"


def bench_options(p: argparse.ArgumentParser, count: Callable[[str], int]) -> None:
    p.add_argument("--batch", type=count, metavar="N", default=1, help="default 1")
    p.add_argument(
        "--only",
        nargs="+",
        metavar="CASE",
        default=[],
        help="operators or cases such as C2D or C2D:2; networks such as resnet50",
    )
    every = dict.fromkeys(peer for peers in PEERS.values() for peer in peers)
    p.add_argument(
        "--peers",
        nargs="*",
        choices=tuple(every),
        help="default: torch for ops, onnxruntime and torch for networks; numpy has matrix products"
        " only",
    )
    p.add_argument("--peer-python", metavar="F", help="interpreter that has the peers")
    p.add_argument("--output", type=Path, metavar="F", help="default results/<what>.jsonl")


def bench(args: argparse.Namespace, writable: Callable[[Path], Path]) -> int:
    """Tune cases or networks and time them against peers."""
    peers = DEFAULT_PEERS[args.what] if args.peers is None else tuple(args.peers)
    foreign = [p for p in peers if p not in PEERS[args.what]]
    if foreign:
        raise AnsorliteError(
            f"{foreign[0]} is no peer of {args.what}: choose {', '.join(PEERS[args.what])}"
        )
    trials, timeout = BUDGETS[args.what]
    args.trials = trials if args.trials is None else args.trials
    args.timeout = timeout if args.timeout is None else args.timeout
    return (_ops if args.what == "ops" else _networks)(args, peers, writable)


def _ops(args: argparse.Namespace, peers: tuple[str, ...], writable: Callable[[Path], Path]) -> int:
    from ansorlite.bench import ops

    cases = ops.suite(args.only)
    options = ops.BenchOptions(
        args.batch,
        args.trials,
        args.timeout,
        peers,
        seed=args.seed,
        log=args.log,
        peer_python=args.peer_python,
    )
    output = writable(args.output or Path("results") / f"ops_b{args.batch}.jsonl")
    print(ops.head_text(options.peers), flush=True)

    def each(row: ops.BenchRow) -> None:
        print(ops.row_text(row), flush=True)
        ops.merge_rows(output, [row])

    missing: list[str] = []

    def failed(case: str, error: AnsorliteError) -> None:
        missing.append(case)
        print(f"{case}: {error}", file=sys.stderr)

    rows = ops.bench_ops(cases, options, each, failed)
    if rows:
        print(ops.table(rows).splitlines()[-2])
    return FAILED if missing else OK


def _networks(
    args: argparse.Namespace, peers: tuple[str, ...], writable: Callable[[Path], Path]
) -> int:
    from ansorlite.bench import networks

    names = networks.suite(args.only)
    options = networks.NetworkOptions(
        batch=args.batch, timeout=args.timeout, trials=args.trials, seed=args.seed, log=args.log
    )
    options = replace(options, peers=peers, peer_python=args.peer_python)
    output = writable(args.output or Path("results") / "networks.jsonl")
    print(networks.head_text(peers), flush=True)
    missing = 0
    for name in names:
        try:
            row = networks.bench_network(name, options)
        except AnsorliteError as error:
            missing += 1
            print(f"{name}: {error}", file=sys.stderr)
            continue
        print(networks.row_text(row), flush=True)
        networks.merge_rows(output, row)
    return FAILED if missing else OK
