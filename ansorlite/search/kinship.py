"""What the store of earlier runs knows of the tasks of its programs, beside the programs.

A record names a task by a key that nothing can be read from. In: a task. Out: its `Kinship`: equal
for which tasks, how large, and the roles of the names in its records, so that a later run can use
its programs for tasks that differ by extents or by what follows the last sum. Files are data of
others: what does not have this form counts as nothing.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from ansorlite.records import Record
from ansorlite.schedule.naming import Renaming
from ansorlite.search.roles import core_of, extents_of, kin_of, recorded_roles
from ansorlite.task import SearchTask

MOST_AXES = 64  # of a stage
MOST_EXTENTS = 4096  # of a task
MOST_FLOP = 1e300  # of a task: larger whole numbers are no floats

Named = tuple[Renaming, Record]  # a program, and the roles of the names in its record


@dataclass(frozen=True)
class Kinship:
    """`kin` and `core` are digests of `roles.kin_of` and `roles.core_of`; `flop` of the task.

    `roles` maps names of records to roles. `extents` are the numbers by which tasks of one kin
    differ up to their last sum, in the order of the computation; empty where they are not known.
    """

    kin: str
    core: str
    flop: float
    roles: Renaming
    extents: tuple[int, ...] = ()

    def to_json(self) -> list[Any]:
        """The fields, and a role with its number of axes for each name."""
        named = {
            name: [role, len(self.roles.axes.get(name, ()))]
            for name, role in self.roles.tensors.items()
        }
        return [self.kin, self.core, self.flop, named, list(self.extents)]

    def distance(self, other: "Kinship") -> float:
        """How far two tasks of one kin are apart: octaves by which their extents differ, summed.

        Each pair of extents counts once, wherever it occurs; octaves of FLOP where either task's
        extents are not known.
        """
        if self.extents and len(self.extents) == len(other.extents):
            return octaves(self.extents, other.extents)
        return abs(math.log2(max(self.flop, 1.0) / max(other.flop, 1.0)))


def octaves(one: Sequence[int], other: Sequence[int]) -> float:
    """By how much as many extents differ; each pair of them counts once."""
    pairs = set(zip(one, other, strict=True))
    return math.fsum(abs(math.log2(a + 1) - math.log2(b + 1)) for a, b in pairs if a != b)


class Near(NamedTuple):
    """A program of a task's kin, and how far that task is from the one at hand."""

    distance: float
    named: Named


@lru_cache(maxsize=512)
def kinship(task: SearchTask) -> Kinship:
    """What is kept of a task."""
    kin, core = _digest(kin_of(task)), _digest(core_of(task))
    return Kinship(kin, core, task.flop, recorded_roles(task.dag), extents_of(task))


def read_kinship(data: Any) -> Kinship | None:
    """The inverse of `to_json`; None for data of another form."""
    match data:
        case [str(kin), str(core), float() | int() as flop, dict(named), *more] if (
            0 <= flop < math.inf and (extents := _extents(more)) is not None
        ):
            tensors, axes = dict[str, str](), dict[str, Mapping[str, str]]()
            for name, row in named.items():
                match row:
                    case [str(role), int(n)] if 0 <= n <= MOST_AXES:
                        tensors[name] = role
                        axes |= {name: {f"a{k}": f"a{k}" for k in range(n)}} if n else {}
                    case _:
                        return None
            if len(set(tensors.values())) == len(tensors):
                roles = Renaming(tensors, axes)
                return Kinship(kin, core, float(min(flop, MOST_FLOP)), roles, extents)
    return None


def _extents(more: list[Any]) -> tuple[int, ...] | None:
    """What follows the roles: nothing, as it was once, or the extents."""
    match more:
        case []:
            return ()
        case [list(values)] if len(values) <= MOST_EXTENTS and all(
            type(v) is int and 0 <= v < 1 << 62 for v in values
        ):
            return tuple(values)
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
