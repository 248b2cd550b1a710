"""Features (step `features` of the flow): program with holes + population -> float32[P, S, F].

One row per statement (store) of each candidate, computed for all candidates at once: loop extents,
index coefficients and counts are expressions over holes and are evaluated on int64[P] columns. A
filled program gives the same numbers with P = 1. Loops of one iteration change nothing. Groups as
in the paper (appendix B): computation, buffer access, arithmetic intensity, allocation, outer
scope; plus what the hardware sees: register tile, vector fill, balance of the parallel grains and
data moved per cache level. Magnitudes are log2(1 + x), in bytes, elements or executions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.cost.touched import Access, Batch, Touched, Values, accesses, log, touch
from ansorlite.ir.expr import Const, Load, Op
from ansorlite.ir.program import Buffer, For, Program, Store, all_buffers, stores_under
from ansorlite.ir.traverse import loads
from ansorlite.ir.traverse import walk as exprs
from ansorlite.space.legality import tile_shape
from ansorlite.target import Target

_ZERO = Const(0)
MAX_BUFFERS = 5
CURVE = 10

_COMPUTE = ("mad", "addsub", "mul", "div", "minmax", "math", "compare", "select")
_TESTS = ("compare", "select")
_LOOPS = (
    "rows",
    "vectors",
    "lanes",
    "registers",
    "vector_fill",
    "unroll",
    "prefetch",
    "stream",
    "parallel_grains",
    "parallel_balance",
    "parallel_share",
    "inner_reduction",
    "outer_reduction",
)
_ACCESS = (
    "read",
    "write",
    "bytes",
    "unique_bytes",
    "lines",
    "unique_lines",
    "reuse_loop",
    "reuse_serial",
    "reuse_none",
    "reuse_iterations",
    "reuse_bytes",
    "reuse_count",
    "bytes_per_reuse",
    "unique_bytes_per_reuse",
    "lines_per_reuse",
    "unique_lines_per_reuse",
    "inner_stride",
    "contiguous",
)
_REST = (
    *(f"intensity_{k}" for k in range(CURVE)),
    "alloc_bytes",
    "alloc_total",
    "alloc_outer",
    "alloc_inner",
    "executions",
    "loops",
    "beyond_l1",
    "beyond_l2",
    "beyond_l3",
    "gathered",
    "work_share",
)
FEATURE_NAMES: tuple[str, ...] = (
    *_COMPUTE,
    *_LOOPS,
    *(f"buffer{b}_{n}" for b in range(MAX_BUFFERS) for n in _ACCESS),
    *_REST,
)
N_FEATURES = len(FEATURE_NAMES)


class FeaturePlan:
    """What features need of a program, taken from it once: accesses with their coefficients."""

    def __init__(self, program: Program) -> None:
        found = list(stores_under(program.body))
        kept = [(s, loops) for s, loops in found if not _start(s)] or found
        buffers = {b.name: b for b in all_buffers(program)}
        self.statements = [_Statement(s, loops, accesses(s, loops, buffers)) for s, loops in kept]
        self.buffers = buffers
        self.touched: dict[str, int] = {}
        for st in self.statements:
            for a in st.accesses:
                self.touched[a.buffer.name] = self.touched.get(a.buffer.name, 0) + 1

    def __call__(
        self, columns: Mapping[str, Any], n: int, target: Target
    ) -> npt.NDArray[np.float32]:
        """float32[n, S, N_FEATURES]; `columns` gives int64[n] per hole variable."""
        ev = Batch(columns, n)
        work = [_work(st, ev) for st in self.statements]
        total = np.maximum(sum(work), 1.0)
        out = np.empty((n, len(self.statements), N_FEATURES), dtype=np.float32)
        for k, st in enumerate(self.statements):
            rows = _statement_features(st, ev, self.buffers, self.touched, target)
            rows.append(work[k] / total)
            for c, row in enumerate(rows):
                out[:, k, c] = row
        return out


def features(
    program: Program, columns: Mapping[str, Any], n: int, target: Target
) -> npt.NDArray[np.float32]:
    """float32[n, S, N_FEATURES] (see FEATURE_NAMES) of a population of one program."""
    return FeaturePlan(program)(columns, n, target)


def _start(s: Store) -> bool:
    """Start values of reductions: their cost goes with the reduction."""
    return isinstance(s.value, Const) and s.combiner is None


@dataclass(frozen=True)
class _Statement:
    store: Store
    loops: tuple[For, ...]
    accesses: tuple[Access, ...]


def op_counts(store: Store) -> dict[str, int]:
    """Operations of one execution by class; a product that a sum takes up is one mad."""
    return dict.fromkeys(_COMPUTE, 0) | dict(store.ops)


def _flops(store: Store) -> float:
    c = op_counts(store)
    return 2.0 * c["mad"] + sum(c[k] for k in ("addsub", "mul", "div", "minmax", "math")) + 0.5


def _work(st: _Statement, ev: Batch) -> Values:
    return ev.product(st.store.count) * _flops(st.store)


def _statement_features(
    st: _Statement,
    ev: Batch,
    buffers: Mapping[str, Buffer],
    serial: Mapping[str, int],
    target: Target,
) -> list[Values]:
    store, loops = st.store, st.loops
    executions = ev.product(store.count)
    extents = [ev(lp.nominal) for lp in loops]
    tested = _tested(st, extents, ev.n)
    out: list[Values] = [
        log(executions * c * (tested if name in _TESTS else 1.0))
        for name, c in op_counts(store).items()
    ]
    out += _loop_features(st, ev, extents, target)

    touched = [touch(a, ev, extents) for a in st.accesses]
    # Bytes of all buffers touched by one iteration of each loop.
    levels = len(loops) + 1
    bytes_at: list[Values] = [np.zeros(ev.n)] * levels
    for lv in range(levels):
        bytes_at[lv] = sum((t.inner[lv] * t.itemsize for t in touched), np.zeros(ev.n))
    out += _access_features(touched, executions, extents, bytes_at, serial, target, ev.n)
    out += _intensity(executions * _flops(store), extents, bytes_at, ev.n)
    out += _allocation(store, loops, buffers, ev, executions, extents)
    trips = np.ones(ev.n)
    for e in extents:
        trips = trips * e
    out.append(log(executions))
    out.append(sum(((e > 1).astype(float) for e in extents), np.zeros(ev.n)))
    for size in (target.l1_bytes, target.l2_bytes, target.l3_bytes):
        out.append(log(_moved_beyond(size, extents, bytes_at, executions / np.maximum(trips, 1))))
    out.append(log(_gathered(st, touched, ev, extents, executions)))
    return out


def _tested(st: _Statement, extents: list[Values], n: int) -> Values:
    """How often the tests of a statement are made, as a share of its executions.

    A test on loop variables alone is made outside of the innermost loops that it does not move
    with; loops of a register tile are unrolled and keep no test inside.
    """
    guards = [e.args[0] for e in exprs(st.store.value) if isinstance(e, Op) and e.name == "select"]
    if not guards:
        return np.ones(n)
    total = np.zeros(n)
    for test in guards:
        share = np.ones(n)
        inside = np.ones(n, dtype=bool) if not loads(test) else np.zeros(n, dtype=bool)
        for lp, e in zip(reversed(st.loops), reversed(extents), strict=True):
            if lp.var in test.free:
                if lp.note("register") == _ZERO:
                    inside = inside & ~(e > 1)
            else:
                share = share / np.where(inside, np.maximum(e, 1.0), 1.0)
        total = total + share
    return total / len(guards)


TRANSPOSED = 0.25  # of a gathered element, where squares are transposed in registers


def _gathered(
    st: _Statement, touched: list[Touched], ev: Batch, extents: list[Values], executions: Values
) -> Values:
    """Elements that vectors collect one by one, since they are not neighbours in memory."""
    total = np.zeros(ev.n)
    at = next((k for k, lp in enumerate(st.loops) if lp.note("lanes") != _ZERO), None)
    if at is None:
        return total
    lanes = ev(st.loops[at].note("lanes"))
    wide = (lanes > 1) & (extents[at] > 1)
    copies = isinstance(st.store.value, Load) and st.store.combiner is None
    for t in touched:
        if not t.reads:
            continue
        times = executions
        for k, lp in enumerate(st.loops):
            if lp.note("register") != _ZERO and k != at:  # loaded once for all rows that share it
                times = times / np.where(t.moves[k], 1.0, np.maximum(extents[k], 1.0))
        square = np.zeros(ev.n, dtype=bool)
        if copies:
            open_ = np.ones(ev.n, dtype=bool)
            for k in range(at - 1, -1, -1):
                runs = open_ & (extents[k] > 1)
                square = square | (runs & (t.steps[k] == 1) & (extents[k] >= lanes))
                open_ = open_ & ~runs
        each = np.where(square, TRANSPOSED, 1.0)
        total = total + np.where(wide & (t.steps[at] > 1), times * each, 0.0)
    return total


def _loop_features(
    st: _Statement, ev: Batch, extents: list[Values], target: Target
) -> list[Values]:
    n = ev.n
    rows, vectors, lanes = (
        np.broadcast_to(np.asarray(v, dtype=np.float64), (n,)) for v in tile_shape(st.loops, ev.int)
    )
    live = rows * vectors + np.minimum(rows, vectors) + 1
    fill, unroll, ahead, stream = np.ones(n), np.zeros(n), np.zeros(n), np.zeros(n)
    grains, inner_k, outer_k = np.ones(n), np.ones(n), np.ones(n)
    open_run = np.ones(n, dtype=bool)  # still inside the innermost reduction run
    seen = np.zeros(n, dtype=bool)
    for lp, e in zip(reversed(st.loops), reversed(extents), strict=True):
        width = lp.note("lanes")
        if width != _ZERO:
            w = np.maximum(1.0, ev(width))
            fill = np.where(e > 1, e / (np.ceil(e / w) * w), fill)
            lanes = np.where((e > 1) & lp.reduce, w, lanes)
        if lp.note("unroll") != _ZERO:
            unroll = np.where(e > 1, ev(lp.note("unroll")), unroll)
        if lp.note("prefetch") != _ZERO:
            ahead = np.where(e > 1, ev(lp.note("prefetch")), ahead)
        if lp.note("stream") != _ZERO:
            stream = np.where(e > 1, ev(lp.note("stream")), stream)
        if lp.note("parallel") != _ZERO:
            grains = grains * np.where(ev(lp.note("parallel")) > 0, e, 1.0)
        if lp.reduce:
            inner_k = np.where(open_run, inner_k * e, inner_k)
            outer_k = np.where(open_run, outer_k, outer_k * e)
            seen = seen | (e > 1)
        else:
            tile = lp.note("register") != _ZERO or width != _ZERO
            open_run = open_run & ~((seen | (not tile)) & (e > 1))
    rounds = np.ceil(grains / target.cores) * target.cores
    return [
        rows,
        vectors,
        lanes,
        np.minimum(live / target.vector_registers, 4.0),
        fill,
        log(unroll),
        log(ahead),
        stream,
        log(grains),
        grains / rounds,
        np.minimum(grains, target.cores) / target.cores,
        log(inner_k),
        log(outer_k),
    ]


def _access_features(
    touched: list[Touched],
    executions: Values,
    extents: list[Values],
    bytes_at: list[Values],
    serial: Mapping[str, int],
    target: Target,
    n: int,
) -> list[Values]:
    """MAX_BUFFERS groups: the written buffer first, the others by unique bytes, zeros for none."""
    blocks = [_one_access(t, executions, extents, bytes_at, serial, target, n) for t in touched]
    stack = np.stack([np.stack(b) for b in blocks])  # [buffers, features, n]
    size = np.stack([t.inner[0] * t.itemsize + (1e18 if t.writes else 0.0) for t in touched])
    order = np.argsort(-size, axis=0, kind="stable")
    ranked = np.take_along_axis(stack, order[:, None, :], axis=0)
    out: list[Values] = []
    for b in range(MAX_BUFFERS):
        for f in range(len(_ACCESS)):
            out.append(ranked[b, f] if b < len(ranked) else np.zeros(n))
    return out


def _one_access(
    t: Touched,
    executions: Values,
    extents: list[Values],
    bytes_at: list[Values],
    serial: Mapping[str, int],
    target: Target,
    n: int,
) -> list[Values]:
    line = target.cache_line
    unique = t.inner[0] * t.itemsize
    total = executions * t.itemsize
    jump = np.minimum(1.0, t.stride * t.itemsize / line)
    lines = np.maximum(1.0, executions * jump)
    unique_lines = np.maximum(
        1.0, t.inner[0] / np.maximum(1.0, np.minimum(t.run, line / t.itemsize))
    )
    # The innermost loop that does not move the address repeats what the loops inside it touched.
    count, iterations, distance = np.zeros(n), np.zeros(n), np.zeros(n)
    open_, inside = np.ones(n, dtype=bool), np.ones(n)
    for level in range(len(extents) - 1, -1, -1):
        e = extents[level]
        again = open_ & (e > 1) & ~t.moves[level]
        count = np.where(again, e, count)
        iterations = np.where(again, inside, iterations)
        distance = np.where(again, bytes_at[level + 1], distance)
        open_ = open_ & ~again
        inside = inside * np.where(open_, e, 1.0)
    by_loop = ~open_
    others = serial.get(t.buffer.name, 1) - 1
    by_serial = open_ & (others > 0)
    count = np.where(by_serial, float(others), count)
    iterations = np.where(by_serial, inside, iterations)
    distance = np.where(by_serial, bytes_at[0], distance)
    per = np.where(count > 0.5, 1.0 / np.maximum(count, 0.5), 2.0)
    return [
        np.full(n, float(t.reads)),
        np.full(n, float(t.writes)),
        log(total),
        log(unique),
        log(lines),
        log(unique_lines),
        by_loop.astype(np.float64),
        by_serial.astype(np.float64),
        (open_ & ~by_serial).astype(np.float64),
        log(iterations),
        log(distance),
        log(count),
        log(total * per),
        log(unique * per),
        log(lines * per),
        log(unique_lines * per),
        log(t.stride),
        log(t.run),
    ]


def _intensity(
    flops: Values, extents: list[Values], bytes_at: list[Values], n: int
) -> list[Values]:
    """Arithmetic intensity against work: FLOP per byte at CURVE even points of log work.

    Points are (work inside a loop level, work / bytes touched there), inner to outer, joined by
    straight lines; loops of one iteration add a point twice, which changes nothing.
    """
    trips = np.ones(n)
    for e in extents:
        trips = trips * e
    per_trip = flops / np.maximum(trips, 1.0)
    xs: list[Values] = []
    ys: list[Values] = []
    inside = np.ones(n)
    for level in range(len(extents), -1, -1):
        if level < len(extents):
            inside = inside * extents[level]
        work = per_trip * inside
        xs.append(np.log2(1.0 + work))
        ys.append(log(work / np.maximum(bytes_at[level], 1.0)))
    x, y = np.stack(xs), np.stack(ys)  # [points, n], x never falls
    top = np.maximum(x[-1], 1e-9)
    column = np.arange(n)
    out = []
    for k in range(CURVE):
        at = top * (k + 1) / CURVE
        right = np.minimum((x < at).sum(axis=0), len(x) - 1)
        left = np.maximum(right - 1, 0)
        x0, x1, y0, y1 = x[left, column], x[right, column], y[left, column], y[right, column]
        t = np.clip((at - x0) / np.where(x1 > x0, x1 - x0, 1.0), 0.0, 1.0)
        out.append(y0 + t * (y1 - y0))
    return out


def _allocation(
    store: Store,
    loops: tuple[For, ...],
    buffers: Mapping[str, Buffer],
    ev: Batch,
    executions: Values,
    extents: list[Values],
) -> list[Values]:
    """Size of the local buffer that the statement fills, and how often it is filled anew."""
    b = buffers.get(store.buffer)
    if b is None or b.scope == "global":
        return [np.zeros(ev.n)] * 4
    size = np.ones(ev.n)
    for dim in b.shape:
        size = size * ev(dim)
    own = np.ones(ev.n)
    for lp, e in zip(loops, extents, strict=True):
        if lp.axis[0] == store.stage:
            own = own * e
    outer = executions / np.maximum(own, 1.0)
    inner = executions / np.maximum(outer, 1.0)
    return [log(size * np.dtype(b.dtype).itemsize), log(size * outer), log(outer), log(inner)]


def _moved_beyond(
    cache: int, extents: list[Values], bytes_at: list[Values], repeat: Values
) -> Values:
    """Bytes that cross into a cache: the outermost loop body that fits is refilled every trip."""
    moved = bytes_at[0] * repeat
    fits = bytes_at[0] <= cache
    outer = np.ones_like(repeat)
    for level, e in enumerate(extents):
        outer = outer * e
        now = bytes_at[level + 1]
        moved = np.where(fits, moved, now * outer * repeat)
        fits = fits | (now <= cache)
    return moved
