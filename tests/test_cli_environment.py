"""The command line with unusual streams, folders, limits and warnings, and paths to write to.

If a resource is missing or full, the command works or prints one line of error.
"""

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from log_cases import record, write

import ansorlite
import ansorlite.cli as cli_module
from ansorlite.cli import main
from ansorlite.measure import machine_cache, peak
from ansorlite.measure.peak import Peak
from ansorlite.settings import settings

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    settings.cache_clear()
    peak.measure_peak.cache_clear()
    machine_cache._warn_unwritable.cache_clear()
    yield
    settings.cache_clear()
    peak.measure_peak.cache_clear()


def shell(command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run `$CLI ...` in a shell: (status, output, errors)."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PY": sys.executable}
    env |= {"CLI": f"{sys.executable} -m ansorlite", **variables}
    return subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)


def wrong(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that tells what is wrong with the input."""
    capsys.readouterr()
    status = main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    assert (status, out, len(err.splitlines())) == (2, "", 1), (status, out, err)
    return str(err)


# ---- paths that are written to ------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("tune", "resnet18", "--trials", "0"),
        ("compare", "GMM:0", "--trials", "1"),
    ],
)
def test_an_output_is_checked_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert "it is a directory, name a file" in wrong(capsys, *command, "--output", tmp_path)
    assert "No such file" in wrong(capsys, *command, "--output", tmp_path / "no" / "file")
    (tmp_path / "file").write_text("")
    assert "Not a directory" in wrong(capsys, *command, "--output", tmp_path / "file" / "x")
    assert "too long" in wrong(capsys, *command, "--output", tmp_path / ("x" * 300))
    (tmp_path / "link").symlink_to(tmp_path / "none")
    assert "a link to a file that is not" in wrong(capsys, *command, "--output", tmp_path / "link")
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_other_paths_are_checked_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compare = ("compare", "GMM:0", "--trials", "1")
    (tmp_path / "file").write_text("")
    assert "is no directory" in wrong(capsys, *compare, "--logs", tmp_path / "file" / "logs")
    assert "cannot write" in wrong(capsys, *compare, "--plot", tmp_path / "no" / "plot.svg")
    assert "cannot read" in wrong(capsys, *compare, "--pretrained", tmp_path / "none")
    assert "it is a directory" in wrong(capsys, "tune-op", "GMM:0", "--pretrained", tmp_path)
    assert "cannot write" in wrong(capsys, "pretrain", tmp_path)
    assert "it is a directory" in wrong(capsys, "log", "merge", "x", "--output", tmp_path)


def test_nothing_else_of_a_command_is_overwritten(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, log = tmp_path / "model.onnx", tmp_path / "log"
    model.write_text("a model")
    arguments = ("tune", model, "--log", log, "--output")
    assert "uses that file for something else" in wrong(capsys, *arguments, model)
    (tmp_path / "again").symlink_to(log)
    assert "uses that file for something else" in wrong(capsys, *arguments, tmp_path / "again")
    assert model.read_text() == "a model" and not log.exists()


# ---- numbers and names --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("tune-op", "GMM:0", "--trials", "9" * 30), "is too large: at most"),
        (("tune-op", "GMM:0", "--trials", "9" * 9999), "is too large: at most"),
        (("tune-op", "GMM:0", "--trials", "\u00b2"), "is not a whole number"),
        (("tune-op", "GMM:0", "--timeout", "1e300"), "is too long: at most"),
        (("tune-op", "GMM:0", "--seed", "-1"), "is not a whole number >= 0"),
        (("tune", "x.onnx", "--dim", "N=99999999999999999999"), "is too large"),
        (("tune", "a\x1b[2Jb.onnx"), "there is no file a\\x1b[2Jb.onnx"),
        (("tune-op", "\x1b]0;title\x07"), "unknown workload"),
        (("tune-op", "GMM:\u202e0"), "no case"),
    ],
)
def test_numbers_and_names(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    told = wrong(capsys, *arguments)
    assert text in told and told.rstrip("\n").isprintable()


# ---- home, cache and warnings -------------------------------------------------------------------


def test_without_home_and_user(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "ANSORLITE_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    log = write(tmp_path / "log", [record(ansorlite.workload("GMM:0"))])
    assert main(["log", "stats", str(log)]) == 0
    capsys.readouterr()
    assert "no home directory" in wrong(capsys, "tune-op", "GMM:0", "--pretrained", "~/model")
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (Peak(2e11, 1e11, 2e10), True))
    assert main(["devices"]) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and told[0].startswith("ansorlite: warning: figures of this machine")


def test_the_folder_of_kept_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSORLITE_CACHE_DIR", str(tmp_path))
    high, low = Peak(2e11, 1e11, 2e10), Peak(1e11, 5e10, 3e10)
    # what a busy machine shows is kept, too, and the most that any process saw counts
    for seen, best in ((high, high), (low, replace(high, copy_bytes_per_s=3e10))):
        peak.measure_peak.cache_clear()
        monkeypatch.setattr(peak, "run_benchmarks", lambda target, seen=seen: (seen, False))
        assert main(["devices"]) == 0
        (file,) = tmp_path.iterdir()
        (entry,) = json.loads(file.read_text()).values()
        assert Peak.from_json(entry) == best
    peak.measure_peak.cache_clear()
    monkeypatch.setattr(peak, "run_benchmarks", lambda target: (low, True))
    assert main(["devices"]) == 0 and (tmp_path / "peak.json").exists()


def test_a_warning_that_is_to_be_an_error_is_one_line() -> None:
    run = shell("$PY -W error -m ansorlite log stats none", ANSORLITE_DEBGU="1")
    assert run.returncode == 1 and run.stderr.count("\n") == 1 and "DEBGU" in run.stderr
    run = shell("$CLI log stats none", ANSORLITE_DEBGU="1")
    assert run.returncode == 2 and run.stderr.startswith("ansorlite: warning: ANSORLITE_DEBGU is")


def test_a_defect_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise KeyError("surprise")

    monkeypatch.setattr(cli_module.logs, "_log", broken)
    assert main(["log", "stats", "x"]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("ansorlite: KeyError: 'surprise' (test_cli_environment.py:")
    monkeypatch.setenv("ANSORLITE_DEBUG", "1")
    assert main(["log", "stats", "x"]) == 1
    assert "Traceback" in capsys.readouterr().err


# ---- standard streams and limits ----------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's device")
@pytest.mark.parametrize("command", ["--version", "tune --help", "compare x --searchers list"])
def test_a_full_output(command: str) -> None:
    run = shell(f"$CLI {command} > /dev/full")
    assert run.returncode == 1 and run.stderr.count("\n") == 1
    assert "cannot write to standard output: No space left on device" in run.stderr
    assert shell(f"$CLI {command} > /dev/full 2> /dev/full").returncode == 1


def test_closed_streams_and_streams_that_nobody_reads() -> None:
    for streams in (">&-", "2>&-", "<&-", "<&- >&- 2>&-"):
        run = shell(f"$CLI compare x --searchers list {streams}")
        assert (run.returncode, run.stderr) == (0, ""), streams
    assert shell("$CLI log stats none 2> /dev/full").returncode == 2


def test_a_log_does_not_become_a_standard_stream(tmp_path: Path) -> None:
    """With all three closed, files that are opened next have other descriptors."""
    log = write(tmp_path / "log", [record(ansorlite.workload("GMM:0"))])
    before = log.read_bytes()
    run = shell(f"$CLI show GMM:0 --stage program --log {log} <&- >&- 2>&-", ANSORLITE_DEBUG="1")
    assert run.returncode == 0 and log.read_bytes() == before


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
)
def test_narrow_encodings(variables: dict[str, str]) -> None:
    run = shell("$CLI tune \u4f60\u597d.onnx", **variables)
    assert run.returncode == 2 and run.stderr.count("\n") == 1 and "there is no file" in run.stderr


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    log = write(tmp_path / "log", [record(ansorlite.workload("GMM:0")) for _ in range(9)])
    run = shell(f"ulimit -f 1; $CLI log merge {log} --output {tmp_path / 'new'}")
    assert run.returncode == 1 and run.stderr.count("\n") == 1 and "cannot write" in run.stderr


def test_memory_that_is_limited() -> None:
    run = shell("ulimit -v 300000; $CLI show GMM:0 --stage asm")
    if run.returncode:
        assert run.stderr.count("\n") <= 3 and "Traceback" not in run.stderr
