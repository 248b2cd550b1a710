"""Schedules of other tasks as first candidates: their best programs, with the nearest values.

Steps name operations, axes and holes canonically and hold no extents, so tasks that differ by
extents alone have equal steps. In: records of such tasks. Out: candidates of the task at hand.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ansorlite.records import Record, distill
from ansorlite.schedule.naming import canonical_names
from ansorlite.search.history import Candidate, Guess
from ansorlite.search.shrink_task import adapted, is_legal
from ansorlite.search.tuner import TaskTuner
from ansorlite.space.sketch import Sketch
from ansorlite.task import SearchTask

AT_FIRST = 0.5  # share of the first round
LATER = 2  # candidates of every other round


def transferred(
    task: SearchTask, space: Sequence[Sketch], records: Sequence[Record | Guess], n: int
) -> list[Candidate]:
    """At most n candidates, in the order of the records that they are made of."""
    names = canonical_names(task.dag)
    # Records of other tasks are data: only values of known holes are taken.
    by_structure = {structure(names.steps(s.state.to_json())): s for s in reversed(space)}
    out: dict[tuple[str, tuple[int, ...]], Candidate] = {}
    for r in records:
        sketch = by_structure.get(structure(r.steps))
        if sketch is None or not r.ok or r.task == task.workload_key:
            continue
        values = {
            h.name: tuple(r.holes[name])
            for h in sketch.holes
            if (name := names.hole(h.name)) in r.holes
        }
        if any(h.kind in ("tile", "factor") and h.name not in values for h in sketch.holes):
            continue
        row = adapted(sketch, values)
        if is_legal(sketch, row, task.target):
            c = Candidate(sketch, tuple(int(v) for v in row))
            out.setdefault(c.key, c)
        if len(out) == n:
            break
    return list(out.values())


def start_from_others(
    tuner: TaskTuner, other_tasks: Sequence[TaskTuner], history: Sequence[Record], n: int
) -> None:
    """Suggest, before a round of n, the best programs of other tasks of this run.

    The first round has those of the log's tasks, too. Tasks with nearly as many FLOP come first.
    Measured programs are not suggested again, so a later round has suggestions only when another
    task has a new best program.
    """
    if not tuner.sketches:
        return

    def distance(t: TaskTuner) -> float:
        return abs(math.log(max(t.task.flop, 1.0) / max(tuner.task.flop, 1.0)))

    near = sorted((t for t in other_tasks if t is not tuner), key=distance)
    here = {t.task.workload_key for t in (*near, tuner)}
    target = tuner.task.target.fingerprint
    logged = [r for r in history if r.target == target and r.task not in here]
    first = tuner.rounds <= 1
    records = [r for t in near if (r := t.best) is not None]
    if first:
        records += distill(logged, 1)
    wanted = max(1, int(AT_FIRST * n)) if first else LATER
    if records:
        most = wanted if first else len(records)
        tuner.suggest(transferred(tuner.task, tuner.sketches, records, most), wanted)


def structure(steps: Sequence[Any]) -> str:
    """The steps without annotations, which may depend on extents."""
    kept = [s for s in steps if not (isinstance(s, Mapping) and s.get("step") == "annotate")]
    return json.dumps(kept, sort_keys=True)
