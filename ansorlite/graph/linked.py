"""A network's kernels and the memory that they point to; `module` runs it, `deploy` saves it.

In: made by `CompiledModule`. Out: `Linked`, read by `deploy.save`, one or several `KernelSet`s of
them, and `Bound`, read by `profile`.
Addresses are bytes of this process; a kernel's arguments are pointers in the order of its
parameters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ansorlite.calls import Array
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.loader import CallSequence, Loop, Together
from ansorlite.graph.indices import IndexCheck
from ansorlite.graph.ir import Graph
from ansorlite.graph.partition import Subgraph
from ansorlite.target import Target


class BoundCall(NamedTuple):
    """One call: its kernel, the pointers, and the form of the subgraph that the kernel computes."""

    native: Any
    args: Any
    subgraph: Subgraph
    form: int


class Bound(NamedTuple):
    """A network whose kernels point to the arrays of a call: nothing is missing but to run it."""

    calls: tuple[BoundCall, ...]
    sequence: CallSequence
    loops: tuple[Loop, ...]
    arena: Array


@dataclass(frozen=True)
class Link:
    """Slot `slot` of call `call` points to a graph input or, with `written`, a graph output.

    It points `start` bytes behind the first element.
    """

    call: int
    slot: int
    index: int
    written: bool
    start: int = 0


@dataclass(frozen=True)
class Result:
    """Where a graph output comes from: kernels ("written"), a constant, an input, another output.

    `index` is the position of the input, or of the output that kernels write, with the same values
    from byte `start` on. In the "arena" they lie at the address `start`.
    """

    kind: Literal["written", "constant", "input", "output", "arena"]
    index: int = 0
    start: int = 0


class PlacedCheck(NamedTuple):
    """An index check, and where its indices lie: number `place` of the inputs or outputs, or the
    address `place` in the arena.
    """

    check: IndexCheck
    kind: Literal["input", "output", "arena"]
    place: int


@dataclass(frozen=True)
class ModuleMemory:
    """The memory of a compiled network, and the pointers of each call.

    `calls` are (kernel, arguments) in running order, some in `loops`; some of their nests run
    `together`. `returned` has the addresses of constants that are outputs of the network, by the
    output's name.
    """

    arena: Array
    workspace: Array
    constants: tuple[Array, ...]
    calls: tuple[tuple[int, Any], ...]
    loops: tuple[Loop, ...]
    together: tuple[Together, ...]
    links: tuple[Link, ...]
    results: tuple[Result, ...]
    checks: tuple[PlacedCheck, ...]
    returned: Mapping[str, int]


class Linked(NamedTuple):
    """A compiled network: `graph` has its name and types, `images` are its kernels for `target`."""

    graph: Graph
    images: tuple[KernelImage, ...]
    memory: ModuleMemory
    target: Target


class KernelSet(NamedTuple):
    """A network's kernels for one target, in all of its sizes.

    `found` counts how kernels came to be: "tuned" for such a CPU, "adapted" from programs that
    were tuned for another one, "recompiled" from those, "predicted" where nothing was measured.
    """

    name: str
    target: Target
    sizes: tuple[Linked, ...]
    found: Mapping[str, int]
