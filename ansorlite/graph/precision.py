"""The pass that lowers precision: products and convolutions of bfloat16, with sums in float32.

In: an optimised `Graph`. Out: the graph in which products read packed weights and data that is
stored as bfloat16, and in which values between kernels are stored so, too, where no reader needs
more. All else is computed in float32: sums, norms, softmax, convolutions in groups, and what has
weights that are not finite. A reader in float32 of a value that is stored as bfloat16 reads that.
"""

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import Literal, get_args

import numpy as np

from ansorlite.errors import UsageError
from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.fuse import fuse
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.ops.low_precision import BF16, packed_weights
from ansorlite.graph.rounding import Rounding
from ansorlite.graph.types import Array
from ansorlite.ir.packed import bits_of

Precision = Literal["float32", "bf16", "auto"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
PRODUCTS = ("conv", "conv_transpose", "matmul")
# Of two activations: shorter sums, such as products of positions and frequencies, are no hot spot.
LEAST_TERMS = 16
SMALL = 1 / 32  # of the multiplications and of the weights of a network
VIEWS = ("reshape",)
MOVES = ("reshape", "transpose", "slice", "concat")  # of elements, whatever they are
# What makes of inputs with small relative errors results with small ones, above all.
KEEPING = {
    *("add", "mul", "div", "neg", "abs", "maximum", "minimum", "where"),
    *("relu", "leaky_relu", "clip", "sigmoid", "tanh", "erf"),
    *("max_pool", "sum_pool", "reduce_sum", "reduce_max", "reduce_min", "resample"),
    *("pad", "expand", *MOVES),
}
# What reads bits of bfloat16 within the same kernel, through `from_bf16`.
READING = KEEPING - {*VIEWS}


def check_precision(precision: str) -> None:
    """Raise a UsageError for a name that is none of PRECISIONS."""
    if precision not in PRECISIONS:
        raise UsageError(f"precision is {precision!r}: choose one of {', '.join(PRECISIONS)}")


def lowered(
    graph: Graph, precision: str, kept: Container[str] = (), rounding: Rounding | None = None
) -> Graph:
    """The graph in a precision; unchanged for "float32".

    Products whose results are among the values `kept` stay in float32, and so does what they read;
    for "bf16" the last ones, too, where they are a small part of the network. `rounding` has the
    weights of sizes of the same network.
    """
    check_precision(precision)
    if precision == "float32":
        return graph
    if precision == "bf16":
        kept = {*_last_small(graph), *(v for v in graph.types if v in kept)}
    low = _multiplied(graph, kept, rounding or Rounding())
    return _stored(low, kept)


def products(graph: Graph) -> tuple[str, ...]:
    """The results of the products and convolutions of an optimised graph that may be lowered."""
    return tuple(
        n.output
        for n in graph.nodes
        if n.op in PRODUCTS and (_is_product(graph, n) or _weights(graph, n) is not None)
    )


def _last_small(graph: Graph) -> set[str]:
    """The results of products that no other product depends on, where those take little time.

    Nothing after them evens out their errors, which are the outputs' own: in float32 they cost less
    than SMALL of the multiplications and of the weights of all.
    """
    size, weight = dict[str, int](), dict[str, int]()
    later = set[str]()  # values that a product depends on
    last = set[str]()
    for node in reversed(graph.nodes):
        if later & {*node.outputs} or node.op in PRODUCTS:
            later |= {*node.inputs}
        if node.op not in PRODUCTS:
            continue
        shapes = [graph.types[v].shape for v in (*node.inputs[:2], node.output)]
        data, w, out = (prod(s) for s in shapes)
        # Each element of the data of a transposed convolution meets co weights of each place.
        meets = data // shapes[1][-2] if node.op == "conv_transpose" else out // shapes[1][-1]
        size[node.output] = meets * w if node.inputs[1] in graph.constants else out * shapes[0][-1]
        weight[node.output] = w if node.inputs[1] in graph.constants else 0
        if not later & {*node.outputs}:
            last.add(node.output)
    for of in (size, weight):
        if sum(of[v] for v in last) > SMALL * sum(of.values()):
            return set()
    return last


def _weights(graph: Graph, node: Node) -> Array | None:
    """The weights of a product that bfloat16 may have; None for other nodes."""
    if node.op not in PRODUCTS or len(node.inputs) != 2:
        return None
    w = graph.constants.get(node.inputs[1])
    if w is None or w.dtype != np.float32 or w.ndim < 2:
        return None
    if node.op == "matmul" and w.ndim != 2:
        return None
    if node.op != "matmul" and node.attrs["layout"] != "channels_last":
        return None
    return w if np.isfinite(w).all() else None


def _is_product(graph: Graph, node: Node) -> bool:
    """Whether the node multiplies two activations, or one and a stack of weights."""
    if node.op != "matmul" or any(graph.types[v].dtype != "float32" for v in node.inputs):
        return False
    w = graph.constants.get(node.inputs[1])
    if w is not None and (w.ndim == 2 or not np.isfinite(w).all()):
        return False
    return graph.types[node.inputs[0]].shape[-1] >= LEAST_TERMS


def _moves_bits(node: Node, producers: Mapping[str, Node], given: Container[str]) -> bool:
    """Whether the node moves elements that can be bits before: no inputs of the network, which its
    kernel converts, and no product, whose kernel writes them where they belong."""
    if node.op not in MOVES or any(v in given for v in node.inputs):
        return False
    made = producers.get(node.inputs[0])
    return node.op != "transpose" or made is None or made.operator.transposed is None


class _Bits:
    """The new values that hold old or new ones as bits of bfloat16."""

    def __init__(self, r: Rewriter, graph: Graph) -> None:
        self.r, self.found = r, dict[str, str]()
        self.given = {*graph.inputs}

    def of(self, value: str) -> str:
        """The new value's bits; where only elements move, those of what is moved."""
        if value not in self.found:
            r, node = self.r, self.r.builder.producers.get(value)
            name = f"{value}.bf16"
            if node is not None and node.op == "from_bf16":
                self.found[value] = node.inputs[0]
            elif node is not None and _moves_bits(node, r.builder.producers, self.given):
                inner = [self.of(v) for v in node.inputs]
                self.found[value] = r.emit(node.op, inner, name, **node.attrs)
            else:
                self.found[value] = r.emit("to_bf16", [value], name)
        return self.found[value]


def _packs(graph: Graph, node: Node, kept: Container[str]) -> bool:
    """Whether the node becomes a product of pairs with constant weights."""
    w = None if node.output in kept else _weights(graph, node)
    return w is not None and w.shape[-2] % 2 == 0 and node.attrs.get("groups", 1) == 1


def _multiplied(graph: Graph, kept: Container[str], rounding: Rounding) -> Graph:
    """rewrite: product(x, w) -> product_bf16(to_bf16(x), packed w)"""
    bits: list[_Bits] = []
    met = {n.inputs[1]: n.inputs[0] for n in graph.nodes if _packs(graph, n, kept)}
    weights = rounding.weights(graph, met)

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        own = bits[0] if bits else _Bits(r, graph)
        bits[:] = [own]
        if node.op not in PRODUCTS or node.output in kept:
            return None
        if _is_product(graph, node):
            return r.emit("product_bf16", [own.of(x) for x in xs], node.output)
        if not _packs(graph, node, kept):
            return None
        name = node.inputs[1]
        packed = r.constant(packed_weights(BF16, weights[name]), f"{name}.bf16")
        attrs = {k: v for k, v in node.attrs.items() if k != "groups"}
        if node.op == "conv":
            attrs["border"] = 0
        return r.emit(f"{node.op}_bf16", [own.of(xs[0]), packed], node.output, **attrs)

    return rewrite(graph, rule)


def _stored(graph: Graph, kept: Container[str]) -> Graph:
    """rewrite: reader(x) -> reader(from_bf16(to_bf16(x))) for x between kernels"""
    low = _low(graph, kept)
    bits: list[_Bits] = []

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        own = bits[0] if bits else _Bits(r, graph)
        bits[:] = [own]
        if not low & {*node.inputs} or node.op in VIEWS:
            return None
        if node.op == "to_bf16":
            return own.of(xs[0])
        if node.inputs[0] in low and _reads_bits(graph, node, kept):
            w = graph.constants[node.inputs[1]]
            weight = xs[1]
            if node.attrs["groups"] == 1:
                weight = r.constant(bits_of(w).reshape(w.shape), f"{node.inputs[1]}.bf16")
            return r.emit("conv_read_bf16", [own.of(xs[0]), weight], node.output, **node.attrs)
        if not _reads(graph, node):
            return None
        read = [
            r.emit("from_bf16", [own.of(x)], f"{x}.float32") if v in low else x
            for v, x in zip(node.inputs, xs, strict=True)
        ]
        return r.emit(node.op, read, node.output, **node.attrs)

    return rewrite(graph, rule)


def _reads_bits(graph: Graph, node: Node, kept: Container[str]) -> bool:
    own = node.op == "conv" and node.output not in kept
    return own and _weights(graph, node) is not None


def _reads(graph: Graph, node: Node) -> bool:
    """Whether a kernel of the node can read bits of bfloat16 as float32."""
    return node.operator.kind == "elementwise" or node.op in READING


def _low(graph: Graph, kept: Container[str]) -> set[str]:
    """The values that are to be stored as bfloat16, and views of them.

    Those are the values that products read, and results of kernels that no reader needs in float32.
    An element-wise operator on values of one shape reads them as it writes its own.
    """
    types, consumers, producers = graph.types, graph.consumers, graph.producers
    needed = _needed(graph, kept)
    between = {g.output for g in fuse(graph)} - {*graph.outputs}
    low = {n.inputs[0] for n in graph.nodes if n.op == "to_bf16"} - {*graph.inputs, *needed}
    for v in between:
        if types[v].dtype == "float32" and v not in needed and consumers.get(v):
            low.add(v)
    for n in reversed(graph.nodes):  # what moves as bits came as bits
        if n.output in low and _moves_bits(n, producers, graph.inputs):
            low |= {v for v in n.inputs if v in producers} - {*graph.outputs}
    for n in graph.nodes:
        if n.op in VIEWS and n.inputs[0] in low and n.output not in graph.outputs:
            low.add(n.output)
    return low


def _needed(graph: Graph, kept: Container[str]) -> set[str]:
    """The values that some reader needs in float32, at once or after operators that keep errors.

    Outputs of the network are such values.
    """
    types = graph.types
    needed = {*graph.outputs}
    for n in reversed(graph.nodes):
        if n.op == "to_bf16" or n.op.endswith("_bf16") or _reads_bits(graph, n, kept):
            continue
        keeps = n.op in KEEPING and n.output not in needed
        for v in n.inputs:
            whole = n.operator.kind != "elementwise" or types[v].shape == types[n.output].shape
            if not keeps or not whole:
                needed.add(v)
    return needed


def converted(graph: Graph) -> Sequence[str]:
    """The values of a lowered graph that are stored as bfloat16."""
    return [n.output for n in graph.nodes if graph.types[n.output].dtype == BF16.stored]
