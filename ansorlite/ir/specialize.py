"""Specialisation of concrete programs: the one pass that duplicates code, visible in print.

In: a tidied `Program` with annotations. Out: a `Program` whose loops carry marks (serial, parallel,
vector, unroll, ...; vector and unroll loops have constant extents) and whose register tiles
accumulate in register buffers. The rewrites:

- in place: local buffers that take the place of others (`ir.reuse`)
- bodies: a register loop `range(min(t, N - base))` -> `if full: range(t) else: range(N mod t)`
- register: `for k: for s in tile: C[s] += e` -> `acc = C; for k: for s: acc[s] += e; C = acc`
- prologues: `x[s] = f(..)`, then `for k: for s: acc[s] += x[s]` -> one loop (`ir.prologue`)
- epilogues: `C = acc`, then `for s in tile: y[s] = f(C[s])` -> `y = f(acc)` (`ir.epilogue`)
- vectors: `for j in range(e)` with lanes V -> vectors of V, then one vector of the remainder
- guards: iterations whose summand is zero by a condition outside the tile -> skipped (`ir.guards`)
- rows: copies and pads of rows shorter than a vector -> longer rows (`ir.collapse`)
- transposes: a copy that reads along k and stores along j -> V x V squares (`ir.copies`)
- prefetches: operands of a tile's vectors some iterations ahead (`ir.prefetch`)
- horizontal: a reduction loop with lanes V -> V partial accumulators, combined afterwards
- choices: a loop over a list of different expressions -> these one by one (`ir.choices`)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ansorlite.ir.choices import write_out
from ansorlite.ir.collapse import collapsed
from ansorlite.ir.copies import is_transposed
from ansorlite.ir.epilogue import (
    Chain,
    Epilogue,
    chain_of,
    epilogue_of,
    loops_around,
    peeled,
    reads,
)
from ansorlite.ir.expr import Const, Expr, Load, Op, Var, add, floordiv, mod, mul
from ansorlite.ir.extremum import maximum
from ansorlite.ir.guards import HoistedGuards, hoist_guards, if_all, zero_borders
from ansorlite.ir.logic import combiner_identity
from ansorlite.ir.prefetch import prefetches
from ansorlite.ir.program import (
    NO_NOTE,
    Alloc,
    Block,
    Buffer,
    For,
    If,
    Mark,
    Program,
    Stmt,
    Store,
    block,
    map_exprs,
)
from ansorlite.ir.prologue import prologue_of
from ansorlite.ir.reuse import reuse_buffers
from ansorlite.ir.tiles import (
    extent_of,
    full_and_tail,
    lanes_of,
    pieces_of,
    region_of,
    whole_vectors,
)
from ansorlite.ir.traverse import substitute

MAX_TILE_VECTORS = 64  # largest register tile, in vectors; larger tiles stay loops
PARTIAL_VECTORS = 4  # vectors of partial results in a horizontal reduction
MAPPED_VECTORS = 16  # accumulators of a reduction beside a map, which needs registers of its own


def specialize(p: Program) -> Program:
    """The program that code generation compiles; the input must be concrete and tidied."""
    ready = reuse_buffers(p)
    return replace(ready, body=write_out(_Specializer(ready).visit(ready.body)))


@dataclass(frozen=True)
class _Ends:
    """What surrounds a reduction: its initial value, the map of its results and the map whose
    results it reads, where folded.
    """

    start: Const | None = None
    then: Epilogue | None = None
    before: Store | None = None

    def put(self, lp: For, index: Expr) -> "_Ends":
        """With the variable of a loop replaced by `index`."""
        if self.then is None:
            return self
        return replace(self, then=replace(self.then, store=_put(self.then.store, lp, index)))


def _same_elements(first: Chain, second: Chain) -> bool:
    """True if `first` stores to the elements of `second`, in the order of its spatial loops."""
    spatial = [lp for lp in second.loops if not lp.reduce]
    if first.store.buffer != second.store.buffer:
        return False
    if [lp.axis for lp in first.loops] != [lp.axis for lp in spatial]:
        return False
    names = {a.var: Var(b.var) for a, b in zip(first.loops, spatial, strict=True)}
    extents = [substitute(lp.extent, names) for lp in first.loops]
    indices = tuple(substitute(i, names) for i in first.store.indices)
    return extents == [lp.extent for lp in spatial] and indices == second.store.indices


class _Specializer:
    """One run of the pass; `visit` rewrites a statement, `fresh` numbers new variables and
    buffers.
    """

    def __init__(self, p: Program) -> None:
        self.dtypes = {b.name: b.dtype for b in p.buffers}
        self.buffers = {b.name: b for b in p.buffers}
        self.params = {b.name for b in p.params}
        self.borders = zero_borders(p)
        self.outside: list[For] = []  # loops around the nest in work
        self.around: set[str] = set()  # local buffers of the block in work
        self.fresh = 0

    def visit(self, s: Stmt) -> Stmt:
        """The statement with every annotated nest specialised."""
        match s:
            case Block():
                return self._block(s)
            case For():
                return self._loop(s)
            case Alloc():
                return self._alloc(s)
            case If():
                self.around = set()
                orelse = None if s.orelse is None else self.visit(s.orelse)
                return If(s.cond, self.visit(s.then), orelse)
            case _:
                return s

    def _alloc(self, s: Alloc) -> Stmt:
        """A local buffer, unless what it holds is in registers."""
        name = s.buffer.name
        self.dtypes[name] = s.buffer.dtype
        self.around.add(name)
        body = self.visit(s.body)
        return Alloc(s.buffer, body) if reads(body, name) else body

    def _block(self, s: Block) -> Stmt:
        """A block; a reduction, the initialisation before it and a map of its results after it are
        specialised together.
        """
        own, self.around = self.around, set()
        out: list[Stmt] = []
        k = 0
        while k < len(s.stmts):
            folded = self._mapped(s.stmts[k : k + 3]) or self._folded(s.stmts, k, own)
            if folded is not None:
                made, used = folded
                out.append(made)
                k += used
            else:
                out.append(self.visit(s.stmts[k]))
                k += 1
        return block(out)

    def _mapped(self, stmts: Sequence[Stmt]) -> tuple[Stmt, int] | None:
        """A map, the initialisation of a reduction and this reduction as one loop; otherwise None.

        Also that this replaces three statements.
        """
        if len(stmts) < 3:
            return None
        first, start, nest = map(chain_of, stmts)
        if first is None or start is None or nest is None or not nest.store.combiner:
            return None
        if not isinstance(start.store.value, Const) or not _same_elements(start, nest):
            return None
        store = prologue_of(first, nest, start.store)
        if store is None:
            return None
        along, cut = nest.loops[-1], region_of(nest.loops)
        sizes = full_and_tail(along)
        most = extent_of(along) if isinstance(along.extent, Const) else sizes[0] if sizes else 0
        if cut is None or not 0 < most <= MAPPED_VECTORS * lanes_of(along):
            return None
        # What the map stores is read again soon.
        loops = [*(replace(lp, notes=()) for lp in nest.loops[:-1]), _through_caches(along)]
        ends = _Ends(start.store.value, before=store)
        return self._nest(Chain(loops, nest.store), *cut, ends), 3

    def _folded(self, stmts: Sequence[Stmt], k: int, own: set[str]) -> tuple[Stmt, int] | None:
        """A reduction from statement `k` on with what surrounds it, and the statements it replaces.

        Loops around an initialisation and a reduction are those of the map after it, too, where
        that can follow in registers. Buffers `own` live no longer than these statements.
        """
        outer, inside = loops_around(stmts[k])
        if not outer or k + 1 == len(stmts):
            return self._reduction(stmts[k : k + 3], stmts[k + 3 :], own)
        then = peeled(stmts[k + 1], outer)
        if then is None or len(inside) != 2:
            return None
        found = self._reduction((*inside, then), stmts[k + 2 :], own)
        if found is None or found[1] < 3:
            return None
        body, _ = found
        for lp in reversed(outer):
            body = replace(lp, body=body, mark="serial", notes=())
        return body, 2

    def _reduction(
        self, stmts: Sequence[Stmt], others: Sequence[Stmt], own: set[str]
    ) -> tuple[Stmt, int] | None:
        """Initialisation, then reduction -> reduction with accumulators initialised in registers.

        Condition: both nests run over the same elements in the same order. None otherwise. Also how
        many of the statements this replaces: 3 with a map of the results.
        """
        if len(stmts) < 2:
            return None
        first, second = chain_of(stmts[0]), chain_of(stmts[1])
        if first is None or second is None or first.store.combiner or not second.store.combiner:
            return None
        value, cut = first.store.value, region_of(second.loops)
        if not isinstance(value, Const) or cut is None:
            return None
        if any(lp.reduce for lp in second.loops[: cut[0]]) or not _same_elements(first, second):
            return None
        then = None
        if len(stmts) > 2 and second.store.buffer in own:
            then = epilogue_of(second, stmts[2], others)
        return self._nest(second, *cut, _Ends(value, then)), 3 if then else 2

    # ---- loops ----------------------------------------------------------------------------------

    def _loop(self, s: For) -> Stmt:
        """A loop with all inside."""
        self.around = set()
        chain = chain_of(s)
        if chain is not None:
            rows = collapsed(chain.loops, chain.store, self.buffers)
            if rows is not None:
                return self.visit(rows)
            cut = region_of(chain.loops)
            if cut is not None:
                return self._nest(chain, *cut, _Ends())
        return self._plain(s)

    def _plain(self, s: For) -> Stmt:
        """A loop without a register tile or vector."""
        mark: Mark = "parallel" if s.note("parallel") is not NO_NOTE else "serial"
        return replace(s, body=self.visit(s.body), mark=mark, notes=())

    def _nest(self, chain: Chain, top: int, first: int, ends: _Ends) -> Stmt:
        """An annotated nest: loops from `top` reduce, loops from `first` are the register tile."""
        loops, store = chain.loops, chain.store
        if top == first > 0 and len(loops) == first + 1:
            across, lp = loops[first - 1], loops[first]
            if is_transposed(store, across, lp, lanes_of(lp)):
                top = first - 1
        self.outside = loops[:top]
        reduces = [lp for k, lp in enumerate(loops) if top <= k < first or (lp.reduce and k >= top)]
        tile = [lp for lp in loops[first:] if not lp.reduce]
        if isinstance(store.value, Const) or (store.combiner and ends.start is None):
            tile = [_through_caches(lp) for lp in tile]  # the result is read again soon
        if tile:
            body = self._bodies(reduces, tile, store, ends)
        else:
            before = [] if ends.start is None else [_begun(store, ends.start)]
            after = [] if ends.then is None else [ends.then.store]
            body = block([*before, self._horizontal(reduces, store), *after])
        for lp in reversed(loops[:top]):
            mark: Mark = "parallel" if lp.note("parallel") is not NO_NOTE else "serial"
            body = replace(lp, body=body, mark=mark, notes=())
        return body

    def _bodies(self, reduces: list[For], tile: list[For], store: Store, ends: _Ends) -> Stmt:
        """One body per combination of full and tail extents of the clamped tile loops."""
        for k, lp in enumerate(tile):
            if isinstance(lp.extent, Const):
                continue
            sizes = full_and_tail(lp)
            if sizes is None:
                return self._dynamic(reduces, tile, store, ends)
            full, rest, tail = sizes
            make: Callable[[int], list[For]] = lambda n, k=k: [  # type: ignore[misc]  # noqa: E731
                replace(t, extent=Const(n)) if q == k else t for q, t in enumerate(tile)
            ]
            return If(
                Op("le", (Const(full), rest), "bool"),
                self._bodies(reduces, make(full), store, ends),
                self._bodies(reduces, make(tail), store, ends),
            )
        return self._tile(reduces, tile, store, ends)

    def _dynamic(self, reduces: list[For], tile: list[For], store: Store, ends: _Ends) -> Stmt:
        """A tile with run-time extents: accumulates in memory, full vectors, then scalars."""
        lanes_at = next((k for k, lp in enumerate(tile) if lanes_of(lp) > 1), None)
        nests: list[Stmt] = []
        if ends.start is not None:
            nests.append(self._dynamic_nest([], tile, lanes_at, _begun(store, ends.start)))
        nests.append(self._dynamic_nest(reduces, tile, lanes_at, store))
        if ends.then is not None:
            nests.append(self._dynamic_nest([], ends.then.put(tile), lanes_at, ends.then.store))
        return block(nests)

    def _dynamic_nest(
        self, reduces: list[For], tile: list[For], lanes_at: int | None, store: Store
    ) -> Stmt:
        """The loops around a store, the one at `lanes_at` cut into full vectors and scalars."""

        def wrap(loops: list[For], body: Stmt) -> Stmt:
            for lp in reversed(loops):
                body = replace(lp, body=body, mark="serial", notes=())
            return body

        if lanes_at is None:
            return wrap(reduces + tile, store)
        lp = tile[lanes_at]
        lanes = lanes_of(lp)
        outer = reduces + tile[:lanes_at] + tile[lanes_at + 1 :]
        groups, vec = self._var(lp, "o"), self._var(lp, "v")
        index = add(mul(groups, lanes), vec)
        extent = maximum(lp.extent, 0)
        many = For(
            groups.name,
            floordiv(extent, lanes),
            floordiv(lp.nominal, lanes),
            False,
            For(vec.name, Const(lanes), Const(lanes), False, _put(store, lp, index), mark="vector"),
            axis=lp.axis,
        )
        one = self._var(lp, "s")
        rest = mod(extent, lanes)
        done = mul(floordiv(extent, lanes), lanes)
        single = For(
            one.name, rest, Const(lanes), False, _put(store, lp, add(done, one)), axis=lp.axis
        )
        return wrap(outer, block([many, single]))

    # ---- register tiles -------------------------------------------------------------------------

    def _tile(self, reduces: list[For], tile: list[For], store: Store, ends: _Ends) -> Stmt:
        """The code of a tile with constant extents."""
        sizes = [extent_of(lp) for lp in tile]
        vectors = math.prod(
            -(-n // max(1, lanes_of(lp))) for n, lp in zip(sizes, tile, strict=True)
        )
        registers = all(lp.note("register") is not NO_NOTE for lp in tile)
        if not store.combiner and len(tile) == 1 and reduces and not reduces[-1].reduce:
            return self._transposed(reduces[-1], tile[0], store)
        if not store.combiner or not reduces:
            nests = [self._spread(reduces + tile, tile, store, unroll=False)]
            if ends.start is not None:
                first = _begun(store, ends.start)
                nests.insert(0, self._spread(tile, tile, first, unroll=False))
            if ends.then is not None:
                own = ends.then.put(tile)
                nests.append(self._spread(own, own, ends.then.store, unroll=False))
            return block(nests)
        if not registers or vectors > MAX_TILE_VECTORS:
            return self._strips(reduces, tile, store, ends, vectors)
        return self._accumulate(reduces, tile, store, ends, vectors)

    def _vectors(
        self,
        lp: For,
        store: Store,
        piece: tuple[int, int, int],
        mark: Mark,
        around: Sequence[For] = (),
        before: Store | None = None,
    ) -> Stmt:
        """The vectors (first index, count, width) of a loop, each inside the loops `around`.

        The vector of the store `before` precedes each of them.
        """
        first, count, width = piece
        group, vec = self._var(lp, "o"), self._var(lp, "v")
        index = add(add(mul(group, width) if count > 1 else Const(0), vec), first)
        size, n = Const(width), Const(count)
        kind: Mark = "stream" if lp.note("stream") is not NO_NOTE else "vector"
        puts = [_put(s, lp, index) for s in (before, store) if s is not None]
        vector = For(vec.name, size, size, lp.reduce, store, mark=kind, axis=lp.axis)
        body = block([replace(vector, body=put) for put in puts])
        for outer in reversed(around):
            body = replace(outer, body=body)
        if count > 1:
            body = For(group.name, n, n, lp.reduce, body, mark=mark, axis=lp.axis)
        return body

    def _transposed(self, across: For, along: For, store: Store) -> Stmt:
        """Squares of lanes x lanes; the remainders at both ends are copied row by row."""
        lanes = lanes_of(along)
        rows: list[Stmt] = []
        for first, count, width in pieces_of(extent_of(across), lanes):
            group, row = self._var(across, "o"), self._var(across, "v")
            index = add(add(mul(group, width) if count > 1 else Const(0), row), first)
            put, n = _put(store, across, index), Const(width)
            parts: list[Stmt] = []
            for piece in pieces_of(extent_of(along), lanes):
                kind: Mark = "transpose" if width == piece[2] == lanes else "serial"
                loop = For(row.name, n, n, False, put, mark=kind, axis=across.axis)
                parts.append(self._vectors(along, put, piece, "serial", [loop]))
            body = block(parts)
            if count > 1:
                n = Const(count)
                body = For(group.name, n, n, False, body, axis=across.axis)
            rows.append(body)
        return block(rows)

    def _strips(
        self, reduces: list[For], tile: list[For], store: Store, ends: _Ends, vectors: int
    ) -> Stmt:
        """A tile too large for registers: strips of one vector, each with its own accumulator."""
        at = next((k for k, lp in enumerate(tile) if lanes_of(lp) > 1), None)
        if at is None:
            body = self._accumulate(reduces, [], store, ends, 1)
            for lp in reversed(tile):
                body = replace(lp, body=body, mark="serial", notes=())
            return body
        lp = tile[at]
        lanes, n = lanes_of(lp), extent_of(lp)
        pieces: list[Stmt] = []
        for first, count, width in pieces_of(n, lanes):
            group, vec = self._var(lp, "o"), self._var(lp, "v")
            index = add(add(mul(group, width), vec), first)
            piece = replace(lp, var=vec.name, extent=Const(width), nominal=Const(width))
            own = ends.put(lp, index)
            body = self._accumulate(reduces, [piece], _put(store, lp, index), own, 1)
            if count > 1:
                body = For(group.name, Const(count), Const(count), False, body, axis=lp.axis)
            else:
                body = map_exprs(body, lambda e, g=group: substitute(e, {g.name: Const(0)}))  # type: ignore[misc]
            pieces.append(body)
        body = block(pieces)
        for lp in reversed(tile[:at] + tile[at + 1 :]):
            body = replace(lp, body=body, mark="serial", notes=())
        return body

    def _accumulate(
        self,
        reduces: list[For],
        tile: list[For],
        store: Store,
        ends: _Ends,
        vectors: int,
    ) -> Stmt:
        """rewrite: `for k: for s in tile: C[s] += e` -> load or initialise acc, reduce into acc,
        store acc.
        """
        dtype = self.dtypes[store.buffer]
        shape = tuple(Const(whole_vectors(lp)) for lp in tile) or (Const(1),)
        self.fresh += 1
        acc = Buffer(f"{store.stage}.acc{self.fresh}", shape, dtype, "register", "temp", shape)
        at: tuple[Expr, ...] = tuple(Var(lp.var) for lp in tile) or (Const(0),)
        here = Load(store.buffer, store.indices, dtype)
        if ends.before is None:
            bare = hoist_guards(store, reduces, tile, self.outside, self.borders)
        else:  # the map is computed also where its result adds nothing
            bare = HoistedGuards(store, (), tuple(() for _ in reduces))
        start = ends.start if ends.start is not None else here
        begin = Store(acc.name, at, start, None, store.stage)
        step = Store(acc.name, at, bare.store.value, store.combiner, store.stage)
        result, last = Load(acc.name, at, dtype), tile
        end = Store(store.buffer, store.indices, result, None, store.stage)
        if ends.then is not None:
            end, last = ends.then.of(result, store.buffer), ends.then.put(tile)
        inner = self._spread(tile, tile, step, unroll=True, before=ends.before)
        inner = block([*prefetches(step, reduces, tile, self.params, self.outside), inner])
        copies, nested = vectors, True
        for lp, tests in zip(reversed(reduces), reversed(bare.tests), strict=True):
            inner, copies, nested = self._reduce_loop(lp, if_all(tests, inner), copies, nested)
        parts = [
            self._spread(tile, tile, begin, unroll=True),
            inner if ends.start is None else if_all(bare.outside, inner),
            self._spread(last, last, end, unroll=True),
        ]
        whole = Alloc(acc, block(parts))
        return if_all(bare.outside, whole) if ends.start is None else whole

    def _reduce_loop(
        self, lp: For, body: Stmt, copies: int, nested: bool
    ) -> tuple[Stmt, int, bool]:
        """The reduction loop, unrolled as far as its limit on copies of vectors allows.

        `nested` is True if all inner reductions are unrolled; otherwise only loops that are always
        unrolled are. Returns the loop, the number of copies in the loop, and `nested` for the
        surrounding loop.
        """
        limit = lp.note("unroll")
        allowed = int(limit.value) // max(1, copies) if isinstance(limit, Const) else 0
        n = lp.extent
        nested = nested or allowed > MAX_TILE_VECTORS
        if not nested or allowed < 2 or not isinstance(n, Const):
            short = isinstance(n, Const) and n.value == 1
            return replace(lp, body=body, mark="serial", notes=()), copies, nested and short
        if n.value <= allowed:
            unrolled = replace(lp, body=body, mark="unroll", notes=())
            return unrolled, copies * max(1, int(n.value)), True
        factor = max(d for d in range(1, allowed + 1) if n.value % d == 0)
        if 2 * factor <= allowed:  # the remainder is unrolled too, after the loop
            factor = allowed
        trips, rest = divmod(int(n.value), factor)
        outer, inner = self._var(lp, "o"), self._var(lp, "u")
        few = self._copies(lp, body, inner, add(mul(outer, factor), inner), factor)
        count = Const(trips)
        parts: list[Stmt] = [For(outer.name, count, count, True, few, axis=lp.axis)]
        if rest:
            last = self._var(lp, "u")
            parts.append(self._copies(lp, body, last, add(last, trips * factor), rest))
        return block(parts), copies * factor, False

    def _copies(self, lp: For, body: Stmt, var: Var, index: Expr, n: int) -> Stmt:
        """The body `n` times, with the loop variable replaced by `index`, a function of `var`."""
        values, memo = {lp.var: index}, dict[Expr, Expr]()
        body = map_exprs(body, lambda e: substitute(e, values, memo))
        return For(var.name, Const(n), Const(n), True, body, mark="unroll", axis=lp.axis)

    def _spread(
        self,
        loops: list[For],
        tile: list[For],
        store: Store,
        unroll: bool,
        before: Store | None = None,
    ) -> Stmt:
        """The loops around a store, with the vector loop innermost and cut into vectors.

        The store `before` comes first for each vector.

        A sum into a tile with more vectors than rows goes vector by vector through all rows: one
        vector of one operand and the rows of the other operand are live, instead of all vectors.
        """
        at = next((lp for lp in tile if lanes_of(lp) > 1 and extent_of(lp) > 1), None)
        rest = [lp for lp in loops if lp is not at]
        bodies: list[Stmt] = [s for s in (before, store) if s is not None]
        if at is not None:
            kind: Mark = "unroll" if unroll else "serial"
            pieces = pieces_of(extent_of(at), lanes_of(at))
            around: list[For] = []
            if unroll and store.combiner and pieces[0][1] > math.prod(map(extent_of, rest)):
                around = [replace(lp, mark="unroll", notes=()) for lp in rest]
                rest = []
            bodies = [self._vectors(at, store, piece, kind, around, before) for piece in pieces]
        body = block(bodies)
        for lp in reversed(rest):
            mark: Mark = "unroll" if unroll and lp in tile else "serial"
            body = replace(lp, body=body, mark=mark, notes=())
        return body

    def _horizontal(self, reduces: list[For], store: Store) -> Stmt:
        """A reduction into one element with lanes on the innermost loop."""
        *outer, lp = reduces
        lanes, n = lanes_of(lp), extent_of(lp)
        dtype = self.dtypes[store.buffer]
        assert store.combiner is not None
        identity = combiner_identity(store.combiner, dtype)
        ways = min(PARTIAL_VECTORS, n // lanes)
        chunks: list[tuple[int, int, int]] = []  # (first index, iterations, elements per iteration)
        if ways:
            trips = n // (lanes * ways)
            chunks.append((0, trips, lanes * ways))
        done = chunks[0][1] * chunks[0][2] if chunks else 0
        for first, count, width in pieces_of(n - done, lanes):
            chunks.append((done + first, count, width))
        nests: list[Stmt] = []
        for first, trips, size in chunks:
            nests.append(self._partial(outer, lp, store, identity, (first, trips, size, lanes)))
        return block(nests)

    def _partial(
        self,
        outer: list[For],
        lp: For,
        store: Store,
        identity: Const,
        chunk: tuple[int, int, int, int],
    ) -> Stmt:
        """One chunk (first index, iterations, elements per iteration, lanes) of `_horizontal`."""
        first, trips, size, lanes = chunk
        dtype = identity.dtype
        self.fresh += 1
        shape = (Const(-(-size // lanes) * lanes),)
        acc = Buffer(f"{store.stage}.part{self.fresh}", shape, dtype, "register", "temp", shape)
        lane = self._var(lp, "v")
        part = For(lane.name, Const(size), Const(size), False, store, axis=lp.axis)
        part = replace(part, notes=(("lanes", Const(lanes)),))
        trip = self._var(lp, "o")
        index = add(add(mul(trip, size), lane), first)
        add_up = replace(_put(store, lp, index), buffer=acc.name, indices=(lane,))
        begin = Store(acc.name, (lane,), identity, None, store.stage)
        fold = replace(store, value=Load(acc.name, (lane,), dtype))
        body = self._spread([part], [part], add_up, unroll=True)
        body = For(trip.name, Const(trips), Const(trips), True, body, axis=lp.axis)
        for o in reversed(outer):
            body = replace(o, body=body, mark="serial", notes=())
        parts = [self._spread([part], [part], begin, unroll=True), body]
        if size > lanes:
            parts.append(self._fold_vectors(acc, lanes, size // lanes, add_up))
        few = Const(min(lanes, size))
        parts.append(replace(part, extent=few, nominal=few, body=fold, mark="unroll", notes=()))
        return Alloc(acc, block(parts))

    def _fold_vectors(self, acc: Buffer, lanes: int, n: int, like: Store) -> Stmt:
        """Combine the n vectors of partial results into the first vector."""
        self.fresh += 1
        which, lane = Var(f"{acc.name}.w{self.fresh}"), Var(f"{acc.name}.v{self.fresh}")
        partial = Load(acc.name, (add(mul(add(which, 1), lanes), lane),), acc.dtype)
        step = replace(like, indices=(lane,), value=partial)
        width, times = Const(lanes), Const(n - 1)
        body = For(lane.name, width, width, False, step, mark="vector")
        return For(which.name, times, times, False, body, mark="unroll")

    def _var(self, lp: For, suffix: str) -> Var:
        """A fresh variable derived from the variable of a loop."""
        self.fresh += 1
        return Var(f"{lp.var}.{suffix}{self.fresh}")


def _begun(store: Store, value: Const) -> Store:
    """The store of an initial value."""
    return replace(store, value=value, combiner=None)


def _through_caches(lp: For) -> For:
    """The loop without annotation "stream"."""
    return replace(lp, notes=tuple((key, v) for key, v in lp.notes if key != "stream"))


def _put(store: Store, lp: For, index: Expr) -> Store:
    """The store with the variable of a loop replaced by `index`."""
    values, memo = {lp.var: index}, dict[Expr, Expr]()
    out = map_exprs(store, lambda e: substitute(e, values, memo))
    assert isinstance(out, Store)
    return out
