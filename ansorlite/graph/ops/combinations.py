"""Linear combinations of elements, written out term by term: the transforms of fast algorithms.

In: a matrix and terms. Out: an expression a row, without the zeros of the matrix, with terms that
rows have in common computed once. The axes that count rows are unrolled (`UNROLLED`).
"""

from collections.abc import Sequence
from typing import Any

from ansorlite import te
from ansorlite.graph.ops.bilinear import Matrix
from ansorlite.ir.expr import Expr

UNROLLED = "simplify_const_indices"


def _combined(row: Sequence[float], terms: Sequence[Expr]) -> Expr:
    """The sum of terms times their factors; zeros are left out, ones not multiplied by."""
    total: Expr | None = None
    # A positive term first; the remaining terms are added or subtracted.
    order = sorted(range(len(row)), key=lambda k: row[k] < 0)
    for k in order:
        factor, term = row[k], terms[k]
        if factor == 0:
            continue
        size = term if abs(factor) == 1 else term * te.const(abs(factor), term.dtype)
        if total is None:
            total = size if factor > 0 else -size
        else:
            total = total + size if factor > 0 else total - size
    return te.const(0.0, terms[0].dtype) if total is None else total


def combinations(matrix: Matrix, terms: Sequence[Expr], shared: bool = False) -> list[Expr]:
    """matrix x terms, an expression a row; with `shared`, sums of several rows are written once."""
    if not shared:
        return [_combined(row, terms) for row in matrix]
    columns = list(zip(*matrix, strict=True))
    for p, q in _pairs_of(columns):
        # As in A^T, whose columns of a point and of its negative have equal sizes.
        both = [terms[p] + terms[q], terms[p] - terms[q]]
        rest = [k for k in range(len(terms)) if k not in (p, q)]
        rows = []
        for row in matrix:
            halves = (row[p], 0.0) if row[p] == row[q] else (0.0, row[p])
            rows.append((*(row[k] for k in rest), *halves))
        return combinations(tuple(rows), [*(terms[k] for k in rest), *both], True)
    found: dict[int, Expr] = {}
    for p, q in _pairs_of(matrix):
        # As in B^T: the rows of a point and of its negative are E + O and E - O.
        if p in found or q in found:
            continue
        same = [a if a == b else 0.0 for a, b in zip(matrix[p], matrix[q], strict=True)]
        other = [0.0 if a == b else a for a, b in zip(matrix[p], matrix[q], strict=True)]
        even, odd = _combined(same, terms), _combined(other, terms)
        found[p], found[q] = even + odd, even - odd
    return [found[k] if k in found else _combined(row, terms) for k, row in enumerate(matrix)]


def _pairs_of(rows: Sequence[Sequence[float]]) -> list[tuple[int, int]]:
    """Pairs of rows of equal sizes, with equal and with opposite elements, two nonzero at least."""
    out = []
    for p in range(len(rows)):
        for q in range(p + 1, len(rows)):
            both = [(a, b) for a, b in zip(rows[p], rows[q], strict=True) if a or b]
            equal = sum(a == b for a, b in both)
            opposite = sum(a == -b for a, b in both)
            if equal and opposite and equal + opposite == len(both) > 2:
                out.append((p, q))
    return out


def chosen(at: Any, values: Sequence[Expr]) -> Expr:
    """values[at], as a chain of tests that unrolling decides."""
    out = values[-1]
    for k in reversed(range(len(values) - 1)):
        out = te.select(te.equal(at, k), values[k], out)
    return out
