"""Readers of fused operators of `com.microsoft`, which onnxruntime's optimisers write.

In: a `Context` and an `OnnxNode`; ONNX has no schema of these operators, so readers check operands.
Out: emitted products, activations and normalisations, which partition fuses anew.
"""

import math
from typing import Any

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import elementwise, matmul, normalization, windows
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader, axis_of


def _activated(c: Context, x: str, name: str, params: list[float]) -> str:
    """The activation of a fused operator."""
    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid":
            return c.emit(name.lower(), [x])
        case "LeakyRelu":
            return c.emit("leaky_relu", [x], alpha=params[0] if params else 0.01)
        case "Clip":
            low, high = params if len(params) == 2 else (-math.inf, math.inf)
            return c.emit("clip", [x], min=low, max=high)
        case "HardSigmoid":
            alpha, beta = params if len(params) == 2 else (0.2, 0.5)
            return elementwise.hard_sigmoid_of(c, x, alpha, beta)
    raise ModelError(f"the activation {name} is not supported")


def fused_conv(c: Context, n: OnnxNode) -> str:
    """A convolution, plus operand 3, through an activation."""
    operands = [c.operand(n, k) for k in range(3) if c.has(n, k)]
    out = windows.convolved(c, n, c.shape(operands[0])[2:], operands)
    if c.has(n, 3):
        out = c.emit("add", [out, c.operand(n, 3)])
    params = [float(v) for v in n.attrs.get("activation_params", [])]
    return _activated(c, out, n.attrs.get("activation", ""), params)


def fused_gemm(c: Context, n: OnnxNode) -> str:
    keys = ("activation_alpha", "activation_beta", "activation_gamma")
    params = [float(n.attrs[k]) for k in keys if k in n.attrs]
    return _activated(c, matmul.gemm(c, n), n.attrs.get("activation", ""), params)


def _turned(c: Context, x: str, last: bool, batch: bool) -> str:
    """x with its first axis behind the other leading ones (`batch`), its last two exchanged."""
    order = list(range(len(c.shape(x))))
    if len(order) < 2:
        return x
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if last:
        order[-2:] = order[:-3:-1]
    return x if order == sorted(order) else c.emit("transpose", [x], perm=tuple(order))


def fused_matmul(c: Context, n: OnnxNode) -> str:
    """alpha * A @ B, of which each may be transposed."""
    given = {k: bool(n.attrs.get(k, 0)) for k in ("transA", "transB", "transBatchA", "transBatchB")}
    a = _turned(c, c.operand(n, 0), given["transA"], given["transBatchA"])
    b = _turned(c, c.operand(n, 1), given["transB"], given["transBatchB"])
    out, alpha = matmul.product(c, a, b), float(n.attrs.get("alpha", 1.0))
    return out if alpha == 1 else c.emit("mul", [out, c.scalar(alpha, out)])


# ---- activations --------------------------------------------------------------------------------


def gelu(by_tanh: bool) -> Reader:
    """Gelu of operand 0, plus operand 1 (a bias) if it is there."""

    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        if c.has(n, 1):
            x = c.emit("add", [x, c.operand(n, 1)])
        return elementwise.gelu_of(c, x, by_tanh)

    return convert


def quick_gelu(c: Context, n: OnnxNode) -> str:
    """x * sigmoid(alpha * x)."""
    x, alpha = c.operand(n, 0), float(n.attrs.get("alpha", 1.702))
    return c.emit("mul", [x, c.emit("sigmoid", [c.emit("mul", [x, c.scalar(alpha, x)])])])


# ---- normalisations -----------------------------------------------------------------------------


def _by_root(c: Context, x: str, axes: tuple[int, ...], epsilon: float) -> tuple[str, str]:
    """(x / sqrt(mean(x^2) + epsilon) over `axes`, that root)."""
    square = c.emit("reduce_mean", [c.emit("mul", [x, x])], axes=axes, keepdims=True)
    root = c.emit("sqrt", [c.emit("add", [square, c.scalar(epsilon, x)])])
    return c.emit("div", [x, root]), root


def _inverse(c: Context, root: str) -> str:
    return c.emit("div", [c.scalar(1, root), root])


def simplified_layer_norm(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """(x / sqrt(mean(x^2)) * scale, the inverse of that root)."""
    x = c.operand(n, 0)
    rank = len(c.shape(x))
    axes = tuple(range(axis_of(int(n.attrs.get("axis", -1)), rank), rank))
    out, root = _by_root(c, x, axes, float(n.attrs.get("epsilon", 1e-5)))
    out = c.emit("mul", [out, c.operand(n, 1)])
    c.same_shape(out, x)
    return (out,) if len(n.outputs) < 2 else (out, _inverse(c, root))


def skip_layer_norm(simplified: bool) -> Reader | Any:
    """The normalised sum of input, skip and bias; mean and inverse root are outputs 1 and 2."""

    def convert(c: Context, n: OnnxNode) -> tuple[str, ...]:
        x, epsilon = c.operand(n, 0), float(n.attrs.get("epsilon", 1e-12))
        total = c.emit("add", [x, c.operand(n, 1)])
        k = 3 if simplified else 4
        if c.has(n, k):
            total = c.emit("add", [total, c.operand(n, k)])
        c.same_shape(total, x)
        axes = (len(c.shape(x)) - 1,)
        if simplified:
            out, root = _by_root(c, total, axes, epsilon)
            mean = None
        else:
            out, mean, root = normalization.normalised(c, total, axes, epsilon)
        out = c.emit("mul", [out, c.operand(n, 2)])
        if not simplified and c.has(n, 3):
            out = c.emit("add", [out, c.operand(n, 3)])
        wanted = [bool(v) for v in n.outputs] + [False] * 4
        if not any(wanted[1:3]):
            return out, out, out, total
        return out, mean or root, _inverse(c, root), total

    return convert


def _rows(c: Context, table: str, places: str) -> str:
    """The rows of a table at places of any shape."""
    flat = c.emit("reshape", [places], shape=(c.type(places).size,))
    out = c.emit("take", [table, flat], axis=0)
    return c.emit("reshape", [out], shape=(*c.shape(places), c.shape(table)[1]))


def embed_layer_norm(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """(the normalised sum of words' positions' and segments' rows, ones of the mask, the sum)."""
    words, epsilon = c.operand(n, 0), float(n.attrs.get("epsilon", 1e-12))
    if len(c.shape(words)) != 2:
        raise ModelError(f"the words {c.type(words)} are no matrix [batch, sequence]")
    batch, length = c.shape(words)
    total = _rows(c, c.operand(n, 2), words)
    if c.has(n, 8):
        at = _rows(c, c.operand(n, 3), c.operand(n, 8))
    else:
        width = c.shape(c.operand(n, 3))[1]
        starts, sizes = (0, 0), (length, width)
        at = c.emit("slice", [c.operand(n, 3)], starts=starts, sizes=sizes, steps=(1, 1))
    total = c.emit("add", [total, at])
    if c.has(n, 1):
        total = c.emit("add", [total, _rows(c, c.operand(n, 4), c.operand(n, 1))])
    out, *_ = normalization.normalised(c, total, (2,), epsilon)
    out = c.emit("add", [c.emit("mul", [out, c.operand(n, 5)]), c.operand(n, 6)])
    if c.has(n, 7):
        one = c.emit("equal", [c.operand(n, 7), c.scalar(1, c.operand(n, 7))])
        count = c.emit("cast", [one], dtype="int32")
        mask = c.emit("reduce_sum", [count], axes=(1,), keepdims=False)
    else:
        mask = c.scalar(0, words)
        mask = c.emit("expand", [c.emit("cast", [mask], dtype="int32")], shape=(batch,))
    return out, mask, total


_OWN: dict[str, Any] = {
    "BiasGelu": gelu(by_tanh=False),
    "EmbedLayerNormalization": embed_layer_norm,
    "FastGelu": gelu(by_tanh=True),
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "Gelu": gelu(by_tanh=False),
    "QuickGelu": quick_gelu,
    "SkipLayerNormalization": skip_layer_norm(simplified=False),
    "SkipSimplifiedLayerNormalization": skip_layer_norm(simplified=True),
}
READERS: dict[str, Any] = {
    **{f"com.microsoft.{k}": v for k, v in _OWN.items()},
    "SimplifiedLayerNormalization": simplified_layer_norm,  # in ONNX's own domain
}
