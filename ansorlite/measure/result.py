"""The outcome of building and measuring a candidate: a value, never an exception.

Flow: builder and runner -> `MeasureResult` -> search (`policy.tell`) and the tuning record.
All times are in seconds. A failed build or run has its status and an error text that names the
signal, the exception or the first wrong output element.
"""

from dataclasses import dataclass
from enum import StrEnum

from ansorlite.names import shown
from ansorlite.units import format_latency


class Status(StrEnum):
    """The kind of outcome; the string value is the word in a tuning record."""

    OK = "OK"
    BUILD_ERROR = "BUILD_ERROR"
    BUILD_TIMEOUT = "BUILD_TIMEOUT"
    RUN_ERROR = "RUN_ERROR"
    RUN_TIMEOUT = "RUN_TIMEOUT"
    WRONG_OUTPUT = "WRONG_OUTPUT"


@dataclass(frozen=True)
class MeasureResult:
    """One measurement.

    `latency_s` is the median of `times_s` (seconds per call, one entry per repeat) and None unless
    the status is OK. `build_s`, `run_s` and `check_s` are the cost of the measurement: compiling,
    timed runs, and runs and comparisons of the check. `max_error` is the largest relative deviation
    of an output from its reference (`compare.Deviation`); None where nothing was compared. `device`
    names the device of a pool, empty for this machine.
    """

    status: Status
    latency_s: float | None = None
    times_s: tuple[float, ...] = ()
    error: str = ""
    build_s: float = 0.0
    run_s: float = 0.0
    check_s: float = 0.0
    max_error: float | None = None
    device: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"{self.status}, {format_latency(self.latency_s)}"
        return shown(f"{self.status}: {self.error}" if self.error else self.status)

    @property
    def ok(self) -> bool:
        return self.status is Status.OK
