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
from ansorlite.graph.ops.low_precision import U8S8, packed_rows, packed_weights
from ansorlite.graph.types import Array, broadcast, ints, pairs

MIDDLE = 128  # added to int8, makes it uint8
LEAST = 3  # terms of a product for which zeros are added to make four


class Bytes(NamedTuple):
    """A value of int32 as it is stored: uint8 `data` less `zero`, one int32 (None: 0)."""

    data: str
    zero: str | None


def in_bytes(graph: Graph) -> Graph:
    """rewrite: product(int32(x) - z, w) -> product_u8s8(x, packed w) - z * sums of w; convolutions
    of groups -> conv_u8(x, w) - z * sums of w; (y + b) + c -> y + (b + c) for constants"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.op in ("add", "sub"):
            return _merged(r, node, xs)
        w = _weights(r, node, xs)
        found = None if w is None else _bytes(r, xs[0])
        if w is None or found is None:
            return None
        data, zero = found
        operands, attrs = list[str](), dict(node.attrs)
        if node.op == "conv":
            attrs["border"] = 0
        if zero is not None and node.op == "conv" and any(map(any, pairs(node.attrs, "pads"))):
            known = r.known(zero)
            if known is not None and not 0 <= known.item() <= 255:
                return None
            if known is not None:
                attrs["border"] = int(known.item())
            else:
                operands.append(r.emit("cast", [zero], dtype="uint8"))
        if node.op == "conv" and not _is_dot(node, w):
            if operands:
                return None
            name = "" if zero else node.output
            if _is_rows(node, w):
                attrs.pop("groups")
                attrs["kernel"] = w.shape[:2]
                out = r.emit("rows_u8s8", [data, r.constant(packed_rows(w))], name, **attrs)
            else:
                out = r.emit("conv_u8", [data, xs[1]], name, **attrs)
        else:
            attrs.pop("groups", None)
            data, rows = _whole_words(r, data, w)
            out = ""
            for part in _in_range(rows):
                words = r.constant(packed_weights(U8S8, part), f"{xs[1]}.u8s8")
                one = r.emit(f"{node.op}_u8s8", [data, words, *operands], "", **attrs)
                out = r.emit("add", [one, out]) if out else one
        if zero is None:
            return out
        sums = w.sum(axis=tuple(range(w.ndim - 1)), dtype=np.int64).astype(np.int32)
        shift = r.emit("mul", [r.constant(sums, f"{xs[1]}.sums"), zero])
        if (known := r.known(shift)) is not None:
            return r.emit("add", [out, r.constant(np.negative(known))], node.output)
        return r.emit("sub", [out, shift], node.output)

    return rewrite(graph, rule)


def scale_apart(graph: Graph) -> Graph:
    """rewrite: bytes that are scaled once for several readers -> scaled for each of them

    So a value is stored as bytes, and each of the kernels that read it computes the scaled one.
    """

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        own = list(xs)
        for k, v in enumerate(xs):
            inner = r.builder.producers.get(v)
            if inner is not None and inner.op == "dequantize" and r.uses.get(v, 1) > 1:
                own[k] = r.emit("dequantize", inner.inputs)
        return None if own == xs else r.emit(node.op, own, node.output, **node.attrs)

    return rewrite(graph, rule)


def _merged(r: Rewriter, node: Node, xs: list[str]) -> str | None:
    """(y + b) + c of int32 as y + (b + c)."""
    inner, c = r.sole(xs[0], "add"), r.known(xs[1])
    b = None if inner is None else r.known(inner.inputs[1])
    if inner is None or b is None or c is None or r.dtype(xs[0]) != "int32":
        return None
    if not r.shape(inner.inputs[0]) == r.shape(xs[0]) == broadcast([r.shape(xs[0]), c.shape]):
        return None
    both = np.add(b, c) if node.op == "add" else np.subtract(b, c)
    return r.emit("add", [inner.inputs[0], r.constant(both)], node.output)


def _weights(r: Rewriter, node: Node, xs: list[str]) -> Array | None:
    """The constant weights [.., n, columns] of a product that bytes may hold; None for others."""
    if node.op not in ("conv", "matmul") or len(xs) != 2 or r.dtype(xs[0]) != "int32":
        return None
    w = r.known(xs[1])
    if w is None or w.ndim < 2 or not w.size:
        return None
    if node.op == "conv" and node.attrs["layout"] != "channels_last":
        return None
    if node.op == "matmul" and (w.ndim != 2 or w.shape[0] < LEAST):
        return None
    return w if int(w.min()) > -2 * MIDDLE and int(w.max()) < 2 * MIDDLE else None


def _is_dot(node: Node, w: Array) -> bool:
    """Whether a convolution is computed four terms at a time, with terms of 0 to make four."""
    return node.attrs["groups"] == 1 and w.shape[-2] >= LEAST


def _is_rows(node: Node, w: Array) -> bool:
    """Whether each channel has a kernel of its own, of several rows of int8."""
    whole = int(w.min()) >= -MIDDLE and int(w.max()) < MIDDLE
    alone = w.ndim == 4 and w.shape[2] == 1 and w.shape[3] == node.attrs["groups"]
    return whole and alone and w.shape[0] > 1


def _whole_words(r: Rewriter, data: str, w: Array) -> tuple[str, Array]:
    """Data and weights with zeros behind the terms, which then are a multiple of four."""
    more = -w.shape[-2] % U8S8.depth
    if not more:
        return data, w
    none = ((0, 0),)
    rows = np.pad(w, none * (w.ndim - 2) + ((0, more),) + none)
    move = r.builder.producers.get(data)
    rank = len(r.shape(data))
    order = ints(move.attrs, "perm") if move is not None and move.op == "transpose" else ()
    few = rank >= 3 and w.shape[-2] <= U8S8.depth
    if move is not None and few and order == (0, *range(2, rank), 1):
        return r.emit("words", move.inputs, f"{data}.words"), rows
    widths = none * (len(r.shape(data)) - 1) + ((0, more),)
    return r.emit("pad", [data], f"{data}.whole", pads=widths, value=0), rows


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
