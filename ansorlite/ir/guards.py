"""Loop guards of reductions: iterations whose summand is the identity are skipped.

`for k: for j in tile: acc[j] += select(lo <= i + k, x[i + k - lo], 0) * w[k, j]` multiplies zeros
where a window crosses the border. The condition does not depend on the tile, so it is tested once:
`for k: if lo <= i + k: for j in tile: acc[j] += x[i + k - lo] * w[k, j]`. A zero selected by a
condition annihilates the product whatever the other factor, even infinity or NaN, see
`codegen.zeros`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansorlite.ir.expr import Const, Expr, Load, Op, Poly
from ansorlite.ir.logic import combiner_identity, conjuncts, logic
from ansorlite.ir.packed import DOTS
from ansorlite.ir.program import For, If, Stmt, Store
from ansorlite.ir.traverse import loads, transform


@dataclass(frozen=True)
class HoistedGuards:
    """A reduction's store without its conditions, and the conditions by the place of their test.

    `tests[k]` are tested inside the k-th reduction loop, `outside` before all reduction loops.
    """

    store: Store
    outside: tuple[Expr, ...]
    tests: tuple[tuple[Expr, ...], ...]


def hoist_guards(store: Store, reduces: Sequence[For], tile: Sequence[For]) -> HoistedGuards:
    """The store without those conditions that are tested outside the tile and its reduction.

    A condition is hoisted if it depends neither on the tile nor on the innermost reduction loop.
    Other conditions stay in the store: inside the tile, reading zeros is faster than branching.
    """
    nothing = HoistedGuards(store, (), tuple(() for _ in reduces))
    if not store.combiner:
        return nothing
    inside = {lp.var for lp in (*tile, *reduces[-1:])}
    found = [t for t in identity_conditions(store.value, store.combiner) if not (t.free & inside)]
    if not found:
        return nothing
    places: list[list[Expr]] = [[] for _ in range(len(reduces) + 1)]
    for test in dict.fromkeys(found):
        at = max((k for k, lp in enumerate(reduces) if lp.var in test.free), default=-1)
        places[at + 1].append(test)
    outside, *tests = map(tuple, places)
    plain = replace(store, value=_drop(store.value, frozenset(found)))
    return HoistedGuards(plain, outside, tuple(tests))


def if_all(tests: Sequence[Expr], body: Stmt) -> Stmt:
    """`body`, executed only if all conditions hold."""
    return If(logic("and", tests), body) if tests else body


def identity_conditions(e: Expr, combiner: str) -> list[Expr]:
    """Conditions on loop variables that make a summand the identity where they fail."""
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
        elif x.name in ("mul", *DOTS) and combiner == "sum":
            stack.extend(reversed(x.args))
        elif x.name == "cast" and combiner == "sum":
            stack.append(x.args[0])
        elif x.name.startswith("pack") and combiner == "sum":  # 0 where all parts are
            parts = [identity_conditions(a, combiner) for a in x.args]
            out += [t for t in parts[0] if all(t in p for p in parts[1:])]
    return out


def _drop(e: Expr, tests: frozenset[Expr]) -> Expr:
    """The expression with these conditions removed from its selects."""

    def bare(x: Op) -> Expr:
        if x.name != "select":
            return x
        cond, value, fill = x.args
        left = [t for t in conjuncts(cond) if t not in tests]
        return Op("select", (logic("and", left), value, fill), x.dtype) if left else value

    return transform(e, lambda x: x if isinstance(x, Load | Poly) else None, {}, bare)
