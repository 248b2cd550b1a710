"""Tidy: the pass over concrete programs that applies loop ranges; the last step of both lowerings.

rewrite: `for v in range(1): S` -> S[v := 0]; clamps that are redundant by loop ranges are dropped;
annotations without effect are dropped. Programs with holes never pass through tidy, because every
removal depends on values.
"""

from dataclasses import replace
from functools import lru_cache

from ansorlite.ir.expr import Const, Expr, Op, Var, add, ceildiv, mul, terms_of
from ansorlite.ir.extremum import extremum
from ansorlite.ir.program import (
    Alloc,
    Block,
    For,
    If,
    Prefetch,
    Program,
    Stmt,
    Store,
    block,
    map_buffer,
)
from ansorlite.ir.ranges import Interval, bounds, simplify
from ansorlite.ir.traverse import substitute

_OFF = {"parallel": 0, "lanes": 1, "register": 0, "unroll": 1, "prefetch": 0, "stream": 0}


def tidy(p: Program) -> Program:
    """The same program, simplified by loop ranges. The input must be concrete."""
    memo: dict[Expr, Expr] = {}
    buffers = tuple(map_buffer(b, lambda e: simplify(e, {}, memo)) for b in p.buffers)
    return replace(p, buffers=buffers, body=_tidy(p.body, {}, {}, {}))


def _tidy(
    s: Stmt, ranges: dict[str, Interval], units: dict[str, Expr], around: dict[str, Expr]
) -> Stmt:
    """A tidied statement; `ranges`, `around`: interval and extent of loop variables in scope."""

    def fn(e: Expr) -> Expr:
        names = sorted(e.free)
        known = [(n, units[n] if n in units else ranges.get(n)) for n in names]
        return _simplified(e, tuple(known))

    match s:
        case Block():
            return block([_tidy(x, ranges, units, around) for x in s.stmts])
        case For():
            extent = _whole_steps(fn(s.extent), around)
            if extent == Const(1):
                return _tidy(s.body, ranges, {**units, s.var: Const(0)}, around)
            high = max(0, bounds(extent, ranges)[1] - 1)
            notes = [(k, fn(v)) for k, v in s.notes]
            return replace(
                s,
                extent=extent,
                nominal=fn(s.nominal),
                notes=tuple((k, v) for k, v in notes if not _off(k, v)),
                body=_tidy(s.body, {**ranges, s.var: (0, high)}, units, {**around, s.var: extent}),
            )
        case Alloc():
            return Alloc(map_buffer(s.buffer, fn), _tidy(s.body, ranges, units, around))
        case If():
            cond = fn(s.cond)
            if isinstance(cond, Const):
                taken = s.then if cond.value else s.orelse
                return Block(()) if taken is None else _tidy(taken, ranges, units, around)
            orelse = None if s.orelse is None else _tidy(s.orelse, ranges, units, around)
            return If(cond, _tidy(s.then, ranges, units, around), orelse)
        case Store():
            return replace(
                s,
                indices=tuple(map(fn, s.indices)),
                value=fn(s.value),
                count=tuple(map(fn, s.count)),
            )
        case Prefetch():
            return replace(s, indices=tuple(map(fn, s.indices)))


@lru_cache(maxsize=1 << 14)
def _simplified(e: Expr, known: tuple[tuple[str, Expr | Interval | None], ...]) -> Expr:
    """`e` where variables have these values or ranges; candidates of one sketch share most."""
    units = {n: v for n, v in known if isinstance(v, Expr)}
    ranges = {n: v for n, v in known if isinstance(v, tuple)}
    return simplify(substitute(e, units), ranges, {})


def _whole_steps(extent: Expr, around: dict[str, Expr]) -> Expr:
    """min(t, rest) -> t where rest is a multiple of t and the surrounding loop implies rest > 0.

    With `rest = X - s*v` and v < ceildiv(X, s), the extent of the loop of v, rest is at least 1.
    """
    if not (isinstance(extent, Op) and extent.name == "min"):
        return extent
    steps = [a.value for a in extent.args if isinstance(a, Const)]
    if len(steps) != 1 or steps[0] < 1:
        return extent
    kept = [a for a in extent.args if isinstance(a, Const) or not _multiple(a, steps[0], around)]
    return extremum("min", kept) if len(kept) < len(extent.args) else extent


def _multiple(rest: Expr, step: int, around: dict[str, Expr]) -> bool:
    """True if the expression is a multiple of `step`, and at least 1 inside these loops."""
    terms = terms_of(rest)
    if any(c % step for c in terms.values()):
        return False
    for mono, c in terms.items():
        if len(mono) == 1 and isinstance(mono[0], Var) and c < 0 and mono[0].name in around:
            limit = around[mono[0].name]
            bound = ceildiv(add(rest, mul(mono[0], -c)), -c)
            if bound == limit or (
                isinstance(limit, Op) and limit.name == "min" and bound in limit.args
            ):
                return True
    return False


def _off(key: str, value: Expr) -> bool:
    """True if an annotation has no effect."""
    return isinstance(value, Const) and value.value <= _OFF[key]
