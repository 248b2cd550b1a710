"""Damaged logs: the lines that are left out, and the report of the damage."""

from pathlib import Path

import pytest
from record_cases import record, write

from ansorlite.errors import LogError
from ansorlite.records import RecordLog, read_log


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            '"trial":130',
            '"trial":1.5',
            "field 'trial' is not an integer from 0 to 2147483647: '1.",
        ),
        (
            '"trial":130',
            '"trial":true',
            "field 'trial' is not an integer from 0 to 2147483647: 'T",
        ),
        ('"trial":130,', "", "field 'trial' is missing"),
        ('"run_s":0.2', '"run_s":NaN', "NaN is not a number of JSON"),
        (
            '"run_s":0.2',
            '"run_s":1e999',
            "'run_s' is not a finite number from 0 to 1e+09: 'inf'",
        ),
        (
            '"latency_s":0.001',
            '"latency_s":-1',
            "field 'latency_s' is not null or a positive finite",
        ),
        ('"latency_s":0.001', '"latency_s":0.0', "field 'latency_s' is not null or a positive"),
        ('"latency_s":0.001', '"latency_s":1e-300', "field 'latency_s' is not null or a posi"),
        ('"latency_s":0.001', '"latency_s":0.003', "latency_s is 0.003, its times_s go from 0.001"),
        ('"latency_s":0.001', '"latency_s":null', "status OK does not go with a latency of None"),
        ('"status":"OK"', '"status":"RUN_ERROR"', "RUN_ERROR does not go with a latency of 0.001"),
        ('"status":"OK"', '"status":"OJ"', "field 'status' is not one of OK, BUILD_ERROR"),
        ("[0.001,0.0011]", "[0.0,0.0]", "field 'times_s' is not a list of numbers from 1e-12"),
        ("[0.001,0.0011]", "[-0.001,0.0011]", "field 'times_s' is not a list of numbers"),
        ('"trial":130', '"trial":-1', "field 'trial' is not an integer from 0"),
        ('"trial":130', '"trial":9' + "9" * 5000, "not a JSON object"),
        ('"trial":130', '"trial":9' + "9" * 99, "field 'trial' is not an integer from 0"),
        ('"trial":130', '"trial":2000000000', "field 'trial' is 2000000000, more than any run has"),
        ('"round":2', '"round":1999999999', "field 'round' is 1999999999, more than any run has"),
        ('"seed":7', '"seed":1' + "0" * 30, "field 'seed' is not an integer of 64 bits"),
        (
            '"timestamp":1700000000.25',
            '"timestamp":1e300',
            "number of seconds from 0 to 2.5e+11",
        ),
        ('"C.i":[8,4]', '"C.i":[8,1099511627776]', "field 'holes' is not a mapping"),
        ('"C.i":[8,4]', '"C.i":[8,-4]', "field 'holes' is not a mapping"),
        ('"C.i":[8,4]', '"C.i":[8,4],"C.i":[8,8]', "key 'C.i' occurs twice"),
        ('"seed":7', '"seed":7,"seed":8', "key 'seed' occurs twice"),
        ('"steps":[', '"steps":[' + "[" * 900 + "]" * 900 + ",", "field 'steps' is not a list"),
        ('{"format":1', '{"format":9', "line 2 has log format 9"),
        ('"holes":{', '"holes":{"x":[1.5],', "field 'holes' is not a mapping"),
        ('"sketch":"tile', '"sketch":"ti\xffle', "byte 88 is not UTF-8"),
        ("}", "", "not a JSON object"),
        ('{"format":1', "[" * 100_000, "not a JSON object"),
        ('{"format":1', '\0\0{"format":1', "not a JSON object"),
    ],
)
def test_a_damaged_line_is_reported_and_skipped(
    tmp_path: Path, old: str, new: str, what: str
) -> None:
    path = tmp_path / "log.jsonl"
    lines = [record(trial=t).to_json() for t in (129, 130, 131)]
    assert old in lines[1]
    lines[1] = lines[1].replace(old, new)
    path.write_bytes("\n".join([*lines, ""]).encode("latin-1"))
    contents = read_log(path)
    assert [r.trial for r in contents.records] == [129, 131]
    (problem,) = contents.problems
    assert problem.line == 2
    assert what in str(problem) and str(problem).startswith("line 2: ")


def test_damage_is_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, record())
    assert read_log(path).damage == ""
    path.write_text(path.read_text() + "x\n")
    assert read_log(path).damage.startswith("a damaged line is left out: line 2: not a JSON")
    path.write_text(path.read_text() + "x\n" * 1000)
    told = read_log(path).damage
    assert told.startswith("1001 damaged lines are left out, the first is line 2: not a JSON")


def test_a_log_is_read_during_writing_and_without_write_access(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with RecordLog(path) as log:
        log.append(record())
        path.chmod(0o444)
        tmp_path.chmod(0o555)
        try:
            assert read_log(path).records == (record(),)
        finally:
            tmp_path.chmod(0o755)
    with pytest.raises(LogError, match="is a device"):
        read_log("/dev/zero")


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        record().to_json() + "\n" + record().to_json().replace('"format":1', '"format":9') + "\n"
    )
    for open_it in (read_log, RecordLog):
        with pytest.raises(LogError, match=r"line 2 has log format 9, .* reads format 1: start"):
            open_it(path)


@pytest.mark.parametrize(
    "data",
    [
        b"trial,latency\n1,2\n",
        b"\x7fELF\0\0",
        b'{\n  "a": 1\n}\n',
        b'{"i": [["k"]], "v": "v0.6"}\n',
        b"\x08\x07\x12\x04onnx",
    ],
)
def test_another_kind_of_file_is_refused_and_left_alone(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(data)
    for open_it in (read_log, RecordLog):
        with pytest.raises(LogError, match="is not a tuning log"):
            open_it(path)
    assert path.read_bytes() == data
