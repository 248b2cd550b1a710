"""The loop IR: one grammar from the lowered sketch (with holes) to the compiled program.

Grammar (printed like Python):
    Program := buffers, Stmt                  parameters and root-level temporaries, then the body
    Stmt    := Block(stmts)
             | For(var, extent, ...)          var in range(extent); `nominal`: unclamped extent
             | Alloc(buffer, body)            a local or register buffer, alive in the body
             | If(cond, then, orelse)         made only by `specialize`
             | Store(buffer, indices, value)  buffer[indices] = value, or old value combined
             | Prefetch(buffer, indices)      the cache line will be read; made by `specialize`
    expressions: see `ir.expr`; a Load reads a buffer by name.

Annotations of a loop are pairs (key, integer expression); 0 (lanes, unroll: 0 or 1) means none:
    parallel   1: the iterations are grains shared among threads (only outermost loops of a nest)
    lanes      number of iterations executed in one vector
    register   1: part of a register tile, unrolled, with accumulators in registers
    unroll     unroll the loop if the unrolled body then has at most this many copies
    prefetch   prefetch the operands of a reduction's vectors this many iterations ahead
    stream     1: vectors are written with non-temporal stores

`specialize` turns annotations into `mark` (serial, parallel, vector, unroll, ...) with constant
extents. Before `fill`, extents and indices may contain holes; afterwards the program is concrete.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Op, coefficients, is_int
from ansorlite.ir.traverse import loads, substitute

Scope = Literal["global", "local", "register"]
BufferRole = Literal["input", "constant", "derived", "output", "temp"]
# "transpose": around a vector loop that stores what the program reads along this loop; "stream": a
# vector loop with non-temporal stores
Mark = Literal["serial", "parallel", "vector", "stream", "unroll", "transpose"]
Annotations = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class BufferLayout:
    """A packed layout: extents of the levels per dimension, and the order (dimension, level)."""

    tiles: tuple[tuple[Expr, ...], ...]
    order: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The stored shape."""
        return tuple(self.tiles[d][lv] for d, lv in self.order)


@dataclass(frozen=True)
class Buffer:
    """Memory of a tensor: `shape` is the stored shape, `logical` the user's shape.

    Roles: "derived" buffers hold results of `Program.bound`, computed once from constants.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: str
    scope: Scope = "global"
    role: BufferRole = "temp"
    logical: tuple[Expr, ...] = ()
    layout: BufferLayout | None = None

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.shape))
        packed = ""
        if self.layout:
            order = " ".join(f"d{d}.{lv}" for d, lv in self.layout.order)
            packed = f"  # packed from [{', '.join(map(str, self.logical))}] as {order}"
        return f"{self.name}: {self.dtype}[{dims}] {self.scope} {self.role}{packed}"


@dataclass(frozen=True)
class Store:
    """Store of `value`, or of the old element combined with `value` (`combiner`).

    `stage` is the stage computed here. `count` is the number of executions, as factors. `ops` are
    the operations of one execution by class, taken from the te expression; a guard that is always
    true in one candidate does not change `ops`.
    """

    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    combiner: str | None
    stage: str
    count: tuple[Expr, ...] = ()
    ops: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Prefetch:
    """A prefetch hint; `indices` may lie outside the buffer."""

    buffer: str
    indices: tuple[Expr, ...]


NO_NOTE = Const(0)


@dataclass(frozen=True)
class For:
    """A loop; `axis` is (stage, te axis, level), its origin for features and printing."""

    var: str
    extent: Expr
    nominal: Expr
    reduce: bool
    body: "Stmt"
    notes: Annotations = ()
    mark: Mark = "serial"
    axis: tuple[str, str, int] = ("", "", 0)

    def note(self, key: str) -> Expr:
        """The value of an annotation; the object `NO_NOTE` if the annotation is missing or 0."""
        for name, value in self.notes:
            if name == key:
                return NO_NOTE if value == NO_NOTE else value
        return NO_NOTE


@dataclass(frozen=True)
class Alloc:
    """A buffer that lives during `body`."""

    buffer: Buffer
    body: "Stmt"


@dataclass(frozen=True)
class If:
    """A branch; made only by `specialize`."""

    cond: Expr
    then: "Stmt"
    orelse: "Stmt | None" = None


@dataclass(frozen=True)
class Block:
    """A sequence of statements."""

    stmts: tuple["Stmt", ...]


Stmt = Block | For | Alloc | If | Store | Prefetch


@dataclass(frozen=True)
class Program:
    """A lowered task: buffers with the parameters first, in argument order of the kernel; a body.

    `columns` are the open hole variables, sorted. `bound` computes the derived parameters once,
    when the constants are known. `str(program)` prints the loops.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: Stmt
    columns: tuple[str, ...] = field(default=())  # hole variables still open, sorted
    bound: "Program | None" = None

    @cached_property
    def by_name(self) -> dict[str, Buffer]:
        """Buffer by name, local buffers included."""
        return {b.name: b for b in all_buffers(self)}

    @property
    def params(self) -> tuple[Buffer, ...]:
        """The buffers that are arguments of the kernel."""
        return tuple(b for b in self.buffers if b.role != "temp")

    @cached_property
    def register_clamps(self) -> tuple[tuple[Expr, tuple[tuple[Expr, ...], ...]], ...]:
        """(nominal extent, coefficients of each clamp) of the clamped register loops of reductions.

        Coefficients belong to the monomials in loop variables and to the constant part, over holes.
        """
        found: dict[tuple[Expr, tuple[tuple[Expr, ...], ...]], None] = {}
        for store, loops in stores_under(self.body):
            for lp in loops if store.combiner else ():
                if lp.note("register") is not NO_NOTE and not isinstance(lp.extent, Const):
                    e = lp.extent
                    args = e.args if isinstance(e, Op) and e.name == "min" else (e,)
                    rests = tuple(coefficients(a) for a in args if a != lp.nominal)
                    found[lp.nominal, rests] = None
        return tuple(found)

    def __str__(self) -> str:
        head = ", ".join(b.name for b in self.params)
        lines = [f"def {self.name}({head}):"]
        lines += [f"  {b}" for b in self.buffers]
        _print(self.body, 1, lines)
        before = "" if self.bound is None else str(self.bound)
        return before + "\n".join(lines) + "\n"


def block(stmts: list[Stmt]) -> Stmt:
    """One statement for a list of statements, with nested blocks flattened."""
    flat: list[Stmt] = []
    for s in stmts:
        flat.extend(s.stmts if isinstance(s, Block) else (s,))
    return flat[0] if len(flat) == 1 else Block(tuple(flat))


def _print(s: Stmt, depth: int, out: list[str]) -> None:
    pad = "  " * depth
    match s:
        case Block():
            for x in s.stmts:
                _print(x, depth, out)
        case For():
            kind = "" if s.mark == "serial" else f"{s.mark} "
            notes = [f"{k}={v}" for k, v in s.notes]
            notes += ["reduce"] if s.reduce else []
            tail = f"  # {', '.join(notes)}" if notes else ""
            out.append(f"{pad}{kind}for {s.var} in range({s.extent}):{tail}")
            _print(s.body, depth + 1, out)
        case Alloc():
            out.append(f"{pad}{s.buffer.name} = {s.buffer.scope}{_dims(s.buffer)}")
            _print(s.body, depth, out)
        case If():
            out.append(f"{pad}if {s.cond}:")
            _print(s.then, depth + 1, out)
            if s.orelse is not None:
                out.append(f"{pad}else:")
                _print(s.orelse, depth + 1, out)
        case Store():
            place = f"{s.buffer}[{', '.join(map(str, s.indices))}]"
            if s.combiner == "sum":
                out.append(f"{pad}{place} += {s.value}")
            elif s.combiner:
                out.append(f"{pad}{place} = {s.combiner}({place}, {s.value})")
            else:
                out.append(f"{pad}{place} = {s.value}")
        case Prefetch():
            out.append(f"{pad}prefetch {s.buffer}[{', '.join(map(str, s.indices))}]")


def _dims(b: Buffer) -> str:
    return f"[{', '.join(map(str, b.shape))}]"


# ---- traversal ----------------------------------------------------------------------------------


def children(s: Stmt) -> tuple[Stmt, ...]:
    """The direct substatements."""
    match s:
        case Block():
            return s.stmts
        case For() | Alloc():
            return (s.body,)
        case If():
            return (s.then,) if s.orelse is None else (s.then, s.orelse)
        case _:
            return ()


def walk(s: Stmt) -> Iterator[Stmt]:
    """The statement and all substatements, parents first."""
    stack = [s]
    while stack:
        x = stack.pop()
        yield x
        stack.extend(reversed(children(x)))


def stores_under(s: Stmt, loops: tuple[For, ...] = ()) -> Iterator[tuple[Store, tuple[For, ...]]]:
    """Every store with its surrounding loops, outermost first."""
    if isinstance(s, Store):
        yield s, loops
    inner = (*loops, s) if isinstance(s, For) else loops
    for c in children(s):
        yield from stores_under(c, inner)


def all_buffers(p: Program) -> list[Buffer]:
    """Parameters, temporaries and local buffers."""
    return [*p.buffers, *(s.buffer for s in walk(p.body) if isinstance(s, Alloc))]


def depth(p: Program) -> int:
    """Depth of the deepest expression of a program, in nodes."""
    stores = [s for s in walk(p.body) if isinstance(s, Store)]
    return max((e.depth for s in stores for e in (s.value, *s.indices)), default=0)


def map_exprs(s: Stmt, fn: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `fn` applied to every expression."""
    match s:
        case Block():
            return Block(tuple(map_exprs(x, fn) for x in s.stmts))
        case For():
            notes = tuple((k, fn(v)) for k, v in s.notes)
            body = map_exprs(s.body, fn)
            extent, nominal = fn(s.extent), fn(s.nominal)
            return For(s.var, extent, nominal, s.reduce, body, notes, s.mark, s.axis)
        case Alloc():
            return Alloc(map_buffer(s.buffer, fn), map_exprs(s.body, fn))
        case If():
            orelse = None if s.orelse is None else map_exprs(s.orelse, fn)
            return If(fn(s.cond), map_exprs(s.then, fn), orelse)
        case Store():
            indices, count = tuple(map(fn, s.indices)), tuple(map(fn, s.count))
            return Store(s.buffer, indices, fn(s.value), s.combiner, s.stage, count, s.ops)
        case Prefetch():
            return replace(s, indices=tuple(map(fn, s.indices)))


def map_buffer(b: Buffer, fn: Callable[[Expr], Expr]) -> Buffer:
    """The buffer with `fn` applied to every extent."""
    layout = b.layout
    if layout:
        layout = BufferLayout(tuple(tuple(map(fn, t)) for t in layout.tiles), layout.order)
    return replace(
        b, shape=tuple(map(fn, b.shape)), logical=tuple(map(fn, b.logical)), layout=layout
    )


def map_program(p: Program, values: Mapping[str, Expr]) -> Program:
    """The program with hole variables replaced by `values`."""

    def fn(e: Expr) -> Expr:
        names = tuple(sorted(e.free & values.keys()))
        return _filled(e, names, tuple([values[n] for n in names])) if names else e

    buffers = tuple(map_buffer(b, fn) for b in p.buffers)
    left = tuple(c for c in p.columns if c not in values)
    return replace(p, buffers=buffers, body=map_exprs(p.body, fn), columns=left)


@lru_cache(maxsize=1 << 14)
def _filled(e: Expr, names: tuple[str, ...], values: tuple[Expr, ...]) -> Expr:
    """Most expressions have few holes, so candidates of one sketch share what is made of them."""
    return substitute(e, dict(zip(names, values, strict=True)))


# ---- legality -----------------------------------------------------------------------------------


def verify(p: Program) -> None:
    """Raise ScheduleError unless every variable and buffer is defined where it is used.

    Also checked: names of loops and buffers are unique in a nest, parallel loops are outermost and
    no reductions. `ir.inside.verify_inside` proves that accesses stay inside their buffers.
    """
    known = set(p.columns)
    if len({b.name for b in p.buffers}) != len(p.buffers):
        raise ScheduleError(f"{p.name} has two buffers of the same name")
    _verify(p.body, known, {b.name: len(b.shape) for b in p.buffers}, True, True)


def _verify(s: Stmt, names: set[str], ranks: dict[str, int], outer: bool, root: bool) -> None:
    """Check one statement; `outer`: all enclosing loops are parallel; `root`: none encloses it."""
    match s:
        case Block():
            for x in s.stmts:
                _verify(x, names, ranks, outer and root, root)
        case For():
            _closed(s.extent, names, f"extent of {s.var}")
            if s.var in names:
                raise ScheduleError(f"loop {s.var} is nested in a loop of the same name")
            par = s.note("parallel")
            if par is not NO_NOTE and (s.reduce or not outer):
                raise ScheduleError(f"loop {s.var} is parallel but is a reduction or not outermost")
            still = outer and par is not NO_NOTE
            _verify(s.body, names | {s.var}, ranks, still, False)
        case Alloc():
            if s.buffer.name in ranks:
                raise ScheduleError(f"buffer {s.buffer.name} is allocated twice")
            inner = {**ranks, s.buffer.name: len(s.buffer.shape)}
            _verify(s.body, names, inner, outer, root)
        case If():
            _closed(s.cond, names, "condition")
            for x in children(s):
                _verify(x, names, ranks, outer, False)
        case Store():
            where = f"store to {s.buffer}"
            for e in (*s.indices, s.value):
                _closed(e, names, where)
            for name, idx in [
                (s.buffer, s.indices),
                *((x.tensor, x.indices) for e in (*s.indices, s.value) for x in loads(e)),
            ]:
                if name not in ranks:
                    raise ScheduleError(f"{where}: buffer {name} is not allocated here")
                if ranks[name] != len(idx) or not all(is_int(i) for i in idx):
                    raise ScheduleError(f"{where}: {name} takes {ranks[name]} integer indices")
        case Prefetch():
            for e in s.indices:
                _closed(e, names, f"prefetch of {s.buffer}")
            if ranks.get(s.buffer) != len(s.indices):
                raise ScheduleError(f"prefetch of {s.buffer}: no such buffer of this rank")


def _closed(e: Expr, names: set[str], where: str) -> None:
    """ScheduleError if an expression uses an undefined variable."""
    if not e.free <= names:
        unknown = ", ".join(sorted(e.free - names))
        raise ScheduleError(f"{where} uses {unknown}, which no loop or hole defines")
