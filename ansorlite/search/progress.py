"""What a tuning run says while it runs: one live line on a terminal, a line a round elsewhere.

The tuning loop makes one `Progress` and updates it with a `Snapshot` after every round. In:
latencies in seconds, FLOP, trials, failures by kind. Out: text on `stream`, standard error by
default, so that results on standard output stay clean.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TextIO

from ansorlite.names import shown
from ansorlite.streams import one_line, progress_stream
from ansorlite.units import (
    format_flop_rate,
    format_latency,
    format_seconds,
    format_share,
    rate,
    share,
)

ETA_STEP = 0.3  # share of its change by which an update moves the expected end
NAME_LEAST = 12  # characters of a task's name in a narrow terminal
BAR_WIDTH = 15  # characters of the percentage, the bar and the last column, which stays empty


@dataclass(frozen=True)
class Snapshot:
    """The state of a run.

    `trials` counts all records of the log, `trials_before` those from before this run: the pace is
    that of this run. `flop` belongs to `latency_s`: one task's, or the weighted
    sums of a network. `failures` maps a kind (BUILD_ERROR, RUN_TIMEOUT ...) to its number;
    kinds with 0 are not shown.
    """

    trials: int
    elapsed_s: float
    latency_s: float | None = None
    flop: float | None = None
    task: str = ""
    round: int | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    trials_before: int = 0


def eta_s(now: Snapshot, n_trials: int | None, timeout_s: float | None = None) -> float | None:
    """Seconds until the trials or the time run out, whichever is first; None if unknown."""
    left: list[float] = []
    done = now.trials - now.trials_before
    if n_trials is not None:
        missing = n_trials - now.trials
        if missing <= 0:
            return 0.0
        if done > 0:
            left.append(missing * now.elapsed_s / done)
    if timeout_s is not None:
        left.append(max(0.0, timeout_s - now.elapsed_s))
    return min(left, default=None)


class SteadyEta:
    """`eta_s` without jumps: each update moves the expected end by a share of its change.

    >>> SteadyEta(100, None)(Snapshot(trials=50, elapsed_s=20.0))
    20.0
    """

    def __init__(self, n_trials: int | None, timeout_s: float | None) -> None:
        self._n_trials, self._timeout_s = n_trials, timeout_s
        self._end_s: float | None = None  # from the begin of the run

    def __call__(self, now: Snapshot) -> float | None:
        """Seconds that are left, at most those until the timeout; 0 where the trials are done."""
        left = eta_s(now, self._n_trials, self._timeout_s)
        if left is None or left == 0:
            return left
        end_s = now.elapsed_s + left
        if self._end_s is not None:
            end_s = self._end_s + ETA_STEP * (end_s - self._end_s)
        self._end_s = end_s
        most_s = float("inf") if self._timeout_s is None else self._timeout_s - now.elapsed_s
        return max(0.0, min(end_s - now.elapsed_s, most_s))


def format_snapshot(
    now: Snapshot,
    n_trials: int | None = None,
    left_s: float | None = None,
    peak_flop_per_s: float | None = None,
    width: int | None = None,
) -> str:
    """One line: task, trials, ETA, best latency, FLOP/s, share of peak, failures, round, time.

    `left_s` is the ETA. A line of more than `width` characters loses the middle of the task's
    name, then its last parts.
    """
    speed = rate(now.flop, now.latency_s)
    of_peak = share(speed, peak_flop_per_s)
    failed = sum(now.failures.values())
    parts = [
        f"{now.trials}{'' if n_trials is None else f'/{n_trials}'} trials",
        f"ETA {format_seconds(left_s)}",
        f"best {format_latency(now.latency_s)}",
        "" if speed is None else format_flop_rate(speed),
        "" if of_peak is None else f"{format_share(of_peak)} of peak",
        format_failures(now.failures),
        "" if now.round is None else f"round {now.round}",
        f"{format_seconds(now.elapsed_s)} used",
    ]
    parts = [part for part in parts if part]
    name = shown(now.task)
    line = shown(", ".join([name, *parts] if name else parts))
    if width is None or len(line) <= width:
        return line
    if failed:
        parts = [
            f"{failed} failed" if part.startswith(f"{failed} failed") else part for part in parts
        ]
    while len(parts) > 1 and _length(parts) + min(len(name), NAME_LEAST) + 2 > width:
        parts.pop()
    if name:
        parts.insert(0, shown(name, max(NAME_LEAST, width - _length(parts) - 2)))
    return ", ".join(parts)[: max(0, width)]


def _length(parts: Sequence[str]) -> int:
    return len(", ".join(parts))


def format_failures(failures: Mapping[str, int]) -> str:
    """{"RUN_TIMEOUT": 2, "BUILD_ERROR": 5} -> "7 failed (5 build error, 2 run timeout)"."""
    kinds = sorted(((n, kind) for kind, n in failures.items() if n), key=lambda k: (-k[0], k[1]))
    if not kinds:
        return ""
    listed = ", ".join(f"{n} {kind.lower().replace('_', ' ')}" for n, kind in kinds)
    return f"{sum(n for n, _ in kinds)} failed ({listed})"


class Progress:
    """Shows a `Snapshot`: a tqdm line where `stream` is a terminal, plain lines where it is not.

    With neither `n_trials` nor `timeout_s` the ETA is unknown. `quiet` shows nothing at all.
    """

    def __init__(
        self,
        n_trials: int | None = None,
        timeout_s: float | None = None,
        peak_flop_per_s: float | None = None,
        stream: TextIO | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self._n_trials = n_trials
        self._eta = SteadyEta(n_trials, timeout_s)
        self._peak = peak_flop_per_s
        self._stream = progress_stream(stream)
        self._quiet = quiet
        self._bar: Any = None
        self._last = ""
        if not quiet and self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=n_trials,
                file=self._stream,
                # Without a bar in it tqdm does not cut the line to the width of the terminal.
                bar_format="{percentage:3.0f}%|{bar:6}| {desc}" if n_trials else "{desc}{bar:1}",
                dynamic_ncols=True,
                leave=True,
            )

    def update(self, now: Snapshot) -> None:
        """Show the state of the run; off a terminal a repeated line is left out."""
        width = None if self._bar is None else self._room()
        line = format_snapshot(now, self._n_trials, self._eta(now), self._peak, width)
        if self._quiet or line == self._last:
            return
        self._last = line
        if self._bar is None:
            self._print(line)
        else:
            self._bar.n = now.trials if self._n_trials is None else min(now.trials, self._n_trials)
            self._bar.set_description_str(line, refresh=True)

    def _room(self) -> int | None:
        """Characters of the terminal's line beside the bar; None where its width is unknown."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            return None
        return columns - BAR_WIDTH if columns > 0 else None

    def note(self, text: str) -> None:
        """A line that stays: a warning, the first error, the end of a task."""
        if self._quiet:
            return
        text = shown(text)
        if self._bar is None:
            self._print(one_line(text))
        else:
            self._bar.write(one_line(text), file=self._stream)

    def close(self) -> None:
        """Leave the last line standing; a second call does nothing."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def limit(self, peak_flop_per_s: float | None) -> None:
        """The limit that speeds are shares of from now on."""
        self._peak = peak_flop_per_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
