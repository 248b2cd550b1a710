"""Progress of a tuning run: the text of a line, and its stream."""

import contextlib
import fcntl
import io
import pty
import struct
import sys
import termios
from dataclasses import replace

import pytest

from ansorlite.search.progress import (
    Progress,
    Snapshot,
    SteadyEta,
    eta_s,
    format_failures,
    format_snapshot,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


START = Snapshot(trials=0, elapsed_s=0.0)
LATER = Snapshot(
    trials=192,
    elapsed_s=95.0,
    latency_s=1.43e-3,
    flop=2.68e8,
    task="GMM:2",
    round=3,
    failures={"RUN_TIMEOUT": 1, "BUILD_ERROR": 2, "RUN_ERROR": 0},
)


def test_golden_lines() -> None:
    assert format_snapshot(START) == "0 trials, ETA -, best -, 0.0 s used"
    assert format_snapshot(LATER) == (
        "GMM:2, 192 trials, ETA -, best 1.430 ms, 187 GFLOP/s, "
        "3 failed (2 build error, 1 run timeout), round 3, 1 min 35 s used"
    )
    assert format_snapshot(LATER, 800, 205.0, 2e11) == (
        "GMM:2, 192/800 trials, ETA 3 min 25 s, best 1.430 ms, 187 GFLOP/s, 94 % of peak, "
        "3 failed (2 build error, 1 run timeout), round 3, 1 min 35 s used"
    )


def test_names_are_no_commands_to_a_terminal() -> None:
    stream = io.StringIO()
    with Progress(stream=stream) as show:
        show.update(Snapshot(trials=1, elapsed_s=0.0, task="a\nb\x1b[2J"))
        show.note("task a\nb\x1b[2J: no more")
    first, second = stream.getvalue().splitlines()
    assert first.startswith("a\\nb\\x1b[2J, 1 trials") and second == "task a\\nb\\x1b[2J: no more"


def test_failures_by_kind() -> None:
    assert format_failures({}) == ""
    assert format_failures({"RUN_ERROR": 0}) == ""
    assert format_failures({"B": 1, "A_C": 1, "Z": 9}) == "11 failed (9 z, 1 a c, 1 b)"


def test_eta_is_whichever_comes_first() -> None:
    halfway = Snapshot(trials=50, elapsed_s=20.0)
    assert eta_s(halfway, 100) == 20.0
    assert eta_s(halfway, 100, 25.0) == 5.0
    assert eta_s(halfway, 100, 99.0) == 20.0
    assert eta_s(halfway, None, 10.0) == 0.0
    assert eta_s(halfway, 50, 99.0) == 0.0
    assert eta_s(halfway, None) is None
    assert eta_s(START, 100) is None
    assert eta_s(START, 100, 30.0) == 30.0


def test_the_pace_is_that_of_this_run() -> None:
    resumed = Snapshot(trials=90, elapsed_s=20.0, trials_before=80)
    assert eta_s(resumed, 100) == 20.0
    assert eta_s(Snapshot(trials=80, elapsed_s=1.0, trials_before=80), 100) is None


def test_the_eta_moves_in_small_steps() -> None:
    eta = SteadyEta(100, None)
    assert eta(START) is None
    shown = [eta(Snapshot(trials=n, elapsed_s=s)) for n, s in ((10, 10.0), (20, 15.0), (21, 60.0))]
    raw = [90.0, 60.0, 60.0 * 79 / 21]
    ends = [100.0, 100.0 - 0.3 * 25.0]
    ends.append(ends[1] + 0.3 * (60.0 + raw[2] - ends[1]))
    assert shown == pytest.approx([ends[0] - 10.0, ends[1] - 15.0, ends[2] - 60.0])
    assert eta(Snapshot(trials=100, elapsed_s=300.0)) == 0.0
    assert SteadyEta(100, 30.0)(Snapshot(trials=10, elapsed_s=10.0)) == 20.0
    late = SteadyEta(100, None)
    assert [late(Snapshot(trials=n, elapsed_s=s)) for n, s in ((50, 1.0), (51, 90.0))][1] == 0.0


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_a_line_fits_the_width(width: int) -> None:
    now = replace(LATER, task="conv2d_bias_relu_56x56x64_3x3_stride_2_residual", flop=2.68e8)
    whole = format_snapshot(now, 800, 205.0, 2e11)
    line = format_snapshot(now, 800, 205.0, 2e11, width)
    assert len(line) <= width and (line == whole) == (len(whole) <= width)
    if 60 <= width <= 120:
        assert line.startswith("conv2d") and "..." in line
        assert "192/800 trials, ETA 3 min 25 s" in line
    assert len(format_snapshot(START, width=width)) <= width


def test_a_live_line_fits_a_narrow_terminal() -> None:
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 72, 0, 0))
    with (
        open(other, "w", encoding="utf-8") as stream,
        Progress(n_trials=800, stream=stream) as progress,
    ):
        progress.update(replace(LATER, task="conv2d_bias_relu_56x56x64_3x3_stride_2"))
    text = ""
    with open(main, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        while part := terminal.read(4096):  # of a closed terminal an error is the end
            text += part.decode()
    lines = [part for part in text.replace("\r", "\n").split("\n") if "trials" in part]
    assert lines and all(len(line.rstrip()) < 72 for line in lines), lines
    assert "conv2d" in lines[-1] and "..." in lines[-1] and "192/800 trials" in lines[-1]


def test_off_a_terminal_every_update_is_a_line() -> None:
    stream = io.StringIO()
    with Progress(n_trials=800, stream=stream) as progress:
        progress.update(START)
        progress.update(START)
        progress.note("task GMM:2 is at the machine's limit")
        progress.update(LATER)
    lines = stream.getvalue().splitlines()
    assert lines == [
        format_snapshot(START, 800),
        "task GMM:2 is at the machine's limit",
        format_snapshot(LATER, 800, eta_s(LATER, 800)),
    ]


@pytest.mark.parametrize("n_trials", [800, None])
def test_on_a_terminal_one_line_is_rewritten(n_trials: int | None) -> None:
    stream = Terminal()
    with Progress(n_trials=n_trials, stream=stream) as progress:
        progress.update(START)
        progress.note("a warning")
        progress.update(LATER)
    text = stream.getvalue()
    assert "best -" in text and "best 1.430 ms" in text
    assert text.count("\n") == 2  # after the warning, and at the end
    assert "a warning\n" in text
    assert ("24%|" in text) == (n_trials == 800)
    progress.note("after the end")
    progress.close()
    assert stream.getvalue().endswith("\nafter the end\n")


def test_more_trials_than_asked_for_stay_within_the_bar() -> None:
    stream = Terminal()
    with Progress(n_trials=100, stream=stream) as progress:
        progress.update(LATER)
    assert "100%|" in stream.getvalue() and "192/100 trials" in stream.getvalue()


def test_quiet_says_nothing() -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress(n_trials=8, stream=stream, quiet=True) as progress:
            progress.update(LATER)
            progress.note("nothing")
        assert stream.getvalue() == ""


def test_a_stream_that_is_closed_full_or_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(Terminal):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    closed = io.StringIO()
    closed.close()
    for stream in (Gone(), closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(n_trials=100) as progress:
            progress.update(LATER)
            progress.note("a warning")


def test_names_do_not_steer_the_terminal() -> None:
    for stream in (io.StringIO(), Terminal()):
        with Progress(stream=stream) as progress:
            progress.note("odd\x1b[2J\nname")
            progress.update(replace(LATER, task="odd\x07\nname"))
        assert "\x1b[2J" not in stream.getvalue() and "\x07" not in stream.getvalue()
        assert "\nname" not in stream.getvalue()


def test_the_default_stream_is_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        progress.update(START)
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == format_snapshot(START) + "\n"
