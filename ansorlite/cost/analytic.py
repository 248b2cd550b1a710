"""An analytic score from features alone: what is known of the machine before anything is learned.

In: float32[P, S, F] of `cost.features`. Out: float64[P], higher is better: minus the log2 of an
estimated number of cycles. Per statement the longest of arithmetic (vector operations, throttled by
too few independent accumulators), register loads and data moved per cache level, and a share of the
others, which overlap with it; divided by the cores that the parallel grains keep busy.
"""

import numpy as np
import numpy.typing as npt

from ansorlite.cost.features import FEATURE_NAMES

_AT = {name: k for k, name in enumerate(FEATURE_NAMES)}
FMA_PER_CYCLE = 2.0
FMA_LATENCY = 4.0
LOADS_PER_CYCLE = 2.0
ACCUMULATOR_CYCLES = 1.5  # a load and a store
BYTES_PER_CYCLE = {"beyond_l1": 32.0, "beyond_l2": 14.0, "beyond_l3": 5.0}
GATHER_CYCLES = 1.0  # an element of a vector that is loaded and inserted by itself
SERIALISED = 0.3  # share of the shorter parts that does not overlap with the longest
NEST_CYCLES = 3000.0  # starting a parallel region


def analytic_score(features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """float64[P]: -log2 of the estimated cycles of each candidate."""
    f = features.astype(np.float64)

    def raw(name: str) -> npt.NDArray[np.float64]:
        return f[:, :, _AT[name]]

    def linear(name: str) -> npt.NDArray[np.float64]:
        return np.exp2(raw(name)) - 1.0

    executions = linear("executions")
    lanes = np.maximum(raw("lanes") * raw("vector_fill"), 1.0)
    rows, vectors = np.maximum(raw("rows"), 1.0), np.maximum(raw("vectors"), 1.0)
    ops = sum(linear(k) for k in ("mad", "addsub", "mul", "div", "minmax", "select"))
    math = linear("math")
    chains = rows * vectors
    reduces = (raw("inner_reduction") > 0) | (raw("outer_reduction") > 0)
    stall = np.where(reduces, np.maximum(1.0, FMA_PER_CYCLE * FMA_LATENCY / chains), 1.0)
    spill = np.where(raw("registers") > 1.0, 3.0, 1.0)
    compute = (ops / FMA_PER_CYCLE * stall + 6.0 * math) / lanes * spill
    # Loads that an outer-product tile needs for each of its multiply-adds.
    loads = np.where(chains > 1, (rows + vectors) / chains, 1.0)
    # Accumulators are read and written once per run of the innermost reductions.
    run = np.maximum(linear("inner_reduction"), 1.0)
    reload = np.where(reduces, ACCUMULATOR_CYCLES / run, 0.0)
    register = executions / lanes * (loads / LOADS_PER_CYCLE + reload)
    register = register + linear("gathered") * GATHER_CYCLES
    parts = [compute, register, *(linear(k) / rate for k, rate in BYTES_PER_CYCLE.items())]
    longest = np.maximum.reduce(parts)
    share = np.maximum(raw("parallel_share") * raw("parallel_balance"), 1e-3)
    busy = longest + SERIALISED * (sum(parts) - longest)
    cycles = busy / share + NEST_CYCLES * (share > 0.51)
    return np.asarray(-np.log2(np.maximum(cycles.sum(axis=1), 1.0)))
