"""The range-dependent pass over concrete programs that ends both paths of lowering.

rewrite: `for v in range(1): S` -> S[v := 0]; clamps that the loop ranges make redundant are
dropped; annotations that say "no" are dropped. Symbolic programs never see it: what it removes
depends on values.
"""

from dataclasses import replace

from ansorlite.ir.expr import Const, Expr
from ansorlite.ir.program import (
    Alloc,
    Block,
    For,
    If,
    Program,
    Stmt,
    Store,
    block,
    map_buffer,
)
from ansorlite.ir.ranges import Interval, bounds, simplify
from ansorlite.ir.traverse import substitute

_OFF = {"parallel": 0, "lanes": 1, "register": 0, "unroll": 1}


def tidy(p: Program) -> Program:
    """The same program with everything decided that loop ranges decide; input must be concrete."""
    memo: dict[Expr, Expr] = {}
    buffers = tuple(map_buffer(b, lambda e: simplify(e, {}, memo)) for b in p.buffers)
    return replace(p, buffers=buffers, body=_tidy(p.body, {}, {}))


def _tidy(s: Stmt, ranges: dict[str, Interval], units: dict[str, Expr]) -> Stmt:
    memo: dict[Expr, Expr] = {}

    def fn(e: Expr) -> Expr:
        return simplify(substitute(e, units) if units else e, ranges, memo)

    match s:
        case Block():
            return block([_tidy(x, ranges, units) for x in s.stmts])
        case For():
            extent = fn(s.extent)
            if extent == Const(1):
                return _tidy(s.body, ranges, {**units, s.var: Const(0)})
            high = max(0, bounds(extent, ranges)[1] - 1)
            notes = [(k, fn(v)) for k, v in s.notes]
            return replace(
                s,
                extent=extent,
                nominal=fn(s.nominal),
                notes=tuple((k, v) for k, v in notes if not _off(k, v)),
                body=_tidy(s.body, {**ranges, s.var: (0, high)}, units),
            )
        case Alloc():
            return Alloc(map_buffer(s.buffer, fn), _tidy(s.body, ranges, units))
        case If():
            cond = fn(s.cond)
            if isinstance(cond, Const):
                taken = s.then if cond.value else s.orelse
                return Block(()) if taken is None else _tidy(taken, ranges, units)
            orelse = None if s.orelse is None else _tidy(s.orelse, ranges, units)
            return If(cond, _tidy(s.then, ranges, units), orelse)
        case Store():
            return replace(
                s,
                indices=tuple(map(fn, s.indices)),
                value=fn(s.value),
                count=tuple(map(fn, s.count)),
            )


def _off(key: str, value: Expr) -> bool:
    return isinstance(value, Const) and value.value <= _OFF[key]
