"""A canary: a short run of multiply-adds on all threads that shows whether the machine is slow now.

On a shared machine the cores slow down for seconds at a time: two virtual cores on one physical
core run at half speed, while one of them alone runs at full speed. A kernel measured in that time
looks twice as slow as it is. In: a number of threads (and the host's `Target`). Out: whether the
last timing was disturbed. If so, the canary waits until the machine is fast again, for a few
seconds at most; the time that it may wait grows back slowly.
"""

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable

import numpy as np

from ansorlite.measure.peak import cached_peak, fma_run
from ansorlite.measure.timing import PATIENCE_S
from ansorlite.target import Target

RUN_S = 0.0004  # length of one run
SLOWER = 1.15  # a run this many times slower than usual means a disturbed machine
USUAL = 0.1  # the usual time is this quantile of the last runs
MEMORY = 400  # number of last runs
FIRST = 20  # number of runs at the start
RATE_RUNS = 100  # for the rate, which shows a machine that throttles for minutes
NAP_S = 0.01  # pause between two runs while the machine is slow
ONCE_S = 2.0  # longest wait at a time
SHARE = 0.1  # share of the elapsed time that is added to the patience (seconds left for waiting)


class Canary:
    """`run` runs the canary's kernel once, `expected_s` is its time on an undisturbed machine.

    `flop` are the kernel's operations, for `rate`, `most_s` the largest patience.

    Example: `canary = local_canary(threads)`, then after each timing `canary.disturbed()`.
    """

    def __init__(
        self,
        run: Callable[[], None],
        expected_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        flop: float = 0.0,
        most_s: float = PATIENCE_S,
    ) -> None:
        self._run, self._clock, self._sleep, self._flop = run, clock, sleep, flop
        self.waited_s = 0.0
        self._most_s = self._patience_s = most_s
        self._share = SHARE * most_s / PATIENCE_S
        self._as_of = clock()
        self._times = deque[float]()  # of the last runs
        self._ordered: list[float] = []  # the same by length: a quantile is asked for all the time
        for _ in range(FIRST):
            self._note(self._seconds())
        if expected_s is not None:
            for _ in range(FIRST):
                self._note(expected_s)

    @property
    def usual_s(self) -> float:
        """Seconds of a run on an undisturbed machine, from the last runs."""
        place = USUAL * (len(self._ordered) - 1)
        low = int(place)
        first, second = self._ordered[low], self._ordered[min(low + 1, len(self._ordered) - 1)]
        return first + (place - low) * (second - first)

    def rate(self) -> float:
        """Operations per second now: the median of `RATE_RUNS` runs of the kernel."""
        return self._flop / float(np.median([self._seconds() for _ in range(RATE_RUNS)]))

    def disturbed(self) -> bool:
        """True if the machine was slow and is fast again: the last timing does not count.

        Waits while the machine is slow. False if it is fast, and also if it stays slow until the
        patience is used up: a disturbed figure is better than none.
        """
        if self._is_fast():
            return False
        start = self._clock()
        grown_s = self._patience_s + self._share * (start - self._as_of)
        patience_s = min(self._most_s, grown_s)
        fast = False
        while not fast and self._clock() - start < min(ONCE_S, patience_s):
            self._sleep(NAP_S)
            fast = self._is_fast()
        self._as_of = self._clock()
        self._patience_s = patience_s - (self._as_of - start)
        self.waited_s += self._as_of - start
        return fast

    def _is_fast(self) -> bool:
        seconds = self._seconds()
        if seconds > SLOWER * self.usual_s:  # perhaps sleeping threads or an interrupt: run again
            seconds = min(seconds, self._seconds())
        self._note(seconds)
        return seconds <= SLOWER * self.usual_s

    def _note(self, seconds: float) -> None:
        self._times.append(seconds)
        insort(self._ordered, seconds)
        if len(self._times) > MEMORY:
            del self._ordered[bisect_left(self._ordered, self._times.popleft())]

    def _seconds(self) -> float:
        start = self._clock()
        self._run()
        return self._clock() - start


def local_canary(threads: int, most_s: float = PATIENCE_S) -> Canary:
    """The canary of this machine on `threads` threads, at most its cores; `most_s` of patience."""
    target = Target.detect()
    run, flop = fma_run(target, min(threads, target.cores), RUN_S)
    peak = cached_peak(target) if threads >= target.cores else None
    expected_s = None if peak is None else flop / peak.flops_all
    return Canary(run, expected_s, flop=flop, most_s=most_s)
