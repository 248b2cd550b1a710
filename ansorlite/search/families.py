"""Families: tasks that differ by extents, or by what follows their last sum.

In: tasks of a run. Out: candidates of one task made of the programs of others. A convolution with
bias and relu and one with bias, residual and clip have the same loops: what follows the sum, the
epilogue, is inlined into the last stage.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ansorlite.errors import ScheduleError
from ansorlite.records import Record, distill
from ansorlite.schedule.naming import Renaming
from ansorlite.schedule.steps import Annotate, Step, step_to_json
from ansorlite.search.history import Candidate
from ansorlite.search.roles import kin_of, recorded_roles, role_names
from ansorlite.search.shrink_task import adapted, is_legal
from ansorlite.search.skeletons import inlines_epilogue, known_patterns, patterns_of, skeleton_by
from ansorlite.search.transfer import (
    LATER,
    KnownPrograms,
    Named,
    distance,
    pattern,
    transferred,
)
from ansorlite.search.tuner import TaskTuner
from ansorlite.search.untuned import family_of
from ansorlite.space.sketch import Pattern, Sketch
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

PATTERNS = 4  # sketches of the family that are made for a task
MOST_PATTERNS = 200  # that sketches of kin may have
NEAREST_KIN = 6  # tasks whose best programs a later round may try
FAMILY_ROUND = 3  # candidates of the first round of a task whose family was searched


def of_kin(
    task: SearchTask,
    space: Sequence[Sketch],
    programs: Sequence[Named],
    n: int,
) -> list[Candidate]:
    """At most n candidates, in the order of the programs of kin that they are made of."""
    mine = role_names(task.dag)
    by_pattern = {_bare_pattern(task.dag, s.state.steps): s for s in reversed(space)}
    out: dict[tuple[str, tuple[int, ...]], Candidate] = {}
    for theirs, record in programs:
        try:
            sketch = by_pattern.get(_bare(theirs, record.steps))
            holes = theirs.holes(record.holes)
        except ScheduleError:
            continue
        if sketch is None or not record.ok:
            continue
        values = {
            h.name: tuple(holes[k]) for h in sketch.holes if (k := mine.hole(h.name)) in holes
        }
        if any(h.kind in ("tile", "factor") and h.name not in values for h in sketch.holes):
            continue
        row = adapted(sketch, values)
        if is_legal(sketch, row, task.target):
            c = Candidate(sketch, tuple(int(v) for v in np.asarray(row)))
            out.setdefault(c.key, c)
        if len(out) == n:
            break
    return list(out.values())


def kin_patterns(task: SearchTask, programs: Sequence[Named]) -> list[Pattern]:
    """Patterns that sketches of the task may have, made of those of kin."""
    out: dict[Pattern, None] = {}
    for roles, record in programs:
        try:
            out |= dict.fromkeys(patterns_of(task, skeleton_by(roles, record)))
        except (ScheduleError, KeyError, TypeError):  # of a file, which may hold anything
            continue
        if len(out) >= MOST_PATTERNS:
            break
    return list(out)


def start_from_family(
    tuner: TaskTuner, everyone: Sequence[TaskTuner], known: KnownPrograms, n: int
) -> int:
    """Suggest what was found for the task before, then programs of its family; how many, at most n.

    What is `known` of a task of the same extents that differs by its epilogue counts as found for
    the task. Of those of `everyone` that were searched, tasks that differ by extents alone come
    first. Where there are none, tasks that differ by their epilogue follow, then what is known of
    kin. Of each, tasks with nearly as many FLOP come first; the fastest program of each, then the
    second fastest. Their sketches are made without the rest of the space, as far as possible.
    """
    task, most = tuner.task, min(n, FAMILY_ROUND)
    searched = sorted(
        (t for t in everyone if t is not tuner and t.rounds > 1), key=lambda t: distance(t, tuner)
    )
    own = family_of(task)
    alike = [r for _, r in _fastest([t for t in searched if family_of(t.task) == own])]
    same, others = known.of_kin(task, NEAREST_KIN)
    _suggest_of_family(tuner, known.of(task), most, is_own=True)
    if tuner.n_suggested < most:
        _suggest_of_kin(tuner, same, most)
    if tuner.n_suggested < most:
        _suggest_of_family(tuner, alike, most, is_own=False)
    if not tuner.n_suggested:
        kin = _fastest([t for t in searched if kin_of(t.task) == kin_of(task)])
        if kin and not _suggest_of_kin(tuner, kin, most):
            tuner.suggest(of_kin(task, tuner.sketches, kin, most), most)
    if not tuner.n_suggested:
        _suggest_of_kin(tuner, others, most)
    return min(most, tuner.n_suggested)


def _suggest_of_family(
    tuner: TaskTuner, records: Sequence[Record], most: int, is_own: bool
) -> None:
    if records:
        patterns = dict.fromkeys(pattern(r.steps) for r in records)
        space = tuner.alike(list(patterns)[:PATTERNS])
        tuner.suggest(transferred(tuner.task, space, records, most, own=is_own), most)


def _suggest_of_kin(tuner: TaskTuner, programs: Sequence[Named], most: int) -> bool:
    """Suggest programs of kin by sketches made for them; whether some fit."""
    patterns = kin_patterns(tuner.task, programs)
    found = of_kin(tuner.task, tuner.alike(patterns), programs, most) if patterns else []
    tuner.suggest(found, most)
    return bool(found)


def continue_from_kin(tuner: TaskTuner, everyone: Sequence[TaskTuner]) -> None:
    """Suggest, before a later round, the best programs of kin that the task has not tried.

    Those of tasks with nearly as many FLOP come first. So there are suggestions only when one of
    them has a new best program.
    """
    own = kin_of(tuner.task)
    kin = [t for t in everyone if t is not tuner and t.rounds > 1 and kin_of(t.task) == own]
    near = sorted(kin, key=lambda t: distance(t, tuner))[:NEAREST_KIN]
    best = [(recorded_roles(t.task.dag), r) for t in near if (r := t.best) is not None and r.round]
    if best and tuner.sketches:
        tuner.suggest(of_kin(tuner.task, tuner.sketches, best, len(best)), LATER)


def start_from_skeletons(tuner: TaskTuner, n: int) -> int:
    """Suggest n candidates of the sketches that the package knows to be good; how many."""
    patterns = known_patterns(tuner.task)
    return tuner.suggest_of(patterns[:MOST_PATTERNS], n) if patterns else 0


def _fastest(tuners: Sequence[TaskTuner]) -> list[Named]:
    """The fastest program of each tuner that was searched for, then the second fastest, ..."""
    ranked = [
        (recorded_roles(t.task.dag), distill([r for r in t.records if r.round], FAMILY_ROUND))
        for t in tuners
    ]
    return [(own, rs[k]) for k in range(FAMILY_ROUND) for own, rs in ranked if k < len(rs)]


def _bare_pattern(dag: ComputeDAG, steps: tuple[Step, ...]) -> Pattern:
    """That of a sketch."""
    return tuple([text for step in steps for text in _bare_step(dag, step)])


@lru_cache(maxsize=1 << 14)
def _bare_step(dag: ComputeDAG, step: Step) -> Pattern:
    """Of one step, which sketches have in common: one text or none."""
    return () if isinstance(step, Annotate) else _bare(role_names(dag), [step_to_json(step)])


def _bare(names: Renaming, steps: Sequence[dict[str, object]]) -> Pattern:
    """The pattern of steps without those that inline the epilogue."""
    renamed = names.steps(steps)
    kept = [s for s in renamed if not inlines_epilogue(s)]
    return pattern(kept)
