"""Prefetches of the cache lines that the vectors of a register tile read some iterations later.

In: the store of a tile, the surrounding reduction loop with annotation "prefetch", the loops of the
tile. Out: `Prefetch` statements for one iteration, one per cache line. Only buffers in memory that
the vectors read contiguously are prefetched; other operands move fewer bytes.
"""

from collections.abc import Collection, Sequence

from ansorlite.ir.expr import Const, Expr, Load, Var, add
from ansorlite.ir.literals import BYTES
from ansorlite.ir.program import NO_NOTE, For, Prefetch, Store
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads, substitute

LINE_BYTES = 64


def prefetches(
    store: Store, reduces: Sequence[For], tile: Sequence[For], memory: Collection[str]
) -> list[Prefetch]:
    """Prefetches of one iteration of the innermost reduction loop (the last of `reduces`)."""
    vectors = [lp for lp in tile if lp.note("lanes") is not NO_NOTE]
    if not reduces or not vectors:
        return []
    around, along = reduces[-1], vectors[-1]
    ahead, extent = around.note("prefetch"), along.extent
    if not (isinstance(ahead, Const) and ahead.value > 0 and isinstance(extent, Const)):
        return []
    out: list[Prefetch] = []
    for x in dict.fromkeys(loads(store.value)):
        alone = not any(lp is not along and lp.var in x.free for lp in tile)
        if alone and fetchable(x, around, along, memory):
            step = LINE_BYTES // BYTES[x.dtype]
            for first in range(0, int(extent.value), step):
                later: dict[str, Expr] = {lp.var: Const(0) for lp in tile}
                later |= {along.var: Const(first), around.var: add(Var(around.var), ahead)}
                out.append(Prefetch(x.tensor, tuple(substitute(i, later) for i in x.indices)))
    return out


def fetchable(x: Load, around: For, along: For, memory: Collection[str]) -> bool:
    """True for a load from memory that moves with both loops, contiguously along the vectors."""
    if x.tensor not in memory or not x.indices or around.var not in x.free:
        return False
    return coefficient(x.indices[-1], along.var) == Const(1)
