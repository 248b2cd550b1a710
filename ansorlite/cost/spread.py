"""How the accesses of a statement spread over memory, as values of a tape.

In: a statement's accesses with the extents of its loops. Out: `Spreads`, numbers of values by loop
level. Values are made for all accesses at once, operation by operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ansorlite.cost.accesses import Access
from ansorlite.ir.program import Buffer
from ansorlite.ir.tape import ONE, ZERO, Numbers, Tape, Values
from ansorlite.target import Target

CACHE_WAYS = 8  # associativity of the private caches (typical value)


@dataclass(frozen=True)
class WayOffsets:
    """Number of distinct offsets in a cache way of `way` bytes of multiples of a stride (bytes)."""

    way: int

    def __call__(self, stride: Values) -> Values:
        # A bit mask is faster than the remainder where the way size is a power of two.
        size, way = np.asarray(stride).astype(np.int64), self.way
        rest = size & (way - 1) if way & (way - 1) == 0 else size % way
        return _offsets_by_rest(way).take(rest)


@lru_cache(maxsize=16)
def _offsets_by_rest(way: int) -> Values:
    """float64[way]: way / gcd(rest, way)."""
    return np.asarray(way / np.gcd(np.arange(way), way), dtype=np.float64)


def itemsize(buffer: Buffer) -> int:
    """Bytes of an element."""
    return np.dtype(buffer.dtype).itemsize


def way_bytes(target: Target) -> tuple[int, int]:
    """Bytes of a way of the private caches; a shared cache hashes addresses over its sets."""
    l1, l2 = (max(1, size // CACHE_WAYS) for size in (target.l1_bytes, target.l2_bytes))
    return l1, l2


@dataclass(frozen=True)
class Spreads:
    """The accesses of a statement by level, outermost first.

    - `steps` [levels, accesses]: stride of the loop in elements, 0 if it has one iteration
    - `ratios` [levels, 3, accesses]: elements touched by the loop and deeper ones, without the last
      dimension, relative to those of the deeper ones; and the same of the distinct offsets in a way
      of both private caches
    - `last` [levels + 1, accesses]: contiguous elements in the last dimension touched by loops l
      and deeper; `first` [levels + 1, accesses]: the same in bytes of cache lines
    """

    steps: Numbers
    ratios: Numbers
    last: Numbers
    first: Numbers


class _Stored(NamedTuple):
    """A buffer by dimension: extents, strides in elements, largest numbers of elements, offsets in
    a way of both private caches; and bytes of an element, and of a row up to a cache line."""

    shape: list[int]
    strides: list[int]
    most: Numbers
    offsets: list[Numbers]
    item: int
    row: int


def _stored(tape: Tape, buffer: Buffer, target: Target) -> _Stored:
    shape = [tape.of(e) for e in buffer.shape] or [ONE]
    strides = [ONE] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = tape.apply(np.multiply, strides[d + 1], shape[d + 1])
    item, line = tape.const(float(itemsize(buffer))), tape.const(float(target.cache_line))
    row = tape.apply(np.multiply, shape[-1], item) if len(shape) > 1 else line
    sizes = tape.apply_each(np.multiply, strides, [item])
    return _Stored(
        shape,
        strides,
        tape.apply_each(np.maximum, shape, [ONE]),
        [tape.apply_each(WayOffsets(way), sizes) for way in way_bytes(target)],
        item,
        tape.apply(np.minimum, row, line),
    )


class _Move(NamedTuple):
    """A dimension of an access that a loop moves."""

    access: int  # number
    level: int
    dimension: int
    buffer: _Stored
    affine: bool
    size: int  # elements by which an iteration moves the index
    extent: int  # of the loop
    before: int  # the move of the same dimension by a deeper loop; -1 for none
    rank: int  # number of such moves

    @property
    def is_last(self) -> bool:
        """Is it the last dimension?"""
        return self.dimension == len(self.buffer.shape) - 1


def spreads(
    tape: Tape, accesses: Sequence[Access], extents: Sequence[int], target: Target
) -> Spreads:
    """The spreads of accesses under loops with these extents."""
    stored = [_stored(tape, access.buffer, target) for access in accesses]
    first = np.array([tape.apply(np.maximum, s.item, s.row) for s in stored], np.intp)
    levels, count = len(extents), len(accesses)
    out = Spreads(
        np.full((levels, count), ZERO),
        np.full((levels, 3, count), ONE),
        np.full((levels + 1, count), ONE),
        np.tile(first, (levels + 1, 1)),
    )
    moves: list[_Move] = []
    for a, (access, buffer) in enumerate(zip(accesses, stored, strict=True)):
        _add_moves(tape, moves, a, access, extents, buffer)
    if moves:
        _fill(tape, moves, out)
    return out


def _add_moves(
    tape: Tape,
    moves: list[_Move],
    number: int,
    access: Access,
    extents: Sequence[int],
    buffer: _Stored,
) -> None:
    """The moves of an access, innermost first."""
    before: dict[int, tuple[int, int]] = {}
    for level in reversed(range(len(extents))):
        for d, coefs in access.moves[level]:
            sizes = [tape.apply(np.absolute, tape.of(c)) for c in coefs]
            # Not affine: the whole dimension may be touched.
            size = tape.fold(np.maximum, sizes, ZERO) if coefs else buffer.shape[d]
            known, rank = before.get(d, (-1, 0))
            before[d] = len(moves), rank + 1
            moves.append(
                _Move(number, level, d, buffer, bool(coefs), size, extents[level], known, rank)
            )


def _fill(tape: Tape, moves: Sequence[_Move], spread: Spreads) -> None:
    """Enter what the moves change."""
    each = tape.apply_each
    extents, before = [m.extent for m in moves], np.array([m.before for m in moves])
    added = each(np.multiply, [m.size for m in moves], each(np.subtract, extents, [ONE]))
    reach, rank = np.empty(len(moves), np.intp), np.array([m.rank for m in moves])
    for k in range(max(rank) + 1):  # of loops of one dimension, the deepest first
        at = np.flatnonzero(rank == k)
        reach[at] = each(np.add, added[at], reach[before[at]] if k else [ONE])
    elements = each(np.minimum, reach, [m.buffer.most[m.dimension] for m in moves])
    strides = [m.buffer.strides[m.dimension] for m in moves]
    steps = each(np.multiply, [m.size if m.affine else ONE for m in moves], strides)
    running = each(np.greater, extents, [ONE])
    steps = each(np.multiply, steps, running)
    lasts = [k for k, m in enumerate(moves) if m.is_last]
    rest = [k for k, m in enumerate(moves) if not m.is_last]
    first = np.empty(len(moves), np.intp)
    if lasts:
        bytes_ = each(np.multiply, elements[lasts], [moves[k].buffer.item for k in lasts])
        first[lasts] = each(np.maximum, bytes_, [moves[k].buffer.row for k in lasts])
    ratios = np.empty((3, len(moves)), np.intp)
    for c in range(3) if rest else ():
        now = elements.copy()
        if c:
            offsets = [moves[k].buffer.offsets[c - 1][moves[k].dimension] for k in rest]
            now[rest] = each(np.minimum, elements[rest], offsets)
        ratios[c, rest] = each(
            np.true_divide, now[rest], np.where(before >= 0, now[before], ONE)[rest]
        )
    for k, m in enumerate(moves):
        a, level = m.access, m.level
        other = int(spread.steps[level, a]) if m.affine else ZERO
        spread.steps[level, a] = tape.apply(np.add, int(steps[k]), other)
        if m.is_last:
            spread.last[: level + 1, a] = elements[k]
            spread.first[: level + 1, a] = first[k]
        elif (spread.ratios[level, :, a] == ONE).all():
            spread.ratios[level, :, a] = ratios[:, k]
        else:
            for c in range(3):
                known, own = int(spread.ratios[level, c, a]), int(ratios[c, k])
                spread.ratios[level, c, a] = tape.apply(np.multiply, known, own)
