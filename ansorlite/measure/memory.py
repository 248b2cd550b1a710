"""Buffers between guard pages: an access outside the buffer ends the process (SIGSEGV).

In: a shape and a dtype. Out: a `GuardedBuffer`, a 64-byte aligned array that ends at most 63 bytes
before a page without access; another such page lies before its first page. A write to a read-only
buffer also ends the process. POSIX only.
"""

import ctypes
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ansorlite.calls import HUGE_PAGE, HUGE_PAGES_FROM, Array, aligned_bytes
from ansorlite.errors import MachineError

MOST_FREE_BYTES = 1 << 27  # released memory that a pool keeps
FITTING = 2  # released memory serves for buffers of at least 1/FITTING of its size


@dataclass(frozen=True)
class GuardedBuffer:
    """`array` lies in the `size_bytes` of whole pages from address `start`, without guard pages."""

    array: Array
    start: int
    size_bytes: int

    def protect(self) -> None:
        """Make the buffer read-only; there is no way back."""
        self.array.flags.writeable = False
        _mprotect(self.start, self.size_bytes, mmap.PROT_READ)

    def poison(self) -> None:
        """Fill with values that a correct kernel overwrites without reading: NaN, or 0xA5 bytes."""
        # All bits set is a NaN in both float formats, but -1 as an integer, a plausible result.
        byte = 0xFF if self.array.dtype.kind == "f" else 0xA5
        self.array.reshape(-1).view(np.uint8).fill(byte)


def guarded_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> GuardedBuffer:
    """A C-contiguous, 64-byte aligned array of zeros between guard pages.

    Raises MachineError where the system has no memory for it.
    """
    size_bytes, unit = _size_and_unit(shape, dtype)
    return _at_end(_guarded_pages(size_bytes, unit), size_bytes, shape, dtype)


def guarded_hole(shape: Sequence[int], dtype: npt.DTypeLike) -> GuardedBuffer:
    """A place for an array without memory: any access ends the process."""
    buffer = guarded_empty(shape, dtype)
    buffer.array.flags.writeable = False
    _mprotect(buffer.start, buffer.size_bytes, 0)
    return buffer


class GuardedPool:
    """Memory for buffers that come and go: pages that were touched once cost little again.

    Buffers are as those of `guarded_empty`, but with any contents. Example: `b = pool.empty((64,),
    "float32")`, and once nobody uses the buffer any more, `pool.release(b)`.
    """

    def __init__(self) -> None:
        self._used: dict[int, GuardedBuffer] = {}  # whole memory, by the start of its buffer
        self._free: list[GuardedBuffer] = []  # whole memory, what was released last at the end

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> GuardedBuffer:
        """A buffer with any contents, from released memory of up to twice the size if there is.

        Raises MachineError where the system has no memory for it.
        """
        size_bytes, unit = _size_and_unit(shape, dtype)
        whole = self._whole(size_bytes, unit)
        room = whole.size_bytes - size_bytes
        _mprotect(whole.start, whole.size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        if room:
            _mprotect(whole.start, room, 0)
        buffer = _at_end(whole, size_bytes, shape, dtype)
        self._used[buffer.start] = whole
        return buffer

    def release(self, buffer: GuardedBuffer) -> None:
        """Take back a buffer's memory: the buffer must not be used any more."""
        self._free.append(self._used.pop(buffer.start))
        while sum(w.size_bytes for w in self._free) > MOST_FREE_BYTES:
            del self._free[0]

    def _whole(self, size_bytes: int, unit: int) -> GuardedBuffer:
        """The smallest free memory that serves, else new memory."""
        # Small pages and huge ones are not mixed: no memory of small pages has half a huge page.
        sizes = range(size_bytes, FITTING * size_bytes + 1)
        fitting = [w for w in self._free if w.size_bytes in sizes]
        if not fitting:
            return _guarded_pages(size_bytes, unit)
        whole = min(fitting, key=lambda w: w.size_bytes)
        self._free = [w for w in self._free if w is not whole]
        return whole


def _size_and_unit(shape: Sequence[int], dtype: npt.DTypeLike) -> tuple[int, int]:
    """(bytes of the whole pages of an array, at least one page; bytes of a page).

    Huge pages under the same condition as in `resident_empty`, so users get the times that were
    measured.
    """
    data_bytes = aligned_bytes(math.prod(shape) * np.dtype(dtype).itemsize)
    huge = data_bytes >= HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE")
    unit = HUGE_PAGE if huge else mmap.PAGESIZE
    return max(math.ceil(data_bytes / unit), 1) * unit, unit


def _guarded_pages(size_bytes: int, unit: int) -> GuardedBuffer:
    """New pages of `unit` bytes between guard pages, as bytes."""
    page, room = mmap.PAGESIZE, 0 if unit == mmap.PAGESIZE else unit
    try:
        pages = mmap.mmap(-1, size_bytes + 2 * page + room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MachineError(f"no memory for {size_bytes} bytes: {error}") from error
    if room:
        pages.madvise(mmap.MADV_HUGEPAGE)
    base = np.frombuffer(pages, np.uint8).ctypes.data
    first = page + (-(base + page) % unit)  # offset of the buffer's own pages in the mapping
    start = base + first
    _mprotect(start - page, page, 0)
    _mprotect(start + size_bytes, page, 0)
    return GuardedBuffer(np.frombuffer(pages, np.uint8, size_bytes, first), start, size_bytes)


def _at_end(
    whole: GuardedBuffer, size_bytes: int, shape: Sequence[int], dtype: npt.DTypeLike
) -> GuardedBuffer:
    """An array at the end of the last `size_bytes` of `whole`."""
    kind = np.dtype(dtype)
    first = whole.size_bytes - aligned_bytes(math.prod(shape) * kind.itemsize)
    array = np.ndarray(tuple(shape), kind, buffer=whole.array.data, offset=first)
    return GuardedBuffer(array, whole.start + whole.size_bytes - size_bytes, size_bytes)


def guarded_copy(x: Array, *, read_only: bool = False) -> GuardedBuffer:
    """A guarded buffer with the values of `x`."""
    buffer = guarded_empty(x.shape, x.dtype)
    buffer.array[...] = x
    if read_only:
        buffer.protect()
    return buffer


def _mprotect(address: int, size_bytes: int, protection: int) -> None:
    if _process().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), protection):
        raise MachineError(f"mprotect of {size_bytes} bytes failed: errno {ctypes.get_errno()}")


@cache
def _process() -> ctypes.CDLL:
    """The functions of this process: looking them up takes longer than most of their calls."""
    return ctypes.CDLL(None, use_errno=True)
