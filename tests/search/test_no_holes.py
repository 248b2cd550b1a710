"""Tasks whose sketches have no holes are searched, measured and compiled like all others."""

from collections.abc import Callable

import numpy as np
import pytest
from sampled import sampled

import ansorlite
from ansorlite import te
from ansorlite.cost.model import GBDTModel, RandomModel
from ansorlite.measure.inputs import random_inputs
from ansorlite.search.evolve import crossover, mutate
from ansorlite.search.searchers import SEARCHERS, Context
from ansorlite.task import SearchTask


def _softmax_of_one() -> SearchTask:
    x = te.placeholder((1,), name="X")
    k, r = te.reduce_axis(1, "k"), te.reduce_axis(1, "r")
    top = te.compute((), lambda: te.max(x[k], axis=k), name="top")
    total = te.compute((), lambda: te.sum(te.exp(x[r] - top[()]), axis=r), name="total")
    return SearchTask([te.compute((1,), lambda i: te.exp(x[i] - top[()]) / total[()], name="Y")])


def _total() -> SearchTask:
    x, k = te.placeholder((7,), name="X"), te.reduce_axis(7, "k")
    return SearchTask([te.compute((), lambda: te.sum(x[k], axis=k), name="Y")])


def _place_of_the_largest() -> SearchTask:
    x, k, r = te.placeholder((3,), name="X"), te.reduce_axis(3, "k"), te.reduce_axis(3, "r")
    top = te.compute((), lambda: te.max(x[k], axis=k), name="top")
    at = te.compute(
        (), lambda: te.min(te.select(x[r] >= top[()], te.cast(r, "int64"), 3), axis=r), name="Y"
    )
    return SearchTask([at])


def _no_axis() -> SearchTask:
    x = te.placeholder((), name="X")
    return SearchTask([te.compute((), lambda: x[()] + 1.0, name="Y")])


def _one_element() -> SearchTask:
    x = te.placeholder((1, 1), name="X")
    return SearchTask([te.compute((1, 1), lambda i, j: x[i, j] * 2.0, name="Y")])


TASKS: dict[str, Callable[[], SearchTask]] = {
    "softmax of one element": _softmax_of_one,
    "a total": _total,
    "the place of the largest": _place_of_the_largest,
    "no axis": _no_axis,
    "one element": _one_element,
}
NEED_MORE = {"template-treegru"}  # than what is always installed


@pytest.mark.parametrize("task", sampled(TASKS, 2))
def test_every_policy_asks_for_programs(task: str) -> None:
    made = TASKS[task]()
    for name, searcher in SEARCHERS.items():
        if name in NEED_MORE:
            continue
        model = RandomModel(np.random.default_rng(0)) if name == "one-shot" else GBDTModel(seed=0)
        space = searcher.space(made, None)
        policy = searcher.make(space, Context(made, 0, model))
        asked = policy.ask(8, 0)
        assert asked, name
        policy.tell(asked, [1e-6] * len(asked))
        policy.ask(8, 1)


def test_moves_of_rows_without_columns() -> None:
    rng, rows = np.random.default_rng(0), np.zeros((5, 0), np.int32)
    sketch = SEARCHERS["random"].space(_no_axis(), None)[0]
    assert not sketch.holes
    for moved in (
        mutate(rows, (), rng),
        crossover(rows, rows, (), rng),
    ):
        assert moved.shape == (5, 0) and moved.dtype == np.int32


@pytest.mark.parametrize("task", ["softmax of one element", "no axis"])
def test_kernels_are_compiled_and_right(task: str) -> None:
    made = TASKS[task]()
    inputs = random_inputs(made.dag, 0)
    for n_trials in (0, 8):
        result = ansorlite.tune(made, n_trials=n_trials, progress=False)
        got = result.kernel(*inputs.values())
        np.testing.assert_allclose(got, made.dag.evaluate(inputs)["Y"], rtol=1e-5)
