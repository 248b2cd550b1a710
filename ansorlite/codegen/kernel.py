"""A native kernel as users call it: numpy arrays in their original layouts in, numpy arrays out.

In: a concrete program (or its compiled image). Out: `Kernel`, callable with the task's inputs in
order; `bind` packs constants once. Calls check shapes and dtypes and copy what is not contiguous
or not aligned. Calls of one kernel object are serialised: it owns one workspace.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.build import build_program, kernel_assembly, llvm_ir
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.loader import (
    ALIGNMENT,
    aligned_copy,
    aligned_empty,
    load_image,
    resident_copy,
    resident_empty,
)
from ansorlite.errors import ModelError
from ansorlite.ir.program import Buffer, Program
from ansorlite.target import Target

Array = npt.NDArray[Any]


class Kernel:
    """Callable native code of one program."""

    def __init__(
        self,
        program: Program,
        target: Target,
        image: KernelImage | None = None,
        bound: Mapping[str, Array] | None = None,
    ) -> None:
        self.program, self.target = program, target
        self.image = image or build_program(program, target)
        self._native = load_image(self.image)
        self._bound = dict(bound or {})  # packed constants by name
        self._lock = threading.Lock()
        spaces = [p for p in self.image.params if p.role == "workspace"]
        self._workspace = {p.name: resident_empty(p.stored_shape, p.dtype) for p in spaces}

    @property
    def inputs(self) -> tuple[Param, ...]:
        """What a call takes, in order: the task's inputs less the bound constants."""
        given = [p for p in self.image.params if p.role in ("input", "constant")]
        return tuple(p for p in given if p.name not in self._bound)

    @property
    def outputs(self) -> tuple[Param, ...]:
        return tuple(p for p in self.image.params if p.role == "output")

    @property
    def llvm_ir(self) -> str:
        """Optimised LLVM IR."""
        return llvm_ir(self.program, self.target)

    @property
    def asm(self) -> str:
        return kernel_assembly(self.program, self.target)

    def bind(self, **constants: npt.ArrayLike) -> "Kernel":
        """A kernel with these constants packed once; ModelError names what is wrong."""
        known = {p.name: p for p in self.inputs if p.role == "constant"}
        packed = dict(self._bound)
        for name, value in constants.items():
            if name not in known:
                names = ", ".join(known) or "none"
                raise ModelError(f"cannot bind {name}: the unbound constants are {names}")
            packed[name] = resident_copy(_stored(known[name], _checked(known[name], value)))
        prologue = self.image.bound
        if prologue is not None and all(p.name in packed for p in _inputs(prologue)):
            packed |= self._derived(packed)
        return Kernel(self.program, self.target, self.image, packed)

    def _derived(self, constants: Mapping[str, Array]) -> dict[str, Array]:
        """What the program `bound` makes of the constants, as the kernel reads it."""
        params = [p for p in self.image.params if p.role == "derived"]
        if self.image.bound is None:
            return {}
        values = derive(self.image.bound, self.target, constants)
        return {p.name: resident_copy(_stored(p, values[p.name])) for p in params}

    def __call__(
        self, *args: npt.ArrayLike, out: Array | tuple[Array, ...] | None = None
    ) -> Array | tuple[Array, ...]:
        """Run on arrays in the order of `inputs`; one array, or a tuple in output order.

        `out` gives the arrays to write to. Raises ModelError for a wrong count, shape or dtype.
        """
        arrays = self._arrays(args)
        results, copies = self._results(out)
        arrays.update(copies)
        with self._lock:
            self._native.run([arrays[p.name] for p in self.image.params])
        for name, target in results.items():
            if target is not copies[name]:
                target[...] = copies[name]
        ordered = tuple(results[p.name] for p in self.outputs)
        return ordered[0] if len(ordered) == 1 else ordered

    def prepare(
        self, *args: npt.ArrayLike, out: Array | tuple[Array, ...] | None = None
    ) -> Callable[[], Array | tuple[Array, ...]]:
        """A call with nothing left to check, for small kernels in loops.

        It reads `args` and writes `out` where they lie, so they must be C-contiguous and aligned to
        64 bytes (`codegen.loader.aligned_copy`); ModelError names the one that is not.
        """
        for p, value in zip(self.inputs, args, strict=False):
            if not p.layout and not (isinstance(value, np.ndarray) and _aligned(value)):
                raise ModelError(f"cannot prepare a call: {p.name} is no aligned contiguous array")
        arrays = self._arrays(args)
        results, writes = self._results(out)
        for name, result in results.items():
            if result is not writes[name]:
                raise ModelError(f"cannot prepare a call: {name} is no aligned contiguous array")
        arrays.update(writes)
        kept = [arrays[p.name] for p in self.image.params]
        pointers = self._native.pointer_array(kept)
        ordered = tuple(results[p.name] for p in self.outputs)
        answer = ordered[0] if len(ordered) == 1 else ordered
        lock, call = self._lock, self._native.call

        def run(_owners: object = kept) -> Array | tuple[Array, ...]:
            with lock:
                call(pointers)
            return answer

        return run

    def _arrays(self, args: Sequence[npt.ArrayLike]) -> dict[str, Array]:
        """Everything but the outputs by name, as the kernel reads it."""
        wanted = self.inputs
        if len(args) != len(wanted):
            names = ", ".join(p.name for p in wanted)
            raise ModelError(f"the kernel takes {len(wanted)} arrays ({names}), got {len(args)}")
        arrays: dict[str, Array] = {**self._bound, **self._workspace}
        for p, value in zip(wanted, args, strict=True):
            arrays[p.name] = _stored(p, _checked(p, value))
        if any(p.role == "derived" and p.name not in arrays for p in self.image.params):
            arrays |= self._derived(arrays)
        return arrays

    def _results(
        self, out: Array | tuple[Array, ...] | None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """(what is returned, what the kernel writes) by output name."""
        params = self.outputs
        if out is None:
            fresh = {p.name: aligned_empty(p.shape, p.dtype) for p in params}
            return fresh, fresh
        given = out if isinstance(out, tuple) else (out,)
        if len(given) != len(params):
            raise ModelError(f"out has {len(given)} arrays, the kernel has {len(params)} outputs")
        results = {p.name: x for p, x in zip(params, given, strict=True)}
        for p in params:
            _check(p, results[p.name])
        writes = {
            p.name: results[p.name] if _usable(results[p.name]) else aligned_empty(p.shape, p.dtype)
            for p in params
        }
        return results, writes


def _inputs(program: Program) -> list[Buffer]:
    return [b for b in program.params if b.role == "constant"]


@lru_cache(maxsize=64)
def _prologue(program: Program, target: Target) -> Kernel:
    return Kernel(program, target)


def derive(program: Program, target: Target, constants: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs by name of a `Program.bound`, run on the constants that it reads."""
    kernel = _prologue(program, target)
    got = kernel(*(constants[p.name] for p in kernel.inputs))
    values = got if isinstance(got, tuple) else (got,)
    return {p.name: x for p, x in zip(kernel.outputs, values, strict=True)}


def _check(p: Param, x: Array) -> None:
    if x.shape != p.shape:
        raise ModelError(f"{p.name} has shape {x.shape}, expected {p.shape}")
    if x.dtype != np.dtype(p.dtype):
        raise ModelError(f"{p.name} has dtype {x.dtype}, expected {p.dtype}")


def _checked(p: Param, value: npt.ArrayLike) -> Array:
    x = np.asarray(value)
    _check(p, x)
    return x


def _aligned(x: Array) -> bool:
    return bool(x.flags.c_contiguous and x.ctypes.data % ALIGNMENT == 0)


def _usable(x: Array) -> bool:
    return _aligned(x) and bool(x.flags.writeable)


def _stored(p: Param, x: Array) -> Array:
    """The array as the kernel reads it: packed, contiguous, aligned."""
    x = p.layout.pack(x) if p.layout else x
    return x if _aligned(x) else aligned_copy(x)
