"""The commands on tuning logs: `ansorlite log stats|merge|distill`, `replay` and `simulate`.

In: parsed arguments. Out: the exit status; tables on standard output.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from ansorlite.cli.inputs import network
from ansorlite.cli.options import Command, positive
from ansorlite.cli.paths import writable
from ansorlite.cli.tasks import tasks_of
from ansorlite.errors import LogError, UsageError
from ansorlite.record_fields import CHOSEN
from ansorlite.records import LogContents, Record, RecordLog, distill, read_log
from ansorlite.streams import put

ACTIONS = ("stats", "merge", "distill")
POLICIES = ("evolutionary", "random")


def log_options(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "what", choices=ACTIONS, help="a summary; all records in one log; the best in one log"
    )
    p.add_argument("logs", type=Path, nargs="+", metavar="LOG")
    p.add_argument("--output", type=Path, metavar="F", help="the new log (merge, distill)")
    p.add_argument(
        "--keep", type=positive, metavar="N", default=1, help="distill: best N of a task"
    )


def _log(args: argparse.Namespace) -> str:
    """A summary of logs, or a new log: all records of them (merge), or the best (distill)."""
    from ansorlite.report.logs import log_stats

    if args.what == "stats":
        return "\n\n".join(f"{path}\n{log_stats(read_log(path))}" for path in args.logs)
    if args.output is None:
        raise UsageError(f"log {args.what} writes a new log: say where with --output")
    writable(args.output)
    if args.output.exists() and args.output.stat().st_size:
        raise UsageError(f"{args.output} exists: name a new log, so that nothing is lost")
    contents = [read_log(path) for path in args.logs]
    found = [r for c in contents for r in c.records]
    kept = merged(found) if args.what == "merge" else distill(found, args.keep)
    if args.what == "merge":
        kept = (*kept, *(r for c in contents for r in c.estimates))
    with RecordLog(args.output, fsync=False) as out:
        for r in _in_order(contents, kept):
            out.append(r)
    found += [r for c in contents for r in c.estimates]
    lines = f"{len(kept)} of {len(found)} records of {len(args.logs)} logs in {args.output}"
    damaged = sum(len(c.problems) for c in contents)
    return lines + (f"; {damaged} damaged lines left out" if damaged else "")


def merged(records: Iterable[Record]) -> tuple[Record, ...]:
    """The records in order, each of them once."""
    return tuple({r.to_json(): r for r in records}.values())


def _in_order(contents: Sequence[LogContents], kept: Iterable[Record]) -> tuple[Record, ...]:
    """The records to keep and all choices, in the order of the logs: a later line counts more."""
    wanted = {id(r) for r in kept}
    return merged(
        r
        for c in contents
        for r in sorted((*c.records, *c.choices, *c.estimates), key=lambda r: r.line)
        if id(r) in wanted or r.status == CHOSEN
    )


def replay_options(p: argparse.ArgumentParser) -> None:
    _recorded_tasks(p)
    p.add_argument("--keep", type=positive, metavar="N", default=1, help="best N of a task (1)")
    p.add_argument("--all", action="store_true", help="every valid record instead")


def _recorded_tasks(p: argparse.ArgumentParser) -> None:
    p.add_argument("log", type=Path, metavar="LOG")
    p.add_argument(
        "networks",
        nargs="*",
        metavar="NETWORK|FILE.onnx",
        help="where the tasks are from; cases of the operator suite are found by name",
    )


def _replay(args: argparse.Namespace) -> tuple[str, bool]:
    """Run recorded programs again: (a table, whether all of them are right)."""
    from ansorlite.measure.runner import LocalRunner
    from ansorlite.measure.timing import TimingPolicy
    from ansorlite.report.logs import replayed_table
    from ansorlite.search.replay import replay as run_again

    contents = read_log(args.log)
    valid = [r for r in contents.records if r.ok]
    if not valid:
        raise LogError(f"{args.log} has no valid record: there is nothing to run again")
    tasks = tasks_of(valid, map(network, args.networks))
    chosen = valid if args.all else distill(valid, args.keep)
    # Kernels of networks were timed with constants from memory (see `pipeline.auto_schedule`).
    with LocalRunner(policy=TimingPolicy(fresh_constants=bool(args.networks))) as runner:
        found = list(run_again(chosen, tasks, runner=runner))
    return _told(replayed_table(found), contents), all(r.latency_s is not None for r in found)


def _told(text: str, contents: LogContents, left_out: int = 0) -> str:
    """A table, and a line on what of the log is not in it."""
    damage = [contents.damage] if contents.damage else []
    if left_out:
        damage.append(f"records that are in no space searched here: {left_out}")
    return "\n".join([text, *(f"log: {line}" for line in damage)])


def simulate_options(p: argparse.ArgumentParser) -> None:
    _recorded_tasks(p)
    p.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), metavar="P")
    p.add_argument("--trials", type=positive, metavar="N", default=64, help="of a run (64)")
    p.add_argument("--seeds", type=positive, metavar="K", default=3, help="runs of a policy (3)")


def _simulate(args: argparse.Namespace) -> str:
    """Let policies search what a log holds, without measuring: a table."""
    from ansorlite.baselines.simulate import RecordedTask, simulate_policy
    from ansorlite.report.logs import simulated_table
    from ansorlite.space.sketch import sketches

    contents = read_log(args.log)
    records, left_out = contents.records, 0
    tasks = tasks_of(records, map(network, args.networks))
    found = []
    for key, task in tasks.items():
        own = [r for r in records if (r.task, r.target) == (key, task.target.fingerprint)]
        if not own:
            continue
        recorded = RecordedTask(task, sketches(task.dag, task.target), own)
        left_out += recorded.left_out
        for name in args.policies:
            runs = [
                simulate_policy(recorded, name, args.trials, seed) for seed in range(args.seeds)
            ]
            found.append((task.name, len(recorded), name, recorded.best_s, runs))
    if not found:
        raise LogError(f"{args.log} has no record for this machine of a task that is known")
    return _told(simulated_table(found, args.trials), contents, left_out)


def log(args: argparse.Namespace) -> int:
    put(_log(args))
    return 0


def replay(args: argparse.Namespace) -> int:
    """Status 1 if a program is not right."""
    text, right = _replay(args)
    put(text)
    return 0 if right else 1


def simulate(args: argparse.Namespace) -> int:
    put(_simulate(args))
    return 0


COMMANDS = (
    Command(
        "log",
        log,
        log_options,
        "say what is in tuning logs, merge or distill them",
        (
            ("ansorlite log stats resnet18.log", "trials, failures and best latency of each task"),
            ("ansorlite log distill a.log b.log --output best.log", "the best record of each task"),
        ),
    ),
    Command(
        "replay",
        replay,
        replay_options,
        "lower, check and time recorded programs again",
        (("ansorlite replay resnet18.log resnet18", "the best program of each task"),),
    ),
    Command(
        "simulate",
        simulate,
        simulate_options,
        "let policies search what a log holds",
        (("ansorlite simulate c2d.log --trials 64", "random and evolutionary search"),),
    ),
)
