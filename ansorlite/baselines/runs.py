"""Searches kept for comparison: a `Run` has the latency of every trial of one search.

In: results of `tune` or `auto_schedule`. Out: runs as JSON lines, their best-so-far curves relative
to the best latency that any run of the same case reached, and plots of curves. Latencies and times
are in seconds.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import MissingExtra

if TYPE_CHECKING:
    from ansorlite.search.result import TuneResult

Float = npt.NDArray[np.float64]
Key = tuple[str, str, int]  # searcher, case, seed
# Searcher -> (where, value) of each of its runs: two arrays of equal length
Curves = Mapping[str, Sequence[tuple[Float, Float]]]


@dataclass(frozen=True)
class Run:
    """One search of a case: an operator of the suite, a task or a network.

    `latency_s` has the seconds of every trial in order, None for a failed one; `at_s` when each
    trial ended, counted from the start of the search; `wall_s` the duration of the whole search;
    `seconds` its parts, by phase; `target` the fingerprint of the machine.
    """

    policy: str
    case: str
    seed: int
    latency_s: list[float | None]
    wall_s: float
    target: str = ""
    date: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    at_s: list[float] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.policy, self.case, self.seed

    def best(self) -> Float:
        """float64[trials]: the best latency so far in seconds; inf before any program ran.

        >>> Run("ansor", "C2D:2", 0, [None, 2.0, 3.0], 9.0).best()
        array([inf,  2.,  2.])
        """
        times = [math.inf if t is None else t for t in self.latency_s]
        return np.minimum.accumulate(np.asarray(times, np.float64))


def run_of(
    policy: str, case: str, seed: int, found: "TuneResult", began: float | None = None
) -> Run:
    """The run of a search of one task; `began` is the time of day of its start, in seconds."""
    return Run(
        policy,
        case,
        seed,
        [r.latency_s if r.ok else None for r in found.records],
        found.wall_s,
        found.task.target.fingerprint,
        time.strftime("%Y-%m-%d"),
        found.seconds,
        [] if began is None else [max(0.0, r.timestamp - began) for r in found.records],
    )


def check_complete(interrupted: bool) -> None:
    """Raise KeyboardInterrupt where Ctrl-C cut a search short: a part cannot be compared."""
    if interrupted:
        raise KeyboardInterrupt


def append_run(path: Path, new: Run) -> None:
    """Add a run as one JSON line; the folder is made where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(run_line(new))


def run_line(run: Run) -> str:
    """The run as a JSON line; times have six digits, more than a clock resolves."""
    fields = asdict(run) | {"latency_s": _rounded(run.latency_s), "at_s": _rounded(run.at_s)}
    return json.dumps(fields) + "\n"


def _rounded(seconds: Sequence[float | None]) -> list[float | None]:
    return [None if t is None else float(f"{t:.6g}") for t in seconds]


def efficiency(runs: Sequence[Run]) -> dict[Key, Float]:
    """Run -> float64[trials]: the best latency known of its case over its best so far, at most 1.

    The best known latency is the least of all `runs` of the case. Runs without trials are left out.
    """
    known: dict[str, float] = {}
    for r in runs:
        if r.latency_s:
            known[r.case] = min(known.get(r.case, math.inf), float(r.best()[-1]))
    return {r.key: known[r.case] / r.best() for r in runs if r.latency_s}


def geometric_mean(values: Iterable[float]) -> float:
    """NaN without values; values below 1e-9 count as 1e-9."""
    logs = [math.log(max(v, 1e-9)) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def bands(curves: Curves) -> Callable[[Any], None]:
    """For `chart`: per searcher the geometric mean of its curves and a band over their range."""

    def draw(axes: Any) -> None:
        for name, own in curves.items():
            found = [(at, value) for at, value in own if len(at)]
            if not found:
                continue
            low = max(float(at[0]) for at, _ in found)
            high = min(float(at[-1]) for at, _ in found)
            grid = np.geomspace(max(low, 1e-3), max(high, low, 1e-3), 200)
            places = [np.maximum(np.searchsorted(at, grid, side="right") - 1, 0) for at, _ in found]
            values = [np.maximum(v, 1e-9)[p] for (_, v), p in zip(found, places, strict=True)]
            logs: Any = np.log(values)
            axes.plot(grid, np.exp(logs.mean(axis=0)), label=name)
            if len(found) > 1:
                low_high = np.exp(logs.min(axis=0)), np.exp(logs.max(axis=0))
                axes.fill_between(grid, *low_high, alpha=0.15)

    return draw


def chart(path: Path, x: str, y: str, draw: Callable[[Any], None]) -> None:
    """Write an SVG of what `draw` puts on matplotlib's axes; `x` (logarithmic) and `y` are labels.

    Raises MissingExtra without matplotlib.

    >>> chart(Path("runs.svg"), "trials", "GFLOP/s", bands({"ansor": [(trials, speed)]}))
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "report") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    draw(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
