"""The page of `ansorlite report`: results as one HTML file that needs nothing else.

In: `MachineResult`s of logs. Out: HTML text with its styles and pictures inside, without scripts.
Names come from logs and models: everything that the template prints is escaped. Needs jinja2 and
matplotlib (extra `report`).
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ansorlite
from ansorlite.errors import MissingExtra
from ansorlite.names import shown
from ansorlite.report.curves import curve_svg
from ansorlite.report.results import Curve, MachineResult, TaskResult
from ansorlite.tables import ABOVE, ABOVE_LIMIT, joint_peak
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

SHOWN_PROBLEMS = 5
TEMPLATE = "page.html.jinja"


@dataclass(frozen=True)
class Page:
    """What a page is made of; `picture` is the SVG of the network, if it is known.

    `profiles` are (size, profile as text) of the network, the size "" where there is one.
    `precision` is what kernels compute in, as text, "" for a network wholly in float32.
    `problems` are lines about records that were left out, `network` is "" where it is not known.
    """

    logs: tuple[str, ...]
    network: str
    machines: tuple[MachineResult, ...]
    problems: tuple[str, ...] = ()
    picture: str = ""
    profiles: tuple[tuple[str, str], ...] = ()
    precision: str = ""


def html(page: Page) -> str:
    """The whole page. Raises MissingExtra without jinja2 or matplotlib."""
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError:
        raise MissingExtra("jinja2", "report") from None

    def finalize(value: Any) -> Any:
        if isinstance(value, Markup) or not isinstance(value, str):
            return value
        return shown(value, keep="\n\t")

    source = (Path(__file__).parent / TEMPLATE).read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(source).render(
        title=page.network or ", ".join(Path(log).name for log in page.logs),
        page=page,
        version=ansorlite.__version__,
        problems=page.problems[:SHOWN_PROBLEMS],
        more=max(0, len(page.problems) - SHOWN_PROBLEMS),
        picture=Markup(page.picture),
        machines=[_machine(m, page.network) for m in page.machines],
        svg=lambda curve, over: Markup(curve_svg(curve, over)),
    )


def _machine(m: MachineResult, network: str) -> dict[str, Any]:
    """The values of one machine's part of the page, as text."""
    failures = Counter(r.status for r in m.records if not r.ok)
    trials = len(m.records)
    heaviest = sorted(
        enumerate(m.tasks), key=lambda x: -(x[1].weight or 1.0) * (x[1].latency_s or 0.0)
    )
    figures = [
        ("tasks", str(len(m.tasks))),
        ("trials", str(trials)),
        ("failed trials", str(sum(failures.values()))),
        ("time of tuning", format_seconds(m.wall_s)),
    ]
    if m.latency_s is not None:
        figures.insert(0, ("latency of the network", format_latency(m.latency_s)))
    return {
        "fingerprint": m.fingerprint,
        "figures": figures,
        "network": m.network,
        "network_text": _curve_text(network or "the network", m.network),
        "times": _times(m),
        "rows": [_row(t, m, k) for k, t in enumerate(m.tasks)],
        "total": _total(m),
        "above": _above(m),
        "failures": [
            (kind.lower().replace("_", " "), n, format_share(n / trials))
            for kind, n in failures.most_common()
        ],
        "tasks": [_task(t, m, k) for k, t in heaviest],
        "facts": _facts(m),
    }


def _times(m: MachineResult) -> list[tuple[str, str, str, float]]:
    """(phase, time, share, share as a number) of the wall time."""
    rest = max(0.0, m.wall_s - sum(m.seconds.values()))
    spent = {**m.seconds, "search, training, checking": rest}
    return [
        (name, format_seconds(s), format_share(share(s, m.wall_s)), min(1.0, s / (m.wall_s or 1.0)))
        for name, s in spent.items()
    ]


def _figures(
    flop: float | None, s: float | None, least: float | None, peak: float | None
) -> dict[str, Any]:
    speed = rate(flop, s)
    of_peak = share(speed, peak)
    return {
        "flop": format_flop(flop),
        "latency": format_latency(s),
        "gflops": format_gflops(speed),
        "peak": format_share(of_peak),
        "peak_share": min(1.0, of_peak or 0.0),
        "limit": format_share(share(least, s)),
        "limit_share": min(1.0, share(least, s) or 0.0),
    }


def _row(t: TaskResult, m: MachineResult, number: int) -> dict[str, Any]:
    return {
        "number": number,
        "name": t.name,
        "weight": f"{t.weight:g}" if t.weight else UNKNOWN,
        "trials": len(t.records),
        "failed": sum(t.failures.values()),
        "bound": t.limit.replace("operands once, ", "data in ") or UNKNOWN,
        **_figures(t.flop, t.latency_s, t.least_s, _peak(t, m)),
    }


def _total(m: MachineResult) -> dict[str, Any] | None:
    """The weighted sums over the network; None where a latency is not known."""
    if m.latency_s is None:
        return None
    own = [t for t in m.tasks if t.weight]
    flop = sum(t.weight * (t.flop or 0.0) for t in own)
    known = all(t.least_s is not None for t in own)
    least = sum(t.weight * (t.least_s or 0.0) for t in own) if known else None
    peak = joint_peak([(t.weight * (t.flop or 0.0), _peak(t, m)) for t in own])
    return _figures(flop, m.latency_s, least, peak)


def _peak(t: TaskResult, m: MachineResult) -> float | None:
    """The limit of a task's instructions; that of multiply-adds where they are not known."""
    return t.peak_flop_per_s or (None if m.peak is None else m.peak.flops_all)


def _above(m: MachineResult) -> list[str]:
    """Why tasks are above 100 % of the peak or of the limit, a line a reason."""
    found: dict[str, list[str]] = {}
    for k, t in enumerate(m.tasks):
        speed = rate(t.flop, t.latency_s)
        if (share(speed, _peak(t, m)) or 0.0) > ABOVE:
            found.setdefault(f"Peak above 100 %: {t.above}", []).append(str(k))
        if (share(t.least_s, t.latency_s) or 0.0) > ABOVE:
            found.setdefault(f"Limit above 100 %: {ABOVE_LIMIT}", []).append(str(k))
    return [f"{why} (task {', '.join(ks)})." for why, ks in found.items()]


def _task(t: TaskResult, m: MachineResult, number: int) -> dict[str, Any]:
    failures = ", ".join(
        f"{n} {kind.lower().replace('_', ' ')}" for kind, n in t.failures.most_common()
    )
    return {
        **_row(t, m, number),
        "curve": t.curve if len(t.curve.trials) else None,
        "text": _curve_text(t.name, t.curve),
        "failures": failures,
        "best": t.best,
        "assembly": "\n".join(t.best.assembly),
    }


def _curve_text(name: str, curve: Curve | None) -> str:
    """What a curve shows, for who cannot see it."""
    if curve is None or not len(curve.trials):
        return ""
    return (
        f"Best latency of {name}: {format_latency(float(curve.latency_s[0]))} at first, "
        f"{format_latency(float(curve.latency_s[-1]))} after {curve.trials[-1]:.0f} trials and "
        f"{format_seconds(float(curve.seconds[-1]))}."
    )


def _facts(m: MachineResult) -> list[tuple[str, str]]:
    """What is known of the machine: all of it where it is this one, else its fingerprint."""
    facts = [("fingerprint", m.fingerprint)]
    target = m.target
    if target is None:
        return [*facts, ("limits", "unknown: the log is of another machine than this one")]
    kib = 1024
    facts += [
        ("CPU", f"{target.cpu}, {target.cores} cores"),
        ("vectors", f"{target.vector_registers} of {target.vector_bytes} bytes"),
        (
            "caches",
            f"{target.l1_bytes // kib} KiB and {target.l2_bytes // kib} KiB a core, "
            f"{target.l3_bytes // kib} KiB shared",
        ),
        ("code for", target.triple),
    ]
    if m.peak is None:
        return [*facts, ("limits", "not measured yet: ansorlite devices measures them")]
    return [*facts, ("limits", str(m.peak))]
