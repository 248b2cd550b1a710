"""Tiles of a convolution that read nothing but wide padding are skipped."""

import numpy as np
import pytest
from space_cases import HOST, check

from ansorlite import te
from ansorlite.graph.ops.conv import conv_nhwc
from ansorlite.ir.guards import zero_borders
from ansorlite.ir.program import If, walk
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.space.sketch import sketches


def dilated(extent: int, dilation: int, stride: int = 1) -> te.Tensor:
    """A convolution of 3 x 3 whose padding is as wide as its dilation."""
    x = te.placeholder((1, 5, extent, 4), name="x")
    w = te.placeholder((3, 3, 4, 8), name="w")
    pads = ((1, 1), (dilation, dilation))
    return conv_nhwc(x, w, (1, stride), pads, (1, dilation))


@pytest.mark.parametrize(
    ("extent", "dilation", "borders"),
    [(9, 5, {2: (5, 14)}), (9, 8, {2: (8, 17)}), (14, 1, {}), (4, 1, {2: (1, 5)})],
)
def test_wide_borders_of_pads_are_known(
    extent: int, dilation: int, borders: dict[int, tuple[int, int]]
) -> None:
    program = lower(State(te.ComputeDAG([dilated(extent, dilation)])))
    assert [b for b in zero_borders(program).values() if b] == [borders] * bool(borders)


@pytest.mark.parametrize("stride", [1, 2])
def test_tiles_that_read_only_borders_are_skipped(stride: int) -> None:
    dag = te.ComputeDAG([dilated(9, 5, stride)])
    rng = np.random.default_rng(stride)
    skipping = 0
    for sketch in sketches(dag, HOST)[::6]:
        check(dag, sketch, 1)
        for row in sketch.sample(3, rng):
            program = sketch.fill(row)
            tests = [str(s.cond) for s in walk(specialize(program).body) if isinstance(s, If)]
            skipping += any("5 <=" in t for t in tests) and bool(zero_borders(program))
    assert skipping > 0
