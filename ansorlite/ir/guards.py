"""Terms of a reduction that a test makes nothing: the loops under the test are left out.

`for k: for j in tile: acc[j] += select(lo <= i + k, x[i + k - lo], 0) * w[k, j]` multiplies zeros
where a window reaches past the edge. The test does not move with the tile, so it is made once:
`for k: if lo <= i + k: for j in tile: acc[j] += x[i + k - lo] * w[k, j]`. The zero of a test is
nothing, whatever the other factor, see `codegen.zeros`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansorlite.ir.expr import Const, Expr, Load, Op, Poly
from ansorlite.ir.logic import combiner_identity, conjuncts, logic
from ansorlite.ir.program import For, If, Stmt, Store
from ansorlite.ir.traverse import loads, transform


@dataclass(frozen=True)
class Guarded:
    """A reduction's store without the tests, and the tests by the loop around which they are made.

    `tests[k]` stand inside the k-th of the reduction loops, `outside` before all of them.
    """

    store: Store
    outside: tuple[Expr, ...]
    tests: tuple[tuple[Expr, ...], ...]


def guarded(store: Store, reduces: Sequence[For], tile: Sequence[For]) -> Guarded:
    """Take the tests out of a reduction's store that leave out more than one step of its tile.

    Others stay where they are: there it is faster to read zeros than to branch.
    """
    nothing = Guarded(store, (), tuple(() for _ in reduces))
    if not store.combiner:
        return nothing
    inside = {lp.var for lp in (*tile, *reduces[-1:])}
    found = [t for t in needed(store.value, store.combiner) if not (t.free & inside)]
    if not found:
        return nothing
    places: list[list[Expr]] = [[] for _ in range(len(reduces) + 1)]
    for test in dict.fromkeys(found):
        at = max((k for k, lp in enumerate(reduces) if lp.var in test.free), default=-1)
        places[at + 1].append(test)
    outside, *tests = map(tuple, places)
    plain = replace(store, value=_drop(store.value, frozenset(found)))
    return Guarded(plain, outside, tuple(tests))


def under(tests: Sequence[Expr], body: Stmt) -> Stmt:
    """`body`, where all the tests hold."""
    return If(logic("and", tests), body) if tests else body


def needed(e: Expr, combiner: str) -> list[Expr]:
    """Tests on loop variables without which a term leaves what it is combined with as it was."""
    out: list[Expr] = []
    stack = [e]
    while stack:
        x = stack.pop()
        if not isinstance(x, Op):
            continue
        if x.name == "select":
            cond, value, fill = x.args
            if fill == combiner_identity(combiner, fill.dtype) and isinstance(fill, Const):
                out += [t for t in conjuncts(cond) if not loads(t)]
                stack.append(value)
        elif x.name == "mul" and combiner == "sum":
            stack.extend(reversed(x.args))
    return out


def _drop(e: Expr, tests: frozenset[Expr]) -> Expr:
    def bare(x: Op) -> Expr:
        if x.name != "select":
            return x
        cond, value, fill = x.args
        left = [t for t in conjuncts(cond) if t not in tests]
        return Op("select", (logic("and", left), value, fill), x.dtype) if left else value

    return transform(e, lambda x: x if isinstance(x, Load | Poly) else None, {}, bare)
