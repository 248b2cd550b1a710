"""Which forms of a computation are worth measuring: their time is predicted stage by stage.

In: a task in several forms, the plain one first. Out: the plain form, and those other ones that are
predicted to be faster, the best few. A form by transforms has fewer products and more elements that
are written and read on the way, and larger weights. This takes no search: a form without hope costs
no trial. Cycles are those of one core, as if all work were spread evenly.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ansorlite.codegen.dot import widest
from ansorlite.cost.analytic import rates_of
from ansorlite.ir.packed import PACKED
from ansorlite.ir.traverse import loads, tensors_read
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import ComputeOp, Operation
from ansorlite.te.work import dot_of, least_flop, pad_of

MOST = 2  # other forms of a task that are measured
SLOWER = 1.25  # times the best prediction: slower forms have no hope
AGAINST_PLAIN = 0.85  # times the plain form's prediction, likewise
# Times as many operations, and then times the prediction, of forms that save few operations: they
# move little, too, so that they are predicted well.
NEARLY_ALL, AGAINST_NEARLY = 0.85, 0.97
# Bytes a cycle of a core: of what is written and read again between stages, as a share of the speed
# beyond the second cache, with halves of matrices in blocks that fit it; of weights; and of halves
# of weights that do not stay in half of the third cache.
BETWEEN, BETWEEN_HALVES, WEIGHTS, FROM_MEMORY = 0.5, 1.0, 8.0, 2.9


def promising(forms: Sequence[SearchTask]) -> list[SearchTask]:
    """The forms to measure, the plain one first, then as they come."""
    plain, *others = forms
    if len(others) < 2 and not any(transforms(f.dag) for f in others):
        return list(forms)
    times = {f.workload_key: predicted_cycles(f) for f in forms}
    best = min(times.values())
    own = times[plain.workload_key]

    def hopes(form: SearchTask) -> bool:
        time = times[form.workload_key]
        saves = form.dag.run_flop < NEARLY_ALL * plain.dag.run_flop and not _of_halves(form.dag)
        limit = AGAINST_PLAIN if saves else AGAINST_NEARLY
        return time <= SLOWER * best and time <= limit * own

    known = [f for f in others if not transforms(f.dag) or hopes(f)]
    fast = sorted(filter(hopes, known), key=lambda f: times[f.workload_key])[:MOST]
    return [plain, *(f for f in known if f in fast or not transforms(f.dag))]


def by_promise(forms: Sequence[SearchTask]) -> list[int]:
    """The order in which forms are first measured: forms by transforms that are predicted to be
    faster than the plain one, the fastest first, then the others as they come."""
    if not any(transforms(f.dag) for f in forms[1:]):
        return list(range(len(forms)))
    times = [predicted_cycles(f) for f in forms]
    fast = [k for k, f in enumerate(forms) if k and transforms(f.dag) and times[k] < times[0]]
    return [*sorted(fast, key=lambda k: times[k]), *(k for k in range(len(forms)) if k not in fast)]


def transforms(dag: ComputeDAG) -> bool:
    """Is it a form by transforms of tiles?"""
    return any(op.attr("simplify_const_indices") for op in dag.computes)


def _of_halves(dag: ComputeDAG) -> bool:
    """Is it a product of matrices by those of their halves?"""
    listed = (op for op in dag.computes if op.attr("simplify_const_indices"))
    read = {t for op in listed for t in tensors_read(op.body)}
    return any(len(p.shape) == 2 and not p.constant and p.name in read for p in dag.inputs)


def predicted_cycles(task: SearchTask) -> float:
    """Cycles of a core: sums at full speed or as fast as weights come, and what lies between."""
    dag, rates = task.dag, rates_of(task.target)
    constant = _constants(dag)
    lanes = task.target.lanes("float32")
    halves, sums, moved = _of_halves(dag), 0.0, 0.0
    for op in dag.computes:
        if op.name in constant:
            continue
        if op.combiner:
            flop = least_flop(op, dag.by_name)
            sums += flop / (2 * rates.fma * lanes * _speed(op, task))
        if op not in dag.outputs and pad_of(op) is None:
            in_blocks = halves and (op.combiner or op.attr("simplify_const_indices"))
            rate = BETWEEN_HALVES if in_blocks else BETWEEN
            moved += 2 * _size_bytes(op) / (rate * rates.beyond_l2)
    weights = weights_bytes(dag)
    cores = task.target.cores
    rate = FROM_MEMORY if halves and 2 * weights > task.target.l3_bytes > 0 else WEIGHTS
    return max(sums / cores, weights / (rate * cores)) + moved / cores


@lru_cache(maxsize=1024)
def weights_bytes(dag: ComputeDAG) -> float:
    """Bytes of what depends on constants alone and is read by what does not."""
    constant, found = _constants(dag), 0.0
    for op in dag.computes:
        read = dict.fromkeys(x.tensor for x in loads(op.body)) if op.name not in constant else {}
        found += sum(_size_bytes(dag.by_name[t]) for t in read if t in constant)
    return found


def _speed(op: ComputeOp, task: SearchTask) -> float:
    """How much faster than multiply-adds of float32 the products of a sum are."""
    packed = dot_of(op)
    known = widest(task.target, packed) if packed else None
    return 1.0 if known is None else PACKED[packed].depth * known.rate


def _constants(dag: ComputeDAG) -> set[str]:
    """Tensors that depend on constants alone."""
    found = {p.name for p in dag.inputs if p.constant}
    for op in dag.computes:
        read = tensors_read(op.body)
        if read and read <= found:
            found.add(op.name)
    return found


def _size_bytes(op: Operation) -> float:
    return float(math.prod(op.shape)) * np.dtype(op.dtype).itemsize
