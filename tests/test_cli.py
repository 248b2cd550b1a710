"""The command line: what it prints where, its exit statuses, and bad input of every kind."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from log_cases import record, write

import ansorlite
import ansorlite.search.session as session_module
import ansorlite.search.tune as tuning
from ansorlite.cli import COMMANDS, _parser, main
from ansorlite.cli.options import Command
from ansorlite.cli.tune import apart_text
from ansorlite.codegen.dot import widest
from ansorlite.errors import AnsorliteError
from ansorlite.measure import peak
from ansorlite.measure.peak import Peak
from ansorlite.records import read_log
from ansorlite.search.tuner import TaskTuner
from ansorlite.settings import settings
from ansorlite.target import Target
from ansorlite.task import SearchTask

Lines = tuple[int, list[str], list[str]]


class Cli:
    """Runs the command line in this process: (status, lines of output, lines of errors)."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> Lines:
        self._capsys.readouterr()
        try:
            status = main([str(a) for a in arguments])
        except SystemExit as leaving:
            assert isinstance(leaving.code, int)
            status = leaving.code
        out, err = self._capsys.readouterr()
        return status, out.splitlines(), err.splitlines()

    def fails(self, *arguments: object, as_: int = 2) -> str:
        """The one line that tells what is wrong: with the input (2), or in the work (1)."""
        status, out, err = self(*arguments)
        assert (status, out, len(err)) == (as_, [], 1), (status, out, err)
        assert err[0].startswith("ansorlite: ")
        return err[0].removeprefix("ansorlite: ")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


@pytest.fixture
def task() -> SearchTask:
    found: SearchTask = ansorlite.workload("GMM:0")
    return found


# ---- usage --------------------------------------------------------------------------------------


def test_help_names_every_command(cli: Cli) -> None:
    status, out, _ = cli("--help")
    assert status == 0
    assert all(any(c.name in line and c.summary in line for line in out) for c in COMMANDS)
    assert cli("--version") == (0, [ansorlite.__version__], [])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_every_command_has_examples_that_parse(cli: Cli, command: Command) -> None:
    status, out, _ = cli(command.name, "--help")
    assert status == 0 and command.examples
    for line, meaning in command.examples:
        assert f"  {line}" in out and f"  # {meaning}" in out
        program, *arguments = shlex.split(line.partition(" > ")[0])
        assert program == "ansorlite"
        assert _parser().parse_args(arguments).run is command.run


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("optimise",),
        ("tune",),
        ("tune-op", "GMM:0", "--trials", "-1"),
        ("tune-op", "GMM:0", "--trials", "1e3"),
        ("tune-op", "GMM:0", "--timeout", "0"),
        ("tune-op", "GMM:0", "--timeout", "nan"),
        ("tune", "x.onnx", "--dim", "224"),
        ("tune", "x.onnx", "--dim", "N=0"),
        ("tune", "x.onnx", "--batch", "0"),
        ("show", "GMM:0", "--stage", "graph"),
        ("show", "GMM:0", "--row", "worst"),
        ("compare", "GMM:0", "--timeout", "nan"),
        ("compare", "GMM:0", "--seeds", "0"),
    ],
)
def test_wrong_usage_is_status_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    status, out, err = cli(*arguments)
    assert status == 2 and not out
    assert err[0].startswith("usage: ansorlite") and "error: " in err[-1] and len(err) == 1


# ---- bad input ----------------------------------------------------------------------------------


def test_unknown_workloads_and_networks(cli: Cli) -> None:
    assert "unknown workload 'FOO': choose one of C1D, C2D" in cli.fails("tune-op", "FOO:1")
    assert "GMM has no case 7: choose one of GMM:0" in cli.fails("show", "GMM:7")
    assert "--dim is for networks" in cli.fails("show", "GMM:0", "--dim", "N=1")
    assert "cannot write" in cli.fails("compare", "GMM:0", "--output", "no/such/folder/runs")
    assert "no searcher is called 'luck'" in cli.fails("tune-op", "GMM:0", "--policy", "luck")
    assert "'GMM:x' is no case" in cli.fails("show", "GMM:x")
    text = cli.fails("tune", "resnet51")
    assert "there is no network 'resnet51': choose one of resnet18" in text
    assert "an ONNX file is given as ./resnet51" in text
    text = cli.fails("show", "resnet18", "--stage", "passes", "--batch", "1000000000")
    assert "more than the limit of" in text and "ONNX file" not in text
    assert "leave out --dim" in cli.fails("tune", "resnet18", "--dim", "N=1", "--trials", "0")


def onnx_file(path: Path, operator: str = "Relu", batch: int | str = 1) -> Path:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node(operator, ["p"], ["y"], name="last"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), str(path))
    return path


def test_bad_onnx_files(cli: Cli, tmp_path: Path) -> None:
    good = onnx_file(tmp_path / "good.onnx")
    torn = tmp_path / "torn.onnx"
    torn.write_bytes(good.read_bytes()[:100])
    (tmp_path / "text.onnx").write_text("not a model\n")
    assert "there is no file" in cli.fails("tune", tmp_path / "missing.onnx")
    assert "there is no file" in cli.fails("tune", tmp_path)
    assert f"{torn} is no readable ONNX model" in cli.fails("tune", torn)
    assert "text.onnx is no" in cli.fails("tune", tmp_path / "text.onnx")
    odd = onnx_file(tmp_path / "odd.onnx", "Det")
    assert "1 unsupported operator: Det (node last)" in cli.fails("tune", odd)
    dynamic = onnx_file(tmp_path / "dynamic.onnx", batch="N")
    assert "input x has the dynamic dimension 0 (N)" in cli.fails("tune", dynamic)
    assert "'M'" in cli.fails("tune", dynamic, "--dim", "M=3")


def test_bad_logs(cli: Cli, tmp_path: Path, task: SearchTask) -> None:
    missing = tmp_path / "none" / "log"
    text = f"there is no directory {missing.parent}, create it"
    assert text in cli.fails("tune-op", "GMM:0", "--log", missing)
    assert "there is no tuning log" in cli.fails("show", "GMM:0", "--log", missing)
    other = tmp_path / "other"
    other.write_text(record(task).to_json().replace('"format":1', '"format":9') + "\n")
    for arguments in (("tune-op", "GMM:0", "--log"), ("show", "GMM:0", "--log")):
        assert "line 1 has log format 9, this version reads format 1" in cli.fails(
            *arguments, other
        )
    (tmp_path / "text").write_text("hello\n")
    assert "is not a tuning log" in cli.fails("tune-op", "GMM:0", "--log", tmp_path / "text")
    empty = tmp_path / "empty"
    empty.write_text("")
    assert "has no program of GMM:0 batch 1" in cli.fails("show", "GMM:0", "--log", empty)
    assert "give one with --log" in cli.fails("show", "GMM:0", "--row", "best")
    odd = write(tmp_path / "odd", [record(task, steps=({"step": "spill"},))])
    assert "its steps are those of no sketch of the task" in cli.fails(
        "show", "GMM:0", "--log", odd
    )


def test_damaged_lines_are_reported_and_skipped(cli: Cli, tmp_path: Path, task: SearchTask) -> None:
    path = write(tmp_path / "log", [record(task, k, latency_s=1e-3 + k) for k in range(3)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:40], lines[2], '{"format":1,"ta']))
    before = path.read_bytes()
    status, out, err = cli("tune-op", "GMM:0", "--trials", "0", "--log", path)
    assert status == 0 and out[0].startswith("GMM:0 batch 1: 1.000 ms, ")
    assert len(err) == 1 and "2 damaged lines are left out, the first is line 2" in err[0]
    assert path.read_bytes() == before
    status, out, err = cli("show", "GMM:0", "--log", path)
    assert status == 0 and out[0] == "def kernel(A, B, matmul):" and len(err) == 1


@pytest.fixture
def fresh_settings() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.usefixtures("fresh_settings")
def test_a_variable_that_makes_no_sense(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSORLITE_DEBUG", "9")
    assert "ANSORLITE_DEBUG='9' is not a whole number" in cli.fails("show", "GMM:0")


def test_an_output_that_cannot_be_written(cli: Cli, tmp_path: Path) -> None:
    assert "cannot write" in cli.fails("tune", "resnet18", "--output", tmp_path / "no" / "x")


def test_an_error_of_many_lines_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AnsorliteError("it broke\n  in the middle")

    monkeypatch.setattr(tuning, "tune", fail)
    assert cli.fails("tune-op", "GMM:0", as_=1) == "it broke in the middle"


# ---- interrupted --------------------------------------------------------------------------------


def test_ctrl_c_before_anything_was_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", interrupt)
    status, out, err = cli("tune-op", "GMM:0")
    assert (status, out) == (130, []) and "interrupted" in err[0]


def test_ctrl_c_with_a_program_from_the_log(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: SearchTask
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "measure_peak", lambda target: Peak(2e11, 1e11, 2e10))
    monkeypatch.setattr(TaskTuner, "round", interrupt)
    path = write(tmp_path / "log", [record(task)])
    status, out, err = cli("tune-op", "GMM:0", "--log", path)
    assert status == 0 and out[0].startswith("GMM:0 batch 1: 1.000 ms")
    assert err == ["interrupted: the best so far is kept"]


def test_a_reader_that_goes_away() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ansorlite", "show", "GMM:0", "--stage", "asm"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (141, b"")


# ---- what is printed ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "first", "contains"),
    [
        ("dag", "A = placeholder([1, 128, 128], float32)", "return matmul"),
        ("sketches", "sketch s0 (multi_level_tiling)", "matmul.lanes: lanes, "),
        ("program", "def kernel(A, B, matmul):", "register=1"),
        ("features", "feature ", "executions "),
        ("llvm", "; ModuleID", "define void @ansorlite_kernel("),
        ("asm", "\t.file", "ansorlite_kernel:"),
    ],
)
def test_show_every_stage(cli: Cli, stage: str, first: str, contains: str) -> None:
    status, out, err = cli("show", "gmm:0", "--stage", stage)
    assert status == 0 and err == []
    assert out[0].startswith(first) and any(contains in line for line in out)


@pytest.mark.parametrize(
    ("stage", "first", "contains"),
    [
        ("passes", "# import", "# lower_batch_norm"),
        ("partition", "partition of resnet18:", "max_pool_"),
        ("svg", "<svg ", "</svg>"),
    ],
)
def test_show_stages_of_networks(cli: Cli, stage: str, first: str, contains: str) -> None:
    status, out, err = cli("show", "resnet18", "--stage", stage)
    assert status == 0 and err == []
    assert out[0].startswith(first) and any(contains in line for line in out)
    assert "no network 'resnet19'" in cli.fails("show", "resnet19", "--stage", stage)


def test_show_rows(cli: Cli, tmp_path: Path, task: SearchTask) -> None:
    one, same = cli("show", "GMM:0", "--seed", 1), cli("show", "GMM:0", "--seed", 1)
    other, plain = cli("show", "GMM:0", "--seed", 2), cli("show", "GMM:0", "--row", "plain")
    assert one == same and one != other
    assert any("float64" in line for line in plain[1])
    slow, fast = record(task), record(task, 1, latency_s=1e-6)
    fast.holes["T2.a1"][:] = [1, 1, 2]
    path = write(tmp_path / "log", [slow, fast])
    status, best, _ = cli("show", "GMM:0", "--log", path)
    assert status == 0 and "  for matmul.i.0 in range(64):" in "\n".join(best)
    assert cli("show", "GMM:0", "--log", path, "--row", "random", "--seed", 1) == one


def test_show_untiled_tasks_too(cli: Cli) -> None:
    status, out, _ = cli("show", "SFM:0")
    assert status == 0 and out[0] == "def kernel(A, softmax):"


def test_devices(cli: Cli) -> None:
    status, out, _ = cli("devices")
    assert status == 0
    table = {line[:13].strip(): line[14:] for line in out}
    assert table["ansorlite"] == ansorlite.__version__
    assert "GFLOP/s" in table["multiply-add"] and "LLVM" in table["llvmlite"]


def test_the_roofline_of_the_best_row(
    cli: Cli, tmp_path: Path, task: SearchTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ansorlite.measure.calibrate import Calibration, LevelSpeed
    from ansorlite.report import show

    limits = Calibration(
        Peak(2e11, 1e11, 2e10), (LevelSpeed("memory", 1e10, 2e10, 2e10, 3e10),), (), "today"
    )
    monkeypatch.setattr(show, "calibration", lambda target: limits)
    path = write(tmp_path / "log", [record(task)])
    status, out, _ = cli("show", "GMM:0", "--roofline", "--log", path)
    assert status == 0 and any(line.startswith("measured: 1.000 ms") for line in out)
    status, out, _ = cli("show", "GMM:0", "--roofline")
    assert status == 0 and not any("measured" in line for line in out)


def test_calibrated_devices(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from ansorlite.measure import calibrate

    dots = {"dot_bf16": 4e11}, {"dot_bf16": 2e11}
    kept = calibrate.Calibration(Peak(2e11, 1e11, 2e10), (), (), "2026-01-01")
    monkeypatch.setattr(calibrate, "calibration", lambda target: None)
    monkeypatch.setattr(peak, "measure_peak", lambda target: Peak(2e11, 1e11, 2e10, *dots))
    out = cli("devices")[1]
    assert any("run devices --calibrate once" in line for line in out)
    known = widest(Target.detect(), "dot_bf16")  # one line, where the target has it
    told = [line.split(None, 1) for line in out if "400.0" in line]
    assert told == ([[known.name, "400.0 GFLOP/s, one core 200.0"]] if known else [])
    monkeypatch.setattr(calibrate, "calibrate", lambda target: kept)
    assert any("measured 2026-01-01" in line for line in cli("devices", "--calibrate")[1])


def test_without_trials_and_log_the_model_decides(cli: Cli) -> None:
    status, out, _ = cli("tune-op", "GMM:0", "--trials", "0")
    assert status == 0
    assert "nothing was measured" in out[0] and out[1].startswith("def kernel(")


def test_tune_one_task_of_a_network(cli: Cli, tmp_path: Path) -> None:
    model, log = onnx_file(tmp_path / "net.onnx"), tmp_path / "log"
    text = cli.fails("tune", model, "--task", "7")
    assert "no task '7': give a number or a name of: 0 matmul" in text
    status, out, err = cli("tune", model, "--task", "0", "--trials", 2, "--log", log, "-q")
    assert status == 0, err
    assert out[0].startswith("matmul") and out[1].split()[:2] == ["ID", "Task"]
    assert {r.task_name for r in read_log(log).records} == {out[3].split()[1]}
    status, out, _ = cli("tune", model, "--task", "0", "--trials", 0, "-q")
    assert status == 0 and "nothing was measured" in out[0] and out[1].startswith("def kernel(")


def test_tasks_that_do_not_add_up_to_the_network_are_explained() -> None:
    slower = apart_text(1e-3, 1.25e-3, 1.5e-3).splitlines()
    assert slower == [
        "the tasks add up to 1.000 ms, the network takes 1.500 ms (1.50 times):",
        "  250.0 us more in kernels in the network, whose operands lie in other caches;"
        " 250.0 us more in calls between kernels, checks and copies of the results",
    ]
    assert "200.0 us less in kernels" in apart_text(1e-3, 0.8e-3, 0.8e-3)


def test_tune_a_network_file(cli: Cli, tmp_path: Path) -> None:
    model = onnx_file(tmp_path / "net.onnx", batch="N")
    report, log = tmp_path / "report.txt", tmp_path / "log"
    arguments = ("tune", model, "--dim", "N=3", "--log", log, "--output", report, "-q")
    status, out, err = cli(*arguments, "--trials", 3, "--seed", 5)
    assert status == 0, err
    assert report.read_text().splitlines() == out
    assert out[0].split()[:2] == ["ID", "Task"] and any(line.startswith("Phase") for line in out)
    assert out[-1].startswith("plain ") and "outputs differ by at most" in out[-1]
    records = read_log(log).records
    assert len(records) == 3 and {r.seed for r in records} == {5}
    assert all(r.ok for r in records), [r.error for r in records]


def test_profile_a_network_with_the_programs_of_a_log(cli: Cli, tmp_path: Path) -> None:
    model, log = onnx_file(tmp_path / "net.onnx", batch="N"), tmp_path / "log"
    trace, figures = tmp_path / "trace.json", tmp_path / "figures.json"
    one = ("profile", model, "--dim", "N=3", "--repeats", 2)
    assert cli("tune", model, "--dim", "N=3", "--log", log, "--trials", 2, "-q")[0] == 0
    status, out, err = cli(*one, "--log", log, "--trace", trace, "--json", figures)
    assert (status, err) == (0, [])
    assert out[0].startswith("net: 1 kernel, ") and "2 rounds" in out[0]
    assert out[1].split()[:2] == ["ID", "Kernel"] and "untouched" in "".join(out)
    (kernel,) = json.loads(figures.read_text())["kernels"]
    events = json.loads(trace.read_text())["traceEvents"]
    assert kernel["name"] in {e["name"] for e in events} and kernel["alone_s"] > 0
    status, out, err = cli(*one, "--plain", "--in-place-only", "--json", figures)
    assert (status, err) == (0, [])
    assert json.loads(figures.read_text())["kernels"][0]["alone_s"] is None
    several = cli("profile", model, "--dim", "N=3,2", "--plain", "--repeats", 1, "--trace", trace)
    assert [line for line in several[1] if line.startswith("size ")] == ["size N=3", "size N=2"]
    assert {e["pid"] for e in json.loads(trace.read_text())["traceEvents"]} == {1, 2}
    cli("profile", model, "--dim", "N=3,2", "--plain", "--repeats", 1, "--json", figures)
    assert set(json.loads(figures.read_text())) == {"N=3", "N=2"}


def test_what_cannot_be_profiled(cli: Cli, tmp_path: Path) -> None:
    model, log = onnx_file(tmp_path / "net.onnx"), tmp_path / "log"
    assert "cannot read" in cli.fails("profile", model, "--log", log)
    log.write_text("")
    assert "leave out --log" in cli.fails("profile", model, "--log", log, "--plain")
    assert "uses that file" in cli.fails("profile", model, "--log", log, "--trace", log)
    assert "is a directory" in cli.fails("profile", model, "--json", tmp_path)
    status, out, err = cli("profile", model, "--log", log, "--repeats", 1)
    assert status == 0 and out and "the model decides" in "".join(err)


def test_tune_a_network_file_in_several_sizes(cli: Cli, tmp_path: Path) -> None:
    model = onnx_file(tmp_path / "net.onnx", batch="N")
    assert "2 sizes, which this cannot show together" in cli.fails(
        "tune", model, "--dim", "N=2,3", "--task", "0"
    )
    status, out, err = cli("tune", model, "--shape", "x=2,4", "--shape", "x=3,4", "--trials", 4)
    assert status == 0, err
    assert "size x=2x4" in out and out.index("size x=3x4") > out.index("size x=2x4")
    assert len([line for line in out if line.startswith("plain ")]) == 2
    assert len([line for line in out if " matmul" in line]) == 2  # a row of each size's task
