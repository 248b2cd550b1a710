"""Single features of programs whose values are known."""

import numpy as np
import pytest

from ansorlite import te
from ansorlite.cost.analytic import rates_of
from ansorlite.cost.features import features
from ansorlite.cost.names import CYCLES, FEATURE_NAMES
from ansorlite.graph.ops.conv import conv2d_nhwc
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeInline, Reorder, Split, Step
from ansorlite.target import Target

TARGET = Target.cross("x86-avx2", cores=2)


def linear(dag: te.ComputeDAG, *steps: Step) -> dict[str, float]:
    """Features of the last statement, counts as numbers."""
    values = features(lower(State(dag).apply(*steps)), {}, 1, TARGET)[0, -1]
    return dict(zip(FEATURE_NAMES, np.exp2(values.astype(np.float64)) - 1, strict=True))


def conv() -> te.ComputeDAG:
    x = te.placeholder((1, 8, 8, 32), name="x")
    w = te.placeholder((3, 3, 32, 16), name="w", constant=True)
    return te.ComputeDAG([conv2d_nhwc(x, w, padding=1)])


ORDER = ("n", "h", "w.0", "co.0", "kh", "kw", "ci", "w.1", "co.1")
TILES: tuple[Step, ...] = (
    ComputeInline("pad"),
    Split("conv", "w", (4,)),
    Split("conv", "co", (16,)),
    Reorder("conv", ORDER),
    Annotate("conv", "co.1", "lanes", 8),
    Annotate("conv", "co.1", "register", 1),
)


def test_a_test_is_made_outside_of_the_loops_that_it_does_not_move_with() -> None:
    """In rows of a register tile there is a test a row, before the channels are summed up."""
    tiled = linear(conv(), *TILES, Annotate("conv", "w.1", "register", 1))
    # 22 of the 24 rows of windows are inside, the others are left out.
    assert tiled["mad"] == pytest.approx(8 * 8 * 16 * 9 * 32 * 22 / 24, rel=1e-2)
    assert tiled["select"] == pytest.approx(tiled["mad"] / (32 * 16), rel=1e-3)
    loops = linear(conv(), *TILES)
    assert loops["select"] == pytest.approx(loops["mad"] / 16, rel=1e-3)


def test_a_test_on_what_is_loaded_is_made_every_time() -> None:
    x = te.placeholder((64, 32), name="x")
    dag = te.ComputeDAG([te.compute((64, 32), lambda i, j: te.select(x[i, j] > 0, 1.0, 2.0))])
    assert linear(dag)["select"] == pytest.approx(64 * 32, rel=1e-3)


def product(n: int) -> te.ComputeDAG:
    a, b = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
    k = te.reduce_axis(n, "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=[k]), name="C")
    return te.ComputeDAG([c])


def tiled(n: int, rows: int, width: int, depth: int) -> tuple[te.ComputeDAG, list[Step]]:
    return product(n), [
        Split("C", "i", (rows,)),
        Split("C", "j", (width,)),
        Split("C", "k", (depth,)),
        Reorder("C", ("j.0", "k.0", "i.0", "k.1", "i.1", "j.1")),
        Annotate("C", "i.1", "register", 1),
        Annotate("C", "j.1", "register", 1),
        Annotate("C", "j.1", "lanes", 8),
    ]


def test_rows_a_power_of_two_apart_crowd_on_a_few_sets() -> None:
    # 64 rows of a line each fit in any cache, unless 4 KiB apart: then all fall on one set.
    even, odd = (linear(dag, *steps) for dag, steps in (tiled(n, 4, 16, 64) for n in (1024, 1040)))
    assert even["beyond_l1"] > 2 * odd["beyond_l1"]


def test_a_register_tile_shares_loads() -> None:
    dag, steps = tiled(256, 4, 16, 64)
    found = linear(dag, *steps)
    assert np.log2(1 + found["register_loads"]) == pytest.approx(1 / 2 + 1 / 4)


def test_a_short_last_vector_costs_more_than_its_share() -> None:
    fills = []
    for width in (16, 12, 10, 15):
        dag, steps = tiled(240, 4, width, 60)
        fills.append(np.log2(1 + linear(dag, *steps)["vector_fill"]))
    # 12 = 8 + 4 and 10 = 8 + 2 take two operations, 15 = 8 + 4 + 2 + 1 about three.
    assert fills[:3] == pytest.approx([1.0, 12 / 16, 10 / 16])
    assert 15 / 32 < fills[3] < 15 / 16


def test_vectors_that_lie_across_cache_lines_are_loaded_twice() -> None:
    dag, steps = tiled(240, 4, 12, 60)  # a tile every 48 B, vectors of 32 B: every other one
    found = linear(dag, *steps)
    assert np.log2(1 + found["register_loads"]) == pytest.approx(1 / 2 + 1.5 / 4)


def test_a_register_tile_whose_operands_all_move_shares_nothing() -> None:
    x, y = te.placeholder((64, 64), name="X"), te.placeholder((64, 64), name="Y")
    z = te.compute((64, 64), lambda i, j: x[i, j] * y[i, j], name="Z")
    steps = [
        Split("Z", "i", (4,)),
        Split("Z", "j", (16,)),
        Reorder("Z", ("i.0", "j.0", "i.1", "j.1")),
        Annotate("Z", "i.1", "register", 1),
        Annotate("Z", "j.1", "register", 1),
        Annotate("Z", "j.1", "lanes", 8),
    ]
    found = linear(te.ComputeDAG([z]), *steps)
    assert np.log2(1 + found["register_loads"]) == pytest.approx(2.0)


def test_a_tensor_without_dimensions() -> None:
    x, y = te.placeholder((), name="X"), te.placeholder((8,), name="Y")
    dag = te.ComputeDAG([te.compute((8,), lambda i: x[()] * y[i], name="Z")])
    program = lower(State(dag))
    assert features(program, {}, 3, TARGET).shape[0] == 3


def test_nobody_has_no_features() -> None:
    """A sketch may have no legal row."""
    program = lower(State(product(64)))
    assert features(program, {}, 0, TARGET).shape == (0, 1, len(FEATURE_NAMES))


def test_the_estimate_of_cycles_is_that_of_its_parts() -> None:
    """The longest one, and the share of the others that does not overlap with it."""
    found = linear(product(256))
    parts = [found[f"cycles_{k}"] for k in CYCLES]
    rates = rates_of(TARGET)
    # Every addition waits for the one before.
    assert found["cycles_compute"] == max(parts)
    alone = max(parts) + rates.serialised * (sum(parts) - max(parts))
    assert found["cycles_all"] == pytest.approx(alone, rel=1e-3)
