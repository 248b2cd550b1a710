"""The pass that lowers precision: products and convolutions of bfloat16, with sums in float32.

In: an optimised `Graph`. Out: the graph in which constant weights of products are packed bfloat16,
and what such products read is stored as bfloat16. All else is computed in float32: sums, norms,
softmax, windows of single channels, products of an odd number of terms or of weights that are not
finite. An element-wise reader of a value that is stored as bfloat16 reads that.
"""

from typing import Literal, get_args

import numpy as np

from ansorlite.errors import UsageError
from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.ops.low_precision import BF16, packed_weights
from ansorlite.graph.types import Array

Precision = Literal["float32", "bf16"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
SAME_SIZE = ("reshape",)  # views before which values are converted


def check_precision(precision: str) -> None:
    """Raise a UsageError for a name that is none of PRECISIONS."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision is {precision!r}: choose one of {', '.join(PRECISIONS)}")


def lowered(graph: Graph, precision: str) -> Graph:
    """The graph in a precision; unchanged for "float32"."""
    check_precision(precision)
    return graph if precision == "float32" else _to_bfloat16(graph)


def _weights(graph: Graph, node: Node) -> Array | None:
    """The weights [.., n, columns] of a product that bfloat16 may have; None for other nodes."""
    if node.op not in ("conv", "matmul") or len(node.inputs) != 2:
        return None
    w = graph.constants.get(node.inputs[1])
    if w is None or w.dtype != np.float32 or w.ndim < 2 or w.shape[-2] % 2:
        return None
    if node.op == "conv" and (node.attrs["groups"] != 1 or node.attrs["layout"] != "channels_last"):
        return None
    if node.op == "matmul" and w.ndim != 2:
        return None
    return w if np.isfinite(w).all() else None


def _to_bfloat16(graph: Graph) -> Graph:
    """rewrite: product(x, w) -> product_bf16(to_bf16(x), packed w); readers of x read from_bf16"""
    products = {n.output: w for n in graph.nodes if (w := _weights(graph, n)) is not None}
    producers = {n.output: n for n in graph.nodes}
    low = {_source(producers, n.inputs[0]) for n in graph.nodes if n.output in products}
    low -= {*graph.inputs}
    bits: dict[str, str] = {}  # new names: value -> what it is as bfloat16

    def as_bits(r: Rewriter, value: str) -> str:
        if value not in bits:
            node = r.builder.producers.get(value)
            if node is not None and node.op in SAME_SIZE:
                inner = as_bits(r, node.inputs[0])
                bits[value] = r.emit(node.op, [inner], f"{value}.bf16", **node.attrs)
            else:
                bits[value] = r.emit("to_bf16", [value], f"{value}.bf16")
        return bits[value]

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        w = products.get(node.output)
        if w is not None:
            packed = r.constant(packed_weights(BF16, w), f"{node.inputs[1]}.bf16")
            attrs = {k: v for k, v in node.attrs.items() if k != "groups"}
            if node.op == "conv":
                attrs["border"] = 0
            return r.emit(f"{node.op}_bf16", [as_bits(r, xs[0]), packed], node.output, **attrs)
        if node.operator.kind != "elementwise" or not low & {*node.inputs}:
            return None
        read = [
            r.emit("from_bf16", [as_bits(r, x)], f"{x}.float32") if v in low else x
            for v, x in zip(node.inputs, xs, strict=True)
        ]
        return r.emit(node.op, read, node.output, **node.attrs)

    return rewrite(graph, rule)


def _source(producers: dict[str, Node], value: str) -> str:
    """The value before the views that lead to this one."""
    while (node := producers.get(value)) is not None and node.op in SAME_SIZE:
        value = node.inputs[0]
    return value
