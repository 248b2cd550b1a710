"""Indices that are known at run time only: kernels clamp them, a wrong one is an error.

In: a `Partition`. Out: an `IndexCheck` for each operand of `Op.indices` that is not constant: the
value that owns the elements, the extent of the axis, the node. A module checks graph inputs before
its kernels run, and computed indices after, which it keeps in memory until then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph
from ansorlite.graph.types import Array
from ansorlite.names import brief


@dataclass(frozen=True)
class IndexCheck:
    """Elements of `value` have to be in [-extent, extent); `node` takes them along `axis`."""

    node: str
    value: str
    axis: int
    extent: int

    def check(self, indices: Array) -> None:
        """Raise a ModelError for an index outside of the axis."""
        if indices.size:
            low, high = indices.min(), indices.max()
            if low < -self.extent or high >= self.extent:
                raise ModelError(self.told(str(low if low < -self.extent else high)))

    def told(self, index: str = "that is not there") -> str:
        """The message for a wrong index."""
        return (
            f"node {brief(self.node)} takes element {index} along axis {self.axis}, which has "
            f"{self.extent}: indices are from {-self.extent} to {self.extent - 1}"
        )


def index_checks(graph: Graph, aliases: Mapping[str, str]) -> tuple[IndexCheck, ...]:
    """The checks of an optimised graph; raises ModelError for constant indices that are wrong."""
    found: dict[tuple[str, int], IndexCheck] = {}
    for n in graph.nodes:
        if n.operator.indices is None:
            continue
        types = tuple(graph.types[v] for v in n.inputs)
        for k, axis, extent in n.operator.indices(n.attrs, types):
            value = aliases.get(n.inputs[k], n.inputs[k])
            one = IndexCheck(n.name, value, axis, extent)
            if value in graph.constants:
                one.check(graph.constants[value])
            else:
                found.setdefault((value, extent), one)
    return tuple(found.values())
