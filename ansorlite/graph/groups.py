"""Step `passes`: normalisation over groups of channels without merging channels and pixels.

In: a graph that is still channels first. Out: the same values; where a reshape merges a part of the
channels with the spatial axes and only reductions over the merged axis and arithmetic lie before
the reshape back, the axes stay apart. So they can lie in any order, and none needs to move.
"""

import math

from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.layout import beside_convolutions
from ansorlite.graph.types import Attr, ints

Shape = tuple[int, ...]


def split_groups(graph: Graph) -> Graph:
    """rewrite: op(reshape(x, [n, g, k])) -> op(reshape(x, [n, g, c/g, *spatial])) for reductions
    over k = c/g * spatial and element-wise op, between that reshape and the one back"""
    parts: dict[str, Shape] = {}  # of values between, by old name: the extents that k is made of
    beside = beside_convolutions(graph)
    for node in graph.nodes:
        if node.op == "reshape" and node.inputs[0] in beside:
            apart = _apart(graph.types[node.inputs[0]].shape, graph.types[node.output].shape)
            between = _between(graph, node) if apart else None
            parts.update(dict.fromkeys(between or (), apart))
    if not parts:
        return graph

    def wide(value: str) -> Shape:
        """The shape of a value [n, g, k] or [n, g, 1] with axes apart; ones in front as needed."""
        shape = (1,) * (3 - graph.types[value].rank) + graph.types[value].shape
        own = parts.get(value, ())
        return (*shape[:2], *(own if shape[2] > 1 else (1,) * len(own)))

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        if node.output not in parts:
            return None
        extents = parts[node.output]
        if node.op == "reshape":
            return r.emit("reshape", xs, node.output, shape=wide(node.output))
        if node.operator.kind == "elementwise":
            for k, v in enumerate(node.inputs):
                if v not in parts and graph.types[v].size > 1:
                    shape = (*wide(v), *(1,) * len(extents))
                    xs[k] = r.emit("reshape", [xs[k]], f"{v}.apart", shape=shape)
            return r.emit(node.op, xs, node.output, **node.attrs)
        axes = [a for a in ints(node.attrs, "axes") if a < 2]
        attrs: dict[str, Attr] = {"axes": (*axes, *range(2, 2 + len(extents)))}
        return r.emit(node.op, xs, node.output, **{**node.attrs, **attrs})

    return rewrite(graph, rule)


def _apart(old: Shape, new: Shape) -> Shape:
    """The extents (c/g, *spatial) that the last axis of [n, g, k] is made of, or nothing."""
    if len(old) < 3 or len(new) != 3 or old[0] != new[0] or not new[1] or old[1] % new[1]:
        return ()
    found = (old[1] // new[1], *old[2:])
    return found if math.prod(found) == new[2] > 1 and found[0] > 1 else ()


def _keeps(node: Node) -> bool:
    """Whether the node reduces the merged axis and leaves its place."""
    reduces = node.op.startswith("reduce_") and 2 in ints(node.attrs, "axes")
    return reduces and bool(node.attrs["keepdims"])


def _between(graph: Graph, root: Node) -> set[str] | None:
    """Values between the reshape and those back; None where another operator reads one of them."""
    back, readers = graph.types[root.inputs[0]].shape, graph.consumers
    found, waiting = {root.output}, [root.output]
    merged = graph.types[root.output].shape[2]
    arithmetic = list[Node]()
    while waiting:
        value = waiting.pop()
        if value in graph.outputs:
            return None
        for n in readers.get(value, []):
            result = graph.types[n.output]
            if n.op == "reshape" and ints(n.attrs, "shape") == back:
                continue
            if n.operator.kind == "elementwise":
                arithmetic.append(n)
            elif not _keeps(n):
                return None
            if result.rank != 3 or result.shape[2] not in (1, merged):
                return None
            if n.output not in found:
                found.add(n.output)
                waiting.append(n.output)
    others = {v for n in arithmetic for v in n.inputs if v not in found}
    fits = all(t.size == 1 or t.shape[-1] == 1 for t in (graph.types[v] for v in others))
    return found if fits else None
