"""Packed layouts of tensors with numeric extents: padding, tiling and reordering of an array.

In: arrays in the user's shape. Out: arrays in the stored shape of a `BufferLayout`.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class _Part(NamedTuple):
    """The indices `where` of a dimension, and where they are in each level of its tiles."""

    where: slice
    levels: tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """A packed layout: each dimension is padded and cut into tiles, and the tiles are reordered.

    `tiles[d]` lists the extents of the levels of dimension d, outermost first; their product is at
    least the extent of d, and the excess is filled with zeros. `order` lists the stored dimensions
    as (dimension, level). rewrite: x[d0, d1] -> x'[levels in `order`].
    """

    tiles: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The stored shape."""
        return tuple(self.tiles[d][level] for d, level in self.order)

    def pack(self, x: Array) -> Array:
        """`x` in this layout, C-contiguous, padded with zeros."""
        return np.ascontiguousarray(self.view(x))

    def view(self, x: Array) -> Array:
        """The elements of `pack` in their order, a view where nothing is padded."""
        padded = tuple(math.prod(t) for t in self.tiles)
        if padded != x.shape:
            x = np.pad(x, [(0, p - n) for p, n in zip(padded, x.shape, strict=True)])
        levels = [(d, lv) for d, t in enumerate(self.tiles) for lv in range(len(t))]
        cut = x.reshape([e for t in self.tiles for e in t])
        return cut.transpose([levels.index(o) for o in self.order])

    def pack_to(self, out: Array, x: Array) -> None:
        """out[...] = self.pack(x), without a padded copy of x."""
        levels = [(d, lv) for d, t in enumerate(self.tiles) for lv in range(len(t))]
        cut = out.transpose([self.order.index(level) for level in levels])
        if out.size != x.size:
            out.fill(0)
        parts = [_parts(n, t) for n, t in zip(x.shape, self.tiles, strict=True)]
        for some in itertools.product(*parts):
            to = cut[tuple(s for part in some for s in part.levels)]
            copy_runs(to, x[tuple(part.where for part in some)].reshape(to.shape))

    def unpack(self, x: Array, shape: tuple[int, ...]) -> Array:
        """The array of that shape that `pack` made `x` of."""
        levels = [(d, lv) for d, t in enumerate(self.tiles) for lv in range(len(t))]
        cut = x.transpose([self.order.index(level) for level in levels])
        whole = cut.reshape([math.prod(t) for t in self.tiles])
        return np.ascontiguousarray(whole[tuple(slice(n) for n in shape)])


def _parts(n: int, tiles: tuple[int, ...]) -> list[_Part]:
    """The indices 0 .. n - 1 in few parts, each a range in one level and whole in those below."""
    found, above, start = [], list[slice](), 0
    for level in range(len(tiles)):
        below = tiles[level + 1 :]
        size = math.prod(below)
        count = (n - start) // size
        if count:
            levels = (*above, slice(count), *(slice(t) for t in below))
            found.append(_Part(slice(start, start + count * size), levels))
        start += count * size
        if start == n:
            break
        above.append(slice(count, count + 1))
    return found


def copy_runs(out: Array, x: Array) -> None:
    """out[...] = x for equal shapes; what lies together along the last axis is moved as one."""
    run = x.shape[-1] * x.itemsize if x.ndim else 0
    if run > x.itemsize and x.strides[-1] == out.strides[-1] == x.itemsize:
        out, x = (a.view(f"V{run}") for a in (out, x))
    out[...] = x
