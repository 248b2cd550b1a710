"""What a machine has learned: kept by one run, tried first by the next."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from log_cases import record
from search_cases import PEAK, Pretender, matmul
from test_families import product

import ansorlite.search.session as session_module
from ansorlite.measure.runner import LocalRunner
from ansorlite.records import Record
from ansorlite.search import knowledge, lessons
from ansorlite.search.families import start_from_family
from ansorlite.search.kinship import kinship, read_kinship
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.roles import recorded_roles
from ansorlite.search.session import Session
from ansorlite.search.shipped import NONE
from ansorlite.search.transfer import KnownPrograms
from ansorlite.search.tune import tune
from ansorlite.space.sketch import SpaceOptions
from ansorlite.target import Target
from ansorlite.task import SearchTask

SPACE = SpaceOptions(max_sketches=4)
FEW = EvolutionParams(population=64, generations=1, looked_at_first=4)


@pytest.fixture(autouse=True)
def learning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder of what is known; a pretending runner counts as this machine."""
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "1")
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)
    monkeypatch.setattr(session_module, "MACHINES", (LocalRunner, Pretender))
    monkeypatch.setattr(lessons, "has_shipped", lambda: False)  # programs alone are kept here
    monkeypatch.setattr(lessons, "TRAIN_FROM", 1 << 30)


def run(task: SearchTask, log: Path | None = None, known: bool = True) -> Sequence[Record]:
    both = Pretender()
    options = {"builder": both, "runner": both, "space": SPACE, "params": FEW, "progress": False}
    return tune(task, 7, log=log, round_size=6, seed=2, known=known, **options).records


def holes(records: Sequence[Record], number: int = 1) -> list[object]:
    return [(r.sketch, r.holes) for r in records if r.round == number]


def best(records: Sequence[Record]) -> Record:
    return min((r for r in records if r.ok and r.round), key=lambda r: r.latency_s or 0.0)


def test_the_next_run_begins_with_what_was_best(tmp_path: Path) -> None:
    first = run(matmul(32))
    again = run(matmul(32))
    winner = best(first)
    assert holes(again)[0] == (winner.sketch, winner.holes)
    assert holes(again) != holes(first)
    alone = run(matmul(48, "XYZr"), known=False)
    other = run(matmul(48, "XYZr"))  # other extents: nearest values
    assert holes(other) != holes(alone)


def test_an_empty_store_and_no_store_ask_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(matmul(32))
    assert holes(first) == holes(run(matmul(32), known=False))
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "0")
    assert holes(first) == holes(run(matmul(32)))
    monkeypatch.setenv("ANSORLITE_KNOWLEDGE", "1")
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", "off")
    assert holes(first) == holes(run(matmul(32)))


def test_a_resumed_run_does_not_learn_from_itself(tmp_path: Path) -> None:
    log, whole = tmp_path / "log", tmp_path / "whole"
    run(matmul(32), log=log, known=False)
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:4]))  # the first round is torn
    knowledge.keep([replace(r, latency_s=r.latency_s) for r in _records(log) if r.round])
    resumed = run(matmul(32), log=log)
    assert holes(resumed) == holes(run(matmul(32), log=whole, known=False))


def _records(log: Path) -> Sequence[Record]:
    with Session(0, None, log=log) as session:
        return session.store.history


def test_without_trials_the_best_known_program_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    task = matmul(32)
    knowledge.keep([record(task, 3, latency_s=1e-6)])
    result = tune(task, 0, progress=False)
    assert result.best is None and result.guess is not None
    assert result.guess.holes == record(task, 3).holes
    assert result.predicted is not None


def test_the_store_is_bounded_and_keeps_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MOST_TASKS", 3)
    target = Target.detect()
    some = [replace(record(matmul(32), k), latency_s=1.0 / (k + 1)) for k in range(5)]
    many = [replace(r, task=f"{n:064x}", timestamp=float(n)) for n in range(5) for r in some]
    knowledge.keep(many)
    kept = knowledge.programs(target)
    assert {int(r.task, 16) for r in kept} == {2, 3, 4} and len(kept) == 3 * knowledge.KEPT
    assert all(r.latency_s is not None and r.latency_s <= 0.25 for r in kept)
    monkeypatch.setattr(knowledge, "MOST_BYTES", 1)
    knowledge.keep(many)
    assert knowledge.programs(target) == ()
    monkeypatch.setattr(knowledge, "MOST_TARGETS", 2)
    knowledge.keep([replace(r, target=f"cpu{n}-2c-00000000") for n in range(4) for r in some])
    root = knowledge.folder()
    assert root is not None and len(list(root.glob("*.jsonl"))) == 2


def test_damage_costs_what_is_damaged(tmp_path: Path) -> None:
    knowledge.keep([record(matmul(32), 1)])
    root = knowledge.folder()
    assert root is not None
    (file,) = root.glob("*.jsonl")
    whole = file.read_text()
    file.write_text(whole + "{\n" + whole[: len(whole) // 2])
    assert len(knowledge.programs(Target.detect())) == 1
    for text in ("", "what?", "[]\n" * 100, "\0" * 1000):
        file.write_text(text)
        assert knowledge.programs(Target.detect()) == ()
        knowledge.keep([record(matmul(32), 1)])
        assert len(knowledge.programs(Target.detect())) == 1
    file.unlink()
    root.chmod(0o500)
    knowledge.keep([record(matmul(32), 1)])
    root.chmod(0o700)


def test_several_processes_keep_all_of_theirs() -> None:
    one, children = record(matmul(32), 1), []
    for first in (0, 5):
        child = os.fork()
        if child == 0:
            for k in range(first, first + 5):
                knowledge.keep([replace(one, task=f"{k:064x}")])
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0, 0]
    assert {int(r.task, 16) for r in knowledge.programs(Target.detect())} == set(range(10))


def test_programs_of_another_cpu_or_that_do_not_fit_are_left_out() -> None:
    task = matmul(32)
    odd = [record(task, 1, holes={"T9.a0": [1]}), record(task, 2, steps=({"step": "no"},))]
    known = KnownPrograms(odd)
    with Session(0, None, progress=False) as session:
        assert known.program(session.tuner(task)) is None
    knowledge.keep([replace(record(task, 1), target="z80-1c-00000000")])
    assert knowledge.programs(task.target) == ()


def test_programs_of_kin_are_kept_with_their_roles() -> None:
    """A run of a task begins with what an earlier one found with another epilogue, or extents."""
    bias, longer = product(32, 32, "bias"), product(64, 32, "bias", "relu")
    same = product(32, 32, "bias", "relu")
    kept = replace(record(bias, 1), latency_s=1e-5, round=1)
    knowledge.keep([kept], [bias])
    known = KnownPrograms(knowledge.programs(bias.target), knowledge.kinships(bias.target))
    assert known.latency_s(bias) == known.latency_s(same) == 1e-5
    assert known.latency_s(longer) is None and known.latency_s(product(32, 32)) is None
    (of_same, none), (none_same, others) = known.of_kin(same, 4), known.of_kin(longer, 4)
    assert [r for _, r in of_same] == [near.named[1] for near in others] == [kept]
    assert not [*none, *none_same]
    assert others[0].distance == kinship(bias).distance(kinship(longer)) > 0
    for task, (roles, _) in ((same, of_same[0]), (longer, others[0].named)):
        assert roles == recorded_roles(bias.dag)
        with Session(4, progress=False, builder=Pretender(), runner=Pretender()) as session:
            tuner = session.tuner(task)
            assert start_from_family(tuner, [tuner], known, NONE, 2) == 1
            assert tuner.suggested() is not None
    assert KnownPrograms(knowledge.programs(bias.target)).of_kin(same, 4) == ([], [])


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        ["k", "c", 1.0],
        ["k", "c", float("nan"), {}],
        ["k", "c", -1, {}],
        ["k", "c", 1.0, {"T0": "A0"}],
    ]
    + [["k", "c", 1.0, {"T0": [n, 1]}] for n in (None, 3, ["A0"])]
    + [["k", "c", 1.0, {"T0": ["A0", n]}] for n in (-1, 1 << 40, 1.5)]
    + [["k", "c", 1.0, {"T0": ["A0", 1], "T1": ["A0", 1]}]]
    + [["k", "c", 1.0, {}, more] for more in (None, 3, [1.0], [-1], [True], [1 << 80], [[1]])]
    + [["k", "c", 1.0, {}, [1], [1]], ["k", "c", 1.0, {}, [1] * 5000]],
)
def test_kinship_of_another_form_counts_as_nothing(data: object) -> None:
    task = product(32, 32, "bias")
    assert read_kinship(kinship(task).to_json()) == kinship(task)
    assert read_kinship(data) is None
    older = read_kinship(["k", "c", 10**400, {}])  # without extents
    assert older is not None and older.extents == ()
    assert older.distance(replace(older, extents=(1, 2))) == 0.0
    knowledge.keep([record(task, 1)], [task])
    root = knowledge.folder()
    assert root is not None
    (file,) = root.glob("*.kin.json")
    for text in (
        json.dumps({task.workload_key: data}),
        json.dumps([data]),
        "{",
        "[" * 100_000,
        "\0\xff",
    ):
        file.write_text(text)
        assert knowledge.kinships(task.target) == {}
        knowledge.keep([record(task, 2)], [task])
        assert set(knowledge.kinships(task.target)) == {task.workload_key}


def test_where_nothing_is_known_no_space_is_made_for_it() -> None:
    both = Pretender()
    with Session(4, progress=False, builder=both, runner=both) as session:
        tuner = session.tuner(product(32, 32, "bias"))
        tuner.round(1)  # the plain schedule
        assert start_from_family(tuner, [tuner], KnownPrograms(()), NONE, 2) == 0
        assert tuner.records and "_sketches" not in vars(tuner)
