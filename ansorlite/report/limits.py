"""Limits of the machine as a table, and the roofline of a program.

In: a `Calibration` or a `Peak`, a task, a concrete program, a latency in seconds. Out: text that
ends in a newline. A kernel is no faster than its arithmetic at the speed of multiply-adds, and no
faster than its data at the speed of the memory level that holds the data; the roofline tells which
of the two limits binds.
"""

import numpy as np

from ansorlite.cost.features import features
from ansorlite.cost.names import FEATURE_NAMES
from ansorlite.ir.program import Program
from ansorlite.measure.calibrate import Calibration
from ansorlite.measure.limits import Roof, task_roofs
from ansorlite.names import shown
from ansorlite.task import SearchTask
from ansorlite.units import (
    format_bytes,
    format_flop,
    format_gflops,
    format_latency,
    format_share,
    share,
)

BARS = 40  # characters of the longest bar
PLACES = (("l1", True), ("l1", False), ("l2", True), ("l2", False))


def calibration_text(c: Calibration) -> str:
    """Copies by level, and the register tiles with their shares of one core's limit."""
    titles = ("copy, one core", "all cores", "read, one core", "all cores")
    head = " ".join(f"{t:>14}" for t in titles)
    lines = [f"measured {c.measured}", "", f"{'level':<10} {head}"]
    for x in c.levels:
        speeds = (x.copy_one, x.copy_all, x.read_one, x.read_all)
        figures = " ".join(f"{f'{v / 1e9:.1f} GB/s':>14}" for v in speeds)
        lines.append(f"{x.level:<10} {figures}")
    heads = [f"{level} {'packed' if packed else 'rows'}" for level, packed in PLACES]
    lines += ["", "register tiles, shares of one core's multiply-adds"]
    lines.append(f"{'tile':<10} " + " ".join(f"{h:>10}" for h in heads))
    tiles = {(b.rows, b.vectors, b.level, b.packed): b.flops for b in c.bodies}
    for rows, vectors in _by_speed(c):
        cells = [tiles.get((rows, vectors, *place)) for place in PLACES]
        shares = [format_share(share(v, c.peak.flops_one)) for v in cells]
        lines.append(f"{f'{rows} x {vectors}':<10} " + " ".join(f"{v:>10}" for v in shares))
    return "\n".join(lines) + "\n"


def _by_speed(c: Calibration) -> list[tuple[int, int]]:
    total: dict[tuple[int, int], float] = {}
    for b in c.bodies:
        total[b.rows, b.vectors] = total.get((b.rows, b.vectors), 0.0) + b.flops
    return sorted(total, key=lambda k: -total[k])


# ---- roofline -----------------------------------------------------------------------------------


def program_roofs(task: SearchTask, program: Program, c: Calibration) -> list[Roof]:
    """The limits of one program: the bytes that cross into each level of one core's caches."""
    sources = {"beyond_l1": "l2", "beyond_l2": "l3", "beyond_l3": "memory"}
    values = features(program, {}, 1, task.target)[0].astype(np.float64)
    speeds = {x.level: x.copy_all for x in c.levels}
    out = []
    for feature, level in sources.items():
        moved = float((np.exp2(values[:, FEATURE_NAMES.index(feature)]) - 1.0).sum())
        speed = speeds.get(level, speeds["memory"])
        out.append(Roof(f"this program, {level}", moved, moved / speed))
    return out


def roofline_text(
    task: SearchTask, program: Program, c: Calibration, latency_s: float | None = None
) -> str:
    """Every limit of the task and of the program as a time; the longest of them binds."""
    least = task_roofs(task, c)
    roofs = [*least, *program_roofs(task, program, c)]
    longest = max([r.seconds for r in roofs] + ([latency_s] if latency_s else []))
    binding = max(least, key=lambda r: r.seconds)
    intensity = task.flop / max(1.0, least[-1].amount)
    lines = [
        f"{shown(task.name)}: {format_flop(task.flop)}, "
        f"{intensity:.1f} FLOP a byte of its operands",
        "",
        f"{'limit':<22} {'amount':>11} {'speed':>13} {'at least':>10}",
    ]
    for r in roofs:
        amount = format_flop(r.amount) if r.is_flop else format_bytes(r.amount)
        speed = f"{r.per_s / 1e9:.1f} {'GFLOP/s' if r.is_flop else 'GB/s'}"
        lines.append(f"{r.name:<22} {amount:>11} {speed:>13} {_bar(r.seconds, longest)}")
    if latency_s:
        lines.append(f"{'measured':<22} {'':>11} {'':>13} {_bar(latency_s, longest)}")
    lines += ["", f"any program: at least {format_latency(binding.seconds)} ({binding.name})"]
    if latency_s:
        lines.append(
            f"measured: {format_latency(latency_s)}, {format_share(binding.seconds / latency_s)} "
            f"of what that limit allows, {format_gflops(task.flop / latency_s)} GFLOP/s"
        )
    return "\n".join(lines) + "\n"


def _bar(seconds: float, longest: float) -> str:
    return f"{format_latency(seconds):>10} {'#' * round(BARS * seconds / longest)}".rstrip()
