"""The command `ansorlite report`: one page from tuning logs.

In: parsed arguments. Out: the exit status; the page is a file. Nothing is measured.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ansorlite.cli.inputs import network, one_network
from ansorlite.cli.options import Command, batch_option, size_options
from ansorlite.cli.paths import readable, writable
from ansorlite.cli.tasks import TunedNetwork, tasks_of, tuned_network
from ansorlite.errors import AnsorliteError, MachineError, UsageError
from ansorlite.files import write_whole
from ansorlite.records import LogContents, Record, read_log
from ansorlite.streams import put, tell

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph

MOST_KNOWN = 0.8  # share of the log's tasks by which a network is told from its log


def report_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("logs", type=Path, nargs="+", metavar="LOG")
    p.add_argument(
        "-o", "--output", type=Path, metavar="F", default=Path("report.html"), help="report.html"
    )
    p.add_argument(
        "--network",
        metavar="NAME|FILE",
        help="the network that was tuned: its tasks have weights; found out for known networks",
    )
    p.add_argument(
        "--profile", type=Path, metavar="F.json", help="shown, too: of `ansorlite profile --json`"
    )
    batch_option(p, "free first extents")
    size_options(p)


def report(args: argparse.Namespace) -> int:
    """Write the page; say where it is, and what was left out."""
    from ansorlite.report.networks import partition_svg
    from ansorlite.report.page import Page, html
    from ansorlite.report.results import gather

    if args.network is None and (args.dim or args.shape or args.batch):
        raise UsageError("--batch, --dim and --shape are of a network: name it with --network")
    output = writable(args.output, *args.logs, args.network, args.profile)
    profiles = () if args.profile is None else _profiles(readable(args.profile))
    contents, problems = _contents(args.logs)
    graph, tuned = _network(args, contents)
    weighted = () if tuned is None else tuned.weighted
    known = {form.workload_key for w in weighted for form in w.forms}
    others = tasks_of((r for r in contents.records if r.task not in known), ())
    page = Page(
        tuple(map(str, args.logs)),
        "" if graph is None else graph.name,
        gather(contents, weighted, others),
        problems,
        "" if tuned is None else partition_svg(tuned.parts),
        profiles,
        "" if graph is None or tuned is None else _precision(graph, tuned, contents),
    )
    try:
        write_whole(output, html(page))
    except OSError as error:
        raise MachineError(f"cannot write {output}: {error.strerror}") from error
    for problem in problems[:1]:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        tell(f"log: left out: {problem}{more}")
    tasks = sum(len(m.tasks) for m in page.machines)
    put(f"{output}: {tasks} tasks, {len(contents.records)} trials")
    return 0


def _profiles(path: Path) -> tuple[tuple[str, str], ...]:
    """(size, text) of every profile in a file that `ansorlite profile --json` wrote."""
    from ansorlite.graph.profile import Profile

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or not found:
            raise ValueError("it names no network")
        each = {"": found} if "kernels" in found else found
        return tuple((size, str(Profile.from_dict(own))) for size, own in each.items())
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{path} is no profile, which `ansorlite profile --json` writes: {error}"
        ) from None


def _contents(paths: Sequence[Path]) -> tuple[LogContents, tuple[str, ...]]:
    """(all logs as one, each record once; a line a damaged line). Lines are counted on."""
    records: list[Record] = []
    choices: list[Record] = []
    problems: list[str] = []
    before = 0
    seen: set[str] = set()
    for path in paths:
        found = read_log(path)
        problems += [f"{path}, {problem}" for problem in found.problems]
        for target, some in ((records, found.records), (choices, found.choices)):
            for r in some:
                text = r.to_json() if len(paths) > 1 else str(r.line)
                if text not in seen:
                    seen.add(text)
                    target.append(replace(r, line=before + r.line))
        before += max((r.line for r in (*found.records, *found.choices)), default=0)
    return LogContents(tuple(records), (), tuple(choices)), tuple(problems)


def _network(
    args: argparse.Namespace, contents: LogContents
) -> "tuple[Graph | None, TunedNetwork | None]":
    """The network that was tuned, and how: the one that is named, else one that fits."""
    from ansorlite.workloads.networks import NETWORKS

    keys = {r.task for r in contents.records}
    if args.network is not None:
        named = one_network(args, args.network)
        return named, tuned_network(named, keys, contents.choices)
    unknown = keys - set(tasks_of(contents.records, ()))
    names = sorted(NETWORKS, key=lambda name: not any(name in p.name for p in args.logs))
    for name in names if unknown else ():
        try:
            graph = network(name)
        except AnsorliteError:
            continue
        tuned = tuned_network(graph, keys, contents.choices)
        own = {form.workload_key for w in tuned.weighted for form in w.forms}
        if len(unknown & own) >= MOST_KNOWN * len(unknown):
            return graph, tuned
    return None, None


def _precision(graph: "Graph", tuned: TunedNetwork, contents: LogContents) -> str:
    """What each kernel computes in, and the error, as the best records' forms have it."""
    from ansorlite.graph.accuracy import meant_accuracy
    from ansorlite.graph.arithmetic import arithmetic

    if tuned.way.precision == "float32":
        return ""
    latency: dict[str, float] = {}
    for r in contents.records:
        latency[r.task] = min(r.lowest_s, latency.get(r.task, math.inf))
    forms = [
        min(w.forms, key=lambda t: latency.get(t.workload_key, math.inf)) for w in tuned.weighted
    ]
    found = arithmetic(tuned.parts, [t.dag for t in forms], tuned.way.precision)
    return str(found.with_errors(meant_accuracy(tuned.parts.graph, graph)))


COMMANDS = (
    Command(
        "report",
        report,
        report_options,
        "make a page of tuning logs: curves, tables, programs",
        (
            ("ansorlite report resnet18.log -o resnet18.html", "a page of a network that is known"),
            ("ansorlite report model.log --network model.onnx", "a page of a model of your own"),
        ),
    ),
)
