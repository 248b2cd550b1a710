"""Step `passes`: repeated elements (nearest neighbours, whole factors) are computed once.

In: a graph that is still channels first, where `reshape(expand(reshape(x)))` repeats each element
of x along spatial axes. Out: the same values, up to rounding. What works element by element, or
pixel by pixel, comes before the repetition; a convolution of what is repeated is a transposed one
of x: products with one element become one product with the sum of their weights. A kernel of 3 x 3
behind factors of 2 then takes 4 multiplications an element instead of 9, and nothing is copied.
"""

import math
from itertools import product
from typing import NamedTuple

import numpy as np

from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.types import Array, Attr, integer, ints, pairs, text

Shape = tuple[int, ...]
SPATIAL = 2  # the first spatial axis; no others are repeated


class _Repeated(NamedTuple):
    """A value of which each element of `x` makes `factors[d]` neighbours along axis d."""

    x: str
    factors: Shape


def sink_upsampling(graph: Graph) -> Graph:
    """rewrite: op(upsample(x), constants alike for all pixels) -> upsample(op(x, constants)) for
    element-wise op and for convolutions of single pixels"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        place = _moved_operand(r, node, xs)
        found = None if place is None else _repeated(r, xs[place], sole=True)
        if place is None or found is None:
            return None
        own = [found.x if k == place else v for k, v in enumerate(xs)]
        once = r.emit(node.op, own, f"{node.output}.once", **node.attrs)
        return _emit(r, once, found.factors, node.output)

    return rewrite(graph, rule)


def fold_upsampling(graph: Graph) -> Graph:
    """rewrite: conv(upsample(x), w) -> conv_transpose(x, sums of w) where that multiplies less"""

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if not _takes_each_place(node, xs) or integer(node.attrs, "groups") != 1:
            return None
        found, w = _repeated(r, xs[0], sole=False), r.known(xs[1])
        if found is None or w is None or w.dtype.kind != "f":
            return None
        kernel = w.shape[SPATIAL:]
        factors, pads = found.factors[SPATIAL:], pairs(node.attrs, "pads")
        around = tuple((k - 1 - a, k - 1 - b) for k, (a, b) in zip(kernel, pads, strict=True))
        taps = [-(-(k + f - 1) // f) for k, f in zip(kernel, factors, strict=True)]
        if min(map(min, around)) < 0 or math.prod(taps) >= math.prod(kernel):
            return None
        summed = _summed(w, factors)
        if not np.isfinite(summed).all():
            return None
        weight = r.constant(summed, f"{xs[1]}.summed")
        attrs: dict[str, Attr] = {"strides": factors, "pads": around, "layout": "channels_first"}
        return r.emit("conv_transpose", [found.x, weight], node.output, **attrs)

    return rewrite(graph, rule)


def _moved_operand(r: Rewriter, node: Node, xs: list[str]) -> int | None:
    """The operand of which each pixel of the result is computed, and of constants alike for all."""
    if node.op == "conv":
        single = max(r.shape(xs[1])[SPATIAL:], default=0) == 1
        return 0 if single and _takes_each_place(node, xs) and not _has_pads(node) else None
    data = [k for k, v in enumerate(xs) if r.known(v) is None]
    if node.operator.kind != "elementwise" or len(data) != 1:
        return None
    (place,) = data
    shape = r.shape(xs[place])
    others = (v for k, v in enumerate(xs) if k != place)
    return place if all(_is_alike(r, v, len(shape)) for v in others) else None


def _takes_each_place(node: Node, xs: list[str]) -> bool:
    """Is that a convolution without bias, channels first, at every place, of neighbours?"""
    first = node.op == "conv" and len(xs) == 2 and text(node.attrs, "layout") == "channels_first"
    return first and {*ints(node.attrs, "strides"), *ints(node.attrs, "dilations")} == {1}


def _has_pads(node: Node) -> bool:
    return any(map(any, pairs(node.attrs, "pads")))


def _summed(w: Array, factors: Shape) -> Array:
    """Weight [co, ci, *k] -> [ci, co, *(k + f - 1)]: the reversed kernel at f places, added."""
    kernel = w.shape[SPATIAL:]
    turned = np.flip(w, tuple(range(SPATIAL, w.ndim))).swapaxes(0, 1).astype(np.float64)
    extents = (k + f - 1 for k, f in zip(kernel, factors, strict=True))
    out = np.zeros((*turned.shape[:SPATIAL], *extents))
    for first in product(*map(range, factors)):
        where = [slice(a, a + k) for a, k in zip(first, kernel, strict=True)]
        out[:, :, *where] += turned
    with np.errstate(over="ignore"):
        return out.astype(w.dtype)


def _repeated(r: Rewriter, value: str, sole: bool) -> _Repeated | None:
    """What `value` repeats; with `sole`, only where nothing else reads it."""
    names = ("reshape", "expand", "reshape")
    chain: list[Node] = []
    for op in names:
        node = r.builder.producers.get(value)
        if node is None or node.op != op or (sole and r.sole(value) is None):
            return None
        chain.append(node)
        value = node.inputs[0]
    outer, middle, inner = chain
    shape, out = r.shape(value), r.shape(outer.output)
    if len(out) != len(shape) or not math.prod(shape) or len(shape) <= SPATIAL:
        return None
    factors = tuple(n // own for n, own in zip(out, shape, strict=True))
    before, after = _interleaved(shape, factors)
    fits = (r.shape(inner.output), r.shape(middle.output)) == (before, after)
    return _Repeated(value, factors) if fits and factors[:SPATIAL] == (1, 1) else None


def _interleaved(shape: Shape, factors: Shape) -> tuple[Shape, Shape]:
    """The shapes before and after the expansion: behind each axis that is repeated its factor."""
    rows = list(zip(shape, factors, strict=True))
    before = tuple(e for n, f in rows for e in ((n, 1) if f > 1 else (n,)))
    after = tuple(e for n, f in rows for e in ((n, f) if f > 1 else (n,)))
    return before, after


def _emit(r: Rewriter, x: str, factors: Shape, name: str) -> str:
    """x with each element repeated."""
    shape = r.shape(x)
    before, after = _interleaved(shape, factors)
    apart = r.emit("reshape", [x], f"{name}.apart", shape=before)
    many = r.emit("expand", [apart], f"{name}.many", shape=after)
    out = tuple(n * f for n, f in zip(shape, factors, strict=True))
    return r.emit("reshape", [many], name, shape=out)


def _is_alike(r: Rewriter, value: str, rank: int) -> bool:
    """Is that a constant with one number for all pixels?"""
    shape = r.shape(value)
    known = r.known(value) is not None and len(shape) <= rank
    return known and all(n == 1 for n in ((1,) * (rank - len(shape)) + shape)[SPATIAL:])
