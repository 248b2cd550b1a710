"""Loading of objects: calls, parallel regions, repeats, checks of pointers, release of memory."""

import gc
import sys
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ansorlite.calls import aligned_copy, aligned_empty
from ansorlite.codegen import loader, openmp
from ansorlite.codegen.compile import compile_module
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.loader import CallSequence, Loop, NativeFunction, SharedJit, load_image
from ansorlite.errors import BuildError
from ansorlite.ir.layout import Layout
from ansorlite.target import Target

N = 64
# y += 2 x on 64 floats.
AXPY = """
define void @axpy(ptr %args) {
entry:
  %x = load ptr, ptr %args
  %slot = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %slot
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %px = getelementptr float, ptr %x, i64 %i
  %py = getelementptr float, ptr %y, i64 %i
  %vx = load <8 x float>, ptr %px
  %vy = load <8 x float>, ptr %py
  %twice = fmul <8 x float> %vx, splat (float 2.0)
  %sum = fadd <8 x float> %twice, %vy
  store <8 x float> %sum, ptr %py
  %next = add i64 %i, 8
  %more = icmp ult i64 %next, 64
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
# Each thread of three writes 100 + the number of threads at its own place.
PARALLEL = """
declare void @ansorlite_parallel(ptr, ptr, i64)
define internal void @body(ptr %out, i64 %thread, i64 %threads) {
  %value = add i64 %threads, 100
  %place = getelementptr i64, ptr %out, i64 %thread
  store i64 %value, ptr %place
  ret void
}
define void @threads(ptr %args) {
  %out = load ptr, ptr %args
  call void @ansorlite_parallel(ptr @body, ptr %out, i64 3)
  ret void
}
"""
# Clears 4,096 bytes (a call of memset), copies 4,096 (memcpy), then calls libm.
LIBRARY_CALLS = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare float @expf(float)
declare double @pow(double, double)
declare double @erf(double)
@table = internal constant [2 x double] [double 3.0, double 4.0]
define void @library(ptr %args) {
  %x = load ptr, ptr %args
  %slot = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %slot
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %x, i64 4096, i1 false)
  call void @llvm.memset.p0.i64(ptr %x, i8 0, i64 4096, i1 false)
  %first = load double, ptr %y
  %second = getelementptr double, ptr @table, i64 1
  %four = load volatile double, ptr %second
  %p = call double @pow(double %first, double %four)
  store double %p, ptr %y
  %e = call double @erf(double %first)
  %place = getelementptr double, ptr %y, i64 1
  store double %e, ptr %place
  %single = fptrunc double %first to float
  %f = call float @expf(float %single)
  %double = fpext float %f to double
  %third = getelementptr double, ptr %y, i64 2
  store double %double, ptr %third
  ret void
}
"""


def image(source: str, symbol: str, *params: Param) -> KernelImage:
    target = Target.detect()
    return KernelImage(compile_module(source, target), symbol, params, target.triple, target.cpu)


def axpy() -> NativeFunction:
    x = Param("x", (N,), "float32", "input")
    return load_image(image(AXPY, "axpy", x, Param("y", (N,), "float32", "output")))


def test_axpy_runs_and_repeats() -> None:
    kernel = axpy()
    x = aligned_copy(np.arange(N, dtype=np.float32))
    y = aligned_copy(np.ones(N, np.float32))
    kernel.run([x, y])
    np.testing.assert_array_equal(y, 2 * x + 1)
    args = kernel.pointer_array([x.ctypes.data, y])
    kernel.call(args)
    kernel.repeat(args, 5)
    np.testing.assert_array_equal(y, 14 * x + 1)
    kernel.repeat(args, 0)
    np.testing.assert_array_equal(y, 14 * x + 1)


def test_parallel_region() -> None:
    kernel = load_image(image(PARALLEL, "threads", Param("out", (3,), "int64", "output")))
    out = aligned_copy(np.zeros(3, np.int64))
    kernel.run([out])
    expected = [101, 0, 0] if openmp.runtime().is_serial else [103, 103, 103]
    assert out.tolist() == expected


def test_libc_and_libm_are_found() -> None:
    params = [Param(name, (512,), "float64", "output") for name in "xy"]
    kernel = load_image(image(LIBRARY_CALLS, "library", *params))
    x = aligned_copy(np.full(512, 3.0))
    y = aligned_copy(np.ones(512))
    kernel.run([x, y])
    assert not x.any()
    np.testing.assert_allclose(y[:3], [81.0, 0.9999779095030014, np.exp(np.float32(3))], rtol=1e-7)
    assert (y[3:] == 3.0).all()


def test_two_kernels_may_share_a_symbol() -> None:
    first, second = axpy(), axpy()
    assert first.address != second.address
    del first
    gc.collect()
    x, y = aligned_copy(np.ones(N, np.float32)), aligned_copy(np.zeros(N, np.float32))
    second.run([x, y])
    assert (y == 2).all()


def test_code_is_freed_with_the_function() -> None:
    kernel = axpy()
    jit = weakref.ref(kernel._owners[1])
    del kernel
    gc.collect()
    assert jit() is None


def test_kernels_of_a_shared_jit_live_on_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "KERNELS_PER_JIT", 3)
    compiled, jit = axpy().image, SharedJit()
    x = aligned_copy(np.ones(N, np.float32))
    kept = load_image(compiled, jit=jit)
    instance = weakref.ref(kept._owners[1])
    for _ in range(5):
        y = aligned_copy(np.zeros(N, np.float32))
        load_image(compiled, jit=jit).run([x, y])
        assert (y == 2).all()
    with pytest.raises(BuildError, match="damaged object"):
        load_image(replace(compiled, object_bytes=b"junk" * 20), jit=jit)
    y = aligned_copy(np.zeros(N, np.float32))
    load_image(compiled, jit=jit).run([x, y])
    kept.run([x, y])
    assert (y == 4).all() and instance() is not None
    del kept
    gc.collect()
    assert instance() is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_does_not_leak() -> None:
    compiled = axpy().image

    def resident_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1])

    for jit in (None, SharedJit()):
        for _ in range(200):
            load_image(compiled, jit=jit)
        before = resident_pages()
        for _ in range(200):
            load_image(compiled, jit=jit)
        assert resident_pages() - before < 100  # less than one page a kernel


def test_pointers_are_checked() -> None:
    kernel = axpy()
    x = aligned_empty((N,), "float32")
    with pytest.raises(ValueError, match=r"takes 2 pointers \(x, y\), not 1"):
        kernel.run([x])
    with pytest.raises(ValueError, match=r"y is float32\[64\], the array is float64\[64\]"):
        kernel.run([x, aligned_empty((N,), "float64")])
    with pytest.raises(ValueError, match=r"the array is float32\[63\]"):
        kernel.run([x[:-1], x])
    with pytest.raises(ValueError, match="not C-contiguous"):
        kernel.run([aligned_empty((2 * N,), "float32")[::2], x])
    with pytest.raises(ValueError, match="not a multiple of 4"):
        kernel.run([x.ctypes.data + 2, x])


def test_packed_memory_is_aligned_to_lines() -> None:
    packed = Param("x", (N,), "float32", "derived")
    kernel = load_image(image(AXPY, "axpy", packed, Param("y", (N,), "float32", "output")))
    y = aligned_copy(np.zeros(N, np.float32))
    with pytest.raises(ValueError, match="not a multiple of 64"):
        kernel.run([aligned_empty((N + 1,), "float32")[1:], y])


def test_arrays_are_checked_against_the_packed_shape() -> None:
    packed = Param(
        "x", (8, 8), "float32", "constant", Layout(((4, 2), (8,)), ((0, 0), (1, 0), (0, 1)))
    )
    kernel = load_image(image(AXPY, "axpy", packed, Param("y", (N,), "float32", "output")))
    y = aligned_copy(np.zeros(N, np.float32))
    kernel.run([aligned_copy(np.ones((4, 8, 2), np.float32)), y])
    assert (y == 2).all()
    with pytest.raises(ValueError, match=r"x is float32\[4, 8, 2\], the array is float32\[8, 8\]"):
        kernel.run([aligned_empty((8, 8), "float32"), y])


def test_objects_that_cannot_be_loaded_are_build_errors() -> None:
    target = Target.detect()
    with pytest.raises(BuildError, match="damaged object"):
        load_image(KernelImage(b"junk" * 20, "axpy", (), target.triple, target.cpu))
    with pytest.raises(BuildError, match="other"):
        load_image(image(AXPY, "other"))
    missing = (
        "declare void @nowhere()\ndefine void @f(ptr %a) {\n call void @nowhere()\n ret void\n}"
    )
    with pytest.raises(BuildError, match="cannot load kernel f"):
        load_image(image(missing, "f"))
    foreign = Target.cross("aarch64-neon" if target.arch == "x86_64" else "x86-avx2")
    code = compile_module(AXPY, foreign)
    with pytest.raises(BuildError, match=f"{foreign.arch} code for {foreign.cpu}"):
        load_image(KernelImage(code, "axpy", (), foreign.triple, foreign.cpu))


@pytest.mark.parametrize("alignment", [64, 4096])
def test_aligned_arrays(alignment: int) -> None:
    for shape in [(3, 5), (), (0, 4), (1000,)]:
        for dtype in ("float32", "float64", "int64", "bool"):
            x = aligned_empty(shape, dtype, alignment)
            assert x.shape == shape and x.dtype == dtype and x.flags.c_contiguous
            assert x.ctypes.data % alignment == 0
            x[...] = 1
    source = np.arange(12.0).reshape(3, 4).T
    copy = aligned_copy(source, alignment)
    np.testing.assert_array_equal(copy, source)
    assert copy.flags.c_contiguous and copy.ctypes.data % alignment == 0
    assert not np.shares_memory(copy, source)


def test_pointers_of_loops_move_and_come_back() -> None:
    kernel = axpy()
    given = aligned_copy(np.arange(3 * N, dtype=np.float32))
    got = aligned_copy(np.zeros(3 * N, np.float32))
    args = kernel.pointer_array([int(given.ctypes.data), int(got.ctypes.data)])
    before = list(args)
    wide = N * given.itemsize
    sequence = CallSequence([(kernel, args)], [Loop(0, 1, 3, ((0, 0, wide), (0, 1, wide)))])
    for times in (1, 2):
        sequence.run()
        np.testing.assert_array_equal(got, 2 * times * given)
        assert list(args) == before
