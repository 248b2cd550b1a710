"""Kernel image -> a native function in this process.

In: a `KernelImage` for this machine, and aligned arrays. Out: a `NativeFunction` that runs the
kernel on pointers, once or many times without Python in between. LLVM's JIT linker links the
object, one JIT instance per kernel, so all of its memory is freed with the function object, or one
for many (`SharedJit`).
`codegen.openmp` provides threads; the process provides libc and libm (memset, memcpy, exp). A
kernel trusts its pointers: this module checks shapes, dtypes and alignment.
"""

import ctypes
import ctypes.util
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt

from ansorlite.calls import ALIGNMENT, Array, aligned_copy, aligned_empty
from ansorlite.codegen import openmp
from ansorlite.codegen.compile import new_jit
from ansorlite.codegen.image import STEPS, KernelImage, Param
from ansorlite.codegen.steps import JOINED, WORDS, Row
from ansorlite.errors import BuildError
from ansorlite.target import Target

# Whoever calls a `NativeFunction` needs arrays at multiples of 64 bytes for its packed parameters.
__all__ = [
    "CallSequence",
    "Loop",
    "NativeFunction",
    "SharedJit",
    "aligned_copy",
    "aligned_empty",
    "load_image",
]

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_PROGRAM = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)
_REPEAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
ARGS = Row._fields.index("args")

KERNELS_PER_JIT = 100  # of one `SharedJit`

REPEAT_IR = """
define void @repeat(ptr %kernel, ptr %args, i64 %n) {
entry:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void %kernel(ptr %args)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class NativeFunction:
    """A loaded kernel; its code is freed when this object is collected.

    Pointers are given in the order of `image.params`, as arrays (checked against the parameter's
    stored shape and dtype) or as addresses. The caller keeps the memory alive. Example:
    `args = f.pointer_array([a, b, c]); f.call(args)`.
    """

    def __init__(
        self,
        image: KernelImage,
        tracker: llvm.ResourceTracker,
        jit: llvm.LLJIT,
        threads: openmp.Runtime,
    ) -> None:
        self.image = image
        self.address: int = tracker[image.symbol]
        self.steps = _rows_at(tracker[f"{image.symbol}{STEPS}"]) if image.has_steps else None
        self.enter = _ENTRY(self.address)  # its argument: the address of prepared pointers
        self._owners = (tracker, jit, threads)

    def pointer_array(self, pointers: Sequence[Array | int]) -> ctypes.Array[ctypes.c_void_p]:
        """The pointers as the kernel's `args`, for `call` and `repeat`; see `pointer_array`."""
        return pointer_array(self.image, pointers)

    def call(self, args: ctypes.Array[ctypes.c_void_p]) -> None:
        """Run once on prepared pointers."""
        self.enter(ctypes.addressof(args))

    def run(self, pointers: Sequence[Array | int]) -> None:
        """Check the pointers and run once."""
        self.call(self.pointer_array(pointers))

    def repeat(self, args: ctypes.Array[ctypes.c_void_p], n: int) -> None:
        """Run `n` times in native code: the time of one Python call is then negligible."""
        repeat, *_ = _compiled(REPEAT_IR, "repeat")
        repeat(self.address, ctypes.addressof(args), n)


def pointer_array(
    image: KernelImage, pointers: Sequence[Array | int]
) -> ctypes.Array[ctypes.c_void_p]:
    """The pointers as a kernel's `args`.

    Raises ValueError for a wrong number of pointers, a wrong shape or dtype, an array that is not
    C-contiguous, or a wrong alignment (64 bytes for packed constants and workspaces, else the size
    of an element).
    """
    params = image.params
    if len(pointers) != len(params):
        names = ", ".join(p.name for p in params)
        raise ValueError(
            f"kernel {image.symbol} takes {len(params)} pointers ({names}), not {len(pointers)}"
        )
    addresses = [_address(x, p) for x, p in zip(pointers, params, strict=True)]
    return (ctypes.c_void_p * len(params))(*addresses)


class Loop(NamedTuple):
    """`calls` calls from `first` on run `times` times together.

    `moves` are (call, slot, bytes): how far a pointer moves after each time.
    """

    first: int
    calls: int
    times: int
    moves: tuple[tuple[int, int, int], ...]


class Together(NamedTuple):
    """`rows` nests from nest `nest` of call `call` on run together, in `units` units."""

    call: int
    nest: int
    rows: int
    units: int


class CallSequence:
    """Kernels with prepared pointers, run one after another by one team of threads.

    `rows` are the program, int64[rows, 8] as `steps.Row`; `counts` how many are of each call. The
    number of a row is that of its call.
    """

    def __init__(
        self,
        calls: Sequence[tuple[NativeFunction, ctypes.Array[ctypes.c_void_p]]],
        loops: Sequence[Loop] = (),
        joined: Sequence[Together] = (),
        threads: openmp.Runtime | None = None,
    ) -> None:
        """`loops` in the order of their first calls; they have no call in common.

        `joined` rows run together, by `threads` (default: the process's pool).
        """
        self._run = _PROGRAM((threads or openmp.runtime()).addresses["ansorlite_run"])
        self.loops = tuple(loops)
        tables = [_call_rows(f, args, k) for k, (f, args) in enumerate(calls)]
        self.counts = tuple(map(len, tables))
        _join(tables, joined)
        ends = {loop.first + loop.calls: loop for loop in loops}
        within = {k for x in loops for k in range(x.first + 1, x.first + x.calls)}
        self.rows = aligned_empty((sum(self.counts) + len(loops), WORDS), "int64")
        base, wide = self.rows.ctypes.data, WORDS * self.rows.itemsize
        moves, starts, at = [], list[int](), 0
        begin = 0
        for k, table in enumerate(tables):
            if k not in within:
                starts.append(at)
            if any(k == x.first for x in loops):
                begin = at
            self.rows[at : at + len(table)] = table
            at += len(table)
            if k + 1 not in ends:
                continue
            loop = ends[k + 1]
            moved = _moves(calls, loop)
            moves.append(moved)
            back, at_moves = base + begin * wide, moved.ctypes.data
            self.rows[at] = Row(0, back, loop.times, 0, len(moved), k, at_moves, 0)
            at += 1
        self._starts = (*starts, at)
        self._places = tuple(base + n * wide for n in self._starts)
        self._owners = list(calls), moves, threads

    def run(
        self, first: int = 0, count: int | None = None, log: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Run `count` kernels or loops once, in order, from index `first` on; by default the rest.

        A loop counts as one. `log` notes when rows ran, see `codegen.stamps`.
        """
        end = self._places[-1 if count is None else first + count]
        self._run(self._places[first], end, None, None if log is None else log.ctypes.data)


class Rotation:
    """One kernel on lists of pointers in turn, by one team of threads.

    `pointers` is int64[lists, parameters]. A call takes the list after the last one used.
    """

    def __init__(self, function: NativeFunction, pointers: npt.NDArray[np.int64]) -> None:
        threads = openmp.runtime()
        self._run = _PROGRAM(threads.addresses["ansorlite_run"])
        self.pointers = np.ascontiguousarray(pointers, np.int64)
        self.lists, width = self.pointers.shape
        own = _call_rows(function, (ctypes.c_void_p * width)(), 0)
        self._rows = aligned_empty((self.lists, *own.shape), "int64")
        self._rows[...] = own
        step = width * self.pointers.itemsize
        places = self.pointers.ctypes.data + step * np.arange(self.lists)
        self._rows[:, :, ARGS] = places[:, None]
        self.next = 0
        self._owners = function, threads

    def run(self, n: int) -> None:
        """Call n times."""
        base, step = self._rows.ctypes.data, self._rows[0].nbytes
        while n > 0:
            end = min(self.lists, self.next + n)
            self._run(base + self.next * step, base + end * step, None, None)
            n -= end - self.next
            self.next = end % self.lists


def _join(tables: Sequence[npt.NDArray[np.int64]], joined: Sequence[Together]) -> None:
    """Have the nests run together that may; `tables` are the rows of each call."""
    place = {name: k for k, name in enumerate(Row._fields)}
    rows = [row for table in tables for row in table]
    starts = np.cumsum([0, *map(len, tables)])
    for own in joined:
        first = int(starts[own.call]) + own.nest
        for k, row in enumerate(rows[first : first + own.rows]):
            row[place["together"]] = JOINED if k else own.rows
            row[place["of_unit"]] = row[place["grains"]] // own.units
            row[place["units"]] = own.units


def _call_rows(
    function: NativeFunction, args: ctypes.Array[ctypes.c_void_p], number: int
) -> npt.NDArray[np.int64]:
    """The rows of one call; a kernel without a table of nests is one serial row."""
    if function.steps is None:
        rows = np.array([Row(function.address, 0, 1)], np.int64)
    else:
        rows = function.steps.copy()
    rows[:, ARGS] = ctypes.addressof(args)
    rows[:, Row._fields.index("number")] = number
    return rows


def _rows_at(place: int) -> npt.NDArray[np.int64]:
    """The rows of a kernel's table, without the row of zeros at its end."""
    words = (ctypes.c_int64 * WORDS).from_address
    size, found = WORDS * ctypes.sizeof(ctypes.c_int64), list[list[int]]()
    while any(row := list(words(place + len(found) * size))):
        found.append(row)
    return np.array(found, np.int64).reshape(len(found), WORDS)


def _moves(
    calls: Sequence[tuple[NativeFunction, ctypes.Array[ctypes.c_void_p]]], loop: Loop
) -> npt.NDArray[np.int64]:
    """(address of a pointer, bytes) of each pointer that moves in a loop."""
    wide = ctypes.sizeof(ctypes.c_void_p)
    rows = [(ctypes.addressof(calls[call][1]) + slot * wide, by) for call, slot, by in loop.moves]
    return np.array(rows, np.int64).reshape(len(rows), 2)


def target_of_image(image: KernelImage) -> Target:
    """The target of a kernel as far as an image tells: triple, CPU and features; else the host."""
    return Target(triple=image.triple, cpu=image.cpu, features=image.features)


class SharedJit:
    """A JIT instance for many kernels that live shortly: making one takes longer than linking.

    A kernel leaves some 10 KiB in its instance, so `next` makes a new one after `KERNELS_PER_JIT`
    kernels. The old one is freed with its last kernel. Example: `load_image(image, jit=shared)`.
    """

    def __init__(self) -> None:
        self._jit: llvm.LLJIT | None = None
        self._count = 0

    def next(self) -> tuple[llvm.LLJIT, int]:
        """(an instance, a number that names one library of the instance)."""
        if self._jit is None or self._count == KERNELS_PER_JIT:
            self._jit, self._count = new_jit(), 0
        self._count += 1
        return self._jit, self._count

    def drop(self) -> None:
        """Have the next kernel get a new instance: the last one failed."""
        self._jit = None


def load_image(
    image: KernelImage, threads: openmp.Runtime | None = None, jit: SharedJit | None = None
) -> NativeFunction:
    """Link a kernel into this process, with its pool or with other `threads`.

    The kernel has a JIT instance of its own, or one of `jit`. Raises BuildError where the image is
    for another architecture, is no object file, or needs a symbol that this process does not have.
    A kernel for a newer CPU of the same architecture loads, but kills the process (illegal
    instruction) when it runs.
    """
    host = Target.detect()
    made_for = Target(triple=image.triple).arch
    if made_for != host.arch:
        raise BuildError(
            f"cannot load kernel {image.symbol}: it is {made_for} code for {image.cpu},"
            f" and this machine is {host.arch}; build it for this machine"
        )
    _load_math_library()
    library = llvm.JITLibraryBuilder().add_object_img(image.object_bytes).add_current_process()
    threads = threads or openmp.runtime()
    for name, address in threads.addresses.items():
        library.import_symbol(name, address)
    library.export_symbol(image.symbol)
    if image.has_steps:
        library.export_symbol(f"{image.symbol}{STEPS}")
    instance, number = (new_jit(), 0) if jit is None else jit.next()
    try:
        tracker = library.link(instance, f"{image.symbol}.{number}")
        return NativeFunction(image, tracker, instance, threads)
    except RuntimeError as error:
        if jit is not None:
            jit.drop()
        raise BuildError(
            f"cannot load kernel {image.symbol} (a damaged object, or a function that it calls"
            f" is not in this process): {error}"
        ) from error


def _address(x: Array | int, param: Param) -> int:
    if isinstance(x, int):
        address = x
    else:
        if x.shape != param.stored_shape or x.dtype != np.dtype(param.dtype):
            raise ValueError(
                f"parameter {param.name} is {param.dtype}{list(param.stored_shape)},"
                f" the array is {x.dtype}{list(x.shape)}"
            )
        if not x.flags.c_contiguous:
            raise ValueError(f"parameter {param.name}: the array is not C-contiguous, copy it")
        address = x.ctypes.data
    needed = ALIGNMENT if param.packed else np.dtype(param.dtype).itemsize
    if address % needed:
        raise ValueError(
            f"parameter {param.name}: address {address:#x} is not a multiple of {needed} bytes,"
            " use aligned_empty or aligned_copy"
        )
    return address


@cache
def _compiled(text: str, name: str) -> tuple[Any, llvm.ResourceTracker, llvm.LLJIT]:
    """(native function of (pointer, pointer, count), and the owners of its code)."""
    jit = new_jit()
    library = llvm.JITLibraryBuilder().add_ir(text).export_symbol(name)
    tracker = library.link(jit, f"ansorlite_{name}")
    return _REPEAT(tracker[name]), tracker, jit


@cache
def _load_math_library() -> None:
    """Make libm's symbols visible to the JIT, on systems where libc does not contain libm."""
    name = {"Linux": "libm.so.6"}.get(platform.system()) or ctypes.util.find_library("m")
    if name:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            return
