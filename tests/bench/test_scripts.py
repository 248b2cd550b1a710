"""The scripts as commands: wrong arguments are one line before any work, tables are drawn again."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from ansorlite.errors import MeasureError
from bench.experiment import Experiment, Row, exit_status


def status(script: str, *arguments: object) -> int:
    """Run the script's `main` in this process."""
    module = importlib.import_module(script)
    sys.argv = [f"{script}.py", *map(str, arguments)]
    return exit_status(module.main)


@pytest.fixture(autouse=True)
def arguments_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)


@pytest.mark.parametrize(
    ("script", "arguments", "text"),
    [
        ("bench_networks", ("--only", "x"), "no network 'x'"),
        ("bench_ops", ("--only", "x"), "unknown workload 'x'"),
        ("bench_ops", ("--peer-python", "none"), "no program that can be run"),
        ("bench_ops", ("--only", "GMM:0", "--output", "rows.txt"), "where the table goes"),
        ("bench_ops", ("--only", "GMM:0", "--output", "rows"), "does not hold rows of operators"),
        ("bench_networks", ("--output", "rows"), "does not hold rows of networks"),
    ],
)
def test_wrong_arguments_end_it_before_the_work(
    script: str,
    arguments: tuple[str, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for rows in ("no rows", "[1]", json.dumps({"case": "GMM:0"})):
        Path("rows").write_text(rows + "\n")
        assert status(script, "--peers", *arguments) == 2
        told = capsys.readouterr().err
        assert text in told and told.count("\n") == 1
        assert Path("rows").read_text() == rows + "\n"


def test_an_experiment_measures_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def once(key: str) -> Row:
        if key == "c":
            raise MeasureError("it does not run")
        return {"what": key, "s": 2.0}

    experiment = Experiment[Row](
        tmp_path / "rows.jsonl",
        key=lambda r: r["what"],
        line=lambda r: f"{r['what']} {r['s']}",
        head="what s",
        foot=lambda rows: [f"{len(rows)} rows"],
        order=lambda r: r["what"],
    )
    experiment.add({"what": "b", "s": 1.0})
    assert experiment.run("abc", once) == ["c"]
    experiment.finish()
    told = capsys.readouterr()
    assert told.out.splitlines() == ["b 1.0", "what s", "a 2.0", "2 rows"]
    assert told.err == "c: it does not run\n"
    assert (tmp_path / "rows.txt").read_text() == "what s\na 2.0\nb 1.0\n2 rows\n"
    assert experiment.run("b", once, done=lambda r: r["s"] > 1) == []
    assert [r["s"] for r in experiment.rows()] == [2.0, 2.0]
