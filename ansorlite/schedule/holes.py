"""Holes: the open decisions of a sketch and their tables of options.

A hole `C.i` of width 3 defines the variables (columns) `C.i:1`, `C.i:2` and `C.i:3`. A candidate is
a row of option indices, one per hole. Tuning records store a hole as its name and its values, so
that records do not depend on the order of options.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ScheduleError

HoleKind = Literal["tile", "factor", "parallel", "lanes", "unroll", "prefetch", "stream"]
MAX_OPTIONS = 4096
SHORT_REDUCE_EXTENT = 16  # largest extent of a reduction loop that is unrolled as a whole
MAX_WASTE = 1 / 8
MANY_TILES = 4  # more full tiles than this hide the cost of a partial last tile
# Register tiles of a block that need not divide their number.
BLOCKS = (2, 3, 4, 5, 6, 8, 10, 12, 16)


@dataclass(frozen=True)
class Hole:
    """One open decision: `options[n][c]` is the value of column c under option n.

    `node` is the DAG operation that the hole belongs to.
    """

    name: str
    node: str
    kind: HoleKind
    options: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.options[0])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Variables of the columns, in order."""
        return tuple(column(self.name, c) for c in range(1, self.width + 1))

    @cached_property
    def table(self) -> npt.NDArray[np.int64]:
        """The options as int64[options, width], each column contiguous."""
        values = np.asarray(self.options, dtype=np.int64).reshape(len(self.options), -1)
        return np.asfortranarray(values)

    @cached_property
    def _positions(self) -> dict[tuple[int, ...], int]:
        return {o: n for n, o in enumerate(self.options)}

    def find(self, values: tuple[int, ...]) -> int | None:
        """Index of the option with these values, or None."""
        return self._positions.get(tuple(values))

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}, {len(self.options)} options of {self.width}"


def column(hole: str, c: int) -> str:
    """The variable of column `c` (counted from 1) of a hole."""
    return f"{hole}:{c}"


@lru_cache(maxsize=4096)
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of n, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def _outer(n: int, levels: int) -> list[tuple[int, ...]]:
    """All tuples of `levels` factors whose product divides n."""
    if levels == 0:
        return [()]
    return [(d, *rest) for d in divisors(n) for rest in _outer(n // d, levels - 1)]


@lru_cache(maxsize=4096)
def tile_options(
    extent: int, inner: int, max_innermost: int = 64, partial: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Tile factors of the `inner` inner levels of a spatial axis, outermost level first.

    The innermost (register) factor t may be inexact if at most `MAX_WASTE` of the lanes of
    ceildiv(extent, t) register tiles is wasted, or if there are more than `MANY_TILES` tiles. The
    outer factors divide the number of register tiles exactly; with `partial` there are also blocks
    of few register tiles, more than `MANY_TILES` of them and the last one smaller. At most
    `MAX_OPTIONS` options.
    """
    out: list[tuple[int, ...]] = []
    more: list[tuple[int, ...]] = []
    for t in range(1, min(extent, max_innermost) + 1):
        tiles = -(-extent // t)
        little_waste = tiles * t - extent <= MAX_WASTE * tiles * t
        if little_waste or tiles > MANY_TILES:
            out.extend((*o, t) for o in _outer(tiles, inner - 1))
            rest = [b for b in BLOCKS if tiles % b and -(-tiles // b) > MANY_TILES]
            more.extend((*(1,) * (inner - 2), b, t) for b in rest if partial and inner > 1)
    return tuple(sorted({*sample_evenly(out, MAX_OPTIONS - len(more)), *more}))


def partial_tiles(extent: int, inner: int) -> tuple[tuple[int, ...], ...]:
    """`tile_options` with blocks that do not divide the number of register tiles."""
    return tile_options(extent, inner, partial=True)


@lru_cache(maxsize=4096)
def reduce_options(
    extent: int, inner: int, max_innermost: int = 1024
) -> tuple[tuple[int, ...], ...]:
    """Tile factors of a reduction axis: divisors, powers of two, and 1/1 to 1/8 of the extent.

    Extents up to `SHORT_REDUCE_EXTENT` are divided exactly: clamped loops cannot be unrolled.
    """
    cap = min(extent, max_innermost)
    factors = {d for d in divisors(extent) if d <= cap}
    if extent <= SHORT_REDUCE_EXTENT:
        return tuple((*o, t) for t in sorted(factors) for o in _outer(extent // t, inner - 1))
    factors |= {1 << b for b in range(cap.bit_length()) if 1 << b <= cap}
    factors |= {-(-extent // parts) for parts in range(1, 9) if -(-extent // parts) <= cap}
    out = [(*o, t) for t in sorted(factors) for o in _outer(-(-extent // t), inner - 1)]
    return sample_evenly(out, MAX_OPTIONS)


def exact_options(extent: int, max_factor: int) -> tuple[tuple[int, ...], ...]:
    """Single factors that divide the extent, as rfactor requires."""
    return tuple((d,) for d in divisors(extent) if d <= max_factor)


def sample_evenly(options: list[tuple[int, ...]], n: int) -> tuple[tuple[int, ...], ...]:
    """The sorted options; where there are more than n, n of them at even distances."""
    options = sorted(set(options))
    if len(options) <= n:
        return tuple(options)
    picks = np.unique(np.linspace(0, len(options) - 1, n).round().astype(int))
    return tuple(options[k] for k in picks)


def row_values(holes: tuple[Hole, ...], row: npt.ArrayLike) -> dict[str, tuple[int, ...]]:
    """Values by hole name for one row of option indices; ScheduleError for a wrong length."""
    indices = np.asarray(row)
    if indices.shape != (len(holes),):
        raise ScheduleError(f"a row has shape {indices.shape}, the sketch has {len(holes)} holes")
    return {h.name: h.options[int(k)] for h, k in zip(holes, indices, strict=True)}


def values_row(
    holes: tuple[Hole, ...], values: Mapping[str, tuple[int, ...]]
) -> npt.NDArray[np.int32]:
    """int32[holes]: the row with these values; ScheduleError names a hole without the option."""
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
    """Value by column variable from values by hole name."""
    return {column(h, c + 1): v for h, vs in values.items() for c, v in enumerate(vs)}


class PopulationColumns(Mapping[str, npt.NDArray[np.int64]]):
    """int64[P] by column variable for a population of option indices, int32[P, holes].

    Each is made when it is first asked for: conditions read few of them.
    """

    def __init__(self, holes: Sequence[Hole], population: npt.NDArray[np.int32]) -> None:
        self._places = np.ascontiguousarray(population.T, dtype=np.intp)
        self._holes = holes
        self._owner = {name: k for k, h in enumerate(holes) for name in h.columns}
        self._made: dict[str, npt.NDArray[np.int64]] = {}

    def __getitem__(self, name: str) -> npt.NDArray[np.int64]:
        found = self._made.get(name)
        if found is None:
            k = self._owner[name]
            hole = self._holes[k]
            values: npt.NDArray[np.int64] = hole.table[:, hole.columns.index(name)]
            found = self._made[name] = values.take(self._places[k])
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._owner

    def __iter__(self) -> Iterator[str]:
        return iter(self._owner)

    def __len__(self) -> int:
        return len(self._owner)


def population_columns(
    holes: Sequence[Hole], population: npt.NDArray[np.int32]
) -> Mapping[str, npt.NDArray[np.int64]]:
    """int64[P] by column variable for a population of option indices, int32[P, holes]."""
    return PopulationColumns(holes, population)
