"""Local buffers that take the place of others: `y[i] = f(x[i])` where x is not read again.

rewrite: `x = local; y = local; x[i] = ..; y[i] = f(x[i]); .. = y[j]` ->
`x = local; x[i] = ..; x[i] = f(x[i]); .. = x[j]`. In: a concrete program. Out: the program with
fewer local buffers, so that the tiles of a softmax, say, take half of a cache. Only buffers of one
shape and dtype that live equally long share memory, and only where every element is read just
before it is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ansorlite.ir.expr import Const
from ansorlite.ir.program import (
    Alloc,
    Block,
    Buffer,
    For,
    Prefetch,
    Program,
    Stmt,
    Store,
    block,
    stores_under,
    walk,
)
from ansorlite.ir.traverse import loads, rename_loads


def reuse_buffers(p: Program) -> Program:
    """The program whose local buffers share memory where that changes no result."""
    return replace(p, body=_visit(p.body))


def _visit(s: Stmt) -> Stmt:
    match s:
        case Block():
            return block([_visit(x) for x in s.stmts])
        case For():
            return replace(s, body=_visit(s.body))
        case Alloc():
            buffers: list[Buffer] = []
            body: Stmt = s
            while isinstance(body, Alloc):
                buffers.append(body.buffer)
                body = body.body
            return _shared(buffers, _visit(body))
        case _:
            return s


def _shared(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    """The body inside of the buffers that are left, of those that live as long as the body."""
    left = list(buffers)
    stmts: list[Stmt] = list(body.stmts) if isinstance(body, Block) else [body]
    for k in range(len(stmts)):
        found = _in_place(left, stmts, k) if len(left) > 1 else None
        if found is not None:
            old, new = found
            left.remove(old)
            stmts = [_renamed(s, {old.name: new.name}) for s in stmts]
    out = block(stmts)
    for b in reversed(left):
        out = Alloc(b, out)
    return out


def _in_place(
    buffers: Sequence[Buffer], stmts: Sequence[Stmt], k: int
) -> tuple[Buffer, Buffer] | None:
    """(buffer, the buffer to take in its place) of what statement k stores; None if there is none.

    Statement k computes all of the buffer, element by element, from the other one.
    """
    found = list(stores_under(stmts[k]))
    if len(found) != 1:
        return None
    ((store, loops),) = found
    moved = frozenset[str]().union(*(i.free for i in store.indices))
    again = any(lp.var not in moved for lp in loops if lp.extent != Const(1))
    if store.combiner or again or any(map(loads, store.indices)):
        return None
    own = next((b for b in buffers if b.name == store.buffer), None)
    if own is None or any(own.name in _used(s) for s in stmts[:k]):
        return None
    later = set().union(*(_used(s) for s in stmts[k + 1 :]))
    for b in buffers:
        reads = [x for x in loads(store.value) if x.tensor == b.name]
        alike = (b.shape, b.dtype, b.scope) == (own.shape, own.dtype, own.scope)
        here = reads and all(x.indices == store.indices for x in reads)
        if b is not own and alike and here and b.name not in later:
            return own, b
    return None


def _used(s: Stmt) -> set[str]:
    """The buffers that a statement stores, loads or fetches."""
    out: set[str] = set()
    for x in walk(s):
        if isinstance(x, Store):
            out |= {x.buffer} | {y.tensor for e in (x.value, *x.indices) for y in loads(e)}
        elif isinstance(x, Prefetch):
            out.add(x.buffer)
    return out


def _renamed(s: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with buffers renamed."""
    match s:
        case Block():
            return Block(tuple(_renamed(x, names) for x in s.stmts))
        case For() | Alloc():
            return replace(s, body=_renamed(s.body, names))
        case Store():
            indices = tuple(rename_loads(i, names) for i in s.indices)
            value = rename_loads(s.value, names)
            return replace(s, buffer=names.get(s.buffer, s.buffer), indices=indices, value=value)
        case _:
            return s
