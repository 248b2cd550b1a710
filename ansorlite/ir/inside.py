"""Bounds proof: a concrete program reads and writes only inside its buffers.

In: a program without holes, before or after `specialize`. Out: nothing, or a ScheduleError that
names the access, its range and the extent of the buffer. Intervals of loop variables follow from
loop extents; conditions follow from extents, tests and selects, see `ir.known`. A prefetch may use
any address. The proof takes milliseconds, so programs that come from files are proven before
compilation.
"""

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, is_int
from ansorlite.ir.known import Known, anything, end, reads
from ansorlite.ir.logic import negate
from ansorlite.ir.program import Alloc, Block, Buffer, For, If, Program, Stmt, Store, all_buffers
from ansorlite.ir.ranges import Interval


def verify_inside(p: Program) -> None:
    """Raise ScheduleError unless each load and store is proven to stay inside its buffer."""
    if p.columns:
        raise ScheduleError(f"{p.name} has open holes: {', '.join(p.columns)}")
    if p.bound is not None:
        verify_inside(p.bound)
    _Proof(p).visit(p.body)


class _Proof:
    """The proof over one program; `values` bounds the integers stored in each buffer so far."""

    def __init__(self, p: Program) -> None:
        self.shapes = {b.name: _shape(b) for b in all_buffers(p)}
        self.values: dict[str, Interval] = {}
        self.known = Known({}, lambda x: self.values.get(x.tensor, anything(x)))

    def visit(self, s: Stmt, known: Known | None = None) -> None:
        """Check a statement under the facts `known`."""
        known = known or self.known
        match s:
            case Block():
                for x in s.stmts:
                    self.visit(x, known)
            case For():
                self.loads(s.extent, known, f"the extent of {s.var}")
                if known.interval(s.extent)[1] > 0:  # else the loop body never runs
                    self.visit(s.body, known.loop(s.var, s.extent))
            case Alloc():
                self.visit(s.body, known)
            case If():
                self.loads(s.cond, known, f"the test {s.cond}")
                self.visit(s.then, known.assume(s.cond))
                if s.orelse is not None:
                    self.visit(s.orelse, known.assume(negate(s.cond)))
            case Store():
                where = f"the store to {s.buffer}"
                for e in (*s.indices, s.value):
                    self.loads(e, known, where)
                self.inside("writes", s.buffer, s.indices, known, where)
                if is_int(s.value):
                    self.stored(s, known)

    def stored(self, s: Store, known: Known) -> None:
        """Extend the bounds of a buffer's integers; a sum is only bounded by its dtype."""
        low, high = known.interval(s.value) if s.combiner != "sum" else anything(s.value)
        before = self.values.get(s.buffer, (low, high))
        self.values[s.buffer] = min(low, before[0]), max(high, before[1])

    def loads(self, e: Expr, known: Known, where: str) -> None:
        """Check the loads of an expression."""
        for load, here in reads(e, known):
            self.inside("reads", load.tensor, load.indices, here, where)

    def inside(
        self, verb: str, name: str, indices: tuple[Expr, ...], known: Known, where: str
    ) -> None:
        """Raise ScheduleError unless each index is proven to be inside the buffer."""
        shape = self.shapes.get(name)
        if shape is None or len(shape) != len(indices):
            raise ScheduleError(
                f"{where} {verb} {name} with {len(indices)} indices: no such buffer of this rank"
            )
        for d, (index, extent) in enumerate(zip(indices, shape, strict=True)):
            found = known.index(index, extent)
            if found.kind != "inside":
                raise ScheduleError(
                    f"{where} {verb} {name} from {end(found.low)} to {end(found.high)} in dimension"
                    f" {d} of extent {extent} (index {index})"
                )


def _shape(b: Buffer) -> tuple[int, ...]:
    """The extents of a buffer as ints; ScheduleError if an extent depends on holes."""
    if not all(isinstance(e, Const) for e in b.shape):
        raise ScheduleError(f"buffer {b.name} has shape {tuple(map(str, b.shape))}: not concrete")
    return tuple(int(e.value) for e in b.shape if isinstance(e, Const))
