"""Ranges of values for uint8, seen on calibration inputs: `Ranges`.

In: names of values, a method, and arrays as they come. Out: a `Range` for each value. "minmax"
takes one pass over the inputs; the others take a second one, which counts in histograms.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from ansorlite.graph.types import Array

METHODS = ("minmax", "percentile", "entropy")
BINS = 2048
LEVELS = 255  # steps between the least and the greatest uint8
FEWEST = 8  # values a bin, on average, of a histogram that says something
STARTS = 64  # thresholds that are compared by entropy


@dataclass(frozen=True)
class Range:
    """Real numbers from `low` to `high`, 0 among them, as uint8."""

    low: float
    high: float

    @property
    def step(self) -> float:
        """The scale, a normal float32; 1 for a range of zeros."""
        width = float(np.float32((self.high - self.low) / LEVELS))
        return width if width > 256 * float(np.finfo(np.float32).tiny) else 1.0

    @property
    def point(self) -> int:
        """The zero point."""
        return int(np.clip(np.round(-self.low / self.step), 0, LEVELS))

    def rounded(self, x: Array) -> Array:
        """The numbers that are stored for x."""
        step, point = np.float32(self.step), np.float32(self.point)
        with np.errstate(all="ignore"):
            whole = np.clip(np.round(np.divide(x, step)) + point, 0, LEVELS)
        return np.asarray((whole - point) * step, np.float32)


class Ranges:
    """Watches values: call `see` with each array of a pass, `next_pass` after it."""

    def __init__(self, values: Collection[str], method: str, percentile: float = 100.0) -> None:
        self.values, self.method, self.percentile = frozenset(values), method, percentile
        self.passes = 1 if method == "minmax" else 2
        self._now = 0
        self._ends: dict[str, tuple[float, float]] = {}
        self._counts: dict[str, Any] = {}

    def see(self, value: str, x: Array) -> None:
        """One array of a value; numbers that are not finite do not count."""
        if value not in self.values:
            return
        flat: Any = np.asarray(x, np.float32).ravel()
        if not np.isfinite(flat).all():
            flat = flat[np.isfinite(flat)]
        if self._now == 0:
            low, high = self._ends.get(value, (0.0, 0.0))
            least, most = float(flat.min(initial=0.0)), float(flat.max(initial=0.0))
            self._ends[value] = min(low, least), max(high, most)
            return
        low, high = self._ends[value]
        if high > low:
            counts = np.histogram(flat, BINS, (low, high))[0]
            self._counts[value] = self._counts.get(value, 0) + counts

    def next_pass(self) -> None:
        self._now += 1

    def found(self) -> dict[str, Range]:
        """The range of every value that was seen."""
        return {v: self._range(v) for v in self._ends}

    def _range(self, value: str) -> Range:
        low, high = self._ends[value]
        counts = self._counts.get(value)
        if self.method == "minmax" or counts is None or not counts.sum():
            return Range(low, high)
        edges = np.linspace(low, high, BINS + 1)
        if self.method == "percentile":
            share = np.cumsum(counts) / counts.sum()
            least = int(np.searchsorted(share, 1 - self.percentile / 100, side="right"))
            most = int(np.searchsorted(share, self.percentile / 100))
            return Range(min(edges[least], 0.0), max(edges[min(most, BINS - 1) + 1], 0.0))
        most_apart = _closest(counts, edges)
        return Range(max(low, -most_apart), min(high, most_apart))


def _closest(counts: Any, edges: Any) -> float:
    """The bound of absolute values for which 256 steps keep the histogram best.

    The Kullback-Leibler divergence of the histogram that is cut off there from the same in steps.
    """
    largest = float(max(-edges[0], edges[-1]))
    if counts.sum() < FEWEST * BINS:
        return largest
    centres = (edges[:-1] + edges[1:]) / 2
    best = (np.inf, largest)
    for k in range(STARTS // 8, STARTS + 1):
        bound = largest * k / STARTS
        inside = np.abs(centres) <= bound
        if inside.sum() < LEVELS + 1:
            continue
        kept = counts[inside].astype(np.float64)
        first, last = np.flatnonzero(inside)[[0, -1]]
        wanted = kept.copy()
        wanted[0] += counts[:first].sum()
        wanted[-1] += counts[last + 1 :].sum()
        place = np.arange(len(kept)) * (LEVELS + 1) // len(kept)
        total = np.bincount(place, kept, LEVELS + 1)
        filled = np.bincount(place, kept > 0, LEVELS + 1)
        level = total / np.maximum(filled, 1)
        made = np.where(kept > 0, level[place], 0.0)
        p, q = wanted / wanted.sum(), made / max(made.sum(), 1.0)
        some = p > 0
        q = np.maximum(q, 1e-12)  # what was cut off, and nothing is left of
        apart = float((p[some] * np.log(p[some] / q[some])).sum())
        best = min(best, (apart, bound))
    return float(best[1])
