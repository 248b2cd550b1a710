"""Programs for another target, made of those that were found for this one.

In: the `TuneResult` of a task, a target, and records of a log. Out: a `Retargeted`: the program and
how it was found. Best is what the log has for a CPU of the target's name; else the task's own
program, as it is where vectors are as wide, and with the nearest legal values where they are not.
Nothing is measured.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from ansorlite.errors import ScheduleError
from ansorlite.ir.program import Program
from ansorlite.record_fields import ESTIMATED
from ansorlite.records import Record
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.search.debug import trace_of
from ansorlite.search.evolve import Rows, mutate
from ansorlite.search.history import Guess, History
from ansorlite.search.policy import round_rng
from ansorlite.search.recorded import RecordedSpace
from ansorlite.search.result import TuneResult
from ansorlite.search.select import unique_rows
from ansorlite.search.shrink_task import adapted
from ansorlite.search.transfer import pattern
from ansorlite.search.untuned import Untuned
from ansorlite.settings import settings
from ansorlite.space.plain import PLAIN, plain_state
from ansorlite.space.sketch import Sketch, sketches
from ansorlite.target import Target
from ansorlite.task import SearchTask

How = Literal["tuned", "adapted", "recompiled", "predicted", "plain"]
MUTANTS, MUTATIONS = 256, 8  # rows near one that the target does not allow, and times to go on
TRIED = 4  # records of a log, the fastest first


class Retargeted(NamedTuple):
    """A program for a target.

    `how` is "tuned": measured, or estimated, for a CPU of that name; "adapted": the own program
    with other values; "recompiled": the own program as it is; "predicted" by the analytic score,
    where nothing was measured of the task; "plain" where nothing was found.
    """

    program: Program
    how: How


def retargeted(result: TuneResult, target: Target, logged: Sequence[Record] = ()) -> Retargeted:
    """The program of a task's result for another target; `logged` are records of any target."""
    own = result.task
    task = SearchTask(own.dag, target, own.name, own.meaning, own.rtol)
    tuned = _tuned(task, logged)
    if tuned is not None:
        return Retargeted(tuned, "tuned")
    if result.best is None and result.predicted is None:
        return Retargeted(lower(plain_state(task.dag, target)), "plain")
    if _alike(own.target, target):
        measured = result.best is not None and own.target.cpu == target.cpu
        how: How = "tuned" if measured else "predicted" if result.best is None else "recompiled"
        return Retargeted(result.program, how)
    record = result.guess if result.best is None else result.best.record
    if isinstance(record, Record) and record.sketch == PLAIN:
        return Retargeted(lower(plain_state(task.dag, target)), "adapted")
    if record is None:
        found = Untuned(0, trace_of(settings())).program(task)
        return Retargeted(found, "predicted")
    program = _adapted(task, record)
    if program is None:
        return Retargeted(lower(plain_state(task.dag, target)), "plain")
    return Retargeted(program, "predicted" if result.best is None else "adapted")


def counts(found: Iterable[Retargeted]) -> dict[str, int]:
    """How many programs were found in which way."""
    out: dict[str, int] = {}
    for r in found:
        out[r.how] = out.get(r.how, 0) + 1
    return out


def is_for(record: Record, target: Target) -> bool:
    """Is that a valid record for a CPU of the target's name, with as many cores?"""
    valid = record.ok or record.status == ESTIMATED
    return valid and record.target.startswith(f"{target.cpu}-{target.cores}c-")


def _alike(one: Target, other: Target) -> bool:
    """Are vectors and registers the same, so that a program is legal and good for both?"""
    return (one.arch, one.vector_bytes, one.vector_registers) == (
        other.arch,
        other.vector_bytes,
        other.vector_registers,
    )


def _tuned(task: SearchTask, logged: Sequence[Record]) -> Program | None:
    """The fastest program of the log for such a CPU; measured ones before estimated ones."""
    own = [r for r in logged if r.task == task.workload_key and is_for(r, task.target)]
    space = RecordedSpace(task)
    for r in sorted(own, key=lambda r: (r.status == ESTIMATED, r.latency_s or 0.0))[:TRIED]:
        try:
            return space.program(r)
        except ScheduleError:
            continue
    return None


def _adapted(task: SearchTask, record: Record | Guess) -> Program | None:
    """The program with the record's decisions and the nearest values that the target allows."""
    names = canonical_names(task.dag)
    wanted = pattern(record.steps)
    space = sketches(task.dag, task.target)
    same = [s for s in space if s.pattern == wanted]
    history = History(same[:1] or space, task.target)
    best: tuple[float, Sketch, Rows] | None = None
    for sketch in history.sketches.values():
        values = {
            h.name: tuple(record.holes[name])
            for h in sketch.holes
            if (name := names.hole(h.name)) in record.holes
        }
        row = adapted(sketch, values)
        rows = _legal_near(history, sketch, row, task)
        if not len(rows):
            continue
        if np.array_equal(rows[0], row) and same:
            return sketch.fill(row)
        scores = history.draft(sketch.name, rows)
        k = int(np.argmax(scores))
        if best is None or float(scores[k]) > best[0]:
            best = float(scores[k]), sketch, rows[k]
    return None if best is None else best[1].fill(best[2])


def _legal_near(history: History, sketch: Sketch, row: Rows, task: SearchTask) -> Rows:
    """The row itself where it is legal, else legal rows a few moves away; maybe none."""
    rows = row[None]
    rng = round_rng(0, task.workload_key, 0)
    for _ in range(MUTATIONS):
        legal = history.legal(sketch.name, rows)
        if legal.any():
            return rows[legal]
        parents = rows[rng.integers(len(rows), size=MUTANTS)]
        rows = mutate(parents, sketch.holes, rng)
        rows = rows[unique_rows(rows)]
    return history.sample(sketch.name, MUTANTS, 1, rng)
