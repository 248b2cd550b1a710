"""Step `passes`: projections of one input, such as queries, keys and values, are one product.

In: a graph whose weights are constants. Out: the same values. One product of several matrices side
by side reads its input once, has fewer and larger tiles, and the other forms of a product save more
of it: three of 384 x 384 took 2.39 ms together and 2.53 ms one by one (1500 rows, two cores of Zen
5). The parts are rows of the result, which readers read in place (`graph.in_place`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ansorlite.graph.build import Rewriter, rewrite
from ansorlite.graph.ir import Graph, Node
from ansorlite.graph.types import Array

Readers = Mapping[str, Sequence[Node]]
MOVES = ("reshape", "transpose")  # nothing but the order or the shape changes


class _Projection(NamedTuple):
    """result = matmul(x, weight) + bias, of which `product` is the first; a bias may be missing."""

    x: str
    product: str
    weight: Array
    bias: Array | None
    result: str

    @property
    def columns(self) -> int:
        return int(self.weight.shape[1])


def join_projections(graph: Graph) -> Graph:
    """rewrite: matmul(x, v) + a, matmul(x, w) + b -> slices of matmul(x, [v w]) + [a b]

    Those are joined that only products read: what follows element by element is better computed
    with each of them.
    """
    groups = _groups(graph)
    begun = {p.product: own for own in groups for p in own}
    parts = {p.result: (own, k) for own in groups for k, p in enumerate(own)}
    made: dict[str, str] = {}  # by the first result of a group

    def rule(r: Rewriter, node: Node, xs: list[str]) -> str | None:
        of = begun.get(node.output)
        if of is not None and of[0].result not in made:
            made[of[0].result] = _emit(r, xs[0], of)
        if node.output not in parts:
            return None
        own, k = parts[node.output]
        whole = made[own[0].result]
        *rows, _ = r.shape(whole)
        start = sum(p.columns for p in own[:k])
        starts, sizes = (*(0 for _ in rows), start), (*rows, own[k].columns)
        steps = (1,) * len(sizes)
        return r.emit("slice", [whole], node.output, starts=starts, sizes=sizes, steps=steps)

    return rewrite(graph, rule) if groups else graph


def _emit(r: Rewriter, x: str, of: Sequence[_Projection]) -> str:
    """The product of several projections of x; missing biases are 0 beside others."""
    name = f"{of[0].result}.joined"
    weight = r.constant(np.concatenate([p.weight for p in of], axis=1), f"{name}.weight")
    if all(p.bias is None for p in of):
        return r.emit("matmul", [x, weight], name)
    biases = [np.zeros(p.columns, p.weight.dtype) if p.bias is None else p.bias for p in of]
    bias = r.constant(np.concatenate(biases), f"{name}.bias")
    return r.emit("add", [r.emit("matmul", [x, weight], f"{name}.product"), bias], name)


def _groups(graph: Graph) -> list[list[_Projection]]:
    """The projections of one input each, in running order."""
    readers = graph.consumers
    groups: dict[tuple[str, int], list[_Projection]] = {}
    for n in graph.nodes:
        found = _projection(graph, n, readers)
        if found is not None and _only_products_read(graph, found.result, readers):
            groups.setdefault((found.x, len(found.weight)), []).append(found)
    return [own for own in groups.values() if len(own) > 1]


def _projection(graph: Graph, node: Node, readers: Readers) -> _Projection | None:
    """The projection that begins with a node; None if there is none."""
    if node.op != "matmul" or node.inputs[0] in graph.constants:
        return None
    weight = graph.constants.get(node.inputs[1])
    if weight is None or weight.ndim != 2 or weight.dtype != np.float32 or node.attrs:
        return None
    own, after = (node.inputs[0], node.output, weight), readers.get(node.output, [])
    if node.output in graph.outputs or len(after) != 1 or after[0].op != "add":
        return _Projection(*own, None, node.output)
    (added,) = after
    others = [v for v in added.inputs if v != node.output]
    bias = graph.constants.get(others[0]) if len(others) == 1 else None
    longer = graph.types[added.output].shape != graph.types[node.output].shape
    columns = weight.shape[1:]
    if bias is None or longer or bias.shape[-1:] != columns or bias.size != columns[0]:
        return _Projection(*own, None, node.output)
    return _Projection(*own, bias.reshape(-1), added.output)


def _only_products_read(graph: Graph, value: str, readers: Readers) -> bool:
    """Is a value, in whatever shape and order, read by products and nothing else?"""
    own = readers.get(value, [])
    if value in graph.outputs or not own:
        return False
    return all(
        _only_products_read(graph, n.output, readers) if n.op in MOVES else n.op == "matmul"
        for n in own
    )
