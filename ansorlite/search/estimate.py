"""A search for a machine that is not at hand: what `Builder` and `Runner` are, without any run.

In: candidates of tasks for a foreign target. Out: `MeasureResult`s whose seconds are estimated: the
analytic model's cycles, where the busiest statement's arithmetic, loads and instructions are those
that the hot loop of the built object shows (`codegen.hot_loop`), at the core's usual clock. The
search, its policies and its log work as with measurements; records are of status ESTIMATED.
Estimates depend on the code alone: the same seed gives the same programs on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ansorlite.codegen.build import BuildRequest
from ansorlite.codegen.hot_loop import Look
from ansorlite.codegen.image import KernelImage
from ansorlite.cost.analytic import Rates, core_of, cycles, rates_of
from ansorlite.cost.features import FeaturePlan
from ansorlite.cost.names import AT, CYCLES
from ansorlite.errors import AnsorliteError
from ansorlite.ir.program import Program
from ansorlite.measure.builder import Builder, BuildOutcome
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, PrepareResult
from ansorlite.schedule.holes import column_values
from ansorlite.target import Target

CLOCK_HZ = 3e9  # of x86 cores
CODE_CACHE_BYTES = 32 * 1024  # of one core
COLD_CODE = 1.5  # slowdown of a hot loop that does not fit there
TILE_CYCLES, TILE_LOAD_CYCLES = 16.0, 8.0  # of a product of tiles, of reading a tile
TRIALS = 16  # programs that are built for a task where no budget is given


@dataclass(frozen=True)
class EstimatedImage(KernelImage):
    """A kernel with its estimated seconds a call."""

    estimate_s: float = 0.0


class EstimatingBuilder:
    """Builds as `builder` does, with a look at the assembly, and estimates what was built."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._plans: dict[str, FeaturePlan] = {}

    def share(self, key: str, value: object) -> None:
        self._builder.share(key, value)
        if isinstance(value, Program):
            self._plans[key] = FeaturePlan(value)

    def unshare(self, key: str) -> None:
        self._builder.unshare(key)
        self._plans.pop(key, None)

    def build(self, requests: Sequence[BuildRequest]) -> list[BuildOutcome]:
        """Outcomes in order; images are `EstimatedImage`s."""
        outcomes = self._builder.build([replace(r, looked=True) for r in requests])
        return [self._estimated(r, o) for r, o in zip(requests, outcomes, strict=True)]

    def close(self) -> None:
        self._builder.close()

    def _estimated(self, request: BuildRequest, outcome: BuildOutcome) -> BuildOutcome:
        if outcome.image is None:
            return outcome
        chosen = column_values(request.values)
        columns = {name: np.array([v], np.int64) for name, v in chosen.items()}
        seconds = estimate_s(
            self._plans[request.program], columns, outcome.image.look or Look(), request.target
        )
        known = {f.name: getattr(outcome.image, f.name) for f in fields(KernelImage)}
        return replace(outcome, image=EstimatedImage(**known, estimate_s=seconds))


class EstimatingRunner:
    """Answers with the estimates of `EstimatedImage`s; nothing is run or checked."""

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        return PrepareResult(True)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        if not isinstance(image, EstimatedImage):
            raise AnsorliteError(f"kernel {image.symbol} was not built by an EstimatingBuilder")
        return MeasureResult(Status.OK, image.estimate_s, (image.estimate_s,))

    def close(self) -> None:
        """Nothing to end."""


def estimating(target: Target) -> EstimatingRunner | None:
    """The runner for a target that this machine cannot run; None where it can: measure."""
    return EstimatingRunner() if target.is_foreign else None


def estimate_s(plan: FeaturePlan, columns: Any, look: Look, target: Target) -> float:
    """Estimated seconds of a call of one candidate.

    `columns` has int64[1] per hole column of the plan's program, `look` what its assembly shows.
    """
    rates = rates_of(target)
    f = plan.magnitudes(columns, 1, target)

    def of(name: str) -> Any:
        return f[:, AT[name]]

    effort = plan.effort(columns, 1, target)
    found = cycles(of, rates, effort)[:, :, 0]  # [kinds and total, statements]
    parts, total = found[:-1], found[-1]
    vectors = of("mad")[:, 0] / np.maximum(of("lanes") * of("vector_fill"), 1.0)[:, 0]
    at = int(np.argmax(vectors))
    each = float(look.fma + look.scalar_fma)
    if look.matrix:  # so many multiply-adds of vectors does an iteration replace
        whole = 1.0 if effort is None else float(effort[at, 0])
        each += look.matrix * TILE_CYCLES * rates.fma / min(whole, 1.0)
    if each and vectors[at] > 0:
        share = np.maximum(of("parallel_share") * of("parallel_balance"), 1e-3)[at, 0]
        iterations = vectors[at] / each / share
        own = parts[:, at].copy()
        own[[CYCLES.index(k) for k in ("compute", "register", "issue")]] = iterations * np.array(
            _loop_cycles(look, rates, target.reads_halves)
        )
        before = _combined(parts[:, at], rates)
        total = total.copy()
        total[at] += _combined(own, rates) - before
    cold = look.code_bytes / rates.beyond_l3
    hz = core_of(target).clock_ghz * 1e9 if target.arch == "aarch64" else CLOCK_HZ
    # The model's cycles are those of all cores together.
    return float(max(total.sum() / target.cores + cold, 1.0) / hz)


def _combined(parts: Any, rates: Rates) -> float:
    """Cycles of kinds of work that overlap, as in `cost.analytic`."""
    longest = float(np.max(parts))
    return longest + rates.serialised * (float(np.sum(parts)) - longest)


def _loop_cycles(look: Look, rates: Rates, narrow: bool) -> tuple[float, float, float]:
    """Cycles of one iteration of the hot loop: arithmetic, loads, issue.

    `narrow`: the core reads half a vector at once, two halves take as long as a vector.
    """
    fma = look.fma + look.scalar_fma
    chain = fma / max(1, look.accumulators) * rates.fma_latency
    halves = look.narrow_loads / 2.0 if narrow else 0.0
    loads = (look.loads - halves + 2.0 * look.spills) / rates.loads
    loads += TILE_LOAD_CYCLES * look.tile_loads
    issue = look.instructions / rates.issued
    cold = COLD_CODE if look.instructions * 4 > CODE_CACHE_BYTES else 1.0
    compute = max(fma / rates.fma, chain) + TILE_CYCLES * look.matrix
    return cold * compute, cold * loads, cold * issue
