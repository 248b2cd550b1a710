"""The text of LLVM IR: lines as LLVM reads them, constants exact, the same text every time."""

import math

import pytest

import ansorlite as al
from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.build import llvm_ir
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.ir_text import DOUBLE, FLOAT, HALF, I1, I32, I64, PTR, VOID
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.target import Target

SUM = """\
; ModuleID = "m"
declare void @"end"(ptr)
@"zeros" = internal constant [4 x float] zeroinitializer, align 64
define internal void @"f"(ptr noalias %a0, i64 %a1) noinline nounwind {
entry.2:
  %v5 = icmp slt i64 0, %a1
  br i1 %v5, label %loop.3, label %done.4
loop.3:
  %v6 = phi i64 [0, %entry.2], [%v10, %loop.3]
  %v7 = getelementptr float, ptr %a0, i64 %v6
  %v8 = load <2 x float>, ptr %v7, align 4
  %v9 = fmul contract <2 x float> %v8, splat (float 0x4000000000000000)
  store <2 x float> %v9, ptr %v7, align 8, !nontemporal !0
  %v10 = add nuw i64 %v6, 2
  %v11 = icmp slt i64 %v10, %a1
  br i1 %v11, label %loop.3, label %done.4
done.4:
  call void @"end"(ptr %a0)
  ret void
}
!0 = !{i32 1}
"""


def example() -> ir.Module:
    """f(x, n) doubles n floats."""
    module = ir.Module("m")
    end = ir.Function(module, ir.FunctionType(VOID, [PTR]), "end")
    zeros = ir.ArrayType(FLOAT, 4)(None)
    ir.Variable(module, "zeros", zeros, internal=True, constant=True, align=64)
    kind = ir.FunctionType(VOID, [PTR, I64])
    f = ir.Function(module, kind, "f", internal=True, marks="noinline")
    x, n = f.args
    x.attributes = " noalias"
    entry, loop, done = (f.append_basic_block(name) for name in ("entry", "loop", "done"))
    b = ir.IRBuilder(entry)
    b.cbranch(b.icmp_signed("<", I64(0), n), loop, done)
    b.position_at_end(loop)
    i = b.phi(I64)
    at = b.gep(x, i, FLOAT)
    pair = b.load(at, ir.vector(FLOAT, 2), align=4)
    b.store(b.fmul(pair, pair.type(2.0), ("contract",)), at, align=8, past_caches=True)
    following = b.add(i, I64(2), ("nuw",))
    i.add_incoming(I64(0), entry)
    i.add_incoming(following, loop)
    b.cbranch(b.icmp_signed("<", following, n), loop, done)
    b.position_at_end(done)
    b.call(end, [x])
    b.ret_void()
    return module


def test_a_module_as_text() -> None:
    assert str(example()) == SUM
    assert compile_module(SUM, Target())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (I1, True, "i1 1"),
        (I64, -(1 << 63), "i64 -9223372036854775808"),
        (PTR, None, "ptr null"),
        (FLOAT, 0.1, "float 0x3fb99999a0000000"),  # rounded to float
        (FLOAT, -0.0, "float 0x8000000000000000"),
        (DOUBLE, math.inf, "double 0x7ff0000000000000"),
        (HALF, 1.0, "half 0x3ff0000000000000"),
        (ir.vector(FLOAT, 4), 0.0, "<4 x float> zeroinitializer"),
        (ir.vector(FLOAT, 4), -0.0, "<4 x float> splat (float 0x8000000000000000)"),
        (ir.vector(I32, 2), [0, 0], "<2 x i32> zeroinitializer"),
        (ir.vector(I32, 2), [0, 1], "<2 x i32> <i32 0, i32 1>"),
        (ir.vector(I32, 2), 7, "<2 x i32> splat (i32 7)"),
        (ir.ArrayType(I32, 2), 7, "[2 x i32] [i32 7, i32 7]"),
        (ir.ArrayType(I32, 2), None, "[2 x i32] zeroinitializer"),
    ],
)
def test_constants_are_exact(kind: ir.Type, value: object, text: str) -> None:
    assert kind(value).typed == text
    assert compile_module(f'@"x" = global {text}\n', Target())


def test_lines_before_a_terminator_and_in_front() -> None:
    module = ir.Module()
    f = ir.Function(module, ir.FunctionType(VOID, [I64]), "f")
    b = ir.IRBuilder(f.append_basic_block("entry"))
    second = b.add(f.args[0], I64(2))
    b.ret_void()
    third = b.add(f.args[0], I64(3))
    b.position_at_start(f.blocks[0])
    first = b.add(f.args[0], I64(1))
    lines = list(f.blocks[0].all_lines())
    assert [line.split()[0] for line in lines[1:4]] == [x.text for x in (first, second, third)]
    assert [line.split()[-1] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == "  ret void"


def test_conditional_code() -> None:
    module = ir.Module()
    f = ir.Function(module, ir.FunctionType(VOID, [I1, PTR]), "f")
    b = ir.IRBuilder(f.append_basic_block("entry"))
    with b.if_then(f.args[0]):
        b.store(I32(1), f.args[1])
    with b.if_else(f.args[0]) as (then, orelse):
        with then:
            b.store(I32(2), f.args[1])
        with orelse:
            b.store(I32(3), f.args[1])
    b.ret_void()
    assert [x.name.partition(".")[0] for x in f.blocks] == [
        "entry",
        "if",
        "endif",
        "if",
        "else",
        "endif",
    ]
    assert compile_module(str(module), Target())


def test_text_does_not_depend_on_what_was_emitted_before() -> None:
    programs = [lower(State(al.workload(case).dag)) for case in ("DEP:1", "SFM:0", "DEP:1")]
    first, _, again = (llvm_ir(p, Target(), optimized=False) for p in programs)
    assert first == again
