"""The programs that searches had found: kept with their runs, raced in the end, compared.

In: results of searches, or runs with their `programs`, and the space that each searched. Out: their
latencies in seconds, taken in turn in one process, and in several processes, since a shared machine
changes over the hours of many runs; the structures of programs, to tell what another space lacks.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from ansorlite.baselines.runs import Float, Key, check_complete, run_of
from ansorlite.codegen.build import build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MeasureError
from ansorlite.ir.program import NO_NOTE, Program, all_buffers, stores_under
from ansorlite.measure.race import pooled, race
from ansorlite.measure.result import MeasureResult
from ansorlite.measure.runner import CheckSpec, LocalRunner, Runner
from ansorlite.measure.timing import TimingPolicy
from ansorlite.records import Record
from ansorlite.schedule.lower import lower
from ansorlite.search.recorded import record_candidate, record_program
from ansorlite.search.reference import reduction_length, reference_state
from ansorlite.search.result import TuneResult
from ansorlite.search.tune import tune
from ansorlite.search.tune_tasks import ALONE
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads import workload
from bench.runs import RacedRun

Space = Mapping[str, Sketch]
Raced = dict[tuple[str, str, int, int], float]  # policy, case, seed, trials -> seconds
RACES = 3
CHECK_SEED = 0  # of the inputs
Structure = tuple[frozenset[tuple[str, tuple[tuple[str, bool], ...]]], tuple[str, ...]]


def by_name(sketches: Sequence[Sketch]) -> Space:
    return {s.name: s for s in sketches}


def prepare(runner: Runner, task: SearchTask) -> None:
    """Give a runner the task's data and its checked reference. Raises MeasureError."""
    reference = build_program(lower(reference_state(task.plain)), task.target)
    length = reduction_length(task.plain.dag)
    spec = CheckSpec(task.dag, CHECK_SEED, reference, length, task.rtol, task.meaning)
    ready = runner.prepare(task.workload_key, spec)
    if not ready.ok:
        raise MeasureError(f"the reference of task {task.name} does not serve: {ready.error}")


def race_once(
    task: SearchTask,
    images: Sequence[KernelImage],
    seconds: float,
    timing: TimingPolicy | None = None,
) -> list[MeasureResult]:
    """One race of kernels of a task in a process of its own, about so many seconds."""
    with LocalRunner(policy=timing) as runner:
        prepare(runner, task)
        return race(runner, task.workload_key, images, seconds)


def search_once(
    task: SearchTask,
    case: str,
    name: str,
    seed: int,
    trials: int,
    budgets: Sequence[int] = (),
    sketches: Space | None = None,
    **options: Any,
) -> RacedRun:
    """One search of a task, with what it would have settled on after `budgets` of trials.

    `sketches` are its space, without which no program is kept; `options` go to `tune`. Raises
    KeyboardInterrupt where Ctrl-C cut it short.
    """
    began = time.time()
    found = tune(task, trials, seed=seed, progress=False, **options)
    check_complete(found.interrupted)
    programs = {} if sketches is None else programs_at(sketches, found, budgets, trials)
    run = run_of(name, case, seed, found, began)
    return RacedRun(**vars(run), programs=programs, asked=trials)


def programs_at(
    space: Space, found: TuneResult, budgets: Sequence[int], asked: int | None = None
) -> dict[str, Any]:
    """What `RacedRun.programs` holds: what the search would have settled on at every budget.

    That is the winner of a race of the best so far, as at the end of a search. A search `asked`
    for more trials than its space has stays with its last program.
    """
    task, records = found.task, found.records
    out = {}
    for budget in [b for b in budgets if b <= max(asked or 0, len(records))]:
        best = fastest(records[:budget], ALONE.race.contenders)
        if budget < len(records):
            winner = settled(task, best)
        else:
            winner = found.best.record if found.best else None
        for r in [winner, *best] if winner is not None else best:
            c = record_candidate(task, space, r)
            if c is not None:  # and not the plain schedule
                out[str(budget)] = c.sketch.name, {k: list(v) for k, v in c.values.items()}
                break
    return out


def fastest(records: Sequence[Record], n: int) -> list[Record]:
    """The n fastest records, the fastest first; records of equal times are of equal code."""
    found: dict[tuple[float | None, ...], Record] = {}
    for r in sorted((r for r in records if r.ok), key=lambda r: r.lowest_s):
        found.setdefault((r.latency_s, *r.times_s), r)
    return list(found.values())[:n]


def settled(task: SearchTask, records: Sequence[Record]) -> Record | None:
    """The winner of a race of records' programs; None where there are no records."""
    if len(records) < 2:
        return records[0] if records else None
    images = [build_program(record_program(task, r), task.target) for r in records]
    results = race_once(task, images, ALONE.race.seconds)
    times = [r.latency_s if r.ok and r.latency_s else math.inf for r in results]
    return records[int(np.argmin(times))]


def program_at(run: RacedRun, budget: int, space: Space) -> Program | None:
    """The program that a run had found by then; None where it kept none that the space has."""
    name, values = run.programs.get(str(budget), ("", {}))
    sketch = space.get(name)
    if sketch is None:
        return None
    return sketch.fill(sketch.row({k: tuple(v) for k, v in values.items()}))


def race_all(
    runs: Sequence[RacedRun],
    space_of: Callable[[str, SearchTask], Space],
    seconds: float = 15.0,
    target: Target | None = None,
    races: int = RACES,
) -> Raced:
    """What the runs had found at the budgets, raced in turn, about so many seconds a case.

    These are shared out among so many `races`, each in a process of its own.
    `space_of` gives the space of a run's policy for a task. Runs for another target than this one
    (the host's) are left out.
    """
    out: Raced = {}
    for case in dict.fromkeys(r.case for r in runs):
        task = workload(case, target=target)
        own = [r for r in runs if r.case == case and r.target == task.target.fingerprint]
        spaces = {name: space_of(name, task) for name in {r.policy for r in own}}
        distinct: dict[str, list[tuple[str, str, int, int]]] = {}
        programs = {}
        for r in own:
            for budget in map(int, r.programs):
                program = program_at(r, budget, spaces[r.policy])
                if program is not None:
                    programs[str(program)] = program
                    distinct.setdefault(str(program), []).append((r.policy, case, r.seed, budget))
        if not programs:
            continue
        for text, latency in zip(
            programs, raced(task, list(programs.values()), seconds, races), strict=True
        ):
            if latency is not None:
                out |= dict.fromkeys(distinct[text], latency)
    return out


def raced(
    task: SearchTask,
    programs: Sequence[Program],
    seconds: float,
    races: int,
    timing: TimingPolicy | None = None,
) -> list[float | None]:
    """Medians of several races, each in a process of its own: where memory lies is luck.

    Races count by how their contenders stand to the middle one, as the machine drifts.
    """
    images = [build_program(p, task.target) for p in programs]
    heats = [race_once(task, images, seconds / races, timing) for _ in range(races)]
    return [r.latency_s if r.ok else None for r in pooled(heats)]


def shares(raced: Raced | None) -> Callable[[Key, Float, int], float]:
    """(key of a run, its curve, trials) -> share of the best known speed after so many trials.

    Those of raced programs are relative to the fastest of them; where there is none, the curve's.
    """
    known: dict[str, float] = {}
    for (_, case, _, _), latency in (raced or {}).items():
        known[case] = min(latency, known.get(case, math.inf))

    def share(key: Key, curve: Float, budget: int) -> float:
        latency = (raced or {}).get((*key, budget))
        at = min(budget, len(curve)) - 1
        return float(curve[at]) if latency is None else known[key[1]] / latency

    return share


def corrected(curves: Mapping[Key, Float], raced: Raced | None) -> dict[Key, Float]:
    """Curves of shares with what each run measured replaced by what its programs did in the race.

    Between budgets the correction changes with the logarithm of the trials; it takes out how fast
    the machine was in the hour of a run, and the luck of the least of many measurements.
    """
    share = shares(raced)
    budgets: dict[Key, list[int]] = {}
    for policy, case, seed, budget in sorted(raced or {}):
        budgets.setdefault((policy, case, seed), []).append(budget)
    out = {}
    for key, curve in curves.items():
        at = [b for b in budgets.get(key, []) if b <= len(curve)] or budgets.get(key, [])[:1]
        own = [curve[min(b, len(curve)) - 1] for b in at]
        if at and min(own) > 0:
            factors = np.log([share(key, curve, b) / c for b, c in zip(at, own, strict=True)])
            trials = np.log(np.arange(1, len(curve) + 1))
            curve = curve * np.exp(np.interp(trials, np.log(at), factors))
        out[key] = curve
    return out


def structure(program: Program) -> Structure:
    """The order of the loops around every reduction, which are register tiles, what is packed.

    Neighbouring loops of one axis count as one; extents do not count.
    """
    nests = set()
    for store, loops in stores_under(program.body):
        if store.combiner:
            around = [(lp.axis[1], lp.note("register") is not NO_NOTE) for lp in loops]
            nests.add((store.stage.removesuffix(".cache"), tuple(k for k, _ in groupby(around))))
    packed = tuple(sorted(b.name for b in all_buffers(program) if b.layout is not None))
    return frozenset(nests), packed


def structures(space: Space, samples: int = 400, seed: int = 0) -> set[Structure]:
    """The structures of so many programs drawn of each sketch."""
    rng = np.random.default_rng(seed)
    return {structure(s.fill(row)) for s in space.values() for row in s.sample(samples, rng)}
