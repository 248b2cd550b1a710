"""Row collapse: copies and pads whose last axis is shorter than a vector become longer rows.

`for w in range(W): for c in range(3): y[.., w, c] = select(lo <= w < hi, x[.., w - lo, c], 0)` uses
vectors of 3 elements and a test per vector. Where both sides are contiguous over both loops, the
nest equals loops over `W * 3` elements, one for each interval of positions w with a constant test
result. Inside such an interval no test remains, and vectors are full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ansorlite.ir.expr import Const, Expr, Load, Op, Var, add, floordiv, mul, sub
from ansorlite.ir.logic import conjuncts, logic
from ansorlite.ir.program import Buffer, For, Stmt, Store, block
from ansorlite.ir.tiles import lanes_of
from ansorlite.ir.traverse import loads, substitute, walk

MAX_POSITIONS = 4096  # largest loop whose tests are evaluated position by position


@dataclass(frozen=True)
class _Stretch:
    """Positions [first, last) of the outer loop where every test has the same result (`known`)."""

    first: int
    last: int
    known: Mapping[Expr, bool]


def collapsed(loops: Sequence[For], store: Store, buffers: Mapping[str, Buffer]) -> Stmt | None:
    """The nest with its last two loops merged; None where merging is illegal or has no benefit."""
    if len(loops) < 2 or store.combiner:
        return None
    across, along = loops[-2:]
    if across.notes or across.reduce or along.reduce:
        return None
    if not isinstance(across.extent, Const) or not isinstance(along.extent, Const):
        return None
    positions, n, lanes = int(across.extent.value), int(along.extent.value), lanes_of(along)
    if lanes < 2 or n % lanes == 0 or positions > MAX_POSITIONS:
        return None
    stretches = _stretches(store.value, across.var, along.var, positions)
    if stretches is None:
        return None
    parts: list[Stmt] = []
    for k, stretch in enumerate(stretches):
        both = Var(f"{across.var}.{k}")
        row = floordiv(both, n)
        places = {across.var: add(row, stretch.first), along.var: sub(both, mul(row, n))}
        put = replace(
            store,
            indices=tuple(substitute(i, places) for i in store.indices),
            value=substitute(_decided(store.value, stretch.known), places),
        )
        if not _without_gaps(put, both.name, buffers):
            return None
        size = Const((stretch.last - stretch.first) * n)
        parts.append(replace(along, var=both.name, extent=size, nominal=size, body=put))
    body = block(parts)
    for lp in reversed(loops[:-2]):
        body = replace(lp, body=body)
    return body


def _stretches(e: Expr, across: str, along: str, positions: int) -> list[_Stretch] | None:
    """The intervals of a load, or of a select of a load and a constant; None for other values."""
    if isinstance(e, Load):
        return [_Stretch(0, positions, {})]
    if not (isinstance(e, Op) and e.name == "select" and isinstance(e.args[1], Load)):
        return None
    cond, _, fill = e.args
    tests = conjuncts(cond)
    moving = [x for x in tests if across in x.free or along in x.free]
    if not isinstance(fill, Const) or loads(cond) or any(x.free != {across} for x in moving):
        return None
    out: list[_Stretch] = []
    for w in range(positions):
        known: dict[Expr, bool] = {}
        for test in moving:
            answer = substitute(test, {across: Const(w)})
            if not isinstance(answer, Const):
                return None
            known[test] = bool(answer.value)
        if out and out[-1].known == known:
            out[-1] = replace(out[-1], last=w + 1)
        else:
            out.append(_Stretch(w, w + 1, known))
    return out


def _decided(e: Expr, known: Mapping[Expr, bool]) -> Expr:
    """The value given the results of the tests."""
    if not isinstance(e, Op):
        return e
    cond, x, fill = e.args
    tests = conjuncts(cond)
    if not all(known.get(test, True) for test in tests):
        return fill
    left = [test for test in tests if test not in known]
    return Op("select", (logic("and", left), x, fill), e.dtype) if left else x


def _without_gaps(s: Store, var: str, buffers: Mapping[str, Buffer]) -> bool:
    """True if the stored and the loaded addresses advance by one element with `var`."""
    places = [(s.buffer, s.indices), *((x.tensor, x.indices) for x in loads(s.value))]
    return all(_flat_step(indices, buffers.get(name), var) for name, indices in places)


def _flat_step(indices: Sequence[Expr], buffer: Buffer | None, var: str) -> bool:
    """True if the flat address of the access advances by one element with `var`."""
    if buffer is None or len(buffer.shape) != len(indices):
        return False
    flat: Expr = Const(0)
    for i, n in zip(indices, buffer.shape, strict=True):
        flat = add(mul(flat, n), i)
    rest = sub(flat, Var(var))
    return var not in rest.free and all(var not in x.free for x in walk(rest))
