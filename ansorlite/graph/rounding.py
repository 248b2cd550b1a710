"""Rounding of constant weights to bfloat16 so that errors cancel in sums.

In: weights of a product, and what is known of the data that they are multiplied by: mean and mean
square of each term. Out: weights that bfloat16 has. Each is one of its two neighbours, mostly the
nearer one; a few take the other one, so that the mean of each sum stays as it is. With rounding to
nearest the error of the mean does not average out: activations behind a relu are positive, tokens
of one text are alike. What the data looks like is observed once, in numpy, on random inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ansorlite.calls import Array
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.ir.packed import bits_of, float_of

PART = 64  # columns at a time, so that all arrays stay in the caches
MOST_FLIPS = 48  # of the terms of a sum; the error of a sum is a few units in the last place
SEED = 20  # of the inputs that are observed: not those that errors are measured on


@dataclass(frozen=True)
class Moments:
    """Means and mean squares, float64 [channels], of a value over all axes but its last one."""

    mean: Array
    square: Array

    @classmethod
    def of(cls, x: Array) -> "Moments":
        rows = np.asarray(x, np.float64).reshape(-1, x.shape[-1])
        return cls(rows.mean(axis=0), np.square(rows).mean(axis=0))

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.mean).all() and np.isfinite(self.square).all())


@dataclass
class Rounding:
    """The weights of networks and what they are rounded to, by the names of the constants.

    Networks of several sizes share one, so that they share their weights.
    """

    known: dict[str, tuple[Array, Array]] = field(default_factory=dict)

    def weights(self, graph: Graph, data: Mapping[str, str]) -> Mapping[str, Array]:
        """The rounded weights of the products `data`: constants, each with the value that it meets.

        Constants are [.., terms, columns], values [.., terms].
        """
        missing = {w: x for w, x in data.items() if not self._knows(w, graph.constants[w])}
        if missing:
            seen = observed(graph, frozenset(missing.values()))
            for name, x in missing.items():
                w = graph.constants[name]
                self.known[name] = w, rounded(w, seen[x])
        return {w: self.known[w][1] for w in data}

    def _knows(self, name: str, w: Array) -> bool:
        before, _ = self.known.get(name, (None, None))
        return before is w or (before is not None and np.array_equal(before, w))


def observed(graph: Graph, values: frozenset[str]) -> dict[str, Moments]:
    """The moments of values of a graph on random inputs; evaluates the graph in numpy."""
    found: dict[str, Moments] = {}

    def see(name: str, x: Array) -> None:
        if name in values:
            found[name] = Moments.of(x)

    evaluate(graph, random_inputs(graph, SEED), see)
    return found


def rounded(w: Array, data: Moments) -> Array:
    """float32 [.., terms, columns] -> the same in numbers that bfloat16 has.

    Of each sum over the terms the error of the mean, mean x (rounded - w), becomes nearly 0.
    """
    near: Array = float_of(bits_of(w)).reshape(w.shape)
    if not data.is_finite or not np.isfinite(near).all():
        return near
    *_, terms, columns = w.shape
    out = np.empty_like(near)
    # Kernel positions are sums of their own, as borders have only some of them.
    stack = zip(*(x.reshape(-1, terms, columns) for x in (out, near, w)), strict=True)
    for place, rows, wanted in stack:
        for first in range(0, columns, PART):
            part = slice(first, first + PART)
            place[:, part] = _balanced(rows[:, part].T.copy(), wanted[:, part].T, data).T
    return out


def _balanced(near: Array, w: Array, data: Moments) -> Array:
    """`near` [sums, terms], the nearest to `w`, with some elements moved to the other neighbour.

    Elements that lie nearly in the middle and weigh much move first: few have to, and it costs
    little of the error's variance.
    """
    mean, square = data.mean.astype(np.float32), data.square.astype(np.float32)
    error = near - w
    other = _neighbour(near, -np.sign(error))
    step = np.abs(other - near)
    off = error.astype(np.float64) @ data.mean
    gain = np.abs(mean) * step
    helps = (np.sign(mean * error) == np.sign(off)[:, None]) & (gain > 0) & np.isfinite(gain)
    with np.errstate(all="ignore"):
        cost = square * step * (step - 2 * np.abs(error)) / np.square(gain)
    cost = np.where(helps, cost, np.float32(np.inf))
    sums, n = np.arange(len(w)), min(w.shape[1], MOST_FLIPS)
    first = np.argpartition(cost, n - 1, axis=1)[:, :n]
    # large steps first, so that small ones are left for the rest
    order = np.argsort(-np.where(helps, gain, 0)[sums[:, None], first], axis=1)
    left = np.abs(off)
    for at in np.take_along_axis(first, order, 1).T:
        moves = helps[sums, at] & (gain[sums, at] <= 2 * left)
        left = np.where(moves, left - gain[sums, at], left)
        near[sums[moves], at[moves]] = other[sums[moves], at[moves]]
    return near


def _neighbour(x: Array, towards: Array) -> Array:
    """The next numbers of bfloat16 above (towards 1) or below (-1) of numbers that it has."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32) >> 16
    # as a line of integers: negative numbers, whose bits grow downwards, are mirrored
    line = np.where(bits < 0, -(bits & 0x7FFF), bits) + towards.astype(np.int32)
    moved = np.where(line < 0, -line | 0x8000, line)
    found: Array = float_of(moved & 0xFFFF)
    return found.reshape(x.shape)
