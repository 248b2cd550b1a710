"""Operators that are written out as others: of old opsets, functions of the model or of ONNX.

In: a checked ModelProto. Out: a `Flat`: its nodes in an opset that `onnx.table.READERS` knows,
without large data being copied. What functions grow to is counted before they are written out. An
operator whose body has operators that are not supported stays, so that errors name that operator.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.order import in_order
from ansorlite.graph.onnx.read import MOST_NODES
from ansorlite.graph.onnx.table import READERS
from ansorlite.names import brief, first_line

OPSETS = (7, 28)
CONVERTED_TO = 8  # what models of older opsets are converted to
BODIES = 21  # an opset in which ONNX defines most of its activations by other operators
MOST_NESTED = 8  # levels of operators that ONNX defines by other operators
MOST_CALLS = 64  # functions that call functions
LIGHT_BYTES = 4096  # of an initializer that is copied with its data

Key = tuple[str, str]  # domain and name of an operator or a function


@dataclass(frozen=True)
class Flat:
    """The nodes of a network, of one opset, and its initializers.

    `origins` has the model's own node, as (name, operator), of nodes that are written out for it,
    by the nodes' results.
    """

    nodes: Sequence[Any]
    initializers: Sequence[Any]
    opset: int
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def flattened(onnx: Any, proto: Any, name: str) -> Flat:
    """The network of `proto` with operators that have readers, wherever ONNX can write it so."""
    opset = _opset(proto)
    old = 1 <= opset < OPSETS[0]
    if not old:
        _check_opset(opset, name)
    own = {(f.domain, f.name) for f in proto.functions}
    used = {(n.domain, n.op_type) for n in proto.graph.node}
    bodies = opset < BODIES and any(_has_body(onnx, *k, BODIES) for k in used)
    if not old and not bodies and not own and not any(_has_body(onnx, *k, opset) for k in used):
        return Flat(in_order(proto.graph.node), proto.graph.initializer, opset)
    _check_growth(proto, name)
    light, heavy = _light(onnx, proto)
    if fault := _fault(onnx, light):
        if own:
            raise ModelError(f"{name} is no valid ONNX model: {fault}")
        _check_opset(opset, name)  # the operators themselves are reported otherwise
        return Flat(in_order(proto.graph.node), proto.graph.initializer, opset)
    if old and not any(n.domain for n in proto.graph.node):
        light = _converted(onnx, _aligned(onnx, _typed(onnx, light)), CONVERTED_TO)
    opset = _opset(light)
    _check_opset(opset, name)
    if own:
        light = _inlined(onnx, light, [*own], opset)
    used = {(n.domain, n.op_type) for n in light.graph.node}
    if opset < BODIES and any(_has_body(onnx, *k, BODIES) for k in used):
        light = _converted(onnx, light, BODIES)
        opset = _opset(light)
    light = _with_bodies(onnx, light, opset, name)
    origins = _origins(proto.graph.node, light.graph.node)
    return Flat(light.graph.node, [*light.graph.initializer, *heavy], opset, origins)


def _origins(before: Sequence[Any], after: Sequence[Any]) -> dict[str, tuple[str, str]]:
    """For results of nodes that are not in `before`: the node there that they compute a part of.

    These are the nodes from which the results of that node follow, back to results of others.
    """
    own = {v for n in before for v in n.output if v}
    kept = {(n.op_type, tuple(n.output)) for n in before}
    producers = {v: n for n in after for v in n.output if v}
    found: dict[str, tuple[str, str]] = {}
    for k, n in enumerate(before):
        label = n.name or f"{n.op_type}_{k}", _called((n.domain, n.op_type))
        waiting = [v for v in n.output if v in producers]
        while waiting:
            v = waiting.pop()
            part = producers[v]
            if v in found or (part.op_type, tuple(part.output)) in kept:
                continue
            found[v] = label
            waiting += [u for u in part.input if u in producers and u not in own]
    return found


def _opset(proto: Any) -> int:
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    return int(versions[0]) if versions else 1


def _check_opset(version: int, name: str) -> None:
    if not OPSETS[0] <= version <= OPSETS[1]:
        raise ModelError(
            f"{name} uses opset {version}; supported are {OPSETS[0]} to {OPSETS[1]}: convert it "
            "with onnx.version_converter"
        )


def _check_growth(proto: Any, name: str) -> None:
    """Raise a ModelError for functions that call themselves, or grow beyond MOST_NODES."""
    called = {(f.domain, f.name): Counter(_calls(f)) for f in proto.functions}
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for root in called:
        path = [] if root in sizes else [root]
        waiting = [iter(called[k]) for k in path]
        while path:
            key = next((k for k in waiting[-1] if k in called and k not in sizes), None)
            if key is None:
                done = path.pop()
                waiting.pop()
                sizes[done] = _size(called[done], sizes)
                depths[done] = 1 + max((depths.get(k, 0) for k in called[done]), default=0)
                if depths[done] > MOST_CALLS:
                    raise ModelError(f"{name} has functions that call more than {MOST_CALLS} deep")
            elif key in path:
                raise ModelError(f"{name}: function {_called(key)} calls itself")
            else:
                path.append(key)
                waiting.append(iter(called[key]))
    used = Counter(_calls(proto.graph))
    total = _size(used, sizes)
    if total > MOST_NODES:
        largest = max(used, key=lambda k: sizes.get(k, 1) * used[k])
        raise ModelError(
            f"{name}: its functions written out, {_called(largest)} above all, are {total} nodes, "
            f"more than the limit of {MOST_NODES}"
        )


def _size(calls: Mapping[Key, int], sizes: Mapping[Key, int]) -> int:
    """Nodes of a part with these calls, functions written out."""
    return sum(sizes.get(k, 1) * count for k, count in calls.items())


def _calls(part: Any) -> Iterator[Key]:
    """The operator of every node of a graph or function, those of inner graphs too."""
    for node in part.node:
        yield node.domain, node.op_type
        for a in node.attribute:
            for graph in (*a.graphs, a.g):
                yield from _calls(graph)


def _called(key: Key) -> str:
    return brief(".".join(part for part in key if part and part != "ai.onnx"))


def _light(onnx: Any, proto: Any) -> tuple[Any, list[Any]]:
    """(a copy in which large initializers are inputs, those initializers); all have types."""
    light, graph = onnx.ModelProto(), proto.graph
    light.ir_version = proto.ir_version
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    light.graph.name = graph.name or "model"
    light.graph.node.extend(in_order(graph.node))
    light.graph.input.extend(graph.input)
    complete = [v for v in graph.output if v.type.tensor_type.HasField("shape")]
    light.graph.output.extend(complete)  # onnx's tools refuse others, and need none
    light.graph.value_info.extend(graph.value_info)
    typed = {v.name for v in (*graph.input, *graph.value_info)}
    heavy = []
    for tensor in graph.initializer:
        small = tensor.ByteSize() <= LIGHT_BYTES
        if small:
            light.graph.initializer.append(tensor)
        else:
            heavy.append(tensor)
        if tensor.name not in typed:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            (light.graph.value_info if small else light.graph.input).append(info)
    for sparse in graph.sparse_initializer:
        values = sparse.values
        info = onnx.helper.make_tensor_value_info(values.name, values.data_type, sparse.dims)
        light.graph.input.append(info)
    return light, heavy


def _fault(onnx: Any, proto: Any) -> str:
    """Why onnx's own tools, which are native code, may not be given `proto`, or nothing.

    Operators that ONNX has replaced by others do not make a model unsound, as its checker says.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.node[:]
    opset = _opset(proto)
    for node in proto.graph.node:
        schema = _schema(onnx, node.domain, node.op_type, opset)
        if schema is None or not schema.deprecated or not node.input:
            copy.graph.node.append(node)
        else:
            make, source = onnx.helper.make_node, node.input[:1]
            copy.graph.node.extend(make("Identity", source, [v]) for v in node.output if v)
    try:
        onnx.checker.check_model(copy)
    except Exception as error:  # its own kinds
        return first_line(error)
    return ""


def _schema(onnx: Any, domain: str, op: str, opset: int) -> Any:
    """What ONNX says about one of its operators, or None."""
    if domain not in ("", "ai.onnx"):
        return None
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _aligned(onnx: Any, proto: Any) -> Any:
    """Second operands that old opsets align by `axis` get axes of extent 1 behind theirs.

    onnx's converter adds one too many. Where a rank is not known the converter refuses.
    """
    typed = (*proto.graph.input, *proto.graph.value_info, *proto.graph.output)
    ranks = {
        v.name: len(v.type.tensor_type.shape.dim)
        for v in typed
        if v.type.tensor_type.HasField("shape")
    }
    ranks |= {t.name: len(t.dims) for t in proto.graph.initializer}
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    for k, node in enumerate(nodes):
        values = {a.name: a.i for a in node.attribute}
        axis = values.get("axis") if "broadcast" in values else None
        axis = 1 if node.op_type == "PRelu" else axis  # the slopes are those of channels
        if axis is not None and all(v in ranks for v in node.input):
            behind = ranks[node.input[0]] - axis - ranks[node.input[1]]
            if axis >= 0 and ranks[node.input[1]] > 0 and behind > 0:
                axes = [ranks[node.input[1]] + d for d in range(behind)]
                name = f"{node.input[1]}.aligned{k}"
                make = onnx.helper.make_node
                proto.graph.node.append(make("Unsqueeze", [node.input[1]], [name], axes=axes))
                node.input[1] = name
            kept = [a for a in node.attribute if a.name != "axis"]
            del node.attribute[:]
            node.attribute.extend(kept)
        proto.graph.node.append(node)
    return proto


def _converted(onnx: Any, proto: Any, opset: int) -> Any:
    """The model in another opset; unchanged where onnx cannot convert it."""
    try:
        return onnx.version_converter.convert_version(proto, opset)
    except Exception:  # its own kinds; the operators themselves are reported then
        return proto


def _inlined(onnx: Any, proto: Any, wanted: list[Key], opset: int) -> Any:
    """The model with these functions, its own or ONNX's, written out where onnx can."""
    from onnx import inliner

    own = onnx.ModelProto()
    own.CopyFrom(proto)
    _spell_out(onnx, own, wanted, opset)
    if all(v.name for v in own.graph.value_info):
        # For operands that are left out the inliner asks for the type of the value without a name.
        info = onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None)
        own.graph.value_info.append(info)
    try:
        return inliner.inline_selected_functions(own, wanted, inline_schema_functions=True)
    except Exception:  # its own kinds; the operators themselves are reported then
        return proto


def _with_bodies(onnx: Any, proto: Any, opset: int, name: str) -> Any:
    """The model with operators that ONNX defines by supported ones written out, kind by kind."""
    for key in sorted({(n.domain, n.op_type) for n in proto.graph.node}):
        if not _has_body(onnx, *key, opset):
            continue
        before = {(n.domain, n.op_type) for n in proto.graph.node}
        trial, wanted = proto, [key]
        for _ in range(MOST_NESTED):
            trial = _inlined(onnx, _typed(onnx, trial), wanted, opset)
            if len(trial.graph.node) > MOST_NODES:
                raise ModelError(
                    f"{name}: {_called(key)} written out makes more than {MOST_NODES} nodes"
                )
            new = {(n.domain, n.op_type) for n in trial.graph.node} - before
            wanted = sorted(k for k in new if _has_body(onnx, *k, opset))
            if not wanted:
                break
        after = {(n.domain, n.op_type) for n in trial.graph.node}
        if key not in after and all(k[1] in READERS for k in after - before):
            proto = trial
    return proto


def _typed(onnx: Any, proto: Any) -> Any:
    """The model with the types of its values, which bodies may depend on.

    onnx's converter drops those of initializers.
    """
    with suppress(Exception):  # its own kinds; bodies that need no types are found without
        proto = onnx.shape_inference.infer_shapes(proto)
    known = {v.name for v in (*proto.graph.input, *proto.graph.value_info)}
    make = onnx.helper.make_tensor_value_info
    for t in proto.graph.initializer:
        if t.name not in known:
            proto.graph.value_info.append(make(t.name, t.data_type, t.dims))
    return proto


def _spell_out(onnx: Any, proto: Any, ops: list[Key], opset: int) -> None:
    """Give nodes the default values of their attributes: bodies refer to attributes by name."""
    for node in proto.graph.node:
        if (node.domain, node.op_type) not in ops or node.domain not in ("", "ai.onnx"):
            continue
        given = {a.name for a in node.attribute}
        schema = _schema(onnx, node.domain, node.op_type, opset)
        if schema is None:
            continue
        defaults = {k: a.default_value for k, a in schema.attributes.items()}
        for key, value in defaults.items():
            if key not in given and value.type != onnx.AttributeProto.UNDEFINED:
                node.attribute.append(value)


def _has_body(onnx: Any, domain: str, op: str, opset: int) -> bool:
    """Whether an operator without a reader is defined by ONNX as a function of others."""
    schema = None if op in READERS else _schema(onnx, domain, op, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)
