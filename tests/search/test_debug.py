"""The output of each level of ANSORLITE_DEBUG, and the files of ANSORLITE_DUMP."""

from pathlib import Path

import pytest
from search_cases import PEAK, Pretender, matmul

import ansorlite.search.session as session_module
from ansorlite.errors import AnsorliteError
from ansorlite.measure.result import Status
from ansorlite.schedule.lower import lower
from ansorlite.search.debug import Trace
from ansorlite.search.result import TuneResult
from ansorlite.search.stages import program_stage
from ansorlite.search.tune import tune
from ansorlite.settings import Settings
from ansorlite.space.plain import plain_state

TRIALS = 4
# What first appears at each level.
NEWS = {
    1: ("relu: ", " round 1: 3 OK; best of it "),
    2: (" trial 0: OK, 1.", " trial 3: OK, 1.", ", sketch plain", " C.i="),
    3: ("Split(stage='C', axis='i', factors=(", "Annotate(stage='C.relu'"),
    4: ("def kernel(A, B, C.relu):", "    for C.relu.i0"),
    5: ("define void @ansorlite_kernel(", "ansorlite_kernel:"),
}


def run(
    monkeypatch: pytest.MonkeyPatch,
    level: int,
    dump: Path | None = None,
    fails: tuple[Status, ...] = (),
) -> TuneResult:
    monkeypatch.setattr(session_module, "measure_peak", lambda target: PEAK)
    monkeypatch.setattr(
        session_module, "settings", lambda: Settings(Path(), debug=level, dump=dump)
    )
    both = Pretender(fails)
    return tune(
        matmul(16),
        TRIALS,
        builder=both,
        runner=both,
        policy="random",
        progress=False,
        round_size=3,
    )


@pytest.mark.parametrize("level", [0, 1, 3, 5])
def test_levels(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: int
) -> None:
    run(monkeypatch, level)
    out, text = capsys.readouterr()
    assert out == ""
    for at, news in NEWS.items():
        for part in news:
            assert (part in text) == (level >= at), (at, part)
    if level == 0:
        assert text == ""


def test_failures_say_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run(monkeypatch, 5, fails=(Status.BUILD_ERROR,))
    failed = [r for r in result.records if not r.ok]
    assert failed
    text = capsys.readouterr().err
    for r in failed:
        assert f"trial {r.trial}: BUILD_ERROR" in text and r.error in text
    # LLVM's passes may abort the process on what did not build: it is shown as it was emitted.
    assert text.count("ansorlite_kernel:") == TRIALS - len(failed)


def test_dump(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result = run(monkeypatch, 0, tmp_path / "a" / "b")
    names = sorted(p.name for p in (tmp_path / "a" / "b").iterdir())
    stages = ("dag", "sketches", "steps", "program", "features", "llvm", "asm")
    assert names == [f"{k:03d}-C.relu-{stage}.txt" for k, stage in enumerate(stages)]
    texts = {n.split("-")[-1]: (tmp_path / "a" / "b" / n).read_text() for n in names}
    assert result.best is not None
    assert texts["dag.txt"] == str(result.task.dag)
    assert texts["program.txt"] == str(result.best.program)
    assert "ansorlite_kernel:" in texts["asm.txt"]


@pytest.mark.parametrize("name", ["../../up", "日" * 200, "n\0l\n\x1b[2J", "\ud800", "x" * 10_000])
def test_any_name_is_dumped(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = Trace(1, tmp_path / "dump")
    task = matmul(16, name=name)
    trace.task(task, [])
    trace.best(task, plain_state(task.dag, task.target))
    files = list((tmp_path / "dump").iterdir())
    assert len(files) == 7 and list(tmp_path.iterdir()) == [tmp_path / "dump"]
    for file in files:
        assert file.name.isascii() and len(file.name) < 110
        assert file.read_text(encoding="utf-8").replace("\n", "").replace("\t", "").isprintable()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.strip("\n").isprintable()


def test_a_dump_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    trace = Trace(0, tmp_path / "file" / "below")
    with pytest.raises(AnsorliteError, match=r"cannot write .* ANSORLITE_DUMP"):
        trace.task(matmul(16, name="a/b c"), [])


def test_features_are_listed_by_statement() -> None:
    task = matmul(16)
    program = lower(plain_state(task.dag, task.target))
    head, *lines = program_stage("features", program, task.target).splitlines()
    assert head.split()[:3] == ["feature", "0:", "C.f64"]
    table = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in lines}
    assert all(len(values) == 3 for values in table.values())
    assert table["executions"][0] == pytest.approx(12.0, abs=0.01)  # log2(1 + 16^3)
    with pytest.raises(AnsorliteError, match="'graph' is no stage"):
        program_stage("graph", program, task.target)
