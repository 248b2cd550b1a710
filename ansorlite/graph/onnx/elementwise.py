"""Readers of element-wise operators: arithmetic, activations.

Activations that ONNX names and the graph has not are written out as arithmetic. Conditions and
integers are in `conditions`.
"""

import math

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import conditions
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
    if "int" in dtype and other.startswith("float"):
        wide = [conditions.cast_to(c, v, "float64") for v in (x, y)]
        return conditions.cast_to(c, c.emit("pow", wide), dtype)
    return c.emit("pow", [x, conditions.cast_to(c, y, dtype)])


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


def hard_sigmoid_of(c: Context, x: str, alpha: float, beta: float) -> str:
    scaled = c.emit("add", [c.emit("mul", [x, c.scalar(alpha, x)]), c.scalar(beta, x)])
    return c.emit("clip", [scaled], min=0.0, max=1.0)


def hard_sigmoid(c: Context, n: OnnxNode) -> str:
    alpha, beta = float(n.attrs.get("alpha", 0.2)), float(n.attrs.get("beta", 0.5))
    return hard_sigmoid_of(c, c.operand(n, 0), alpha, beta)


def hard_swish(c: Context, n: OnnxNode) -> str:
    x = c.operand(n, 0)
    return c.emit("mul", [x, hard_sigmoid_of(c, x, 1 / 6, 0.5)])


def gelu(c: Context, n: OnnxNode) -> str:
    """x/2 * (1 + erf(x / sqrt(2))), or with tanh(sqrt(2/pi) * (x + 0.044715 x^3))."""
    return gelu_of(c, c.operand(n, 0), n.attrs.get("approximate", "none") == "tanh")


def gelu_of(c: Context, x: str, by_tanh: bool) -> str:
    """x/2 * (1 + erf(x / sqrt(2))), or with the hyperbolic tangent in place of erf."""
    if by_tanh:
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
