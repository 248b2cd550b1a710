"""Policies against a recorded log: nothing is built or measured, so many seeds take seconds.

In: the records of one task, a large random log at best, and a policy. Out: what the policy would
have found, trial by trial. A candidate that was never measured is answered by the nearest record of
the same sketch that was not given out yet, and the policy is told about that one: every latency is
a real one of a real program, but a policy cannot find what the log does not hold. Use it to compare
policies, not to tune. Anything else that tells latencies (`Oracle`) can stand in for the log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.model import CostModel
from ansorlite.errors import LogError, UsageError
from ansorlite.records import Record
from ansorlite.schedule.holes import Hole
from ansorlite.search.budget import ROUND_SIZE, grown
from ansorlite.search.history import Candidate
from ansorlite.search.policy import EvolutionaryPolicy, RandomPolicy, SearchPolicy
from ansorlite.search.recorded import record_candidates
from ansorlite.space.sketch import Sketch
from ansorlite.task import SearchTask

MakePolicy = Callable[[Sequence[Sketch]], SearchPolicy]
Answer = Callable[[Sequence[Candidate]], tuple[list[Candidate], list[float]]]


class Oracle(Protocol):
    """Tells latencies of a task's candidates without measuring any."""

    task: SearchTask
    sketches: tuple[Sketch, ...]

    def answers(self) -> Answer:
        """For one run: a map of asked candidates to (answered candidates, seconds)."""
        ...


@dataclass(frozen=True)
class SimulatedRun:
    """The results that a policy was told, in order; seconds, inf for a failure."""

    candidates: tuple[Candidate, ...]
    latency_s: tuple[float, ...]

    def best_s(self, trials: int) -> float:
        """The best of the first so many trials; inf where none is valid."""
        return min(self.latency_s[:trials], default=float("inf"))


class RecordedTask:
    """The records of a task that are in its space, by sketch, as arrays."""

    def __init__(
        self, task: SearchTask, sketches: Sequence[Sketch], records: Sequence[Record]
    ) -> None:
        """Raises LogError where no valid record is in the space of the sketches."""
        self.task = task
        by_name = {s.name: s for s in sketches}
        found: dict[tuple[str, tuple[int, ...]], float] = {}
        found_in = record_candidates(task, by_name, records)
        self.left_out = found_in.count(None)
        for r, c in zip(records, found_in, strict=True):
            if c is not None:
                found[c.key] = min(r.lowest_s, found.get(c.key, float("inf")))
        self.latency_s = np.asarray(list(found.values()), dtype=np.float64)
        if not np.isfinite(self.latency_s).any():
            raise LogError(f"no valid record of {task.name} is in the space: record some first")
        self._keys = list(found)
        names = [name for name, _ in self._keys]
        self.sketches = tuple(s for s in sketches if s.name in names)
        self._at = {s.name: np.flatnonzero(np.asarray(names) == s.name) for s in self.sketches}
        self._places = {
            s.name: _places(s.holes, np.asarray([self._keys[k][1] for k in self._at[s.name]]))
            for s in self.sketches
        }

    @property
    def best_s(self) -> float:
        """The latency of the best record."""
        return float(self.latency_s.min())

    def __len__(self) -> int:
        return len(self._keys)

    def candidate(self, k: int) -> Candidate:
        """What was recorded at place k."""
        name, row = self._keys[k]
        return Candidate(next(s for s in self.sketches if s.name == name), row)

    def answers(self) -> Answer:
        """Of one run: the nearest records, each given out once."""
        given = np.zeros(len(self), dtype=np.bool_)

        def answer(asked: Sequence[Candidate]) -> tuple[list[Candidate], list[float]]:
            places = []
            for c in asked:
                k = self.nearest(c, given)
                if k is not None:
                    given[k] = True
                    places.append(k)
            return [self.candidate(k) for k in places], self.latency_s[places].tolist()

        return answer

    def nearest(self, c: Candidate, given: npt.NDArray[np.bool_]) -> int | None:
        """The place of the record nearest to a candidate among those that were not given out."""
        at = self._at.get(c.sketch.name)
        if at is None or given[at].all():
            return None
        here = _places(c.sketch.holes, np.asarray([c.row]))
        distance = np.abs(self._places[c.sketch.name] - here).sum(axis=1)
        return int(at[np.argmin(np.where(given[at], np.inf, distance))])


def _places(holes: Sequence[Hole], rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """float64[P, columns]: logarithms of the values, so that neighbours differ by a factor."""
    return np.concatenate(
        [np.log2(1.0 + h.table[rows[:, k].astype(np.int64)]) for k, h in enumerate(holes)]
        or [np.zeros((len(rows), 1))],
        axis=1,
    )


def simulate(
    oracle: Oracle,
    make: MakePolicy,
    n_trials: int,
    model: CostModel | None = None,
    round_size: int = ROUND_SIZE,
) -> SimulatedRun:
    """Let a policy search what is told; ends early where it asks nothing, or nothing is answered.

    `make` gets the sketches that are known. `model` is the policy's, trained before each round.
    Rounds grow to `round_size`, as when tuning.
    """
    policy = make(oracle.sketches)
    answer = oracle.answers()
    told: list[Candidate] = []
    times: list[float] = []
    round_ = 1
    while len(told) < n_trials:
        group = policy.training_group() if model is not None and told else None
        if model is not None and group is not None:
            model.update([group])
        n = min(grown(round_size, len(told)), n_trials - len(told))
        found, latency_s = answer(policy.ask(n, round_))
        if not found:
            break
        policy.tell(found, latency_s)
        told += found
        times += latency_s
        round_ += 1
    return SimulatedRun(tuple(told), tuple(times))


def simulate_policy(recorded: RecordedTask, name: str, n_trials: int, seed: int) -> SimulatedRun:
    """A policy by name, "evolutionary" or "random", as `tune` would use it.

    Raises UsageError for another name.
    """
    task = recorded.task
    place = task.target, seed, task.workload_key
    if name == "random":
        return simulate(recorded, lambda s: RandomPolicy(s, *place), n_trials)
    if name != "evolutionary":
        raise UsageError(f"no policy is called {name!r}: choose evolutionary or random")
    model = CorrectionModel(seed=seed)
    return simulate(recorded, lambda s: EvolutionaryPolicy(s, *place, model), n_trials, model)
