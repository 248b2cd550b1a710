"""The arguments of the commands: their options, and the kinds of numbers, names and paths in them.

In: an `ArgumentParser` of a command, or the text of an argument. Out: options added to the parser,
or a value. A text that makes no sense is an ArgumentTypeError, which argparse tells with the name
of the option. Paths are checked when the command begins, see `cli_paths`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from ansorlite import cli_bench, cli_compare, cli_logs
from ansorlite.streams import one_line, put, tell

STAGES = ("dag", "sketches", "program", "features", "llvm", "asm")
NETWORK_STAGES = ("passes", "partition", "svg")
ROWS = ("random", "plain", "best")
MOST = 2**63 - 1  # of a number on the command line
MOST_S = 1e9  # three decades


class Parser(argparse.ArgumentParser):
    """Tells what is wrong on one line."""

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
    return _whole(text, 0)


def positive(text: str) -> int:
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text[:20]) < least:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number >= {least}")
    if len(text.lstrip("0")) > 19 or int(text) > MOST:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is too large: at most {MOST}")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of seconds > 0")
    if value > MOST_S:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is too long: at most {MOST_S:g} s")
    return value


def dim(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N, for example N=1 or data.2=224")
    return name, positive(number)


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
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")


def tune_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("network", metavar="NETWORK|FILE.onnx")
    search_options(p, None)
    p.add_argument("--batch", type=positive, metavar="N", help="first extent of every input")
    dim_option(p)
    p.add_argument(
        "--scheduler",
        choices=("gradient", "ucb", "round-robin", "round-robin-limits"),
        default="gradient",
        help="which task gets the next round (gradient)",
    )
    p.add_argument("--exact", action="store_true", help="no Winograd, nothing rounded otherwise")
    p.add_argument("--output", type=Path, metavar="F", help="write the closing tables there, too")


def dim_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--dim",
        type=dim,
        metavar="NAME=N",
        action="append",
        default=[],
        help="extent of a dynamic dimension of an ONNX file, by name or place (data.2=224)",
    )


def case_options(p: argparse.ArgumentParser) -> None:
    what_option(p, "CASE", "a case of the operator suite, such as C2D:2")


def what_option(p: argparse.ArgumentParser, metavar: str, meaning: str) -> None:
    p.add_argument("case", metavar=metavar, help=meaning)
    p.add_argument("--batch", type=positive, metavar="N", help="default 1, or as in the file")


def tune_op_options(p: argparse.ArgumentParser) -> None:
    case_options(p)
    search_options(p, 64)
    p.add_argument(
        "--policy",
        metavar="NAME",
        default="evolutionary",
        help="the searcher: evolutionary (default), random, template-xgb, ... (see compare)",
    )
    p.add_argument("--pretrained", type=Path, metavar="F", help="model of `ansorlite pretrain`")
    p.add_argument(
        "--others",
        nargs="+",
        metavar="CASE",
        default=[],
        help="learn from what the log has of them",
    )


def show_options(p: argparse.ArgumentParser) -> None:
    what_option(p, "CASE|NETWORK|FILE.onnx", "a case of the operator suite, or a network")
    dim_option(p)
    p.add_argument(
        "--stage",
        choices=(*STAGES, *NETWORK_STAGES),
        default="program",
        help=f"of a case (default program), or of a network: {', '.join(NETWORK_STAGES)}",
    )
    p.add_argument("--log", type=Path, metavar="F", help="tuning log whose best program is shown")
    p.add_argument("--row", choices=ROWS, help="best where a log is given, otherwise random")
    p.add_argument("--seed", type=count, metavar="K", default=0, help="of the random row")
    p.add_argument(
        "--roofline", action="store_true", help="the limits of the case and of the program instead"
    )


def devices_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--calibrate",
        action="store_true",
        help="measure caches and register tiles now (some ten seconds) and keep the figures",
    )


def log_options(p: argparse.ArgumentParser) -> None:
    cli_logs.log_options(p, positive)


def replay_options(p: argparse.ArgumentParser) -> None:
    cli_logs.replay_options(p, positive)


def simulate_options(p: argparse.ArgumentParser) -> None:
    cli_logs.simulate_options(p, positive)


def pretrain_options(p: argparse.ArgumentParser) -> None:
    cli_compare.pretrain_options(p, seconds, count)


def compare_options(p: argparse.ArgumentParser) -> None:
    cli_compare.compare_options(p, seconds, positive)


def bench_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("what", choices=tuple(cli_bench.PEERS), help="the operator suite, or networks")
    search_options(p, None, cli_bench.DEFAULT_BUDGETS)
    cli_bench.bench_options(p, positive)
