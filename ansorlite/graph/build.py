"""`GraphBuilder`: the one place where nodes are appended, named and typed.

In: operands by value name, attributes. Out: the name of the result, at last a verified `Graph`.
Used by import, workloads and passes. Names that are taken get a number; nodes whose operands are
all constant are computed at once where the caller asks for it.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np

from ansorlite.errors import AnsorliteError, ModelError
from ansorlite.graph.ir import Graph, Node, infer
from ansorlite.graph.limits import Room, peak_bytes, size_bytes
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.types import DTYPES, Array, Attr, TensorType, type_of
from ansorlite.names import brief, first_line


class GraphBuilder:
    """Collects nodes; `fold=True` evaluates nodes of constants instead of emitting them.

    A value larger than `graph.limits` allows raises a ModelError before memory is used.

    Example: `b = GraphBuilder("net")`, `x = b.input("x", (1, 8))`, `y = b.emit("relu", [x])`,
    `graph = b.finish([y])`.
    """

    def __init__(self, name: str, fold: bool = False) -> None:
        self.name, self.fold = name, fold
        self.inputs: list[str] = []
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, Array] = {}
        self.producers: dict[str, Node] = {}
        self.room = Room()
        self._node_names: set[str] = set()
        self._last: dict[str, int] = {}  # numbers that names were given
        self._last_node: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """`name`, or `name.1`, `name.2`, ... where that value exists already."""
        return _free(name, self.types, self._last)

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32") -> str:
        if dtype not in DTYPES:
            raise ModelError(f"input {brief(name)} has dtype {dtype}: convert the model to float32")
        if name in self.types:
            raise ModelError(f"input {brief(name)} is defined twice")
        self.types[name] = TensorType(tuple(int(n) for n in shape), dtype)
        self.room.value(f"input {brief(name)}", self.types[name])
        self.inputs.append(name)
        return name

    def constant(self, array: Array, name: str = "const", computed: bool = False) -> str:
        """Add a constant, part of the network's data or computed, and return its value name."""
        array = np.asarray(array)
        if str(array.dtype) not in DTYPES:
            raise ModelError(
                f"constant {brief(name)} has dtype {array.dtype}: convert the model to float32"
            )
        self.room.keep(brief(name), array, computed)
        value = self.unique(name)
        self.constants[value], self.types[value] = array, type_of(array)
        return value

    def has_computed_indices(self, node: Node) -> bool:
        """Whether a node takes elements at indices that are known at run time only."""
        rows = node.operator.indices
        types = tuple(self.types[v] for v in node.inputs)
        found = () if rows is None else rows(node.attrs, types)
        return any(node.inputs[k] not in self.constants for k, _, _ in found)

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        name: str = "",
        node: str = "",
        **attrs: Attr,
    ) -> str:
        """Append op(inputs, attrs) and return the name of its value.

        `name` is the value's wanted name (default: the operator's), `node` the node's (default:
        the value's). Raises ModelError where the operands do not fit.
        """
        value = self.unique(name or op)
        label = node or value
        for v in inputs:
            if v not in self.types:
                raise ModelError(
                    f"node {brief(label)} ({op}) reads {brief(v)}, which nothing computes"
                )
        types = tuple(self.types[v] for v in inputs)
        result = infer(op, label, attrs, types)
        known = self.fold and all(v in self.constants for v in inputs)
        self._check_room(f"node {brief(label)} ({op})", op, attrs, types, result, known)
        if known:
            arrays = tuple(self.constants[v] for v in inputs)
            array = _computed(f"node {brief(label)} ({op})", op, attrs, arrays)
            self.room.keep(f"node {brief(label)} ({op})", array, computed=True)
            self.constants[value], self.types[value] = array, result
            return value
        taken = _free(label, self._node_names, self._last_node)
        self._node_names.add(taken)
        self.types[value] = result
        self.producers[value] = Node(taken, op, tuple(inputs), (value,), dict(attrs))
        return value

    def adopt(self, node: Node, graph: Graph) -> bool:
        """Append a node of a verified graph as it is, which takes a tenth of the time of `emit`.

        False, and nothing is done, where that is not the same: its operands, or what its names
        stand for, are others here, or its value is to be computed.
        """
        types, known = self.types, graph.types
        if node.output in types or node.name in self._node_names or len(node.outputs) != 1:
            return False
        if any(v not in types or types[v] != known[v] for v in node.inputs):
            return False
        if self.fold and all(v in self.constants for v in node.inputs):
            return False
        self._node_names.add(node.name)
        types[node.output] = known[node.output]
        self.producers[node.output] = node
        return True

    def _check_room(
        self,
        what: str,
        op: str,
        attrs: Mapping[str, Attr],
        types: tuple[TensorType, ...],
        result: TensorType,
        known: bool,
    ) -> None:
        """Raise a ModelError where a result, or what computing it takes, is beyond the limits."""
        operator = OPERATORS[op]
        self.room.value(f"the result of {what}", result)
        if known:
            self.room.another(what, result)
            self.room.compute(what, operator.work(attrs, types, result))
        if operator.padded is not None:
            self.room.value(f"the padded data of {what}", operator.padded(attrs, types[0]))
        if operator.free_window:
            self.room.windows(what, operator.work(attrs, types, result))

    def shape(self, value: str) -> tuple[int, ...]:
        return self.types[value].shape

    def finish(self, outputs: Sequence[str]) -> Graph:
        """The verified graph of the nodes that the outputs depend on, and all inputs."""
        used, nodes = set(outputs), list[Node]()
        for node in reversed(self.producers.values()):
            if node.output in used:
                nodes.append(node)
                used.update(node.inputs)
        constants = {v: a for v, a in self.constants.items() if v in used}
        kept = [*self.inputs, *constants, *(n.output for n in reversed(nodes))]
        graph = Graph(
            self.name,
            tuple(reversed(nodes)),
            tuple(self.inputs),
            tuple(outputs),
            {v: self.types[v] for v in kept},
            constants,
        )
        graph.verify()
        self.room.fits(f"network {brief(graph.name)}", _most_at_once(graph))
        return graph


def _free(name: str, taken: Container[str], last: dict[str, int]) -> str:
    """`name`, or `name.1`, `name.2`, ... behind the last number that was given."""
    candidate, k = name, last.get(name, 0)
    while candidate in taken:
        k += 1
        candidate = f"{name}.{k}"
    last[name] = k
    return candidate


def _computed(what: str, op: str, attrs: Mapping[str, Attr], arrays: tuple[Array, ...]) -> Array:
    """The value of a node of constants; a ModelError names the node."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(OPERATORS[op].meaning(attrs, arrays))
    except AnsorliteError:
        raise
    except MemoryError:
        raise ModelError(f"{what} needs more memory than there is") from None
    except Exception as error:  # numpy's own kinds
        raise ModelError(f"{what} cannot be computed: {first_line(error)}") from error


def _most_at_once(graph: Graph) -> int:
    """Bytes of all constants and of the activations that live at the same time."""
    last = {v: k for k, n in enumerate(graph.nodes) for v in n.inputs}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    made = [(v, -1) for v in graph.inputs] + [(n.output, k) for k, n in enumerate(graph.nodes)]
    spans = [(size_bytes(graph.types[v]), k, last.get(v, k)) for v, k in made]
    room = Room()
    for name, array in graph.constants.items():
        room.keep(brief(name), array, computed=False)
    return peak_bytes(spans) + room.given


def start(graph: Graph, fold: bool = False) -> GraphBuilder:
    """A builder with the inputs and constants of `graph` and none of its nodes."""
    builder = GraphBuilder(graph.name, fold)
    for v in graph.inputs:
        builder.input(v, graph.types[v].shape, graph.types[v].dtype)
    for v, array in graph.constants.items():
        builder.constant(array, v)
    return builder


def copy(builder: GraphBuilder, node: Node, names: dict[str, str]) -> None:
    """Append `node` with its operands renamed by `names`, and record its value's new name."""
    inputs = renamed(node.inputs, names)
    names[node.output] = builder.emit(node.op, inputs, node.output, node.name, **node.attrs)


def renamed(values: Iterable[str], names: dict[str, str]) -> list[str]:
    return [names.get(v, v) for v in values]


class Rewriter:
    """The argument of a rewrite rule: the new graph so far, and how often its values are used."""

    def __init__(self, graph: Graph) -> None:
        self.builder = start(graph, fold=True)
        self.uses: dict[str, int] = {}
        for v in [*graph.outputs, *(v for n in graph.nodes for v in n.inputs)]:
            self.uses[v] = self.uses.get(v, 0) + 1

    def emit(self, op: str, inputs: Sequence[str], name: str = "", **attrs: Attr) -> str:
        return self.builder.emit(op, inputs, name, "", **attrs)

    def constant(self, array: Array, name: str = "const") -> str:
        return self.builder.constant(array, name)

    def known(self, value: str) -> Array | None:
        return self.builder.constants.get(value)

    def shape(self, value: str) -> tuple[int, ...]:
        return self.builder.types[value].shape

    def size(self, value: str) -> int:
        return self.builder.types[value].size

    def type(self, value: str) -> TensorType:
        return self.builder.types[value]

    def dtype(self, value: str) -> str:
        return self.builder.types[value].dtype

    def sole(self, value: str, *ops: str) -> Node | None:
        """The node that computes `value`, if nothing else reads `value`; one of `ops`, if given."""
        node = self.builder.producers.get(value)
        if node is None or self.uses.get(value, 1) != 1:
            return None
        return node if not ops or node.op in ops else None


Rule = Callable[[Rewriter, Node, list[str]], str | None]


def rewrite(graph: Graph, rule: Rule) -> Graph:
    """Rebuild `graph` node by node, in order; nodes that became dead are dropped.

    `rule(rewriter, node, operands)` gets the operands' new names and returns the new name of the
    node's value, or None to keep the node. Nodes of constants are computed.
    """
    rewriter, names = Rewriter(graph), dict[str, str]()
    adopted = 0
    for node in graph.nodes:
        operands = renamed(node.inputs, names)
        value = rule(rewriter, node, operands)
        if value is not None:
            names[node.output] = value
        elif operands == [*node.inputs] and rewriter.builder.adopt(node, graph):
            names[node.output] = node.output
            adopted += 1
        else:
            copy(rewriter.builder, node, names)
        if names[node.output] != node.output:
            uses = rewriter.uses.get(node.output, 0)
            rewriter.uses[names[node.output]] = rewriter.uses.get(names[node.output], 0) + uses
    if adopted == len(graph.nodes) and not _has_unused(graph):
        return graph
    return rewriter.builder.finish(renamed(graph.outputs, names))


def _has_unused(graph: Graph) -> bool:
    """Is there a node or a constant that no output depends on?"""
    used = set(graph.outputs)
    for node in reversed(graph.nodes):
        if not used.intersection(node.outputs):
            return True
        used.update(node.inputs)
    return any(v not in used for v in graph.constants)
