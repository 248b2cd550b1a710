"""Expressions a thousand operations deep go through every level; deeper ones are refused."""

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from native import run_native
from sampled import some_or_all

from ansorlite import te
from ansorlite.cost.features import FeaturePlan
from ansorlite.errors import ModelError
from ansorlite.ir import deep
from ansorlite.ir.deep import MAX_DEPTH, SHALLOW, recursion_starts
from ansorlite.ir.expr import Const, Expr, Op
from ansorlite.ir.inside import verify_inside
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import stores_under
from ansorlite.ir.traverse import children, loads, substitute, walk
from ansorlite.measure.inputs import random_inputs
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.space.plain import plain_state
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

DEEP = 1000
X = te.placeholder((16,), name="X")


def _sum(i: Expr) -> Expr:
    e = X[i]
    for k in range(DEEP):
        e = te.maximum(e * 0.5, X[i]) if k % 2 else e + 1.0
    return e


def _selects(i: Expr) -> Expr:
    e = X[0]
    for k in range(DEEP):
        e = te.select(i < DEEP - k, X[te.minimum(te.maximum(i - (DEEP - k - 1), 0), 15)], e)
    return e


def _selects_by_value(i: Expr) -> Expr:
    e = X[i]
    for k in range(DEEP):
        e = te.select(X[i] < k * 0.001, e + 1.0, X[i])
    return e


def _index(i: Expr) -> Expr:
    e: Expr = i
    for k in range(DEEP // 2):
        e = te.minimum(e + k % 2, 15) if k % 3 else te.maximum(e - 1, k % 5)
    return X[e]


def _product(i: Expr) -> Expr:
    e = X[i]
    for _ in range(DEEP):
        e = e * 1.001
    return e


BODIES: dict[str, Callable[[Expr], Expr]] = {
    "a sum": _sum,
    "selects": _selects,
    "selects by value": _selects_by_value,
    "an index": _index,
    "a product": _product,
}


@pytest.mark.parametrize("name", BODIES)
def test_every_level_takes_what_is_deep(name: str) -> None:
    y = te.compute((16,), BODIES[name], name="Y")
    dag = te.ComputeDAG([y])
    assert dag.workload_key and str(dag) == str(pickle.loads(pickle.dumps(dag)))
    assert copy.deepcopy(dag).ops == dag.ops
    inputs = random_inputs(dag, 0)
    expected = dag.evaluate(inputs)["Y"]
    points = te.evaluate_points(dag, inputs, "Y", np.arange(16)[:, None])
    np.testing.assert_allclose(points, expected, rtol=1e-6)
    plain = lower(plain_state(dag, Target.detect()))
    verify_inside(plain)
    np.testing.assert_allclose(interpret(plain, inputs)["Y"], expected, rtol=1e-4)
    sketch = sketches(dag, Target.detect())[0]
    rows = sketch.sample(2, np.random.default_rng(0))
    columns = population_columns(sketch.holes, rows)
    assert np.isfinite(FeaturePlan(sketch.program)(columns, 2, Target.detect())).all()


@some_or_all(2)
def test_code_is_generated_for_what_is_deep(every: int) -> None:
    for body in (_sum, _selects_by_value)[::every]:
        dag = te.ComputeDAG([te.compute((16,), body, name="Y")])
        inputs = random_inputs(dag, 0)
        got = run_native(lower(plain_state(dag, Target.detect())), inputs, Target.detect())
        np.testing.assert_allclose(got["Y"], dag.evaluate(inputs)["Y"], rtol=1e-4)


def test_deep_expressions_are_equal_by_structure() -> None:
    i = te.compute((16,), lambda i: X[i]).op.axes[0].var  # type: ignore[union-attr]
    y = te.compute((16,), _product).op.body  # type: ignore[union-attr]
    again = te.compute((16,), _product).op.body  # type: ignore[union-attr]
    assert y is not again and y == again and hash(y) == hash(again)
    moved = substitute(y, {"i": Const(3)})
    assert moved != y and substitute(moved, {}) == moved
    assert {str(i)} == set(y.free) and y.depth > DEEP and y.size == len(list(walk(y)))
    assert len(loads(y)) == 1 and pickle.loads(pickle.dumps(y)) == y


def test_a_recursion_lands_within_a_few_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also down the shorter of two operands."""
    monkeypatch.setattr(deep, "MAX_NODES", float("inf"))
    x, y = Const(1.0, "float32"), Op("exp", (Const(2.0, "float32"),), "float32")
    for _ in range(300):
        x, y = y, Op("add", (x, y), "float32")  # type: ignore[assignment]
    done: set[int] = set()

    def levels(e: Expr) -> int:
        found = max((levels(c) for c in children(e) if id(c) not in done), default=0)
        done.add(id(e))
        return found + 1

    for e in [*recursion_starts(y, children), y]:
        assert levels(e) <= SHALLOW + 1


def test_what_is_too_deep_or_too_much_is_refused() -> None:
    def deeper(i: Expr) -> Expr:
        e = X[i]
        for _ in range(MAX_DEPTH):
            e = e + 1.0
        return e

    with pytest.raises(ModelError, match="operations deep, more than 10000: compute a part"):
        te.compute((16,), deeper, name="Y")

    def doubled(times: int) -> Callable[[Expr], Expr]:
        def body(i: Expr) -> Expr:
            e = X[i]
            for _ in range(times):
                e = e + e
            return e

        return body

    with pytest.raises(ModelError, match="operations when written out, more than 200000"):
        te.compute((16,), doubled(17), name="Y")
    with pytest.raises(ModelError, match="an expression has more than 1048576 operations"):
        te.compute((16,), doubled(60), name="Y")


def test_what_would_be_too_much_is_not_inlined() -> None:
    """Each of 16 stages reads the one before twice: written out, 65,536 reads."""
    y = X
    for _ in range(16):
        y = te.elementwise(y, lambda v: v * v, "squared")
    dag = te.ComputeDAG([y])
    inputs = {"X": np.ones(16, np.float32)}
    (name,) = dag.output_names
    found = sketches(dag, Target.cross("x86-avx2"))[0]
    p = found.fill(found.sample(1, np.random.default_rng(0))[0])
    assert sum(len(list(walk(s.value))) for s, _ in stores_under(p.body)) < 20_000
    np.testing.assert_allclose(interpret(p, inputs)[name], dag.evaluate(inputs)[name], rtol=0.02)
