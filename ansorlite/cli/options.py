"""What the commands share: the entry of a command, kinds of arguments, options of several commands.

In: an `ArgumentParser` of a command, or the text of an argument. Out: options added to the parser,
or a value. A text that makes no sense is an ArgumentTypeError, which argparse tells with the name
of the option. Paths are checked when the command begins, see `cli.paths`.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ansorlite.streams import one_line, put, tell

MOST = 2**63 - 1  # of a number on the command line
MOST_S = 1e9  # three decades


@dataclass(frozen=True)
class Command:
    """A subcommand: what it runs, what it adds to its parser, what `--help` says.

    `run` returns the exit status. `examples` are whole command lines with their meaning.
    """

    name: str
    run: Callable[[argparse.Namespace], int]
    options: Callable[[argparse.ArgumentParser], None]
    summary: str
    examples: tuple[tuple[str, str], ...]

    @property
    def epilog(self) -> str:
        """The examples as `--help` prints them."""
        lines = [f"  # {meaning}\n  {line}" for line, meaning in self.examples]
        return "\n".join(["examples:", *lines])


class Parser(argparse.ArgumentParser):
    """Prints a usage error on one line."""

    def error(self, message: str) -> NoReturn:
        tell(one_line(f"usage: {self.prog} [options], see {self.prog} --help; error: {message}"))
        sys.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:  # of --help and --version
            put(message, end="")
        else:
            tell(message.rstrip("\n"))


# ---- arguments ----------------------------------------------------------------------------------


def count(text: str) -> int:
    """A whole number >= 0."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """A whole number >= 1."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) < least:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number >= {least}")
    if len(text.lstrip("0")) > 19 or int(text) > MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is too large: at most {MOST}")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds > 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds > 0")
    if value > MOST_S:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is too long: at most {MOST_S:g} s")
    return value


Listed = tuple[str, list[int]]


def dim(text: str) -> Listed:
    """`NAME=N` or `NAME=N,N` as ("NAME", [N, ...])."""
    return _named(text, positive, "NAME=N, for example N=1, data.2=224 or w=320,640")


def shape(text: str) -> Listed:
    """`NAME=N,N,...` as ("NAME", [N, ...])."""
    return _named(text, count, "NAME=N,N,..., for example x=1,3,48,192")


def _named(text: str, number: Callable[[str], int], example: str) -> Listed:
    name, _, numbers = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not {example}")
    return name, [number(part) for part in numbers.split(",")]


def error_size(text: str) -> float:
    """A number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 1e-3")
    return value


def precision_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--precision",
        choices=("float32", "bf16", "auto"),
        default="float32",
        help="of products and convolutions (float32); auto: whichever is faster within --max-error",
    )
    p.add_argument(
        "--max-error",
        type=error_size,
        metavar="E",
        help="of --precision auto (0.01) and --calibration, in units of the largest output",
    )


def search_options(p: argparse.ArgumentParser, trials: int | None, what: str = "") -> None:
    what = what or (
        "64 a subgraph where no budget is given" if trials is None else f"default {trials}"
    )
    p.add_argument(
        "--trials", type=count, metavar="N", default=trials, help=f"programs to measure ({what})"
    )
    p.add_argument("--timeout", type=seconds, metavar="S", help="wall-clock seconds for everything")
    p.add_argument("--log", type=Path, metavar="F", help="tuning log, continued where it exists")
    p.add_argument("--seed", type=count, metavar="K", default=0, help="default 0")
    p.add_argument(
        "--no-knowledge",
        action="store_true",
        help="begin without what earlier runs found; keep nothing",
    )
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")


def target_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--target",
        metavar="NAME[:CORES]",
        help="another machine, such as cortex-a76 or neoverse-n1:16: nothing is measured, programs"
        " are built and ranked by estimates; with --on, the pool's devices of that name",
    )


def on_options(p: argparse.ArgumentParser) -> None:
    """`--on` and what goes with it; see `cli.pool.runner_of`."""
    p.add_argument("--on", metavar="HOST:PORT", help="measure on the devices of that pool")
    p.add_argument("--devices", type=positive, metavar="N", help="use at most N devices (all)")
    p.add_argument("--cert-dir", type=Path, metavar="D", help="certificates of the pool")


def size_options(p: argparse.ArgumentParser) -> None:
    """`--dim` and `--shape`; see `sizes_of`."""
    p.add_argument(
        "--dim",
        type=dim,
        metavar="NAME=N,...",
        action="append",
        default=[],
        help="extent of a free axis of an ONNX file, by name or place (data.2=224); several extents"
        " make one module of several sizes",
    )
    p.add_argument(
        "--shape",
        type=shape,
        metavar="NAME=N,N,...",
        action="append",
        default=[],
        help="whole shape of an input of an ONNX file; again for the same input: one more size",
    )


def case_options(p: argparse.ArgumentParser) -> None:
    what_option(p, "CASE", "a case of the operator suite, such as C2D:2")


def what_option(p: argparse.ArgumentParser, metavar: str, meaning: str) -> None:
    p.add_argument("case", metavar=metavar, help=meaning)
    batch_option(p, "free first extents (default: 1, or as in the file)")


def batch_option(p: argparse.ArgumentParser, meaning: str) -> None:
    p.add_argument("--batch", type=positive, metavar="N", help=meaning)
