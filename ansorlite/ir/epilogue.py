"""Maps of the results of a reduction: found where they can follow in registers.

`for i: acc = sum; C[i] = acc` and then `for i: y[i] = f(C[i])` stores and loads every element of
the tile C, which costs as much as a tenth of a sum of few terms. In: the perfect nests of both, of
a tidied program. Out: the store of the map over the loops of the reduction, in which the loads of C
stand for the sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansorlite.ir.expr import Expr, Load, Op, Var
from ansorlite.ir.logic import UNARY
from ansorlite.ir.program import Annotations, Block, For, Stmt, Store, map_exprs, walk
from ansorlite.ir.tiles import lanes_of
from ansorlite.ir.traverse import loads, substitute, transform
from ansorlite.ir.traverse import walk as nodes

MOST_OPERATIONS = 12  # of a map that is repeated for each vector of a register tile
LONG = {*UNARY, "pow", "fmod", "div"} - {"abs"}  # dozens of instructions, or one as slow


@dataclass(frozen=True)
class Chain:
    """A perfect nest: loops around one store, outermost first."""

    loops: list[For]
    store: Store


def chain_of(s: Stmt) -> Chain | None:
    """The perfect nest of a statement; None if the nest is imperfect."""
    loops: list[For] = []
    while isinstance(s, For):
        loops.append(s)
        s = s.body
    return Chain(loops, s) if isinstance(s, Store) else None


def loops_around(s: Stmt) -> tuple[list[For], tuple[Stmt, ...]]:
    """The spatial loops around a block, outermost first, and its statements; nothing otherwise."""
    loops: list[For] = []
    while isinstance(s, For) and not s.reduce:
        loops.append(s)
        s = s.body
    return (loops, s.stmts) if isinstance(s, Block) else ([], ())


def peeled(s: Stmt, outer: Sequence[For]) -> Stmt | None:
    """What a perfect nest does in one iteration of the loops `outer`, in terms of their variables.

    None unless its outer loops are the same.
    """
    chain = chain_of(s)
    if chain is None or len(chain.loops) < len(outer):
        return None
    own, inner = chain.loops[: len(outer)], chain.loops[len(outer) :]
    names: dict[str, Expr] = {a.var: Var(b.var) for a, b in zip(own, outer, strict=True)}
    if any(
        a.reduce or substitute(a.extent, names) != b.extent for a, b in zip(own, outer, strict=True)
    ):
        return None
    return map_exprs(inner[0] if inner else chain.store, lambda e: substitute(e, names))


@dataclass(frozen=True)
class Epilogue:
    """A map over the loops of a reduction whose result it reads, and the notes of its own loops."""

    store: Store
    notes: dict[str, Annotations]

    def put(self, loops: Sequence[For]) -> list[For]:
        """Loops of the reduction's tile with the annotations of the map's."""
        return [replace(lp, notes=self.notes.get(lp.var, lp.notes)) for lp in loops]

    def of(self, result: Expr, buffer: str) -> Store:
        """The store where the element that it reads of the reduction's buffer is `result`."""
        value = transform(
            self.store.value,
            lambda e: result if isinstance(e, Load) and e.tensor == buffer else None,
            {},
        )
        return replace(self.store, value=value)


def epilogue_of(nest: Chain, then: Stmt, others: Sequence[Stmt]) -> Epilogue | None:
    """The map `then` of a reduction; None where it does not follow element by element.

    Conditions: the same loops; of the reduction's buffer only the element just computed is read,
    and `others`, the statements that may read that buffer later, do not, unless the map stores
    there; few operations.
    """
    after = chain_of(then)
    spatial = [lp for lp in nest.loops if not lp.reduce]
    if after is None or after.store.combiner or len(after.loops) != len(spatial):
        return None
    buffer, store = nest.store.buffer, after.store
    names: dict[str, Expr] = {a.var: Var(b.var) for a, b in zip(after.loops, spatial, strict=True)}
    same = all(
        substitute(a.extent, names) == b.extent and lanes_of(a) == lanes_of(b)
        for a, b in zip(after.loops, spatial, strict=True)
    )
    work = [e for e in nodes(store.value) if isinstance(e, Op) and e.dtype.startswith("float")]
    if not same or len(work) > MOST_OPERATIONS or any(e.name in LONG for e in work):
        return None
    moved = map_exprs(store, lambda e: substitute(e, names))
    assert isinstance(moved, Store)
    read = [x for x in loads(moved.value) if x.tensor == buffer]
    if not read or any(x.indices != nest.store.indices for x in read):
        return None
    if store.buffer == buffer:
        if moved.indices != nest.store.indices:
            return None
    elif any(reads(s, buffer) for s in others):
        return None
    notes = {b.var: a.notes for a, b in zip(after.loops, spatial, strict=True)}
    return Epilogue(moved, notes)


def reads(s: Stmt, buffer: str) -> bool:
    """Does a statement read or write a buffer?"""
    return any(
        x.buffer == buffer
        or any(y.tensor == buffer for e in (x.value, *x.indices) for y in loads(e))
        for x in walk(s)
        if isinstance(x, Store)
    )
