"""Printing: names with terminal commands, and streams that are closed or full."""

import io
import os
import subprocess
import sys

import pytest

from ansorlite import streams
from ansorlite.errors import MachineError
from ansorlite.streams import one_line, printable, put, tell


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2Jb\rc\x07\x7f\x9b") == "a\\x1b[2Jb\\rc\\x07\\x7f\\x9b"
    assert printable("right\u202eleft\u2028\ud800") == "right\\u202eleft\\u2028\\ud800"
    assert printable("plain\ttext\n\u00e9\u4f60\u597d") == "plain\ttext\n\u00e9\u4f60\u597d"
    assert one_line(" a\n b\t\x1bc ") == "a b \\x1bc"
    assert len(printable("\x00" * 10_000)) == 40_000


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_progress_is_dropped_where_nobody_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (Full(), closed):
        tell("a line", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        tell("a line")
    monkeypatch.setattr(sys, "stderr", None)
    tell("a line")


def test_a_result_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Full())
    with pytest.raises(MachineError, match="standard output: No space left on device"):
        put("a result")
    monkeypatch.setattr(sys, "stdout", None)  # closed before we were started
    put("a result")


def test_characters_outside_of_an_encoding_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    put("caf\u00e9 \u4f60")
    assert raw.getvalue() == b"caf\\xe9 \\u4f60\n"


def test_closed_descriptors_are_occupied() -> None:
    code = (
        "import os\n"
        "from ansorlite.streams import above_standard, occupy_standard_descriptors\n"
        "os.close(0); os.close(2)\n"
        "fd = above_standard(os.open('/dev/null', os.O_RDONLY))\n"
        "assert fd >= 3\n"
        "occupy_standard_descriptors()\n"
        "assert os.fstat(0).st_rdev == os.fstat(2).st_rdev == os.stat('/dev/null').st_rdev\n"
        "assert os.open('/dev/null', os.O_RDONLY) >= 3\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0
    assert streams.above_standard(5) == 5
