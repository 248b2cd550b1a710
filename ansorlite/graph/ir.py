"""`Graph`: a network as a list of operator nodes over named values with static types.

In: `GraphBuilder` (import, workloads, passes). Out: passes and partition. Frozen; `str()` is
deterministic and reads like Python; `verify` states what is legal; `evaluate` is the meaning.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Op
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.types import Array, Attr, Attrs, TensorType, type_of
from ansorlite.names import brief, first_line


@dataclass(frozen=True)
class Node:
    """outputs = op(inputs, attrs); every operator of the table has exactly one output."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Attrs = field(default_factory=dict)

    @property
    def output(self) -> str:
        return self.outputs[0]

    @property
    def operator(self) -> Op:
        return OPERATORS[self.op]

    def __str__(self) -> str:
        args = [*map(brief, self.inputs), *(f"{k}={_show(v)}" for k, v in self.attrs.items())]
        return f"{', '.join(map(brief, self.outputs))} = {self.op}({', '.join(args)})"


def _show(value: Attr) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; `types` has every value, `constants` the known ones."""

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType]
    constants: Mapping[str, Array]

    def __str__(self) -> str:
        head = ", ".join(f"{brief(v)}: {self.types[v]}" for v in self.inputs)
        lines = [f"graph {brief(self.name)}({head}):"]
        lines += [f"    {brief(v)} = constant {self.types[v]}" for v in self.constants]
        for n in self.nodes:
            lines.append(f"    {n}  # {self.types[n.output]}")
            for step in (v for v in n.attrs.values() if isinstance(v, Step)):
                lines += ["    " + line for line in str(step.graph).splitlines()]
        return "\n".join([*lines, f"    return {', '.join(map(brief, self.outputs))}", ""])

    @property
    def producers(self) -> dict[str, Node]:
        """The node of every value that a node computes."""
        return {v: n for n in self.nodes for v in n.outputs}

    @property
    def consumers(self) -> dict[str, list[Node]]:
        """The nodes that read a value, each once; values that nobody reads have no entry."""
        readers: dict[str, list[Node]] = {}
        for n in self.nodes:
            for v in dict.fromkeys(n.inputs):
                readers.setdefault(v, []).append(n)
        return readers

    def bound(self, module: Any) -> Any:
        """The compiled network as its users call it; a graph of another framework's module adds
        that module's way of being called.
        """
        return module

    def verify(self) -> None:
        """Raise a ModelError unless names are unique, values typed and defined before use."""
        known = [*self.inputs, *self.constants]
        for name, array in self.constants.items():
            if type_of(array) != self.types[name]:
                raise ModelError(
                    f"constant {brief(name)} is {type_of(array)}, declared {self.types[name]}"
                )
        seen, names = set(known), set()
        if len(seen) != len(known):
            raise ModelError(f"graph {brief(self.name)} defines an input or constant twice")
        for n in self.nodes:
            missing = [v for v in n.inputs if v not in seen]
            if missing:
                raise ModelError(
                    f"node {brief(n.name)} ({n.op}) reads {brief(missing[0])} before it is computed"
                )
            if n.name in names or len(n.outputs) != 1 or n.output in seen:
                raise ModelError(f"node {brief(n.name)} ({n.op}) or its value is defined twice")
            inferred = infer(n.op, n.name, n.attrs, [self.types[v] for v in n.inputs])
            if inferred != self.types[n.output]:
                raise ModelError(
                    f"{brief(n.output)} of node {brief(n.name)} ({n.op}) is {inferred}, "
                    f"declared {self.types[n.output]}"
                )
            names.add(n.name)
            seen.add(n.output)
        for v in self.outputs:
            if v not in seen:
                raise ModelError(f"output {brief(v)} of graph {brief(self.name)} is never computed")


@dataclass(frozen=True, eq=False)
class Step:
    """A graph as the attribute `body` of a loop; equal to itself alone."""

    graph: Graph

    def __repr__(self) -> str:
        return brief(self.graph.name)

    @property
    def takes(self) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[v] for v in self.graph.inputs)

    @property
    def gives(self) -> tuple[TensorType, ...]:
        return tuple(self.graph.types[v] for v in self.graph.outputs)

    @property
    def work(self) -> int:
        types = self.graph.types
        return sum(
            n.operator.work(n.attrs, tuple(types[v] for v in n.inputs), types[n.output])
            for n in self.graph.nodes
        )

    def run(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        return evaluate(self.graph, arrays)


def infer(op: str, name: str, attrs: Attrs, types: Sequence[TensorType]) -> TensorType:
    """The type of the node's result; a ModelError names the node."""
    operator = OPERATORS.get(op)
    if operator is None:
        raise ModelError(f"node {brief(name)}: {op} is no operator of graph/ops")
    low, high = operator.arity
    if not low <= len(types) <= high:
        raise ModelError(
            f"node {brief(name)} ({op}) has {len(types)} operands, not {low} to {high}"
        )
    if set(attrs) != set(operator.attrs):
        given, wanted = ", ".join(sorted(attrs)), ", ".join(sorted(operator.attrs))
        raise ModelError(
            f"node {brief(name)} ({op}) has attributes {given or 'none'}, not {wanted or 'none'}"
        )
    try:
        result = operator.shape(attrs, tuple(types))
        if any(n < 0 for n in result.shape):
            raise ModelError(f"the result {result} has a negative extent")
    except ModelError as error:
        raise ModelError(f"node {brief(name)} ({op}): {error}") from None
    return result


def check_inputs(graph: Graph, inputs: Sequence[npt.ArrayLike]) -> dict[str, Array]:
    """The arrays by input name; a ModelError names the input whose shape or dtype is wrong."""
    if len(inputs) != len(graph.inputs):
        raise ModelError(
            f"graph {brief(graph.name)} takes {len(graph.inputs)} inputs "
            f"({brief(', '.join(graph.inputs))}), got {len(inputs)}"
        )
    arrays = {}
    for name, value in zip(graph.inputs, inputs, strict=True):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:  # rows of different lengths, above all
            raise ModelError(f"input {brief(name)} is no array: {first_line(error)}") from None
        if array.dtype.name == "bfloat16" and graph.types[name].dtype == "float32":
            array = array.astype(np.float32)  # numbers of ml_dtypes
        if type_of(array) != graph.types[name]:
            raise ModelError(
                f"input {brief(name)} is {type_of(array)}, expected {graph.types[name]}"
            )
        arrays[name] = array
    return arrays


def evaluate(
    graph: Graph,
    inputs: Sequence[npt.ArrayLike] | Mapping[str, npt.ArrayLike],
    see: Callable[[str, Array], None] = lambda value, array: None,
) -> tuple[Array, ...]:
    """The outputs for arrays in input order, or by input name, by each operator's `meaning`.

    `see` is called with the name and the array of each input and of each value that a node
    computes.
    """
    if isinstance(inputs, Mapping):
        missing = [v for v in graph.inputs if v not in inputs]
        if missing:
            raise ModelError(
                f"no value is given for input {brief(missing[0])} of graph {brief(graph.name)}"
            )
        inputs = [inputs[v] for v in graph.inputs]
    values: dict[str, Array] = {**graph.constants, **check_inputs(graph, inputs)}
    last_use = {v: k for k, n in enumerate(graph.nodes) for v in n.inputs}
    for v in graph.inputs:
        see(v, values[v])
    for k, node in enumerate(graph.nodes):
        arrays = tuple(values[v] for v in node.inputs)
        with np.errstate(all="ignore"):  # infinities and NaN are values as any other
            values[node.output] = node.operator.meaning(node.attrs, arrays)
        see(node.output, values[node.output])
        for v in dict.fromkeys(node.inputs):
            if last_use[v] == k and v not in graph.outputs:
                del values[v]
    return tuple(values[v] for v in graph.outputs)
