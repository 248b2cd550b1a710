"""Guarded buffers: alignment, contents, and the signal at an access outside."""

import ctypes
import signal

import numpy as np
import pytest
from measure_processes import signal_of

from ansorlite.calls import ALIGNMENT
from ansorlite.measure import memory
from ansorlite.measure.memory import GuardedPool, guarded_copy, guarded_empty, guarded_hole


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (1024,), (1025,), (1 << 21,)])
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_layout(shape: tuple[int, ...], dtype: str) -> None:
    buffer = guarded_empty(shape, dtype)
    array = buffer.array
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.ctypes.data % ALIGNMENT == 0 and array.flags.c_contiguous
    assert not array.any()
    slack = buffer.start + buffer.size_bytes - (array.ctypes.data + array.nbytes)
    assert 0 <= slack < ALIGNMENT


def test_reading_and_writing_outside_kills() -> None:
    buffer = guarded_empty((100,), "float32")
    first, last = buffer.array.ctypes.data, buffer.start + buffer.size_bytes - 1
    assert signal_of(lambda: ctypes.string_at(first, 400)) == 0
    assert signal_of(lambda: ctypes.string_at(last, 1)) == 0
    assert signal_of(lambda: ctypes.string_at(last + 1, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.string_at(buffer.start - 1, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.memset(last + 1, 0, 1)) == signal.SIGSEGV


@pytest.mark.parametrize("n", [100, 1 << 20, 3 << 20, 1 << 21])
def test_a_pool_gives_guarded_buffers_in_memory_that_was_released(n: int) -> None:
    pool = GuardedPool()
    first = pool.empty((1 << 20,), "uint8")
    first.protect()
    pool.release(first)
    buffer = pool.empty((n // 4, 4), "uint8")
    assert (buffer.start == first.start) == (n in (1 << 20, 1 << 21))  # in one huge page
    buffer.array[...] = 7
    start, end = buffer.array.ctypes.data, buffer.start + buffer.size_bytes
    assert start % ALIGNMENT == 0 and 0 <= end - start - n < ALIGNMENT
    assert signal_of(lambda: ctypes.memset(buffer.start, 0, buffer.size_bytes)) == 0
    for outside in (end, buffer.start - 1):
        assert signal_of(lambda at=outside: ctypes.string_at(at, 1)) == signal.SIGSEGV
        assert signal_of(lambda at=outside: ctypes.memset(at, 0, 1)) == signal.SIGSEGV


@pytest.mark.parametrize(("before", "after"), [(4 << 20, 3 << 20), (40_000, 30_000)])
def test_what_a_smaller_buffer_leaves_of_released_memory_cannot_be_read(
    before: int, after: int
) -> None:
    pool = GuardedPool()
    large = pool.empty((before,), "uint8")
    large.poison()
    pool.release(large)
    small = pool.empty((after,), "uint8")
    end = large.start + large.size_bytes
    assert small.start + small.size_bytes == end and (small.start > large.start) == (before < 1e6)
    assert signal_of(lambda: ctypes.string_at(end, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.string_at(small.start - 1, 1)) == signal.SIGSEGV
    pool.release(small)
    again = pool.empty((before,), "uint8")
    assert again.start == large.start
    again.poison()
    assert (again.array == 0xA5).all()


def test_buffers_in_use_share_no_memory() -> None:
    pool = GuardedPool()
    sizes = [10, 5000, 300_000, 5000, 10]
    buffers = [pool.empty((n,), "uint8") for n in sizes]
    pool.release(buffers[1])
    buffers[1] = pool.empty((5000,), "uint8")
    for k, buffer in enumerate(buffers):
        buffer.array[...] = k
    for k, buffer in enumerate(buffers):
        assert (buffer.array == k).all()


def test_a_pool_keeps_a_limited_amount_of_released_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_FREE_BYTES", 5000)
    pool = GuardedPool()
    buffers = [pool.empty((n,), "uint8") for n in (4096, 4096, 10_000)]
    pool.release(buffers[0])
    pool.release(buffers[1])
    assert pool.empty((1,), "uint8").start == buffers[1].start
    pool.release(buffers[2])
    assert not pool._free and not pool._used.keys() - {buffers[1].start}


def test_any_access_to_a_hole_kills() -> None:
    hole = guarded_hole((3, 100), "float32")
    assert hole.array.shape == (3, 100) and not hole.array.flags.writeable
    address = hole.array.ctypes.data
    assert signal_of(lambda: ctypes.string_at(address, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.memset(address + 1199, 0, 1)) == signal.SIGSEGV


def test_a_read_only_copy_can_be_read_only() -> None:
    x = np.arange(12.0).reshape(3, 4)
    buffer = guarded_copy(x, read_only=True)
    address = buffer.array.ctypes.data
    assert np.array_equal(buffer.array, x)
    assert signal_of(lambda: ctypes.string_at(address, 8)) == 0
    assert signal_of(lambda: ctypes.memset(address, 0, 1)) == signal.SIGSEGV
    with pytest.raises(ValueError, match="read-only"):
        buffer.array[0, 0] = 1


def test_poison() -> None:
    for dtype in ("float32", "float64"):
        buffer = guarded_empty((5, 2), dtype)
        buffer.poison()
        assert np.isnan(buffer.array).all()
    for dtype, value in (("int32", -0x5A5A5A5B), ("int64", -0x5A5A5A5A5A5A5A5B)):
        buffer = guarded_empty((5, 2), dtype)
        buffer.poison()
        assert (buffer.array == value).all()
    flag = guarded_empty((), "bool")
    flag.poison()
    assert flag.array.view(np.uint8) == 0xA5
