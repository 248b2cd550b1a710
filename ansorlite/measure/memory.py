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

import numpy as np
import numpy.typing as npt

from ansorlite.calls import HUGE_PAGE, HUGE_PAGES_FROM, Array, aligned_bytes
from ansorlite.errors import MachineError


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
    kind = np.dtype(dtype)
    count, page = math.prod(shape), mmap.PAGESIZE
    data_bytes = aligned_bytes(count * kind.itemsize)
    unit = _unit(data_bytes)
    huge = unit > page
    size_bytes = max(math.ceil(data_bytes / unit), 1) * unit
    room = unit if huge else 0
    try:
        pages = mmap.mmap(-1, size_bytes + 2 * page + room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MachineError(
            f"no memory for {kind.name}{list(shape)} ({size_bytes} bytes): {error}"
        ) from error
    if huge:
        pages.madvise(mmap.MADV_HUGEPAGE)
    base = np.frombuffer(pages, np.uint8).ctypes.data
    first = page + (-(base + page) % unit)  # offset of the buffer's own pages in the mapping
    array = np.frombuffer(pages, kind, count, first + size_bytes - data_bytes)
    array = array.reshape(tuple(shape))
    start = base + first
    _mprotect(start - page, page, 0)
    _mprotect(start + size_bytes, page, 0)
    return GuardedBuffer(array, start, size_bytes)


class GuardedArena:
    """Memory for one large buffer at a time: pages that were touched once cost nothing again."""

    def __init__(self) -> None:
        self._whole: GuardedBuffer | None = None

    def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> GuardedBuffer:
        """As `guarded_empty`, with any contents; the last buffer must not be used any more."""
        kind = np.dtype(dtype)
        data_bytes = aligned_bytes(math.prod(shape) * kind.itemsize)
        unit, whole = _unit(data_bytes), self._whole
        if unit == mmap.PAGESIZE:
            return guarded_empty(shape, dtype)
        size_bytes = math.ceil(data_bytes / unit) * unit
        if whole is None or whole.size_bytes < size_bytes:
            whole = self._whole = guarded_empty((size_bytes,), np.uint8)
        room = whole.size_bytes - size_bytes
        _mprotect(whole.start, whole.size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        if room:
            _mprotect(whole.start, room, 0)
        first = whole.size_bytes - data_bytes
        array = whole.array[first : first + math.prod(shape) * kind.itemsize].view(kind)
        return GuardedBuffer(array.reshape(tuple(shape)), whole.start + room, size_bytes)


def _unit(data_bytes: int) -> int:
    """Bytes of a page: huge ones under the same condition as in `resident_empty`.

    So users get the times that were measured.
    """
    huge = data_bytes >= HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE")
    return HUGE_PAGE if huge else mmap.PAGESIZE


def guarded_copy(x: Array, *, read_only: bool = False) -> GuardedBuffer:
    """A guarded buffer with the values of `x`."""
    buffer = guarded_empty(x.shape, x.dtype)
    buffer.array[...] = x
    if read_only:
        buffer.protect()
    return buffer


def _mprotect(address: int, size_bytes: int, protection: int) -> None:
    function = ctypes.CDLL(None, use_errno=True).mprotect
    if function(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), protection):
        raise MachineError(f"mprotect of {size_bytes} bytes failed: errno {ctypes.get_errno()}")
