"""Built-in networks: sizes, moderate activations, effects of passes, small ones in all stages."""

from collections import Counter

import numpy as np
import pytest
from sampled import sampled

from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import evaluate_partition, partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.workloads.networks import (
    NETWORKS,
    dcgan,
    mobilenet_v2,
    network,
    resnet,
    resnet_3d,
)
from ansorlite.workloads.transformers import bert

IMAGES = ("resnet18", "resnet50", "mobilenet_v2")
# GFLOP (two per multiply-add, additions and activations included), parameters in millions.
SIZES = {"resnet18": (3.64, 11.7), "resnet50": (8.21, 25.6), "mobilenet_v2": (0.62, 3.5)}


def image(graph: Graph) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal(graph.types["data"].shape).astype(np.float32)


@pytest.mark.parametrize("name", sampled(IMAGES, 2))
def test_activations_are_sane_and_passes_keep_them(name: str) -> None:
    graph = NETWORKS[name](name, batch=1, seed=0, size=96)
    x = image(graph)
    with np.errstate(over="raise", invalid="raise"):
        (y,) = evaluate(graph, [x])
    assert y.shape == (1, 1000) and 0.1 < y.std() < 20
    (z,) = evaluate(optimize(graph), [x])
    np.testing.assert_allclose(z, y, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", IMAGES)
def test_sizes_and_kernels(name: str) -> None:
    graph = network(name)
    assert graph.types["data"].shape == (1, 3, 224, 224)
    assert graph.types[graph.outputs[0]].shape == (1, 1000)
    best = optimize(graph)
    ops = Counter(n.op for n in best.nodes)
    assert ops["transpose"] == 1 and ops["mul"] == 1 and ops["batch_norm"] == 0
    parts = partition(best)
    gflop, millions = SIZES[name]
    assert parts.flop / 1e9 == pytest.approx(gflop, rel=0.01)
    parameters = sum(
        a.size for v, a in graph.constants.items() if v.endswith((".weight", "scale", "bias"))
    )
    assert parameters / 1e6 == pytest.approx(millions, rel=0.01)
    # One kernel per convolution, the input's transpose, pools and the classifier.
    assert len(parts.subgraphs) == ops["conv"] + ops["max_pool"] + 3
    assert sum(t.weight for t in tasks(parts)) == len(parts.subgraphs)


OTHERS = {
    "resnet18_3d": ({"data": (1, 3, 16, 112, 112)}, (1, 400), 81.5),
    "dcgan": ({"data": (1, 100, 1, 1)}, (1, 3, 64, 64), 0.209),
    "bert_base": ({"ids": (1, 128)}, (1, 128, 768), 22.4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_sizes_of_other_networks(name: str) -> None:
    graph = network(name)
    inputs, output, gflop = OTHERS[name]
    assert {v: graph.types[v].shape for v in graph.inputs} == inputs
    assert graph.types[graph.outputs[0]].shape == output
    assert partition(optimize(graph)).flop / 1e9 == pytest.approx(gflop, rel=0.01)


def test_small_other_networks_through_kernels() -> None:
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 50, (2, 6))
    small = bert("bert", 2, 0, 6, layers=2, width=24, heads=3, vocabulary=50)
    cases = [(small, ids), (dcgan("dcgan", 1, 0, 16), None), (resnet_3d("3d", 1, 0, 16, 5), None)]
    for graph, x in cases:
        if x is None:
            x = rng.standard_normal(graph.types["data"].shape).astype(np.float32)
        (want,) = evaluate(graph, [x])
        assert 0.1 < want.std() < 20
        (got,) = evaluate_partition(partition(optimize(graph)), [x])
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_tasks_of_resnet50() -> None:
    """The repeated ones are in the inner blocks of the four stages (2, 3, 5 and 2 of them).

    The first projection has the shape of the expansions after it, hence one 3 more, one 2 less.
    """
    weighted = tasks(partition(optimize(network("resnet50"))))
    assert len(weighted) == 31
    repeated = sorted(t.weight for t in weighted if t.weight > 1)
    assert repeated == [2] * 4 + [3] * 5 + [5] * 3


def check_kernels(graph: Graph) -> None:
    x = image(graph)
    (want,) = evaluate(graph, [x])
    (got,) = evaluate_partition(partition(optimize(graph)), [x])
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_small_network_through_kernels() -> None:
    check_kernels(mobilenet_v2("mobilenet_v2", 2, 0, 32, 10))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_small_resnets_through_kernels(name: str) -> None:
    check_kernels(resnet(name, 1, 0, 32, 10))


def test_batch_and_seed() -> None:
    first, again, other = (network("resnet18", 2, seed) for seed in (5, 5, 6))
    assert first.types["data"].shape[0] == 2
    weight = "conv1.weight"
    assert np.array_equal(first.constants[weight], again.constants[weight])
    assert not np.array_equal(first.constants[weight], other.constants[weight])


def test_unknown_names_and_batches() -> None:
    with pytest.raises(ModelError, match="no network 'lenet': choose one of resnet18, resnet50"):
        network("lenet")
    with pytest.raises(ModelError, match="batch of network resnet18 is 0"):
        network("resnet18", 0)
