"""What nodes read, and the order in which they can run: files need not keep nodes sorted.

In: NodeProtos of a graph, of its inner graphs too. Out: the names that they read from outside, and
the nodes with each behind those whose results it reads.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any


def reads(node: Any) -> Iterator[str]:
    """The values that a node reads, with those that its inner graphs take from around them."""
    yield from (v for v in node.input if v)
    for a in node.attribute:
        for graph in (*a.graphs, a.g):
            yield from _captured(graph)


def _captured(graph: Any) -> Iterator[str]:
    own = {v.name for v in (*graph.input, *graph.initializer)}
    own |= {v for n in graph.node for v in n.output}
    wanted = [v for n in graph.node for v in reads(n)] + [v.name for v in graph.output]
    yield from (v for v in wanted if v not in own)


def used(nodes: Iterable[Any]) -> set[str]:
    """All values that nodes read."""
    return {v for n in nodes for v in reads(n)}


def in_order(nodes: Sequence[Any]) -> Sequence[Any]:
    """The nodes as they are if each reads what stands before it, else sorted, first ones first.

    Nodes that depend on themselves stay where they are, behind all others.
    """
    maker: dict[str, int] = {}
    for k, n in enumerate(nodes):
        for v in n.output:
            maker.setdefault(v, k)
    needs = [{maker[v] for v in reads(n) if v in maker} for n in nodes]
    if all(p < k for k, own in enumerate(needs) for p in own):
        return nodes
    readers: list[list[int]] = [[] for _ in nodes]
    for k, own in enumerate(needs):
        for p in own:
            readers[p].append(k)
    ready, order = [k for k, own in enumerate(needs) if not own], list[int]()
    heapify(ready)
    while ready:
        k = heappop(ready)
        order.append(k)
        for reader in readers[k]:
            needs[reader].discard(k)
            if not needs[reader]:
                heappush(ready, reader)
    placed = {*order}
    return [nodes[k] for k in (*order, *(k for k in range(len(nodes)) if k not in placed))]
