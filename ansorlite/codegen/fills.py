"""Padding without a branch: `select(c, x[i, j], 0)` is element j of row x[i] or of zeros.

In: a select of a specialised program. Out: its `Fill`, the parts that do not depend on the place in
the code; `codegen.emit_expr` chooses the pointer to the row. Where `c` does not depend on j, the
pointer is chosen outside the loops over j. The third operand may be any constant.
"""

from typing import NamedTuple

from ansorlite.ir.expr import Const, Expr, Load, Op, weighted_sum
from ansorlite.ir.ranges import linear_in
from ansorlite.ir.traverse import loads

FILLED = ("float32", "float64", "int8", "uint8", "int16", "uint16")  # dtypes of constant blocks
MAX_FILL = 4096  # largest row, in elements, that a constant block may replace
ONE = Const(1)


class Fill(NamedTuple):
    """`element` where `cond` holds, else `other`.

    `row` and `column` are the offsets of the row and inside it, in elements, at the vector loop's
    first iteration; `length` is that of a row, 0 where the condition depends on all indices. The
    element moves along the vector loop or not.
    """

    cond: Expr
    element: Load
    other: Const
    row: Expr
    column: Expr
    length: int
    moves: bool


def fill_of(e: Op, vector: str | None, strides: tuple[int, ...]) -> Fill | None:
    """The parts of a select in the vector loop over `vector`; None where it has another form.

    `strides` are those of the tensor that is read, in elements.
    """
    cond, x, other = e.args
    if not (isinstance(x, Load) and isinstance(other, Const) and x.dtype in FILLED):
        return None
    if loads(cond) or any(loads(i) for i in x.indices):
        return None
    moves = vector in x.free
    flat = weighted_sum(x.indices, strides)
    if vector is not None and moves and linear_in(flat, vector)[0] != ONE:
        return None
    split = len(x.indices)
    while split > 1 and not (cond.free & x.indices[split - 1].free):
        split -= 1
    if split == len(x.indices) or strides[split - 1] > MAX_FILL:
        split = len(x.indices)
    row = weighted_sum(x.indices[:split], strides[:split])
    column = weighted_sum(x.indices[split:], strides[split:])
    if vector is not None:
        row, column = (linear_in(p, vector)[1] for p in (row, column))
    length = strides[split - 1] if split < len(x.indices) else 0
    return Fill(cond, x, other, row, column, length, moves)
