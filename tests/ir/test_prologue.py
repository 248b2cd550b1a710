"""Maps in the loops of the reduction that reads them: where they are, where not, the results."""

from collections.abc import Callable

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen.kernel import Kernel
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import For, Program, Store, verify, walk
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeAt, Reorder, Split, Step
from ansorlite.target import Target

HOST = Target.detect()
Map = Callable[[te.Tensor, te.Expr, te.Expr], te.Expr]


def columns(rows: int, width: int, mapped: Map, summed: Map) -> te.Tensor:
    """y[i] = the sum over k of summed(x, k, i), for x[k, i] = mapped(A, k, i)."""
    a = te.placeholder((rows, width), name="A")
    x = te.compute((rows, width), lambda k, i: mapped(a, k, i), name="X")
    k = te.reduce_axis(rows, "k")
    return te.compute((width,), lambda i: te.sum(summed(x, k, i), axis=k), name="y")


def scheduled(y: te.Tensor, own: int = 4, split: bool = False) -> Program:
    """Vectors of `own` elements of X, and of 4 of y in registers, all or 8 at a time."""
    tiles: tuple[Step, ...] = (Reorder("y", ("k", "i")),)
    if split:
        tiles = Split("y", "i", (8,)), Reorder("y", ("i.0", "k", "i.1"))
    along = "i.1" if split else "i"
    notes = (Annotate("y", along, key, n) for key, n in (("lanes", 4), ("register", 1)))
    state = State(te.ComputeDAG([y]))
    return lower(state.apply(Annotate("X", "i", "lanes", own), *tiles, *notes))


def together(program: Program, reduction: str = "y") -> bool:
    """Is X computed in the loops of the reduction? The results must be right."""
    rng = np.random.default_rng(3)
    (a,) = (b for b in program.params if b.role != "output")
    values = rng.standard_normal([int(str(e)) for e in a.logical]).astype(np.float32)
    values.flat[::11] = rng.choice(
        [np.inf, -np.inf, 3e38, -0.0, 1e-42], values[...].flat[::11].size
    )
    values[1, 2] = np.nan
    with np.errstate(all="ignore"):
        want = interpret(program, {a.name: values})["y"]
        made = specialize(program)
        verify(made)
        np.testing.assert_array_equal(interpret(made, {a.name: values})["y"], want)
    np.testing.assert_allclose(Kernel(program, HOST)(values), want, rtol=1e-5, atol=1e-6)
    loops = (s for s in walk(made.body) if isinstance(s, For) and s.reduce)
    stages = [{x.stage for x in walk(s) if isinstance(x, Store)} for s in loops]
    return any({"X", reduction} <= own for own in stages)


def exponential(a: te.Tensor, k: te.Expr, i: te.Expr) -> te.Expr:
    return te.exp(a[k, i] * 0.5)


def same(x: te.Tensor, k: te.Expr, i: te.Expr) -> te.Expr:
    return x[k, i]


CASES: dict[str, tuple[int, int, Map, Map, bool]] = {
    "whole vectors": (7, 16, exponential, same, True),
    "a short vector at the end": (7, 19, exponential, same, True),
    "a function of the element": (5, 16, exponential, lambda x, k, i: x[k, i] * x[k, i], True),
    "a neighbour of the element": (5, 16, exponential, lambda x, k, i: x[k, (i + 1) % 16], False),
    "the element and a neighbour": (
        5,
        16,
        exponential,
        lambda x, k, i: x[k, i] + x[(k + 1) % 5, i],
        False,
    ),
    "more vectors than registers": (3, 80, exponential, same, False),
}


@pytest.mark.parametrize("case", CASES)
def test_a_map_stands_beside_the_sum(case: str) -> None:
    rows, width, mapped, summed, expected = CASES[case]
    assert together(scheduled(columns(rows, width, mapped, summed))) == expected


def test_vectors_of_other_lengths_stay_apart() -> None:
    assert not together(scheduled(columns(5, 16, exponential, same), own=2))


def test_a_loop_outside_of_the_sum_stays_apart() -> None:
    """The sum of a few columns at a time does not have the loops of the map."""
    assert not together(scheduled(columns(5, 16, exponential, same), split=True))


@pytest.mark.parametrize("width", [17, 19, 24])
def test_tiles_of_columns_that_end_early(width: int) -> None:
    """Tiles of 8 columns; the last one may have a single column, for which no vector is needed."""
    a = te.placeholder((5, width), name="A")
    x = te.compute((5, width), lambda k, i: exponential(a, k, i), name="X")
    k = te.reduce_axis(5, "k")
    total = te.compute((width,), lambda i: te.sum(x[k, i], axis=k), name="T")
    y = te.compute((width,), lambda i: total[i] * 3.0 + x[2, i], name="y")
    state = State(te.ComputeDAG([y])).apply(
        Split("y", "i", (8,)),
        *(ComputeAt(stage, "y", "i.0") for stage in ("T", "X")),
        Reorder("T", ("k", "i")),
        *(Annotate(stage, "i", "lanes", 4) for stage in ("T", "X")),
        Annotate("T", "i", "register", 1),
    )
    assert together(lower(state), "T")


def test_a_map_of_several_threads_stays_apart() -> None:
    state = State(te.ComputeDAG([columns(8, 16, exponential, same)])).apply(
        Annotate("X", "k", "parallel", 1),
        *(Annotate(stage, "i", "lanes", 4) for stage in ("X", "y")),
        Reorder("y", ("k", "i")),
        Annotate("y", "i", "register", 1),
    )
    assert not together(lower(state))


def test_the_elements_do_not_bypass_the_caches() -> None:
    """They are read again, even where the sums are not."""
    state = State(te.ComputeDAG([columns(5, 16, exponential, same)])).apply(
        *(Annotate(stage, "i", "lanes", 4) for stage in ("X", "y")),
        Reorder("y", ("k", "i")),
        *(Annotate("y", "i", note, 1) for note in ("register", "stream")),
    )
    assert together(lower(state)) and "stream for" not in str(specialize(lower(state)))


def test_a_largest_element_is_found_beside_the_map() -> None:
    a = te.placeholder((6, 16), name="A")
    x = te.compute((6, 16), lambda k, i: te.exp(a[k, i]), name="X")
    k = te.reduce_axis(6, "k")
    y = te.compute((16,), lambda i: te.max(x[k, i], axis=k), name="y")
    assert together(scheduled(y))
