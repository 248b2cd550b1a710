"""Step `partition`: an optimised `Graph` -> kernels and views in the order in which they run.

In: a `Graph` after `passes.optimize`. Out: a `Partition`; its `Subgraph`s each have a `ComputeDAG`,
and `tasks` collects equal ones into what there is to tune, with weights. Buffers are the graph's
values: a subgraph reads and writes row-major views of them, a `View` is another name and shape for
the same elements (no copy).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.graph.fuse import fuse
from ansorlite.graph.indices import IndexCheck, index_checks
from ansorlite.graph.ir import Graph, check_inputs
from ansorlite.graph.lower import Lowered, lower, other_forms
from ansorlite.graph.types import Array
from ansorlite.names import shown
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import Operation


@dataclass(frozen=True)
class Subgraph:
    """One kernel: `inputs` are graph values in the order of `dag.inputs`, `outputs` likewise.

    The shape of a placeholder or output may be another row-major view of the value's shape.
    `others` compute the same in other forms, such as Winograd's, from the same values.
    """

    name: str
    dag: ComputeDAG
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]
    others: tuple[Lowered, ...] = ()

    @property
    def forms(self) -> tuple[Lowered, ...]:
        """All forms, the plain one first."""
        return (Lowered(self.dag, self.inputs), *self.others)


@dataclass(frozen=True)
class View:
    """`result` has the elements of `source` in the graph's shape of `result`; nothing moves."""

    source: str
    result: str


Step = Subgraph | View


@dataclass(frozen=True)
class Partition:
    """`steps` in running order. Graph outputs are results of steps, graph inputs or constants."""

    graph: Graph
    steps: tuple[Step, ...]

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        return tuple(s for s in self.steps if isinstance(s, Subgraph))

    @property
    def aliases(self) -> dict[str, str]:
        """For each view the value that owns its elements."""
        owners: dict[str, str] = {}
        for s in self.steps:
            if isinstance(s, View):
                owners[s.result] = owners.get(s.source, s.source)
        return owners

    @property
    def checks(self) -> tuple[IndexCheck, ...]:
        """Checks of indices that are known at run time only."""
        return index_checks(self.graph, self.aliases)

    @property
    def flop(self) -> float:
        return sum(s.dag.flop for s in self.subgraphs)

    def __str__(self) -> str:
        types, lines = self.graph.types, [f"partition of {shown(self.graph.name)}:"]
        for s in self.steps:
            if isinstance(s, View):
                view = f"{shown(s.result)} = view {shown(s.source)}"
                lines.append(f"    {view}  # {types[s.result]}")
            else:
                read, written = (", ".join(map(shown, v)) for v in (s.inputs, s.outputs))
                call = f"{written} = {s.name}({read})"
                lines.append(f"    {call}  # {types[s.outputs[0]]}")
        return "\n".join([*lines, f"    return {', '.join(map(shown, self.graph.outputs))}", ""])

    def verify(self) -> None:
        """Raise a ModelError unless every step reads computed values of matching size."""
        ready = {*self.graph.inputs, *self.graph.constants}
        for s in self.steps:
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
            ready.update(outputs)
        _ = self.checks  # constant indices
        missing = [v for v in self.graph.outputs if v not in ready]
        if missing:
            raise ModelError(f"output {missing[0]} is computed by no step")


def partition(graph: Graph) -> Partition:
    """Cut an optimised graph into kernels; a ModelError tells if the passes are still to be run."""
    order = {n.output: k for k, n in enumerate(graph.nodes)}
    steps: list[tuple[int, Step]] = [
        (order[n.output], View(n.inputs[0], n.output))
        for n in graph.nodes
        if n.operator.kind == "view"
    ]
    for k, group in enumerate(fuse(graph)):
        dag, inputs = lower(graph, group)
        name = "_".join([*(n.op for n in group.nodes), str(k)])
        nodes = tuple(n.name for n in group.nodes)
        made = Subgraph(name, dag, inputs, (group.output,), nodes, other_forms(graph, group))
        steps.append((order[group.output], made))
    result = Partition(graph, tuple(s for _, s in sorted(steps, key=lambda item: item[0])))
    result.verify()
    return result


class DistinctSubgraph(NamedTuple):
    """A distinct computation of a network: how often it occurs, and as which subgraphs."""

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
    firsts = [(parts.subgraphs[ks[0]], ks) for ks in found.values()]
    return tuple(
        DistinctSubgraph(s.dag, len(ks), tuple(ks), tuple(f.dag for f in s.others))
        for s, ks in firsts
    )


def evaluate_partition(
    parts: Partition, inputs: Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike]
) -> tuple[Array, ...]:
    """The graph's outputs, step by step through `ComputeDAG.evaluate`: the meaning, slow."""
    graph = parts.graph
    given = [inputs[v] for v in graph.inputs] if isinstance(inputs, Mapping) else inputs
    values: dict[str, Array] = {**graph.constants, **check_inputs(graph, given)}
    for s in parts.steps:
        if isinstance(s, View):
            values[s.result] = values[s.source].reshape(graph.types[s.result].shape)
            continue
        operands = {
            op.name: np.ascontiguousarray(values[v]).reshape(op.shape)
            for op, v in zip(s.dag.inputs, s.inputs, strict=True)
        }
        results = s.dag.evaluate(operands)
        for v, name in zip(s.outputs, s.dag.output_names, strict=True):
            values[v] = results[name].reshape(graph.types[v].shape)
    return tuple(values[v] for v in graph.outputs)
