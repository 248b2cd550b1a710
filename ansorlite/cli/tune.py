"""The commands `ansorlite tune` and `ansorlite tune-op`.

In: parsed arguments. Out: the exit status; tables on standard output, progress on standard error.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ansorlite.cli.calibrated import calibrated, calibration_options
from ansorlite.cli.inputs import case, one_network, sized_network
from ansorlite.cli.options import (
    Command,
    batch_option,
    case_options,
    on_options,
    precision_option,
    search_options,
    size_options,
    target_option,
)
from ansorlite.cli.paths import readable, writable
from ansorlite.cli.pool import runner_of
from ansorlite.cli.tasks import task_of
from ansorlite.errors import MachineError, MeasureError, UsageError
from ansorlite.files import write_whole
from ansorlite.names import shown
from ansorlite.streams import put

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.sized import SizedNetwork
    from ansorlite.pipeline import NetworkReport
    from ansorlite.pool.runner import RemoteRunner
    from ansorlite.records import Record
    from ansorlite.search.result import TuneResult
    from ansorlite.target import Target

TIMED_RUNS, TIMED_S = 20, 2.0  # at most so many runs of a network, and about so long
SPLIT_S = 0.03  # seconds a kernel to split a network once more
APART = 0.2  # a difference between tasks and network that is explained


def tune_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("network", metavar="NETWORK|FILE.onnx")
    search_options(p, None)
    on_options(p)
    batch_option(p, "free first extents")
    size_options(p)
    target_option(p)
    p.add_argument(
        "--scheduler",
        choices=("gradient", "ucb", "round-robin", "round-robin-limits"),
        default="gradient",
        help="which task gets the next round (gradient)",
    )
    p.add_argument("--task", metavar="NAME|N", help="tune one task alone, with all of the budget")
    p.add_argument("--exact", action="store_true", help="no other forms, nothing rounded otherwise")
    precision_option(p)
    calibration_options(p)
    p.add_argument("--output", type=Path, metavar="F", help="write the closing tables there, too")
    p.add_argument("--save", type=Path, metavar="DIR", help="write the network there, as a library")
    p.add_argument(
        "--targets",
        type=_names,
        metavar="NAME,...",
        help="--save kernels for each of these in one library, picked when it is opened "
        "(native: those tuned here)",
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def tune_op_options(p: argparse.ArgumentParser) -> None:
    case_options(p)
    search_options(p, None, "default 64, or 16 to be built for --target")
    on_options(p)
    target_option(p)
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


def tune(args: argparse.Namespace) -> int:
    """Tune all subgraphs of a network, or one; print the tables and what the network gained."""
    with ExitStack() as stack:
        return _tuned(args, _processes(args, stack), stack)


def _processes(args: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """Options of `auto_schedule`: processes that start while all else is imported and loaded.

    This process is to have a core of its own, so the last builders start later.
    """
    from ansorlite.measure.processes import started
    from ansorlite.measure.timing import in_network

    if args.on is not None or args.task is not None:
        return {}
    target = _target(args)
    policy, free = in_network(args.timeout), max(0, target.cores - 2)
    return started(stack, args.trials, target, policy, {}, at_once=free)


def _tuned(args: argparse.Namespace, processes: dict[str, Any], running: ExitStack) -> int:
    from ansorlite.pipeline import auto_schedule
    from ansorlite.search.clock import PhaseClock

    clock = PhaseClock()  # the time of a command begins with it
    builder = processes.get("builder")
    if builder is not None:
        builder.warm_up(builder.n_workers - 1)
    output = writable(args.output, args.log, args.network) if args.output else None
    _check_save(args)
    if args.task is not None:
        if args.calibration is not None:
            raise UsageError("--calibration is of a whole network: leave out --task")
        text = _result_text(_tune_part(args, one_network(args, args.network)))
        if output is not None:
            _write(output, text)
        put(text, end="")
        return 0
    graph = calibrated(args, sized_network(args, args.network))
    if builder is not None:
        builder.warm_up()
    with runner_of(args, fresh_constants=True) as runner:
        target = _target(args, runner)
        module = auto_schedule(
            graph,
            args.trials,
            args.timeout,
            log=args.log,
            seed=args.seed,
            scheduler=args.scheduler,
            exact=args.exact,
            precision=args.precision,
            max_error=None if args.calibration else args.max_error,
            target=target,
            known=not args.no_knowledge,
            progress=not args.quiet,
            clock=clock,
            **(processes or {"runner": runner}),
        )
    running.close()  # networks are compared with the machine to themselves
    report = module.report
    if report.interrupted and all(r.best is None for r in report.results):
        raise KeyboardInterrupt
    text = f"{told}\n" if (told := getattr(graph, "quantization", None)) is not None else ""
    text += f"{report}\n"
    if args.on is not None:
        text += _devices_text([x for r in report.results for x in r.records])
    elif not report.interrupted and target.is_foreign:
        text += "not compared with plain schedules: this machine cannot run the network\n"
    elif not report.interrupted:
        limit_s = float("inf") if args.timeout is None else args.timeout
        for label, size, own in _sizes(graph, module):
            text += f"{label}{_compare_with_plain(size, own, lambda: limit_s - clock.elapsed_s)}"
    if args.save is not None:
        module.save(args.save, targets=args.targets)
        text += f"saved in {args.save}: {_saved_text(args.save, target)}\n"
    if output is not None:  # first, as nobody may read what is printed
        _write(output, text)
    put(text, end="")
    return 0


def _target(args: argparse.Namespace, runner: "RemoteRunner | None" = None) -> "Target":
    """That of the pool's devices, or of `--target`, else this machine; UsageError for another."""
    from ansorlite.target import Target

    if runner is not None:
        return runner.target
    return Target.detect() if args.target is None else Target.named(args.target)


def _check_save(args: argparse.Namespace) -> None:
    """UsageError, before anything is tuned, for a folder that cannot be written."""
    if args.save is None:
        if args.targets is not None:
            raise UsageError("--targets are those of a saved network: give --save DIR")
        return
    if args.targets is not None:
        from ansorlite.graph.deploy import check_targets
        from ansorlite.graph.saving import named_target
        from ansorlite.target import Target

        own = Target.detect() if args.target is None else Target.named(args.target)
        check_targets(args.targets, [named_target(name, own) for name in args.targets])
    if args.task is not None:
        raise UsageError("--save writes a whole network: leave out --task")
    if args.save.exists() and (not args.save.is_dir() or any(args.save.iterdir())):
        raise UsageError(f"{args.save} exists: name a new folder, so that nothing is lost")


def _saved_text(folder: Path, target: "Target") -> str:
    """How the saved network is used."""
    from ansorlite.deployed_bench import targets_text
    from ansorlite.manifest import LIBRARY, read_metadata

    told = read_metadata(folder)["targets"]
    names = target.cpu if len(told) == 1 else ", ".join(t["name"] for t in told)
    more = [] if len(told) == 1 else targets_text(told)
    if (folder / LIBRARY).is_file():
        first = f"{LIBRARY} for {names}; ansorlite.load_module loads the folder there"
        return "\n  ".join([first, *more])
    first = f"no compiler links for {names} here; there: {read_metadata(folder)['link']}"
    return "\n  ".join([first, *more])


def _sizes(graph: "Graph | SizedNetwork", module: Any) -> "list[tuple[str, Graph, Any]]":
    """(title of a line, graph, module) of every size."""
    from ansorlite.graph.ir import Graph

    if isinstance(graph, Graph):
        return [("", graph, module)]
    titles = [f"size {shown(label)}\n" for label in graph.labels]
    return list(zip(titles, graph.graphs, module.modules, strict=True))


def _tune_part(args: argparse.Namespace, graph: "Graph") -> "TuneResult":
    """Tune one subgraph as `auto_schedule` does: in all its forms, with constants from memory."""
    from ansorlite.measure.runner import LocalRunner
    from ansorlite.measure.timing import TimingPolicy
    from ansorlite.search.estimate import estimating
    from ansorlite.search.session import Session
    from ansorlite.search.tune_tasks import tune_tasks

    if args.precision == "auto":
        raise UsageError("--task tunes one computation: give --precision float32 or bf16")
    with ExitStack() as stack:
        remote = stack.enter_context(runner_of(args, fresh_constants=True))
        target = _target(args, remote)
        weighted = replace(
            task_of(graph, args.task, target, args.exact, args.precision), weight=1.0
        )
        given = args.trials is not None or args.timeout is not None
        trials = args.trials if given else _trials(target)
        runner = remote or estimating(target)
        policy = TimingPolicy(fresh_constants=True)
        session = Session(
            trials,
            args.timeout,
            seed=args.seed,
            log=args.log,
            known=not args.no_knowledge,
            progress=not args.quiet,
            runner=runner or stack.enter_context(LocalRunner(policy=policy)),
        )
        (result,) = tune_tasks(stack.enter_context(session), [weighted])
    return result


def _trials(target: "Target") -> int:
    """The trials of one task."""
    from ansorlite.search.estimate import TRIALS

    return TRIALS if target.is_foreign else 64


def tune_op(args: argparse.Namespace) -> int:
    """Tune one case of the operator suite; print its best program's figures and the tables."""
    from ansorlite.search.tune import tune as tune_task

    if args.pretrained is not None:
        readable(args.pretrained)
    with runner_of(args) as runner:
        target = _target(args, runner)
        task = case(args.case, args.batch, target)
        result = tune_task(
            task,
            _trials(target) if args.trials is None else args.trials,
            args.timeout,
            seed=args.seed,
            log=args.log,
            policy=args.policy,
            pretrained=args.pretrained,
            known=not args.no_knowledge,
            progress=not args.quiet,
            others=[case(name, args.batch, target) for name in args.others],
            runner=runner,
        )
    text = _result_text(result)
    put(text if runner is None else text + _devices_text(result.records), end="")
    return 0


def _devices_text(records: "Sequence[Record]") -> str:
    """Which devices of a pool measured how many trials."""
    counts = Counter(r.device for r in records if r.device)
    return (
        f"measured on {', '.join(f'{k} ({n})' for k, n in sorted(counts.items())) or 'nothing'}\n"
    )


def _result_text(result: "TuneResult") -> str:
    """The closing lines of one task. Raises MeasureError where no program of it ran."""
    from ansorlite.measure.limits import task_peak
    from ansorlite.search.result import why_above_limit
    from ansorlite.tables import TaskRow, task_table

    task, best = result.task, result.best
    if best is None:
        if result.interrupted:
            raise KeyboardInterrupt
        if result.predicted is not None:
            return f"{task.name}: nothing was measured; the model's choice is\n{result.predicted}"
        raise MeasureError(_nothing_found(result))
    above = why_above_limit(task)
    peak = None if best.peak is None else task_peak(task, best.peak)
    row = TaskRow(task.name, task.flop, 1, best.latency_s, result.trials, best.least_s, above, peak)
    table = task_table([row])
    return f"{best.summary}\n{table}\n{result.time_table()}\n"


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


def _compare_with_plain(graph: "Graph", module: Any, left_s: Callable[[], float]) -> str:
    """Latency of the network with plain schedules and tuned, and how far their outputs differ.

    Where the time left is too short to build and to run the plain network, its latency is what the
    log has of its tasks.
    """
    from ansorlite.graph.inputs import random_inputs
    from ansorlite.pipeline import compile_plain
    from ansorlite.units import format_latency

    least_s = SPLIT_S * len(module.partition.subgraphs)
    plain = compile_plain(graph, left_s=left_s) if left_s() > least_s else None
    if plain is None or left_s() <= 0:
        return _by_tasks(module.report)
    inputs = random_inputs(graph)
    most_s = min(TIMED_S, left_s() / 2)
    (before, expected), (after, got) = (_timed(m, inputs, most_s) for m in (plain, module))
    text = (
        f"plain {format_latency(before)}, tuned {format_latency(after)}: {before / after:.2f} times"
        " as fast"
    )
    worst = max((_difference(x, y) for x, y in zip(expected, got, strict=True)), default=0.0)
    text += f", outputs differ by at most {worst:.1e} of their largest value\n"
    tasks_s = module.report.latency_s
    if tasks_s is None or abs(after / tasks_s - 1) <= APART:
        return text
    kernels_s = median(sum(module.timed_calls(inputs)) for _ in range(TIMED_RUNS // 2))
    return apart_text(tasks_s, kernels_s, after) + text


def _by_tasks(report: "NetworkReport") -> str:
    """What the tasks gained, at most, by their own measurements.

    In a run against the clock the plain schedules are timed beside builds and the search.
    """
    from ansorlite.units import format_latency

    plain = [
        w * min((x.latency_s for x in r.records if not x.round and x.latency_s), default=0.0)
        for r, w in zip(report.results, report.weights, strict=True)
    ]
    if report.latency_s is None or not all(plain):
        return "not compared with plain schedules: the time is spent\n"
    before, after = sum(plain), report.latency_s
    return (
        f"tasks: plain {format_latency(before)} beside other work, tuned {format_latency(after)}: "
        f"at most {before / after:.2f} times as fast (no time is left to run the plain network)\n"
    )


def apart_text(tasks_s: float, kernels_s: float, network_s: float) -> str:
    """Why a network takes another time than its tasks add up to, in seconds: two lines.

    `tasks_s` are the tasks' latencies times their weights, `kernels_s` those of the kernels within
    the network, `network_s` one call of the network.
    """
    from ansorlite.units import format_latency

    sums = (
        f"the tasks add up to {format_latency(tasks_s)}, the network takes "
        f"{format_latency(network_s)} ({network_s / tasks_s:.2f} times):"
    )
    moved = [
        (kernels_s - tasks_s, "kernels in the network, whose operands lie in other caches"),
        (network_s - kernels_s, "calls between kernels, checks and copies of the results"),
    ]
    parts = [f"{format_latency(abs(s))} {'more' if s > 0 else 'less'} in {why}" for s, why in moved]
    return f"{sums}\n  {'; '.join(parts)}\n"


def _timed(module: Any, inputs: Sequence[Any], most_s: float) -> tuple[float, tuple[Any, ...]]:
    """(median seconds of a call, outputs), of calls that take `most_s` together or are three."""
    out = module(*inputs)
    times: list[float] = []
    while len(times) < TIMED_RUNS and (len(times) < 3 or sum(times) < most_s):
        began = perf_counter()
        module(*inputs)
        times.append(perf_counter() - began)
    return median(times), out if isinstance(out, tuple) else (out,)


def _difference(x: Any, y: Any) -> float:
    import numpy as np

    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    size = float(np.abs(x).max(initial=0.0)) or 1.0
    return float(np.abs(x - y).max(initial=0.0)) / size


COMMANDS = (
    Command(
        "tune",
        tune,
        tune_options,
        "tune a network and show what it gained",
        (
            ("ansorlite tune resnet18 --timeout 120 --log resnet18.log", "two minutes, resumable"),
            ("ansorlite tune model.onnx --dim N=1 --trials 2000", "a file with a dynamic extent"),
            (
                "ansorlite tune model.onnx --shape x=1,3,48,192",
                "a file whose extents have no names",
            ),
            ("ansorlite tune model.onnx --dim w=320,640 --dim n=1", "two sizes, tuned together"),
            ("ansorlite tune resnet18 --task 3 --log resnet18.log", "one of its tasks alone"),
            (
                "ansorlite tune resnet18 --target cortex-a76 --save net-a76",
                "for a Raspberry Pi 5, without one",
            ),
            (
                "ansorlite tune resnet18 --save net --targets x86-64-v3,x86-64-v4,znver4",
                "one library for three kinds of CPUs",
            ),
            ("ansorlite tune resnet18 --on farm:8786 --target cortex-a76", "for a pool's devices"),
        ),
    ),
    Command(
        "tune-op",
        tune_op,
        tune_op_options,
        "tune one operator",
        (
            ("ansorlite tune-op C2D:2 --trials 200 --log c2d.log", "a convolution, 200 programs"),
            ("ansorlite tune-op GMM:0 --trials 0", "the model's choice, nothing is measured"),
        ),
    ),
)
