"""The log of a run: the history that a search begins with, and the file that its records go to.

In: a path, or None for a run that keeps nothing. Out: records and winners of earlier runs, and
lines of text about records that are left out. A run without trials reads the log and writes
nothing, not even a lock.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ansorlite.record_fields import ESTIMATED, OK
from ansorlite.records import LogContents, Record, RecordLog, choice, chosen, for_task, read_log
from ansorlite.task import SearchTask


class Store:
    """Records of a run, read at its begin and appended to its log."""

    def __init__(
        self, log: str | Path | None = None, read_only: bool = False, estimated: bool = False
    ) -> None:
        """Open a log, or read it if `read_only`; LogError where it cannot be read or locked.

        An `estimated` run sees the log's estimates and no measurement, any other the reverse.
        """
        self._estimated = estimated
        self._log: RecordLog | None = None
        self._contents = LogContents((), ())
        self._absent = ""
        self.refused: list[tuple[Record, str]] = []  # records of the log that fit nothing, and why
        if log is None:
            return
        if not read_only:
            self._log = RecordLog(log)
            self._contents = self._log.contents
        elif Path(log).expanduser().exists():
            self._contents = read_log(log)
        else:
            self._absent = f"there is no log {log}: nothing is known yet"

    def close(self) -> None:
        """Give up the log's lock."""
        if self._log is not None:
            self._log.close()

    @cached_property
    def history(self) -> tuple[Record, ...]:
        """The records that the log held when it was opened, in order."""
        if self._estimated:
            return tuple(replace(r, status=OK) for r in self._contents.estimates)
        return self._contents.records

    @property
    def of_all_targets(self) -> tuple[Record, ...]:
        """The records and the estimates that the log held, for whatever machine."""
        return (*self._contents.records, *self._contents.estimates)

    def append(self, record: Record) -> None:
        """Add a record to the log, if there is one; failures of an estimated run are left out."""
        if self._log is None or (self._estimated and not record.ok):
            return
        self._log.append(replace(record, status=ESTIMATED) if self._estimated else record)

    def append_winner(self, record: Record, latency_s: float) -> None:
        """Note in the log which record won the race of a task, for later readers."""
        self.append(choice(record, latency_s))

    def note(self, choice: Record) -> None:
        """Add a CHOSEN line that is no program's, if there is a log."""
        if self._log is not None:
            self._log.append(choice)

    def noted(self, task: str, target: str) -> Record | None:
        """The last CHOSEN line of a task that is no program's, if the log had one when opened."""
        lines = (c for c in self._contents.choices if (c.task, c.target) == (task, target))
        return max(lines, key=lambda c: c.line, default=None)

    def earlier_winner(
        self, keys: Iterable[str], target: str, fits: Callable[[Record], bool]
    ) -> Record | None:
        """The winner that the log names for tasks of these workload keys; None if out of date."""
        return chosen(self._contents, keys, target, fits)

    def has_answer(self, task: SearchTask) -> bool:
        """Does the log hold a valid measurement of the task?"""
        return any(r.ok for r in for_task(self.history, task.workload_key, task.target.fingerprint))

    @property
    def problems(self) -> tuple[str, ...]:
        """Which parts of the log are left out so far, and why: a line a kind of damage."""
        told = [self._absent, self._contents.damage]
        if self.refused:
            record, why = min(self.refused, key=lambda r: r[0].line)
            told.append(
                "records that fit no program of their task are left out: "
                f"{len(self.refused)}, the first is line {record.line}, trial {record.trial} of "
                f"{record.task_name}: {why}"
            )
        return tuple(filter(None, told))
