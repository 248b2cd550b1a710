"""Sums of packed products by a matrix unit (AMX): whole tiles of a register tile at a time.

In: a reduction loop nest of a specialised program around one register tile, and the emitter of its
function. Out: whether the nest fits, and its code: sums are read into tile registers, stay there
through all loops, and are written back. A nest that does not fit is left to vectors. What fits
(`planned`): rows at equal distances, the words of a row, and those of all columns, side by side.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.emit_index import declared
from ansorlite.codegen.ir_text import I16, I32, I64, PTR, TILE, VOID
from ansorlite.codegen.scope import Env, Scope
from ansorlite.host import ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
from ansorlite.ir.expr import Const, Expr, Load, Op, Var, terms_of
from ansorlite.ir.linear import plus
from ansorlite.ir.literals import BYTES
from ansorlite.ir.program import Block, For, Prefetch, Stmt, Store
from ansorlite.ir.traverse import substitute
from ansorlite.matrix_units import MatrixUnit, unit_of
from ansorlite.target import Target

if TYPE_CHECKING:
    from ansorlite.codegen.emit_index import IndexEmitter

WORD = 4  # bytes of packed numbers
Shapes = dict[tuple[int, int], int]  # (rows, bytes of a row) -> tile registers of this shape
MAX_STORES = 512  # vector statements of a register tile that are looked at


@dataclass(frozen=True)
class _Words:
    """Packed numbers in memory: word 0 at offset `flat`, in elements of which a word has `size`."""

    tensor: str
    flat: Expr
    size: int


@dataclass(frozen=True)
class _Sum:
    """One vector of sums of the register tile, at `place` of its buffer, and its operands."""

    place: int
    lanes: int
    row: _Words
    column: _Words
    swapped: bool


@dataclass(frozen=True)
class _Run:
    """Rows at equal distances: sums from row `first` on, operands `step` elements apart."""

    first: int
    count: int
    words: _Words
    step: int


@dataclass(frozen=True)
class _Along:
    """Loops `vars`, the innermost first, over `words` of a row side by side.

    Words of a column are `between` elements apart.
    """

    vars: tuple[str, ...]
    words: int
    between: int


@dataclass(frozen=True)
class TilePlan:
    """How a reduction nest is computed by tiles: `chunk` words along `along` at a time."""

    unit: MatrixUnit
    buffer: str
    width: int  # elements of a row of sums
    loops: tuple[For, ...]  # around the tiles, without those of `along`
    along: _Along
    chunk: int
    rows: tuple[_Run, ...]
    columns: tuple[tuple[int, int, _Words], ...]  # first column, columns, operand
    swapped: bool

    @property
    def shapes(self) -> Shapes:
        """The tile registers that are in use at a time."""
        found: Shapes = {}

        def need(rows: int, words: int) -> None:
            key = rows, WORD * words
            found[key] = found.get(key, 0) + 1

        for r in self.rows:
            for _, n, _ in self.columns:
                need(r.count, n)
        down = [(r.count, self.chunk) for r in self.rows]
        across = [(self.chunk, n) for _, n, _ in self.columns]
        held, other = (down, across) if len(down) <= len(across) else (across, down)
        for shape in (*held, *dict.fromkeys(other)):
            need(*shape)
        return found


def planned(s: For, env: Env, emitter: "IndexEmitter", target: Target) -> TilePlan | None:
    """The nest `s` by tiles; None where the target has no matrix unit or the nest does not fit."""
    found = _reductions(s)
    if found is None:
        return None
    loops, body = found
    first = next(_stores(body, {}, None, 1), (None,))[0]
    unit = unit_of(target, first.value.name) if first and isinstance(first.value, Op) else None
    if first is None or unit is None:
        return None
    places = list(_stores(body, {}, None, 1))
    memory = env.memory.get(first.buffer)
    if len(places) > MAX_STORES or memory is None or not memory.padded or len(memory.strides) < 2:
        return None
    sums = [_sum(*place, unit, first, env, emitter) for place in places]
    known = [x for x in sums if x is not None]
    if len(known) < len(sums):
        return None
    width = memory.strides[-2]
    rows, columns = _grid(known, width)
    if not rows or not columns:
        return None
    along = _along(loops, known[0])
    chunk = int(unit.chunk(along.words)) if along else 0
    if along is None or not chunk:
        return None
    runs = tuple(_runs(rows, unit.rows))
    if len(runs) * len(columns) + min(len(runs), len(columns)) + 1 > unit.registers:
        return None
    around = tuple(lp for lp in loops if lp.var not in along.vars)
    return TilePlan(
        unit,
        first.buffer,
        width,
        around,
        along,
        chunk,
        runs,
        tuple(columns),
        known[0].swapped,
    )


def _extent(s: For) -> int | None:
    return int(s.extent.value) if isinstance(s.extent, Const) and s.extent.value > 0 else None


def _reductions(s: For) -> tuple[tuple[For, ...], Stmt] | None:
    """(reduction loops of known extents, the body inside them)."""
    loops: list[For] = []
    node: Stmt = s
    while isinstance(node, For) and node.reduce:
        if _extent(node) is None or node.mark not in ("serial", "unroll"):
            return None
        loops.append(node)
        node = node.body
    return (tuple(loops), node) if loops else None


def _stores(
    s: Stmt, at: dict[str, Expr], vector: str | None, lanes: int
) -> Iterator[tuple[Store | None, dict[str, Expr], str | None, int]]:
    """The stores of a register tile with the numbers of its unrolled loops and their vector loop.

    None in place of a store for any other statement; prefetches are left out.
    """
    match s:
        case Prefetch():
            return
        case Block():
            for x in s.stmts:
                yield from _stores(x, at, vector, lanes)
        case For() if not s.reduce and (n := _extent(s)) is not None:
            if s.mark == "vector" and vector is None:
                yield from _stores(s.body, at, s.var, n)
            elif s.mark == "unroll" and vector is None:
                for k in range(n):
                    yield from _stores(s.body, {**at, s.var: Const(k)}, None, 1)
            else:
                yield None, at, vector, lanes
        case Store() if vector is not None:
            yield s, at, vector, lanes
        case _:
            yield None, at, vector, lanes


def _sum(
    s: Store | None,
    at: dict[str, Expr],
    vector: str | None,
    lanes: int,
    unit: MatrixUnit,
    first: Store,
    env: Env,
    emitter: "IndexEmitter",
) -> _Sum | None:
    if s is None or vector is None or s.combiner != "sum" or s.buffer != first.buffer:
        return None
    if not isinstance(s.value, Op) or s.value.name != unit.op or lanes > unit.columns:
        return None
    place = substitute(emitter.flat(s.buffer, s.indices, env), at)
    start = substitute(place, {vector: Const(0)})
    if not isinstance(start, Const) or _step(place, vector) != 1:
        return None
    operands = [_words(e, at, env, emitter) for e in s.value.args]
    x, y = operands
    if x is None or y is None:
        return None
    steps = [_step(w.flat, vector) for w in (x, y)]
    if steps == [0, y.size]:
        row, column, swapped = x, y, False
    elif steps == [x.size, 0]:
        row, column, swapped = y, x, True
    else:
        return None
    column = _Words(column.tensor, substitute(column.flat, {vector: Const(0)}), column.size)
    return _Sum(int(start.value), lanes, row, column, swapped)


def _words(e: Expr, at: dict[str, Expr], env: Env, emitter: "IndexEmitter") -> _Words | None:
    """Where packed numbers lie: words as such, or elements side by side that are packed here."""
    if isinstance(e, Load):
        if e.dtype != "int32":
            return None
        return _Words(e.tensor, substitute(emitter.flat(e.tensor, e.indices, env), at), 1)
    if not isinstance(e, Op) or not e.name.startswith("pack"):
        return None
    parts = [a.args[0] for a in e.args if isinstance(a, Op) and a.name == "cast"]
    loaded = [p for p in parts if isinstance(p, Load)]
    if len(loaded) < len(e.args) or len({p.tensor for p in loaded}) > 1:
        return None
    if BYTES[loaded[0].dtype] * len(loaded) != WORD:
        return None
    flats = [substitute(emitter.flat(p.tensor, p.indices, env), at) for p in loaded]
    if any(_distance(flats[0], f) != k for k, f in enumerate(flats)):
        return None
    return _Words(loaded[0].tensor, flats[0], len(loaded))


def _distance(a: Expr, b: Expr) -> int | None:
    """b - a, where that is a number."""
    rest = plus(terms_of(b), terms_of(a), -1)
    return rest.get((), 0) if set(rest) <= {()} else None


def _step(e: Expr, var: str) -> int | None:
    """By how much `e` grows with a variable in which it is linear with a constant factor."""
    found = 0
    for mono, c in terms_of(e).items():
        if not any(var in atom.free for atom in mono):
            continue
        if len(mono) != 1 or not isinstance(mono[0], Var):
            return None
        found += c
    return found


Row = tuple[int, _Words]
Column = tuple[int, int, _Words]


def _grid(sums: Sequence[_Sum], width: int) -> tuple[list[Row], list[Column]]:
    """Rows and columns of which the sums are all pairs; nothing where they are not."""
    rows: dict[int, _Words] = {}
    columns: dict[tuple[int, int], _Words] = {}
    for x in sums:
        at = divmod(x.place, width)
        row, column = rows.setdefault(at[0], x.row), columns.setdefault((at[1], x.lanes), x.column)
        if (row, column, x.swapped) != (x.row, x.column, sums[0].swapped):
            return [], []
    if len(rows) * len(columns) != len(sums):
        return [], []
    found = [(c, n, w) for (c, n), w in sorted(columns.items(), key=lambda item: item[0])]
    return sorted(rows.items(), key=lambda item: item[0]), found


def _runs(rows: Sequence[Row], most: int) -> Iterator[_Run]:
    """Rows side by side in the sums whose operands are at equal distances, `most` at a time."""
    k = 0
    while k < len(rows):
        first, words = rows[k]
        step, n = 0, 1
        while k + n < len(rows) and n < most and rows[k + n][0] == first + n:
            further = rows[k + n][1]
            away = _distance(words.flat, further.flat) if further.tensor == words.tensor else None
            if away is None or (n > 1 and away != n * step) or away < 0:
                break
            step = away if n == 1 else step
            n += 1
        yield _Run(first, n, words, step)
        k += n


def _along(loops: Sequence[For], one: _Sum) -> _Along | None:
    """The innermost loop along which the words of a row lie side by side, and loops that go on."""
    found: _Along | None = None
    for lp in reversed(loops):
        words, between = (1, None) if found is None else (found.words, found.between)
        steps = [_step(x.flat, lp.var) for x in (one.row, one.column)]
        if steps[0] != one.row.size * words or steps[1] is None:
            continue
        if between is None:
            found = _Along((lp.var,), _extent(lp) or 0, steps[1])
        elif found is not None and steps[1] == between * words:
            found = _Along((*found.vars, lp.var), words * (_extent(lp) or 0), between)
    return found


# ---- code ---------------------------------------------------------------------------------------

Trip = Callable[[ir.Value, Scope, list[ir.Value]], list[ir.Value]]


def with_nest(taken: Shapes, plan: TilePlan) -> Shapes | None:
    """The tile registers of a function with those of one more nest; None where too few are left.

    Registers of a function have fixed shapes, and its nests use the same ones.
    """
    needed = dict(taken)
    for shape, n in plan.shapes.items():
        needed[shape] = max(n, needed.get(shape, 0))
    return needed if sum(needed.values()) <= plan.unit.registers else None


class TileCode:
    """Emits the tile instructions of one nest."""

    def __init__(self, emitter: "IndexEmitter") -> None:
        self.emitter, self.b = emitter, emitter.b

    def emit(self, plan: TilePlan, env: Env) -> None:
        sums = env.memory[plan.buffer]
        stride = I64(plan.width * WORD)
        places = []
        for r in plan.rows:
            for first, n, _ in plan.columns:
                at = self.b.gep(sums.pointer, I64(r.first * plan.width + first), I32)
                places.append((r.count, n, at))
        starts = [self._load(rows, n, at, stride) for rows, n, at in places]
        ends = self._loops(plan, plan.loops, env, starts)
        for (rows, n, at), value in zip(places, ends, strict=True):
            store = self._intrinsic("tilestored64", VOID, [I16, I16, PTR, I64, TILE])
            self.b.call(store, [I16(rows), I16(n * WORD), at, stride, value])

    def _loops(
        self, plan: TilePlan, loops: Sequence[For], env: Env, tiles: list[ir.Value]
    ) -> list[ir.Value]:
        if loops:
            lp, times = loops[0], _extent(loops[0]) or 0

            def inner(i: ir.Value, scope: Scope, held: list[ir.Value]) -> list[ir.Value]:
                here = env.inner({lp.var: i}, {lp.var: (0, times - 1)}, scope=scope)
                return self._loops(plan, loops[1:], here, held)

            return self._count(times, env.scope, tiles, inner)
        first, *rest = plan.along.vars
        words = plan.along.words

        def step(i: ir.Value, scope: Scope, held: list[ir.Value]) -> list[ir.Value]:
            # addresses are linear: the first loop goes through the words of all of them
            at = {first: i, **dict.fromkeys(rest, 0)}
            return self._step(plan, env.inner(at, {first: (0, words - 1)}, scope=scope), held)

        return self._count(words, env.scope, tiles, step, plan.chunk)

    def _count(
        self,
        times: int,
        around: Scope,
        tiles: list[ir.Value],
        trip: Trip,
        by: int = 1,
    ) -> list[ir.Value]:
        """A loop over 0, by, .. below `times` that carries tiles; their values at its end."""
        b, before = self.b, self.b.block
        head, body, done = (b.append_basic_block(n) for n in ("head", "tiles", "done"))
        b.branch(head)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(I64(0), before)
        held = [b.phi(TILE) for _ in tiles]
        scope = Scope(around, head, True)
        self.emitter.place(i, scope)
        b.position_at_end(body)
        found = trip(i, scope, list(held))
        following = b.add(i, I64(by), flags=["nuw", "nsw"])
        i.add_incoming(following, b.block)
        for phi, start, end in zip(held, tiles, found, strict=True):
            phi.add_incoming(start, before)
            phi.add_incoming(end, b.block)
        b.cbranch(b.icmp_signed("<", following, I64(times)), head, done, -(-times // by) - 1)
        b.position_at_end(head)
        b.branch(body)
        b.position_at_end(done)
        return found

    def _step(self, plan: TilePlan, env: Env, tiles: list[ir.Value]) -> list[ir.Value]:
        """One instruction for each tile of sums; the operand with fewer tiles stays in registers.

        Rows of operands lie `step` elements apart, words of columns `between`.
        """
        rows = [(r.count, plan.chunk, r.words, r.step) for r in plan.rows]
        columns = [(plan.chunk, n, words, plan.along.between) for _, n, words in plan.columns]
        swap = len(rows) > len(columns)
        held, others = (columns, rows) if swap else (rows, columns)
        ready = [self._operand(*x, env) for x in held]
        out: dict[tuple[int, int], ir.Value] = {}
        name = plan.unit.swapped if plan.swapped else plan.unit.name
        kinds = [I16, I16, I16, TILE, TILE, TILE]
        call = self._intrinsic(name, TILE, kinds)
        for m, other in enumerate(others):
            one = self._operand(*other, env)
            for k, kept in enumerate(ready):
                r, c = (m, k) if swap else (k, m)
                left, right = (one, kept) if swap else (kept, one)
                shape = [I16(rows[r][0]), I16(columns[c][1] * WORD), I16(plan.chunk * WORD)]
                total = tiles[r * len(columns) + c]
                out[r, c] = self.b.call(call, [*shape, total, left, right])
        return [out[key] for key in sorted(out)]

    def _operand(self, rows: int, words: int, of: _Words, step: int, env: Env) -> ir.Value:
        at = self.emitter.address(of.tensor, of.flat, env)
        size = BYTES[env.memory[of.tensor].dtype]
        return self._load(rows, words, at, I64(step * size))

    def _load(self, rows: int, words: int, at: ir.Value, stride: ir.Value) -> ir.Value:
        load = self._intrinsic("tileloadd64", TILE, [I16, I16, PTR, I64])
        return self.b.call(load, [I16(rows), I16(words * WORD), at, stride])

    def _intrinsic(self, name: str, result: ir.Type, kinds: list[ir.Type]) -> ir.Function:
        return declared(self.b.module, f"llvm.x86.{name}.internal", result, kinds)


def request_tiles(
    module: ir.Module, users: Sequence[ir.Function], symbol: str, target: Target
) -> None:
    """Have the functions `users` of a kernel ask Linux for tile registers, once a process.

    Linux saves the 8 KiB of a thread's tiles only for processes that ask, and threads that start
    later may use them, too. Code without tile instructions stays as it is.
    """
    if "llvm.x86.tileloadd64.internal" not in module.globals or target.system != "linux":
        return
    asked = ir.Variable(module, f"{symbol}.asked", I32(0), internal=True)
    ask = ir.Function(module, ir.FunctionType(VOID, []), f"{symbol}.ask", internal=True)
    for user in users:
        b = ir.IRBuilder(user.blocks[0])
        b.position_at_start(user.blocks[0])
        b.call(ask, [])
    b = ir.IRBuilder(ask.append_basic_block("entry"))
    known = b.icmp_signed("!=", b.load(asked, I32), I32(0))
    done, first = ask.append_basic_block("done"), ask.append_basic_block("first")
    b.cbranch(known, done, first)
    b.position_at_end(first)
    # as `host.tiles_permitted` asks; a refusal is a matter of the target
    syscall = ir.Function(module, ir.FunctionType(I64, [I64], var_arg=True), "syscall")
    b.call(syscall, [I64(n) for n in (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)])
    b.store(I32(1), asked)
    b.branch(done)
    b.position_at_end(done)
    b.ret_void()
