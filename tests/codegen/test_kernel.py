"""Calls of a kernel: arguments, in-place reads and writes, bound constants, prepared calls."""

import copy
import os
import pickle

import numpy as np
import pytest

import ansorlite as al
from ansorlite import te
from ansorlite.calls import (
    HUGE_PAGES_FROM,
    aligned_copy,
    aligned_empty,
    resident_copy,
    resident_empty,
)
from ansorlite.codegen.kernel import Kernel
from ansorlite.errors import ModelError
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.target import Target


@pytest.fixture
def kernel() -> Kernel:
    """y = x + w, w constant."""
    x, w = te.placeholder((5, 4), name="x"), te.placeholder((4,), name="w", constant=True)
    y = te.compute((5, 4), lambda i, j: x[i, j] + w[j], name="y")
    return Kernel(lower(State(te.ComputeDAG([y]))), Target.detect())


def test_a_prepared_call_reads_and_writes_in_place(kernel: Kernel) -> None:
    x, out = aligned_empty((5, 4), "float32"), aligned_empty((5, 4), "float32")
    w = np.arange(4, dtype=np.float32)
    call = kernel.bind(w=w).prepare(x, out=out)
    for value in (1.0, -3.0):
        x[...] = value
        assert call() is out
        np.testing.assert_array_equal(out, x + w)


def test_a_prepared_call_owns_its_results_if_none_are_given(kernel: Kernel) -> None:
    x, w = (aligned_copy(np.ones(s, np.float32)) for s in ((5, 4), (4,)))
    np.testing.assert_array_equal(kernel.prepare(x, w)(), np.full((5, 4), 2.0, np.float32))


def test_arrays_that_need_a_copy_cannot_be_prepared(kernel: Kernel) -> None:
    x, w = (aligned_copy(np.ones(s, np.float32)) for s in ((5, 4), (4,)))
    odd = aligned_empty((5, 8), "float32")[:, ::2]
    with pytest.raises(ModelError, match="cannot prepare a call: x is no contiguous array"):
        kernel.prepare(odd, w)
    with pytest.raises(ModelError, match="cannot prepare a call: out is no contiguous array"):
        kernel.prepare(x, w, out=odd)
    with pytest.raises(ModelError, match="or shares memory with an input"):
        kernel.prepare(x, w, out=x)
    with pytest.raises(ModelError, match=r"x has shape \(4,\), expected \(5, 4\)"):
        kernel.prepare(w, x)
    with pytest.raises(ModelError, match=r"takes 2 arrays \(x, w\), got 1"):
        kernel.prepare(x)


def placed(shape: tuple[int, ...], offset: int, dtype: str = "float32") -> np.ndarray:
    """A contiguous array that begins so many bytes behind a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = aligned_empty((size + offset,), "uint8")[offset:]
    return (
        memory.view(dtype).reshape(shape)
        if offset % 4 == 0
        else np.ndarray(shape, dtype, buffer=memory.data)
    )


@pytest.mark.parametrize("offset", [0, 1, 4, 16, 36])
def test_arrays_may_begin_anywhere(kernel: Kernel, offset: int) -> None:
    x, w, out = placed((5, 4), offset), placed((4,), offset), placed((5, 4), offset)
    x[...], w[...] = np.arange(20).reshape(5, 4), np.arange(4)
    np.testing.assert_array_equal(kernel(x, w), x + w)
    assert kernel(x, w, out=out) is out
    np.testing.assert_array_equal(out, x + w)


def test_arrays_of_other_strides_and_read_only_ones_are_read(kernel: Kernel) -> None:
    x, w = np.arange(20, dtype=np.float32).reshape(4, 5).T, np.arange(4, dtype=np.float32)[::-1]
    x.flags.writeable = False
    np.testing.assert_array_equal(kernel(x, w), x + w)
    out = np.empty((4, 5), np.float32).T
    assert kernel(x, w, out=out) is out
    np.testing.assert_array_equal(out, x + w)


def test_results_that_overlap_an_input(kernel: Kernel) -> None:
    for rows in (0, 1, 3):
        memory = aligned_empty((8, 4), "float32")
        memory[...] = np.arange(32).reshape(8, 4)
        x, w, out = memory[:5], memory[0].copy(), memory[rows : rows + 5]
        expected = x + w
        assert kernel(x, w, out=out) is out
        np.testing.assert_array_equal(out, expected)


def test_wrong_arguments_of_a_call(kernel: Kernel) -> None:
    x, w = np.ones((5, 4), np.float32), np.ones(4, np.float32)
    fixed = np.ones((5, 4), np.float32)
    fixed.flags.writeable = False
    wrong = [
        ((x,), None, r"takes 2 arrays \(x, w\), got 1"),
        ((x.astype(">f4"), w), None, "x has dtype >f4, expected float32"),
        ((x.astype("f8"), w), None, "x has dtype float64, expected float32"),
        (([[1.0, 2.0], [3.0]], w), None, "x is no array"),
        (("text", w), None, r"x has shape \(\)"),
        ((x, w), fixed, "out for y is read-only"),
        ((x, w), x[:4], r"y has shape \(4, 4\), expected \(5, 4\)"),
        ((x, w), [1.0], "out for y is of type list, give a numpy array"),
        ((x, w), (x, x), "out has 2 arrays, the kernel has 1 outputs"),
    ]
    for args, out, text in wrong:
        with pytest.raises(ModelError, match=text):
            kernel(*args, out=out)


def test_two_results_in_one_place_are_refused() -> None:
    x = te.placeholder((5, 4), name="x")
    y = te.compute((5, 4), lambda i, j: x[i, j] + 1.0, name="y")
    z = te.compute((5, 4), lambda i, j: y[i, j] * 2.0, name="z")
    two = Kernel(lower(State(te.ComputeDAG([y, z]))), Target.detect())
    x_, out = np.ones((5, 4), np.float32), np.empty((5, 4), np.float32)
    with pytest.raises(ModelError, match="out for z shares memory with another result"):
        two(x_, out=(out, out))
    y_, z_ = two(x_, out=(out, np.empty_like(out)))
    assert y_ is out and (y_ == 2).all() and (z_ == 4).all()


def test_memory_of_results_is_reused_without_references(kernel: Kernel) -> None:
    x, w = np.ones((5, 4), np.float32), np.ones(4, np.float32)
    first = kernel(x, w)
    row, place = first[2], first.ctypes.data
    del first
    others = [kernel(x * k, w) for k in range(2, 8)]
    assert place not in [y.ctypes.data for y in others]
    np.testing.assert_array_equal(row, np.full(4, 2, np.float32))
    for k, y in enumerate(others):
        np.testing.assert_array_equal(y, np.full((5, 4), k + 3, np.float32))
    del others, y
    places = {kernel(x, w).ctypes.data for _ in range(4)}
    assert len(places) == 1


def test_a_kernel_can_be_copied_and_pickled(kernel: Kernel) -> None:
    x, w = np.ones((5, 4), np.float32), np.arange(4, dtype=np.float32)
    for original in (kernel, kernel.bind(w=w)):
        args = (x, w)[: len(original.inputs)]
        for made in (copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
            np.testing.assert_array_equal(made(*args), original(*args))


def test_a_lock_that_was_held_while_the_process_forked(kernel: Kernel) -> None:
    x, w = np.ones((5, 4), np.float32), np.ones(4, np.float32)
    with kernel._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if (kernel(x, w) == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("n", [0, 3, HUGE_PAGES_FROM // 4, HUGE_PAGES_FROM // 4 + 1, 1 << 20])
def test_resident_memory(n: int) -> None:
    x = resident_empty((n,), "float32")
    assert x.shape == (n,) and x.dtype == np.float32
    assert x.ctypes.data % 64 == 0 and x.flags.c_contiguous and x.flags.writeable
    values = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(resident_copy(values), values)


def test_constants_of_a_call_are_read_again_in_each_call() -> None:
    """They are packed once for the same values, and anew for others, also in the same array."""
    task = al.workload("GMM", 0, batch=1, constant_weights=True)
    made = al.tune(task, n_trials=6, progress=False)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(p.shape).astype(np.float32) for p in made.kernel.inputs)
    for _ in range(3):
        np.testing.assert_allclose(made.kernel(x, w), np.matmul(x, w), 1e-4, 1e-4)
    w[..., 3, 5] += 1.0
    np.testing.assert_allclose(made.kernel(x, w), np.matmul(x, w), 1e-4, 1e-4)
    w *= -1.0
    np.testing.assert_allclose(made.kernel(x, w), np.matmul(x, w), 1e-4, 1e-4)
    other = np.asfortranarray(w + 1.0)
    np.testing.assert_allclose(made.kernel(x, other), np.matmul(x, other), 1e-4, 1e-4)
