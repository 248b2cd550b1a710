"""Executions that hoisted loop guards skip: window steps outside the tensor.

In: a reduction with conditions (see `ir.guards`) and its loops. Out: the share of executions that
remains. The probability that a condition holds does not depend on the tile sizes, so it is
estimated once per program by random sampling; the tile sizes decide which conditions skip any
execution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ansorlite.ir.expr import Expr
from ansorlite.ir.guards import identity_conditions
from ansorlite.ir.program import NO_NOTE, For, Store
from ansorlite.ir.ranges import Evaluator
from ansorlite.ir.tape import ONE, Tape, where

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
        share = _share(test, tuple((lp.var, lp.nominal) for lp in loops))
        if share < 1.0:
            out.append(Guard(test, share, tuple(moving)))
    return tuple(out)


@lru_cache(maxsize=1 << 12)
def _share(test: Expr, loops: tuple[tuple[str, Expr], ...]) -> float:
    """Share of the iterations where the condition holds, sampled with all tile factors 1.

    With factors 1 only the outermost loop of each axis has more than one iteration. `loops`:
    variables and extents.
    """
    ones = dict.fromkeys({v for _, extent in loops for v in extent.free | test.free}, 1)
    value, rng = Evaluator(ones), np.random.default_rng(0)
    trips = tuple((var, max(1, int(value(extent)))) for var, extent in loops)
    places = {**ones, **{var: rng.integers(0, n, SAMPLES) for var, n in trips}}
    return float(np.mean(Evaluator(places)(test)))


def guard_share(tape: Tape, guards: Sequence[Guard], extents: Sequence[int]) -> int:
    """The share of the executions that remain; `extents` are values of all loops."""
    out = []
    for g in guards:
        longest = tape.fold(np.maximum, [extents[k] for k in g.inside], ONE)
        stays = tape.apply(np.greater, longest, ONE)
        out.append(tape.apply(where, stays, ONE, tape.const(g.share)))
    return tape.product(out)
