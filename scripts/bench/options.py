"""The options of the scripts that compare with peers: budgets, peers, the file of the rows.

In: an `ArgumentParser`. Out: parsed arguments that were checked before hours of work: names of
peers, the interpreter, the path of the rows.
"""

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansorlite.cli.options import count, positive, seconds
from ansorlite.cli.paths import writable
from ansorlite.errors import UsageError
from bench.peers import install, peers_of


@dataclass(frozen=True)
class BenchOptions:
    """Budgets of one case or network, and how it is timed: `turns` of every contender."""

    batch: int = 1
    trials: int | None = 200
    timeout: float | None = 60.0
    peers: tuple[str, ...] = ()
    turns: int = 7
    seed: int = 0
    log: Path | None = None  # continued where it exists; a temporary one by default
    peer_python: str | None = None


def peer_options(
    p: argparse.ArgumentParser,
    kind: str,
    chosen: Sequence[str],
    trials: int | None,
    timeout: float,
    output: Path | None = None,
) -> None:
    """Add the options; `kind` is "operators" or "networks", `chosen` the default peers."""
    p.add_argument("--batch", type=positive, metavar="N", default=1, help="default 1")
    p.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help=f"these {kind} instead of all"
    )
    p.add_argument(
        "--peers",
        nargs="*",
        choices=peers_of(kind),
        default=list(chosen),
        help=f"default {' '.join(chosen)}",
    )
    p.add_argument("--peer-python", metavar="F", help="interpreter that has the peers")
    p.add_argument(
        "--trials",
        type=count,
        metavar="N",
        default=trials,
        help=f"of each ({trials or 'no limit'})",
    )
    p.add_argument(
        "--timeout", type=seconds, metavar="S", default=timeout, help=f"of each ({timeout:g})"
    )
    p.add_argument("--log", type=Path, metavar="F", help="tuning log, continued where it exists")
    p.add_argument("--seed", type=count, metavar="K", default=0, help="default 0")
    p.add_argument(
        "--output", type=Path, metavar="F", default=output, help="JSON lines (results/...)"
    )


def checked(args: argparse.Namespace, default: Path) -> tuple[Path, BenchOptions]:
    """(file of the rows, options); peers that are missing are installed. Raises UsageError."""
    path: Path = args.output or default
    if path.suffix == ".txt":
        raise UsageError(f"{path} is where the table goes: name the rows otherwise, such as .jsonl")
    path = writable(path, args.log, args.peer_python)
    if args.peer_python is None:
        install(args.peers)
    elif shutil.which(args.peer_python) is None:
        raise UsageError(f"--peer-python {args.peer_python} is no program that can be run")
    return path, BenchOptions(
        args.batch,
        args.trials,
        args.timeout,
        tuple(args.peers),
        seed=args.seed,
        log=args.log,
        peer_python=args.peer_python,
    )
