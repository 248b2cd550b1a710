"""Weights of bfloat16: errors cancel in sums, every weight is a neighbour of what it was."""

import numpy as np
import pytest

from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.ir import evaluate
from ansorlite.graph.passes import optimize
from ansorlite.graph.rounding import Moments, Rounding, observed, rounded
from ansorlite.ir.packed import bits_of, float_of

RNG = np.random.default_rng(0)


def near(w: np.ndarray) -> np.ndarray:
    return float_of(bits_of(w)).reshape(w.shape)


@pytest.mark.parametrize("shape", [(64, 30), (3, 3, 32, 16), (2, 1)])
def test_errors_of_the_mean_cancel(shape: tuple[int, ...]) -> None:
    w = RNG.standard_normal(shape).astype(np.float32)
    x = RNG.standard_normal((500, shape[-2])) + RNG.standard_normal(shape[-2])
    data = Moments.of(x)
    got = rounded(w, data)
    assert np.array_equal(near(got), got)
    assert (np.abs(got - w) <= 2.0**-7 * np.abs(w)).all()

    def off(rounded: np.ndarray) -> float:
        return float(np.sqrt(np.mean(np.square(data.mean @ (rounded - w).astype(np.float64)))))

    assert off(got) <= off(near(w)) * (1.0 if shape[-2] == 2 else 0.5)


def test_zeros_extremes_and_unknown_data() -> None:
    w = np.array([[0.0, -0.0, 3e38, 1e-40, np.inf, np.nan]] * 4, np.float32)
    data = Moments(np.ones(4), np.ones(4))
    assert rounded(w, data).tobytes() == near(w).tobytes()
    w = np.array([[0.0, -3e38, 1e-40, 1.003]] * 4, np.float32)
    got = rounded(w, data)
    assert np.isfinite(got).all() and np.array_equal(near(got), got)
    for mean in (np.zeros(4), np.full(4, np.nan)):
        assert rounded(w, Moments(mean, mean)).tobytes() == near(w).tobytes()


def test_networks_lose_less_and_sizes_share_weights() -> None:
    b = GraphBuilder("net")
    x = b.input("x", (8, 32))
    for _ in range(3):
        w = (RNG.standard_normal((32, 32)) / 4).astype(np.float32)
        x = b.emit("relu", [b.emit("matmul", [x, b.constant(w)])])
    graph = b.finish([x])
    assert observed(graph, frozenset(graph.inputs))[graph.inputs[0]].mean.shape == (32,)
    x = random_inputs(graph)
    (wanted,) = evaluate(graph, x)
    shared = Rounding()
    low = optimize(graph, precision="bf16", rounding=shared)
    assert len(shared.known) == 3
    plain = Rounding({name: (w, near(w)) for name, (w, _) in shared.known.items()})
    error = [
        float(np.square(evaluate(g, x)[0] - wanted).mean())
        for g in (low, optimize(graph, precision="bf16", rounding=plain))
    ]
    assert error[0] < 0.9 * error[1]
    again = optimize(graph, precision="bf16", rounding=shared)
    assert all(np.array_equal(v, again.constants[k]) for k, v in low.constants.items())
