"""Races: the best candidates of one task run in turn, so that a disturbance hits all of them.

In: a prepared runner and the kernel images of one task. Out: one `MeasureResult` for each image, in
the same order. Latencies (seconds) follow from ratios within one turn, so a machine that slows down
for a while favours no contender. A runner that has a method `race` (`LocalRunner`) runs all turns,
of a few milliseconds each, in its process; with another runner each turn is one `run`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Protocol, runtime_checkable

from ansorlite.codegen.image import KernelImage
from ansorlite.measure.result import MeasureResult

MIN_TURNS = 2
MAX_TURNS = 60
LONE_TURNS = 5  # a race ends when one contender is left and has run this many turns
# (turns, factor): after so many turns, a contender slower than the leader by the factor drops out.
MARGINS = ((2, 1.3), (5, 1.1), (15, 1.05))


class RunsKernels(Protocol):
    """The part of a `Runner` that a race needs."""

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult: ...


@runtime_checkable
class Racer(Protocol):
    """A runner that races contenders in its own process (see `LocalRunner.race`)."""

    def race(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]: ...


@dataclass(frozen=True)
class Standing:
    """Seconds of a contender's turns; `relative` is the median ratio to the leader (1 or more)."""

    times_s: tuple[float, ...]
    relative: float


def race(
    runner: RunsKernels,
    task_key: str,
    images: Sequence[KernelImage],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[MeasureResult]:
    """Run contenders in turn for about `budget_s`; a failed one is dropped with its failure."""
    if isinstance(runner, Racer):
        return runner.race(task_key, images, budget_s)
    results: list[list[MeasureResult]] = [[] for _ in images]

    def run(k: int) -> float | None:
        results[k].append(runner.run(task_key, images[k]))
        return results[k][-1].latency_s if results[k][-1].ok else None

    standings = run_turns([partial(run, k) for k in range(len(images))], budget_s, clock)
    return ranked([_summary(found) for found in results], standings)


def run_turns(
    contenders: Sequence[Callable[[], float | None]],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Standing | None]:
    """Run the turns A B C, C B A, A B C, ...; returns a `Standing` per contender, None if failed.

    A contender is a function that runs one turn and returns its seconds, or None for a failure. A
    contender drops out when its best turn is slower than the leader's same turn by the margin: one
    disturbed turn does not drop it.
    """
    times: list[list[float]] = [[] for _ in contenders]
    out: dict[int, Standing] = {}
    running = list(range(len(contenders)))
    end_s, turn = clock() + budget_s, 0
    while running and turn < MAX_TURNS and (turn < MIN_TURNS or clock() < end_s):
        for k in list(running if turn % 2 == 0 else running[::-1]):
            seconds = contenders[k]()
            if seconds is None:
                running.remove(k)
                out.pop(k, None)
            else:
                times[k].append(seconds)
        turn += 1
        relative = _relative([times[k] for k in running])
        margin = min((m for n, m in MARGINS if turn >= n), default=float("inf"))
        leader = times[running[relative.index(min(relative))]] if running else []
        for k, r in zip(list(running), relative, strict=True):
            out[k] = Standing(tuple(times[k]), r)
            if min(own / lead for own, lead in zip(times[k], leader, strict=True)) > margin:
                running.remove(k)
        if len(running) == 1 < len(contenders) and turn >= LONE_TURNS:
            break
    return [out.get(k) for k in range(len(contenders))]


def ranked(
    results: Sequence[MeasureResult], standings: Sequence[Standing | None]
) -> list[MeasureResult]:
    """The results with latencies from the race: the leader's median times each relative time."""
    good = [s for r, s in zip(results, standings, strict=True) if s is not None and r.ok]
    if not good:
        return list(results)
    leader = min(good, key=lambda s: (s.relative, -len(s.times_s)))
    lead_s = median(leader.times_s)
    return [
        replace(r, latency_s=lead_s * s.relative / leader.relative, times_s=s.times_s)
        if r.ok and s is not None
        else r
        for r, s in zip(results, standings, strict=True)
    ]


def pooled(heats: Sequence[Sequence[MeasureResult]]) -> list[MeasureResult]:
    """Combine several races (heats) of the same contenders into one result for each.

    A latency is the median over heats of the ratio to the heat's median, times the median of these
    medians, because the speed of the machine differs between heats and processes. A contender that
    failed in one heat keeps the failure.
    """
    if len(heats) == 1:
        return list(heats[0])
    middles = []
    relative: list[list[float]] = [[] for _ in heats[0]]
    for heat in heats:
        good = [r.latency_s for r in heat if r.ok and r.latency_s]
        middles.append(median(good) if good else float("nan"))
        for own, r in zip(relative, heat, strict=True):
            own.append((r.latency_s or 0.0) / middles[-1])
    out = []
    for found, own in zip(zip(*heats, strict=True), relative, strict=True):
        failed = [r for r in found if not r.ok]
        summary = failed[0] if failed else _summary(found)
        if not failed:
            times = tuple(t for r in found for t in r.times_s)
            summary = replace(summary, latency_s=median(own) * median(middles), times_s=times)
        out.append(summary)
    return out


def _relative(times: Sequence[Sequence[float]]) -> list[float]:
    """Each contender's median ratio to the median of its turns, scaled so that the least is 1."""
    if not times:
        return []
    middle = [median(turn) for turn in zip(*times, strict=True)]
    ratios = [median(t / m for t, m in zip(own, middle, strict=True)) for own in times]
    return [r / min(ratios) for r in ratios]


def _summary(results: Sequence[MeasureResult]) -> MeasureResult:
    last = results[-1]
    if not last.ok:
        return last
    return replace(
        last,
        run_s=sum(r.run_s for r in results),
        check_s=sum(r.check_s for r in results),
        max_error=max(r.max_error or 0.0 for r in results),
    )
