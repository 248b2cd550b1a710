"""The commands `ansorlite compare CASE|NETWORK|FILE` and `ansorlite pretrain`.

`compare` runs searchers one after the other under equal budgets; `pretrain` makes the model that
one-shot search starts with.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ansorlite.cli.inputs import network, one_network, sized_network
from ansorlite.cli.options import (
    Command,
    batch_option,
    count,
    positive,
    seconds,
    size_options,
)
from ansorlite.cli.paths import folder, readable, writable
from ansorlite.cli.tasks import task_of
from ansorlite.errors import MissingExtra, ModelError, UsageError
from ansorlite.streams import put, tell

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.sized import SizedNetwork
    from ansorlite.task import SearchTask

DEFAULT = ("ansor", "template-xgb", "template-ga", "template-random")


def compare_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "what", metavar="CASE|NETWORK|FILE.onnx", help="a case such as C2D:2, or a network"
    )
    p.add_argument(
        "--task", metavar="NAME|N", help="of a network: this one of its tasks, in its plain form"
    )
    batch_option(p, "of a case or network: free first extents")
    size_options(p)
    p.add_argument(
        "--searchers",
        metavar="A,B,...",
        default=",".join(DEFAULT),
        help=f"default {','.join(DEFAULT)}; 'list' prints all",
    )
    p.add_argument("--trials", type=positive, metavar="N", help="of a run (64 without --timeout)")
    p.add_argument("--timeout", type=seconds, metavar="S", help="wall-clock seconds of a run")
    p.add_argument("--seeds", type=positive, metavar="K", default=1, help="runs of a searcher (1)")
    p.add_argument("--pretrained", type=Path, metavar="F", help="model for one-shot search")
    p.add_argument("--logs", type=Path, metavar="DIR", help="keep a tuning log of every run there")
    p.add_argument("--output", type=Path, metavar="F", help="append the runs as JSON lines")
    p.add_argument(
        "--plot", type=Path, metavar="F.svg", help="best GFLOP/s over trials and seconds"
    )


def compare(args: argparse.Namespace) -> int:
    """Run the searchers; print a line a run as it ends, then a table; Ctrl-C keeps ended runs."""
    from ansorlite.baselines.compare import CompareOptions, curves, table
    from ansorlite.baselines.compare import compare as run_all
    from ansorlite.baselines.runs import Run, bands, chart
    from ansorlite.search.searchers import SEARCHERS
    from ansorlite.units import format_latency, format_seconds

    if args.searchers == "list":
        for name, s in SEARCHERS.items():
            put(f"{name:22} {s.what}")
        return 0
    output = None if args.output is None else writable(args.output, args.what)
    if args.plot is not None:
        writable(args.plot, args.output, args.what)
    if args.logs is not None:
        folder(args.logs)
    if args.pretrained is not None:
        readable(args.pretrained)
    what, case = _what(args)
    flop = _flop(what)
    trials = 64 if args.trials is None and args.timeout is None else args.trials
    options = CompareOptions(trials, args.timeout, args.seeds, args.logs, args.pretrained)

    runs: list[Run] = []

    def each(run: Run) -> None:
        runs.append(run)
        best = float(run.best()[-1]) if run.latency_s else None
        tell(
            f"{run.policy} seed {run.seed}: {format_latency(best)} after {len(run.latency_s)} "
            f"trials, {format_seconds(run.wall_s)}"
        )

    names = list(dict.fromkeys(n.strip() for n in args.searchers.split(",") if n.strip()))
    if not names:
        raise UsageError("no searcher is named: give --searchers A,B,... or 'list'")
    try:
        run_all(what, case, names, options, each, output)
    except KeyboardInterrupt:
        if not runs:
            raise
        tell("interrupted: the runs that ended are kept")
    put(table(runs, flop), end="")
    if args.plot is not None:
        try:
            chart(args.plot, "trials", "best GFLOP/s", bands(curves(runs, flop, False)))
            second = args.plot.with_stem(f"{args.plot.stem}-seconds")
            chart(second, "seconds", "best GFLOP/s", bands(curves(runs, flop, True)))
        except MissingExtra as error:
            tell(f"no plot: {error}")
    return 0


def _what(args: argparse.Namespace) -> "tuple[SearchTask | Graph | SizedNetwork, str]":
    """(task or network, its name in runs and logs): a case of the suite where the text is one."""
    from ansorlite.workloads import workload
    from ansorlite.workloads.ops import parse_case

    text, task = args.what, args.task
    if not text.endswith(".onnx"):
        try:
            name, index = parse_case(text)
        except ModelError:
            if ":" in text:
                raise
        else:
            if task is not None:
                raise UsageError(f"{text} is one task: leave out --task")
            if args.dim or args.shape:
                raise UsageError(f"{text} is one task: --dim and --shape are of networks")
            batch = f" batch {args.batch}" if args.batch else ""
            return workload(name, index, batch=args.batch or 1), f"{name}:{index}{batch}"
    if task is None:
        graph = sized_network(args, text)
        return graph, graph.name
    one = one_network(args, text)
    chosen = task_of(one, task).task
    return chosen, f"{one.name}/{chosen.name}"


def _flop(what: "SearchTask | Graph | SizedNetwork") -> float:
    from ansorlite.graph.choice import Lowering
    from ansorlite.graph.sized import graphs_of
    from ansorlite.task import SearchTask

    if isinstance(what, SearchTask):
        return what.flop
    return sum(Lowering().partition(g).flop for g in graphs_of(what))


def pretrain_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("output", type=Path, metavar="MODEL")
    p.add_argument(
        "--model",
        choices=("trees", "attention"),
        default="trees",
        help="boosted trees (default), or self-attention (needs torch; for one-shot search alone)",
    )
    p.add_argument(
        "--networks",
        nargs="+",
        metavar="NETWORK|FILE.onnx",
        default=["resnet18", "mobilenet_v2", "resnet18_3d", "bert_base"],
        help="whose layers tell what tasks are likely (default: four networks, not resnet50)",
    )
    p.add_argument("--minutes", type=seconds, metavar="M", default=60.0, help="default 60")
    p.add_argument("--log", type=Path, metavar="F", help="keep the measurements")
    p.add_argument("--seed", type=count, metavar="K", default=0, help="default 0")


def pretrain(args: argparse.Namespace) -> int:
    """Measure, train and save; a line a task on standard error."""
    from ansorlite.baselines.pretrain import pretrain as make

    output = writable(args.output, args.log)
    graphs = [network(name) for name in args.networks]
    make(graphs, args.minutes, output, log=args.log, seed=args.seed, kind=args.model, tell=tell)
    put(f"{output}: use it with --policy one-shot --pretrained {output}")
    return 0


COMMANDS = (
    Command(
        "compare",
        compare,
        compare_options,
        "run searchers under the same budgets",
        (
            ("ansorlite compare C2D:2 --trials 200 --plot c2d.svg", "four searchers, a plot"),
            (
                "ansorlite compare model.onnx --task 3 --searchers ansor,template-ga",
                "one task of a network",
            ),
            ("ansorlite compare model.onnx --dim N=1 --trials 200", "a file with a free extent"),
            ("ansorlite compare C2D:2 --searchers list", "the names of all searchers"),
        ),
    ),
    Command(
        "pretrain",
        pretrain,
        pretrain_options,
        "train a cost model of this machine once",
        (("ansorlite pretrain model.txt --minutes 30", "then: tune-op --pretrained model.txt"),),
    ),
)
