"""Hand-written kernels of one task, right and wrong, for the tests of the runner.

The task: C[i] = sum over k of A[i, k] * W[k], with A[ROWS, K] an input and W[K] a constant.
"""

from dataclasses import replace

from ansorlite import te
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.image import KernelImage, Layout, Param
from ansorlite.measure.runner import CheckSpec
from ansorlite.target import Target

ROWS, K = 300, 70

PARAMS = (
    Param("A", (ROWS, K), "float32", "input"),
    Param("W", (K,), "float32", "constant"),
    Param("C", (ROWS,), "float32", "output"),
    Param("scratch", (16,), "float32", "workspace"),
)

IR = """
declare void @llvm.trap()
declare float @llvm.sqrt.f32(float)
define void @kernel(ptr %args) {
entry:
  %pa = load ptr, ptr %args
  %sw = getelementptr ptr, ptr %args, i64 1
  %pw = load ptr, ptr %sw
  %sc = getelementptr ptr, ptr %args, i64 2
  %pc = load ptr, ptr %sc
  %ss = getelementptr ptr, ptr %args, i64 3
  %scratch = load ptr, ptr %ss
  br label %rows
rows:
  %i = phi i64 [0, %entry], [%i1, %end]
  %row = mul i64 %i, KK
  br label %columns
columns:
  %k = phi i64 [0, %rows], [%k1, %columns]
  %acc = phi REAL [0.0, %rows], [%acc1, %columns]
  %at = add i64 %row, %k
  %qa = getelementptr float, ptr %pa, i64 %at
  %a = load float, ptr %qa
  %qw = getelementptr float, ptr %pw, i64 %k
  %w = load float, ptr %qw
  WIDEN
  %product = fmul REAL %aa, %ww
  %acc1 = fadd REAL %acc, %product
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, KK
  br i1 %more, label %columns, label %store
store:
  NARROW
  BEFORE
  %qc = getelementptr float, ptr %pc, i64 %i
  store float %c, ptr %qc
  br label %end
end:
  %i1 = add i64 %i, 1
  %rest = icmp slt i64 %i1, ROWS
  br i1 %rest, label %rows, label %done
done:
  ret void
}
"""

WIDEN = {
    "double": "%aa = fpext float %a to double\n  %ww = fpext float %w to double",
    "float": "%aa = fadd float %a, 0.0\n  %ww = fadd float %w, 0.0",
}
NARROW = {
    "double": "%c0 = fptrunc double %acc1 to float\n  %c = fadd float %c0, 0.0",
    "float": "%c = fadd float %acc1, 0.0",
}


def kernel(
    before: str = "", *, real: str = "float", rows: int = ROWS, narrow: str = ""
) -> KernelImage:
    """The kernel, with the instructions `before` each store, and `narrow` in place of the sum."""
    text = IR.replace("WIDEN", WIDEN[real]).replace("NARROW", narrow or NARROW[real])
    text = text.replace("BEFORE", before).replace("REAL", real)
    text = text.replace("ROWS", str(rows)).replace("KK", str(K))
    target = Target.detect()
    return KernelImage(compile_module(text, target), "kernel", PARAMS, target.triple, target.cpu)


def dag() -> te.ComputeDAG:
    a = te.placeholder((ROWS, K), name="A")
    w = te.placeholder((K,), name="W", constant=True)
    k = te.reduce_axis(K, name="k")
    return te.ComputeDAG([te.compute((ROWS,), lambda i: te.sum(a[i, k] * w[k], axis=k), name="C")])


def check_spec(seed: int = 0) -> CheckSpec:
    return CheckSpec(dag(), seed, kernel(real="double"), reduction_length=K)


def with_packed_weights(image: KernelImage, layout: Layout) -> KernelImage:
    """The same code, but told that its constant comes in `layout`."""
    a, w, *rest = image.params
    return replace(image, params=(a, replace(w, layout=layout), *rest))


# each: instructions that make the kernel misbehave at its row %i
WRITE_INPUT = "store float %c, ptr %pa"
READ_BEFORE = """%far = getelementptr float, ptr %pc, i64 -1100
  %stray = load volatile float, ptr %far"""
WRITE_BEHIND = """%i9 = add i64 %i, 320
  %beyond = getelementptr float, ptr %pc, i64 %i9
  store volatile float %c, ptr %beyond"""
TRAP = "call void @llvm.trap()"
HANG = """br label %spin
spin:
  %one = load volatile float, ptr %pa
  br label %spin
dead:"""
READ_SCRATCH = """%old = load float, ptr %scratch
  %zero = fmul float %old, 0.0
  %c9 = fadd float %c, %zero"""
