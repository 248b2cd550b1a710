"""Expressions -> LLVM IR: scalars, or vectors along the vector loop around a store.

In: expressions of a specialised program and an `Env` (loop variables as LLVM i64 or Python ints).
Out: values of `codegen.ir_text`; `codegen.emit_index` emits index arithmetic. Contiguous accesses
become vector loads, invariant accesses broadcasts, other accesses one load per lane. A load inside
a `select` is either not executed where the condition is false, or reads a constant block of the
other value.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from ansorlite.calls import ALIGNMENT
from ansorlite.codegen import ir_text as ir
from ansorlite.codegen import neon
from ansorlite.codegen.dot import emit_packed, instruction
from ansorlite.codegen.emit_index import TYPES, IndexEmitter, declared
from ansorlite.codegen.fills import Fill, fill_of
from ansorlite.codegen.functions import as_one, emit_math
from ansorlite.codegen.ir_text import I1, I32, I64, VOID
from ansorlite.codegen.scope import Env
from ansorlite.codegen.vector_math import call_math, extremum
from ansorlite.codegen.zeros import decided
from ansorlite.errors import BuildError
from ansorlite.ir.expr import Const, Expr, Load, Op, Poly, Var, add, is_float, is_int, term_list
from ansorlite.ir.literals import BITS, BYTES, WIDE, least, rounded, wrapped
from ansorlite.ir.packed import PACKED
from ansorlite.ir.ranges import bounds
from ansorlite.ir.traverse import loads, substitute
from ansorlite.target import Target

FLOATS = ("float32", "float64")
VECTOR_BYTES = 16  # of a vector whose lanes serve as scalars
_FAST = ("contract",)
_ARITHMETIC = ("add", "sub", "mul", "div")
_ORDERED = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}


def _is_exact(product: Op) -> bool:
    """True for a product with a power of two."""
    return any(isinstance(f, Const) and abs(math.frexp(f.value)[0]) == 0.5 for f in product.args)


class ExprEmitter(IndexEmitter):
    """Emits expressions with one builder; `env` is given to every call."""

    def __init__(self, builder: ir.IRBuilder, target: Target) -> None:
        super().__init__(builder)
        self.target = target
        self.by_element = target.arch == "aarch64"  # multiplies vectors by one lane of a vector
        self._fills: dict[tuple[Op, str | None], Fill | None] = {}
        self._blocks: dict[str, ir.Value] = {}
        self._rows: dict[Hashable, tuple[Expr, int] | None] = {}

    def opaque(self, atom: Expr, env: Env) -> ir.Value:
        if isinstance(atom, Load):
            return self._widen(self.load(atom, env), atom.dtype)
        assert isinstance(atom, Op)
        if atom.name == "select":
            return self._select_scalar(atom, env)
        if atom.name in PACKED:
            return self._widen(self._packed(atom, env), "int32")
        return self._cast_scalar(atom, env)

    def _packed(self, e: Op, env: Env) -> ir.Value:
        """An operation on packed numbers, of scalars; neighbours in memory are read as one."""
        together = self._together(e, env)
        if together is not None:
            return together
        args = [self._scalar(a, env) for a in e.args]
        key = ("packed", e.name)
        return self.once(key, args, env, lambda: emit_packed(self.b, self.target, e.name, args))

    def _together(self, e: Op, env: Env) -> ir.Value | None:
        """The parts as one number of 32 bits, if they lie in this order side by side."""
        if not e.name.startswith("pack"):
            return None
        parts = [a.args[0] for a in e.args if isinstance(a, Op) and a.name == "cast"]
        chosen = [(p.args[0], p.args[2]) for p in parts if isinstance(p, Op) and p.name == "select"]
        if len(chosen) == len(e.args):  # elements inside, or numbers around them
            return self._together_or(e, parts, chosen, env)
        first = parts[0] if parts else None
        if len(parts) < len(e.args) or not isinstance(first, Load):
            return None
        size = BYTES[first.dtype]
        if size * len(parts) != 4:
            return None
        start = self.flat(first.tensor, first.indices, env)
        for k, part in enumerate(parts):
            if not isinstance(part, Load) or part.tensor != first.tensor:
                return None
            if self.flat(part.tensor, part.indices, env) != add(start, k):
                return None
        at = self.address(first.tensor, start, env)
        constant = env.memory[first.tensor].constant
        read = partial(self.b.load, at, I32, align=size)
        return self._loaded(at, env, -1, read, constant)

    def _together_or(
        self, e: Op, parts: Sequence[Expr], chosen: Sequence[tuple[Expr, Expr]], env: Env
    ) -> ir.Value | None:
        """Elements side by side where a condition holds, else numbers, as one number of 32 bits."""
        if len(set(chosen)) > 1:
            return None
        ((cond, fill),) = set(chosen)
        inner = [p.args[1] for p in parts if isinstance(p, Op)]
        if not all(isinstance(x, Load) for x in inner) or not isinstance(fill, Const):
            return None
        bits = 8 * BYTES[fill.dtype]
        number = sum((int(fill.value) & ((1 << bits) - 1)) << bits * k for k in range(len(inner)))
        whole = Op(e.name, tuple(Op("cast", (x,), "int32") for x in inner), "int32")
        flag = self._scalar(cond, env)
        return self.choose(
            flag,
            lambda: self._packed(whole, env.branch()),
            lambda: I32(wrapped(number, "int32")),
        )

    def _widen(self, v: ir.Value, dtype: str) -> ir.Value:
        return v if dtype == "int64" else self.b.sext(v, I64)

    # ---- values ---------------------------------------------------------------------------------

    def value(self, e: Expr, env: Env) -> ir.Value:
        """The value of an expression: a vector of `env.width` lanes if it depends on the vector
        loop's variable, else a scalar."""
        if env.vector is not None and env.vector in e.free:
            return self._vector(e, env)
        return self._scalar(e, env)

    def wide(self, e: Expr, env: Env) -> ir.Value:
        """`value`, with scalars broadcast to a vector inside a vector loop."""
        v = self.value(e, env)
        if env.vector is None or isinstance(v.type, ir.VectorType):
            return v
        if isinstance(v, ir.Constant):
            return self.splat(v, env.width)
        width = env.width
        return self.once(("splat", width), (v,), env, lambda: self.splat(v, width))

    def factor(self, dot: Op, place: int, env: Env) -> ir.Value:
        """The operand `place` of a sum of products `dot`, for `codegen.dot.accumulated`.

        Where instructions take a lane of a register, an operand that is the same for all lanes is
        one word in a register.
        """
        e = dot.args[place]
        known = instruction(self.target, dot.name, env.width)
        moving = env.vector is None or env.vector in e.free
        if not self.by_element or known is None or moving or isinstance(e, Const):
            return self.wide(e, env)
        if isinstance(e, Op) and e.name in PACKED:
            word = self._packed(e, env)
        else:
            word = self.load(e, env) if isinstance(e, Load) else self._scalar(e, env)
        lane = self.once(
            ("in lane", dot.name, place),
            (word,),
            env,
            lambda: neon.in_lane(self.b, known, word, place),
        )
        kind = "repeated", dot.name, known.lanes
        return self.once(kind, (lane,), env, lambda: neon.repeated(self.b, known, lane))

    def splat(self, v: ir.Value, width: int) -> ir.Value:
        if isinstance(v.type, ir.VectorType):
            return v
        kind = ir.vector(v.type, width)
        if isinstance(v, ir.Constant):
            return kind(v.constant)
        undefined = ir.Undefined(kind)
        one = self.b.insert_element(undefined, v, I32(0))
        return self.b.shuffle_vector(one, undefined, [0] * width)

    def _constant(self, e: Const) -> ir.Value:
        if e.dtype == "bool":
            return I1(int(e.value))
        value = wrapped(e.value, e.dtype) if e.dtype in BITS else rounded(e.value, e.dtype)
        return TYPES[e.dtype](value)

    def _scalar(self, e: Expr, env: Env) -> ir.Value:
        if isinstance(e, Const):
            return self._constant(e)
        if is_int(e):
            v = self.index(e, env)
            if isinstance(v, int):
                return TYPES[e.dtype](wrapped(v, e.dtype))
            return v if e.dtype == "int64" else self.b.trunc(v, I32)
        if isinstance(e, Load):
            return self.load(e, env)
        assert isinstance(e, Op)
        if e.name == "select":
            return self._select_scalar(e, env)
        if e.name == "cast":
            return self._cast_scalar(e, env)
        if e.name in ("and", "or", "not") or (e.name in _ORDERED and is_int(e.args[0])):
            known = decided(e, env.ranges)
            return self._undecided(e, env) if known is None else I1(known)
        e = as_one(e)
        return self._apply(e, [self._scalar(a, env) for a in e.args])

    def _undecided(self, e: Op, env: Env) -> ir.Value:
        """A condition that the ranges of variables do not decide: only its open parts count."""
        if e.name in _ORDERED and is_int(e.args[0]):
            sides = [self.index(a, env) for a in e.args]
            vals = [I64(v) if isinstance(v, int) else v for v in sides]
            sign = _ORDERED[e.name]
            return self.once(sign, sides, env, lambda: self.b.icmp_signed(sign, *vals))
        if e.name not in ("and", "or", "not"):
            return self._scalar(e, env)
        open_ = [a for a in e.args if decided(a, env.ranges) is None]
        args = [
            self._undecided(a, env) if isinstance(a, Op) else self._scalar(a, env) for a in open_
        ]
        return self.once(e.name, args, env, lambda: self._apply(e, args))

    def _apply(self, e: Op, args: list[ir.Value]) -> ir.Value:
        """Operations whose operands are all evaluated, on scalars or on vectors."""
        b = self.b
        match e.name:
            case "add":
                return b.fadd(args[0], args[1], _FAST)
            case "sub":
                # Not contracted to an FMA: x - max(x) must be 0 at the maximum, also where x is a
                # product that was rounded before the maximum was taken. A power of two rounds
                # nothing (but what is subnormal): the scores of most attention.
                products = [a for a in e.args if isinstance(a, Op) and a.name == "mul"]
                exact = products and all(map(_is_exact, products))
                return b.fsub(args[0], args[1], _FAST if exact else ())
            case "mul":
                return b.fmul(args[0], args[1], _FAST)
            case "div":
                return b.fdiv(*args)
            case "min" | "max":
                return extremum(b, e.name, *args)
            case "and" | "or":
                out = args[0]
                for a in args[1:]:
                    out = b.and_(out, a) if e.name == "and" else b.or_(out, a)
                return out
            case "not":
                return b.not_(args[0])
            case "exp" if isinstance(most := e.args[-1], Const):
                return emit_math(b, "exp", args[:1], self.target, float(most.value))
            case name if name in PACKED:
                return emit_packed(b, self.target, name, args)
            case name if name in _ORDERED:
                if is_float(e.args[0]):
                    if name == "ne":
                        return b.fcmp_unordered("!=", *args)
                    return b.fcmp_ordered(_ORDERED[name], *args)
                return b.icmp_unsigned(_ORDERED[name], *args)
            case name:
                return emit_math(b, name, args, self.target)

    def _cast_scalar(self, e: Op, env: Env) -> ir.Value:
        """A cast; a cast to an integer type gives an i64, as all index arithmetic does."""
        source, old = e.args[0], e.args[0].dtype
        if self._is_beyond(source, env):
            v, old = self._branch_value(source, env), "int64"
        else:
            v = self._scalar(source, env)
        out = self._convert(v, old, e.dtype)
        return self._widen(out, e.dtype) if is_int(e) else out

    def _is_beyond(self, e: Expr, env: Env) -> bool:
        """May an int32 expression of loop variables exceed int32? It means the exact integer."""
        if e.dtype != "int32" or e.reads or isinstance(e, Const):
            return False
        low, high = bounds(e, env.ranges)
        return low < least("int32") or high >= -least("int32")

    def _convert(self, v: ir.Value, old: str, new: str) -> ir.Value:
        b = self.b
        kind = I1 if new == "bool" else TYPES[new]
        if isinstance(v.type, ir.VectorType):
            kind = ir.vector(kind, v.type.count)
        via = WIDE.get(new) if old.startswith("float") else None
        via = "float32" if "float16" in (old, new) else via
        if via not in (None, old, new):
            return self._convert(self._convert(v, old, via), via, new)
        zero = v.type(0)
        if new == "bool":
            if old.startswith("float"):
                return b.fcmp_unordered("!=", v, zero)
            return b.icmp_signed("!=", v, zero)
        if new.startswith("float"):
            if old == "bool":
                return b.uitofp(v, kind)
            if old in BITS:
                return b.uitofp(v, kind) if old.startswith("uint") else b.sitofp(v, kind)
            return b.fpext(v, kind) if BYTES[new] > BYTES[old] else b.fptrunc(v, kind)
        if old == "bool":
            return b.zext(v, kind)
        if old.startswith("float"):
            return self._to_int(v, kind, new)
        if BYTES[new] == BYTES[old]:
            return v
        if BYTES[new] < BYTES[old]:
            return b.trunc(v, kind)
        return b.zext(v, kind) if old.startswith("uint") else b.sext(v, kind)

    def _to_int(self, v: ir.Value, kind: ir.Type, dtype: str) -> ir.Value:
        """A float as an integer; the least integer where it is NaN or out of range.

        LLVM's fptosi has an undefined result there.
        """
        b, low = self.b, least(dtype)
        size, limit = call_math(b, "llvm.fabs", v), v.type(-float(low))
        fits = b.fcmp_ordered("<", size, limit)
        return b.select(fits, b.fptosi(v, kind), kind(low))

    def _select_scalar(self, e: Op, env: Env) -> ir.Value:
        cond, a, c = e.args
        if (known := decided(cond, env.ranges)) is not None:
            return self._branch_value(a if known else c, env)
        filled = self._filled(e, env)
        if filled is not None:
            return filled
        flag = self._scalar(cond, env)

        def branch(x: Expr) -> Callable[[], ir.Value]:
            return lambda: self._branch_value(x, env)

        if not loads(a) and not loads(c):
            return self.b.select(flag, branch(a)(), branch(c)())
        return self.choose(flag, branch(a), branch(c))

    def _branch_value(self, e: Expr, env: Env) -> ir.Value:
        inner = env.branch()
        if not is_int(e):
            return self.value(e, inner)
        v = self.index(e, inner)
        return I64(v) if isinstance(v, int) else v

    def choose(
        self, flag: ir.Value, then: Callable[[], ir.Value], orelse: Callable[[], ir.Value]
    ) -> ir.Value:
        """A conditional value by branches: only the code of the chosen value is executed."""
        b = self.b
        yes, no, done = (b.append_basic_block(n) for n in ("then", "else", "join"))
        b.cbranch(flag, yes, no)
        incoming = []
        for start, fn in ((yes, then), (no, orelse)):
            b.position_at_end(start)
            value = fn()
            incoming.append((value, b.block))
            b.branch(done)
        b.position_at_end(done)
        widths = [v.type.count for v, _ in incoming if isinstance(v.type, ir.VectorType)]
        if widths and not all(isinstance(v.type, ir.VectorType) for v, _ in incoming):
            fixed = []
            for v, at in incoming:
                b.position_at_end(at)
                fixed.append((self.splat(v, widths[0]), at))
            incoming = fixed
            b.position_at_end(done)
        phi = b.phi(incoming[0][0].type)
        for value, at in incoming:
            phi.add_incoming(value, at)
        return phi

    # ---- vectors --------------------------------------------------------------------------------

    def _vector(self, e: Expr, env: Env) -> ir.Value:
        assert env.vector is not None
        if isinstance(e, Load):
            return self._load_vector(e, env)
        if isinstance(e, Op) and e.name in _ARITHMETIC and e.dtype in FLOATS:
            e = as_one(e)
            return self._apply(e, [self.wide(a, env) for a in e.args])
        if isinstance(e, Op) and e.name in PACKED:
            return self._apply(e, [self.wide(a, env) for a in e.args])
        if is_int(e):
            return self._int_vector(e, env)
        assert isinstance(e, Op)
        if e.name == "select":
            cond, a, c = e.args
            if (known := decided(cond, env.ranges)) is not None:
                return self.wide(a if known else c, env)
            if env.vector not in cond.free:
                filled = self._filled(e, env)
                if filled is not None:
                    return filled
                flag = self._scalar(cond, env)
                return self.choose(
                    flag,
                    lambda: self.wide(a, env.branch()),
                    lambda: self.wide(c, env.branch()),
                )
            if loads(a) or loads(c):
                return self._per_lane(e, env)
            return self.b.select(*(self.wide(x, env) for x in e.args))
        if any(self._is_beyond(a, env) for a in e.args):
            return self._per_lane(e, env)
        if e.name == "cast":
            source = e.args[0]
            return self._convert(self.value(source, env), source.dtype, e.dtype)
        if e.name in _ORDERED and is_int(e.args[0]):
            args = [self.wide(a, env) for a in e.args]
            return self.b.icmp_signed(_ORDERED[e.name], *args)
        return self._apply(e, [self.wide(a, env) for a in e.args])

    def _int_vector(self, e: Expr, env: Env) -> ir.Value:
        assert env.vector is not None
        c, start = self.along(e, env.vector)
        if not isinstance(c, Const):
            whole = self._int_whole(e, env)
            return self._per_lane(e, env) if whole is None else whole
        base = self._scalar(start, env)
        kind = ir.vector(base.type, env.width)
        steps = kind([wrapped(c.value * k, e.dtype) for k in range(env.width)])
        return self.b.add(self.splat(base, env.width), steps)

    def _int_whole(self, e: Expr, env: Env) -> ir.Value | None:
        """Sums and products of elements and of converted numbers, as one vector; None for others.

        They wrap at the width of their dtype, as the exact ones do when stored.
        """
        if isinstance(e, Op) and e.name == "cast" and not self._is_beyond(e.args[0], env):
            source = e.args[0]
            return self._convert(self.wide(source, env), source.dtype, e.dtype)
        if isinstance(e, Op) and e.name == "select":
            return self._int_pad(e, env)
        atoms = [a for m, _ in e.terms for a in m] if isinstance(e, Poly) else []
        if not isinstance(e, Poly) or not all(_is_element(a, e.dtype) for a in atoms):
            return None
        b, total = self.b, None
        for mono, c in e.terms:
            term: ir.Value = ir.vector(TYPES[e.dtype], env.width)(wrapped(c, e.dtype))
            for atom in mono:
                term = b.mul(term, self.wide(atom, env))
            total = term if total is None else b.add(total, term)
        return total

    def _int_pad(self, e: Op, env: Env) -> ir.Value | None:
        """Elements of a tensor where a condition holds for all lanes, else a constant; or None."""
        cond, x, fill = e.args
        if env.vector in cond.free or not _is_element(x, e.dtype) or not isinstance(fill, Const):
            return None
        kind = ir.vector(TYPES[e.dtype], env.width)
        none = kind(wrapped(int(fill.value), e.dtype))
        if (known := decided(cond, env.ranges)) is not None:
            return self.wide(x, env) if known else none
        flag = self._scalar(cond, env)
        return self.choose(flag, lambda: self.wide(x, env.branch()), lambda: none)

    def _per_lane(self, e: Expr, env: Env) -> ir.Value:
        """A vector of any expression, emitted as one scalar computation per lane."""
        assert env.vector is not None
        out: ir.Value | None = None
        for k in range(env.lanes):
            lane = env.inner({env.vector: k}, vector=None, width=1, lanes=1)
            v = self._scalar(e, lane)
            if out is None:
                out = self._unfilled(v.type, env)
            out = self.b.insert_element(out, v, I32(k))
        assert out is not None
        return out

    def _unfilled(self, kind: ir.Type, env: Env) -> ir.Value:
        """A vector to insert lanes into; unused lanes are 0, since subnormals would be slow."""
        whole = ir.vector(kind, env.width)
        return ir.Undefined(whole) if env.lanes == env.width else whole(None)

    # ---- memory ---------------------------------------------------------------------------------

    def load(self, e: Load, env: Env) -> ir.Value:
        if e in env.beside and (lane := self._lane(e, env)) is not None:
            return lane
        at = self.element(e.tensor, e.indices, env)

        def read() -> ir.Value:
            v = self._scalar_at(at, e.dtype, env)
            return self._boolean(v) if e.dtype == "bool" else v

        return self._loaded(at, env, 1, read, env.memory[e.tensor].constant)

    def _scalar_at(self, at: ir.Value, dtype: str, env: Env) -> ir.Value:
        """The element at an address; one that a register tile multiplies with stays a scalar.

        LLVM would read some with `ld1r`, to all lanes of a register, where the next address
        follows; behind a fence it multiplies by the one lane (`fmla v.s[0]`).
        """
        v = self.b.load(at, TYPES[dtype], align=BYTES[dtype])
        in_tile = env.room is not None and dtype in FLOATS
        return neon.fenced(self.b, v) if self.by_element and in_tile else v

    def _lane(self, e: Load, env: Env) -> ir.Value | None:
        """The element as a lane of a vector, see `codegen.lanes`; None of an element alone.

        None, too, beside vectors of another length: LLVM 22 joins two half vectors with lanes 0 and
        1 of a vector to a whole one with the wrong lanes.
        """
        var, copies = env.beside[e]
        k, full = env.vars[var], VECTOR_BYTES // BYTES[e.dtype]
        if env.width != full:
            return None
        first = k - k % full
        width = min(full, copies - first)
        if width & (width - 1):  # three: two and one
            first, width = (first, 2) if k - first < 2 else (first + 2, 1)
        if width == 1:
            return None
        at = self.element(e.tensor, e.indices, env.inner({var: first}))
        kind = ir.vector(TYPES[e.dtype], width)

        def read() -> ir.Value:
            return self.b.load(at, kind, align=BYTES[e.dtype])

        vector = self._loaded(at, env, width, read, constant=True)
        lane = k - first
        return self.once(
            ("lane", lane), (vector,), env, lambda: self.b.extract_element(vector, I32(lane))
        )

    def _loaded(
        self, at: ir.Value, env: Env, lanes: int, read: Callable[[], ir.Value], constant: bool
    ) -> ir.Value:
        """The loaded value; a constant buffer's value is reused while registers can hold it.

        Copies of an unrolled reduction often read the same element (windows overlap). LLVM would
        keep all such values and spill them to the stack. Beyond `env.room` values, the element is
        read again, after an empty assembly statement that keeps LLVM from merging both loads.
        """
        if not constant:
            return read()
        kind = "load", lanes
        key = kind, at
        if env.room is not None and env.scope.keep(key, env.room):
            self.b.asm("", VOID, [], effect=True)
        if at.home is None:
            return self.once_here(key, env, read)
        return self.once(kind, (at,), env, read, certain=True)

    def _boolean(self, v: ir.Value) -> ir.Value:
        return self.b.icmp_unsigned("!=", v, v.type(0))

    def _load_vector(self, e: Load, env: Env) -> ir.Value:
        assert env.vector is not None
        key = e, env.vector
        try:
            row = self._rows[key]
        except KeyError:
            row = self._rows[key] = self.consecutive(e.tensor, e.indices, env)
        if row is None:
            return self._load_lanes(e, env)
        at = self.address_of(e.tensor, *row, env)
        m = env.memory[e.tensor]

        def read() -> ir.Value:
            v = self._lanes_at(at, e.dtype, env, whole=m.padded)
            return self._boolean(v) if e.dtype == "bool" else v

        return self._loaded(at, env, env.lanes, read, m.constant)

    def _load_lanes(self, e: Load, env: Env) -> ir.Value:
        """A vector of elements that do not lie side by side."""
        assert env.vector is not None
        c, base = self.along(self.flat(e.tensor, e.indices, env), env.vector)
        if not isinstance(c, Const):
            return self._per_lane(e, env)
        kind = TYPES[e.dtype]
        out = self._unfilled(kind, env)
        for k in range(env.lanes):
            at = self.address(e.tensor, add(base, k * int(c.value)), env)
            v = self.b.load(at, kind, align=BYTES[e.dtype])
            out = self.b.insert_element(out, v, I32(k))
        return self._boolean(out) if e.dtype == "bool" else out

    def _lanes_at(self, at: ir.Value, dtype: str, env: Env, whole: bool = False) -> ir.Value:
        """The vector at an address; unless `whole`, no memory behind the used lanes is read."""
        kind = ir.vector(TYPES[dtype], env.width)
        if whole or env.lanes == env.width:
            in_tile = env.room is not None and not whole and dtype in FLOATS
            if in_tile and neon.splits(self.target, kind, dtype):
                return neon.in_halves(self.b, at, kind, BYTES[dtype])
            return self.b.load(at, kind, align=BYTES[dtype])
        if BYTES[dtype] < 4:  # AVX has masked loads of 4 and 8 bytes only
            few = ir.vector(TYPES[dtype], env.lanes)
            v = self.b.load(at, few, align=BYTES[dtype])
            order = [min(k, env.lanes) for k in range(env.width)]
            return self.b.shuffle_vector(v, few(None), order)
        mask = ir.vector(I1, env.width)
        load = declared(
            self.b.module, f"llvm.masked.load.{kind.short}.p0", kind, [at.type, I32, mask, kind]
        )
        used = mask([int(k < env.lanes) for k in range(env.width)])
        return self.b.call(load, [at, I32(BYTES[dtype]), used, kind(None)])

    def _aligned(self, rest: Expr, offset: int, env: Env) -> bool:
        """Is `rest` + `offset` a multiple of the vector width for all values of loop variables?"""
        if env.lanes < env.width or env.width & (env.width - 1):
            return False
        total = offset
        for mono, c in term_list(rest):
            known = [env.vars.get(a.name) for a in mono if isinstance(a, Var)]
            if len(known) == len(mono) and all(isinstance(v, int) for v in known):
                total += c * math.prod(v for v in known if isinstance(v, int))
            elif c % env.width:
                return False
        return total % env.width == 0

    def _filled(self, e: Op, env: Env) -> ir.Value | None:
        """A select without a branch (`codegen.fills`); None where it has another form."""
        if not isinstance(e.args[1], Load):
            return None
        key = e, env.vector
        try:
            known = self._fills[key]
        except KeyError:
            strides = env.memory[e.args[1].tensor].strides
            known = self._fills[key] = fill_of(e, env.vector, strides)
        if known is None:
            return None
        x = known.element
        width = env.width if known.moves else 1
        block = self._block(x.dtype, known.other, known.length + width, env)
        start = self.address(x.tensor, known.row, env, here=False)
        flag = self._scalar(known.cond, env)
        row = self.once(
            "select", (flag, start, block), env, lambda: self.b.select(flag, start, block)
        )
        at = self.moved(row, self.index(known.column, env), x.dtype, env)

        def read() -> ir.Value:
            if width > 1:
                return self._lanes_at(at, x.dtype, env)
            return self._scalar_at(at, x.dtype, env)

        lanes = env.lanes if width > 1 else 1
        return self._loaded(at, env, lanes, read, env.memory[x.tensor].constant)

    def _block(self, dtype: str, fill: Const, size: int, env: Env) -> ir.Value:
        """The address of a constant array of `size` elements, all equal to `fill`."""
        name, module = f"fill.{dtype}.{fill.value}.{size}", self.b.module
        if name not in module.globals:
            kind = ir.ArrayType(TYPES[dtype], size)
            values = kind(None if fill.value == 0 else fill.value)
            ir.Variable(module, name, values, internal=True, constant=True, align=ALIGNMENT)
        known = self._blocks.get(name)
        if known is None:  # a value of its own in each function, with a place there
            known = self._blocks[name] = ir.Value(ir.PTR, module.globals[name].text)
            self.place(known, env.scope.root)
        return known

    def store(self, tensor: str, indices: tuple[Expr, ...], value: ir.Value, env: Env) -> None:
        """Store a value; inside a vector loop, a vector whose lanes move along the loop."""
        dtype = env.memory[tensor].dtype
        if dtype == "bool":
            kind = TYPES[dtype]
            if isinstance(value.type, ir.VectorType):
                kind = ir.vector(kind, value.type.count)
            value = self.b.zext(value, kind)
        if env.vector is None:
            at = self.element(tensor, indices, env)
            self.b.store(value, at, align=BYTES[dtype])
            return
        value = self.splat(value, env.width)
        key = tensor, indices, env.vector
        try:
            row = self._rows[key]
        except KeyError:
            row = self._rows[key] = self.consecutive(tensor, indices, env)
        if row is not None:
            if env.lanes < env.width and not env.memory[tensor].padded:
                value = self._used(value, env)
            at, align = self.address_of(tensor, *row, env), BYTES[dtype]
            is_argument = isinstance(env.memory[tensor].pointer, ir.Argument)  # no local buffer
            past_caches = env.past_caches and is_argument and self._aligned(*row, env)
            align *= env.width if past_caches else 1
            self.b.store(value, at, align, past_caches=past_caches)
            return
        flat = self.flat(tensor, indices, env)
        if env.vector not in flat.free:
            raise BuildError(f"store to {tensor} does not move with vector loop {env.vector}")
        for k in range(env.lanes):
            lane = substitute(flat, {env.vector: Const(k)})
            v = self.b.extract_element(value, I32(k))
            self.b.store(v, self.address(tensor, lane, env), align=BYTES[dtype])

    def _used(self, value: ir.Value, env: Env) -> ir.Value:
        return self.b.shuffle_vector(value, value, list(range(env.lanes)))


def _is_element(e: Expr, dtype: str) -> bool:
    """Is the expression an integer of the dtype that is loaded, converted or packed?"""
    made = isinstance(e, Op) and e.name in ("cast", *PACKED)
    return e.dtype == dtype and (made or isinstance(e, Load))
