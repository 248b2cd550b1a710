"""Latency of a network over the seconds of tuning, against peers (some six minutes).

Claim: ansorlite reaches the latency of the fastest peer within the first minutes of tuning. Tunes
one network with its progress recorded, then times the tuned network and the peers in alternating
processes, as `bench_networks.py` does. Writes results/latency_over_time.jsonl (a line a network and
batch) and draws results/latency_over_time.svg, which is readable on light and dark pages (extra
`report`). With --draw FILE nothing is tuned: the picture is drawn from rows recorded before, such
as those of results/networks.jsonl.
Usage: python scripts/latency_over_time.py [--network resnet50] [--batch 1] [--timeout 300]
       [--peers onnxruntime openvino] [--draw FILE]
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ansorlite.files import write_whole

RESULTS = Path(__file__).parents[1] / "results" / "latency_over_time.jsonl"
INK = "#010203"  # replaced by the page's own colour of text
OURS = "#2f7de1"
PEERS = ("#d9730d", "#2a9d4a", "#b04fc4", "#c23b50")  # told apart on white and on black
STYLE = "<style>svg{color:#1f2328}@media(prefers-color-scheme:dark){svg{color:#d1d7e0}}</style>"
NAMES = {"openvino": "OpenVINO float32", "openvino-default": "OpenVINO", "torch": "PyTorch"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of tuning")
    parser.add_argument("--peers", nargs="+", default=["onnxruntime", "openvino"])
    parser.add_argument("--draw", type=Path, metavar="FILE", help="rows recorded before")
    args = parser.parse_args()
    if args.draw is None:
        record(args.network, args.batch, args.timeout, tuple(args.peers))
    rows = read(args.draw or RESULTS)
    wanted = [r for r in rows if (r["network"], r["batch"]) == (args.network, args.batch)]
    if not wanted:
        print(f"{args.draw} has no row of {args.network}, batch {args.batch}", file=sys.stderr)
        return 2
    write_whole(RESULTS.with_suffix(".svg"), picture(wanted[-1]))
    return 0


def record(network: str, batch: int, timeout: float, peers: tuple[str, ...]) -> None:
    """Tune and race one network; its row replaces an older one of the same network and batch."""
    script = Path(__file__).with_name("bench_networks.py")
    budget = ["--timeout", str(timeout), "--batch", str(batch)]
    chosen = ["--only", network, "--peers", *peers, "--output", str(RESULTS)]
    subprocess.run([sys.executable, str(script), *budget, *chosen], check=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def picture(row: Mapping[str, Any]) -> str:
    """SVG text: latency in ms (log scale) over seconds of tuning.

    The curve is the sum of the tasks' best latencies, each measured alone; the dot the measured
    latency of the whole tuned network, in turns with the peers; each peer a horizontal line.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",  # text stays text: small, and in the page's colour
        "svg.hashsalt": "latency_over_time",
        **{f"{k}.color": INK for k in ("text", "xtick", "ytick")},
        **{f"axes.{k}": INK for k in ("edgecolor", "labelcolor")},
        "font.size": 11,
    }
    with rc_context(settings):
        figure = Figure(figsize=(7.2, 3.6))
        axes = figure.subplots()
        seconds, latency_s = zip(*row["curve"], strict=True)
        latency_ms = [1e3 * s for s in latency_s]
        axes.step(seconds, latency_ms, where="post", color=OURS, linewidth=2)
        end = seconds[-1]
        marks = [
            (1e3 * v, NAMES.get(n, n), c) for (n, v), c in zip(peers_of(row), PEERS, strict=False)
        ]
        for ms, _, color in marks:
            axes.axhline(ms, color=color, linewidth=1.5, linestyle="--")
        tuned_ms = 1e3 * row["latency_s"]["ansorlite"]
        axes.plot([row["tuning_s"]], [tuned_ms], "o", color=OURS, markersize=7)
        marks.append((tuned_ms, "ansorlite, whole network", OURS))
        labels(axes, sorted(marks))
        axes.annotate(
            "ansorlite, sum of its tasks",
            (end / 2, latency_ms[-1]),
            xytext=(0, -16),
            textcoords="offset points",
            color=OURS,
            ha="center",
        )
        axes.set_yscale("log")
        axes.set_ylim(bottom=0.72 * min(latency_ms))
        axes.set(xlabel="seconds of tuning", ylabel="latency, ms")
        axes.set_xlim(0, 1.02 * max(end, row["tuning_s"]))
        ticks = [
            t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if in_range(t, axes.get_ylim())
        ]
        axes.set_yticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        figure.text(
            0.99,
            0.02,
            f"{row['network']}, batch {row['batch']}; {machine(row)}",
            ha="right",
            size=8,
        )
        figure.tight_layout(rect=(0, 0.05, 1, 1))
        text = StringIO()
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    return themed(text.getvalue())


def peers_of(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(peer, seconds), the fastest first."""
    found = [(n, float(s)) for n, s in row["latency_s"].items() if n != "ansorlite"]
    return sorted(found, key=lambda f: f[1])


def in_range(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def labels(axes: Any, marks: list[tuple[float, str, str]]) -> None:
    """Names right of the axes, pushed apart where latencies are close."""
    lowest = 0.0
    for ms, name, color in marks:
        at = max(ms, lowest)
        lowest = at * 1.17
        axes.annotate(
            f"{name} {ms:.3g} ms",
            (1.01, at),
            xycoords=("axes fraction", "data"),
            color=color,
            va="center",
        )


def machine(row: Mapping[str, Any]) -> str:
    m = row["machine"]
    return f"{m['cpu']}, {m['cores']} cores, {row['date']}"


def themed(svg: str) -> str:
    """Text and axes take the colour of light or of dark pages."""
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"font: ([^;\"]*)'[^;\"]*", r"font: \1sans-serif", svg)
    head, tag, rest = svg.partition("<defs>")
    return f"{head}{STYLE}\n {tag}{rest}"


if __name__ == "__main__":
    sys.exit(main())
