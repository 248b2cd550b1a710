"""The command `ansorlite compare`: runs, curves, the table; one small comparison of each kind."""

import json
from pathlib import Path

import numpy as np
import pytest

from ansorlite import cli
from ansorlite.baselines import compare as module
from ansorlite.baselines.compare import CompareOptions, compare, curves, log_name, table
from ansorlite.baselines.runs import Run, bands, chart
from ansorlite.errors import AnsorliteError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.records import read_log
from ansorlite.search.result import TuneResult
from ansorlite.workloads import workload

FAST = Run("ansor", "C2D:2", 0, [8.0, None, 4.0, 2.0], 1.0, at_s=[1.0, 2.0, 3.0, 4.0])
SLOW = Run("template-ga", "C2D:2", 0, [8.0, 8.0, 4.0, 4.0], 3.0, at_s=[1.0, 3.0, 5.0, 7.0])


def read_runs(path: Path) -> list[Run]:
    return [Run(**json.loads(line)) for line in path.read_text().splitlines()]


def test_the_table_has_shares_of_the_best() -> None:
    text = table([FAST, SLOW], 16e9)
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "100%" in lines["ansor"] and "50%" in lines["template-ga"]


def test_curves_by_trials_and_by_seconds() -> None:
    ((at, speed),) = curves([FAST], 16e9, seconds=True)["ansor"]
    np.testing.assert_allclose(at, [1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(speed, [2.0, 2.0, 4.0, 8.0])
    ((at, _),) = curves([FAST], 16e9, seconds=False)["ansor"]
    np.testing.assert_allclose(at, [1, 2, 3, 4])


def test_unknown_names_end_it_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "run_task", lambda *a: pytest.fail("it ran"))
    task = workload("C2D:2")
    with pytest.raises(AnsorliteError, match="no searcher is called 'ansro'"):
        compare(task, "C2D:2", ["ansor", "ansro"], CompareOptions())


@pytest.mark.slow
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


@pytest.fixture
def net() -> Graph:
    b = GraphBuilder("pair")
    weight = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    x = b.emit("relu", [b.emit("matmul", [b.input("x", (16, 24)), b.constant(weight)])])
    return b.finish([b.emit("softmax", [x], axes=(1,))])


@pytest.mark.slow
def test_searchers_on_a_small_network(net: Graph) -> None:
    options = CompareOptions(trials=18)
    for run in compare(net, "", ["template-xgb-transfer", "evolutionary"], options):
        assert len(run.latency_s) == 18 and run.case == "pair"
        assert np.isfinite(run.best()[-1])


def test_one_task_of_a_file(
    net: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task is named, its run has the name of the network, too."""
    monkeypatch.setattr("ansorlite.cli.inputs.network", lambda text, batch: net)
    output = tmp_path / "runs.jsonl"
    arguments = ["compare", "pair.onnx", "--searchers", "random", "--trials", "2"]
    assert cli.main([*arguments, "--task", "softmax_1", "--output", str(output)]) == 0
    (run,) = read_runs(output)
    assert (run.case, len(run.latency_s)) == ("pair/softmax_1", 2)
    assert log_name(run.case, run.policy, 0) == "pair-softmax_1-random-0.jsonl"
    assert cli.main([*arguments, "--task", "7"]) == 2
    assert "pair has no task '7': give a number or a name of: 0 " in capsys.readouterr().err
    assert cli.main(["compare", "C2D:2", "--task", "0"]) == 2
    assert "C2D:2 is one task: leave out --task" in capsys.readouterr().err


def test_a_plot_of_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "runs.svg"
    chart(path, "trials", "GFLOP/s", bands(curves([FAST, SLOW], 16e9, seconds=False)))
    assert path.read_text().startswith("<?xml")
