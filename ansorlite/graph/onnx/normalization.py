"""Readers of normalisations: batch, layer, instance, group, local response, softmax.

A normalisation over the elements of one operand becomes means with arithmetic between, which
`graph.fuse` joins to one kernel.
"""

import math

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, axis_of

MOST_WINDOW = 1024  # channels that LRN adds up, where the data has not as many


def batch_norm(c: Context, n: OnnxNode) -> str:
    if n.attrs.get("training_mode", 0) or not n.attrs.get("spatial", 1):
        raise ModelError("only inference over channels is supported: export in evaluation mode")
    return c.emit("batch_norm", c.operands(n), epsilon=float(n.attrs.get("epsilon", 1e-5)))


def normalised(c: Context, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, str, str]:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, the mean, and that root."""
    mean = c.emit("reduce_mean", [x], axes=axes, keepdims=True)
    centred = c.emit("sub", [x, mean])
    square = c.emit("mul", [centred, centred])
    variance = c.emit("reduce_mean", [square], axes=axes, keepdims=True)
    root = c.emit("sqrt", [c.emit("add", [variance, c.scalar(epsilon, x)])])
    return c.emit("div", [centred, root]), mean, root


def layer_norm(c: Context, n: OnnxNode) -> tuple[str, ...]:
    x = c.operand(n, 0)
    rank = len(c.shape(x))
    axes = tuple(range(axis_of(int(n.attrs.get("axis", -1)), rank), rank))
    out, mean, root = normalised(c, x, axes, float(n.attrs.get("epsilon", 1e-5)))
    out = c.emit("mul", [out, c.operand(n, 1)])
    if c.has(n, 2):
        out = c.emit("add", [out, c.operand(n, 2)])
    c.same_shape(out, x)
    if len(n.outputs) == 1:
        return (out,)
    return out, mean, c.emit("div", [c.scalar(1, x), root])


def rms_norm(c: Context, n: OnnxNode) -> str:
    """x / sqrt(mean(x * x) + epsilon) * scale over the axes from `axis` on."""
    x = c.operand(n, 0)
    rank = len(c.shape(x))
    axes = tuple(range(axis_of(int(n.attrs.get("axis", -1)), rank), rank))
    square = c.emit("reduce_mean", [c.emit("mul", [x, x])], axes=axes, keepdims=True)
    epsilon = c.scalar(float(n.attrs.get("epsilon", 1e-5)), x)
    out = c.emit("div", [x, c.emit("sqrt", [c.emit("add", [square, epsilon])])])
    out = c.emit("mul", [out, c.operand(n, 1)])
    c.same_shape(out, x)
    return out


def lp_norm(c: Context, n: OnnxNode) -> str:
    """x divided by its norm along an axis, 0 where that is 0."""
    x, p = c.operand(n, 0), int(n.attrs.get("p", 2))
    axis = axis_of(int(n.attrs.get("axis", -1)), len(c.shape(x)))
    if p not in (1, 2):
        raise ModelError(f"p is {p}: only the norms 1 and 2 are defined")
    sizes = c.emit("abs", [x]) if p == 1 else c.emit("mul", [x, x])
    norm = c.emit("reduce_sum", [sizes], axes=(axis,), keepdims=True)
    norm = norm if p == 1 else c.emit("sqrt", [norm])
    zero = c.scalar(0, x)
    return c.emit("where", [c.emit("equal", [norm, zero]), zero, c.emit("div", [x, norm])])


def instance_norm(c: Context, n: OnnxNode) -> str:
    x, scale, bias = c.operands(n)
    rank = len(c.shape(x))
    if rank < 3 or not c.shape(scale) == c.shape(bias) == c.shape(x)[1:2]:
        raise ModelError(
            f"scale {c.type(scale)} and bias {c.type(bias)} need an element per channel of "
            f"{c.type(x)}"
        )
    out, *_ = normalised(c, x, tuple(range(2, rank)), float(n.attrs.get("epsilon", 1e-5)))
    shape = (c.shape(scale)[0], *(1,) * (rank - 2))
    out = c.emit("mul", [out, c.emit("reshape", [scale], shape=shape)])
    return c.emit("add", [out, c.emit("reshape", [bias], shape=shape)])


def group_norm(c: Context, n: OnnxNode) -> str:
    """Normalised over groups of channels; scale and bias by group (opset 18) or by channel."""
    x, scale, bias = c.operands(n)
    shape, groups = c.shape(x), int(n.attrs["num_groups"])
    if groups < 1 or len(shape) < 3 or shape[1] % groups:
        raise ModelError(f"{shape[1]} channels are not divisible into {groups} groups")
    split = (shape[0], groups, math.prod(shape[1:]) // groups)
    view = c.emit("reshape", [x], shape=split)
    out, *_ = normalised(c, view, (2,), float(n.attrs.get("epsilon", 1e-5)))
    by_group = c.shape(scale) == (groups,) and groups != shape[1]
    if not by_group:
        out = c.emit("reshape", [out], shape=shape)
    column = (groups, 1) if by_group else (shape[1], *(1,) * (len(shape) - 2))
    out = c.emit("mul", [out, c.emit("reshape", [scale], shape=column)])
    out = c.emit("add", [out, c.emit("reshape", [bias], shape=column)])
    return c.emit("reshape", [out], shape=shape) if by_group else out


def lrn(c: Context, n: OnnxNode) -> str:
    size, channels = int(n.attrs["size"]), c.shape(c.operand(n, 0))[1]
    if not 1 <= size <= max(MOST_WINDOW, 2 * channels + 1):
        raise ModelError(f"size {size} is no window over {channels} channels")
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    values = {k: float(n.attrs.get(k, v)) for k, v in defaults.items()}
    return c.emit("lrn", c.operands(n), axis=1, size=size, **values)


def _softmax_axes(c: Context, n: OnnxNode) -> tuple[int, ...]:
    """One axis since opset 13; before, all from `axis` on (the operand seen as a matrix)."""
    rank = len(c.shape(c.operand(n, 0)))
    axis = axis_of(int(n.attrs.get("axis", -1 if n.opset >= 13 else 1)), rank)
    return (axis,) if n.opset >= 13 else tuple(range(axis, rank))


def softmax(c: Context, n: OnnxNode) -> str:
    return c.emit("softmax", [c.operand(n, 0)], axes=_softmax_axes(c, n))


def log_softmax(c: Context, n: OnnxNode) -> str:
    """d - log(sum(exp(d))) with d = x - max(x)."""
    x, axes = c.operand(n, 0), _softmax_axes(c, n)
    d = c.emit("sub", [x, c.emit("reduce_max", [x], axes=axes, keepdims=True)])
    total = c.emit("reduce_sum", [c.emit("exp", [d])], axes=axes, keepdims=True)
    return c.emit("sub", [d, c.emit("log", [total])])
