"""The native form of a kernel: relocatable object bytes and what is needed to call them.

Flow: `codegen.build` -> `KernelImage` -> runner, `Kernel`, `CompiledModule`. The entry point is
`void symbol(ptr args)` where `args` points to one pointer per parameter, in the order of `params`.
Pointers are aligned to their elements, those of `packed` parameters to 64 bytes. Workspace
parameters are scratch memory without meaning.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ansorlite.ir.layout import Layout
from ansorlite.ir.program import Program

Role = Literal["input", "constant", "derived", "output", "workspace"]


@dataclass(frozen=True)
class Param:
    """One pointer of the entry point: `shape` is the user's, `layout` how the kernel reads it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    layout: Layout | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return self.layout.shape if self.layout else self.shape

    @property
    def packed(self) -> bool:
        """Is the memory always the package's own? Otherwise a caller's array may be given."""
        return self.layout is not None or self.role in ("derived", "workspace")

    @property
    def nbytes(self) -> int:
        return math.prod(self.stored_shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class KernelImage:
    """Object bytes of one kernel for the CPU `cpu`; picklable, independent of llvmlite.

    Parameters of role "derived" are outputs of the program `bound`, whose inputs are constants.
    What `unread` names is there for `bound` alone: the entry point never looks at it.
    """

    object_bytes: bytes
    symbol: str
    params: tuple[Param, ...]
    triple: str
    cpu: str
    bound: Program | None = None
    unread: frozenset[str] = frozenset()
