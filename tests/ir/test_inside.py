"""Accesses of concrete programs are proven to stay inside of their buffers, or refused."""

from dataclasses import replace

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Load, Var
from ansorlite.ir.inside import verify_inside
from ansorlite.ir.logic import select
from ansorlite.ir.program import Buffer, For, If, Program, Stmt, Store, map_exprs
from ansorlite.ir.specialize import specialize
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.workloads.ops import define

P, Q = Var("i"), Var("j")


def program(body: Stmt, n: int = 100) -> Program:
    buffers = tuple(
        Buffer(name, (Const(n),), "float32", "global", role, (Const(n),))  # type: ignore[arg-type]
        for name, role in (("X", "input"), ("Y", "output"))
    )
    return Program("kernel", buffers, body)


def loop(var: Var, extent: Expr | int, body: Stmt) -> For:
    e = extent if isinstance(extent, Expr) else Const(extent)
    return For(var.name, e, e, False, body)


def copy(to: Expr, source: Expr) -> Store:
    return Store("Y", (to,), Load("X", (source,), "float32"), None, "Y")


def test_tiles_that_end_early_are_proven() -> None:
    inner = loop(Q, te.minimum(16, 100 - P * 16), copy(P * 16 + Q, P * 16 + Q))
    verify_inside(program(loop(P, 7, inner)))
    whole = loop(Q, 16, copy(P * 16 + Q, P * 16 + Q))
    with pytest.raises(ScheduleError, match="to Y reads X from 0 to 111 in dimension 0 of extent"):
        verify_inside(program(loop(P, 7, whole)))


def test_loops_that_never_run_need_no_proof() -> None:
    verify_inside(program(loop(P, 0, copy(P + 500, P - 3))))


def test_tests_and_selects_guard() -> None:
    body = If(te.all(P >= 5, P < 105), copy(P - 5, P - 5))
    verify_inside(program(loop(P, 200, body)))
    with pytest.raises(ScheduleError, match="from -5"):
        verify_inside(program(loop(P, 200, replace(body, cond=P < 105))))
    chosen = select(P >= 5, Load("X", (P - 5,), "float32"), Const(0, "float32"))
    verify_inside(program(loop(P, 100, Store("Y", (P,), chosen, None, "Y"))))


def test_stores_are_proven_too() -> None:
    with pytest.raises(ScheduleError, match="the store to Y writes Y from 1 to 100"):
        verify_inside(program(loop(P, 100, copy(P + 1, P))))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("C2D", {"N": 1, "H": 13, "W": 11, "CI": 7, "CO": 24, "k": 3, "s": 2, "p": 1}),
        ("T2D", {"N": 1, "H": 5, "W": 7, "CI": 3, "CO": 24, "k": 4, "s": 2, "p": 1}),
        ("TBS", {"N": 1, "L": 33, "H": 2, "D": 13}),
    ],
)
def test_candidates_are_proven_and_changed_ones_refused(name: str, params: dict[str, int]) -> None:
    """Every candidate, before and after it is specialised; not with a buffer that is smaller."""
    rng = np.random.default_rng(0)
    for sketch in sketches(te.ComputeDAG([define(name, params)]), Target.cross("x86-avx2"))[:12]:
        p = sketch.fill(sketch.sample(1, rng)[0])
        verify_inside(p)
        verify_inside(specialize(p))
        output = next(b for b in p.buffers if b.role == "output")
        short = replace(output, shape=(*output.shape[:-1], Const(int(str(output.shape[-1])) - 1)))
        changed = tuple(short if b is output else b for b in p.buffers)
        with pytest.raises(ScheduleError, match=f"{output.name}.* in dimension"):
            verify_inside(replace(p, buffers=changed))


def test_open_holes_and_unknown_buffers() -> None:
    p = program(loop(P, 100, copy(P, P)))
    with pytest.raises(ScheduleError, match="open holes"):
        verify_inside(replace(p, columns=("i",)))
    body = map_exprs(p.body, lambda e: Load("Z", (P,), "float32") if isinstance(e, Load) else e)
    with pytest.raises(ScheduleError, match="Z with 1 indices"):
        verify_inside(replace(p, body=body))
