"""What models learn from all runs of a machine, and the model that the next run begins with.

In: the measured programs of a run's tasks, as rows of `cost.relative`. Out: a `Prior` for a target:
the shipped trees, and on top of them a stage trained on what this machine measured. Rows and stage
lie in `known` in the cache's folder beside the fastest programs (`search.knowledge`), under the
same lock and the same switch, a file each for a target and the features of this version. Rows are
bounded: so many programs a task, and of too many tasks those that were measured last. What cannot
be read or written is no error.
"""

import contextlib
import io
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ansorlite.cost.prior import (
    DIGEST,
    PARAMS,
    Prior,
    RowGroup,
    Stage,
    has_shipped,
    model_bytes,
    parsed_model,
    stages_for,
    trained,
)
from ansorlite.cost.relative import N_RELATIVE, PLACES, SLOWEST, Tiles, no_tiles
from ansorlite.files import arrays_of, write_whole
from ansorlite.measure.calibrate import calibration
from ansorlite.search.knowledge import MOST_TARGETS, alone, folder
from ansorlite.settings import begins_with_shipped
from ansorlite.target import Target

MOST_OF_TASK = 48  # programs of a task: half of them the fastest ones
MOST_PROGRAMS = 6000  # of a target
MOST_BYTES = 16 << 20  # of a file's arrays
MOST_KEY = 80  # characters of a workload key
TRAIN_FROM = 256  # programs
GROWTH = 1.25  # times as many programs as the stage has seen, from which it is trained anew


class Lessons(NamedTuple):
    """Programs by task, those measured last first; `seen` counts all that were ever added."""

    groups: tuple[RowGroup, ...] = ()
    stamps: tuple[float, ...] = ()
    seen: int = 0


def prior(target: Target) -> Prior | None:
    """What is known of programs for a target; None where nothing is to be used."""
    root, ships = folder(), begins_with_shipped(os.environ) and has_shipped()
    own = None if root is None else _stage_file(root, target)
    if own is not None and not own.is_file():
        own = None
    if own is None and not ships:
        return None

    def stages() -> Sequence[Stage]:
        learned = None if own is None else _stage(own)
        return stages_for(target) if learned is None else (*stages_for(target), learned)

    return Prior(target, stages, tiles(target))


def tiles(target: Target) -> Tiles | None:
    """What register tiles reach on this machine, where it was calibrated."""
    known = calibration(target)
    if known is None:
        return None
    out = no_tiles(target)
    for body in known.bodies:
        place = (body.level, body.packed)
        if place in PLACES and max(body.rows, body.vectors) < out.shape[1]:
            share = np.log2(body.flops / known.peak.flops_one)
            out[PLACES.index(place), body.rows, body.vectors] = np.clip(share, SLOWEST, 0.5)
    return out


def keep(target: Target, groups: Sequence[RowGroup]) -> None:
    """Remember what was measured of tasks; of a task that is known, whichever has more programs."""
    root = folder()
    new = [_bounded(g) for g in groups]
    new = [g for g in new if len(g.rows) > 1]
    if root is None or not new:
        return
    with contextlib.suppress(OSError):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with alone(root) as got:
            if not got:
                return
            path = _rows_file(root, target)
            write_whole(path, _rows_bytes(_merged(_read(path), new, time.time())))
            _make_room(root)


def is_due(target: Target, times: float = GROWTH) -> bool:
    """Were so many times as many programs kept as the stage has seen, or enough for a first one?"""
    root = folder()
    if root is None:
        return False
    seen = _read(_rows_file(root, target)).seen
    stage = arrays_of(_bytes_of(_stage_file(root, target)) or b"", MOST_BYTES) or {}
    try:
        known = float(stage["programs"])
    except (KeyError, TypeError, ValueError):
        known = TRAIN_FROM / GROWTH
    return seen >= times * known


def learn(target: Target) -> bool:
    """Train the machine's stage on what is kept, in about a second; was there enough?"""
    root = folder()
    if root is None:
        return False
    known = _read(_rows_file(root, target))
    found = trained(known.groups, stages_for(target), PARAMS)
    if found is None:
        return False
    with contextlib.suppress(OSError):
        stage = Stage(found.booster, known.seen)
        write_whole(_stage_file(root, target), model_bytes(stage))
    return True


# ---- files --------------------------------------------------------------------------------------


def _rows_file(root: Path, target: Target) -> Path:
    return root / f"{target.fingerprint}-{DIGEST[:8]}.rows.npz"


def _stage_file(root: Path, target: Target) -> Path:
    return root / f"{target.fingerprint}-{DIGEST[:8]}.stage.npz"


def _stage(path: Path) -> Stage | None:
    data = _bytes_of(path)
    return None if data is None else parsed_model(data)


def _bytes_of(path: Path) -> bytes | None:
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return None
        return path.read_bytes()
    except OSError:
        return None


def _read(path: Path) -> Lessons:
    """The programs of a file; none of a damaged one."""
    data = _bytes_of(path)
    found = None if data is None else arrays_of(data, MOST_BYTES)
    try:
        return Lessons() if found is None else _lessons(found)
    except (KeyError, ValueError, TypeError):
        return Lessons()


def _lessons(found: dict[str, Any]) -> Lessons:
    """The programs of a file's arrays; KeyError, ValueError or TypeError where these do not fit."""
    rows = found["rows"].astype(np.float32, casting="no")
    latency_s = found["latency_s"].astype(np.float64, casting="no")
    sizes, stamps = found["sizes"].tolist(), found["stamps"].tolist()
    tasks = found["tasks"].tolist()
    if rows.shape != (len(latency_s), N_RELATIVE) or sum(sizes) != len(rows):
        raise ValueError("rows, latencies and sizes of tasks disagree")
    if not (len(sizes) == len(stamps) == len(tasks) and all(n > 1 for n in sizes)):
        raise ValueError("tasks, sizes and times disagree")
    if not (np.isfinite(rows).all() and np.isfinite(latency_s).all() and (latency_s > 0).all()):
        raise ValueError("rows or latencies are not finite")
    ends = np.cumsum(sizes)[:-1]
    parts = zip(tasks, np.split(rows, ends), np.split(latency_s, ends), strict=True)
    groups = tuple(RowGroup(str(task), own, times) for task, own, times in parts)
    return Lessons(groups, tuple(map(float, stamps)), int(found["seen"]))


def _rows_bytes(known: Lessons) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(
        out,
        rows=np.concatenate([g.rows for g in known.groups]),
        latency_s=np.concatenate([g.latency_s for g in known.groups]),
        sizes=np.array([len(g.rows) for g in known.groups], np.int64),
        stamps=np.array(known.stamps, np.float64),
        tasks=np.array([g.task for g in known.groups]),
        seen=np.array(known.seen, np.int64),
    )
    return out.getvalue()


def _bounded(group: RowGroup) -> RowGroup:
    """At most `MOST_OF_TASK` of the programs that ran: the fastest half, and some of all others."""
    order = np.argsort(group.latency_s, kind="stable")
    order = order[np.isfinite(group.latency_s[order])]
    if len(order) > MOST_OF_TASK:
        half = MOST_OF_TASK // 2
        rest = np.linspace(half, len(order) - 1, MOST_OF_TASK - half).astype(np.int64)
        order = np.concatenate([order[:half], order[rest]])
    return RowGroup(group.task[:MOST_KEY], group.rows[order], group.latency_s[order])


def _merged(known: Lessons, new: Sequence[RowGroup], now: float) -> Lessons:
    """All tasks, those measured last first, as many as there is room for."""
    by_task = {g.task: (stamp, g) for stamp, g in zip(known.stamps, known.groups, strict=True)}
    added = 0
    for g in new:
        before = by_task.get(g.task)
        added += max(0, len(g.rows) - (0 if before is None else len(before[1].rows)))
        if before is None or len(g.rows) >= len(before[1].rows):
            by_task[g.task] = now, g
    ranked = sorted(by_task.values(), key=lambda own: -own[0])
    ends = np.cumsum([len(g.rows) for _, g in ranked])
    kept = ranked[: max(1, int(np.searchsorted(ends, MOST_PROGRAMS, side="right")))]
    groups, stamps = tuple(g for _, g in kept), tuple(stamp for stamp, _ in kept)
    return Lessons(groups, stamps, known.seen + added)


def _make_room(root: Path) -> None:
    """Remove rows and stages that were written longest ago, and models of versions before these."""
    for file in root.glob("*.model.json"):
        with contextlib.suppress(OSError):
            file.unlink()
    for kind in ("rows", "stage"):
        files = sorted(root.glob(f"*.{kind}.npz"), key=lambda f: -f.stat().st_mtime)
        left = [f for f in root.glob(f"*.{kind}.npz.*") if f.suffix[1:].isdecimal()]
        for file in (*files[MOST_TARGETS:], *left):
            with contextlib.suppress(OSError):
                file.unlink()
