"""Programs that come with the package, and what first rounds make of them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from search_cases import PEAK, Pretender
from test_families import product, record

import ansorlite as al
from ansorlite import te
from ansorlite.cost.prior import SHIPPED as MODEL
from ansorlite.cost.prior import __file__ as prior_file
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.choice import Lowering
from ansorlite.search import shipped, untuned
from ansorlite.search.clock import PhaseClock
from ansorlite.search.families import (
    FAMILY_ROUND,
    continue_from_shipped,
    kin_patterns,
    start_from_family,
    start_from_structures,
)
from ansorlite.search.history import Candidate
from ansorlite.search.kinship import kinship
from ansorlite.search.policy import EvolutionaryPolicy
from ansorlite.search.session import Session
from ansorlite.search.shipped import Row, ShippedPrograms, layers, merged, to_json
from ansorlite.search.transfer import KnownPrograms
from ansorlite.search.tune_tasks import TOGETHER, Rounds, WeightedTask, _forms, tune_tasks
from ansorlite.search.windows import Windows
from ansorlite.shared_tasks import network_tasks
from ansorlite.space.sketch import sketches_alike
from ansorlite.target import Target
from ansorlite.task import SearchTask

MOST_BYTES = 2 << 20  # of all that is shipped


def layer(task: SearchTask, *seconds: float) -> shipped.Programs:
    own = [replace(record(task, k), times_s=[s], latency_s=s) for k, s in enumerate(seconds)]
    return kinship(task), own


def written(folder: Path, found: dict[int, list[shipped.Programs]]) -> Path:
    path = folder / "programs.json"
    path.write_text(json.dumps(to_json(found)))
    return path


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShippedPrograms]:
    """Three layers of a kin and one of another."""
    target = Target.detect()
    found = [
        layer(product(64, 32, "bias"), 2e-6, 3e-6),
        layer(product(32, 32, "bias", "relu"), 1e-6),
        layer(product(512, 512, "residual"), 8e-5, 9e-5),
        layer(product(32, 32), 1e-6),
    ]
    other = [layer(product(16, 16, "bias"), 1.0)]  # of the kin that the first ones are of
    path = written(tmp_path, {target.vector_bytes: found, 16 * target.vector_bytes: other})
    monkeypatch.setattr(shipped, "SHIPPED", path)
    shipped.shipped.cache_clear()
    yield shipped.shipped(target)
    shipped.shipped.cache_clear()


def test_layers_are_read_as_written(tmp_path: Path) -> None:
    found = {
        32: [layer(product(64, 32, "bias"), 2e-6, 3e-6), layer(product(32, 32), 1e-6)],
        64: [layer(product(48, 16, "relu"), 5e-6)],
    }
    read = layers(written(tmp_path, found))
    assert to_json(read) == to_json(found) and list(read) == [32, 64]
    for n, rows in found.items():
        for (known, records), (theirs, own) in zip(rows, read[n], strict=True):
            assert known == theirs and [r.latency_s for r in own] == [r.latency_s for r in records]
            assert [r.holes for r in own] == [r.holes for r in records]
    assert layers(tmp_path / "none.json") == {}


def test_layers_of_several_files_are_put_together() -> None:
    one, same, other = product(64, 32, "bias"), product(64, 32, "bias", "relu"), product(8, 8)
    found = merged(
        {32: [layer(one, 1.0), layer(other, 2.0)]}, {32: [layer(one, 3.0)], 64: [layer(same, 4.0)]}
    )
    told = {n: [r.latency_s for _, rs in rows for r in rs] for n, rows in found.items()}
    assert told == {32: [3.0, 2.0], 64: [4.0]}


def test_the_nearest_layers_come_first(small: ShippedPrograms) -> None:
    task = product(48, 32, "residual")
    found = small.of_kin(task, 2)
    assert [near.named[1].latency_s for near in found] == [2e-6, 1e-6, 3e-6]
    assert found[0].distance < found[1].distance
    assert [near.named[1].latency_s for near in small.of_kin(task, 9)][2:] == [8e-5, 3e-6, 9e-5]
    assert small.has_kin(task) and small.of_kin(product(48, 48, "bias"), 0) == []
    near = [(64, 32, "bias"), (32, 32, "bias", "relu"), (512, 512, "residual")]
    times = zip((2e-6, 1e-6, 8e-5), (product(*shape).flop for shape in near), strict=True)
    mean = np.exp(np.mean([np.log(s / flop) for s, flop in times]))
    assert small.latency_s(task) == pytest.approx(mean * task.flop)
    x = product(32, 48)
    assert small.latency_s(x) == pytest.approx(1e-6 * x.flop / product(32, 32).flop)


def test_other_vectors_take_the_nearest_length(small: ShippedPrograms) -> None:
    here = Target.detect()
    near, far = here.vector_bytes // 2, 8 * here.vector_bytes
    assert shipped.shipped(replace(here, vector_bytes=near)).has_kin(product(8, 8))
    assert not shipped.shipped(replace(here, vector_bytes=far)).has_kin(product(8, 8))


@pytest.mark.parametrize("text", [None, "", '{"steps":[', "{}", "\0"])
def test_without_a_whole_file_nothing_is_known(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "none.json").write_text(text)
    monkeypatch.setattr(shipped, "SHIPPED", tmp_path / "none.json")
    shipped.shipped.cache_clear()
    try:
        known, task = shipped.shipped(Target.detect()), product(32, 32, "bias")
        assert not known.has_kin(task) and known.of_kin(task, 4) == []
        assert known.latency_s(task) == float("inf")
    finally:
        monkeypatch.undo()
        shipped.shipped.cache_clear()


def test_first_rounds_adapt_them(small: ShippedPrograms) -> None:
    """Before what this run found of farther tasks; no space is made for it."""
    task, both = product(48, 32, "residual"), Pretender()
    with Session(4, progress=False, builder=both, runner=both) as session:
        tuner = session.tuner(task)
        for n in (1, 2):
            assert start_from_family(tuner, [tuner], KnownPrograms(()), small, n) == n
        assert tuner._space is None and tuner.suggested() is not None
        other = session.tuner(product(40, 40))  # of the kin without an epilogue
        assert start_from_structures(other, small, 2) == 2
        assert start_from_structures(session.tuner(task), shipped.NONE, 2) == 0


def test_the_first_rounds_search_what_kin_have_and_later_ones_all(small: ShippedPrograms) -> None:
    task, both = product(48, 32, "residual"), Pretender()
    with Session(100, progress=False, builder=both, runner=both) as session:
        tuner = session.tuner(task)
        assert start_from_family(tuner, [tuner], KnownPrograms(()), small, 2) == 2
        assert tuner.end(tuner.asked(2)) == 2
        assert tuner.end(tuner.asked(5)) == 5  # two rounds of the sketches that were made for it
        few = {c.sketch.name for c in tuner.fastest(100)}
        assert tuner._space is None and len(few) <= 2
        group = tuner.policy.training_group()
        assert group is not None and len(group.latency_s) == 7
        tuner.widen()
        assert isinstance(tuner.policy, EvolutionaryPolicy)
        names = set(tuner.policy.history.sketches)
        assert few < names and len(names) == len(tuner.sketches)
        assert len({s.state.steps for s in tuner.sketches}) == len(names)  # each of them once
        again = tuner.asked(40)
        assert not {c.key for c in tuner.fastest(100)} & again.asked.keys()
        assert {c.sketch.name for c in again.asked.values()} - few
        whole = {s.state.steps for s in session.tuner(task).sketches}
        assert {s.state.steps for s in tuner.sketches} == whole


def test_where_no_candidate_is_left_the_whole_space_is_searched(
    small: ShippedPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, both = product(48, 32, "residual"), Pretender()
    ask = EvolutionaryPolicy.ask

    def asked(self: EvolutionaryPolicy, *args: Any) -> list[Candidate]:
        return [] if len(self.history.sketches) <= 2 else ask(self, *args)

    with Session(1000, progress=False, builder=both, runner=both) as session:
        tuner = session.tuner(task)
        start_from_family(tuner, [tuner], KnownPrograms(()), small, 1)
        assert len(tuner.asked(1).asked) == 1  # what was suggested
        assert tuner._space is None
        monkeypatch.setattr(EvolutionaryPolicy, "ask", asked)
        assert len(tuner.asked(6).asked) == 6
        assert tuner._space is not None


def test_what_was_built_is_taken_where_no_time_was_left_to_measure(
    small: ShippedPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a plain schedule that takes far longer than similar layers do."""
    tasks = [WeightedTask(product(8 * k, 32, "bias"), 1.0) for k in range(1, 9)]
    tasks.append(WeightedTask(SearchTask([te.relu(te.placeholder((8, 8), name="X"))]), 1.0))
    now, both = [0.0], Pretender()
    clock = PhaseClock(lambda: now[0])
    now[0] = 0.1
    monkeypatch.setattr(Session, "peak", lambda *_: PEAK)

    def no_time(self: Windows, built: Sequence[Any]) -> int:
        for one in built:
            one.wait()
        now[0] = 60.0
        return 0

    monkeypatch.setattr(Windows, "_measure", no_time)
    options = {"clock": clock, "progress": False}
    with Session(None, 4.0, builder=both, runner=both, **options) as session:
        *found, alone = tune_tasks(session, tasks)
    for r in found:
        assert r.best is None and r.predicted is not None and r.image is not None
        assert [x.round for x in r.records] == [0]
    assert alone.best is not None and alone.predicted is None  # no layer tells that it is slow


def test_untuned_kernels_begin_with_them(
    small: ShippedPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a search; what no layer is kin of is searched."""
    searched = list[Any]()
    monkeypatch.setattr(untuned, "guesses", lambda *rest: searched.append(rest) or [])
    task = product(48, 32, "residual")
    found = al.tune(task, n_trials=0, progress=False)
    assert not searched and found.predicted is not None
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(p.shape).astype(np.float32) for p in task.dag.inputs]
    named = {p.name: x for p, x in zip(task.dag.inputs, inputs, strict=True)}
    (out,) = task.dag.output_names
    np.testing.assert_allclose(
        found.kernel(*inputs), task.dag.evaluate(named)[out], rtol=1e-4, atol=1e-4
    )
    x = te.placeholder((8, 8), name="X")
    assert al.tune(SearchTask([te.relu(x)]), n_trials=0, progress=False).predicted is not None
    assert searched


def test_the_untuned_form_is_that_of_the_fastest_layer(
    small: ShippedPrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, other = product(32, 32), product(32, 32, "residual")
    for first, second in ((plain, other), (other, plain)):
        weighted = WeightedTask(first, 1.0, other_forms=(second,))
        with Session(0, progress=False) as session:
            (tuner,) = _forms(session, weighted).tuners
            faster = min((first, second), key=small.latency_s)
            assert tuner.task is faster
            monkeypatch.setattr(session, "answered", lambda task: True)  # by a plain schedule
            both = _forms(session, weighted)
            assert len(both.tuners) == 2 and both.expected.task is faster


def test_programs_that_are_damaged_are_left_out(small: ShippedPrograms) -> None:
    near = small.of_kin(product(48, 32, "bias"), 3)
    odd = [
        replace(near[0].named[1], steps=({"step": "no"},)),
        replace(near[0].named[1], holes={"T9.a0": [1]}),
    ]
    both = Pretender()
    with Session(4, progress=False, builder=both, runner=both) as session:
        tuner = session.tuner(product(48, 32, "bias"))
        known = kinship(tuner.task)
        row = Row(known.extents, known.flop, None, ())
        bad = ShippedPrograms({known.kin: [row]}, lambda row: (known, odd))
        assert start_from_family(tuner, [tuner], KnownPrograms(()), bad, 2) == 0


def test_what_is_shipped_is_small_and_varied() -> None:
    found = layers(shipped.SHIPPED)
    assert {32, 64} <= set(found)
    for rows in found.values():
        assert len(rows) > 100 and len({known.kin for known, _ in rows}) > 30
        assert all(0 < len(own) <= shipped.KEPT for _, own in rows)
    model = Path(prior_file).with_name(MODEL)
    assert shipped.SHIPPED.stat().st_size + model.stat().st_size < MOST_BYTES


def test_shipped_programs_fit_common_layers() -> None:
    """Convolutions with bias and relu, in all forms, have sketches of those that are shipped."""
    b = GraphBuilder("layers")
    x = b.input("x", (1, 32, 14, 14))
    for k in (1, 3):
        w = b.constant(np.ones((48, b.shape(x)[1], k, k), np.float32))
        y = b.emit("conv", [x, w], groups=1, layout="channels_first", strides=(1, 1),
                   pads=((k // 2, k // 2),) * 2, dilations=(1, 1))  # fmt: skip
        bias = b.constant(np.arange(48, dtype=np.float32).reshape(48, 1, 1))
        x = b.emit("relu", [b.emit("add", [y, bias])])
    fitting, target = 0, Target.detect()
    for weighted in network_tasks(Lowering().partition(b.finish([x])), target):
        for form in weighted.forms:
            near = shipped.shipped(target).of_kin(form, 6)
            patterns = kin_patterns(form, [found.named for found in near])
            fitting += any(sketches_alike(form.dag, form.target, patterns)) if patterns else 0
    assert fitting >= 3


def test_the_form_of_the_fastest_layer_comes_first(small: ShippedPrograms) -> None:
    """Against the clock: a log of trials alone goes on as it was begun."""
    plain, other = product(32, 32), product(32, 32, "residual")  # of two kin
    times = [small.latency_s(form) for form in (plain, other)]
    both = Pretender()
    for first, second in ((plain, other), (other, plain)):
        weighted = WeightedTask(first, 1.0, other_forms=(second,))
        for timeout in (60.0, None):
            with Session(9, timeout, progress=False, builder=both, runner=both) as session:
                faster = min(zip(times, (plain, other), strict=True), key=lambda row: row[0])[1]
                wanted = faster if timeout else first
                assert _forms(session, weighted).next().task is wanted


def test_a_short_run_measures_fewer_of_them() -> None:
    tasks = [WeightedTask(product(8 * k, 32, "bias"), 1.0) for k in range(1, 9)]
    both, counts = Pretender(), []
    for timeout in (2.0, 6.0, 60.0):
        clock = PhaseClock(lambda: 0.0)
        with Session(
            None, timeout, progress=False, builder=both, runner=both, clock=clock
        ) as session:
            found = [_forms(session, w) for w in tasks]
            rounds = Rounds(session, session.budget, TOGETHER, [])
            counts.append(rounds.first_programs(found))
            found[0].tuners[0].rounds = 2
            more = rounds.first_programs(found[:1])  # all had theirs
            assert more == FAMILY_ROUND
    assert counts == [1, 2, FAMILY_ROUND]


@pytest.mark.parametrize("timeout", [None, 60.0], ids=["by trials", "against the clock"])
def test_one_task_against_the_clock_begins_with_them_and_searches_all(
    small: ShippedPrograms, timeout: float | None
) -> None:
    task, both = product(48, 32, "residual"), Pretender()
    with Session(
        24, timeout, progress=False, builder=both, runner=both, clock=PhaseClock(lambda: 0.0)
    ) as session:
        (found,) = forms = [_forms(session, WeightedTask(task, 1.0))]
        rounds, tuner = Rounds(session, session.budget, TOGETHER, []), found.tuners[0]
        assert rounds.begun(tuner, forms, 8) == 8
        assert (tuner.suggested() is not None) == (timeout is not None)
        asked = tuner.asked(8).asked
        assert len(asked) == 8 and len(tuner.sketches) > len(
            {c.sketch.name for c in asked.values()}
        )
        assert tuner._space is not None


def test_second_rounds_try_the_structures_that_first_ones_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program of each, if there is time."""
    target, task = Target.detect(), product(48, 32, "residual")
    own = product(64, 32, "residual")
    kin = [record(own, k, k, times_s=[1e-6], latency_s=1e-6) for k in range(3)]
    assert len({json.dumps(r.steps) for r in kin}) == 3
    rows = [(kinship(product(64 + k, 32, "residual")), [r]) for k, r in enumerate(kin)]
    monkeypatch.setattr(shipped, "SHIPPED", written(tmp_path, {target.vector_bytes: rows}))
    shipped.shipped.cache_clear()
    both = Pretender()
    with Session(100, progress=False, builder=both, runner=both) as session:
        tuner = session.tuner(task)
        layers = shipped.shipped(target)
        ready = start_from_family(tuner, [tuner], KnownPrograms(()), layers, 1)
        assert ready == 1 and tuner.end(tuner.asked(1)) == 1
        continue_from_shipped(tuner, layers, 8)
        asked = [c.sketch.name for c in tuner.asked(2).asked.values()]
        assert len(set(asked)) == 2 and not set(asked) & {c.sketch.name for c in tuner.fastest(1)}
        assert tuner._space is None
    shipped.shipped.cache_clear()
