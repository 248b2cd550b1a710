"""Tables for the terminal: the tasks of a run with their speeds, and the wall time by phase.

In: `TaskRow`s (FLOP, seconds) and seconds a phase. Out: lines of text without colour, columns
aligned, the last line without a newline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansorlite.names import shown
from ansorlite.units import (
    UNKNOWN,
    format_flop,
    format_gflops,
    format_latency,
    format_seconds,
    format_share,
    rate,
    share,
)

PHASES = ("search", "training", "building", "measuring", "checking")
OTHER = "other"
NAME_WIDTH = 32
ABOVE = 1.005  # share of a limit from which it is explained
ABOVE_LIMIT = "operands lay in a nearer cache, or the limit was measured on a slower machine"
SHOWN_IDS = 8


@dataclass(frozen=True)
class TaskRow:
    """One task: FLOP of one run, how often it occurs, its best latency (None if there is none).

    `least_s` is what the machine's limits allow at best: its arithmetic, or its data.
    `above` says why the speed may exceed the machine's peak; it is printed where that occurs.
    `peak_flop_per_s` is the limit of the task's own instructions, where that is not the table's.
    """

    name: str
    flop: float
    weight: float
    latency_s: float | None
    trials: int
    least_s: float | None = None
    above: str = ""
    peak_flop_per_s: float | None = None


def task_table(rows: Sequence[TaskRow], peak_flop_per_s: float | None = None) -> str:
    """One line a task and a line of totals: FLOP and latency times weight, trials.

    The total latency is unknown while a task has none. `peak_flop_per_s` is what the machine
    can do, for rows without a figure of their own; without any the share is unknown. "Limit" is the
    share of what arithmetic and data allow at best. Lines below the table explain shares above
    100 %.
    """
    head = ["ID", "Task", "FLOP", "Weight", "Latency", "GFLOP/s", "Peak", "Limit", "Trials"]
    lines = [
        [
            str(i),
            shortened(row.name),
            *_figures(
                row.flop, row.weight, row.latency_s, _peak(row, peak_flop_per_s), row.least_s
            ),
            str(row.trials),
        ]
        for i, row in enumerate(rows)
    ]
    flop = sum(row.weight * row.flop for row in rows)
    known = [row.weight * row.latency_s for row in rows if row.latency_s is not None]
    latency = sum(known) if rows and len(known) == len(rows) else None
    bounds = [row.weight * row.least_s for row in rows if row.least_s is not None]
    least = sum(bounds) if rows and len(bounds) == len(rows) else None
    total = _figures(flop, None, latency, _peak_of_all(rows, peak_flop_per_s), least)
    total_line = ["", "total", *total, str(sum(row.trials for row in rows))]
    table = aligned(head, lines, total_line, left=("Task",))
    return "\n".join([table, *_above_100(rows, peak_flop_per_s)])


def _peak(row: TaskRow, peak: float | None) -> float | None:
    return row.peak_flop_per_s or peak


def _peak_of_all(rows: Sequence[TaskRow], peak: float | None) -> float | None:
    """What the rows' peaks allow all of them together."""
    return joint_peak([(row.weight * row.flop, _peak(row, peak)) for row in rows])


def joint_peak(parts: Sequence[tuple[float, float | None]]) -> float | None:
    """Operations per second of parts (operations, their peak) one after the other, at their peaks.

    None where a peak is unknown.
    """
    peaks = {p for _, p in parts}
    if None in peaks or len(peaks) <= 1:
        return next(iter(peaks), None)
    seconds = sum(n / p for n, p in parts if p)
    return sum(n for n, _ in parts) / seconds if seconds else None


def _above_100(rows: Sequence[TaskRow], peak: float | None) -> list[str]:
    """A line a reason for shares above 100 %, with the tasks that have it."""
    found: dict[str, list[str]] = {}
    for i, row in enumerate(rows):
        if (share(rate(row.flop, row.latency_s), _peak(row, peak)) or 0.0) > ABOVE:
            why = row.above or "the limit is measured too low"
            found.setdefault(f"Peak above 100 %: {why}", []).append(str(i))
        if (share(row.least_s, row.latency_s) or 0.0) > ABOVE:
            found.setdefault(f"Limit above 100 %: {ABOVE_LIMIT}", []).append(str(i))
    return [
        f"{why} (ID {', '.join(ids[:SHOWN_IDS])}"
        f"{f' and {len(ids) - SHOWN_IDS} more' if len(ids) > SHOWN_IDS else ''})"
        for why, ids in found.items()
    ]


def time_table(seconds: Mapping[str, float], wall_s: float) -> str:
    """The wall time by phase: those in `PHASES`, each with its parts, further ones, and the rest.

    Shares are of `wall_s` seconds. Phases that ran at the same time may add up to more than
    `wall_s`; the rest is then 0.
    """
    named = [n for p in PHASES for n in (p, *(k for k in seconds if k.startswith(f"{p} ")))]
    named += [name for name in seconds if name not in named]
    spent = {name: seconds.get(name, 0.0) for name in named if name != OTHER}
    spent[OTHER] = seconds.get(OTHER, 0.0) + max(0.0, wall_s - sum(seconds.values()))
    lines = [
        [name, format_seconds(value), format_share(share(value, wall_s))]
        for name, value in spent.items()
    ]
    total = ["total", format_seconds(wall_s), format_share(share(wall_s, wall_s))]
    return aligned(["Phase", "Time", "Share"], lines, total, left=("Phase",))


def _figures(
    flop: float,
    weight: float | None,
    latency_s: float | None,
    peak: float | None,
    least_s: float | None,
) -> list[str]:
    speed = rate(flop, latency_s)
    return [
        format_flop(flop),
        "" if weight is None else f"{weight:g}",
        format_latency(latency_s),
        format_gflops(speed),
        format_share(share(speed, peak)),
        format_share(share(least_s, latency_s)),
    ]


def shortened(name: str) -> str:
    """A name of at most 32 characters; a longer one loses its middle."""
    if not name:
        return UNKNOWN
    return shown(name, NAME_WIDTH)


def aligned(
    head: list[str], lines: Sequence[list[str]], total: list[str], left: Sequence[str]
) -> str:
    """A table whose last line is set off; the columns named in `left` are flush left.

    Names in cells may be anything: a line of the table stays one line of the terminal.
    """
    table = [[shown(cell) for cell in line] for line in (head, *lines, total)]
    widths = [max(len(line[c]) for line in table) for c in range(len(head))]
    rule = "  ".join("-" * width for width in widths)
    text = [
        "  ".join(
            cell.ljust(width) if title in left else cell.rjust(width)
            for cell, width, title in zip(line, widths, head, strict=True)
        ).rstrip()
        for line in table
    ]
    return "\n".join([text[0], rule, *text[1:-1], rule, text[-1]])
