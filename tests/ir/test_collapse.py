"""Collapsed axes: vectors over several positions, where the last axis is shorter than a vector."""

from collections.abc import Callable

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import For, Stmt, verify, walk
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate
from ansorlite.target import Target

H, W, C = 5, 9, 3


def padded(before: int, after: int) -> te.Tensor:
    x = te.placeholder((H, W, C), name="X")

    def place(h: te.Expr, w: te.Expr, c: te.Expr) -> te.Expr:
        inside = te.all(h >= 1, h < H + 1, w >= before, w < W + before)
        return te.select(inside, x[h - 1, w - before, c], 0.5)

    return te.compute((H + 2, W + before + after, C), place, name="Y")


def copied() -> te.Tensor:
    x = te.placeholder((H + 1, W, C), name="X")
    return te.compute((H, W, C), lambda h, w, c: x[h + 1, w, c], name="Y")


def turned() -> te.Tensor:
    """Not the same places on both sides."""
    x = te.placeholder((H, C, W), name="X")
    return te.compute((H, W, C), lambda h, w, c: x[h, c, w], name="Y")


def cropped() -> te.Tensor:
    """Gaps between the rows that are read."""
    x = te.placeholder((H, W, C + 1), name="X")
    return te.compute((H, W, C), lambda h, w, c: x[h, w, c], name="Y")


def channels() -> te.Tensor:
    """A test that moves with the vectors."""
    x = te.placeholder((H, W, C), name="X")
    return te.compute((H, W, C), lambda h, w, c: te.select(c < 2, x[h, w, c], 1.0), name="Y")


# name: (tensor, rows in its nest, or None where its loops stay as they are)
CASES: dict[str, tuple[Callable[[], te.Tensor], int | None]] = {
    "pad": (lambda: padded(2, 1), 3),
    "pad before": (lambda: padded(2, 0), 2),
    "pad around": (lambda: padded(0, 0), 1),
    "copy": (copied, 1),
    "turned": (turned, None),
    "cropped": (cropped, None),
    "channels": (channels, None),
}


def _over(s: Stmt, axis: str) -> list[For]:
    return [x for x in walk(s) if isinstance(x, For) and x.axis[1] == axis]


@pytest.mark.parametrize("lanes", [4, 8])
@pytest.mark.parametrize("name", CASES)
def test_rows(name: str, lanes: int) -> None:
    make, rows = CASES[name]
    y = make()
    dag = te.ComputeDAG([y])
    last = y.op.axes[-1].name
    program = lower(State(dag).apply(Annotate("Y", last, "lanes", lanes)))
    ready = specialize(program)
    verify(ready)
    x = dag.inputs[0]
    shape = [int(str(e)) for e in x.shape]
    arrays = {"X": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    want = dag.evaluate(arrays)["Y"]
    np.testing.assert_array_equal(interpret(ready, arrays)["Y"], want)
    np.testing.assert_array_equal(run_native(program, arrays, Target())["Y"], want)
    middle = y.op.axes[-2].name
    assert bool(_over(ready.body, middle)) == (rows is None), ready
    assert rows is None or len(_over(ready.body, last)) >= rows, ready
