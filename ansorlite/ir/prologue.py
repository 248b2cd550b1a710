"""Maps whose results a reduction reads next: computed in the loops of the reduction.

`for k, i: x[k, i] = f(..)` and then `for k, i: acc[i] += x[k, i]` loads every element that it has
just stored, for a softmax over many rows from the second cache. In: the perfect nests of the map,
of the initialisation and of the reduction, of a tidied program. Out: the store of the map over the
loops of the reduction, which then takes the element from a register. Every sum keeps its order.
"""

from ansorlite.ir.epilogue import Chain
from ansorlite.ir.expr import Expr, Var
from ansorlite.ir.program import NO_NOTE, Store, map_exprs
from ansorlite.ir.tiles import lanes_of
from ansorlite.ir.traverse import loads, substitute, tensors_read


def prologue_of(first: Chain, nest: Chain, start: Store) -> Store | None:
    """The map `first` over the loops of the reduction `nest`; None where it does not precede.

    Conditions: the same loops, the last of them in vectors of the same length, the others summed
    over; no loop of the map is shared among threads; the reduction reads only the element just
    computed, and the map not what is reduced. `start` initialises the result between both.
    """
    store, into = first.store, nest.store.buffer
    if store.combiner or len(first.loops) != len(nest.loops) or len(nest.loops) < 2:
        return None
    *around, along = nest.loops
    if not all(lp.reduce for lp in around) or along.reduce:
        return None
    if along.note("register") is NO_NOTE or lanes_of(along) < 2:
        return None
    names: dict[str, Expr] = {
        a.var: Var(b.var) for a, b in zip(first.loops, nest.loops, strict=True)
    }
    if any(
        a.reduce
        or a.note("parallel") is not NO_NOTE
        or lanes_of(a) != lanes_of(b)
        or substitute(a.extent, names) != b.extent
        for a, b in zip(first.loops, nest.loops, strict=True)
    ):
        return None
    moved = map_exprs(store, lambda e: substitute(e, names))
    assert isinstance(moved, Store)
    read = [x for x in loads(nest.store.value) if x.tensor == store.buffer]
    if not read or any(x.indices != moved.indices for x in read):
        return None
    used = {store.buffer}.union(*(tensors_read(e) for e in (store.value, *store.indices)))
    return None if into in used or start.buffer != into else moved
