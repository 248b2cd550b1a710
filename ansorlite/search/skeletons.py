"""Skeletons: the steps of good programs without what depends on extents and on the epilogue.

In: records of tasks and their DAGs. Out: for a task of the same kin (`families`), the patterns that
its own sketches may have, so that a first round looks at a few sketches instead of a space.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from ansorlite.errors import ScheduleError
from ansorlite.records import Record
from ansorlite.schedule.naming import Renaming, canonical_names
from ansorlite.search.roles import recorded_roles, role_names
from ansorlite.search.transfer import pattern
from ansorlite.space.sketch import Pattern
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG


class Skeleton(NamedTuple):
    """Steps by roles, without annotations and without stages of the epilogue that are inlined.

    Those stood, next to one another, before step `inlined`; None where there were none.
    """

    steps: tuple[str, ...]
    inlined: int | None


def skeleton_of(dag: ComputeDAG, record: Record) -> Skeleton:
    """The skeleton of a record of a task; ScheduleError for steps that are none of the task's."""
    return skeleton_by(recorded_roles(dag), record)


def skeleton_by(roles: Renaming, record: Record) -> Skeleton:
    """The same, by the map from the record's names to roles."""
    own = roles.steps(record.steps)
    plain = [s for s in own if s["step"] != "annotate"]
    first = next((k for k, s in enumerate(plain) if inlines_epilogue(s)), None)
    kept = (json.dumps(s, sort_keys=True) for s in plain if not inlines_epilogue(s))
    return Skeleton(tuple(kept), first)


def patterns_of(task: SearchTask, skeleton: Skeleton) -> list[Pattern]:
    """The patterns that sketches of a task with that skeleton may have.

    The task's own inlined stages, the last one first, stand where the skeleton has its own; where
    it has none, each place is tried.
    """
    dag, mine = task.dag, role_names(task.dag)
    kept = [json.loads(s) for s in skeleton.steps]
    named = {v for s in kept for v in s.values() if isinstance(v, str)}
    own = (mine.tensors[op.name] for op in dag.computes)
    missing = [r for r in own if r.startswith("E") and r not in named]
    inlined = [{"step": "compute_inline", "stage": r} for r in reversed(missing)]
    places: Iterable[int] = (skeleton.inlined or 0,)
    if skeleton.inlined is None and inlined:
        places = range(len(kept) + 1)
    try:
        texts, added = _canonical(dag, kept), _canonical(dag, inlined)
    except ScheduleError:  # names that the task has not
        return []
    return [tuple(chain(*texts[:at], *added, *texts[at:])) for at in places]


def _canonical(dag: ComputeDAG, steps: Sequence[Mapping[str, Any]]) -> list[Pattern]:
    """The pattern of each step by roles."""
    own = canonical_names(dag).steps(role_names(dag).inverse.steps(steps))
    return [pattern([s]) for s in own]


def inlines_epilogue(step: Mapping[str, Any]) -> bool:
    """Is that the step that inlines a stage after the last sum?"""
    return step["step"] == "compute_inline" and str(step["stage"]).startswith("E")
