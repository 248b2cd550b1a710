"""What the features of one statement are computed from, as values of a tape.

In: a store with its loops and accesses (`Statement`), and a target. Out: numbers of values by name
(`described`): loops by level, outermost first; accesses; and whatever follows from single loops
without regard to their order. `cost.sheet` collects the values of many statements and candidates,
`cost.footprint` and `cost.features` compute with them.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.dot import vector_steps
from ansorlite.cost.accesses import Access, accesses
from ansorlite.cost.analytic import rates_of
from ansorlite.cost.guard_share import Guard, guard_share, guards_of
from ansorlite.cost.names import COMPUTE
from ansorlite.cost.spread import Spreads, itemsize, spreads
from ansorlite.ir.expr import Expr, Load, Op, integer
from ansorlite.ir.packed import DOTS
from ansorlite.ir.prefetch import fetchable
from ansorlite.ir.program import NO_NOTE, Block, Buffer, For, Store
from ansorlite.ir.tape import ONE, ZERO, Numbers, Tape, Values, ceildiv, where
from ansorlite.ir.traverse import loads
from ansorlite.ir.traverse import walk as exprs
from ansorlite.space.legality import grains_of, live_registers, matrix_tile, tile_shape
from ansorlite.target import Target

# Cost relative to a gathered element, where squares are transposed in registers.
TRANSPOSED_COST = 0.25
ONCE = integer(1)  # iterations
# Cost of a partial last vector by its number of elements: the vector is split into powers of two,
# whose costs partly overlap (fitted exponent).
_PARTIAL_VECTOR_COST = np.array([k.bit_count() ** 0.6 for k in range(128)], dtype=np.float64)


@dataclass(frozen=True)
class Statement:
    """A store with its loops, except spatial ones of one iteration and without annotation."""

    store: Store
    loops: tuple[For, ...]
    accesses: tuple[Access, ...]
    guards: tuple[Guard, ...]
    can_prefetch: bool  # a prefetch annotation has an effect
    fills: Buffer | None  # the local buffer that is filled

    @staticmethod
    def of(
        store: Store, loops: Sequence[For], buffers: Mapping[str, Buffer], memory: Collection[str]
    ) -> "Statement":
        """`memory`: names of the buffers that are parameters of the program."""
        kept = [lp for lp in loops if lp.reduce or lp.notes or lp.nominal != ONCE]
        # Equal statements of different programs are to be equal.
        loops = tuple(replace(lp, extent=lp.nominal, body=Block(())) for lp in kept)
        written = buffers.get(store.buffer)
        return Statement(
            store,
            loops,
            accesses(store, loops, buffers),
            guards_of(store, loops),
            _can_prefetch(store, loops, memory),
            None if written is None or written.scope == "global" else written,
        )


def _can_prefetch(store: Store, loops: Sequence[For], memory: Collection[str]) -> bool:
    """True if the statement reads an operand that can be prefetched (see `ir.prefetch`)."""
    around = [lp for lp in loops if lp.note("prefetch") is not NO_NOTE]
    along = [lp for lp in loops if lp.note("lanes") is not NO_NOTE]
    if not around or not along:
        return False
    return any(fetchable(x, around[-1], along[-1], memory) for x in loads(store.value))


def op_counts(store: Store) -> dict[str, int]:
    """Operations of one execution by class; a product that is summed counts as one mad."""
    return dict.fromkeys(COMPUTE, 0) | dict(store.ops)


def _flops(store: Store) -> float:
    """Floating-point operations of one execution; at least 0.5, so that copies have work."""
    c = op_counts(store)
    return 2.0 * c["mad"] + sum(c[k] for k in ("addsub", "mul", "div", "minmax", "math")) + 0.5


def described(tape: Tape, st: Statement, target: Target, uses: Sequence[int]) -> dict[str, Numbers]:
    """Numbers of the values of a statement, by the names of `cost.sheet`.

    `uses`: in how many statements of the program the buffer of each access is accessed.
    """
    store, loops = st.store, st.loops
    extents = [tape.of(lp.nominal) for lp in loops]
    spread = spreads(tape, st.accesses, extents, target)
    count = tape.product([tape.of(c) for c in store.count])
    executions = tape.apply(np.multiply, count, guard_share(tape, st.guards, extents))
    own = [e for lp, e in zip(loops, extents, strict=True) if lp.axis[0] == store.stage]
    filled, item = ZERO, 0
    if st.fills is not None:
        filled, item = tape.product([*map(tape.of, st.fills.shape)]), itemsize(st.fills)

    def flags(values: Sequence[float]) -> list[int]:
        return [tape.const(float(v)) for v in values]

    noted = [lp.note("register") is not NO_NOTE or lp.note("lanes") is not NO_NOTE for lp in loops]
    numbers: dict[str, npt.ArrayLike] = {
        "extents": extents,
        "reduce": flags([lp.reduce for lp in loops]),
        "tile": flags([n and not lp.reduce for n, lp in zip(noted, loops, strict=True)]),
        "executions": executions,
        "ops": flags(list(op_counts(store).values())),
        "tested": _condition_share(tape, st, extents),
        "flops": tape.const(_flops(store)),
        "loop": _loop_values(tape, st, extents, target),
        "gathered": _gathered(tape, st, extents, spread),
        "register_loads": _register_loads(tape, st, extents, spread, target),
        "effort": effort(tape, store, loops, target),
        "filled": filled,
        "filled_item": tape.const(float(item)),
        "own": tape.product(own),
        "item": flags([itemsize(a.buffer) for a in st.accesses]),
        "real": flags([1.0 for _ in st.accesses]),
        "reads": flags([a.reads for a in st.accesses]),
        "writes": flags([a.writes for a in st.accesses]),
        "other_uses": flags([n - 1 for n in uses]),
        "steps": spread.steps,
        "last": spread.last,
        "first": spread.first,
        "ratios": spread.ratios,
    }
    return {name: np.asarray(v, np.intp) for name, v in numbers.items()}


def effort(tape: Tape, store: Store, loops: tuple[For, ...], target: Target) -> int:
    """Vector operations of one of the statement's, see `analytic.cycles`.

    Of sums of packed products: those by steps, and those that fit the matrix unit.
    """
    value = store.value
    if not isinstance(value, Op) or value.name not in DOTS:
        return ONE
    steps = tape.const(vector_steps(target, value.name))
    matrix = matrix_tile(tape, store, loops, target)
    if matrix is None:
        return steps
    unit = matrix.unit
    whole = tape.const(unit.cycles * rates_of(target).fma / (unit.rows * unit.words))
    used = tape.apply(np.maximum, matrix.used, tape.const(1e-3))
    return tape.apply(where, matrix.fits, tape.apply(np.true_divide, whole, used), steps)


def _condition_share(tape: Tape, st: Statement, extents: Sequence[int]) -> int:
    """Evaluations of the conditions of a statement, as a share of its executions.

    A condition on loop variables alone is evaluated outside the innermost loops that do not change
    it; loops of a register tile are unrolled and contain no condition.
    """
    guards = _conditions(st.store.value)
    if not guards:
        return ONE
    shares = []
    for test, times in guards:
        inside, longest = not loads(test), ONE  # of the loops so far that change the condition
        saved: list[int] = []
        for lp, e in zip(reversed(st.loops), reversed(extents), strict=True):
            if lp.var in test.free:
                if lp.note("lanes") is not NO_NOTE:  # one evaluation for all lanes
                    saved.append(tape.apply(np.maximum, tape.of(lp.note("lanes")), ONE))
                if lp.note("register") is NO_NOTE:
                    longest = tape.apply(np.maximum, longest, e)
            elif inside:
                changed = tape.apply(np.greater, longest, ONE)
                saved.append(tape.apply(where, changed, ONE, tape.apply(np.maximum, e, ONE)))
        share = tape.apply(np.true_divide, ONE, tape.product(saved))
        shares.append(tape.apply(np.multiply, tape.const(float(times)), share))
    total = tape.const(float(sum(times for _, times in guards)))
    return tape.apply(np.true_divide, tape.fold(np.add, shares, ZERO), total)


@lru_cache(maxsize=1 << 12)
def _conditions(value: Expr) -> tuple[tuple[Expr, int], ...]:
    """The conditions of the selects in an expression, each with its number of occurrences."""
    tests = (e.args[0] for e in exprs(value) if isinstance(e, Op) and e.name == "select")
    return tuple(Counter(tests).items())


def _vector_loop(st: Statement) -> int | None:
    """Position of the vector loop; None without one."""
    return next((k for k, lp in enumerate(st.loops) if lp.note("lanes") is not NO_NOTE), None)


def _unless_moved(tape: Tape, steps: Sequence[int], level: int, times: int) -> int:
    """`times`; 1 where the loop of the level changes the address of an access with these `steps`.

    A loop of one iteration does not, and repeats nothing either.
    """
    return tape.apply(where, tape.apply(np.greater, steps[level], ZERO), ONE, times)


def _gathered(tape: Tape, st: Statement, extents: Sequence[int], spread: Spreads) -> int:
    """Vector elements that are loaded one by one because they are not contiguous in memory.

    For one execution.
    """
    at = _vector_loop(st)
    if at is None:
        return ZERO
    lanes = tape.of(st.loops[at].note("lanes"))
    wide = tape.apply(
        np.multiply, tape.apply(np.greater, lanes, ONE), tape.apply(np.greater, extents[at], ONE)
    )
    copies = isinstance(st.store.value, Load) and st.store.combiner is None
    total = []
    for access, steps in zip(st.accesses, spread.steps.T.tolist(), strict=True):
        if not access.reads or not access.moves[at]:
            continue
        far = tape.apply(np.multiply, wide, tape.apply(np.greater, steps[at], ONE))
        # Loaded once for all rows of the tile that share the element.
        shared = [
            _unless_moved(tape, steps, k, tape.apply(np.maximum, extents[k], ONE))
            for k, lp in enumerate(st.loops)
            if k != at and lp.note("register") is not NO_NOTE
        ]
        square = ZERO  # does the next loop outside that runs move along a row of a square?
        for k in range(at) if copies else ():
            along = tape.apply(np.equal, steps[k], ONE)
            long = tape.apply(np.greater_equal, extents[k], lanes)
            runs = tape.apply(np.greater, extents[k], ONE)
            square = tape.apply(where, runs, tape.apply(np.multiply, along, long), square)
        each = tape.apply(where, square, tape.const(TRANSPOSED_COST), ONE)
        each = tape.apply(np.true_divide, each, tape.product(shared))
        total.append(tape.apply(np.multiply, far, each))
    return tape.fold(np.add, total, ZERO)


def _register_loads(
    tape: Tape,
    st: Statement,
    extents: Sequence[int],
    spread: Spreads,
    target: Target,
) -> int:
    """Loads per vector operation of the register tile.

    Loops that do not change the address of a buffer share its loads. A vector that crosses a cache
    line counts as two loads.
    """
    total = []
    for access, steps in zip(st.accesses, spread.steps.T.tolist(), strict=True):
        if not access.reads or access.writes:
            continue
        shared = []
        for k, lp in enumerate(st.loops):
            if lp.note("register") is not NO_NOTE and not lp.reduce:
                width, times = lp.note("lanes"), tape.apply(np.maximum, extents[k], ONE)
                if width is not NO_NOTE:
                    wide = tape.apply(np.maximum, tape.of(width), ONE)
                    times = tape.apply(ceildiv, times, wide)
                shared.append(_unless_moved(tape, steps, k, times))
        crossing = _line_crossings(tape, st, access, steps, target)
        each = tape.apply(np.add, ONE, crossing)
        total.append(tape.apply(np.true_divide, each, tape.product(shared)))
    return tape.fold(np.add, total, ZERO)


def common_bits(step: Values, lanes: Values) -> Values:
    """Bits below `lanes` of a stride: none where it is a multiple of `lanes`, a power of two."""
    found: Values = (step.astype(np.int64) & (lanes.astype(np.int64) - 1)).astype(np.float64)
    return found


def _line_crossings(
    tape: Tape, st: Statement, access: Access, steps: Sequence[int], target: Target
) -> int:
    """Share of a buffer's vector loads that cross a cache line."""
    at = _vector_loop(st)
    if at is None or not access.moves[at]:
        return ZERO
    lanes = tape.apply(np.maximum, tape.of(st.loops[at].note("lanes")), ONE)
    others = [steps[k] for k, moves in enumerate(access.moves) if moves and k != at]
    bits = [tape.apply(common_bits, step, lanes) for step in others]
    odd = tape.apply(np.greater, tape.fold(np.maximum, bits, ZERO), ZERO)
    odd = tape.apply(np.multiply, odd, tape.apply(np.equal, steps[at], ONE))
    share = itemsize(access.buffer) / target.cache_line
    most = tape.apply(np.minimum, ONE, tape.apply(np.multiply, lanes, tape.const(share)))
    return tape.apply(np.multiply, odd, most)


def _loop_values(tape: Tape, st: Statement, extents: Sequence[int], target: Target) -> list[int]:
    """The features from "rows" to "stream", and the number of parallel grains."""
    shape = tile_shape(tape, st.loops)
    registers = tape.const(float(target.vector_registers))
    held = tape.apply(np.true_divide, live_registers(tape, shape), registers)
    matrix = matrix_tile(tape, st.store, st.loops, target)
    if matrix is not None:
        held = tape.apply(where, matrix.fits, matrix.registers, held)
    lanes, fill, unroll, ahead, stream = shape.lanes, ONE, ZERO, ZERO, ZERO
    for lp, e in zip(reversed(st.loops), reversed(extents), strict=True):
        runs = tape.apply(np.greater, e, ONE)
        width = lp.note("lanes")
        if width is not NO_NOTE:
            w = tape.apply(np.maximum, ONE, tape.of(width))
            full = tape.apply(np.multiply, w, tape.apply(vector_operations, e, w))
            fill = tape.apply(where, runs, tape.apply(np.true_divide, e, full), fill)
            lanes = tape.apply(where, runs, w, lanes) if lp.reduce else lanes
        if lp.note("unroll") is not NO_NOTE:
            unroll = tape.apply(where, runs, tape.of(lp.note("unroll")), unroll)
        if st.can_prefetch and lp.note("prefetch") is not NO_NOTE:
            ahead = tape.apply(where, runs, tape.of(lp.note("prefetch")), ahead)
        if lp.note("stream") is not NO_NOTE:
            stream = tape.apply(where, runs, tape.of(lp.note("stream")), stream)
    held = tape.apply(np.minimum, held, tape.const(4.0))
    grains = tape.product([grains_of(tape, lp) for lp in st.loops])
    return [shape.rows, shape.vectors, lanes, held, fill, unroll, ahead, stream, grains]


def vector_operations(extent: Values, width: Values) -> Values:
    """Vector operations of a row of elements; a partial last vector is split into powers of two."""
    full = np.floor(extent / width)
    rest = np.minimum((extent - full * width).astype(np.int64), len(_PARTIAL_VECTOR_COST) - 1)
    return np.maximum(full + _PARTIAL_VECTOR_COST[rest], 1.0)
