"""Expressions as LLVM IR: scalars, and explicit vectors over the one vector loop around a store.

In: expressions of a specialised program under an `Env` (loop variables as LLVM i64 or Python ints).
Out: llvmlite values. Index arithmetic is i64, split into a run-time part, emitted once per scope,
and a constant offset, so unrolled bodies share address computations. Contiguous accesses become
vector loads, invariant ones broadcasts, others gathers. A load guarded by a select is not executed
where its condition is false.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llvmlite import ir

from ansorlite.codegen.vector_math import emit_math
from ansorlite.errors import BuildError
from ansorlite.ir.expr import Const, Expr, Load, Op, Var, add, is_float, is_int, mul, terms_of
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads, substitute

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
TYPES: dict[str, ir.Type] = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "int32": I32,
    "int64": I64,
    "bool": ir.IntType(8),
}
BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}
_FAST = ("contract",)
_ORDERED = {"lt": "<", "le": "<=", "eq": "==", "ne": "!="}


@dataclass
class Memory:
    """A buffer at run time: its pointer and row-major strides in elements."""

    pointer: ir.Value
    strides: tuple[int, ...]
    dtype: str


@dataclass
class Env:
    """What is known at one place: loop variables, buffers, and values computed so far."""

    vars: dict[str, Any]  # ir.Value (i64) or int
    memory: dict[str, Memory]
    vector: str | None = None  # variable of the vector loop
    width: int = 1
    cache: dict[Any, ir.Value] = field(default_factory=dict)

    @property
    def settled(self) -> dict[str, int]:
        """Variables that have one value in all lanes, known now."""
        known = {name: v for name, v in self.vars.items() if isinstance(v, int)}
        known.pop(self.vector or "", None)
        return known

    def inner(self, **changed: Any) -> "Env":
        """The environment of a nested scope; it sees but does not extend this one's cache."""
        return Env(
            {**self.vars, **changed.get("vars", {})},
            changed.get("memory", self.memory),
            changed.get("vector", self.vector),
            changed.get("width", self.width),
            dict(self.cache),
        )


class ExprEmitter:
    """Emits expressions with one builder; `env` is given to every call."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder
        self._flat: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._numbers: dict[int, tuple[int, ir.Value]] = {}

    # ---- integers -------------------------------------------------------------------------------

    def index(self, e: Expr, env: Env) -> Any:
        """An integer expression free of the vector variable: a Python int or an i64."""
        offset, rest = self._parts(e, env)
        if rest is None:
            return offset
        return self.b.add(rest, I64(offset)) if offset else rest

    def _parts(self, e: Expr, env: Env) -> tuple[int, ir.Value | None]:
        """(constant, run-time value or None) with their sum the value of `e`."""
        offset = 0
        runtime: dict[tuple[Any, ...], int] = {}
        atoms: dict[Any, ir.Value] = {}
        for mono, c in terms_of(e).items():
            left: list[Any] = []
            for atom in mono:
                value = self._atom(atom, env)
                if isinstance(value, int):
                    c *= value
                else:
                    number = self._number(value)
                    atoms[number] = value
                    left.append(number)
            if left:
                key = tuple(sorted(left))
                runtime[key] = runtime.get(key, 0) + c
            else:
                offset += c
        wanted = tuple(sorted((k, c) for k, c in runtime.items() if c))
        if not wanted:
            return offset, None
        known = env.cache.get(wanted)
        if known is None:
            total: ir.Value | None = None
            for ids, c in wanted:
                prod = atoms[ids[0]]
                for k in ids[1:]:
                    prod = self.b.mul(prod, atoms[k])
                if c != 1:
                    prod = self.b.mul(prod, I64(c), flags=["nsw"])
                total = prod if total is None else self.b.add(total, prod, flags=["nsw"])
            known = env.cache[wanted] = total
        return offset, known

    def _number(self, value: ir.Value) -> int:
        """Values by order of use: what is emitted must not depend on memory addresses."""
        known = self._numbers.get(id(value))
        if known is None:
            known = self._numbers[id(value)] = len(self._numbers), value
        return known[0]

    def _operand(self, x: Any) -> Any:
        return x if isinstance(x, int) else (self._number(x),)

    def _atom(self, atom: Expr, env: Env) -> Any:
        if isinstance(atom, Const):
            return int(atom.value)
        if isinstance(atom, Var):
            return env.vars[atom.name]
        if isinstance(atom, Load):
            return self._widen(self.load(atom, env), atom.dtype)
        assert isinstance(atom, Op)
        if atom.name == "select":
            return self._select_scalar(atom, env)
        if atom.name == "cast":
            return self._cast_scalar(atom, env)
        args = [self.index(a, env) for a in atom.args]
        if all(isinstance(a, int) for a in args):
            return _fold(atom.name, [a for a in args if isinstance(a, int)])
        # The values of the operands decide: the same text means another value in another copy.
        key = ("atom", atom.name, tuple(self._operand(a) for a in args))
        if key not in env.cache:
            env.cache[key] = self._int_op(atom.name, args)
        return env.cache[key]

    def _widen(self, v: ir.Value, dtype: str) -> ir.Value:
        return v if dtype == "int64" else self.b.sext(v, I64)

    def _int_op(self, name: str, args: list[Any]) -> ir.Value:
        b = self.b
        vals = [I64(a) if isinstance(a, int) else a for a in args]
        if name in ("min", "max"):
            out = vals[0]
            for v in vals[1:]:
                less = b.icmp_signed("<", out, v)
                out = b.select(less, out, v) if name == "min" else b.select(less, v, out)
            return out
        if name == "abs":
            return b.select(b.icmp_signed("<", vals[0], I64(0)), b.neg(vals[0]), vals[0])
        x, y = vals
        if name == "ceildiv":
            x = b.neg(x)
        q, r = b.sdiv(x, y), b.srem(x, y)
        off = b.and_(b.icmp_signed("!=", r, I64(0)), b.icmp_signed("<", b.xor(r, y), I64(0)))
        if name == "mod":
            return b.select(off, b.add(r, y), r)
        floor = b.select(off, b.sub(q, I64(1)), q)
        return b.neg(floor) if name == "ceildiv" else floor

    # ---- values ---------------------------------------------------------------------------------

    def value(self, e: Expr, env: Env) -> ir.Value:
        """The value of an expression; a vector of `env.width` if it moves with the vector loop."""
        if env.vector is not None and env.vector in e.free:
            return self._vector(e, env)
        return self._scalar(e, env)

    def wide(self, e: Expr, env: Env) -> ir.Value:
        """Like `value`, but broadcast to a vector inside a vector loop."""
        v = self.value(e, env)
        return self.splat(v, env.width) if env.vector is not None else v

    def splat(self, v: ir.Value, width: int) -> ir.Value:
        if isinstance(v.type, ir.VectorType):
            return v
        kind = ir.VectorType(v.type, width)
        if isinstance(v, ir.Constant):
            return ir.Constant(kind, [v.constant] * width)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), v, I32(0))
        mask = ir.Constant(ir.VectorType(I32, width), [0] * width)
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)

    def _constant(self, e: Const) -> ir.Value:
        kind = I1 if e.dtype == "bool" else TYPES[e.dtype]
        return ir.Constant(kind, int(e.value) if e.dtype == "bool" else e.value)

    def _scalar(self, e: Expr, env: Env) -> ir.Value:
        if isinstance(e, Const):
            return self._constant(e)
        if is_int(e):
            v = self.index(e, env)
            v = I64(v) if isinstance(v, int) else v
            return v if e.dtype == "int64" else self.b.trunc(v, I32)
        if isinstance(e, Load):
            return self.load(e, env)
        assert isinstance(e, Op)
        if e.name == "select":
            return self._select_scalar(e, env)
        if e.name == "cast":
            return self._cast_scalar(e, env)
        if e.name in _ORDERED and is_int(e.args[0]):
            x, y = (self.index(a, env) for a in e.args)
            vals = [I64(v) if isinstance(v, int) else v for v in (x, y)]
            return self.b.icmp_signed(_ORDERED[e.name], *vals)
        return self._apply(e, [self._scalar(a, env) for a in e.args])

    def _apply(self, e: Op, args: list[ir.Value]) -> ir.Value:
        """Operations whose operands are all evaluated, on scalars or on vectors."""
        b = self.b
        match e.name:
            case "add":
                return b.fadd(*args, flags=_FAST)
            case "sub":
                return b.fsub(*args, flags=_FAST)
            case "mul":
                return b.fmul(*args, flags=_FAST)
            case "div":
                return b.fdiv(*args)
            case "min" | "max":
                return self.extremum(e.name, *args)
            case "and" | "or":
                out = args[0]
                for a in args[1:]:
                    out = b.and_(out, a) if e.name == "and" else b.or_(out, a)
                return out
            case "not":
                return b.not_(args[0])
            case name if name in _ORDERED:
                if is_float(e.args[0]):
                    if name == "ne":
                        return b.fcmp_unordered("!=", *args)
                    return b.fcmp_ordered(_ORDERED[name], *args)
                return b.icmp_unsigned(_ORDERED[name], *args)
            case name:
                return emit_math(b, name, args)

    def extremum(self, name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        """min or max; a NaN in the operand that is no constant wins (one minps/maxps on x86)."""
        if isinstance(y, ir.Constant):
            x, y = y, x
        kind = x.type.element if isinstance(x.type, ir.VectorType) else x.type
        if kind == I1:
            return self.b.and_(x, y) if name == "min" else self.b.or_(x, y)
        if isinstance(kind, ir.IntType):
            first = self.b.icmp_signed("<" if name == "min" else ">", x, y)
        else:
            first = self.b.fcmp_ordered("<" if name == "min" else ">", x, y)
        return self.b.select(first, x, y)

    def _cast_scalar(self, e: Op, env: Env) -> ir.Value:
        """A cast; to integers the result is i64, as everywhere in index arithmetic."""
        out = self._convert(self._scalar(e.args[0], env), e.args[0].dtype, e.dtype)
        return self._widen(out, e.dtype) if is_int(e) else out

    def _convert(self, v: ir.Value, old: str, new: str) -> ir.Value:
        b = self.b
        kind = I1 if new == "bool" else TYPES[new]
        if isinstance(v.type, ir.VectorType):
            kind = ir.VectorType(kind, v.type.count)
        zero = ir.Constant(v.type, [0] * v.type.count if isinstance(v.type, ir.VectorType) else 0)
        if new == "bool":
            if old.startswith("float"):
                return b.fcmp_unordered("!=", v, zero)
            return b.icmp_signed("!=", v, zero)
        if new.startswith("float"):
            if old == "bool":
                return b.uitofp(v, kind)
            if old.startswith("int"):
                return b.sitofp(v, kind)
            return b.fpext(v, kind) if BYTES[new] > BYTES[old] else b.fptrunc(v, kind)
        if old == "bool":
            return b.zext(v, kind)
        if old.startswith("float"):
            return b.fptosi(v, kind)
        if BYTES[new] == BYTES[old]:
            return v
        return b.sext(v, kind) if BYTES[new] > BYTES[old] else b.trunc(v, kind)

    def _select_scalar(self, e: Op, env: Env) -> ir.Value:
        cond, a, c = e.args
        flag = self._scalar(cond, env)

        def branch(x: Expr) -> Callable[[], ir.Value]:
            return lambda: self._branch_value(x, env)

        if not loads(a) and not loads(c):
            return self.b.select(flag, branch(a)(), branch(c)())
        return self.choose(flag, branch(a), branch(c))

    def _branch_value(self, e: Expr, env: Env) -> ir.Value:
        inner = env.inner()
        if not is_int(e):
            return self.value(e, inner)
        v = self.index(e, inner)
        return I64(v) if isinstance(v, int) else v

    def choose(
        self, flag: ir.Value, then: Callable[[], ir.Value], orelse: Callable[[], ir.Value]
    ) -> ir.Value:
        """Control flow: only the branch taken is executed."""
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
                b.position_before(at.terminator)
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
        if is_int(e):
            return self._int_vector(e, env)
        assert isinstance(e, Op)
        if e.name == "select":
            cond, a, c = e.args
            if env.vector not in cond.free:
                flag = self._scalar(cond, env)
                return self.choose(
                    flag,
                    lambda: self.wide(a, env.inner()),
                    lambda: self.wide(c, env.inner()),
                )
            if loads(a) or loads(c):
                return self._per_lane(e, env)
            return self.b.select(*(self.wide(x, env) for x in e.args))
        if e.name == "cast":
            source = e.args[0]
            return self._convert(self.value(source, env), source.dtype, e.dtype)
        if e.name in _ORDERED and is_int(e.args[0]):
            args = [self.wide(a, env) for a in e.args]
            return self.b.icmp_signed(_ORDERED[e.name], *args)
        return self._apply(e, [self.wide(a, env) for a in e.args])

    def _int_vector(self, e: Expr, env: Env) -> ir.Value:
        assert env.vector is not None
        c = coefficient(e, env.vector)
        if not isinstance(c, Const):
            return self._per_lane(e, env)
        base = self._scalar(substitute(e, {env.vector: Const(0)}), env)
        kind = ir.VectorType(base.type, env.width)
        steps = ir.Constant(kind, [int(c.value) * k for k in range(env.width)])
        return self.b.add(self.splat(base, env.width), steps)

    def _per_lane(self, e: Expr, env: Env) -> ir.Value:
        """Any expression, one lane after the other."""
        assert env.vector is not None
        out: ir.Value | None = None
        for k in range(env.width):
            lane = env.inner(vars={env.vector: k}, vector=None, width=1)
            v = self._scalar(e, lane)
            if out is None:
                out = ir.Constant(ir.VectorType(v.type, env.width), ir.Undefined)
            out = self.b.insert_element(out, v, I32(k))
        return out

    # ---- memory ---------------------------------------------------------------------------------

    def flat(self, tensor: str, indices: tuple[Expr, ...], env: Env) -> Expr:
        """The element offset of an access, as one polynomial."""
        key = (tensor, indices)
        known = self._flat.get(key)
        if known is None:
            known = Const(0)
            strides = env.memory[tensor].strides
            for i, s in zip(indices, strides, strict=True):
                known = add(known, mul(i, s))
            self._flat[key] = known
        return known

    def address(self, tensor: str, flat: Expr, env: Env) -> ir.Value:
        m = env.memory[tensor]
        kind = TYPES[m.dtype]
        offset, rest = self._parts(flat, env)
        pointer = m.pointer
        if rest is not None:
            key = ("row", tensor, self._number(rest))
            if key not in env.cache:
                env.cache[key] = self.b.gep(pointer, [rest], source_etype=kind)
            pointer = env.cache[key]
        return self.b.gep(pointer, [I64(offset)], source_etype=kind) if offset else pointer

    def load(self, e: Load, env: Env) -> ir.Value:
        flat = self.flat(e.tensor, e.indices, env)
        kind = TYPES[e.dtype]
        v = self.b.load(self.address(e.tensor, flat, env), typ=kind, align=BYTES[e.dtype])
        return self._boolean(v) if e.dtype == "bool" else v

    def _boolean(self, v: ir.Value) -> ir.Value:
        return self.b.icmp_unsigned("!=", v, ir.Constant(v.type, None))

    def _load_vector(self, e: Load, env: Env) -> ir.Value:
        assert env.vector is not None
        flat = self.flat(e.tensor, e.indices, env)
        c = coefficient(flat, env.vector)
        if not isinstance(c, Const):
            return self._per_lane(e, env)
        base = substitute(flat, {env.vector: Const(0)})
        if c.value == 1:
            kind = ir.VectorType(TYPES[e.dtype], env.width)
            v = self.b.load(self.address(e.tensor, base, env), typ=kind, align=BYTES[e.dtype])
            return self._boolean(v) if e.dtype == "bool" else v
        kind = TYPES[e.dtype]
        out = ir.Constant(ir.VectorType(kind, env.width), ir.Undefined)
        for k in range(env.width):
            at = self.address(e.tensor, add(base, k * int(c.value)), env)
            v = self.b.load(at, typ=kind, align=BYTES[e.dtype])
            out = self.b.insert_element(out, v, I32(k))
        return self._boolean(out) if e.dtype == "bool" else out

    def store(self, tensor: str, indices: tuple[Expr, ...], value: ir.Value, env: Env) -> None:
        """Store a value; inside a vector loop the value is a vector along it."""
        flat = self.flat(tensor, indices, env)
        dtype = env.memory[tensor].dtype
        if dtype == "bool":
            kind = TYPES[dtype]
            if isinstance(value.type, ir.VectorType):
                kind = ir.VectorType(kind, value.type.count)
            value = self.b.zext(value, kind)
        if env.vector is None:
            self.b.store(value, self.address(tensor, flat, env), align=BYTES[dtype])
            return
        value = self.splat(value, env.width)
        c = coefficient(flat, env.vector)
        if isinstance(c, Const) and c.value == 1:
            base = substitute(flat, {env.vector: Const(0)})
            self.b.store(value, self.address(tensor, base, env), align=BYTES[dtype])
            return
        for k in range(env.width):
            lane = substitute(flat, {env.vector: Const(k)})
            v = self.b.extract_element(value, I32(k))
            self.b.store(v, self.address(tensor, lane, env), align=BYTES[dtype])


def _fold(name: str, args: list[int]) -> int:
    match name:
        case "min":
            return min(args)
        case "max":
            return max(args)
        case "floordiv":
            return args[0] // args[1]
        case "ceildiv":
            return -(-args[0] // args[1])
        case "mod":
            return args[0] % args[1]
        case "abs":
            return abs(args[0])
        case _:
            raise BuildError(f"integer operation {name} has no native form")
