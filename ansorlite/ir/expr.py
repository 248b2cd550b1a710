"""Expressions, shared by te and the loop IR, in one normal form.

Grammar:
    expr := Const | Var | Poly | Op(name, args) | Load(tensor, indices)

Integer +, - and * always form an expanded polynomial over atoms (`Var`, `Load`, other `Op`s), so
equal polynomials have equal structure. min, max, floordiv, ceildiv and mod are atoms with canonical
rules of their own. Substitution rebuilds bottom-up through the same constructors; therefore
substitute-then-build equals build-then-substitute. Floating-point arithmetic is kept as written,
except that constants are folded. Polynomials of loop variables are exact. Integers that are read
from tensors wrap at the width of their dtype; a cast to the same dtype marks the wrap
(`wrapped_int`). Equality is structural; the order of expressions is the order of `key`, the printed
form.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from ansorlite.errors import AnsorliteError
from ansorlite.ir.deep import FLOATS, Node, Piece
from ansorlite.ir.literals import WIDE, converted, rounded, wrapped
from ansorlite.ir.text import INFIX, listed, op_pieces, poly_pieces

Role = Literal["axis", "loop", "hole", "knob"]
Scalar = int | float | bool
Monomial = tuple["Expr", ...]


class Expr(Node):
    """Base of all expressions. Example: `(i * 4 + j) // 8` for variables i and j is an Expr.

    Python operators build expressions; `==` compares structure, and `bool()` of an expression
    raises AnsorliteError. Expressions may be thousands of nodes deep, see `ir.deep`.
    """

    __slots__ = ()

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The direct subexpressions."""
        return ()

    def __bool__(self) -> bool:
        raise AnsorliteError(
            f"the expression {self.key} has no truth value: use te.select, te.all or te.any"
        )

    def __add__(self, other: Any) -> Expr:
        return add(self, other)

    def __radd__(self, other: Any) -> Expr:
        return add(other, self)

    def __sub__(self, other: Any) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: Any) -> Expr:
        return sub(other, self)

    def __mul__(self, other: Any) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: Any) -> Expr:
        return mul(other, self)

    def __truediv__(self, other: Any) -> Expr:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return divide(other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return floordiv(wrapped_int(self), wrapped_int(other))

    def __rfloordiv__(self, other: Any) -> Expr:
        return floordiv(wrapped_int(other), wrapped_int(self))

    def __mod__(self, other: Any) -> Expr:
        return mod(wrapped_int(self), wrapped_int(other))

    def __rmod__(self, other: Any) -> Expr:
        return mod(wrapped_int(other), wrapped_int(self))

    def __neg__(self) -> Expr:
        return mul(self, -1)

    def __lt__(self, other: Any) -> Expr:
        return compare("lt", wrapped_int(self), wrapped_int(other))

    def __le__(self, other: Any) -> Expr:
        return compare("le", wrapped_int(self), wrapped_int(other))

    def __gt__(self, other: Any) -> Expr:
        return compare("lt", wrapped_int(other), wrapped_int(self))

    def __ge__(self, other: Any) -> Expr:
        return compare("le", wrapped_int(other), wrapped_int(self))


class Const(Expr):
    """A literal. Integers are unbounded during construction and must fit the dtype in a program."""

    __slots__ = ("value",)

    def __init__(self, value: Scalar, dtype: str = "int32") -> None:
        if dtype == "bool":
            self.value: Any = bool(value)
        elif dtype.startswith("float"):
            self.value = float(value)
        else:
            self.value = int(value)
        self._seal(("const", repr(self.value)), dtype)

    def pieces(self) -> list[Piece]:
        return [repr(self.value)]

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Const, (self.value, self.dtype)


class Var(Expr):
    """An int32 variable: holes are >= 1; knobs (annotation holes), axes and loops are >= 0."""

    __slots__ = ("name", "role")

    def __init__(self, name: str, role: Role = "loop") -> None:
        self.name, self.role = name, role
        self._seal(("var", name, role), "int32")
        self.free = frozenset((name,))

    def pieces(self) -> list[Piece]:
        return [self.name]

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Var, (self.name, self.role)


class Poly(Expr):
    """An expanded integer polynomial, made only by the arithmetic constructors of this module."""

    __slots__ = ("terms",)
    infix = True

    def __init__(self, terms: tuple[tuple[Monomial, int], ...], dtype: str = "int32") -> None:
        self.terms = terms
        self._seal(terms, dtype, [a for m, _ in terms for a in m])

    @property
    def operands(self) -> tuple[Expr, ...]:
        return tuple(a for m, _ in self.terms for a in m)

    def pieces(self) -> list[Piece]:
        return poly_pieces(self.terms)

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Poly, (self.terms, self.dtype)


class Op(Expr):
    """Any other operation, by name; `te.evaluate` defines the operations in numpy."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[Expr, ...], dtype: str) -> None:
        self.name, self.args = name, args
        self._seal((name, args), dtype, args)

    @property
    def operands(self) -> tuple[Expr, ...]:
        return self.args

    def pieces(self) -> list[Piece]:
        return op_pieces(self.name, self.args, self.dtype)

    @property
    def infix(self) -> bool:  # type: ignore[override]
        return self.name in INFIX

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Op, (self.name, self.args, self.dtype)


class Load(Expr):
    """The element of tensor or buffer `tensor` at `indices`."""

    __slots__ = ("indices", "tensor")
    is_load = True

    def __init__(self, tensor: str, indices: tuple[Expr, ...], dtype: str) -> None:
        self.tensor, self.indices = tensor, indices
        self._seal((tensor, indices), dtype, indices)

    @property
    def operands(self) -> tuple[Expr, ...]:
        return self.indices

    def pieces(self) -> list[Piece]:
        return [f"{self.tensor}[", *listed(self.indices), "]"]

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Load, (self.tensor, self.indices, self.dtype)


# ---- construction -------------------------------------------------------------------------------


def wrap(x: Any, dtype: str | None = None) -> Expr:
    """The expression of a Python or numpy scalar; expressions pass through.

    Default dtypes: bool, int32, float32. Raises AnsorliteError for other values.
    """
    if isinstance(x, Expr):
        return x
    if getattr(x, "shape", None) == ():
        x = x.item()
    if isinstance(x, bool):
        return Const(x, "bool") if dtype in (None, "bool") else Const(x, dtype or "bool")
    if isinstance(x, int):
        return integer(x) if dtype in (None, "bool", "int32") else Const(x, dtype)
    if isinstance(x, float):
        return Const(x, dtype if dtype in FLOATS else "float32")
    raise AnsorliteError(f"{x!r} of type {type(x).__name__} is neither an expression nor a number")


@lru_cache(maxsize=1 << 14)
def integer(value: int, dtype: str = "int32") -> Const:
    """The literal of an integer; equal literals are one object."""
    return Const(value, dtype)


def is_int(e: Expr) -> bool:
    """True for int32 and int64."""
    return e.dtype in ("int32", "int64")


def is_float(e: Expr) -> bool:
    """True for float32 and float64."""
    return e.dtype in FLOATS


def cast(x: Any, dtype: str) -> Expr:
    """The value converted to `dtype`; no operation if the dtype is the same.

    An element that was stored in few bytes is not widened on its way to another dtype.
    """
    e = wrap(x)
    if e.dtype == dtype:
        return e
    if isinstance(e, Op) and e.name == "cast" and WIDE.get(e.args[0].dtype) == e.dtype:
        narrow = e.args[0]
        if narrow.dtype == dtype:
            return narrow
        if dtype in (*FLOATS, "int64"):
            return cast_op(narrow, dtype)
    return cast_op(wrapped_int(e), dtype)


def widened(e: Expr) -> Expr:
    """The value in the dtype in which arithmetic has its elements."""
    return cast(e, WIDE[e.dtype]) if e.dtype in WIDE else e


def cast_op(e: Expr, dtype: str) -> Expr:
    """The value converted to `dtype`, with a cast node even for the same dtype; folds constants."""
    if isinstance(e, Const):
        value = rounded(e.value, e.dtype) if is_float(e) else e.value
        return Const(converted(value, dtype), dtype)
    return Op("cast", (e,), dtype)


def wrapped_int(x: Any) -> Any:
    """An integer read from tensors, wrapped where it may exceed its dtype; other values as given.

    Sums and products of wrapped integers agree with exact sums and products modulo 2^32; other
    operations do not, so their operands must be wrapped first.
    """
    return cast_op(x, x.dtype) if isinstance(x, Expr) and is_int(x) and _is_open(x) else x


def _is_open(e: Expr) -> bool:
    """True if the exact value of an integer expression with reads may exceed its dtype."""
    if isinstance(e, Const):
        return bool(wrapped(e.value, e.dtype) != e.value)
    if not isinstance(e, Op):
        return isinstance(e, Poly) and e.reads
    if e.name == "select":
        return any(_is_open(a) for a in e.args[1:])
    if e.name in ("floordiv", "ceildiv"):  # the smallest integer divided by -1 overflows
        return e.reads and not (isinstance(e.args[1], Const) and e.args[1].value > 0)
    return e.name == "abs" and e.reads


_RANK = {d: k for k, d in enumerate(("bool", "int32", "int64", "float32", "float64"))}


def promote(a: Any, b: Any) -> tuple[Expr, Expr]:
    """Both operands in one dtype; a Python number takes the dtype of the other operand.

    Elements of few bytes take part in arithmetic in their wide dtype.
    """
    if isinstance(a, Expr) and isinstance(b, Expr) and a.dtype == b.dtype and a.dtype not in WIDE:
        return a, b
    a, b = (widened(x) if isinstance(x, Expr) else x for x in (a, b))
    if isinstance(a, Expr) and not isinstance(b, Expr):
        ints_stay = is_int(a) and isinstance(b, float)
        b = wrap(b, None if ints_stay else a.dtype)
    elif isinstance(b, Expr) and not isinstance(a, Expr):
        ints_stay = is_int(b) and isinstance(a, float)
        a = wrap(a, None if ints_stay else b.dtype)
    ea, eb = wrap(a), wrap(b)
    if ea.dtype == eb.dtype:
        return ea, eb
    dtype = wider(ea.dtype, eb.dtype)
    return cast(ea, dtype), cast(eb, dtype)


def wider(*dtypes: str) -> str:
    """The common dtype: the highest of bool, int32, int64, float32, float64."""
    return max((WIDE.get(d, d) for d in dtypes), key=_RANK.__getitem__)


def terms_of(e: Expr) -> dict[Monomial, int]:
    """The polynomial of an integer expression as {monomial: coefficient}."""
    if isinstance(e, Const):
        return {(): e.value} if e.value else {}
    if isinstance(e, Poly):
        return dict(e.terms)
    return {(e,): 1}


def term_list(e: Expr) -> tuple[tuple[Monomial, int], ...]:
    """The terms of an integer expression, as `terms_of` has them."""
    if isinstance(e, Poly):
        return e.terms
    return tuple(terms_of(e).items())


def apart(e: Expr) -> tuple[Expr, int]:
    """(the rest, the constant term) of an integer expression."""
    if isinstance(e, Const):
        return integer(0, e.dtype), int(e.value)
    if isinstance(e, Poly) and not e.terms[-1][0]:
        return poly(dict(e.terms[:-1]), e.dtype), e.terms[-1][1]
    return e, 0


def coefficients(e: Expr) -> tuple[Expr, ...]:
    """Factors over holes of an integer expression, one per monomial in the loop variables.

    The part without loop variables comes first. Atoms other than holes count as loop variables.
    """
    parts: dict[Monomial, dict[Monomial, int]] = {(): {}}
    for mono, c in terms_of(e).items():
        holes = tuple(a for a in mono if isinstance(a, Var) and a.role == "hole")
        loops = tuple(a for a in mono if not (isinstance(a, Var) and a.role == "hole"))
        parts.setdefault(loops, {})[holes] = c
    return tuple(poly(terms, e.dtype) for terms in parts.values())


def _term_order(term: tuple[Monomial, int]) -> tuple[bool, list[str]]:
    """Sort key of a term: the constant last, monomials by printed form."""
    return not term[0], [a.key for a in term[0]]


def poly(terms: Mapping[Monomial, int], dtype: str = "int32") -> Expr:
    """The canonical expression of a polynomial."""
    items = [(m, c) for m, c in terms.items() if c]
    if not items:
        return integer(0, dtype)
    if len(items) == 1:
        mono, c = items[0]
        if not mono:
            return integer(c, dtype)
        if c == 1 and len(mono) == 1:
            return mono[0]
    items.sort(key=_term_order)
    return Poly(tuple(items), dtype)


def _is_number(e: Expr, value: int) -> bool:
    return isinstance(e, Const) and bool(e.value == value)


_KNOWN: dict[tuple[str, Expr, Expr], Expr] = {}  # results of integer arithmetic
MOST_KNOWN = 50_000


def _kept(key: tuple[str, Expr, Expr], result: Expr) -> Expr:
    if len(_KNOWN) > MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = result
    return result


def add(a: Any, b: Any) -> Expr:
    """a + b with dtype promotion."""
    left, right = promote(a, b)
    if not is_int(left):
        return _float_op("add", left, right)
    if _is_number(right, 0):
        return left
    if _is_number(left, 0):
        return right
    known = _KNOWN.get(("add", left, right))
    if known is not None:
        return known
    out = terms_of(left)
    for mono, c in terms_of(right).items():
        out[mono] = out.get(mono, 0) + c
    return _kept(("add", left, right), poly(out, left.dtype))


def sub(a: Any, b: Any) -> Expr:
    """a - b with dtype promotion."""
    left, right = promote(a, b)
    if not is_int(left):
        return _float_op("sub", left, right)
    if _is_number(right, 0):
        return left
    known = _KNOWN.get(("sub", left, right))
    if known is not None:
        return known
    out = terms_of(left)
    for mono, c in terms_of(right).items():
        out[mono] = out.get(mono, 0) - c
    return _kept(("sub", left, right), poly(out, left.dtype))


def mul(a: Any, b: Any) -> Expr:
    """a * b with dtype promotion."""
    left, right = promote(a, b)
    if not is_int(left):
        return _float_op("mul", left, right)
    if _is_number(right, 1):
        return left
    if _is_number(left, 1):
        return right
    known = _KNOWN.get(("mul", left, right))
    if known is not None:
        return known
    out: dict[Monomial, int] = {}
    ta, tb = terms_of(left), terms_of(right)
    if isinstance(right, Const):
        out = {m: c * right.value for m, c in ta.items()}
    elif isinstance(left, Const):
        out = {m: c * left.value for m, c in tb.items()}
    else:
        for m1, c1 in ta.items():
            for m2, c2 in tb.items():
                mono = tuple(sorted(m1 + m2, key=lambda x: x.key)) if m1 and m2 else m1 or m2
                out[mono] = out.get(mono, 0) + c1 * c2
    return _kept(("mul", left, right), poly(out, left.dtype))


def weighted_sum(parts: Sequence[Expr], weights: Sequence[int]) -> Expr:
    """The sum of integer expressions, each times the number at its place; 0 without any."""
    if any(e.dtype != "int32" for e in parts):
        total: Expr = integer(0)
        for e, w in zip(parts, weights, strict=True):
            total = add(total, mul(e, w))
        return total
    return poly(weighted_terms(parts, weights))


def weighted_terms(parts: Sequence[Expr], weights: Sequence[int]) -> dict[Monomial, int]:
    """The polynomial of `weighted_sum` for int32 expressions."""
    out: dict[Monomial, int] = {}
    for e, w in zip(parts, weights, strict=True):
        for mono, c in term_list(e):
            out[mono] = out.get(mono, 0) + c * w
    return out


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul")
}


def _float_op(name: str, a: Expr, b: Expr) -> Expr:
    """A floating-point operation; constants are folded, rounded to the dtype."""
    if a.dtype == "bool":
        raise AnsorliteError(f"{name} of booleans {a} and {b}: cast them first")
    if isinstance(a, Const) and isinstance(b, Const):
        # The unrounded result prints shorter; use it if it rounds to the same number.
        short = _FOLD[name](a.value, b.value)
        value = rounded(_FOLD[name](*(rounded(c.value, c.dtype) for c in (a, b))), a.dtype)
        return Const(short if rounded(short, a.dtype) == value else value, a.dtype)
    return Op(name, (a, b), a.dtype)


def divide(a: Any, b: Any) -> Expr:
    """a / b for floats; AnsorliteError for integers."""
    a, b = promote(a, b)
    if is_int(a):
        raise AnsorliteError(f"{a} / {b} divides integers: use // or cast to float32 first")
    return Op("div", (a, b), a.dtype)


def _split_residue(e: Expr, c: int) -> tuple[Expr, Expr]:
    """(q, r) with e = c*q + r and coefficients of r in the balanced range, at most c/2."""
    half = (c - 1) // 2
    q: dict[Monomial, int] = {}
    r: dict[Monomial, int] = {}
    for mono, k in terms_of(e).items():
        rest = (k + half) % c - half
        q[mono], r[mono] = (k - rest) // c, rest
    return poly(q, e.dtype), poly(r, e.dtype)


def floordiv(a: Any, b: Any) -> Expr:
    """Integer quotient rounded down; 0 for a zero divisor (numpy's convention)."""
    return int_divide("floordiv", a, b)


def ceildiv(a: Any, b: Any) -> Expr:
    """Integer quotient rounded up; 0 for a zero divisor."""
    return int_divide("ceildiv", a, b)


def int_divide(name: str, a: Any, b: Any) -> Expr:
    """The floordiv or ceildiv (`name`); multiples of a constant divisor leave the quotient."""
    a, b = promote(a, b)
    if not is_int(a):
        raise AnsorliteError(f"{name} needs integers, got {a.dtype} and {b.dtype}")
    if not isinstance(b, Const):
        return a if isinstance(a, Const) and a.value == 0 else Op(name, (a, b), a.dtype)
    c = b.value
    if c == 0:
        raise AnsorliteError(f"division of {a} by zero")
    if c < 0:
        return Op(name, (a, b), a.dtype) if a.reads else int_divide(name, mul(a, -1), -c)
    q, r = _split_residue(a, c)
    if isinstance(r, Const):
        v = r.value // c if name == "floordiv" else -((-r.value) // c)
        return add(q, Const(v, a.dtype))
    return add(q, Op(name, (r, b), a.dtype))


def mod(a: Any, b: Any) -> Expr:
    """Remainder of floor division, with the sign of the divisor; 0 for a zero divisor."""
    a, b = promote(a, b)
    if not is_int(a):
        raise AnsorliteError(f"% needs integers, got {a.dtype} and {b.dtype}")
    if not isinstance(b, Const):
        return Op("mod", (a, b), a.dtype)
    c = b.value
    if c < 0 and a.reads:
        return Op("mod", (a, b), a.dtype)
    if c <= 0:
        raise AnsorliteError(f"modulus of {a} is {c}: it must be positive")
    r = poly({m: k % c for m, k in terms_of(a).items()}, a.dtype)
    return Const(r.value % c, a.dtype) if isinstance(r, Const) else Op("mod", (r, b), a.dtype)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "eq", "ne")
}


def compare(name: str, a: Any, b: Any) -> Expr:
    """lt, le, eq or ne; only constants are folded, ranges are not considered."""
    a, b = promote(a, b)
    if isinstance(a, Const) and isinstance(b, Const):
        values = [rounded(c.value, c.dtype) if is_float(c) else c.value for c in (a, b)]
        return Const(COMPARE[name](*values), "bool")
    return Op(name, (a, b), "bool")
