"""A kernel whose operands are parts of larger tensors: rows of an operand lie further apart.

In: a concrete `Program`, and for parameters an axis with its extent in memory. Out: the program
that uses the same elements there. It reads and writes no element between the rows.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from ansorlite.ir.expr import Const
from ansorlite.ir.interpret import concrete_shape
from ansorlite.ir.literals import BYTES
from ansorlite.ir.program import Alloc, Block, Buffer, For, If, Program, Stmt, stores_under

LINE = 64  # bytes that non-temporal stores write as a whole


def pitched(p: Program, widths: Mapping[str, tuple[int, int]]) -> Program:
    """The program with `widths[name]` = (axis, extent in memory) of some of its parameters.

    Rows that do not begin where cache lines do are not written with non-temporal stores.
    """
    if not widths:
        return p
    buffers = tuple(_wide(b, *widths[b.name]) if b.name in widths else b for b in p.buffers)
    odd = {b.name for b in buffers if b.name in widths and _row_bytes(b, widths[b.name][0]) % LINE}
    return replace(p, buffers=buffers, body=_through_caches(p.body, odd) if odd else p.body)


def _wide(b: Buffer, axis: int, extent: int) -> Buffer:
    shape = (*b.shape[:axis], Const(extent), *b.shape[axis + 1 :])
    return replace(b, shape=shape)


def _row_bytes(b: Buffer, axis: int) -> int:
    return math.prod(concrete_shape(b)[axis:]) * BYTES[b.dtype]


def _through_caches(s: Stmt, written: set[str]) -> Stmt:
    """The statement without the annotation "stream" of loops that write such buffers."""
    match s:
        case Block():
            return Block(tuple(_through_caches(x, written) for x in s.stmts))
        case For():
            notes = s.notes
            if any(store.buffer in written for store, _ in stores_under(s.body)):
                notes = tuple((key, v) for key, v in notes if key != "stream")
            return replace(s, body=_through_caches(s.body, written), notes=notes)
        case Alloc():
            return replace(s, body=_through_caches(s.body, written))
        case If():
            other = None if s.orelse is None else _through_caches(s.orelse, written)
            return If(s.cond, _through_caches(s.then, written), other)
        case _:
            return s
