"""A small version of a heavy task, to find out on it what is worth measuring on the task itself.

Where one trial takes seconds, a budget of a minute holds some twenty, and a search does not learn.
An axis that every operation only passes on (the batch) can be shortened: what is good for a tile of
the short task is good for a tile of the whole one. In: a `SearchTask`. Out: the same computation
with that axis shorter, and rows of the whole task's sketches for what was found on it.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Const, Var
from ansorlite.ir.traverse import loads, walk
from ansorlite.schedule.holes import Hole, population_columns
from ansorlite.search.history import Candidate
from ansorlite.search.reference import is_heavy
from ansorlite.space.legality import legal_of
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Axis, ComputeOp, Operation, Placeholder

PROXY_FLOP = 1e10  # some 0.1 s: enough to fill the caches as the whole task does
Dimension = tuple[str, int]  # of a tensor


def shrunk(task: SearchTask) -> SearchTask | None:
    """The task with a batch axis cut short; None if it is not heavy or has no such axis."""
    if not is_heavy(task):
        return None
    for d in range(max((len(op.axes) for op in task.dag.outputs), default=0)):
        passed = passed_on(task.dag, d)
        if not passed:
            continue
        extent = task.dag.outputs[0].shape[d]
        short = math.ceil(extent * PROXY_FLOP / task.flop)
        if 2 * short <= extent:
            return SearchTask(_cut(task.dag, passed, short), task.target, f"{task.name} (short)")
    return None


def passed_on(dag: ComputeDAG, d: int) -> frozenset[Dimension]:
    """Dimension d of the outputs, and of all other tensors what an index along it goes to.

    Empty where it is not passed on as it is: moved, tested, reduced, or also read as a whole.
    """
    found: set[Dimension] = set()
    work: list[Dimension] = [(op.name, d) for op in dag.outputs if d < len(op.axes)]
    if len(work) < len(dag.outputs) or len({o.shape[d] for o in dag.outputs}) > 1:
        return frozenset()
    while work:
        name, k = work.pop()
        if (name, k) in found:
            continue
        found.add((name, k))
        op = dag.by_name[name]
        if isinstance(op, Placeholder):
            if op.constant:
                return frozenset()
            continue
        axis = op.axes[k].name
        inside = 0
        for read in loads(op.body):
            at = [j for j, i in enumerate(read.indices) if axis in i.free]
            if len(at) > 1 or any(not isinstance(read.indices[j], Var) for j in at):
                return frozenset()
            inside += len(at)
            work += [(read.tensor, j) for j in at]
        if inside != sum(isinstance(x, Var) and x.name == axis for x in walk(op.body)):
            return frozenset()
    return frozenset(found) if _everywhere(dag, found) else frozenset()


def _everywhere(dag: ComputeDAG, found: set[Dimension]) -> bool:
    """Is every read of such a dimension made along such a dimension?"""
    for op in dag.computes:
        along = {a.name for k, a in enumerate(op.axes) if (op.name, k) in found}
        for read in loads(op.body):
            for j, i in enumerate(read.indices):
                if (read.tensor, j) in found and not (isinstance(i, Var) and i.name in along):
                    return False
    return True


def _cut(dag: ComputeDAG, passed: frozenset[Dimension], extent: int) -> ComputeDAG:
    short = Const(extent)

    def cut(op: Operation) -> Operation:
        if isinstance(op, ComputeOp):
            axes = (
                Axis(a.name, short) if (op.name, k) in passed else a for k, a in enumerate(op.axes)
            )
            return replace(op, axes=tuple(axes))
        extents = (short if (op.name, k) in passed else e for k, e in enumerate(op.extents))
        return replace(op, extents=tuple(extents))

    return ComputeDAG.from_ops([cut(op) for op in dag.ops], dag.output_names)


def adapted(sketch: Sketch, values: Mapping[str, tuple[int, ...]]) -> npt.NDArray[np.int32]:
    """The row of a sketch whose values are nearest to those of a task of other extents."""
    return np.array([_nearest(h, values.get(h.name)) for h in sketch.holes], dtype=np.int32)


def are_legal(found: Sequence[tuple[Sketch, npt.NDArray[np.int32]]], target: Target) -> list[bool]:
    """Whether rows of sketches are legal, all looked at together."""
    places: dict[int, list[int]] = {}
    for k, (sketch, _) in enumerate(found):
        places.setdefault(id(sketch), []).append(k)
    asked = []
    for ks in places.values():
        sketch = found[ks[0]][0]
        columns = population_columns(sketch.holes, np.stack([found[k][1] for k in ks]))
        asked.append((sketch.legality(target), columns, len(ks)))
    out = [False] * len(found)
    for ks, mask in zip(places.values(), legal_of(asked) if asked else (), strict=True):
        for k, ok in zip(ks, mask, strict=True):
            out[k] = bool(ok)
    return out


def first_legal(
    found: Iterable[tuple[Sketch, npt.NDArray[np.int32]]], n: int, target: Target
) -> Iterator[Candidate]:
    """The first n legal rows of sketches, looked at as many at a time as are missing."""
    rest = iter(found)
    while n > 0 and (part := list(islice(rest, n))):
        for (sketch, row), ok in zip(part, are_legal(part, target), strict=True):
            if ok:
                n -= 1
                yield Candidate(sketch, tuple(int(v) for v in row))


def _nearest(hole: Hole, values: tuple[int, ...] | None) -> int:
    wanted = values if values is not None and len(values) == hole.width else (1,) * hole.width
    known = hole.find(wanted)
    if known is not None:
        return known
    # Inner factors matter most: they make the register tile.
    distance = np.abs(np.log2(hole.table + 1.0) - np.log2(np.array(wanted) + 1.0))
    return int(np.argmin(distance @ np.arange(1.0, hole.width + 1.0) ** 2))
