"""A compiled network (step `compile` of the flow): native kernels in order, weights packed once.

In: a `Partition` and one `KernelImage` per distinct task. Out: `CompiledModule`, callable on numpy
arrays in the network's own layouts. All activations live in one arena whose offsets are planned by
lifetimes; pointers are prepared once; each constant is stored once per layout that a kernel reads.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.kernel import derive
from ansorlite.codegen.loader import CallSequence, load_image, resident_copy, resident_empty
from ansorlite.errors import ModelError
from ansorlite.graph.ir import check_inputs
from ansorlite.graph.memory import Lifetime, plan_arena
from ansorlite.graph.partition import Partition, Subgraph, tasks
from ansorlite.ir.layout import Layout
from ansorlite.target import Target

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LayerTime:
    """Latency of one kernel of the network (seconds, median of the profile's runs)."""

    name: str
    latency_s: float
    flop: float


@dataclass(frozen=True)
class ModuleMemory:
    """All that a compiled network's kernels point to, and the pointers of each (kernel, args)."""

    arena: Array
    workspace: Array
    constants: tuple[Array, ...]
    calls: tuple[tuple[int, Any], ...]


class CompiledModule:
    """Callable network; calls are serialised, they share one arena."""

    def __init__(
        self, parts: Partition, images: Sequence[KernelImage], forms: Sequence[int] | None = None
    ) -> None:
        """`images[k]` is the kernel of the k-th task of `partition.tasks(parts)`.

        `forms[k]` is which of its forms that task is compiled in (`Subgraph.forms`), or the first.
        Of the constants only what kernels read is kept, in their layouts, and what is an output.
        """
        self.partition = parts
        self._lock = threading.Lock()
        self.images = tuple(images)
        self._kernels = [load_image(image) for image in images]
        by_subgraph = {s: k for k, t in enumerate(tasks(parts)) for s in t.subgraphs}
        self._checks = parts.checks
        self._values = self._place()
        self._constants: dict[tuple[str, Layout | None, tuple[int, ...]], Array] = {}
        workspace = max(
            (p.nbytes for i in images for p in i.params if p.role == "workspace"), default=0
        )
        self._workspace = resident_empty((workspace,), "uint8")
        self._calls: list[tuple[Any, Any, Subgraph]] = []
        for n, subgraph in enumerate(parts.subgraphs):
            native = self._kernels[by_subgraph[n]]
            form = 0 if forms is None else forms[by_subgraph[n]]
            inputs = subgraph.forms[form].inputs
            pointers = self._pointers(inputs, subgraph.outputs, native.image)
            args = native.pointer_array([int(x.ctypes.data) for x in pointers])
            self._calls.append((native, args, subgraph))
        self._order = [by_subgraph[n] for n in range(len(parts.subgraphs))]
        self._sequence = CallSequence([(native, args) for native, args, _ in self._calls])
        self.partition = _without_weights(parts)

    # ---- memory ---------------------------------------------------------------------------------

    def _place(self) -> dict[str, Array]:
        """An array for every value that is no constant: graph inputs and results of kernels."""
        graph, alias = self.partition.graph, self.partition.aliases
        last = len(self.partition.subgraphs)
        life: dict[str, list[int]] = {}
        for v in graph.inputs:
            life[v] = [-1, -1]
        for k, s in enumerate(self.partition.subgraphs):
            for v in (*s.inputs, *s.outputs):
                owner = alias.get(v, v)
                if owner not in graph.constants:
                    life.setdefault(owner, [k, k])[1] = k
        for v in (*graph.outputs, *(c.value for c in self._checks)):
            owner = alias.get(v, v)
            if owner in life:
                life[owner][1] = last
        sizes = {
            v: Lifetime(graph.types[v].size * np.dtype(graph.types[v].dtype).itemsize, a, b)
            for v, (a, b) in life.items()
        }
        offsets, total = plan_arena(sizes)
        self.arena_bytes = total
        self._arena = resident_empty((total,), "uint8")
        out: dict[str, Array] = {}
        for v, at in offsets.items():
            kind = graph.types[v]
            raw = self._arena[at : at + sizes[v].size_bytes]
            out[v] = raw.view(kind.dtype).reshape(kind.shape)
        return out

    def _pointers(
        self, read: Sequence[str], written: Sequence[str], image: KernelImage
    ) -> list[Array]:
        inputs, outputs = iter(read), iter(written)
        alias, graph = self.partition.aliases, self.partition.graph
        arrays: list[Array] = []
        constants: dict[str, tuple[str, Array]] = {}  # of this kernel: value and array by parameter
        for p in image.params:
            if p.role in ("workspace", "derived"):
                arrays.append(self._workspace)  # derived ones follow when all constants are known
                continue
            value = next(outputs) if p.role == "output" else next(inputs)
            owner = alias.get(value, value)
            if owner not in graph.constants:
                arrays.append(self._values[owner])
            elif p.name in image.unread:
                constants[p.name] = owner, graph.constants[owner].reshape(p.shape)
                arrays.append(self._workspace)
            else:
                arrays.append(self._constant(owner, p))
                constants[p.name] = owner, arrays[-1]
        if any(p.role == "derived" for p in image.params):
            derived = self._derived(image, constants)
            arrays = [derived.get(p.name, x) for p, x in zip(image.params, arrays, strict=True)]
        return arrays

    def _constant(self, value: str, p: Param) -> Array:
        key = (value, p.layout, p.shape)
        if key not in self._constants:
            x = self.partition.graph.constants[value].reshape(p.shape)
            self._constants[key] = resident_copy(p.layout.pack(x) if p.layout else x)
        return self._constants[key]

    def _derived(
        self, image: KernelImage, constants: Mapping[str, tuple[str, Array]]
    ) -> dict[str, Array]:
        """Parameters that are computed from constants, in the kernel's layouts, by name."""
        assert image.bound is not None
        wanted = [p for p in image.params if p.role == "derived" and p.name not in image.unread]
        source = f"{image.bound} of {[owner for owner, _ in constants.values()]}"
        keys = {p.name: (f"{p.name} by {source}", p.layout, p.shape) for p in wanted}
        if any(key not in self._constants for key in keys.values()):
            arrays = {name: np.ascontiguousarray(x) for name, (_, x) in constants.items()}
            found = derive(image.bound, Target.detect(), arrays)
            for p in wanted:
                x = found[p.name]
                self._constants[keys[p.name]] = resident_copy(p.layout.pack(x) if p.layout else x)
        return {name: self._constants[key] for name, key in keys.items()}

    # ---- calls ----------------------------------------------------------------------------------

    def __call__(self, *args: npt.ArrayLike, **named: npt.ArrayLike) -> Array | tuple[Array, ...]:
        """Run on arrays in input order, or by input name; one array, or a tuple in output order.

        Raises ModelError for a wrong number, shape or dtype of inputs, and for indices that leave
        what they index.
        """
        graph = self.partition.graph
        given = check_inputs(graph, _ordered(graph.inputs, args, named))
        for c in self._checks:
            if c.value in given:
                c.check(given[c.value])
        with self._lock:
            for name, x in given.items():
                self._values[name][...] = x
            self._sequence.run()
            for c in self._checks:
                if c.value not in given:
                    c.check(self._values[c.value])
            results = tuple(self._result(v) for v in graph.outputs)
        return results[0] if len(results) == 1 else results

    def _result(self, value: str) -> Array:
        graph = self.partition.graph
        owner = self.partition.aliases.get(value, value)
        source = graph.constants.get(owner)
        x = self._values[owner] if source is None else source
        return np.array(x.reshape(graph.types[value].shape))

    def profile(self, *args: npt.ArrayLike, repeats: int = 10) -> tuple[LayerTime, ...]:
        """Latency of every kernel on these inputs, each timed `repeats` times in its place."""
        self(*args)
        times = [self.timed_calls(args) for _ in range(repeats)]
        return tuple(
            LayerTime(s.name, float(t), s.dag.flop)
            for (_, _, s), t in zip(self._calls, np.median(times, axis=0), strict=True)
        )

    def timed_calls(self, args: Sequence[npt.ArrayLike]) -> list[float]:
        """Seconds of every kernel in one run on these inputs, in running order."""
        given = check_inputs(self.partition.graph, args)
        times = []
        with self._lock:
            for name, x in given.items():
                self._values[name][...] = x
            for native, call, _ in self._calls:
                began = perf_counter()
                native.call(call)
                times.append(perf_counter() - began)
        return times

    # ---- deployment -----------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write the network into a new folder, for `ansorlite.load_module` or for C programs.

        See `graph.deploy`; raises AnsorliteError where the folder holds anything.
        """
        from ansorlite.graph.deploy import save

        return save(self, folder)

    @property
    def graph_inputs(self) -> tuple[str, ...]:
        return self.partition.graph.inputs

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        return self.partition.graph.outputs

    @property
    def memory(self) -> ModuleMemory:
        """What the kernels point to; constants that are results of the network included."""
        for v in self.graph_outputs:  # a constant that no kernel reads is kept from here on
            self.address(v)
        calls = tuple((k, args) for k, (_, args, _) in zip(self._order, self._calls, strict=True))
        constants = tuple(self._constants.values())
        return ModuleMemory(self._arena, self._workspace, constants, calls)

    def address(self, value: str) -> int:
        """Where a graph input or output lies in memory."""
        owner = self.partition.aliases.get(value, value)
        if owner in self._values:
            return int(self._values[owner].ctypes.data)
        kept = (owner, None, self.partition.graph.types[owner].shape)
        if kept not in self._constants:
            self._constants[kept] = resident_copy(self.partition.graph.constants[owner])
        return int(self._constants[kept].ctypes.data)

    @property
    def weights_bytes(self) -> int:
        return sum(x.nbytes for x in self._constants.values())


def _without_weights(parts: Partition) -> Partition:
    """The partition with no arrays but those that are outputs: the kernels have their own."""
    returned = {parts.aliases.get(v, v) for v in parts.graph.outputs}
    kept = {v: x for v, x in parts.graph.constants.items() if v in returned}
    return replace(parts, graph=replace(parts.graph, constants=kept))


def _ordered(
    names: Sequence[str], args: Sequence[npt.ArrayLike], named: Mapping[str, npt.ArrayLike]
) -> list[npt.ArrayLike]:
    if args and named:
        raise ModelError("give the network's inputs in order or by name, not both")
    if not named:
        return list(args)
    unknown = [n for n in named if n not in names]
    if unknown:
        raise ModelError(f"the network has no input {unknown[0]} (it has: {', '.join(names)})")
    missing = [n for n in names if n not in named]
    if missing:
        raise ModelError(f"no value is given for input {missing[0]}")
    return [named[n] for n in names]
