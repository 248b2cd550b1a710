"""The race of kernels inside the network: slow kernels lose; without time nothing changes."""

import numpy as np
import pytest

from ansorlite.graph import contest
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.contest import MIN_TURNS, Contender, fastest_in_place, timed_in_turn
from ansorlite.graph.inputs import random_inputs
from ansorlite.graph.kernels import plain_image
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.partition import Partition, partition
from ansorlite.graph.passes import optimize
from ansorlite.shared_tasks import network_tasks
from ansorlite.target import Target


def two_products() -> Partition:
    b = GraphBuilder("two")
    x = b.input("x", (16, 16))
    y = b.emit("matmul", [x, b.constant(np.eye(16, 24, dtype=np.float32))])
    return partition(optimize(b.finish([b.emit("matmul", [y, b.input("z", (24, 8))])])))


def images(parts: Partition) -> list[Contender]:
    tasks = network_tasks(parts, Target.detect())
    return [Contender((plain_image(w.task),), 0) for w in tasks]


class Pretended(CompiledModule):
    """Kernels take what `TIMES` says of the network's number: the n-th that was made."""

    made = 0
    TIMES = ([3.0, 1.0], [2.0, 1.5], [9.0, 0.995])

    def __init__(self, *args: object, **named: object) -> None:
        super().__init__(*args, **named)  # type: ignore[arg-type]
        self.number, Pretended.made = Pretended.made, Pretended.made + 1

    def timed_calls(self, args: object) -> list[float]:
        return list(self.TIMES[self.number])


def test_the_fastest_in_its_place_wins_by_a_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    Pretended.made = 0
    monkeypatch.setattr(contest, "CompiledModule", Pretended)
    parts = two_products()
    a, b = images(parts)
    assert fastest_in_place(parts, [[a, a, a], [b, b, b]], lambda: 60.0) == [1, 0]


def test_tasks_have_as_many_contenders_as_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    Pretended.made = 0
    monkeypatch.setattr(contest, "CompiledModule", Pretended)
    parts = two_products()
    a, b = images(parts)
    assert fastest_in_place(parts, [[a, a], [b]], lambda: 60.0) == [1, 0]
    assert fastest_in_place(parts, [[a], [b]], lambda: 60.0) == [0, 0]


def test_without_time_the_favourites_stay() -> None:
    parts = two_products()
    a, b = images(parts)
    assert fastest_in_place(parts, [[a, a], [b, b]], lambda: 0.0) == [0, 0]
    left = iter([9.0] * MIN_TURNS + [0.0])  # one question before the first turn: a turn is missing
    assert fastest_in_place(parts, [[a, a], [b, b]], lambda: next(left)) == [0, 0]


def test_networks_run_in_turn() -> None:
    Pretended.made = 0
    parts = two_products()
    networks = [Pretended(parts, [i for c in images(parts) for i in c.images]) for _ in range(3)]
    found = timed_in_turn(networks, lambda: 60.0)
    assert found is not None and {t.shape for t in found} == {(25, 2)}
    assert [t[3].tolist() for t in found] == list(Pretended.TIMES)
    left = iter([9.0] * MIN_TURNS + [0.0])
    assert timed_in_turn(networks, lambda: next(left)) is None


def test_kernels_really_run() -> None:
    parts = two_products()
    module = CompiledModule(parts, [image for c in images(parts) for image in c.images])
    times = module.timed_calls(random_inputs(parts.graph))
    assert len(times) == 2 and all(t > 0 for t in times)
