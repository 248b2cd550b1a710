"""A network in several sizes: a `Graph` for each combination of extents that a caller listed.

In: made by `onnx.load` where `dims`, `shapes` or `batch` hold lists. Out: `auto_schedule` tunes the
tasks of all sizes together and makes one module of them. The graphs share the arrays of the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph
from ansorlite.names import brief

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class SizedNetwork:
    """Graphs of equal inputs and outputs, apart from their shapes.

    `labels` say what tells the sizes apart ("n=1, w=320"). `at` imports the model for inputs of
    other shapes; it raises a ModelError for shapes that the model cannot have.
    """

    graphs: tuple[Graph, ...]
    labels: tuple[str, ...]
    at: Callable[[Shapes], Graph] = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.graphs:
            raise ModelError("a network of several sizes needs at least one")

    @property
    def name(self) -> str:
        return self.graphs[0].name

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.graphs[0].inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.graphs[0].outputs

    def __str__(self) -> str:
        return "\n".join(
            f"# size {k}: {brief(label) or 'as listed'}\n{graph}"
            for k, (label, graph) in enumerate(zip(self.labels, self.graphs, strict=True))
        )


def graphs_of(network: Graph | SizedNetwork) -> tuple[Graph, ...]:
    """The graphs of all sizes."""
    return (network,) if isinstance(network, Graph) else network.graphs
