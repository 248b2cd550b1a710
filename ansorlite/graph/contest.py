"""The last contenders of a network's tasks, raced inside the network.

In: a `Partition` and some kernels for every task, the favourite first. Out: the fastest kernel of
each task. A kernel that is timed alone finds other data in the caches than behind its predecessor;
and the fastest of many measured programs is often one with lucky measurements.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.codegen.image import KernelImage
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import Partition, tasks

Seconds = npt.NDArray[np.float64]
MIN_TURNS, MAX_TURNS = 5, 25
MARGIN = 0.99  # of the favourite's time: a contender that needs more does not replace it


class Contender(NamedTuple):
    """A program of a task, and which of the task's forms it computes.

    `images` are its kernels, in the order of those of `partition.kernels` that are of the task.
    """

    images: tuple[KernelImage, ...]
    form: int


def fastest_in_place(
    parts: Partition,
    contenders: Sequence[Sequence[Contender]],
    left_s: Callable[[], float],
    inputs: Sequence[npt.NDArray[Any]] = (),
) -> list[int]:
    """The index of the fastest contender for every task of `tasks(parts)`; 0 if time is short.

    Networks of the first, the second, ... contenders of all tasks run in turn, and every kernel is
    timed in its place, on `inputs` (by default random ones).
    """
    count = max(map(len, contenders), default=1)
    if count < 2 or left_s() <= 0:
        return [0] * len(contenders)
    networks: list[CompiledModule] = []
    longest_s = 0.0
    for v in range(count):
        if left_s() < (count - v) * longest_s:
            return [0] * len(contenders)
        line, began = [own[v if v < len(own) else 0] for own in contenders], time.perf_counter()
        images = [image for c in line for image in c.images]
        networks.append(CompiledModule(parts, images, [c.form for c in line]))
        longest_s = max(longest_s, time.perf_counter() - began)
    turns = _turns(parts, networks, list(inputs) or random_inputs(parts.graph), left_s)
    if len(turns) < MIN_TURNS:
        return [0] * len(contenders)
    return [_winner([t[: len(own), k] for t in turns]) for k, own in enumerate(contenders)]


def timed_in_turn(
    networks: Sequence[CompiledModule],
    left_s: Callable[[], float],
    inputs: Sequence[npt.NDArray[Any]] = (),
) -> list[Seconds] | None:
    """Seconds of every kernel of each of some networks, float64[turns, kernels]; None if too late.

    The networks run in turn, so that row t of all of them is of the same moment.
    """
    given = list(inputs) or random_inputs(networks[0].partition.graph)
    turns: list[list[list[float]]] = [[] for _ in networks]
    took_s = 0.0
    while len(turns[0]) <= MAX_TURNS and left_s() > took_s:
        began = time.perf_counter()
        order = range(len(networks)) if len(turns[0]) % 2 else range(len(networks))[::-1]
        for v in order:
            turns[v].append(networks[v].timed_calls(given))
        took_s = time.perf_counter() - began
    if len(turns[0]) <= MIN_TURNS:
        return None
    return [np.array(own[1:]) for own in turns]  # without first touches of code and data


def _turns(
    parts: Partition,
    networks: Sequence[CompiledModule],
    inputs: Sequence[npt.NDArray[Any]],
    left_s: Callable[[], float],
) -> list[Seconds]:
    """Seconds of every task in every network, float64[networks, tasks], turn by turn.

    The time of a task is the sum over all its places. The order of the networks alternates.
    """
    known = tasks(parts)
    owner = {s: k for k, t in enumerate(known) for s in t.subgraphs}

    def turn(order: Sequence[int]) -> Seconds:
        seconds = np.zeros((len(networks), len(known)))
        for v in order:
            for n, s in enumerate(networks[v].timed_calls(inputs)):
                seconds[v, owner[n]] += s
        return seconds

    order = range(len(networks))
    began = time.perf_counter()
    turn(order)  # first touches of code and data
    took_s = time.perf_counter() - began
    turns: list[Seconds] = []
    while len(turns) < MAX_TURNS and left_s() > took_s:
        turns.append(turn(order if len(turns) % 2 else order[::-1]))
    return turns


def _winner(turns: Sequence[Seconds]) -> int:
    """The contender with the least median ratio to the favourite's time; seconds[contenders]."""
    ratios = [median(t[v] / t[0] for t in turns) for v in range(len(turns[0]))]
    best = int(np.argmin(ratios))
    return best if ratios[best] < MARGIN else 0
