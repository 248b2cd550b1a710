"""What the task scheduler minimises, a function of latencies (Ansor section 6.1, table 2).

Flow: a user hands one of these (or any function of the same shape) to `GradientScheduler`. In:
`float64[n]`, the latency of every task in seconds. Out: one number, lower is better. A network
j is a row of weights: w[j, i] is how often task i occurs in it, so its latency is sum_i w[j, i]
g_i. A single network may be given as a plain list of n weights.

f4 of the table, f1 of max(g_i, ES(g_i)), is not here: the scheduler evaluates every objective at
max(g_i, ES_i), where ES_i is the latency at which task i stopped improving or its machine limit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Objective = Callable[[Floats], float]
Weights = Sequence[float] | Sequence[Sequence[float]] | npt.NDArray[np.floating]


def network_latencies(weights: Weights, latency_s: Floats) -> Floats:
    """float64[m], seconds: the end-to-end latency of every network, without gaps between tasks."""
    sums: Floats = np.atleast_2d(np.asarray(weights, np.float64)) @ latency_s
    return sums


@dataclass(frozen=True)
class OverNetworks:
    """Any function of the networks' latencies, float64[m] in seconds, as one of the tasks'."""

    weights: Weights
    of: Objective

    def __call__(self, latency_s: Floats) -> float:
        return float(self.of(network_latencies(self.weights, latency_s)))


def required(required_s: Sequence[float]) -> Objective:
    """f2 of networks: no effort beyond the requirement of each (seconds)."""
    return LatencyRequirement(np.eye(len(required_s)), required_s)


def mean_speedup(baseline_s: Sequence[float]) -> Objective:
    """f3 of networks: their mean speed-up over these latencies (seconds)."""
    return MeanSpeedup(np.eye(len(baseline_s)), baseline_s)


@dataclass(frozen=True)
class WeightedLatency:
    """f1 = sum_j sum_i w[j, i] g_i: the total latency of all networks."""

    weights: Weights

    def __call__(self, latency_s: Floats) -> float:
        return float(network_latencies(self.weights, latency_s).sum())


@dataclass(frozen=True)
class LatencyRequirement:
    """f2 = sum_j max(sum_i w[j, i] g_i, L_j): no effort beyond the requirement L_j (seconds)."""

    weights: Weights
    required_s: Sequence[float]

    def __call__(self, latency_s: Floats) -> float:
        networks = network_latencies(self.weights, latency_s)
        return float(np.maximum(networks, np.asarray(self.required_s, np.float64)).sum())


@dataclass(frozen=True)
class MeanSpeedup:
    """f3 = -(prod_j B_j / sum_i w[j, i] g_i)^(1/m): the mean speed-up over B_j, in seconds."""

    weights: Weights
    baseline_s: Sequence[float]

    def __call__(self, latency_s: Floats) -> float:
        networks = network_latencies(self.weights, latency_s)
        # Logarithms: the product of many small latencies underflows.
        speedups = np.log(np.asarray(self.baseline_s, np.float64)) - np.log(networks)
        return -float(np.exp(speedups.mean()))
