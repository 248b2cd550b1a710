"""Padding that the readers of a pad perform in part: the step PadInPlace and its analysis.

A pad has the form `p[i, j] = select(lo <= i < hi and .., x[i - a, ..], fill)`, where each condition
tests one axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Load, add, cast, compare, sub
from ansorlite.ir.logic import all_of, combiner_identity, select
from ansorlite.ir.traverse import loads, substitute, transform
from ansorlite.schedule.stage import Schedule, Stage, axis_of, initial_stage
from ansorlite.te.tensor import Axis, ComputeOp
from ansorlite.te.work import pad_of, pad_tests


@lru_cache(maxsize=1 << 10)
def inner_part(op: ComputeOp, axis: str) -> tuple[int, int] | None:
    """The interval [lo, hi) of an axis where a pad reads its source; None if no such pad."""
    tests = pad_tests(op)
    extent = axis_of(op, axis).extent
    if tests is None or not isinstance(extent, Const):
        return None
    own = [t for t in tests if axis in t.free]
    if not own or any(t.free != {axis} for t in own):
        return None
    inside = [
        all(substitute(t, {axis: Const(i)}) == Const(True, "bool") for t in own)
        for i in range(int(extent.value))
    ]
    if True not in inside:
        return None
    lo = inside.index(True)
    hi = lo + sum(inside)
    return (lo, hi) if all(inside[lo:hi]) else None


@dataclass(frozen=True)
class PadInPlace:
    """rewrite: p[i, j] = select(lo <= i < hi and c(j), x[i - lo, j], f); y = g(p[k, j]) -> p[i, j]
    = select(c(j), x[i, j], f); y = g(select(lo <= k < hi, p[k - lo, j], f)), for every i in `axes`.

    Raises ScheduleError if the stage is an output, is scheduled already, or is not a pad whose
    conditions test these axes alone.
    """

    tag: ClassVar[str] = "pad_in_place"
    stage: str
    axes: tuple[str, ...]

    def apply(self, s: Schedule) -> Schedule:
        op = s[self.stage].compute
        if s[self.stage].tiling or s[self.stage].location != "root" or s.attached(self.stage):
            raise ScheduleError(f"cannot pad {self.stage} in place: it is scheduled already")
        if self.stage in s.outputs:
            raise ScheduleError(f"cannot pad {self.stage} in place: it is an output")
        tests = pad_tests(op)
        parts = {a: part for a in self.axes if (part := inner_part(op, a)) is not None}
        if tests is None or not self.axes or len(parts) < len(set(self.axes)):
            raise ScheduleError(
                f"cannot pad {self.stage} in place along {' '.join(self.axes)}: "
                "the stage is no pad whose conditions test these axes alone"
            )
        known = pad_of(op)
        assert known is not None
        _, x, fill = known
        left = [t for t in tests if not t.free & set(parts)]
        body = cast(select(all_of(*left), x, fill), op.dtype) if left else x
        shift = {a.name: add(a.var, parts[a.name][0]) for a in op.axes if a.name in parts}
        axes = tuple(
            Axis(a.name, Const(parts[a.name][1] - parts[a.name][0])) if a.name in parts else a
            for a in op.axes
        )
        inner = replace(op, axes=axes, body=substitute(body, shift))
        at = {d: parts[a.name] for d, a in enumerate(op.axes) if a.name in parts}

        def reads(st: Stage) -> Stage:
            if st.is_placeholder or st.name == self.stage:
                return st
            return replace(st, op=_reading(st.compute, self.stage, at, fill))

        s = replace(s, stages=tuple(map(reads, s.stages)))
        return s.update(self.stage, lambda _: initial_stage(inner))


def _reading(
    reader: ComputeOp, pad: str, parts: dict[int, tuple[int, int]], fill: Expr
) -> ComputeOp:
    """The reader with the pad's conditions on dimensions `parts` moved into the reader."""
    values: dict[Expr, Expr] = {}
    for x in loads(reader.body):
        if x.tensor == pad:
            tests: list[Expr] = []
            for d, (lo, hi) in parts.items():
                tests += [compare("le", lo, x.indices[d]), compare("lt", x.indices[d], hi)]
            places = [sub(i, parts[d][0]) if d in parts else i for d, i in enumerate(x.indices)]
            values[x] = select(all_of(*tests), Load(pad, tuple(places), x.dtype), fill)
    return replace(reader, body=transform(reader.body, values.get, {})) if values else reader


def window_axes(op: ComputeOp, readers: Sequence[ComputeOp]) -> tuple[str, ...]:
    """Axes of a pad along which the windows of its readers move, without the last such axis.

    Along these axes a reader skips the part of a window outside the tensor, see `ir.guards`. The
    last axis is excluded: a register tile holds neighbours along the last axis, and every window
    crosses the border at a different position.
    """
    if pad_tests(op) is None or not readers:
        return ()
    pad = pad_of(op)
    assert pad is not None
    fill = pad.fill
    moved: set[int] = set()  # dimensions along which windows move
    for r in readers:
        if not r.combiner or fill != combiner_identity(r.combiner, fill.dtype):
            return ()
        window = {k.name for k in r.reduce_axes}
        for x in loads(r.body):
            if x.tensor == op.name:
                moved |= {d for d, i in enumerate(x.indices) if i.free & window and i.free - window}
    outer = [op.axes[d].name for d in sorted(moved)[:-1]]
    return tuple(a for a in outer if inner_part(op, a) is not None)
