"""Step `import`: an ONNX file, its bytes or a ModelProto -> `Graph`.

Shapes become static here: dynamic dimensions need `batch` or `dims`. Everything that depends on
constants alone is computed on the way (shape arithmetic, expanded weights). What the operators of
ONNX mean is in `onnx_table.IMPORTERS`. Raises ModelError with one line that says what to do, and
MissingExtra without the package onnx.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ansorlite.errors import MissingExtra, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.onnx_context import Context, OnnxNode
from ansorlite.graph.onnx_table import IMPORTERS

OPSETS = (7, 28)
CONVERTED_TO = 8  # what models of older opsets are converted to
BODIES = 21  # an opset in which ONNX defines most of its activations by other operators
MOST_NESTED = 8  # functions within functions that are written out
SPELLING = {"float": "float32", "double": "float64"}


def load_onnx(
    model: Any,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
) -> Graph:
    """The network in `model` (path, bytes or ModelProto), with static shapes.

    `batch` replaces the first extent of every input; `dims` gives extents of dynamic dimensions by
    their name ('N'), or by place ('data.2') where they have none.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    proto, name = _parse(onnx, model)
    proto = _converted(onnx, proto)
    opset = _opset(proto, name)
    proto, opset = _inlined(onnx, *_with_bodies(onnx, proto, opset))
    nodes = [_node(onnx, n, k, opset) for k, n in enumerate(proto.graph.node)]
    _check_operators(nodes, name)
    builder = GraphBuilder(proto.graph.name or name, fold=True)
    context = Context(builder, _dtypes(onnx))
    initializers = {t.name for t in proto.graph.initializer}
    _check_dims(proto, initializers, dims or {}, name)
    for value in proto.graph.input:
        if value.name not in initializers:
            shape, dtype = _input_type(onnx, value, batch, dims or {})
            context.values[value.name] = builder.input(value.name, shape, dtype)
    for tensor in proto.graph.initializer:
        context.values[tensor.name] = builder.constant(_array(onnx, tensor, name), tensor.name)
    if proto.graph.sparse_initializer:
        raise ModelError(f"{name} has sparse initializers, which are not supported: densify them")
    for node in nodes:
        _convert(context, node)
    outputs = [o.name for o in proto.graph.output]
    missing = [o for o in outputs if o not in context.values]
    if missing or not outputs:
        raise ModelError(f"{name}: no node computes the output {', '.join(missing) or '(none)'}")
    return builder.finish([context.values[o] for o in outputs])


def _parse(onnx: Any, model: Any) -> tuple[Any, str]:
    """The ModelProto and a name for messages."""
    if isinstance(model, onnx.ModelProto):
        return model, model.graph.name or "model"
    if isinstance(model, bytes | bytearray):
        name = f"model of {len(model)} bytes"
        load: Any = onnx.load_model_from_string
        source: Any = bytes(model)
    elif isinstance(model, str | os.PathLike):
        path = Path(model)
        name = str(path)
        if not path.is_file():
            raise ModelError(f"there is no file {path}: give the path of an ONNX model")
        load, source = onnx.load, str(path)
    else:
        raise ModelError(f"a {type(model).__name__} is no ONNX model: give a path or a ModelProto")
    try:
        proto = load(source)
    except Exception as error:  # protobuf and onnx raise their own kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{name} is no readable ONNX model: {reason}") from None
    if not proto.graph.node:
        raise ModelError(f"{name} is no ONNX model, or one without nodes")
    return proto, Path(name).stem if isinstance(model, str | os.PathLike) else name


def _converted(onnx: Any, proto: Any) -> Any:
    """A model of an opset older than ours in one of ours, where onnx can convert it."""
    old = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not old or not 1 <= old[0] < OPSETS[0] or any(n.domain for n in proto.graph.node):
        return proto
    try:
        return onnx.version_converter.convert_version(proto, CONVERTED_TO)
    except Exception:  # its own kinds; the opset is reported then
        return proto


def _opset(proto: Any, name: str) -> int:
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    version = int(versions[0]) if versions else 1
    if not OPSETS[0] <= version <= OPSETS[1]:
        raise ModelError(
            f"{name} uses opset {version}; supported are {OPSETS[0]} to {OPSETS[1]}: convert it "
            "with onnx.version_converter"
        )
    return version


def _with_bodies(onnx: Any, proto: Any, opset: int) -> tuple[Any, int]:
    """The model in a later opset if it has operators that ONNX defines by others of that one."""
    known = {(n.domain, n.op_type) for n in proto.graph.node}
    if opset >= BODIES or not any(_has_body(onnx, *k, BODIES) for k in known):
        return proto, opset
    try:
        return onnx.version_converter.convert_version(proto, BODIES), BODIES
    except Exception:  # its own kinds; the operators themselves are reported then
        return proto, opset


def _inlined(onnx: Any, proto: Any, opset: int) -> tuple[Any, int]:
    """The model with its own functions, and operators that ONNX defines by others, written out."""
    from onnx import inliner

    own = onnx.ModelProto()
    own.CopyFrom(proto)
    proto = own
    for _ in range(MOST_NESTED):
        local = [(f.domain, f.name) for f in proto.functions]
        known = {(n.domain, n.op_type) for n in proto.graph.node}
        defined = [k for k in sorted(known) if k not in local and _has_body(onnx, *k, opset)]
        if not local and not defined:
            break
        wanted = [*local, *defined]
        _spell_out(onnx, proto, defined, opset)
        try:
            proto = inliner.inline_selected_functions(proto, wanted, inline_schema_functions=True)
        except (RuntimeError, TypeError, ValueError):
            break  # the operators themselves are reported then
    return proto, opset


def _spell_out(onnx: Any, proto: Any, ops: list[tuple[str, str]], opset: int) -> None:
    """Give nodes the default values of their attributes: bodies refer to attributes by name."""
    for node in proto.graph.node:
        if (node.domain, node.op_type) not in ops:
            continue
        given = {a.name for a in node.attribute}
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        defaults = {k: a.default_value for k, a in schema.attributes.items()}
        for key, value in defaults.items():
            if key not in given and value.type != onnx.AttributeProto.UNDEFINED:
                node.attribute.append(value)


def _has_body(onnx: Any, domain: str, op: str, opset: int) -> bool:
    """Whether an operator that has no importer is a function of others."""
    if domain not in ("", "ai.onnx") or op in IMPORTERS:
        return False
    try:
        schema = onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _node(onnx: Any, proto: Any, position: int, opset: int) -> OnnxNode:
    attrs: dict[str, Any] = {}
    for a in proto.attribute:
        value = onnx.helper.get_attribute_value(a)
        if isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value)
        elif isinstance(value, bytes):
            value = value.decode()
        attrs[a.name] = value
    default = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}."
    op = default + proto.op_type
    name = proto.name or f"{proto.op_type}_{position}"
    return OnnxNode(name, op, tuple(proto.input), tuple(proto.output), attrs, opset)


def _check_operators(nodes: list[OnnxNode], name: str) -> None:
    """Raise a ModelError that lists every unsupported operator with the nodes that use it."""
    users: dict[str, list[str]] = {}
    for node in nodes:
        if node.op not in IMPORTERS:
            users.setdefault(node.op, []).append(node.name)
    if users:
        listed = "; ".join(f"{op} (node {', '.join(at)})" for op, at in sorted(users.items()))
        raise ModelError(
            f"{name} uses {len(users)} unsupported operator{'s' * (len(users) > 1)}: {listed}"
        )


def _dtypes(onnx: Any) -> dict[int, str]:
    """numpy's dtype names by the numbers of TensorProto."""
    spelled = {k: v.lower() for v, k in onnx.TensorProto.DataType.items()}
    return {k: SPELLING.get(v, v) for k, v in spelled.items()}


def _array(onnx: Any, tensor: Any, name: str) -> Any:
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor))
    except Exception as error:  # data missing or of the wrong size
        raise ModelError(f"{name}: initializer {tensor.name} is damaged: {error}") from None


def _symbols(value: Any) -> list[tuple[str, int]]:
    """(name, fixed extent or 0) per dimension; unnamed dynamic ones are called input.axis."""
    return [
        (d.dim_param or f"{value.name}.{k}", d.dim_value if d.dim_value > 0 else 0)
        for k, d in enumerate(value.type.tensor_type.shape.dim)
    ]


def _check_dims(proto: Any, known: set[str], dims: Mapping[str, int], name: str) -> None:
    """Raise a ModelError for a name in `dims` that no dynamic dimension has."""
    inputs = [v for v in proto.graph.input if v.name not in known]
    symbols = {s for v in inputs for s, fixed in _symbols(v) if not fixed}
    unknown = [s for s in dims if s not in symbols]
    if unknown:
        listed = ", ".join(sorted(symbols)) or "none"
        raise ModelError(f"dims names {unknown[0]!r}; the dynamic dimensions of {name}: {listed}")


def _input_type(
    onnx: Any, value: Any, batch: int | None, dims: Mapping[str, int]
) -> tuple[list[int], str]:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        raise ModelError(f"input {value.name} has no tensor shape: export the model with shapes")
    shape: list[int] = []
    for axis, (symbol, fixed) in enumerate(_symbols(value)):
        if axis == 0 and batch is not None:
            shape.append(int(batch))
        elif fixed or symbol in dims:
            shape.append(int(fixed or dims[symbol]))
        else:
            hint = " or batch=1" * (axis == 0)
            raise ModelError(
                f"input {value.name} has the dynamic dimension {axis} ({symbol}): "
                f"pass dims={{{symbol!r}: 1}}{hint}"
            )
        if shape[-1] < 1:
            raise ModelError(f"dimension {axis} of input {value.name} is {shape[-1]}, must be >= 1")
    return shape, _dtypes(onnx).get(tensor.elem_type, "undefined")


def _convert(context: Context, node: OnnxNode) -> None:
    """Emit `node` by its converter and remember its results; errors name the node."""
    context.node = node
    where = f"node {node.name} ({node.op})"
    for v in node.inputs:
        if v and v not in context.values:
            raise ModelError(f"{where} reads {v}, which no node computes for inference")
    try:
        result = IMPORTERS[node.op](context, node)
    except ModelError as error:
        text = str(error)
        raise ModelError(text if text.startswith("node ") else f"{where}: {text}") from None
    except KeyError as error:
        raise ModelError(f"{where} has no attribute {error}") from None
    except (IndexError, ValueError, ZeroDivisionError) as error:
        raise ModelError(f"{where} is malformed: {error}") from None
    results = (result,) if isinstance(result, str) else result
    context.values.update((v, r) for v, r in zip(node.outputs, results, strict=False) if v)
