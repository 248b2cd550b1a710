"""The tasks of networks: what their kernels compute, each distinct computation once.

In: partitions of networks. Out: `WeightedTask`s, with the forms that compute the same otherwise and
how often they occur, of one network (`network_tasks`) or of several (`shared_tasks`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ansorlite.graph.lower import BF16_LOSS, FORM_RTOL
from ansorlite.graph.partition import Partition, kernels, tasks
from ansorlite.ir.expr import Op
from ansorlite.ir.traverse import walk
from ansorlite.search.tune_tasks import WeightedTask
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG


class SharedTasks(NamedTuple):
    """The distinct tasks of several networks, weighted by how often they occur in all of them.

    `places[m]` are the numbers of network m's own tasks, `weights[m][k]` how often task k occurs
    in network m.
    """

    tasks: list[WeightedTask]
    places: list[list[int]]
    weights: list[list[float]]


def placed(parts: Sequence[Partition], shared: SharedTasks) -> Counter[str]:
    """By workload key of the task: kernels that are built for where operands lie."""
    rows = zip(parts, shared.places, strict=True)
    found = (shared.tasks[own[k.task]] for p, own in rows for k in kernels(p) if k.is_placed(p))
    return Counter(w.task.workload_key for w in found)


def shared_tasks(networks: Sequence[Sequence[WeightedTask]]) -> SharedTasks:
    """Merge the tasks of several networks by their workload keys; forms are those of all."""
    index: dict[str, int] = {}
    merged: list[WeightedTask] = []
    for w in (w for own in networks for w in own):
        key = w.task.workload_key
        if key in index:
            known = merged[index[key]]
            keys = {f.workload_key for f in w.other_forms}
            common = tuple(f for f in known.other_forms if f.workload_key in keys)
            total = known.weight + w.weight
            merged[index[key]] = replace(known, weight=total, other_forms=common)
        else:
            index[key] = len(merged)
            merged.append(w)
    places = [[index[w.task.workload_key] for w in own] for own in networks]
    weights = [[0.0] * len(merged) for _ in networks]
    for own, at, row in zip(networks, places, weights, strict=True):
        for w, k in zip(own, at, strict=True):
            row[k] += w.weight
    return SharedTasks(merged, places, weights)


def network_tasks(
    parts: Partition, target: Target, form_rtol: float = FORM_RTOL
) -> list[WeightedTask]:
    """The distinct tasks of a partition with their weights, in order of first occurrence."""
    out = []
    for t in tasks(parts):
        name = parts.subgraphs[t.subgraphs[0]].name
        kinds = "+".join(op.combiner or "map" for op in t.dag.computes)
        others = t.others if form_rtol > 0 else ()
        forms = tuple(
            SearchTask(dag, target, name, t.dag, form_rtol * (BF16_LOSS if rounds(dag) else 1.0))
            for dag in others
        )
        out.append(WeightedTask(SearchTask(t.dag, target, name), float(t.weight), kinds, forms))
    return out


def rounds(dag: ComputeDAG) -> bool:
    """Does the computation round to bfloat16 what is no output?"""
    stages = (op for op in dag.computes if op not in dag.outputs)
    return any(isinstance(e, Op) and e.name == "bf16_bits" for op in stages for e in walk(op.body))
