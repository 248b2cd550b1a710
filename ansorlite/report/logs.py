"""Tables of tuning logs: their contents, programs that were run again, simulated searches.

In: `LogContents`, `Replayed` programs, or curves. Out: lines of text, columns aligned, the last
line without a newline.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from statistics import median
from typing import Protocol

from ansorlite.names import shown
from ansorlite.records import LogContents, Record
from ansorlite.search.replay import Replayed
from ansorlite.tables import aligned, shortened
from ansorlite.units import UNKNOWN, format_latency, format_seconds

SHOWN = 3  # damaged lines of a log


class Curve(Protocol):
    """What a simulated policy found (`baselines.simulate.SimulatedRun`)."""

    def best_s(self, trials: int) -> float: ...


def log_stats(contents: LogContents) -> str:
    """A line a task and target: trials, failures, the best and when it came, seconds it took."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in contents.records:
        groups.setdefault((r.task, r.target), []).append(r)
    head = ["Task", "Target", "Trials", "Failed", "Rounds", "Best", "At trial", "Spent", "Last"]
    lines = [_line(records) for records in groups.values()]
    failures = Counter(r.status for r in contents.records if not r.ok)
    spent = format_seconds(sum(r.build_s + r.run_s for r in contents.records))
    total = ["total", "", str(len(contents.records)), str(sum(failures.values()))]
    text = [aligned(head, lines, [*total, "", "", "", spent, ""], left=("Task", "Target"))]
    if failures:
        told = ", ".join(f"{shown(status)} {n}" for status, n in failures.most_common())
        text.append(f"failures: {told}")
    if contents.estimates:
        told = "programs built for machines that were not at hand, and not run"
        text.append(f"estimates: {len(contents.estimates)} {told}")
    text += [f"damaged: {shown(str(problem))}" for problem in contents.problems[:SHOWN]]
    if len(contents.problems) > SHOWN:
        text.append(f"damaged: {len(contents.problems)} lines in all")
    return "\n".join(text)


def _line(records: Sequence[Record]) -> list[str]:
    valid = [r for r in records if r.ok]
    best = min(valid, key=lambda r: r.latency_s or 0.0, default=None)
    last = max(r.timestamp for r in records)
    return [
        shortened(records[0].task_name),
        records[0].target,
        str(len(records)),
        str(len(records) - len(valid)),
        str(len({(r.seed, r.round) for r in records})),
        format_latency(None if best is None else best.latency_s),
        UNKNOWN if best is None else str(best.trial),
        format_seconds(sum(r.build_s + r.run_s for r in records)),
        _day(last),
    ]


def _day(timestamp: float) -> str:
    if not timestamp > 0:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):  # no time of any calendar
        return UNKNOWN


def replayed_table(found: Iterable[Replayed]) -> str:
    """A line a program with its latency when recorded and now, and a summary."""
    rows = list(found)
    head = ["Task", "Trial", "Sketch", "Status", "Then", "Now", "Ratio"]
    lines = [
        [
            shortened(r.record.task_name),
            str(r.record.trial),
            shortened(r.record.sketch),
            r.status,
            format_latency(r.record.latency_s),
            format_latency(r.latency_s),
            UNKNOWN if r.ratio is None else f"{r.ratio:.2f}",
        ]
        for r in rows
    ]
    ratios = [r.ratio for r in rows if r.ratio is not None]
    middle = f"{median(ratios):.2f}" if ratios else UNKNOWN
    right = sum(r.latency_s is not None for r in rows)
    total = ["total", "", "", f"{right} of {len(rows)} right", "", "", middle]
    text = [aligned(head, lines, total, left=("Task", "Sketch", "Status"))]
    text += [
        shown(f"{r.record.task_name} trial {r.record.trial}: {r.status} {r.error}")
        for r in rows
        if r.latency_s is None
    ]
    return "\n".join(text)


def simulated_table(
    found: Iterable[tuple[str, int, str, float, Sequence[Curve]]], trials: int
) -> str:
    """A line a task and policy: how near it came to the best record, a geometric mean of seeds.

    `found` has (task, its records, policy, seconds of the best record, the policy's runs).
    """
    rows = list(found)
    after = [n for n in (16, 32, 64, 128, 256, 512) if n < trials] + [trials]
    head = ["Task", "Records", "Policy", "Best", *(f"@{n}" for n in after)]
    lines: list[list[str]] = []
    shares: dict[str, list[list[list[float]]]] = {}
    for task, records, policy, best_s, runs in rows:
        own = [[best_s / max(r.best_s(n), best_s) for r in runs] for n in after]
        shares.setdefault(policy, []).append(own)
        cells = [f"{100 * _mean(values):.0f}%" for values in own]
        lines.append([shortened(task), str(records), policy, format_latency(best_s), *cells])
    text = []
    for policy, parts in shares.items():
        means = [_mean([x for own in parts for x in own[k]]) for k in range(len(after))]
        text.append(
            f"{policy}: "
            + ", ".join(
                f"{100 * m:.0f}% of the best record after {n}"
                for n, m in zip(after, means, strict=True)
            )
        )
    blank = ["", "", "", "", *("" for _ in after)]
    blank[0] = "geometric means"
    return "\n".join([aligned(head, lines, blank, left=("Task", "Policy")), *text])


def _mean(shares: Sequence[float]) -> float:
    """The geometric mean; nothing valid counts as a thousandth."""
    return math.exp(sum(math.log(max(x, 1e-3)) for x in shares) / len(shares))
