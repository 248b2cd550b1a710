"""LLVM IR to objects and assembly, for the host and for cross targets; errors are BuildErrors."""

import pytest

from ansorlite.codegen.compile import assembly, compile_module, data_layout, optimized_ir
from ansorlite.errors import BuildError
from ansorlite.presets import PRESETS
from ansorlite.target import Target

# y = x * x + x with contraction allowed, on 16 floats.
SQUARE_PLUS = """
define void @square_plus(ptr %args) {
  %x = load ptr, ptr %args
  %v = load <16 x float>, ptr %x, align 64
  %m = fmul contract <16 x float> %v, %v
  %s = fadd contract <16 x float> %m, %v
  store <16 x float> %s, ptr %x, align 64
  ret void
}
"""
# A scalar copy loop of unknown length: what the loop vectoriser would turn into vectors.
SCALAR_LOOP = """
define void @increment(ptr noalias %x, ptr noalias %y, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %v = load float, ptr %px
  %w = fadd float %v, 1.0
  store float %w, ptr %py
  %next = add nuw nsw i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def test_cross_targets_fuse_multiply_and_add_in_their_own_registers() -> None:
    avx512 = assembly(SQUARE_PLUS, Target.cross("x86-avx512"))
    assert "vfmadd" in avx512 and "zmm" in avx512
    avx2 = assembly(SQUARE_PLUS, Target.cross("x86-avx2"))
    assert "vfmadd" in avx2 and "ymm" in avx2 and "zmm" not in avx2
    neon = assembly(SQUARE_PLUS, Target.cross("aarch64-neon"))
    assert neon.count("fmla") == 4 and ".4s" in neon


@pytest.mark.parametrize("preset", PRESETS)
def test_objects_are_made_for_every_preset(preset: str) -> None:
    machine = {"x86_64": b"\x3e\x00", "aarch64": b"\xb7\x00"}[Target.cross(preset).arch]
    code = compile_module(SQUARE_PLUS, Target.cross(preset))
    if Target.cross(preset).system == "darwin":
        assert code[:8] == b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01"  # Mach-O, ARM64
    else:
        assert code[:4] == b"\x7fELF" and code[18:20] == machine


def test_compiling_is_repeatable() -> None:
    codes = {compile_module(SQUARE_PLUS, Target()) for _ in range(3)}
    assert len(codes) == 1


def test_passes_run_for_the_target() -> None:
    text = optimized_ir(SQUARE_PLUS, Target.cross("aarch64-neon"))
    assert 'target triple = "aarch64-unknown-linux-gnu"' in text
    assert data_layout(Target.cross("aarch64-neon")) in text
    dead = "define i32 @f() {\n  %a = add i32 1, 2\n  %b = mul i32 %a, 3\n  ret i32 %b\n}"
    assert "ret i32 9" in optimized_ir(dead, Target())


def test_llvm_vectorises_only_when_asked() -> None:
    target = Target.cross("x86-avx2")
    assert "x float>" not in optimized_ir(SCALAR_LOOP, target)
    assert "<8 x float>" in optimized_ir(SCALAR_LOOP, target, vectorize=True)


def test_bad_modules_and_targets_are_build_errors() -> None:
    with pytest.raises(BuildError, match="does not parse"):
        compile_module("define void @f() {", Target())
    illegal = "define float @f(float %x) {\n %y = fadd float %z, %x\n %z = fadd float %x, %x\n"
    with pytest.raises(BuildError, match="not legal: Instruction does not dominate"):
        compile_module(illegal + " ret float %y\n}", Target())
    with pytest.raises(BuildError, match="no target vax-dec-vms"):
        compile_module(SQUARE_PLUS, Target(triple="vax-dec-vms"))
