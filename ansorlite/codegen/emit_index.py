"""Index arithmetic and addresses as LLVM IR, under an `Env`.

In: integer expressions of a specialised program. Out: i64 values or Python ints, split into a
run-time part, emitted once per scope, and a constant offset, so that unrolled bodies share their
address computations. What is loaded or selected comes from the subclass (`codegen.emit_expr`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

from llvmlite import ir

from ansorlite.errors import BuildError
from ansorlite.ir.expr import Const, Expr, Op, Var, add, mul, terms_of

I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
TYPES: dict[str, ir.Type] = {
    "float32": ir.FloatType(),
    "float64": ir.DoubleType(),
    "int32": I32,
    "int64": I64,
    "bool": ir.IntType(8),
}
BYTES = {"float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}


@dataclass
class Memory:
    """A buffer at run time: its pointer and row-major strides in elements."""

    pointer: ir.Value
    strides: tuple[int, ...]
    dtype: str
    padded: bool = False  # vectors may touch the elements up to the next whole vector


@dataclass
class Env:
    """What is known at one place: loop variables, buffers, and values computed so far."""

    vars: dict[str, Any]  # ir.Value (i64) or int
    memory: dict[str, Memory]
    vector: str | None = None  # variable of the vector loop
    width: int = 1
    lanes: int = 1  # that are used, of `width`; the others hold anything
    past_caches: bool = False  # vectors are stored so
    cache: dict[Any, ir.Value] = field(default_factory=dict)

    @property
    def settled(self) -> dict[str, int]:
        """Variables that have one value in all lanes, known now."""
        known = {name: v for name, v in self.vars.items() if isinstance(v, int)}
        known.pop(self.vector or "", None)
        return known

    def inner(self, **changed: Any) -> "Env":
        """The environment of a nested scope; it sees but does not extend this one's cache."""
        known = {**self.vars, **changed.pop("vars", {})}
        return replace(self, vars=known, cache=dict(self.cache), **changed)


class IndexEmitter(ABC):
    """Emits integers and addresses with one builder; `env` is given to every call."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder
        self._flat: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._numbers: dict[int, tuple[int, ir.Value]] = {}

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
        if not isinstance(atom, Op) or atom.name in ("select", "cast"):
            return self.opaque(atom, env)
        args = [self.index(a, env) for a in atom.args]
        if all(isinstance(a, int) for a in args):
            return _fold(atom.name, [a for a in args if isinstance(a, int)])
        # The values of the operands decide: the same text means another value in another copy.
        key = ("atom", atom.name, tuple(self._operand(a) for a in args))
        if key not in env.cache:
            env.cache[key] = self._int_op(atom.name, args)
        return env.cache[key]

    @abstractmethod
    def opaque(self, atom: Expr, env: Env) -> ir.Value:
        """An i64 that is no arithmetic on loop variables: loaded, selected or converted."""

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


def declared(module: ir.Module, name: str, ret: ir.Type, args: list[ir.Type]) -> ir.Function:
    known = module.globals.get(name)
    return known if known is not None else ir.Function(module, ir.FunctionType(ret, args), name)


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
