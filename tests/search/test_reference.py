"""The reference that candidates are compared with: the plain schedule, tiled for heavy tasks."""

import numpy as np
import pytest
from native import run_native

import ansorlite as al
from ansorlite import te
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.search import reference
from ansorlite.search.reference import is_heavy, reference_state
from ansorlite.space.plain import plain_state
from ansorlite.target import Target


def task() -> al.SearchTask:
    """A convolution whose weights are constant, with an addition behind it."""
    x = te.placeholder((1, 9, 9, 5), name="X")
    w = te.placeholder((3, 3, 5, 11), name="W", constant=True)
    kh, kw, c = (te.reduce_axis(n, a) for n, a in ((3, "kh"), (3, "kw"), (5, "c")))
    y = te.compute(
        (1, 7, 7, 11),
        lambda n, i, j, o: te.sum(x[n, i + kh, j + kw, c] * w[kh, kw, c, o], axis=[kh, kw, c]),
        name="Y",
    )
    return al.SearchTask(te.compute((1, 7, 7, 11), lambda *i: y[i] + 1.0, name="Z"), Target())


def test_light_tasks_have_the_plain_schedule() -> None:
    assert not is_heavy(task())
    assert str(reference_state(task())) == str(plain_state(task().dag, Target()))
    assert is_heavy(al.workload("C3D", 3, batch=16))


def test_heavy_tasks_have_a_tiled_one_with_double_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "HEAVY_FLOP", 1.0)
    state = reference_state(task())
    assert str(state) == str(reference_state(task()))
    program = lower(state)
    assert "register" in str(specialize(program))
    assert any(b.dtype == "float64" for b in state.dag.computes)
    rng = np.random.default_rng(0)
    arrays = {
        p.name: rng.standard_normal([int(str(e)) for e in p.shape]).astype(np.float32)
        for p in task().dag.inputs
    }
    want = task().dag.evaluate(arrays)["Z"]
    got = run_native(program, arrays, Target())["Z"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_heavy_tasks_are_tuned_without_the_plain_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "HEAVY_FLOP", 1.0)
    found = al.tune(task(), n_trials=6, progress=False)
    assert found.best is not None and len(found.records) == 6
    assert all(r.sketch != "plain" and r.round > 0 for r in found.records)
