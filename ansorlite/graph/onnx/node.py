"""Nodes of ONNX as Python values, checked against the schemas that ONNX publishes.

In: a NodeProto and the opset. Out: an `OnnxNode` whose attributes have the kinds that the schema
wants; `check_operands` does the same for the types of the operands. Raises ModelError, one line
that names the node.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode
from ansorlite.graph.onnx.context import where as where_of
from ansorlite.graph.onnx.read import array_of, dense_of
from ansorlite.graph.onnx.table import READERS
from ansorlite.names import brief, first_line

SPELLING = {"float": "float32", "double": "float64"}
FLAGS = (  # attributes that are 0 or 1
    *("align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box"),
    *("count_include_pad", "detect_negative", "detect_positive", "exclude_outside", "exclusive"),
    *("fmod", "input_forget", "interleaved", "inverse", "is_causal", "keepdims", "largest"),
    *("linear_before_reset",),
    *("noop_with_empty_axes", "onesided", "periodic", "reverse", "select_last_index"),
    *("sorted", "spatial", "storage_order", "training_mode", "transA", "transB", "upper"),
)
NONE: Mapping[str, tuple[str, str]] = MappingProxyType({})
FORMAL = {v: k for k, v in SPELLING.items()}


def dtypes_of(onnx: Any) -> dict[int, str]:
    """numpy's dtype names by the numbers of TensorProto."""
    spelled = {k: v.lower() for v, k in onnx.TensorProto.DataType.items()}
    return {k: SPELLING.get(v, v) for k, v in spelled.items()}


def read_node(
    onnx: Any,
    proto: Any,
    position: int,
    opset: int,
    origins: Mapping[str, tuple[str, str]] = NONE,
) -> OnnxNode:
    """The node; `origins` has the model's own nodes by results of nodes written out for them."""
    try:
        name = proto.name or f"{proto.op_type}_{position}"
        default = "" if proto.domain in ("", "ai.onnx") else f"{proto.domain}."
        op, inputs, outputs = default + proto.op_type, tuple(proto.input), tuple(proto.output)
    except UnicodeDecodeError as error:
        raise ModelError(f"node {position} is damaged: a name is no UTF-8 text") from error
    origin = next((origins[v] for v in outputs if v in origins), None)
    where = where_of(*(origin or (name, op)))
    if op not in READERS:
        return OnnxNode(name, op, inputs, outputs, {}, opset, None, origin)
    schema = None if default else _schema(onnx, op, opset)
    attrs: dict[str, Any] = {}
    for a in proto.attribute:
        try:
            key, value = a.name, _value(onnx, a)
        except (UnicodeDecodeError, ValueError, TypeError) as error:
            raise ModelError(f"{where} has a damaged attribute: {first_line(error)}") from error
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from None
        if key in attrs:
            raise ModelError(f"{where} has the attribute {brief(key)} twice")
        if schema is not None:
            _check_attribute(onnx, schema, a, where, opset)
        if key in FLAGS and value not in (0, 1):
            raise ModelError(f"{where}: attribute {key} is {value}, neither 0 nor 1")
        attrs[key] = value
    if schema is not None:
        _check_counts(schema, where, len(inputs), len(outputs))
        missing = [k for k, a in schema.attributes.items() if a.required and k not in attrs]
        if missing:
            raise ModelError(f"{where} has no attribute {missing[0]!r}")
    return OnnxNode(name, op, inputs, outputs, attrs, opset, schema, origin)


def _schema(onnx: Any, op: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


def _value(onnx: Any, attribute: Any) -> Any:
    if attribute.ref_attr_name:
        raise ModelError(
            f"attribute {brief(attribute.name)} refers to {brief(attribute.ref_attr_name)} of a "
            "function, but stands in no function"
        )
    kinds = onnx.AttributeProto
    if attribute.type == kinds.TENSOR:
        return array_of(onnx, attribute.t, f"attribute {brief(attribute.name)}")
    if attribute.type == kinds.SPARSE_TENSOR:
        return dense_of(onnx, attribute.sparse_tensor, f"attribute {brief(attribute.name)}")
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case kinds.STRING:
            return value.decode()
        case kinds.INTS | kinds.FLOATS:
            return list(value)
        case kinds.STRINGS:
            return [v.decode() for v in value]
    return value


def _check_attribute(onnx: Any, schema: Any, attribute: Any, where: str, opset: int) -> None:
    formal = schema.attributes.get(attribute.name)
    if formal is None:
        raise ModelError(
            f"{where} has the attribute {brief(attribute.name)}, which {schema.name} of opset "
            f"{opset} does not have"
        )
    if int(formal.type.value) != attribute.type:
        kinds = onnx.AttributeProto.AttributeType
        raise ModelError(
            f"{where}: attribute {attribute.name} is of kind {kinds.Name(attribute.type)}, not "
            f"{kinds.Name(int(formal.type.value))}"
        )


def _check_counts(schema: Any, where: str, inputs: int, outputs: int) -> None:
    for kind, count, low, high in (
        ("operands", inputs, schema.min_input, schema.max_input),
        ("outputs", outputs, schema.min_output, schema.max_output),
    ):
        if not low <= count <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            wanted = f"{low} or more" if high > 1 << 16 else wanted
            raise ModelError(f"{where} has {count} {kind}, not {wanted}")


def check_operands(c: Context, n: OnnxNode) -> dict[str, str]:
    """Raise a ModelError for an operand that is left out, or of a type that the schema lacks.

    Returns the dtypes of the outputs that the operands determine, by name.
    """
    if n.schema is None:
        low = next((c.lows[v] for v in n.inputs if v in c.lows), None)
        return {} if low is None else dict.fromkeys(n.outputs, low)
    formals, bound = list(n.schema.inputs), dict[str, str]()
    for k, v in enumerate(n.inputs):
        formal = formals[min(k, len(formals) - 1)]
        if not v:
            if formal.option.name != "Optional":
                raise ModelError(f"operand {k} ({formal.name}) is missing")
            continue
        if c.values[v] in c.sequences:
            if not any(t.startswith("seq(") for t in formal.types) and formal.type_str != "V":
                raise ModelError(f"operand {k} ({formal.name}) may not be a sequence")
            continue
        dtype = c.declared(v)
        if f"tensor({FORMAL.get(dtype, dtype)})" not in formal.types:
            raise ModelError(f"operand {k} ({formal.name}) may not be of dtype {dtype}")
        if formal.option.name == "Variadic" and not formal.is_homogeneous:
            continue
        if bound.setdefault(formal.type_str, dtype) != dtype:
            raise ModelError(
                f"operands have different dtypes {bound[formal.type_str]} and {dtype}: cast one of "
                "them"
            )
    results = list(n.schema.outputs)
    kinds = (results[min(k, len(results) - 1)].type_str for k in range(len(n.outputs)))
    return {v: bound[kind] for v, kind in zip(n.outputs, kinds, strict=True) if kind in bound}
