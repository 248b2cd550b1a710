"""Linear inequalities between integer expressions: the algebra of `ir.known`.

A `Linear` is a sum of monomials with integer coefficients that is asserted to be >= 0. Atoms that
are operations (quotients, remainders) are expanded into inequalities without the operation,
equivalent or sufficient, as each function states.
"""

import math
from collections.abc import Iterator

from ansorlite.ir.expr import COMPARE, Const, Expr, Monomial, Op, compare, is_int, terms_of
from ansorlite.ir.logic import negate

Linear = dict[Monomial, int]  # coefficients by monomial; () is the constant term


def facts_of(condition: Expr) -> Iterator[Expr]:
    """The conditions that all hold where `condition` holds."""
    stack = [condition]
    while stack:
        e = stack.pop()
        inner = e.args[0] if isinstance(e, Op) and e.name == "not" else None
        if isinstance(e, Op) and e.name == "and":
            stack.extend(reversed(e.args))
        elif isinstance(e, Op) and e.name == "select" and e.args[2] == Const(False, "bool"):
            stack.extend((e.args[1], e.args[0]))
        elif isinstance(inner, Op) and inner.name == "or":
            stack.extend(negate(a) for a in reversed(inner.args))
        elif (
            isinstance(inner, Op)
            and inner.name == "select"
            and (inner.args[1] == Const(True, "bool"))
        ):
            stack.extend((negate(inner.args[2]), negate(inner.args[0])))
        else:
            yield e


def inequalities(condition: Expr) -> Iterator[Linear]:
    """Linear forms that are >= 0 where the condition holds."""
    if not isinstance(condition, Op):
        return
    if condition.name == "not":
        inner = condition.args[0]
        if isinstance(inner, Op) and inner.name in ("lt", "le"):
            a, b = inner.args
            yield from inequalities(compare("le" if inner.name == "lt" else "lt", b, a))
        elif isinstance(inner, Op) and inner.name == "ne":
            yield from inequalities(compare("eq", *inner.args))
        return
    if condition.name not in COMPARE or not is_int(condition.args[0]):
        return
    low, high = map(terms_of, condition.args)
    match condition.name:
        case "lt":
            yield plus(plus(high, low, -1), {(): 1}, -1)
        case "le":
            yield plus(high, low, -1)
        case "eq":
            yield plus(high, low, -1)
            yield plus(low, high, -1)


def plus(a: Linear, b: Linear, times: int) -> Linear:
    """a + times * b."""
    out = dict(a)
    for mono, c in b.items():
        total = out.get(mono, 0) + c * times
        if total:
            out[mono] = total
        else:
            out.pop(mono, None)
    return out


def reduced(g: Linear) -> Linear:
    """g divided by the common divisor of its coefficients; the constant term is rounded down."""
    common = math.gcd(*(c for mono, c in g.items() if mono)) or 1
    if common == 1:
        return g
    out = {mono: c // common for mono, c in g.items() if mono}
    return {**out, (): g[()] // common} if g.get((), 0) // common else out


def remainder(atom: Op) -> Linear:
    """a mod c in the form a - c * (a // c)."""
    a, c = atom.args
    assert isinstance(c, Const)
    return plus(terms_of(a), {(Op("floordiv", (a, c), atom.dtype),): 1}, -int(c.value))


def quotient(rest: Linear, atom: Op, k: int) -> Linear:
    """An inequality equivalent to rest + k * (r // s) >= 0, for k = 1 or -1."""
    r, s = terms_of(atom.args[0]), int(atom.args[1].value)  # type: ignore[attr-defined]
    scaled = {m: c * s for m, c in rest.items()}
    if atom.name == "floordiv":
        return plus(scaled, r, 1) if k > 0 else plus(plus(scaled, {(): s - 1}, 1), r, -1)
    return plus(plus(scaled, {(): s - 1}, 1), r, 1) if k > 0 else plus(scaled, r, -1)


def quotients(rest: Linear, atom: Op, k: int) -> Iterator[Linear]:
    """Inequalities each of which implies rest + k * (r // s) >= 0."""
    if abs(k) == 1:
        yield quotient(rest, atom, k)
        return
    r, s = terms_of(atom.args[0]), int(atom.args[1].value)  # type: ignore[attr-defined]
    common = math.gcd(k, s)
    scale, factor = s // common, k // common
    # r - (s - 1) <= s * (r // s) <= r, and likewise r <= s * ceildiv(r, s) <= r + s - 1
    slack = 0 if (atom.name == "floordiv") == (k < 0) else (s - 1)
    r = plus(r, {(): slack}, -1 if atom.name == "floordiv" else 1)
    yield plus({m: c * scale for m, c in rest.items()}, r, factor)
