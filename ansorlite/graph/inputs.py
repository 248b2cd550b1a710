"""Random arrays for a network's inputs, the same in every process.

In: a `Graph` and a seed. Out: arrays in input order. `measure.inputs` has those of one task.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.graph.ir import Graph
from ansorlite.ir.literals import range_of


def random_inputs(graph: Graph, seed: int = 0) -> list[npt.NDArray[Any]]:
    """Arrays in input order: normal numbers, or small numbers for integers.

    Integers from which indices are computed are below the extent of the axis that they index.
    """
    rng, least = np.random.default_rng(seed), _least_extents(graph)
    out = []
    for v in graph.inputs:
        kind = graph.types[v]
        if kind.dtype.startswith("float"):
            out.append(rng.standard_normal(kind.shape).astype(kind.dtype))
        elif kind.dtype == "bool":
            out.append(rng.random(kind.shape) < 0.5)
        else:
            below = min(1000, least.get(v, 1000), range_of(kind.dtype)[1])
            out.append(rng.integers(0, below, kind.shape).astype(kind.dtype))
    return out


def _least_extents(graph: Graph) -> dict[str, int]:
    """The least extent that is indexed, by the graph input from which the indices are computed."""
    producers, least = graph.producers, dict[str, int]()
    for n in graph.nodes:
        if n.operator.indices is None:
            continue
        types = tuple(graph.types[v] for v in n.inputs)
        for k, _, extent in n.operator.indices(n.attrs, types):
            seen, stack = set[str](), [n.inputs[k]]
            while stack:
                v = stack.pop()
                if v in seen:
                    continue
                seen.add(v)
                stack.extend(producers[v].inputs if v in producers else ())
                if v in graph.inputs:
                    least[v] = min(extent, least.get(v, extent))
    return least
