"""Searches that are compared, run in step: the one with the fewest trials goes on for a round.

In: jobs, each of which calls what it is given after every round with the number of its trials. Out:
their results, in order. One of them runs at a time, so nothing is measured beside anything else,
and a machine that slows down for minutes does so to all alike. Ctrl-C ends each at its next turn.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Condition
from typing import TypeVar

from ansorlite.baselines.compare import CompareOptions, run_network
from ansorlite.graph.ir import Graph
from bench.runs import RacedRun

T = TypeVar("T")
Turn = Callable[[int], None]


def in_step(jobs: Sequence[Callable[[Turn], T]]) -> list[T]:
    """Run all of them to their end; the first that raises does so here, after the others' end."""
    trials = [0.0] * len(jobs)
    changed = Condition()
    stopped = False

    def turn(k: int, done: float) -> None:
        with changed:
            trials[k] = done
            changed.notify_all()
            if math.isinf(done):
                return
            changed.wait_for(lambda: stopped or trials.index(min(trials)) == k)
            if stopped:
                raise KeyboardInterrupt

    def whole(k: int) -> T:
        turn(k, 0)
        try:
            return jobs[k](lambda done: turn(k, done))
        finally:
            turn(k, math.inf)

    if not jobs:
        return []
    with ThreadPoolExecutor(len(jobs)) as threads:
        found = [threads.submit(whole, k) for k in range(len(jobs))]
        try:
            wait(found)
        except KeyboardInterrupt:
            with changed:
                stopped = True
                changed.notify_all()
            raise
    return [f.result() for f in found]


def networks_in_step(
    graph: Graph, searches: Sequence[tuple[str, CompareOptions]], seed: int
) -> list[RacedRun]:
    """Searches of a network with one seed, (searcher, options) each, in step."""

    def job(name: str, options: CompareOptions) -> Callable[[Turn], RacedRun]:
        def once(turn: Turn) -> RacedRun:
            run = run_network(graph, name, seed, replace(options, turn=turn))
            return RacedRun(**vars(run))

        return once

    return in_step([job(name, options) for name, options in searches])
