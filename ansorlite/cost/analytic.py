"""Analytic cost model: estimated cycles of a program, without any training.

In: magnitudes by feature name and statement, from `cost.features`. Out: cycles by kind: arithmetic
(vector operations, limited by latency where there are too few independent accumulators), register
loads, issued instructions, and bytes moved per cache level; and the total. The total is the longest
kind plus a share of the others, which overlap with the longest, divided by the number of cores that
the parallel grains occupy. The constants (`Rates`) are fitted to measurements of many operators.
`cost.correction` learns the error of the estimate.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ansorlite.cost.names import ARITHMETIC, AT, CYCLES
from ansorlite.presets import CORES, Core
from ansorlite.target import Target

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """Throughputs and costs of one core for one vector width; units in the comments."""

    fma: float = 2.0
    fma_latency: float = 2.8
    loads: float = 2.1
    accumulator: float = 2.8  # cycles of one load and store
    beyond_l1: float = 39.0  # bytes per cycle; likewise the next two
    beyond_l2: float = 20.0
    beyond_l3: float = 8.0
    gather: float = 3.0  # cycles per vector element that is loaded and inserted separately
    test: float = 1.5
    issued: float = 4.5  # instructions per cycle
    loop: float = 3.0  # instructions per iteration for counter and branch
    serialised: float = 0.39  # share of the shorter kinds that does not overlap with the longest
    nest: float = 2000.0  # cycles to start a parallel region
    math: float = 6.0
    spill: float = 3.0  # slowdown factor if a tile has more accumulators than registers


AVX2 = Rates()  # fitted to 2,200 programs of 22 operators on two Zen 3 cores
# Fitted to 17,700 programs of 12 operators and of the convolutions of ResNet-50 on two Zen 5 cores.
AVX512 = Rates(
    fma_latency=2.1,
    loads=6.5,
    accumulator=1.5,
    beyond_l1=185.0,
    beyond_l2=28.0,
    beyond_l3=28.0,
    gather=1.9,
    test=0.56,
    issued=4.1,
    loop=2.7,
    serialised=0.225,
    math=27.5,
)


def rates_of(target: Target) -> Rates:
    """The rates of the target's core, else those fitted to machines with its vector width."""
    if target.arch == "aarch64":
        return _rates_of_core(core_of(target))
    return AVX512 if target.vector_bytes >= 64 else AVX2


def core_of(target: Target) -> Core:
    """The throughputs of an Arm core; those of the Neoverse N1 for a core that is not listed."""
    return CORES.get(target.cpu, CORES["neoverse-n1"])


def _rates_of_core(core: Core) -> Rates:
    """Rates by the vendor's figures; costs of loops, gathers and functions scale with them."""
    return Rates(
        fma=core.fma,
        fma_latency=core.fma_latency,
        loads=core.loads,
        accumulator=2.0 / core.loads + 1.0,
        beyond_l1=core.beyond_l1,
        beyond_l2=core.beyond_l2,
        beyond_l3=core.beyond_l3,
        gather=2.0 / min(core.loads, 1.0),
        test=3.0 / core.issue,
        issued=core.issue,
        serialised=1.0 - core.overlap,
        math=20.0 / core.issue,
    )


def cycles(of: Callable[[str], Values], rates: Rates, effort: Values | None = None) -> Values:
    """float64[len(CYCLES) + 1, S, P]: cycles by kind and in total, last.

    `of(name)` returns the magnitude of a feature as float64[S, P], before the logarithm. `effort`,
    float64[S, P], is the arithmetic of a multiply-add of vectors in multiply-adds: of packed
    products more than 1 where these are computed in steps, less on a matrix unit.
    """
    executions = of("executions")
    lanes = np.maximum(of("lanes") * of("vector_fill"), 1.0)
    chains = np.maximum(of("rows"), 1.0) * np.maximum(of("vectors"), 1.0)
    ops = sum(of(k) for k in ARITHMETIC)
    reduces = (of("inner_reduction") > 0) | (of("outer_reduction") > 0)
    waits = np.maximum(1.0, rates.fma * rates.fma_latency / chains)
    compute = ops / rates.fma * np.where(reduces, waits, 1.0) + rates.math * of("math")
    compute = compute / lanes * np.where(of("registers") > 1.0, rates.spill, 1.0)
    compute = compute + rates.test * of("select")
    loads = of("register_loads")
    # Accumulators are loaded and stored once per run of the innermost reduction loops.
    run = np.maximum(of("inner_reduction"), 1.0)
    reload = np.where(reduces, rates.accumulator / run, 0.0)
    register = executions / lanes * (loads / rates.loads + reload)
    register = register + of("gathered") * rates.gather
    # A core may share its front end with a second hardware thread; a loop that is not unrolled adds
    # instructions for counter and branch.
    steps = np.maximum(np.minimum(np.floor(of("unroll") / chains), run), 1.0)
    issue = executions / lanes * (1.0 + loads + rates.loop / (chains * steps)) / rates.issued
    if effort is not None:
        compute, issue = compute * effort, issue * effort
        register = register * np.minimum(effort, 1.0)
    moved = [of(k) / getattr(rates, k) for k in CYCLES[3:]]
    parts = [compute, register, issue, *moved]
    longest = np.maximum.reduce(parts)
    busy = longest + rates.serialised * (sum(parts) - longest)
    share = np.maximum(of("parallel_share") * of("parallel_balance"), 1e-3)
    found = [*(part / share for part in parts), busy / share + rates.nest * (share > 0.51)]
    return np.stack(found)


def score_of(total: Values) -> Values:
    """float64[P], higher is better: -log2 of the cycles [S, P] summed over the statements."""
    return np.asarray(-np.log2(np.maximum(total.sum(axis=0), 1.0)))


def analytic_score(features: npt.NDArray[np.float32]) -> Values:
    """float64[P] from features float32[P, S, F]: -log2 of the cycles of each candidate."""
    return score_of(np.exp2(features[:, :, AT["cycles_all"]].T.astype(np.float64)) - 1.0)
