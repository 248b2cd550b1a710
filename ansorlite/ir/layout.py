"""Packed layouts of tensors with numeric extents: padding, tiling and reordering of an array.

In: arrays in the user's shape. Out: arrays in the stored shape of a `BufferLayout`.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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

    @property
    def padded(self) -> tuple[int, ...]:
        """The shape before tiling: the array's with what is padded."""
        return tuple(math.prod(t) for t in self.tiles)

    def pack(self, x: Array) -> Array:
        """`x` in this layout, C-contiguous, padded with zeros."""
        return np.ascontiguousarray(self.view(x))

    def view(self, x: Array) -> Array:
        """The elements of `pack` in their order, a view where nothing is padded."""
        if self.padded != x.shape:
            x = np.pad(x, [(0, p - n) for p, n in zip(self.padded, x.shape, strict=True)])
        levels = [(d, lv) for d, t in enumerate(self.tiles) for lv in range(len(t))]
        cut = x.reshape([e for t in self.tiles for e in t])
        return cut.transpose([levels.index(o) for o in self.order])

    def unpack(self, x: Array, shape: tuple[int, ...]) -> Array:
        """The array of that shape that `pack` made `x` of."""
        levels = [(d, lv) for d, t in enumerate(self.tiles) for lv in range(len(t))]
        cut = x.transpose([self.order.index(level) for level in levels])
        whole = cut.reshape([math.prod(t) for t in self.tiles])
        return np.ascontiguousarray(whole[tuple(slice(n) for n in shape)])
