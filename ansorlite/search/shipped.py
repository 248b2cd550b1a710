"""Programs that come with the package: the fastest ones of generated layers, by vector length.

In: a task. Out: programs of layers of its kin, those of the nearest extents first, with which its
search begins; and how long its forms take, compared with one another. `programs.json` is made by
`scripts/train_programs.py`; of a CPU whose vectors have another length than all that were measured,
those of the nearest length serve. Structures and register tiles depend little on the machine.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from ansorlite.record_fields import OK
from ansorlite.records import Record
from ansorlite.search.kinship import Kinship, Near, kinship, octaves, read_kinship
from ansorlite.target import Target
from ansorlite.task import SearchTask

SHIPPED = Path(__file__).with_name("programs.json")
KEPT = 2  # programs of a layer
CLOSE = 1.1  # times the best latency of a layer: other programs that are kept
AVERAGED = 3  # layers that tell how long a form takes: one alone was tuned well or not

Programs = tuple[Kinship, Sequence[Record]]  # of a layer, the fastest first


class Row(NamedTuple):
    """A layer as the file has it: the extents of its form, its FLOP, and what is read if needed."""

    extents: tuple[int, ...]
    flop: float
    told: Any  # its kinship, with the number of its roles
    programs: Sequence[Any]  # seconds, number of the steps, and holes of each


class ShippedPrograms:
    """The layers that were measured with vectors of one length, found by kin."""

    def __init__(
        self, kin: Mapping[str, Sequence[Row]], read: Callable[[Row], Programs | None]
    ) -> None:
        """`read` gives what a row stands for."""
        self._kin, self._read = kin, read

    def has_kin(self, task: SearchTask) -> bool:
        """Is there a program of its kin?"""
        return kinship(task).kin in self._kin

    def of_kin(self, task: SearchTask, n: int) -> list[Near]:
        """Programs of the n nearest layers of its kin: the fastest ones, then the second ones."""
        near = [(distance, self._read(row)) for distance, row in self._near(task)[:n]]
        found = [(distance, *own) for distance, own in near if own is not None]
        return [
            Near(distance, (known.roles, records[k]))
            for k in range(KEPT)
            for distance, known, records in found
            if k < len(records)
        ]

    def latency_s(self, task: SearchTask) -> float:
        """Seconds of the nearest layers, in proportion to operations; infinite without one.

        On the machine that they were measured on: to be compared with those of other forms.
        """
        rows = [row for _, row in self._near(task)[:AVERAGED]]
        paces = [row.programs[0][0] / max(row.flop, 1.0) for row in rows]
        return geometric_mean(paces) * max(task.flop, 1.0) if paces else math.inf

    def _near(self, task: SearchTask) -> list[tuple[float, Row]]:
        """The layers of its kin, the nearest ones first."""
        mine = kinship(task)
        rows = [r for r in self._kin.get(mine.kin, ()) if len(r.extents) == len(mine.extents)]
        return sorted(((octaves(mine.extents, r.extents), r) for r in rows), key=itemgetter(0))


NONE = ShippedPrograms({}, lambda row: None)


class _File:
    """What is in the file: tables of what layers have in common, and rows of layers.

    The tables are of steps, of sequences of these, of names of holes and of names' roles.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        self._steps: list[str] = told["steps"]
        self._sequences: list[list[int]] = told["sequences"]
        self._holes: list[str] = told["holes"]
        self._roles: list[dict[str, Any]] = told["roles"]
        self._sets: dict[str, list[Any]] = told["vector_bytes"]

    @cached_property
    def _parsed(self) -> list[Any]:
        return [json.loads(s) for s in self._steps]

    def layers(self) -> dict[int, list[Programs]]:
        """All of them, by length of vectors."""
        return {
            int(n): [p for row in rows if (p := self._layer(_row(*row))) is not None]
            for n, rows in self._sets.items()
        }

    def programs(self, vector_bytes: int) -> ShippedPrograms:
        """Those for the nearest length of vectors."""
        if not self._sets:
            return NONE
        nearest = min(self._sets, key=lambda n: abs(math.log2(int(n) / vector_bytes)))
        kin: dict[str, list[Row]] = {}
        for told, programs in self._sets[nearest]:
            kin.setdefault(told[0], []).append(_row(told, programs))
        return ShippedPrograms(kin, self._layer)

    def _layer(self, row: Row) -> Programs | None:
        kin, core, flop, roles, extents = row.told
        known = read_kinship([kin, core, flop, self._roles[roles], extents])
        if known is None:
            return None
        name = f"layer {known.core}"
        return known, [
            Record(
                target="",
                task=name,
                task_name=name,
                sketch="",
                steps=tuple(self._parsed[k] for k in self._sequences[sequence]),
                holes={self._holes[k]: values for k, *values in holes},
                status=OK,
                latency_s=seconds,
            )
            for seconds, sequence, holes in row.programs
        ]


def _row(told: Any, programs: Sequence[Any]) -> Row:
    _, _, flop, _, extents = told
    return Row(tuple(extents), flop, told, programs)


@cache
def shipped(target: Target) -> ShippedPrograms:
    """What comes with the package for a target; nothing where the file is missing."""
    known = _file(SHIPPED)
    return NONE if known is None else known.programs(target.vector_bytes)


@cache
def _file(path: Path) -> _File | None:
    """None where it is missing or cut short, as by an installation that was broken off."""
    try:
        return _File(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, KeyError):
        return None


def layers(path: Path) -> dict[int, list[Programs]]:
    """The layers that a file holds, by length of vectors; none where it is missing."""
    known = _file(path)
    return {} if known is None else known.layers()


def merged(*found: Mapping[int, Iterable[Programs]]) -> dict[int, list[Programs]]:
    """Layers of several sources; of equal ones those that come last."""
    out: dict[int, dict[tuple[Any, ...], Programs]] = {}
    for source in found:
        for n, rows in source.items():
            own = {(k.kin, k.core, k.extents): (k, records) for k, records in rows}
            out.setdefault(n, {}).update(own)
    return {n: list(rows.values()) for n, rows in out.items()}


def to_json(found: Mapping[int, Iterable[Programs]]) -> dict[str, Any]:
    """What the file holds of layers by length of vectors: what several have in common once."""
    tables: dict[str, dict[str, int]] = {k: {} for k in ("steps", "sequences", "holes", "roles")}

    def number(table: str, value: Any) -> int:
        text = value if isinstance(value, str) else json.dumps(value)
        return tables[table].setdefault(text, len(tables[table]))

    def row(r: Record) -> list[Any]:
        plain = (s for s in r.steps if s["step"] != "annotate")
        return [
            float(f"{r.lowest_s:.4g}"),
            number("sequences", [number("steps", json.dumps(s, sort_keys=True)) for s in plain]),
            [[number("holes", name), *values] for name, values in r.holes.items()],
        ]

    def kin(known: Kinship) -> list[Any]:
        kin, core, flop, roles, extents = known.to_json()
        return [kin, core, flop, number("roles", roles), extents]

    sets = {
        str(n): [[kin(known), [row(r) for r in records]] for known, records in layers]
        for n, layers in sorted(found.items())
    }
    return {
        "steps": list(tables["steps"]),
        "sequences": [json.loads(s) for s in tables["sequences"]],
        "holes": list(tables["holes"]),
        "roles": [json.loads(s) for s in tables["roles"]],
        "vector_bytes": sets,
    }
