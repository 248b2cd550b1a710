"""What each part of the search is worth: the same cases and budgets without it.

In: cases, policies of `POLICIES`, seeds, a number of trials. Out: a `RacedRun` of each; from all of
them a table: the area under the best-so-far curve, paired by case and seed with the full search,
with bootstrap intervals. All figures are relative to the best latency known of a case over all runs
in the file. Runs take hours, in which a shared machine changes: what each had found at the
`BUDGETS` is raced in turn in the end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ansorlite.baselines.runs import Float, efficiency, geometric_mean
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.losses import Features, Floats, TrainingGroup
from ansorlite.cost.model import CostModel, GBDTModel, RandomModel
from ansorlite.cost.names import AT
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.searchers import searcher
from ansorlite.space.sketch import SpaceOptions
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads import workload
from bench.programs import Raced, Space, by_name, corrected, search_once, shares
from bench.runs import RacedRun, area

BUDGETS = (16, 64, 200, 1000)
AREA = 200  # trials that areas are of
RESAMPLES = 2000


# A model that nothing stands in for learns from the start
EARLY = replace(CorrectionModel.PARAMS, min_programs=16)


class NeverTrained(CorrectionModel):
    """A model that learns nothing: the analytic score alone decides."""

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """Forget them."""


class WithoutProcess(CorrectionModel):
    """Trees of all tasks' programs alone, no Gaussian process of those of one."""

    def _refined(self, shares: Floats, seen: Features, task_key: str) -> Floats:
        return shares


class WithoutEstimate(CorrectionModel):
    """Sees nothing of the analytic estimate, which does not serve in its stead before, either."""

    PARAMS = EARLY

    @property
    def is_trained(self) -> bool:
        return True

    def update(self, groups: Sequence[TrainingGroup]) -> None:
        """As ever, of features without the estimate."""
        blind = [replace(g, features=[*map(_blind, g.features)]) for g in groups]
        super().update(blind)

    def predict(self, features: Features, task_key: str = "") -> Floats:
        return super().predict(_blind(features), task_key)

    def _start(self, rows: Features) -> Floats:
        return np.zeros(len(rows))


def _blind(features: Features) -> Features:
    out = features.copy()
    out[..., AT["cycles_compute"] :] = 0.0
    return out


@dataclass(frozen=True)
class Policy:
    """A search with something left out of `base`; arguments of `search.tune.tune`."""

    what: str
    policy: str = "evolutionary"
    model: Callable[[int], CostModel] | None = None
    params: EvolutionParams | None = None
    space: SpaceOptions | None = None
    base: str = "full"


POLICIES: dict[str, Policy] = {
    "full": Policy("everything"),
    "random": Policy("legal rows at random, no fine-tuning", policy="random"),
    "beam": Policy("decision by decision, early pruning", policy="beam"),
    "limited": Policy(
        "the sketches of the paper: no packing, locations or folding",
        space=SpaceOptions(folding=False, packing=False, locations=False),
    ),
    "crossover": Policy("with crossover by DAG node", params=EvolutionParams(mutation=0.85)),
    "no-model": Policy("no learned model", model=lambda seed: NeverTrained(seed=seed)),
    "no-process": Policy(
        "the learned model without the task's Gaussian process",
        model=lambda seed: WithoutProcess(seed=seed),
    ),
    "no-draft": Policy("no analytic score", model=lambda seed: WithoutEstimate(seed=seed)),
    # What the rest is worth to a search that no estimate guides
    "no-draft-no-model": Policy(
        "no analytic score, no learned model: kin of the fastest, by chance",
        base="no-draft",
        model=lambda seed: RandomModel(np.random.default_rng(seed)),
    ),
    "paper-model": Policy(
        "the paper's model (sums over statements), no correction of the analytic score",
        model=lambda seed: GBDTModel(seed=seed),
    ),
}
# Recorded runs of policies that are left out by now: (compared with, what it was). "former-X" was
# X of the search with crossover and moves between sketches, which gained nothing.
RECORDED = {
    "former": ("full", "with crossover and hops, 4 generations, the model from 16 programs on"),
    "hops": ("full", "with moves between sketches"),
    "few-looked-at": ("full", "the first round looks at 48 sketches at most"),
    "former-no-crossover": ("former", "no crossover"),
    "former-no-hops": ("former", "no hops"),
    "former-no-draft-no-crossover": ("former-no-draft", "no analytic score, no crossover"),
    "former-no-draft-no-hops": ("former-no-draft", "no analytic score, no hops"),
}


def base_and_what(policy: str) -> tuple[str, str]:
    """The policy that a part is left out of, and what `policy` is; also of recorded ones."""
    if policy in RECORDED:
        return RECORDED[policy]
    known = POLICIES.get(policy.removeprefix("former-"))
    if known is None:
        return "full", "(no longer run)"
    if policy in POLICIES:
        return known.base, known.what
    return "former" if known.base == "full" else f"former-{known.base}", known.what


def run(policy: str, case: str, seed: int, trials: int, target: Target | None = None) -> RacedRun:
    """Search once, for the host if nothing else is said."""
    p, task = POLICIES[policy], workload(case, target=target)
    return search_once(
        task,
        case,
        policy,
        seed,
        trials,
        BUDGETS,
        space_of(policy, task),
        policy=p.policy,
        model=None if p.model is None else p.model(seed),
        params=p.params,
        space=p.space,
    )


def space_of(policy: str, task: SearchTask) -> Space:
    """The space that one of `POLICIES` searches."""
    p = POLICIES[policy]
    return by_name(searcher(p.policy).space(task, p.space))


def gain(curves: dict[tuple[str, str, int], Float], policy: str) -> tuple[float, float, float, int]:
    """(mean, low, high, pairs): how much more area its base has, of pairs of one case and seed.

    The interval holds 95 % of the means of resampled pairs.
    """
    pairs = []
    for (p, case, seed), curve in curves.items():
        other = curves.get((base_and_what(policy)[0], case, seed))
        if p == policy and other is not None:
            n = min(len(curve), len(other), AREA)
            pairs.append(area(other[:n]) - area(curve[:n]))
    if not pairs:
        return math.nan, math.nan, math.nan, 0
    values = np.asarray(pairs)
    rng = np.random.default_rng(0)
    means = values[rng.integers(0, len(values), (RESAMPLES, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high), len(values)


def table(runs: Sequence[RacedRun], raced: Raced | None = None) -> str:
    """A line a policy: geometric means at the budgets, the least of all, the gain of the rest.

    Shares at the budgets are those of `raced` programs where there are some, and areas are of
    curves corrected by them.
    """
    curves = corrected(efficiency(runs), raced)
    asked = {r.key: r.budget for r in runs}
    share = shares(raced)
    most = max(asked.values(), default=0)
    budgets = [b for b in BUDGETS if b <= most]
    head = " ".join(f"{f'at {b}':>7} {'least':>6}" for b in budgets)
    names = dict.fromkeys([*POLICIES, *(r.policy for r in runs)])
    width = max(map(len, names))
    lines = [
        f"{'policy':{width}} {'runs':>4} {head} {'area':>6}  "
        "gain in area of the full search, or of the one in brackets (95 %)"
    ]
    for name in names:
        base, what = base_and_what(name)
        own = {k: c for k, c in curves.items() if k[0] == name}
        if not own:
            continue
        cells = []
        for b in budgets:
            reached = [share(k, c, b) for k, c in own.items() if asked[k] >= b]
            both = f"{geometric_mean(reached):7.1%} {min(reached):6.0%}" if reached else ""
            cells.append(f"{both:14}")
        mean, low, high, pairs = gain(curves, name)
        against = (
            "" if name == "full" else f"{mean:+.3f} ({low:+.3f} to {high:+.3f}, {pairs} pairs)"
        )
        against += "" if base == "full" else f" [{base}]"
        areas = geometric_mean(area(c[:AREA]) for c in own.values())
        line = f"{name:{width}} {len(own):4} {' '.join(cells)} {areas:6.3f}  {against}  {what}"
        lines.append(line.rstrip())
    for b in budgets:
        full = {k: share(k, c, b) for k, c in curves.items() if k[0] == "full" and asked[k] >= b}
        if full:
            lines.append(f"full at {b}, by case: {_by_case(full)}")
    return "\n".join(lines) + "\n"


def _by_case(reached: dict[tuple[str, str, int], float]) -> str:
    """Geometric means over the seeds."""
    cases = dict.fromkeys(case for _, case, _ in reached)
    means = {c: geometric_mean(v for k, v in reached.items() if k[1] == c) for c in cases}
    return ", ".join(f"{c} {v:.0%}" for c, v in means.items())
