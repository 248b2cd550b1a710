"""`check` refuses what `lower` refuses, with the same words, and nothing else."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from ansorlite import te
from ansorlite.errors import ScheduleError
from ansorlite.graph.ops.conv import conv_nhwc
from ansorlite.graph.ops.winograd import correlation, fast_conv_nhwc
from ansorlite.schedule.lower import check, lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeAt
from ansorlite.space.sketch import sketches
from ansorlite.target import Target
from ansorlite.te.tensor import Tensor


def softmax() -> Tensor:
    x = te.placeholder((6, 8), name="x")
    r, k = te.reduce_axis(8, name="r"), te.reduce_axis(8, name="k")
    top = te.compute((6,), lambda i: te.max(x[i, r], axis=r), name="top")
    e = te.compute((6, 8), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((6,), lambda i: te.sum(e[i, k], axis=k), name="total")
    return te.compute((6, 8), lambda i, j: e[i, j] / total[i], name="y")


def convolution(fast: bool) -> Tensor:
    x = te.placeholder((1, 8, 8, 16), name="x")
    w = te.placeholder((3, 3, 16, 16), name="w", constant=True)
    pads = ((1, 1), (1, 1))
    if fast:
        y = fast_conv_nhwc(x, w, pads, (correlation(2, 3), correlation(2, 3)))
    else:
        y = conv_nhwc(x, w, (1, 1), pads, (1, 1))
    return te.compute(y.shape, lambda *i: te.maximum(y[i], 0.0), name="relu")


MAKERS: dict[str, Callable[[], Tensor]] = {
    "softmax": softmax,
    "convolution": lambda: convolution(False),
    "winograd": lambda: convolution(True),
}


def refusal(look: Callable[[State], object], state: State) -> str:
    try:
        look(state)
    except ScheduleError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_checked_can_be_lowered(name: str) -> None:
    """At every third place of a few sketches, also where nobody would compute a stage."""
    space = sketches(te.ComputeDAG([MAKERS[name]()]), Target.detect())
    found: list[str] = []
    for sketch in space[:: max(1, len(space) // 3)]:
        steps = tuple(s for s in sketch.state.steps if not isinstance(s, Annotate))
        state = replace(sketch.state, steps=steps)  # parallel loops would have to stay at root
        stages = state.schedule.stages
        places = [
            ComputeAt(s.name, t.name, it.name)
            for s in stages
            for t in stages
            for it in t.iters
            if s.has_loops and s.name != t.name
        ]
        for step in places[::3]:
            try:
                moved = state.apply(step)
            except ScheduleError:
                continue
            found.append(refusal(check, moved))
            assert found[-1] == refusal(lower, moved), str(step)
    assert "" in found
