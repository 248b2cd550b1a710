"""Code generation: a specialised `Program` -> an LLVM module as text.

Each root loop nest becomes one function of the buffers (`noalias` pointers) and a range of grains.
A grain is one iteration of the collapsed parallel loops; its index is decoded once. The table of
nests, `image.STEPS` behind the kernel's name, is a program for the pool of `codegen.threads`, whose
threads take chunks of grains; so networks string kernels together. The entry point runs the table,
or calls its functions where no nest is parallel. Register buffers become stack slots with constant
offsets, which LLVM promotes to vector registers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from ansorlite.calls import ALIGNMENT, aligned_bytes
from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.compile import data_layout
from ansorlite.codegen.dot import accumulated
from ansorlite.codegen.emit_expr import ExprEmitter
from ansorlite.codegen.emit_index import TYPES, declared
from ansorlite.codegen.image import STEPS
from ansorlite.codegen.ir_text import I1, I8, I32, I64, PTR, VOID
from ansorlite.codegen.lanes import side_by_side
from ansorlite.codegen.scope import Env, Memory, Scope
from ansorlite.codegen.tiles import Shapes, TileCode, planned, request_tiles, with_nest
from ansorlite.codegen.vector_math import extremum
from ansorlite.codegen.zeros import decided, is_zero
from ansorlite.errors import BuildError
from ansorlite.ir.deep import with_deep_stack
from ansorlite.ir.expr import Const, Expr, Load, Op, is_int
from ansorlite.ir.interpret import concrete_shape
from ansorlite.ir.literals import BYTES
from ansorlite.ir.packed import DOTS
from ansorlite.ir.program import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Prefetch,
    Program,
    Stmt,
    Store,
    depth,
    walk,
)
from ansorlite.ir.ranges import bounds
from ansorlite.ir.traverse import branches_by_lane, tensors_read
from ansorlite.target import Target

ROW = ir.StructType([PTR, PTR, *[I64] * 6])
STACK_BYTES = 64 * 1024  # of one function; further local buffers come from the heap


def emit_module(p: Program, target: Target, symbol: str) -> str:
    """LLVM IR of the kernel `symbol`; `p` must be specialised (`ir.specialize`), else BuildError.

    Example: `emit_module(specialize(program), Target.detect(), "kernel")`.
    """
    return with_deep_stack(depth(p), lambda: _module_text(p, target, symbol))


def _module_text(p: Program, target: Target, symbol: str) -> str:
    module = ir.Module(symbol, target.triple, data_layout(target))
    slots = argument_slots(p)
    steps = [
        _Nest(module, p, nest, f"{symbol}.nest{k}", slots, target).emit()
        for k, nest in enumerate(_roots(p.body))
    ]
    _table(module, f"{symbol}{STEPS}", steps, target.cores)
    entry = ir.Function(module, ir.FunctionType(VOID, [PTR]), symbol)
    b = ir.IRBuilder(entry.append_basic_block("entry"))
    if any(s.parallel for s in steps):
        table = module.globals[f"{symbol}{STEPS}"]
        run = declared(module, "ansorlite_run", VOID, [PTR] * 4)
        end = b.gep(table, I64(len(steps)), ROW)
        b.call(run, [table, end, entry.args[0], PTR(None)])
    else:
        for s in steps:
            b.call(s.code, [entry.args[0], I64(0), I64(s.grains)])
    b.ret_void()
    request_tiles(module, [s.code for s in steps], symbol, target)
    return str(module)


class _Step(NamedTuple):
    """A nest as `void code(args, i64 first grain, i64 end of grains)`."""

    code: ir.Function
    grains: int
    parallel: bool


def _table(module: ir.Module, name: str, steps: Sequence[_Step], cores: int) -> None:
    """The kernel's rows for at most `cores` threads, and one of zeros behind them."""
    null, most = PTR(None), I64(cores)
    rows = [
        [s.code, null, I64(s.grains), I64(int(s.parallel)), I64(1), I64(0), most, I64(s.grains)]
        for s in steps
    ]
    rows.append([null, null, *[I64(0)] * 6])
    kind = ir.ArrayType(ROW, len(rows))
    values = kind.of([ROW.of(row) for row in rows])
    ir.Variable(module, name, values, constant=True, align=ALIGNMENT)


def _roots(s: Stmt) -> Sequence[Stmt]:
    return s.stmts if isinstance(s, Block) else (s,)


def buffer_bytes(b: Buffer) -> int:
    return math.prod(concrete_shape(b)) * BYTES[b.dtype]


def argument_slots(p: Program) -> dict[str, tuple[int, int]]:
    """Buffer name -> (argument index, byte offset): one argument per parameter, one workspace.

    The workspace is the last argument; it holds all buffers of role "temp".
    """
    slots: dict[str, tuple[int, int]] = {}
    for k, buffer in enumerate(p.params):
        slots[buffer.name] = (k, 0)
    offset = 0
    for buffer in p.buffers:
        if buffer.role == "temp":
            slots[buffer.name] = (len(p.params), offset)
            offset += aligned_bytes(buffer_bytes(buffer))
    return slots


def workspace_bytes(p: Program) -> int:
    """Bytes of the workspace: the buffers of role "temp", each aligned to 64 bytes."""
    sizes = [buffer_bytes(b) for b in p.buffers if b.role == "temp"]
    return sum(map(aligned_bytes, sizes))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    out = [1] * len(shape)
    for d in range(len(shape) - 2, -1, -1):
        out[d] = out[d + 1] * shape[d + 1]
    return tuple(out)


class _Nest:
    """Emits one root nest: a function of its buffers and of a range of grains."""

    def __init__(
        self,
        module: ir.Module,
        p: Program,
        nest: Stmt,
        name: str,
        slots: dict[str, tuple[int, int]],
        target: Target,
    ) -> None:
        self.module, self.p, self.name, self.slots = module, p, name, slots
        self.target, self.cores = target, target.cores
        self.nest, self.statements = nest, list(walk(nest))

    def emit(self) -> _Step:
        """Define the nest's functions."""
        used = self._used()
        loops, body = _parallel_loops(self.nest)
        streamed = _streamed(self.statements)
        fn = self._function(f"{self.name}.body", used, loops, body, past_caches=bool(streamed))
        if streamed:
            whole = [k for k, x in enumerate(used) if x.name in streamed]
            plain = self._function(f"{self.name}.plain", used, loops, body, past_caches=False)
            fn = self._by_alignment(fn, plain, whole)
        grains = math.prod(_nominal(lp) for lp in loops)
        kind = ir.FunctionType(VOID, [PTR, I64, I64])
        code = ir.Function(self.module, kind, self.name, internal=True)
        b = ir.IRBuilder(code.append_basic_block("entry"))
        args, first, last = code.args
        b.call(fn, [*self._pointers(b, args, used), first, last])
        b.ret_void()
        return _Step(code, grains, bool(loops) and grains > 1 and self.cores > 1)

    def _function(
        self,
        name: str,
        used: list[Buffer],
        loops: list[For],
        body: Stmt,
        *,
        past_caches: bool,
    ) -> ir.Function:
        """The nest as a function; with `past_caches` loops marked "stream" store past caches."""
        kind = ir.FunctionType(VOID, [PTR] * len(used) + [I64, I64])
        fn = ir.Function(self.module, kind, name, internal=True, marks="noinline")
        for x, arg in zip(used, fn.args, strict=False):
            # These buffers are the package's own memory; a caller's array may begin anywhere.
            is_own = x.layout is not None or x.role in ("derived", "temp")
            arg.attributes = f" noalias align {ALIGNMENT}" if is_own else " noalias"
        self._body(fn, used, loops, body, past_caches)
        return fn

    def _by_alignment(self, fn: ir.Function, plain: ir.Function, whole: list[int]) -> ir.Function:
        """A function that calls `fn` where the arguments `whole` are 64-byte aligned, else `plain`.

        Non-temporal stores must write whole cache lines, and a caller's array may begin anywhere.
        """
        either = ir.Function(self.module, fn.kind, f"{self.name}.either", internal=True)
        b = ir.IRBuilder(either.append_basic_block("entry"))
        mask = declared(self.module, "llvm.ptrmask.p0.i64", PTR, [PTR, I64])
        flag: ir.Value = I1(1)
        for k in whole:
            rest = b.call(mask, [either.args[k], I64(ALIGNMENT - 1)])
            flag = b.and_(flag, b.icmp_unsigned("==", rest, PTR(None)))
        with b.if_else(flag) as (then, orelse):
            with then:
                b.call(fn, either.args)
            with orelse:
                b.call(plain, either.args)
        b.ret_void()
        return either

    def _used(self) -> list[Buffer]:
        names = set[str]()
        for s in self.statements:
            if isinstance(s, Store):
                names.add(s.buffer)
                for e in (*s.indices, s.value):
                    names |= tensors_read(e)
            if isinstance(s, For):
                names |= tensors_read(s.extent)
        return [x for x in self.p.buffers if x.name in names]

    def _pointers(self, b: ir.IRBuilder, args: ir.Value, used: list[Buffer]) -> list[ir.Value]:
        out = []
        for x in used:
            k, offset = self.slots[x.name]
            pointer = b.load(b.gep(args, I64(k), PTR), PTR)
            if offset:
                pointer = b.gep(pointer, I64(offset), I8)
            out.append(pointer)
        return out

    def _body(
        self,
        fn: ir.Function,
        used: list[Buffer],
        loops: list[For],
        body: Stmt,
        past_caches: bool,
    ) -> None:
        entry = fn.append_basic_block("entry")
        emitter = _StmtEmitter(ir.IRBuilder(entry), self.module, self.target, past_caches)
        written = {s.buffer for s in self.statements if isinstance(s, Store)}
        memory = {
            x.name: Memory(a, _strides(concrete_shape(x)), x.dtype, constant=x.name not in written)
            for x, a in zip(used, fn.args, strict=False)
        }
        memory.update(emitter.allocate([s.buffer for s in self.statements if isinstance(s, Alloc)]))
        env = Env({}, memory, Scope(None, entry), {})
        for m in memory.values():
            emitter.place(m.pointer, env.scope)
        first, last = fn.args[len(used)], fn.args[len(used) + 1]
        start = fn.append_basic_block("start")
        emitter.b.position_at_end(start)
        if loops:
            emitter.grains(loops, first, last, body, env)
        else:
            emitter.stmt(body, env)
        if past_caches:
            emitter.b.fence("seq_cst")  # non-temporal stores are not ordered with other stores
        emitter.release()
        emitter.b.ret_void()
        emitter.b.position_at_end(entry)
        emitter.b.branch(start)
        env.scope.close()


def _streamed(statements: Sequence[Stmt]) -> set[str]:
    """Names of the buffers that loops marked "stream" write, with non-temporal stores."""
    loops = [s for s in statements if isinstance(s, For) and s.mark == "stream"]
    return {x.buffer for lp in loops for x in walk(lp) if isinstance(x, Store)}


def _parallel_loops(nest: Stmt) -> tuple[list[For], Stmt]:
    loops: list[For] = []
    while isinstance(nest, For) and nest.mark == "parallel":
        loops.append(nest)
        nest = nest.body
    return loops, nest


def _nominal(lp: For) -> int:
    if not isinstance(lp.nominal, Const):
        raise BuildError(f"parallel loop {lp.var} has no constant nominal extent: {lp.nominal}")
    return int(lp.nominal.value)


def _usual(lp: For) -> int:
    """Iterations without clamps; 0 where they depend on other loops."""
    return int(lp.nominal.value) if isinstance(lp.nominal, Const) else 0


def transposed(b: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The transpose of n vectors of n lanes, n a power of two, in log2(n) rounds of shuffles.

    A round with step s swaps the off-diagonal s-by-s blocks; s halves from round to round.
    """
    n = len(rows)
    step = n // 2
    while step:
        low = [k if k & step == 0 else n + k - step for k in range(n)]
        high = [k + step if k & step == 0 else n + k for k in range(n)]
        out = list(rows)
        for k in range(n):
            if k & step == 0:
                first, second = rows[k], rows[k + step]
                out[k] = b.shuffle_vector(first, second, low)
                out[k + step] = b.shuffle_vector(first, second, high)
        rows, step = out, step // 2
    return rows


@lru_cache(maxsize=1 << 10)
def _element(buffer: str, indices: tuple[Expr, ...], dtype: str) -> Load:
    """The element that a store replaces; the copies of a store have one expression."""
    return Load(buffer, indices, dtype)


Trip = Callable[[ir.Value, Scope], None]


class _StmtEmitter(ExprEmitter):
    """Emits the statements of one function."""

    def __init__(
        self, builder: ir.IRBuilder, module: ir.Module, target: Target, past_caches: bool = True
    ) -> None:
        super().__init__(builder, target)
        self.module, self.past_caches = module, past_caches
        self._has_masks = target.has_masks
        self._tiles: Shapes = {}
        self._heap: list[ir.Value] = []

    def allocate(self, buffers: list[Buffer]) -> dict[str, Memory]:
        """Memory by name for local buffers: stack slots up to `STACK_BYTES`, then the heap."""
        out: dict[str, Memory] = {}
        total = 0
        for x in buffers:
            shape = concrete_shape(x)
            size = math.prod(shape)
            if total + buffer_bytes(x) > STACK_BYTES and x.scope == "local":
                malloc = declared(self.module, "malloc", PTR, [I64])
                pointer = self.b.call(malloc, [I64(buffer_bytes(x) + 4096)])
                self._heap.append(pointer)
            else:
                total += buffer_bytes(x)
                pointer = self.b.alloca(ir.ArrayType(TYPES[x.dtype], size), ALIGNMENT)
            padded = x.scope == "register"
            out[x.name] = Memory(pointer, _strides(shape), x.dtype, padded)
        return out

    def release(self) -> None:
        for raw in self._heap:
            self.b.call(declared(self.module, "free", VOID, [PTR]), [raw])

    def grains(
        self, loops: list[For], first: ir.Value, last: ir.Value, body: Stmt, env: Env
    ) -> None:
        """Emit: for g in [first, last): set the parallel loops' variables from g, run the body."""

        def trip(g: ir.Value, scope: Scope) -> None:
            here = replace(env, scope=scope)
            values: dict[str, Any] = {}
            rest = g
            for k, lp in enumerate(reversed(loops)):
                if k == len(loops) - 1:
                    values[lp.var] = rest
                    continue
                values[lp.var], rest = self._split(rest, _nominal(lp), here)
            inner = here.inner(values, {lp.var: (0, _nominal(lp) - 1) for lp in loops})
            clamps = [lp for lp in loops if lp.extent != lp.nominal]
            if not clamps:
                self.stmt(body, inner)
                return
            inside: ir.Value = I1(1)
            for lp in clamps:
                n = self.index(lp.extent, inner)
                n = I64(n) if isinstance(n, int) else n
                inside = self.b.and_(inside, self.b.icmp_signed("<", values[lp.var], n))
            with self.b.if_then(inside):
                self.stmt(body, inner.branch())

        self.count(first, last, env.scope, trip)

    def _split(self, g: ir.Value, n: int, env: Env) -> tuple[ir.Value, ir.Value]:
        """(g mod n, g div n) for g >= 0."""
        low = self.once("urem", (g, n), env, lambda: self.b.urem(g, I64(n)))
        return low, self.once("udiv", (g, n), env, lambda: self.b.udiv(g, I64(n)))

    def count(
        self, first: ir.Value, last: ir.Value, around: Scope, trip: Trip, usual: int = 0
    ) -> None:
        """A counted loop; `trip` gets the induction variable and the scope of the loop.

        It usually has `usual` iterations, 0 where nothing is known. LLVM has to know: it keeps in
        registers what it takes to be used most often.
        """
        b = self.b
        before = b.block
        head, body, done = (b.append_basic_block(n) for n in ("head", "loop", "done"))
        certain = isinstance(first, ir.Constant) and isinstance(last, ir.Constant)
        if certain:
            b.branch(head)  # constant bounds always have at least one iteration
        else:
            b.cbranch(b.icmp_signed("<", first, last), head, done)
        b.position_at_end(head)
        i = b.phi(I64)
        i.add_incoming(first, before)
        scope = Scope(around, head, certain)
        self.place(i, scope)
        b.position_at_end(body)
        trip(i, scope)
        following = b.add(i, I64(1), flags=["nuw", "nsw"])
        i.add_incoming(following, b.block)
        b.cbranch(b.icmp_signed("<", following, last), head, done, max(0, usual - 1))
        b.position_at_end(head)
        b.branch(body)
        b.position_at_end(done)

    def stmt(self, s: Stmt, env: Env) -> None:
        match s:
            case For():
                self._for(s, env)
            case Store():
                self._store(s, env)
            case Block():
                for x in s.stmts:
                    self.stmt(x, env)
            case Alloc():
                self.stmt(s.body, replace(env, room=self._room(s.buffer)))
            case If():
                self._if(s, env)
            case Prefetch():
                self._prefetch(s, env)

    def _room(self, acc: Buffer) -> int | None:
        """How many loaded values to reuse: the vector registers that the accumulator leaves, + 1.

        At least all vectors of the operand with fewer vectors, one of the other operand, and one
        more. None where the buffer is no register tile: then the number is not limited.
        """
        if acc.scope != "register":
            return None
        *rows, last = concrete_shape(acc)
        vectors = -(-last * BYTES[acc.dtype] // self.target.vector_bytes)
        least = min(math.prod(rows), vectors) + 2
        return max(least, self.target.vector_registers - math.prod(rows) * vectors + 1)

    def _for(self, s: For, env: Env) -> None:
        plan = planned(s, env, self, self.target) if s.reduce else None
        tiles = with_nest(self._tiles, plan) if plan else None
        if plan and tiles:
            self._tiles = tiles
            TileCode(self).emit(plan, env)
            return
        if s.mark in ("vector", "stream"):
            self._vector_loop(s, env)
            return
        if s.mark == "transpose":
            self._transpose(s, env)
            return
        if s.mark == "unroll":
            if self.by_element:
                env = replace(env, beside={**env.beside, **side_by_side(s, env, self)})
            for k in range(self._constant_extent(s)):
                # All copies use one scope, so they share address computations.
                self.stmt(s.body, env.inner({s.var: k}))
            return
        n = self.index(s.extent, env)
        if isinstance(n, int) and n <= 1:
            if n == 1:
                self.stmt(s.body, env.inner({s.var: 0}))
            return
        usual = n if isinstance(n, int) else _usual(s)
        n = I64(n) if isinstance(n, int) else n

        ranges = {s.var: (0, max(0, bounds(s.extent, env.ranges)[1] - 1))}

        def trip(i: ir.Value, scope: Scope) -> None:
            self.stmt(s.body, env.inner({s.var: i}, ranges, scope=scope))

        self.count(I64(0), n, env.scope, trip, usual)

    def _vector_loop(self, s: For, env: Env) -> None:
        """The body as one vector operation; a remainder uses a whole vector with masked lanes.

        Masks are used where the target has masked loads: LLVM would read a vector of 7 elements as
        three parts and combine them. Other targets get a vector of the remainder's length.
        """
        lanes = self._constant_extent(s)
        if lanes == 1:
            self.stmt(s.body, env.inner({s.var: 0}))
            return
        if isinstance(s.body, Store) and branches_by_lane(s.body.value, s.var):
            self._for(replace(s, mark="serial"), env)
            return
        width = 1 << (lanes - 1).bit_length() if self._has_masks else lanes
        past = s.mark == "stream" and self.past_caches
        place = {"vector": s.var, "width": width, "lanes": lanes, "past_caches": past}
        self.stmt(s.body, env.inner({s.var: 0}, {s.var: (0, lanes - 1)}, **place))

    def _transpose(self, s: For, env: Env) -> None:
        """A square tile of a copy whose source and destination differ in the contiguous axis.

        One vector is read along `s` for each iteration of the inner loop; the transposed vectors
        are stored along the inner loop.
        """
        inner = s.body
        assert isinstance(inner, For) and isinstance(inner.body, Store)
        put, n = inner.body, self._constant_extent(s)
        columns = []
        for k in range(n):
            lanes = {s.var: (0, n - 1)}
            here = env.inner({s.var: 0, inner.var: k}, lanes, vector=s.var, width=n, lanes=n)
            columns.append(self.wide(put.value, here))
        for k, row in enumerate(transposed(self.b, columns)):
            lanes = {inner.var: (0, n - 1)}
            here = env.inner({s.var: k, inner.var: 0}, lanes, vector=inner.var, width=n, lanes=n)
            self.store(put.buffer, put.indices, row, here)

    def _constant_extent(self, s: For) -> int:
        if not isinstance(s.extent, Const):
            raise BuildError(f"{s.mark} loop {s.var} has extent {s.extent}, not a number")
        return int(s.extent.value)

    def _if(self, s: If, env: Env) -> None:
        known = decided(s.cond, env.ranges)
        if known is not None:
            chosen = s.then if known else s.orelse
            if chosen is not None:
                self.stmt(chosen, env)
            return
        flag = self._scalar(s.cond, env)
        if s.orelse is None:
            with self.b.if_then(flag):
                self.stmt(s.then, env.branch())
            return
        with self.b.if_else(flag) as (then, orelse):
            with then:
                self.stmt(s.then, env.branch())
            with orelse:
                self.stmt(s.orelse, env.branch())

    def _prefetch(self, s: Prefetch, env: Env) -> None:
        kind = [PTR, I32, I32, I32]
        fetch = declared(self.module, "llvm.prefetch.p0", VOID, kind)
        at = self.element(s.buffer, s.indices, env)
        self.b.call(fetch, [at, I32(0), I32(3), I32(1)])  # read access, all levels, data cache

    def _store(self, s: Store, env: Env) -> None:
        dtype = env.memory[s.buffer].dtype
        if s.combiner == "sum" and is_zero(s.value, env.ranges):
            return
        if s.combiner == "sum" and isinstance(s.value, Op) and s.value.name in DOTS:
            old = self.wide(_element(s.buffer, s.indices, dtype), env)
            x, y = (self.factor(s.value, k, env) for k in range(2))

            def shared(what: str, v: ir.Value, make: Callable[[], ir.Value]) -> ir.Value:
                return self.once(("part", what), (v,), env, make)

            value = accumulated(self.b, s.value.name, old, x, y, self.target, shared)
            self.store(s.buffer, s.indices, value, env)
            return
        value = self.wide(s.value, env)
        if s.combiner:
            old = self.wide(_element(s.buffer, s.indices, dtype), env)
            value = self._combine(s.combiner, old, value, s.value)
        self.store(s.buffer, s.indices, value, env)

    def _combine(self, combiner: str, old: ir.Value, new: ir.Value, e: Expr) -> ir.Value:
        if combiner != "sum":
            # `old` as the second operand: the NaN test then stands outside the chain of updates.
            return extremum(self.b, combiner, new, old)
        if is_int(e):
            return self.b.add(old, new)
        return self.b.fadd(old, new, flags=("contract",))
