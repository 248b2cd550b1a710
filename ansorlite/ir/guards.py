"""Loop guards of reductions: iterations whose summand is the identity are skipped.

`for k: for j in tile: acc[j] += select(lo <= i + k, x[i + k - lo], 0) * w[k, j]` multiplies zeros
where a window crosses the border. The condition does not depend on the tile, so it is tested once:
`for k: if lo <= i + k: for j in tile: acc[j] += x[i + k - lo] * w[k, j]`. A zero selected by a
condition annihilates the product whatever the other factor, even infinity or NaN, see
`codegen.zeros`.

Where a pad is a buffer of its own, its wide borders are known to be 0: tiles that read nothing else
are skipped as well, as most of a convolution whose dilation is near the extent of the image.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansorlite.ir.expr import Const, Expr, Load, Op, Poly, add, compare
from ansorlite.ir.logic import combiner_identity, conjuncts, logic
from ansorlite.ir.packed import DOTS
from ansorlite.ir.program import For, If, Program, Stmt, Store, stores_under
from ansorlite.ir.ranges import coefficient, compared
from ansorlite.ir.traverse import loads, substitute, transform

# Of buffers: dimensions in which all elements but those of [lo, hi) are 0.
Borders = Mapping[str, Mapping[int, tuple[int, int]]]
WIDE = 0.5  # times what is copied: a border from which on a test for each tile pays


@dataclass(frozen=True)
class HoistedGuards:
    """A reduction's store without its conditions, and the conditions by the place of their test.

    `tests[k]` are tested inside the k-th reduction loop, `outside` before all reduction loops.
    """

    store: Store
    outside: tuple[Expr, ...]
    tests: tuple[tuple[Expr, ...], ...]


def hoist_guards(
    store: Store,
    reduces: Sequence[For],
    tile: Sequence[For],
    outside: Sequence[For] = (),
    borders: Borders | None = None,
) -> HoistedGuards:
    """The store without those conditions that are tested outside the tile and its reduction.

    A condition is hoisted if it depends neither on the tile nor on the innermost reduction loop.
    Other conditions stay in the store: inside the tile, reading zeros is faster than branching.
    Tiles that read nothing but `borders` are skipped; loops `outside` are those around the nest.
    """
    nothing = HoistedGuards(store, (), tuple(() for _ in reduces))
    if not store.combiner:
        return nothing
    moving = (*tile, *reduces[-1:])
    inside = {lp.var for lp in moving}
    found = [t for t in identity_conditions(store.value, store.combiner) if not (t.free & inside)]
    around = [*outside, *reduces[:-1]]
    wide = [*_border_tests(store, moving, around, borders)] if borders else []
    if not found and not wide:
        return nothing
    places: list[list[Expr]] = [[] for _ in range(len(reduces) + 1)]
    for test in dict.fromkeys((*found, *wide)):
        at = max((k for k, lp in enumerate(reduces) if lp.var in test.free), default=-1)
        places[at + 1].append(test)
    first, *tests = map(tuple, places)
    plain = replace(store, value=_drop(store.value, frozenset(found)))
    return HoistedGuards(plain, first, tuple(tests))


def if_all(tests: Sequence[Expr], body: Stmt) -> Stmt:
    """`body`, executed only if all conditions hold."""
    return If(logic("and", tests), body) if tests else body


def identity_conditions(e: Expr, combiner: str) -> list[Expr]:
    """Conditions on loop variables that make a summand the identity where they fail."""
    out: list[Expr] = []
    for x in _factors(e, combiner):
        if isinstance(x, Op) and x.name == "select":
            out += [t for t in conjuncts(x.args[0]) if not loads(t)]
        elif isinstance(x, Op) and x.name.startswith("pack"):  # 0 where all parts are
            parts = [identity_conditions(a, combiner) for a in x.args]
            out += [t for t in parts[0] if all(t in p for p in parts[1:])]
    return out


def _factors(e: Expr, combiner: str | None) -> Iterator[Expr]:
    """Parts of a summand that make it the identity where they are: loads, selects, packed parts."""
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Load):
            yield x
        elif not isinstance(x, Op):
            continue
        elif x.name == "select":
            fill = x.args[2]
            if combiner and fill == combiner_identity(combiner, fill.dtype):
                yield x
                stack.append(x.args[1])
        elif combiner == "sum" and x.name in ("mul", "cast", *DOTS):
            stack.extend(reversed(x.args))
        elif combiner == "sum" and x.name.startswith("pack"):
            yield x


def zero_borders(p: Program) -> Borders:
    """What pads leave at 0, where it is wide: at least `WIDE` times as much as what they copy."""
    known: dict[str, dict[int, tuple[int, int]]] = {}
    for store, _ in stores_under(p.body):
        own = {} if store.combiner else _border_of(store)
        known[store.buffer] = {
            d: part for d, part in known.get(store.buffer, own).items() if own.get(d) == part
        }
    out: dict[str, dict[int, tuple[int, int]]] = {}
    for b in p.buffers:
        for d, (lo, hi) in known.get(b.name, {}).items():
            n = b.shape[d]
            if isinstance(n, Const) and int(n.value) - (hi - lo) >= WIDE * (hi - lo) > 0:
                out.setdefault(b.name, {})[d] = (lo, hi)
    return out


def _border_of(store: Store) -> dict[int, tuple[int, int]]:
    """Dimensions d where `b[.., i, ..] = select(lo <= i and i < hi, x, 0)` stores zeros."""
    e = store.value
    if not (isinstance(e, Op) and e.name == "select") or e.args[2] != Const(0, e.dtype):
        return {}
    low, high = dict[Expr, int](), dict[Expr, int]()
    for test in conjuncts(e.args[0]):
        match test:
            case Op(name="le", args=(Const(value=lo), i)):
                low[i] = int(lo)
            case Op(name="lt", args=(i, Const(value=hi))):
                high[i] = int(hi)
    return {d: (low[i], high[i]) for d, i in enumerate(store.indices) if i in low and i in high}


def _border_tests(
    store: Store, moving: Sequence[For], around: Sequence[For], borders: Borders
) -> Iterator[Expr]:
    """Conditions that fail where all that the loops `moving` read of a factor is border."""
    ranges = {lp.var: (0, n - 1) for lp in around if (n := _trips(lp)) is not None}
    if store.combiner != "sum":
        return
    read = (x for x in _factors(store.value, store.combiner) if isinstance(x, Load))
    for x in read:
        for d, (lo, hi) in borders.get(x.tensor, {}).items():
            first, least, most = x.indices[d], 0, 0
            for lp in moving:
                c = coefficient(first, lp.var) if lp.var in first.free else Const(0)
                n = _trips(lp)
                if not isinstance(c, Const) or n is None:
                    break
                reach = int(c.value) * (n - 1)
                least, most = least + min(reach, 0), most + max(reach, 0)
            else:
                first = substitute(first, {lp.var: Const(0) for lp in moving})
                for test in (
                    compare("le", lo, add(first, most)),
                    compare("lt", add(first, least), hi),
                ):
                    if isinstance(test, Op) and compared(test, ranges) is None:
                        yield test


def _trips(lp: For) -> int | None:
    """The largest number of iterations, where it is known."""
    n = lp.extent if isinstance(lp.extent, Const) else lp.nominal
    return int(n.value) if isinstance(n, Const) else None


def _drop(e: Expr, tests: frozenset[Expr]) -> Expr:
    """The expression with these conditions removed from its selects."""

    def bare(x: Op) -> Expr:
        if x.name != "select":
            return x
        cond, value, fill = x.args
        left = [t for t in conjuncts(cond) if t not in tests]
        return Op("select", (logic("and", left), value, fill), x.dtype) if left else value

    return transform(e, lambda x: x if isinstance(x, Load | Poly) else None, {}, bare)
