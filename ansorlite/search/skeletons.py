"""Skeletons: the steps of good programs without what depends on extents and on the epilogue.

In: records of tasks and their DAGs. Out: for a task of the same kin (`families`), the patterns that
its own sketches may have, so that a first round looks at a few sketches instead of a space. The
package ships skeletons of generated layers (`skeletons.json`, by `scripts/train_skeletons.py`):
which structure is good depends little on the machine, unlike tile sizes, which are searched.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from ansorlite.errors import ScheduleError
from ansorlite.records import Record
from ansorlite.schedule.naming import Renaming, canonical_names
from ansorlite.search.roles import kin_of, recorded_roles, role_names
from ansorlite.search.transfer import pattern
from ansorlite.space.sketch import Pattern
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

SHIPPED = Path(__file__).with_name("skeletons.json")
MOST = 4  # skeletons of a kin that are kept
NEAR = 1.15  # times the best latency of a task: programs that count as good


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


def known_patterns(task: SearchTask) -> list[Pattern]:
    """Patterns of the shipped skeletons of the task's kin, the best first."""
    return [p for s in shipped().get(kin_key(task), ()) for p in patterns_of(task, s)]


def kin_key(task: SearchTask) -> str:
    """The kin of a task, as skeletons are stored by it."""
    return sha256(kin_of(task).encode()).hexdigest()[:16]


@cache
def shipped() -> dict[str, list[Skeleton]]:
    """The skeletons that come with the package, by kin; empty where the file is missing."""
    if not SHIPPED.is_file():
        return {}
    return from_json(json.loads(SHIPPED.read_text("utf-8")))


def from_json(told: Mapping[str, Any]) -> dict[str, list[Skeleton]]:
    """Skeletons by kin, as `to_json` writes them."""
    steps = told["steps"]
    return {
        kin: [Skeleton(tuple(steps[k] for k in own), inlined) for own, inlined in rows]
        for kin, rows in told["kin"].items()
    }


def to_json(found: Mapping[str, Sequence[Skeleton]]) -> dict[str, Any]:
    """Each distinct step once, and skeletons as numbers of steps."""
    numbers: dict[str, int] = {}
    kin = {
        key: [[[numbers.setdefault(t, len(numbers)) for t in s.steps], s.inlined] for s in rows]
        for key, rows in sorted(found.items())
    }
    return {"kin": kin, "steps": list(numbers)}


def best_skeletons(
    records: Mapping[str, Sequence[Record]], tasks: Mapping[str, SearchTask]
) -> dict[str, list[Skeleton]]:
    """The skeletons that were best for most tasks of each kin; both are by workload key.

    A task votes for the skeletons of its good programs, more for faster ones.
    """
    votes: dict[str, dict[Skeleton, float]] = {}
    for key, own in records.items():
        ok = sorted((r for r in own if r.ok and r.round), key=lambda r: r.latency_s or 0.0)
        seen: dict[Skeleton, float] = {}
        for r in ok:
            ratio = (r.latency_s or 0.0) / (ok[0].latency_s or 1.0)
            if ratio > NEAR:
                break
            seen.setdefault(skeleton_of(tasks[key].dag, r), 1.0 / ratio**4)
        mine = votes.setdefault(kin_key(tasks[key]), {})
        for rank, (skeleton, vote) in enumerate(seen.items()):
            mine[skeleton] = mine.get(skeleton, 0.0) + vote / (1 + rank)
    return {
        kin: sorted(found, key=lambda s: -found[s])[:MOST] for kin, found in votes.items() if found
    }
