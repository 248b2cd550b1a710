"""Families: tasks that differ by extents, or by what follows their last sum.

In: tasks of a run. Out: candidates of one task made of the programs of others. A convolution with
bias and relu and one with bias, residual and clip have the same loops: what follows the sum, the
epilogue, is inlined into the last stage.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError
from ansorlite.records import Record, distill
from ansorlite.schedule.naming import Renaming
from ansorlite.schedule.steps import Annotate, Step, step_to_json
from ansorlite.search.history import Candidate, Key
from ansorlite.search.kinship import Named, Near, kinship
from ansorlite.search.roles import kin_of, role_names
from ansorlite.search.shipped import ShippedPrograms
from ansorlite.search.shrink_task import adapted, are_legal
from ansorlite.search.skeletons import Skeleton, inlines_epilogue, patterns_of, skeleton_by
from ansorlite.search.transfer import LATER, KnownPrograms, pattern, transferred
from ansorlite.search.tuner import TaskTuner
from ansorlite.space.sketch import Pattern, Sketch
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

PATTERNS = 3  # sketches that are made for a task, at most, for what others found
MOST_PATTERNS = 200  # that sketches of kin may have
MOST_NEAR = 16  # programs of kin that a first round looks at
STRUCTURES = 12  # layers of kin whose structures a second round tries one by one
NEAREST_KIN = 6  # tasks whose best programs a later round may try
FAMILY_ROUND = 3  # candidates of the first round of a task whose family was searched
# Octaves of extents beyond which a program is worth less than a search: of ResNet-18's layers that
# are 4 to 9 octaves from all that is shipped, adapted programs took 1.2 to 1.6 times as long.
FAR = 4.0
FARTHER = 0.02  # octaves of speed that a program is worth less for each octave of extents
Alike = Callable[[Sequence[Pattern]], Sequence[Sketch]]  # a task's sketches with these patterns
NEXT_BEST = 1.0  # octaves that each further program of a task counts as farther


def of_kin(
    task: SearchTask,
    space: Sequence[Sketch],
    programs: Sequence[Named],
    n: int,
) -> list[Candidate]:
    """At most n candidates, in the order of the programs of kin that they are made of."""
    found = _fitting(task, space, programs)
    legal = are_legal([(sketch, row) for sketch, row, _ in found], task.target)
    out: dict[Key, Candidate] = {}
    for (sketch, row, _), ok in zip(found, legal, strict=True):
        if ok and len(out) < n:
            c = Candidate(sketch, tuple(int(v) for v in row))
            out.setdefault(c.key, c)
    return list(out.values())


def _fitting(
    task: SearchTask, space: Sequence[Sketch], programs: Sequence[Named]
) -> list[tuple[Sketch, npt.NDArray[np.int32], int]]:
    """Rows made of programs of kin that one of the sketches has the steps of, legal or not.

    Each with the number of its program.
    """
    mine = role_names(task.dag)
    by_pattern = {_bare_pattern(task.dag, s.state.steps): s for s in reversed(space)}
    out = []
    for k, (theirs, record) in enumerate(programs):
        try:
            sketch = by_pattern.get(_bare(theirs, record.steps))
            holes = theirs.holes(record.holes)
        except ScheduleError:
            continue
        if sketch is None or not record.ok:
            continue
        values = {
            h.name: tuple(holes[own]) for h in sketch.holes if (own := mine.hole(h.name)) in holes
        }
        if not any(h.kind in ("tile", "factor") and h.name not in values for h in sketch.holes):
            out.append((sketch, adapted(sketch, values), k))
    return out


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
    tuner: TaskTuner,
    everyone: Sequence[TaskTuner],
    known: KnownPrograms,
    shipped: ShippedPrograms,
    n: int,
) -> int:
    """Suggest what was found for the task before, then programs of its kin; how many, at most n.

    What is `known` of a task of the same extents that differs by its epilogue counts as found for
    the task. Of the others those of the nearest tasks are adapted, tasks of `everyone` that were
    searched, known and `shipped` ones alike; the policy chooses among them. Their sketches are made
    without the rest of the space, as far as possible.
    """
    task, most = tuner.task, min(n, FAMILY_ROUND)
    same, others = known.of_kin(task, NEAREST_KIN)
    _suggest_of_family(tuner, known.of(task), most)
    if tuner.n_suggested < most:
        _suggest_of_kin(tuner, [Near(0.0, named) for named in same], most, len(same))
    if tuner.n_suggested < most:
        here = _of_this_run(tuner, everyone)
        near = [*here, *others, *shipped.of_kin(task, NEAREST_KIN)]
        nearest = sorted(not_far(near), key=lambda found: found.distance)[:MOST_NEAR]
        if not _suggest_of_kin(tuner, nearest, most, PATTERNS) and here:
            programs = [found.named for found in here]
            tuner.suggest(of_kin(task, tuner.sketches, programs, most), most)
    return min(most, tuner.n_suggested)


def not_far(programs: Sequence[Near]) -> list[Near]:
    """Those that are worth more than what a short search finds."""
    return [found for found in programs if found.distance <= FAR]


def adapted_programs(
    task: SearchTask, alike: Alike, programs: Sequence[Near], structures: int
) -> list[tuple[Candidate, float]]:
    """Candidates made of programs of the task's kin, and what to add to the score of each.

    `alike` makes sketches of the task; it is asked for those of the first so many structures. What
    comes from farther tasks fits less well than it seems.
    """
    rows = []
    for same in islice(_by_structure(programs), structures):
        patterns = kin_patterns(task, [same[0].named])
        space = alike(patterns) if patterns else ()
        fitting = _fitting(task, space, [near.named for near in same]) if space else ()
        rows += [(sketch, row, same[k].distance) for sketch, row, k in fitting]
    legal = are_legal([(sketch, row) for sketch, row, _ in rows], task.target)
    found: dict[Key, tuple[Candidate, float]] = {}
    for (sketch, row, distance), ok in zip(rows, legal, strict=True):
        if ok:
            c = Candidate(sketch, tuple(int(v) for v in row))
            found.setdefault(c.key, (c, -FARTHER * distance))
    return list(found.values())


def _by_structure(programs: Sequence[Near]) -> list[list[Near]]:
    """The programs of each structure, in the order of the first of each."""
    found: dict[Skeleton, list[Near]] = {}
    for near in programs:
        with suppress(ScheduleError, KeyError, TypeError):  # of a file, which may hold anything
            found.setdefault(skeleton_by(*near.named), []).append(near)
    return list(found.values())


def _suggest_of_family(tuner: TaskTuner, records: Sequence[Record], most: int) -> None:
    """Suggest programs of the task itself."""
    if records:
        patterns = dict.fromkeys(pattern(r.steps) for r in records)
        space = tuner.alike(list(patterns)[:PATTERNS])
        tuner.suggest(transferred(tuner.task, space, records, most, own=True), most)


def _suggest_of_kin(tuner: TaskTuner, programs: Sequence[Near], most: int, structures: int) -> bool:
    """Suggest those programs of kin that the task's policy expects most of; whether some fit."""
    found = adapted_programs(tuner.task, tuner.alike, programs, structures)
    tuner.suggest(tuner.best_first(found), most)
    return bool(found)


def _of_this_run(tuner: TaskTuner, everyone: Sequence[TaskTuner]) -> list[Near]:
    """The fastest programs of tasks of its kin that were searched in this run, a few of each."""
    own, mine = kin_of(tuner.task), kinship(tuner.task)
    kin = [t for t in everyone if t is not tuner and t.rounds > 1 and kin_of(t.task) == own]
    out = []
    for t in kin:
        theirs = kinship(t.task)
        for k, r in enumerate(distill([r for r in t.records if r.round], FAMILY_ROUND)):
            out.append(Near(k * NEXT_BEST + mine.distance(theirs), (theirs.roles, r)))
    return out


def continue_from_kin(tuner: TaskTuner, everyone: Sequence[TaskTuner]) -> None:
    """Suggest, before a later round, the best programs of kin that the task has not seen yet.

    Those of the nearest tasks come first. So there are suggestions only when one of them has a new
    best program; its sketch is made for the task if it has none like it.
    """
    own, mine = kin_of(tuner.task), kinship(tuner.task)
    kin = [t for t in everyone if t is not tuner and t.rounds > 1 and kin_of(t.task) == own]
    near = sorted(kin, key=lambda t: mine.distance(kinship(t.task)))[:NEAREST_KIN]
    best = [(t, r) for t in near if (r := t.best) is not None and r.round]
    new = [(kinship(t.task).roles, r) for t, r in best if tuner.sees(r)]
    if new:
        space = tuner.alike(kin_patterns(tuner.task, new)[:MOST_PATTERNS])
        tuner.suggest(of_kin(tuner.task, space, new, len(new)), LATER)


def continue_from_shipped(tuner: TaskTuner, shipped: ShippedPrograms, n: int) -> None:
    """Suggest the best program of each structure of kin that a first round did not measure.

    At most n, those of the nearest layers first. What a first round measures looks best, and is
    often of one or two structures; which one a layer is fastest in only measurements tell.
    """
    tried = {c.sketch.name for c in tuner.fastest(MOST_PATTERNS)}
    wanted: list[Candidate] = []
    for same in _by_structure(not_far(shipped.of_kin(tuner.task, STRUCTURES))):
        if len(wanted) == n:
            break
        found = adapted_programs(tuner.task, tuner.alike, same, 1)
        if found and not tried & {c.sketch.name for c, _ in found}:
            wanted.append(tuner.best_first(found)[0])
    tuner.suggest(wanted, n)


def start_from_structures(tuner: TaskTuner, shipped: ShippedPrograms, n: int) -> int:
    """Suggest n candidates of the sketches that layers of the task's kin ended with; how many."""
    programs = [found.named for found in shipped.of_kin(tuner.task, NEAREST_KIN)]
    patterns = kin_patterns(tuner.task, programs)
    return tuner.suggest_of(patterns[:MOST_PATTERNS], n) if patterns else 0


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
