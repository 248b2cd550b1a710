"""Programs that nothing is measured of: as good as a thorough search predicts, with less work."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampled import sampled
from search_cases import matmul, matmul_form

import ansorlite as al
from ansorlite.codegen import object_cache
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.search import untuned as module
from ansorlite.search.debug import Trace
from ansorlite.search.history import History
from ansorlite.search.policy import EvolutionaryPolicy
from ansorlite.search.roles import family_of
from ansorlite.search.shipped import NONE
from ansorlite.search.untuned import Untuned
from ansorlite.space.sketch import sketches, sketches_alike
from ansorlite.task import SearchTask
from ansorlite.workloads import workload


@pytest.fixture(autouse=True)
def no_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """All is searched: `test_shipped` has what comes of layers that were measured."""
    monkeypatch.setattr(module, "shipped", lambda target: NONE)


@pytest.fixture
def chooser() -> Iterator[Untuned]:
    made = Untuned(0, Trace())
    yield made
    made.close()


def chain(widths: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16, 18)) -> Graph:
    """Matrix products of different widths, one after the other."""
    rng = np.random.default_rng(0)
    b = GraphBuilder("chain")
    x = b.input("x", (3, widths[0]))
    for m, n in pairwise(widths):
        w = b.constant(rng.standard_normal((m, n)).astype(np.float32))
        x = b.emit("relu", [b.emit("matmul", [x, w])])
    return b.finish([x])


def test_a_family_differs_by_extents_alone() -> None:
    assert family_of(matmul(32)) == family_of(matmul(48, "PQRs"))
    assert family_of(matmul(32)) != family_of(matmul_form(32, matmul(32)))
    assert family_of(workload("C2D", 1)) != family_of(workload("DEP", 1))


@pytest.mark.parametrize("pair", [(matmul(32), matmul(56, "PQRs")), ("C2D:2", "C2D:3")])
def test_sketches_of_the_same_patterns(pair: tuple[Any, Any]) -> None:
    """They are those that the whole space has, under whatever names."""
    one, other = (t if isinstance(t, SearchTask) else al.workload(t) for t in pair)
    assert family_of(one) == family_of(other)
    whole = {s.pattern: s for s in sketches(other.dag, other.target)}
    known = [s.pattern for s in sketches(one.dag, one.target)][::5]
    for pattern, found in zip(known, sketches_alike(other.dag, other.target, known), strict=True):
        same = whole.get(pattern)
        assert (found is None) == (same is None)
        if found is not None and same is not None:
            assert found.state.steps == same.state.steps
            assert found.holes == same.holes


@pytest.mark.parametrize("name", sampled(["C2D:2", "GMM:1", "DEP:1", "NRM:1"], 2))
def test_as_good_as_a_thorough_search_predicts(name: str, chooser: Untuned) -> None:
    task = al.workload(name)
    space = sketches(task.dag, task.target)
    policy = EvolutionaryPolicy(
        space, task.target, 0, task.workload_key, al.search.session.CorrectionModel()
    )
    (best,) = policy.ask(1, 1, thorough=True)
    assert predicted(task, chooser) >= best.score - 0.1


def predicted(task: SearchTask, chooser: Untuned) -> float:
    """Log2 of the predicted speed of the program chosen for a task."""
    from ansorlite.cost.analytic import analytic_score
    from ansorlite.cost.features import features

    program = chooser.program(task)
    return float(analytic_score(features(program, {}, 1, task.target))[0])


def test_later_tasks_of_a_family_look_at_few_sketches(
    chooser: Untuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    make = History.__init__

    def counted(self: History, space: Any, target: Any) -> None:
        looked.append(len(space))
        make(self, space, target)

    monkeypatch.setattr(History, "__init__", counted)
    for n in (32, 40, 56):
        chooser.program(matmul(n))
    assert looked[0] > module.HINTS
    assert looked[1:] == [module.HINTS] * 2


def test_many_kernels_are_built_beside_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a process of their own: this one compiles none of them."""
    here: list[str] = []
    build = object_cache.build_program

    def counted(program: Any, *rest: Any) -> Any:
        here.append(program.name)
        return build(program, *rest)

    monkeypatch.setattr(object_cache, "build_program", counted)
    net = chain()
    run = al.auto_schedule(net, n_trials=0, progress=False)
    assert not here
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    (want,) = evaluate(net, [x])
    np.testing.assert_allclose(run(x), want, rtol=1e-4, atol=1e-4)


def test_a_build_that_fails_is_made_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BuildRequest", lambda *request: "no request")
    net = chain()
    x = np.ones((3, 4), np.float32)
    (want,) = evaluate(net, [x])
    got = al.auto_schedule(net, n_trials=0, progress=False)(x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_answers_are_the_same_with_and_without_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = chain((4, 6, 8, 10))
    plain = al.auto_schedule(net, n_trials=0, progress=False)
    monkeypatch.setattr(object_cache, "MOST_BYTES", 1 << 24)
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path))
    # Another network has the last task alone, so without hints of its family.
    al.auto_schedule(chain((8, 10)), n_trials=0, progress=False)
    first = al.auto_schedule(net, n_trials=0, progress=False)
    monkeypatch.setattr(module, "sketches", None)  # nothing is searched any more
    monkeypatch.setattr(module, "sketches_alike", None)
    monkeypatch.setattr(object_cache, "build_program", None)
    second = al.auto_schedule(net, n_trials=0, progress=False)
    assert plain.images == first.images == second.images
    programs = [[r.predicted for r in m.report.results] for m in (plain, first, second)]
    assert programs[0] == programs[1] == programs[2]
    with pytest.raises(TypeError):  # another seed asks for something else
        al.auto_schedule(net, n_trials=0, seed=1, progress=False)


def test_a_log_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_cache, "MOST_BYTES", 1 << 24)
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path / "cache"))
    task, log = matmul(16), tmp_path / "log.jsonl"
    guessed = al.tune(task, n_trials=0, progress=False)
    al.tune(task, n_trials=3, log=log, progress=False)
    known = al.tune(task, n_trials=0, log=log, progress=False)
    assert guessed.best is None and guessed.predicted is not None
    assert known.best is not None and known.predicted is None
