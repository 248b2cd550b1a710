"""Values of many statements and candidates side by side.

In: statements (`PlannedStatement`, a tape and numbers of its values by name) and the `Evaluation`
of their tapes. Out: a `Sheet`, arrays by name whose last axis runs over all statements and all
their candidates. Statements have different numbers of loops and accesses; loops of one iteration
(outermost) and accesses without effect (last) make them alike, so that numpy is called once for all
of them. A loop of one iteration does not change any feature.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ansorlite.cost.names import COMPUTE
from ansorlite.ir.evaluation import Evaluation
from ansorlite.ir.tape import ONE, ZERO, Arrays, Numbers, Values

LOOP_VALUES = 9  # see `statement.described`
LEVELS, BODIES, ACCESSES, CACHES = "loops", "loops + 1", "accesses", "caches"
Axes = tuple[str | int, ...]
# By name: axes without the last one, and the value of a loop or access that is added.
AXES: dict[str, tuple[Axes, int]] = {
    "extents": ((LEVELS,), ONE),
    "reduce": ((LEVELS,), ZERO),
    "tile": ((LEVELS,), ZERO),
    "executions": ((), ONE),
    "ops": ((len(COMPUTE),), ZERO),
    "tested": ((), ONE),
    "flops": ((), ONE),
    "loop": ((LOOP_VALUES,), ONE),
    "gathered": ((), ZERO),
    "register_loads": ((), ZERO),
    "effort": ((), ONE),
    "filled": ((), ZERO),
    "filled_item": ((), ZERO),
    "own": ((), ONE),
    "item": ((ACCESSES,), ONE),
    "real": ((ACCESSES,), ZERO),
    "reads": ((ACCESSES,), ZERO),
    "writes": ((ACCESSES,), ZERO),
    "other_uses": ((ACCESSES,), ZERO),
    "steps": ((LEVELS, ACCESSES), ZERO),
    "last": ((BODIES, ACCESSES), ONE),
    "first": ((BODIES, ACCESSES), ONE),
    "ratios": ((LEVELS, CACHES, ACCESSES), ONE),
}
N_CACHES = 3  # entries of the axis CACHES: elements, then offsets in a way of both private caches


@dataclass(frozen=True)
class Shape:
    """Numbers of loops and accesses."""

    loops: int
    accesses: int

    def size(self, axis: str | int) -> int:
        """The length of an axis of `AXES`."""
        if isinstance(axis, int):
            return axis
        known = {LEVELS: self.loops, BODIES: self.loops + 1, CACHES: N_CACHES}
        return known.get(axis, self.accesses)


@dataclass
class PlannedStatement:
    """The numbers of a statement's values by name, and the same for larger shapes."""

    shape: Shape
    tape: Arrays
    numbers: dict[str, Numbers]
    _laid_out: dict[Shape, Numbers] = field(default_factory=dict)

    def laid_out(self, shape: Shape) -> Numbers:
        """intp[values]: the numbers of all values of `AXES` in order, as if of `shape`."""
        known = self._laid_out.get(shape)
        if known is None:
            parts = [self._padded(name, axes, pad, shape) for name, (axes, pad) in AXES.items()]
            known = self._laid_out[shape] = np.concatenate(parts)
        return known

    def _padded(self, name: str, axes: Axes, pad: int, shape: Shape) -> Numbers:
        numbers = self.numbers[name]
        sizes = tuple(shape.size(a) for a in axes)
        if numbers.shape == sizes:
            return numbers.reshape(-1)
        out = np.full(sizes, pad, np.intp)
        before = shape.loops - self.shape.loops
        if axes[0] in (LEVELS, BODIES):
            part = out[before:]
            if axes[0] == BODIES:  # one iteration more touches the same elements
                out[:before, : self.shape.accesses] = numbers[:1]
        else:
            part = out
        part[(..., slice(0, numbers.shape[-1]))] = numbers
        return out.reshape(-1)


class Sheet:
    """Arrays by name (`AXES`), each with an axis of `n` more: all statements, all candidates.

    Each statement has whole parts of candidates, see `Evaluation`.
    """

    def __init__(
        self, shape: Shape, chosen: Sequence[tuple[int, PlannedStatement]], values: Evaluation
    ) -> None:
        """`chosen`: statements, each with the number of its tape."""
        rows = [values.rows(t, st.laid_out(shape)) for t, st in chosen]
        every = values.table.take(np.concatenate(rows, axis=1), axis=0)
        every = every.reshape(len(every), -1)
        self.n, self.loops, self.accesses = every.shape[1], shape.loops, shape.accesses
        self._arrays: dict[str, Values] = {}
        begin = 0
        for name, (axes, _) in AXES.items():
            sizes = tuple(shape.size(a) for a in axes)
            end = begin + int(np.prod(sizes, dtype=np.intp))
            self._arrays[name] = every[begin:end].reshape(*sizes, self.n)
            begin = end

    def __getitem__(self, name: str) -> Values:
        return self._arrays[name]
