"""Constructors of conditions, selects and math functions, and identities of reductions.

In: expressions or Python numbers. Out: expressions in normal form.
"""

from collections.abc import Sequence
from typing import Any

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import (
    Const,
    Expr,
    Op,
    cast_op,
    is_float,
    is_int,
    promote,
    widened,
    wrap,
    wrapped_int,
)
from ansorlite.ir.extremum import extremum
from ansorlite.ir.literals import WIDE, range_of
from ansorlite.ir.packed import PACKED


def all_of(*conds: Any) -> Expr:
    """Conjunction of conditions. Example: `te.all(i >= 1, i < n - 1)`."""
    return logic("and", conds)


def any_of(*conds: Any) -> Expr:
    """Disjunction of conditions. Example: `te.any(i < 1, i >= n - 1)`."""
    return logic("or", conds)


def logic(name: str, conds: Sequence[Any]) -> Expr:
    """n-ary "and" or "or", flattened, without duplicates; constants are folded."""
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
    """The operands of a conjunction; any other condition itself."""
    return cond.args if isinstance(cond, Op) and cond.name == "and" else (cond,)


def _condition(name: str, c: Any) -> Expr:
    """The condition as an expression; AnsorliteError for a Python bool and for other dtypes."""
    # `i == 0` compares structure in Python and yields a bool, which is never what the user meant.
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
    """Negation of a condition; a double negation is removed."""
    e = _condition("not", cond)
    if isinstance(e, Const):
        return Const(not e.value, "bool")
    return e.args[0] if isinstance(e, Op) and e.name == "not" else Op("not", (e,), "bool")


def select(cond: Any, a: Any, b: Any) -> Expr:
    """`a` where `cond` holds, else `b`; the other branch is not evaluated.

    Example: `te.select(i < n, A[i], 0.0)`. `a` and `b` get a common dtype; two that are stored in
    few bytes alike stay so.
    """
    c = _condition("select", cond)
    narrow = isinstance(a, Expr) and isinstance(b, Expr) and a.dtype == b.dtype in WIDE
    x, y = (wrap(a), wrap(b)) if narrow else promote(a, b)
    if isinstance(c, Const):
        return x if c.value else y
    return x if x == y else Op("select", (c, x, y), x.dtype)


UNARY = (
    *("exp", "log", "sqrt", "tanh", "erf", "sigmoid", "abs", "floor", "sin", "cos", "tan"),
    *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "bfloat16"),
)


def call(name: str, *args: Any) -> Expr:
    """A math function of floats (`abs` also of integers); AnsorliteError for other dtypes."""
    exprs = [widened(wrap(a)) for a in args]
    if len(exprs) == 2:
        exprs = list(promote(args[0], args[1]))
    if any(not is_float(e) for e in exprs) and name != "abs":
        raise AnsorliteError(f"{name} needs floating-point arguments, got {exprs[0].dtype}")
    return Op(name, tuple(map(wrapped_int, exprs)), exprs[0].dtype)


def bitwise(name: str, a: Any, b: Any) -> Expr:
    """bit_and, bit_or or bit_xor of integers; AnsorliteError for other dtypes."""
    x, y = promote(wrapped_int(a), wrapped_int(b))
    if not is_int(x):
        raise AnsorliteError(f"{name} needs integers, got {x.dtype}")
    return Op(name, (wrapped_int(x), wrapped_int(y)), x.dtype)


def shift(name: str, a: Any, b: Any) -> Expr:
    """shift_left or shift_right of an integer by `b` bits; AnsorliteError for other dtypes.

    The nodes have counts of 0 to 63. By other counts, and by more than the width, nothing is left:
    0, or -1 where a negative number is shifted to the right.
    """
    x, count = promote(wrapped_int(a), wrapped_int(b))
    if not is_int(x):
        raise AnsorliteError(f"{name} needs integers, got {x.dtype}")
    count, low, high = wrapped_int(count), Const(0, x.dtype), Const(63, x.dtype)
    held = extremum("min", [extremum("max", [count, low]), high])
    inside = all_of(count >= low, count <= high)
    if name == "shift_left":
        return select(inside, cast_op(Op(name, (wrapped_int(x), held), x.dtype), x.dtype), low)
    return Op(name, (wrapped_int(x), select(inside, held, high)), x.dtype)


def packed(name: str, *args: Any) -> Expr:
    """An operation of `ir.packed.PACKED`; AnsorliteError for operands of other dtypes."""
    rule = PACKED[name]
    exprs = [widened(wrap(a)) for a in args]
    if len(exprs) != rule.arity or any(e.dtype != rule.takes for e in exprs):
        given = ", ".join(e.dtype for e in exprs)
        raise AnsorliteError(
            f"{name} takes {rule.arity} operands of dtype {rule.takes}, got {given}"
        )
    return Op(name, tuple(map(wrapped_int, exprs)), rule.dtype)


def combiner_identity(combiner: str, dtype: str) -> Const:
    """The identity element of the combiner: 0, -inf or inf, or the end of an integer range."""
    if combiner == "sum":
        return Const(0, dtype)
    if dtype.startswith("float"):
        return Const(float("-inf") if combiner == "max" else float("inf"), dtype)
    if dtype == "bool":
        return Const(combiner == "min", "bool")
    low, high = range_of(dtype)
    return Const(low if combiner == "max" else high, dtype)
