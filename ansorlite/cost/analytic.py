"""An analytic score from features alone: what is known of the machine before anything is learned.

In: float32[P, S, F] of `cost.features`. Out: float64[P], higher is better: minus the log2 of an
estimated number of cycles. Per statement the longest of arithmetic (vector operations, throttled by
too few independent accumulators), register loads, instructions issued and data moved per cache
level, and a share of the others, which overlap with it; divided by the cores that the parallel
grains keep busy. The constants are the best fit to 2,200 programs of 22 operators, measured on two
Zen 3 cores; a learned model corrects them where it has seen a few dozen programs.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.cost.features import FEATURE_NAMES, FeaturePlan
from ansorlite.target import Target

Values = npt.NDArray[np.float64]
CHUNK = 8192  # rows scored together, at most
FEW = 8192  # rows that are not worth a thread a core
_AT = {name: k for k, name in enumerate(FEATURE_NAMES)}
FMA_PER_CYCLE = 2.0
FMA_LATENCY = 2.8
LOADS_PER_CYCLE = 2.1
ACCUMULATOR_CYCLES = 2.8  # a load and a store
BYTES_PER_CYCLE = {"beyond_l1": 39.0, "beyond_l2": 20.0, "beyond_l3": 8.0}
GATHER_CYCLES = 3.0  # an element of a vector that is loaded and inserted by itself
TEST_CYCLES = 1.5
ISSUED = 4.5  # instructions a cycle
LOOP_INSTRUCTIONS = 3.0
SERIALISED = 0.39  # share of the shorter parts that does not overlap with the longest
NEST_CYCLES = 2000.0  # starting a parallel region


def analytic_score(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """float64[P]: -log2 of the estimated cycles of each candidate."""
    f = features.astype(np.float64)

    def raw(name: str) -> Values:
        return f[:, :, _AT[name]].T

    return _score(raw, lambda name: np.exp2(raw(name)) - 1.0)


def draft_score(
    plan: FeaturePlan, columns: Mapping[str, Any], n: int, target: Target
) -> npt.NDArray[np.float64]:
    """The same from hole columns (int64[n] each), without the features that it does not need."""

    count = max(1, target.cores * -(-n // (target.cores * CHUNK)))
    size = max(1, -(-n // count))

    def of(first: int) -> Values:
        part = slice(first, min(first + size, n))
        own = {name: values[part] for name, values in columns.items()}
        f = plan.draft(own, part.stop - part.start, target)

        def magnitude(name: str) -> Values:
            return f[:, _AT[name]]

        return _score(magnitude, magnitude)

    starts = range(0, n, size)
    if n < FEW:
        return np.concatenate([np.empty(0), *map(of, starts)])
    with ThreadPoolExecutor(target.cores) as pool:  # numpy's loops run beside each other
        return np.concatenate(list(pool.map(of, starts)))


def _score(raw: Callable[[str], Values], linear: Callable[[str], Values]) -> Values:
    """The score from [S, P] of features by name; `linear` are magnitudes without a logarithm."""
    executions = linear("executions")
    lanes = np.maximum(raw("lanes") * raw("vector_fill"), 1.0)
    rows, vectors = np.maximum(raw("rows"), 1.0), np.maximum(raw("vectors"), 1.0)
    ops = sum(linear(k) for k in ("mad", "addsub", "mul", "div", "minmax"))
    math = linear("math")
    chains = rows * vectors
    reduces = (raw("inner_reduction") > 0) | (raw("outer_reduction") > 0)
    stall = np.where(reduces, np.maximum(1.0, FMA_PER_CYCLE * FMA_LATENCY / chains), 1.0)
    spill = np.where(raw("registers") > 1.0, 3.0, 1.0)
    compute = (ops / FMA_PER_CYCLE * stall + 6.0 * math) / lanes * spill
    compute = compute + TEST_CYCLES * linear("select")
    loads = raw("register_loads")
    # Accumulators are read and written once per run of the innermost reductions.
    run = np.maximum(linear("inner_reduction"), 1.0)
    reload = np.where(reduces, ACCUMULATOR_CYCLES / run, 0.0)
    register = executions / lanes * (loads / LOADS_PER_CYCLE + reload)
    register = register + linear("gathered") * GATHER_CYCLES
    # A core may share its front end with another thread; a loop that is not unrolled adds to it.
    steps = np.maximum(np.floor(np.maximum(linear("unroll"), 1.0) / chains), 1.0)
    issue = executions / lanes * (1.0 + loads + LOOP_INSTRUCTIONS / (chains * steps)) / ISSUED
    parts = [compute, register, issue, *(linear(k) / rate for k, rate in BYTES_PER_CYCLE.items())]
    longest = np.maximum.reduce(parts)
    share = np.maximum(raw("parallel_share") * raw("parallel_balance"), 1e-3)
    busy = longest + SERIALISED * (sum(parts) - longest)
    cycles = busy / share + NEST_CYCLES * (share > 0.51)
    return np.asarray(-np.log2(np.maximum(cycles.sum(axis=0), 1.0)))
