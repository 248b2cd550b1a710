"""Where the wall-clock time of a tuning run goes.

Flow: the tuning loop wraps its stages in `with clock.phase("search"):`; the closing table of
`tables.time_table` prints the sums. In: phase names. Out: seconds per name, in order of first use,
and the seconds since the clock was made. Inner phases are not counted in outer ones, so the sums
never exceed the whole. What goes on while programs are built in the background is a phase of its
own: it takes no time that the builds do not take. One clock belongs to one thread.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BESIDE = " while building"  # behind the name of a phase: its part beside builds
APART = ("search", "training")  # phases that need one core, or less


class PhaseClock:
    """Accumulates seconds per phase; `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._start = self._since = now()
        self._open: list[str] = []
        self._seconds: dict[str, float] = {}
        self._built: Callable[[], float] | None = None
        self._built_s = 0.0

    def count_beside(self, built_s: Callable[[], float]) -> None:
        """Tell phases that go on beside builds from others; `built_s()` grows while they do."""
        self._charge()
        self._built, self._built_s = built_s, built_s()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time in the body as `name`, also if it ends by an exception."""
        self._charge()
        self._seconds.setdefault(name, 0.0)
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def add(self, name: str, seconds: float) -> None:
        """Move `seconds` that a part of the current phase took to `name`.

        For work whose duration is only known afterwards, such as the checks inside a runner.
        """
        self._charge()
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
        if self._open:
            self._seconds[self._open[-1]] -= seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per phase, phases that are still open included."""
        self._charge()
        return dict(self._seconds)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was made."""
        return self._now() - self._start

    def _charge(self) -> None:
        now, beside = self._now(), 0.0
        if self._built is not None:
            before, self._built_s = self._built_s, self._built()
            beside = min(self._built_s - before, now - self._since)
        if self._open:
            name = self._open[-1]
            if name in APART and beside > 0:
                self._seconds[name + BESIDE] = self._seconds.get(name + BESIDE, 0.0) + beside
            else:
                beside = 0.0
            self._seconds[name] += now - self._since - beside
        self._since = now
