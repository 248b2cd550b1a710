"""min and max: the constructors, and the removal of dominated arguments.

In: expressions or Python numbers. Out: an expression in normal form: for integers one flat `min` or
`max` with sorted arguments, for floats nested binary operations as written. A NaN operand is the
result, as in numpy's `maximum` and `minimum`; of +0 and -0 either may be the result.
"""

from collections.abc import Sequence
from typing import Any

from ansorlite.ir.expr import (
    Expr,
    Op,
    Var,
    add,
    cast,
    integer,
    is_int,
    mul,
    promote,
    sub,
    terms_of,
    wider,
    wrap,
)

MOST_KNOWN = 50_000  # results that are kept
_NONNEG: dict[Expr, bool] = {}
_EXTREMA: dict[tuple[str, tuple[Expr, ...]], Expr] = {}


def provably_nonneg(e: Expr) -> bool:
    """True if e >= 0 follows from holes >= 1 and loop variables >= 0 (never for other atoms)."""
    terms = terms_of(e)
    holes: set[str] = set()
    for mono in terms:
        for atom in mono:
            if not isinstance(atom, Var):
                return False
            if atom.role == "hole":
                holes.add(atom.name)
    if all(c >= 0 for c in terms.values()):
        return True
    if not holes:
        return False  # all variables may be 0 or large
    known = _NONNEG.get(e)
    if known is None:
        moved: Expr = integer(0, e.dtype)
        for mono, c in terms.items():
            prod: Expr = integer(c, e.dtype)
            for atom in mono:
                prod = mul(prod, add(atom, 1) if atom.key in holes else atom)
            moved = add(moved, prod)
        known = all(c >= 0 for c in terms_of(moved).values())
        if len(_NONNEG) > MOST_KNOWN:
            _NONNEG.clear()
        _NONNEG[e] = known
    return known


def minimum(*args: Any) -> Expr:
    """The smallest argument."""
    return extremum("min", args)


def maximum(*args: Any) -> Expr:
    """The largest argument."""
    return extremum("max", args)


def extremum(name: str, raw: Sequence[Any]) -> Expr:
    """n-ary min or max, flattened and sorted; an argument is dropped only if provably dominated."""
    given = tuple(raw)
    if not all(isinstance(a, Expr) and a.dtype == "int32" for a in given):
        return _extremum(name, given)
    known = _EXTREMA.get((name, given))
    if known is None:
        if len(_EXTREMA) > MOST_KNOWN:
            _EXTREMA.clear()
        known = _EXTREMA[name, given] = _extremum(name, given)
    return known


def _extremum(name: str, raw: Sequence[Any]) -> Expr:
    first = next((a for a in raw if isinstance(a, Expr)), wrap(raw[0]))
    exprs = [promote(a, first)[0] for a in raw]
    dtype = wider(*(e.dtype for e in exprs))
    args: list[Expr] = []
    for e in (cast(e, dtype) for e in exprs):
        args.extend(e.args if isinstance(e, Op) and e.name == name and is_int(e) else (e,))
    if not is_int(args[0]):
        out = args[0]
        for e in args[1:]:
            out = Op(name, (out, e), out.dtype)
        return out
    least = name == "min"
    kept: list[Expr] = []
    for e in sorted(set(args), key=lambda x: x.key):
        if any(provably_nonneg(sub(e, k) if least else sub(k, e)) for k in kept):
            continue
        kept = [k for k in kept if not provably_nonneg(sub(k, e) if least else sub(e, k))]
        kept.append(e)
    return kept[0] if len(kept) == 1 else Op(name, tuple(kept), kept[0].dtype)
