"""Holes: the open decisions of a sketch and their tables of options.

A hole named `C.i` with width 3 opens the variables `C.i:1`, `C.i:2`, `C.i:3`; a candidate's row
holds, for each hole, the index of an option. In records a hole travels as name and values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError

HoleKind = Literal["tile", "factor", "parallel", "lanes", "unroll", "prefetch", "stream"]
MAX_OPTIONS = 4096
SHORT = 16  # extent of a reduction that may be unrolled as a whole
MAX_WASTE = 1 / 8
MANY_TILES = 4  # whole ones, beside which a short last one does not matter


@dataclass(frozen=True)
class Hole:
    """`options[n][c]` is the value of column c under option n; belongs to DAG node `node`."""

    name: str
    node: str
    kind: HoleKind
    options: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        return len(self.options[0])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        return tuple(column(self.name, c) for c in range(1, self.width + 1))

    @cached_property
    def table(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.options, dtype=np.int64).reshape(len(self.options), -1)

    @cached_property
    def _positions(self) -> dict[tuple[int, ...], int]:
        return {o: n for n, o in enumerate(self.options)}

    def find(self, values: tuple[int, ...]) -> int | None:
        """The option with these values, or None."""
        return self._positions.get(tuple(values))

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}, {len(self.options)} options of {self.width}"


def column(hole: str, c: int) -> str:
    """The variable of column c (from 1) of a hole."""
    return f"{hole}:{c}"


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def _outer(n: int, levels: int) -> list[tuple[int, ...]]:
    """All tuples whose product divides n."""
    if levels == 0:
        return [()]
    return [(d, *rest) for d in divisors(n) for rest in _outer(n // d, levels - 1)]


@lru_cache(maxsize=4096)
def tile_options(extent: int, inner: int, max_innermost: int = 64) -> tuple[tuple[int, ...], ...]:
    """Factors of the `inner` inner levels of an axis, outermost first.

    The innermost (register) factor t may be inexact if at most 1/8 of ceildiv(N, t) register tiles
    is wasted, or the last one is the only short one of five or more; the outer factors divide that
    number of tiles exactly.
    """
    out: list[tuple[int, ...]] = []
    for t in range(1, min(extent, max_innermost) + 1):
        tiles = -(-extent // t)
        few = tiles * t - extent <= MAX_WASTE * tiles * t
        if few or tiles > MANY_TILES:
            out.extend((*o, t) for o in _outer(tiles, inner - 1))
    return sample_evenly(out, MAX_OPTIONS)


@lru_cache(maxsize=4096)
def reduce_options(
    extent: int, inner: int, max_innermost: int = 1024
) -> tuple[tuple[int, ...], ...]:
    """Like `tile_options` for a reduction: divisors, powers of two and even parts of the extent.

    Short reductions are divided exactly: their loops are unrolled, which clamped ones cannot be.
    """
    cap = min(extent, max_innermost)
    nice = {d for d in divisors(extent) if d <= cap}
    if extent <= SHORT:
        return tuple((*o, t) for t in sorted(nice) for o in _outer(extent // t, inner - 1))
    nice |= {1 << b for b in range(cap.bit_length()) if 1 << b <= cap}
    nice |= {-(-extent // parts) for parts in range(1, 9) if -(-extent // parts) <= cap}
    out = [(*o, t) for t in sorted(nice) for o in _outer(-(-extent // t), inner - 1)]
    return sample_evenly(out, MAX_OPTIONS)


def exact_options(extent: int, max_factor: int) -> tuple[tuple[int, ...], ...]:
    """Single exact factors, as rfactor needs them."""
    return tuple((d,) for d in divisors(extent) if d <= max_factor)


def sample_evenly(options: list[tuple[int, ...]], n: int) -> tuple[tuple[int, ...], ...]:
    options = sorted(set(options))
    if len(options) <= n:
        return tuple(options)
    picks = np.unique(np.linspace(0, len(options) - 1, n).round().astype(int))
    return tuple(options[k] for k in picks)


def row_values(holes: tuple[Hole, ...], row: npt.ArrayLike) -> dict[str, tuple[int, ...]]:
    """Hole name -> chosen values of one row of option indices."""
    indices = np.asarray(row)
    if indices.shape != (len(holes),):
        raise ScheduleError(f"a row has shape {indices.shape}, the sketch has {len(holes)} holes")
    return {h.name: h.options[int(k)] for h, k in zip(holes, indices, strict=True)}


def values_row(
    holes: tuple[Hole, ...], values: Mapping[str, tuple[int, ...]]
) -> npt.NDArray[np.int32]:
    """The row with these values; ScheduleError names the hole whose values are no option."""
    row = np.zeros(len(holes), dtype=np.int32)
    for k, h in enumerate(holes):
        if h.name not in values:
            raise ScheduleError(f"no values are given for hole {h.name}")
        found = h.find(tuple(values[h.name]))
        if found is None:
            raise ScheduleError(f"hole {h.name} has no option {tuple(values[h.name])}")
        row[k] = found
    return row


def column_values(values: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Column variable -> int."""
    return {column(h, c + 1): v for h, vs in values.items() for c, v in enumerate(vs)}


def population_columns(
    holes: tuple[Hole, ...], population: npt.NDArray[np.int32]
) -> dict[str, npt.NDArray[np.int64]]:
    """Column variable -> int64[P] for a population of option indices int32[P, holes]."""
    out: dict[str, npt.NDArray[np.int64]] = {}
    for k, h in enumerate(holes):
        chosen = h.table[population[:, k]]
        for c, name in enumerate(h.columns):
            out[name] = np.ascontiguousarray(chosen[:, c])
    return out
