"""Prefetches of the cache lines that the vectors of a register tile read some iterations later.

In: the store of a tile, the reduction loop around it with annotation "prefetch", the loops of the
tile and those outside. Out: `Prefetch` statements for one iteration. Only buffers in memory that
the vectors read contiguously are prefetched; other operands move fewer bytes.

The annotation counts iterations. `NEXT_BLOCK` stands for the block of the operand after the one
that loops around read again and again: each of their passes fetches its share of the next block, so
that weights arrive from memory while others are multiplied, not all in the first pass.
"""

import math
from collections.abc import Collection, Iterator, Sequence

from ansorlite.ir.expr import Const, Expr, Load, Var, add, mul
from ansorlite.ir.literals import BYTES
from ansorlite.ir.program import NO_NOTE, For, Prefetch, Store
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads, substitute

LINE_BYTES = 64
NEXT_BLOCK = 1024


def prefetches(
    store: Store,
    reduces: Sequence[For],
    tile: Sequence[For],
    memory: Collection[str],
    outside: Sequence[For] = (),
) -> list[Prefetch]:
    """Prefetches of one iteration of the innermost reduction loop (the last of `reduces`).

    Loops `outside` are those around the nest, outermost first.
    """
    vectors = [lp for lp in tile if lp.note("lanes") is not NO_NOTE]
    if not reduces or not vectors:
        return []
    around, along = reduces[-1], vectors[-1]
    ahead, extent = around.note("prefetch"), along.extent
    if not (isinstance(ahead, Const) and ahead.value > 0 and isinstance(extent, Const)):
        return []
    read = [
        x
        for x in dict.fromkeys(loads(store.value))
        if not any(lp is not along and lp.var in x.free for lp in tile)
        and fetchable(x, around, along, memory)
    ]
    if ahead.value == NEXT_BLOCK:
        loops = [*outside, *reduces[:-1]]
        return [p for x in read for p in _share_of_next(x, loops, around, along, tile)]
    out: list[Prefetch] = []
    for x in read:
        step = LINE_BYTES // BYTES[x.dtype]
        for first in range(0, int(extent.value), step):
            later: dict[str, Expr] = {lp.var: Const(0) for lp in tile}
            later |= {along.var: Const(first), around.var: add(Var(around.var), ahead)}
            out.append(Prefetch(x.tensor, tuple(substitute(i, later) for i in x.indices)))
    return out


def _share_of_next(
    x: Load, loops: Sequence[For], around: For, along: For, tile: Sequence[For]
) -> Iterator[Prefetch]:
    """One address in the block that follows the one which passes of `loops` read again.

    Blocks lie one after the other, as packed operands do. Addresses of successive iterations are a
    few elements apart, so that all iterations together touch each line of the block.
    """
    passes, inner, size = 1, [around], _trips(along)
    for lp in reversed(loops):
        if lp.var not in x.free:
            passes *= _trips(lp)
        elif passes > 1:
            break
        inner.append(lp)
    block = size * math.prod(_trips(lp) for lp in inner if lp.var in x.free)
    # Of more passes than elements in a row each would be asked for its part of a line many times.
    if not 1 < passes <= 2 * size or not block:
        return
    done, n = list[Expr](), 1
    for lp in inner:
        done.append(mul(Var(lp.var), n))
        n *= _trips(lp)
    start = {lp.var: Const(0) for lp in (*tile, *inner)}
    *rest, last = (substitute(i, start) for i in x.indices)
    if not isinstance(last, Const):  # rows of a larger matrix
        return
    place: Expr = add(last, block)
    for at in done:
        place = add(place, mul(at, -(-block // n)))
    yield Prefetch(x.tensor, (*rest, place))


def _trips(lp: For) -> int:
    """Iterations of a loop; 0 where they are not known."""
    return int(lp.extent.value) if isinstance(lp.extent, Const) else 0


def fetchable(x: Load, around: For, along: For, memory: Collection[str]) -> bool:
    """True for a load from memory that moves with both loops, contiguously along the vectors."""
    if x.tensor not in memory or not x.indices or around.var not in x.free:
        return False
    return coefficient(x.indices[-1], along.var) == Const(1)
