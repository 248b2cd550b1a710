"""Simulated annealing over a learned cost model: AutoTVM's searcher (NeurIPS'18, algorithm 1).

In: sketches, a cost model, a function from rows to features, results told so far. Out:
`Candidate`s: parallel chains walk the space by redrawing a knob, accepted by the model's score at a
falling temperature; of the best rows seen those are picked that are good and differ in many knobs
(the paper's submodular objective), and some at random. The model may be an ensemble, whose spread
makes expected improvement or an upper bound the score that is searched.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ansorlite.baselines.ensemble import BootstrapEnsemble, SingleModel
from ansorlite.baselines.knobs import FEATURE_SETS, FeatureSet
from ansorlite.baselines.neural import NeuralModel
from ansorlite.cost.losses import TrainingGroup
from ansorlite.search.evolve import Rows
from ansorlite.search.history import Candidate, History
from ansorlite.search.policy import SearchPolicy, round_rng
from ansorlite.search.searchers import Context
from ansorlite.search.select import rows_in
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target

Floats = npt.NDArray[np.float64]
Acquisition = Literal["mean", "ei", "ucb"]


class Surrogate(Protocol):
    """A model that says how sure it is; `predict` gives about best/this."""

    @property
    def is_trained(self) -> bool: ...
    def update(self, groups: Sequence[TrainingGroup]) -> None: ...
    def predict(self, features: npt.NDArray[np.float32]) -> Floats: ...
    def spread(self, features: npt.NDArray[np.float32]) -> Floats: ...


@dataclass(frozen=True)
class AnnealingParams:
    """AutoTVM's defaults where it has them."""

    chains: int = 128
    steps: int = 500
    patience: int = 50  # steps without a better row among the best, after which it ends
    temperature: float = 1.0  # of the first step, in units of the spread of scores; 0 at the last
    epsilon: float = 0.05
    pool: int = 2  # as many times the wanted rows are chosen from, for diversity
    diversity: float = 0.5  # weight of a knob's value that no other picked row has
    acquisition: Acquisition = "mean"
    kappa: float = 1.0  # standard deviations that "ucb" adds


class AnnealingPolicy(SearchPolicy):
    """Measures what annealing on the model finds; the first round is random."""

    def __init__(
        self,
        sketches: Sequence[Sketch],
        target: Target,
        seed: int,
        key: str,
        model: Surrogate,
        features: FeatureSet,
        params: AnnealingParams | None = None,
        other_tasks: Callable[[], Sequence[TrainingGroup]] = lambda: (),
    ) -> None:
        """`other_tasks` gives their measurements, in the same features, to learn from too."""
        self.history = History(sketches, target)
        self.params = params or AnnealingParams()
        self._seed, self._key = seed, key
        self._model, self._features, self._other_tasks = model, features, other_tasks
        self._known = 0

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        self.history.tell(candidates, latency_s)

    def ask(self, n: int, round_: int) -> list[Candidate]:
        if n <= 0:
            return []
        rng = round_rng(self._seed, self._key, round_)
        self._learn()
        if not self._model.is_trained:
            return self.history.strangers(n, rng)
        ranked = self._annealed(self.params.pool * n, rng)
        greedy = n - math.ceil(self.params.epsilon * n) if n > 4 else n
        out = self._diverse(ranked, greedy)
        return out + self.history.strangers(n - len(out), rng, {c.key for c in out})

    def _learn(self) -> None:
        groups = [*self._other_tasks(), self.transfer_group()]
        known = sum(len(g.latency_s) for g in groups)
        if known != self._known:
            self._known = known
            self._model.update(groups)

    def transfer_group(self) -> TrainingGroup:
        """All measurements of the task, in the features that the model learns from."""
        found: list[npt.NDArray[np.float32]] = []
        times: list[float] = []
        for name, m in self.history.told.items():
            if m.rows:
                found += list(self._of(name, self.history.measured_rows(name)))
                times += m.latency_s
        return TrainingGroup(self._key, found, np.asarray(times, np.float64))

    def _of(self, name: str, rows: Rows) -> npt.NDArray[np.float32]:
        return self._features.of(self.history.sketches[name], rows, self.history.target)

    # ---- annealing ------------------------------------------------------------------------------

    def _score(self, name: str, rows: Rows) -> Floats:
        """The acquisition: the predicted share of the best speed, or what may come of it."""
        f = self._of(name, rows)
        mean = np.asarray(self._model.predict(f), np.float64)
        if self.params.acquisition == "mean":
            return mean
        spread = np.maximum(self._model.spread(f), 1e-6)
        if self.params.acquisition == "ucb":
            return mean + self.params.kappa * spread
        return expected_improvement(mean, spread, 1.0)

    def _annealed(self, keep: int, rng: np.random.Generator) -> list[tuple[float, Candidate]]:
        """The best unmeasured rows that the chains came by, best first."""
        names = list(self.history.sketches)
        chains = self._starts(names, rng)
        if not chains:
            return []
        best: dict[tuple[str, bytes], tuple[float, str, npt.NDArray[np.int32]]] = {}
        scores = {name: self._score(name, rows) for name, rows in chains.items()}
        measured = {name: self.history.measured_rows(name) for name in chains}
        since, worst = 0, -math.inf
        p = self.params
        for step in range(p.steps):
            scale = float(np.std(np.concatenate(list(scores.values())))) or 1.0
            heat = p.temperature * scale * (1 - step / p.steps)
            for name, rows in chains.items():
                moved = self._neighbours(name, rows, rng)
                legal = self.history.legal(name, moved)
                new = np.where(legal, self._score(name, moved), -np.inf)
                ahead = new - scores[name]
                with np.errstate(over="ignore", invalid="ignore"):
                    chance = np.exp(np.minimum(ahead, 0.0) / max(heat, 1e-12))
                taken = legal & (rng.random(len(rows)) < chance)
                chains[name] = np.where(taken[:, None], moved, rows).astype(np.int32)
                scores[name] = np.where(taken, new, scores[name])
                fresh = legal & (new > worst)
                fresh[fresh] = ~rows_in(moved[fresh], measured[name])
                for row, value in zip(moved[fresh], new[fresh], strict=True):
                    best[name, row.tobytes()] = (float(value), name, row)
            if len(best) > 4 * keep or step == p.steps - 1:
                ranked = sorted(best.items(), key=lambda e: -e[1][0])[: 2 * keep]
                best = dict(ranked)
            floor = sorted((v[0] for v in best.values()), reverse=True)[: 2 * keep]
            if len(floor) == 2 * keep and floor[-1] > worst:
                worst, since = floor[-1], 0
            else:
                since += 1
            if since >= p.patience and len(best) >= keep:
                break
        order = sorted(best.values(), key=lambda e: -e[0])
        found = [(name, row, score) for score, name, row in order]
        distinct = self.history.distinct(found, keep, set())
        return [(s, self._candidate(name, row, s)) for name, row, s in islice(distinct, keep)]

    def _starts(self, names: Sequence[str], rng: np.random.Generator) -> dict[str, Rows]:
        """Where the chains begin: the best measured rows, and random ones."""
        each = max(4, self.params.chains // len(names))
        out = {}
        for name in names:
            measured = self.history.measured_rows(name)
            order = np.argsort(self.history.told[name].latency_s, kind="stable")
            rows = self.history.sample(name, each, 16, rng)
            rows = np.concatenate([measured[order[: each // 2]], rows])[:each]
            if len(rows):
                out[name] = rows
        return out

    def _neighbours(self, name: str, rows: Rows, rng: np.random.Generator) -> Rows:
        """Every row with one knob drawn anew."""
        holes = self.history.sketches[name].holes
        sizes = np.asarray([len(h.options) for h in holes])
        open_ = np.flatnonzero(sizes > 1)
        out = rows.copy()
        if open_.size:
            at = open_[rng.integers(0, open_.size, len(rows))]
            out[np.arange(len(rows)), at] = (rng.random(len(rows)) * sizes[at]).astype(np.int32)
        return out

    def _candidate(self, name: str, row: npt.NDArray[np.int32], score: float = 0.0) -> Candidate:
        return Candidate(self.history.sketches[name], tuple(int(v) for v in row), score)

    # ---- the pick -------------------------------------------------------------------------------

    def _diverse(self, ranked: Sequence[tuple[float, Candidate]], n: int) -> list[Candidate]:
        """Greedily the rows with the most score and new values of knobs (submodular)."""
        if not ranked:  # the chains came by nothing that is new
            return []
        scores = np.asarray([score for score, _ in ranked])
        scale = float(np.std(scores)) or 1.0
        covered: set[tuple[str, int, int]] = set()
        left, out = list(range(len(ranked))), list[Candidate]()
        parts = [
            [
                (c.sketch.name, k, v)
                for k, v in enumerate(c.row)
                if len(c.sketch.holes[k].options) > 1
            ]
            for _, c in ranked
        ]
        while left and len(out) < n:

            def gain(i: int) -> float:
                fresh = sum(part not in covered for part in parts[i]) / max(1, len(parts[i]))
                return float(scores[i]) + self.params.diversity * scale * fresh

            best = max(left, key=gain)
            left.remove(best)
            covered.update(parts[best])
            out.append(ranked[best][1])
        return out


def make(
    found: Sequence[Sketch],
    c: Context,
    features: str = "loops",
    objective: Literal["regression", "rank"] = "rank",
    acquisition: Acquisition = "mean",
    transfer: bool = False,
    neural: bool = False,
    params: AnnealingParams | None = None,
) -> AnnealingPolicy:
    """The policy of a row of the table of searchers; acquisitions with a spread have an ensemble.

    `features` is a name of `knobs.FEATURE_SETS`. With `transfer` the model begins with the
    session's other tasks; `neural` takes a recurrent network (MissingExtra without torch).
    """
    model: Surrogate
    if neural:
        model = NeuralModel("gru", c.seed, objective)
    elif acquisition == "mean":
        model = SingleModel(c.seed, objective, transfer)
    else:
        model = BootstrapEnsemble(c.seed, objective)
    return AnnealingPolicy(
        found,
        c.task.target,
        c.seed,
        c.task.workload_key,
        model,
        FEATURE_SETS[features](),
        replace(params or AnnealingParams(), acquisition=acquisition),
        c.other_tasks if transfer else lambda: (),
    )


def expected_improvement(mean: Floats, spread: Floats, best: float) -> Floats:
    """E[max(x - best, 0)] of normal x: what is gained over the best on average."""
    z = (mean - best) / spread
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return np.asarray((mean - best) * below + spread * density, np.float64)
