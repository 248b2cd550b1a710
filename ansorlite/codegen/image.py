"""The native form of a kernel: relocatable object bytes and what is needed to call them.

Flow: `codegen.build` -> `KernelImage` -> runner, `Kernel`, `CompiledModule`. The entry point is
`void symbol(ptr args)` where `args` points to one pointer per parameter, in the order of `params`;
every pointer is 64-byte aligned. Workspace parameters are scratch memory without meaning.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Role = Literal["input", "constant", "output", "workspace"]


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


@dataclass(frozen=True)
class Param:
    """One pointer of the entry point: `shape` is the user's, `layout` how the kernel reads it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    layout: Layout | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.layout.shape if self.layout else self.shape

    @property
    def nbytes(self) -> int:
        return math.prod(self.stored_shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class KernelImage:
    """Object bytes of one kernel for the CPU `cpu`; picklable, independent of llvmlite."""

    object_bytes: bytes
    symbol: str
    params: tuple[Param, ...]
    triple: str
    cpu: str
