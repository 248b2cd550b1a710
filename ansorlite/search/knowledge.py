"""What a machine has learned: the fastest programs of all runs, for the runs to come.

In: records of a run that measured. Out: for a target the records of its fastest programs, a few a
task, and the kinship of their tasks. They lie in `known` in the cache's folder (see `settings`), a
file a target and one for the kinship, beside what models learn from (`search.lessons`);
ANSORLITE_KNOWLEDGE=0 neither reads nor writes them. Files are replaced as a whole under a lock, so
several processes share them, and bounded: of too many tasks those that were measured last stay.
What cannot be read or written is no error.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansorlite.errors import AnsorliteError
from ansorlite.files import write_whole
from ansorlite.records import Record, distill, read_log
from ansorlite.search.kinship import Kinship, kinship, read_kinships
from ansorlite.settings import cache_dir, knowledge_is_on
from ansorlite.target import Target
from ansorlite.task import SearchTask

FOLDER = "known"
KIN = ".kin.json"  # end of the name of a target's file of kinships
KEPT = 2  # programs of a task
MOST_TASKS = 2000  # of a target
MOST_BYTES = 4 << 20  # of a target's programs
MOST_TARGETS = 8
WAIT_S = 2.0  # for another process that writes


def folder() -> Path | None:
    """The folder of all that is known; None where nothing is kept."""
    found = cache_dir(os.environ)
    return None if found is None or not knowledge_is_on(os.environ) else found / FOLDER


def programs(target: Target) -> tuple[Record, ...]:
    """The fastest programs that are known for a target, those measured last first."""
    root = folder()
    return () if root is None else _read(root / f"{target.fingerprint}.jsonl")


def kinships(target: Target) -> dict[str, Kinship]:
    """The kinship of the tasks of a target's programs, as far as it is known, by workload key."""
    root = folder()
    return {} if root is None else read_kinships(_kin_text(root / f"{target.fingerprint}{KIN}"))


def keep(records: Iterable[Record], tasks: Iterable[SearchTask] = ()) -> None:
    """Remember the fastest of these records, of any tasks and targets; `tasks` are some of theirs.

    Programs whose task is not given serve the same task alone, or those with equal steps.
    """
    root, by_target = folder(), dict[str, list[Record]]()
    for r in records:
        if r.ok:
            by_target.setdefault(r.target, []).append(r)
    if root is None or not by_target:
        return
    given = {t.workload_key: t for t in tasks}
    with contextlib.suppress(OSError):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(root) as got:
            if not got:
                return
            for name, own in by_target.items():
                path = root / f"{name}.jsonl"
                kept = _merged([*_read(path), *own])
                write_whole(path, _text(kept))
                _keep_kinships(root / f"{name}{KIN}", kept, given)
            _make_room(root)


def _merged(records: Sequence[Record]) -> list[Record]:
    """The fastest of each task, tasks that were measured last first."""
    last: dict[str, float] = {}
    for r in records:
        last[r.task] = max(last.get(r.task, 0.0), r.timestamp)
    kept = distill(records, KEPT)
    newest = set(sorted(last, key=lambda task: -last[task])[:MOST_TASKS])
    ranked = sorted((r for r in kept if r.task in newest), key=lambda r: -last[r.task])
    return ranked


def _text(records: Sequence[Record]) -> str:
    lines, size = [], 0
    for r in records:
        line = r.to_json() + "\n"
        size += len(line)
        if size > MOST_BYTES:
            break
        lines.append(line)
    return "".join(lines)


def _read(path: Path) -> tuple[Record, ...]:
    """The records of a file; damaged lines, and files that are no log, count as nothing."""
    try:
        if not path.is_file() or path.stat().st_size > 2 * MOST_BYTES:
            return ()
        return tuple(r for r in read_log(path).records if r.ok)
    except (AnsorliteError, OSError):
        return ()


@contextmanager
def alone(root: Path) -> Iterator[bool]:
    """Hold the folder's lock; False where another process keeps it too long."""
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = time.monotonic() + WAIT_S
        got = False
        while not got:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                got = True
            except BlockingIOError:
                if time.monotonic() > end:
                    break
                time.sleep(0.01)
        yield got
    finally:
        os.close(lock)


def _keep_kinships(path: Path, records: Iterable[Record], given: Mapping[str, SearchTask]) -> None:
    """Write those of the records' tasks: of the tasks that are given, and what is there."""
    known, found = read_kinships(_kin_text(path)), dict[str, Any]()
    for key in dict.fromkeys(r.task for r in records):
        if key in given:
            found[key] = kinship(given[key]).to_json()
        elif key in known:
            found[key] = known[key].to_json()
    write_whole(path, json.dumps(found, separators=(",", ":")))


def _kin_text(path: Path) -> str:
    """The text of a file of kinships; empty where it is missing, too large or no text."""
    try:
        return path.read_text() if path.stat().st_size <= MOST_BYTES else ""
    except (OSError, ValueError):
        return ""


def _make_room(root: Path) -> None:
    """Remove files of targets that were written longest ago, and what killed processes left."""
    files = sorted(root.glob("*.jsonl"), key=lambda f: -f.stat().st_mtime)
    left = [f for f in root.glob("*.json*.*") if f.suffix[1:].isdecimal()]
    kin = [f.with_name(f"{f.stem}{KIN}") for f in files[MOST_TARGETS:]]
    for file in (*files[MOST_TARGETS:], *kin, *left):
        with contextlib.suppress(OSError):
            file.unlink()
