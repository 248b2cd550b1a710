"""Random candidates for the property tests: rows of random sketches of random DAGs.

`drawn(seed)` returns the candidates of one DAG of a seeded stream; all properties share them.
`draw_candidates` makes the candidates of any case. In: a seed. Out: `Candidate`s with their inputs
and numpy's outputs.
"""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from random_dags import Case, seeded_dag

from ansorlite.errors import ScheduleError
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import Block, If, Program, Stmt, Store, stores_under
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import ComputeAt
from ansorlite.space.annotate import annotate
from ansorlite.space.rules import derive
from ansorlite.space.sketch import Sketch, SpaceOptions, location_candidates, sketches
from ansorlite.target import Target

Arrays = dict[str, npt.NDArray[Any]]
SPACES = (
    SpaceOptions(max_sketches=24),
    SpaceOptions(max_sketches=12),
    SpaceOptions(packing=False, locations=False),
    SpaceOptions(packing=False, max_sketches=30),
)
TOO_LONG = 20_000  # executions of stores that are not worth interpreting


@dataclass(frozen=True)
class Candidate:
    """One row of a sketch; `population` holds it and its neighbours."""

    case: Case
    inputs: Arrays
    expected: Arrays
    target: Target
    sketch: Sketch
    population: npt.NDArray[np.int32]
    row: npt.NDArray[np.int32]

    @property
    def values(self) -> dict[str, tuple[int, ...]]:
        return self.sketch.values(self.row)

    @cached_property
    def state(self) -> State:
        return self.sketch.state.fill(self.values)

    @cached_property
    def program(self) -> Program:
        return self.sketch.fill(self.row)

    @cached_property
    def executions(self) -> dict[str, int]:
        """Store -> executions that the program claims; start values count as `stage.init`."""
        out: dict[str, int] = {}
        for s, _ in stores_under(named_starts(self.program, self.state).body):
            out[s.stage] = out.get(s.stage, 0) + math.prod(int(str(f)) for f in s.count)
        return out

    @property
    def short(self) -> bool:
        """Is the program worth interpreting?"""
        return sum(self.executions.values()) <= TOO_LONG

    def interpret(self, program: Program, counts: Counter[str] | None = None) -> None:
        got = interpret(program, self.inputs, counts)
        self.case.check(got, self.expected, f"{self}\n{program}")

    def __str__(self) -> str:
        return f"{self.case.dag}\nsketch {self.sketch.name}, {self.values}\n"


def draw_candidates(
    case: Case, rng: np.random.Generator, n: int = 2, host: Target | None = None
) -> list[Candidate]:
    """`n` candidates of random sketches for `host`, by default this machine.

    Twenty cores now and then, so that rfactor is skipped, and caches that hold no output.
    """
    host = host or Target()
    caches = int(rng.choice([host.l3_bytes, 512]))
    target = replace(host, cores=int(rng.choice([1, 2, 20])), l3_bytes=caches)
    if rng.random() < 0.5:
        found = sketches(case.dag, target, SPACES[int(rng.integers(len(SPACES)))])
    else:
        found = [_walk(case, target, rng) for _ in range(n)]
    inputs = case.inputs(int(rng.integers(1 << 30)))
    expected = case.dag.evaluate(inputs)
    out = []
    for k in rng.integers(0, len(found), n):
        population = found[k].sample(5, rng)
        row = population[int(rng.integers(5))]
        out.append(Candidate(case, inputs, expected, target, found[k], population, row))
    return out


def _walk(case: Case, target: Target, rng: np.random.Generator) -> Sketch:
    """A random structure with several stages moved to random places, one after the other."""
    derived = derive(State(case.dag), target)
    state, fired = derived[int(rng.integers(len(derived)))]
    for _ in range(int(rng.integers(1, 5))):
        places = [
            ComputeAt(s.name, *place)
            for s in state.schedule.stages
            for place in location_candidates(state, s.name)
        ]
        if places:
            with suppress(ScheduleError):
                moved = state.apply(places[int(rng.integers(len(places)))])
                lower(moved)
                state = moved
    return Sketch("walk", annotate(state, target), fired)


@lru_cache(maxsize=64)
def drawn(seed: int) -> tuple[Candidate, ...]:
    """The candidates of seed `seed`; most DAGs are small."""
    rng = np.random.default_rng(seed)
    case = seeded_dag(rng, max_stages=int(rng.choice([1, 2, 3, 3, 5])))
    return tuple(draw_candidates(case, rng))


def named_starts(program: Program, state: State) -> Program:
    """The program with the start values of reductions counted under `stage.init`."""

    def rename(s: Stmt) -> Stmt:
        match s:
            case Store():
                start = s.combiner is None and state.schedule[s.stage].compute.combiner
                return replace(s, stage=f"{s.stage}.init") if start else s
            case Block():
                return Block(tuple(map(rename, s.stmts)))
            case If():
                return If(s.cond, rename(s.then), s.orelse and rename(s.orelse))
            case _:
                return replace(s, body=rename(s.body))

    return replace(program, body=rename(program.body))
