"""Index arithmetic and addresses -> LLVM IR.

In: integer expressions of a specialised program and an `Env`. Out: i64 values or Python ints. Each
expression is split into a run-time part, which is emitted once per scope, and a constant offset:
copies of an unrolled body share their address computations. The subclass (`codegen.emit_expr`)
emits loads, selects and casts inside indices.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.ir_text import I1, I64
from ansorlite.codegen.scope import Env, Scope, Scoped
from ansorlite.errors import BuildError
from ansorlite.ir.expr import (
    Const,
    Expr,
    Op,
    Var,
    apart,
    poly,
    term_list,
    weighted_sum,
    weighted_terms,
)
from ansorlite.ir.literals import BITS, ceil_divide, floor_divide, modulo, wrapped
from ansorlite.ir.packed import PACKED
from ansorlite.ir.ranges import linear_in

TYPES: dict[str, ir.Type] = {
    "float16": ir.HALF,
    "float32": ir.FLOAT,
    "float64": ir.DOUBLE,
    **{k: ir.integer(n) for k, n in BITS.items()},
    "bool": ir.I8,
}


_BITS = {
    "bit_and": ir.IRBuilder.and_,
    "bit_or": ir.IRBuilder.or_,
    "bit_xor": ir.IRBuilder.xor,
    "shift_left": ir.IRBuilder.shl,
    "shift_right": ir.IRBuilder.ashr,
}
_Term = tuple[int, tuple[str, ...]]  # factor, names of its variables


class _Sum(NamedTuple):
    """The value of an expression in a scope: `offset` and run-time `values`.

    `numbers` are the terms that make the offset, also in other copies of an unrolled body; None
    where copies differ in more, or where a term is not of variables alone.
    """

    offset: int
    values: tuple[ir.Value, ...]
    numbers: list[_Term] | None


class IndexEmitter(Scoped, ABC):
    """Emits integers and addresses with one builder; every method takes the `Env` of its place."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        super().__init__(builder)
        self._flat: dict[tuple[str, tuple[Expr, ...]], Expr] = {}
        self._along: dict[tuple[Expr, str], tuple[Expr | None, Expr]] = {}
        self._elements: dict[tuple[str, tuple[Expr, ...]], tuple[Expr, int]] = {}
        self._apart: dict[Expr, tuple[Expr, int]] = {}
        self._sums: dict[tuple[Expr, Scope], tuple[tuple[ir.Value, ...], list[_Term]]] = {}
        self._bases: dict[tuple[str, Expr, Scope], tuple[ir.Value, bool, list[_Term]]] = {}

    def index(self, e: Expr, env: Env) -> Any:
        """An integer expression without the vector variable, as a Python int or an i64."""
        offset, values = self._parts(e, env)
        if not values:
            return offset
        (rest,) = values
        if not offset:
            return rest
        return self.once("add", (rest, offset), env, lambda: self.b.add(rest, _i64(offset)))

    def _parts(self, e: Expr, env: Env) -> tuple[int, tuple[ir.Value, ...]]:
        """(constant, run-time values: at most one); the value of `e` is their sum.

        Copies of an unrolled body differ in constants only: their run-time part is looked up. A
        variable is a number or not, and which value it is, by the scope.
        """
        key = e, env.scope.loop
        known = self._sums.get(key)
        if known is not None:
            return _number(known[1], env), known[0]
        offset, values, numbers = self._sum(e, env, split=False)
        if numbers is not None and all([v.home is not None for v in values]):
            self._sums[key] = values, numbers
        return offset, values

    def _sum(self, e: Expr, env: Env, split: bool) -> _Sum:
        """The computation behind `_parts`: terms are added from the outermost loop inwards, each
        in the block of its innermost variable.

        With `split` what the innermost loop changes is a value of its own, the last of two.
        """
        offset = 0
        numbers: list[_Term] | None = []
        runtime: dict[tuple[int, ...], int] = {}
        factors: dict[tuple[int, ...], list[ir.Value]] = {}
        for mono, factor in term_list(e):
            c, left = factor, list[ir.Value]()
            for atom in mono:
                value = env.vars[atom.name] if isinstance(atom, Var) else self._atom(atom, env)
                if isinstance(value, int):
                    c *= value
                else:
                    left.append(value)
            names = tuple([a.name for a in mono if isinstance(a, Var)])
            if len(names) < len(mono) or 0 < len(left) < len(mono):
                numbers = None
            if left:
                if len(left) > 1:
                    left.sort(key=self.number)
                key = tuple([self.number(v) for v in left])
                factors[key] = left
                runtime[key] = runtime.get(key, 0) + c
                continue
            offset += c
            if numbers is not None:
                numbers.append((factor, names))
        wanted = sorted([(self._depth(factors[k], env), k, c) for k, c in runtime.items() if c])
        flags = () if e.reads else ("nsw",)  # loaded integers may overflow, and wrap
        totals: list[ir.Value] = []
        reached = -1
        for depth, k, c in wanted:
            apart = split and depth > reached and depth == wanted[-1][0]
            before = None if apart or not totals else totals.pop()
            totals.append(self._add_term(before, factors[k], c, env, flags))
            reached = depth
        return _Sum(offset, tuple(totals), numbers)

    def _depth(self, values: list[ir.Value], env: Env) -> int:
        """Depth of the innermost loop that one of the values depends on."""
        homes = [v.home for v in values]
        return max([env.scope.depth + 1 if h is None else h.depth for h in homes])

    def _add_term(
        self,
        total: ir.Value | None,
        factors: list[ir.Value],
        c: int,
        env: Env,
        flags: tuple[str, ...],
    ) -> ir.Value:
        """total + c * product of the factors."""

        def product() -> ir.Value:
            prod = factors[0]
            for f in factors[1:]:
                prod = self.b.mul(prod, f)
            return prod if c == 1 else self.b.mul(prod, _i64(c), flags=flags)

        term = factors[0] if (c == 1 and len(factors) == 1) else None
        if term is None:
            term = self.once(("mul", flags), (*factors, c), env, product)
        if total is None:
            return term
        before = total
        return self.once(
            ("sum", flags), (before, term), env, lambda: self.b.add(before, term, flags=flags)
        )

    def _atom(self, atom: Expr, env: Env) -> Any:
        if isinstance(atom, Const):
            return int(atom.value)
        if isinstance(atom, Var):
            return env.vars[atom.name]
        if not isinstance(atom, Op) or atom.name in ("select", "cast", *PACKED):
            return self.opaque(atom, env)
        args = [self.index(a, env) for a in atom.args]
        if all(isinstance(a, int) for a in args):
            return _fold(atom.name, [a for a in args if isinstance(a, int)])
        divides = atom.name in ("floordiv", "ceildiv", "mod") and not isinstance(args[1], int)
        # The key holds operand values: equal text has other values in other unrolled copies.
        return self.once(
            ("op", atom.name), args, env, lambda: self._int_op(atom.name, args), here=divides
        )

    @abstractmethod
    def opaque(self, atom: Expr, env: Env) -> ir.Value:
        """The i64 value of an atom that is no arithmetic on loop variables: load, select, cast."""

    def _int_op(self, name: str, args: list[Any]) -> ir.Value:
        b = self.b
        vals = [I64(a) if isinstance(a, int) else a for a in args]
        if name in ("min", "max"):
            out = vals[0]
            for v in vals[1:]:
                less = b.icmp_signed("<", out, v)
                out = b.select(less, out, v) if name == "min" else b.select(less, v, out)
            return out
        if name in _BITS:
            return _BITS[name](b, *vals)
        if name == "abs":
            return b.select(b.icmp_signed("<", vals[0], I64(0)), b.neg(vals[0]), vals[0])
        x, y = vals
        return self._divide(name, x, y, args[1])

    def _divide(self, name: str, x: ir.Value, y: ir.Value, by: Any) -> ir.Value:
        """floordiv, ceildiv or mod of i64 values; `by` is the divisor as int where it is constant.

        CPUs trap at x / 0 and at the least integer / -1. Other divisors than positive constants are
        therefore replaced by 1 in these two cases. A quotient by 0 is 0, one by -1 is -x (wrapped).
        """
        b, zero, one = self.b, I64(0), I64(1)
        safe = isinstance(by, int) and by > 0
        unit: ir.Value = I1(0)
        null = unit
        divisor = y
        if not safe:
            unit, null = b.icmp_signed("==", y, I64(-1)), b.icmp_signed("==", y, zero)
            divisor = b.select(b.or_(unit, null), one, y)
        q, r = b.sdiv(x, divisor), b.srem(x, divisor)
        inexact = b.icmp_signed("!=", r, zero)
        negative = b.icmp_signed("<", b.xor(r, divisor), zero)
        if name == "mod":  # the remainder by 1 is right for -1 and 0 too
            return b.select(b.and_(inexact, negative), b.add(r, divisor), r)
        if name == "floordiv":
            out = b.select(b.and_(inexact, negative), b.sub(q, one), q)
        else:
            out = b.select(b.and_(inexact, b.not_(negative)), b.add(q, one), q)
        if safe:
            return out
        return b.select(null, zero, b.select(unit, b.neg(x), out))

    def flat(self, tensor: str, indices: tuple[Expr, ...], env: Env) -> Expr:
        """The offset of an access in elements, as one polynomial of the loop variables."""
        key = (tensor, indices)
        known = self._flat.get(key)
        if known is None:
            known = self._flat[key] = weighted_sum(indices, env.memory[tensor].strides)
        return known

    def along(self, e: Expr, var: str) -> tuple[Expr | None, Expr]:
        """(coefficient of `var` in `e`, None where `e` is not linear in it; `e` at var = 0)."""
        known = self._along.get((e, var))
        if known is None:
            known = self._along[e, var] = linear_in(e, var)
        return known

    def consecutive(
        self, tensor: str, indices: tuple[Expr, ...], env: Env
    ) -> tuple[Expr, int] | None:
        """The offset of an access at the first lane, as (what varies, constant), in elements.

        None where the elements of lanes do not follow each other in memory.
        """
        if env.vector is None:
            return None
        if any([i.dtype != "int32" for i in indices]):
            slope, base = self.along(self.flat(tensor, indices, env), env.vector)
            return apart(base) if isinstance(slope, Const) and slope.value == 1 else None
        terms = weighted_terms(indices, env.memory[tensor].strides)
        offset, step = terms.pop((), 0), 0
        rest = {}
        for mono, c in terms.items():
            if len(mono) == 1 and isinstance(mono[0], Var) and mono[0].name == env.vector:
                step = c
            elif c and any([env.vector in a.free for a in mono]):
                return None
            else:
                rest[mono] = c
        return (poly(rest), offset) if step == 1 else None

    def element(self, tensor: str, indices: tuple[Expr, ...], env: Env) -> ir.Value:
        """Pointer to an element."""
        key = tensor, indices
        known = self._elements.get(key)
        if known is None:
            known = self._elements[key] = apart(self.flat(tensor, indices, env))
        return self.address_of(tensor, *known, env)

    def address(self, tensor: str, flat: Expr, env: Env, *, here: bool = True) -> ir.Value:
        """Pointer to the element at offset `flat`; `here` leaves the constant part of the offset
        at the place of use, where the machine's addressing mode includes it."""
        parts = self._apart.get(flat)
        if parts is None:
            parts = self._apart[flat] = apart(flat)
        return self.address_of(tensor, *parts, env, here=here)

    def address_of(
        self, tensor: str, rest: Expr, offset: int, env: Env, *, here: bool = True
    ) -> ir.Value:
        """`address` for the offset `rest` + `offset`, where `rest` has no constant term."""
        dtype = env.memory[tensor].dtype
        key = tensor, rest, env.scope.loop
        known = self._bases.get(key)
        if known is not None:
            pointer, moves, terms = known
            offset += _number(terms, env)
        else:
            pointer = env.memory[tensor].pointer
            # A pointer for each part: LLVM's strength reduction takes the longer, the more it finds
            # to take apart in one index.
            more, values, numbers = self._sum(rest, env, split=True)
            for by in values:
                pointer = self.moved(pointer, by, dtype, env)
            moves = bool(values)
            if numbers is not None and pointer.home is not None:
                self._bases[key] = pointer, moves, numbers
            offset += more
        return self.moved(pointer, offset, dtype, env, here=here and moves) if offset else pointer

    def moved(
        self, pointer: ir.Value, by: Any, dtype: str, env: Env, *, here: bool = False
    ) -> ir.Value:
        """The pointer `by` elements after another."""
        if by == 0:
            return pointer

        def add() -> ir.Value:
            return self.b.gep(pointer, by, TYPES[dtype])

        if here:
            return self.once_here((dtype, pointer, by), env, add)
        return self.once(dtype, (pointer, by), env, add)


def _number(terms: Sequence[_Term], env: Env) -> int:
    """The sum of terms that are numbers."""
    total = 0
    for c, names in terms:
        for n in names:
            c *= env.vars[n]
        total += c
    return total


def _i64(value: int) -> ir.Constant:
    return I64(wrapped(value, "int64"))


def declared(module: ir.Module, name: str, ret: ir.Type, args: list[ir.Type]) -> ir.Function:
    """The function of that name, declared in the module on the first call."""
    known = module.globals.get(name)
    if isinstance(known, ir.Function):
        return known
    return ir.Function(module, ir.FunctionType(ret, args), name)


def _fold(name: str, args: list[int]) -> int:
    match name:
        case "min":
            return min(args)
        case "max":
            return max(args)
        case "floordiv":
            return floor_divide(*args)
        case "ceildiv":
            return ceil_divide(*args)
        case "mod":
            return modulo(*args)
        case "abs":
            return abs(args[0])
        case "bit_and":
            return args[0] & args[1]
        case "bit_or":
            return args[0] | args[1]
        case "bit_xor":
            return args[0] ^ args[1]
        case "shift_left":
            return args[0] << args[1]
        case "shift_right":
            return args[0] >> args[1]
        case _:
            raise BuildError(f"integer operation {name} has no native form")
