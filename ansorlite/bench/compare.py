"""Searchers against each other on the same ground: `ansorlite compare CASE|NETWORK`.

In: a case of the operator suite or a graph, names of `search.searchers`, budgets, seeds. Out: a
`Run` each as a JSON line, a table and a plot. Spaces, policies and models differ; lowering, code
generation, building, measuring and records are the same for all, and they run one after the other.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from ansorlite.bench.in_step import Turn
from ansorlite.bench.programs import Raced, Space, by_name, corrected, programs_at, shares
from ansorlite.bench.runs import (
    Float,
    Key,
    Run,
    append_run,
    efficiency,
    geometric_mean,
    run_of,
    whole,
)
from ansorlite.graph.ir import Graph
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.pipeline import auto_schedule, network_tasks
from ansorlite.search.forms import Forms
from ansorlite.search.searchers import searcher
from ansorlite.search.tune import tune
from ansorlite.tables import aligned
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.units import format_gflops, format_latency, format_seconds
from ansorlite.workloads import workload

BUDGETS = (16, 64, 100, 200, 400, 1000)
AS_FAST = 1.01  # times the latency: what races of two cannot tell apart


@dataclass(frozen=True)
class CompareOptions:
    """Budgets of every run; `logs` is a folder that gets a tuning log a run, `pretrained` a
    model for one-shot search, `scheduler` shares the trials out among the tasks of a network,
    `turn` is called after every round of such a run and may wait (see `bench.in_step`).
    """

    trials: int | None = 64
    timeout: float | None = None
    seeds: int = 1
    logs: Path | None = None
    pretrained: Path | None = None
    scheduler: str = "gradient"
    turn: Turn = lambda trials: None


def compare(
    what: str | Graph,
    names: Sequence[str],
    options: CompareOptions,
    each: Callable[[Run], None] = lambda run: None,
    output: Path | None = None,
) -> list[Run]:
    """Run every searcher with every seed, seed by seed; `each` gets the runs as they end.

    Raises AnsorliteError for a searcher or a case that does not exist, before anything runs, and
    KeyboardInterrupt at Ctrl-C, without the run that it cut short.
    """
    for name in names:
        searcher(name)
    once = run_network if isinstance(what, Graph) else run_case
    if isinstance(what, str):
        workload(what)
    runs = []
    for seed in range(options.seeds):
        for name in names:
            run = once(what, name, seed, options)  # type: ignore[arg-type]
            runs.append(run)
            if output is not None:
                append_run(output, run)
            each(run)
    return runs


def run_case(case: str, name: str, seed: int, options: CompareOptions) -> Run:
    """One search of a case of the operator suite."""
    began = time.time()
    task = workload(case)
    found = tune(
        task,
        options.trials,
        options.timeout,
        seed=seed,
        policy=name,
        log=_log(options, name, case, seed),
        pretrained=_model(options, name),
        progress=False,
    )
    whole(found.interrupted)
    budgets = sorted({*BUDGETS, options.trials or len(found.records)})
    programs = programs_at(space_of(name, task), found, budgets, options.trials)
    return run_of(name, case, seed, found, began, programs, options.trials)


def space_of(name: str, task: SearchTask) -> Space:
    """The space of a searcher, for a task."""
    return by_name(searcher(name).space(task, None))


def run_network(graph: Graph, name: str, seed: int, options: CompareOptions) -> Run:
    """One search of a network; its latency is the sum over its tasks, as of every round."""
    target = Target.detect()
    weights = [w.weight for w in network_tasks(partition(optimize(graph)), target)]
    latency: list[float | None] = []
    at: list[float] = []
    began, waited_s = time.perf_counter(), 0.0

    def on_round(found: Sequence[Forms]) -> None:
        nonlocal waited_s
        best = [f.best_latency_s for f in found]
        known = all(t is not None for t in best)
        total = sum(w * (t or 0.0) for w, t in zip(weights, best, strict=True)) if known else None
        new = sum(f.trials for f in found) - len(latency)
        latency.extend([total] * new)
        now = time.perf_counter()
        at.extend([now - began - waited_s] * new)
        options.turn(len(latency))
        waited_s += time.perf_counter() - now

    module = auto_schedule(
        graph,
        options.trials,
        options.timeout,
        seed=seed,
        policy=name,
        log=_log(options, name, graph.name, seed),
        pretrained=_model(options, name),
        progress=False,
        scheduler=options.scheduler,
        on_round=on_round,
    )
    report = module.report
    whole(report.interrupted)
    return Run(
        name,
        graph.name,
        seed,
        latency,
        report.wall_s - waited_s,
        target.fingerprint,
        time.strftime("%Y-%m-%d"),
        report.seconds,
        at,
    )


def _log(options: CompareOptions, name: str, what: str, seed: int) -> Path | None:
    if options.logs is None:
        return None
    options.logs.mkdir(parents=True, exist_ok=True)
    return options.logs / log_name(what, name, seed)


def log_name(what: str, name: str, seed: int) -> str:
    """The file, in `CompareOptions.logs`, of a searcher's run."""
    return f"{what.replace(':', '')}-{name}-{seed}.jsonl"


def _model(options: CompareOptions, name: str) -> Path | None:
    """The pretrained model, for those that cannot do without."""
    return options.pretrained if name == "one-shot" else None


def table(runs: Sequence[Run], flop: float) -> str:
    """A line a searcher: its best, how near it came to the best of all, how long it took."""
    curves = efficiency(runs)
    most = max((len(c) for c in curves.values()), default=0)
    budgets = [b for b in BUDGETS if b < most] + ([most] if most else [])
    head = ["Searcher", "Runs", "Best", "GFLOP/s", *(f"@{b}" for b in budgets), "Seconds"]
    lines = []
    for name in dict.fromkeys(r.policy for r in runs):
        own = [r for r in runs if r.policy == name and r.latency_s]
        if not own:
            lines.append([name, "0", *[""] * (len(head) - 2)])
            continue
        best = median(float(r.best()[-1]) for r in own)
        cells = [_share([curves[r.key] for r in own], b) for b in budgets]
        lines.append(
            [
                name,
                str(len(own)),
                format_latency(best if math.isfinite(best) else None),
                format_gflops(flop / best),
                *cells,
                format_seconds(median(r.wall_s for r in own)),
            ]
        )
    blank = ["geometric means over seeds", *[""] * (len(head) - 1)]
    return aligned(head, lines, blank, left=("Searcher",)) + "\n"


def _share(curves: Sequence[Float], budget: int) -> str:
    """The share of the best known speed after so many trials."""
    return f"{100 * geometric_mean(float(c[min(budget, len(c)) - 1]) for c in curves):.0f}%"


def claims_text(
    runs: Sequence[Run],
    raced: Raced | None = None,
    groups: Iterable[Collection[str]] | None = None,
) -> str:
    """How the searchers stand over all cases, and how soon some reach what others end at.

    With `raced` programs the shares at the budgets are theirs, and so is who is as fast as whom.
    Only searchers of one of the `groups`, if given, are set against each other.
    """
    curves, share = corrected(efficiency(runs), raced), shares(raced)
    names = list(dict.fromkeys(r.policy for r in runs))
    most = max((len(c) for c in curves.values()), default=0)
    budgets = [b for b in BUDGETS if b < most] + ([most] if most else [])
    lines = [f"{'searcher':20} {'runs':>4} " + " ".join(f"{f'at {b}':>8}" for b in budgets)]
    for name in names:
        own = [(k, c) for k, c in curves.items() if k[0] == name]
        cells = [f"{geometric_mean(share(k, c, b) for k, c in own):8.1%}" for b in budgets]
        lines.append(f"{name:20} {len(own):4} {' '.join(cells)}")
    together = [names] if groups is None else groups
    pairs = {(a, b): None for g in together for a in names for b in names if {a, b} <= {*g}}
    for chaser, goal in (pair for pair in pairs if pair[0] != pair[1]):
        lines += _reached(runs, curves, chaser, goal)
        lines += _as_fast(runs, raced or {}, chaser, goal)
    return "\n".join(lines) + "\n"


def _reached(runs: Sequence[Run], curves: Mapping[Key, Float], chaser: str, goal: str) -> list[str]:
    """How often and how soon `chaser` is as fast as `goal` in the end, of one case and seed.

    A run that never is counts with all of its own trials and seconds in the means.
    """
    by_key = {r.key: r for r in runs}
    trials, seconds, missed = list[float](), list[float](), 0
    for (name, case, seed), target in by_key.items():
        run = by_key.get((chaser, case, seed))
        if name != goal or run is None or not (target.latency_s and run.latency_s):
            continue
        there = np.flatnonzero(curves[run.key] * AS_FAST >= curves[target.key][-1])
        missed += not there.size
        n = int(there[0]) + 1 if there.size else len(run.latency_s)
        trials.append(n / len(target.latency_s))
        if target.at_s and n <= len(run.at_s):
            seconds.append(run.at_s[n - 1] / target.at_s[-1])
    if not trials:
        return []
    text = f"{chaser} reaches the last result of {goal} in {len(trials) - missed} of {len(trials)} "
    text += f"runs, on average after {geometric_mean(trials):.0%} of its trials"
    if seconds:
        text += f" and {geometric_mean(seconds):.0%} of its time"
    return [text]


def _as_fast(runs: Sequence[Run], raced: Raced, chaser: str, goal: str) -> list[str]:
    """In how many runs the raced programs of `chaser` are as fast as the last of `goal`."""
    counts: dict[int, list[bool]] = {}
    for r in runs:
        last = raced.get((*r.key, r.budget))
        if r.policy != goal or last is None:
            continue
        for (name, case, seed, budget), latency in raced.items():
            if (name, case, seed) == (chaser, r.case, r.seed):
                counts.setdefault(budget, []).append(latency <= AS_FAST * last)
    told = [f"{sum(c)} of {len(c)} after {b}" for b, c in sorted(counts.items())]
    return [f"  raced: as fast as its last program in {', '.join(told)}"] if told else []


def case_by_case(runs: Sequence[Run], raced: Raced, chaser: str, goal: str, budget: int) -> str:
    """How fast the program of `chaser` after `budget` trials is, and how long it took to find.

    Both are relative to the last program and the whole time of `goal`: medians over the seeds of
    raced programs. Empty where there are none.
    """
    by_key = {r.key: r for r in runs}
    speeds: dict[str, list[float]] = {}
    times: dict[str, list[float]] = {}
    for (name, case, seed), r in by_key.items():
        own = by_key.get((chaser, case, seed))
        mine, last = raced.get((chaser, case, seed, budget)), raced.get((*r.key, r.budget))
        if name == goal and own is not None and mine and last:
            speeds.setdefault(case, []).append(last / mine)
            at = own.at_s[: max(budget, 1)]
            times.setdefault(case, []).append(at[-1] / r.at_s[-1] if at and r.at_s else math.nan)
    if not speeds:
        return ""
    lines = [f"{chaser} after {budget} trials against the last of {goal}: speed, time"]
    lines += [f"  {c:6} {median(v):6.3f} {median(times[c]):5.0%}" for c, v in speeds.items()]
    ahead = [c for c, v in speeds.items() if median(v) * AS_FAST >= 1.0]
    sooner = [c for c in ahead if median(times[c]) < 1.0]
    lines.append(f"  as fast in {len(ahead)} of {len(speeds)} cases, sooner in {len(sooner)}")
    return "\n".join(lines) + "\n"


def curves(runs: Sequence[Run], flop: float, seconds: bool) -> dict[str, list[tuple[Float, Float]]]:
    """What `bench.runs.plot` draws: best GFLOP/s of every searcher by trials, or by seconds."""
    out: dict[str, list[tuple[Float, Float]]] = {}
    for r in runs:
        n = len(r.at_s) if seconds else len(r.latency_s)
        where = np.asarray(r.at_s) if seconds else np.arange(1.0, n + 1)
        out.setdefault(r.policy, []).append((where, flop / r.best()[:n] / 1e9))
    return out
