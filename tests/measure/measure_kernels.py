"""Hand-written kernels of one task, right and wrong, for the tests of the runner.

The task: C[i] = sum over k of A[i, k] * W[k], with A[ROWS, K] an input and W[K] a constant.
"""

from collections.abc import Callable
from dataclasses import replace

from ansorlite import te
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.ir.layout import Layout
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
  PLACE
  %qw = getelementptr float, ptr %pw, i64 %kw
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


TILE = 10
LAYOUT = Layout(tiles=((8, TILE),), order=((0, 1), (0, 0)))
PACKED_PLACE = f"""%tile = udiv i64 %k, {TILE}
  %lane = urem i64 %k, {TILE}
  %base = mul i64 %lane, 8
  %kw = add i64 %base, %tile"""


def kernel(
    before: str = "",
    *,
    real: str = "float",
    rows: int = ROWS,
    narrow: str = "",
    place: str = "%kw = add i64 %k, 0",
    params: tuple[Param, ...] = PARAMS,
) -> KernelImage:
    """The kernel with instructions `before` each store; `narrow` replaces the sum's conversion.

    `place` computes the offset of element %k of the constant.
    """
    text = IR.replace("PLACE", place)
    text = text.replace("WIDEN", WIDEN[real]).replace("NARROW", narrow or NARROW[real])
    text = text.replace("BEFORE", before).replace("REAL", real)
    text = text.replace("ROWS", str(rows)).replace("KK", str(K))
    target = Target.detect()
    return KernelImage(compile_module(text, target), "kernel", params, target.triple, target.cpu)


def with_constant(name: str = "W", layout: Layout | None = None) -> tuple[Param, ...]:
    """The parameters, with another name or layout of the constant."""
    a, w, *rest = PARAMS
    return (a, replace(w, name=name, layout=layout), *rest)


def dag() -> te.ComputeDAG:
    return te.ComputeDAG([_product()])


def dag_of_a_prepared_constant() -> te.ComputeDAG:
    """The same computation with the stage V = W * 2 + 1 in place of W."""
    return te.ComputeDAG([_product(lambda w: te.compute((K,), lambda k: w[k] * 2 + 1, name="V"))])


def dag_with_root() -> te.ComputeDAG:
    """C[i] = sqrt(sum): defined for positive sums only."""
    total = _product(name="total")
    return te.ComputeDAG([te.compute((ROWS,), lambda i: te.sqrt(total[i]), name="C")])


def _product(prepare: Callable[[te.Tensor], te.Tensor] = lambda w: w, name: str = "C") -> te.Tensor:
    a = te.placeholder((ROWS, K), name="A")
    w = prepare(te.placeholder((K,), name="W", constant=True))
    k = te.reduce_axis(K, name="k")
    return te.compute((ROWS,), lambda i: te.sum(a[i, k] * w[k], axis=k), name=name)


def check_spec(seed: int = 0) -> CheckSpec:
    return CheckSpec(dag(), seed, kernel(real="double"), reduction_length=K)


def threads_kernel() -> KernelImage:
    """A kernel that writes the number of threads that kernels may use."""
    text = """
declare i64 @ansorlite_threads()
define void @threads(ptr %args) {
  %out = load ptr, ptr %args
  %n = call i64 @ansorlite_threads()
  store i64 %n, ptr %out
  ret void
}
"""
    target = Target.detect()
    params = (Param("threads", (1,), "int64", "output"),)
    return KernelImage(compile_module(text, target), "threads", params, target.triple, target.cpu)


# Instructions that make the kernel wrong at its row %i.
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
  %c = fadd float %acc1, %zero"""

ONE_ROW = """%this = icmp eq i64 %i, 123
  %c = select i1 %this, float 9.0, float %acc1"""
SECOND_RUN = """%seen = load float, ptr %scratch
  %again = fcmp oeq float %seen, 7.0
  %last = icmp eq i64 %i, 299
  %mark = select i1 %last, float 7.0, float %seen
  store float %mark, ptr %scratch
  %off = select i1 %again, float 1.0, float 0.0
  %c = fadd float %acc1, %off"""
ROOT = "%c = call float @llvm.sqrt.f32(float %acc1)"
ROOT_DOUBLE = """%c0 = fptrunc double %acc1 to float
  %c = call float @llvm.sqrt.f32(float %c0)"""
SCALED_DOUBLE = """%c0 = fmul double %acc1, 1.001
  %c = fptrunc double %c0 to float"""
