"""The kernel that users call: numpy arrays in their original layouts in, numpy arrays out.

In: a concrete program (or its compiled image). Out: a `Kernel`, callable with the task's inputs in
order; `bind` packs constants once. A call checks shapes and dtypes and copies arrays that are not
C-contiguous; arrays may have any alignment. A kernel owns one workspace, so calls of one kernel
object run one after another.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ansorlite.calls import (
    ALIGNMENT,
    Array,
    Operand,
    Results,
    address,
    aligned_copy,
    new_lock,
    resident_copy,
    resident_empty,
)
from ansorlite.codegen.build import kernel_assembly, llvm_ir
from ansorlite.codegen.fingerprint import fingerprint
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.loader import load_image
from ansorlite.codegen.object_cache import compiled
from ansorlite.errors import ModelError
from ansorlite.ir.program import Buffer, Program
from ansorlite.names import shown
from ansorlite.target import Target

COMPARED_BYTES = 1 << 16  # constants up to this size are copied and compared, larger ones hashed
compare_bytes = ctypes.PyDLL(None).memcmp  # 0 where the bytes are equal
compare_bytes.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Kernel:
    """Callable native code of one program; can be copied and pickled (for the same machine).

    Example: `k = al.tune(task).kernel; y = k(a, b)`, or `fast = k.bind(B=b); y = fast(a)`.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        image: KernelImage | None = None,
        bound: Mapping[str, Array] | None = None,
    ) -> None:
        self.program, self.target = program, target
        self.image = image or compiled(program, target)
        self._native = load_image(self.image)
        self._bound = dict(bound or {})  # packed constants by name
        self._lock = new_lock(self)
        params = self.image.params
        spaces = {
            p.name: resident_empty(p.stored_shape, p.dtype) for p in params if p.role == "workspace"
        }
        self._kept = {**spaces, **self._bound}  # keeps the memory behind the pointers alive
        self._pointers = (ctypes.c_void_p * max(1, len(params)))()
        for k, p in enumerate(params):
            if p.name in self._kept:
                self._pointers[k] = address(self._kept[p.name])
        self._args = ctypes.addressof(self._pointers)
        self._wanted = tuple(
            _Place(k, p)
            for k, p in enumerate(params)
            if p.role in ("input", "constant") and p.name not in self._bound
        )
        self._written = tuple(_Place(k, p) for k, p in enumerate(params) if p.role == "output")
        self._results = tuple(Results(w) for w in self._written)
        self._late = tuple(
            _Place(k, p)
            for k, p in enumerate(params)
            if p.role == "derived" and p.name not in self._kept
        )
        self._last_derived: tuple[list[bytes], list[Array]] | None = None
        self._sizes = tuple(w.nbytes if w.direct else 0 for w in self._wanted)
        self._places = tuple(w.index for w in (*self._wanted, *self._written, *self._late))
        self._enter = self._native.enter

    def __str__(self) -> str:
        taken, given = (
            ", ".join(f"{p.name}: {p.dtype}{list(p.shape)}" for p in params)
            for params in (self.inputs, self.outputs)
        )
        bound = f", bound: {', '.join(self._bound)}" if self._bound else ""
        return shown(f"Kernel({taken}) -> {given} for {self.target.cpu}{bound}")

    def __repr__(self) -> str:
        return f"<{self}>"

    @property
    def inputs(self) -> tuple[Param, ...]:
        """The arrays that a call takes, in order: the task's inputs without bound constants."""
        return tuple(w.param for w in self._wanted)

    @property
    def outputs(self) -> tuple[Param, ...]:
        """The arrays that a call returns, in order."""
        return tuple(w.param for w in self._written)

    @property
    def llvm_ir(self) -> str:
        """LLVM IR text after LLVM's passes."""
        return llvm_ir(self.program, self.target)

    @property
    def asm(self) -> str:
        """Assembly text for the kernel's target."""
        return kernel_assembly(self.program, self.target)

    def __reduce__(self) -> tuple[Any, ...]:
        return Kernel, (self.program, self.target, self.image, self._bound)

    def bind(self, **constants: npt.ArrayLike) -> "Kernel":
        """A new kernel in which these constants are fixed; their packing happens here, once.

        Raises ModelError for an unknown or already bound name, a wrong shape or a wrong dtype.
        Example: `fast = kernel.bind(B=weights); y = fast(x)`.
        """
        known = {w.name: w for w in self._wanted if w.param.role == "constant"}
        packed = dict(self._bound)
        for name, value in constants.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise ModelError(f"cannot bind {name}: the unbound constants are {names}")
            packed[name] = resident_copy(known[name].read(value))
        prologue = self.image.bound
        if prologue is not None and all(p.name in packed for p in _inputs(prologue)):
            packed |= self._derived(packed)
        return Kernel(self.program, self.target, self.image, packed)

    def _derived(self, constants: Mapping[str, Array]) -> dict[str, Array]:
        """Parameters of role "derived" by name, in the kernel's layouts, from the constants."""
        params = [_Place(0, p) for p in self.image.params if p.role == "derived"]
        if self.image.bound is None:
            return {}
        values = derive(self.image.bound, self.target, constants)
        return {w.name: resident_copy(w.read(values[w.name])) for w in params}

    def __call__(
        self, *args: npt.ArrayLike, out: Array | tuple[Array, ...] | None = None
    ) -> Array | tuple[Array, ...]:
        """Run on arrays in the order of `inputs`; returns one array, or a tuple in output order.

        `out` names the array (or the tuple of arrays) to write to, with any strides. An `out` that
        shares memory with an input is written after the kernel has read all inputs. Without `out`,
        a result may reuse the memory of an earlier result that has no references left. Raises
        ModelError for a wrong number of arrays, a wrong shape or dtype, and for arrays of `out`
        that share memory with each other. Example: `kernel(a, b, out=c)`.
        """
        wanted, pointers = self._wanted, self._pointers
        if len(args) != len(wanted):
            raise self._wrong_count(args)
        arrays: list[Any] = []
        for w, x in zip(wanted, args):  # noqa: B905 (each check here costs some 0.1 us)
            if not (
                w.direct
                and type(x) is np.ndarray
                and x.shape == w.shape
                and x.dtype is w.dtype
                and (flags := x.flags).c_contiguous
                and flags.aligned
            ):
                x = w.read(x)
            arrays.append(x)
        late = self._derived_from(arrays) if self._late else []
        copies: list[tuple[Array, Array]] = []
        starts = [address(x) for x in arrays]
        with self._lock:
            if out is None:
                writes = [r.take() for r in self._results]
                given = writes
            elif self._is_free(out, starts):
                given = writes = [out]
            else:
                given, writes, copies = self._writes(out, arrays, starts)
            starts += [address(x) for x in writes + late]
            for k, start in zip(self._places, starts):  # noqa: B905
                pointers[k] = start
            self._enter(self._args)
            for target, source in copies:
                target[...] = source
        return given[0] if len(given) == 1 else tuple(given)

    def prepare(
        self, *args: npt.ArrayLike, out: Array | tuple[Array, ...] | None = None
    ) -> Callable[[], Array | tuple[Array, ...]]:
        """A function that runs the kernel on these arrays without further checks, for hot loops.

        Each run reads the current values of inputs and writes `out`, in place; packed constants
        keep the values of this call. Raises ModelError where an array is not C-contiguous, or where
        `out` shares memory with an input. Example: `step = kernel.prepare(a, b, out=c)`, then
        `step()` in the loop.
        """
        wanted = self._wanted
        if len(args) != len(wanted):
            raise self._wrong_count(args)
        for w, x in zip(wanted, args, strict=True):
            if w.direct and not w.fits(w.checked(x)):
                raise ModelError(f"cannot prepare a call: {w.label} is no contiguous array")
        arrays: list[Any] = [
            x if w.direct and w.fits(x) else w.read(x) for w, x in zip(wanted, args, strict=True)
        ]
        late = self._derived_from(arrays) if self._late else []
        if out is None:
            out = tuple(resident_empty(w.shape, w.dtype) for w in self._written)
        given, writes, copies = self._writes(out, arrays, [address(x) for x in arrays])
        if copies:
            raise ModelError(
                "cannot prepare a call: out is no contiguous array, or shares memory with an input"
            )
        pointers = (ctypes.c_void_p * len(self._pointers))(*self._pointers)
        for k, x in zip(self._places, arrays + writes + late, strict=True):
            pointers[k] = address(x)
        kept = (arrays, writes, late, pointers, self)
        answer = given[0] if len(given) == 1 else tuple(given)
        lock, enter, at = self._lock, self._enter, ctypes.addressof(pointers)

        def run(_owners: object = kept) -> Array | tuple[Array, ...]:
            with lock:
                enter(at)
            return answer

        return run

    def _wrong_count(self, args: Sequence[npt.ArrayLike]) -> ModelError:
        names = ", ".join(w.label for w in self._wanted)
        return ModelError(f"the kernel takes {len(self._wanted)} arrays ({names}), got {len(args)}")

    def _derived_from(self, arrays: Sequence[Any]) -> list[Array]:
        """Derived parameters for the constants of this call; reused while constants are equal."""
        given = {w.name: x for w, x in zip(self._wanted, arrays, strict=True)}
        constants = [x for w, x in zip(self._wanted, arrays, strict=True) if w.is_constant]
        known = [fingerprint(x) for x in constants]
        last = self._last_derived
        if last is None or last[0] != known:
            found = self._derived({**self._bound, **given})
            last = self._last_derived = known, [found[w.name] for w in self._late]
        return last[1]

    def _is_free(self, out: Any, starts: Sequence[int]) -> TypeGuard[Array]:
        """Is `out` one array that the kernel can write to directly? A fast test of this usual case.

        `starts` are the addresses of the inputs.
        """
        first = self._written[0]
        if not (
            type(out) is np.ndarray
            and len(self._written) == 1
            and out.shape == first.shape
            and out.dtype is first.dtype
            and out.flags.carray
        ):
            return False
        start = address(out)
        end = start + first.nbytes
        for at, size in zip(starts, self._sizes):  # noqa: B905, SIM110 (part of every call)
            if at < end and start < at + size:
                return False
        return True

    def _writes(
        self, out: Array | tuple[Array, ...], read: Sequence[Any], starts: Sequence[int]
    ) -> tuple[list[Array], list[Array], list[tuple[Array, Array]]]:
        """(the caller's arrays, the arrays that the kernel writes, copies to make: (to, from)).

        `starts` are the addresses of the inputs `read`. An array of `out` that the kernel cannot
        write to directly, or that shares memory with an input, gets a copy of the result from an
        array of the kernel's own. The caller holds the lock.
        """
        given = list(out) if isinstance(out, tuple) else [out]
        if len(given) != len(self._written):
            n = len(self._written)
            raise ModelError(f"out has {len(given)} arrays, the kernel has {n} outputs")
        writes, copies = [], []
        for k, x in enumerate(given):
            w = self._written[k]
            free = w.fits(x)
            if not (free and x.flags.writeable):
                w.check_result(x)
            if k and any(np.shares_memory(x, y) for y in given[:k]):
                raise ModelError(f"out for {w.label} shares memory with another result")
            start = address(x)
            end = start + w.nbytes
            for y, at in zip(read, starts):  # noqa: B905
                if at < end and start < at + y.nbytes:
                    free = False
            if not free:
                own = self._results[k].take()
                copies.append((x, own))
                x = own
            writes.append(x)
        return given, writes, copies


class _Place(Operand):
    """An operand of a kernel; `direct` if the kernel uses the caller's array without packing.

    The packed form of a constant is kept and reused while calls give the same values.
    """

    __slots__ = ("_packed", "direct", "index", "param")

    def __init__(self, index: int, param: Param) -> None:
        super().__init__(param.name, param.shape, param.dtype)
        self.index, self.param, self.direct = index, param, not param.packed
        # (copy of the values, or their fingerprint; the packed array; address of that copy, or 0)
        self._packed: tuple[Any, Array, int] | None = None

    @property
    def is_constant(self) -> bool:
        return self.param.role == "constant"

    def read(self, value: npt.ArrayLike) -> Array:
        """The array in the form that the kernel reads: C-contiguous, and packed for constants."""
        fits: Any = value if self.fits(value) else super().read(value)
        x: Array = fits
        if self.direct:
            return x
        last, small = self._packed, x.nbytes <= COMPARED_BYTES
        if small and last is not None and not compare_bytes(address(x), last[2], x.nbytes):
            return last[1]
        known: Array | bytes = x.copy() if small else fingerprint(x)
        if small or last is None or last[0] != known:
            layout = self.param.layout
            packed = aligned(x.copy() if layout is None else layout.pack(x))
            last = self._packed = known, packed, 0 if isinstance(known, bytes) else address(known)
        return last[1]


def aligned(x: Array) -> Array:
    """`x` if it is C-contiguous and aligned to 64 bytes, else a copy with these properties."""
    return x if x.flags.c_contiguous and address(x) % ALIGNMENT == 0 else aligned_copy(x)


def _inputs(program: Program) -> list[Buffer]:
    return [b for b in program.params if b.role == "constant"]


@lru_cache(maxsize=64)
def _prologue(program: Program, target: Target) -> Kernel:
    # The process that checked the kernel has built this one before.
    return Kernel(program, target, compiled(program, target))


def derive(
    program: Program,
    target: Target,
    constants: Mapping[str, Array],
    empty: Callable[[Param], Array] | None = None,
) -> dict[str, Array]:
    """Outputs by name of a program over constants (`KernelImage.bound`), run natively.

    `empty` makes the arrays that the outputs are written to.
    """
    kernel = _prologue(program, target)
    out = None if empty is None else tuple(empty(p) for p in kernel.outputs)
    got = kernel(*(constants[p.name] for p in kernel.inputs), out=out)
    values = got if isinstance(got, tuple) else (got,)
    return {p.name: x for p, x in zip(kernel.outputs, values, strict=True)}
