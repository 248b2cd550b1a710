"""A fingerprint (hash) of an array's bytes at memory speed: has a constant changed since?

In: a C-contiguous array. Out: bytes. A kernel packs a constant given with a call only when its
fingerprint differs from the last call's. The mixing follows the inner loop of XXH3 (xxhash.com):
for each 64-bit word, the product of its halves after a position-dependent mask, plus the
neighbouring word. One changed word always changes the result; several changes cancel with a
probability of about 2^-64. The hash is not cryptographic.
"""

import ctypes
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from ansorlite.calls import Array, address
from ansorlite.codegen import openmp
from ansorlite.codegen.compile import compile_module, new_jit
from ansorlite.target import Target

BLOCK = 64  # bytes of one mixing step, and of the result of one part
PART_BYTES = 1 << 15  # a thread takes at least so many bytes at a time
MAX_PARTS = 32

IR = """
%step = type { ptr, ptr, i64, i64, i64, i64, ptr, i64 }
declare void @ansorlite_run(ptr, ptr, ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Blocks [first, last) of 64 bytes, mixed into 64 bytes.
define internal void @mixed(ptr %data, i64 %first, i64 %last, ptr %out) {
entry:
  %any = icmp slt i64 %first, %last
  br i1 %any, label %loop, label %done
loop:
  %k = phi i64 [ %first, %entry ], [ %next, %loop ]
  %sum = phi <8 x i64> [ zeroinitializer, %entry ], [ %total, %loop ]
  %at = mul i64 %k, 64
  %place = getelementptr i8, ptr %data, i64 %at
  %words = load <8 x i64>, ptr %place, align 1
  %turn = mul i64 %k, -7046029254386353131
  %one = insertelement <8 x i64> poison, i64 %turn, i32 0
  %turns = shufflevector <8 x i64> %one, <8 x i64> poison, <8 x i32> zeroinitializer
  %mask = add <8 x i64> %turns, <i64 -4734510112055689544, i64 2066345149520216444,
      i64 -2626841219172082640, i64 -5825143561455042347, i64 5555116246627715051,
      i64 -4554457134254384640, i64 4563169853085013119, i64 -3210042113443132421>
  %masked = xor <8 x i64> %words, %mask
  %low = and <8 x i64> %masked, splat (i64 4294967295)
  %high = lshr <8 x i64> %masked, splat (i64 32)
  %products = mul <8 x i64> %low, %high
  %swapped = shufflevector <8 x i64> %words, <8 x i64> poison,
      <8 x i32> <i32 1, i32 0, i32 3, i32 2, i32 5, i32 4, i32 7, i32 6>
  %added = add <8 x i64> %products, %swapped
  %total = add <8 x i64> %sum, %added
  %next = add i64 %k, 1
  %more = icmp slt i64 %next, %last
  br i1 %more, label %loop, label %done
done:
  %result = phi <8 x i64> [ zeroinitializer, %entry ], [ %total, %loop ]
  store <8 x i64> %result, ptr %out, align 1
  ret void
}

; Parts [first, last). frame: data, blocks, parts, out
define internal void @share(ptr %frame, i64 %first_part, i64 %end) {
entry:
  %data = load ptr, ptr %frame
  %at1 = getelementptr i64, ptr %frame, i64 1
  %blocks = load i64, ptr %at1
  %at2 = getelementptr i64, ptr %frame, i64 2
  %parts = load i64, ptr %at2
  %at3 = getelementptr i64, ptr %frame, i64 3
  %out = load ptr, ptr %at3
  br label %work
work:
  %k = phi i64 [ %first_part, %entry ], [ %following, %work ]
  %a = mul i64 %k, %blocks
  %first = sdiv i64 %a, %parts
  %following = add i64 %k, 1
  %b = mul i64 %following, %blocks
  %last = sdiv i64 %b, %parts
  %offset = mul i64 %k, 64
  %place = getelementptr i8, ptr %out, i64 %offset
  call void @mixed(ptr %data, i64 %first, i64 %last, ptr %place)
  %more = icmp slt i64 %following, %end
  br i1 %more, label %work, label %done
done:
  ret void
}

define void @fingerprint(ptr %data, i64 %bytes, i64 %parts, ptr %out) {
entry:
  %frame = alloca [4 x i64], align 64
  %row = alloca %step, align 64
  %tail = alloca [64 x i8], align 64
  %blocks = sdiv i64 %bytes, 64
  store ptr %data, ptr %frame
  %at1 = getelementptr i64, ptr %frame, i64 1
  store i64 %blocks, ptr %at1
  %at2 = getelementptr i64, ptr %frame, i64 2
  store i64 %parts, ptr %at2
  %at3 = getelementptr i64, ptr %frame, i64 3
  store ptr %out, ptr %at3
  %several = icmp sgt i64 %parts, 1
  br i1 %several, label %together, label %alone
together:
  store %step zeroinitializer, ptr %row
  store ptr @share, ptr %row
  %joined = getelementptr %step, ptr %row, i64 0, i32 3
  store i64 1, ptr %joined
  %each = getelementptr %step, ptr %row, i64 0, i32 4
  store i64 1, ptr %each
  %units = getelementptr %step, ptr %row, i64 0, i32 7
  store i64 %parts, ptr %units
  %behind = getelementptr %step, ptr %row, i64 1
  call void @ansorlite_run(ptr %row, ptr %behind, ptr %frame, ptr null)
  br label %rest
alone:
  call void @share(ptr %frame, i64 0, i64 %parts)
  br label %rest
rest:
  %whole = mul i64 %blocks, 64
  %left = sub i64 %bytes, %whole
  %end = getelementptr i8, ptr %data, i64 %whole
  call void @llvm.memset.p0.i64(ptr %tail, i8 0, i64 64, i1 false)
  call void @llvm.memcpy.p0.p0.i64(ptr %tail, ptr %end, i64 %left, i1 false)
  %offset = mul i64 %parts, 64
  %place = getelementptr i8, ptr %out, i64 %offset
  call void @mixed(ptr %tail, i64 0, i64 1, ptr %place)
  ret void
}
"""

_PROTOTYPE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p
)


def fingerprint(x: Array) -> bytes:
    """The fingerprint of a C-contiguous array: results of up to 33 parts and the size in bytes.

    Example: `fingerprint(x) == fingerprint(x.copy())`.
    """
    parts = min(MAX_PARTS, max(1, x.nbytes // PART_BYTES))
    out = ctypes.create_string_buffer(BLOCK * (parts + 1))
    function, _ = _native()
    function(address(x), x.nbytes, parts, out)
    return out.raw + x.nbytes.to_bytes(8, "little")


@cache
def _native() -> tuple[Any, Any]:
    """(the native function, the objects that keep its code alive)."""
    code = compile_module(IR, Target.detect())
    jit = new_jit()
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    name = "ansorlite_run"
    library.import_symbol(name, openmp.runtime().addresses[name]).export_symbol("fingerprint")
    tracker = library.link(jit, "ansorlite_fingerprint")
    return _PROTOTYPE(tracker["fingerprint"]), (tracker, jit)
