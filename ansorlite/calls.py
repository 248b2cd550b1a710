"""numpy arrays as native code sees them: what each call of a kernel or a network does with them.

In: whatever a caller gives. Out: an `Operand`'s array of the right shape and dtype (ModelError
names what is wrong), its address, memory for results whose pages are there already, and locks that
a fork leaves free. All of it is on the path of calls that take microseconds. Needs numpy alone, so
that saved networks load without the rest of the package.
"""

import ctypes
import math
import mmap
import os
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.names import brief

Array = npt.NDArray[Any]
ALIGNMENT = 64  # bytes: a cache line, and the widest vector register
HUGE_PAGE = 1 << 21
HUGE_PAGES_FROM = 1 << 18
KEPT = 3  # results of one kind whose memory is kept

# An ndarray's first field behind the object's head is its data pointer (PyArrayObject of numpy's C
# interface, which no version may change). Reading it takes a sixth of the time of `x.ctypes.data`.
_DATA = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address


def _address(x: Array) -> int:
    return _pointer_at(id(x) + _DATA).value or 0


def _slow_address(x: Array) -> int:
    return int(x.ctypes.data)


_KNOWN = np.arange(24, dtype=np.int16)
_IS_FIRST = all(_address(x) == x.ctypes.data for x in (_KNOWN, _KNOWN[3:], _KNOWN.reshape(4, 6)))
# Where an array's first element lies.
address = _address if _IS_FIRST else _slow_address


class Operand:
    """An array that native code reads or writes: C-contiguous, whole elements, any alignment."""

    __slots__ = ("dtype", "label", "name", "nbytes", "shape")

    def __init__(
        self, name: str, shape: Sequence[int], dtype: npt.DTypeLike, kind: str = ""
    ) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), np.dtype(dtype)
        self.label = f"{kind} {brief(name)}".strip()  # as errors name it
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def fits(self, x: object) -> bool:
        """Can native code use the object as it is?"""
        return (
            type(x) is np.ndarray
            and x.shape == self.shape
            and x.dtype == self.dtype
            and x.flags.c_contiguous
            and x.flags.aligned
        )

    def checked(self, value: npt.ArrayLike) -> Array:
        """The value as an array of this shape and dtype, strides as they are; else ModelError."""
        try:
            x = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise ModelError(f"{self.label} is no array: {error}") from None
        if x.shape != self.shape:
            raise ModelError(f"{self.label} has shape {x.shape}, expected {self.shape}")
        if x.dtype != self.dtype:
            raise ModelError(f"{self.label} has dtype {x.dtype}, expected {self.dtype}")
        return x

    def check_result(self, x: object) -> None:
        """Raise ModelError where a caller's array cannot take a result; strides do not matter."""
        if not isinstance(x, np.ndarray):
            kind = type(x).__name__
            raise ModelError(f"out for {self.label} is of type {kind}, give a numpy array")
        self.checked(x)
        if not x.flags.writeable:
            raise ModelError(f"out for {self.label} is read-only: give a writable array")

    def read(self, value: npt.ArrayLike) -> Array:
        """The value as native code can read it, copied only where it has to be; else ModelError."""
        x = self.checked(value)
        if not (x.flags.c_contiguous and x.flags.aligned):
            x = aligned_copy(x)
        return x


def in_order(
    names: Sequence[str], args: Sequence[npt.ArrayLike], named: Mapping[str, npt.ArrayLike]
) -> list[npt.ArrayLike]:
    """The inputs of a network in the order of `names`, from a call's arguments.

    Raises ModelError where a call mixes positions and names, has a wrong number of inputs, an
    unknown name, or misses one.
    """
    if args and named:
        raise ModelError("give the network's inputs in order or by name, not both")
    known = ", ".join(map(brief, names))
    unknown = [n for n in named if n not in names]
    if unknown:
        raise ModelError(f"the network has no input {brief(unknown[0])} (it has: {known})")
    missing = [n for n in names if n not in named] if named else []
    if missing:
        raise ModelError(f"no value is given for input {brief(missing[0])}")
    found = [named[n] for n in names] if named else list(args)
    if len(found) != len(names):
        raise ModelError(f"the network takes {len(names)} inputs ({known}), got {len(found)}")
    return found


class Results:
    """Arrays for results of one kind, in memory that is used again when nobody refers to it.

    Fresh pages cost more than many kernels: the system clears them one by one. Some arrays are
    kept with their memory; what is given out are views, and all views of an array, and views of
    these, refer to the memory itself (`ndarray.base`), so the count of references tells what is
    free.
    """

    __slots__ = ("_kept", "operand")

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self._kept: list[tuple[Array, Any]] = []

    def take(self) -> Array:
        """An array of undefined values."""
        for x, memory in self._kept:
            if sys.getrefcount(memory) == _FREE:
                return x[...]
        fresh = resident_empty(self.operand.shape, self.operand.dtype)
        self._kept.append((fresh, fresh.base))
        if len(self._kept) > KEPT:
            del self._kept[0]
        return fresh[...]


def _count_of_free() -> int:
    """References to memory that nobody uses, as `Results.take` counts them."""
    x = resident_empty((1,), "float32")
    kept = [(x, x.base)]
    del x
    for _, memory in kept:
        return sys.getrefcount(memory)
    raise AssertionError


class HasLock(Protocol):
    _lock: threading.Lock


_WITH_LOCKS: "weakref.WeakSet[Any]" = weakref.WeakSet()


def new_lock(owner: HasLock) -> threading.Lock:
    """A lock for the owner's `_lock`, which is free again in the child of a fork.

    The thread that held the parent's is not there to give the child's back.
    """
    _WITH_LOCKS.add(owner)
    return threading.Lock()


def _renew_locks() -> None:
    for owner in list(_WITH_LOCKS):
        owner._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)


def aligned_bytes(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of `ALIGNMENT`."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


def aligned_empty(shape: Sequence[int], dtype: npt.DTypeLike, alignment: int = ALIGNMENT) -> Array:
    """A C-contiguous array of undefined values whose address is a multiple of `alignment` bytes."""
    dtype = np.dtype(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(size_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return np.ndarray(tuple(shape), dtype, buffer=memory.data, offset=start)


def resident_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """An aligned array for memory that stays: zeros, in huge pages where it is not small.

    Small pages lie anywhere in physical memory, so how well an array fits the second-level cache
    is then another matter in every process.
    """
    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if size_bytes < HUGE_PAGES_FROM or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_empty(shape, dtype)
    whole = -(-size_bytes // HUGE_PAGE) * HUGE_PAGE
    pages = mmap.mmap(-1, whole + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.uint8)
    start = -memory.ctypes.data % HUGE_PAGE
    return np.ndarray(tuple(shape), np.dtype(dtype), buffer=memory.data, offset=start)


def resident_copy(x: Array) -> Array:
    """`x`'s values in a `resident_empty` array."""
    copy = resident_empty(x.shape, x.dtype)
    copy[...] = x
    return copy


def aligned_copy(x: Array, alignment: int = ALIGNMENT) -> Array:
    """`x`'s values in a new aligned, C-contiguous array of the same dtype."""
    copy = aligned_empty(x.shape, x.dtype, alignment)
    copy[...] = x
    return copy


_FREE = _count_of_free()
