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
from ansorlite.ir.tape import Values
from ansorlite.target import Target

ROWS_PER_THREAD = 32768  # rows per thread from which threads pay off


def fast_analytic_score(
    plan: FeaturePlan, columns: Mapping[str, Any], n: int, target: Target
) -> npt.NDArray[np.float64]:
    """float64[n] from hole columns (int64[n] each); equals `analytic_score` of their features."""
    whole = plan.population(columns, n, target)
    if n < ROWS_PER_THREAD:
        return fast_analytic_scores([whole], target)[0]
    count = target.cores * -(-n // (target.cores * ROWS_PER_THREAD))
    size = -(-n // count)
    parts = [whole.part(k, min(k + size, n)) for k in range(0, n, size)]
    with ThreadPoolExecutor(target.cores) as pool:  # numpy releases the GIL in its loops
        found = pool.map(lambda part: fast_analytic_scores([part], target)[0], parts)
        return np.concatenate(list(found))


def fast_analytic_scores(populations: Sequence[Population], target: Target) -> list[Values]:
    """float64[n] of each population."""
    return [score_of(total) for total in cycles_of(populations, target)]
