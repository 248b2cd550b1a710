"""A canary: a run of multiply-adds on all threads whose time tells that the machine is disturbed.

On a shared machine the cores slow down for seconds at a time (two virtual cores that are put on one
core run at half their speed, and one of them alone as fast as ever), and a kernel that is measured
then looks as bad as one that is twice as slow. In: `Target`, threads. Out: whether what was just
timed is to be trusted; before a "no", the canary waits for the machine to recover, as long as its
patience lasts: a few seconds, which it regains over time.
"""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from ansorlite.measure.peak import fma_run, kept_peak
from ansorlite.target import Target

RUN_S = 0.0004
SLOWER = 1.15  # than usual: disturbed
USUAL = 0.1  # quantile of what the canary took lately
MEMORY = 400  # runs that count as lately
FIRST = 20  # of them are made at the start
NAP_S = 0.01  # between two looks while the machine is slow
ONCE_S = 2.0  # the longest wait
SHARE = 0.1  # of the time is added to its patience, up to
PATIENCE_S = 4.0  # this, so that no kernel is waited for much longer


class Canary:
    """`run` is the canary's kernel; `expected_s` is what it takes on an undisturbed machine."""

    def __init__(
        self,
        run: Callable[[], None],
        expected_s: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._clock, self._sleep = run, clock, sleep
        self.waited_s = 0.0
        self._patience_s, self._as_of = PATIENCE_S, clock()
        self._times: deque[float] = deque(maxlen=MEMORY)
        for _ in range(FIRST):
            self._times.append(self._seconds())
        if expected_s is not None:
            self._times.extend([expected_s] * FIRST)

    @property
    def usual_s(self) -> float:
        """What it takes where nothing disturbs it."""
        return float(np.quantile(self._times, USUAL))

    def disturbed(self) -> bool:
        """Is the machine slow just now? If so, returns when it is fast again.

        False, too, where it stays slow until patience is out: better a figure than none.
        """
        if self._is_fast():
            return False
        start = self._clock()
        grown_s = self._patience_s + SHARE * (start - self._as_of)
        patience_s = min(PATIENCE_S, grown_s)
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
        if seconds > SLOWER * self.usual_s:  # threads that slept, or an interrupt: look again
            seconds = min(seconds, self._seconds())
        self._times.append(seconds)
        return seconds <= SLOWER * self.usual_s

    def _seconds(self) -> float:
        start = self._clock()
        self._run()
        return self._clock() - start


def local_canary(threads: int) -> Canary:
    """The canary of this machine, on so many threads."""
    target = Target.detect()
    run, flop = fma_run(target, min(threads, target.cores), RUN_S)
    peak = kept_peak(target) if threads >= target.cores else None
    return Canary(run, None if peak is None else flop / peak.flops_all)
