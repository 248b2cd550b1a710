"""Padding that is partly done by the reading stages, and the shorter loops that follow."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native import run_native

from ansorlite import te
from ansorlite.cost.features import features
from ansorlite.cost.names import FEATURE_NAMES
from ansorlite.errors import ScheduleError
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import If, Program, verify, walk
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.pads import PadInPlace, inner_part, window_axes
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeInline, Reorder, Split
from ansorlite.space.legality import legal
from ansorlite.space.sketch import Sketch, sketches
from ansorlite.target import Target
from ansorlite.te.tensor import ComputeOp

Combiner = Callable[..., Any]
TARGET = Target()


def conv(
    size: tuple[int, ...], c: int, o: int, k: int, stride: int = 1, pad: int = 1, dilation: int = 1
) -> te.ComputeDAG:
    """A padded convolution over any number of dimensions, channels last, and a rectifier."""
    n, taps = len(size), [te.reduce_axis(k, f"k{d}") for d in range(len(size))]
    ci = te.reduce_axis(c, "ci")
    x = te.placeholder((*size, c), name="data")
    w = te.placeholder((*[k] * n, c, o), name="weight", constant=True)
    wide = [s + 2 * pad for s in size]

    def padded(*i: te.Expr) -> te.Expr:
        tests = [t for a, s in zip(i, size, strict=False) for t in (a >= pad, a < s + pad)]
        return te.select(te.all(*tests), x[(*[a - pad for a in i[:n]], i[n])], 0.0)

    def term(*i: te.Expr) -> te.Expr:
        places = [a * stride + t * dilation for a, t in zip(i, taps, strict=False)]
        return te.sum(p[(*places, ci)] * w[(*taps, ci, i[n])], axis=[*taps, ci])

    names = [f"i{d}" for d in range(n)] + ["c"]
    p = te.compute((*wide, c), _named(padded, names), name="pad")
    out = [(s - dilation * (k - 1) - 1) // stride + 1 for s in wide]
    y = te.compute((*out, o), _named(term, names), name="conv")
    done = _named(lambda *i: te.maximum(y[i], 0.0), names)
    return te.ComputeDAG([te.compute((*out, o), done, name="out")])


def _named(fn: Callable[..., te.Expr], names: list[str]) -> Callable[..., te.Expr]:
    """A function with so many named parameters: axes are called after them."""
    scope = {"fn": fn}
    exec(f"def call({', '.join(names)}): return fn({', '.join(names)})", scope)
    made: Callable[..., te.Expr] = scope["call"]  # type: ignore[assignment]
    return made


CONVS: dict[str, te.ComputeDAG] = {
    "3x3": conv((7, 7), 8, 16, 3),
    "first layer": conv((9, 11), 3, 24, 7, stride=2, pad=3),
    "dilated": conv((7, 7), 4, 16, 3, pad=2, dilation=2),
    "wide border": conv((5, 5), 5, 10, 5, pad=4),
    "3-d": conv((5, 6, 7), 3, 16, 3, stride=2),
}


def in_place(dag: te.ComputeDAG) -> list[Sketch]:
    found = [
        s for s in sketches(dag, TARGET) if any(isinstance(x, PadInPlace) for x in s.state.steps)
    ]
    assert found
    return found


def inputs(dag: te.ComputeDAG, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        p.name: rng.standard_normal([int(str(e)) for e in p.shape]).astype(np.float32)
        for p in dag.inputs
    }


@pytest.mark.parametrize("name", CONVS)
def test_meaning(name: str) -> None:
    """Random programs of every such sketch give what numpy gives."""
    dag = CONVS[name]
    values, rng = inputs(dag), np.random.default_rng(1)
    want = dag.evaluate(values)["out"]
    for sketch in in_place(dag)[::3]:
        rows = sketch.sample(400, rng)
        good = legal(sketch.program, population_columns(sketch.holes, rows), len(rows), TARGET)
        for row in rows[good][:2]:
            program = sketch.fill(row)
            verify(specialize(program))
            got = run_native(program, values, TARGET)["out"]
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=str(program))


def _scheduled(dag: te.ComputeDAG, height: int) -> Program:
    """A register tile over channels and `height` rows, the last axis of the border copied."""
    return lower(
        State(dag).apply(
            PadInPlace("pad", ("i0",)),
            Split("conv", "i0", (height,)),
            Split("conv", "c", (16,)),
            Reorder("conv", ("i0.0", "i1", "c.0", "k0", "k1", "ci", "i0.1", "c.1")),
            *(Annotate("conv", at, "register", 1) for at in ("i0.1", "c.1")),
            Annotate("conv", "c.1", "lanes", 8),
        )
    )


@pytest.mark.parametrize(("height", "tests"), [(1, 1), (7, 0)])
def test_a_test_outside_of_the_tile_is_made_once(height: int, tests: int) -> None:
    """With rows in the register tile each has a test of its own, and nothing is left out."""
    dag = CONVS["3x3"]
    ready = specialize(_scheduled(dag, height))
    found = [s for s in walk(ready.body) if isinstance(s, If) and "k0" in str(s.cond)]
    assert len(found) == tests, ready
    values = inputs(dag)
    np.testing.assert_allclose(
        interpret(ready, values)["out"], dag.evaluate(values)["out"], rtol=1e-4, atol=1e-4
    )


def test_features_count_what_is_left() -> None:
    """3 rows of a window over 7 rows: 19 of 21 are inside."""
    dag = CONVS["3x3"]
    at = FEATURE_NAMES.index("mad")
    mads = []
    for height in (1, 7):
        rows = features(_scheduled(dag, height), {}, 1, TARGET)
        mads.append(float(np.exp2(rows[0, :, at]).max() - 1.0))
    assert mads[0] / mads[1] == pytest.approx(19 / 21, abs=0.02)


def test_what_is_read_of_a_pad() -> None:
    pad = CONVS["first layer"].computes[0]
    assert isinstance(pad, ComputeOp) and pad.name == "pad"
    assert inner_part(pad, "i0") == (3, 12) and inner_part(pad, "i1") == (3, 14)
    assert inner_part(pad, "c") is None


def test_windows_but_the_last() -> None:
    def axes(name: str) -> tuple[str, ...]:
        pad, y = CONVS[name].computes[:2]
        return window_axes(pad, [y])

    assert axes("3x3") == ("i0",) and axes("3-d") == ("i0", "i1")


@pytest.mark.parametrize("combiner", [te.max, te.min])
def test_only_borders_that_change_nothing(combiner: Combiner) -> None:
    """A border of zeros may be the largest of a window."""
    x = te.placeholder((5, 6, 8), name="x")
    a, b = te.reduce_axis(3, "a"), te.reduce_axis(3, "b")

    def padded(h: te.Expr, w: te.Expr, c: te.Expr) -> te.Expr:
        inside = te.all(h >= 1, h < 6, w >= 1, w < 7)
        return te.select(inside, x[h - 1, w - 1, c], 0.0)

    p = te.compute((7, 8, 8), padded, name="pad")
    y = te.compute((5, 6, 8), lambda h, w, c: combiner(p[h + a, w + b, c], axis=[a, b]), name="y")
    dag = te.ComputeDAG([y])
    assert window_axes(dag.computes[0], dag.computes[1:]) == ()
    program = lower(State(dag).apply(PadInPlace("pad", ("h",))))
    values = inputs(dag)
    np.testing.assert_array_equal(
        run_native(program, values, TARGET)["y"], dag.evaluate(values)["y"]
    )


def test_bad_steps() -> None:
    state = State(CONVS["3x3"])
    for axes in ((), ("c",), ("i0", "c")):
        with pytest.raises(ScheduleError, match="no pad whose conditions"):
            state.apply(PadInPlace("pad", axes))
    with pytest.raises(ScheduleError, match="no pad whose conditions"):
        state.apply(PadInPlace("conv", ("i0",)))
    with pytest.raises(ScheduleError, match="output"):
        state.apply(PadInPlace("out", ("i0",)))
    with pytest.raises(ScheduleError, match="scheduled already"):
        state.apply(ComputeInline("pad"), PadInPlace("pad", ("i0",)))
