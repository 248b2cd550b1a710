"""What ONNX operators mean: one converter per operator, in the visible table `IMPORTERS`.

A converter gets the `Context` (values so far) and the `OnnxNode`, emits operators of
`operators.OPERATORS` and returns the result's value name. Variants by opset are decided here.
Operators of integers and conditions exist for constants only: they are shape arithmetic.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from ansorlite.errors import ModelError
from ansorlite.graph import onnx_folded as folded
from ansorlite.graph import onnx_movement as move
from ansorlite.graph.onnx_context import Context, Converter, OnnxNode


def simple(op: str) -> Converter:
    """The operator `op` without attributes."""
    return lambda c, n: c.emit(op, c.operands(n))


def chain(op: str) -> Converter:
    """An n-ary operator as a chain of binary ones."""

    def convert(c: Context, n: OnnxNode) -> str:
        first, *rest = c.operands(n)
        for v in rest:
            first = c.emit(op, [first, v])
        return first

    return convert


def mean(c: Context, n: OnnxNode) -> str:
    total = chain("add")(c, n)
    return c.emit("mul", [total, c.scalar(1 / len(n.inputs), total)])


# ---- element-wise -------------------------------------------------------------------------------


def leaky_relu(c: Context, n: OnnxNode) -> str:
    return c.emit("leaky_relu", c.operands(n), alpha=float(n.attrs.get("alpha", 0.01)))


def clip(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    if n.opset < 11:
        limits = n.attrs.get("min", -math.inf), n.attrs.get("max", math.inf)
        return c.emit("clip", [x], min=float(limits[0]), max=float(limits[1]))
    low, high = (c.known(n, k) if c.has(n, k) else None for k in (1, 2))
    if (c.has(n, 1) and low is None) or (c.has(n, 2) and high is None):
        for k, op in ((1, "maximum"), (2, "minimum")):
            x = c.emit(op, [x, c.operand(n, k)]) if c.has(n, k) else x
        return x
    limits = (-math.inf if low is None else low.item(), math.inf if high is None else high.item())
    return c.emit("clip", [x], min=float(limits[0]), max=float(limits[1]))


def pow_(c: Context, n: OnnxNode) -> str:
    x, y = c.operands(n)
    exponent = c.known(n, 1)
    dtype = c.type(x).dtype
    if exponent is not None and str(exponent.dtype) != dtype:
        y = c.constant(exponent.astype(dtype))
    return c.emit("pow", [x, y])


def prelu(c: Context, n: OnnxNode) -> str:
    """max(x, 0) + slope * min(x, 0)."""
    x, slope = c.operands(n)
    zero = c.scalar(0, x)
    low = c.emit("mul", [slope, c.emit("minimum", [x, zero])])
    return c.emit("add", [c.emit("relu", [x]), low])


def elu(c: Context, n: OnnxNode) -> str:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    x = c.operand(n, 0)
    e = c.emit("exp", [c.emit("minimum", [x, c.scalar(0, x)])])
    low = c.emit("sub", [e, c.scalar(1, x)])
    scaled = c.emit("mul", [low, c.scalar(float(n.attrs.get("alpha", 1.0)), x)])
    return c.emit("add", [c.emit("relu", [x]), scaled])


def softplus(c: Context, n: OnnxNode) -> str:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|))."""
    x = c.operand(n, 0)
    e = c.emit("exp", [c.emit("neg", [c.emit("abs", [x])])])
    return c.emit("add", [c.emit("relu", [x]), c.emit("log", [c.emit("add", [e, c.scalar(1, x)])])])


def _hard_sigmoid(c: Context, x: str, alpha: float, beta: float) -> str:
    scaled = c.emit("add", [c.emit("mul", [x, c.scalar(alpha, x)]), c.scalar(beta, x)])
    return c.emit("clip", [scaled], min=0.0, max=1.0)


def hard_sigmoid(c: Context, n: OnnxNode) -> str:
    alpha, beta = float(n.attrs.get("alpha", 0.2)), float(n.attrs.get("beta", 0.5))
    return _hard_sigmoid(c, c.operand(n, 0), alpha, beta)


def hard_swish(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    return c.emit("mul", [x, _hard_sigmoid(c, x, 1 / 6, 0.5)])


def gelu(c: Context, n: OnnxNode) -> str:
    """x/2 * (1 + erf(x / sqrt(2))), or with tanh(sqrt(2/pi) * (x + 0.044715 x^3))."""
    x = c.operand(n, 0)
    if n.attrs.get("approximate", "none") == "tanh":
        cube = c.emit("mul", [c.emit("mul", [x, x]), x])
        inner = c.emit("add", [x, c.emit("mul", [cube, c.scalar(0.044715, x)])])
        s = c.emit("tanh", [c.emit("mul", [inner, c.scalar(math.sqrt(2 / math.pi), x)])])
    else:
        s = c.emit("erf", [c.emit("mul", [x, c.scalar(math.sqrt(0.5), x)])])
    half = c.emit("mul", [x, c.scalar(0.5, x)])
    return c.emit("mul", [half, c.emit("add", [s, c.scalar(1, x)])])


def reciprocal(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    return c.emit("div", [c.scalar(1, x), x])


# ---- convolutions, pools, matrices --------------------------------------------------------------


def _window(c: Context, n: OnnxNode, kernel: tuple[int, ...]) -> dict[str, Any]:
    """strides, dilations and pads of a window over data of the node's first operand."""
    rank, spatial = len(kernel), c.shape(c.operand(n, 0))[2:]
    if rank != len(spatial):
        raise ModelError(f"a kernel of {rank} extents over {len(spatial)} spatial axes")
    strides = tuple(n.attrs.get("strides", (1,) * rank))
    dilations = tuple(n.attrs.get("dilations", (1,) * rank))
    auto = n.attrs.get("auto_pad", "NOTSET")
    flat = tuple(n.attrs.get("pads", (0,) * 2 * rank))
    pads = tuple(zip(flat[:rank], flat[rank:], strict=True))
    if auto == "VALID":
        pads = ((0, 0),) * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = ()
        for size, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            small, large = total // 2, total - total // 2
            pads += ((small, large) if auto == "SAME_UPPER" else (large, small),)
    elif auto != "NOTSET":
        raise ModelError(f"auto_pad {auto!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    return {"strides": strides, "dilations": dilations, "pads": pads, "layout": "channels_first"}


def conv(c: Context, n: OnnxNode) -> str:
    kernel = c.shape(c.operand(n, 1))[2:]
    if tuple(n.attrs.get("kernel_shape", kernel)) != kernel:
        raise ModelError(f"kernel_shape {n.attrs['kernel_shape']} but weights of {list(kernel)}")
    groups = int(n.attrs.get("group", 1))
    return c.emit("conv", c.operands(n), groups=groups, **_window(c, n, kernel))


def pool(op: str) -> Converter:
    def convert(c: Context, n: OnnxNode) -> str:
        kernel = tuple(n.attrs["kernel_shape"])
        attrs = _window(c, n, kernel)
        ceil = bool(n.attrs.get("ceil_mode", 0)) and n.attrs.get("auto_pad", "NOTSET") != "VALID"
        attrs |= {"kernel": kernel, "ceil_mode": ceil}
        if op == "avg_pool":
            attrs["count_include_pad"] = bool(n.attrs.get("count_include_pad", 0))
        return c.emit(op, [c.operand(n, 0)], **attrs)

    return convert


def global_pool(op: str) -> Converter:
    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        return c.emit(op, [x], axes=tuple(range(2, len(c.shape(x)))), keepdims=True)

    return convert


def gemm(c: Context, n: OnnxNode) -> str:
    attrs = n.attrs
    return c.emit(
        "gemm",
        c.operands(n),
        trans_a=bool(attrs.get("transA", 0)),
        trans_b=bool(attrs.get("transB", 0)),
        alpha=float(attrs.get("alpha", 1.0)),
        beta=float(attrs.get("beta", 1.0)),
    )


def matmul(c: Context, n: OnnxNode) -> str:
    a, b = c.operands(n)
    row, column = len(c.shape(a)) == 1, len(c.shape(b)) == 1
    if row:
        a = c.emit("reshape", [a], shape=(1, *c.shape(a)))
    if column:
        b = c.emit("reshape", [b], shape=(*c.shape(b), 1))
    out = c.emit("matmul", [a, b])
    shape = c.shape(out)
    if row:
        shape = (*shape[:-2], *shape[-1:])
    if column:
        shape = shape[:-1]
    return c.emit("reshape", [out], shape=shape) if row or column else out


def batch_norm(c: Context, n: OnnxNode) -> str:
    if n.attrs.get("training_mode", 0) or not n.attrs.get("spatial", 1):
        raise ModelError("only inference over channels is supported: export in evaluation mode")
    return c.emit("batch_norm", c.operands(n), epsilon=float(n.attrs.get("epsilon", 1e-5)))


def _normalised(c: Context, x: str, axes: tuple[int, ...], epsilon: float) -> str:
    """(x - mean) / sqrt(variance + epsilon) over `axes`."""
    centred = c.emit("sub", [x, c.emit("reduce_mean", [x], axes=axes, keepdims=True)])
    square = c.emit("mul", [centred, centred])
    variance = c.emit("reduce_mean", [square], axes=axes, keepdims=True)
    return c.emit(
        "div", [centred, c.emit("sqrt", [c.emit("add", [variance, c.scalar(epsilon, x)])])]
    )


def layer_norm(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    rank = len(c.shape(x))
    axes = tuple(range(int(n.attrs.get("axis", -1)) % rank, rank))
    out = _normalised(c, x, axes, float(n.attrs.get("epsilon", 1e-5)))
    out = c.emit("mul", [out, c.operand(n, 1)])
    return c.emit("add", [out, c.operand(n, 2)]) if c.has(n, 2) else out


def instance_norm(c: Context, n: OnnxNode) -> str:
    x, scale, bias = c.operands(n)
    rank = len(c.shape(x))
    column = (-1, *(1,) * (rank - 2))
    out = _normalised(c, x, tuple(range(2, rank)), float(n.attrs.get("epsilon", 1e-5)))
    shape = (c.shape(scale)[0], *column[1:])
    out = c.emit("mul", [out, c.emit("reshape", [scale], shape=shape)])
    return c.emit("add", [out, c.emit("reshape", [bias], shape=shape)])


def lrn(c: Context, n: OnnxNode) -> str:
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    values = {k: float(n.attrs.get(k, v)) for k, v in defaults.items()}
    return c.emit("lrn", c.operands(n), axis=1, size=int(n.attrs["size"]), **values)


def _softmax_axes(c: Context, n: OnnxNode) -> tuple[int, ...]:
    """One axis since opset 13; before, all from `axis` on (the operand seen as a matrix)."""
    rank = len(c.shape(c.operand(n, 0)))
    axis = int(n.attrs.get("axis", -1 if n.opset >= 13 else 1)) % rank
    return (axis,) if n.opset >= 13 else tuple(range(axis, rank))


def softmax(c: Context, n: OnnxNode) -> str:
    return c.emit("softmax", [c.operand(n, 0)], axes=_softmax_axes(c, n))


def log_softmax(c: Context, n: OnnxNode) -> str:
    """d - log(sum(exp(d))) with d = x - max(x)."""
    x, axes = c.operand(n, 0), _softmax_axes(c, n)
    d = c.emit("sub", [x, c.emit("reduce_max", [x], axes=axes, keepdims=True)])
    total = c.emit("reduce_sum", [c.emit("exp", [d])], axes=axes, keepdims=True)
    return c.emit("sub", [d, c.emit("log", [total])])


def reduce(op: str, square: bool = False, root: bool = False) -> Converter:
    """Axes are an attribute, or an operand since opset 13 (sums) and 18 (the others)."""

    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        rank = len(c.shape(x))
        given = c.axes(n, 1)
        if not given and n.attrs.get("noop_with_empty_axes", 0):
            return c.emit("mul", [x, x]) if square else x
        axes = tuple(sorted(a % rank for a in given)) if given else tuple(range(rank))
        if square:
            x = c.emit("mul", [x, x])
        out = c.emit(op, [x], axes=axes, keepdims=bool(n.attrs.get("keepdims", 1))) if axes else x
        return c.emit("sqrt", [out]) if root else out

    return convert


IMPORTERS: Mapping[str, Callable[[Context, OnnxNode], str | tuple[str, ...]]] = {
    "Abs": simple("abs"),
    "Add": simple("add"),
    "AveragePool": pool("avg_pool"),
    "BatchNormalization": batch_norm,
    "Clip": clip,
    "Concat": move.concat,
    "Conv": conv,
    "Div": simple("div"),
    "Dropout": move.dropout,
    "Elu": elu,
    "Erf": simple("erf"),
    "Exp": simple("exp"),
    "Expand": move.expand,
    "Flatten": move.flatten,
    "Floor": simple("floor"),
    "Gather": move.gather,
    "Gelu": gelu,
    "Gemm": gemm,
    "GlobalAveragePool": global_pool("reduce_mean"),
    "GlobalMaxPool": global_pool("reduce_max"),
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": move.identity,
    "InstanceNormalization": instance_norm,
    "LRN": lrn,
    "LayerNormalization": layer_norm,
    "LeakyRelu": leaky_relu,
    "Log": simple("log"),
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "Max": chain("maximum"),
    "MaxPool": pool("max_pool"),
    "Mean": mean,
    "Min": chain("minimum"),
    "Mul": simple("mul"),
    "Neg": simple("neg"),
    "PRelu": prelu,
    "Pad": move.pad,
    "Pow": pow_,
    "Reciprocal": reciprocal,
    "ReduceL2": reduce("reduce_sum", square=True, root=True),
    "ReduceMax": reduce("reduce_max"),
    "ReduceMean": reduce("reduce_mean"),
    "ReduceMin": reduce("reduce_min"),
    "ReduceSum": reduce("reduce_sum"),
    "ReduceSumSquare": reduce("reduce_sum", square=True),
    "Relu": simple("relu"),
    "Reshape": move.reshape,
    "Sigmoid": simple("sigmoid"),
    "Slice": move.slice_,
    "Softmax": softmax,
    "Softplus": softplus,
    "Split": move.split,
    "Sqrt": simple("sqrt"),
    "Squeeze": move.squeeze,
    "Sub": simple("sub"),
    "Sum": chain("add"),
    "Tanh": simple("tanh"),
    "Transpose": move.transpose,
    "Unsqueeze": move.unsqueeze,
    **folded.FOLDED,
}
