"""Roles of stages: names that tasks with the same sum and different epilogues share.

In: a DAG. Out: stages named by their role: A0, A1, ... up to the last sum, E0, E1, ... between, and
`out` for the last; and what tasks of one kin have in common.
"""

import re
from functools import lru_cache

from ansorlite.schedule.naming import Renaming, canonical_names
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
    core = dag.above(sums[-1])
    out, counts = [], {"A": 0, "E": 0}
    for op in dag.ops:
        kind = "A" if op.name in core else "E"
        out.append(OUT if op.name == dag.output_names[0] else f"{kind}{counts[kind]}")
        counts[kind] += 1
    return tuple(out)


@lru_cache(maxsize=512)
def role_names(dag: ComputeDAG) -> Renaming:
    """The map from a DAG's names to roles; to canonical names where there is no epilogue."""
    canonical, roles = canonical_names(dag), _roles(dag)
    if not roles:
        return canonical
    return Renaming({op.name: r for op, r in zip(dag.ops, roles, strict=True)}, canonical.axes)


@lru_cache(maxsize=512)
def recorded_roles(dag: ComputeDAG) -> Renaming:
    """The map from the canonical names, which records have, to roles."""
    canonical, own = canonical_names(dag), role_names(dag)
    axes = {
        canonical.tensors[name]: {a: a for a in known.values()}
        for name, known in canonical.axes.items()
    }
    return Renaming({canonical.tensors[n]: role for n, role in own.tensors.items()}, axes)


def family_of(task: SearchTask) -> str:
    """The computation with its numbers left out: equal for tasks that differ by extents."""
    return _family(task.dag.canonical_text)


@lru_cache(maxsize=4096)
def _family(text: str) -> str:
    return _NUMBER.sub("#", text)


def kin_of(task: SearchTask) -> str:
    """Equal for tasks that differ by extents or epilogue."""
    return _kin(task.dag) or family_of(task)


def core_of(task: SearchTask) -> str:
    """Equal for tasks that differ by their epilogue alone."""
    core, rank = _core(task.dag)
    return f"{core}\nrank {rank}" if core else task.dag.canonical_text


def extents_of(task: SearchTask) -> tuple[int, ...]:
    """The numbers that tasks of its kin have in the same places, with other values."""
    core, _ = _core(task.dag)
    return tuple(int(n) for n in _NUMBER.findall(core or task.dag.canonical_text))


@lru_cache(maxsize=512)
def _kin(dag: ComputeDAG) -> str:
    """`kin_of` a task; empty where nothing follows its last sum."""
    core, rank = _core(dag)
    return f"{_NUMBER.sub('#', core)}\nrank {rank}" if core else ""


@lru_cache(maxsize=512)
def _core(dag: ComputeDAG) -> tuple[str, int]:
    """(the computation up to the last sum, rank of the output); empty where nothing follows it."""
    roles = _roles(dag)
    if not roles:
        return "", 0
    lines = dag.canonical_text.splitlines()
    kept = [line for line, role in zip(lines, roles, strict=False) if role.startswith("A")]
    named = [_TENSOR.sub(lambda m: roles[int(m[1])], line) for line in kept]
    rank = len(dag.by_name[dag.output_names[0]].shape)
    return "\n".join(named), rank
