"""Searches that are compared, run in step: whoever has measured the least goes on for a round.

In: jobs, each of which calls what it is given after every round with the number of its trials. Out:
their results, in order. One of them runs at a time, so nothing is measured beside anything else,
and a machine that slows down for minutes does so to all alike.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Condition
from typing import TypeVar

T = TypeVar("T")
Turn = Callable[[int], None]


def in_step(jobs: Sequence[Callable[[Turn], T]]) -> list[T]:
    """Run all of them to their end; the first that raises does so here, after the others' end."""
    trials = [0.0] * len(jobs)
    changed = Condition()

    def turn(k: int, done: float) -> None:
        with changed:
            trials[k] = done
            changed.notify_all()
            changed.wait_for(lambda: math.isinf(done) or trials.index(min(trials)) == k)

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
    return [f.result() for f in found]
