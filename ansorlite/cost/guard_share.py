"""Executions that hoisted loop guards skip: window steps outside the tensor.

In: a reduction with conditions (see `ir.guards`) and its loops. Out: the share of executions that
remains. The probability that a condition holds does not depend on the tile sizes, so it is
estimated once per program by random sampling; the tile sizes decide which conditions skip any
execution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ansorlite.cost.footprint import Batch, Levels, Values
from ansorlite.ir.expr import Expr
from ansorlite.ir.guards import identity_conditions
from ansorlite.ir.program import NO_NOTE, For, Store

SAMPLES = 2048  # sampled iterations


@dataclass(frozen=True)
class Guard:
    """A condition, the share of iterations where it holds, and loops that prevent hoisting.

    If one of the loops `inside` (positions) has more than one iteration, the condition skips
    nothing.
    """

    test: Expr
    share: float
    inside: tuple[int, ...]


def guards_of(store: Store, loops: Sequence[For]) -> tuple[Guard, ...]:
    """The conditions of a reduction that may skip executions."""
    if not store.combiner:
        return ()
    reduces = [k for k, lp in enumerate(loops) if lp.reduce]
    out: list[Guard] = []
    for test in dict.fromkeys(identity_conditions(store.value, store.combiner)):
        inside = [k for k, lp in enumerate(loops) if lp.note("register") is not NO_NOTE]
        moving = (k for k in [*inside, *reduces[-1:]] if loops[k].var in test.free)
        share = _share(test, loops)
        if share < 1.0:
            out.append(Guard(test, share, tuple(moving)))
    return tuple(out)


def _share(test: Expr, loops: Sequence[For]) -> float:
    """Share of the iterations where the condition holds, sampled with all tile factors 1.

    With factors 1 only the outermost loop of each axis has more than one iteration.
    """
    holes = {name for lp in loops for name in lp.nominal.free | test.free}
    rng = np.random.default_rng(0)
    ones = Batch(dict.fromkeys(holes, np.ones(1, dtype=np.int64)), 1)
    places = dict.fromkeys(holes, np.ones(SAMPLES, dtype=np.int64))
    for lp in loops:
        places[lp.var] = rng.integers(0, max(1, int(ones(lp.nominal)[0])), SAMPLES)
    return float(Batch(places, SAMPLES)(test).mean())


def guard_share(tests: Sequence[Guard], levels: Levels) -> Values:
    """float64[n]: share of the executions that remain, for each program of a population."""
    out = np.ones(levels.n)
    for t in tests:
        stays = np.zeros(levels.n, dtype=bool)
        for k in t.inside:
            stays = stays | levels.runs[k]
        out = out * np.where(stays, 1.0, t.share)
    return out
