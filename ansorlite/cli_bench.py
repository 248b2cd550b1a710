"""The command `ansorlite bench ops|networks`: tune, then time against peers in turn.

Functions from parsed arguments to an exit status; rows are printed and written as they come.
"""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ansorlite.cli.paths import folder, writable
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.streams import one_line, put, tell

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


def bench(args: argparse.Namespace) -> int:
    """Tune cases or networks and time them against peers."""
    peers = DEFAULT_PEERS[args.what] if args.peers is None else tuple(args.peers)
    foreign = [p for p in peers if p not in PEERS[args.what]]
    if foreign:
        raise UsageError(
            f"{foreign[0]} is no peer of {args.what}: choose {', '.join(PEERS[args.what])}"
        )
    if args.peer_python is not None and shutil.which(args.peer_python) is None:
        raise UsageError(f"--peer-python {args.peer_python} is no program that can be run")
    trials, timeout = BUDGETS[args.what]
    args.trials = trials if args.trials is None else args.trials
    args.timeout = timeout if args.timeout is None else args.timeout
    return (_ops if args.what == "ops" else _networks)(args, peers)


def _ops(args: argparse.Namespace, peers: tuple[str, ...]) -> int:
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
    output = _output(args, f"ops_b{args.batch}.jsonl", ops.read_rows)
    put(ops.head_text(options.peers))

    def each(row: ops.BenchRow) -> None:
        put(ops.row_text(row))
        ops.merge_rows(output, [row])

    missing: list[str] = []

    def failed(case: str, error: AnsorliteError) -> None:
        missing.append(case)
        tell(one_line(f"{case}: {error}"))

    rows = ops.bench_ops(cases, options, each, failed)
    if rows:
        put(ops.table(rows).splitlines()[-2])
    return FAILED if missing else OK


def _networks(args: argparse.Namespace, peers: tuple[str, ...]) -> int:
    from ansorlite.bench import networks

    names = networks.suite(args.only)
    options = networks.NetworkOptions(
        batch=args.batch, timeout=args.timeout, trials=args.trials, seed=args.seed, log=args.log
    )
    options = replace(options, peers=peers, peer_python=args.peer_python)
    output = _output(args, "networks.jsonl", networks.read_rows)
    put(networks.head_text(peers))
    missing = 0
    for name in names:
        try:
            row = networks.bench_network(name, options)
        except AnsorliteError as error:
            missing += 1
            tell(one_line(f"{name}: {error}"))
            continue
        put(networks.row_text(row))
        networks.merge_rows(output, row)
    return FAILED if missing else OK


def _output(args: argparse.Namespace, default: str, read: Callable[[Path], object]) -> Path:
    """The file of the rows, which holds nothing else; a table goes beside it as .txt."""
    path: Path = args.output or Path("results") / default
    if path.suffix == ".txt":
        raise UsageError(f"{path} is where the table goes: name the rows otherwise, such as .jsonl")
    if args.output is None:
        folder(path.parent)
    else:
        path = writable(path, args.log, args.peer_python)
    read(path)
    return path
