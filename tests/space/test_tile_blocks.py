"""Blocks of tiles: legal where whole rows of tiles do not fit, and right."""

from dataclasses import replace

import numpy as np
import pytest
from native import run_native
from sampled import sampled

from ansorlite import te
from ansorlite.graph.ops.bilinear import correlation
from ansorlite.graph.ops.strassen import fast_dense
from ansorlite.graph.ops.winograd import fast_conv_nhwc
from ansorlite.ir.interpret import interpret
from ansorlite.measure.compare import relative_error
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.naming import canonical_names
from ansorlite.space.legality import legal
from ansorlite.space.sketch import CHANNELS, TILES, Sketch, SpaceOptions, sketch_of, sketches
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG

OPTIONS = SpaceOptions(max_sketches=8)
NAMES = ("conv_data", "dense_data")  # of transformed data
RNG = np.random.default_rng(2)


def winograd(size: int, tiles: tuple[int, int], channels: int) -> ComputeDAG:
    """A 3x3 convolution and an element-wise stage, in tiles; 0: an axis as written."""
    x = te.placeholder((1, size, size, channels), name="x")
    w = te.placeholder((3, 3, channels, channels), name="w", constant=True)
    axes = [correlation(m, 3) if m else None for m in tiles]
    joined = any(m and size % m for m in tiles)
    y = fast_conv_nhwc(x, w, ((1, 1), (1, 1)), axes, joined=joined)
    return ComputeDAG([te.relu(y, "out")])


def matrices(levels: int) -> ComputeDAG:
    """A product of matrices in parts and an element-wise stage."""
    x, w = te.placeholder((36, 16), name="x"), te.placeholder((16, 40), name="w", constant=True)
    return ComputeDAG([te.relu(fast_dense(x, w, levels=levels), "out")])


def in_blocks(dag: ComputeDAG, target: Target, label: str = TILES) -> list[Sketch]:
    return [s for s in sketches(dag, target, OPTIONS) if s.name.endswith(label)]


def legal_rows(sketch: Sketch, target: Target, n: int) -> np.ndarray:
    rows = sketch.sample(n, np.random.default_rng(0))
    return rows[legal(sketch.program, population_columns(sketch.holes, rows), n, target)]


# A view of the result, a copy, one axis.
@pytest.mark.parametrize(("size", "tiles"), sampled([(8, (2, 2)), (9, (2, 2)), (8, (0, 4))], 2))
def test_blocks_of_tiles_are_right(size: int, tiles: tuple[int, int]) -> None:
    target = Target.detect()
    dag = winograd(size, tiles, 4)
    x = RNG.standard_normal((1, size, size, 4)).astype(np.float32)
    w = RNG.standard_normal((3, 3, 4, 4)).astype(np.float32)
    (want,) = dag.evaluate({"x": x, "w": w}).values()
    sketch = in_blocks(dag, target)[0]
    row = legal_rows(sketch, target, 64)[-1]
    program = sketch.fill(row)
    for run in (interpret, lambda p, given: run_native(p, given, target)):
        got = run(program, {"x": x, "w": w})["out"]
        assert relative_error(np.asarray(got), want) < 1e-5
    steps = canonical_names(dag).frozen(sketch.state.to_json())
    found = sketch_of(dag, target, steps, OPTIONS)
    assert found is not None
    assert found.name == sketch.name


CASES = {
    "tiles": lambda: winograd(8, (2, 2), 4),
    "rows of tiles": lambda: winograd(8, (0, 4), 4),
    "halves": lambda: matrices(1),
    "quarters": lambda: matrices(2),
}


@pytest.mark.parametrize("case", sampled(list(CASES), 2))
def test_blocks_of_channels_are_right(case: str) -> None:
    """What depends on tiles alone is computed once for all channels, and weights are packed."""
    target, rng = Target.detect(), np.random.default_rng(3)
    dag = CASES[case]()
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in dag.inputs}
    arrays["x"].reshape(-1)[7] = np.inf
    with np.errstate(invalid="ignore"):
        (want,) = dag.evaluate(arrays).values()
    found = in_blocks(dag, target, CHANNELS)
    assert found
    for sketch in found:
        data = sketch.state.schedule[next(n for n in NAMES if sketch.state.schedule.has(n))]
        products = sketch.state.schedule[data.name.replace("_data", "_products")]
        assert data.location[0] == products.location[0] == "out"
        assert data.location != products.location
        for row in legal_rows(sketch, target, 256)[-4:]:
            program = sketch.fill(row)
            for run in (interpret, lambda p, given: run_native(p, given, target)):
                with np.errstate(invalid="ignore"):
                    got = np.asarray(run(program, arrays)["out"])
                sound = np.isfinite(want)
                assert not np.isfinite(got[~sound]).any()
                assert relative_error(got[sound], want[sound]) < 1e-5
        steps = canonical_names(dag).frozen(sketch.state.to_json())
        again = sketch_of(dag, target, steps, OPTIONS)
        assert again is not None
        assert again.name == sketch.name


def test_large_maps_are_legal_in_blocks_alone() -> None:
    """Rows of tiles do not fit into the cache, even those of one nest alone."""
    target = replace(Target.cross("x86-avx512", cores=2), l2_bytes=1 << 15)
    dag = winograd(64, (4, 4), 16)
    found = {s.name: len(legal_rows(s, target, 512)) for s in sketches(dag, target, OPTIONS)}
    assert not any(n for name, n in found.items() if not name.endswith((TILES, CHANNELS)))
    assert all(any(n for name, n in found.items() if name.endswith(w)) for w in (TILES, CHANNELS))


def test_what_has_no_tiles_has_no_blocks() -> None:
    x = te.placeholder((8, 8), name="x")
    assert not in_blocks(ComputeDAG([te.relu(x, "y")]), Target.detect())
