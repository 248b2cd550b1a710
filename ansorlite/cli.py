"""The command line: `ansorlite tune | tune-op | show | bench | compare | log | ...`.

Each command is a function from parsed arguments to an exit status; `COMMANDS` lists them. Results
go to standard output, progress and errors to standard error. Status 0: done; 1: an AnsorliteError,
printed as one line; 2: wrong usage; 130: Ctrl-C before anything was found; 141: the reader of the
output went away.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import ansorlite
from ansorlite import cli_bench, cli_compare, cli_logs
from ansorlite.errors import AnsorliteError, ModelError
from ansorlite.settings import settings

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.search.result import TuneResult
    from ansorlite.task import SearchTask

OK, FAILED, INTERRUPTED, BROKEN_PIPE = 0, 1, 130, 141
STAGES = ("dag", "sketches", "program", "features", "llvm", "asm")
NETWORK_STAGES = ("passes", "partition", "svg")
ROWS = ("random", "plain", "best")
TIMED_RUNS, TIMED_S = 20, 2.0  # at most so many runs of a network, and about so long


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. Wrong usage leaves through SystemExit (2)."""
    args = _parser().parse_args(argv)
    try:
        settings()  # a wrong variable is told now, not after hours
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except AnsorliteError as error:
        _say(f"ansorlite: {' '.join(str(error).split())}")
        return FAILED
    except KeyboardInterrupt:
        _say("ansorlite: interrupted before anything was found")
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


# ---- commands -----------------------------------------------------------------------------------


def tune(args: argparse.Namespace) -> int:
    """Tune all subgraphs of a network; print the tables and what the network gained."""
    from ansorlite.pipeline import auto_schedule

    output = _writable(args.output) if args.output else None
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
    print(text, end="")
    if output is not None:
        output.write_text(text, encoding="utf-8")
    return OK


def tune_op(args: argparse.Namespace) -> int:
    """Tune one case of the operator suite; print its best program's figures and the tables."""
    from ansorlite.report.tables import TaskRow, task_table
    from ansorlite.search.tune import tune as tune_task

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
            print(f"{task.name}: nothing was measured; the model's choice is\n{result.predicted}")
            return OK
        raise AnsorliteError(_nothing_found(result))
    best = result.best
    print(str(best).partition("\n")[0])
    row = TaskRow(task.name, task.flop, 1, best.latency_s, result.trials, best.least_s)
    print(task_table([row], None if best.peak is None else best.peak.flops_all))
    print(result.time_table())
    return OK


def show(args: argparse.Namespace) -> int:
    """Print one stage of one candidate of a case, or its roofline; or a stage of a network."""
    if args.stage in NETWORK_STAGES:
        from ansorlite.report.networks import network_stage

        print(network_stage(_named(args.case, args.batch, dict(args.dim)), args.stage), end="")
        return OK
    from ansorlite.report.show import roofline, stage

    if args.dim:
        raise AnsorliteError(f"--dim is for networks ({', '.join(NETWORK_STAGES)}): leave it out")
    task = _task(args)
    row = args.row or ("best" if args.log else "random")
    if args.roofline:
        text, problems = roofline(task, row, args.log, args.seed)
    else:
        text, problems = stage(task, args.stage, row, args.log, args.seed)
    for problem in problems:
        _say(f"log: {problem}")
    print(text, end="")
    return OK


def devices(args: argparse.Namespace) -> int:
    """What kernels are made for: the machine, its limits, and the libraries that make them."""
    from ansorlite.codegen.openmp import runtime
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
        ("openmp", runtime().library or "none: kernels run on one thread"),
        (
            "multiply-add",
            f"{peak.flops_all / 1e9:.1f} GFLOP/s, one core {peak.flops_one / 1e9:.1f}",
        ),
        ("copy", f"{peak.copy_bytes_per_s / 1e9:.1f} GB/s"),
        ("fingerprint", target.fingerprint),
        *_versions(),
    ]
    for name, value in lines:
        print(f"{name:<13} {value}")
    print(
        f"{'calibration':<13} {'none: run devices --calibrate once' if known is None else ''}",
        end="",
    )
    print("" if known is None else calibration_text(known))
    return OK


def bench(args: argparse.Namespace) -> int:
    """Tune the operator suite, or networks, and time them against peers."""
    return cli_bench.bench(args, _writable)


def log(args: argparse.Namespace) -> int:
    """Say what is in tuning logs, or write a new one from them."""
    print(cli_logs.log(args))
    return OK


def replay(args: argparse.Namespace) -> int:
    """Lower, check and time recorded programs again; status 1 if one is not right."""
    text, right = cli_logs.replay(args, lambda name: _named(name, None, {}))
    print(text)
    return OK if right else FAILED


def simulate(args: argparse.Namespace) -> int:
    """Let policies search what a log holds, without building or measuring."""
    print(cli_logs.simulate(args, lambda name: _named(name, None, {})))
    return OK


def compare(args: argparse.Namespace) -> int:
    """Run searchers under the same budgets and show how far each came."""
    return cli_compare.compare(args, lambda name: _named(name, None, {}), _writable)


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
        raise AnsorliteError(f"{error}; an ONNX file is given as ./{name} or {name}.onnx") from None
    if dims:
        raise AnsorliteError(f"network {name} has no dynamic dimensions: leave out --dim")
    return graph


def _task(args: argparse.Namespace) -> "SearchTask":
    task: SearchTask = ansorlite.workload(args.case, batch=args.batch or 1)
    return task


def _writable(path: Path) -> Path:
    """The path, found out before hours of tuning to be one that can be written to."""
    try:
        path.touch()
    except OSError as error:
        raise AnsorliteError(f"cannot write {path}: {error.strerror}") from error
    return path


def _nothing_found(result: "TuneResult") -> str:
    failed = [r for r in result.records if not r.ok]
    if not failed:
        return f"no program of {result.task.name} was measured: give it more trials or time"
    last = failed[-1]
    return f"no program of {result.task.name} ran; the last: {last.status} {last.error}"


def _compare_with_plain(graph: "Graph", module: Any) -> str:
    """Latency of the network with plain schedules and tuned, and how far their outputs differ."""
    from ansorlite.graph.contest import random_inputs
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


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- arguments ----------------------------------------------------------------------------------


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 0")
    return int(text)


def _positive(text: str) -> int:
    if (n := _count(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1")
    return n


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds > 0")
    return value


def _dim(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N, for example N=1 or data.2=224")
    return name, _positive(number)


def _search_options(p: argparse.ArgumentParser, trials: int | None, what: str = "") -> None:
    what = what or (
        "64 a subgraph where no budget is given" if trials is None else f"default {trials}"
    )
    p.add_argument(
        "--trials", type=_count, metavar="N", default=trials, help=f"programs to measure ({what})"
    )
    p.add_argument(
        "--timeout", type=_seconds, metavar="S", help="wall-clock seconds for everything"
    )
    p.add_argument("--log", type=Path, metavar="F", help="tuning log, continued where it exists")
    p.add_argument("--seed", type=_count, metavar="K", default=0, help="default 0")
    p.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _tune_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("network", metavar="NETWORK|FILE.onnx")
    _search_options(p, None)
    p.add_argument("--batch", type=_positive, metavar="N", help="first extent of every input")
    _dim_option(p)
    p.add_argument(
        "--scheduler",
        choices=("gradient", "ucb", "round-robin", "round-robin-limits"),
        default="gradient",
        help="which task gets the next round (gradient)",
    )
    p.add_argument("--exact", action="store_true", help="no Winograd, nothing rounded otherwise")
    p.add_argument("--output", type=Path, metavar="F", help="write the closing tables there, too")


def _dim_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--dim",
        type=_dim,
        metavar="NAME=N",
        action="append",
        default=[],
        help="extent of a dynamic dimension of an ONNX file, by name or place (data.2=224)",
    )


def _case_options(p: argparse.ArgumentParser) -> None:
    _what_option(p, "CASE", "a case of the operator suite, such as C2D:2")


def _what_option(p: argparse.ArgumentParser, metavar: str, meaning: str) -> None:
    p.add_argument("case", metavar=metavar, help=meaning)
    p.add_argument("--batch", type=_positive, metavar="N", help="default 1, or as in the file")


def _tune_op_options(p: argparse.ArgumentParser) -> None:
    _case_options(p)
    _search_options(p, 64)
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


def _show_options(p: argparse.ArgumentParser) -> None:
    _what_option(p, "CASE|NETWORK|FILE.onnx", "a case of the operator suite, or a network")
    _dim_option(p)
    p.add_argument(
        "--stage",
        choices=(*STAGES, *NETWORK_STAGES),
        default="program",
        help=f"of a case (default program), or of a network: {', '.join(NETWORK_STAGES)}",
    )
    p.add_argument("--log", type=Path, metavar="F", help="tuning log whose best program is shown")
    p.add_argument("--row", choices=ROWS, help="best where a log is given, otherwise random")
    p.add_argument("--seed", type=_count, metavar="K", default=0, help="of the random row")
    p.add_argument(
        "--roofline", action="store_true", help="the limits of the case and of the program instead"
    )


def _devices_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--calibrate",
        action="store_true",
        help="measure caches and register tiles now (some ten seconds) and keep the figures",
    )


def _log_options(p: argparse.ArgumentParser) -> None:
    cli_logs.log_options(p, _positive)


def _replay_options(p: argparse.ArgumentParser) -> None:
    cli_logs.replay_options(p, _positive)


def _simulate_options(p: argparse.ArgumentParser) -> None:
    cli_logs.simulate_options(p, _positive)


def pretrain(args: argparse.Namespace) -> int:
    """Measure programs of tasks like those of networks and save a cost model of this machine."""
    return cli_compare.pretrain(args, lambda name: _named(name, None, {}), _writable)


def _pretrain_options(p: argparse.ArgumentParser) -> None:
    cli_compare.pretrain_options(p, _seconds, _count)


def _compare_options(p: argparse.ArgumentParser) -> None:
    cli_compare.compare_options(p, _seconds, _positive)


def _bench_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("what", choices=tuple(cli_bench.PEERS), help="the operator suite, or networks")
    _search_options(p, None, cli_bench.DEFAULT_BUDGETS)
    cli_bench.bench_options(p, _positive)


@dataclass(frozen=True)
class Command:
    """A subcommand: what it runs, what it adds to its parser, what `--help` says."""

    name: str
    run: Callable[[argparse.Namespace], int]
    options: Callable[[argparse.ArgumentParser], None]
    summary: str


COMMANDS = (
    Command("tune", tune, _tune_options, "tune a network and show what it gained"),
    Command("tune-op", tune_op, _tune_op_options, "tune one operator"),
    Command("show", show, _show_options, "print a stage between operator and machine code"),
    Command("bench", bench, _bench_options, "time operators or networks against peers"),
    Command("compare", compare, _compare_options, "run searchers under the same budgets"),
    Command("pretrain", pretrain, _pretrain_options, "train a cost model of this machine once"),
    Command("log", log, _log_options, "say what is in tuning logs, merge or distill them"),
    Command("replay", replay, _replay_options, "lower, check and time recorded programs again"),
    Command("simulate", simulate, _simulate_options, "let policies search what a log holds"),
    Command("devices", devices, _devices_options, "print the machine and its limits"),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("ansorlite", description=ansorlite.__doc__)
    parser.add_argument("--version", action="version", version=ansorlite.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for c in COMMANDS:
        sub = commands.add_parser(c.name, help=c.summary, description=c.summary)
        c.options(sub)
        sub.set_defaults(run=c.run)
    return parser
