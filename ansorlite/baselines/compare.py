"""Searchers against each other on the same ground: `ansorlite compare`.

In: a task or a graph, names of `search.searchers`, budgets, seeds. Out: a `Run` of each search as a
JSON line, a table, curves to plot. Spaces, policies and models differ; lowering, code generation,
building, measuring and records are the same for all searchers, which run one after the other.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from ansorlite.baselines.runs import (
    Float,
    Run,
    append_run,
    check_complete,
    efficiency,
    geometric_mean,
    run_of,
)
from ansorlite.graph.choice import Lowering
from ansorlite.graph.ir import Graph
from ansorlite.graph.sized import SizedNetwork, graphs_of
from ansorlite.pipeline import auto_schedule
from ansorlite.search.forms import Forms
from ansorlite.search.searchers import searcher
from ansorlite.search.tune import tune
from ansorlite.shared_tasks import network_tasks, shared_tasks
from ansorlite.tables import aligned
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.units import format_gflops, format_latency, format_seconds

BUDGETS = (16, 64, 100, 200, 400, 1000)  # trials: columns of tables


@dataclass(frozen=True)
class CompareOptions:
    """Budgets of each run: `trials` and `timeout` (seconds); the first one spent ends the run.

    `logs` is a folder that gets a tuning log of each run, `pretrained` the model of one-shot
    search, `scheduler` the policy that distributes trials over the tasks of a network. `turn` is
    called after every round of a network's search with the number of trials; the time that `turn`
    takes does not count.
    """

    trials: int | None = 64
    timeout: float | None = None
    seeds: int = 1
    logs: Path | None = None
    pretrained: Path | None = None
    scheduler: str = "gradient"
    turn: Callable[[int], None] = lambda trials: None


def compare(
    what: SearchTask | Graph | SizedNetwork,
    case: str,
    names: Sequence[str],
    options: CompareOptions,
    each: Callable[[Run], None] = lambda run: None,
    output: Path | None = None,
) -> list[Run]:
    """Run every searcher with every seed, seed by seed; `each` gets each run as it ends.

    `case` names the task in runs and logs; a network has its own name. Raises AnsorliteError for an
    unknown searcher before any search starts, and KeyboardInterrupt at Ctrl-C: the run that was cut
    short is dropped.

    >>> compare(workload("GMM:0"), "GMM:0", ["ansor", "template-ga"], CompareOptions(trials=32))
    """
    for name in names:
        searcher(name)
    runs = []
    for seed in range(options.seeds):
        for name in names:
            if isinstance(what, SearchTask):
                run = run_task(what, case, name, seed, options)
            else:
                run = run_network(what, name, seed, options)
            runs.append(run)
            if output is not None:
                append_run(output, run)
            each(run)
    return runs


def run_task(task: SearchTask, case: str, name: str, seed: int, options: CompareOptions) -> Run:
    """One search of a task."""
    began = time.time()
    found = tune(
        task,
        options.trials,
        options.timeout,
        seed=seed,
        policy=name,
        log=_log(options, name, case, seed),
        pretrained=_model(options, name),
        known=False,
        progress=False,
    )
    check_complete(found.interrupted)
    return run_of(name, case, seed, found, began)


def run_network(graph: Graph | SizedNetwork, name: str, seed: int, options: CompareOptions) -> Run:
    """One search of a network; the latency of a trial is the sum over the tasks after its round."""
    target = Target.detect()
    sizes = [network_tasks(Lowering().partition(g), target) for g in graphs_of(graph)]
    weights = [w.weight for w in shared_tasks(sizes).tasks]
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
        known=False,
        progress=False,
        scheduler=options.scheduler,
        on_round=on_round,
    )
    report = module.report
    check_complete(report.interrupted)
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


def _log(options: CompareOptions, name: str, case: str, seed: int) -> Path | None:
    if options.logs is None:
        return None
    options.logs.mkdir(parents=True, exist_ok=True)
    return options.logs / log_name(case, name, seed)


def log_name(case: str, name: str, seed: int) -> str:
    """The file of a searcher's run in `CompareOptions.logs`.

    >>> log_name("C2D:2", "ansor", 0)
    'C2D2-ansor-0.jsonl'
    """
    return f"{case.replace(':', '').replace('/', '-')}-{name}-{seed}.jsonl"


def _model(options: CompareOptions, name: str) -> Path | None:
    """The pretrained model, for the one searcher that needs a model from the start."""
    return options.pretrained if name == "one-shot" else None


def table(runs: Sequence[Run], flop: float) -> str:
    """One line a searcher: its best program, its share of the best speed of all, its duration."""
    shares = efficiency(runs)
    most = max((len(c) for c in shares.values()), default=0)
    budgets = [b for b in BUDGETS if b < most] + ([most] if most else [])
    head = ["Searcher", "Runs", "Best", "GFLOP/s", *(f"@{b}" for b in budgets), "Seconds"]
    lines = []
    for name in dict.fromkeys(r.policy for r in runs):
        own = [r for r in runs if r.policy == name and r.latency_s]
        if not own:
            lines.append([name, "0", *[""] * (len(head) - 2)])
            continue
        best = median(float(r.best()[-1]) for r in own)
        cells = [_share([shares[r.key] for r in own], b) for b in budgets]
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
    """The share of the best known speed after `budget` trials."""
    return f"{100 * geometric_mean(float(c[min(budget, len(c)) - 1]) for c in curves):.0f}%"


def curves(runs: Sequence[Run], flop: float, seconds: bool) -> dict[str, list[tuple[Float, Float]]]:
    """For `baselines.runs.bands`: best GFLOP/s of every searcher over trials, or over seconds."""
    out: dict[str, list[tuple[Float, Float]]] = {}
    for r in runs:
        n = len(r.at_s) if seconds else len(r.latency_s)
        where = np.asarray(r.at_s) if seconds else np.arange(1.0, n + 1)
        out.setdefault(r.policy, []).append((where, flop / r.best()[:n] / 1e9))
    return out
