"""Packed operands: places and sizes of the copies, and equal results."""

import numpy as np
import pytest
from native import run_native
from sampled import some_or_all

from ansorlite import te
from ansorlite.ir.program import Alloc, walk
from ansorlite.schedule.holes import population_columns
from ansorlite.space.legality import legal
from ansorlite.space.sketch import Sketch, SpaceOptions, sketches
from ansorlite.target import Target

M, N, K = 26, 40, 18
# Every structure of a product, none left out: the default limit keeps the first.
ALL = SpaceOptions(max_sketches=400)


def product(fused: bool = False) -> te.ComputeDAG:
    a, b = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    k = te.reduce_axis(K, "k")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    if not fused:
        return te.ComputeDAG([c])
    return te.ComputeDAG([te.compute((M, N), lambda i, j: c[i, j] * 2.0 + 1.0, name="D")])


def space(fused: bool = False) -> dict[str, Sketch]:
    return {s.name: s for s in sketches(product(fused), Target(), ALL)}


def test_copies_at_root_and_at_two_tiles_of_each_operand() -> None:
    endings = {n.partition("+")[2] for n in space() if "+" in n}
    assert {"B.packed", "A.packed", "B.packed+A.packed"} <= endings
    assert {"B.packed@B.packed:j.0", "B.packed@B.packed:k.0"} <= endings
    assert {"A.packed@A.packed:i.0", "A.packed@A.packed:i.2"} <= endings
    assert any("A.packed:i.2" in e and "B.packed:k.0" in e for e in endings)


def test_a_copy_at_a_tile_holds_that_tile() -> None:
    """B at k.0: the inner reductions, times the two inner levels of j."""
    name = next(n for n in space() if n.endswith("+B.packed@B.packed:k.0"))
    sketch = space()[name]
    values = {h.name: h.options[0] for h in sketch.holes}
    values |= {"C.i": (1, 7, 4), "C.j": (1, 5, 8), "C.k": (6,)}
    program = sketch.fill(sketch.row(values))
    local = [s.buffer for s in walk(program.body) if isinstance(s, Alloc)]
    packed = next(b for b in local if b.name == "B.packed")
    assert np.prod([int(str(e)) for e in packed.shape]) == 6 * 5 * 8


@some_or_all(3)
@pytest.mark.parametrize("fused", [False, True])
def test_packed_copies_change_no_value(fused: bool, every: int) -> None:
    """The sketches that pack, inexact tiles in every axis, between guard pages."""
    dag = product(fused)
    rng = np.random.default_rng(0)
    inputs = {p.name: rng.integers(-4, 5, (M, K) if p.name == "A" else (K, N)) for p in dag.inputs}
    arrays = {n: x.astype(np.float32) for n, x in inputs.items()}
    want = dag.evaluate(arrays)
    target = Target()
    ran = 0
    packing = [e for e in space(fused).items() if "packed@" in e[0] or "+" in e[0]]
    for name, sketch in packing[::every]:
        rows = sketch.sample(400, rng)
        good = rows[legal(sketch.program, population_columns(sketch.holes, rows), 400, target)]
        for row in good[:2]:
            got = run_native(sketch.fill(row), arrays, target)
            for output, value in want.items():
                np.testing.assert_array_equal(got[output], value, err_msg=f"{name} {row}")
            ran += 1
    assert ran > 20
