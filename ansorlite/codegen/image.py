"""The native form of a kernel: relocatable object bytes and the description of their parameters.

Flow: `codegen.build` -> `KernelImage` -> runner, `Kernel`, `CompiledModule`. The entry point is
`void symbol(ptr args)`: `args` points to one pointer per parameter, in the order of `params`.
Pointers of `packed` parameters are aligned to 64 bytes, others to the size of an element. A
workspace is scratch memory; its contents mean nothing before and after a call.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ansorlite.codegen.hot_loop import Look
from ansorlite.codegen.spans import Spans
from ansorlite.ir.layout import Layout
from ansorlite.ir.program import Program

STEPS = "_steps"  # behind a kernel's symbol: its table of nests, rows of `steps.Row`
Role = Literal["input", "constant", "derived", "output", "workspace"]


@dataclass(frozen=True)
class Param:
    """One pointer of the entry point: the user's `shape`, and the `layout` that the kernel reads.

    Roles: "input", "constant" (may be bound once), "derived" (computed from constants by
    `KernelImage.bound`), "output", "workspace". Example: `Param("A", (512, 512), "float32",
    "input")`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    layout: Layout | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in memory: the layout's shape, or `shape` without a layout."""
        return self.layout.shape if self.layout else self.shape

    @property
    def packed(self) -> bool:
        """Is the memory always the package's own? A caller's array serves for all others."""
        return self.layout is not None or self.role in ("derived", "workspace")

    @property
    def nbytes(self) -> int:
        return math.prod(self.stored_shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class KernelImage:
    """Object bytes of one kernel for the CPU `cpu`; can be pickled, independent of llvmlite.

    `bound` is the program that computes the parameters of role "derived" from constants, once when
    constants are bound. `unread` names constants that only `bound` reads: the entry point does not.
    """

    object_bytes: bytes
    symbol: str
    params: tuple[Param, ...]
    triple: str
    cpu: str
    bound: Program | None = None
    unread: frozenset[str] = frozenset()
    features: str = ""  # as in `Target`
    look: Look | None = None  # what the assembly shows, where that was asked for
    has_steps: bool = False  # beside the entry point, a table of nests: see `STEPS`
    spans: tuple[Spans | None, ...] = ()  # of each nest, where they were asked for
