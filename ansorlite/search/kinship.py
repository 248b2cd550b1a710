"""What the store of earlier runs knows of the tasks of its programs, beside the programs.

A record names a task by a key that nothing can be read from. In: a task. Out: its `Kinship`: equal
for which tasks, how large, and the roles of the names in its records, so that a later run can use
its programs for tasks that differ by extents or by what follows the last sum. Files are data of
others: what does not have this form counts as nothing.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from ansorlite.schedule.naming import Renaming
from ansorlite.search.roles import core_of, kin_of, recorded_roles
from ansorlite.task import SearchTask

MOST_AXES = 64  # of a stage
MOST_FLOP = 1e300  # of a task: larger whole numbers are no floats


@dataclass(frozen=True)
class Kinship:
    """`kin` and `core` are digests of `roles.kin_of` and `roles.core_of`; `flop` of the task.

    `roles` maps names of records to roles.
    """

    kin: str
    core: str
    flop: float
    roles: Renaming

    def to_json(self) -> list[Any]:
        """The fields, and a role with its number of axes for each name."""
        named = {
            name: [role, len(self.roles.axes.get(name, ()))]
            for name, role in self.roles.tensors.items()
        }
        return [self.kin, self.core, self.flop, named]


def kinship(task: SearchTask) -> Kinship:
    """What is kept of a task."""
    return Kinship(
        _digest(kin_of(task)), _digest(core_of(task)), task.flop, recorded_roles(task.dag)
    )


def read_kinship(data: Any) -> Kinship | None:
    """The inverse of `to_json`; None for data of another form."""
    match data:
        case [str(kin), str(core), float() | int() as flop, dict(named)] if 0 <= flop < math.inf:
            tensors, axes = dict[str, str](), dict[str, Mapping[str, str]]()
            for name, row in named.items():
                match row:
                    case [str(role), int(n)] if 0 <= n <= MOST_AXES:
                        tensors[name] = role
                        axes |= {name: {f"a{k}": f"a{k}" for k in range(n)}} if n else {}
                    case _:
                        return None
            if len(set(tensors.values())) == len(tensors):
                return Kinship(kin, core, float(min(flop, MOST_FLOP)), Renaming(tensors, axes))
    return None


def read_kinships(text: str) -> dict[str, Kinship]:
    """By workload key, from the text of a file."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    rows = told.items() if isinstance(told, dict) else ()
    return {task: known for task, data in rows if (known := read_kinship(data)) is not None}


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]
