"""What the commands work on: a network by name or file, or a case of the operator suite.

In: arguments as they were typed. Out: a `Graph` or a `SearchTask`. An unknown name is a UsageError
or a ModelError, which lists the names that exist.
"""

import os
from typing import TYPE_CHECKING

import ansorlite
from ansorlite.errors import ModelError, UsageError

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.task import SearchTask


def network(name: str, batch: int | None = None, dims: dict[str, int] | None = None) -> "Graph":
    """The network of that name, or the graph of an ONNX file (a name with a "/" or ".onnx").

    `dims` are extents of dynamic dimensions of a file. Raises UsageError where a name is unknown,
    ModelError where a file cannot be used.

    >>> network("resnet18", batch=1).name
    'resnet18'
    """
    graph: Graph
    if name.endswith(".onnx") or os.sep in name:
        graph = ansorlite.load_onnx(name, batch, dims or {})
        return graph
    try:
        graph = ansorlite.network(name, batch or 1)
    except ModelError as error:
        unknown = str(error).startswith("there is no network")
        hint = f"; an ONNX file is given as ./{name} or {name}.onnx" * unknown
        raise UsageError(f"{error}{hint}") from None
    if dims:
        raise UsageError(f"network {name} has no dynamic dimensions: leave out --dim")
    return graph


def case(name: str, batch: int | None = None) -> "SearchTask":
    """The task of a case of the operator suite, such as "C2D:2". Raises ModelError."""
    task: SearchTask = ansorlite.workload(name, batch=batch or 1)
    return task
