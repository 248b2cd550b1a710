"""Readers of operators of `com.microsoft` that onnxruntime's quantiser writes.

In: a `Context` and an `OnnxNode`. Out: products of integers as ONNX's own quantised operators have
them; activations, pools and sums of numbers that are scaled, computed in float32 and quantised.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import conditions, windows
from ansorlite.graph.onnx import quantization as q
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader, axis_of


def _scaled(c: Context, n: OnnxNode, k: int) -> str:
    """Operands k (integers), k + 1 (scale) and k + 2 (zero point) as float32."""
    x = c.operand(n, k)
    zero = q.zero_point(c, n, k + 2, c.type(x).dtype)
    scale = q.spread(c, c.operand(n, k + 1), c.shape(x), 0)
    return q.dequantized(c, x, scale, q.spread(c, zero, c.shape(x), 0))


def _result(c: Context, n: OnnxNode, out: str, k: int) -> str:
    """Floats by scale k and zero point k + 1, as integers like operand 0."""
    zero = q.zero_point(c, n, k + 1, c.type(c.operand(n, 0)).dtype)
    like = c.shape(out)
    return q.quantized(c, out, q.spread(c, c.operand(n, k), like, 0), q.spread(c, zero, like, 0))


def _plus(c: Context, out: str, n: OnnxNode, k: int) -> str:
    return c.emit("add", [out, c.operand(n, k)]) if c.has(n, k) else out


def dynamic_quantize_matmul(c: Context, n: OnnxNode) -> str:
    """Operand 0, quantised by its range, @ integers, scaled, plus a bias."""
    a, scale, zero = q.dynamically(c, c.operand(n, 0))
    b, zero_b = c.operand(n, 1), q.zero_point(c, n, 3, c.type(c.operand(n, 1)).dtype)
    total = conditions.cast_to(c, q.product(c, a, b, zero, zero_b), "float32")
    by = c.emit("mul", [scale, q.columns(c, c.operand(n, 2), c.shape(b))])
    return _plus(c, c.emit("mul", [total, by]), n, 4)


def matmul_integer_to_float(c: Context, n: OnnxNode) -> str:
    a, b, scale_a, scale_b = (c.operand(n, k) for k in range(4))
    zero_a, zero_b = (c.operand(n, k) if c.has(n, k) else None for k in (4, 5))
    total = conditions.cast_to(c, q.product(c, a, b, zero_a, zero_b), "float32")
    parts = [q.rows(c, scale_a, c.shape(a)), q.columns(c, scale_b, c.shape(b))]
    return _plus(c, c.emit("mul", [total, q.factor(c, parts, None)]), n, 6)


def qgemm(c: Context, n: OnnxNode) -> str:
    """alpha * scales * (A @ B + C), as floats or, with a zero point of the result, quantised."""
    a, scale_a, zero_a, b, scale_b, zero_b = (c.operand(n, k) for k in range(6))
    if n.attrs.get("transA", 0):
        a = c.emit("transpose", [a], perm=(1, 0))
    zero_b = q.columns(c, zero_b, c.shape(b))
    right = c.emit("transpose", [b], perm=(1, 0)) if n.attrs.get("transB", 0) else b
    total = _plus(c, q.product(c, a, right, zero_a, zero_b), n, 6)
    alpha = c.constant(np.asarray(n.attrs.get("alpha", 1.0), np.float32))
    scales = [alpha, q.rows(c, scale_a, c.shape(a)), q.columns(c, scale_b, c.shape(right))]
    if not c.has(n, 8):
        wide = conditions.cast_to(c, total, "float32")
        return c.emit("mul", [wide, q.factor(c, scales, None)])
    over = q.spread(c, c.operand(n, 7), c.shape(total), 0)
    zero = q.spread(c, c.operand(n, 8), c.shape(total), 0)
    return q.requantized(c, total, q.factor(c, scales, over), zero)


def binary(op: str) -> Reader:
    """`op` of two scaled operands, quantised."""
    return lambda c, n: _result(c, n, c.emit(op, [_scaled(c, n, 0), _scaled(c, n, 3)]), 6)


def unary(fn: Callable[[Context, OnnxNode, str], str]) -> Reader:
    """`fn` of a scaled operand, quantised."""
    return lambda c, n: _result(c, n, fn(c, n, _scaled(c, n, 0)), 3)


def _leaky_relu(c: Context, n: OnnxNode, x: str) -> str:
    return c.emit("leaky_relu", [x], alpha=float(n.attrs.get("alpha", 0.01)))


def _sigmoid(c: Context, n: OnnxNode, x: str) -> str:
    return c.emit("sigmoid", [x])


def _softmax(c: Context, n: OnnxNode, x: str) -> str:
    """Over one axis since opset 13 of ONNX; before, over all from `axis` on."""
    rank = len(c.shape(x))
    axis = axis_of(int(n.attrs.get("axis", -1)), rank)
    last = int(n.attrs.get("opset", n.opset)) < 13
    return c.emit("softmax", [x], axes=tuple(range(axis, rank)) if last else (axis,))


def _moved(c: Context, x: str, order: tuple[int, ...]) -> str:
    return c.emit("transpose", [x], perm=order)


def _pooled(c: Context, n: OnnxNode, x: str, fn: Callable[[Context, OnnxNode, str], str]) -> str:
    """`fn` of data with channels first; with the attribute `channels_last`, of such data."""
    rank = len(c.shape(x))
    if not n.attrs.get("channels_last", 0):
        return fn(c, n, x)
    x = _moved(c, x, (0, rank - 1, *range(1, rank - 1)))
    return _moved(c, fn(c, n, x), (0, *range(2, rank), 1))


def _global_average(c: Context, n: OnnxNode, x: str) -> str:
    def mean(c: Context, n: OnnxNode, x: str) -> str:
        return c.emit("reduce_mean", [x], axes=tuple(range(2, len(c.shape(x)))), keepdims=True)

    return _pooled(c, n, x, mean)


def _average(c: Context, n: OnnxNode, x: str) -> str:
    return _pooled(c, n, x, lambda c, n, x: windows.pooled(c, n, x, "avg_pool"))


def qlinear_concat(c: Context, n: OnnxNode) -> str:
    """Parts with scales of their own, quantised by operands 0 and 1."""
    if len(n.inputs) < 5 or len(n.inputs) % 3 != 2:
        raise ModelError(f"{len(n.inputs)} operands are no scale, zero point and triples of parts")
    parts = [_scaled(c, n, k) for k in range(2, len(n.inputs), 3)]
    axis = axis_of(int(n.attrs["axis"]), len(c.shape(parts[0])))
    out = c.emit("concat", parts, axis=axis)
    scale, zero = (q.spread(c, c.operand(n, k), c.shape(out), 0) for k in (0, 1))
    return q.quantized(c, out, scale, zero)


def matmul_nbits(c: Context, n: OnnxNode) -> str:
    """Operand 0 @ constant weights of 4 or 8 bits by blocks of rows, scaled at import."""
    bits, block = int(n.attrs.get("bits", 4)), int(n.attrs["block_size"])
    rows, cols = int(n.attrs["K"]), int(n.attrs["N"])
    if bits not in (4, 8) or c.has(n, 4):
        raise ModelError(f"weights of {bits} bits: only 4 and 8, without an order of groups")
    blocks = -(-rows // block)
    packed, scale = c.required(n, 1), c.required(n, 2).reshape(cols, blocks, 1)
    values = _unpacked(packed.reshape(cols * blocks, -1), bits)[:, :block]
    zero: Any = np.float32(1 << (bits - 1))
    if c.has(n, 3):
        given = c.required(n, 3)
        if given.dtype == np.uint8:
            given = _unpacked(given.reshape(cols, -1), bits)[:, :blocks]
        zero = given.reshape(cols, blocks, 1).astype(np.float32)
    w = (values.reshape(cols, blocks, block).astype(np.float32) - zero) * scale
    weights = c.constant(np.ascontiguousarray(w.reshape(cols, -1)[:, :rows].T), f"{n.inputs[1]}.w")
    return _plus(c, c.emit("matmul", [c.operand(n, 0), weights]), n, 5)


def _unpacked(x: Any, bits: int) -> Any:
    """uint8[rows, n] -> [rows, n * 8 / bits]: the low bits of a byte come first."""
    if bits == 8:
        return x
    return np.stack([x & 15, x >> 4], axis=-1).reshape(x.shape[0], -1)


def _of_onnx(reader: Any) -> Any:
    """The reader of ONNX's operator of the same name, of its newest opset."""
    return lambda c, n: reader(c, replace(n, opset=max(n.opset, 21)))


_OWN: dict[str, Any] = {
    "DequantizeLinear": _of_onnx(q.dequantize_linear),
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_nbits,
    "QGemm": qgemm,
    "QLinearAdd": binary("add"),
    "QLinearAveragePool": unary(_average),
    "QLinearConcat": qlinear_concat,
    "QLinearGlobalAveragePool": unary(_global_average),
    "QLinearLeakyRelu": unary(_leaky_relu),
    "QLinearMul": binary("mul"),
    "QLinearSigmoid": unary(_sigmoid),
    "QLinearSoftmax": unary(_softmax),
    "QuantizeLinear": _of_onnx(q.quantize_linear),
}
READERS: dict[str, Any] = {f"com.microsoft.{k}": v for k, v in _OWN.items()}
