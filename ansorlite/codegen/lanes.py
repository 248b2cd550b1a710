"""Scalars of a register tile that lie side by side: loaded as one vector, used by its lanes.

In: an unrolled loop of a specialised program. Out: the loads of its body that the copies of the
loop execute on consecutive elements, for `Env.beside`. AArch64 multiplies a vector by a lane of
another one (`fmla v0.4s, v1.4s, v2.s[3]`), so one load serves up to four copies. Such a vector is
in use for longer than a scalar: only where registers are left beside the accumulators.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ansorlite.codegen.scope import Env
from ansorlite.ir.expr import Const, Expr, Load, Op
from ansorlite.ir.program import Block, For, Prefetch, Stmt, Store

if TYPE_CHECKING:
    from ansorlite.codegen.emit_expr import ExprEmitter

FLOATS = ("float32", "float64")
LANES = 4
AHEAD = 4  # vectors of scalars that LLVM's scheduler loads before the first is used, at most
_ARITHMETIC = ("add", "sub", "mul", "div", "min", "max")


def side_by_side(s: For, env: Env, emitter: "ExprEmitter") -> dict[Load, tuple[str, int]]:
    """Load -> (variable, copies) of the unrolled loop `s`, empty where the body has branches.

    Every copy executes the load, so no element is read that the program does not read.
    """
    if env.room is None or env.vector is not None or not isinstance(s.extent, Const):
        return {}
    copies = int(s.extent.value)
    stores = _stores(s.body, ())
    if copies < 2 or stores is None:
        return {}
    found = {}
    for store, loops in stores:
        vectors = {lp.var for lp in loops if lp.mark == "vector"}
        unrolled = [lp for lp in loops if lp.mark == "unroll"]
        for x in _operands(store.value):
            if x.dtype not in FLOATS or not env.memory[x.tensor].constant or x in env.beside:
                continue
            flat = emitter.flat(x.tensor, x.indices, env)
            if vectors & flat.free or emitter.along(flat, s.var)[0] != Const(1):
                continue
            sizes = {lp.var: _size(lp) for lp in unrolled}
            live = math.prod(n for v, n in sizes.items() if v in flat.free)
            others = math.prod(n for v, n in sizes.items() if v not in flat.free)
            ahead = min(-(-copies // LANES), AHEAD)
            if live * ahead + others + 1 < env.room:
                found[x] = s.var, copies
    return found


def _size(lp: For) -> int:
    return int(lp.extent.value) if isinstance(lp.extent, Const) else 1


def _stores(s: Stmt, loops: tuple[For, ...]) -> list[tuple[Store, tuple[For, ...]]] | None:
    """Stores with the loops around each; None where one is not executed by every copy."""
    match s:
        case Store():
            return [(s, loops)]
        case Prefetch():
            return []
        case For(mark="unroll" | "vector") if isinstance(s.extent, Const):
            return _stores(s.body, (*loops, s))
        case Block():
            parts = [_stores(x, loops) for x in s.stmts]
            if any(p is None for p in parts):
                return None
            return [found for p in parts if p is not None for found in p]
    return None


def _operands(e: Expr) -> Iterator[Load]:
    """Loads that the evaluation of a value always executes."""
    if isinstance(e, Load):
        yield e
    elif isinstance(e, Op) and e.name in _ARITHMETIC:
        for a in e.args:
            yield from _operands(a)
