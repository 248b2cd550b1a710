"""Random inputs of networks: their kinds, and indices that stay inside of what they index."""

import numpy as np

from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.inputs import random_inputs


def test_inputs_of_every_kind() -> None:
    b = GraphBuilder("kinds")
    for name, dtype in (("f", "float32"), ("i", "int64"), ("b", "bool")):
        b.input(name, (50,), dtype)
    graph = b.finish(["f"])
    f, i, flags = random_inputs(graph)
    assert [x.dtype for x in (f, i, flags)] == [np.float32, np.int64, bool]
    assert i.min() >= 0 and i.max() < 1000 and 0 < flags.sum() < 50


def test_indices_stay_inside_what_they_index() -> None:
    b = GraphBuilder("take")
    x, i = b.input("x", (7, 2)), b.input("i", (200,), "int64")
    graph = b.finish([b.emit("take", [x, b.emit("abs", [i])], axis=0)])
    values = random_inputs(graph)[1]
    assert values.min() == 0 and values.max() == 6
