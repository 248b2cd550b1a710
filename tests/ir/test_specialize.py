"""Specialised programs as golden files, one per rewrite."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import Program, verify
from ansorlite.ir.specialize import specialize
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, ComputeAt, Reorder, Split, Step


def matmul(n: int, m: int, k: int) -> te.Tensor:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k, "r")
    return te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")


def rows(n: int, m: int, combiner: Callable[..., Any] = te.sum) -> te.Tensor:
    x = te.placeholder((n, m), name="X")
    r = te.reduce_axis(m, "r")
    return te.compute((n,), lambda i: combiner(x[i, r], axis=r), name="C")


def doubled(n: int) -> te.Tensor:
    x = te.placeholder((n,), name="X")
    return te.compute((n,), lambda i: x[i] * 2.0, name="C")


def shifted() -> te.Tensor:
    """P is needed in windows that overlap and start where the tensor starts."""
    x = te.placeholder((12,), name="X")
    p = te.compute((12,), lambda i: x[i] + 1.0, name="P")
    return te.compute((12,), lambda i: te.select(i >= 1, p[i - 1], 0.0), name="C")


def windows() -> te.Tensor:
    """Sums of three elements of P; the windows of the last tile end where P ends."""
    x = te.placeholder((12,), name="X")
    p = te.compute((12,), lambda i: x[i] + 1.0, name="P")
    r = te.reduce_axis(3, "r")
    return te.compute(
        (12,), lambda i: te.sum(te.select(i + r < 12, p[i + r], 0.0), axis=r), name="C"
    )


TILE = (
    Annotate("C", "i.1", "register", 1),
    Annotate("C", "j.1", "register", 1),
    Annotate("C", "j.1", "lanes", 4),
)
TILED = (Split("C", "i", (2,)), Split("C", "j", (8,)))
CASES: dict[str, tuple[te.Tensor, tuple[Step, ...]]] = {
    "register_tile": (
        matmul(4, 8, 6),
        (*TILED, Reorder("C", ("i.0", "j.0", "r", "i.1", "j.1")), *TILE),
    ),
    "full_and_tail_bodies": (
        matmul(5, 14, 6),
        (*TILED, Reorder("C", ("i.0", "j.0", "r", "i.1", "j.1")), *TILE),
    ),
    "start_values_apart": (
        matmul(4, 8, 6),
        (
            *TILED,
            Split("C", "r", (3,)),
            Reorder("C", ("r.0", "i.0", "j.0", "r.1", "i.1", "j.1")),
            *TILE,
        ),
    ),
    "start_values_between": (
        matmul(10, 14, 6),
        (
            Split("C", "i", (2, 2)),
            Split("C", "j", (8,)),
            Split("C", "r", (6,)),  # one trip outside: nothing is summed up in memory
            Reorder("C", ("i.0", "r.0", "i.1", "j.0", "r.1", "i.2", "j.1")),
            Annotate("C", "i.2", "register", 1),
            *TILE[1:],
        ),
    ),
    "unrolled_reduction": (
        matmul(4, 8, 6),
        (
            *TILED,
            Reorder("C", ("i.0", "j.0", "r", "i.1", "j.1")),
            *TILE,
            Annotate("C", "r", "unroll", 16),
        ),
    ),
    "unrolled_with_a_rest": (
        matmul(4, 8, 11),
        (
            *TILED,
            Reorder("C", ("i.0", "j.0", "r", "i.1", "j.1")),
            *TILE,
            Annotate("C", "r", "unroll", 16),
        ),
    ),
    "horizontal_reduction": (rows(3, 23), (Annotate("C", "r", "lanes", 4),)),
    "short_horizontal_reduction": (rows(3, 3, te.max), (Annotate("C", "r", "lanes", 4),)),
    "vectors_and_remainder": (doubled(11), (Annotate("C", "i", "lanes", 4),)),
    "parallel_loops_of_vectors": (
        doubled(24),
        (
            Split("C", "i", (8,)),
            Annotate("C", "i.0", "parallel", 1),
            Annotate("C", "i.1", "lanes", 4),
        ),
    ),
    "extents_known_at_run_time": (
        shifted(),
        (
            Split("C", "i", (5,)),
            ComputeAt("P", "C", "i.0"),
            Annotate("P", "i", "lanes", 4),
        ),
    ),
    "overlapping_windows_at_the_end": (
        windows(),
        (
            Split("C", "i", (3,)),
            ComputeAt("P", "C", "i.0"),
            Annotate("P", "i", "lanes", 4),
        ),
    ),
    "strips": (
        matmul(4, 10, 6),
        (Reorder("C", ("i", "r", "j")), Annotate("C", "j", "lanes", 4)),
    ),
}


def both(name: str) -> tuple[te.ComputeDAG, Program, Program]:
    tensor, steps = CASES[name]
    dag = te.ComputeDAG([tensor])
    program = lower(State(dag).apply(*steps))
    return dag, program, specialize(program)


@pytest.mark.parametrize("name", CASES)
def test_printed(name: str, golden: Callable[[str, str], None]) -> None:
    _, program, ready = both(name)
    golden(f"{program}\n{ready}", f"specialize_{name}")


@pytest.mark.parametrize("name", CASES)
def test_meaning(name: str) -> None:
    dag, _, ready = both(name)
    verify(ready)
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.integers(-4, 5, _shape(p)).astype("float32") for p in dag.inputs}
    for output, value in dag.evaluate(inputs).items():
        np.testing.assert_array_equal(interpret(ready, inputs)[output], value)


def _shape(p: te.Placeholder) -> list[int]:
    return [int(str(e)) for e in p.shape]


def test_no_annotation_survives() -> None:
    for name in CASES:
        text = str(both(name)[2])
        assert "register=" not in text and "lanes=" not in text and "unroll=" not in text


def test_specialising_is_repeatable() -> None:
    for name in CASES:
        _, program, ready = both(name)
        assert str(specialize(program)) == str(ready)


@pytest.mark.parametrize(("height", "vectors"), [(3, 4), (4, 3), (2, 2)])
def test_the_shorter_side_of_a_tile_stays_in_registers(height: int, vectors: int) -> None:
    """More vectors than rows: one vector after the other, each to all rows."""
    steps = (
        Split("C", "i", (height,)),
        Split("C", "j", (8 * vectors,)),
        Reorder("C", ("i.0", "j.0", "r", "i.1", "j.1")),
        *(Annotate("C", at, "register", 1) for at in ("i.1", "j.1")),
        Annotate("C", "j.1", "lanes", 8),
    )
    dag = te.ComputeDAG([matmul(height, 8 * vectors, 5)])
    lines = str(specialize(lower(State(dag).apply(*steps)))).splitlines()
    k = next(n for n, line in enumerate(lines) if "+=" in line)
    outer, inner = (line.split()[2] for line in lines[k - 3 : k - 1])
    assert outer.startswith("C.j.1" if vectors > height else "C.i.1")
    assert inner.startswith("C.i.1" if vectors > height else "C.j.1")


@pytest.mark.parametrize(("trip", "past"), [(6, True), (3, False)])
def test_only_buffers_not_read_again_bypass_the_caches(trip: int, past: bool) -> None:
    """Sums that are complete in registers; not those that memory keeps, nor their start values."""
    steps = (
        *TILED,
        Split("C", "r", (trip,)),
        Reorder("C", ("r.0", "i.0", "j.0", "r.1", "i.1", "j.1")),
        *TILE,
        Annotate("C", "j.1", "stream", 1),
    )
    text = str(specialize(lower(State(te.ComputeDAG([matmul(4, 8, 6)])).apply(*steps))))
    assert ("stream for" in text) == past
