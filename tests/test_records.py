"""The tuning log: records survive writing and reading, and damage costs only its own line."""

import json
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_cases import record, write

from ansorlite import record_fields
from ansorlite.errors import LogError
from ansorlite.measure.result import Status
from ansorlite.records import (
    LogContents,
    Record,
    RecordLog,
    best,
    choice,
    chosen,
    distill,
    for_task,
    read_log,
)

any_text = st.text(st.characters(), max_size=20)  # lone surrogates included
finite = st.floats(allow_nan=False, allow_infinity=False)
counts, spent = st.integers(0, 10**9 - 1), st.floats(0, 1e9)
seconds = st.floats(min_value=1e-12, max_value=1e9)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | finite | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    status = draw(st.sampled_from(record_fields.STATUSES))
    times_s = draw(st.lists(seconds, max_size=4))
    latency_s = None
    if status in ("OK", "CHOSEN", "ESTIMATED"):
        latency_s = draw(st.sampled_from(times_s) if times_s else seconds)
    return Record(
        format=1,
        target=draw(any_text),
        task=draw(any_text),
        task_name=draw(any_text),
        sketch=draw(any_text),
        steps=tuple(draw(st.lists(json_values, max_size=4))),
        holes=draw(
            st.dictionaries(any_text, st.lists(st.integers(0, 2**31 - 1), max_size=4), max_size=4)
        ),
        status=status,
        times_s=times_s,
        latency_s=latency_s,
        error=draw(any_text),
        round=draw(counts),
        trial=draw(counts),
        seed=draw(st.integers(-(2**63), 2**64 - 1)),
        timestamp=draw(st.floats(0, 2.5e11)),
        build_s=draw(spent),
        run_s=draw(spent),
        version=draw(any_text),
        device=draw(any_text),
    )


@given(any_record())
def test_a_line_reads_back_as_the_record(item: Record) -> None:
    line = item.to_json()
    assert "\n" not in line and line.isascii()
    assert Record.from_json(line) == item


@settings(max_examples=20, deadline=None)
@given(items=st.lists(any_record(), max_size=4), cut=st.integers(0, 400))
def test_a_cut_loses_only_the_cut_line(
    tmp_path_factory: pytest.TempPathFactory, items: list[Record], cut: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write(path, *items)
    data = path.read_bytes()
    data = data[: max(0, len(data) - cut)]
    path.write_bytes(data)
    whole = data.count(b"\n")
    tail = data[data.rfind(b"\n") + 1 :]
    expected = items[: whole + (1 if tail.endswith(b"}") and _parses(tail) else 0)]

    def measured(items: list[Record]) -> tuple[Record, ...]:
        return tuple(r for r in items if r.status not in ("CHOSEN", "ESTIMATED"))

    assert read_log(path).records == measured(expected)
    write(path, record(trial=999))
    again = read_log(path)
    assert again.records == (*measured(expected), record(trial=999))
    assert len(again.choices) + len(again.estimates) == len(expected) - len(measured(expected))
    assert len(again.problems) == (1 if tail and len(expected) == whole else 0)


def _parses(tail: bytes) -> bool:
    try:
        json.loads(tail)
    except ValueError:
        return False
    return True


def test_golden_line() -> None:
    assert record().to_json() == (
        '{"format":1,"target":"x86-64/znver3/2","task":"gmm-512","task_name":"GMM:0",'
        '"sketch":"tile-fuse2","steps":[["SP","C",0,[8,4]],["AN","C",1,"parallel"]],'
        '"holes":{"C.i":[8,4],"C.unroll":[64]},"status":"OK","times_s":[0.001,0.0011],'
        '"latency_s":0.001,"error":"","round":2,"trial":130,"seed":7,'
        '"timestamp":1700000000.25,"build_s":0.03,"run_s":0.2,"version":"0.1.0"}'
    )


def test_programs_are_ranked_by_the_lowest_repeat_and_failures_last() -> None:
    assert record(times_s=[0.003, 0.001, 0.002], latency_s=0.002).lowest_s == 0.001
    assert record(times_s=[], latency_s=0.002).lowest_s == 0.002
    assert record(status="RUN_ERROR", times_s=[], latency_s=None).lowest_s == float("inf")


def test_the_device_is_written_where_a_device_of_a_pool_measured() -> None:
    own, rpi = record(), record(device="rpi5")
    assert "device" not in own.to_json() and own.device == ""
    assert rpi.to_json() == own.to_json()[:-1] + ',"device":"rpi5"}'
    assert Record.from_json(rpi.to_json()).device == "rpi5"
    with pytest.raises(LogError, match="field 'device' is not text"):
        Record.from_json(rpi.to_json().replace('"rpi5"', "5"))


def test_every_field_is_checked() -> None:
    known = {*record_fields.FIELDS, *record_fields.OPTIONAL}
    assert known == {f.name for f in fields(Record)} - {"line"}
    assert set(record_fields.STATUSES) == {*map(str, Status), "CHOSEN", "ESTIMATED"}


def test_numpy_values_and_enums_are_taken() -> None:
    item = record(
        holes={"C.i": np.array([8, 4], np.int32)},
        times_s=np.array([0.5], np.float32),
        latency_s=np.float64(0.5),
        trial=np.int64(3),
        status=Status.OK,
    )
    assert type(item.status) is str
    assert item.holes == {"C.i": [8, 4]}
    assert Record.from_json(item.to_json()) == item


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"latency_s": float("nan")}, "latency_s"),
        ({"latency_s": float("inf")}, "latency_s"),
        ({"latency_s": 0.0}, "latency_s"),
        ({"times_s": [0.1, float("nan")]}, "times_s"),
        ({"timestamp": float("inf")}, "timestamp"),
        ({"steps": ((1.0, float("nan")),)}, "steps"),
        ({"steps": (object(),)}, "steps"),
        ({"steps": ({1: 2},)}, "steps"),
        ({"holes": {3: [1]}}, "holes"),
        ({"format": 2}, "format"),
    ],
)
def test_values_without_json_form_are_refused(
    tmp_path: Path, change: dict[str, object], name: str
) -> None:
    path = tmp_path / "log.jsonl"
    with RecordLog(path) as log:
        with pytest.raises(LogError, match=f"trial 130 of task GMM:0: field '{name}'"):
            log.append(record(**change))
        log.append(record())
    assert read_log(path) == LogContents((record(),), ())


def test_records_know_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, record(), record(trial=131))
    path.write_text("\n" + path.read_text())
    found = read_log(path).records
    assert [r.line for r in found] == [2, 3]
    assert found[0] == record() and "line" not in found[0].to_json()


def test_blank_lines_extra_keys_and_crlf_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b"\n" + record().to_json().replace("{", '{"colour":"red",', 1).encode() + b"\r\n\n"
    )
    assert read_log(path) == LogContents((record(),), ())


def test_torn_last_line_is_repaired_by_the_next_append(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, record(trial=0), record(trial=1))
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    assert [str(p)[:24] for p in read_log(path).problems] == ["line 2: torn last line, "]
    with RecordLog(path) as log:
        assert [r.trial for r in log.contents.records] == [0]
        log.append(record(trial=2))
        log.append(record(trial=3))
    assert path.read_bytes().startswith(data[:-9] + b"\n")
    after = read_log(path)
    assert [r.trial for r in after.records] == [0, 2, 3]
    assert [p.line for p in after.problems] == [2]


def test_last_line_without_its_newline_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(record(trial=0).to_json())
    assert [r.trial for r in read_log(path).records] == [0]
    write(path, record(trial=1))
    assert [r.trial for r in read_log(path).records] == [0, 1]
    assert read_log(path).problems == ()


@pytest.mark.parametrize("start", [b'{"form', b'{"format":1,"tar'])
def test_a_log_that_is_only_a_torn_line_is_a_log(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(start)
    write(path, record())
    assert read_log(path).records == (record(),)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(Path("~/log.jsonl"), record())
    assert read_log("~/log.jsonl").records == (record(),)
    assert (tmp_path / "log.jsonl").exists()
    with pytest.raises(LogError, match=r"there is no directory .*missing, create it"):
        RecordLog(tmp_path / "missing" / "log.jsonl")
    with pytest.raises(LogError, match="there is no tuning log"):
        read_log(tmp_path / "none.jsonl")
    with pytest.raises(LogError, match="is no regular file"):
        RecordLog(tmp_path)
    with pytest.raises(LogError, match="is no regular file"):
        RecordLog("/dev/null")
    with pytest.raises(LogError, match="cannot find the home directory"):
        read_log("~no-such-user-here/log.jsonl")


def test_an_empty_log_has_no_records(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "log.jsonl") as log:
        assert log.contents == LogContents((), ())
    assert read_log(tmp_path / "log.jsonl") == LogContents((), ())


def test_a_second_tuner_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    code = (
        "import sys; from ansorlite.records import RecordLog; from ansorlite.errors import LogError"
        "\ntry: RecordLog(sys.argv[1])\nexcept LogError as e: print(e); sys.exit(3)"
    )
    command = [sys.executable, "-c", code, str(path)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with RecordLog(path) as log:
        with pytest.raises(LogError, match="another tuner is writing"):
            RecordLog(path)
        other = subprocess.run(command, env=env, capture_output=True, text=True)
        assert other.returncode == 3, other.stderr
        assert "wait until it has ended, or give this run a log of its own" in other.stdout
        log.append(record())
        assert read_log(path).records == (record(),)  # readers need no lock
    assert subprocess.run(command, env=env, capture_output=True).returncode == 0


def test_a_failed_open_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("not a log\n")
    with pytest.raises(LogError):
        RecordLog(path)
    path.write_text("")
    write(path, record())


def test_a_record_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: (calls.append(data), real(fd, data))[1])
    write(tmp_path / "log.jsonl", record(error="line\nbreak"), record())
    assert [c.count(b"\n") for c in calls] == [1, 1]


def test_a_short_write_is_reported_and_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    real = os.write
    with RecordLog(path) as log:
        log.append(record(trial=0))
        monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
        with pytest.raises(LogError, match=r"10 of \d+ bytes were taken, free some disk space"):
            log.append(record(trial=1))
        monkeypatch.setattr(os, "write", real)
        log.append(record(trial=2))
    contents = read_log(path)
    assert [r.trial for r in contents.records] == [0, 2]
    assert [p.line for p in contents.problems] == [2]


def test_appending_where_nothing_can_be_read_back_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RecordLog(path) as log:
        path.unlink()
        with pytest.raises(LogError, match="was deleted"):
            log.append(record())
    with pytest.raises(LogError, match="is closed"):
        log.append(record())
    log.close()


def test_the_line_of_a_winner_is_no_measurement(tmp_path: Path) -> None:
    a = record(trial=0, latency_s=3e-3, times_s=[], timestamp=10.0)
    b = record(trial=1, latency_s=2e-3, times_s=[], timestamp=11.0)
    path = tmp_path / "log.jsonl"
    write(path, a, b, choice(a, 2.5e-3))
    contents = read_log(path)
    assert contents.records == (a, b)
    found = chosen(contents, [a.task], a.target)
    assert found is not None and found.ok
    assert (found.trial, found.latency_s, found.holes) == (a.trial, 2.5e-3, a.holes)
    assert chosen(contents, ["other"], a.target) is None
    assert chosen(contents, [a.task], "arm") is None


def test_the_last_choice_counts_until_something_faster_is_measured(tmp_path: Path) -> None:
    """What is last is told by the order of the log: clocks go back."""
    untimed = record(times_s=[], timestamp=50.0)
    a = replace(untimed, trial=0, latency_s=3e-3)
    b = replace(untimed, trial=1, latency_s=2e-3, task="other form")
    first = replace(choice(a, 2.5e-3), timestamp=30.0)
    last = replace(choice(b, 2.6e-3), timestamp=20.0)
    slower = replace(untimed, trial=2, latency_s=2.7e-3)
    path = tmp_path / "log.jsonl"
    write(path, a, b, first, last, slower)
    keys = [a.task, b.task]
    found = chosen(read_log(path), keys, a.target)
    assert found is not None and found.trial == 1
    # One that does not fit is passed over, for those before it.
    found = chosen(read_log(path), keys, a.target, lambda r: r.trial != 1)
    assert found is not None and found.trial == 0
    with RecordLog(path) as log:
        log.append(replace(untimed, trial=3, latency_s=2.1e-3, timestamp=10.0))
    assert chosen(read_log(path), keys, a.target) is None
    assert chosen(read_log(path), keys, a.target, lambda r: r.trial != 3) is not None


def test_records_of_a_sketch_share_its_steps(tmp_path: Path) -> None:
    """Thousands of trials would otherwise hold as many copies."""
    path = tmp_path / "log.jsonl"
    write(path, *(record(trial=k) for k in range(3)), record(steps=(("SP", "C", 1, (8, 4)),)))
    first, second, third, other = read_log(path).records
    assert first.steps is second.steps is third.steps is record().steps
    assert other.steps is not first.steps and first.sketch is second.sketch


def test_index_helpers() -> None:
    a = record(trial=0, latency_s=3e-3)
    b = record(trial=1, latency_s=2e-3, sketch="other")
    same = record(trial=2, latency_s=2e-3, sketch="third")
    wrong = record(trial=3, latency_s=1e-3, status="WRONG_OUTPUT")
    failed = record(trial=4, latency_s=None, status="BUILD_ERROR")
    elsewhere = record(trial=5, latency_s=1e-4, target="arm")
    other = record(trial=6, task="conv")
    faster = replace(a, trial=7, latency_s=2.5e-3)
    log = [a, b, same, wrong, failed, elsewhere, other, faster]
    target = a.target

    assert best(log, a.task, target) is b
    assert best(log, "nothing", target) is None
    assert best([wrong, failed], a.task, target) is None
    assert for_task(log, a.task, "arm") == (elsewhere,)
    assert for_task(log, a.task) == tuple(r for r in log if r is not other)
    assert distill(log) == (b, elsewhere, other)
    assert distill(log, keep=3) == (b, same, faster, elsewhere, other)
    assert distill([wrong, failed]) == ()
