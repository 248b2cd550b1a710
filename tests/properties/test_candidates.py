"""Properties of every candidate: random rows of random sketches of random DAGs.

Each property runs on the same seeded stream of candidates, two dozen DAGs by default and
thousands with `-m slow`; hypothesis looks for small counterexamples to all of them at once.
"""

import json
import pickle
from collections import Counter

import numpy as np
import pytest
from candidates import Candidate, draw_candidates, drawn, named_starts
from hypothesis import given, settings
from hypothesis import strategies as st
from native import run_native
from random_dags import Case, dags

from ansorlite.cost.features import features
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import Program, stores_under, verify
from ansorlite.ir.specialize import specialize
from ansorlite.ir.traverse import walk
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import state_from_json
from ansorlite.space.legality import legal
from ansorlite.space.plain import plain_state

SLOW = 3000


def check_fill_is_lower(c: Candidate) -> None:
    """Filling the lowered sketch prints what lowering the filled state prints."""
    assert str(c.program) == str(lower(c.state)), str(c)
    verify(c.sketch.program)
    verify(c.program)


def check_json(c: Candidate) -> None:
    """Steps survive JSON; so do the hole values, by name."""
    steps = json.loads(json.dumps(c.state.to_json()))
    assert str(lower(state_from_json(c.case.dag, steps))) == str(c.program), str(c)
    values = {k: tuple(v) for k, v in json.loads(json.dumps(c.values)).items()}
    assert c.sketch.row(values).tolist() == c.row.tolist()


def check_pickle(c: Candidate) -> None:
    """Programs and sketches travel to other processes."""
    again = pickle.loads(pickle.dumps(c.program))
    assert again == c.program and str(again) == str(c.program)
    sketch = pickle.loads(pickle.dumps(c.sketch))
    assert str(sketch.program) == str(c.sketch.program) and sketch.holes == c.sketch.holes


def check_meaning_and_counts(c: Candidate) -> None:
    """The interpreter computes what numpy computes, in as many executions as `Store.count` says.

    Root and aligned stages are counted exactly, others from above.
    """
    if not c.short:
        return
    counts: Counter[str] = Counter()
    c.interpret(named_starts(c.program, c.state), counts)
    for store, claimed in c.executions.items():
        stage = c.state.schedule[store.removesuffix(".init")]
        exact = stage.location == "root"
        if isinstance(stage.location, tuple):
            target = c.state.schedule[stage.location[0]]
            exact = target.leader == stage.name and target.location == "root"
        ran = counts[store]
        assert ran == claimed if exact else ran <= claimed, f"{store}: {ran}, {claimed}\n{c}"


def check_specialized(c: Candidate) -> None:
    """Specialising keeps the meaning and makes a legal program."""
    ready = specialize(c.program)
    verify(ready)
    if c.short:
        c.interpret(ready)


def check_mask(c: Candidate) -> None:
    """Legality of a row does not depend on the rows beside it."""
    sketch, rows = c.sketch, c.population
    mask = legal(sketch.program, population_columns(sketch.holes, rows), len(rows), c.target)
    for row, ok in zip(rows, mask, strict=True):
        alone = population_columns(sketch.holes, row[None])
        assert legal(sketch.program, alone, 1, c.target).tolist() == [ok], str(c)


def _operations(p: Program) -> list[list[str]]:
    """Per store: the operations and reads of its value."""
    values = [s.value for s, _ in stores_under(p.body)]
    return [sorted(getattr(e, "name", type(e).__name__) for e in walk(v)) for v in values]


def check_features(c: Candidate) -> None:
    """Features of a population's row are those of the filled program.

    Unless the ranges of its loops decide a guard or an index: then the program does less.
    """
    sketch, rows = c.sketch, c.population
    if _operations(sketch.program) != _operations(c.program):
        return
    batch = features(sketch.program, population_columns(sketch.holes, rows), len(rows), c.target)
    k = int(np.flatnonzero((rows == c.row).all(axis=1))[0])
    np.testing.assert_allclose(
        batch[k], features(c.program, {}, 1, c.target)[0], rtol=1e-5, atol=1e-5, err_msg=str(c)
    )


def check_native(c: Candidate) -> None:
    """The compiled kernel computes what numpy computes."""
    got = run_native(c.program, c.inputs, c.target)
    c.case.check(got, c.expected, f"{c}\n{c.program}")


PROPERTIES = (
    check_fill_is_lower,
    check_json,
    check_pickle,
    check_meaning_and_counts,
    check_specialized,
    check_mask,
    check_features,
)


def _seeds(fast: int, slow: int) -> list[object]:
    """Seeds of the default tier, then chunks of a hundred seeds of the slow one."""
    chunks = [range(a, min(a + 100, slow)) for a in range(fast, slow, 100)]
    slow_ones = [pytest.param(c, marks=pytest.mark.slow, id=f"{c[0]}..{c[-1]}") for c in chunks]
    return [pytest.param(range(k, k + 1), id=str(k)) for k in range(fast)] + slow_ones


@pytest.mark.parametrize("seeds", _seeds(24, SLOW))
def test_properties(seeds: range) -> None:
    for seed in seeds:
        for c in drawn(seed):
            for check in PROPERTIES:
                check(c)


@pytest.mark.parametrize("seeds", _seeds(24, SLOW))
def test_native(seeds: range) -> None:
    for seed in seeds:
        check_native(drawn(seed)[0])


@pytest.mark.parametrize("seeds", _seeds(12, 500))
def test_the_plain_schedule(seeds: range) -> None:
    for seed in seeds:
        c = drawn(seed)[0]
        program = lower(plain_state(c.case.dag, c.target))
        c.case.check(interpret(program, c.inputs), c.expected, f"{c.case.dag}\n{program}")
        c.case.check(run_native(program, c.inputs, c.target), c.expected, f"plain\n{program}")


def _all_properties(case: Case, seed: int) -> None:
    for c in draw_candidates(case, np.random.default_rng(seed), 1):
        for check in PROPERTIES:
            check(c)


@settings(max_examples=10)
@given(dags(max_stages=3), st.integers(0, 1 << 20))
def test_small_counterexamples(case: Case, seed: int) -> None:
    _all_properties(case, seed)


@pytest.mark.slow
@settings(max_examples=1000)
@given(dags(max_stages=4), st.integers(0, 1 << 20))
def test_more_counterexamples(case: Case, seed: int) -> None:
    _all_properties(case, seed)
