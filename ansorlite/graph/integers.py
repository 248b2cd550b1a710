"""The pass for products of integers of 8 bits: four at a time, by dot-product instructions.

In: an optimised `Graph` in which quantised operators are products of int32: of data less a zero
point, uint8 or int8 as it is stored, with constant weights. Out: products of the stored bytes and
packed weights, less the zero point times the sums of the weights; several products where weights
have nine bits. Results are the same to the bit, also where they wrap.
"""

from typing import NamedTuple

import numpy as np

from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.ops.low_precision import U8S8, packed_weights
from ansorlite.graph.types import Array, pairs

MIDDLE = 128  # added to int8, makes it uint8


class Bytes(NamedTuple):
    """A value of int32 as it is stored: uint8 `data` less `zero`, one int32 (None: 0)."""

    data: str
    zero: str | None


def in_bytes(graph: Graph) -> Graph:
    """rewrite: product(int32(x) - z, w) -> product_u8s8(x, packed w) - z * sums of w"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        w = _weights(r, node, xs)
        found = None if w is None else _bytes(r, xs[0])
        if w is None or found is None:
            return None
        data, zero = found
        border = []
        if zero is not None and node.op == "conv" and any(map(any, pairs(node.attrs, "pads"))):
            known = r.known(zero)
            if known is not None and not 0 <= known.item() <= 255:
                return None
            border.append(r.emit("cast", [zero], dtype="uint8"))
        attrs = {k: v for k, v in node.attrs.items() if k != "groups"}
        out = ""
        for part in _in_range(w):
            words = r.constant(packed_weights(U8S8, part), f"{xs[1]}.u8s8")
            one = r.emit(f"{node.op}_u8s8", [data, words, *border], "", **attrs)
            out = r.emit("add", [one, out]) if out else one
        if zero is None:
            return out
        sums = w.sum(axis=tuple(range(w.ndim - 1)), dtype=np.int64).astype(np.int32)
        shift = r.emit("mul", [r.constant(sums, f"{xs[1]}.sums"), zero])
        return r.emit("sub", [out, shift], node.output)

    return rewrite(graph, rule)


def _weights(r: Rewriter, node: Node, xs: list[str]) -> Array | None:
    """The constant weights [.., n, columns] of a product that bytes may hold; None for others."""
    if node.op not in ("conv", "matmul") or len(xs) != 2 or r.dtype(xs[0]) != "int32":
        return None
    w = r.known(xs[1])
    if w is None or w.ndim < 2 or w.shape[-2] % U8S8.depth or not w.size:
        return None
    if node.op == "conv" and (node.attrs["groups"] != 1 or node.attrs["layout"] != "channels_last"):
        return None
    if node.op == "matmul" and w.ndim != 2:
        return None
    return w if int(w.min()) > -2 * MIDDLE and int(w.max()) < 2 * MIDDLE else None


def _in_range(w: Array) -> list[Array]:
    """Weights that a byte holds and whose sum is w: one, or more for uint8 less a zero point."""
    parts, rest = list[Array](), w
    while not parts or rest.any():
        parts.append(np.clip(rest, -MIDDLE, MIDDLE - 1))
        rest = np.subtract(rest, parts[-1])
    return parts


def _bytes(r: Rewriter, value: str) -> Bytes | None:
    """How a value of int32 follows from bytes; None where it does not."""
    node = r.builder.producers.get(value)
    if node is None:
        return None
    match node.op:
        case "cast":
            return _stored(r, node.inputs[0])
        case "transpose" | "reshape":
            inner = _bytes(r, node.inputs[0])
            if inner is None:
                return None
            return Bytes(r.emit(node.op, [inner.data], "", **node.attrs), inner.zero)
        case "sub" | "add":
            x, z = node.inputs
            known = r.known(z)
            if r.size(z) != 1 or r.shape(x) != r.shape(value):
                return None
            inner = _bytes(r, x)
            if inner is None or (node.op == "add" and known is None):
                return None
            own = r.constant(np.negative(known)) if node.op == "add" and known is not None else z
            own = r.emit("reshape", [own], shape=()) if r.shape(own) else own
            if inner.zero is not None:
                own = r.emit("add", [own, inner.zero])
            return Bytes(inner.data, own)
    return None


def _stored(r: Rewriter, value: str) -> Bytes | None:
    """An integer as it is stored, as uint8."""
    if r.dtype(value) == "uint8":
        return Bytes(value, None)
    if r.dtype(value) != "int8":
        return None
    middle = r.constant(np.asarray(MIDDLE, np.int32))
    moved = r.emit("add", [r.emit("cast", [value], dtype="int32"), middle])
    return Bytes(r.emit("cast", [moved], dtype="uint8"), middle)
