"""A log is the state of a search: a run resumed from any cut gives the same records."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sampled import sampled, some_or_all
from search_cases import PEAK, Pretender, matmul, matmul_form

import ansorlite.search.session as session_module
from ansorlite.cost import training_cutoff
from ansorlite.cost.correction import CorrectionModel
from ansorlite.measure.result import Status
from ansorlite.records import Record, RecordLog, read_log
from ansorlite.search.policy import EvolutionParams
from ansorlite.search.result import TuneResult
from ansorlite.search.searchers import SEARCHERS
from ansorlite.search.session import Session
from ansorlite.search.tune import tune
from ansorlite.search.tune_tasks import WeightedTask, tune_tasks
from ansorlite.task import SearchTask

FEW = EvolutionParams(population=64, generations=1, looked_at_first=16)
TRIALS, ROUND = 25, 4  # trials 0, 1-4, .. 21-24; the model is trained from 16 on


@pytest.fixture(autouse=True)
def known_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)


def run(log: Path | None, task: SearchTask | None = None, **changes: Any) -> TuneResult:
    both = changes.pop("both", None) or Pretender((Status.RUN_ERROR, Status.WRONG_OUTPUT))
    options: dict[str, Any] = {"n_trials": TRIALS, "round_size": ROUND, "policy": "random"}
    options |= {"log": log, "progress": False, "builder": both, "runner": both, "params": FEW}
    options |= changes
    return tune(task or matmul(), **options)


def essence(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """Everything but times of day and durations."""
    return [
        (r.task, r.round, r.trial, r.sketch, r.steps, r.holes, r.status, r.latency_s)
        for r in records
    ]


def write(path: Path, records: Sequence[Record]) -> Path:
    with RecordLog(path, fsync=False) as log:
        for r in records:
            log.append(r)
    return path


# In the middle and at the end of rounds; the model is trained after the round that ends with 16.
CUTS = {
    "random": (0, 1, 3, 14, 17, 24),
    "evolutionary": (17, 19),
    "beam": (18,),
    "template-xgb": (17, 19),
    "template-xgb-ei": (18,),
    "template-ga": (5, 18),
    "template-grid": (3, 22),
    "template-random": (14,),
}


@pytest.mark.parametrize("policy", sampled(CUTS, 3))
def test_a_log_cut_anywhere_is_continued_as_if_it_had_not_been(tmp_path: Path, policy: str) -> None:
    check_cuts(tmp_path, policy, CUTS[policy])


@pytest.mark.slow
@pytest.mark.parametrize("policy", CUTS)
def test_a_log_may_be_cut_at_every_place(tmp_path: Path, policy: str) -> None:
    check_cuts(tmp_path, policy, range(TRIALS))


def check_cuts(tmp_path: Path, policy: str, cuts: Iterable[int]) -> None:
    whole = run(tmp_path / "whole", policy=policy)
    records = read_log(tmp_path / "whole").records
    assert essence(records) == essence(whole.records)
    assert [r.trial for r in records] == list(range(TRIALS))
    for cut in cuts:
        path = write(tmp_path / f"{cut}", records[:cut])
        both = Pretender((Status.RUN_ERROR, Status.WRONG_OUTPUT))
        again = run(path, policy=policy, both=both)
        assert essence(again.records) == essence(records), cut
        assert essence(read_log(path).records) == essence(records), cut
        # No more is measured than is missing, the reference aside.
        assert both.built <= TRIALS - cut + 1, cut


def test_rounds_grow_and_a_cut_does_not_matter(tmp_path: Path) -> None:
    many: dict[str, Any] = {"n_trials": 90, "round_size": None}
    whole = run(tmp_path / "whole", **many)
    records = read_log(tmp_path / "whole").records
    sizes = Counter(r.round for r in whole.records)
    # The plain schedule, then half of what is known, but no more than a quarter of the budget.
    assert list(sizes.values()) == [1, 8, 8, 8, 12, 18, 22, 13]
    for cut in (5, 17, 89):
        again = run(write(tmp_path / f"{cut}", records[:cut]), **many)
        assert essence(again.records) == essence(records), cut


def test_a_finished_log_measures_nothing(tmp_path: Path) -> None:
    whole = run(tmp_path / "log")
    both = Pretender()
    again = run(tmp_path / "log", both=both)
    assert (both.built, both.ran) == (0, 0)
    assert again.best is not None and whole.best is not None
    fastest = min(r.latency_s for r in whole.records if r.ok and r.latency_s)
    assert again.best.latency_s == fastest
    assert run(tmp_path / "log", n_trials=0, both=both).best == replace(again.best, peak=None)


def test_a_log_serves_the_task_under_other_names(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = run(path)
    other = matmul(names="xyzq")
    assert other.workload_key == matmul().workload_key
    both = Pretender()
    again = run(path, other, both=both)
    assert (both.built, both.ran) == (0, 0)
    assert essence(again.records) == essence(whole.records)
    assert again.best is not None and whole.best is not None
    text = str(whole.best.program)
    for old, new in zip("ABC", "xyz", strict=True):
        text = text.replace(f"{old}.k", f"{new}.q").replace(old, new)
    assert str(again.best.program) == text


def test_a_cut_log_is_continued_alike_under_other_names(tmp_path: Path) -> None:
    whole = run(tmp_path / "log", policy="evolutionary")
    cut = write(tmp_path / "cut", whole.records[:18])
    again = run(cut, matmul(names="xyzq"), policy="evolutionary")
    assert essence(again.records) == essence(whole.records)


def test_trials_go_on_from_a_damaged_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    run(path, n_trials=13)
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace('"trial":3', '"trial":x')
    path.write_text("\n".join(lines) + '\n{"format":1,"tar')
    result = run(path, n_trials=20)
    trials = [r.trial for r in result.records]
    assert trials == [0, 1, 2, *range(4, 21)]
    contents = read_log(path)
    assert essence(contents.records) == essence(result.records)
    assert [p.line for p in contents.problems] == [4, 15]  # the first run's choice is before it
    programs = {(r.sketch, str(r.holes)) for r in contents.records}
    assert len(programs) == len(contents.records)


def test_records_that_no_longer_fit_are_no_answer(tmp_path: Path) -> None:
    whole = run(tmp_path / "log")
    valid = sorted((r for r in whole.records if r.ok), key=lambda r: r.latency_s or 0)
    odd = [
        replace(valid[0], steps=({"step": "spill", "stage": "T2"},), trial=97),
        replace(valid[1], steps=({"step": "split", "stage": "C"},), trial=98),
        replace(valid[2], holes={}, trial=99),
    ]
    odd = [replace(r, latency_s=1e-9, times_s=[]) for r in odd]
    path = write(tmp_path / "odd", [*odd, *whole.records])
    result = run(path, n_trials=0)
    assert result.best is not None and result.best.record == valid[0]
    assert result.problems == (
        "records that fit no program of their task are left out: 3, the first is "
        f"line 1, trial 97 of {result.task.name}: its steps are those of no sketch of the task",
    )
    again = run(path)
    assert again.trials == TRIALS and again.best is not None and again.best.record in valid
    assert again.problems == result.problems
    assert run(path, n_trials=TRIALS + 8).trials == TRIALS + 8


def test_a_run_cut_off_before_its_race_has_that_race(tmp_path: Path) -> None:
    whole = run(tmp_path / "log")
    path = write(tmp_path / "cut", whole.records)
    assert not read_log(path).choices
    again = run(path)
    (choice,) = read_log(path).choices
    assert again.best is not None and again.best.record.trial == choice.trial
    assert essence(read_log(path).records) == essence(whole.records)
    before = path.read_bytes()
    third = run(path)  # once is enough
    assert third.best is not None and third.best.record.trial == choice.trial
    assert path.read_bytes() == before


def test_a_network_cut_off_before_its_races_has_them(tmp_path: Path) -> None:
    run_network(tmp_path / "whole", "random")
    contents = read_log(tmp_path / "whole")
    tasks = {c.task for c in contents.choices}
    assert len(contents.choices) == len(tasks) == 2
    path = write(tmp_path / "cut", [*contents.records, contents.choices[0]])
    run_network(path, "random")
    assert len(read_log(path).choices) == 2
    before = path.read_bytes()
    run_network(path, "random")
    assert path.read_bytes() == before


def test_a_log_that_is_written_serves_others(tmp_path: Path) -> None:
    path = tmp_path / "log"
    whole = run(path)
    before = path.read_bytes()
    path.chmod(0o444)
    with RecordLog(write(tmp_path / "other", whole.records)) as held:
        for log in (path, held.path):
            found = run(log, n_trials=0)
            assert found.best is not None and found.records == whole.records
    assert path.read_bytes() == before
    absent = run(tmp_path / "none", n_trials=0)
    assert absent.best is None and absent.predicted is not None
    assert not (tmp_path / "none").exists() and "there is no log" in absent.problems[0]


def test_a_round_of_another_size_is_finished(tmp_path: Path) -> None:
    whole = run(tmp_path / "log")
    path = write(tmp_path / "cut", whole.records[:7])
    result = run(path, round_size=9, n_trials=31)
    programs = {(r.sketch, str(r.holes)) for r in result.records}
    assert result.trials == len(programs) == 31
    assert [r.trial for r in result.records] == list(range(31))


def run_network(log: Path, policy: str, n_trials: int = 30) -> None:
    small, large = matmul(16, name="small"), matmul(24, name="large")
    weighted = [
        WeightedTask(small, 3, other_forms=(matmul_form(16, small),)),
        WeightedTask(large, 1, other_forms=(matmul_form(24, large),)),
    ]
    both = Pretender()
    options: dict[str, Any] = {"builder": both, "runner": both, "policy": policy, "params": FEW}
    with Session(n_trials, None, log=log, progress=False, round_size=ROUND, **options) as session:
        tune_tasks(session, weighted)


@pytest.mark.parametrize(
    ("policy", "cuts"), sampled([("random", (1, 19)), ("evolutionary", (27,))], 2)
)
def test_a_network_is_continued_as_if_it_had_not_been_interrupted(
    tmp_path: Path, policy: str, cuts: Sequence[int]
) -> None:
    run_network(tmp_path / "whole", policy)
    records = read_log(tmp_path / "whole").records
    assert len(records) == 30 and len({r.task for r in records}) == 4
    # Two plain schedules; then all forms of both have a round before any has a second.
    assert {(r.task, r.round) for r in records[2 : 2 + 4 * ROUND]} == {
        (task, 1) for task in {r.task for r in records}
    }
    for cut in cuts:
        path = write(tmp_path / f"{cut}", records[:cut])
        run_network(path, policy)
        assert essence(read_log(path).records) == essence(records), cut


@some_or_all(16)
def test_a_later_round_with_programs_of_other_tasks_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    alike = {"random": replace(SEARCHERS["random"], neighbours=True)}
    monkeypatch.setattr("ansorlite.search.searchers.SEARCHERS", SEARCHERS | alike)
    run_network(tmp_path / "whole", "random", 62)
    records = read_log(tmp_path / "whole").records
    for cut in range(31, 62, 3)[::every]:
        path = write(tmp_path / f"{cut}", records[:cut])
        run_network(path, "random", 62)
        assert essence(read_log(path).records) == essence(records), cut


@some_or_all(8)
def test_a_network_is_continued_with_the_trees_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Most rounds leave the trees as they are: a resumed run finds out which ones they were."""
    monkeypatch.setattr(training_cutoff, "RETRAIN_GROWTH", 0.3)
    small = replace(CorrectionModel.PARAMS, min_programs=24, n_trees=20)
    monkeypatch.setattr(CorrectionModel, "PARAMS", small)
    trained: list[int] = []
    learned = CorrectionModel._learned
    monkeypatch.setattr(
        CorrectionModel,
        "_learned",
        lambda m, packs: trained.append(len(packs)) or learned(m, packs),
    )
    run_network(tmp_path / "whole", "evolutionary", 80)
    records = read_log(tmp_path / "whole").records
    assert 3 <= len(trained) <= 6 and trained == sorted(set(trained))
    for cut in (50, 61, 70, 77)[::every]:
        before, trained[:] = set(trained), []
        path = write(tmp_path / f"{cut}", records[:cut])
        run_network(path, "evolutionary", 80)
        assert trained and set(trained) <= before, cut
        trained[:] = sorted(before)
        assert essence(read_log(path).records) == essence(records), cut
