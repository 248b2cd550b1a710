"""A compiled network (step `compile` of the flow): native kernels in order, weights packed once.

In: a `Partition` and one `KernelImage` per distinct task. Out: `CompiledModule`, callable on numpy
arrays in the network's own layouts. All activations live in one arena whose offsets are planned by
lifetimes; pointers are prepared once; each constant is stored once per layout that a kernel reads.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.calls import (
    Array,
    Operand,
    Results,
    address,
    in_order,
    new_lock,
    resident_copy,
    resident_empty,
)
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.kernel import derive
from ansorlite.codegen.loader import (
    CallSequence,
    Loop,
    NativeFunction,
    load_image,
    pointer_array,
    target_of_image,
)
from ansorlite.codegen.object_cache import compiled
from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph
from ansorlite.graph.joined import calls_together, joined_nests
from ansorlite.graph.linked import (
    Bound,
    BoundCall,
    Link,
    Linked,
    ModuleMemory,
    PlacedCheck,
    Result,
)
from ansorlite.graph.memory import Lifetime, plan_arena
from ansorlite.graph.partition import DistinctKernel, Partition, Subgraph, kernels
from ansorlite.graph.places import Place
from ansorlite.graph.pool import ConstantPool
from ansorlite.graph.profile import Profile
from ansorlite.graph.profile_runs import REPEATS, profile
from ansorlite.graph.saving import named_target, save_modules
from ansorlite.ir.layout import Layout
from ansorlite.names import shown
from ansorlite.search.retarget import Retargeted, counts
from ansorlite.target import Target
from ansorlite.units import format_flop

ConstantKey = tuple[str, Layout | None, tuple[int, ...]]  # value, layout, shape


class CompiledModule:
    """Callable network; calls are serialised, they share one arena.

    Kernels read the caller's arrays in place and write into the arrays that are returned. A module
    can be copied and pickled (for machines of the same kind). A network for a `target` that cannot
    run here is there to be saved: a call is a ModelError.

    Example: `module = al.auto_schedule(net, n_trials=800); y = module(x)`.
    """

    def __init__(
        self,
        parts: Partition,
        images: Sequence[KernelImage],
        forms: Sequence[int] | None = None,
        pool: ConstantPool | None = None,
    ) -> None:
        """`images[k]` is the k-th of `partition.kernels(parts)`: one a task, or several.

        `forms[k]` is the index of task k's form in `Subgraph.forms`, 0 by default. Of the
        constants the module keeps those that kernels read, in the kernels' layouts, and those
        that are outputs; `pool` has those that other modules hold, too.
        """
        self._pool = pool
        self._found: Mapping[str, int] = {}
        self.images = tuple(images)
        self._constants: dict[ConstantKey, Array] = {}
        self._forms = None if forms is None else tuple(forms)
        self._constant_names = frozenset(parts.graph.constants)
        self.partition = parts
        self._link()
        self.partition = _without_weights(parts)

    def __str__(self) -> str:
        graph, parts = self.partition.graph, self.partition
        taken = ", ".join(f"{v}: {graph.types[v]}" for v in graph.inputs)
        given = ", ".join(f"{v}: {graph.types[v]}" for v in graph.outputs)
        count = f"{len(parts.subgraphs)} calls of {len(self.images)} kernels"
        flop = format_flop(parts.flop)
        return shown(f"{type(self).__name__} {graph.name}({taken}) -> {given}: {count}, {flop}")

    def __repr__(self) -> str:
        return f"<{self}>"

    def __getstate__(self) -> dict[str, Any]:
        kept = ("images", "partition", "_constants", "_constant_names", "_forms")
        return {name: getattr(self, name) for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.restore(state, {})

    def restore(
        self, state: dict[str, Any], copies: dict[int, Array], pool: ConstantPool | None = None
    ) -> None:
        """Become the module of that state; `copies` has the constants of others by identity."""
        self.__dict__.update(state)
        self._pool, self._found = pool, {}
        for x in self._constants.values():
            if id(x) not in copies:
                copies[id(x)] = resident_copy(x)
        self._constants = {k: copies[id(x)] for k, x in self._constants.items()}
        self._link()

    def _link(self) -> None:
        """Load the kernels, pack constants that are not packed yet, prepare the pointers."""
        parts, images = self.partition, self.images
        graph, alias = parts.graph, parts.aliases
        self._lock = new_lock(self)
        self._read: set[ConstantKey] = set()  # constants that kernels read
        self.target = target_of_image(images[0]) if images else Target.detect()
        self._native: list[NativeFunction | None] = [None] * len(images)
        if not self.target.is_foreign:
            self._native = [load_image(image) for image in images]
        by_subgraph = {s: k for k, own in enumerate(self.kernels) for s in own.subgraphs}
        self._order = [by_subgraph[n] for n in range(len(parts.subgraphs))]
        self._together = joined_nests(
            parts,
            [images[k] for k in self._order],
            [self._inputs_of(n, k) for n, k in enumerate(self._order)],
        )
        self._values = self._place()
        workspace = max(
            (p.nbytes for i in images for p in i.params if p.role == "workspace"), default=0
        )
        self._workspace = resident_empty((workspace,), "uint8")
        self._calls: list[tuple[Any, Any, Subgraph]] = []
        self._results = tuple(self._origins())
        ends = {v: k for k, v in enumerate(graph.inputs)}
        written = {
            alias.get(v, v): k
            for k, v in enumerate(graph.outputs)
            if self._results[k].kind == "written"
        }
        links, moves = list[Link](), list[tuple[int, int, int]]()
        for n, subgraph in enumerate(parts.subgraphs):
            image, native = images[by_subgraph[n]], self._native[by_subgraph[n]]
            inputs = self._inputs_of(n, by_subgraph[n])
            pointers, places = self._pointers(inputs, subgraph.outputs, image)
            args = pointer_array(image, pointers)
            self._calls.append((native, args, subgraph))
            for slot, place in enumerate(places):
                if place is None:
                    continue
                wide = np.dtype(graph.types[place.owner].dtype).itemsize
                if place.owner in ends:
                    links.append(Link(n, slot, ends[place.owner], False, place.start * wide))
                elif place.owner in written:
                    links.append(Link(n, slot, written[place.owner], True, place.start * wide))
                if place.stride:
                    moves.append((n, slot, place.stride * wide))
        self._links = tuple(links)
        self._loops = tuple(
            Loop(k, n, parts.subgraphs[k].times, tuple(m for m in moves if k <= m[0] < k + n))
            for k, n in _runs(parts.subgraphs)
            if parts.subgraphs[k].times > 1
        )
        calls = [(f, args) for f, args, _ in self._calls if f is not None]
        self._sequence = (
            CallSequence(calls, self._loops, self._together)
            if len(calls) == len(self._calls)
            else None
        )
        self._operands = tuple(_operand(graph, v, "input") for v in graph.inputs)
        self._reads: tuple[list[tuple[Any, int, int]], ...] = tuple([] for _ in graph.inputs)
        self._fills: tuple[list[tuple[Any, int, int]], ...] = tuple([] for _ in graph.outputs)
        for link in links:
            into = self._fills if link.written else self._reads
            into[link.index].append((self._calls[link.call][1], link.slot, link.start))
        self._input_checks = [(c, ends[c.value]) for c in parts.checks if c.value in ends]
        self._late_checks = [
            (c, written.get(c.value, -1)) for c in parts.checks if c.value not in ends
        ]
        self._outputs = tuple(Results(_operand(graph, v, "output")) for v in graph.outputs)

    def _inputs_of(self, n: int, k: int) -> tuple[str, ...]:
        """What kernel k, that of subgraph n, reads in the form of its task."""
        form = self._form_of(k)
        return tuple(self.partition.subgraphs[n].forms[form].inputs)

    def _form_of(self, k: int) -> int:
        """The form that kernel k computes."""
        return 0 if self._forms is None else self._forms[self.kernels[k].task]

    @cached_property
    def kernels(self) -> tuple[DistinctKernel, ...]:
        """What each of `images` is the kernel of."""
        return kernels(self.partition)

    def _origins(self) -> Iterator[Result]:
        """The origin of each graph output in order: kernels write the first that is all of a value.

        Any other output is copied: from the input, constant or output that holds it, or from the
        arena.
        """
        graph, places = self.partition.graph, self.partition.places
        at = [places.get(v, Place(v)) for v in graph.outputs]
        whole: dict[str, int] = {}
        for k, (v, place) in enumerate(zip(graph.outputs, at, strict=True)):
            if graph.types[v].size == graph.types[place.owner].size:
                whole.setdefault(place.owner, k)
        for k, place in enumerate(at):
            owner = place.owner
            start = place.start * np.dtype(graph.types[owner].dtype).itemsize
            if owner in self._constant_names:
                yield Result("constant", 0, start)
            elif owner in graph.inputs:
                yield Result("input", graph.inputs.index(owner), start)
            elif owner not in whole:
                yield Result("arena", 0, int(self._values[owner].ctypes.data) + start)
            elif whole[owner] == k:
                yield Result("written")
            else:
                yield Result("output", whole[owner], start)

    # ---- memory ---------------------------------------------------------------------------------

    def _place(self) -> dict[str, Array]:
        """An array in the arena for each value that is not constant: inputs, results of kernels."""
        graph, alias = self.partition.graph, self.partition.aliases
        last = len(self.partition.subgraphs)
        life: dict[str, list[int]] = {}
        for v in graph.inputs:
            life[v] = [-1, -1]
        joined = calls_together(self._together, [len(self.images[k].spans) for k in self._order])
        for first, count in _runs(self.partition.subgraphs):
            for k in range(first, first + count):
                s = self.partition.subgraphs[k]
                # In a loop what one step reads another may have written before; of kernels that
                # run together one may still read what another one is done with.
                begin, end = (first, first + count - 1) if s.loop else joined.get(k, (k, k))
                for v in (*s.inputs, *s.outputs):
                    owner = alias.get(v, v)
                    if owner not in self._constant_names:
                        life.setdefault(owner, [begin, end])[1] = end
        for v in (*graph.outputs, *(c.value for c in self.partition.checks)):
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
    ) -> tuple[list[int], list[Place | None]]:
        """The addresses and places of a kernel's parameters; None for the kernel's own memory."""
        inputs, outputs, known = iter(read), iter(written), self.partition.places
        arrays: list[tuple[Array, int]] = []  # and the first element
        places: list[Place | None] = []
        constants: dict[str, tuple[str, Array]] = {}  # of this kernel: value and array by parameter
        for p in image.params:
            if p.role in ("workspace", "derived"):
                # derived ones follow when all constants are known
                arrays.append((self._workspace, 0))
                places.append(None)
                continue
            value = next(outputs) if p.role == "output" else next(inputs)
            place = known.get(value, Place(value))
            places.append(place)
            owner = place.owner
            if owner in self._values:
                arrays.append((self._values[owner], place.start))
            elif math.prod(p.shape) < self.partition.graph.types[owner].size:
                arrays.append((self._whole(owner), place.start))
            elif p.name in image.unread:
                constants[p.name] = owner, self._original(owner, p)
                arrays.append((self._workspace, 0))
            else:
                arrays.append((self._constant(owner, p), 0))
                constants[p.name] = owner, arrays[-1][0]
        derived: dict[str, Array] = {}
        if any(p.role == "derived" for p in image.params):
            derived = self._derived(image, constants)
        addresses = [
            address(derived[p.name]) if p.name in derived else address(x) + start * x.itemsize
            for p, (x, start) in zip(image.params, arrays, strict=True)
        ]
        return addresses, places

    def _whole(self, value: str) -> Array:
        """A constant of which kernels read parts, in the graph's own order."""
        key = (value, None, self.partition.graph.types[value].shape)
        self._read.add(key)
        if key not in self._constants:
            source = self._source(value)
            self._constants[key] = self._held([source], key[1:], lambda: resident_copy(source))
        return self._constants[key]

    def _source(self, value: str) -> Array:
        """A constant in the graph's own order, where need be from a layout that a kernel read."""
        found = self.partition.graph.constants.get(value)
        return self._unpacked(value) if found is None else found

    def _unpacked(self, value: str) -> Array:
        """The constant that a layout was made of, by the first part of its key."""
        for (name, layout, shape), x in self._constants.items():
            if name == value:
                return layout.unpack(x, shape) if layout else x
        raise ModelError(f"the constant {shown(value, 80)} is not at hand any more")

    def _original(self, owner: str, p: Param) -> Array:
        """A constant that parameters are derived from; empty where the module has those already."""
        found = self.partition.graph.constants.get(owner)
        return np.empty(0, p.dtype) if found is None else found.reshape(p.shape)

    def _constant(self, value: str, p: Param) -> Array:
        key = (value, p.layout, p.shape)
        self._read.add(key)
        if key not in self._constants:
            source = self._source(value)

            packed = partial(_packed, source.reshape(p.shape), p.layout)
            self._constants[key] = self._held([source], (p.layout, p.shape), packed)
        return self._constants[key]

    def _held(self, sources: Sequence[Array], of: Hashable, make: Callable[[], Array]) -> Array:
        """An array made of constants, from the pool where there is one."""
        if self._pool is None:
            return make()
        return self._pool.kept((*map(self._pool.digest, sources), of), make)

    def _derived(
        self, image: KernelImage, constants: Mapping[str, tuple[str, Array]]
    ) -> dict[str, Array]:
        """Parameters that are computed from constants, in the kernel's layouts, by name."""
        assert image.bound is not None
        wanted = [p for p in image.params if p.role == "derived" and p.name not in image.unread]
        source = f"{image.bound} of {[owner for owner, _ in constants.values()]}"
        keys = {p.name: (f"{p.name} by {source}", p.layout, p.shape) for p in wanted}
        self._read.update(keys.values())
        for p in wanted:
            name = keys[p.name][0]
            if keys[p.name] not in self._constants and any(k[0] == name for k in self._constants):
                x = self._unpacked(name).reshape(p.shape)  # made before, in another layout
                packed = partial(_packed, x, p.layout)
                self._constants[keys[p.name]] = self._held([x], keys[p.name][1:], packed)
        if any(key not in self._constants for key in keys.values()):
            sources = [x for _, x in constants.values()]
            bound, found = image.bound, dict[str, Array]()

            def made(p: Param) -> Array:
                if not found:
                    arrays = {name: np.ascontiguousarray(x) for name, (_, x) in constants.items()}
                    found.update(derive(bound, Target.detect(), arrays))
                return _packed(found[p.name], p.layout)

            for p in wanted:
                of = (p.name, str(bound), tuple(constants), p.layout, p.shape)
                self._constants[keys[p.name]] = self._held(sources, of, partial(made, p))
        return {name: self._constants[key] for name, key in keys.items()}

    # ---- calls ----------------------------------------------------------------------------------

    def __call__(
        self, /, *args: npt.ArrayLike, **named: npt.ArrayLike
    ) -> Array | tuple[Array, ...]:
        """Run on arrays; one array, or a tuple in output order.

        Arrays are in input order, by name (`module(x=x)`) or in one dict by name. Raises ModelError
        for a wrong number, shape or dtype of inputs, and for indices outside of the axis that they
        index.
        """
        if named or len(args) != len(self._operands) or isinstance(args[0] if args else 0, dict):
            args = tuple(in_order(self.graph_inputs, args, named))
        with self._lock:
            if self._sequence is None:
                raise self._foreign()
            given, results = self._bind(args)
            for c, k in self._input_checks:
                c.check(given[k])
            self._sequence.run()
            for c, k in self._late_checks:
                c.check(self._values[c.value] if k < 0 else results[k])
            for k, origin in enumerate(self._results):
                if origin.kind != "written":
                    results[k][...] = self._copied(k, origin, given, results)
        return results[0] if len(results) == 1 else tuple(results)

    def _foreign(self) -> ModelError:
        t = self.target
        return ModelError(
            f"the network is compiled for {t.cpu} ({t.arch}, {t.system}), which this machine is "
            "not: save it, and load it there"
        )

    def _bind(self, args: Sequence[npt.ArrayLike]) -> tuple[list[Any], list[Array]]:
        """Point the kernels to these arrays: (the inputs as read, the arrays of the results)."""
        given = []
        for w, x, places in zip(self._operands, args, self._reads):  # noqa: B905 (microseconds)
            if not w.fits(x):
                x = w.read(x)
            at = address(x)  # type: ignore[arg-type]
            for pointers, slot, start in places:
                pointers[slot] = at + start
            given.append(x)
        results = []
        for r, places in zip(self._outputs, self._fills):  # noqa: B905
            x = r.take()
            at = address(x)
            for pointers, slot, start in places:
                pointers[slot] = at + start
            results.append(x)
        return given, results

    def _copied(self, k: int, origin: Result, given: list[Any], results: list[Array]) -> Array:
        """The values of output k, which no kernel writes."""
        if origin.kind == "constant":
            value = self.partition.graph.outputs[k]
            source = self.partition.graph.constants[self.partition.aliases.get(value, value)]
        elif origin.kind == "arena":
            owner = self.partition.aliases[self.partition.graph.outputs[k]]
            source = self._values[owner]
        else:
            source = (given if origin.kind == "input" else results)[origin.index]
        return self._part(k, source)

    def _part(self, k: int, source: Array) -> Array:
        """The elements of output k in the value that has them."""
        place = self.partition.places.get(self.partition.graph.outputs[k])
        kind = self.partition.graph.types[self.partition.graph.outputs[k]]
        start = 0 if place is None else place.start
        return source.reshape(-1)[start : start + kind.size].reshape(kind.shape)

    def profile(
        self, /, *args: npt.ArrayLike, repeats: int = REPEATS, alone: bool = True
    ) -> Profile:
        """Where the time of a call with these inputs goes, kernel by kernel.

        Medians of the faster half of `repeats` rounds; without `alone` no kernel is run apart from
        the others. Other calls of the module wait until the profile is made. See `graph.profile`;
        raises ModelError as a call does, UsageError for less than one round.
        """
        return profile(self, args, repeats, alone)

    @contextmanager
    def bound(self, args: Sequence[npt.ArrayLike]) -> Iterator[Bound]:
        """The kernels with pointers to these inputs and to new results; no other call runs."""
        if self._sequence is None:
            raise self._foreign()
        given = in_order(self.graph_inputs, args, {})
        with self._lock:
            kept = self._bind(given)
            calls = (
                BoundCall(*call, self._form_of(k))
                for k, call in zip(self._order, self._calls, strict=True)
            )
            yield Bound(tuple(calls), self._sequence, self._loops, self._arena)
            del kept

    @property
    def constant_names(self) -> frozenset[str]:
        """The values of the graph that are constants."""
        return self._constant_names

    def timed_calls(self, args: Sequence[npt.ArrayLike]) -> list[float]:
        """Seconds of every kernel in one run on these inputs, in running order.

        The time of a kernel in a loop is the sum over all steps.
        """
        if self._sequence is None:
            raise self._foreign()
        times, given = [0.0] * len(self._calls), in_order(self.graph_inputs, args, {})
        with self._lock:
            kept = self._bind(given)
            for first, count in _runs(self.partition.subgraphs):
                self._timed_run(range(first, first + count), times)
            del kept
        return times

    def _timed_run(self, run: range, times: list[float]) -> None:
        """Add to `times` what the calls of a run take, which may be a loop."""
        loop = next((x for x in self._loops if x.first == run.start), None)
        steps = 1 if loop is None else loop.times
        for t in range(steps):
            for k in run:
                native, call, _ = self._calls[k]
                began = perf_counter()
                native.call(call)
                times[k] += perf_counter() - began
            for k, slot, by in () if loop is None else loop.moves:
                pointers = self._calls[k][1]
                pointers[slot] += by if t + 1 < steps else by * (1 - steps)

    # ---- deployment -----------------------------------------------------------------------------

    def save(
        self,
        folder: str | Path,
        target: Target | str | None = None,
        targets: Sequence[Target | str] | None = None,
    ) -> Path:
        """Write the network into a new folder, for `ansorlite.load_module` or for C programs.

        `target` is a `Target` or the name of a preset, by default that of the module, see
        `for_target`. `targets` are several, of one architecture: one library with a set of kernels
        for each, of which the best that the CPU runs is picked when the network is opened.
        "native" is the module's own. For another machine the library is linked by a cross compiler
        that is installed; without any the folder holds what it is linked from, and the command.
        See `graph.deploy`; raises AnsorliteError where the folder holds anything.

        Example: `module.save("net", targets=["x86-64-v3", "x86-64-v4", "znver4"])`.
        """
        return save_modules([self], folder, target, targets)

    def for_target(
        self, target: Target | str | None, pool: ConstantPool | None = None
    ) -> "CompiledModule":
        """The network with its programs for a target; itself where that is its own.

        Programs are those of `search.retarget`. A name without cores has the module's own number,
        where machines of that name have no usual one. Constants in new layouts are held by `pool`.
        Raises ModelError where the programs are not known any more.
        """
        own = self.target
        wanted = named_target(target, own) if isinstance(target, str) else target
        if wanted is None or (wanted.triple, wanted.cpu, wanted.features) == (
            own.triple,
            own.cpu,
            own.features,
        ):
            return self
        found = self.programs_for(wanted)
        if found is None:
            raise ModelError(
                f"the network is compiled for {own.cpu} and its programs are not at hand: "
                f"schedule it for {wanted.cpu} (auto_schedule(..., target=...))"
            )
        other = CompiledModule.__new__(CompiledModule)
        images = tuple(compiled(r.program, wanted) for r in found)
        state = {**self.__getstate__(), "images": images}
        other.restore(state, {id(x): x for x in self._constants.values()}, pool)
        other._constants = {k: x for k, x in other._constants.items() if k in other._read}
        other._found = counts(found)
        return other

    def programs_for(self, target: Target) -> Sequence[Retargeted] | None:
        """A program for each of `images`; None for a module that was made of images alone."""
        return None

    @property
    def found(self) -> Mapping[str, int]:
        """How many kernels were found in which way, see `search.retarget`."""
        return self._found or {"tuned": len(self.images)}

    def linked(self) -> Linked:
        """What `deploy.save` writes."""
        return Linked(self.partition.graph, self.images, self._memory(), self.target)

    @property
    def constants(self) -> tuple[Array, ...]:
        """The constants in the kernels' layouts, some of which other modules may share."""
        return tuple(self._constants.values())

    @property
    def graph_inputs(self) -> tuple[str, ...]:
        return self.partition.graph.inputs

    @property
    def graph_outputs(self) -> tuple[str, ...]:
        return self.partition.graph.outputs

    def _memory(self) -> ModuleMemory:
        """The memory that the kernels point to, and constants that are outputs of the network."""
        outputs = zip(self.graph_outputs, self._results, strict=True)
        returned = {v: self._constant_address(v) for v, r in outputs if r.kind == "constant"}
        calls = tuple((k, args) for k, (_, args, _) in zip(self._order, self._calls, strict=True))
        checks = [PlacedCheck(c, "input", k) for c, k in self._input_checks]
        for c, k in self._late_checks:
            at = int(self._values[c.value].ctypes.data)
            checks.append(PlacedCheck(c, "arena", at) if k < 0 else PlacedCheck(c, "output", k))
        return ModuleMemory(
            self._arena,
            self._workspace,
            tuple(self._constants.values()),
            calls,
            self._loops,
            self._together,
            self._links,
            self._results,
            tuple(checks),
            returned,
        )

    def _constant_address(self, output: str) -> int:
        """The address of a constant that is an output of the graph.

        One that no kernel reads is kept from here on.
        """
        return int(self._whole(self.partition.aliases.get(output, output)).ctypes.data)

    @property
    def weights_bytes(self) -> int:
        return sum(x.nbytes for x in self._constants.values())


def _packed(x: Array, layout: Layout | None) -> Array:
    return resident_copy(layout.pack(x) if layout else x)


def _runs(subgraphs: Sequence[Subgraph]) -> Iterator[tuple[int, int]]:
    """(first, count) of the subgraphs that run together: those of a loop, or one."""
    first = 0
    for k in range(1, len(subgraphs) + 1):
        loop = subgraphs[first].loop
        if k == len(subgraphs) or not loop or subgraphs[k].loop != loop:
            yield first, k - first
            first = k


def _operand(graph: Graph, value: str, kind: str) -> Operand:
    known = graph.types[value]
    return Operand(value, known.shape, known.dtype, kind)


def _without_weights(parts: Partition) -> Partition:
    """The partition without constants, except outputs: kernels have packed copies."""
    returned = {parts.aliases.get(v, v) for v in parts.graph.outputs}
    kept = {v: x for v, x in parts.graph.constants.items() if v in returned}
    return replace(parts, graph=replace(parts.graph, constants=kept))
