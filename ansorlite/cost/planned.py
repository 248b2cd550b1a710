"""Evaluation of the statements of many plans at once.

In: statements of programs (`PlannedStatements`) and populations. Out: for each population what a
function computes from sheets of statements, by statement and candidate. Statements with about as
many accesses share a sheet.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ansorlite.cost.sheet import PlannedStatement, Shape, Sheet
from ansorlite.cost.statement import Statement, described
from ansorlite.ir.tape import ONE, ZERO, Tape, Values
from ansorlite.target import Target

BLOCK_ROWS = 1024  # candidates evaluated together, so that arrays take some 30 MB at most


class PlannedStatements:
    """The statements of a program as values of a tape, for one target."""

    def __init__(self, statements: Sequence[Statement], target: Target) -> None:
        tape = self._tape = Tape()
        uses: dict[str, int] = {}
        for st in statements:
            for a in st.accesses:
                uses[a.buffer.name] = uses.get(a.buffer.name, 0) + 1
        numbers = [described(tape, st, target, uses) for st in statements]
        row = tape.row
        self.statements = [
            PlannedStatement(
                Shape(len(st.loops), len(st.accesses)),
                {name: row[found] for name, found in own.items()},
                (int(row[ZERO]), int(row[ONE])),
            )
            for st, own in zip(statements, numbers, strict=True)
        ]

    def values(self, columns: Mapping[str, Any], n: int) -> Values:
        """float64[rows, n]: all values; `columns` gives int64[n] per hole variable."""
        return self._tape.run(columns, n)

    def effort(self, columns: Mapping[str, Any], n: int) -> Values | None:
        """float64[S, n], see `statement.effort`; None where all of it is 1."""
        rows = [int(st.rows["effort"]) for st in self.statements]
        plain = [st.constants[ONE] for st in self.statements]
        return None if rows == plain else self.values(columns, n)[rows]


class Population(NamedTuple):
    """Candidates of one program: `columns` gives int64[n] per hole variable."""

    plan: PlannedStatements
    columns: Mapping[str, Any]
    n: int

    def part(self, begin: int, end: int) -> "Population":
        """Some of the candidates."""
        if end - begin == self.n:
            return self
        columns = {name: values[begin:end] for name, values in self.columns.items()}
        return Population(self.plan, columns, end - begin)


class _Piece(NamedTuple):
    """Candidates of the population of this number, from `begin` on."""

    owner: int
    begin: int
    population: Population


def evaluated(
    populations: Sequence[Population], width: int, compute: Callable[[Sheet], Values]
) -> list[Values]:
    """float64[S, width, n] of each population: what `compute` returns as [width, n] of a sheet."""
    out = [np.empty((len(p.plan.statements), width, p.n)) for p in populations]
    for block in _blocks(populations):
        values = [piece.population.plan.values(*piece.population[1:]) for piece in block]
        for shape, chosen in _alike(block):
            parts = [
                (values[k], [block[k].population.plan.statements[s] for s in places])
                for k, places in chosen.items()
            ]
            found, at = compute(Sheet(shape, parts)), 0
            for k, places in chosen.items():
                owner, begin, population = block[k]
                for s in places:
                    own = found[:, at : at + population.n]
                    out[owner][s, :, begin : begin + population.n] = own
                    at += population.n
    return out


def _blocks(populations: Sequence[Population]) -> Iterator[list[_Piece]]:
    """All candidates, at most `BLOCK_ROWS` at once."""
    block, left = list[_Piece](), BLOCK_ROWS
    for owner, population in enumerate(populations):
        begin = 0
        while begin < population.n:
            end = min(population.n, begin + left)
            block.append(_Piece(owner, begin, population.part(begin, end)))
            begin, left = end, left - (end - begin)
            if not left:
                yield block
                block, left = [], BLOCK_ROWS
    if block:
        yield block


def _alike(block: Sequence[_Piece]) -> list[tuple[Shape, dict[int, list[int]]]]:
    """Statements that share a sheet, of whose accesses at most half are added: shape, and the
    numbers of statements by piece."""
    groups: dict[int, dict[int, list[int]]] = {}
    for k, piece in enumerate(block):
        for s, st in enumerate(piece.population.plan.statements):
            size = max(1, st.shape.accesses - 1).bit_length()
            groups.setdefault(size, {}).setdefault(k, []).append(s)
    out = []
    for group in groups.values():
        shapes = [
            block[k].population.plan.statements[s].shape for k, ss in group.items() for s in ss
        ]
        shape = Shape(max(s.loops for s in shapes), max(s.accesses for s in shapes))
        out.append((shape, group))
    return out
