"""Templates: one per operator, right programs, and templates of users."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from native import run_native
from sampled import some_or_all
from small_cases import SMALL

import ansorlite as al
from ansorlite import te
from ansorlite.baselines import templates
from ansorlite.baselines.config_space import ConfigSpace, all_runs
from ansorlite.baselines.templates import register, size, template_of, template_sketches
from ansorlite.errors import AnsorliteError, ScheduleError
from ansorlite.schedule.holes import population_columns
from ansorlite.space.legality import legal
from ansorlite.task import SearchTask
from ansorlite.workloads import workload
from ansorlite.workloads.ops import define

EXPECTED = {
    "C1D:1": "conv",
    "C2D:2": "conv",
    "C3D:1": "conv",
    "GMM:1": "dense",
    "GRP:1": "grouped_conv",
    "DIL:1": "conv",
    "DEP:1": "depthwise_conv",
    "T2D:1": "conv_transpose",
    "CAP:1": "capsule_conv",
    "NRM:1": "reduction",
    "SFM:1": "rows",
}


@pytest.mark.parametrize(("case", "name"), EXPECTED.items())
def test_every_operator_has_its_template(case: str, name: str) -> None:
    task = workload(case)
    assert template_of(task.dag, task.target).name == name
    space = template_sketches(task.dag, task.target)
    assert size(space) > 20 and len({s.name for s in space}) == len(space)
    rng = np.random.default_rng(0)
    found = 0
    for s in space:
        rows = s.sample(512, rng)
        columns = population_columns(s.holes, rows)
        found += int(legal(s.program, columns, len(rows), task.target).sum())
    assert found > 10


@some_or_all(5)
@pytest.mark.parametrize("name", SMALL)
def test_programs_of_templates_are_right(name: str, every: int) -> None:
    """Of random sketches one legal row each: 40 of them in the slow tier."""
    task = SearchTask([define(name, SMALL[name])], name=name)
    rng = np.random.default_rng(1)
    shapes = {p.name: p.shape for p in task.dag.inputs}
    inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    want = task.dag.evaluate(inputs)
    space, checked = template_sketches(task.dag, task.target), 0
    for k in rng.integers(len(space), size=40)[::every]:
        rows = space[k].sample(512, rng)
        columns = population_columns(space[k].holes, rows)
        mask = legal(space[k].program, columns, len(rows), task.target)
        for row in rows[mask][:1]:
            program = space[k].fill(row)
            got = run_native(program, inputs, task.target)
            for output, x in want.items():
                np.testing.assert_allclose(
                    got[output], x, rtol=1e-4, atol=1e-4, err_msg=f"{space[k].name}\n{program}"
                )
            checked += 1
    assert checked


def test_an_epilogue_goes_with_the_tiles() -> None:
    a, b = te.placeholder((32, 24), name="A"), te.placeholder((24, 48), name="B", constant=True)
    k = te.reduce_axis(24, name="k")
    c = te.compute((32, 48), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    task = SearchTask([te.relu(c)])
    (sketch,) = template_sketches(task.dag, task.target)
    assert any(s.location != "root" for s in sketch.state.schedule.stages if s.has_loops)
    result = al.tune(task, n_trials=6, policy="template-random", progress=False)
    assert all(r.ok for r in result.records)


@pytest.fixture
def kept() -> Iterator[None]:
    """The table of templates as it was."""
    before = dict(templates.TEMPLATES)
    yield
    templates.TEMPLATES.clear()
    templates.TEMPLATES.update(before)


def matrix() -> SearchTask:
    a, b = te.placeholder((16, 24), name="A"), te.placeholder((24, 32), name="B")
    k = te.reduce_axis(24, name="k")
    return SearchTask([te.compute((16, 32), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))])


@pytest.mark.usefixtures("kept")
def test_users_register_their_own() -> None:
    task = matrix()

    @register("mine", lambda cfg: len(cfg.reduction(cfg.main)) == 1)
    def mine(cfg: ConfigSpace) -> None:
        i, j = cfg.spatial(cfg.main)
        outer, inner = cfg.define_split(cfg.main, i, 2, "power2", 8)
        order = cfg.define_reorder(cfg.main, [outer, inner, "k", j], [outer, "k", inner, j])
        assert order[0] == outer
        cfg.define_annotate(cfg.main, [outer], "parallel")
        cfg.define_annotate(cfg.main, [j], "vectorize")

    space = template_sketches(task.dag, task.target)
    assert [s.name for s in space] == ["mine-0", "mine-1"]
    (tile,) = (h for h in space[0].holes if h.kind == "tile")
    assert tile.options == ((1,), (2,), (4,), (8,))
    result = al.tune(task, n_trials=8, policy="template-grid", progress=False)
    assert all(r.ok for r in result.records)
    assert {r.sketch for r in result.records[1:]} <= {"mine-0", "mine-1"}


def test_split_policies() -> None:
    task = matrix()
    cfg = ConfigSpace(task.dag, task.target)
    assert cfg.extent(cfg.main, "k") == 24
    parts = cfg.define_split(cfg.main, "k", 3, "factors", 6)
    assert parts == ["k.0", "k.1", "k.2"]
    (hole,) = cfg.state.holes
    assert all(24 % math.prod(o) == 0 and o[-1] <= 6 for o in hole.options)
    assert (4, 6) in hole.options and (3, 8) not in hole.options


def test_every_combination_of_structural_choices_is_a_run() -> None:
    task = matrix()
    seen = []

    def write(cfg: ConfigSpace) -> None:
        first = cfg.define_knob(["a", "b"])
        seen.append((first, cfg.define_knob([1, 2, 3]) if first == "b" else 0))

    runs = [taken for taken, _ in all_runs(write, task.dag, task.target)]
    assert sorted(seen) == [("a", 0), ("b", 1), ("b", 2), ("b", 3)]
    assert sorted(runs) == [(0,), (1, 0), (1, 1), (1, 2)]


def test_errors_of_templates() -> None:
    task = matrix()
    with pytest.raises(AnsorliteError, match="no template is called winograd: choose one of"):
        template_sketches(task.dag, task.target, "winograd")
    with pytest.raises(AnsorliteError, match="template grouped_conv does not fit"):
        template_sketches(task.dag, task.target, "grouped_conv")
    cfg = ConfigSpace(task.dag, task.target)
    with pytest.raises(ScheduleError, match="a choice of nothing"):
        cfg.define_knob([])
    with pytest.raises(AnsorliteError, match="no searcher is called 'template-nn': choose one"):
        al.tune(task, n_trials=2, policy="template-nn", progress=False)
