"""Kernel image -> a native function in this process.

In: a `KernelImage` for this machine, and aligned arrays. Out: a `NativeFunction` that runs the
kernel on pointers, once or many times without Python in between. LLVM's JIT linker links the
object, one JIT instance per kernel, so all of its memory is freed with the function object.
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

from ansorlite.calls import ALIGNMENT, Array, aligned_copy, aligned_empty
from ansorlite.codegen import openmp
from ansorlite.codegen.compile import new_jit
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.errors import BuildError
from ansorlite.target import Target

# Whoever calls a `NativeFunction` needs arrays at multiples of 64 bytes for its packed parameters.
__all__ = ["CallSequence", "Loop", "NativeFunction", "aligned_copy", "aligned_empty", "load_image"]

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_REPEAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)

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


SEQUENCE_IR = """
define void @sequence(ptr %kernels, ptr %args, i64 %n) {
entry:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %k = getelementptr ptr, ptr %kernels, i64 %i
  %a = getelementptr ptr, ptr %args, i64 %i
  %kernel = load ptr, ptr %k
  %arg = load ptr, ptr %a
  call void %kernel(ptr %arg)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""

# Kernels that run `times` times together; after each time the slots `slots` move by their strides,
# in bytes, and at the end they go back to where they were.
LOOP_IR = """
%loop = type { i64, i64, ptr, ptr, i64, ptr, ptr }

define void @loop(ptr %d) {
entry:
  %times_at = getelementptr %loop, ptr %d, i32 0, i32 0
  %calls_at = getelementptr %loop, ptr %d, i32 0, i32 1
  %kernels_at = getelementptr %loop, ptr %d, i32 0, i32 2
  %args_at = getelementptr %loop, ptr %d, i32 0, i32 3
  %moves_at = getelementptr %loop, ptr %d, i32 0, i32 4
  %slots_at = getelementptr %loop, ptr %d, i32 0, i32 5
  %strides_at = getelementptr %loop, ptr %d, i32 0, i32 6
  %times = load i64, ptr %times_at
  %calls = load i64, ptr %calls_at
  %kernels = load ptr, ptr %kernels_at
  %args = load ptr, ptr %args_at
  %moves = load i64, ptr %moves_at
  %slots = load ptr, ptr %slots_at
  %strides = load ptr, ptr %strides_at
  br label %step
step:
  %t = phi i64 [ 0, %entry ], [ %t_next, %moved ]
  br label %run
run:
  %i = phi i64 [ 0, %step ], [ %i_next, %run ]
  %k = getelementptr ptr, ptr %kernels, i64 %i
  %a = getelementptr ptr, ptr %args, i64 %i
  %kernel = load ptr, ptr %k
  %arg = load ptr, ptr %a
  call void %kernel(ptr %arg)
  %i_next = add i64 %i, 1
  %more_calls = icmp slt i64 %i_next, %calls
  br i1 %more_calls, label %run, label %ran
ran:
  %t_next = add i64 %t, 1
  %more = icmp slt i64 %t_next, %times
  %back = sub i64 1, %times
  %factor = select i1 %more, i64 1, i64 %back
  %any = icmp sgt i64 %moves, 0
  br i1 %any, label %move, label %moved
move:
  %m = phi i64 [ 0, %ran ], [ %m_next, %move ]
  %slot_at = getelementptr ptr, ptr %slots, i64 %m
  %stride_at = getelementptr i64, ptr %strides, i64 %m
  %slot = load ptr, ptr %slot_at
  %stride = load i64, ptr %stride_at
  %was = load i64, ptr %slot
  %by = mul i64 %stride, %factor
  %now = add i64 %was, %by
  store i64 %now, ptr %slot
  %m_next = add i64 %m, 1
  %more_moves = icmp slt i64 %m_next, %moves
  br i1 %more_moves, label %move, label %moved
moved:
  br i1 %more, label %step, label %done
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


class CallSequence:
    """Kernels with prepared pointers that run one after another without Python in between."""

    def __init__(
        self,
        calls: Sequence[tuple[NativeFunction, ctypes.Array[ctypes.c_void_p]]],
        loops: Sequence[Loop] = (),
        instead: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        """`loops` in the order of their first calls; they have no call in common.

        `instead` are (native code, its argument) that run in place of each call's kernel; pointers
        move as they do without.
        """
        self._owners: list[Any] = list(calls)
        own = instead or [(f.address, ctypes.addressof(args)) for f, args in calls]
        entries: list[tuple[int, int]] = []
        at = 0
        for loop in loops:
            entries += own[at : loop.first]
            entries.append(self._looped(calls, own, loop))
            at = loop.first + loop.calls
        entries += own[at:]
        n = len(entries)
        self._kernels = (ctypes.c_void_p * max(1, n))(*(f for f, _ in entries))
        self._args = (ctypes.c_void_p * max(1, n))(*(args for _, args in entries))
        self._native = _compiled(SEQUENCE_IR, "sequence"), n

    def run(self, first: int = 0, count: int | None = None) -> None:
        """Run `count` kernels or loops once, in order, from index `first` on; by default the rest.

        A loop counts as one.
        """
        (sequence, *_), n = self._native
        at = first * ctypes.sizeof(ctypes.c_void_p)
        kernels, args = ctypes.addressof(self._kernels) + at, ctypes.addressof(self._args) + at
        sequence(kernels, args, n - first if count is None else count)

    def _looped(
        self,
        calls: Sequence[tuple[NativeFunction, ctypes.Array[ctypes.c_void_p]]],
        entries: Sequence[tuple[int, int]],
        loop: Loop,
    ) -> tuple[int, int]:
        """(native code, its argument) of a loop."""
        own = entries[loop.first : loop.first + loop.calls]
        kernels = (ctypes.c_void_p * len(own))(*(code for code, _ in own))
        args = (ctypes.c_void_p * len(own))(*(argument for _, argument in own))
        wide, n = ctypes.sizeof(ctypes.c_void_p), len(loop.moves)
        places = (ctypes.addressof(calls[call][1]) + slot * wide for call, slot, _ in loop.moves)
        slots = (ctypes.c_void_p * max(1, n))(*places)
        strides = (ctypes.c_int64 * max(1, n))(*(by for _, _, by in loop.moves))
        fields = [loop.times, len(own), ctypes.addressof(kernels), ctypes.addressof(args)]
        fields += [n, ctypes.addressof(slots), ctypes.addressof(strides)]
        described = (ctypes.c_int64 * len(fields))(*fields)
        native = _compiled(LOOP_IR, "loop")
        self._owners += [kernels, args, slots, strides, described, native]
        address = ctypes.cast(native[0], ctypes.c_void_p).value
        assert address is not None
        return address, ctypes.addressof(described)


def target_of_image(image: KernelImage) -> Target:
    """The target of a kernel as far as an image tells: triple, CPU and features; else the host."""
    return Target(triple=image.triple, cpu=image.cpu, features=image.features)


def load_image(image: KernelImage, threads: openmp.Runtime | None = None) -> NativeFunction:
    """Link a kernel into this process, with its pool or with other `threads`.

    Raises BuildError where the image is for another architecture, is no object file, or needs a
    symbol that this process does not have. A kernel for a newer CPU of the same architecture loads,
    but kills the process (illegal instruction) when it runs.
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
    jit = new_jit()
    try:
        return NativeFunction(image, library.link(jit, image.symbol), jit, threads)
    except RuntimeError as error:
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
