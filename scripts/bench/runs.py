"""Runs of searches as scripts keep them: with programs to race later, in results/X.jsonl.

In: JSON lines of results/. Out: `RacedRun`s, the experiment that keeps them, areas of curves, plots
of what runs reached of the best that any did. Latencies and times in seconds.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.baselines.runs import (
    Curves,
    Float,
    Run,
    bands,
    efficiency,
    run_line,
)
from bench.experiment import Experiment

SHARE = "best known latency / best so far (geometric mean)"


@dataclass(frozen=True)
class RacedRun(Run):
    """A run and what scripts add: `asked` is the number of trials wanted.

    `programs` has the best program after some numbers of trials: (sketch, values of its holes).
    `settled` has what a network's search would have settled on after some numbers of trials, in
    seconds, raced in the end (see `bench.checkpoint_race`).
    """

    programs: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    settled: dict[str, float] = field(default_factory=dict)

    @property
    def budget(self) -> int:
        """Trials that it was asked for, or did: a space may be used up before."""
        return max(self.asked, len(self.latency_s))

    def trials_to(self, latency_s: float) -> int | None:
        """How many trials it took to get there; None if it did not."""
        there = np.flatnonzero(self.best() <= latency_s)
        return int(there[0]) + 1 if there.size else None

    def seconds_to(self, latency_s: float) -> float | None:
        """How many seconds that took."""
        n = self.trials_to(latency_s)
        return None if n is None or n > len(self.at_s) else self.at_s[n - 1]


def experiment_of_runs(
    path: Path, line: Callable[[RacedRun], str] | None = None
) -> Experiment[RacedRun]:
    """The runs of a file: every new run is added."""
    return Experiment(
        path,
        key=lambda r: r.key,
        line=line or run_text,
        make=RacedRun,
        write=run_line,
        what="runs of searches",
        keeps_all=True,
    )


def run_text(run: RacedRun) -> str:
    """What is told of a run as it ends."""
    best = f"{run.best()[-1] * 1e3:.4f} ms in {run.wall_s:.0f} s"
    return f"{run.policy:18} {run.case:12} seed {run.seed}: {best}"


def area(curve: Float) -> float:
    """The mean of a curve over its trials, the plain schedule's left out."""
    return float(np.mean(curve[1:] if len(curve) > 1 else curve))


def draw(
    experiment: Experiment[RacedRun],
    runs: Sequence[RacedRun],
    policies: Collection[str] | None = None,
    suffix: str = "",
) -> None:
    """Plots of what `runs` reached of the best that any did, by trials and by seconds.

    Only `policies` are drawn, if given.
    """
    shares = efficiency(runs)
    by_trials: dict[str, list[tuple[Float, Float]]] = {}
    by_seconds: dict[str, list[tuple[Float, Float]]] = {}
    for r in [r for r in runs if r.latency_s and (policies is None or r.policy in policies)]:
        share = shares[r.key]
        by_trials.setdefault(r.policy, []).append((np.arange(1.0, len(share) + 1), share))
        if r.at_s:
            by_seconds.setdefault(r.policy, []).append((np.asarray(r.at_s), share[: len(r.at_s)]))
    kinds: tuple[tuple[str, Curves, str], ...] = (
        ("trials", by_trials, ""),
        ("seconds", by_seconds, "_seconds"),
    )
    for x, curves, more in kinds:
        if curves or not more:
            experiment.draw(x, SHARE, bands(curves), suffix + more)
