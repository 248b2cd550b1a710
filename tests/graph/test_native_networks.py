"""Random networks, compiled: every kernel by the plain schedule, results against numpy's."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from onnx_backend import compiled
from random_nets import nets

from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.partition import partition
from ansorlite.graph.passes import optimize
from ansorlite.target import Target

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def check(graph: Graph) -> None:
    shape = graph.types[graph.inputs[0]].shape
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = evaluate(graph, [x])
    parts = partition(optimize(graph))
    got = compiled(parts, Target.detect())(x)
    for y, want in zip(got if isinstance(got, tuple) else (got,), wanted, strict=True):
        assert (y.dtype, y.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)


@given(nets())
@settings(max_examples=15, deadline=None, suppress_health_check=CHECKS)
def test_random_networks_natively(graph: Graph) -> None:
    check(graph)


@pytest.mark.slow
@given(nets())
@settings(max_examples=2000, deadline=None, suppress_health_check=CHECKS)
def test_many_random_networks_natively(graph: Graph) -> None:
    check(graph)
