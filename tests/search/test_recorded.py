"""Records and the search space of their task: edited records fit nothing and are not used."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from log_cases import record, write
from sampled import some_or_all
from search_cases import matmul, matmul_form, vector

import ansorlite
from ansorlite.errors import AnsorliteError, ScheduleError
from ansorlite.records import Record, choice, read_log
from ansorlite.report.show import stage
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.steps import Split
from ansorlite.search.history import Candidate
from ansorlite.search.recorded import (
    RecordedSpace,
    best_of_log,
    record_candidates,
    record_program,
    record_sketch,
)
from ansorlite.search.replay import replay
from ansorlite.search.searchers import SEARCHERS
from ansorlite.search.session import Session
from ansorlite.search.tune import tune
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.space.legality import legal
from ansorlite.space.plain import plain_state
from ansorlite.space.rules import SKETCH_RULES, Outcome
from ansorlite.space.sketch import Sketch, SpaceOptions, sketch_of, sketches
from ansorlite.task import SearchTask

SPACES = (
    SpaceOptions(),
    SpaceOptions(max_sketches=200),
    SpaceOptions(max_sketches=8, locations=False),
    SpaceOptions(folding=False, packing=False, locations=False),
    SpaceOptions(packing=False),
)


def of(task: SearchTask, sketch: Sketch, row: Any, **changes: Any) -> Record:
    names = canonical_names(task.dag)
    return record(
        task,
        sketch=names.sketch(sketch.name, sketch.state.to_json()),
        steps=tuple(names.steps(sketch.state.to_json())),
        holes=names.holes(sketch.values(row)),
        **changes,
    )


@pytest.mark.parametrize("case", ["GMM:0", "C2D:2", "NRM:2", "T2D:0"])
def test_every_sketch_is_found_by_its_steps(case: str) -> None:
    task: SearchTask = ansorlite.workload(case)
    names = canonical_names(task.dag)
    for options in SPACES:
        for s in sketches(task.dag, task.target, options)[::7]:
            found = sketch_of(task.dag, task.target, names.frozen(s.state.to_json()))
            assert found is not None, s.name
            assert (found.state.steps, found.holes) == (s.state.steps, s.holes)
            if options is SPACES[0]:
                assert found.name == s.name


@some_or_all(32)
@pytest.mark.parametrize("policy", ["evolutionary", "template-random"])
def test_a_program_is_the_one_that_was_recorded(policy: str, every: int) -> None:
    task = matmul(48)
    names = set()
    for s in SEARCHERS[policy].space(task, None)[::5]:
        rows = s.sample(256, np.random.default_rng(1))[::every]
        found = RecordedSpace(task).candidates([of(task, s, row) for row in rows])
        for row, c in zip(rows, found, strict=True):
            if isinstance(c, Candidate):
                assert str(c.sketch.fill(c.row)) == str(s.fill(row))
                names.add(record_sketch(task, of(task, s, row)))
            else:
                assert "not legal together" in str(c)
    assert len(names) > 1 or policy != "evolutionary"


def test_the_plain_schedule_is_known() -> None:
    task = matmul()
    steps = canonical_names(task.dag).steps(plain_state(task.dag, task.target).to_json())
    plain = record(task, sketch="plain", steps=tuple(steps), holes={})
    assert RecordedSpace(task).candidates([plain]) == [None]
    assert record_sketch(task, plain) == "plain" and record_program(task, plain)
    for odd in (replace(plain, steps=()), replace(plain, holes={"T2.a0": [4]})):
        with pytest.raises(ScheduleError, match="not those of the plain schedule"):
            record_program(task, odd)


def _step(data: dict[str, Any], tag: str) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in data["steps"] if s["step"] == tag)
    return found


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "lanes that are no option": (lambda d: d["holes"].update({"T2.lanes": [6]}), "no option"),
    "a tile that is no option": (lambda d: d["holes"].update({"T2.a0": [5, 7, 11]}), "no option"),
    "too many values": (lambda d: d["holes"].update({"T2.lanes": [4, 4]}), "no option"),
    "no value": (lambda d: d["holes"].update({"T2.lanes": []}), "no option"),
    "a huge value": (lambda d: d["holes"].update({"T2.a2": [2**31 - 1]}), "no option"),
    "a hole that is missing": (lambda d: d["holes"].pop("T2.lanes"), "no values for hole"),
    "a hole too many": (lambda d: d["holes"].update({"T9.x": [1]}), "has values for hole 'T9.x'"),
    "illegal together": (
        lambda d: d["holes"].update({"T2.a0": [1, 1, 16], "T2.a1": [1, 1, 32]}),
        "not legal together",
    ),
    "an unknown step": (lambda d: d["steps"].append({"step": "spill", "stage": "T2"}), "no sketch"),
    "a step less": (lambda d: d["steps"].pop(), "no sketch"),
    "no steps": (lambda d: d["steps"].clear(), "no sketch"),
    "steps in another order": (lambda d: d["steps"].reverse(), "no sketch"),
    "a step twice": (lambda d: d["steps"].append(d["steps"][-1]), "no sketch"),
    "numbers for names": (lambda d: _step(d, "split").update(stage=5), "no sketch"),
    "a field of another name": (
        lambda d: _step(d, "annotate").update(iteratos=_step(d, "annotate").pop("iterator")),
        "no sketch",
    ),
    "factors in the steps": (lambda d: _step(d, "split").update(factors=[6, 1, 1]), "no sketch"),
    "lanes in the steps": (lambda d: d["steps"][-1].update(value=6), "no sketch"),
    "steps that are lists": (lambda d: d.update(steps=[["x", 1]]), "no sketch"),
    "steps that are null": (lambda d: d.update(steps=[None, 1, "x"]), "no sketch"),
    "nested steps": (lambda d: d.update(steps=[[[[[[["x"]]]]]]]), "no sketch"),
}


def edited(task: SearchTask, edit: Callable[[dict[str, Any]], Any]) -> Record:
    data = json.loads(record(task).to_json())
    edit(data)
    return Record.from_json(json.dumps(data))


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_record_fits_nothing(name: str) -> None:
    task = matmul(64)
    edit, why = EDITS[name]
    odd = edited(task, edit)
    with pytest.raises(ScheduleError, match=why):
        record_program(task, odd)
    assert (
        record_candidates(
            task, {s.name: s for s in sketches(task.dag, task.target)}, [odd, record(task)]
        )[0]
        is None
    )


def test_names_of_sketches_are_not_believed() -> None:
    task = matmul(64)
    own = record(task)
    last = sketches(task.dag, task.target)[-1]
    other = of(task, last, [0] * len(last.holes))
    space = {s.name: s for s in sketches(task.dag, task.target)}
    (c,) = record_candidates(task, space, [replace(own, sketch=other.sketch)])
    assert c is not None and c.sketch.name == record_sketch(task, own) != other.sketch
    with pytest.raises(ScheduleError, match="hole"):
        record_program(task, replace(own, holes=other.holes))
    with pytest.raises(ScheduleError, match="no sketch"):
        record_program(task, replace(own, steps=record(vector()).steps))


def test_an_edited_log_gives_no_wrong_answer(tmp_path: Path) -> None:
    """The fastest records are damaged in every way: what is left answers, and all is told."""
    task = matmul(64)
    good = record(task, latency_s=2e-3)
    odd = [replace(edited(task, e), latency_s=1e-6, trial=9) for e, _ in EDITS.values()]
    log = write(tmp_path / "log", [*odd, good, choice(odd[0], 1e-7), choice(odd[1], 1e-7)])
    found = tune(task, 0, log=log, progress=False)
    assert found.best is not None and found.best.record == good
    assert f"are left out: {len(odd) + 2}, the first is line 1, trial 9" in found.problems[0]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((64, 64)).astype(np.float32) for _ in range(2))
    np.testing.assert_allclose(found.kernel(a, b), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-4)
    best, refused = best_of_log(read_log(log), task)
    assert best == good and len(refused) == len(odd) + 2
    text, problems = stage(task, "program", "best", log, 0)
    assert text == str(record_program(task, good)) and "are left out, first line" in problems[0]


def test_where_no_record_fits_the_model_answers(tmp_path: Path) -> None:
    task = matmul(64)
    log = write(tmp_path / "log", [edited(task, e) for e, _ in EDITS.values()])
    found = tune(task, 0, log=log, progress=False)
    assert found.best is None and found.predicted is not None
    assert f"are left out: {len(EDITS)}" in found.problems[0]
    with pytest.raises(AnsorliteError, match="has no program of"):
        stage(task, "program", "best", log, 0)


def test_damaged_records_are_not_run_again() -> None:
    task = matmul(64)
    odd = [edited(task, e) for e, _ in EDITS.values()]
    found = list(replay([*odd, record(task)], {task.workload_key: task}))
    assert [r.status for r in found] == ["BUILD_ERROR"] * len(odd) + ["OK"]


def test_a_form_with_damaged_records_does_not_hide_the_others(tmp_path: Path) -> None:
    plain = matmul(32)
    form = matmul_form(32, plain)
    good, odd = record(plain, latency_s=1e-3), record(form, 1, latency_s=1e-6, steps=())
    log = write(tmp_path / "log", [good, odd, choice(odd, 1e-7)])
    with Session(0, None, log=log, progress=False) as session:
        (found,) = tune_tasks(session, [WeightedTask(plain, 1, other_forms=(form,))])
    assert found.best is not None and found.best.record == good and found.task == plain


def test_users_rules_count_where_they_are_given(tmp_path: Path) -> None:
    def halve_rows(state: Any, position: int, target: Any) -> Outcome | None:
        s = state.schedule.stages[position]
        if not s.has_loops or s.tiling or s.compute.combiner:
            return None
        halved = state.apply(Split(s.name, s.compute.axes[0].name, (2,)))
        return Outcome(((halved, position - 1),), skip_rest=True)

    task = vector(16)
    options = SpaceOptions(packing=False, locations=False, rules=(halve_rows, *SKETCH_RULES))
    own = next(s for s in sketches(task.dag, task.target, options) if "halve_rows" in s.fired)
    rows = own.sample(64, np.random.default_rng(0))
    rows = rows[legal(own.program, population_columns(own.holes, rows), 64, task.target)]
    log = write(tmp_path / "log", [of(task, own, rows[0])])
    found = tune(task, 0, log=log, space=options, progress=False)
    assert found.best is not None and str(found.program) == str(own.fill(rows[0]))
    assert own.name in str(found.best)
    assert tune(task, 0, log=log, progress=False).best is None
