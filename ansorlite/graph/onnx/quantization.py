"""Readers of ONNX's quantised operators: integers of few bytes with scale and zero point.

In: a `Context` and an `OnnxNode`. Out: emitted `quantize` and `dequantize` nodes, and products of
integers in int32, which wrap as ONNX's do. Constant weights are scaled at import.
"""

import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import conditions, matmul, windows
from ansorlite.graph.onnx.context import Context, OnnxNode, axis_of
from ansorlite.graph.ops.quantization import STORED


def quantized(c: Context, x: str, scale: str, zero: str) -> str:
    """x / scale + zero, in the dtype of `zero`."""
    wide = [conditions.cast_to(c, v, "float32") for v in (x, scale, zero)]
    return c.emit("quantize", wide, dtype=c.type(zero).dtype)


def dequantized(c: Context, x: str, scale: str, zero: str) -> str:
    """(x - zero) * scale in float32."""
    value = c.emit("dequantize", [x, scale, zero])
    if value in c.builder.constants and len(c.shape(x)) > 0:
        c.scaled[value] = x, scale, zero
    return value


def zero_point(c: Context, n: OnnxNode, k: int, dtype: str) -> str:
    """Operand k, or a zero of `dtype` where it is left out."""
    return c.operand(n, k) if c.has(n, k) else c.constant(np.zeros((), dtype))


def spread(c: Context, value: str, like: tuple[int, ...], axis: int, block: int = 0) -> str:
    """A scale or zero point of one element, per axis or per block in a shape that broadcasts."""
    shape = c.shape(value)
    if block:
        axis = axis_of(axis, len(like))
        blocks = tuple(-(-e // block) if d == axis else e for d, e in enumerate(like))
        if shape != blocks:
            raise ModelError(f"{c.type(value)} for blocks of {block} needs shape {list(blocks)}")
        split = (*like[:axis], blocks[axis], 1, *like[axis + 1 :])
        full = (*like[:axis], blocks[axis], block, *like[axis + 1 :])
        value = c.emit("reshape", [value], shape=split)
        value = c.emit("expand", [value], shape=full)
        whole = tuple(e * block if d == axis else e for d, e in enumerate(blocks))
        value = c.emit("reshape", [value], shape=whole)
        if whole == like:
            return value
        zeros, ones = (0,) * len(like), (1,) * len(like)
        return c.emit("slice", [value], starts=zeros, sizes=like, steps=ones)
    if math.prod(shape) == 1:
        return c.emit("reshape", [value], shape=()) if shape else value
    axis = axis_of(axis, len(like))
    if len(shape) != 1 or shape[0] != like[axis]:
        raise ModelError(
            f"{c.type(value)} is no element for each of {like[axis]} along axis {axis}"
        )
    return c.emit("reshape", [value], shape=(*shape, *(1,) * (len(like) - axis - 1)))


def _dtype(c: Context, n: OnnxNode) -> str:
    """The dtype of integers that QuantizeLinear makes."""
    given = c.dtypes.get(int(n.attrs.get("output_dtype", 0)), "undefined")
    dtype = "uint8" if given == "undefined" else given
    if c.has(n, 2):
        dtype = c.type(c.operand(n, 2)).dtype
    if dtype not in STORED:
        raise ModelError(f"quantisation to {dtype} is not supported, only to {', '.join(STORED)}")
    return dtype


def _ends(c: Context, n: OnnxNode, zero: str) -> tuple[str, str]:
    """Scale and zero point in shapes that broadcast to operand 0."""
    like = c.shape(c.operand(n, 0))
    axis, block = int(n.attrs.get("axis", 1)), int(n.attrs.get("block_size", 0))
    ends = [spread(c, v, like, axis, block) for v in (c.operand(n, 1), zero)]
    return ends[0], ends[1]


def quantize_linear(c: Context, n: OnnxNode) -> str:
    dtype = _dtype(c, n)
    if not c.has(n, 2):
        zero = c.constant(np.zeros(c.shape(c.operand(n, 1)), dtype))
    else:
        zero = c.operand(n, 2)
    return quantized(c, c.operand(n, 0), *_ends(c, n, zero))


def dequantize_linear(c: Context, n: OnnxNode) -> str:
    x, like = c.operand(n, 0), c.shape(c.operand(n, 1))
    zero = c.operand(n, 2) if c.has(n, 2) else c.constant(np.zeros(like, c.type(x).dtype))
    scale, zero = _ends(c, n, zero)
    if n.outputs[0] and n.inputs[1] in c.lows and n.schema is None:
        c.lows[n.outputs[0]] = c.lows[n.inputs[1]]
    return dequantized(c, x, scale, zero)


def dynamic_quantize_linear(c: Context, n: OnnxNode) -> tuple[str, str, str]:
    return dynamically(c, c.operand(n, 0))


def dynamically(c: Context, x: str) -> tuple[str, str, str]:
    """(x as uint8, scale, zero point) where the range of x and 0 takes all of uint8."""
    if c.type(x).size == 0:
        raise ModelError(f"{c.type(x)} has no element and no range")
    ends = c.emit("quantization_range", [x])
    scale, point = (c.emit("part", [ends], start=k, shape=()) for k in (0, 1))
    return c.emit("quantize", [x, scale, point], dtype="uint8"), scale, cast_point(c, point)


def cast_point(c: Context, point: str) -> str:
    """A zero point that was computed in float32, as uint8."""
    return c.emit("cast", [point], dtype="uint8")


# ---- products -----------------------------------------------------------------------------------


def centred(c: Context, x: str, zero: str | None) -> str:
    """x - zero in int32."""
    wide = conditions.cast_to(c, x, "int32")
    if zero is None or _is_zero(c, zero):
        return wide
    return c.emit("sub", [wide, conditions.cast_to(c, zero, "int32")])


def _is_zero(c: Context, value: str) -> bool:
    known = c.builder.constants.get(value)
    return known is not None and not known.any()


def rows(c: Context, value: str, like: tuple[int, ...]) -> str:
    """A zero point or scale of one element, or of one for each row of matrices `like`."""
    shape = c.shape(value)
    if math.prod(shape) == 1 or len(shape) > 1:
        return spread(c, value, like, 0) if math.prod(shape) == 1 else value
    return c.emit("reshape", [value], shape=(*shape, 1))


def columns(c: Context, value: str, like: tuple[int, ...]) -> str:
    """A zero point or scale of one element, or of one for each column of matrices `like`."""
    return spread(c, value, like, 0) if math.prod(c.shape(value)) == 1 else value


def product(c: Context, a: str, b: str, zero_a: str | None, zero_b: str | None) -> str:
    """(a - zero_a) @ (b - zero_b) in int32."""
    left, right = c.shape(a), c.shape(b)
    za = None if zero_a is None else rows(c, zero_a, left)
    zb = None if zero_b is None else columns(c, zero_b, right)
    return matmul.product(c, centred(c, a, za), centred(c, b, zb))


def _optional(c: Context, n: OnnxNode, k: int) -> str | None:
    return c.operand(n, k) if c.has(n, k) else None


def matmul_integer(c: Context, n: OnnxNode) -> str:
    zeros = _optional(c, n, 2), _optional(c, n, 3)
    return product(c, c.operand(n, 0), c.operand(n, 1), *zeros)


def convolution(
    c: Context, n: OnnxNode, operands: tuple[int, int], zeros: tuple[str | None, str | None]
) -> str:
    """The convolution of the operands at these places less their zero points, in int32."""
    if n.attrs.get("channels_last", 0):
        raise ModelError("channels_last=1 is not supported: export the model with channels first")
    x, w = (c.operand(n, k) for k in operands)
    zero_x, zero_w = zeros
    zero_x = None if zero_x is None else spread(c, zero_x, c.shape(x), 1)
    zero_w = None if zero_w is None else spread(c, zero_w, c.shape(w), 0)
    parts = [centred(c, x, zero_x), centred(c, w, zero_w)]
    return windows.convolved(c, n, c.shape(x)[2:], parts)


def conv_integer(c: Context, n: OnnxNode) -> str:
    return convolution(c, n, (0, 1), (_optional(c, n, 2), _optional(c, n, 3)))


def factor(c: Context, scales: list[str], over: str | None) -> str:
    """The product of scales, divided by the result's, in the order of onnxruntime."""
    known: list[Any] = [c.builder.constants.get(v) for v in [*scales, *([over] if over else [])]]
    if all(v is not None for v in known):
        first = known[0]
        for v in known[1 : len(scales)]:
            first = first * v
        return c.constant(np.asarray(first if over is None else first / known[-1], np.float32))
    out = scales[0]
    for v in scales[1:]:
        out = c.emit("mul", [out, v])
    return out if over is None else c.emit("div", [out, over])


def requantized(c: Context, total: str, scale: str, zero: str) -> str:
    """Sums of products in int32, by a factor, as integers of the dtype of `zero`."""
    scaled = c.emit("mul", [conditions.cast_to(c, total, "float32"), scale])
    return quantized(c, scaled, c.constant(np.ones((), np.float32)), zero)


def qlinear_matmul(c: Context, n: OnnxNode) -> str:
    a, scale_a, zero_a, b, scale_b, zero_b, scale, zero = (c.operand(n, k) for k in range(8))
    total = product(c, a, b, zero_a, zero_b)
    scale_a, scale_b = rows(c, scale_a, c.shape(a)), columns(c, scale_b, c.shape(b))
    scale, zero = rows(c, scale, c.shape(total)), rows(c, zero, c.shape(total))
    return requantized(c, total, factor(c, [scale_a, scale_b], scale), zero)


def qlinear_conv(c: Context, n: OnnxNode) -> str:
    scale_x, zero_x, scale_w, zero_w, scale, zero = (c.operand(n, k) for k in (1, 2, 4, 5, 6, 7))
    total = convolution(c, n, (0, 3), (zero_x, zero_w))
    full = c.shape(total)
    if c.has(n, 8):
        total = c.emit("add", [total, spread(c, c.operand(n, 8), full, 1)])
    scales = [spread(c, scale_x, full, 1), spread(c, scale_w, full, 1)]
    by = factor(c, scales, spread(c, scale, full, 1))
    return requantized(c, total, by, spread(c, zero, full, 1))


READERS: dict[str, Any] = {
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
