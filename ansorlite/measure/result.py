"""What becomes of a candidate that was to be measured: the outcome is a value, never an exception.

Flow: builder and runner -> `MeasureResult` -> search (`policy.tell`) and the tuning record.
All times are in seconds. A failed build or run carries its status and an error text that names
the signal, the exception or the first wrong output element.
"""

from dataclasses import dataclass
from enum import StrEnum

from ansorlite.names import shown
from ansorlite.units import format_latency


class Status(StrEnum):
    """What happened; the value is the word that stands in a tuning record."""

    OK = "OK"
    BUILD_ERROR = "BUILD_ERROR"
    BUILD_TIMEOUT = "BUILD_TIMEOUT"
    RUN_ERROR = "RUN_ERROR"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    WRONG_OUTPUT = "WRONG_OUTPUT"


@dataclass(frozen=True)
class MeasureResult:
    """One measurement.

    `latency_s` is the median of `times_s` (one entry a repeat, seconds per call) and None unless
    the status is OK. `build_s`, `run_s` and `check_s` say what the measurement itself cost:
    compiling, running for the clock, running and comparing for the check. `max_error` is the
    largest deviation from the reference as a fraction of what is tolerated (1 is the limit; None
    where nothing was compared).
    """

    status: Status
    latency_s: float | None = None
    times_s: tuple[float, ...] = ()
    error: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    check_s: float = 0.0
    max_error: float | None = None

    def __str__(self) -> str:
        if self.ok:
            return f"{self.status}, {format_latency(self.latency_s)}"
        return shown(f"{self.status}: {self.error}" if self.error else self.status)

    @property
    def ok(self) -> bool:
        return self.status is Status.OK
