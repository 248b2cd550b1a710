"""Evaluation of the statements of many plans at once.

In: statements of programs (`PlannedStatements`) and populations. Out: for each population what a
function computes from sheets of statements, by statement and candidate. Statements with about as
many accesses share a sheet.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ansorlite.cost.sheet import PlannedStatement, Shape, Sheet
from ansorlite.cost.statement import Statement, described
from ansorlite.ir.evaluation import PART, Candidates, Evaluation, blocks
from ansorlite.ir.tape import ONE, Tape, Values
from ansorlite.target import Target

BLOCK_ROWS = 2048  # candidates evaluated together, so that arrays take some 30 MB at most


class PlannedStatements:
    """The statements of a program as values of a tape, for one target."""

    def __init__(self, statements: Sequence[Statement], target: Target) -> None:
        self.tape = Tape()
        found = described(self.tape, statements, target)
        shapes = [Shape(len(st.loops), len(st.accesses)) for st in statements]
        self.statements = [
            PlannedStatement(shape, numbers) for shape, numbers in zip(shapes, found, strict=True)
        ]

    def effort(self, columns: Mapping[str, Any], n: int) -> Values | None:
        """float64[S, n], see `statement.effort`; None where all of it is 1."""
        numbers = [int(st.numbers["effort"]) for st in self.statements]
        if all(number == ONE for number in numbers):
            return None
        values = Evaluation([self.tape], [Candidates(columns, n)])
        return np.stack([values.of(0, number) for number in numbers])


class Population(NamedTuple):
    """Candidates of one program: `columns` gives int64[n] per hole variable."""

    plan: PlannedStatements
    columns: Mapping[str, Any]
    n: int


def evaluated(
    populations: Sequence[Population], width: int, compute: Callable[[Sheet], Values]
) -> list[Values]:
    """float64[S, width, n] of each population: what `compute` returns as [width, n] of a sheet."""
    out = [np.empty((len(p.plan.statements), width, p.n)) for p in populations]
    for block in blocks([(p.columns, p.n) for p in populations], BLOCK_ROWS):
        plans = [populations[c.owner].plan for c in block]
        values = Evaluation([plan.tape for plan in plans], block)
        for shape, chosen in _alike(plans):
            statements = [(t, plans[t].statements[s]) for t, s in chosen]
            found, at = compute(Sheet(shape, statements, values)), 0
            for t, s in chosen:
                candidates = block[t]
                begin, end = candidates.begin, candidates.begin + candidates.n
                out[candidates.owner][s, :, begin:end] = found[:, at : at + candidates.n]
                at += values.parts[t] * PART
    return out


def _alike(
    plans: Sequence[PlannedStatements],
) -> list[tuple[Shape, list[tuple[int, int]]]]:
    """Statements that share a sheet, of whose accesses at most half are added.

    The shape of the sheet, and (number of the plan, number of the statement) of each.
    """
    groups: dict[int, list[tuple[int, int]]] = {}
    for t, plan in enumerate(plans):
        for s, st in enumerate(plan.statements):
            size = max(1, st.shape.accesses - 1).bit_length()
            groups.setdefault(size, []).append((t, s))
    out = []
    for group in groups.values():
        shapes = [plans[t].statements[s].shape for t, s in group]
        shape = Shape(max(s.loops for s in shapes), max(s.accesses for s in shapes))
        out.append((shape, group))
    return out
