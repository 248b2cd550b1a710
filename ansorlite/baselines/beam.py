"""Sequential construction with early pruning: the search that Ansor's paper compares with.

In: sketches, a score, results told so far. Out: `Candidate`s. Programs are built decision after
decision, from the output stage back; after each one only the `width` best incomplete programs stay,
scored as if what is still open were left alone (nothing tiled, nothing annotated). A decision that
pays only together with a later one is pruned, which fine-tuning of complete programs avoids
(OSDI'20, section 2 and figure 7).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ansorlite.cost.losses import TrainingGroup
from ansorlite.schedule.holes import Hole
from ansorlite.search.evolve import Rows
from ansorlite.search.history import Candidate
from ansorlite.search.policy import EvolutionaryPolicy, SearchPolicy, round_rng
from ansorlite.search.searchers import Context
from ansorlite.search.select import unique_rows
from ansorlite.space.sketch import Sketch


@dataclass(frozen=True)
class BeamParams:
    """`width` programs stay after each decision, of which `options` ways are looked at."""

    width: int = 64
    options: int = 48
    sketches: int = 8
    epsilon: float = 0.05


class BeamPolicy(SearchPolicy):
    """Measures the programs that survive, by the score of `guide`, whose history it shares."""

    def __init__(
        self, guide: EvolutionaryPolicy, seed: int, key: str, params: BeamParams | None = None
    ) -> None:
        self.history = guide.history
        self.params = params or BeamParams()
        self._seed, self._key, self._score = seed, key, guide.score

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        self.history.tell(candidates, latency_s)

    def training_group(self) -> TrainingGroup:
        """All measurements of the task: the guide's model learns from them."""
        return self.history.group(self._key)

    def ask(self, n: int, round_: int) -> list[Candidate]:
        if n <= 0:
            return []
        rng = round_rng(self._seed, self._key, round_)
        names = list(self.history.sketches)
        alive = [names[int(k)] for k in rng.permutation(len(names))[: self.params.sketches]]
        found: list[Candidate] = []
        for name in alive:
            rows = self._beam(name, n, rng)
            rows = rows[self.history.is_new(name, rows)]
            if len(rows):
                scores = self._score(name, rows)
                found += [self._candidate(name, r, s) for r, s in zip(rows, scores, strict=True)]
        found.sort(key=lambda c: -c.score)
        n_random = int(np.ceil(self.params.epsilon * n)) if n > 4 else 0
        out = {c.key: c for c in found[: n - n_random]}
        return [*out.values(), *self.history.strangers(n - len(out), rng, out)]

    def _candidate(self, name: str, row: npt.NDArray[np.int32], score: float) -> Candidate:
        return Candidate(self.history.sketches[name], tuple(int(v) for v in row), float(score))

    def _beam(self, name: str, n: int, rng: np.random.Generator) -> Rows:
        """Complete legal rows, the best ones by the scores of the last decision."""
        holes = self.history.sketches[name].holes
        rows = np.asarray([[_untouched(h) for h in holes]], np.int32)
        width = max(self.params.width, n)
        for k, h in enumerate(holes):
            if len(h.options) == 1:
                continue
            count = min(len(h.options), self.params.options)
            ways = np.sort(rng.permutation(len(h.options))[:count])
            grown = np.repeat(rows, count, axis=0)
            grown[:, k] = np.tile(ways, len(rows))
            # Unfinished programs need not be legal; finished ones do.
            if all(len(other.options) == 1 for other in holes[k + 1 :]):
                grown = grown[self.history.legal(name, grown)]
            if not len(grown):
                return grown
            grown = grown[unique_rows(grown)]
            scores = self._score(name, grown)
            rows = grown[np.argsort(-scores, kind="stable")[:width]]
        return rows[self.history.legal(name, rows)]


def make(found: Sequence[Sketch], c: Context) -> BeamPolicy:
    """Guided by the evolution's score, so that only the way of searching differs."""
    key = c.task.workload_key
    guide = EvolutionaryPolicy(found, c.task.target, c.seed, key, c.model, c.params, c.validity)
    return BeamPolicy(guide, c.seed, key)


def _untouched(hole: Hole) -> int:
    """The option that stands for no decision yet: nothing tiled, nothing annotated."""
    sums = [sum(o) for o in hole.options]
    return int(np.argmin(sums))
