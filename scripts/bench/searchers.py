"""Ansor's search against AutoTVM's: how soon some reach what others end at.

In: `RacedRun`s of several searchers over the same cases and seeds, and what their programs took in
a race. Out: text. Latencies and times in seconds.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from ansorlite.baselines.compare import BUDGETS
from ansorlite.baselines.runs import Float, Key, efficiency, geometric_mean
from ansorlite.search.searchers import searcher
from ansorlite.task import SearchTask
from ansorlite.workloads import workload
from bench.programs import (
    Raced,
    Space,
    by_name,
    corrected,
    program_at,
    search_once,
    shares,
    structure,
    structures,
)
from bench.runs import RacedRun

AS_FAST = 1.01  # times the latency: what races of two cannot tell apart


def run_case(case: str, name: str, seed: int, trials: int) -> RacedRun:
    """One search of a case of the operator suite."""
    task = workload(case)
    budgets = sorted({*BUDGETS, trials})
    space = space_of(name, task)
    return search_once(task, case, name, seed, trials, budgets, space, policy=name)


def space_of(name: str, task: SearchTask) -> Space:
    """The space of a searcher, for a task."""
    return by_name(searcher(name).space(task, None))


def claims_text(
    runs: Sequence[RacedRun],
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


def _reached(
    runs: Sequence[RacedRun], curves: Mapping[Key, Float], chaser: str, goal: str
) -> list[str]:
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


def _as_fast(runs: Sequence[RacedRun], raced: Raced, chaser: str, goal: str) -> list[str]:
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


def case_by_case(
    runs: Sequence[RacedRun], raced: Raced, chaser: str, goal: str, budget: int
) -> str:
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


def outside_templates(runs: Sequence[RacedRun]) -> list[str]:
    """Of Ansor's last programs, which have a structure that the case's template cannot have."""
    found = []
    for r in runs:
        budget = max(map(int, r.programs), default=0)
        if r.policy != "ansor" or not budget:
            continue
        task = workload(r.case)
        program = program_at(r, budget, space_of("ansor", task))
        if program is not None:
            known = structures(space_of("template-xgb", task))
            found.append((r.case, structure(program) not in known))
    outside = [case for case, away in found if away]
    if not found:
        return []
    cases = ", ".join(f"{c} ({outside.count(c)})" for c in dict.fromkeys(outside)) or "none"
    return [f"outside of the template's space: {len(outside)} of {len(found)} programs ({cases})"]
