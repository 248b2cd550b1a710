"""Searches kept for comparison: one JSON line each, with the latency of every trial.

In: `Run`s of several policies over the same cases and seeds. Out: the file, curves relative to the
best that is known of a case, and a plot of them. Latencies and times in seconds.
"""

import json
import math
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from ansorlite.search.result import TuneResult

Float = npt.NDArray[np.float64]
Key = tuple[str, str, int]
SHARE = "best known latency / best so far (geometric mean)"


@dataclass(frozen=True)
class Run:
    """One search: seconds of every trial in order, None for a failure, and of the whole.

    `at_s` tells when each trial was done, from the start on. `programs` has the best program after
    some numbers of trials: (sketch, values of its holes). `asked` is the number of trials wanted.
    `settled` has what a network's search would have settled on after some numbers of trials, in
    seconds, raced in the end (see `bench.settled`).
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
    programs: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    settled: dict[str, float] = field(default_factory=dict)

    @property
    def budget(self) -> int:
        """Trials that it was asked for, or did: a space may be used up before."""
        return max(self.asked, len(self.latency_s))

    @property
    def key(self) -> Key:
        return self.policy, self.case, self.seed

    def best(self) -> Float:
        """float64[trials]: the best latency so far; inf before anything ran."""
        times = [math.inf if t is None else t for t in self.latency_s]
        return np.minimum.accumulate(np.asarray(times, np.float64))

    def trials_to(self, latency_s: float) -> int | None:
        """How many trials it took to get there; None if it did not."""
        there = np.flatnonzero(self.best() <= latency_s)
        return int(there[0]) + 1 if there.size else None

    def seconds_to(self, latency_s: float) -> float | None:
        """How many seconds that took."""
        n = self.trials_to(latency_s)
        return None if n is None or n > len(self.at_s) else self.at_s[n - 1]


def run_of(
    policy: str,
    case: str,
    seed: int,
    found: "TuneResult",
    began: float | None = None,
    programs: dict[str, Any] | None = None,
    asked: int | None = None,
) -> Run:
    """The run of a search; `began` is the time of day at which it did, in seconds."""
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
        programs or {},
        asked or 0,
    )


def whole(interrupted: bool) -> None:
    """KeyboardInterrupt where Ctrl-C cut a search short: a part is no run to compare."""
    if interrupted:
        raise KeyboardInterrupt


def read_runs(path: Path) -> list[Run]:
    """The runs of a file, none if there is no file; UsageError if it holds anything else."""
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        return [Run(**json.loads(line)) for line in lines]
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path} does not hold runs of searches: {error}") from error


def append_run(path: Path, new: Run) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = asdict(new) | {"latency_s": _rounded(new.latency_s), "at_s": _rounded(new.at_s)}
    with path.open("a") as out:
        out.write(json.dumps(fields) + "\n")


def _rounded(seconds: Sequence[float | None]) -> list[float | None]:
    """Six digits: more than any clock tells."""
    return [None if t is None else float(f"{t:.6g}") for t in seconds]


def efficiency(runs: Sequence[Run]) -> dict[Key, Float]:
    """For every run float64[trials]: the best known latency of its case over its best so far."""
    known: dict[str, float] = {}
    for r in runs:
        if r.latency_s:
            known[r.case] = min(known.get(r.case, math.inf), float(r.best()[-1]))
    return {r.key: known[r.case] / r.best() for r in runs if r.latency_s}


def geometric_mean(values: Iterable[float]) -> float:
    logs = [math.log(max(v, 1e-9)) for v in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def area(curve: Float) -> float:
    """The mean of a curve over its trials, the plain schedule's left out."""
    return float(np.mean(curve[1:] if len(curve) > 1 else curve))


def plot(curves: Mapping[str, Sequence[tuple[Float, Float]]], path: Path, x: str, y: str) -> None:
    """A line a policy through the geometric mean of its curves, a band over their spread.

    `curves` has (where, value) of every run. Raises MissingExtra without matplotlib.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "report") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
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
            axes.fill_between(grid, np.exp(logs.min(axis=0)), np.exp(logs.max(axis=0)), alpha=0.15)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0.0)
    if curves:
        axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def draw(runs: Sequence[Run], path: Path, policies: Collection[str] | None = None) -> None:
    """Plots beside `path`: what runs reached of the best that any did, by trials and by seconds.

    Only `policies` are drawn, if given. Without matplotlib it says so on standard error, and that
    is all.
    """
    by_trials: dict[str, list[tuple[Float, Float]]] = {}
    by_seconds: dict[str, list[tuple[Float, Float]]] = {}
    curves = efficiency(runs)
    for r in [r for r in runs if r.latency_s and (policies is None or r.policy in policies)]:
        curve = curves[r.key]
        by_trials.setdefault(r.policy, []).append((np.arange(1.0, len(curve) + 1), curve))
        if r.at_s:
            by_seconds.setdefault(r.policy, []).append((np.asarray(r.at_s), curve[: len(r.at_s)]))
    try:
        plot(by_trials, path.with_suffix(".svg"), "trials", SHARE)
        if by_seconds:
            plot(by_seconds, path.with_name(f"{path.stem}_seconds.svg"), "seconds", SHARE)
    except MissingExtra as error:
        print(f"no plot: {error}", file=sys.stderr)
