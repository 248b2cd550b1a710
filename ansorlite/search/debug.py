"""What ANSORLITE_DEBUG says and ANSORLITE_DUMP writes while tasks are tuned.

Flow: the tuner calls its `Trace` when a task starts, after every trial and round, and at the end.
Out: lines on standard error (level 1 a round, 2 a candidate, 3 its steps, 4 its loop IR, 5 its LLVM
IR and assembly), and numbered files in a directory, `003-NAME-program.txt` and so on, one a stage:
of every task before the search, of its best program after it. Does nothing unless asked to.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ansorlite.codegen.build import llvm_ir
from ansorlite.cost.metrics import pairwise_accuracy
from ansorlite.errors import AnsorliteError, UsageError
from ansorlite.ir.program import Program
from ansorlite.names import file_part, shown
from ansorlite.records import Record
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.search.stages import PROGRAM_STAGES, program_stage, sketches_text, trial_line
from ansorlite.settings import Settings
from ansorlite.space.sketch import Sketch
from ansorlite.streams import printable, progress_stream
from ansorlite.task import SearchTask
from ansorlite.units import format_latency, format_share


@dataclass
class Trace:
    """`level` is that of ANSORLITE_DEBUG, `dump` the directory of ANSORLITE_DUMP."""

    level: int = 0
    dump: Path | None = None
    _number: "itertools.count[int]" = field(default_factory=itertools.count)

    def task(self, task: SearchTask, sketches: Sequence[Sketch]) -> None:
        """The search space of a task is known."""
        if self.level >= 1:
            holes = sum(len(s.holes) for s in sketches)
            name = shown(task.name)
            _say(f"{name}: {len(sketches)} sketches with {holes} holes, {task.flop:.4g} FLOP")
        if self.dump is not None:
            self._write(task, "dag", str(task.dag))
            self._write(task, "sketches", sketches_text(sketches))

    def trial(
        self,
        task: SearchTask,
        record: Record,
        sketch: str,
        values: Mapping[str, Sequence[int]],
        state: State,
        score: float | None,
    ) -> None:
        """A candidate was measured: `values` fill the holes of `state`, in the task's own names."""
        if self.level < 2:
            return
        latency_s = record.latency_s
        _say(trial_line(task, record.trial, record.status, latency_s, sketch, values, score))
        if record.error:
            _say(f"  {record.error}")
        if self.level < 3:
            return
        filled = state.fill({name: tuple(v) for name, v in values.items()})
        _say(str(filled))
        if self.level >= 4:
            program = lower(filled)
            _say(str(program))
            if self.level >= 5:
                # What could not be built may take this process down with it: no passes then.
                built = not record.status.startswith("BUILD")
                _say(_attempt("llvm", program, task) if built else _raw_llvm(program, task))
                _say(_attempt("asm", program, task) if built else "")

    def round(
        self, task: SearchTask, number: int, scores: Sequence[float], records: Sequence[Record]
    ) -> None:
        """A round is complete."""
        if self.level < 1:
            return
        latency = np.asarray([r.lowest_s for r in records])
        statuses = Counter(r.status for r in records)
        best = float(latency.min(initial=np.inf))
        right = pairwise_accuracy(np.asarray(scores), latency)
        _say(
            f"{shown(task.name)} round {number}: "
            + ", ".join(f"{n} {status}" for status, n in statuses.items())
            + f"; best of it {format_latency(best)}; pairs predicted right {format_share(right)}"
        )

    def best(self, task: SearchTask, state: State) -> None:
        """The search is over: `state` is the best program's."""
        if self.dump is None:
            return
        self._write(task, "steps", str(state))
        program = lower(state)
        for stage in PROGRAM_STAGES:
            self._write(task, stage, _attempt(stage, program, task))

    def _write(self, task: SearchTask, stage: str, text: str) -> None:
        assert self.dump is not None
        path = self.dump / f"{next(self._number):03d}-{file_part(task.name)}-{stage}.txt"
        try:
            self.dump.mkdir(parents=True, exist_ok=True)
            path.write_text(printable(text), encoding="utf-8")
        except OSError as error:
            raise UsageError(
                f"cannot write {path} ({error.strerror}): set ANSORLITE_DUMP to another directory"
            ) from error


def trace_of(settings: Settings) -> Trace:
    """The trace that the environment asks for."""
    return Trace(settings.debug, settings.dump)


def _attempt(stage: str, program: Program, task: SearchTask) -> str:
    try:
        return program_stage(stage, program, task.target)
    except AnsorliteError as error:
        return f"no {stage}: {error}\n"


def _raw_llvm(program: Program, task: SearchTask) -> str:
    try:
        return llvm_ir(program, task.target, optimized=False)
    except AnsorliteError as error:
        return f"no LLVM IR: {error}\n"


def _say(text: str) -> None:
    """A line on standard error, above the progress line if there is one."""
    from tqdm import tqdm

    tqdm.write(printable(text.rstrip("\n")), file=progress_stream())
