"""Passes for products of bytes whose scale and zero point are computed (DynamicQuantizeLinear).

In: a graph after `integers.in_bytes`: a product of stored bytes, less the sums of the weights times
the zero point, as float32 times scales. Out: one node behind the product for all of it, and what
follows a product in the product's shape, so that it is computed where the product is.
"""

import numpy as np

from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.types import ints

PRODUCTS = ("matmul_u8s8", "conv_u8s8", "conv_u8", "rows_u8s8")


def rescaled(graph: Graph) -> Graph:
    """rewrite: float(product - sums * int(uint8(point))) * (step * factor)
    -> rescale(product, sums, point, step, factor)"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op != "mul" or (r.shape(xs[0]) != r.shape(xs[1]) and r.known(xs[0]) is not None):
            return None
        total, scale = xs if r.size(xs[0]) >= r.size(xs[1]) else xs[::-1]
        wide = r.sole(total, "cast")
        moved = None if wide is None else r.sole(wide.inputs[0], "sub")
        if wide is None or moved is None or wide.attrs["dtype"] != "float32":
            return None
        shift = r.builder.producers.get(moved.inputs[1])
        product = r.builder.producers.get(moved.inputs[0])
        if shift is None or shift.op != "mul" or product is None or product.op not in PRODUCTS:
            return None
        sums, zero = shift.inputs
        point = _point(r, zero)
        if point is None or r.known(sums) is None or r.dtype(scale) != "float32":
            return None
        if r.shape(total) != graph.types[node.output].shape:
            return None
        step, factor = scale, ""
        inner = r.builder.producers.get(scale)
        if inner is not None and inner.op == "mul" and r.known(inner.inputs[1]) is not None:
            step, factor = inner.inputs
        elif inner is not None and inner.op == "mul" and r.known(inner.inputs[0]) is not None:
            factor, step = inner.inputs
        factor = factor or r.constant(np.ones((), np.float32))
        return r.emit("rescale", [product.output, sums, point, step, factor], node.output)

    return rewrite(graph, rule)


def _point(r: Rewriter, zero: str) -> str | None:
    """The float32 of which int32(uint8(point)) is made; None for another zero point."""
    node = r.builder.producers.get(zero)
    inner = None if node is None else r.builder.producers.get(node.inputs[0])
    if node is None or inner is None or node.op != "cast" or inner.op != "cast":
        return None
    whole = r.dtype(inner.output) == "uint8" and r.dtype(inner.inputs[0]) == "float32"
    return inner.inputs[0] if whole else None


def sink_views(graph: Graph) -> Graph:
    """rewrite: op(reshape(x), y) -> reshape(op(x, reshape(y))) for element-wise op behind products
    of bytes, where the reshape adds or drops axes of extent 1"""
    behind = set[str]()  # values that products of bytes and element-wise operators behind compute

    def source(r: Rewriter, value: str) -> str | None:
        node = r.builder.producers.get(value)
        if node is None or node.op != "reshape" or node.inputs[0] not in behind:
            return None
        old, new = r.shape(node.inputs[0]), r.shape(value)
        return node.inputs[0] if [n for n in old if n > 1] == [n for n in new if n > 1] else None

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op in PRODUCTS:
            out = r.builder.emit(node.op, xs, node.output, node.name, **node.attrs)
            behind.add(out)
            return out
        if node.op == "reshape" and xs[0] not in behind and (inner := source(r, xs[0])) is not None:
            return r.emit("reshape", [inner], node.output, shape=ints(node.attrs, "shape"))
        if node.operator.kind != "elementwise":
            return None
        full = graph.types[node.output].shape
        found = [s for v in xs if (s := source(r, v)) is not None and r.shape(v) == full]
        if found and all(_follows(r, v, full) for v in xs):
            shape = r.shape(found[0])
            own = [
                v if r.size(v) == 1 or len(r.shape(v)) == 1 < len(full)
                else source(r, v) or r.emit("reshape", [v], shape=shape)
                for v in xs
            ]  # fmt: skip
            if all(r.shape(s) == shape for s in found):
                out = r.emit(node.op, own, node.output, **node.attrs)
                behind.add(out)
                return r.emit("reshape", [out], shape=full)
        if any(v in behind for v in xs):
            out = r.builder.emit(node.op, xs, node.output, node.name, **node.attrs)
            behind.add(out)
            return out
        return None

    return rewrite(graph, rule)


def _follows(r: Rewriter, value: str, full: tuple[int, ...]) -> bool:
    """Whether an operand has all elements, one for each of the last axis, or one."""
    shape = r.shape(value)
    return shape == full or (r.size(value) == 1 and not shape) or shape == full[-1:]
