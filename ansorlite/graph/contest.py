"""The last contenders of a network's tasks, raced where they will run: inside the network.

In: a `Partition` and for every task some kernels, the favourite first. Out: which of them each task
runs fastest with. Alone, a kernel finds its inputs in the caches, or not, in another way than when
it follows its predecessor; and of many programs the one that seemed best was often just lucky.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.image import KernelImage
from ansorlite.graph.indices import least_extents
from ansorlite.graph.ir import Graph
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import Partition, tasks

MIN_TURNS, MAX_TURNS = 5, 25
MARGIN = 0.99  # of the favourite's time, that another must stay below


class Contender(NamedTuple):
    """A kernel of a task and which of the task's forms it computes."""

    image: KernelImage
    form: int


def random_inputs(graph: Graph, seed: int = 0) -> list[npt.NDArray[Any]]:
    """Arrays in input order: normal numbers, or small numbers for integers.

    Integers that indices are computed from are less than what is indexed has elements.
    """
    rng, least = np.random.default_rng(seed), least_extents(graph)
    out = []
    for v in graph.inputs:
        kind = graph.types[v]
        if kind.dtype.startswith("float"):
            out.append(rng.standard_normal(kind.shape).astype(kind.dtype))
        elif kind.dtype == "bool":
            out.append(rng.random(kind.shape) < 0.5)
        else:
            below = min(1000, least.get(v, 1000))
            out.append(rng.integers(0, below, kind.shape).astype(kind.dtype))
    return out


def fastest_in_place(
    parts: Partition,
    contenders: Sequence[Sequence[Contender]],
    left_s: Callable[[], float],
    inputs: Sequence[npt.NDArray[Any]] = (),
) -> list[int]:
    """For every task of `tasks(parts)` which of its contenders is fastest; 0, if time is short.

    Networks of the first, the second, ... contenders of all tasks run in turn, and every kernel is
    timed in its place, on `inputs` (by default random ones).
    """
    count = max(map(len, contenders), default=1)
    winners = [0] * len(contenders)
    if count < 2 or left_s() <= 0:
        return winners
    networks = []
    for v in range(count):
        line = [own[v if v < len(own) else 0] for own in contenders]
        networks.append(CompiledModule(parts, [c.image for c in line], [c.form for c in line]))
    turns = _turns(parts, networks, list(inputs) or random_inputs(parts.graph), left_s)
    if len(turns) < MIN_TURNS:
        return winners
    for k, own in enumerate(contenders):
        ratios = [median(t[v, k] / t[0, k] for t in turns) for v in range(len(own))]
        best = int(np.argmin(ratios))
        winners[k] = best if ratios[best] < MARGIN else 0
    return winners


def _turns(
    parts: Partition,
    networks: Sequence[CompiledModule],
    inputs: Sequence[npt.NDArray[Any]],
    left_s: Callable[[], float],
) -> list[npt.NDArray[np.float64]]:
    """Turns of all networks while there is time; float64[v, tasks] a turn.

    The seconds of every task in every network, summed over the places of the task.
    """
    distinct = tasks(parts)
    owner = {s: k for k, t in enumerate(distinct) for s in t.subgraphs}

    def turn(order: Sequence[int]) -> npt.NDArray[np.float64]:
        seconds = np.zeros((len(networks), len(distinct)))
        for v in order:
            for n, s in enumerate(networks[v].timed_calls(inputs)):
                seconds[v, owner[n]] += s
        return seconds

    there = range(len(networks))
    began = time.perf_counter()
    turn(there)  # first touches of code and data
    took_s = time.perf_counter() - began
    out: list[npt.NDArray[np.float64]] = []
    while len(out) < MAX_TURNS and left_s() > took_s:
        out.append(turn(there if len(out) % 2 else there[::-1]))
    return out
