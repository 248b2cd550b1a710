"""Buffers of the runner's requests: what is kept and for how long, what a kernel may do."""

import ctypes
import signal

import numpy as np
from measure_processes import signal_of

from ansorlite.measure.buffers import Buffers

MB = 1 << 20


def test_scratch_buffers_serve_until_the_end_of_a_request() -> None:
    buffers = Buffers()
    one, two = (buffers.scratch((MB,), "float32") for _ in range(2))
    assert one.start != two.start
    buffers.settle()
    again = buffers.scratch((MB,), "float32")
    assert again.start in (one.start, two.start) and again.array.flags.writeable


def test_kept_constants_cannot_be_written() -> None:
    buffers, x = Buffers(), np.arange(12.0).reshape(3, 4)
    kept = buffers.kept_copy("x", x)
    buffers.settle()
    assert buffers.kept("x") is kept and np.array_equal(kept.array, x)
    address = kept.array.ctypes.data
    assert signal_of(lambda: ctypes.string_at(address, 8)) == 0
    assert signal_of(lambda: ctypes.memset(address, 0, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.string_at(kept.start + kept.size_bytes, 1)) == signal.SIGSEGV


def test_the_constants_that_were_not_used_for_longest_go() -> None:
    buffers, page = Buffers(most_kept_bytes=8192), np.ones(1024, np.float32)
    a, b = (buffers.kept_copy(name, page) for name in "ab")
    assert buffers.kept("a") is a
    c = buffers.kept_copy("c", page)
    assert buffers.kept("b") is b  # nothing goes before the request ends: kernels may use it
    buffers.settle()
    assert buffers.kept("a") is None and buffers.kept("b") is b and buffers.kept("c") is c
    next_one = buffers.scratch((1024,), "float32")
    assert next_one.start == a.start
    next_one.array[...] = 5
    assert (b.array == 1).all() and (c.array == 1).all()


def test_a_constant_larger_than_the_limit_serves_its_request() -> None:
    buffers = Buffers(most_kept_bytes=0)
    kept = buffers.kept_copy("x", np.full(5000, 3.0))
    assert buffers.kept("x") is kept and (kept.array == 3).all()
    buffers.settle()
    assert buffers.kept("x") is None


def test_a_constant_that_is_kept_again_replaces_the_first_one() -> None:
    buffers = Buffers()
    first, second = (buffers.kept_copy("x", np.full(9, k)) for k in (1, 2))
    assert buffers.kept("x") is second and (first.array == 1).all() and (second.array == 2).all()
    buffers.settle()
    assert buffers.scratch((9,), "int64").start == first.start  # its memory serves again
    assert buffers.kept("x") is second
