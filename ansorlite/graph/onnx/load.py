"""Step `import`: an ONNX file, its bytes or a ModelProto -> `Graph`.

Shapes become static here: dynamic dimensions need `batch` or `dims`. Everything that depends on
constants alone is computed on the way (shape arithmetic, expanded weights). The readers of
ONNX's operators are `onnx.table.READERS`. Raises ModelError with one line that says what to do,
whatever the file holds, and MissingExtra without the package onnx.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import AnsorliteError, MissingExtra, ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph
from ansorlite.graph.onnx.context import Context, OnnxNode
from ansorlite.graph.onnx.functions import flattened
from ansorlite.graph.onnx.node import check_operands, dtypes_of, read_node
from ansorlite.graph.onnx.order import used
from ansorlite.graph.onnx.read import array_of, dense_of, read_model
from ansorlite.graph.onnx.table import READERS
from ansorlite.names import brief, first_line, shown

MOST_CHARACTERS = 900  # of a message
MOST_LISTED = 12  # names in one message
Dims = Mapping[str, int]


def load_onnx(model: Any, batch: int | None = None, dims: Dims | None = None) -> Graph:
    """The network in `model` (path, bytes or ModelProto), with static shapes.

    Example: `net = al.load_onnx("model.onnx", batch=1)`.

    `batch` replaces the first extent of every input; `dims` gives extents of dynamic dimensions by
    their name ('N'), or by place ('data.2'), which comes before a name. Values beyond
    ANSORLITE_MAX_BYTES, by default half of the memory that this process may have, are refused
    before they are made.
    """
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    batch, dims = _given(batch, dims)
    try:
        with np.errstate(all="ignore"):
            return _network(onnx, model, batch, dims)
    except ModelError as error:
        if len(str(error)) <= MOST_CHARACTERS:
            raise
        raise ModelError(shown(str(error), MOST_CHARACTERS)) from error
    except AnsorliteError:
        raise
    except Exception as error:  # what a damaged file does to protobuf, to onnx and to numpy
        raise ModelError(f"the model is damaged: {first_line(error)}") from error


def _network(onnx: Any, model: Any, batch: int | None, dims: Dims) -> Graph:
    proto, name = read_model(onnx, model)
    flat = flattened(onnx, proto, name)
    nodes = [read_node(onnx, n, k, flat.opset) for k, n in enumerate(flat.nodes)]
    _check_operators(nodes, name)
    builder = GraphBuilder(proto.graph.name or name, fold=True)
    context = Context(builder, dtypes_of(onnx))
    outputs = [o.name for o in proto.graph.output]
    initializers, needed = {t.name for t in flat.initializers}, {*used(flat.nodes), *outputs}
    inputs = [v for v in proto.graph.input if v.name not in initializers]
    _check_dims(inputs, dims, name)
    for value, shape in zip(inputs, _shapes(inputs, batch, dims), strict=True):
        dtype = context.dtypes.get(value.type.tensor_type.elem_type, "undefined")
        context.values[value.name] = builder.input(value.name, shape, dtype)
    for tensor in flat.initializers:
        if tensor.name in context.values:
            raise ModelError(f"{name} defines the initializer {brief(tensor.name)} twice")
        if tensor.name not in needed:
            continue
        array = array_of(onnx, tensor, f"{name}: initializer {brief(tensor.name)}")
        context.values[tensor.name] = builder.constant(array, tensor.name)
    for sparse in proto.graph.sparse_initializer:
        key = sparse.values.name
        if key in needed and key not in context.values:
            array = dense_of(onnx, sparse, f"{name}: initializer {brief(key)}")
            context.values[key] = builder.constant(array, key)
    context.later = {v for n in nodes for v in n.outputs}
    for node in nodes:
        _convert(context, node)
    missing = [o for o in outputs if o not in context.values]
    if missing and missing[0] in context.absent:
        raise ModelError(f"{context.absent[missing[0]]}, which is an output of {name}")
    if missing or not outputs:
        listed = _listed([brief(o) for o in missing]) or "(none)"
        raise ModelError(f"{name}: no node computes the output {listed}")
    fixed = batch is None and not dims
    for value in proto.graph.output:
        _check_declared(context, value, fixed)
    return builder.finish([context.values[o] for o in outputs])


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


def _given(batch: Any, dims: Any) -> tuple[int | None, dict[str, int]]:
    """The arguments as whole numbers; a ModelError names the one that is none."""
    if dims is not None and not isinstance(dims, Mapping):
        raise ModelError(f"dims is a {type(dims).__name__}: give a mapping such as {{'N': 1}}")
    for key, value in [("batch", batch), *(dims or {}).items()]:
        if key == "batch" and value is None:
            continue
        if not hasattr(value, "__index__") or isinstance(value, bool) or np.ndim(value):
            raise ModelError(f"the extent {key!r} is {value!r}: give a whole number")
    found = {str(k): operator.index(v) for k, v in (dims or {}).items()}
    return None if batch is None else operator.index(batch), found


def _symbols(value: Any) -> list[tuple[str, str, int | None]]:
    """(place, name, fixed extent or None) per dimension; a place is input.axis.

    A fixed extent below 0 is a dynamic one.
    """
    out = []
    for k, d in enumerate(value.type.tensor_type.shape.dim):
        fixed = int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else None
        place = f"{value.name}.{k}"
        out.append((place, d.dim_param or place, fixed))
    return out


def _check_dims(inputs: Sequence[Any], dims: Dims, name: str) -> None:
    """Raise a ModelError for a name in `dims` that no dynamic dimension has."""
    rows = [row for v in inputs for row in _symbols(v)]
    names = {symbol for _, symbol, fixed in rows if fixed is None}
    places = {place for place, _, fixed in rows if not fixed}
    unknown = [s for s in dims if s not in names | places]
    if unknown:
        listed = _listed([brief(s) for s in sorted(names)]) or "none"
        raise ModelError(
            f"dims names {brief(unknown[0])!r}; the dynamic dimensions of {name}: {listed}"
        )


def _shapes(inputs: Sequence[Any], batch: int | None, dims: Dims) -> list[list[int]]:
    """The static shape of each input; a ModelError names all extents that are missing."""
    shapes, missing = [], []
    for value in inputs:
        what = f"input {brief(value.name)}"
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise ModelError(f"{what} has no tensor shape: export the model with shapes")
        shape: list[int] = []
        for axis, (place, symbol, fixed) in enumerate(_symbols(value)):
            given = batch if axis == 0 and batch is not None else dims.get(place)
            if given is None and fixed is None:
                given = dims.get(symbol)
            if given is None and fixed is None:
                missing.append((what, axis, symbol))
            if given is not None and given < 0:
                raise ModelError(f"dimension {axis} of {what} is {given}: none is below 0")
            shape.append(given if given is not None else fixed or 0)
        shapes.append(shape)
    if missing:
        raise ModelError(_what_is_missing(missing))
    return shapes


def _what_is_missing(missing: Sequence[tuple[str, int, str]]) -> str:
    names = list(dict.fromkeys(brief(symbol) for _, _, symbol in missing))
    wanted = ", ".join(f"{name!r}: 1" for name in names[:MOST_LISTED])
    more = ", ..." * (len(names) > MOST_LISTED)
    hint = f"pass dims={{{wanted}{more}}}" + " or batch=1" * all(a == 0 for _, a, _ in missing)
    if len(missing) == 1:
        what, axis, _ = missing[0]
        return f"{what} has the dynamic dimension {axis} ({names[0]}): {hint}"
    found = _listed([f"{axis} of {what} ({brief(symbol)})" for what, axis, symbol in missing])
    return f"the model has the dynamic dimensions {found}: {hint}"


def _check_declared(context: Context, value: Any, fixed: bool) -> None:
    """Raise a ModelError where an output is not what the model declares.

    Extents are compared where the caller changed none (`fixed`); rank and dtype always are.
    """
    kind = value.type.tensor_type
    got = context.type(context.values[value.name])
    dtype = context.dtypes.get(kind.elem_type, "undefined")
    declared = [d.dim_value if d.dim_value > 0 else None for d in kind.shape.dim]
    wrong = kind.elem_type and dtype != got.dtype
    if kind.HasField("shape"):
        wrong = wrong or len(declared) != got.rank
        pairs = zip(declared, got.shape, strict=False)
        wrong = wrong or (fixed and any(d is not None and d != n for d, n in pairs))
    if wrong:
        shape = ", ".join("?" if d is None else str(d) for d in declared)
        raise ModelError(
            f"output {brief(value.name)} is {got}, the model declares {dtype}[{shape}]: "
            "correct the declaration or remove it"
        )


# ---- nodes --------------------------------------------------------------------------------------


def _convert(context: Context, node: OnnxNode) -> None:
    """Emit `node` by its reader and remember its results; errors name the node."""
    context.node = node
    where = f"node {brief(node.name)} ({node.op})"
    for v in node.inputs:
        if v and v not in context.values:
            raise ModelError(_not_there(context, where, v))
    for v in node.outputs:
        if v in context.values:
            raise ModelError(f"{where} computes {brief(v)}, which is computed before")
    try:
        check_operands(context, node)
        result = READERS[node.op](context, node)
    except ModelError as error:
        text = str(error)
        raise ModelError(text if text.startswith("node ") else f"{where}: {text}") from None
    except KeyError as error:
        raise ModelError(f"{where} has no attribute {error}") from error
    except MemoryError as error:
        raise ModelError(f"{where} needs more memory than there is") from error
    except Exception as error:  # what wrong attributes and constants do to a reader
        raise ModelError(f"{where} is malformed: {first_line(error)}") from error
    results = (result,) if isinstance(result, str) else result
    context.values.update((v, r) for v, r in zip(node.outputs, results, strict=False) if v)
    for k, v in enumerate(node.outputs[len(results) :], len(results) + 1):
        context.absent[v] = f"{where}: its output {k}, {brief(v)}, is not supported"


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
