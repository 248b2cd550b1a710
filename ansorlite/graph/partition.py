"""Step `partition`: an optimised `Graph` -> kernels and views in the order in which they run.

In: a `Graph` after `passes.optimize`. Out: a `Partition`; its `Subgraph`s each have a `ComputeDAG`,
and `tasks` collects equal ones into what there is to tune, with weights. Buffers are the graph's
values: a subgraph reads and writes row-major views of them, a `View` is another name and shape for
the same elements (no copy).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.fuse import fuse
from ansorlite.graph.indices import IndexCheck, index_checks
from ansorlite.graph.ir import Graph, Node, check_inputs
from ansorlite.graph.ir import Step as Body
from ansorlite.graph.lower import FORM_RTOL, FormKey, Lowered, lower, other_forms
from ansorlite.graph.places import Place, Width, Widths, width
from ansorlite.graph.types import Array, TensorType, integer
from ansorlite.names import shown
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Operation


@dataclass(frozen=True)
class Subgraph:
    """One kernel: `inputs` are graph values in the order of `dag.inputs`, `outputs` likewise.

    The shape of a placeholder or output may be another row-major view of the value's shape.
    `others` compute the same in other forms, such as Winograd's, from the same values. Subgraphs
    that follow one another with the same `loop` run `times` times together.
    """

    name: str
    dag: ComputeDAG
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    others: tuple[Lowered, ...] = ()
    times: int = 1
    loop: str = ""

    @property
    def forms(self) -> tuple[Lowered, ...]:
        """All forms, the plain one first."""
        return (Lowered(self.dag, self.inputs), *self.others)


def has_views(s: Subgraph, place: Callable[[str], Place | None]) -> bool:
    """Do all forms of a kernel have views of their operands where these lie?"""
    for form in s.forms:
        ops: list[Operation] = [*form.dag.inputs, *form.dag.outputs]
        for op, v in zip(ops, (*form.inputs, *s.outputs), strict=True):
            at = place(v)
            if at is None or not width(op.shape, at)[0]:
                return False
    return True


@dataclass(frozen=True)
class View:
    """`result` has the elements of `source` in the graph's shape of `result`; nothing moves.

    The first element is element `start` of the source, in a loop `stride` further each time. The
    elements form `rows` rows, which begin `pitch` elements of the source apart.
    """

    source: str
    result: str
    start: int = 0
    stride: int = 0
    rows: int = 1
    pitch: int = 0

    @property
    def place(self) -> Place:
        """Where the result lies in the source."""
        return Place(self.source, self.start, self.stride, self.rows, self.pitch)


@dataclass(frozen=True)
class Buffer:
    """Memory for `value`, which several kernels fill part by part."""

    value: str


Step = Subgraph | View | Buffer


@dataclass(frozen=True)
class Partition:
    """`steps` in running order. Graph outputs are results of steps, graph inputs or constants."""

    graph: Graph
    steps: tuple[Step, ...]

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        return tuple(s for s in self.steps if isinstance(s, Subgraph))

    @cached_property
    def places(self) -> dict[str, Place]:
        """For each view the place of its elements in the value that owns them."""
        found: dict[str, Place] = {}
        for s in self.steps:
            if isinstance(s, View):
                at = found.get(s.source, Place(s.source))
                sizes = (self.graph.types[v].size for v in (s.source, s.result))
                place = at.part(s.place, *sizes)
                if place is None:
                    raise ModelError(f"{s.result} has no rows at equal distances in {at.owner}")
                found[s.result] = place
        return found

    def place(self, value: str) -> Place:
        """Where a value lies."""
        return self.places.get(value, Place(value))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """For each view the value that owns its elements."""
        return {v: at.owner for v, at in self.places.items()}

    @property
    def checks(self) -> tuple[IndexCheck, ...]:
        """Checks of indices that are known at run time only."""
        return index_checks(self.graph, self.aliases)

    @property
    def flop(self) -> float:
        return sum(s.dag.flop * s.times for s in self.subgraphs)

    def __str__(self) -> str:
        types, lines = self.graph.types, [f"partition of {shown(self.graph.name)}:"]
        for s in self.steps:
            if isinstance(s, Buffer):
                lines.append(f"    {shown(s.value)} = buffer  # {types[s.value]}")
            elif isinstance(s, View):
                view = f"{shown(s.result)} = view {shown(s.source)}"
                at = f" from {s.start}" * (s.start != 0) + f" by {s.stride}" * (s.stride != 0)
                at += f" in {s.rows} rows {s.pitch} apart" * (s.rows > 1)
                lines.append(f"    {view}{at}  # {types[s.result]}")
            else:
                read, written = (", ".join(map(shown, v)) for v in (s.inputs, s.outputs))
                call = f"{written} = {s.name}({read})" + f" {s.times} times" * (s.times > 1)
                lines.append(f"    {call}  # {types[s.outputs[0]]}")
        return "\n".join([*lines, f"    return {', '.join(map(shown, self.graph.outputs))}", ""])

    def verify(self) -> None:
        """Raise a ModelError unless every step reads computed values of matching size."""
        ready = {*self.graph.inputs, *self.graph.constants}
        for s in self.steps:
            if isinstance(s, Buffer):
                ready.add(s.value)
                continue
            inputs, outputs = (
                ((s.source,), (s.result,)) if isinstance(s, View) else (s.inputs, s.outputs)
            )
            for v in inputs:
                if v not in ready:
                    raise ModelError(f"{v} is read by the step of {outputs[0]} before it is there")
            if isinstance(s, Subgraph):
                for form in s.forms:
                    ops: list[Operation] = [*form.dag.inputs, *form.dag.outputs]
                    for v, op in zip((*form.inputs, *outputs), ops, strict=True):
                        if math.prod(op.shape) != self.graph.types[v].size:
                            raise ModelError(f"{s.name}: {op.name} is no view of {v}")
                if not has_views(s, self.place):
                    raise ModelError(f"{s.name} has no views of its operands where these lie")
            ready.update(outputs)
        _ = self.checks  # constant indices
        missing = [v for v in self.graph.outputs if v not in ready]
        if missing:
            raise ModelError(f"output {missing[0]} is computed by no step")


Begin = Callable[[str, ComputeDAG], None]  # (name of a subgraph, its plain form)


def partition(
    graph: Graph,
    in_float32: bool = False,
    form_rtol: float = FORM_RTOL,
    begin: Begin = lambda name, dag: None,
) -> Partition:
    """Cut an optimised graph into kernels; a ModelError tells if the passes are still to be run.

    With `in_float32` products in bfloat16 have a form in float32 beside their own. Forms that are
    expected to err more than `form_rtol` are left out. `begin` is called with each plain form
    before other forms are made, which takes longer.
    """
    order = {n.output: k for k, n in enumerate(graph.nodes)}
    steps: list[tuple[int, Step]] = []
    for n in graph.nodes:
        if n.operator.kind == "view":
            start = integer(n.attrs, "start") if "start" in n.attrs else 0
            steps.append((order[n.output], View(n.inputs[0], n.output, start)))
    forms: dict[FormKey, ComputeDAG | None] = {}
    found = []
    for k, group in enumerate(fuse(graph)):
        plain = lower(graph, group)
        name = "_".join([*(n.op for n in group.nodes), str(k)])
        begin(name, plain.dag)
        found.append((group, plain, name))
    for group, plain, name in found:
        nodes = tuple(n.name for n in group.nodes)
        others = other_forms(graph, group, plain, forms, in_float32, form_rtol)
        made = Subgraph(name, *plain, (group.output,), nodes, others)
        steps.append((order[group.output], made))
    known = graph
    for n in graph.nodes:
        if n.operator.kind == "loop":
            known, own = _unfolded(known, n, form_rtol)
            steps += [(order[n.output], s) for s in own]
    ordered = _with_common_forms(s for _, s in sorted(steps, key=lambda item: item[0]))
    result = Partition(known, ordered)
    result.verify()
    return result


def _with_common_forms(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Equal subgraphs, one task, have the same forms: those that the weights of each allow."""
    known, common = tuple(steps), dict[str, set[str]]()
    for s in known:
        if isinstance(s, Subgraph):
            own = {f.dag.workload_key for f in s.others}
            common[s.dag.workload_key] = common.get(s.dag.workload_key, own) & own
    return tuple(
        replace(s, others=tuple(f for f in s.others if f.dag.workload_key in allowed))
        if isinstance(s, Subgraph) and len(allowed := common[s.dag.workload_key]) < len(s.others)
        else s
        for s in known
    )


def _unfolded(graph: Graph, node: Node, form_rtol: float) -> tuple[Graph, list[Step]]:
    """The kernels of a loop: those of the first step, then those of all others; and their values.

    The first step reads the states that are given, the others those of the step before, which lie
    in the loop's result. The graph gets the types and constants of the body.
    """
    step, times, states = node.attrs["body"], integer(node.attrs, "times"), node.attrs["states"]
    assert isinstance(step, Body) and isinstance(states, int)
    inside = _writing_all(partition(step.graph, form_rtol=form_rtol))
    body, sign = inside.graph, -1 if node.attrs["reverse"] else 1
    first = times - 1 if sign < 0 else 0
    sizes = [body.types[v].size for v in body.outputs]
    starts = [times * sum(sizes[:k]) for k in range(len(sizes))]
    scanned = len(body.inputs) - integer(node.attrs, "scanned")
    types, constants = dict(graph.types), dict(graph.constants)
    stem = unused(f"{node.output}.step", types)
    steps: list[Step] = [Buffer(node.output)]
    for block, (done, count) in enumerate([(0, 1), (1, times - 1)]):
        if count == 0:
            continue
        names = {v: f"{stem}{block}.{v}" for v in body.types}
        names |= {v: f"{stem}.{v}" for v in body.constants}
        types |= {names[v]: t for v, t in body.types.items()}
        constants |= {names[v]: x for v, x in body.constants.items()}
        now = first + sign * done
        for k, v in enumerate(body.inputs):
            size, name = body.types[v].size, names[v]
            if k >= scanned:
                steps.append(View(node.inputs[k], name, now * size, sign * size))
            elif k < states and block:
                at = starts[k] + (now - sign) * size
                steps.append(View(node.output, name, at, sign * size))
            else:
                steps.append(View(node.inputs[k], name))
        for v, size, start in zip(body.outputs, sizes, starts, strict=True):
            steps.append(View(node.output, names[v], start + now * size, sign * size))
        loop = f"{'rest' if block else 'first'}_of_{graph.nodes.index(node)}"
        steps += [_renamed(s, names, count, loop) for s in inside.steps]
    light = replace(node, attrs={k: v for k, v in node.attrs.items() if k != "body"})
    nodes = tuple(light if n is node else n for n in graph.nodes)
    return replace(graph, nodes=nodes, types=types, constants=constants), steps


def _writing_all(parts: Partition) -> Partition:
    """The partition with a kernel that writes each output; those that no kernel writes are copied.

    Such an output is an input or a constant, a view of another value, or another output as well.
    """
    graph, steps = parts.graph, list(parts.steps)
    types, outputs = dict(graph.types), list[str]()
    free = {v for s in parts.subgraphs for v in s.outputs}
    for v in graph.outputs:
        if v in free:
            free.remove(v)
            outputs.append(v)
            continue
        kind, name = types[v], unused(f"{v}.copy", types)
        copy = copied((kind.size,), kind.dtype)
        steps.append(Subgraph(f"copy_{len(steps)}", copy, (v,), (name,), ()))
        types[name] = kind
        outputs.append(name)
    return Partition(replace(graph, outputs=tuple(outputs), types=types), tuple(steps))


def copied(shape: tuple[int, ...], dtype: str) -> ComputeDAG:
    """A copy of a tensor."""
    x = te.placeholder(shape, dtype, "data")
    return te.ComputeDAG([te.compute(shape, lambda *i: x[i], name="copy")])


def unused(stem: str, types: Mapping[str, TensorType]) -> str:
    """The stem, longer where values of the graph begin with it."""
    while any(v.startswith(stem) for v in types):
        stem += "_"
    return stem


def _renamed(step: Step, names: Mapping[str, str], times: int, loop: str) -> Step:
    """A step of a loop's body with the names that its values have outside."""
    match step:
        case View():
            return replace(step, source=names[step.source], result=names[step.result])
        case Buffer():
            return Buffer(names[step.value])
    others = tuple(Lowered(f.dag, tuple(names[v] for v in f.inputs)) for f in step.others)
    return replace(
        step,
        name=f"{step.name}_{loop}",
        inputs=tuple(names[v] for v in step.inputs),
        outputs=tuple(names[v] for v in step.outputs),
        others=others,
        times=times,
        loop=loop,
    )


class DistinctSubgraph(NamedTuple):
    """A distinct computation of a network: how often it runs, and as which subgraphs."""

    dag: ComputeDAG
    weight: int
    subgraphs: tuple[int, ...]
    others: tuple[ComputeDAG, ...] = ()


def tasks(parts: Partition) -> tuple[DistinctSubgraph, ...]:
    """Subgraphs with equal workload keys as one task, in order of first occurrence.

    `subgraphs` indexes `parts.subgraphs`; a kernel of `dag` takes their operands by position.
    """
    found: dict[str, list[int]] = {}
    for k, s in enumerate(parts.subgraphs):
        found.setdefault(s.dag.workload_key, []).append(k)
    weights = [sum(parts.subgraphs[k].times for k in ks) for ks in found.values()]
    firsts = [(parts.subgraphs[ks[0]], ks) for ks in found.values()]
    return tuple(
        DistinctSubgraph(s.dag, weight, tuple(ks), tuple(f.dag for f in s.others))
        for (s, ks), weight in zip(firsts, weights, strict=True)
    )


class DistinctKernel(NamedTuple):
    """Subgraphs of task number `task` whose operands lie alike in memory: one kernel serves all."""

    task: int
    subgraphs: tuple[int, ...]

    def widths(self, parts: Partition, form: int = 0) -> Widths:
        """What axes of the inputs and of the outputs are longer in memory, in a form's order."""
        s = parts.subgraphs[self.subgraphs[0]]
        chosen = s.forms[form]

        def of(ops: Sequence[Operation], values: Sequence[str]) -> tuple[Width, ...]:
            rows = zip(ops, values, strict=True)
            return tuple(width(op.shape, parts.place(v))[1] for op, v in rows)

        return of(chosen.dag.inputs, chosen.inputs), of(chosen.dag.outputs, s.outputs)

    def is_placed(self, parts: Partition) -> bool:
        """Are operands parts of larger values, so that the task's own kernel does not serve?"""
        return any(w for own in self.widths(parts) for w in own)


def kernels(parts: Partition) -> tuple[DistinctKernel, ...]:
    """The kernels that the tasks of `tasks(parts)` need, in order of task and first occurrence."""
    found = []
    for k, t in enumerate(tasks(parts)):
        alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for n in t.subgraphs:
            s = parts.subgraphs[n]
            places = [parts.place(v) for v in (*s.inputs, *s.outputs)]
            key = tuple((p.rows, p.pitch * (p.rows > 1)) for p in places)
            alike.setdefault(key, []).append(n)
        found += [DistinctKernel(k, tuple(ns)) for ns in alike.values()]
    return tuple(found)


def evaluate_partition(
    parts: Partition, inputs: Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike]
) -> tuple[Array, ...]:
    """The graph's outputs, step by step through `ComputeDAG.evaluate`: the meaning, slow."""
    graph, places = parts.graph, parts.places
    given = [inputs[v] for v in graph.inputs] if isinstance(inputs, Mapping) else inputs
    values: dict[str, Array] = {**graph.constants, **check_inputs(graph, given)}

    def elements(v: str, t: int = 0) -> Array:
        """The value's rows; a view of the memory of its owner."""
        at = parts.place(v)
        row = graph.types[v].size // at.rows
        first = values[at.owner].reshape(-1)[at.start + t * at.stride :]
        apart = (at.pitch * first.itemsize, first.itemsize)
        return np.lib.stride_tricks.as_strided(first, (at.rows, row), apart)

    for s in parts.steps:
        if isinstance(s, Buffer):
            values[s.value] = np.empty(graph.types[s.value].shape, graph.types[s.value].dtype)
    for loop, own in groupby(parts.subgraphs, lambda s: s.loop):
        together = list(own)
        for t in range(together[0].times if loop else 1):
            for s in together:
                operands = {
                    op.name: np.ascontiguousarray(elements(v, t)).reshape(op.shape)
                    for op, v in zip(s.dag.inputs, s.inputs, strict=True)
                }
                results = s.dag.evaluate(operands)
                for v, name in zip(s.outputs, s.dag.output_names, strict=True):
                    if v in places:
                        elements(v, t)[...] = results[name].reshape(places[v].rows, -1)
                    else:
                        values[v] = results[name].reshape(graph.types[v].shape)
    return tuple(elements(v).reshape(graph.types[v].shape) for v in graph.outputs)
