"""Passes for networks that are quantised by QuantizeLinear and DequantizeLinear (QDQ).

In: a graph in which `dequantize` stands before products, pools, sums and moves, and `quantize`
behind. Out: products of integers whose factor, bias and activation are part of the rounding that
follows; what moves or is pooled is bytes. `integers.in_bytes` then makes dot products of such
products. Results differ from those in floats by rounding alone.
"""

from typing import Any, NamedTuple

import numpy as np

from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.integers import MIDDLE
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.types import Array, Attr, literal, text
from ansorlite.ir.literals import range_of

# Operators that choose or move elements: of operand 0 alone, or of all operands.
MOVES = ("reshape", "transpose", "slice", "part", "expand", "max_pool", "take")
BYTES = ("int8", "uint8")
SAME = 1e-5  # relative difference of two scales that are computed from the same factors


class Scaled(NamedTuple):
    """Operands of a `dequantize`: integers, scale and zero point."""

    data: str
    scale: str
    zero: str


class Stored(NamedTuple):
    """A constant as (integers - zero) * scale."""

    data: Array
    scale: Array
    zero: Array


def integer_products(graph: Graph) -> Graph:
    """rewrite: product(dequantize(x), dequantize(w)) + b -> float(product(x - zx, w - zw) + b) * s;
    move(dequantize(x)) -> dequantize(move(x)); quantize(dequantize(x)) of one scale -> x"""
    stored: dict[str, Stored] = {}

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op == "dequantize":
            data, scale, zero = (r.known(v) for v in xs)
            if data is None or scale is None or zero is None:
                return None
            value = r.emit("dequantize", xs, node.output)
            stored[value] = Stored(data, scale, zero)
            return value
        found = [_scaled(r, v) for v in xs]
        if node.op in ("conv", "matmul", "gemm"):
            w = stored.get(xs[1])
            return (
                None
                if w is None or found[0] is None
                else _product(r, node, xs, found[0], w, stored)
            )
        if node.op == "quantize":
            x = found[0]
            return x.data if x is not None and _unchanged(r, node, xs, x) else None
        return _moved(r, node, xs, found)

    return rewrite(graph, rule)


def _scaled(r: Rewriter, value: str) -> Scaled | None:
    """The integers of a value, if they have one scale and one zero point."""
    node = r.builder.producers.get(value)
    if node is None or node.op != "dequantize":
        return None
    x = Scaled(*node.inputs)
    return x if r.size(x.scale) == r.size(x.zero) == 1 else None


def _unchanged(r: Rewriter, node: Node, xs: list[str], x: Scaled) -> bool:
    """Whether quantising gives back the integers of x."""
    scales, points = ([r.known(a), r.known(b)] for a, b in ((x.scale, xs[1]), (x.zero, xs[2])))
    if any(v is None or v.size != 1 for v in (*scales, *points)):
        return False
    same = scales[0].item() == scales[1].item() and points[0].item() == points[1].item()  # type: ignore[union-attr]
    return same and r.dtype(x.data) == text(node.attrs, "dtype")


def _product(
    r: Rewriter, node: Node, xs: list[str], x: Scaled, w: Stored, stored: dict[str, Stored]
) -> str | None:
    """The product of integers, scaled; None where scales differ along the axis that is summed."""
    turned = node.op == "gemm" and bool(node.attrs["trans_b"])
    columns = 0 if node.op == "conv" or turned else w.data.ndim - 1
    if r.dtype(x.data) not in BYTES or str(w.data.dtype) not in BYTES or w.data.ndim < 2:
        return None
    if node.op == "gemm" and (node.attrs["trans_a"] or node.attrs["alpha"] != 1.0):
        return None
    if node.op == "gemm" and len(xs) > 2 and node.attrs["beta"] != 1.0:
        return None
    by = _along(w.scale, w.data.ndim, columns)
    if by is None:
        return None
    whole = w.data.astype(np.int32) - w.zero.astype(np.int32)
    if whole.shape != w.data.shape:
        return None
    weights = r.constant(whole.T if turned else whole, f"{xs[1]}.int32")
    data = r.emit("cast", [x.data], dtype="int32")
    point = r.known(x.zero)
    if point is None or point.any():
        zero = r.emit("cast", [r.emit("reshape", [x.zero], shape=())], dtype="int32")
        data = r.emit("sub", [data, zero])
    op = "conv" if node.op == "conv" else "matmul"
    attrs: dict[str, Attr] = dict(node.attrs) if op == "conv" else {}
    out = r.emit(op, [data, weights], f"{node.output}.int32", **attrs)
    beyond = len(r.shape(out)) - 2 if op == "conv" else 0  # axes behind that of the columns
    scale = r.emit("reshape", [x.scale], shape=())
    factor = r.emit(
        "mul",
        [r.constant(by.reshape(-1, *(1,) * beyond) if by.size > 1 else by.reshape(())), scale],
    )
    bias = xs[2] if len(xs) > 2 else None
    shape = (-1, *(1,) * beyond)
    if bias is not None and (whole_bias := _whole_bias(r, bias, factor, stored)) is not None:
        if whole_bias.ndim == 1:
            whole_bias = whole_bias.reshape(shape)
        out, bias = r.emit("add", [out, r.constant(whole_bias, f"{bias}.int32")]), None
    out = r.emit("mul", [r.emit("cast", [out], dtype="float32"), factor], node.output)
    if bias is None:
        return out
    if op == "conv":
        bias = r.emit("reshape", [bias], shape=(r.size(bias), *(1,) * beyond))
    return r.emit("add", [out, bias], node.output)


def _along(scale: Array, rank: int, axis: int) -> Array | None:
    """A scale for each element along an axis, or one for all; None for others."""
    full = (1,) * (rank - scale.ndim) + scale.shape
    others = [n for d, n in enumerate(full) if d != axis]
    return scale.reshape(-1) if set(others) <= {1} else None


def _whole_bias(r: Rewriter, bias: str, factor: str, stored: dict[str, Stored]) -> Array | None:
    """A bias of int32 in units of the product's factor; None for any other."""
    b, by = stored.get(bias), r.known(factor)
    if b is None or by is None or b.data.dtype != np.int32 or b.zero.any() or b.data.ndim > 1:
        return None
    own = b.scale.reshape(-1).astype(np.float64)
    if not np.allclose(own, by.reshape(-1).astype(np.float64), rtol=SAME, atol=0.0):
        return None
    return b.data


def _moved(r: Rewriter, node: Node, xs: list[str], found: list[Scaled | None]) -> str | None:
    """A move of scaled integers as the integers moved, then scaled."""
    first = found[0] if found else None
    if first is None or r.dtype(first.data) not in BYTES:
        return None
    attrs = dict(node.attrs)
    point, scale = r.known(first.zero), r.known(first.scale)
    if node.op == "concat":
        if any(v is None for v in found) or point is None or scale is None:
            return None
        if not all(v is not None and _equal(r, v, first) for v in found):
            return None
        operands = [v.data for v in found if v is not None]
    elif node.op == "pad":
        if point is None or literal(node.attrs, "value") != 0:
            return None
        attrs["value"], operands = int(point.item()), [first.data]
    elif node.op in MOVES:
        if node.op == "max_pool" and (scale is None or scale.item() <= 0):
            return None
        operands = [first.data, *xs[1:]]
    else:
        return None
    moved = r.emit(node.op, operands, f"{node.output}.stored", **attrs)
    ends = [
        r.emit("reshape", [v], shape=()) if r.shape(v) else v for v in (first.scale, first.zero)
    ]
    return r.emit("dequantize", [moved, *ends], node.output)


def _equal(r: Rewriter, a: Scaled, b: Scaled) -> bool:
    if r.dtype(a.data) != r.dtype(b.data):
        return False
    pairs = ((r.known(x), r.known(y)) for x, y in ((a.scale, b.scale), (a.zero, b.zero)))
    return all(x is not None and y is not None and x.item() == y.item() for x, y in pairs)


# ---- rounding -----------------------------------------------------------------------------------


def fold_steps(graph: Graph) -> Graph:
    """rewrite: quantize(x * f, s, z) -> requantize(x, z, f / s), through sums, clips and relu;
    quantize(relu(x)) -> requantize(x) where the zero point is the least integer

    Factors and zero points are operands of kernels, so that layers of equal sizes are one task.
    """

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "quantize":
            return None
        step: Any = r.known(xs[1])
        x, point = xs[0], r.known(xs[2])
        if step is None or not np.all(np.isfinite(step) & (step > 0)):
            return None
        if not np.all(step == 1):
            divided = _divided(r, x, step)
            inverse = _quotient(r, np.ones((), np.float32), step)
            if divided is None and (inverse is None or x not in r.builder.producers):
                return None  # what the network is given is rounded as it is written
            if divided is None and inverse is not None:
                return r.emit("requantize", [x, xs[2], inverse], node.output, **node.attrs)
            x = divided or x
        low = range_of(text(node.attrs, "dtype"))[0]
        below = r.sole(x, "relu")
        if below is not None and point is not None and np.all(point == low):
            x = below.inputs[0]
        inner = r.sole(x, "mul")
        factor = None if inner is None else r.known(inner.inputs[1])
        if inner is None or factor is None or r.shape(inner.inputs[0]) != r.shape(x):
            if x == xs[0]:
                return None
            return r.emit("requantize", [x, xs[2]], node.output, **node.attrs)
        operands = [inner.inputs[0], xs[2], inner.inputs[1]]
        return r.emit("requantize", operands, node.output, **node.attrs)

    return rewrite(graph, rule)


DEEPEST = 16  # nodes through which a quotient moves


def _divided(r: Rewriter, value: str, step: Any, depth: int = DEEPEST) -> str | None:
    """value / step without a division at run time, if there is such a form."""
    node = r.builder.producers.get(value)
    known = r.known(value)
    with np.errstate(all="ignore"):
        if known is not None:
            return _quotient(r, known, step)
        if node is None or depth == 0:
            return None
        if node.op == "dequantize":
            scale = r.known(node.inputs[1])
            by = None if scale is None else _quotient(r, scale, step)
            if by is None:
                return None
            return r.emit("dequantize", [node.inputs[0], by, node.inputs[2]])
        if r.sole(value) is None:
            return None
        match node.op:
            case "mul":
                factor = r.known(node.inputs[1])
                by = None if factor is None else _quotient(r, factor, step)
                return None if by is None else r.emit("mul", [node.inputs[0], by], node.output)
            case "add" | "sub":
                sides = [_divided(r, v, step, depth - 1) for v in node.inputs]
                if sides[0] is None or sides[1] is None:
                    return None
                return r.emit(node.op, [sides[0], sides[1]], node.output)
            case "relu":
                x = _divided(r, node.inputs[0], step, depth - 1)
                return None if x is None else r.emit("relu", [x], node.output)
            case "clip":
                x = _divided(r, node.inputs[0], step, depth - 1) if step.size == 1 else None
                if x is None:
                    return None
                ends = {k: float(literal(node.attrs, k)) / step.item() for k in ("min", "max")}
                return r.emit("clip", [x], node.output, min=ends["min"], max=ends["max"])
    return None


def _quotient(r: Rewriter, x: Any, step: Any) -> str | None:
    """A constant by a step; None where the quotient is no normal number."""
    if x.dtype != np.float32:
        return None
    out = x / step
    fits = np.isfinite(out) & ((np.abs(out) >= np.finfo(np.float32).tiny) | (x == 0))
    return r.constant(out.astype(np.float32)) if np.all(fits) else None


# ---- signs --------------------------------------------------------------------------------------


def unsigned(graph: Graph) -> Graph:
    """rewrite: integers of int8 that are rounded here -> uint8, 128 more, with their zero points"""
    raised: dict[str, str] = {}  # value of int8 -> the same as uint8

    def lowered(r: Rewriter, value: str, name: str) -> str:
        """uint8 less 128 as int8; nothing computes it where nothing reads it."""
        wide = r.emit("cast", [value], dtype="int32")
        moved = r.emit("add", [wide, r.constant(np.asarray(-MIDDLE, np.int32))])
        out = r.emit("cast", [moved], name, dtype="int8")
        raised[out] = value
        return out

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op in ("quantize", "requantize") and node.attrs["dtype"] == "int8":
            at = 2 if node.op == "quantize" else 1
            point: Any = r.known(xs[at])
            if point is None:
                return None
            operands = list(xs)
            operands[at] = r.constant(point + np.float32(MIDDLE))
            value = r.emit(node.op, operands, f"{node.output}.uint8", dtype="uint8")
            return lowered(r, value, node.output)
        if not xs or xs[0] not in raised:
            return None
        if node.op == "dequantize":
            point = r.known(xs[2])
            if point is None:
                return None
            zero = r.constant((point.astype(np.int32) + MIDDLE).astype(np.uint8))
            return r.emit("dequantize", [raised[xs[0]], xs[1], zero], node.output)
        if node.op == "cast" and node.attrs["dtype"] == "int32":
            wide = r.emit("cast", [raised[xs[0]]], dtype="int32")
            middle = r.constant(np.asarray(-MIDDLE, np.int32))
            return r.emit("add", [wide, middle], node.output)
        name = f"{node.output}.uint8"
        if node.op == "pad":
            attrs = {**node.attrs, "value": int(literal(node.attrs, "value")) + MIDDLE}
            return lowered(r, r.emit("pad", [raised[xs[0]]], name, **attrs), node.output)
        if node.op == "concat" and all(v in raised for v in xs):
            out = r.emit("concat", [raised[v] for v in xs], name, **node.attrs)
            return lowered(r, out, node.output)
        if node.op in MOVES:
            out = r.emit(node.op, [raised[xs[0]], *xs[1:]], name, **node.attrs)
            return lowered(r, out, node.output)
        return None

    return rewrite(graph, rule)
