"""Which bytes each unit of a parallel nest touches: may nests of neighbouring kernels run together?

In: a specialised `Program`. Out: a `Spans` for each parallel nest, whose units are the iterations
of its outermost parallel loop. Two nests run together, unit by unit and without a barrier between
them, where no unit of one touches what another unit of the other writes (`together`): then a
thread reads only what it wrote itself, while its cache has it. Spans are intervals that cover all
accesses; they may be too wide, never too narrow.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Expr, Var, add, mul, terms_of
from ansorlite.ir.interpret import concrete_shape
from ansorlite.ir.literals import BYTES
from ansorlite.ir.program import Alloc, Block, Buffer, For, If, Program, Stmt, Store
from ansorlite.ir.ranges import INF, bounds
from ansorlite.ir.traverse import loads

UNITS_A_CORE, MOST_UNITS = 4, 4096  # at least that many units: who is done takes from others
Ranges = dict[str, tuple[int, int]]
Ends = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Access:
    """Bytes that a unit touches of the memory behind argument `slot`.

    Unit u touches bytes [first + u * step, end + u * step), cut to [0, size).
    """

    slot: int
    written: bool
    first: int
    end: int
    step: int
    size: int

    def of_units(self, units: int, merged: int) -> Ends:
        """int64[units, 2]: begin and end for each group of `merged` units."""
        u = np.arange(units, dtype=np.int64)[:, None] * merged
        far = np.array([u, u + merged - 1]) * self.step
        ends = np.concatenate([far.min(axis=0) + self.first, far.max(axis=0) + self.end], axis=1)
        cut: Ends = np.clip(ends, 0, self.size)
        return cut


@dataclass(frozen=True)
class Spans:
    """What a nest of `units` units, of `grains` each, touches.

    Together with others it has at least `least` units.
    """

    units: int
    grains: int
    least: int
    accesses: tuple[Access, ...]


def spans(p: Program, slots: Mapping[str, tuple[int, int]], cores: int) -> tuple[Spans | None, ...]:
    """The spans of each root nest of `p`; None for a nest that can run with no other.

    `slots` has the argument and the first byte of each buffer (`emit.argument_slots`).
    """
    least = UNITS_A_CORE * cores
    roots = p.body.stmts if isinstance(p.body, Block) else (p.body,)
    buffers = {b.name: b for b in p.buffers}
    return tuple(_spans(nest, buffers, slots, least) for nest in roots)


def together(nests: Sequence[tuple[Spans, Sequence[tuple[int, int]]]]) -> int:
    """The units in which these nests, in this order, may run together; 0 where they may not.

    `nests` are spans with (memory, first byte) of each argument: arguments of one memory may touch
    the same bytes, others never do.
    """
    units = math.gcd(*(s.units for s, _ in nests))
    least = max(s.least for s, _ in nests)
    if units < max(least, min(s.units for s, _ in nests) // 2):
        return 0
    placed = [
        [(a, *where[a.slot], a.of_units(units, s.units // units)) for a in s.accesses]
        for s, where in nests
    ]
    last = placed[-1]
    for before in placed[:-1]:
        for a, memory, start, ends in before:
            for b, other, offset, later in last:
                writes = memory == other and (a.written or b.written)
                if writes and _meet(ends + start, later + offset):
                    return 0
    return units


def _meet(one: Ends, other: Ends) -> bool:
    """Do different units touch the same bytes?"""
    if one[:, 0].min() >= other[:, 1].max() or other[:, 0].min() >= one[:, 1].max():
        return False
    if len(one) > 512:  # a matrix would be large
        return True
    both = (one[:, None, 0] < other[None, :, 1]) & (other[None, :, 0] < one[:, None, 1])
    np.fill_diagonal(both, False)
    return bool(both.any())


def _spans(
    nest: Stmt, buffers: Mapping[str, Buffer], slots: Mapping[str, tuple[int, int]], least: int
) -> Spans | None:
    loops: list[int] = []
    unit, s = None, nest
    while isinstance(s, For) and s.mark == "parallel":
        extent = bounds(s.nominal, {})
        if extent[0] != extent[1]:
            return None
        if extent[0] > 1 and unit is None:
            unit = s.var
        loops.append(extent[0])
        s = s.body
    units = next((n for n in loops if n > 1), 1)
    if unit is None or not least <= units <= MOST_UNITS:
        return None
    found: set[Access] = set()
    for name, indices, written, ranges in _accesses(nest, {}):
        if name not in slots:
            continue
        access = _access(buffers[name], slots[name], indices, written, unit, ranges)
        if access is None:
            return None
        found.add(access)
    return Spans(units, math.prod(loops) // units, least, tuple(sorted(found, key=str)))


Touch = tuple[str, tuple[Expr, ...], bool, Ranges]


def _accesses(s: Stmt, ranges: Ranges) -> Iterator[Touch]:
    """Buffer, indices, is it written, and the ranges of the variables, for each access."""
    match s:
        case Block():
            for x in s.stmts:
                yield from _accesses(x, ranges)
        case For():
            yield from _read(s.extent, ranges)
            high = max(0, bounds(s.extent, ranges)[1] - 1)
            if s.mark == "parallel":
                high = max(high, bounds(s.nominal, ranges)[1] - 1)
            yield from _accesses(s.body, {**ranges, s.var: (0, high)})
        case Alloc():
            yield from _accesses(s.body, ranges)
        case If():
            yield from _read(s.cond, ranges)
            yield from _accesses(s.then, ranges)
            if s.orelse is not None:
                yield from _accesses(s.orelse, ranges)
        case Store():
            for e in (*s.indices, s.value):
                yield from _read(e, ranges)
            yield s.buffer, s.indices, True, ranges


def _read(e: Expr, ranges: Ranges) -> Iterator[Touch]:
    pending: list[Expr] = [e]
    while pending:
        for x in loads(pending.pop()):
            yield x.tensor, x.indices, False, ranges
            pending.extend(x.indices)


def _access(
    b: Buffer,
    slot: tuple[int, int],
    indices: Sequence[Expr],
    written: bool,
    unit: str,
    ranges: Ranges,
) -> Access | None:
    """The span of an access; None where nothing is known of a store's place."""
    shape, wide = concrete_shape(b), BYTES[b.dtype]
    size = math.prod(shape) * wide
    flat: Any = None
    for index, extent in zip(indices, shape, strict=True):
        flat = index if flat is None else add(mul(flat, extent), index)
    whole = Access(slot[0], written, slot[1], slot[1] + size, 0, slot[1] + size)
    if flat is None:
        return whole
    step, rest = 0, flat
    terms = terms_of(flat)
    alone = (Var(unit),)
    if alone in terms and not any(unit in m.free for mono in terms if mono != alone for m in mono):
        step = int(terms[alone])
        rest = add(flat, mul(Var(unit), -step))
    low, high = bounds(rest, ranges)
    if low <= -INF or high >= INF:
        return whole
    first, end = low * wide + slot[1], (high + 1) * wide + slot[1]
    return Access(slot[0], written, first, end, step * wide, slot[1] + size)
