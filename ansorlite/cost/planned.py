"""Evaluation of the statements of many plans at once.

In: statements of programs (`PlannedStatements`) and populations. Out: for each population what a
function computes from sheets of statements, by statement and candidate. Statements with about as
many accesses share a sheet.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ansorlite.cost.sheet import PlannedStatement, Shape, Sheet
from ansorlite.cost.statement import Statement, described
from ansorlite.ir.evaluation import Candidates, Evaluation, blocks
from ansorlite.ir.native_tape import PART
from ansorlite.ir.tape import ONE, Tape, Values
from ansorlite.target import Target

BLOCK_ROWS = 4096  # candidates evaluated together, so that arrays take some 60 MB at most


class PlannedStatements:
    """The statements of a program as values of tapes, for one target."""

    def __init__(self, statements: Sequence[Statement], target: Target) -> None:
        uses = Counter(a.buffer.name for st in statements for a in st.accesses)
        self.statements = [
            _planned(st, tuple(uses[a.buffer.name] for a in st.accesses), target)
            for st in statements
        ]

    def effort(self, columns: Mapping[str, Any], n: int) -> Values | None:
        """float64[S, n], see `statement.effort`; None where all of it is 1."""
        numbers = [int(st.numbers["effort"]) for st in self.statements]
        if all(number == ONE for number in numbers):
            return None
        candidates = [Candidates(columns, n)] * len(numbers)
        values = Evaluation([st.tape for st in self.statements], candidates)
        return np.stack([values.of(t, number) for t, number in enumerate(numbers)])


@lru_cache(maxsize=512)
def _planned(statement: Statement, uses: tuple[int, ...], target: Target) -> PlannedStatement:
    """The values of a statement, of which sketches of a task have many in common.

    `uses` as in `statement.described`.
    """
    tape = Tape()
    numbers = described(tape, statement, target, uses)
    shape = Shape(len(statement.loops), len(statement.accesses))
    return PlannedStatement(shape, tape.arrays(), numbers)


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
        places = [(k, s) for k, plan in enumerate(plans) for s in range(len(plan.statements))]
        statements = [plans[k].statements[s] for k, s in places]
        values = Evaluation([st.tape for st in statements], [block[k] for k, _ in places])
        for shape, chosen in _alike(statements):
            found = compute(Sheet(shape, [(t, statements[t]) for t in chosen], values))
            at = 0
            for t in chosen:
                k, s = places[t]
                begin, end = block[k].begin, block[k].begin + block[k].n
                out[block[k].owner][s, :, begin:end] = found[:, at : at + block[k].n]
                at += values.parts[t] * PART
    return out


def _alike(statements: Sequence[PlannedStatement]) -> list[tuple[Shape, list[int]]]:
    """Statements that share a sheet, of whose accesses at most half are added: the shape of the
    sheet, and the numbers of the statements."""
    groups: dict[int, list[int]] = {}
    for t, st in enumerate(statements):
        groups.setdefault(max(1, st.shape.accesses - 1).bit_length(), []).append(t)
    out = []
    for group in groups.values():
        shapes = [statements[t].shape for t in group]
        shape = Shape(max(s.loops for s in shapes), max(s.accesses for s in shapes))
        out.append((shape, group))
    return out
