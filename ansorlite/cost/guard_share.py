"""Executions that a statement leaves out: steps of a window that reach past the edge.

In: a reduction with tests (see `ir.guards`) and its loops. Out: the share of its executions that is
left. The tests of one program hold equally often whatever its tiles are, so that is found once, by
drawing places; how a program is tiled decides which of the tests leave anything out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ansorlite.cost.footprint import Batch, Levels, Values
from ansorlite.ir.expr import Expr
from ansorlite.ir.guards import needed
from ansorlite.ir.program import NO_NOTE, For, Store

DRAWN = 2048  # places of the loops


@dataclass(frozen=True)
class LeftOut:
    """A test, the share of places where it holds, and the loops inside of which it stays."""

    test: Expr
    share: float
    inside: tuple[int, ...]


def left_out(store: Store, loops: Sequence[For]) -> tuple[LeftOut, ...]:
    """The tests of a reduction that may leave out parts of its loops."""
    if not store.combiner:
        return ()
    reduces = [k for k, lp in enumerate(loops) if lp.reduce]
    out: list[LeftOut] = []
    for test in dict.fromkeys(needed(store.value, store.combiner)):
        inside = [k for k, lp in enumerate(loops) if lp.note("register") is not NO_NOTE]
        moving = (k for k in [*inside, *reduces[-1:]] if loops[k].var in test.free)
        share = _share(test, loops)
        if share < 1.0:
            out.append(LeftOut(test, share, tuple(moving)))
    return tuple(out)


def _share(test: Expr, loops: Sequence[For]) -> float:
    """How often a test holds, with all factors 1: then only the outermost loops of axes run."""
    holes = {name for lp in loops for name in lp.nominal.free | test.free}
    rng = np.random.default_rng(0)
    ones = Batch(dict.fromkeys(holes, np.ones(1, dtype=np.int64)), 1)
    places = dict.fromkeys(holes, np.ones(DRAWN, dtype=np.int64))
    for lp in loops:
        places[lp.var] = rng.integers(0, max(1, int(ones(lp.nominal)[0])), DRAWN)
    return float(Batch(places, DRAWN)(test).mean())


def kept(tests: Sequence[LeftOut], levels: Levels) -> Values:
    """float64[n]: the share of executions that is left in each program of a population."""
    out = np.ones(levels.n)
    for t in tests:
        stays = np.zeros(levels.n, dtype=bool)
        for k in t.inside:
            stays = stays | levels.runs[k]
        out = out * np.where(stays, 1.0, t.share)
    return out
