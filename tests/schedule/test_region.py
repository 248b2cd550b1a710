"""The region of an attached stage: its local buffer, its loop counts, and that it is sufficient.

In each case a consumer reads a stage P (the input plus one) with other indices; P is attached to a
loop of the consumer, and the interpreter runs the program.
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import ScheduleError
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import stores_under
from ansorlite.schedule.holes import Hole
from ansorlite.schedule.lower import fill, lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
    ComputeAt,
    FollowSplit,
    Reorder,
    Rfactor,
    Split,
    Step,
    StoreAt,
)

N = 24
Body = Callable[..., Any]
SPLIT = Split("C", "i", (4, 2))


def consumer(rank: int, body: Body) -> State:
    """P over N in each of `rank` dimensions; C[i, j] = body(P, i, j, r), summed over r < 3."""
    x = te.placeholder((N,) * rank, name="X")
    at = te.placeholder((4,), dtype="int32", name="at")
    p = te.compute((N,) * rank, lambda *i: x[i] + 1.0, name="P")
    r = te.reduce_axis(3, name="r")
    c = te.compute((8, 8), lambda i, j: te.sum(body(p, i, j, r, at), axis=r), name="C")
    return State(te.ComputeDAG([c]))


def region(state: State) -> tuple[str, int, int]:
    """(shape of P's buffer, executions of P as counted, as run); the result must be right."""
    rng = np.random.default_rng(0)
    inputs = {
        p.name: np.asarray(rng.integers(0, 8, [int(str(e)) for e in p.shape]), p.dtype)
        for p in state.dag.inputs
    }
    program = lower(state)
    counts: Counter[str] = Counter()
    got = interpret(program, inputs, counts)
    for name, value in state.dag.evaluate(inputs).items():
        np.testing.assert_array_equal(got[name], value, err_msg=str(program))
    claimed = [math.prod(int(str(f)) for f in s.count) for s, _ in stores_under(program.body)]
    stages = [s.stage for s, _ in stores_under(program.body)]
    shape = " ".join(str(e) for e in program.by_name["P"].shape)
    return shape, claimed[stages.index("P")], counts["P"]


def inside(at: te.Expr) -> te.Expr:
    return te.minimum(te.maximum(at, 0), N - 1)


CASES: dict[str, tuple[int, Body, str, str]] = {
    "one element": (2, lambda p, i, j, r, at: p[i, j], "j", "1 1"),
    "a row": (2, lambda p, i, j, r, at: p[i, j], "i.2", "1 8"),
    "a tile": (2, lambda p, i, j, r, at: p[i, j], "i.0", "8 8"),
    "a halo": (2, lambda p, i, j, r, at: p[i + r, j], "i.1", "4 8"),
    "strides": (2, lambda p, i, j, r, at: p[i * 2 + r, j * 3], "i.1", "5 22"),
    "dilation": (2, lambda p, i, j, r, at: p[i + r * 4, j], "i.1", "10 8"),
    "reversed": (2, lambda p, i, j, r, at: p[N - 1 - i, j], "i.1", "2 8"),
    "a constant place": (2, lambda p, i, j, r, at: p[3, j + 5], "i.1", "1 8"),
    "two neighbours": (1, lambda p, i, j, r, at: p[i + 1] * p[i + 4], "i.1", "5"),
    "two orders": (2, lambda p, i, j, r, at: p[i, j] * p[j, i], "i.1", "24 24"),
    "two strides": (1, lambda p, i, j, r, at: p[i * 2] * p[i * 3], "i.1", "24"),
    "one axis twice": (2, lambda p, i, j, r, at: p[i, i], "i.1", "2 2"),
    "the sum of two axes": (1, lambda p, i, j, r, at: p[i + j + r], "i.1", "11"),
    "a quotient": (1, lambda p, i, j, r, at: p[(i + j) // 2], "i.1", "24"),
    "a remainder": (1, lambda p, i, j, r, at: p[i % 3], "i.1", "24"),
    "a place read from a tensor": (2, lambda p, i, j, r, at: p[inside(at[r]), j], "i.1", "24 8"),
    "one place read from a tensor": (2, lambda p, i, j, r, at: p[inside(at[2]), j], "i.1", "24 8"),
    "outside of the tensor": (
        1,
        lambda p, i, j, r, at: te.select(i + r >= 2, p[i + r - 2], 0.0),
        "i.1",
        "4",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_regions(name: str) -> None:
    rank, body, iterator, shape = CASES[name]
    state = consumer(rank, body).apply(SPLIT, ComputeAt("P", "C", iterator))
    buffer, claimed, ran = region(state)
    assert buffer == shape
    assert ran <= claimed


def test_halos_are_counted_for_each_tile() -> None:
    _, body, _, _ = CASES["a halo"]
    state = consumer(2, body).apply(SPLIT, ComputeAt("P", "C", "i.1"))
    assert region(state) == ("4 8", 4 * 4 * 8, 4 * 4 * 8)


ROWS: dict[str, tuple[int, Body, tuple[str, str], str, int]] = {
    "a halo": (2, lambda p, i, j, r, at: p[i + r, j], ("i.0", "i.1"), "10 8", 10 * 8),
    "strides": (2, lambda p, i, j, r, at: p[i * 2 + r, j * 3], ("i.0", "i.1"), "17 22", 17 * 22),
    "nothing shared": (2, lambda p, i, j, r, at: p[i, j], ("i.0", "i.1"), "8 8", 8 * 8),
    "gaps": (1, lambda p, i, j, r, at: p[i * 3], ("i.0", "i.1"), "22", 22),
    "dilation": (2, lambda p, i, j, r, at: p[i + r * 4, j], ("i.0", "i.1"), "16 8", 16 * 8),
    "one row at a time": (2, lambda p, i, j, r, at: p[i + r, j], ("i.1", "i.2"), "4 8", 128),
    "two neighbours": (1, lambda p, i, j, r, at: p[i + 1] * p[i + 4], ("i.0", "i.1"), "11", 11),
    "outside of the tensor": (
        1,
        lambda p, i, j, r, at: te.select(i + r >= 2, p[i + r - 2], 0.0),
        ("i.0", "i.1"),
        "10",
        10,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_are_kept_are_computed_once(name: str) -> None:
    rank, body, (kept, at), shape, claimed = ROWS[name]
    state = consumer(rank, body).apply(SPLIT, ComputeAt("P", "C", at), StoreAt("P", "C", kept))
    buffer, counted, ran = region(state)
    assert (buffer, counted) == (shape, claimed)
    assert ran <= counted and (ran == counted or name in ("gaps", "outside of the tensor"))


NOT_KEPT: dict[str, tuple[Body, tuple[Step, ...], str]] = {
    "in steps that are not known": (
        lambda p, i, j, r, at: p[inside(at[r] + i), j],
        (ComputeAt("P", "C", "i.1"), StoreAt("P", "C", "i.0")),
        "0 of its axes move",
    ),
    "along two axes": (
        lambda p, i, j, r, at: p[i + r, i + r],
        (ComputeAt("P", "C", "i.1"), StoreAt("P", "C", "i.0")),
        "2 of its axes move",
    ),
    "backwards": (
        lambda p, i, j, r, at: p[N - 1 - i, j],
        (ComputeAt("P", "C", "i.1"), StoreAt("P", "C", "i.0")),
        "no plain steps",
    ),
    "in threads": (
        lambda p, i, j, r, at: p[i + r, j],
        (
            ComputeAt("P", "C", "i.1"),
            StoreAt("P", "C", "i.0"),
            Annotate("C", "i.1", "parallel", 1),
        ),
        "which is parallel",
    ),
    "over two loops": (
        lambda p, i, j, r, at: p[i + r, j],
        (ComputeAt("P", "C", "i.2"), StoreAt("P", "C", "i.0")),
        "not the spatial loop next inside",
    ),
    "at root": (lambda p, i, j, r, at: p[i, j], (StoreAt("P", "C", "i.0"),), "is not attached"),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_rows_that_cannot_be_kept(name: str) -> None:
    body, steps, message = NOT_KEPT[name]
    with pytest.raises(ScheduleError, match=message):
        lower(consumer(2, body).apply(SPLIT, *steps))


def test_attached_to_a_reduction_loop() -> None:
    state = consumer(2, lambda p, i, j, r, at: p[i + r, j])
    order = Reorder("C", ("i.0", "i.1", "r", "i.2", "j"))
    assert region(state.apply(SPLIT, order, ComputeAt("P", "C", "r")))[0] == "2 8"


def matmul_and_relu() -> State:
    """P = X W (7 x 9), C = relu(P)."""
    x, w = te.placeholder((7, 5), name="X"), te.placeholder((5, 9), name="W")
    k = te.reduce_axis(5, name="k")
    p = te.compute((7, 9), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="P")
    return State(te.ComputeDAG([te.relu(p, name="C")]))


@pytest.mark.parametrize(
    ("iterator", "shape"),
    [("i0.0", "4 9"), ("i1.0", "4 4"), ("i0.1", "2 4"), ("i1.1", "2 2"), ("i1.2", "1 1")],
)
def test_followers_share_their_leaders_tiles(iterator: str, shape: str) -> None:
    """Aligned stages: no element is computed twice, clamped tiles or not."""
    steps: tuple[Step, ...] = (
        Split("P", "i", (2, 2)),
        Split("P", "j", (2, 2)),
        FollowSplit("C", "P"),
        Reorder("C", ("i0.0", "i1.0", "i0.1", "i1.1", "i0.2", "i1.2")),
        ComputeAt("P", "C", iterator),
    )
    program_shape, _, ran = region(matmul_and_relu().apply(*steps))
    assert program_shape == shape
    assert ran == 7 * 9 * (1 + 5)  # start values and products


def test_factored_reductions_do_not_depend_on_when_holes_are_filled() -> None:
    """The index 2 j + k becomes 2 j + k_o f + k_i: f is a hole, its sign is known."""
    x = te.placeholder((20,), name="X")
    p = te.compute((20,), lambda i: x[i] + 1.0, name="P")
    k = te.reduce_axis(6, name="k")
    c = te.compute((7,), lambda j: te.sum(p[j * 2 + k], axis=k), name="C")
    hole = Hole("C.rf.k", "C", "factor", ((1,), (2,), (3,), (6,)))
    state = State(te.ComputeDAG([c])).open(hole)
    state = state.apply(
        Rfactor("C", "k", hole.columns[0], "outer"),
        ComputeAt("C.rf", "C", "j"),
        ComputeAt("P", "C", "j"),
    )
    for factor in hole.options:
        values = {hole.name: factor}
        assert str(fill(lower(state), values)) == str(lower(state.fill(values)))
        assert region(state.fill(values))[0] == "6"
