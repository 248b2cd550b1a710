"""Packed layouts of tensors, as numbers: how an array is padded, cut into tiles and reordered."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """How a tensor is packed: each dimension is padded, cut into tiles, and the tiles reordered.

    `tiles[d]` lists the extents of the levels of dimension d, outermost first; their product is
    at least the extent of d (the rest is filled with zeros). `order` lists the packed dimensions
    as (dimension, level). rewrite: x[d0, d1] -> x'[levels in `order`].
    """

    tiles: tuple[tuple[int, ...], ...]
    order: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tiles[d][level] for d, level in self.order)

    def pack(self, x: Array) -> Array:
        """Return `x` in this layout, C-contiguous, padded with zeros."""
        padded = tuple(math.prod(t) for t in self.tiles)
        if padded != x.shape:
            x = np.pad(x, [(0, p - n) for p, n in zip(padded, x.shape, strict=True)])
        levels = [(d, lv) for d, t in enumerate(self.tiles) for lv in range(len(t))]
        cut = x.reshape([e for t in self.tiles for e in t])
        return np.ascontiguousarray(cut.transpose([levels.index(o) for o in self.order]))
