"""What the commands work on: a network by name or file, or a case of the operator suite.

In: arguments as they were typed. Out: a `Graph` or a `SearchTask`. An unknown name is a UsageError
or a ModelError, which lists the names that exist.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ansorlite
from ansorlite.errors import ModelError, UsageError

if TYPE_CHECKING:
    from ansorlite.graph.ir import Graph
    from ansorlite.graph.sized import SizedNetwork
    from ansorlite.target import Target
    from ansorlite.task import SearchTask


def network(name: str, batch: int | None = None) -> "Graph":
    """The network of that name, or the graph of an ONNX file (a name with a "/" or ".onnx").

    Raises UsageError where a name is unknown, ModelError where a file cannot be used.

    >>> network("resnet18", batch=1).name
    'resnet18'
    """
    graph: Graph
    if _is_file(name):
        graph = ansorlite.load_onnx(name, batch)
        return graph
    try:
        graph = ansorlite.network(name, batch or 1)
    except ModelError as error:
        unknown = str(error).startswith("there is no network")
        hint = f"; an ONNX file is given as ./{name} or {name}.onnx" * unknown
        raise UsageError(f"{error}{hint}") from None
    return graph


def _is_file(name: str) -> bool:
    return name.endswith(".onnx") or os.sep in name


def sized_network(args: Any, name: str) -> "Graph | SizedNetwork":
    """The network with the options `--batch`, `--dim` and `--shape` of a command."""
    dims, shapes = dims_of(args.dim), shapes_of(args.shape)
    if not (dims or shapes):
        return network(name, args.batch)
    if not _is_file(name):
        network(name, args.batch)  # an unknown name comes first
        given = " and ".join(["--dim"] * bool(dims) + ["--shape"] * bool(shapes))
        raise UsageError(f"network {name} has no dynamic dimensions: leave out {given}")
    graph: Graph | SizedNetwork = ansorlite.load_onnx(name, args.batch, dims, shapes)
    return graph


def one_network(args: Any, name: str) -> "Graph":
    """As `sized_network`, of one size. Raises UsageError for several."""
    from ansorlite.graph.ir import Graph

    found = sized_network(args, name)
    if not isinstance(found, Graph):
        raise UsageError(
            f"{name} is asked for in {len(found.graphs)} sizes, which this cannot show together: "
            "give --dim and --shape one size"
        )
    return found


def dims_of(given: Sequence[tuple[str, list[int]]]) -> dict[str, Any]:
    """What `--dim` says as `dims` of `load_onnx`; UsageError for a name that is there twice."""
    found: dict[str, Any] = {}
    for name, extents in given:
        if name in found:
            both = ",".join(map(str, dict.fromkeys([*_listed(found[name]), *extents])))
            raise UsageError(f"--dim {name} is given twice: --dim {name}={both} is several sizes")
        found[name] = extents if len(extents) > 1 else extents[0]
    return found


def _listed(extents: Any) -> list[int]:
    return extents if isinstance(extents, list) else [extents]


def shapes_of(given: Sequence[tuple[str, list[int]]]) -> dict[str, Any]:
    """What `--shape` says as `shapes` of `load_onnx`."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for name, extents in given:
        found.setdefault(name, []).append(tuple(extents))
    return {name: shapes if len(shapes) > 1 else shapes[0] for name, shapes in found.items()}


def case(name: str, batch: int | None = None, target: "Target | None" = None) -> "SearchTask":
    """The task of a case of the operator suite, such as "C2D:2". Raises ModelError."""
    task: SearchTask = ansorlite.workload(name, batch=batch or 1, target=target)
    return task
