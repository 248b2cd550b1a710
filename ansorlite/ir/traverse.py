"""Traversal, rebuilding and substitution of expressions.

Rebuilding is bottom-up through the canonical constructors of `ir.expr`; therefore
substitute-then-build gives the same expression as building with the values in place.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from ansorlite.ir.deep import recursion_starts
from ansorlite.ir.expr import (
    COMPARE,
    Const,
    Expr,
    Load,
    Monomial,
    Op,
    Poly,
    Var,
    add,
    cast_op,
    compare,
    int_divide,
    mod,
    mul,
    poly,
    sub,
    term_list,
    terms_of,
)
from ansorlite.ir.extremum import extremum
from ansorlite.ir.logic import logic, negate, select

MAX_OPS_PER_LANE = 256  # operations of which no copy is made for each lane
_ARITHMETIC = {"add": add, "sub": sub, "mul": mul}


def rebuild(e: Op, args: Sequence[Expr]) -> Expr:
    """The operation `e` with other operands, through the canonical constructors."""
    name = e.name
    if name in _ARITHMETIC:
        return _ARITHMETIC[name](*args)
    if name in ("min", "max"):
        return extremum(name, args)
    if name in ("floordiv", "ceildiv"):
        return int_divide(name, *args)
    if name == "mod":
        return mod(*args)
    if name in COMPARE:
        return compare(name, *args)
    if name in ("and", "or"):
        return logic(name, args)
    if name == "not":
        return negate(*args)
    if name == "select":
        return select(*args)
    if name == "cast":
        return cast_op(args[0], e.dtype)
    return Op(name, tuple(args), e.dtype)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct subexpressions."""
    return e.operands


def walk(e: Expr) -> Iterator[Expr]:
    """The expression and all subexpressions, parents first."""
    stack = [e]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(children(x)))


def below(e: Expr) -> list[Expr]:
    """Start nodes of a memoised recursion over a deep expression, innermost first (`ir.deep`)."""
    return recursion_starts(e, children)


def transform(
    e: Expr,
    leaf: Callable[[Expr], Expr | None],
    memo: dict[Expr, Expr],
    then: Callable[[Op], Expr] | None = None,
) -> Expr:
    """Rebuild bottom-up. `leaf` may replace a node before its operands are visited, or return None.

    `then` may replace an operation after its operands are rebuilt. `memo` may be shared by calls
    with the same functions.
    """
    for x in below(e):
        _transform(x, leaf, memo, then)
    return _transform(e, leaf, memo, then)


def _transform(
    e: Expr,
    leaf: Callable[[Expr], Expr | None],
    memo: dict[Expr, Expr],
    then: Callable[[Op], Expr] | None,
) -> Expr:
    done = memo.get(e)
    if done is not None:
        return done
    new = leaf(e)
    if new is None:
        # What has the operands that it had is kept: most of an expression does not change.
        if isinstance(e, Poly):
            terms = [(c, m, [_transform(a, leaf, memo, then) for a in m]) for m, c in e.terms]
            new = e if all(_are(atoms, m) for _, m, atoms in terms) else _sum(terms, e.dtype)
        elif isinstance(e, Op):
            args = [_transform(a, leaf, memo, then) for a in e.args]
            new = e if _are(args, e.args) else rebuild(e, args)
            if then is not None and isinstance(new, Op):
                new = then(new)
        elif isinstance(e, Load):
            indices = tuple([_transform(i, leaf, memo, then) for i in e.indices])
            new = e if _are(indices, e.indices) else Load(e.tensor, indices, e.dtype)
        else:
            new = e
    memo[e] = new
    return new


def _are(some: Sequence[Expr], others: Sequence[Expr]) -> bool:
    """Are as many expressions the same objects?"""
    return all(map(operator.is_, some, others))


def _sum(terms: Iterable[tuple[int, Monomial, list[Expr]]], dtype: str) -> Expr:
    """The sum of numbers times factors."""
    out: dict[Monomial, int] = {}
    for c, _, factors in terms:
        for m, k in _product(c, factors, dtype).items():
            out[m] = out.get(m, 0) + k
    return poly(out, dtype)


def _product(c: int, factors: list[Expr], dtype: str) -> dict[Monomial, int]:
    """The terms of a number times factors."""
    left: list[Expr] = []
    for f in factors:
        if isinstance(f, Const):
            c *= f.value
        else:
            left.append(f)
    if any(isinstance(f, Poly) or f.dtype != dtype for f in left):
        product: dict[Monomial, int] = {(): c}
        for f in left:
            product = terms_of(mul(poly(product, dtype), f))
        return product
    if len(left) > 1:
        left.sort(key=_key)
    return {tuple(left): c}


def _key(e: Expr) -> str:
    return e.key


def substitute(e: Expr, values: Mapping[str, Expr], memo: dict[Expr, Expr] | None = None) -> Expr:
    """The expression with variables replaced by name; `memo` may be shared by calls."""
    names = values.keys()
    if names.isdisjoint(e.free):
        return e

    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Var):
            return values.get(x.name, x)
        if names.isdisjoint(x.free):
            return x
        return _in_sum(x, values) if isinstance(x, Poly) else None

    return transform(e, leaf, {} if memo is None else memo)


def _in_sum(e: Poly, values: Mapping[str, Expr]) -> Expr | None:
    """`substitute` where the variables are terms of a sum; None where they stand elsewhere."""
    names = values.keys()
    out: dict[Monomial, int] = {}
    for mono, c in e.terms:
        atom = mono[0] if len(mono) == 1 else None
        value = values.get(atom.name) if isinstance(atom, Var) else None
        if value is None:
            if not all([names.isdisjoint(a.free) for a in mono]):
                return None
            out[mono] = out.get(mono, 0) + c
            continue
        if value.dtype != e.dtype:
            return None
        for m, k in term_list(value):
            out[m] = out.get(m, 0) + c * k
    return poly(out, e.dtype)


def rename_loads(e: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with loads of tensor x replaced by loads of names[x]."""
    memo: dict[Expr, Expr] = {}

    def leaf(x: Expr) -> Expr | None:
        if isinstance(x, Load) and x.tensor in names:
            idx = tuple(transform(i, leaf, memo) for i in x.indices)
            return Load(names[x.tensor], idx, x.dtype)
        return None

    return transform(e, leaf, memo)


@lru_cache(maxsize=1 << 13)
def loads(e: Expr) -> tuple[Load, ...]:
    """The loads of an expression, each before the loads in its indices; cached."""
    found = []
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Load):
            found.append(x)
        if x.reads:  # what reads no tensor has no loads below
            stack.extend(reversed(x.operands))
    return tuple(found)


@lru_cache(maxsize=1 << 13)
def tensors_read(e: Expr) -> frozenset[str]:
    """The names of the tensors that an expression loads from; cached."""
    return frozenset([x.tensor for x in loads(e)])


def branches_by_lane(e: Expr, var: str = "") -> bool:
    """True if vectorisation does not pay: a large value with loads chosen by a variable condition.

    Each lane would need its own branch and its own copy of the code. `var` restricts the test to
    conditions that depend on that variable.
    """
    if e.size <= MAX_OPS_PER_LANE:
        return False
    selects = (x for x in walk(e) if isinstance(x, Op) and x.name == "select")
    return any((not var or var in x.args[0].free) and loads(x) for x in selects)
