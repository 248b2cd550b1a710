"""Code of numbers in pairs and fours (`ir.packed`): dot-product instructions, or the same by steps.

In: an IRBuilder and values, int32 for packed numbers, scalars or vectors. Out: the value.
`INSTRUCTIONS` is the table of what targets have; where it has nothing for a target and a width, the
numbers are widened, multiplied and added one after the other. What of an operand serves several
sums of a register tile is computed once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen import neon
from ansorlite.codegen.emit_index import declared
from ansorlite.codegen.ir_text import BFLOAT, FLOAT, I8, I16, I32
from ansorlite.codegen.vector_math import B, V, bits_of, call_math, shaped, splat
from ansorlite.ir.packed import DOTS, LEAST, PACKED
from ansorlite.target import Target

_X86 = "llvm.x86."


@dataclass(frozen=True)
class Instruction:
    """`op` by an LLVM intrinsic of `lanes` sums, which the LLVM feature `feature` provides.

    Operands are the sum and vectors of `depth` values of type `of` for each lane. `rate` is how
    many a core executes in the time of one multiply-add of vectors, where nothing was measured.
    """

    op: str
    feature: str
    lanes: int
    intrinsic: str
    of: ir.Type
    rate: float = 1.0
    mnemonic: str = ""

    @property
    def name(self) -> str:
        """The instruction, as assembly names it on x86-64 and AArch64."""
        if self.mnemonic:
            return self.mnemonic
        name = self.intrinsic.split(".")[3]
        return name if not self.intrinsic.startswith(_X86) or name[0] == "v" else f"v{name}"


_NEON = "llvm.aarch64.neon."
INSTRUCTIONS: tuple[Instruction, ...] = (
    *(
        Instruction(op, feature, n, f"{_NEON}{name}.v{n}{total}.v{4 * n // size}{given}", of, rate)
        for n in (4, 2)
        for op, feature, name, total, size, given, of, rate in (
            ("dot_bf16", "bf16", "bfdot", "f32", 2, "bf16", BFLOAT, 1.0),
            ("dot_u8s8", "i8mm", "usdot", "i32", 1, "i8", I8, 1.0),
            ("dot_u8s8", "dotprod", "sdot", "i32", 1, "i8", I8, 0.5),  # see `codegen.neon`
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
    # Without VNNI: two products of 16 bits a lane, of the even and of the odd bytes. Exact, unlike
    # vpmaddubsw, which saturates at 16 bits.
    *(
        Instruction("dot_u8s8", feature, n, f"{_X86}{name}", I16, 0.5, "vpmaddwd")
        for n, name in ((16, "avx512.pmaddw.d.512"), (8, "avx2.pmadd.wd"), (4, "sse2.pmadd.wd"))
        for feature in ("avx2", "avx512bw")[n // 16 :]
    ),
)
Shared = Callable[[str, V, Callable[[], V]], V]  # (what, of which value, how) -> the value


def instruction(target: Target, op: str, lanes: int) -> Instruction | None:
    """What the target has for `op` on vectors of so many sums; three use four of NEON's."""
    lanes = 4 if lanes == 3 and target.arch == "aarch64" else lanes
    found = (i for i in INSTRUCTIONS if (i.op, i.lanes) == (op, lanes) and target.has(i.feature))
    return next(found, None)


def widest(target: Target, op: str) -> Instruction | None:
    """What the target has for `op` on whole vectors."""
    return instruction(target, op, target.lanes("float32"))


def vector_steps(target: Target, op: str) -> float:
    """Vector operations, in multiply-adds of vectors, of one sum of packed products."""
    known = widest(target, op)
    if known is not None:
        return 1 / known.rate
    return PACKED[op].depth * (1.0 if op == "dot_bf16" else 3.0)  # two shifts, a product, a sum


def vector_dots(target: Target) -> tuple[str, ...]:
    """The operations for which the target has an instruction on whole vectors."""
    return tuple(op for op in DOTS if widest(target, op))


def _unshared(what: str, v: V, make: Callable[[], V]) -> V:
    return make()


def accumulated(
    b: B, op: str, total: V, x: V, y: V, target: Target, shared: Shared = _unshared
) -> V:
    """total + op(x, y) for a `dot_` operation; all of one number of lanes.

    `shared` gives what was computed of an operand before, or computes it. On AArch64 a factor may
    be what `codegen.neon.repeated` made.
    """
    known = None
    if isinstance(total.type, ir.VectorType):
        known = instruction(target, op, total.type.count)
    if known is None:
        return _by_steps(b, op, total, x, y, shared)
    if known.of is I16:
        return _by_halves(b, known, total, x, y, shared)
    if target.arch == "aarch64":
        return neon.accumulated(b, known, total, x, y)
    n, depth = known.lanes, PACKED[op].depth
    kind = ir.vector(known.of, n * depth)
    call = declared(b.module, known.intrinsic, total.type, [total.type, kind, kind])
    return b.call(call, [total, b.bitcast(x, kind), b.bitcast(y, kind)])


def _by_steps(b: B, op: str, total: V, x: V, y: V, shared: Shared) -> V:
    if op == "dot_bf16":
        for part in (_upper, _lower):
            factors = [shared(part.__name__, v, partial(part, b, v, total.type)) for v in (x, y)]
            total = call_math(b, "llvm.fmuladd", *factors, total)
        return total
    for k in range(PACKED[op].depth):
        left = shared(f"byte {k}", x, partial(_byte, b, x, k))
        right = shared(f"signed {k}", y, partial(_signed_byte, b, y, k))
        total = b.add(total, b.mul(left, right))
    return total


def _byte(b: B, v: V, k: int) -> V:
    return b.and_(b.lshr(v, splat(v, 8 * k)), splat(v, 255))


def _signed_byte(b: B, v: V, k: int) -> V:
    return b.ashr(b.shl(v, splat(v, 24 - 8 * k)), splat(v, 24))


def _by_halves(b: B, known: Instruction, total: V, x: V, y: V, shared: Shared) -> V:
    """Bytes as numbers of 16 bits: those in even places, then those in odd ones."""
    kind = ir.vector(I16, 2 * known.lanes)
    call = declared(b.module, known.intrinsic, total.type, [kind, kind])
    for of_x, of_y in ((_even_bytes, _even_signed), (_odd_bytes, _odd_signed)):
        left = shared(of_x.__name__, x, partial(of_x, b, x, kind))
        right = shared(of_y.__name__, y, partial(of_y, b, y, kind))
        total = b.add(total, b.call(call, [left, right]))
    return total


def _even_bytes(b: B, v: V, kind: ir.Type) -> V:
    halves = b.bitcast(v, kind)
    return b.and_(halves, splat(halves, 255))


def _odd_bytes(b: B, v: V, kind: ir.Type) -> V:
    halves = b.bitcast(v, kind)
    return b.lshr(halves, splat(halves, 8))


def _even_signed(b: B, v: V, kind: ir.Type) -> V:
    halves = b.bitcast(v, kind)
    return b.ashr(b.shl(halves, splat(halves, 8)), splat(halves, 8))


def _odd_signed(b: B, v: V, kind: ir.Type) -> V:
    halves = b.bitcast(v, kind)
    return b.ashr(halves, splat(halves, 8))


def _upper(b: B, v: V, kind: ir.Type) -> V:
    return b.bitcast(b.and_(v, splat(v, -(1 << 16))), kind)


def _lower(b: B, v: V, kind: ir.Type) -> V:
    return b.bitcast(b.shl(v, splat(v, 16)), kind)


def _zero(kind: ir.Type) -> V:
    return kind(0)


def _bf16_bits(b: B, target: Target, x: V) -> V:
    """The upper half of the rounded float; a NaN becomes a quiet one."""
    bits = bits_of(b, x)
    odd = b.and_(b.lshr(bits, splat(bits, 16)), splat(bits, 1))
    rounded = b.add(b.add(bits, splat(bits, 0x7FFF)), odd)
    quiet = b.or_(bits, splat(bits, 1 << 22))
    kept = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    return b.lshr(kept, splat(kept, 16))


def _bf16_value(b: B, target: Target, x: V) -> V:
    return _lower(b, x, shaped(x.type, FLOAT))


def _packed(bits: int) -> Callable[..., V]:
    def emit(b: B, target: Target, *parts: V) -> V:
        total: V | None = None
        for k, p in enumerate(parts):
            low = b.and_(p, splat(p, (1 << bits) - 1))
            moved = b.shl(low, splat(low, bits * k)) if k else low
            total = moved if total is None else b.or_(total, moved)
        assert total is not None
        return total

    return emit


def _nearest(b: B, target: Target, x: V, low: V, high: V) -> V:
    """One instruction each on x86: the greater, the smaller, the nearest (NaN: the least int32)."""
    x = b.select(b.fcmp_ordered(">", low, x), low, x)
    x = b.select(b.fcmp_ordered("<", high, x), high, x)
    kind = shaped(x.type, I32)
    if b.module.triple.startswith("x86"):
        name = f"llvm.lrint.{kind.short}.{x.type.short}"
        return b.call(declared(b.module, name, kind, [x.type]), [x])
    whole = b.fptosi(
        call_math(b, "llvm.rint", b.select(b.fcmp_unordered("uno", x, x), low, x)), kind
    )
    return b.select(b.fcmp_unordered("uno", x, x), splat(whole, LEAST), whole)


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
    "nearest": _nearest,
    "dot_bf16": _dot("dot_bf16"),
    "dot_u8s8": _dot("dot_u8s8"),
}


def emit_packed(b: B, target: Target, name: str, args: list[V]) -> V:
    """The value of an operation of `ir.packed.PACKED`; integers are int32."""
    return EMITTERS[name](b, target, *args)
