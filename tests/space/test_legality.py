"""The legality mask: registers, local memory, work for every core; on hand-written rows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from space_cases import TARGET, matmul, softmax

from ansorlite import te
from ansorlite.schedule.holes import population_columns
from ansorlite.space.legality import legal
from ansorlite.space.sketch import Sketch, SpaceOptions, sketches
from ansorlite.target import Target

PAPER = SpaceOptions(packing=False, locations=False)
ONE = replace(TARGET, cores=1)


def tiled(n: int, m: int, k: int) -> Sketch:
    """The sketch of a matmul without a cache."""
    found = sketches(te.ComputeDAG([matmul(n, m, k)]), ONE, PAPER)
    return next(s for s in found if s.fired == ("multi_level_tiling",))


def allowed(sketch: Sketch, target: Target = ONE, **values: Any) -> bool:
    """Is the row with these values legal? Other holes take their first option."""
    names = {k.replace("_", "."): v for k, v in values.items()}
    row = sketch.row({**{h.name: h.options[0] for h in sketch.holes}, **names})[None]
    return bool(legal(sketch.program, population_columns(sketch.holes, row), 1, target)[0])


@pytest.mark.parametrize(
    ("rows", "columns", "registers", "ok"),
    [
        (6, 16, 16, True),  # 12 accumulators, 2 vectors of B, 1 of A
        (4, 24, 16, True),
        (12, 8, 16, True),
        (7, 16, 16, False),  # 14 + 2 + 1
        (8, 16, 16, False),
        (3, 32, 16, True),  # 12 + 3 + 1
        (8, 16, 32, True),
        (14, 16, 32, True),  # 28 + 2 + 1
        (15, 16, 32, False),
    ],
)
def test_register_tiles(rows: int, columns: int, registers: int, ok: bool) -> None:
    sketch = tiled(rows * 16, columns * 16, 64)
    target = replace(ONE, vector_registers=registers)
    tile = {"C_i": (1, 1, rows), "C_j": (1, 1, columns)}
    assert allowed(sketch, target, **tile, C_lanes=(8,)) == ok


def test_short_vectors_need_more_registers() -> None:
    sketch = tiled(96, 256, 64)
    tile = {"C_i": (1, 1, 6), "C_j": (1, 1, 16)}
    assert allowed(sketch, **tile, C_lanes=(8,)) and not allowed(sketch, **tile, C_lanes=(4,))


def test_local_buffers_fit_the_second_cache() -> None:
    found = sketches(te.ComputeDAG([te.relu(matmul(512, 512, 64), name="D")]), ONE, PAPER)
    sketch = next(s for s in found if s.state.schedule["C"].location == ("D", "i1.0"))
    small = {"C_i": (16, 4, 4), "C_j": (1, 16, 16)}  # C = local[256, 256], 256 KiB
    target = replace(ONE, l2_bytes=256 * 1024)
    assert allowed(sketch, target, **small, C_lanes=(8,))
    assert not allowed(sketch, replace(ONE, l2_bytes=256 * 1024 - 1), **small, C_lanes=(8,))


def test_local_buffers_of_another_nest_are_gone() -> None:
    outputs = [te.relu(matmul(512, 512, 64, name=a), name=b) for a, b in (("C", "D"), ("E", "F"))]
    where = {"C": ("D", "i1.0"), "E": ("F", "i1.0")}
    found = sketches(te.ComputeDAG(outputs), ONE, PAPER)
    sketch = next(
        s for s in found if all(s.state.schedule[k].location == v for k, v in where.items())
    )
    small = {"i": (16, 4, 4), "j": (1, 16, 16)}  # local[256, 256], 256 KiB
    tiles = {f"{stage}_{axis}": v for stage in where for axis, v in small.items()}
    lanes = {"C_lanes": (8,), "E_lanes": (8,)}
    assert allowed(sketch, replace(ONE, l2_bytes=256 * 1024), **tiles, **lanes)
    assert not allowed(sketch, replace(ONE, l2_bytes=256 * 1024 - 1), **tiles, **lanes)


def test_every_core_has_work() -> None:
    sketch = tiled(256, 256, 64)
    tile = {"C_i": (2, 8, 4), "C_j": (1, 2, 16), "C_lanes": (8,)}  # 4 x 8 outer tiles
    four, many = replace(ONE, cores=4), replace(ONE, cores=8)
    assert allowed(sketch, ONE, **tile, C_parallel=(0,))
    assert not allowed(sketch, four, **tile, C_parallel=(0,))
    assert allowed(sketch, four, **tile, C_parallel=(1,))
    assert not allowed(sketch, many, **tile, C_parallel=(1,))
    assert allowed(sketch, many, **tile, C_parallel=(2,))


def test_little_work_may_stay_on_one_core() -> None:
    sketch = tiled(16, 16, 64)
    assert allowed(sketch, replace(ONE, cores=64), C_parallel=(0,))


def test_a_mask_has_one_value_a_row() -> None:
    rng = np.random.default_rng(0)
    for sketch in sketches(te.ComputeDAG([softmax(512, 512)]), TARGET, PAPER):
        rows = sketch.sample(50, rng)
        mask = legal(sketch.program, population_columns(sketch.holes, rows), 50, TARGET)
        assert mask.shape == (50,) and mask.dtype == bool
