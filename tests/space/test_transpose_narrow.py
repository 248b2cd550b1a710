"""Vectors along another axis where the contiguous one is narrow."""

import numpy as np
import pytest
from sampled import some_or_all
from space_cases import check

from ansorlite import te
from ansorlite.graph.ops.conv import conv2d_nhwc, conv_nhwc
from ansorlite.graph.ops.conv_transpose import conv_transpose_nhwc
from ansorlite.graph.ops.matmul import dense
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.state import State, state_from_json
from ansorlite.schedule.steps import CacheRead, Step, Transpose
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.space.transpose_narrow import transpose_narrow
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.workloads import workload

WIDE = Target.cross("x86-avx512")


def conv(co: int, w: int = 20, bias: bool = False) -> ComputeDAG:
    x = te.placeholder((1, 6, w, 5), name="X")
    weight = te.placeholder((3, 3, 5, co), name="W", constant=True)
    y = conv2d_nhwc(x, weight, padding=1)
    return ComputeDAG([te.relu(y) if bias else y])


def product(n: int, m: int = 40) -> ComputeDAG:
    a, b = te.placeholder((m, 12), name="A"), te.placeholder((12, n), name="B")
    return ComputeDAG([dense(a, b)])


def turns(state: State | None) -> list[Step]:
    return [] if state is None else [s for s in state.steps if isinstance(s, Transpose | CacheRead)]


def test_which_stages_are_narrow() -> None:
    assert transpose_narrow(State(conv(16)), WIDE) is None
    assert transpose_narrow(State(conv(3, w=8)), WIDE) is None  # no axis fills a vector
    assert transpose_narrow(State(conv(3, w=8)), Target.cross("x86-avx2")) is not None
    assert transpose_narrow(State(conv(7)), Target.cross("x86-avx2")) is None
    assert transpose_narrow(State(conv(7)), WIDE) is not None
    assert transpose_narrow(State(product(1)), WIDE) is not None
    x = te.placeholder((64, 3), name="X")
    assert transpose_narrow(State(ComputeDAG([te.relu(x)])), WIDE) is None  # nothing is reduced


def test_pads_are_turned_in_place_and_inputs_copied() -> None:
    pad, out = turns(transpose_narrow(State(conv(3, bias=True)), WIDE))
    assert (pad, out) == (
        Transpose("pad", ("n", "h", "c", "w")),
        Transpose("conv", ("n", "h", "co", "w")),
    )
    copy, a, c = turns(transpose_narrow(State(product(3)), WIDE))
    assert copy == CacheRead("A", "dense") and a == Transpose("A.packed", ("d1", "d0"))
    assert isinstance(c, Transpose) and c.stage == "dense"


def test_two_narrow_stages() -> None:
    """One after the other, and both of one input, which has one copy."""
    x = te.placeholder((1, 6, 20, 5), name="X")
    first, second = (te.placeholder((3, 3, ci, 3), name=f"W{ci}", constant=True) for ci in (5, 3))
    y = conv_nhwc(x, first, (1, 1), ((1, 1), (1, 1)), (1, 1), name="a")
    y = conv_nhwc(y, second, (1, 1), ((1, 1), (1, 1)), (1, 1), name="b")
    dag = ComputeDAG([y])
    state = transpose_narrow(State(dag), WIDE)
    assert len(turns(state)) == 4
    a, b, c = (
        te.placeholder((40 if k == 0 else 12, n), name="ABC"[k]) for k, n in enumerate((12, 3, 2))
    )
    both = ComputeDAG([dense(a, b, name="x"), dense(a, c, name="y")])
    assert [type(s) for s in turns(transpose_narrow(State(both), WIDE))].count(CacheRead) == 1


@some_or_all(3)
@pytest.mark.parametrize("name", ["conv", "conv+relu", "dense", "T2D"])
def test_their_programs_compute_the_same(name: str, every: int) -> None:
    dag = {
        "conv": lambda: conv(2),
        "conv+relu": lambda: conv(1, bias=True),
        "dense": lambda: product(2),
        "T2D": lambda: ComputeDAG(
            [
                conv_transpose_nhwc(
                    te.placeholder((1, 2, 16, 3), name="X"),
                    te.placeholder((4, 4, 3, 2), name="W", constant=True),
                    (2, 2),
                    ((1, 1), (1, 1)),
                )
            ]
        ),
    }[name]()
    host = Target.detect()
    found = [s for s in sketches(dag, host) if turns(s.state)]
    across = [s for s in found if any(isinstance(t, Transpose) for t in s.state.steps)]
    assert across
    for sketch in across[:9:every]:
        check(dag, sketch, 2)


def test_they_survive_records() -> None:
    """Steps under canonical names and back are the same program."""
    task = workload("T2D:3")
    names = canonical_names(task.dag)
    space = [s for s in sketches(task.dag, WIDE) if turns(s.state)]
    assert space and all(s.beyond_paper for s in space)
    assert not any(turns(s.state) for s in sketches(task.dag, WIDE, SpaceOptions(folding=False)))
    for sketch in space[:2]:
        steps = names.inverse.steps(names.steps(sketch.state.to_json()))
        assert steps == sketch.state.to_json()
        row = sketch.sample(1, np.random.default_rng(0))[0]
        again = state_from_json(task.dag, steps, sketch.holes)
        assert str(again.fill(sketch.values(row))) == str(sketch.state.fill(sketch.values(row)))
