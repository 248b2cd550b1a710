"""Memory footprint of statements, for many statements and candidates at once.

In: a `Sheet`. Out: `Levels`, the iterations of the loops around each statement, and `Traffic`:
bytes touched inside each loop level, and bytes moved into each cache. Arrays run over loop levels
from the outermost on; the last axis is that of the sheet (n).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ansorlite.cost.sheet import Sheet
from ansorlite.cost.spread import CACHE_WAYS, way_bytes
from ansorlite.ir.tape import Values
from ansorlite.target import Target

Mask = npt.NDArray[np.bool_]


class Levels:
    """The loops around statements.

    [loops, n]: `extents`; `runs` (more than one iteration). [loops + 1, n]: `inside[l]`, iterations
    of loops l and deeper; `outside[l]`, iterations of the loops before l.
    """

    def __init__(self, sheet: Sheet) -> None:
        self.n, self.depth = sheet.n, sheet.loops
        self.extents = sheet["extents"]
        self.runs = self.extents > 1
        # Level by level, because numpy's accumulations along the first axis are several times
        # slower.
        self.inside, self.outside = np.ones((2, self.depth + 1, self.n))
        for k in range(self.depth):
            np.multiply(self.outside[k], self.extents[k], out=self.outside[k + 1])
        for k in range(self.depth - 1, -1, -1):
            np.multiply(self.inside[k + 1], self.extents[k], out=self.inside[k])

    def innermost(self, chosen: Mask) -> npt.NDArray[np.intp]:
        """intp[..., n]: the deepest level that is chosen in bool[loops, ..., n]; -1 for none."""
        out = np.full(chosen.shape[1:], -1, np.intp)
        for k in range(self.depth):
            np.copyto(out, k, where=chosen[k])
        return out


@dataclass(frozen=True)
class Traffic:
    """Memory behaviour of statements.

    - `elements`: elements of each buffer that are touched in all [accesses, n]
    - `bytes_at`: bytes touched by one iteration of each loop, all buffers together [loops + 1, n]
    - `into`: bytes transferred into each of the caches, by one iteration of all loops [caches, n]
    """

    elements: Values
    bytes_at: Values
    into: Values


def elements_inside(sheet: Sheet) -> Values:
    """[loops + 1, accesses, n]: elements touched by loops l and deeper."""
    out = np.empty(sheet["last"].shape)
    rows = np.ones((sheet.accesses, sheet.n))
    for k in range(sheet.loops, -1, -1):
        if k < sheet.loops:
            rows = np.rint(rows * sheet["ratios"][k, 0])
        np.multiply(rows, sheet["last"][k], out=out[k])
    return out


def traffic(sheet: Sheet, levels: Levels, target: Target) -> Traffic:
    """The memory behaviour of the statements of a sheet.

    Bytes into a cache are the traffic of the outermost loop body that fits the cache. A buffer
    whose lines conflict in few sets fits less often than the others. A buffer that does not change
    with the loops directly around the body stays in the cache, because its lines are reused before
    the lines of other buffers. Elements inside a level are products of the ratios of the deeper
    levels: whole numbers, so products are rounded.
    """
    real, last, first, ratios = sheet["real"], sheet["last"], sheet["first"], sheet["ratios"]
    weight = real * sheet["item"]
    times = _times(sheet, levels)
    # Without a shared cache, what leaves the second level goes to memory.
    caches = (target.l1_bytes, target.l2_bytes, target.l3_bytes or target.l2_bytes)
    private = np.array(caches[:2], np.float64)[:, None, None]
    ways = np.array(way_bytes(target), np.float64)[:, None, None]
    # A set holds more lines than it has ways only if all lines together exceed the cache.
    deepest = np.maximum(CACHE_WAYS, private / ways)
    spread = np.ones((1 + len(private), sheet.accesses, sheet.n))
    cover, held = (np.empty(spread[1:].shape, dtype=t) for t in (np.float64, np.bool_))
    bytes_at = np.empty((levels.depth + 1, sheet.n))
    into = np.empty((len(caches), sheet.accesses, sheet.n))
    for k in range(levels.depth, -1, -1):
        if k < levels.depth:
            np.multiply(spread, ratios[k], out=spread)
            np.rint(spread, out=spread)
        inner = spread[0] * last[k]
        np.einsum("an,an->n", inner, weight, out=bytes_at[k])
        lines = spread[0] * first[k]
        moved = lines * times[k]
        if k == levels.depth:
            into[:] = moved
            continue
        lines_at = np.einsum("an,an->n", lines, real)
        np.multiply(spread[1:], first[k], out=cover)
        np.minimum(cover, ways, out=cover)
        np.multiply(cover, deepest, out=cover)
        np.less_equal(lines, cover, out=held)
        np.logical_and(held, lines_at <= private, out=held)
        np.copyto(into[:2], moved, where=held)
        np.copyto(into[2], moved, where=lines_at <= caches[2])
    return Traffic(inner, bytes_at, into.sum(axis=1))


def _times(sheet: Sheet, levels: Levels) -> Values:
    """[loops + 1, accesses, n]: how often the body of a level brings in a buffer anew.

    Iterations of the loops outside, without those directly around that do not change the address;
    0 for an access that is added to the sheet.
    """
    out = np.empty(sheet["last"].shape)
    out[0] = sheet["real"]
    for k in range(levels.depth):
        out[k + 1] = out[k]
        np.copyto(out[k + 1], levels.outside[k + 1], where=sheet["steps"][k] > 0)
    return out
