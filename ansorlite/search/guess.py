"""The best program by prediction alone: a short evolution where nothing will be measured.

In: sketches with their scores, rows to begin with. Out: the best row of each sketch that took part,
the best of all first. Where no measurement follows, only the best prediction counts: no diversity,
no second candidate. So a few hundred rows of the most promising sketches suffice; more of them
gained less than a hundredth of the predicted speed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ansorlite.search.evolve import Rows, mutate, neighbours
from ansorlite.search.history import History, Scores
from ansorlite.search.select import roulette, unique_rows

ALL_OPTIONS = 40  # of a hole with more, only the neighbours are tried
Score = Callable[[Mapping[str, Rows]], Mapping[str, Scores]]  # of rows of sketches by name


@dataclass(frozen=True)
class GuessParams:
    """How much is looked at."""

    looked_at: int = 24  # rows of each sketch, to find the promising ones
    draws: int = 12  # random draws for each of those rows, before the legality mask
    alive: int = 16  # sketches that breed, at first; half of them are left after each stage
    stages: int = 3
    generations: int = 2  # of each stage
    population: int = 384  # at least
    each: int = 32  # rows of the population for each sketch
    survivors: int = 64  # rows of all sketches that stay as they are
    climbs: int = 2  # sketches whose best rows climb on
    steps: int = 8  # of each climb, at most


@dataclass(frozen=True)
class Guess:
    """The best row of a sketch, and its score (log2 of the speed, up to a constant)."""

    name: str
    row: tuple[int, ...]
    score: float


def guesses(
    history: History,
    score: Score,
    rng: np.random.Generator,
    first: Mapping[str, Rows],
    params: GuessParams,
) -> list[Guess]:
    """The best rows found, one a sketch, best first; `first` are rows that are looked at, too."""
    drawn = history.samples(history.sketches, params.looked_at, params.draws, lambda _: rng)
    looked_at: dict[str, Rows] = {}
    for name, rows in drawn.items():
        rows = np.concatenate([first[name], rows]) if name in first else rows
        if len(rows):
            looked_at[name] = rows
    pool = {name: (looked_at[name], scores) for name, scores in score(looked_at).items()}
    best: dict[str, tuple[Rows, float]] = {}
    alive = min(params.alive, len(pool))
    for stage in range(params.stages + 1):
        best |= {name: _best(*pool[name]) for name in pool}
        ranked = sorted(pool, key=lambda s: -best[s][1])
        pool = {name: pool[name] for name in ranked[: max(1, alive >> stage)]}
        for _ in range(params.generations if pool and stage < params.stages else 0):
            pool = _next(history, score, rng, pool, params)
    ranked = sorted(best, key=lambda s: -best[s][1])
    for name in ranked[: params.climbs]:
        best[name] = _climbed(history, score, name, *best[name], params.steps)
    found = [Guess(s, tuple(int(v) for v in row), score) for s, (row, score) in best.items()]
    return sorted(found, key=lambda g: -g.score)


def _best(rows: Rows, scores: Scores) -> tuple[Rows, float]:
    k = int(np.argmax(scores))
    return rows[k], float(scores[k])


def _climbed(
    history: History, score: Score, name: str, row: Rows, best: float, steps: int
) -> tuple[Rows, float]:
    """The row after steps to the best of all rows that differ in one hole, by one move of it."""
    holes = history.sketches[name].holes
    for _ in range(steps):
        near = []
        for k, hole in enumerate(holes):
            many = len(hole.options) > ALL_OPTIONS
            options = (
                neighbours(hole.options).of(row[k : k + 1])[0]
                if many
                else np.arange(len(hole.options))
            )
            options = np.unique(options[options != row[k]])
            changed = np.repeat(row[None], len(options), axis=0)
            changed[:, k] = options
            near.append(changed)
        rows = np.concatenate([row[None], *near]).astype(np.int32)
        rows = rows[history.legal(name, rows)]
        if not len(rows):
            break
        found, value = _best(rows, score({name: rows})[name])
        if value <= best:
            break
        row, best = found, value
    return row, best


def _next(
    history: History,
    score: Score,
    rng: np.random.Generator,
    pool: Mapping[str, tuple[Rows, Scores]],
    params: GuessParams,
) -> dict[str, tuple[Rows, Scores]]:
    """The next generation: the best rows, each sketch's best one, and mutants of the best."""
    names = list(pool)
    owner = np.concatenate([np.full(len(pool[s][0]), k) for k, s in enumerate(names)])
    flat = np.concatenate([pool[s][1] for s in names])
    rank = np.empty(len(flat))
    rank[np.argsort(-flat, kind="stable")] = np.arange(len(flat))
    parents = roulette(
        np.exp(-4.0 * rank / len(flat)), max(params.population, params.each * len(names)), rng
    )
    offset = np.cumsum([0, *(len(pool[s][0]) for s in names)])
    children = {}
    for k, name in enumerate(names):
        mothers = pool[name][0][parents[owner[parents] == k] - offset[k]]
        mutants = mutate(mothers, history.sketches[name].holes, rng)
        children[name] = mutants[unique_rows(mutants)]
    legal = history.legal_of(children)
    children = {name: rows[legal[name]] for name, rows in children.items()}
    scored = score(children)
    out = {}
    for k, name in enumerate(names):
        own = rank[owner == k]
        stay = (own < params.survivors) | (own == own.min())
        rows = np.concatenate([pool[name][0][stay], children[name]])
        scores = np.concatenate([pool[name][1][stay], scored[name]])
        once = unique_rows(rows)
        out[name] = rows[once], scores[once]
    return out
