"""Curves as SVG that stands in a page: the colours of the page, no names, no identifiers.

In: a `Curve`. Out: SVG text. Needs matplotlib (extra `report`).
"""

import io
import re
from functools import cache
from typing import Any

from ansorlite.errors import MissingExtra
from ansorlite.report.results import Curve, Float

INK, LINE = "#010203", "#040506"  # stand for the page's colours of text and of lines
FAR = 4.0  # times as slow at first as in the end
IDENTIFIER = re.compile(r' id="[A-Za-z0-9.]+_\d+"')


@cache
def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "report") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def curve_svg(curve: Curve, over: str) -> str:
    """Best latency over "trials" or "seconds" as steps; a logarithmic axis where it fell far.

    Raises MissingExtra without matplotlib.
    """
    x: Float = curve.trials if over == "trials" else curve.seconds
    scale, unit = _unit(float(curve.latency_s.min()))
    pyplot = _pyplot()
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "ansorlite",
        "font.size": 9,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(5.2, 2.6))
        axes.plot(x, curve.latency_s / scale, drawstyle="steps-post", color=LINE, linewidth=1.8)
        axes.plot(x[-1:], curve.latency_s[-1:] / scale, "o", color=LINE, markersize=4)
        axes.set_xlabel(over)
        axes.set_ylabel(f"best latency, {unit}")
        highest, least = float(curve.latency_s.max()), float(curve.latency_s.min())
        if highest > FAR * least:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0.0)
        axes.set_xlim(left=0.0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.grid(alpha=0.2, color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        pyplot.close(figure)
    return _inline(out.getvalue())


def _unit(least_s: float) -> tuple[float, str]:
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if least_s >= scale:
            return scale, unit
    return 1e-9, "ns"


def _inline(svg: str) -> str:
    """The svg element alone, in the colours of the page; it scales with its box."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = IDENTIFIER.sub("", svg)
    svg = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", svg, count=2)
    svg = svg.replace(INK, "currentColor").replace(LINE, "var(--line)")
    return svg.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
