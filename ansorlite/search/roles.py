"""Roles of stages: names that tasks with the same sum and different epilogues share.

In: a DAG. Out: stages named by their role: A0, A1, ... up to the last sum, E0, E1, ... between, and
`out` for the last; and what tasks of one kin have in common.
"""

import re
from functools import lru_cache

import networkx as nx

from ansorlite.schedule.naming import Renaming, canonical_names
from ansorlite.search.untuned import family_of
from ansorlite.task import SearchTask
from ansorlite.te.dag import ComputeDAG

_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")
_TENSOR = re.compile(r"\bT(\d+)\b")
OUT = "out"


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
