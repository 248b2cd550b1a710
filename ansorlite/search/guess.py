"""The best program by prediction alone: a short evolution where nothing will be measured.

In: sketches with their scores, rows to begin with. Out: the best row of each sketch that took part,
the best of all first. Where no measurement follows, only the best prediction counts: no diversity,
no second candidate. So a few hundred rows of the most promising sketches suffice; more of them
gained less than a hundredth of the predicted speed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ansorlite.search.evolve import Rows, mutate
from ansorlite.search.history import History, Scores
from ansorlite.search.select import roulette, unique_rows

Score = Callable[[str, Rows], Scores]


@dataclass(frozen=True)
class GuessParams:
    """How much is looked at."""

    looked_at: int = 16  # rows of each sketch, to find the promising ones
    draws: int = 12  # random draws for each of those rows, before the legality mask
    alive: int = 6  # sketches that breed
    population: int = 384
    generations: int = 10
    survivors: int = 64  # rows of all sketches that stay as they are


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
    pool: dict[str, tuple[Rows, Scores]] = {}
    for name in history.sketches:
        rows = history.sample(name, params.looked_at, params.draws, rng)
        if name in first:
            rows = np.concatenate([first[name], rows])
        if len(rows):
            pool[name] = rows, score(name, rows)
    best = sorted(pool, key=lambda s: -float(pool[s][1].max()))
    pool = {name: pool[name] for name in best[: params.alive]}
    for _ in range(params.generations if pool else 0):
        pool = _next(history, score, rng, pool, params)
    found = []
    for name, (rows, scores) in pool.items():
        k = int(np.argmax(scores))
        found.append(Guess(name, tuple(int(v) for v in rows[k]), float(scores[k])))
    return sorted(found, key=lambda g: -g.score)


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
    parents = roulette(np.exp(-4.0 * rank / len(flat)), params.population, rng)
    offset = np.cumsum([0, *(len(pool[s][0]) for s in names)])
    out = {}
    for k, name in enumerate(names):
        rows, scores = pool[name]
        own = rank[owner == k]
        stay = (own < params.survivors) | (own == own.min())
        mothers = rows[parents[owner[parents] == k] - offset[k]]
        children = mutate(mothers, history.sketches[name].holes, rng)
        children = children[unique_rows(children)]
        children = children[history.legal(name, children)] if len(children) else children
        rows, scores = rows[stay], scores[stay]
        if len(children):
            rows = np.concatenate([rows, children])
            scores = np.concatenate([scores, score(name, children)])
            once = unique_rows(rows)
            rows, scores = rows[once], scores[once]
        out[name] = rows, scores
    return out
