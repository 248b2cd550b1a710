"""What models learn from: kept by one run, the start of the next one's model."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from log_cases import record
from search_cases import PEAK, Pretender, matmul

import ansorlite.search.session as session_module
from ansorlite.cost.correction import CorrectionModel
from ansorlite.cost.prior import RowGroup, Stage, corrections, estimates, trained
from ansorlite.cost.relative import N_RELATIVE, RELATIVE_NAMES
from ansorlite.measure.runner import LocalRunner
from ansorlite.search import knowledge, lessons
from ansorlite.search.policy import CHOSEN_FROM, EvolutionaryPolicy, EvolutionParams
from ansorlite.search.session import Session
from ansorlite.search.tune import tune
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target

TARGET = Target.detect()
SPACE = SpaceOptions(max_sketches=2)
FEW = EvolutionParams(population=64, generations=1, looked_at_first=4)


@pytest.fixture(autouse=True)
def learning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder of what is known; a pretending runner counts as this machine."""
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "model")
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)
    monkeypatch.setattr(session_module, "MACHINES", (LocalRunner, Pretender))
    monkeypatch.setattr(lessons, "stages_for", lambda target: ())
    monkeypatch.setattr(lessons, "has_shipped", lambda: False)


def group(seed: int, n: int = 24, task: str = "") -> RowGroup:
    """Programs that are the faster, the fuller their vectors are; the estimate does not know."""
    rows = np.random.default_rng(seed).random((n, N_RELATIVE), np.float32)
    fill = rows[:, RELATIVE_NAMES.index("fill")]
    return RowGroup(task or f"task{seed}", rows, np.exp2(-estimates(rows) - 3.0 * fill))


def kept() -> lessons.Lessons:
    root = knowledge.folder()
    assert root is not None
    return lessons._read(lessons._rows_file(root, TARGET))


def order(found: Stage, g: RowGroup) -> float:
    """Share of the pairs of programs that are in order."""
    scores = estimates(g.rows) + corrections([found], g.rows)
    faster = g.latency_s[:, None] < 0.9 * g.latency_s
    return float((scores[:, None] > scores)[faster].mean())


def test_the_stage_knows_what_the_estimate_does_not() -> None:
    found = trained([group(k) for k in range(20)])
    assert found is not None and found.programs == 20 * 24
    assert order(found, group(99)) > 0.9
    assert trained([group(0, 2)]) is None  # too few
    lost = group(1)._replace(latency_s=np.full(24, np.inf))
    assert trained([lost] * 20) is None


def test_rows_are_kept_and_a_stage_is_trained_when_that_is_due() -> None:
    assert lessons.prior(TARGET) is None and not lessons.is_due(TARGET)
    lessons.keep(TARGET, [group(k) for k in range(8)])
    assert kept().seen == 8 * 24 and len(kept().groups) == 8
    assert not lessons.is_due(TARGET)  # too few
    lessons.keep(TARGET, [group(k) for k in range(8, 14)])
    assert lessons.is_due(TARGET)
    assert lessons.learn(TARGET)
    assert not lessons.is_due(TARGET)
    found = lessons.prior(TARGET)
    assert found is not None and [s.programs for s in found.stages] == [14 * 24]
    assert order(found.stages[0], group(99)) > 0.8
    other = Target.host_as("x86-avx2") if TARGET.arch == "x86_64" else Target(cores=1)
    assert lessons.prior(other) is None  # nothing was measured for it


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    lessons.keep(TARGET, [group(0, 3 * lessons.MOST_OF_TASK)])
    (one,) = kept().groups
    assert len(one.rows) == lessons.MOST_OF_TASK
    assert one.latency_s[0] == group(0, 3 * lessons.MOST_OF_TASK).latency_s.min()
    lessons.keep(TARGET, [group(0, 8, task="task0")])  # fewer programs of it: no news
    assert len(kept().groups[0].rows) == lessons.MOST_OF_TASK
    monkeypatch.setattr(lessons, "MOST_PROGRAMS", 100)
    for k in range(1, 7):
        lessons.keep(TARGET, [group(k)])
    assert [g.task for g in kept().groups] == ["task6", "task5", "task4", "task3"]
    assert kept().seen == lessons.MOST_OF_TASK + 6 * 24


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" * 99])
def test_damage_is_no_error(damage: Callable[[bytes], bytes]) -> None:
    lessons.keep(TARGET, [group(k) for k in range(12)])
    assert lessons.learn(TARGET)
    root = knowledge.folder()
    assert root is not None
    for file in root.glob("*.npz"):
        file.write_bytes(damage(file.read_bytes()))
    found = lessons.prior(TARGET)
    assert found is not None and found.stages == ()
    assert kept() == lessons.Lessons()
    assert not lessons.learn(TARGET)
    lessons.keep(TARGET, [group(1)])
    assert len(kept().groups) == 1


def test_arrays_that_do_not_fit_are_none() -> None:
    lessons.keep(TARGET, [group(1), group(2)])
    root = knowledge.folder()
    assert root is not None
    path = lessons._rows_file(root, TARGET)
    with np.load(path) as found:
        whole = dict(found)
    for name, value in {
        "rows": whole["rows"][:, 1:],
        "latency_s": -whole["latency_s"],
        "sizes": np.array([48, 1]),
        "tasks": np.array([{}, {}], object),
        "stamps": whole["stamps"][:1],
    }.items():
        np.savez(path, **(whole | {name: value}))
        assert kept() == lessons.Lessons()


def test_several_processes_keep_all_of_theirs() -> None:
    children = []
    for first in (0, 4):
        child = os.fork()
        if child == 0:
            for k in range(first, first + 4):
                lessons.keep(TARGET, [group(k)])
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0, 0]
    assert {g.task for g in kept().groups} == {f"task{k}" for k in range(8)}


def _holes(n: int, **options: object) -> Sequence[object]:
    both = Pretender()
    found = tune(
        matmul(n), 9, builder=both, runner=both, space=SPACE, params=FEW, seed=2, round_size=8,
        progress=False, **options,
    )  # fmt: skip
    return [(r.sketch, r.holes) for r in found.records if r.round == 1]


def test_the_next_run_of_another_task_begins_with_the_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs keep rows and train the stage; without the store, and by choice, nothing changes."""
    monkeypatch.setattr(knowledge, "programs", lambda target: ())  # rows alone
    monkeypatch.setattr(lessons, "TRAIN_FROM", 8)
    alone = _holes(48, known=False)
    assert kept() == lessons.Lessons()
    _holes(32)
    assert len(kept().groups) == 1
    monkeypatch.setattr(
        lessons, "trained", lambda groups, *_, **__: trained([group(k) for k in range(12)])
    )
    assert lessons.learn(TARGET)
    assert _holes(48) != alone
    assert _holes(48, known=False) == alone
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "0")
    assert _holes(48) == alone


def test_a_model_that_is_given_has_no_prior() -> None:
    lessons.keep(TARGET, [group(k) for k in range(12)])
    assert lessons.learn(TARGET)
    both, model = Pretender(), CorrectionModel()
    with Session(1, None, builder=both, runner=both, model=model) as session:
        session.tuner(matmul(32))
    assert not model.is_trained
    with Session(1, None, builder=both, runner=both) as session:
        session.tuner(matmul(32))
        assert session.cost_model.is_trained
    knowledge.keep([record(matmul(32), 1)])


def test_a_prior_chooses_among_what_the_estimate_finds() -> None:
    """The estimate leads the evolution, and its best program is measured first."""
    lessons.keep(TARGET, [group(k) for k in range(12)])
    assert lessons.learn(TARGET)
    task = matmul(48)
    found = sketches(task.dag, task.target, SPACE)

    def keys(model: CorrectionModel, n: int, most: int | None = None) -> list[object]:
        policy = EvolutionaryPolicy(found, TARGET, 0, task.workload_key, model, FEW)
        chosen = policy.ask(n, 1) if most is None else policy._asked(n, 1, False, most)
        return [c.key for c in chosen]

    model = CorrectionModel(prior=lessons.prior(TARGET))
    chosen, by_estimate = keys(model, 8), keys(CorrectionModel(), 8, 8 * CHOSEN_FROM)
    assert len({*chosen}) == 8 and {*chosen} <= {*by_estimate} and chosen[0] == by_estimate[0]
    assert chosen != by_estimate[:8]
    assert len(keys(model, 1)) == 1
