"""Searchers of AutoTVM without a model: grid and genetic search.

In: sketches (of a template, or any others) and results told so far. Out: `Candidate`s to measure.
Both are functions of (seed, workload key, what was told), so a resumed run asks what the
uninterrupted one would have asked.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ansorlite.search.evolve import Rows
from ansorlite.search.history import Candidate, History
from ansorlite.search.policy import SearchPolicy, round_rng
from ansorlite.search.searchers import Context
from ansorlite.search.select import roulette, rows_in
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target

BLOCK = 4096  # rows of a grid looked at together
TRIES = 64  # times that children are bred for one generation


class GridPolicy(SearchPolicy):
    """All legal rows in order, the last hole fastest, sketch after sketch."""

    def __init__(self, sketches: Sequence[Sketch], target: Target, seed: int, key: str) -> None:
        self.history = History(sketches, target)
        self._coming = self._all()
        self._waiting: list[Candidate] = []

    def ask(self, n: int, round_: int) -> list[Candidate]:
        told = {(name, row) for name, m in self.history.told.items() for row in m.rows}
        self._waiting = [c for c in self._waiting if c.key not in told]
        while len(self._waiting) < n and (c := next(self._coming, None)) is not None:
            if c.key not in told:
                self._waiting.append(c)
        return self._waiting[:n]

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        self.history.tell(candidates, latency_s)

    def _all(self) -> Iterator[Candidate]:
        for name, sketch in self.history.sketches.items():
            sizes = tuple(len(h.options) for h in sketch.holes)
            total = math.prod(sizes)
            for first in range(0, total, BLOCK):
                numbers = np.arange(first, min(first + BLOCK, total))
                # A first digit that is always 0: numpy has no answer for a sketch without holes.
                digits = np.unravel_index(numbers, (1, *sizes))[1:]
                rows = np.asarray(digits, np.int32).reshape(len(sizes), len(numbers)).T
                for row in rows[self.history.legal(name, rows)]:
                    yield Candidate(sketch, tuple(int(v) for v in row))


@dataclass(frozen=True)
class GeneticParams:
    """AutoTVM's: generations of `population`, of which the `elite` best stay among the parents."""

    population: int = 100
    elite: int = 3
    mutation: float = 0.1  # of each knob


class GeneticPolicy(SearchPolicy):
    """Generations of programs, bred from the measured ones before: a knob each from two parents."""

    def __init__(
        self,
        sketches: Sequence[Sketch],
        target: Target,
        seed: int,
        key: str,
        params: GeneticParams | None = None,
    ) -> None:
        self.history = History(sketches, target)
        self.params = params or GeneticParams()
        self._seed, self._key = seed, key
        self._told: list[tuple[Candidate, float]] = []

    def ask(self, n: int, round_: int) -> list[Candidate]:
        size = self.params.population
        generation, place = divmod(len(self._told), size)
        members = self._generation(generation)
        known = {c.key for c, _ in self._told}
        fresh = [c for c in members[place:] if c.key not in known]
        return fresh[:n]

    def tell(self, candidates: Sequence[Candidate], latency_s: Sequence[float]) -> None:
        self.history.tell(candidates, latency_s)
        self._told += zip(candidates, latency_s, strict=True)

    def _generation(self, number: int) -> list[Candidate]:
        """The members of a generation, measured ones included, in the order they are measured."""
        size = self.params.population
        rng = round_rng(self._seed, self._key, number)
        before = self._told[: number * size]
        members = [c for c, _ in self._told[number * size :]]
        known = {c.key for c, _ in self._told}
        parents = self._parents(before)
        for _ in range(TRIES):
            if len(members) >= size:
                break
            for c in self._children(parents, size, rng) if parents else self._random(size, rng):
                if c.key not in known and len(members) < size:
                    known.add(c.key)
                    members.append(c)
        return members

    def _parents(self, before: Sequence[tuple[Candidate, float]]) -> list[tuple[Candidate, float]]:
        """(parent, its speed): the last generation and the best of all before."""
        last = before[-self.params.population :]
        best = sorted(before, key=lambda told: told[1])[: self.params.elite]
        unique = {c.key: (c, 1.0 / t) for c, t in (*best, *last) if np.isfinite(t)}
        return list(unique.values())

    def _random(self, n: int, rng: np.random.Generator) -> list[Candidate]:
        names = list(self.history.sketches)
        out = []
        for name in (names[int(k)] for k in rng.integers(0, len(names), n)):
            out += [self._candidate(name, row) for row in self.history.sample(name, 1, 16, rng)]
        return out

    def _children(
        self, parents: Sequence[tuple[Candidate, float]], n: int, rng: np.random.Generator
    ) -> list[Candidate]:
        """Crossed at one point, or copies where the parents' structures differ; then mutated."""
        speed = np.asarray([s for _, s in parents])
        pairs = roulette(speed, 2 * n, rng).reshape(-1, 2)
        by_sketch: dict[str, list[npt.NDArray[np.int32]]] = {}
        for a, b in pairs:
            one, two = parents[int(a)][0], parents[int(b)][0]
            row = np.asarray(one.row, np.int32)
            if one.sketch.name == two.sketch.name and len(row) > 1:
                at = int(rng.integers(1, len(row)))
                row = np.concatenate([row[:at], np.asarray(two.row, np.int32)[at:]])
            by_sketch.setdefault(one.sketch.name, []).append(row)
        out = []
        for name, rows in by_sketch.items():
            out += self._mutated(name, np.stack(rows), rng)
        return out

    def _mutated(self, name: str, rows: Rows, rng: np.random.Generator) -> list[Candidate]:
        drawn = self.history.sketches[name].sample(len(rows), rng)
        rows = np.where(rng.random(rows.shape) < self.params.mutation, drawn, rows)
        rows = rows.astype(np.int32)
        rows = rows[~rows_in(rows, self.history.measured_rows(name))]
        return [self._candidate(name, row) for row in rows[self.history.legal(name, rows)]]

    def _candidate(self, name: str, row: npt.NDArray[np.int32]) -> Candidate:
        return Candidate(self.history.sketches[name], tuple(int(v) for v in row))


def make(found: Sequence[Sketch], c: Context) -> GeneticPolicy:
    """Genetic search over the sketches of a task."""
    return GeneticPolicy(found, c.task.target, c.seed, c.task.workload_key)


def make_grid(found: Sequence[Sketch], c: Context) -> GridPolicy:
    """All rows of the sketches of a task in order."""
    return GridPolicy(found, c.task.target, c.seed, c.task.workload_key)
