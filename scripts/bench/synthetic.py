"""Searches on synthetic machines: what a part of the search is worth, without noise, on many seeds.

In: a case of the suite, a policy of `ablations.POLICIES` and a seed. Out: a `RacedRun`. On a
machine that does not exist a program takes the cycles of the analytic estimate with constants that
are up to `SPREAD` octaves off those that the search knows, times luck of its own, which nothing
explains. What a part of the search gains there it gains where the estimate is wrong. Nothing is
built or measured: hundreds of runs take minutes, and they differ by their seeds alone.
"""

import time
import zlib
from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from ansorlite.baselines.simulate import Answer, simulate
from ansorlite.cost.analytic import Rates, Values, cycles, rates_of, score_of
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.features import FeaturePlan
from ansorlite.cost.names import AT
from ansorlite.schedule.holes import population_columns
from ansorlite.search.evolve import Rows
from ansorlite.search.history import Candidate
from ansorlite.search.searchers import Context, searcher
from ansorlite.space.sketch import Sketch
from ansorlite.target import Target
from ansorlite.task import SearchTask
from ansorlite.workloads import workload
from bench.ablations import POLICIES
from bench.runs import RacedRun

HERTZ = 3e9
SPREAD = 1.0  # octaves
LUCK = 0.05  # standard deviation of the logarithm of a program's latency


def machine_name(target: Target) -> str:
    """Stands for the target of such runs, whose spaces are those of this one."""
    return f"synthetic-{target.fingerprint}"


def synthetic_rates(known: Rates, rng: np.random.Generator, spread: float = SPREAD) -> Rates:
    """Constants of a machine, each up to so many octaves off."""
    off = {f.name: float(2.0 ** rng.uniform(-spread, spread)) for f in fields(known)}
    found = {name: getattr(known, name) * factor for name, factor in off.items()}
    return Rates(**found | {"serialised": min(1.0, found["serialised"])})


class SyntheticTask:
    """An oracle (see `baselines.simulate`): programs of a task on the machine of its name."""

    def __init__(
        self,
        task: SearchTask,
        sketches: Sequence[Sketch],
        spread: float = SPREAD,
        luck: float = LUCK,
    ) -> None:
        self.task, self.sketches, self.luck = task, tuple(sketches), luck
        rng = np.random.default_rng(zlib.crc32(task.name.encode()))
        self.rates = synthetic_rates(rates_of(task.target), rng, spread)
        self._plans = {s.name: FeaturePlan(s.program) for s in self.sketches}

    def answers(self) -> Answer:
        """Whatever is asked, always the same."""
        by_name = {s.name: s for s in self.sketches}

        def answer(asked: Sequence[Candidate]) -> tuple[list[Candidate], list[float]]:
            times = np.zeros(len(asked))
            for name in dict.fromkeys(c.sketch.name for c in asked):
                at = [k for k, c in enumerate(asked) if c.sketch.name == name]
                rows = np.asarray([asked[k].row for k in at], np.int32)
                times[at] = self.latency_s(by_name[name], rows)
            return list(asked), times.tolist()

        return answer

    def latency_s(self, sketch: Sketch, rows: Rows) -> Values:
        """float64[P], seconds."""
        columns = population_columns(sketch.holes, rows)
        found = self._plans[sketch.name].magnitudes(columns, len(rows), self.task.target)
        estimate = cycles(lambda name: found[:, AT[name]], self.rates)[-1]
        place = zlib.crc32(f"{self.task.name} {sketch.name}".encode())
        luck = [np.random.default_rng([place, *map(int, row)]).normal() for row in rows]
        return np.asarray(np.exp2(-score_of(estimate)) / HERTZ * np.exp(self.luck * np.array(luck)))


def run(policy: str, case: str, seed: int, trials: int, target: Target | None = None) -> RacedRun:
    """Search the synthetic machine of a case once; `target` (the host) sets vectors and caches."""
    p, task = POLICIES[policy], workload(case, target=target)
    by, start = searcher(p.policy), time.perf_counter()
    model = p.model(seed) if p.model else CorrectionModel(seed=seed)
    found = simulate(
        SyntheticTask(task, by.space(task, p.space)),
        lambda sketches: by.make(sketches, Context(task, seed, model, p.params)),
        trials,
        model,
    )
    wall_s = time.perf_counter() - start
    name = machine_name(task.target)
    return RacedRun(policy, case, seed, list(found.latency_s), wall_s, name, asked=trials)
