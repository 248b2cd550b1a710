"""`ansorlite log` and `ansorlite replay`: what they print and write, and bad input."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from log_cases import record, write

import ansorlite
from ansorlite.cli import main
from ansorlite.records import choice, chosen, read_log
from ansorlite.task import SearchTask

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def task() -> SearchTask:
    found: SearchTask = ansorlite.workload("GMM:0")
    return found


def test_stats_count_what_there_is(run: Run, tmp_path: Path, task: SearchTask) -> None:
    failed = record(task, 2, status="RUN_ERROR", latency_s=None, error="killed by SIGSEGV")
    log = write(tmp_path / "log", [record(task), record(task, 1), failed])
    log.write_text(log.read_text() + "garbage\n")
    status, out, _ = run("log", "stats", log)
    assert status == 0
    (line,) = (x for x in out.splitlines() if x.startswith(task.name))
    assert line.split()[3:7] == [task.target.fingerprint, "3", "1", "2"]
    assert "1.000 ms" in line
    assert "failures: RUN_ERROR 1" in out and "damaged: line 4" in out


def test_names_in_a_log_are_no_commands_to_a_terminal(
    run: Run, tmp_path: Path, task: SearchTask
) -> None:
    odd = replace(record(task), task_name="a\nb\x1b[2J", timestamp=2.4e11)
    log = write(tmp_path / "log", [odd])
    status, out, _ = run("log", "stats", log)
    assert status == 0 and "a\\nb\\x1b[2J" in out
    assert out.replace("\n", "").isprintable() and out.count("\n") == 6


def test_merge_keeps_everything_once(run: Run, tmp_path: Path, task: SearchTask) -> None:
    a = write(tmp_path / "a", [record(task), record(task, 1)])
    b = write(tmp_path / "b", [record(task, 1), record(task, 2)])
    status, out, _ = run("log", "merge", a, b, "--output", tmp_path / "c")
    assert status == 0 and out.startswith("3 of 4 records of 2 logs")
    assert [r.trial for r in read_log(tmp_path / "c").records] == [0, 1, 2]


def test_lines_of_winners_keep_their_place(run: Run, tmp_path: Path, task: SearchTask) -> None:
    """A choice counts until something faster stands after it, in the new log, too."""
    first, later = record(task), record(task, 1, latency_s=5e-4)
    a = write(tmp_path / "a", [first, choice(first, 9e-4), later])
    for how in ("merge", "distill"):
        assert run("log", how, a, "--output", tmp_path / how, "--keep", 2)[0] == 0
        contents = read_log(tmp_path / how)
        assert len(contents.choices) == 1 and len(contents.records) == 2
        assert chosen(contents, [task.workload_key], task.target.fingerprint) is None


def test_much_damage_is_reported_in_few_lines(run: Run, tmp_path: Path, task: SearchTask) -> None:
    a = write(tmp_path / "a", [record(task)])
    a.write_text(a.read_text() + "garbage\n" * 2000)
    status, out, _ = run("log", "stats", a)
    assert status == 0 and "damaged: 2000 lines in all" in out and len(out) < 2000


def test_tasks_of_odd_names_are_unknown(run: Run, tmp_path: Path, task: SearchTask) -> None:
    names = ("GMM:" + "9" * 5000, "GMM:0 batch " + "9" * 5000, "GMM:0 batch 999999999", "", "\0")
    odd = [replace(record(task), task="0" * 20, task_name=name) for name in names]
    status, out, _ = run("replay", write(tmp_path / "a", odd), "--all")
    assert status == 1 and out.count("NO_TASK") >= len(names)


def test_distill_keeps_the_best(run: Run, tmp_path: Path, task: SearchTask) -> None:
    a = write(tmp_path / "a", [record(task, k, latency_s=1e-3 * k) for k in (3, 1, 2)])
    assert run("log", "distill", a, "--output", tmp_path / "b", "--keep", 2)[0] == 0
    assert [r.trial for r in read_log(tmp_path / "b").records] == [1, 2]


def test_nothing_is_overwritten(run: Run, tmp_path: Path, task: SearchTask) -> None:
    a, b = write(tmp_path / "a", [record(task)]), write(tmp_path / "b", [record(task, 1)])
    status, _, err = run("log", "merge", a, "--output", b)
    assert status == 2 and "exists: name a new log" in err
    status, _, err = run("log", "merge", a)
    assert status == 2 and "--output" in err
    status, _, err = run("log", "stats", tmp_path / "none")
    assert status == 2 and "no tuning log" in err


def test_recorded_programs_run_again(run: Run, tmp_path: Path, task: SearchTask) -> None:
    log = write(tmp_path / "log", [record(task), record(task, 1), record(task, 2)])
    status, out, _ = run("replay", log, "--keep", 2)
    assert status == 0 and "2 of 2 right" in out


def test_programs_that_cannot_run_again(run: Run, tmp_path: Path, task: SearchTask) -> None:
    stale = record(task, 1, holes={})
    unknown = replace(record(task, 2), task="0" * 20, task_name="of a network")
    elsewhere = record(task, 3, target="other")
    log = write(tmp_path / "log", [record(task), stale, unknown, elsewhere])
    status, out, _ = run("replay", log, "--all")
    assert status == 1 and "1 of 4 right" in out
    for name in ("BUILD_ERROR", "NO_TASK", "OTHER_TARGET"):
        assert name in out


def test_a_log_without_a_valid_record(run: Run, tmp_path: Path, task: SearchTask) -> None:
    log = write(tmp_path / "log", [record(task, status="RUN_ERROR", latency_s=None)])
    status, _, err = run("replay", log)
    assert status == 2 and "no valid record" in err


def test_policies_search_what_was_recorded(run: Run, tmp_path: Path, task: SearchTask) -> None:
    log = write(tmp_path / "log", [record(task, k, latency_s=1e-3 / (1 + k)) for k in range(12)])
    status, out, _ = run("simulate", log, "--trials", 12, "--seeds", 1)
    assert status == 0
    lines = [x.split() for x in out.splitlines() if x.startswith(task.name)]
    assert [x[4] for x in lines] == ["evolutionary", "random"]
    assert all(x[-1] == "100%" for x in lines)  # all of it was given out
    assert "random: " in out


def test_nothing_to_search(run: Run, tmp_path: Path, task: SearchTask) -> None:
    elsewhere = write(tmp_path / "a", [record(task, target="other")])
    status, _, err = run("simulate", elsewhere)
    assert status == 2 and "no record for this machine" in err
    failed = write(tmp_path / "b", [record(task, status="RUN_ERROR", latency_s=None)])
    status, _, err = run("simulate", failed)
    assert status == 2 and "no valid record" in err
