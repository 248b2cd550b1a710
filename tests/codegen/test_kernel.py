"""Prepared calls of a kernel: what they check once, and that they read and write in place."""

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen.kernel import Kernel
from ansorlite.codegen.loader import (
    HUGE_PAGES_FROM,
    aligned_copy,
    aligned_empty,
    resident_copy,
    resident_empty,
)
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


def test_what_lies_elsewhere_cannot_be_prepared(kernel: Kernel) -> None:
    x, w = (aligned_copy(np.ones(s, np.float32)) for s in ((5, 4), (4,)))
    odd = aligned_empty((5, 8), "float32")[:, ::2]
    with pytest.raises(ModelError, match="cannot prepare a call: x is no aligned contiguous array"):
        kernel.prepare(odd, w)
    with pytest.raises(ModelError, match="cannot prepare a call: y is no aligned contiguous array"):
        kernel.prepare(x, w, out=odd)
    with pytest.raises(ModelError, match=r"x has shape \(4,\), expected \(5, 4\)"):
        kernel.prepare(w, x)
    with pytest.raises(ModelError, match=r"takes 2 arrays \(x, w\), got 1"):
        kernel.prepare(x)


@pytest.mark.parametrize("n", [0, 3, HUGE_PAGES_FROM // 4, HUGE_PAGES_FROM // 4 + 1, 1 << 20])
def test_resident_memory(n: int) -> None:
    x = resident_empty((n,), "float32")
    assert x.shape == (n,) and x.dtype == np.float32
    assert x.ctypes.data % 64 == 0 and x.flags.c_contiguous and x.flags.writeable
    values = np.arange(n, dtype=np.float32)
    np.testing.assert_array_equal(resident_copy(values), values)
