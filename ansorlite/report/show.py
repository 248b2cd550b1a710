"""What `ansorlite show` prints: one stage of one candidate of a task, or its roofline.

In: a `SearchTask`, which row (random, plain, the best of a log), the log, a seed. Out: text that
ends in a newline, and what was wrong with lines of the log.
"""

from pathlib import Path

import numpy as np

from ansorlite.errors import UsageError
from ansorlite.ir.program import Program
from ansorlite.measure.calibrate import calibrate, calibration
from ansorlite.records import read_log
from ansorlite.report.limits import roofline_text
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.search.recorded import best_of_log, record_program
from ansorlite.search.stages import program_stage, sketches_text
from ansorlite.space.legality import legal
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import sketches
from ansorlite.task import SearchTask

DRAWS = 4096  # random rows drawn before a sketch is given up


def stage(
    task: SearchTask, name: str, row: str, log: Path | None, seed: int
) -> tuple[str, list[str]]:
    """The stage of that name: "dag" and "sketches" of the task, others of a program."""
    match name:
        case "dag":
            return str(task.dag), []
        case "sketches":
            return sketches_text(sketches(task.dag, task.target)), []
    program, _, problems = _program(task, row, log, seed)
    return program_stage(name, program, task.target), problems


def roofline(task: SearchTask, row: str, log: Path | None, seed: int) -> tuple[str, list[str]]:
    """Which limits bind the task and the program; measures the machine's where none are kept."""
    limits = calibration(task.target) or calibrate(task.target)
    program, latency_s, problems = _program(task, row, log, seed)
    return roofline_text(task, program, limits, latency_s), problems


def _program(
    task: SearchTask, row: str, log: Path | None, seed: int
) -> tuple[Program, float | None, list[str]]:
    """(concrete program, measured seconds if it comes from a log, problems of the log)."""
    if row == "plain":
        return lower(plain_state(task.dag, task.target)), None, []
    if row == "random":
        return _random_program(task, seed), None, []
    if log is None:
        raise UsageError("the best row is that of a log: give one with --log")
    contents = read_log(log)
    record, refused = best_of_log(contents, task)
    problems = [contents.damage] if contents.damage else []
    if refused:
        first, why = refused[0]
        told = f"line {first.line}: {why}"
        problems.append(f"{len(refused)} records that fit no program are left out, first {told}")
    if record is None:
        raise UsageError(
            f"{log} has no program of {task.name} for this machine "
            f"({task.target.fingerprint}): tune it with this log first"
            + "".join(f" ({p})" for p in problems)
        )
    return record_program(task, record), record.latency_s, problems


def _random_program(task: SearchTask, seed: int) -> Program:
    """A legal row, drawn from `seed`, of the first tiled sketch (of the first that has one)."""
    rng = np.random.default_rng(seed)
    space = sketches(task.dag, task.target)
    tiled = [s for s in space if any(stage.tiling for stage in s.state.schedule.stages)]
    for s in dict.fromkeys([*tiled, *space]):
        rows = s.sample(DRAWS, rng)
        good = legal(s.program, population_columns(s.holes, rows), len(rows), task.target)
        if good.any():
            return s.fill(rows[np.flatnonzero(good)[0]])
    raise UsageError(f"no sketch of {task.name} has a legal row among {DRAWS}: try --row plain")
