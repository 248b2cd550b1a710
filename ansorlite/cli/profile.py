"""The command `ansorlite profile`: where the time of a network goes, kernel by kernel.

In: parsed arguments: a network, and a log with the programs that were found for it. Out: the exit
status; a table of each size on standard output, a Chrome trace and JSON in files. No program is
searched for or measured: without a log the model decides.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansorlite.cli.inputs import sized_network
from ansorlite.cli.options import (
    Command,
    batch_option,
    count,
    positive,
    precision_option,
    size_options,
)
from ansorlite.cli.paths import readable, writable
from ansorlite.errors import MachineError, UsageError
from ansorlite.files import write_whole
from ansorlite.names import shown
from ansorlite.streams import put, tell

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.module import CompiledModule
    from ansorlite.graph.sized import SizedNetwork


def profile_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("network", metavar="NETWORK|FILE.onnx")
    p.add_argument("--log", type=Path, metavar="F", help="tuning log whose programs are run")
    p.add_argument("--plain", action="store_true", help="plain schedules instead")
    p.add_argument("--exact", action="store_true", help="as the network was tuned")
    precision_option(p)
    batch_option(p, "free first extents")
    size_options(p)
    p.add_argument("--repeats", type=positive, metavar="N", default=20, help="rounds (20)")
    p.add_argument("--seed", type=count, metavar="K", default=0, help="of the random inputs")
    p.add_argument("--in-place-only", action="store_true", help="no kernel is run alone")
    p.add_argument("--trace", type=Path, metavar="FILE.json", help="write a trace for Chrome")
    p.add_argument("--json", type=Path, metavar="FILE.json", help="write the figures, too")


def profile(args: argparse.Namespace) -> int:
    """Print the profile of every size; write what is asked for."""
    from ansorlite.graph.inputs import random_inputs

    if args.plain and args.log is not None:
        raise UsageError("--plain takes nothing from a log: leave out --log")
    log = None if args.log is None else readable(args.log)
    known = log, args.network
    trace = None if args.trace is None else writable(args.trace, *known, args.json)
    figures = None if args.json is None else writable(args.json, *known, args.trace)
    found: dict[str, dict[str, Any]] = {}
    traces: dict[str, dict[str, Any]] = {}
    for label, graph, module in _sizes(args, log, sized_network(args, args.network)):
        inputs = random_inputs(graph, args.seed)
        own = module.profile(*inputs, repeats=args.repeats, alone=not args.in_place_only)
        put(f"size {shown(label)}\n{own}" if label else str(own))
        found[label], traces[label] = own.as_dict(), own.trace()
    if trace is not None:
        _write(trace, _together(traces))
    if figures is not None:
        _write(figures, found.get("", found))
    return 0


def _sizes(
    args: argparse.Namespace, log: Path | None, network: "Graph | SizedNetwork"
) -> "list[tuple[str, Graph, CompiledModule]]":
    """(label, graph, module) of every size, with the log's programs or plain schedules."""
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.sized_module import SizedModule
    from ansorlite.pipeline import auto_schedule, compile_plain

    graphs = [network] if isinstance(network, Graph) else list(network.graphs)
    labels = [""] if isinstance(network, Graph) else list(network.labels)
    modules: list[CompiledModule]
    wanted = args.exact, args.precision, args.max_error
    if args.plain:
        modules = [compile_plain(graph, None, *wanted) for graph in graphs]
    else:
        made = auto_schedule(
            network,
            0,
            log=log,
            exact=args.exact,
            precision=args.precision,
            max_error=args.max_error,
            progress=False,
        )
        missing = [r.task.name for r in made.report.results if r.best is None]
        if log is not None and missing:
            tell(
                f"log: no program of {len(missing)} tasks, such as {shown(missing[0])}: the model"
                " decides"
            )
        modules = made.modules if isinstance(made, SizedModule) else [made]
    return list(zip(labels, graphs, modules, strict=True))


def _together(traces: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """One trace, with a process of the picture for each size."""
    first, *others = traces.values()
    for pid, other in enumerate(others, 2):
        first["traceEvents"] += [{**event, "pid": pid} for event in other["traceEvents"]]
    return first


def _write(path: Path, content: Any) -> None:
    try:
        write_whole(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise MachineError(f"cannot write {path}: {error.strerror}") from error


COMMANDS = (
    Command(
        "profile",
        profile,
        profile_options,
        "show where the time of a network goes, kernel by kernel",
        (
            ("ansorlite profile resnet18 --log resnet18.log", "the programs of a log"),
            ("ansorlite profile m.onnx --log m.log --trace m.json", "and a picture for Chrome"),
            ("ansorlite profile resnet18 --plain", "plain schedules, which nothing has tuned"),
        ),
    ),
)
