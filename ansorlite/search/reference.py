"""The program that candidates of a task are checked against.

In: a `SearchTask`. Out: a complete `State` whose sums are in float64: the plain schedule, or for
tasks that keep it busy for many seconds a tiled one, chosen by its analytic score alone. Whoever
runs it checks samples of its outputs against numpy.
"""

import numpy as np

from ansorlite.cost.analytic import analytic_score
from ansorlite.cost.features import features
from ansorlite.ir.expr import Const
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.state import State
from ansorlite.space.legality import legal
from ansorlite.space.plain import plain_state, with_double_sums
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

HEAVY_FLOP = 1e10  # a second of the plain schedule, which reaches some 10 GFLOP/s
DRAWS = 2048
OPTIONS = SpaceOptions(folding=False, packing=False, locations=False)


def is_heavy(task: SearchTask) -> bool:
    """Is the plain schedule too slow to be worth its time, and to serve as reference?"""
    return task.flop > HEAVY_FLOP


def reference_state(task: SearchTask) -> State:
    """The complete state of the reference; the same for equal tasks."""
    plain = plain_state(task.dag, task.target)
    if not is_heavy(task):
        return plain
    rng = np.random.default_rng(0)
    found: list[tuple[float, State]] = []
    for sketch in sketches(with_double_sums(task.dag), task.target, OPTIONS):
        rows = sketch.sample(DRAWS, rng)
        columns = population_columns(sketch.holes, rows)
        good = np.flatnonzero(legal(sketch.program, columns, len(rows), task.target))
        if not good.size:
            continue
        rows = rows[good]
        columns = population_columns(sketch.holes, rows)
        scores = analytic_score(features(sketch.program, columns, len(rows), task.target))
        k = int(np.argmax(scores))
        found.append((float(scores[k]), sketch.state.fill(sketch.values(rows[k]))))
    return max(found, key=lambda f: f[0])[1] if found else plain


def reduction_length(dag: ComputeDAG) -> int:
    """Terms of the longest chain of sums in the DAG, for the tolerance of checks."""
    length: dict[str, int] = {}
    for op in dag.computes:
        own = 1
        for a in op.reduce_axes:
            own *= int(a.extent.value) if isinstance(a.extent, Const) else 1
        before = [length.get(n, 1) for n in dag.reads[op.name]]
        length[op.name] = max([own, *before])
    return max(length.values(), default=1)
