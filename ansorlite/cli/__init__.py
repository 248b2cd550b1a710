"""The command line: `ansorlite tune | tune-op | show | compare | log | ...`.

Each file of this folder has one family of commands, functions from parsed arguments to an exit
status; `COMMANDS` lists all of them. Results go to standard output, progress and errors to standard
error, an error on one line. Status 0: done;
2: input that is wrong (arguments, names, files); 1: a failure; 130: Ctrl-C before anything was
found; 141: the reader of the output went away; 143 and 129: ended by SIGTERM or SIGHUP, which
otherwise do what Ctrl-C does: the log is complete, the workers are gone, the best so far is shown.
"""

import argparse
import contextlib
import gc
import os
import resource
import shlex
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import ansorlite
from ansorlite.cli import compare, logs, pool, profile, report, show, tune
from ansorlite.cli.options import Parser
from ansorlite.errors import AnsorliteError, SizesError
from ansorlite.settings import settings
from ansorlite.streams import drop_unwritten, occupy_standard_descriptors, one_line, tell

OK, FAILED, INTERRUPTED, BROKEN_PIPE = 0, 1, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    occupy_standard_descriptors()
    with _warnings_on_one_line(), _signals_that_end() as ended:
        status = _run(argv)
    if ended:
        status = 128 + ended[0]
    if argv is None:  # a process of its own, which ends now: nothing is worth collecting
        gc.freeze()
    lost = drop_unwritten()
    if lost is not None and status == OK:
        if isinstance(lost, BrokenPipeError):
            return BROKEN_PIPE
        return _failed(f"cannot write to standard output: {lost}", FAILED)
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = _parser().parse_args(argv)
        settings()  # a wrong variable is told now, not after hours
        return int(args.run(args))
    except SystemExit as leaving:  # argparse: --help, --version, wrong usage
        return leaving.code if isinstance(leaving.code, int) else FAILED
    except SizesError as error:
        given = sys.argv[1:] if argv is None else argv
        line = shlex.join(["ansorlite", *given, *error.options])
        hint = f": type {line}" if error.options else ""
        if error.options and not hasattr(args, "dim"):
            hint = ": this command takes no sizes, give it a model with fixed ones"
        return _failed(f"{error.shell}{hint}", error.status)
    except AnsorliteError as error:
        return _failed(str(error), error.status)
    except KeyboardInterrupt:
        return _failed("interrupted before anything was found", INTERRUPTED)
    except BrokenPipeError:
        return BROKEN_PIPE
    except MemoryError:
        return _failed(f"not enough memory: free some{_memory_limit()}", FAILED)
    except (OSError, ImportError) as error:
        place = f"{error.filename}: " if isinstance(error, OSError) and error.filename else ""
        reason = getattr(error, "strerror", None) or error
        return _failed(f"{place}{reason}{_memory_limit()}", FAILED)
    except Warning as warning:  # python -W error
        return _failed(f"a warning that is to be an error: {warning}", FAILED)
    except RecursionError:
        return _failed("the input is nested too deeply: flatten it", FAILED)
    except Exception as error:
        if os.environ.get("ANSORLITE_DEBUG", "0").strip() not in ("", "0"):
            tell(traceback.format_exc())
        last = traceback.extract_tb(error.__traceback__)[-1]
        return _failed(
            f"{type(error).__name__}: {error} ({Path(last.filename).name}:{last.lineno}): that is"
            " a defect of ansorlite, ANSORLITE_DEBUG=1 shows where",
            FAILED,
        )


def _memory_limit() -> str:
    """The limit of this process's memory in words: libraries tell others than the true cause."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return ""
    return f" (memory is limited to {limit >> 20} MiB: ulimit -v allows more)"


def _failed(text: str, status: int) -> int:
    tell(f"ansorlite: {one_line(text)}")
    return status


@contextlib.contextmanager
def _signals_that_end() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does; the second one ends the process at once.

    The list that is given has the signal, once it came. Signals that are ignored (nohup) stay so.
    """
    came: list[int] = []

    def end(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, end)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _warnings_on_one_line() -> Iterator[None]:
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        tell(f"ansorlite: warning: {one_line(str(message))}", file)

    before = warnings.showwarning
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = before


# ---- the table of commands -----------------------------------------------------------------------

COMMANDS = (
    *tune.COMMANDS,
    *profile.COMMANDS,
    *show.COMMANDS,
    *compare.COMMANDS,
    *logs.COMMANDS,
    *report.COMMANDS,
    *pool.COMMANDS,
)


def _parser() -> argparse.ArgumentParser:
    parser = Parser("ansorlite", description=ansorlite.__doc__)
    parser.add_argument("--version", action="version", version=ansorlite.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for c in COMMANDS:
        sub = commands.add_parser(
            c.name,
            help=c.summary,
            description=c.summary,
            epilog=c.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        c.options(sub)
        sub.set_defaults(run=c.run)
    return parser
