"""Code of numbers in pairs and fours (`ir.packed`): dot-product instructions, or the same by steps.

In: an llvmlite IRBuilder and values, int32 for packed numbers, scalars or vectors. Out: the value.
`INSTRUCTIONS` is the table of what targets have; where it has nothing for a target and a width, the
numbers are widened, multiplied and added one after the other.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from ansorlite.codegen import neon
from ansorlite.codegen.emit_index import declared
from ansorlite.codegen.vector_math import B, V, bits_of, call_math, shaped, splat
from ansorlite.ir.packed import PACKED
from ansorlite.target import Target

FLOAT, I8, I16, I32 = ir.FloatType(), ir.IntType(8), ir.IntType(16), ir.IntType(32)


class _BFloat(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite has no type for."""

    def __str__(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


BFLOAT = _BFloat()


@dataclass(frozen=True)
class Instruction:
    """`op` by an LLVM intrinsic of `lanes` sums, which the LLVM feature `feature` provides.

    Operands are the sum and vectors of `depth` values of type `of` for each lane.
    """

    op: str
    feature: str
    lanes: int
    intrinsic: str
    of: ir.Type


_X86 = "llvm.x86."
_NEON = "llvm.aarch64.neon."
INSTRUCTIONS: tuple[Instruction, ...] = (
    *(
        Instruction(op, feature, n, f"{_NEON}{name}.v{n}{total}.v{4 * n // size}{given}", of)
        for n in (4, 2)
        for op, feature, name, total, size, given, of in (
            ("dot_bf16", "bf16", "bfdot", "f32", 2, "bf16", BFLOAT),
            ("dot_u8s8", "i8mm", "usdot", "i32", 1, "i8", I8),
            ("dot_u8s8", "dotprod", "sdot", "i32", 1, "i8", I8),  # see `codegen.neon`
        )
    ),
    *(
        Instruction("dot_bf16", "avx512bf16", n, f"{_X86}avx512bf16.dpbf16ps.{32 * n}", BFLOAT)
        for n in (16, 8, 4)
    ),
    Instruction("dot_u8s8", "avx512vnni", 16, f"{_X86}avx512.vpdpbusd.512", I8),
    *(
        Instruction("dot_u8s8", feature, n, f"{_X86}avx512.vpdpbusd.{32 * n}", I8)
        for n in (8, 4)
        for feature in ("avxvnni", "avx512vnni")
    ),
)


def instruction(target: Target, op: str, lanes: int) -> Instruction | None:
    """What the target has for `op` on vectors of so many sums; three use four of NEON's."""
    lanes = 4 if lanes == 3 and target.arch == "aarch64" else lanes
    found = (i for i in INSTRUCTIONS if (i.op, i.lanes) == (op, lanes) and target.has(i.feature))
    return next(found, None)


def accumulated(b: B, op: str, total: V, x: V, y: V, target: Target) -> V:
    """total + op(x, y) for a `dot_` operation; all of one number of lanes.

    On AArch64 a factor may be what `codegen.neon.repeated` made.
    """
    known = None
    if isinstance(total.type, ir.VectorType):
        known = instruction(target, op, total.type.count)
    if known is None:
        return _by_steps(b, op, total, x, y)
    if target.arch == "aarch64":
        return neon.accumulated(b, known, total, x, y)
    n, depth = known.lanes, PACKED[op].depth
    kind = ir.VectorType(known.of, n * depth)
    call = declared(b.module, known.intrinsic, total.type, [total.type, kind, kind])
    return b.call(call, [total, b.bitcast(x, kind), b.bitcast(y, kind)])


def _by_steps(b: B, op: str, total: V, x: V, y: V) -> V:
    if op == "dot_bf16":
        kind = total.type
        for part in (_upper, _lower):
            factors = [b.bitcast(part(b, v), kind) for v in (x, y)]
            total = call_math(b, "llvm.fmuladd", *factors, total)
        return total
    for k in range(PACKED[op].depth):
        left = b.and_(b.lshr(x, splat(x, 8 * k)), splat(x, 255))
        right = b.ashr(b.shl(y, splat(y, 24 - 8 * k)), splat(y, 24))
        total = b.add(total, b.mul(left, right))
    return total


def _upper(b: B, v: V) -> V:
    return b.and_(v, splat(v, -(1 << 16)))


def _lower(b: B, v: V) -> V:
    return b.shl(v, splat(v, 16))


def _zero(kind: ir.Type) -> V:
    return ir.Constant(kind, None if isinstance(kind, ir.VectorType) else 0)


def _bf16_bits(b: B, target: Target, x: V) -> V:
    """The upper half of the rounded float; a NaN becomes a quiet one."""
    bits = bits_of(b, x)
    odd = b.and_(b.lshr(bits, splat(bits, 16)), splat(bits, 1))
    rounded = b.add(b.add(bits, splat(bits, 0x7FFF)), odd)
    quiet = b.or_(bits, splat(bits, 1 << 22))
    kept = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    return b.lshr(kept, splat(kept, 16))


def _bf16_value(b: B, target: Target, x: V) -> V:
    return b.bitcast(_lower(b, x), shaped(x.type, FLOAT))


def _packed(bits: int) -> Callable[..., V]:
    def emit(b: B, target: Target, *parts: V) -> V:
        total = None
        for k, p in enumerate(parts):
            low = b.and_(p, splat(p, (1 << bits) - 1))
            moved = b.shl(low, splat(low, bits * k)) if k else low
            total = moved if total is None else b.or_(total, moved)
        return total

    return emit


def _dot(op: str) -> Callable[..., V]:
    def emit(b: B, target: Target, x: V, y: V) -> V:
        scalar = FLOAT if PACKED[op].dtype == "float32" else I32
        return accumulated(b, op, _zero(shaped(x.type, scalar)), x, y, target)

    return emit


EMITTERS: dict[str, Callable[..., V]] = {
    "bf16_bits": _bf16_bits,
    "bf16_value": _bf16_value,
    "pack16": _packed(16),
    "pack8": _packed(8),
    "dot_bf16": _dot("dot_bf16"),
    "dot_u8s8": _dot("dot_u8s8"),
}


def emit_packed(b: B, target: Target, name: str, args: list[V]) -> V:
    """The value of an operation of `ir.packed.PACKED`; integers are int32."""
    return EMITTERS[name](b, target, *args)
