"""What all tasks of one run share: processes, clock, log, seed, counts of what came of trials.

In: made by the session of a run, or by whoever measures without one. `TaskTuner`s use it.
Times are in seconds.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ansorlite.measure.builder import Builder
from ansorlite.measure.runner import Runner
from ansorlite.records import Record
from ansorlite.search.clock import PhaseClock
from ansorlite.search.debug import Trace


@dataclass
class Shared:
    """What all tasks of one run use together."""

    builder: Builder
    runner: Runner
    clock: PhaseClock
    record: Callable[[Record], None]
    deadline_s: Callable[[], float]  # seconds left; inf without a budget
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    rounds: int = 0  # of all tasks that ended in this run
    trace: Trace = field(default_factory=Trace)
    refused: list[tuple[Record, str]] = field(default_factory=list)  # of the log, and why
