"""The numpy side of a call of native code: checks of arguments, addresses, memory, locks.

In: a caller's arguments. Out: arrays of the right shape and dtype (`Operand`, else ModelError),
their addresses, memory for results whose pages are already mapped (`Results`), and locks that are
free after a fork. Calls take microseconds, so this code avoids every unneeded step. It needs numpy
alone: a saved network loads without the rest of the package.
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
HUGE_PAGE = 1 << 21  # bytes
HUGE_PAGES_FROM = 1 << 18  # arrays of at least so many bytes get huge pages
KEPT = 3  # arrays that a `Results` keeps for reuse

# The first field of an ndarray after the object header is its data pointer (PyArrayObject in
# numpy's stable C interface). Reading it takes a sixth of the time of `x.ctypes.data`.
_DATA = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address


def _address(x: Array) -> int:
    return _pointer_at(id(x) + _DATA).value or 0


def _slow_address(x: Array) -> int:
    return int(x.ctypes.data)


_KNOWN = np.arange(24, dtype=np.int16)
_IS_FIRST = all(_address(x) == x.ctypes.data for x in (_KNOWN, _KNOWN[3:], _KNOWN.reshape(4, 6)))
# The address of an array's first element.
address = _address if _IS_FIRST else _slow_address


class Operand:
    """The shape and dtype of an array that native code reads or writes; checks arguments.

    Native code needs a C-contiguous array whose address is a multiple of the size of an element.
    """

    __slots__ = ("dtype", "label", "name", "nbytes", "shape")

    def __init__(
        self, name: str, shape: Sequence[int], dtype: npt.DTypeLike, kind: str = ""
    ) -> None:
        self.name, self.shape, self.dtype = name, tuple(shape), np.dtype(dtype)
        self.label = f"{kind} {brief(name)}".strip()  # for error messages
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    def fits(self, x: object) -> bool:
        """Can native code use this object without a copy?"""
        return (
            type(x) is np.ndarray
            and x.shape == self.shape
            and x.dtype == self.dtype
            and x.flags.c_contiguous
            and x.flags.aligned
        )

    def checked(self, value: npt.ArrayLike) -> Array:
        """The value as an array of this shape and dtype, with any strides; raises ModelError."""
        try:
            x = np.asarray(value)
        except (ValueError, TypeError) as error:
            raise ModelError(f"{self.label} is no array: {error}") from None
        if x.shape != self.shape:
            raise ModelError(f"{self.label} has shape {x.shape}, expected {self.shape}")
        if x.dtype != self.dtype:
            raise ModelError(
                f"{self.label} has dtype {x.dtype}, expected {self.dtype}: convert it with astype"
            )
        return x

    def check_result(self, x: object) -> None:
        """Raise ModelError where a caller's `out` cannot take a result; it may have any strides."""
        if not isinstance(x, np.ndarray):
            kind = type(x).__name__
            raise ModelError(f"out for {self.label} is of type {kind}, give a numpy array")
        self.checked(x)
        if not x.flags.writeable:
            raise ModelError(f"out for {self.label} is read-only: give a writable array")

    def read(self, value: npt.ArrayLike) -> Array:
        """The value as an array for native code, copied only if needed; raises ModelError."""
        x = self.checked(value)
        if not (x.flags.c_contiguous and x.flags.aligned):
            x = aligned_copy(x)
        return x


def in_order(
    names: Sequence[str], args: Sequence[npt.ArrayLike], named: Mapping[str, npt.ArrayLike]
) -> list[npt.ArrayLike]:
    """The inputs of a network in the order of `names`, from a call's arguments.

    Arguments are arrays in order, arrays by name, or one mapping of names to arrays. Raises
    ModelError where a call mixes these, has a wrong number of inputs, an unknown name, or misses
    one.
    """
    if len(args) == 1 and isinstance(args[0], Mapping) and not named:
        args, named = (), args[0]
        if not named and names:
            raise ModelError(f"no value is given for input {brief(names[0])}")
    if args and named:
        raise ModelError("give the network's inputs in order or by name, not both")
    known = ", ".join(map(brief, names))
    unknown = [n for n in named if n not in names]
    if unknown:
        odd = brief(str(unknown[0]))
        raise ModelError(f"the network has no input {odd} (it has: {known})")
    missing = [n for n in names if n not in named] if named else []
    if missing:
        raise ModelError(f"no value is given for input {brief(missing[0])}")
    found = [named[n] for n in names] if named else list(args)
    if len(found) != len(names):
        raise ModelError(f"the network takes {len(names)} inputs ({known}), got {len(found)}")
    return found


class Results:
    """Arrays for one output, in memory that is reused when no result in it is referenced any more.

    New pages cost more time than many kernels, because the system clears each page. Up to `KEPT`
    arrays are kept with their memory. Callers get views; every view of a view refers to the memory
    itself (`ndarray.base`), so the memory's reference count shows whether it is free.
    """

    __slots__ = ("_kept", "operand")

    def __init__(self, operand: Operand) -> None:
        self.operand = operand
        self._kept: list[tuple[Array, Any]] = []

    def take(self) -> Array:
        """An array with undefined values."""
        for x, memory in self._kept:
            if sys.getrefcount(memory) == _FREE:
                return x[...]
        fresh = resident_empty(self.operand.shape, self.operand.dtype)
        self._kept.append((fresh, fresh.base))
        if len(self._kept) > KEPT:
            del self._kept[0]
        return fresh[...]


def _count_of_free() -> int:
    """The reference count of free memory, as `Results.take` sees it."""
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
    """A lock for the owner's attribute `_lock`; a child of a fork gets a new, free lock.

    The thread that held the lock at the fork does not exist in the child and could not release it.
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
    """A C-contiguous array with undefined values, at a multiple of `alignment` bytes."""
    dtype = np.dtype(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(size_bytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    return np.ndarray(tuple(shape), dtype, buffer=memory.data, offset=start)


def resident_empty(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """A 64-byte aligned array for long use; arrays from `HUGE_PAGES_FROM` bytes on in huge pages.

    Small pages lie anywhere in physical memory, so the conflicts of an array in the second-level
    cache would differ from process to process. Values are zero in huge pages, else undefined.
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
    """A copy of `x` in a `resident_empty` array."""
    copy = resident_empty(x.shape, x.dtype)
    copy[...] = x
    return copy


def aligned_copy(x: Array, alignment: int = ALIGNMENT) -> Array:
    """A C-contiguous copy of `x` at a multiple of `alignment` bytes."""
    copy = aligned_empty(x.shape, x.dtype, alignment)
    copy[...] = x
    return copy


_FREE = _count_of_free()
