"""What tuning gives: the best program of a task, all its records, where the time went.

In: records of a `TaskTuner`, the machine's `Peak`. Out: `TuneResult`s, from which users take
programs, kernels and figures.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.kernel import Kernel
from ansorlite.errors import MeasureError
from ansorlite.ir.program import Program
from ansorlite.measure.limits import least_seconds, task_peak, task_roofs
from ansorlite.measure.peak import Peak
from ansorlite.names import shown
from ansorlite.records import Record
from ansorlite.search.history import Guess
from ansorlite.search.progress import format_failures
from ansorlite.search.recorded import RecordedSpace
from ansorlite.tables import ABOVE, time_table
from ansorlite.task import SearchTask
from ansorlite.units import format_gflops, format_latency, format_seconds, format_share

ESTIMATE = "an estimate: nothing was measured"


def why_above_limit(task: SearchTask) -> str:
    """Why a program of `task` may be faster than its FLOP at the multiply-add limit allow.

    Speeds count the FLOP of the plain computation, whatever form of it the program computes.
    """
    if task.meaning is not None:
        return "its form needs fewer operations than are counted"
    if task.dag.run_flop < 0.999 * task.flop:
        return "operations on zeros and on constants are counted, but not run"
    return "the limit was measured while the machine was slower"


@dataclass(frozen=True)
class BestProgram:
    """The fastest program found for a task; `estimated` if nothing was run, see `estimate`."""

    task: SearchTask
    record: Record
    latency_s: float
    peak: Peak | None = None
    space: RecordedSpace | None = field(default=None, compare=False, repr=False)
    estimated: bool = False

    @property
    def gflops(self) -> float:
        """10^9 floating-point operations per second."""
        return self.task.flop / self.latency_s / 1e9

    @property
    def share_of_peak(self) -> float | None:
        """Speed as a share of the measured limit of the task's instructions on all cores."""
        return None if self.peak is None else self.gflops * 1e9 / task_peak(self.task, self.peak)

    @property
    def _unit(self) -> str:
        """What most of the arithmetic is limited by: "FMA", or an instruction by name."""
        name = None if self.peak is None else task_roofs(self.task, self.peak)[0].name
        return "FMA" if name in (None, "multiply-adds") else str(name)

    @property
    def least_s(self) -> float | None:
        """The least time that arithmetic and data allow any program."""
        return None if self.peak is None else least_seconds(self.task, self.peak)

    @property
    def share_of_limit(self) -> float | None:
        """`least_s` as a share of the latency: 1 is a program at the limit."""
        return None if self.least_s is None else self.least_s / self.latency_s

    @property
    def program(self) -> Program:
        """The verified program of the record; ScheduleError if the record does not fit the task."""
        return self._space.program(self.record)

    @property
    def _space(self) -> RecordedSpace:
        return self.space or RecordedSpace(self.task)

    @property
    def summary(self) -> str:
        """Latency, speed, shares of the limits, trial and sketch on one line."""
        share = self.share_of_peak
        of_peak = "" if share is None else f", {format_share(share)} of the {self._unit} limit"
        if share is not None and share > ABOVE:
            of_peak += f" ({why_above_limit(self.task)})"
        limit = self.share_of_limit
        if limit is not None and share is not None and limit > 1.01 * share:
            of_peak += f", {format_share(limit)} of what its data allow"
        return shown(
            f"{self.task.name}: {format_latency(self.latency_s)}, "
            f"{format_gflops(self.gflops * 1e9)} GFLOP/s{of_peak}"
            f"{f', {ESTIMATE}' if self.estimated else ''} "
            f"(trial {self.record.trial}, sketch {self._space.sketch_name(self.record)})"
        )

    def __str__(self) -> str:
        return f"{self.summary}\n{self.program}"


class Rival(NamedTuple):
    """A program about as fast as the best one, maybe of another form of the task."""

    task: SearchTask
    record: Record
    image: KernelImage
    space: RecordedSpace


@dataclass(frozen=True)
class TuneResult:
    """What tuning one task gave: `best` is None if nothing ran."""

    task: SearchTask
    best: BestProgram | None
    records: tuple[Record, ...]
    seconds: dict[str, float] = field(default_factory=dict)  # wall time by phase
    wall_s: float = 0.0
    interrupted: bool = False
    predicted: Program | None = None  # where nothing was measured and the log has nothing
    practised: int = 0  # trials on a short version of a heavy task
    image: KernelImage | None = None  # of the best program, where it was built in this run
    of_all_forms: int | None = None  # trials, where the task was tuned in several forms
    rivals: tuple[Rival, ...] = ()  # to be raced against the best in the network
    problems: tuple[str, ...] = ()  # what of the log was left out, and why
    guess: Guess | None = None  # what `predicted` is of, for tasks of other extents
    estimated: bool = False  # nothing was run: the latencies are estimates

    def with_rival(self, k: int) -> "TuneResult":
        """The result with that of `rivals` as the best program."""
        task, record, image, space = self.rivals[k]
        peak = None if self.best is None else self.best.peak
        best = BestProgram(task, record, float(record.latency_s or 0.0), peak, space)
        return replace(self, task=task, best=best, image=image)

    @property
    def program(self) -> Program:
        """The best program measured, else the one predicted; AnsorliteError if there is none."""
        if self.best is not None:
            return self.best.program
        if self.predicted is not None:
            return self.predicted
        raise MeasureError(f"no program of task {self.task.name} ran: see the log's errors")

    @property
    def kernel(self) -> Kernel:
        """`program` as a callable."""
        return Kernel(self.program, self.task.target, self.image)

    @property
    def trials(self) -> int:
        """Programs measured, of the task in all forms and of its short version."""
        own = len(self.records) if self.of_all_forms is None else self.of_all_forms
        return own + self.practised

    def time_table(self) -> str:
        """Where the wall time went, a line a phase."""
        return time_table(self.seconds, self.wall_s)

    def __str__(self) -> str:
        if self.best is not None:
            found = self.best.summary
        elif self.predicted is not None:
            found = f"{shown(self.task.name)}: nothing was measured, the model chose a program"
        else:
            found = f"{shown(self.task.name)}: no program ran"
        failed = format_failures(Counter(r.status for r in self.records if not r.ok))
        ended = "interrupted" if self.interrupted else ""
        used = f"{format_seconds(self.wall_s)} used"
        built = "programs built, none run" if self.estimated else "trials"
        parts = [f"{self.trials} {built}", failed, used, ended]
        return f"{found}\n{', '.join(part for part in parts if part)}"
