"""One task of a network by its number or its name."""

import numpy as np
import pytest

from ansorlite.cli.tasks import task_of
from ansorlite.errors import UsageError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph


@pytest.fixture
def net() -> Graph:
    """Two equal matrix products around a softmax: two tasks, three subgraphs."""
    b = GraphBuilder("twice")
    weight = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    first = b.emit("matmul", [b.input("x", (16, 24)), b.constant(weight)])
    soft = b.emit("softmax", [first], axes=(1,))
    return b.finish([b.emit("matmul", [soft, b.constant(2 * weight)])])


def test_a_task_has_a_number_and_the_names_of_its_subgraphs(net: Graph) -> None:
    product = task_of(net, "0")
    assert (product.task.name, product.weight) == ("matmul_0", 2.0)
    for name in ("matmul_0", "matmul_2"):
        assert task_of(net, name).task.workload_key == product.task.workload_key
    assert task_of(net, "1").task.name == task_of(net, "softmax_1").task.name == "softmax_1"


@pytest.mark.parametrize("text", ["2", "-1", "", "conv", "99999999999999999999", "\u00b2"])
def test_what_names_no_task_lists_all_of_them(net: Graph, text: str) -> None:
    with pytest.raises(UsageError, match=r"twice has no task .*: 0 matmul_0, 1 softmax_1$"):
        task_of(net, text)
