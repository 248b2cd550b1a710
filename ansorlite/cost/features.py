"""Features (step `features` of the flow): program with holes + population -> float32[P, S, F].

One row per statement (store) of each candidate, for all candidates at once: loop extents, index
coefficients and counts are expressions over holes, evaluated on int64[P] columns. A filled program
gives the same numbers with P = 1. Loops of one iteration do not change any feature. Groups of
features as in the Ansor paper (appendix B): computation, buffer access, arithmetic intensity,
allocation, outer scope. Additional features describe the hardware's view: register tile, vector
fill, balance of the parallel grains, and bytes moved per cache level. Magnitudes are given as
log2(1 + x), with x in bytes, elements or executions.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.dot import vector_steps
from ansorlite.cost.analytic import cycles, rates_of
from ansorlite.cost.footprint import Access, Batch, Footprint, Levels, Values, accesses, footprint
from ansorlite.cost.guard_share import Guard, guard_share, guards_of
from ansorlite.cost.names import AT, COMPUTE, CURVE, LOGGED, MAX_BUFFERS, N_FEATURES
from ansorlite.ir.expr import Const, Expr, Load, Op
from ansorlite.ir.packed import DOTS
from ansorlite.ir.prefetch import fetchable
from ansorlite.ir.program import NO_NOTE, Buffer, For, Program, Store, all_buffers, stores_under
from ansorlite.ir.traverse import loads
from ansorlite.ir.traverse import walk as exprs
from ansorlite.space.legality import matrix_tile, tile_shape
from ansorlite.target import Target

_TESTS = ("compare", "select")
# Cost of a partial last vector by its number of elements: the vector is split into powers of two,
# whose costs partly overlap (fitted exponent).
_PARTIAL_VECTOR_COST = np.array([k.bit_count() ** 0.6 for k in range(128)], dtype=np.float64)


class FeaturePlan:
    """The static part of feature extraction: accesses of a program with their index coefficients.

    Built once per program; calling the plan evaluates the features of a population.
    """

    def __init__(self, program: Program) -> None:
        found = list(stores_under(program.body))
        main = [(s, loops) for s, loops in found if not _is_initialisation(s)] or found
        buffers = {b.name: b for b in all_buffers(program)}
        memory = {b.name for b in program.params}
        self.statements = [
            _Statement(
                s,
                loops,
                accesses(s, loops, buffers),
                guards_of(s, loops),
                _can_prefetch(s, loops, memory),
            )
            for s, loops in main
        ]
        self.buffers = buffers
        self.access_counts: dict[str, int] = {}
        for st in self.statements:
            for a in st.accesses:
                self.access_counts[a.buffer.name] = self.access_counts.get(a.buffer.name, 0) + 1

    def __call__(
        self, columns: Mapping[str, Any], n: int, target: Target
    ) -> npt.NDArray[np.float32]:
        """float32[n, S, N_FEATURES]; `columns` gives int64[n] per hole variable."""
        if n == 0:
            return np.zeros((0, len(self.statements), N_FEATURES), np.float32)
        ev = Batch(columns, n)
        out = np.zeros((len(self.statements), N_FEATURES, n))
        for st, rows in zip(self.statements, out, strict=True):
            moved = _traffic(st, ev, target)
            _fill(rows, moved, ev, target)
            _put(rows, "buffer0_read", _access_features(moved, self.access_counts, target))
            _put(rows, "intensity_0", _intensity(moved))
            _put(rows, "alloc_bytes", _allocation(moved, self.buffers, ev))
        rates, effort = rates_of(target), self.effort(columns, n, target)
        estimate = cycles(lambda name: out[:, AT[name]], rates, effort)
        out[:, AT["cycles_compute"] :] = estimate.transpose(1, 0, 2)
        for rows in out:
            rows[LOGGED] = np.log2(1.0 + np.maximum(rows[LOGGED], 0.0))
        work = out[:, AT["work_share"]]
        work /= np.maximum(work.sum(axis=0), 1.0)
        return np.ascontiguousarray(out.transpose(2, 0, 1), dtype=np.float32)

    def effort(self, columns: Mapping[str, Any], n: int, target: Target) -> Values | None:
        """float64[S, n]: vector operations of one of each statement's, see `analytic.cycles`.

        None where all of them count as one, as without packed products.
        """
        ev = Batch(columns, n)
        found = [_effort(st, ev, target) for st in self.statements]
        if all(e is None for e in found):
            return None
        return np.stack([np.ones(n) if e is None else e for e in found])

    def magnitudes(self, columns: Mapping[str, Any], n: int, target: Target) -> Values:
        """float64[S, N_FEATURES, n]: features that the analytic score reads, without logarithms.

        Rows of other features are 0.
        """
        ev = Batch(columns, n)
        out = np.zeros((len(self.statements), N_FEATURES, n))
        for st, rows in zip(self.statements, out, strict=True):
            _fill(rows, _traffic(st, ev, target), ev, target)
        return out


def features(
    program: Program, columns: Mapping[str, Any], n: int, target: Target
) -> npt.NDArray[np.float32]:
    """float32[n, S, N_FEATURES] (names: `cost.names`) of a population of one program.

    `columns` gives int64[n] per hole variable. Example: `features(sketch.program, columns, n,
    target)`.
    """
    return FeaturePlan(program)(columns, n, target)


def _is_initialisation(s: Store) -> bool:
    """True for the initialisation of a reduction, whose cost is part of the reduction's."""
    return isinstance(s.value, Const) and s.combiner is None


@dataclass(frozen=True)
class _Statement:
    store: Store
    loops: tuple[For, ...]
    accesses: tuple[Access, ...]
    guards: tuple[Guard, ...]
    can_prefetch: bool  # a prefetch annotation has an effect


def _effort(st: _Statement, ev: Batch, target: Target) -> Values | None:
    """Of sums of packed products: those by steps, and those that fit the matrix unit."""
    value = st.store.value
    if not isinstance(value, Op) or value.name not in DOTS:
        return None
    steps, matrix = (
        vector_steps(target, value.name),
        matrix_tile(st.store, st.loops, ev.int, target),
    )
    if matrix is None:
        return None if steps == 1.0 else np.full(ev.n, steps)
    unit = matrix.unit
    whole = unit.cycles * rates_of(target).fma / (unit.rows * unit.words)
    used = np.maximum(np.asarray(matrix.used, np.float64), 1e-3)
    return np.broadcast_to(np.where(matrix.fits, whole / used, steps), (ev.n,))


@dataclass(frozen=True)
class _Traffic:
    """Memory behaviour of one statement for a population of n; the input of the features."""

    st: _Statement
    levels: Levels
    executions: Values
    touched: list[Footprint]
    # [levels + 1, n]: bytes touched by one iteration of each loop, all buffers together
    bytes_at: Values
    lines_at: Values  # the same in bytes of whole cache lines


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


def _traffic(st: _Statement, ev: Batch, target: Target) -> _Traffic:
    levels = Levels([ev(lp.nominal) for lp in st.loops], ev.n)
    # Conflict misses only in the private caches; a shared last level hashes addresses over its sets
    own = (target.l1_bytes, target.l2_bytes)
    touched = [footprint(a, ev, levels, target.cache_line, own) for a in st.accesses]
    bytes_at, lines_at = (np.zeros((levels.depth + 1, ev.n)) for _ in range(2))
    for t in touched:
        bytes_at += t.inner * t.itemsize
        lines_at += t.lines
    executions = ev.product(st.store.count) * guard_share(st.guards, levels)
    return _Traffic(st, levels, executions, touched, bytes_at, lines_at)


def _fill(rows: Values, m: _Traffic, ev: Batch, target: Target) -> None:
    """Write the features that the analytic score reads into [N_FEATURES, n], without logarithms."""
    store, levels, executions = m.st.store, m.levels, m.executions
    tested = _condition_share(m.st, levels, ev)
    for name, c in op_counts(store).items():
        if c:
            rows[AT[name]] = executions * c * (tested if name in _TESTS else 1.0)
    _put(rows, "rows", _loop_features(m.st, ev, levels, target))
    rows[AT["executions"]] = executions
    rows[AT["loops"]] = levels.runs.sum(axis=0)
    repeat = executions / np.maximum(levels.inside[0], 1.0)
    # Without a shared cache, what leaves the second level goes to memory.
    last = target.l3_bytes or target.l2_bytes
    caches = (target.l1_bytes, target.l2_bytes, last)
    _put(rows, "beyond_l1", [_bytes_into_cache(k, c, m) * repeat for k, c in enumerate(caches)])
    rows[AT["gathered"]] = _gathered(m, ev)
    rows[AT["register_loads"]] = _register_loads(m, ev, target)
    rows[AT["work_share"]] = executions * _flops(store)


def _put(rows: Values, first: str, values: Sequence[Values] | Values) -> None:
    """Write consecutive features, starting at feature `first`."""
    at = AT[first]
    for k, v in enumerate(values):
        rows[at + k] = v


def _condition_share(st: _Statement, levels: Levels, ev: Batch) -> Values:
    """Evaluations of the conditions of a statement, as a share of its executions.

    A condition on loop variables alone is evaluated outside the innermost loops that do not change
    it; loops of a register tile are unrolled and contain no condition.
    """
    n = levels.n
    guards = _guards(st.store.value)
    if not guards:
        return np.ones(n)
    total = np.zeros(n)
    for test, times in guards:
        share = np.ones(n)
        inside = np.ones(n, dtype=bool) if not loads(test) else np.zeros(n, dtype=bool)
        for k in range(levels.depth - 1, -1, -1):
            lp, e = st.loops[k], levels.extents[k]
            if lp.var in test.free:
                if lp.note("lanes") is not NO_NOTE:  # one evaluation for all lanes
                    share = share / np.maximum(ev(lp.note("lanes")), 1.0)
                if lp.note("register") is NO_NOTE:
                    inside = inside & ~levels.runs[k]
            else:
                share = share / np.where(inside, np.maximum(e, 1.0), 1.0)
        total = total + times * share
    return total / sum(times for _, times in guards)


@lru_cache(maxsize=1 << 12)
def _guards(value: Expr) -> tuple[tuple[Expr, int], ...]:
    """The conditions of the selects in an expression, each with its number of occurrences."""
    tests = (e.args[0] for e in exprs(value) if isinstance(e, Op) and e.name == "select")
    return tuple(Counter(tests).items())


def _vector_loop(st: _Statement) -> int | None:
    """Position of the vector loop; None without one."""
    return next((k for k, lp in enumerate(st.loops) if lp.note("lanes") is not NO_NOTE), None)


# Cost relative to a gathered element, where squares are transposed in registers.
TRANSPOSED_COST = 0.25


def _gathered(m: _Traffic, ev: Batch) -> Values:
    """Vector elements that are loaded one by one because they are not contiguous in memory."""
    st, levels = m.st, m.levels
    total = np.zeros(ev.n)
    at = _vector_loop(st)
    if at is None:
        return total
    extents = levels.extents
    lanes = ev(st.loops[at].note("lanes"))
    wide = (lanes > 1) & levels.runs[at]
    copies = isinstance(st.store.value, Load) and st.store.combiner is None
    for t in m.touched:
        far = wide & (t.steps[at] > 1)
        if not t.reads or not far.any():
            continue
        times = m.executions
        for k, lp in enumerate(st.loops):
            # Loaded once for all rows of the tile that share the element.
            if k != at and lp.note("register") is not NO_NOTE:
                times = times / np.where(t.moves[k], 1.0, np.maximum(extents[k], 1.0))
        square = np.zeros(ev.n, dtype=bool)
        if copies:
            open_ = np.ones(ev.n, dtype=bool)
            for k in range(at - 1, -1, -1):
                runs = open_ & levels.runs[k]
                square = square | (runs & (t.steps[k] == 1) & (extents[k] >= lanes))
                open_ = open_ & ~runs
        each = np.where(square, TRANSPOSED_COST, 1.0)
        total = total + np.where(far, times * each, 0.0)
    return total


def _register_loads(m: _Traffic, ev: Batch, target: Target) -> Values:
    """Loads per vector operation of the register tile.

    Loops that do not change the address of a buffer share its loads. A vector that crosses a cache
    line counts as two loads.
    """
    tile = [
        (k, lp)
        for k, lp in enumerate(m.st.loops)
        if lp.note("register") is not NO_NOTE and not lp.reduce
    ]
    total = np.zeros(ev.n)
    for t in m.touched:
        if not t.reads or t.writes:
            continue
        share = np.ones(ev.n)
        for k, lp in tile:
            e = np.maximum(m.levels.extents[k], 1.0)
            width = lp.note("lanes")
            times = e if width is NO_NOTE else np.ceil(e / np.maximum(1.0, ev(width)))
            share = share / np.where(t.moves[k], 1.0, times)
        total = total + share * (1.0 + _line_crossings(m, t, ev, target))
    return total


def _line_crossings(m: _Traffic, t: Footprint, ev: Batch, target: Target) -> Values | float:
    """Share of a buffer's vector loads that cross a cache line."""
    at = _vector_loop(m.st)
    if at is None:
        return 0.0
    other_strides = [t.steps[k] for k in range(m.levels.depth) if k != at and t.moves[k].any()]
    if not other_strides or not (t.steps[at] == 1).any():
        return 0.0
    lanes = np.maximum(ev(m.st.loops[at].note("lanes")), 1.0).astype(np.int64)
    bits = np.bitwise_or.reduce([steps.astype(np.int64) for steps in other_strides])
    odd = (t.steps[at] == 1) & ((bits & (lanes - 1)) != 0)
    return np.where(odd, np.minimum(1.0, lanes * t.itemsize / target.cache_line), 0.0)


def _loop_features(st: _Statement, ev: Batch, levels: Levels, target: Target) -> list[Values]:
    """The features from "rows" to "outer_reduction", in the order of `cost.names`."""
    n = ev.n
    rows, vectors, lanes = (
        np.broadcast_to(np.asarray(v, dtype=np.float64), (n,)) for v in tile_shape(st.loops, ev.int)
    )
    held = (rows * vectors + np.minimum(rows, vectors) + 1) / target.vector_registers
    matrix = matrix_tile(st.store, st.loops, ev.int, target)
    if matrix is not None:
        held = np.where(matrix.fits, matrix.registers, held)
    fill, unroll, ahead, stream = np.ones(n), np.zeros(n), np.zeros(n), np.zeros(n)
    grains, inner_k, outer_k = np.ones(n), np.ones(n), np.ones(n)
    open_run = np.ones(n, dtype=bool)  # still inside the innermost group of reduction loops
    seen = np.zeros(n, dtype=bool)
    for k in range(levels.depth - 1, -1, -1):
        lp, e, runs = st.loops[k], levels.extents[k], levels.runs[k]
        width = lp.note("lanes")
        if width is not NO_NOTE:
            w = np.maximum(1.0, ev(width))
            fill = np.where(runs, e / (w * _vector_operations(e, w)), fill)
            lanes = np.where(runs & lp.reduce, w, lanes)
        if lp.note("unroll") is not NO_NOTE:
            unroll = np.where(runs, ev(lp.note("unroll")), unroll)
        if st.can_prefetch and lp.note("prefetch") is not NO_NOTE:
            ahead = np.where(runs, ev(lp.note("prefetch")), ahead)
        if lp.note("stream") is not NO_NOTE:
            stream = np.where(runs, ev(lp.note("stream")), stream)
        if lp.note("parallel") is not NO_NOTE:
            grains = grains * np.where(ev(lp.note("parallel")) > 0, e, 1.0)
        if lp.reduce:
            inner_k = np.where(open_run, inner_k * e, inner_k)
            outer_k = np.where(open_run, outer_k, outer_k * e)
            seen = seen | runs
        elif lp.note("register") is not NO_NOTE or width is not NO_NOTE:
            open_run = open_run & ~(seen & runs)
        else:
            open_run = open_run & ~runs
    rounds = np.ceil(grains / target.cores) * target.cores
    return [
        rows,
        vectors,
        lanes,
        np.minimum(held, 4.0),
        fill,
        unroll,
        ahead,
        stream,
        grains,
        grains / rounds,
        np.minimum(grains, target.cores) / target.cores,
        inner_k,
        outer_k,
    ]


def _vector_operations(extent: Values, width: Values) -> Values:
    """Vector operations of a row of elements; a partial last vector is split into powers of two."""
    full = np.floor(extent / width)
    rest = np.minimum((extent - full * width).astype(np.int64), len(_PARTIAL_VECTOR_COST) - 1)
    return np.maximum(full + _PARTIAL_VECTOR_COST[rest], 1.0)


def _access_features(m: _Traffic, serial: Mapping[str, int], target: Target) -> Values:
    """[MAX_BUFFERS * features, n]: the written buffer first, then the others by unique bytes."""
    touched, levels, bytes_at, executions = m.touched, m.levels, m.bytes_at, m.executions
    n = levels.n
    item = np.array([[t.itemsize] for t in touched], dtype=np.float64)
    elements = np.stack([t.inner[0] for t in touched])  # [buffers, n], like the arrays below
    stride, run = np.stack([t.stride for t in touched]), np.stack([t.run for t in touched])
    line = target.cache_line
    unique, total = elements * item, executions * item
    lines = np.maximum(1.0, executions * np.minimum(1.0, stride * item / line))
    unique_lines = np.maximum(1.0, elements / np.maximum(1.0, np.minimum(run, line / item)))
    # Reuse: the innermost loop that does not move the address repeats the accesses of its inner
    # loops.
    again = levels.runs[None] & ~np.stack([t.moves for t in touched])
    by_loop = again.any(axis=1)
    level = levels.depth - 1 - again[:, ::-1].argmax(axis=1) if levels.depth else None
    other_uses = np.array([[serial.get(t.buffer.name, 1) - 1] for t in touched], dtype=np.float64)
    by_serial = ~by_loop & (other_uses > 0)
    count = np.where(by_serial, other_uses, 0.0)
    iterations = np.where(by_serial, levels.inside[0], 0.0)
    distance = np.where(by_serial, bytes_at[0], 0.0)
    if level is not None:
        count = np.where(by_loop, levels.at(levels.extents, level), count)
        iterations = np.where(by_loop, levels.at(levels.inside, level + 1), iterations)
        distance = np.where(by_loop, levels.at(bytes_at, level + 1), distance)
    per = np.where(count > 0.5, 1.0 / np.maximum(count, 0.5), 2.0)
    flags = np.array([[t.reads, t.writes] for t in touched], dtype=np.float64)
    stack = np.stack(
        [
            np.broadcast_to(flags[:, :1], (len(touched), n)),
            np.broadcast_to(flags[:, 1:], (len(touched), n)),
            total,
            unique,
            lines,
            unique_lines,
            by_loop,
            by_serial,
            ~by_loop & ~by_serial,
            iterations,
            distance,
            count,
            total * per,
            unique * per,
            lines * per,
            unique_lines * per,
            stride,
            run,
        ],
        axis=1,
    )  # [buffers, features, n]
    order = np.argsort(-(unique + 1e18 * flags[:, 1:]), axis=0, kind="stable")
    ranked = np.take_along_axis(stack, order[:, None, :], axis=0)[:MAX_BUFFERS]
    return ranked.reshape(-1, n)


def _intensity(m: _Traffic) -> Values:
    """Arithmetic intensity curve: FLOP per byte at CURVE equidistant points of log work.

    The curve joins the points (work inside a loop level, work / bytes touched inside) from inner to
    outer levels by straight lines. A loop of one iteration repeats a point and changes nothing.
    """
    levels = m.levels
    per_trip = m.executions * _flops(m.st.store) / np.maximum(levels.inside[0], 1.0)
    work = (per_trip * levels.inside)[::-1]
    x = np.log2(1.0 + work)  # [points, n], non-decreasing
    y = np.log2(1.0 + work / np.maximum(m.bytes_at[::-1], 1.0))
    at = np.maximum(x[-1], 1e-9) * (np.arange(1, CURVE + 1)[:, None] / CURVE)
    right = np.minimum((x[None] < at[:, None]).sum(axis=1), len(x) - 1)
    left = np.maximum(right - 1, 0)
    x0, x1, y0, y1 = (levels.at(v, k) for v, k in ((x, left), (x, right), (y, left), (y, right)))
    t = np.clip((at - x0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0, 1.0)
    curve: Values = y0 + t * (y1 - y0)
    return curve


def _allocation(m: _Traffic, buffers: Mapping[str, Buffer], ev: Batch) -> list[Values]:
    """Bytes of the local buffer that is filled, bytes in total, fills, executions per fill."""
    b = buffers.get(m.st.store.buffer)
    if b is None or b.scope == "global":
        return []
    size = np.ones(ev.n)
    for dim in b.shape:
        size = size * ev(dim)
    own = np.ones(ev.n)
    for lp, e in zip(m.st.loops, m.levels.extents, strict=True):
        if lp.axis[0] == m.st.store.stage:
            own = own * e
    outer = m.executions / np.maximum(own, 1.0)
    inner = m.executions / np.maximum(outer, 1.0)
    return [size * np.dtype(b.dtype).itemsize, size * outer, outer, inner]


def _bytes_into_cache(k: int, cache: int, m: _Traffic) -> Values:
    """Bytes transferred into cache level k: traffic of the outermost loop body that fits the cache.

    A buffer whose lines conflict in few sets fits less often than the others. A buffer that does
    not change with the loops directly around the body stays in the cache, because its lines are
    reused before the lines of other buffers.
    """
    levels = m.levels
    total = np.zeros(levels.n)
    fits = m.lines_at <= cache
    for t in m.touched:
        held = fits & (t.conflict_bytes[k] <= cache) if k < len(t.conflict_bytes) else fits.copy()
        held[-1] = True
        level = held.argmax(axis=0)
        total += levels.at(t.lines, level) * levels.at(levels.outside, levels.at(t.around, level))
    return total
