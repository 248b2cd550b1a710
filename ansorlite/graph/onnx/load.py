"""Step `import`: an ONNX file, its bytes or a ModelProto -> `Graph`.

Shapes become static here: free axes need `dims`, `shapes` or `batch` (`onnx.shapes`). Everything
that depends on constants alone is computed on the way (shape arithmetic, expanded weights). The
readers of ONNX's operators are `onnx.table.READERS`. Raises ModelError with one line that says what
to do, whatever the file holds, and MissingExtra without the package onnx.
"""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, overload

import numpy as np

from ansorlite.errors import AnsorliteError, MissingExtra, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.onnx.context import LOWS, Context, OnnxNode, Unsupported
from ansorlite.graph.onnx.functions import flattened
from ansorlite.graph.onnx.masked import with_choices
from ansorlite.graph.onnx.node import check_operands, dtypes_of, read_node
from ansorlite.graph.onnx.order import used
from ansorlite.graph.onnx.read import array_of, dense_of, read_model
from ansorlite.graph.onnx.shapes import (
    Asked,
    Input,
    Shape,
    asked,
    declared_inputs,
    sizes,
    static_shapes,
)
from ansorlite.graph.onnx.table import READERS
from ansorlite.graph.sized import SizedNetwork
from ansorlite.graph.types import Array, TensorType
from ansorlite.names import brief, first_line, shown

MOST_CHARACTERS = 900  # of a message
MOST_LISTED = 12  # names in one message
Extents = int | Sequence[int]
Result = TypeVar("Result")
Shapes = Mapping[str, Sequence[int | None]]


@overload
def load_onnx(
    model: Any,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Shapes | None = None,
) -> Graph: ...


@overload
def load_onnx(
    model: Any,
    batch: Extents | None = None,
    dims: Mapping[str, Extents] | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> Graph | SizedNetwork: ...


def load_onnx(
    model: Any,
    batch: Extents | None = None,
    dims: Mapping[str, Extents] | None = None,
    shapes: Mapping[str, Any] | None = None,
) -> Graph | SizedNetwork:
    """The network in `model` (path, bytes or ModelProto), with static shapes.

    Example: `net = al.load_onnx("model.onnx", dims={"N": 1})`.

    `dims` gives extents of free axes by their name ('N') or place ('data.2'), `shapes` whole shapes
    of inputs (`{"x": (1, 3, 48, 192)}`), `batch` the free first extents of which nothing else is
    said. Axes of one name have one size. With a list anywhere (`dims={"w": [320, 640]}`) the result
    is a network of several sizes, one for each combination; `al.auto_schedule` makes one module of
    it. Raises SizesError, a ModelError, for sizes that are missing or contradict each other. Values
    beyond ANSORLITE_MAX_BYTES, by default half of the memory that this process may have, are
    refused before they are made.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    wanted, several = asked(batch, dims, shapes)
    return _told_in_one_line(lambda: _networks(onnx, model, wanted, several))


def _told_in_one_line(work: Callable[[], Result]) -> Result:
    """The result of `work`; whatever goes wrong is a short ModelError."""
    try:
        with np.errstate(all="ignore"):
            return work()
    except ModelError as error:
        if len(str(error)) <= MOST_CHARACTERS:
            raise
        raise ModelError(shown(str(error), MOST_CHARACTERS)) from error
    except AnsorliteError:
        raise
    except Exception as error:  # what a damaged file does to protobuf, to onnx and to numpy
        raise ModelError(f"the model is damaged: {first_line(error)}") from error


@dataclass(frozen=True)
class _Model:
    """A model as it was read; networks of every size share its arrays."""

    onnx: Any
    proto: Any
    name: str
    nodes: Sequence[OnnxNode]
    arrays: Sequence[tuple[str, Array]]
    inputs: Sequence[Input]
    opset: int

    def at(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """The network for inputs of these shapes."""
        given: dict[str, Shape] = {k: tuple(s) for k, s in shapes.items()}
        fixed = static_shapes(self.inputs, Asked(shapes=given), self.name)
        return _told_in_one_line(lambda: _network(self, fixed, False))


def _networks(
    onnx: Any, model: Any, wanted: Sequence[Asked], several: bool
) -> Graph | SizedNetwork:
    source = _read(onnx, model)
    found = sizes(source.inputs, wanted, source.name)
    as_declared = wanted == [Asked()]
    graphs = [_network(source, size.shapes, as_declared) for size in found]
    if not several:
        return graphs[0]
    return SizedNetwork(tuple(graphs), tuple(size.label for size in found), source.at)


def _read(onnx: Any, model: Any) -> _Model:
    proto, name = read_model(onnx, model)
    flat = flattened(onnx, proto, name)
    nodes = [read_node(onnx, n, k, flat.opset, flat.origins) for k, n in enumerate(flat.nodes)]
    _check_operators(nodes, name)
    initializers = {t.name for t in flat.initializers}
    needed = {*used(flat.nodes), *(o.name for o in proto.graph.output)}
    inputs = [v for v in proto.graph.input if v.name not in initializers]
    arrays: dict[str, Array] = {}
    for tensor in flat.initializers:
        if tensor.name in arrays:
            raise ModelError(f"{name} defines the initializer {brief(tensor.name)} twice")
        if tensor.name in needed:
            place = f"{name}: initializer {brief(tensor.name)}"
            arrays[tensor.name] = array_of(onnx, tensor, place)
    for sparse in proto.graph.sparse_initializer:
        key = sparse.values.name
        if key in needed and key not in arrays:
            arrays[key] = dense_of(onnx, sparse, f"{name}: initializer {brief(key)}")
    return _Model(
        onnx, proto, name, nodes, tuple(arrays.items()), declared_inputs(inputs), flat.opset
    )


def _network(source: _Model, shapes: Mapping[str, tuple[int, ...]], as_declared: bool) -> Graph:
    proto, name = source.proto, source.name
    builder = GraphBuilder(proto.graph.name or name, fold=True)
    context = Context(builder, dtypes_of(source.onnx))
    kinds = {v.name: v.type.tensor_type.elem_type for v in proto.graph.input}
    for value in source.inputs:
        dtype = context.dtypes.get(kinds[value.name], "undefined")
        context.values[value.name] = _input(context, value.name, shapes[value.name], dtype)
    outputs = [o.name for o in proto.graph.output]
    for tensor, array in source.arrays:
        context.values[tensor] = context.store(array, tensor)
    context.later = {v for n in source.nodes for v in n.outputs}
    context.inside = partial(_inside, source.onnx, source.opset)
    for node in with_choices(context, source.nodes, outputs):
        _convert(context, node)
    missing = [o for o in outputs if o not in context.values]
    if missing and missing[0] in context.absent:
        raise ModelError(f"{context.absent[missing[0]]}, which is an output of {name}")
    if missing or not outputs:
        listed = _listed([brief(o) for o in missing]) or "(none)"
        raise ModelError(f"{name}: no node computes the output {listed}")
    for o in outputs:
        if context.values[o] in context.sequences:
            raise ModelError(f"output {brief(o)} of {name} is a sequence: return its elements")
    for value in proto.graph.output:
        _check_declared(context, value, as_declared)
    return _as_stored(builder.finish([_output(context, o) for o in outputs]), context)


def _as_stored(graph: Graph, context: Context) -> Graph:
    """The graph with integers and `dequantize` for constants that were scaled while it was read."""
    found = {v: s for v, s in context.scaled.items() if v in graph.constants}
    if not found:
        return graph
    parts = dict.fromkeys(v for scaled in found.values() for v in scaled)
    constants = {v: a for v, a in graph.constants.items() if v not in found}
    constants |= {v: context.builder.constants[v] for v in parts}
    types = {v: t for v, t in graph.types.items()} | {v: context.type(v) for v in parts}
    taken, nodes = {n.name for n in graph.nodes}, list[Node]()
    for v, scaled in found.items():
        name = f"{v}.scaled"
        while name in taken:
            name += "_"
        taken.add(name)
        nodes.append(Node(name, "dequantize", scaled, (v,)))
    made = replace(graph, nodes=(*nodes, *graph.nodes), types=types, constants=constants)
    made.verify()
    return made


def _check_operators(nodes: Sequence[OnnxNode], name: str) -> None:
    """Raise a ModelError that lists every unsupported operator with the nodes that use it."""
    users: dict[str, list[str]] = {}
    for node in nodes:
        if node.op not in READERS:
            users.setdefault(node.op, []).append(brief(node.name))
    if users:
        found = [f"{brief(op)} (node {_listed(at)})" for op, at in sorted(users.items())]
        raise ModelError(
            f"{name} uses {len(users)} unsupported operator{'s' * (len(users) > 1)}: "
            + _listed(found, "; ")
        )


def _listed(names: Sequence[str], comma: str = ", ") -> str:
    more = [f"and {len(names) - MOST_LISTED} more"] if len(names) > MOST_LISTED else []
    return comma.join([*names[:MOST_LISTED], *more])


# ---- inputs and outputs -------------------------------------------------------------------------


def _input(context: Context, name: str, shape: Sequence[int], dtype: str) -> str:
    """An input of the graph, as operators read it.

    Inputs of bfloat16, which numpy lacks, are float32; a call takes arrays of ml_dtypes, too.
    """
    if dtype not in LOWS:
        return context.builder.input(name, shape, dtype)
    context.lows[name] = dtype
    value = context.builder.input(name, shape, "float16" if dtype == "float16" else "float32")
    if dtype == "bfloat16":
        return value
    return context.builder.emit("cast", [value], f"{name}.wide", dtype="float32")


def _output(context: Context, name: str) -> str:
    """An output of the graph, in the model's dtype; bfloat16 as float32 that bfloat16 has, too."""
    value, low = context.values[name], context.lows.get(name)
    if low == "float16":
        return context.builder.emit("cast", [value], f"{name}.float16", dtype="float16")
    return value if low is None else context.builder.emit("bfloat16", [value], f"{name}.bfloat16")


def _check_declared(context: Context, value: Any, fixed: bool) -> None:
    """A ModelError for an output of another dtype than the model declares, a warning of a shape.

    Exporters leave shapes behind that are not those of the results, and every runtime takes them.
    Extents are compared where the caller changed none (`fixed`).
    """
    kind = value.type.tensor_type
    got = context.type(context.values[value.name])
    got = TensorType(got.shape, context.declared(value.name))
    dtype = context.dtypes.get(kind.elem_type, "undefined")
    declared = [d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim]
    shape = ", ".join("?" if d is None else str(d) for d in declared)
    text = f"output {brief(value.name)} is {got}, the model declares {dtype}[{shape}]"
    if kind.elem_type and dtype != got.dtype:
        raise ModelError(f"{text}: correct the declaration or remove it")
    if kind.HasField("shape"):
        pairs = zip(declared, got.shape, strict=False)
        other = fixed and any(d is not None and d != n for d, n in pairs)
        if other or len(declared) != got.rank:
            warnings.warn(text, UserWarning, stacklevel=2)


# ---- nodes --------------------------------------------------------------------------------------


def _convert(context: Context, node: OnnxNode) -> None:
    """Emit `node` by its reader and remember its results; errors name the node."""
    context.node = node
    where = node.where
    for v in node.inputs:
        if v and v not in context.values:
            raise ModelError(_not_there(context, where, v))
    for v in node.outputs:
        if v in context.values:
            raise ModelError(f"{where} computes {brief(v)}, which is computed before")
    try:
        lows = check_operands(context, node)
        result = READERS[node.op](context, node)
    except Unsupported:
        raise
    except ModelError as error:
        text = _in_the_models_words(str(error), node)
        raise ModelError(text if text.startswith("node ") else f"{where}: {text}") from None
    except KeyError as error:
        raise ModelError(f"{where} has no attribute {error}") from error
    except MemoryError as error:
        raise ModelError(f"{where} needs more memory than there is") from error
    except Exception as error:  # what wrong attributes and constants do to a reader
        raise ModelError(f"{where} is malformed: {first_line(error)}") from error
    results = (result,) if isinstance(result, str) else result
    named = {v: r for v, r in zip(node.outputs, results, strict=False) if v}
    context.values.update(named)
    for v, r in named.items():
        if r in context.sequences:
            continue
        if lows.get(v) in LOWS and context.type(r).dtype == "float32":
            context.lows.setdefault(v, lows[v])
    for k, v in enumerate(node.outputs[len(results) :], len(results) + 1):
        context.absent[v] = f"{where}: its output {k}, {brief(v)}, is not supported"


def _inside(
    onnx: Any, opset: int, context: Context, graph: Any, given: Sequence[str]
) -> Sequence[str]:
    """The values of the outputs of a body whose inputs have the values `given`.

    The body sees the values outside of it; what it computes is seen inside alone.
    """
    outside, node, lows = context.values, context.node, context.lows
    if len(graph.input) != len(given):
        raise ModelError(f"its body takes {len(graph.input)} values, {len(given)} are given")
    context.values, context.lows = dict(outside), dict(lows)
    try:
        own = [v.name for v in (*graph.input, *graph.initializer)]
        own += [v for n in graph.node for v in n.output]
        for v in own:
            context.values.pop(v, None)
            context.lows.pop(v, None)
        context.values.update(zip((v.name for v in graph.input), given, strict=True))
        for tensor in graph.initializer:
            array = array_of(onnx, tensor, f"initializer {brief(tensor.name)} of a body")
            context.values[tensor.name] = context.store(array, tensor.name)
        for k, proto in enumerate(graph.node):
            inner = read_node(onnx, proto, k, opset)
            if inner.op not in READERS:
                raise Unsupported(
                    f"node {brief(inner.name)} is of the unsupported operator {brief(inner.op)}"
                )
            _convert(context, inner)
        missing = [o.name for o in graph.output if o.name not in context.values]
        if missing:
            raise ModelError(f"no node of its body computes {brief(missing[0])}")
        return [context.values[o.name] for o in graph.output]
    finally:
        context.values, context.node, context.lows = outside, node, lows


def _in_the_models_words(text: str, node: OnnxNode) -> str:
    """A message of the graph, which calls its operators otherwise than the model does."""
    own = rf"node {re.escape(brief(node.name))} \([a-z0-9_]+\)"
    return re.sub(own, lambda found: node.where, text)


def _not_there(context: Context, where: str, value: str) -> str:
    """Why a value that a node reads has not been computed."""
    if value in context.absent:
        return f"{context.absent[value]}, but {where} reads it"
    if value in context.later:
        return (
            f"{where} reads {brief(value)} before it is computed: what the node reads depends on "
            "its own result"
        )
    return f"{where} reads {brief(value)}, which no node computes for inference"
