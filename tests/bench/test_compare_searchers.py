"""Searchers against each other: runs, curves, the table; one small comparison of each kind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite import cli
from ansorlite.bench import compare as module
from ansorlite.bench.compare import (
    CompareOptions,
    case_by_case,
    claims_text,
    compare,
    curves,
    run_case,
    space_of,
    table,
)
from ansorlite.bench.programs import program_at, structure, structures
from ansorlite.bench.runs import Run, append_run, read_runs
from ansorlite.errors import AnsorliteError
from ansorlite.graph.build import GraphBuilder
from ansorlite.records import read_log
from ansorlite.search.result import TuneResult
from ansorlite.workloads import workload

FAST = Run("ansor", "C2D:2", 0, [8.0, None, 4.0, 2.0], 1.0, at_s=[1.0, 2.0, 3.0, 4.0])
SLOW = Run("template-ga", "C2D:2", 0, [8.0, 8.0, 4.0, 4.0], 3.0, at_s=[1.0, 3.0, 5.0, 7.0])


def test_how_long_it_took_to_get_somewhere() -> None:
    assert (FAST.trials_to(4.0), FAST.seconds_to(4.0)) == (3, 3.0)
    assert (SLOW.trials_to(2.0), SLOW.seconds_to(2.0)) == (None, None)
    assert Run("a", "b", 0, [1.0], 1.0).seconds_to(1.0) is None  # times were not kept


def test_the_table_has_shares_of_the_best() -> None:
    text = table([FAST, SLOW], 16e9)
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "100%" in lines["ansor"] and "50%" in lines["template-ga"]


def test_how_soon_one_reaches_what_another_ends_at() -> None:
    text = claims_text([FAST, SLOW])
    line = "ansor reaches the last result of template-ga in 1 of 1 runs"
    assert f"{line}, on average after 75% of its trials and 43% of its time" in text
    missed = "template-ga reaches the last result of ansor in 0 of 1 runs"
    assert f"{missed}, on average after 100% of its trials and 175% of its time" in text
    assert claims_text([]).startswith("searcher")


def test_curves_by_trials_and_by_seconds() -> None:
    ((at, speed),) = curves([FAST], 16e9, seconds=True)["ansor"]
    np.testing.assert_allclose(at, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(speed, [2.0, 2.0, 4.0, 8.0])
    ((at, _),) = curves([FAST], 16e9, seconds=False)["ansor"]
    np.testing.assert_allclose(at, [1, 2, 3, 4])


def test_a_file_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    append_run(path, FAST)
    assert read_runs(path) == [FAST]
    path.write_text('{"format": 1}\n')
    with pytest.raises(AnsorliteError, match="does not hold runs of searches"):
        read_runs(path)


def test_unknown_names_end_it_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_case", lambda *a: pytest.fail("it ran"))
    with pytest.raises(AnsorliteError, match="no searcher is called 'ansro'"):
        compare("C2D:2", ["ansor", "ansro"], CompareOptions())
    with pytest.raises(AnsorliteError, match="C2D has no case 9"):
        compare("C2D:9", ["ansor"], CompareOptions())


def test_searchers_on_a_small_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command: every run has its trials, its log and its line."""
    names = "template-xgb,template-ga,template-grid,random"
    arguments = ["compare", "NRM:0", "--searchers", names, "--trials", "10"]
    output, logs = tmp_path / "runs.jsonl", tmp_path / "logs"
    assert cli.main([*arguments, "--output", str(output), "--logs", str(logs)]) == 0
    runs = read_runs(output)
    assert [r.policy for r in runs] == names.split(",")
    for r in runs:
        assert len(r.latency_s) == len(r.at_s) == 10 and np.isfinite(r.best()[-1])
        assert np.all(np.diff(r.at_s) >= 0)
        log = logs / f"NRM0-{r.policy}-0.jsonl"
        assert len(read_log(log).records) == 10
    assert all(name in capsys.readouterr().out for name in names.split(",")[:1])


def test_ctrl_c_ends_the_comparison_with_the_runs_that_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = workload("NRM:0")
    cut_short = [False, True]

    def tune(*arguments: object, **options: object) -> TuneResult:
        return TuneResult(task, None, (), interrupted=cut_short.pop(0))

    monkeypatch.setattr(module, "tune", tune)
    monkeypatch.setattr(module, "programs_at", lambda *a: {})
    output = tmp_path / "runs.jsonl"
    arguments = ["compare", "NRM:0", "--searchers", "template-ga,random,ansor"]
    assert cli.main([*arguments, "--output", str(output)]) == 0
    assert [r.policy for r in read_runs(output)] == ["template-ga"]
    out, err = capsys.readouterr()
    assert "template-ga" in out and "random" not in out and "interrupted" in err
    cut_short[:] = [True]
    assert cli.main(arguments) == 130


def test_all_searchers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "C2D:2", "--searchers", "list"]) == 0
    assert "template-xgb-transfer" in capsys.readouterr().out


def test_searchers_on_a_small_network() -> None:
    b = GraphBuilder("pair")
    weight = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    x = b.emit("relu", [b.emit("matmul", [b.input("x", (16, 24)), b.constant(weight)])])
    net = b.finish([b.emit("softmax", [x], axes=(1,))])
    options = CompareOptions(trials=18)
    for run in compare(net, ["template-xgb-transfer", "evolutionary"], options):
        assert len(run.latency_s) == 18 and run.case == "pair"
        assert np.isfinite(run.best()[-1])


def test_programs_that_were_raced() -> None:
    """Shares are those of the race; within its doubt two programs are as fast."""
    raced = {("ansor", "C2D:2", 0, 2): 4.03, ("template-ga", "C2D:2", 0, 4): 4.0}
    text = claims_text([FAST, SLOW], raced)
    assert "  raced: as fast as its last program in 1 of 1 after 2" in text
    # The run's own times are corrected by the race: its first program is as fast as the second.
    assert "template-ga in 1 of 1 runs, on average after 25% of its trials" in text
    raced["ansor", "C2D:2", 0, 2] = 4.1
    assert "in 0 of 1 after 2" in claims_text([FAST, SLOW], raced)


def test_cases_one_by_one() -> None:
    """Speed and time, medians over the seeds, of what was raced."""
    runs = [replace(r, seed=k) for k in range(3) for r in (FAST, SLOW)]
    raced = {("ansor", "C2D:2", k, 2): 2.0 * (k + 1) for k in range(3)}
    raced |= {("template-ga", "C2D:2", k, 4): 4.0 for k in range(3)}
    text = case_by_case(runs, raced, "ansor", "template-ga", 2)
    assert "  C2D:2   1.000   29%" in text
    assert "as fast in 1 of 1 cases, sooner in 1" in text
    assert case_by_case(runs, raced, "ansor", "template-ga", 3) == ""
    slower = {**raced, ("ansor", "C2D:2", 1, 2): 4.1}
    assert "as fast in 0 of 1" in case_by_case(runs, slower, "ansor", "template-ga", 2)


def test_a_program_that_no_template_has() -> None:
    """Structures are of loops and packing, whatever the numbers."""
    task = workload("GMM:0")
    template, ansor = space_of("template-xgb", task), space_of("ansor", task)
    known = structures(template, samples=40)
    rng = np.random.default_rng(1)
    (row,) = next(iter(template.values())).sample(1, rng)
    assert structure(next(iter(template.values())).fill(row)) in structures(template, samples=400)
    assert not structures(ansor, samples=5) <= known
    run = run_case("NRM:0", "ansor", 0, CompareOptions(trials=6))
    space = space_of("ansor", workload("NRM:0"))
    assert program_at(run, len(run.latency_s), space) is not None
    assert program_at(run, 5, space) is None
