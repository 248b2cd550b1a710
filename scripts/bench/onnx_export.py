"""The way back: `Graph` -> ONNX ModelProto, so that other runtimes can run the same network.

In: a graph before the passes (channels first). Out: a ModelProto of opset 17 with the graph's value
names, constants as initializers. Raises MissingExtra without the package onnx, ModelError for nodes
that ONNX has no operator for, and for names that it cannot hold.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ansorlite.errors import MissingExtra, ModelError
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.ops.elementwise import bound
from ansorlite.graph.types import Attrs, integer, ints, literal, number, pairs, text

OPSET, IR_VERSION = 17, 8


class _Writer:
    """Nodes and initializers of the model; converters call `emit` and `constant`."""

    def __init__(self, onnx: Any, graph: Graph) -> None:
        self.onnx, self.graph = onnx, graph
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.taken = set(graph.types)

    def emit(self, op: str, node: Node, inputs: Any = None, **attrs: Any) -> None:
        operands = list(node.inputs) if inputs is None else inputs
        self.nodes.append(
            self.onnx.helper.make_node(op, operands, list(node.outputs), node.name, **attrs)
        )

    def constant(self, node: Node, name: str, value: Any, dtype: str) -> str:
        full, k = f"{node.output}.{name}", 1
        while full in self.taken:
            full, k = f"{node.output}.{name}.{k}", k + 1
        self.taken.add(full)
        array = np.asarray(value, dtype)
        self.initializers.append(self.onnx.numpy_helper.from_array(array, full))
        return full


Exporter = Callable[[_Writer, Node], None]


def export_onnx(graph: Graph) -> Any:
    """The ModelProto of a graph as imported or built (before `optimize`)."""
    try:
        import onnx
    except ImportError:
        raise MissingExtra("onnx", "onnx") from None
    _check_names(graph)
    writer = _Writer(onnx, graph)
    for node in graph.nodes:
        if node.op not in EXPORTERS:
            raise ModelError(f"node {node.name} ({node.op}) has no ONNX form: export before passes")
        EXPORTERS[node.op](writer, node)
    for name, array in graph.constants.items():
        writer.initializers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))

    def info(value: str) -> Any:
        kind = graph.types[value]
        dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind.dtype))
        return onnx.helper.make_tensor_value_info(value, dtype, kind.shape)

    body = onnx.helper.make_graph(
        writer.nodes,
        graph.name,
        [info(v) for v in graph.inputs],
        [info(v) for v in graph.outputs],
        writer.initializers,
    )
    opset = onnx.helper.make_opsetid("", OPSET)
    return onnx.helper.make_model(body, opset_imports=[opset], ir_version=IR_VERSION)


def _check_names(graph: Graph) -> None:
    """Raise ModelError for names that ONNX cannot hold."""
    if "" in graph.types:
        raise ModelError(f"a value of graph {graph.name} has no name, which ONNX reads as none")
    for name in (graph.name, *graph.types, *(n.name for n in graph.nodes)):
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ModelError(f"the name {name} is no UTF-8 text: rename the value") from None


def _plain(op: str) -> Exporter:
    return lambda w, n: w.emit(op, n)


def _window(node: Node) -> dict[str, Any]:
    if text(node.attrs, "layout") != "channels_first":
        raise ModelError(f"node {node.name} ({node.op}) is channels last: export before the passes")
    widths = pairs(node.attrs, "pads")
    return {
        "strides": ints(node.attrs, "strides"),
        "dilations": ints(node.attrs, "dilations"),
        "pads": [lo for lo, _ in widths] + [hi for _, hi in widths],
    }


def _conv(w: _Writer, n: Node) -> None:
    w.emit("Conv", n, group=integer(n.attrs, "groups"), **_window(n))


def _conv_transpose(w: _Writer, n: Node) -> None:
    """Negative padding after the data is `output_padding`."""
    widths = pairs(n.attrs, "pads")
    if any(lo < 0 for lo, _ in widths):
        raise ModelError(f"node {n.name} (conv_transpose) has negative padding before the data")
    w.emit(
        "ConvTranspose",
        n,
        strides=ints(n.attrs, "strides"),
        pads=[lo for lo, _ in widths] + [max(0, hi) for _, hi in widths],
        output_padding=[max(0, -hi) for _, hi in widths],
    )


def _cast(w: _Writer, n: Node) -> None:
    kind = w.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(text(n.attrs, "dtype")))
    w.emit("Cast", n, to=kind)


def _pool(op: str) -> Exporter:
    def export(w: _Writer, n: Node) -> None:
        attrs = _window(n) | {"kernel_shape": ints(n.attrs, "kernel")}
        attrs["ceil_mode"] = int(bool(n.attrs["ceil_mode"]))
        if op == "AveragePool":
            if set(attrs.pop("dilations")) != {1}:
                raise ModelError(f"node {n.name} ({n.op}) has dilations, which opset {OPSET} lacks")
            attrs["count_include_pad"] = int(bool(n.attrs["count_include_pad"]))
        w.emit(op, n, **attrs)

    return export


def _numbers(attrs: Attrs, *names: str) -> dict[str, float]:
    return {k: number(attrs, k) for k in names}


def _gemm(w: _Writer, n: Node) -> None:
    flags = {"transA": int(bool(n.attrs["trans_a"])), "transB": int(bool(n.attrs["trans_b"]))}
    w.emit("Gemm", n, **flags, **_numbers(n.attrs, "alpha", "beta"))


def _batch_norm(w: _Writer, n: Node) -> None:
    w.emit("BatchNormalization", n, **_numbers(n.attrs, "epsilon"))


def _clip(w: _Writer, n: Node) -> None:
    dtype = w.graph.types[n.output].dtype
    limits = [w.constant(n, k, bound(literal(n.attrs, k), dtype), dtype) for k in ("min", "max")]
    w.emit("Clip", n, [*n.inputs, *limits])


def _leaky_relu(w: _Writer, n: Node) -> None:
    w.emit("LeakyRelu", n, **_numbers(n.attrs, "alpha"))


def _lrn(w: _Writer, n: Node) -> None:
    if integer(n.attrs, "axis") != 1:
        raise ModelError(f"node {n.name} (lrn) is not over axis 1: export before the passes")
    w.emit("LRN", n, size=integer(n.attrs, "size"), **_numbers(n.attrs, "alpha", "beta", "bias"))


def _reduce(op: str) -> Exporter:
    def export(w: _Writer, n: Node) -> None:
        axes, keep = ints(n.attrs, "axes"), int(bool(n.attrs["keepdims"]))
        rank = w.graph.types[n.inputs[0]].rank
        pooled = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool"}
        if op in pooled and keep and rank > 2 and axes == tuple(range(2, rank)):
            w.emit(pooled[op], n)
        elif op == "ReduceSum":
            w.emit(op, n, [*n.inputs, w.constant(n, "axes", axes, "int64")], keepdims=keep)
        else:
            w.emit(op, n, axes=axes, keepdims=keep)

    return export


def _softmax(w: _Writer, n: Node) -> None:
    """Over several axes: of the operand with these flattened into one."""
    axes, shape = ints(n.attrs, "axes"), w.graph.types[n.inputs[0]].shape
    if len(axes) == 1:
        w.emit("Softmax", n, axis=axes[0])
        return
    if axes != tuple(range(axes[0], len(shape))):
        raise ModelError(f"node {n.name} (softmax) over axes {axes} has no ONNX form")
    helper, flat, soft = w.onnx.helper, f"{n.output}.flat", f"{n.output}.soft"
    lead = w.constant(n, "lead", (*shape[: axes[0]], -1), "int64")
    full = w.constant(n, "shape", shape, "int64")
    w.nodes.append(helper.make_node("Reshape", [n.inputs[0], lead], [flat]))
    w.nodes.append(helper.make_node("Softmax", [flat], [soft], axis=-1))
    w.emit("Reshape", n, [soft, full])


def _shaped(op: str) -> Exporter:
    def export(w: _Writer, n: Node) -> None:
        w.emit(op, n, [*n.inputs, w.constant(n, "shape", ints(n.attrs, "shape"), "int64")])

    return export


def _transpose(w: _Writer, n: Node) -> None:
    w.emit("Transpose", n, perm=ints(n.attrs, "perm"))


def _concat(w: _Writer, n: Node) -> None:
    w.emit("Concat", n, axis=integer(n.attrs, "axis"))


def _take(w: _Writer, n: Node) -> None:
    w.emit("Gather", n, axis=integer(n.attrs, "axis"))


def _pad(w: _Writer, n: Node) -> None:
    widths = pairs(n.attrs, "pads")
    flat = w.constant(n, "pads", [lo for lo, _ in widths] + [hi for _, hi in widths], "int64")
    value = w.constant(n, "value", literal(n.attrs, "value"), w.graph.types[n.output].dtype)
    w.emit("Pad", n, [*n.inputs, flat, value])


def _slice(w: _Writer, n: Node) -> None:
    starts, steps = ints(n.attrs, "starts"), ints(n.attrs, "steps")
    ends = [s + k * t for s, k, t in zip(starts, ints(n.attrs, "sizes"), steps, strict=True)]
    # A negative end counts from the back; below all elements there is only a very small number.
    ends = [e if e >= 0 else -(1 << 31) for e in ends]
    rows = {"starts": starts, "ends": ends, "axes": range(len(starts)), "steps": steps}
    names = [w.constant(n, k, list(v), "int64") for k, v in rows.items()]
    w.emit("Slice", n, [*n.inputs, *names])


EXPORTERS: dict[str, Exporter] = {
    "abs": _plain("Abs"),
    "add": _plain("Add"),
    "avg_pool": _pool("AveragePool"),
    "batch_norm": _batch_norm,
    "cast": _cast,
    "ceil": _plain("Ceil"),
    "clip": _clip,
    "concat": _concat,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "div": _plain("Div"),
    "equal": _plain("Equal"),
    "erf": _plain("Erf"),
    "exp": _plain("Exp"),
    "expand": _shaped("Expand"),
    "floor": _plain("Floor"),
    "gemm": _gemm,
    "identity": _plain("Identity"),
    "leaky_relu": _leaky_relu,
    "less": _plain("Less"),
    "less_equal": _plain("LessOrEqual"),
    "log": _plain("Log"),
    "logical_and": _plain("And"),
    "logical_not": _plain("Not"),
    "logical_or": _plain("Or"),
    "lrn": _lrn,
    "matmul": _plain("MatMul"),
    "max_pool": _pool("MaxPool"),
    "maximum": _plain("Max"),
    "minimum": _plain("Min"),
    "mod": lambda w, n: w.emit("Mod", n, fmod=int(bool(n.attrs["fmod"]))),
    "mul": _plain("Mul"),
    "neg": _plain("Neg"),
    "pad": _pad,
    "pow": _plain("Pow"),
    "reduce_max": _reduce("ReduceMax"),
    "reduce_mean": _reduce("ReduceMean"),
    "reduce_min": _reduce("ReduceMin"),
    "reduce_sum": _reduce("ReduceSum"),
    "relu": _plain("Relu"),
    "reshape": _shaped("Reshape"),
    "round": _plain("Round"),
    "sigmoid": _plain("Sigmoid"),
    "sign": _plain("Sign"),
    "slice": _slice,
    "softmax": _softmax,
    "sqrt": _plain("Sqrt"),
    "sub": _plain("Sub"),
    "take": _take,
    "tanh": _plain("Tanh"),
    "transpose": _transpose,
    "where": _plain("Where"),
}
