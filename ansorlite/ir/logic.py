"""Conditions, selection, math functions on expressions: the constructors beside arithmetic.

Also what a reduction starts from.
"""

from collections.abc import Sequence
from typing import Any

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import Const, Expr, Op, is_float, promote, settled, wrap
from ansorlite.ir.literals import least


def all_of(*conds: Any) -> Expr:
    return logic("and", conds)


def any_of(*conds: Any) -> Expr:
    return logic("or", conds)


def logic(name: str, conds: Sequence[Any]) -> Expr:
    stop = name == "or"
    kept: list[Expr] = []
    for c in conds:
        e = _condition(name, c)
        for part in e.args if isinstance(e, Op) and e.name == name else (e,):
            if isinstance(part, Const):
                if part.value == stop:
                    return Const(stop, "bool")
            elif part not in kept:
                kept.append(part)
    if not kept:
        return Const(not stop, "bool")
    return kept[0] if len(kept) == 1 else Op(name, tuple(kept), "bool")


def conjuncts(cond: Expr) -> tuple[Expr, ...]:
    """The conditions that all have to hold for this one to."""
    return cond.args if isinstance(cond, Op) and cond.name == "and" else (cond,)


def _condition(name: str, c: Any) -> Expr:
    # `i == 0` is Python's, about the structure of expressions: its answer is not what was meant.
    if isinstance(c, bool):
        raise AnsorliteError(
            f"{name} got Python's {c}: compare expressions by te.equal and te.not_equal; "
            f"the literal is te.const({c}, 'bool')"
        )
    e = wrap(c)
    if e.dtype != "bool":
        raise AnsorliteError(f"{name} needs conditions, got {e} of {e.dtype}")
    return e


def negate(cond: Any) -> Expr:
    e = _condition("not", cond)
    if isinstance(e, Const):
        return Const(not e.value, "bool")
    return e.args[0] if isinstance(e, Op) and e.name == "not" else Op("not", (e,), "bool")


def select(cond: Any, a: Any, b: Any) -> Expr:
    """a where cond holds, else b; the branch not taken is not evaluated."""
    c = _condition("select", cond)
    x, y = promote(a, b)
    if isinstance(c, Const):
        return x if c.value else y
    return x if x == y else Op("select", (c, x, y), x.dtype)


UNARY = ("exp", "log", "sqrt", "tanh", "erf", "sigmoid", "abs", "floor")


def call(name: str, *args: Any) -> Expr:
    """A math function of floating-point arguments (`abs` also of integers)."""
    exprs = [wrap(a) for a in args]
    if len(exprs) == 2:
        exprs = list(promote(args[0], args[1]))
    if any(not is_float(e) for e in exprs) and name != "abs":
        raise AnsorliteError(f"{name} needs floating-point arguments, got {exprs[0].dtype}")
    return Op(name, tuple(map(settled, exprs)), exprs[0].dtype)


def combiner_identity(combiner: str, dtype: str) -> Const:
    """The value that leaves the other operand of `combiner` unchanged."""
    if combiner == "sum":
        return Const(0, dtype)
    if dtype.startswith("float"):
        return Const(float("-inf") if combiner == "max" else float("inf"), dtype)
    if dtype == "bool":
        return Const(combiner == "min", "bool")
    return Const(least(dtype) if combiner == "max" else -1 - least(dtype), dtype)
