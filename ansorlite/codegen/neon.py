"""Sums of products of packed numbers by NEON's instructions, with one factor by element.

In: the row of `codegen.dot.INSTRUCTIONS` for a target and a width, and values. Out: the
sum. A factor that is the same for all lanes stays one word in lane 0 (`sdot v0.4s, v1.16b,
v2.4b[0]`). Cores with `sdot` but no `usdot` subtract 128 from unsigned bytes and add 128 times the
sum of the signed ones: the result is exact.
"""

from typing import TYPE_CHECKING

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.emit_index import declared
from ansorlite.codegen.ir_text import I8, I32, I64
from ansorlite.codegen.vector_math import B, V, splat
from ansorlite.ir.literals import BYTES, wrapped
from ansorlite.ir.packed import PACKED
from ansorlite.target import Target

if TYPE_CHECKING:
    from ansorlite.codegen.dot import Instruction

WORD_BYTES = 16  # of a register whose first lane is a factor
SIGN = wrapped(0x80808080, "int32")  # the sign bits of four bytes
MOVED_BITS = 7  # unsigned bytes are moved by 128


def in_lane(b: B, known: "Instruction", word: V, place: int) -> V:
    """Lane 0 of a register with a word (int32), the operand `place` (0 or 1) of the sum."""
    kind = ir.vector(I32, WORD_BYTES // 4)
    v = b.insert_element(ir.Undefined(kind), word, I32(0))
    if _is_moved(known) and place == 0:
        v = b.xor(v, splat(v, SIGN))
    of = _vector(known, WORD_BYTES // 4)
    floats = ir.vector(ir.DOUBLE, WORD_BYTES // 8) if known.of is I8 else of
    return b.bitcast(fenced(b, b.bitcast(v, floats)), of)


def fenced(b: B, v: V) -> V:
    """The number or vector of a floating-point type; LLVM does not join what it is with its use."""
    kind = v.type
    name = f"llvm.arithmetic.fence.{kind.short}"
    return b.call(declared(b.module, name, kind, [kind]), [v])


def splits(target: Target, kind: ir.VectorType, dtype: str) -> bool:
    """Are loads of vectors of this type split for the target, see `in_halves`?"""
    return target.reads_halves and kind.count * BYTES[dtype] == WORD_BYTES


def in_halves(b: B, at: V, kind: ir.VectorType, align: int) -> V:
    """A vector of 16 bytes, read as 8 bytes to the register and 8 bytes by way of an integer.

    Cores that read 8 bytes a cycle issue a multiply-add together with each of these instructions,
    and none beside a load of 16 bytes.
    """
    halves = ir.vector(I64, 2)
    low = b.load(at, I64, align=align)
    high = b.load(b.gep(at, I64(8), I8), I64, align=align)
    # An empty assembly statement: LLVM would load to the upper half (ld1), which is as slow.
    high = b.asm("=r,0", I64, [high], effect=False)
    v = b.insert_element(ir.Undefined(halves), low, I32(0))
    return b.bitcast(b.insert_element(v, high, I32(1)), kind)


def repeated(b: B, known: "Instruction", lane: V) -> V:
    """What `in_lane` made, in all lanes of a factor for `accumulated`."""
    depth = PACKED[known.op].depth
    n = depth * known.lanes
    order = [k % depth for k in range(n)]
    return b.shuffle_vector(lane, ir.Undefined(lane.type), order)


def accumulated(b: B, known: "Instruction", total: V, x: V, y: V) -> V:
    """total + op(x, y); x and y are words (int32), or what `repeated` made of one."""
    used, words = total.type.count, ir.vector(I32, total.type.count)
    swapped = known.intrinsic.split(".")[3] != "usdot" and x.type != words  # element comes last
    kind, sums = _vector(known, known.lanes), ir.vector(total.type.element, known.lanes)
    if x.type == words:
        x = b.bitcast(_filled(b, b.xor(x, splat(x, SIGN)) if _is_moved(known) else x, known), kind)
    if y.type == words:
        y = b.bitcast(_filled(b, y, known), kind)
    call = declared(b.module, known.intrinsic, sums, [sums, kind, kind])
    total = b.call(call, [_filled(b, total, known), *((y, x) if swapped else (x, y))])
    if _is_moved(known):
        signed = _sum_of_pairs(b, _sum_of_pairs(b, y))
        total = b.add(total, b.shl(signed, splat(signed, MOVED_BITS)))
    if used == known.lanes:
        return total
    return b.shuffle_vector(total, total, list(range(used)))


def _sum_of_pairs(b: B, v: V) -> V:
    """Neighbours of signed integers added, in twice their bits (saddlp)."""
    of = v.type.element
    assert isinstance(of, ir.IntType)
    n, bits = v.type.count, of.width
    kind = ir.vector(ir.integer(2 * bits), n // 2)
    name = f"llvm.aarch64.neon.saddlp.v{n // 2}i{2 * bits}.v{n}i{bits}"
    return b.call(declared(b.module, name, kind, [v.type]), [v])


def _is_moved(known: "Instruction") -> bool:
    """Is the first factor unsigned, and the instruction for signed factors?"""
    return known.op == "dot_u8s8" and known.feature == "dotprod"


def _vector(known: "Instruction", lanes: int) -> ir.VectorType:
    return ir.vector(known.of, lanes * PACKED[known.op].depth)


def _filled(b: B, v: V, known: "Instruction") -> V:
    """The vector with as many lanes as the instruction has; further lanes hold any value."""
    n = v.type.count
    if n == known.lanes:
        return v
    order = [min(k, n) for k in range(known.lanes)]
    return b.shuffle_vector(v, v.type(None), order)
