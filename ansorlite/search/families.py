"""Families: tasks that differ by extents, or by what follows their last sum.

In: tasks of a run. Out: a key that the tasks of a family share, and candidates of one task made of
the programs of others. A convolution with bias and relu and one with bias, residual and clip have
the same loops: what follows the sum, the epilogue, is inlined into the last stage. So stages are
named by their role: A0, A1, ... up to the last sum, E0, E1, ... between, `out` for the last.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import networkx as nx
import numpy as np

from ansorlite.errors import ScheduleError
from ansorlite.records import Record, distill
from ansorlite.schedule.naming import Renaming, canonical_names
from ansorlite.search.history import Candidate
from ansorlite.search.shrink_task import adapted, is_legal
from ansorlite.search.transfer import (
    KnownPrograms,
    distance,
    pattern,
    structure,
    transferred,
)
from ansorlite.search.tuner import TaskTuner
from ansorlite.search.untuned import family_of
from ansorlite.space.sketch import Pattern, Sketch
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_TENSOR = re.compile(r"\bT(\d+)\b")
OUT = "out"
PATTERNS = 4  # sketches of the family that are made for a task
MOST_PATTERNS = 32  # that sketches of kin may have
FAMILY_ROUND = 3  # candidates of the first round of a task whose family was searched


@lru_cache(maxsize=512)
def _roles(dag: ComputeDAG) -> tuple[str, ...]:
    """The role of each operation, in the DAG's order; empty where there is no epilogue."""
    sums = [op.name for op in dag.computes if op.reduce_axes]
    if not sums or len(dag.output_names) != 1 or dag.output_names[0] == sums[-1]:
        return ()
    core = {sums[-1], *nx.ancestors(dag.graph, sums[-1])}
    out, counts = [], {"A": 0, "E": 0}
    for op in dag.ops:
        kind = "A" if op.name in core else "E"
        out.append(OUT if op.name == dag.output_names[0] else f"{kind}{counts[kind]}")
        counts[kind] += 1
    return tuple(out)


def role_names(dag: ComputeDAG) -> Renaming:
    """The map from a DAG's names to roles; to canonical names where there is no epilogue."""
    canonical, roles = canonical_names(dag), _roles(dag)
    if not roles:
        return canonical
    return Renaming({op.name: r for op, r in zip(dag.ops, roles, strict=True)}, canonical.axes)


def kin_of(task: SearchTask) -> str:
    """Equal for tasks that differ by extents or epilogue."""
    return _kin(task.dag) or family_of(task)


@lru_cache(maxsize=512)
def _kin(dag: ComputeDAG) -> str:
    """The computation up to the last sum, without numbers; empty where nothing follows it."""
    roles = _roles(dag)
    if not roles:
        return ""
    lines = dag.canonical_text.splitlines()
    kept = [line for line, role in zip(lines, roles, strict=False) if role.startswith("A")]
    named = [_TENSOR.sub(lambda m: roles[int(m[1])], line) for line in kept]
    rank = len(dag.by_name[dag.output_names[0]].shape)
    return _NUMBER.sub("#", "\n".join(named)) + f"\nrank {rank}"


def of_kin(
    task: SearchTask,
    space: Sequence[Sketch],
    programs: Sequence[tuple[ComputeDAG, Record]],
    n: int,
) -> list[Candidate]:
    """At most n candidates, in the order of the programs of kin that they are made of."""
    mine = role_names(task.dag)
    by_structure = {_bare(mine, s.state.to_json()): s for s in reversed(space)}
    out: dict[tuple[str, tuple[int, ...]], Candidate] = {}
    for dag, record in programs:
        theirs, own = role_names(dag), canonical_names(dag).inverse
        try:
            sketch = by_structure.get(_bare(theirs, own.steps(record.steps)))
            holes = theirs.holes(own.holes(record.holes))
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


def kin_patterns(
    task: SearchTask, programs: Sequence[tuple[ComputeDAG, Record]]
) -> list[Pattern]:
    """Patterns that sketches of the task may have, made of those of kin with another epilogue.

    Inlined stages of an epilogue are next to one another in the steps, the last stage first. Where
    those of kin have none, each place is tried.
    """
    dag, mine = task.dag, role_names(task.dag)
    out: dict[Pattern, None] = {}
    for theirs, record in programs:
        steps = role_names(theirs).steps(canonical_names(theirs).inverse.steps(record.steps))
        kept = [s for s in steps if s["step"] != "annotate" and not _inlines_epilogue(s)]
        first = next((k for k, s in enumerate(steps) if _inlines_epilogue(s)), None)
        named = {v for s in kept for v in s.values() if isinstance(v, str)}
        own = [mine.tensors[op.name] for op in dag.computes]
        missing = [r for r in reversed(own) if r.startswith("E") and r not in named]
        inlined = [{"step": "compute_inline", "stage": r} for r in missing]
        before = 0 if first is None else sum(s["step"] != "annotate" for s in steps[:first])
        for at in range(len(kept) + 1) if first is None and inlined else [before]:
            try:
                back = mine.inverse.steps([*kept[:at], *inlined, *kept[at:]])
                out[pattern(canonical_names(dag).steps(back))] = None
            except ScheduleError:  # names that the task has not
                continue
        if len(out) >= MOST_PATTERNS:
            break
    return list(out)


def _inlines_epilogue(step: Mapping[str, Any]) -> bool:
    return step["step"] == "compute_inline" and str(step["stage"]).startswith("E")


def start_from_family(
    tuner: TaskTuner, everyone: Sequence[TaskTuner], known: KnownPrograms, n: int
) -> int:
    """Suggest what was found for the task before, then programs of its family; how many, at most n.

    Of those of `everyone` that were searched, tasks that differ by extents alone come first. Where
    there are none, tasks that differ by their epilogue follow. Of either, tasks with nearly as many
    FLOP come first; the fastest program of each, then the second fastest. Their sketches are made
    without the rest of the space, as far as that is possible.
    """
    task, most = tuner.task, min(n, FAMILY_ROUND)
    searched = sorted(
        (t for t in everyone if t is not tuner and t.rounds > 1), key=lambda t: distance(t, tuner)
    )
    own = family_of(task)
    alike = [r for _, r in _fastest([t for t in searched if family_of(t.task) == own])]
    for records, is_own in ((known.of(task), True), (alike, False)):
        if records and tuner.n_suggested < most:
            patterns = dict.fromkeys(pattern(r.steps) for r in records)
            space = tuner.alike(list(patterns)[:PATTERNS])
            tuner.suggest(transferred(task, space, records, most, own=is_own), most)
    if not tuner.n_suggested:
        kin = _fastest([t for t in searched if kin_of(t.task) == kin_of(task)])
        if kin:
            found = of_kin(task, tuner.alike(kin_patterns(task, kin)), kin, most)
            tuner.suggest(found or of_kin(task, tuner.sketches, kin, most), most)
    return min(most, tuner.n_suggested)


def _fastest(tuners: Sequence[TaskTuner]) -> list[tuple[ComputeDAG, Record]]:
    """The fastest program of each tuner that was searched for, then the second fastest, ..."""
    ranked = [
        (t.task.dag, distill([r for r in t.records if r.round], FAMILY_ROUND)) for t in tuners
    ]
    return [(dag, rs[k]) for k in range(FAMILY_ROUND) for dag, rs in ranked if k < len(rs)]


def _bare(names: Renaming, steps: Sequence[dict[str, object]]) -> str:
    """The structure of steps without those that inline the epilogue."""
    renamed = names.steps(steps)
    kept = [s for s in renamed if not _inlines_epilogue(s)]
    return structure(kept)
