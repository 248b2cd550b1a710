"""`python -m ansorlite.deployed`: a saved network described and timed with numpy alone."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ansorlite
from ansorlite.deployed import load_module
from ansorlite.deployed_bench import Bench, bench, main, random_arrays, table
from ansorlite.errors import ModelError, UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.pipeline import compile_plain

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
QUICK = ("--runs", "3", "--warmup", "0")


def looked_up() -> Graph:
    b = GraphBuilder("rows")
    ids, factor = b.input("ids", (3,), "int64"), b.input("factor", (1, 4))
    table = b.constant(np.arange(4, dtype=np.float32).reshape(1, 4))  # index 0 alone is right
    return b.finish([b.emit("mul", [b.emit("take", [table, ids], axis=0), factor])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_plain(looked_up()).save(tmp_path_factory.mktemp("saved") / "net")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(load_module, [str(a) for a in arguments])
    return status, *capsys.readouterr()


def test_without_the_tools_in_a_process_of_its_own(folder: Path) -> None:
    code = """
import runpy, sys
for name in ("llvmlite", "lightgbm", "networkx", "tqdm", "onnx"):
    sys.modules[name] = None
sys.argv = ["deployed", *sys.argv[1:]]
runpy.run_module("ansorlite.deployed", run_name="__main__", alter_sys=True)
"""
    command = [sys.executable, "-c", code, str(folder), "--bench", *QUICK, "--threads", "1,2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("rows, opened in ")
    assert lines[1].split()[:4] == ["Size", "Threads", "Runs", "Median"]
    assert ["int64[3], float32[1, 4]" in line for line in lines[3:5]] == [True, True]
    assert lines[-1].startswith("fastest")


def test_rows_of_json_are_ordered_latencies(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, folder, "--bench", "--json", *QUICK, "--threads", "2,1")
    found = json.loads(out)
    assert status == 0 and found["network"] == "rows" and found["opened_s"] > 0
    assert found["version"] == ansorlite.__version__
    assert [row["threads"] for row in found["rows"]] == [2, 1]
    for row in found["rows"]:
        keys = "least_s", "p5_s", "median_s", "p90_s", "p99_s", "most_s"
        figures = [row[key] for key in keys]
        assert figures == sorted(figures) and figures[0] > 0 and row["runs"] == 3
        assert figures[0] <= row["mean_s"] * 1.0001 and row["mean_s"] <= figures[-1] * 1.0001


class Slow:
    """A network whose calls are counted."""

    version, threads, sizes, calls = "0", 1, ({"inputs": [], "outputs": []},), 0

    def __call__(self, *args: Any) -> None:
        self.calls += 1


def test_runs_warm_up_and_time_are_what_was_asked_for() -> None:
    net = Slow()
    assert bench(net, [], runs=7, warmup=2, seconds=60.0).runs == 7
    assert net.calls == 1 + 2 + 7
    assert bench(net, [], seconds=1e-9).runs == 5
    assert bench(net, [], runs=2, seconds=1e-9).runs == 2


def test_percentiles_of_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    times: Sequence[float] = [9.0, *(k / 100 for k in range(101))]
    each = iter(times)
    monkeypatch.setattr("ansorlite.deployed_bench._seconds", lambda net, arrays: next(each))
    row = bench(Slow(), [], runs=101, warmup=0, seconds=60.0)
    assert (row.first_s, row.least_s, row.most_s) == (9.0, 0.0, 1.0)
    got = row.p5_s, row.median_s, row.p90_s, row.p99_s
    np.testing.assert_allclose(got, (0.05, 0.5, 0.9, 0.99))


def test_the_table_names_the_fastest() -> None:
    rows = [Bench("x", n, 9, *[t] * 8) for n, t in ((1, 2e-3), (2, 1e-3), (4, 3e-3))]
    text = table(rows).splitlines()
    assert text[-1].split()[:2] == ["fastest", "2"] and "1.000 ms" in text[-1]
    assert [line.split()[-1] for line in text[2:5]] == ["500.0", "1000.0", "333.3"]


def test_arrays_that_the_network_takes(folder: Path) -> None:
    net = load_module(folder)
    ids, factor = random_arrays(net, 0)
    assert ids.tolist() == [0, 0, 0] and ids.dtype == np.int64 and factor.std() > 0
    with pytest.raises(ModelError, match="indices are from"):
        net(ids + 1, factor)


def test_the_description_has_threads_version_and_values(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, folder)
    assert status == 0 and f"rows: saved by ansorlite {ansorlite.__version__} for " in out
    assert "input ids: int64[3]" in out and "output " in out and " threads, " in out
    status, out, _ = run(capsys, folder, "--json")
    assert json.loads(out)["sizes"][0]["inputs"][0]["name"] == "ids"


def test_threads_of_a_saved_network(folder: Path) -> None:
    net = load_module(folder)
    before = net.threads
    net.threads = 3
    assert net.threads == load_module(folder).threads == 3
    net.threads = before
    assert net.version == ansorlite.__version__
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(UsageError, match="threads"):
            net.threads = wrong


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--bench", "--threads", "0"), "no whole number from 1"),
        (("--bench", "--threads", "1,x"), "no whole number from 1"),
        (("--bench", "--runs", "0"), "no whole number from 1"),
        (("--bench", "--seconds", "nan"), "no number of seconds"),
        (("--bench", "--size", "1"), "there is no --size 1"),
        (("--fast",), "unrecognized"),
    ],
)
def test_wrong_options(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    status, out, err = run(capsys, folder, *arguments)
    assert (status, out, len(err.splitlines())) == (2, "", 1) and told in err


def test_a_folder_that_is_no_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, tmp_path, "--bench")
    assert (status, out, len(err.splitlines())) == (2, "", 1) and "no saved network" in err
