"""Shrunken versions of heavy tasks: which axes may be cut, and which records carry over."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sampled import sampled
from search_cases import PEAK, Pretender

import ansorlite as al
import ansorlite.search.session as session_module
from ansorlite import te
from ansorlite.measure.runner import CheckSpec, PrepareResult
from ansorlite.records import read_log
from ansorlite.search import reference, shrink_task
from ansorlite.search.shrink_task import adapted, passed_on, shrunk
from ansorlite.search.tune import tune
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.te.tensor import Tensor


def conv(batch: int = 6) -> al.SearchTask:
    """relu(convolution of padded images), weights constant."""
    x = te.placeholder((batch, 8, 8, 4), name="X")
    w = te.placeholder((3, 3, 4, 16), name="W", constant=True)

    def inside(n: te.Expr, i: te.Expr, j: te.Expr, c: te.Expr) -> te.Expr:
        hit = te.all(i >= 1, i < 9, j >= 1, j < 9)
        return te.select(hit, x[n, i - 1, j - 1, c], 0.0)

    p = te.compute((batch, 10, 10, 4), inside, name="P")
    kh, kw, c = (te.reduce_axis(n, a) for n, a in ((3, "kh"), (3, "kw"), (4, "c")))
    y = te.compute(
        (batch, 8, 8, 16),
        lambda n, i, j, o: te.sum(p[n, i + kh, j + kw, c] * w[kh, kw, c, o], axis=[kh, kw, c]),
        name="Y",
    )
    return al.SearchTask(te.relu(y), Target(), "conv")


@pytest.fixture
def heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is heavy, and little is enough to practise on."""
    monkeypatch.setattr(reference, "HEAVY_FLOP", 1.0)
    monkeypatch.setattr(shrink_task, "PROXY_FLOP", 1.0)
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)


def test_a_short_batch_computes_the_first_images(heavy: None) -> None:
    whole, short = conv(), shrunk(conv())
    assert short is not None and short.name == "conv (short)"
    assert [op.shape[0] for op in short.dag.ops] == [1, 1, 3, 1, 1]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 8, 8, 4)).astype(np.float32)
    w = rng.standard_normal((3, 3, 4, 16)).astype(np.float32)
    name = whole.dag.output_names[0]
    want = whole.dag.evaluate({"X": x, "W": w})[name][:1]
    np.testing.assert_array_equal(short.dag.evaluate({"X": x[:1], "W": w})[name], want)


def test_light_tasks_and_small_batches_are_not_cut(heavy: None) -> None:
    assert shrunk(conv(1)) is None
    reference.HEAVY_FLOP = 1e12
    assert shrunk(conv()) is None


def reversed_(x: Tensor) -> Tensor:
    return te.compute((6, 8), lambda n, i: x[5 - n, i], name="Y")


def masked(x: Tensor) -> Tensor:
    return te.compute((6, 8), lambda n, i: te.select(n >= 3, x[n, i], 0.0), name="Y")


def summed(x: Tensor) -> Tensor:
    k = te.reduce_axis(6, "k")
    total = te.compute((8,), lambda i: te.sum(x[k, i], axis=k), name="S")
    return te.compute((6, 8), lambda n, i: x[n, i] - total[i], name="Y")


def squared(x: Tensor) -> Tensor:
    return te.compute((6, 6), lambda n, m: x[n, 0] * x[m, 1], name="Y")


@pytest.mark.parametrize("make", [reversed_, masked, summed, squared])
def test_axes_that_are_not_passed_on_are_not_cut(make: Callable[[Tensor], Tensor]) -> None:
    dag = te.ComputeDAG([make(te.placeholder((6, 8), name="X"))])
    assert not passed_on(dag, 0)


def test_axes_of_constants_are_not_cut() -> None:
    w = te.placeholder((6, 8), name="W", constant=True)
    assert not passed_on(te.ComputeDAG([te.compute((6, 8), lambda n, i: w[n, i] + 1.0)]), 0)


def test_values_of_another_extent_are_adapted(heavy: None) -> None:
    whole = {s.name: s for s in sketches(conv().dag, Target())}
    short = shrunk(conv())
    assert short is not None
    common = [s for s in sketches(short.dag, Target()) if s.name in whole]
    assert len(common) > 4
    for s in common:
        row = s.sample(1, np.random.default_rng(3))[0]
        values = whole[s.name].values(adapted(whole[s.name], s.values(row)))
        for name, v in s.values(row).items():
            assert values[name] == v  # the batch has no hole in the short one
    hole = next(h for h in whole["s0"].holes if h.kind == "tile")
    row = adapted(whole["s0"], {hole.name: tuple(1000 for _ in hole.columns)})
    assert max(whole["s0"].values(row)[hole.name]) > 1


@pytest.mark.slow
def test_practice_comes_first_and_counts(heavy: None, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    pretender = Pretender()

    def run(n: int) -> al.TuneResult:
        return tune(conv(), n, log=log, builder=pretender, runner=pretender, progress=False, seed=1)

    found = run(24)
    assert found.trials == 24 and 8 <= found.practised < 24
    of_whole = [r.task == conv().workload_key for r in read_log(log).records]
    assert of_whole == sorted(of_whole) and sum(of_whole) == len(found.records)
    again = run(30)
    assert again.trials == 30 and len(again.records) > len(found.records)


@pytest.mark.parametrize("n", sampled([1, 2, 8], 2))
def test_small_budgets_are_not_spent_on_practice_alone(heavy: None, n: int) -> None:
    pretender = Pretender()
    found = tune(conv(), n, builder=pretender, runner=pretender, progress=False)
    assert found.best is not None and found.trials == n and found.practised <= n // 2


def test_what_was_practised_is_not_lost(heavy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after the practice: the best of that, unmeasured, on the whole task."""
    pretender = Pretender()
    key = conv().workload_key
    told = pretender.prepare

    def prepare(task_key: str, spec: CheckSpec) -> PrepareResult:
        if task_key == key:
            raise KeyboardInterrupt
        return told(task_key, spec)

    monkeypatch.setattr(pretender, "prepare", prepare)
    found = tune(conv(), 40, builder=pretender, runner=pretender, progress=False)
    assert found.interrupted and found.best is None and found.practised > 0
    assert "X: float32[6, 8, 8, 4]" in str(found.program)
