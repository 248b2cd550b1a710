"""What ONNX operators mean: one reader per operator, in the visible table `READERS`.

A reader gets the `Context` (values so far) and the `OnnxNode`, emits operators of
`operators.OPERATORS` and returns the result's value name. Variants by opset are decided here.
Nodes of constants alone, shape arithmetic above all, are computed at once.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import conditions as cond
from ansorlite.graph.onnx import folded, resize
from ansorlite.graph.onnx import movement as move
from ansorlite.graph.onnx import reduce as over
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader


def simple(op: str) -> Reader:
    """The operator `op` without attributes."""
    return lambda c, n: c.emit(op, c.operands(n))


def chain(op: str) -> Reader:
    """An n-ary operator as a chain of binary ones."""

    def convert(c: Context, n: OnnxNode) -> str:
        first, *rest = c.operands(n)
        for v in rest:
            first = c.emit(op, [first, v])
        return first

    return convert


def mean(c: Context, n: OnnxNode) -> str:
    total = chain("add")(c, n)
    return c.emit("div", [total, c.scalar(len(n.inputs), total)])


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
    if any(v is not None and v.size != 1 for v in (low, high)):
        raise ModelError("min and max need one element each")
    limits = (-math.inf if low is None else low.item(), math.inf if high is None else high.item())
    return c.emit("clip", [x], min=limits[0], max=limits[1])


def pow_(c: Context, n: OnnxNode) -> str:
    """The result has the dtype of the base; fractional powers of integers are taken as float64."""
    x, y = c.operands(n)
    dtype, other = c.type(x).dtype, c.type(y).dtype
    if dtype.startswith("int") and other.startswith("float"):
        wide = [
            v if c.type(v).dtype == "float64" else cond.cast_to(c, v, "float64") for v in (x, y)
        ]
        return cond.cast_to(c, c.emit("pow", wide), dtype)
    return c.emit("pow", [x, cond.cast_to(c, y, dtype)])


def prelu(c: Context, n: OnnxNode) -> str:
    """max(x, 0) + slope * min(x, 0); chosen by the sign of x where the slope may be infinite."""
    x, slope = c.operands(n)
    zero, known = c.scalar(0, x), c.known(n, 1)
    if known is None or not np.all(np.isfinite(known)):
        return c.emit("where", [c.emit("less", [x, zero]), c.emit("mul", [slope, x]), x])
    low = c.emit("mul", [slope, c.emit("minimum", [x, zero])])
    c.same_shape(low, x)
    return c.emit("add", [c.emit("relu", [x]), low])


def elu(c: Context, n: OnnxNode) -> str:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    x, alpha = c.operand(n, 0), float(n.attrs.get("alpha", 1.0))
    e = c.emit("exp", [c.emit("minimum", [x, c.scalar(0, x)])])
    low = c.emit("sub", [e, c.scalar(1, x)])
    scaled = c.emit("mul", [low, c.scalar(alpha, x)])
    if not math.isfinite(alpha):  # zero times that is no number
        return c.emit("where", [c.emit("less", [x, c.scalar(0, x)]), scaled, x])
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


def _numbers(n: OnnxNode, name: str, count: int, least: int = 1) -> tuple[int, ...]:
    """The attribute `name`: `count` whole numbers, each (and by default) at least `least`."""
    found = tuple(int(v) for v in n.attrs.get(name, (least,) * count))
    if len(found) != count or any(v < least for v in found):
        raise ModelError(f"{name} {list(found)}: {count} numbers of at least {least} are needed")
    return found


def _window(c: Context, n: OnnxNode, kernel: tuple[int, ...]) -> dict[str, Any]:
    """strides, dilations and pads of a window over data of the node's first operand."""
    rank, spatial = len(kernel), c.shape(c.operand(n, 0))[2:]
    if rank != len(spatial):
        raise ModelError(f"a kernel of {rank} extents over {len(spatial)} spatial axes")
    strides, dilations = _numbers(n, "strides", rank), _numbers(n, "dilations", rank)
    auto = n.attrs.get("auto_pad", "NOTSET")
    flat = _numbers(n, "pads", 2 * rank, least=0)
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


def pool(op: str) -> Reader:
    def convert(c: Context, n: OnnxNode) -> str:
        n.attrs["kernel_shape"]  # there is no default
        kernel = _numbers(n, "kernel_shape", len(n.attrs["kernel_shape"]))
        attrs = _window(c, n, kernel)
        spans = [d * (k - 1) + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
        if any(max(pair) >= span for pair, span in zip(attrs["pads"], spans, strict=True)):
            raise ModelError(f"pads {attrs['pads']} are not smaller than the windows {spans}")
        ceil = bool(n.attrs.get("ceil_mode", 0)) and n.attrs.get("auto_pad", "NOTSET") != "VALID"
        attrs |= {"kernel": kernel, "ceil_mode": ceil}
        if op == "avg_pool":
            attrs["count_include_pad"] = bool(n.attrs.get("count_include_pad", 0))
        return c.emit(op, [c.operand(n, 0)], **attrs)

    return convert


def global_pool(op: str) -> Reader:
    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        if len(c.shape(x)) < 3:
            raise ModelError(f"{c.type(x)} has no spatial axes")
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


def conv_transpose(c: Context, n: OnnxNode) -> str:
    """Groups and dilations are those of a convolution with the kernel reversed."""
    x, w = c.operand(n, 0), c.operand(n, 1)
    if len(c.shape(x)) < 3 or len(c.shape(w)) < 3:
        raise ModelError(f"data {c.type(x)} and weights {c.type(w)} need spatial axes")
    data, (ci, co, *kernel) = c.shape(x), c.shape(w)
    groups = int(n.attrs.get("group", 1))
    if groups < 1 or len(kernel) != len(data) - 2 or data[1] != ci or ci % groups:
        raise ModelError(f"weights {list(c.shape(w))} with {groups} groups for data {list(data)}")
    strides, dilations, pads = _transposed_window(n, data[2:], tuple(kernel))
    if groups == 1 and {*dilations} == {1}:
        layout = "channels_first"
        out = c.emit("conv_transpose", [x, w], strides=strides, pads=pads, layout=layout)
    else:
        x = _with_zeros_between(c, x, strides)
        around = tuple(
            (d * (k - 1) - lo, d * (k - 1) - hi)
            for k, d, (lo, hi) in zip(kernel, dilations, pads, strict=True)
        )
        x = move.padded(c, x, ((0, 0), (0, 0), *around), 0.0)
        rank, per = len(kernel), ci // groups
        shape = (ci, co, *kernel)
        starts, steps = (0, 0, *(k - 1 for k in kernel)), (1, 1, *(-1,) * rank)
        w = c.emit("slice", [w], starts=starts, sizes=shape, steps=steps)
        w = c.emit("reshape", [w], shape=(groups, per, co, *kernel))
        w = c.emit("transpose", [w], perm=(0, 2, 1, *range(3, 3 + rank)))
        w = c.emit("reshape", [w], shape=(groups * co, per, *kernel))
        out = c.emit(
            "conv",
            [x, w],
            strides=(1,) * rank,
            pads=((0, 0),) * rank,
            dilations=dilations,
            groups=groups,
            layout="channels_first",
        )
    if not c.has(n, 2):
        return out
    bias = c.emit("reshape", [c.operand(n, 2)], shape=(co * groups, *(1,) * len(kernel)))
    return c.emit("add", [out, bias])


def _transposed_window(
    n: OnnxNode, spatial: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """(strides, dilations, pads); what `output_padding` adds at the end is negative padding."""
    rank = len(kernel)
    strides, dilations = _numbers(n, "strides", rank), _numbers(n, "dilations", rank)
    extra = _numbers(n, "output_padding", rank, least=0)
    flat = _numbers(n, "pads", 2 * rank, least=0)
    auto = n.attrs.get("auto_pad", "NOTSET")
    same = auto in ("SAME_UPPER", "SAME_LOWER")
    if auto not in ("NOTSET", "VALID") and not same:
        raise ModelError(f"auto_pad {auto!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    wanted = n.attrs.get("output_shape")
    if wanted is not None and (len(wanted) < rank or min(wanted) < 1):
        raise ModelError(f"output_shape {wanted} for {rank} spatial axes")
    if wanted is None and same:
        wanted = [e * s for e, s in zip(spatial, strides, strict=True)]
    if wanted is None:
        if auto == "VALID":
            flat = (0,) * 2 * rank
        ends = zip(flat[:rank], flat[rank:], extra, strict=True)
        return strides, dilations, tuple((lo, hi - more) for lo, hi, more in ends)
    pads: tuple[tuple[int, int], ...] = ()
    rows = zip(spatial, kernel, strides, dilations, extra, tuple(wanted)[-rank:], strict=True)
    for e, k, s, d, more, out in rows:
        total = (e - 1) * s + more + (k - 1) * d + 1 - int(out)
        small, large = total // 2, total - total // 2
        lo, hi = (small, large) if auto == "SAME_UPPER" else (large, small)
        pads += ((lo, hi - more),)
    return strides, dilations, pads


def _with_zeros_between(c: Context, x: str, strides: tuple[int, ...]) -> str:
    """`stride - 1` zeros after every element of a spatial axis but the last."""
    for axis, s in enumerate(strides, 2):
        if s > 1:
            shape = c.shape(x)
            x = c.emit("reshape", [x], shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
            widths = tuple((0, s - 1 if d == axis + 1 else 0) for d in range(len(shape) + 1))
            x = c.emit("pad", [x], pads=widths, value=0.0)
            x = c.emit("reshape", [x], shape=(*shape[:axis], shape[axis] * s, *shape[axis + 1 :]))
            x = move.padded(
                c, x, tuple((0, 1 - s if d == axis else 0) for d in range(len(shape))), 0
            )
    return x


READERS: Mapping[str, Callable[[Context, OnnxNode], str | tuple[str, ...]]] = {
    "Abs": simple("abs"),
    "Add": simple("add"),
    "And": simple("logical_and"),
    "ArgMax": cond.arg("reduce_max"),
    "ArgMin": cond.arg("reduce_min"),
    "AveragePool": pool("avg_pool"),
    "BatchNormalization": over.batch_norm,
    "Cast": cond.cast,
    "CastLike": cond.cast_like,
    "Ceil": simple("ceil"),
    "Clip": clip,
    "Concat": move.concat,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "DepthToSpace": move.depth_to_space,
    "Div": simple("div"),
    "Dropout": move.dropout,
    "Elu": elu,
    "Equal": simple("equal"),
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
    "Greater": cond.swapped("less"),
    "GreaterOrEqual": cond.swapped("less_equal"),
    "GroupNormalization": over.group_norm,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Identity": move.identity,
    "InstanceNormalization": over.instance_norm,
    "LRN": over.lrn,
    "LayerNormalization": over.layer_norm,
    "LeakyRelu": leaky_relu,
    "Less": simple("less"),
    "LessOrEqual": simple("less_equal"),
    "Log": simple("log"),
    "LogSoftmax": over.log_softmax,
    "MatMul": matmul,
    "Max": chain("maximum"),
    "MaxPool": pool("max_pool"),
    "Mean": mean,
    "Min": chain("minimum"),
    "Mod": cond.modulo,
    "Mul": simple("mul"),
    "Neg": simple("neg"),
    "Not": simple("logical_not"),
    "Or": simple("logical_or"),
    "PRelu": prelu,
    "Pad": move.pad,
    "Pow": pow_,
    "Reciprocal": reciprocal,
    "ReduceL1": over.reduce("reduce_sum", before="abs"),
    "ReduceL2": over.reduce("reduce_sum", before="square", after="sqrt"),
    "ReduceLogSum": over.reduce("reduce_sum", after="log"),
    "ReduceLogSumExp": over.reduce_log_sum_exp,
    "ReduceMax": over.reduce("reduce_max"),
    "ReduceMean": over.reduce("reduce_mean"),
    "ReduceMin": over.reduce("reduce_min"),
    "ReduceProd": over.reduce_prod,
    "ReduceSum": over.reduce("reduce_sum"),
    "ReduceSumSquare": over.reduce("reduce_sum", before="square"),
    "Relu": simple("relu"),
    "Reshape": move.reshape,
    "Resize": resize.resize,
    "Round": simple("round"),
    "Sigmoid": simple("sigmoid"),
    "Sign": simple("sign"),
    "Slice": move.slice_,
    "Softmax": over.softmax,
    "Softplus": softplus,
    "SpaceToDepth": move.space_to_depth,
    "Split": move.split,
    "Sqrt": simple("sqrt"),
    "Squeeze": move.squeeze,
    "Sub": simple("sub"),
    "Sum": chain("add"),
    "Tanh": simple("tanh"),
    "Tile": move.tile,
    "Transpose": move.transpose,
    "Trilu": cond.trilu,
    "Unsqueeze": move.unsqueeze,
    "Upsample": resize.upsample,
    "Where": simple("where"),
    "Xor": cond.xor,
    **folded.FOLDED,
}
