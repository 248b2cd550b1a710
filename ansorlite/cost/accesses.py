"""What a statement accesses, and how its loops move the addresses.

In: a store with its loops, and the buffers by name. Out: an `Access` per buffer, with index
coefficients as expressions over holes. `cost.statement` turns them into values of a population.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ansorlite.ir.expr import Expr, Monomial, Var, poly, terms_of
from ansorlite.ir.program import Buffer, For, Store
from ansorlite.ir.traverse import loads

Move = tuple[int, tuple[Expr, ...]]


@dataclass(frozen=True)
class Access:
    """All accesses of one statement to one buffer.

    `moves[level]` lists (dimension, coefficients) for the loop of that level; an empty tuple of
    coefficients means that the index is not affine in the loop variable.
    """

    buffer: Buffer
    writes: bool
    reads: bool
    moves: tuple[tuple[Move, ...], ...]


def accesses(
    store: Store, loops: Sequence[For], buffers: Mapping[str, Buffer]
) -> tuple[Access, ...]:
    """One `Access` per buffer: the written buffer first, then the others in order of appearance."""
    indices: dict[str, list[tuple[Expr, ...]]] = {store.buffer: [store.indices]}
    for x in dict.fromkeys(loads(store.value)):
        indices.setdefault(x.tensor, [])
        if x.indices not in indices[x.tensor]:
            indices[x.tensor].append(x.indices)
    read = {x.tensor for x in loads(store.value)} | ({store.buffer} if store.combiner else set())
    names = [lp.var for lp in loops]
    return tuple(
        Access(buffers[name], name == store.buffer, name in read, _moves(found, names))
        for name, found in indices.items()
        if name in buffers
    )


def _moves(indices: list[tuple[Expr, ...]], names: list[str]) -> tuple[tuple[Move, ...], ...]:
    """By loop variable: (dimension, distinct coefficients) of the dimensions that depend on it."""
    out: dict[str, list[Move]] = {name: [] for name in names}
    for d in range(len(indices[0])):
        found: dict[str, list[Expr | None]] = {}
        for index in indices:
            for var, c in coefficients_of(index[d]).items():
                found.setdefault(var, []).append(c)
        for var, coefs in found.items():
            if var in out:
                affine = tuple(dict.fromkeys(c for c in coefs if c is not None))
                out[var].append((d, affine if None not in coefs else ()))
    return tuple(tuple(out[name]) for name in names)


@lru_cache(maxsize=1 << 13)
def coefficients_of(e: Expr) -> Mapping[str, Expr | None]:
    """The coefficient of each variable of an expression, as `ir.ranges.coefficient` for one.

    None for a variable in which the expression is not affine.
    """
    parts: dict[str, dict[Monomial, int]] = {}
    other: set[str] = set()  # variables in which the expression is not affine
    for mono, c in terms_of(e).items():
        for k, atom in enumerate(mono):
            if not isinstance(atom, Var):
                other |= atom.free
                continue
            rest = (*mono[:k], *mono[k + 1 :])
            if any(atom.name in a.free for a in rest):
                other.add(atom.name)
            own = parts.setdefault(atom.name, {})
            own[rest] = own.get(rest, 0) + c
    return {
        var: None if var in other else poly(parts[var], e.dtype)
        for var in dict.fromkeys([*parts, *other])
    }
