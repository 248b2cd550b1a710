"""Search policies as ask/tell: which candidates of a task are measured next.

In: sketches, a cost model, results told so far. Out: `Candidate`s (a sketch and a row). What is
asked depends only on (seed, workload key, round) and on what was told, so a resumed run asks what
the uninterrupted one would have asked. `EvolutionaryPolicy` is Ansor's (paper section 5.1) with an
analytic score until the model is trained, a de-duplicated population and, where asked for,
crossover; `RandomPolicy` draws legal rows.
"""

import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ansorlite.cost.analytic import analytic_score
from ansorlite.cost.correction import is_only_prior
from ansorlite.cost.losses import Features, TrainingGroup
from ansorlite.cost.model import CostModel, ValidityModel
from ansorlite.search.evolve import Rows, crossover, mutate
from ansorlite.search.history import Candidate, History, Key, Ranked, Scores, each
from ansorlite.search.select import equals_before, roulette, rows_in, unique_rows
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target

PROBED_ROWS = 32  # of a sketch, to estimate its best score
Likeness = tuple[str | tuple[str, ...], bytes]
CHOSEN_FROM = 4  # times as many candidates, of which a prior chooses
SMALL_ROUND = 8  # candidates of a round, for which half the effort is made
# Share of the population of a small round: predictions of the best are 1 % lower in half the time.
SMALL_POPULATION = 0.625
EARLY = 64  # trials of a task, up to which a small round looks at few new sketches
POOL_ROWS = 16  # rows of a sketch kept in a round, for each candidate asked for
TILE_ROWS = 6  # of them with equal tiles
SIGNED_ROWS = 4  # times as many rows as are asked for are compared with others at once
THOROUGH_TIMES = 4  # times the population, where no measurement will correct the answer
LEAST_SCORE = 2.0**-8  # share of the best speed, and chance to run; below it predictions are noise


class SearchPolicy(Protocol):
    """Proposes candidates of one task and learns from results.

    `ask` and `tell` are a policy's own; the other methods have defaults, for a policy without a
    use for them. No candidate is asked for again after its result was told.
    """

    @abstractmethod
    def ask(self, n: int, round_: int) -> list[Candidate]:
        """At most n new candidates: fewer where few are left, none where the space is used up.

        A function of seed, workload key, `round_` and results told, so asking changes nothing.
        """

    @abstractmethod
    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        """Results of candidates, asked for or not (of a log); seconds, inf for a failure."""

    def hint(self, names: Sequence[str]) -> None:
        """Names of sketches that did well for similar tasks; by default of no effect."""
        return

    def widen(self, sketches: Sequence[Sketch]) -> None:
        """Search these, too; by default of no effect: a policy has all from the beginning."""
        return

    def scores_of(self, candidates: Sequence[Candidate]) -> list[float]:
        """What is expected of candidates, more of better ones; by default the same of all."""
        return [0.0] * len(candidates)

    def guess(self, round_: int) -> list[Candidate]:
        """The candidate to take where nothing can be measured; empty without a candidate."""
        return self.ask(1, round_)

    def training_group(self) -> TrainingGroup | None:
        """What the session's cost model learns of the task; None where no such model is used."""
        return None

    def transfer_group(self) -> TrainingGroup | None:
        """What the same policy may learn for other tasks of the session; None without transfer."""
        return None


@dataclass(frozen=True)
class EvolutionParams:
    """Defaults follow Ansor's where it has them and nothing better was found.

    Crossover gained nothing in the ablations (results/ablations.txt), and lost where no estimate
    guides the search: a row with holes of two parents is rarely as good as either. Sketches are
    searched side by side. More generations did gain.
    """

    population: int = 1024
    generations: int = 8
    mutation: float = 1.0  # share of children that mutate; the others cross two parents
    epsilon: float = 0.05
    measured_share: float = 0.25
    alive: int = 8  # sketches that breed in one round
    looked_at: int = 16  # unmeasured sketches that compete to be among them
    looked_at_first: int = 256  # the same in the first round, unless similar tasks tell of some
    same_tiles: int = 2  # picked rows of a round with equal tiles
    same_body: float = 0.2  # share of a round with one register body
    # Shares of a round with tiles, and with a register body, that their sketch was not measured
    # with. Without them most of 300 seconds went to variants of one tile, others being 5 % faster.
    new_tiles: float = 0.5
    new_bodies: float = 0.25
    same_sketch: float = 0.34  # share of a round with one sketch, where others are left
    draws: int = 16  # random draws a wanted row, before the legality mask
    visited: float = 0.0  # share of a round drawn from all rows it looks at, whatever their score


def round_rng(seed: int, task_key: str, round_: int) -> np.random.Generator:
    """The randomness of a round: a function of seed, workload key and round alone."""
    return np.random.default_rng([seed, zlib.crc32(task_key.encode()), round_])


class RandomPolicy(SearchPolicy):
    """Legal rows of random sketches, none twice."""

    def __init__(self, sketches: Sequence[Sketch], target: Target, seed: int, key: str) -> None:
        self.history = History(sketches, target)
        self._seed, self._key = seed, key

    def ask(self, n: int, round_: int) -> list[Candidate]:
        rng = round_rng(self._seed, self._key, round_)
        names = list(self.history.sketches)
        out, taken = list[Candidate](), set[bytes]()
        for _ in range(8):
            for k in rng.permutation(len(names)):
                name = names[int(k)]
                share = min(max(1, -(-n // len(names))), n - len(out))
                rows = self.history.sample(name, 4 * share, 8, rng)
                for row in islice(self.history.fresh(name, rows, taken), share):
                    out.append(Candidate(self.history.sketches[name], tuple(int(v) for v in row)))
            if len(out) >= n:
                break
        return out

    def widen(self, sketches: Sequence[Sketch]) -> None:
        self.history.add(sketches)

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        self.history.tell(candidates, latency_s)


class EvolutionaryPolicy(SearchPolicy):
    """Ansor's fine-tuning on whole populations."""

    def __init__(
        self,
        sketches: Sequence[Sketch],
        target: Target,
        seed: int,
        key: str,
        model: CostModel,
        params: EvolutionParams | None = None,
        validity: ValidityModel | None = None,
    ) -> None:
        self.history = History(sketches, target)
        self.params = params or EvolutionParams()
        self._seed, self._key, self._model = seed, key, model
        self._validity = validity or ValidityModel()
        self._hints: tuple[str, ...] = ()
        self._looks: dict[str, Features] = {}
        self._seen: dict[str, set[Likeness]] = {}  # tiles and bodies of so many measured rows
        self._looked_through: dict[str, int] = {}
        self._kept_looks: Callable[[], Mapping[str, Features]] | None = None
        self._by_estimate = False  # scores are the estimate's, whatever the model knows

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        self.history.tell(candidates, latency_s)

    def widen(self, sketches: Sequence[Sketch]) -> None:
        self.history.add(sketches)

    def hint(self, names: Sequence[str]) -> None:
        """Sketches that did well for similar tasks: the first round looks at few others."""
        self._hints = tuple(dict.fromkeys(n for n in names if n in self.history.sketches))

    def guess(self, round_: int) -> list[Candidate]:
        """The best of a thorough search: no measurement will correct its answer."""
        return self.ask(1, round_, thorough=True)

    def training_group(self) -> TrainingGroup:
        """All measurements of the task."""
        return self.history.group(self._key)

    def ask(self, n: int, round_: int, thorough: bool = False) -> list[Candidate]:
        """The best that the model predicts; with a prior alone, of those that the estimate finds.

        What other tasks taught is wrong far away from what they measured, and evolution goes there:
        so the estimate alone leads it, and the prior chooses among the best that it found.
        """
        if n < 2 or thorough or not is_only_prior(self._model):
            return self._asked(n, round_, thorough)
        self._by_estimate = True
        try:
            found = self._asked(n, round_, thorough, CHOSEN_FROM * n)
        finally:
            self._by_estimate = False
        scores = self.scores_of(found)
        order = [0, *(int(k) for k in np.argsort(np.negative(scores), kind="stable") if k)]
        return [found[k] for k in order[: min(n, len(found))]]

    def _asked(
        self, n: int, round_: int, thorough: bool, most: int | None = None
    ) -> list[Candidate]:
        """New candidates, best first: n, or `most` of a search for n."""
        rng = round_rng(self._seed, self._key, round_)
        # A few candidates are worth a short search among few sketches, for others follow.
        effort = 2 if n <= SMALL_ROUND and not thorough else 1
        generations = -(-self.params.generations // effort)
        size = THOROUGH_TIMES if thorough else SMALL_POPULATION if effort > 1 else 1
        population = int(self.params.population * size)
        pool = self._first(rng, effort, population)
        alive = list(pool)
        best, visited = _Pool(POOL_ROWS * n), _Pool(None)
        pools = (best, visited) if self.params.visited else (best,)
        for generation in range(generations + 1):
            pool = {name: rows for name, rows in pool.items() if len(rows)}
            scored = {name: (pool[name], own) for name, own in self.scores(pool).items()}
            for name, (rows, scores) in scored.items():
                new = ~rows_in(rows, self.history.measured_rows(name))
                for p in pools:
                    p.add(name, rows[new], scores[new], self._tiles(name))
            if generation < generations:
                pool = self._breed(scored, rng, population)
        picked = self._pick(best, visited, most or n, rng, alive)
        self.history.keep(picked)
        return picked

    def score(self, name: str, rows: Rows) -> Scores:
        """Log2 of the speed, up to a constant: the analytic score until the model has learned."""
        return self.scores({name: rows})[name]

    def scores(self, rows: Mapping[str, Rows]) -> dict[str, Scores]:
        """`score` of rows of several sketches."""
        if not self._model.is_trained or self._by_estimate:
            return self.history.drafts(rows)
        return self._scores(self.history.looks(rows))

    def scores_of(self, candidates: Sequence[Candidate]) -> list[float]:
        """`score` of candidates."""
        return each(candidates, self.scores)

    def _scores(self, looks: Mapping[str, Features]) -> dict[str, Scores]:
        """Scores from features; those with as many statements are predicted at once."""
        out = {name: np.empty(0) for name in looks}
        for statements in sorted({f.shape[1] for f in looks.values() if len(f)}):
            alike = [n for n, f in looks.items() if len(f) and f.shape[1] == statements]
            scores = self._score(np.concatenate([looks[n] for n in alike]))
            ends = np.cumsum([len(looks[n]) for n in alike])
            out |= zip(alike, np.split(scores, ends[:-1]), strict=True)
        return out

    def _score(self, features: Features) -> Scores:
        if not self._model.is_trained or self._by_estimate:
            return analytic_score(features)
        score = np.log2(np.maximum(self._model.predict(features, self._key), LEAST_SCORE))
        if self._validity.is_trained:  # what is likely to fail is worth as much less
            score = score + np.log2(np.maximum(self._validity.predict(features), LEAST_SCORE))
        return np.asarray(score, dtype=np.float64)

    # ---- populations ----------------------------------------------------------------------------

    def _first(self, rng: np.random.Generator, effort: int, population: int) -> dict[str, Rows]:
        """Random legal rows and the best measured ones, for the sketches alive this round."""
        p = self.params
        names = self._alive(rng, effort)
        share = max(32, population // max(1, len(names)))
        drawn = self.history.samples(names, share, p.draws, lambda _: rng)
        pool: dict[str, Rows] = {}
        for name in names:
            rows = drawn[name]
            measured = self.history.measured_rows(name)
            if len(measured):
                order = np.argsort(self.history.told[name].latency_s, kind="stable")
                top = order[: max(1, int(share * p.measured_share))]
                rows = np.concatenate([measured[top], rows])
            pool[name] = rows
        return pool

    def _alive(self, rng: np.random.Generator, effort: int) -> list[str]:
        """Sketches by their best measured or (unmeasured) predicted candidate, some at random.

        They are fewer by the factor `effort`, as are, at the beginning, those that are looked at.
        """
        names, most = list(self.history.sketches), self.params.alive // effort
        if len(names) <= most:
            return names
        known = [s for s in names if self.history.told[s].latency_s]
        unmeasured = [s for s in names if not self.history.told[s].latency_s]
        p = self.params
        hinted = () if known else self._hints
        tried = rng.permutation(len(unmeasured))
        if not known:
            tried = tried[: p.looked_at // 2 if hinted else p.looked_at_first]
        else:
            early = self.history.n_told < EARLY
            tried = tried[: p.looked_at // effort if early else p.looked_at]
        drawn = (unmeasured[int(k)] for k in sorted(tried))
        names = list(dict.fromkeys([*known, *hinted, *drawn]))
        merit = self._promises(names)
        ranked = sorted(names, key=lambda s: -merit[s])
        measured = sorted(known, key=lambda s: min(self.history.told[s].latency_s))
        keep = list(dict.fromkeys([*measured[: most // 2], *ranked]))[: most - 1]
        rest = [s for s in names if s not in keep]
        return [*keep, rest[int(rng.integers(len(rest)))]] if rest else keep

    def _promises(self, names: Sequence[str]) -> dict[str, float]:
        """The best score of a few rows of each sketch."""
        found = self._scores(self._look_at(names))
        return {name: float(own.max(initial=-np.inf)) for name, own in found.items()}

    def first_looks(self, n: int) -> dict[str, Features]:
        """What the first round will have looked at, of the n sketches that it looks at first."""
        names = list(self.history.sketches)
        drawn = round_rng(self._seed, self._key, 1).permutation(len(names))[:n]
        return self._look_at([names[int(k)] for k in drawn])

    def know_looks(self, looks: Callable[[], Mapping[str, Features]]) -> None:
        """The `first_looks` of an equal policy, which need not be made again, once they serve."""
        self._kept_looks = looks

    def _look_at(self, names: Sequence[str]) -> dict[str, Features]:
        """A few rows of each sketch, always the same: drawn and looked at once."""
        if self._kept_looks is not None:
            self._looks |= self._kept_looks()
            self._kept_looks = None
        place = {name: k for k, name in enumerate(self.history.sketches)}
        key = zlib.crc32(self._key.encode())
        rows = self.history.samples(
            [name for name in names if name not in self._looks],
            PROBED_ROWS,
            self.params.draws,
            lambda name: np.random.default_rng([self._seed, key, 0, place[name]]),
        )
        self._looks |= self.history.features_of(rows)
        return {name: self._looks[name] for name in names}

    def _breed(
        self, scored: dict[str, tuple[Rows, Scores]], rng: np.random.Generator, population: int
    ) -> dict[str, Rows]:
        """The next generation: parents by roulette over all sketches, then mutation or crossing."""
        names = list(scored)
        if not names:
            return {}
        flat = np.concatenate([scored[s][1] for s in names])
        owner = np.concatenate([np.full(len(scored[s][0]), k) for k, s in enumerate(names)])
        offset = np.cumsum([0, *(len(scored[s][0]) for s in names)])
        parents = roulette(_fitness(flat), population, rng)
        out: dict[str, list[Rows]] = {s: [] for s in names}
        for k, name in enumerate(names):
            mine = parents[owner[parents] == k] - offset[k]
            if not len(mine):
                continue
            rows = scored[name][0][mine]
            holes = self.history.sketches[name].holes
            changed = rng.random(len(rows)) < self.params.mutation
            partner = rows[rng.permutation(len(rows))]
            mutants = mutate(rows[changed], holes, rng)
            crossed = crossover(rows[~changed], partner[~changed], holes, rng)
            if len(names) > 1 and len(mutants):
                # Two draws without a use: logs that were begun with them go on with equal rounds.
                rng.random(len(mutants))
                rng.integers(len(names))
            out[name] += [mutants, crossed]
        children = {s: np.concatenate(parts) for s, parts in out.items() if parts}
        children = {s: rows[unique_rows(rows)] for s, rows in children.items()}
        legal = self.history.legal_of(children)
        return {s: rows[legal[s]] for s, rows in children.items()}

    def _tiles(self, name: str) -> list[int]:
        """The places of all holes of tiles of a sketch."""
        return [k for k, h in enumerate(self.history.sketches[name].holes) if h.kind == "tile"]

    def _measured_likeness(self, name: str) -> set[Likeness]:
        """The tiles and bodies that a sketch was measured with; each row is looked at once."""
        seen, rows = self._seen.setdefault(name, set()), self.history.told[name].rows
        new = rows[self._looked_through.get(name, 0) :]
        if new:
            own = np.asarray(new, np.int32).reshape(len(new), len(new[0]))
            seen.update(key for both in self._likeness(name, own).values() for key in both)
            self._looked_through[name] = len(rows)
        return seen

    def _likeness(self, name: str, rows: Rows) -> dict[bytes, tuple[Likeness, Likeness]]:
        """By row, what those that tell little of each other share: tiles and register bodies.

        That is the option indices of all tiles of the sketch, and the innermost factors of the
        spatial ones, whatever the sketch; without one, all of a row.
        """
        holes = self.history.sketches[name].holes
        tiles = rows[:, self._tiles(name)]
        wide = [(k, h) for k, h in enumerate(holes) if h.width > 1]
        inner = [h.table[rows[:, k], -1] for k, h in wide]
        bodies = np.stack(inner, axis=1) if inner else rows
        of = tuple(h.name for _, h in wide) or (name,)
        return {
            row.tobytes(): ((name, tile.tobytes()), (of, body.tobytes()))
            for row, tile, body in zip(rows, tiles, bodies, strict=True)
        }

    def _pick(
        self,
        best: "_Pool",
        visited: "_Pool",
        n: int,
        rng: np.random.Generator,
        alive: Sequence[str],
    ) -> list[Candidate]:
        """The best predicted, with a share of random legal rows for diversity.

        These are of the sketches that are `alive`, where they have any.
        """
        n_random = int(self.params.epsilon * n + rng.random()) if n > 4 else 0
        out: dict[Key, Candidate] = {}
        taken: set[bytes] = set()
        n_visited = round(self.params.visited * n)
        if n_visited:
            rows = visited.ranked()
            rows = [rows[int(k)] for k in rng.permutation(len(rows))]
            for row_of in islice(self.history.distinct(rows, 4 * n, taken), n_visited):
                c = self._candidate(*row_of)
                out[c.key] = c
        self._add_best(out, best, n, n - n_random, taken)
        drawn = self._drawn(n - len(out), rng, taken, alive)
        rest = n - len(out) - len(drawn)
        return [*out.values(), *drawn, *self._drawn(rest, rng, taken, list(self.history.sketches))]

    def _add_best(
        self, out: dict[Key, Candidate], best: "_Pool", n: int, until: int, taken: set[bytes]
    ) -> None:
        """Fill `out` up to `until` with the best of the pool, few of them alike.

        Rows with equal tiles, or even with one register body, tell little of each other. The scores
        of two sketches differ by more than chance, but not by as much as they seem: a sketch has at
        most `same_sketch` of a round of n as long as there are rows of others. As long as there are
        any, some of a round are of tiles and bodies that were not measured.
        """
        p = self.params
        picked: Counter[str | Likeness] = Counter()
        measured = {name: self._measured_likeness(name) for name in best.rows}
        known = [until - int(p.new_tiles * until), until - int(p.new_bodies * until)]  # at most
        alike = {name: self._likeness(name, rows) for name, rows in best.rows.items()}
        ranked = self.history.distinct(best.ranked(), SIGNED_ROWS * n + 1, taken)
        left: list[Ranked] = []
        for share, entries in ((p.same_sketch, ranked), (1.0, iter(left))):
            for name, row, score in entries:
                if len(out) >= until:
                    break
                tile, body = alike[name][row.tobytes()]
                if picked[tile] >= p.same_tiles or picked[body] >= max(2, int(p.same_body * n)):
                    continue
                c = self._candidate(name, row, score)
                if c.key in out:
                    continue
                seen = [key in measured[name] for key in (tile, body)]
                full = any(s and not k for s, k in zip(seen, known, strict=True))
                if share < 1.0 and (full or picked[name] >= max(2, int(share * n))):
                    left.append((name, row, score))
                    continue
                known = [k - s for s, k in zip(seen, known, strict=True)]
                picked.update([tile, body, name])
                out[c.key] = c

    def _candidate(self, name: str, row: npt.NDArray[np.int32], score: float) -> Candidate:
        return Candidate(self.history.sketches[name], tuple(row.tolist()), float(score))

    def _drawn(
        self, n: int, rng: np.random.Generator, taken: set[bytes], names: Sequence[str]
    ) -> list[Candidate]:
        """Up to n new legal rows of these sketches at random."""
        out: list[Candidate] = []
        for _ in range(4 * n if names else 0):
            if len(out) >= n:
                break
            name = names[int(rng.integers(len(names)))]
            rows = self.history.sample(name, 4, 8, rng)
            for row in islice(self.history.fresh(name, rows, taken), 1):
                out.append(Candidate(self.history.sketches[name], tuple(int(v) for v in row)))
        return out


class _Pool:
    """The best rows seen in a round, so many a sketch; None: all of them."""

    def __init__(self, keep: int | None) -> None:
        self.keep = keep
        self.rows: dict[str, Rows] = {}
        self.scores: dict[str, Scores] = {}

    def add(self, name: str, rows: Rows, scores: Scores, tiles: Sequence[int]) -> None:
        """Rows of a sketch, whose tiles are in these columns."""
        if name in self.rows:
            rows = np.concatenate([self.rows[name], rows])
            scores = np.concatenate([self.scores[name], scores])
        first = unique_rows(rows)
        rows, scores = rows[first], scores[first]
        order = np.argsort(-scores, kind="stable")
        if self.keep is not None:
            order = order[equals_before(rows[order][:, tiles]) < TILE_ROWS][: self.keep]
        self.rows[name], self.scores[name] = rows[order], scores[order]

    def ranked(self) -> list[Ranked]:
        entries = [
            (name, row, float(score))
            for name in self.rows
            for row, score in zip(self.rows[name], self.scores[name], strict=True)
        ]
        return sorted(entries, key=lambda e: -e[2])


def _fitness(scores: Scores) -> Scores:
    """Positive selection weights: exponential in the score's distance from the best, by rank."""
    if not len(scores):
        return scores
    rank = np.empty(len(scores))
    rank[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    return np.asarray(np.exp(-4.0 * rank / max(1, len(scores))))
