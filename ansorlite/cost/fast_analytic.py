"""The analytic score of very many candidates, computed without features that the score ignores.

In: populations of sketches. Out: float64[n] of each, higher is better.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.cost.analytic import score_of
from ansorlite.cost.features import FeaturePlan, cycles_of
from ansorlite.cost.planned import Population
from ansorlite.ir.evaluation import Candidates, blocks
from ansorlite.ir.tape import Values
from ansorlite.target import Target

ROWS_PER_THREAD = 32768  # rows per thread from which threads pay off


def fast_analytic_score(
    plan: FeaturePlan, columns: Mapping[str, Any], n: int, target: Target
) -> npt.NDArray[np.float64]:
    """float64[n] from hole columns (int64[n] each); equals `analytic_score` of their features."""
    return fast_analytic_scores([plan.population(columns, n, target)], target)[0]


def fast_analytic_scores(populations: Sequence[Population], target: Target) -> list[Values]:
    """float64[n] of each population."""
    total = sum(p.n for p in populations)
    if total < ROWS_PER_THREAD:
        return [score_of(found) for found in cycles_of(populations, target)]
    count = target.cores * -(-total // (target.cores * ROWS_PER_THREAD))
    parts = blocks([(p.columns, p.n) for p in populations], -(-total // count))

    def scored(part: list[Candidates]) -> list[Values]:
        plans = [populations[c.owner].plan for c in part]
        asked = [Population(plan, c.columns, c.n) for plan, c in zip(plans, part, strict=True)]
        return [score_of(found) for found in cycles_of(asked, target)]

    out = [np.empty(p.n) for p in populations]
    with ThreadPoolExecutor(target.cores) as pool:  # numpy releases the GIL in its loops
        for part, found in zip(parts, pool.map(scored, parts), strict=True):
            for c, scores in zip(part, found, strict=True):
                out[c.owner][c.begin : c.begin + c.n] = scores
    return out
