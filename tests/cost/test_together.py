"""Features, scores and legality of several programs at once are those of each alone."""

import numpy as np
import pytest

from ansorlite import te
from ansorlite.cost import planned as planned_module
from ansorlite.cost.fast_analytic import fast_analytic_scores
from ansorlite.cost.features import FeaturePlan, features_of
from ansorlite.cost.planned import Population
from ansorlite.errors import AnsorliteError
from ansorlite.ir.evaluation import PART, Candidates, Evaluation
from ansorlite.ir.expr import Var, integer
from ansorlite.ir.ranges import Evaluator
from ansorlite.ir.tape import ONE, ZERO, Tape
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.space import legality
from ansorlite.space.legality import Legality, legal, legal_of
from ansorlite.space.sketch import Sketch, sketches
from ansorlite.target import Target
from ansorlite.workloads import workload

TARGETS = tuple(Target.cross(name, 2) for name in ("x86-avx2", "cortex-a76"))
COUNTS = (40, 0, 1, PART, 3)  # candidates of each sketch in turn


def some_sketches(target: Target) -> list[Sketch]:
    """Of tasks with padding, a pool of a sum, several stages: different depths and accesses."""
    found = [sketches(workload(c, target=target).dag, target) for c in ("DEP:2", "GMM:1", "SFM:1")]
    return [s for own in found for s in own[:: max(1, len(own) // 4)]]


def populations(target: Target) -> list[tuple[Sketch, dict[str, np.ndarray], int]]:
    out = []
    for k, s in enumerate(some_sketches(target)):
        rows = s.sample(64, np.random.default_rng(k))[: COUNTS[k % len(COUNTS)]]
        out.append((s, population_columns(s.holes, rows), len(rows)))
    return out


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("block", [planned_module.BLOCK_ROWS, 50])
def test_features_of_many_sketches_are_those_of_each(
    target: Target, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = populations(target)
    plans = [FeaturePlan(s.program) for s, *_ in asked]
    alone = [p(columns, n, target) for p, (_, columns, n) in zip(plans, asked, strict=True)]
    monkeypatch.setattr(planned_module, "BLOCK_ROWS", block)  # cuts populations
    together: list[Population] = [
        p.population(columns, n, target) for p, (_, columns, n) in zip(plans, asked, strict=True)
    ]
    for one, found in zip(alone, features_of(together, target), strict=True):
        np.testing.assert_array_equal(one, found)
    scores = fast_analytic_scores(together, target)
    for p, own in zip(together, scores, strict=True):
        np.testing.assert_array_equal(own, fast_analytic_scores([p], target)[0])


@pytest.mark.parametrize("block", [legality.BLOCK_ROWS, 50])
def test_legality_of_many_sketches_is_that_of_each(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TARGETS[0]
    asked = populations(target)
    alone = [legal(s.program, columns, n, target) for s, columns, n in asked]
    monkeypatch.setattr(legality, "BLOCK_ROWS", block)
    together = legal_of([(Legality(s.program, target), columns, n) for s, columns, n in asked])
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert 0 < sum(int(a.sum()) for a in alone) < sum(n for *_, n in asked)


def test_no_programs_at_all() -> None:
    assert features_of([], TARGETS[0]) == [] and legal_of([]) == []


def test_a_statement_without_loops() -> None:
    """A sum of nothing but a scalar: no level, no dimension."""
    x = te.placeholder((), name="x")
    program = lower(State(te.ComputeDAG([te.compute((), lambda: x[()] * 2.0, "y")])))
    k = te.reduce_axis(8, "k")
    v = te.placeholder((8,), name="v")
    other = lower(State(te.ComputeDAG([te.compute((), lambda: te.sum(v[k], axis=[k]), "z")])))
    plans = [FeaturePlan(p) for p in (program, other)]
    target = TARGETS[0]
    found = features_of([p.population({}, 1, target) for p in plans], target)
    for plan, own in zip(plans, found, strict=True):
        assert np.isfinite(own).all()
        np.testing.assert_array_equal(own, plan({}, 1, target))


def test_a_tape_has_the_values_of_its_expressions() -> None:
    a, b = Var("a", "hole"), Var("b", "hole")
    cases = [
        a * b + 3 * a - 7,
        (a * 5 + 2) // b,
        (a * 5 - 40) % b,
        te.select(a < b, a * 2, b),
        te.minimum(te.maximum(a, b * 2), 9),
        integer(4),
    ]
    rng = np.random.default_rng(0)
    columns = {name: rng.integers(1, 30, 70) for name in ("a", "b")}
    tape, other = Tape(), Tape()
    numbers = [tape.of(e) for e in cases]
    wanted = Evaluator(columns)
    found = Evaluation(
        [other.arrays(), tape.arrays()], [Candidates({}, 0), Candidates(columns, 70)]
    )
    for e, number in zip(cases, numbers, strict=True):
        np.testing.assert_array_equal(
            found.of(1, number), np.broadcast_to(wanted(e), (70,)), err_msg=str(e)
        )


def test_a_tape_computes_equal_values_once() -> None:
    tape, a = Tape(), Tape.of
    x, y = a(tape, Var("x", "hole")), a(tape, Var("y", "hole"))
    assert tape.apply(np.add, x, y) == tape.apply(np.add, y, x)
    assert tape.apply(np.subtract, x, y) != tape.apply(np.subtract, y, x)
    assert tape.apply(np.multiply, x, ONE) == x and tape.apply(np.add, ZERO, y) == y
    assert tape.apply(np.multiply, tape.const(3.0), tape.const(2.0)) == tape.const(6.0)
    assert tape.fold(np.multiply, [], ONE) == ONE


def test_a_variable_without_a_column_is_named() -> None:
    tape = Tape()
    tape.of(Var("C.i:1", "hole") * 2)
    with pytest.raises(AnsorliteError, match=r"no value is given for C\.i:1"):
        Evaluation([tape.arrays()], [Candidates({}, 1)])
