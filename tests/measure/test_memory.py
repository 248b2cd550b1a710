"""Guarded buffers: alignment, contents, and the signal at an access outside."""

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable

import numpy as np
import pytest

from ansorlite.calls import ALIGNMENT
from ansorlite.measure.memory import GuardedArena, guarded_copy, guarded_empty


def signal_of(action: Callable[[], object]) -> int:
    """The signal that `action` kills a fork of this process with; 0 if it survives."""
    if (pid := os.fork()) == 0:
        faulthandler.disable()  # pytest's would print a traceback for each death
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


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
def test_an_arena_gives_guarded_buffers_one_after_the_other(n: int) -> None:
    arena = GuardedArena()
    for count in (1 << 20, n):
        buffer = arena.empty((count // 4, 4), "float32")
        buffer.poison()
        assert buffer.array.shape == (count // 4, 4) and np.isnan(buffer.array).all()
    first, last = buffer.array.ctypes.data, buffer.start + buffer.size_bytes - 1
    assert first % ALIGNMENT == 0 and last + 1 - first - buffer.array.nbytes < ALIGNMENT
    assert signal_of(lambda: ctypes.memset(buffer.start, 0, buffer.size_bytes)) == 0
    assert signal_of(lambda: ctypes.string_at(last + 1, 1)) == signal.SIGSEGV
    assert signal_of(lambda: ctypes.string_at(buffer.start - 1, 1)) == signal.SIGSEGV


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
