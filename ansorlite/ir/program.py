"""The loop IR: one grammar from the lowered sketch (with holes) to the program that is compiled.

Grammar (printed as it reads in Python):
    Program := buffers, Stmt                  parameters and root-level temporaries, then the body
    Stmt    := Block(stmts)
             | For(var, extent, ...)          var in range(extent); `nominal`: extent unclamped
             | Alloc(buffer, body)            a local or register buffer, alive in the body
             | If(cond, then, orelse)         made by `specialize` only
             | Store(buffer, indices, value)  buffer[indices] = value, or combined with the old
             | Prefetch(buffer, indices)      its cache line will be read; by `specialize` only
    expressions: see `ir.expr`; a Load reads a buffer by name.
Annotations of a loop are (key, integer expression), zero or one meaning "no":
    parallel   1: iterations are grains shared among threads (only outermost loops of a root nest)
    lanes      iterations are executed this many at a time in one vector
    register   1: part of a register tile, unrolled with its accumulators in registers
    unroll     unroll the loop if its body is then repeated at most this many times
    prefetch   ask for what the vectors of a reduction read so many iterations ahead
    stream     1: vectors are stored past the caches
`specialize` turns them into `mark` (serial, parallel, vector, unroll) with constant extents.
Before `fill`, extents and indices may contain holes; afterwards the program is concrete.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from ansorlite.errors import ScheduleError
from ansorlite.ir.expr import Const, Expr, Op, coefficients, is_int
from ansorlite.ir.traverse import loads, substitute

Scope = Literal["global", "local", "register"]
BufferRole = Literal["input", "constant", "derived", "output", "temp"]
# "transpose": around a vector loop that stores what it reads along the other loop; "stream": a
# vector loop whose stores go past the caches
Mark = Literal["serial", "parallel", "vector", "stream", "unroll", "transpose"]
Annotations = tuple[tuple[str, Expr], ...]


@dataclass(frozen=True)
class BufferLayout:
    """A packed layout: per dimension the extents of its levels, and the order (dim, level)."""

    tiles: tuple[tuple[Expr, ...], ...]
    order: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[Expr, ...]:
        return tuple(self.tiles[d][lv] for d, lv in self.order)


@dataclass(frozen=True)
class Buffer:
    """Memory for a tensor: `shape` is what is stored, `logical` what the user sees.

    A "derived" buffer holds what `Program.bound` computes from the constants.
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
    """`count` is how often it runs, as factors; `stage` the stage that it computes.

    `ops` are the operations of one execution by class, as the te expression has them: a guard that
    turns out to be always true in one candidate does not change them.
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
    """Computes nothing; `indices` may lie outside of the buffer."""

    buffer: str
    indices: tuple[Expr, ...]


NO_NOTE = Const(0)


@dataclass(frozen=True)
class For:
    """`axis` is (stage, te axis, level): what the loop iterates over, for features and printing."""

    var: str
    extent: Expr
    nominal: Expr
    reduce: bool
    body: "Stmt"
    notes: Annotations = ()
    mark: Mark = "serial"
    axis: tuple[str, str, int] = ("", "", 0)

    def note(self, key: str) -> Expr:
        """The value of an annotation, NO_NOTE itself where there is none or it is 0."""
        for name, value in self.notes:
            if name == key:
                return NO_NOTE if value == NO_NOTE else value
        return NO_NOTE


@dataclass(frozen=True)
class Alloc:
    buffer: Buffer
    body: "Stmt"


@dataclass(frozen=True)
class If:
    cond: Expr
    then: "Stmt"
    orelse: "Stmt | None" = None


@dataclass(frozen=True)
class Block:
    stmts: tuple["Stmt", ...]


Stmt = Block | For | Alloc | If | Store | Prefetch


@dataclass(frozen=True)
class Program:
    """A lowered task; parameters come first in `buffers`, in order of the kernel's arguments.

    `bound` computes the derived parameters, once, when the constants are known.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: Stmt
    columns: tuple[str, ...] = field(default=())  # hole variables still open, sorted
    bound: "Program | None" = None

    @cached_property
    def by_name(self) -> dict[str, Buffer]:
        return {b.name: b for b in all_buffers(self)}

    @property
    def params(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.role != "temp")

    @cached_property
    def register_clamps(self) -> tuple[tuple[Expr, tuple[tuple[Expr, ...], ...]], ...]:
        """(nominal extent, coefficients of each clamp) of register loops around reductions.

        Coefficients are those of the loop variables and the constant part, over holes.
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
    """A statement for a list, flattened; a single one stays as it is."""
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
    yield s
    for c in children(s):
        yield from walk(c)


def stores_under(s: Stmt, loops: tuple[For, ...] = ()) -> Iterator[tuple[Store, tuple[For, ...]]]:
    """Every store with the loops around it, outermost first."""
    if isinstance(s, Store):
        yield s, loops
    inner = (*loops, s) if isinstance(s, For) else loops
    for c in children(s):
        yield from stores_under(c, inner)


def all_buffers(p: Program) -> list[Buffer]:
    return [*p.buffers, *(s.buffer for s in walk(p.body) if isinstance(s, Alloc))]


def depth(p: Program) -> int:
    """The depth of the deepest expression that a program computes."""
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
            return replace(s, extent=fn(s.extent), nominal=fn(s.nominal), notes=notes, body=body)
        case Alloc():
            return Alloc(map_buffer(s.buffer, fn), map_exprs(s.body, fn))
        case If():
            orelse = None if s.orelse is None else map_exprs(s.orelse, fn)
            return If(fn(s.cond), map_exprs(s.then, fn), orelse)
        case Store():
            return replace(
                s,
                indices=tuple(map(fn, s.indices)),
                value=fn(s.value),
                count=tuple(map(fn, s.count)),
            )
        case Prefetch():
            return replace(s, indices=tuple(map(fn, s.indices)))


def map_buffer(b: Buffer, fn: Callable[[Expr], Expr]) -> Buffer:
    layout = b.layout
    if layout:
        layout = BufferLayout(tuple(tuple(map(fn, t)) for t in layout.tiles), layout.order)
    return replace(
        b, shape=tuple(map(fn, b.shape)), logical=tuple(map(fn, b.logical)), layout=layout
    )


def map_program(p: Program, values: Mapping[str, Expr]) -> Program:
    """Substitute variables everywhere."""
    memo: dict[Expr, Expr] = {}

    def fn(e: Expr) -> Expr:
        return substitute(e, values, memo)

    buffers = tuple(map_buffer(b, fn) for b in p.buffers)
    left = tuple(c for c in p.columns if c not in values)
    return replace(p, buffers=buffers, body=map_exprs(p.body, fn), columns=left)


# ---- legality -----------------------------------------------------------------------------------


def verify(p: Program) -> None:
    """Raise ScheduleError unless every variable and buffer is defined where it is used."""
    known = set(p.columns)
    if len({b.name for b in p.buffers}) != len(p.buffers):
        raise ScheduleError(f"{p.name} has two buffers of one name")
    _verify(p.body, known, {b.name: len(b.shape) for b in p.buffers}, True, True)


def _verify(s: Stmt, names: set[str], ranks: dict[str, int], outer: bool, root: bool) -> None:
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
    if not e.free <= names:
        unknown = ", ".join(sorted(e.free - names))
        raise ScheduleError(f"{where} uses {unknown}, which no loop or hole defines")
