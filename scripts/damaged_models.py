"""Small ONNX models with many operators, and ways to damage them, for `damage_models.py`.

`models()` gives the sound ones by name; `damaged(data, rng)` gives a damaged file and says how:
cut, flipped bits, edited numbers, names, attributes and tensors, swapped parts. Everything comes
from the generator `rng`, so that a seed names a file.
"""

from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node
NUMBERS = (0, 1, -1, 2, 3, 7, -2, 100, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1)
FLOATS = (0.0, -1.0, 0.5, 1e6, -1e6, float("inf"), float("-inf"), float("nan"))
NAMES = ("", "x", "y", "w", "\x1b[31mred", "a\nb", "*/ }", '"', "\\", "n" * 20000, "é☃\u202e")
TEXTS = (*NAMES, "SAME_UPPER", "linear", "constant", "asymmetric", "../weights.bin", "/etc/passwd")
STORED = "weights.bin"


def _model(
    name: str, nodes: list[Any], inputs: Any, outputs: Any, arrays: Any, opset: int = 17
) -> ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        name,
        [info(k, kind, shape) for k, kind, shape in inputs],
        [info(k, kind, shape) for k, kind, shape in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _ints(*values: int) -> Any:
    return np.asarray(values, np.int64)


def _pictures(rng: np.random.Generator) -> ModelProto:
    def f(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c1", "s", "t", "m", "v"], ["n1"], epsilon=1e-3),
        node("Relu", ["n1"], ["r1"]),
        node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
        node("Conv", ["p1", "w2"], ["c2"], group=4, auto_pad="SAME_UPPER"),
        node("LeakyRelu", ["c2"], ["l2"], alpha=0.2),
        node("AveragePool", ["l2"], ["a2"], kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["a2"], ["g"]),
        node("Flatten", ["g"], ["q"]),
        node("Gemm", ["q", "w3", "b3"], ["z"], transB=1, alpha=0.5),
        node("Softmax", ["z"], ["y"], axis=-1),
    ]
    arrays = {
        "w1": f(4, 3, 3, 3),
        "b1": f(4),
        "s": f(4) + 1,
        "t": f(4),
        "m": f(4),
        "v": np.abs(f(4)) + 1,
        "w2": f(4, 1, 3, 3),
        "w3": f(5, 4),
        "b3": f(5),
    }
    return _model("pictures", nodes, [("x", FLOAT, [1, 3, 12, 11])], [("y", FLOAT, [1, 5])], arrays)


def _words(rng: np.random.Generator) -> ModelProto:
    def f(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    nodes = [
        node("Gather", ["table", "ids"], ["e"], axis=0),
        node("LayerNormalization", ["e", "s", "t"], ["n"], axis=-1),
        node("MatMul", ["n", "wq"], ["q0"]),
        node("Shape", ["q0"], ["size"]),
        node("Gather", ["size", "one"], ["length"], axis=0),
        node("Concat", ["length", "heads"], ["split"], axis=0),
        node("Reshape", ["q0", "split"], ["q1"]),
        node("Transpose", ["q1"], ["q2"], perm=[1, 0, 2]),
        node("Transpose", ["q2"], ["k2"], perm=[0, 2, 1]),
        node("MatMul", ["q2", "k2"], ["a0"]),
        node("Trilu", ["a0"], ["a1"], upper=0),
        node("Equal", ["a1", "zero"], ["blank"]),
        node("Where", ["blank", "low", "a1"], ["a2"]),
        node("Softmax", ["a2"], ["a3"], axis=2),
        node("MatMul", ["a3", "q2"], ["o0"]),
        node("Squeeze", ["o0", "first"], ["o1"]),
        node("Slice", ["o1", "start", "end", "axis", "step"], ["o2"]),
        node("ReduceMean", ["o2"], ["o3"], axes=[1], keepdims=0),
        node("Unsqueeze", ["o3", "axis"], ["y"]),
    ]
    arrays = {
        "table": f(9, 8),
        "s": f(8) + 1,
        "t": f(8),
        "wq": f(8, 8),
        "one": _ints(0),
        "heads": _ints(1, 8),
        "zero": np.float32(0),
        "low": np.float32(-50),
        "first": _ints(0),
        "start": _ints(-1),
        "end": _ints(-100),
        "axis": _ints(1),
        "step": _ints(-2),
    }
    return _model("words", nodes, [("ids", INT64, [6])], [("y", FLOAT, [6, 1])], arrays)


def _moves(rng: np.random.Generator) -> ModelProto:
    nodes = [
        node("Resize", ["x", "", "scales"], ["r"], mode="linear"),
        node("Pad", ["r", "pads", "value"], ["p"], mode="constant"),
        node("ConvTranspose", ["p", "w"], ["t"], strides=[2, 2], output_padding=[1, 0]),
        node("DepthToSpace", ["t"], ["d"], blocksize=2),
        node("Split", ["d", "sizes"], ["d1", "d2"], axis=2),
        node("Concat", ["d2", "d1"], ["c"], axis=2),
        node("Tile", ["c", "times"], ["m"]),
        node("Expand", ["m", "full"], ["e"]),
        node("ConstantOfShape", ["full"], ["k"], value=numpy_helper.from_array(np.float32([0.5]))),
        node("Mul", ["e", "k"], ["u"]),
        node("Range", ["from", "to", "by"], ["places"]),
        node("Cast", ["places"], ["factors"], to=FLOAT),
        node("Mul", ["u", "factors"], ["v"]),
        node("SpaceToDepth", ["v"], ["y"], blocksize=2),
    ]
    arrays = {
        "scales": np.float32([1, 1, 1.5, 0.7]),
        "pads": _ints(0, 0, 1, 0, 0, 0, 0, 1),
        "value": np.float32(0.25),
        "w": rng.standard_normal((2, 4, 2, 3)).astype(np.float32),
        "sizes": _ints(9, 13),
        "times": _ints(1, 1, 1, 2),
        "full": _ints(2, 1, 22, 44),
        "from": np.int64(0),
        "to": np.int64(44),
        "by": np.int64(1),
    }
    return _model(
        "moves", nodes, [("x", FLOAT, [1, 2, 3, 7])], [("y", FLOAT, [2, 4, 11, 22])], arrays
    )


def _mixed(rng: np.random.Generator) -> ModelProto:
    kinds = ("ReduceL2", "ReduceMax", "ReduceLogSumExp", "ReduceProd")
    nodes = [
        node("Clip", ["x", "low", "high"], ["c"]),
        node("PRelu", ["c", "slope"], ["p"]),
        node("HardSigmoid", ["p"], ["h"], alpha=0.3),
        node("InstanceNormalization", ["h", "s", "t"], ["i"]),
        node("ArgMax", ["i"], ["at"], axis=2, keepdims=0),
        node("Cast", ["at"], ["af"], to=FLOAT),
        node("Elu", ["af"], ["el"], alpha=0.7),
        node("Constant", [], ["k"], value_float=2.0),
        node("Pow", ["i", "k"], ["pw"]),
        *(node(op, ["pw"], [op], axes=[2], keepdims=0) for op in kinds),
        node("Sum", ["el", *kinds], ["total"]),
        node("Twice", ["total"], ["w"], domain="own"),
        node("Mish", ["w"], ["m"]),
        node("Gelu", ["m"], ["y"], domain="own"),
    ]
    arrays = {
        "low": np.float32(-1),
        "high": np.float32(2),
        "slope": rng.standard_normal((3, 1)).astype(np.float32),
        "s": np.ones(3, np.float32),
        "t": np.zeros(3, np.float32),
    }
    model = _model("mixed", nodes, [("x", FLOAT, [2, 3, 5])], [("y", FLOAT, [2, 3])], arrays, 18)
    model.opset_import.append(helper.make_opsetid("own", 1))
    uses = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    twice = [node("Add", ["a", "a"], ["b"])]
    gelu = [node("Twice", ["a"], ["t"], domain="own"), node("Sigmoid", ["t"], ["g"])]
    gelu.append(node("Mul", ["a", "g"], ["b"]))
    model.functions.append(helper.make_function("own", "Twice", ["a"], ["b"], twice, uses))
    model.functions.append(helper.make_function("own", "Gelu", ["a"], ["b"], gelu, uses))
    for reduction in model.graph.node:  # since opset 18 their axes are an operand
        if reduction.op_type in kinds:
            del reduction.attribute[:1]
            reduction.input.append("axes")
    model.graph.initializer.append(numpy_helper.from_array(_ints(2), "axes"))
    return model


def models() -> dict[str, ModelProto]:
    """The sound models by name."""
    rng = np.random.default_rng(0)
    return {m.graph.name: m for m in (_pictures(rng), _words(rng), _moves(rng), _mixed(rng))}


def stored(proto: ModelProto) -> tuple[ModelProto, bytes]:
    """The model with its initializers in a file of their own, and that file."""
    out, data = ModelProto(), b""
    out.CopyFrom(proto)
    for tensor in out.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
        entries = {"location": STORED, "offset": len(data), "length": len(tensor.raw_data)}
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))
        data += tensor.raw_data
        tensor.ClearField("raw_data")
    return out, data


# ---- damages ------------------------------------------------------------------------------------


def damaged(proto: ModelProto, rng: np.random.Generator) -> tuple[bytes, str]:
    """A damaged file, and what was done to the model."""
    kinds = (cut, bits, _edited, _edited, _edited, _swapped, _attribute, _constant, _renamed)
    made = ModelProto()
    made.CopyFrom(proto)
    done = []
    for _ in range(1 if rng.random() < 0.8 else 2):
        kind = kinds[rng.integers(len(kinds))]
        if kind in (cut, bits):
            return kind(made.SerializeToString(), rng), " ".join([*done, kind.__name__])
        try:
            done.append(f"{kind.__name__}: {kind(made, rng)}"[:120])
        except Exception:  # damaged too much to be damaged again
            break
    return made.SerializeToString(), " ".join(done)


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    return data[: rng.integers(len(data))]


def bits(data: bytes, rng: np.random.Generator) -> bytes:
    out = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        out[rng.integers(len(out))] ^= 1 << rng.integers(8)
    return bytes(out)


def _pick(items: Any, rng: np.random.Generator) -> Any:
    return items[rng.integers(len(items))]


def _fields(message: Any, path: str = "") -> list[tuple[Any, Any, int | None, str]]:
    """Every scalar that is set: (message, field, index or None, path)."""
    found: list[tuple[Any, Any, int | None, str]] = []
    for field, value in message.ListFields():
        place = f"{path}.{field.name}"
        many = not isinstance(value, bytes | str | int | float) and hasattr(value, "__len__")
        for k, item in enumerate(value if many else [value]):
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                found += _fields(item, f"{place}[{k}]" if many else place)
            elif not many or k < 8:
                found.append((message, field, k if many else None, f"{place}[{k}]"))
    return found


def _edited(proto: ModelProto, rng: np.random.Generator) -> str:
    """One number or text anywhere in the file."""
    message, field, at, path = _pick(_fields(proto), rng)
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            value: Any = _pick(TEXTS, rng)
        case FieldDescriptor.TYPE_BYTES:
            old = getattr(message, field.name)
            old = old if at is None else old[at]
            value = (old[:-1], old + b"\0", b"\xff" * len(old), bits(old or b"a", rng))[
                rng.integers(4)
            ]
        case FieldDescriptor.TYPE_FLOAT | FieldDescriptor.TYPE_DOUBLE:
            value = _pick(FLOATS, rng)
        case FieldDescriptor.TYPE_ENUM:
            value = _pick([v.number for v in field.enum_type.values], rng)
        case _:
            value = _pick(NUMBERS, rng)
            if field.type == FieldDescriptor.TYPE_INT32:
                value = max(-(1 << 31), min(value, (1 << 31) - 1))
    if at is None:
        setattr(message, field.name, value)
    else:
        getattr(message, field.name)[at] = value
    return f"{path} = {str(value)[:30]!r}"


def _swapped(proto: ModelProto, rng: np.random.Generator) -> str:
    """Two nodes, two tensors' contents, two operands, or a part that is there twice or missing."""
    graph: GraphProto = proto.graph
    what = rng.integers(5)
    parts = graph.node if what in (0, 2, 3) else graph.initializer
    a, b = (int(k) for k in rng.integers(len(parts), size=2))
    if what == 0 or what == 1:
        first, second = type(parts[a])(), type(parts[b])()
        first.CopyFrom(parts[a])
        second.CopyFrom(parts[b])
        parts[a].CopyFrom(second)
        parts[b].CopyFrom(first)
        if what == 1:
            parts[a].name, parts[b].name = first.name, second.name
    elif what == 2 and graph.node[a].input and graph.node[b].input:
        graph.node[a].input[0] = graph.node[b].input[-1]
    elif rng.random() < 0.5:
        parts.append(parts[a])
    else:
        del parts[a]
    return f"{what} {a} {b}"


def _attribute(proto: ModelProto, rng: np.random.Generator) -> str:
    """An attribute that is missing, there twice, of another name or of another kind."""
    target = _pick([n for n in proto.graph.node if n.attribute], rng)
    at = int(rng.integers(len(target.attribute)))
    name = target.attribute[at].name
    match rng.integers(4):
        case 0:
            del target.attribute[at]
        case 1:
            target.attribute.append(target.attribute[at])
        case 2:
            target.attribute[at].name = _pick(TEXTS, rng)
        case _:
            values = (3, -1, [0], [2, 2], [], [1 << 40, 2], 1.5, [0.5], "text", b"\xff", ["a"])
            value = _pick(values, rng)
            changed = helper.make_attribute(name, value) if value != [] else None
            del target.attribute[at]
            if changed is not None:
                target.attribute.append(changed)
    return f"{target.op_type}.{name}"


def _constant(proto: ModelProto, rng: np.random.Generator) -> str:
    """An initializer of other numbers, shape or dtype."""
    tensor = _pick(proto.graph.initializer, rng)
    array = numpy_helper.to_array(tensor).copy()
    match rng.integers(4):
        case 0:
            array = array.reshape(-1)[: max(0, array.size - 1)]
        case 1:
            array = array.astype(_pick(("float64", "int32", "int64", "bool", "float32"), rng))
        case 2:
            array = array[None] if rng.random() < 0.5 else array.reshape(-1)
        case _:
            flat = array.reshape(-1)
            values = FLOATS if array.dtype.kind == "f" else NUMBERS
            flat[rng.integers(flat.size)] = _pick(values, rng)
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return tensor.name


def _renamed(proto: ModelProto, rng: np.random.Generator) -> str:
    """One name, everywhere: the model is as sound as before."""
    old = _pick([v for n in proto.graph.node for v in (*n.input, *n.output) if v], rng)
    new = f"{_pick(NAMES, rng)}{rng.integers(100)}"
    for n in proto.graph.node:
        for values in (n.input, n.output):
            values[:] = [new if v == old else v for v in values]
    for v in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        v.name = new if v.name == old else v.name
    return old
