"""Interval arithmetic and evaluation of integer expressions.

`bounds` and `simplify` serve the tidy pass over concrete programs. `Evaluator` computes the value
of an expression for ints or for a whole population at once (numpy arrays, one value per candidate).
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

import numpy as np

from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import (
    COMPARE,
    Const,
    Expr,
    Load,
    Op,
    Poly,
    Var,
    add,
    integer,
    is_int,
    mul,
    poly,
    sub,
    terms_of,
)
from ansorlite.ir.extremum import extremum
from ansorlite.ir.literals import BITS, range_of
from ansorlite.ir.traverse import below, substitute, transform

Interval = tuple[int, int]
INF = 1 << 62


def bounds(e: Expr, ranges: Mapping[str, Interval]) -> Interval:
    """The tightest known interval of an integer expression; an end of +-INF is unknown."""
    done: dict[Expr, Interval] = {}
    for x in below(e):
        done[x] = _bounds(x, ranges, done)
    return _bounds(e, ranges, done)


def _bounds(e: Expr, ranges: Mapping[str, Interval], done: dict[Expr, Interval]) -> Interval:
    if isinstance(e, Const):
        return int(e.value), int(e.value)
    if isinstance(e, Var):
        return ranges.get(e.name, (0 if e.role != "hole" else 1, INF))
    if done and e in done:
        return done[e]
    if isinstance(e, Poly):
        lo = hi = 0
        bottom = top = True  # lower / upper bound is finite
        for mono, c in e.terms:
            a = b = 1
            for atom in mono:
                x, y = _bounds(atom, ranges, done)
                ends = (a * x, a * y, b * x, b * y)
                a, b = min(ends), max(ends)
            least_term, largest = min(a * c, b * c), max(a * c, b * c)
            lo, hi = lo + least_term, hi + largest
            bottom, top = bottom and least_term > -INF, top and largest < INF
        lo, hi = lo if bottom else -INF, hi if top else INF
        for mono, c in e.terms:
            if c == 1 and len(mono) == 1:
                a, b = _quotient_bounds(e, mono[0], ranges, done)
                lo, hi = max(lo, a), min(hi, b)
        return max(lo, -INF), min(hi, INF)
    if isinstance(e, Load) and is_int(e):
        return _type_bounds(e.dtype)
    if isinstance(e, Op) and e.name == "cast" and is_int(e):
        source, (low, high) = e.args[0], _type_bounds(e.dtype)
        if source.dtype == "bool":
            return 0, 1
        lo, hi = low, high
        if source.dtype in BITS:  # elements that are stored in few bytes have a range, no more
            lo, hi = _type_bounds(source.dtype)
        if is_int(source):
            lo, hi = _bounds(source, ranges, done)
        return (lo, hi) if low <= lo and hi <= high else (low, high)
    if isinstance(e, Op) and is_int(e):
        return _op_bounds(e, [_bounds(a, ranges, done) for a in e.args if is_int(a)])
    return -INF, INF


def _type_bounds(dtype: str) -> Interval:
    """The interval of an integer dtype."""
    low, high = range_of(dtype)
    return max(low, -INF), min(high, INF)


def _quotient_bounds(
    e: Poly, atom: Expr, ranges: Mapping[str, Interval], done: dict[Expr, Interval]
) -> Interval:
    """Bounds of q + r // d as (d*q + r) // d, which the normal form had separated."""
    if isinstance(atom, Op) and atom.name in ("floordiv", "ceildiv"):
        r, d = atom.args
        if isinstance(d, Const):
            dividend = _bounds(add(mul(sub(e, atom), d), r), ranges, done)
            return _op_bounds(atom, [dividend, (d.value, d.value)])
    return -INF, INF


def _op_bounds(e: Op, args: list[Interval]) -> Interval:
    """Bounds of an operation from the bounds of its operands."""
    match e.name:
        case "min":
            return min(a for a, _ in args), min(b for _, b in args)
        case "max":
            return max(a for a, _ in args), max(b for _, b in args)
        case "floordiv" | "ceildiv" if args[1][0] > 0:
            (a, b), (c, d) = args
            up = e.name == "ceildiv"
            ends = [-(-x // y) if up else x // y for x in (a, b) for y in (c, d)]
            return -INF if a <= -INF else min(ends[:2]), INF if b >= INF else max(ends[2:])
        case "mod" if args[1][0] > 0:
            (a, b), (c, d) = args
            if c == d and a // c == b // c:
                return a % c, b % c
            return 0, d - 1
        case "select":
            return min(args[0][0], args[1][0]), max(args[0][1], args[1][1])
        case _:
            return -INF, INF


def simplify(e: Expr, ranges: Mapping[str, Interval], memo: dict[Expr, Expr]) -> Expr:
    """`e` with dominated min/max arguments dropped and comparisons decided by the ranges."""
    if e.depth == 1 or (e.depth == 2 and isinstance(e, Poly)):
        return e  # there is no operation
    return transform(e, lambda x: None, memo, lambda x: _by_range(x, ranges))


def _by_range(e: Op, ranges: Mapping[str, Interval]) -> Expr:
    if e.name in ("min", "max") and is_int(e):
        kept = list(e.args)
        for a in e.args:
            for b in kept:
                if a is b or a not in kept:
                    continue
                low, high = bounds(sub(a, b), ranges)
                if low >= 0 if e.name == "min" else high <= 0:
                    kept.remove(a)
        return extremum(e.name, kept) if len(kept) < len(e.args) else e
    if e.name in ("floordiv", "ceildiv", "mod") or (e.name in COMPARE and is_int(e.args[0])):
        if e.name in COMPARE:
            flag = compared(e, ranges)
            return e if flag is None else Const(flag, "bool")
        low, high = bounds(e, ranges)
        if low == high:
            return Const(low, e.dtype)
        if e.name == "mod" and isinstance(e.args[1], Const):
            low, high = bounds(e.args[0], ranges)
            if low >= 0 and high < e.args[1].value:
                return e.args[0]
    return e


def compared(e: Op, ranges: Mapping[str, Interval]) -> bool | None:
    """The result of an integer comparison that the ranges decide, otherwise None."""
    low, high = bounds(sub(e.args[0], e.args[1]), ranges)
    match e.name:
        case "lt" if high < 0 or low >= 0:
            return high < 0
        case "le" if high <= 0 or low > 0:
            return high <= 0
        case "eq" if low > 0 or high < 0 or low == high == 0:
            return low == high == 0
        case "ne" if low > 0 or high < 0 or low == high == 0:
            return not low == high == 0
        case _:
            return None


class Evaluator:
    """Values of integer expressions under `env`: variable name -> int or int64 array.

    Results are memoised: subexpressions shared by many expressions are computed once. Raises
    AnsorliteError for a variable without a value. Example: `Evaluator({"i": 3})(Var("i") * 2)` is
    6.
    """

    def __init__(self, env: Mapping[str, Any]) -> None:
        self.env = env
        self._memo: dict[Expr, Any] = {}

    def __call__(self, e: Expr) -> Any:
        for x in below(e):
            with suppress(AnsorliteError):  # may belong to a branch that is not taken
                self._value(x)
        return self._value(e)

    def _value(self, e: Expr) -> Any:
        if isinstance(e, Const):
            return e.value
        value = self._memo.get(e)
        if value is None:
            value = self._memo[e] = self._compute(e)
        return value

    def _compute(self, e: Expr) -> Any:
        if isinstance(e, Var):
            if e.name not in self.env:
                raise AnsorliteError(f"no value is given for {e.name}")
            return self.env[e.name]
        if isinstance(e, Poly):
            total: Any = 0
            for mono, c in e.terms:
                prod: Any = c
                for atom in mono:
                    prod = prod * self._value(atom)
                total = total + prod
            return total
        if not isinstance(e, Op):
            raise AnsorliteError(f"{e} is no integer expression over variables")
        if e.name == "select":
            return self._select(*e.args)
        args = [self._value(a) for a in e.args]
        plain = all(isinstance(a, int) for a in args)
        match e.name:
            case "min":
                return min(args) if plain else reduce(np.minimum, args)
            case "max":
                return max(args) if plain else reduce(np.maximum, args)
            case "floordiv":
                return args[0] // args[1]
            case "ceildiv":
                return -(-args[0] // args[1])
            case "mod":
                return args[0] % args[1]
            case "abs":
                return abs(args[0])
            case "and":
                return reduce(np.logical_and, args)
            case "or":
                return reduce(np.logical_or, args)
            case "not":
                return np.logical_not(args[0])
            case _ if e.name in COMPARE:
                return COMPARE[e.name](args[0], args[1])
            case _:
                raise AnsorliteError(f"{e.name} has no integer meaning in {e}")

    def _select(self, cond: Expr, a: Expr, b: Expr) -> Any:
        chosen = self._value(cond)
        # One condition for all candidates: the other branch may have no value.
        if np.ndim(chosen) == 0:
            return self._value(a if chosen else b)
        return np.where(chosen, self._value(a), self._value(b))


def coefficient(e: Expr, var: str) -> Expr | None:
    """The coefficient of `var` in an affine expression; None if `e` is not affine in `var`."""
    if var not in e.free:
        return Const(0, e.dtype)
    out: dict[tuple[Expr, ...], int] = {}
    for mono, c in terms_of(e).items():
        rest = [a for a in mono if not (isinstance(a, Var) and a.name == var)]
        if any(var in a.free for a in rest) or len(mono) - len(rest) > 1:
            return None
        if len(rest) < len(mono):
            out[tuple(rest)] = out.get(tuple(rest), 0) + c
    return poly(out, e.dtype)


def linear_in(e: Expr, var: str) -> tuple[Expr | None, Expr]:
    """(coefficient of `var` in `e`, None where `e` is not affine in it; `e` at var = 0)."""
    if var not in e.free:
        return Const(0, e.dtype), e
    if isinstance(e, Poly):
        own = [(m, c) for m, c in e.terms if any(var in a.free for a in m)]
        mono, c = own[0]
        if len(own) == len(mono) == 1 and isinstance(mono[0], Var):
            return integer(c, e.dtype), poly({m: k for m, k in e.terms if m is not mono}, e.dtype)
    return coefficient(e, var), substitute(e, {var: Const(0)})
