"""The tuning log: one JSON object per line, one line per measurement; lines are only appended.

Flow: `search.tune` appends a `Record` for every `MeasureResult`. The file is the database, the
state for resuming, the cost model's training set and the source of reports. In: `Record`s. Out:
`LogContents`: the records in file order, and the problems of unreadable lines. Times are in
seconds. Reading a log executes nothing. Lines are ASCII JSON without NaN and infinity. Damage is
reported with its line number and costs only that line. A line of status CHOSEN names the winner of
a tuning run after the race of its best candidates: single measurements of equally fast programs
differ by chance. A line of status ESTIMATED is no measurement: see `search.estimate`.
"""

import json
import math
import operator
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ansorlite import names
from ansorlite.errors import LogError, LogWriteError
from ansorlite.record_fields import (
    CHOSEN,
    ESTIMATED,
    FIELDS,
    FORMAT,
    OK,
    OPTIONAL,
    Damaged,
    check_fields,
    check_sense,
    is_int,
    load_object,
    shown,
)
from ansorlite.units import format_latency

if sys.platform != "win32":
    import fcntl

MAX_STEPS = 4096  # step sequences of different sketches that `_shared` keeps
_STEPS: dict[str, tuple[Any, ...]] = {}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measured program.

    `target` is the target's fingerprint, `task` the workload key, `sketch` the sketch's name.
    `steps` holds JSON values (nested lists become tuples); `holes` maps a hole's name to its
    values, never to an index into its table of options. `latency_s` is None unless the program ran;
    `times_s` are the seconds per call of each repeat. `timestamp` is seconds since 1970. `device`
    names a device of a pool, empty for the tuner's own machine. `line` is the line number in a log
    that was read, from 1, and is not written. Example:
    `[r.latency_s for r in read_log("gmm.jsonl").records if r.ok]`.
    """

    format: int = FORMAT
    target: str
    task: str
    task_name: str
    sketch: str
    steps: tuple[Any, ...]
    holes: Mapping[str, list[int]]
    status: str
    times_s: list[float] = field(default_factory=list)
    latency_s: float | None = None
    error: str = ""
    round: int = 0
    trial: int = 0
    seed: int = 0
    timestamp: float = 0.0
    build_s: float = 0.0
    run_s: float = 0.0
    version: str = ""
    device: str = ""
    line: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        # Callers pass numpy scalars, enums and lists; the fields become what a reader would get.
        put = object.__setattr__
        put(self, "steps", _shared(tuple(_frozen(step) for step in self.steps)))
        holes = {k: [operator.index(v) for v in vs] for k, vs in self.holes.items()}
        put(self, "holes", {_interned(k): vs for k, vs in holes.items()})
        for name in ("target", "task", "task_name", "sketch", "version", "device"):
            put(self, name, _interned(getattr(self, name)))
        put(self, "status", str(self.status))
        put(self, "times_s", [float(t) for t in self.times_s])
        if self.latency_s is not None:
            put(self, "latency_s", float(self.latency_s))
        for name in ("format", "round", "trial", "seed"):
            put(self, name, operator.index(getattr(self, name)))
        for name in ("timestamp", "build_s", "run_s"):
            put(self, name, float(getattr(self, name)))

    def __str__(self) -> str:
        values = " ".join(f"{hole}={','.join(map(str, vs))}" for hole, vs in self.holes.items())
        parts = [
            f"{self.task_name or self.task} trial {self.trial}: {self.status}",
            "" if self.latency_s is None else format_latency(self.latency_s),
            self.error,
            f"sketch {self.sketch}",
            values,
        ]
        return names.shown(", ".join(part for part in parts if part))

    @property
    def ok(self) -> bool:
        """Did the program run with right outputs?"""
        return self.status == OK and self.latency_s is not None

    @property
    def lowest_s(self) -> float:
        """The lowest time of the repeats, by which programs are ranked; infinity without one.

        Disturbances only make a run slower, so the lowest times of two measurements agree best.
        """
        if not self.ok or self.latency_s is None:
            return math.inf
        return min(self.times_s, default=self.latency_s)

    def to_json(self) -> str:
        """The line of the record, without newline; raises LogError for a value out of limits."""
        data = {name: getattr(self, name) for name in FIELDS}
        data |= {name: value for name in OPTIONAL if (value := getattr(self, name))}
        try:
            check_fields(data)
            return json.dumps(data, allow_nan=False, separators=(",", ":"))
        except (Damaged, TypeError, ValueError) as error:
            raise LogError(
                f"cannot log trial {self.trial} of task {self.task_name or self.task}: {error}"
            ) from error

    @staticmethod
    def from_json(line: str) -> "Record":
        """The record of one line; unknown keys are ignored.

        Raises LogError with the name of a missing or wrong field.
        """
        try:
            return _record_of(load_object(line))
        except Damaged as error:
            raise LogError(f"this line is no record: {error}") from error


def _record_of(data: Mapping[str, Any], line: int = 0) -> Record:
    check_fields(data)
    check_sense(data)
    known = {name: data[name] for name in (*FIELDS, *OPTIONAL) if name in data}
    return Record(**known, line=line)


def _frozen(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, Mapping):
        return {k: _frozen(v) for k, v in value.items()}
    return value


def _shared(steps: tuple[Any, ...]) -> tuple[Any, ...]:
    """One tuple for equal steps: thousands of records in a log have the steps of one sketch."""
    if len(_STEPS) > MAX_STEPS:
        _STEPS.clear()
    return _STEPS.setdefault(repr(steps), steps)


def _interned(text: Any) -> Any:
    return sys.intern(text) if type(text) is str else text


@dataclass(frozen=True)
class LogProblem:
    """A line that was left out, and the reason; `line` counts from 1."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


@dataclass(frozen=True)
class LogContents:
    """The contents of a log: records in file order, and a problem for each line left out.

    `choices` are the CHOSEN lines: copies of the records of winners, with the latency of the race
    and the time of the choice. `estimates` are the ESTIMATED lines: programs that were built for a
    machine that was not at hand; their latency is an estimate.
    """

    records: tuple[Record, ...]
    problems: tuple[LogProblem, ...]
    choices: tuple[Record, ...] = ()
    estimates: tuple[Record, ...] = ()

    def __str__(self) -> str:
        tasks = len({(r.task, r.target) for r in self.records})
        failed = sum(not r.ok for r in self.records)
        text = f"{len(self.records)} records of {tasks} tasks, {failed} of them failed"
        more = f"{len(self.estimates)} estimates" if self.estimates else ""
        return "; ".join(part for part in (text, more, self.damage) if part)

    @property
    def damage(self) -> str:
        """A one-line summary of the problems; empty without problems."""
        first = next(iter(self.problems), None)
        if first is None or len(self.problems) == 1:
            return "" if first is None else f"a damaged line is left out: {first}"
        return f"{len(self.problems)} damaged lines are left out, the first is {first}"


def read_log(path: str | os.PathLike[str]) -> LogContents:
    """Read a log, also while a tuner appends to it.

    Takes no lock and writes nothing. A damaged line, also an incomplete last line, becomes a
    `LogProblem`. Raises LogError if the file cannot be read, is no tuning log, or has another
    format. Example: `records = read_log("gmm.jsonl").records`.
    """
    path = _expanded(path)
    try:
        if path.is_char_device() or path.is_block_device():
            raise LogError(f"the tuning log {path} is a device: name a file")
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise LogError(f"there is no tuning log {path}: check the path") from error
    except OSError as error:
        raise LogError(f"cannot read the tuning log {path}: {error.strerror}") from error
    return _parse(data, path)


def _parse(data: bytes, path: Path) -> LogContents:
    records: list[Record] = []
    problems: list[LogProblem] = []
    other_formats: list[_OtherFormat] = []
    lines = data.split(b"\n")
    for number, raw in enumerate(lines, start=1):
        if not raw.strip():
            continue
        try:
            records.append(_parse_line(raw, number))
        except Damaged as damage:
            # Every complete line ends in a newline: text after the last newline was cut off.
            torn = "torn last line, " if number == len(lines) else ""
            problems.append(LogProblem(number, f"{torn}{damage}"))
            if isinstance(damage, _OtherFormat):
                other_formats.append(damage)
    # Only where there are as many as records: a few lines of another format are damage.
    if len(other_formats) > 0 and len(other_formats) >= len(records):
        raise LogError(
            f"{path} {other_formats[0]}, this version reads format {FORMAT}: "
            "start a new log, or use the version of ansorlite that wrote this one"
        )
    if problems and not records and not _begins_like_a_log(data):
        raise LogError(
            f"{path} is not a tuning log ({problems[0]}): name another file, it was left as it is"
        )
    measured = tuple(r for r in records if r.status not in (CHOSEN, ESTIMATED))
    choices = tuple(r for r in records if r.status == CHOSEN)
    estimates = tuple(r for r in records if r.status == ESTIMATED)
    return LogContents(measured, tuple(problems), choices, estimates)


class _OtherFormat(Damaged):
    """A line with another format number; the message gives the line and the format."""


def _parse_line(raw: bytes, number: int) -> Record:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Damaged(f"byte {error.start} is not UTF-8") from error
    data = load_object(text)
    claimed = data.get("format")
    if is_int(claimed) and claimed != FORMAT:
        raise _OtherFormat(f"line {number} has log format {shown(claimed)}")
    return _record_of(data, number)


def _begins_like_a_log(data: bytes) -> bool:
    head = b'{"format":'
    cut_short = b"\n" not in data and head.startswith(data)
    return data.startswith(head) or cut_short


class RecordLog:
    """A log that is open for appending, and locked against other tuners until `close`.

    Opening creates a missing file, takes the lock and reads the records, from which a run resumes
    (`contents`). Raises LogError if the file is locked, is no tuning log, has another format, or
    cannot be written. Example::

        with RecordLog("gmm.jsonl") as log:
            log.append(record)

    A record is one write() of one line in append mode, followed by fsync: 0.2 ms on a virtual disk
    with ext4, against 100 ms or more for a measurement. So a power cut loses no measurement.
    `fsync=False` is for bulk copies; then a power cut may lose lines, a killed process does not.
    The lock is flock() on the log: it leaves no file behind and ends with the process. Windows has
    no flock, so nothing is locked there.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = True) -> None:
        self.path = _expanded(path)
        self._fsync = fsync
        self._fd: int | None = _open_for_append(self.path)
        try:
            self._lock()
            data = self.path.read_bytes()
            self.contents = _parse(data, self.path)
        except BaseException:
            self.close()
            raise
        self._torn = bool(data) and not data.endswith(b"\n")

    def _lock(self) -> None:
        if sys.platform == "win32" or self._fd is None:
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LogWriteError(
                f"another tuner is writing to {self.path}: wait until it has ended, "
                "or give this run a log of its own"
            ) from error
        except OSError as error:
            raise LogWriteError(
                f"cannot lock {self.path} ({error.strerror}): put the log on a local disk"
            ) from error

    def append(self, record: Record) -> None:
        """Write one line; raises LogError for values out of limits, or if writing fails."""
        if self._fd is None:
            raise LogError(f"the tuning log {self.path} is closed: open it again to append")
        # Ends an incomplete last line first, so that the new record has a line to itself.
        line = ("\n" if self._torn else "") + record.to_json() + "\n"
        data = line.encode("ascii")
        try:
            if os.fstat(self._fd).st_nlink == 0:
                raise LogWriteError(
                    f"the tuning log {self.path} was deleted: continue with a new one"
                )
            written = os.write(self._fd, data)
            self._torn = written < len(data)
            if self._fsync:
                os.fsync(self._fd)
        except OSError as error:
            raise LogWriteError(f"cannot write to {self.path}: {error.strerror}") from error
        if self._torn:
            raise LogWriteError(
                f"cannot write to {self.path}: {written} of {len(data)} bytes were taken, "
                "free some disk space and continue with the same log"
            )

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _expanded(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise LogError(f"cannot find the home directory in {os.fspath(path)}: {error}") from error


def _open_for_append(path: Path) -> int:
    try:
        if path.exists() and not path.is_file():
            raise LogError(f"the tuning log {path} is no regular file: name a file of its own")
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    except FileNotFoundError as error:
        raise LogError(
            f"cannot create the tuning log {path}: there is no directory {path.parent}, create it"
        ) from error
    except OSError as error:
        raise LogError(f"cannot open the tuning log {path}: {error.strerror}") from error


def for_task(records: Iterable[Record], task: str, target: str | None = None) -> tuple[Record, ...]:
    """The records of one workload key in order; of all targets if `target` is None."""
    return tuple(r for r in records if r.task == task and target in (None, r.target))


def best(records: Iterable[Record], task: str, target: str) -> Record | None:
    """The fastest valid record of a task on a target, the first of equals; None without one."""
    valid = [r for r in for_task(records, task, target) if r.ok]
    return min(valid, key=_latency, default=None)


def choice(record: Record, latency_s: float) -> Record:
    """The CHOSEN line for the winner `record` of a run, with its `latency_s` in the race."""
    return replace(record, status=CHOSEN, latency_s=latency_s, timestamp=time.time())


def chosen(
    contents: LogContents,
    tasks: Iterable[str],
    target: str,
    fits: Callable[[Record], bool] = lambda record: True,
) -> Record | None:
    """The winner of the last run of any of these tasks on a target; None without one.

    The order of lines decides about the last run, not time stamps. A choice is out of date when a
    program measured later is faster. Records and choices for which `fits` is false are ignored.
    """
    keys = set(tasks)
    own = [c for c in contents.choices if c.task in keys and c.target == target]
    last = next((c for c in reversed(own) if fits(c)), None)
    if last is None:
        return None
    known = _latency(last)
    later = [r for r in contents.records if r.ok and r.line > last.line and _latency(r) < known]
    if any(r.task in keys and r.target == target and fits(r) for r in later):
        return None
    return replace(last, status=OK)


def distill(records: Iterable[Record], keep: int = 1) -> tuple[Record, ...]:
    """The `keep` fastest valid records of each (task, target), fastest first.

    Groups are in the order of their first record. A program that was measured several times (same
    sketch, steps and holes) counts once, with its fastest record.
    """
    groups: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        if not record.ok:
            continue
        group = groups.setdefault((record.task, record.target), {})
        program = json.dumps([record.sketch, record.steps, record.holes], sort_keys=True)
        known = group.get(program)
        if known is None or _latency(record) < _latency(known):
            group[program] = record
    return tuple(r for g in groups.values() for r in sorted(g.values(), key=_latency)[:keep])


def _latency(record: Record) -> float:
    return math.inf if record.latency_s is None else record.latency_s
