"""The command line: `ansorlite tune | tune-op | show | bench | compare | log | ...`.

Each command is a function from parsed arguments to an exit status; `COMMANDS` lists them. Results
go to standard output, progress and errors to standard error, an error on one line. Status 0: done;
2: input that is wrong (arguments, names, files); 1: a failure; 130: Ctrl-C before anything was
found; 141: the reader of the output went away; 143 and 129: ended by SIGTERM or SIGHUP, which
otherwise do what Ctrl-C does: the log is complete, the workers are gone, the best so far is shown.
"""

import argparse
import contextlib
import os
import resource
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

import ansorlite
from ansorlite import cli_bench, cli_compare, cli_logs
from ansorlite import cli_options as opt
from ansorlite.cli_options import NETWORK_STAGES
from ansorlite.cli_paths import readable, writable
from ansorlite.errors import AnsorliteError, MachineError, MeasureError, ModelError, UsageError
from ansorlite.files import write_whole
from ansorlite.settings import settings
from ansorlite.streams import drop_unwritten, occupy_standard_descriptors, one_line, put, tell

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.search.result import TuneResult
    from ansorlite.task import SearchTask

OK, FAILED, WRONG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141
TIMED_RUNS, TIMED_S = 20, 2.0  # at most so many runs of a network, and about so long


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    occupy_standard_descriptors()
    with _warnings_on_one_line(), _signals_that_end() as ended:
        status = _run(argv)
    if ended:
        status = 128 + ended[0]
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


# ---- commands -----------------------------------------------------------------------------------


def tune(args: argparse.Namespace) -> int:
    """Tune all subgraphs of a network; print the tables and what the network gained."""
    from ansorlite.pipeline import auto_schedule

    output = writable(args.output, args.log, args.network) if args.output else None
    graph = _network(args)
    module = auto_schedule(
        graph,
        args.trials,
        args.timeout,
        log=args.log,
        seed=args.seed,
        scheduler=args.scheduler,
        exact=args.exact,
        progress=not args.quiet,
    )
    report = module.report
    if report.interrupted and all(r.best is None for r in report.results):
        raise KeyboardInterrupt
    text = f"{report}\n"
    if not report.interrupted:
        text += _compare_with_plain(graph, module)
    if output is not None:  # first, as nobody may read what is printed
        _write(output, text)
    put(text, end="")
    return OK


def tune_op(args: argparse.Namespace) -> int:
    """Tune one case of the operator suite; print its best program's figures and the tables."""
    from ansorlite.report.tables import TaskRow, task_table
    from ansorlite.search.tune import tune as tune_task

    if args.pretrained is not None:
        readable(args.pretrained)
    task = _task(args)
    result = tune_task(
        task,
        args.trials,
        args.timeout,
        seed=args.seed,
        log=args.log,
        policy=args.policy,
        pretrained=args.pretrained,
        progress=not args.quiet,
        others=[ansorlite.workload(case, batch=args.batch or 1) for case in args.others],
    )
    if result.best is None:
        if result.interrupted:
            raise KeyboardInterrupt
        if result.predicted is not None:
            put(f"{task.name}: nothing was measured; the model's choice is\n{result.predicted}")
            return OK
        raise MeasureError(_nothing_found(result))
    best = result.best
    put(str(best).partition("\n")[0])
    row = TaskRow(task.name, task.flop, 1, best.latency_s, result.trials, best.least_s)
    put(task_table([row], None if best.peak is None else best.peak.flops_all))
    put(result.time_table())
    return OK


def show(args: argparse.Namespace) -> int:
    """Print one stage of one candidate of a case, or its roofline; or a stage of a network."""
    if args.stage in NETWORK_STAGES:
        from ansorlite.report.networks import network_stage

        put(network_stage(_named(args.case, args.batch, dict(args.dim)), args.stage), end="")
        return OK
    from ansorlite.report.show import roofline, stage

    if args.dim:
        raise UsageError(f"--dim is for networks ({', '.join(NETWORK_STAGES)}): leave it out")
    task = _task(args)
    row = args.row or ("best" if args.log else "random")
    if args.roofline:
        text, problems = roofline(task, row, args.log, args.seed)
    else:
        text, problems = stage(task, args.stage, row, args.log, args.seed)
    for problem in problems:
        tell(f"log: {problem}")
    put(text, end="")
    return OK


def devices(args: argparse.Namespace) -> int:
    """What kernels are made for: the machine, its limits, and the libraries that make them."""
    from ansorlite.codegen.openmp import max_threads
    from ansorlite.measure.calibrate import calibrate, calibration
    from ansorlite.measure.peak import measure_peak
    from ansorlite.report.limits import calibration_text
    from ansorlite.target import Target

    target, peak = Target.detect(), measure_peak(Target.detect())
    known = calibrate(target) if args.calibrate else calibration(target)
    kib = 1024
    lines = [
        ("cpu", f"{target.cpu} ({target.triple})"),
        ("cores", str(target.cores)),
        ("vectors", f"{target.vector_registers} of {target.vector_bytes} B"),
        ("l1, l2", f"{target.l1_bytes // kib} KiB, {target.l2_bytes // kib} KiB a core"),
        ("l3", f"{target.l3_bytes // kib} KiB shared" if target.l3_bytes else "none"),
        ("threads", str(max_threads())),
        (
            "multiply-add",
            f"{peak.flops_all / 1e9:.1f} GFLOP/s, one core {peak.flops_one / 1e9:.1f}",
        ),
        ("copy", f"{peak.copy_bytes_per_s / 1e9:.1f} GB/s"),
        ("fingerprint", target.fingerprint),
        *_versions(),
    ]
    for name, value in lines:
        put(f"{name:<13} {value}")
    put(
        f"{'calibration':<13} {'none: run devices --calibrate once' if known is None else ''}",
        end="",
    )
    put("" if known is None else calibration_text(known))
    return OK


def bench(args: argparse.Namespace) -> int:
    """Tune the operator suite, or networks, and time them against peers."""
    return cli_bench.bench(args)


def log(args: argparse.Namespace) -> int:
    """Say what is in tuning logs, or write a new one from them."""
    put(cli_logs.log(args))
    return OK


def replay(args: argparse.Namespace) -> int:
    """Lower, check and time recorded programs again; status 1 if one is not right."""
    text, right = cli_logs.replay(args, lambda name: _named(name, None, {}))
    put(text)
    return OK if right else FAILED


def simulate(args: argparse.Namespace) -> int:
    """Let policies search what a log holds, without building or measuring."""
    put(cli_logs.simulate(args, lambda name: _named(name, None, {})))
    return OK


def compare(args: argparse.Namespace) -> int:
    """Run searchers under the same budgets and show how far each came."""
    return cli_compare.compare(args, lambda name: _named(name, None, {}))


def pretrain(args: argparse.Namespace) -> int:
    """Measure programs of tasks like those of networks and save a cost model of this machine."""
    return cli_compare.pretrain(args, lambda name: _named(name, None, {}))


# ---- their parts --------------------------------------------------------------------------------


def _network(args: argparse.Namespace) -> "Graph":
    return _named(args.network, args.batch, dict(args.dim))


def _named(name: str, batch: int | None, dims: dict[str, int]) -> "Graph":
    """The network of that name, or the graph of an ONNX file."""
    graph: Graph
    if name.endswith(".onnx") or os.sep in name:
        graph = ansorlite.load_onnx(name, batch, dims)
        return graph
    try:
        graph = ansorlite.network(name, batch or 1)
    except ModelError as error:
        unknown = str(error).startswith("there is no network")
        hint = f"; an ONNX file is given as ./{name} or {name}.onnx" * unknown
        raise UsageError(f"{error}{hint}") from None
    if dims:
        raise UsageError(f"network {name} has no dynamic dimensions: leave out --dim")
    return graph


def _task(args: argparse.Namespace) -> "SearchTask":
    task: SearchTask = ansorlite.workload(args.case, batch=args.batch or 1)
    return task


def _write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}") from error


def _nothing_found(result: "TuneResult") -> str:
    failed = [r for r in result.records if not r.ok]
    if not failed:
        return f"no program of {result.task.name} was measured: give it more trials or time"
    last = failed[-1]
    return f"no program of {result.task.name} ran; the last: {last.status} {last.error}"


def _compare_with_plain(graph: "Graph", module: Any) -> str:
    """Latency of the network with plain schedules and tuned, and how far their outputs differ."""
    from ansorlite.graph.inputs import random_inputs
    from ansorlite.pipeline import compile_plain
    from ansorlite.report.units import format_latency

    inputs = random_inputs(graph)
    plain = compile_plain(graph)
    (before, expected), (after, got) = _timed(plain, inputs), _timed(module, inputs)
    text = (
        f"plain {format_latency(before)}, tuned {format_latency(after)}: {before / after:.2f} times"
        " as fast"
    )
    worst = max((_difference(x, y) for x, y in zip(expected, got, strict=True)), default=0.0)
    return f"{text}, outputs differ by at most {worst:.1e} of their largest value\n"


def _timed(module: Any, inputs: Sequence[Any]) -> tuple[float, tuple[Any, ...]]:
    """(median seconds of a call, outputs)."""
    out = module(*inputs)
    times: list[float] = []
    while len(times) < TIMED_RUNS and (len(times) < 3 or sum(times) < TIMED_S):
        began = perf_counter()
        module(*inputs)
        times.append(perf_counter() - began)
    return median(times), out if isinstance(out, tuple) else (out,)


def _difference(x: Any, y: Any) -> float:
    import numpy as np

    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    size = float(np.abs(x).max(initial=0.0)) or 1.0
    return float(np.abs(x - y).max(initial=0.0)) / size


def _versions() -> list[tuple[str, str]]:
    from importlib.metadata import PackageNotFoundError, version

    import llvmlite.binding as llvm

    found = [("ansorlite", ansorlite.__version__), ("python", sys.version.split()[0])]
    for name in ("numpy", "llvmlite", "lightgbm", "networkx", "onnx"):
        try:
            number = version(name)
        except PackageNotFoundError:
            number = "not installed"
        if name == "llvmlite":
            number += f" (LLVM {'.'.join(map(str, llvm.llvm_version_info))})"
        found.append((name, number))
    return found


# ---- the table of commands -----------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A subcommand: what it runs, what it adds to its parser, what `--help` says."""

    name: str
    run: Callable[[argparse.Namespace], int]
    options: Callable[[argparse.ArgumentParser], None]
    summary: str


COMMANDS = (
    Command("tune", tune, opt.tune_options, "tune a network and show what it gained"),
    Command("tune-op", tune_op, opt.tune_op_options, "tune one operator"),
    Command("show", show, opt.show_options, "print a stage between operator and machine code"),
    Command("bench", bench, opt.bench_options, "time operators or networks against peers"),
    Command("compare", compare, opt.compare_options, "run searchers under the same budgets"),
    Command(
        "pretrain",
        pretrain,
        opt.pretrain_options,
        "train a cost model of this machine once",
    ),
    Command("log", log, opt.log_options, "say what is in tuning logs, merge or distill them"),
    Command(
        "replay",
        replay,
        opt.replay_options,
        "lower, check and time recorded programs again",
    ),
    Command("simulate", simulate, opt.simulate_options, "let policies search what a log holds"),
    Command("devices", devices, opt.devices_options, "print the machine and its limits"),
)


def _parser() -> argparse.ArgumentParser:
    parser = opt.Parser("ansorlite", description=ansorlite.__doc__)
    parser.add_argument("--version", action="version", version=ansorlite.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for c in COMMANDS:
        sub = commands.add_parser(c.name, help=c.summary, description=c.summary)
        c.options(sub)
        sub.set_defaults(run=c.run)
    return parser
