"""Sketches that fuse several anchors: attention, inverted residuals with halos."""

from collections import Counter

import numpy as np
import pytest
from space_cases import HOST, check

from ansorlite import te
from ansorlite.codegen.kernel import Kernel
from ansorlite.graph.ops.conv import depthwise_conv2d_nhwc
from ansorlite.ir.expr import Const
from ansorlite.ir.interpret import interpret
from ansorlite.ir.program import NO_NOTE, stores_under
from ansorlite.ir.tiles import full_and_tail
from ansorlite.schedule.holes import population_columns
from ansorlite.schedule.lower import lower
from ansorlite.schedule.naming import canonical_names
from ansorlite.schedule.state import State
from ansorlite.space.anchors import fuse_anchors
from ansorlite.space.annotate import annotate
from ansorlite.space.legality import legal
from ansorlite.space.sketch import (
    FUSION,
    Sketch,
    SpaceOptions,
    constants_evaluated,
    sketch_of,
    sketches,
    sketches_alike,
)


def attention(
    heads: int, queries: int, keys: int, width: int, divided: bool, masked: bool = False
) -> te.ComputeDAG:
    """Scores, softmax and product; `divided` before the product, or after it."""
    q = te.placeholder((queries, heads, width), name="Q")
    k = te.placeholder((keys, heads, width), name="K")
    v = te.placeholder((keys, heads, width), name="V")
    r = [te.reduce_axis(n, f"r{n}") for n in (width, keys)]
    s = te.compute(
        (heads, queries, keys),
        lambda b, i, j: te.sum(q[i, b, r[0]] * k[j, b, r[0]], axis=r[0]),
        name="S",
    )
    scaled = te.compute(s.shape, lambda b, i, j: s[b, i, j] * 0.5, name="scaled")
    if masked:
        mask, x = te.placeholder((keys,), name="M"), scaled
        scaled = te.compute(s.shape, lambda b, i, j: x[b, i, j] + mask[j], name="left")
    top = te.compute((heads, queries), lambda b, i: te.max(scaled[b, i, r[1]], axis=r[1]), "top")
    e = te.compute(s.shape, lambda b, i, j: te.exp(scaled[b, i, j] - top[b, i]), name="E")
    total = te.compute((heads, queries), lambda b, i: te.sum(e[b, i, r[1]], axis=r[1]), "total")
    shares = te.compute(s.shape, lambda b, i, j: e[b, i, j] / total[b, i], name="shares")
    p = shares if divided else e
    out = te.compute(
        (queries, heads, width),
        lambda i, b, j: te.sum(p[b, i, r[1]] * v[r[1], b, j], axis=r[1]),
        name="O",
    )
    if not divided:
        out = te.compute(out.shape, lambda i, b, j: out[i, b, j] / total[b, i], name="out")
    return te.ComputeDAG([out])


def product(x: te.Tensor, channels: int, name: str) -> te.Tensor:
    """A convolution of 1x1 over [n, h, w, c]."""
    w = te.placeholder((x.shape[-1], channels), name=f"{name}.w", constant=True)
    k = te.reduce_axis(int(str(x.shape[-1])), f"{name}.k")
    return te.compute(
        (*x.shape[:-1], channels),
        lambda n, i, j, c: te.sum(x[n, i, j, k] * w[k, c], axis=k),
        name=name,
    )


def relu6(x: te.Tensor, name: str) -> te.Tensor:
    return te.compute(x.shape, lambda *i: te.minimum(te.maximum(x[i], 0.0), 6.0), name=name)


def residual(size: int, channels: int, stride: int, expand: bool) -> te.ComputeDAG:
    """(Expand,) depthwise of 3x3 and project of an inverted residual."""
    x = te.placeholder((1, size, size, channels), name="X")
    h = relu6(product(x, 2 * channels, "expand"), "wide") if expand else x
    w = te.placeholder((3, 3, h.shape[-1]), name="D.w", constant=True)
    d = relu6(depthwise_conv2d_nhwc(h, w, stride, 1), "deep")
    y = product(d, channels, "project")
    if stride == 1:
        y = te.compute(y.shape, lambda *i: y[i] + x[i], name="sum")
    return te.ComputeDAG([y])


CASES = {
    "attention": lambda: attention(2, 10, 12, 8, False),
    "divided": lambda: attention(2, 10, 12, 8, True),
    "masked": lambda: attention(2, 26, 12, 8, False, True),
    "residual": lambda: residual(6, 4, 1, True),
    "strided": lambda: residual(7, 4, 2, True),
    "deep": lambda: residual(6, 8, 1, False),
}


def fused(dag: te.ComputeDAG) -> list[Sketch]:
    found = sketches(dag, HOST, SpaceOptions(apart=False))
    assert all(s.fired == (FUSION,) for s in found)
    return found


LONG = ("attention", "residual")  # others are like them
SLOW = [pytest.param(c, marks=pytest.mark.slow) if c in LONG else c for c in CASES]


@pytest.mark.parametrize("case", SLOW)
def test_fused_anchors_compute_what_numpy_does(case: str) -> None:
    dag = CASES[case]()
    found = fused(dag)
    assert found
    check(dag, found[0], 1)
    check(dag, found[-1], 1)


def test_a_mask_changes_nothing_about_the_tiles() -> None:
    """The largest score of a row is no anchor, though all rows read the same mask."""
    plain, masked = (fused(attention(2, 26, 12, 8, False, m)) for m in (False, True))
    assert [s.name for s in masked] == [s.name for s in plain]
    for s in masked:
        assert not s.state.schedule["top"].tiling
        (rows,) = (h for h in s.holes if h.name == "O.i")
        assert (1, 3, 2) in rows.options  # of 13 tiles of two rows


def test_steps_and_patterns_find_the_sketches_again() -> None:
    dag, alike = attention(2, 10, 12, 8, True), attention(3, 6, 16, 8, True)
    found = fused(dag)
    names = canonical_names(dag)
    for s in (found[0], found[-1]):
        again = sketch_of(dag, HOST, names.frozen(s.state.to_json()))
        assert again is not None and str(again.program) == str(s.program)
    other = sketches_alike(alike, HOST, [s.pattern for s in found])
    assert [s and s.name for s in other] == [s.name for s in fused(alike)]


def test_without_locations_there_is_no_fusion() -> None:
    dag = attention(2, 10, 12, 8, False)
    plain = sketches(dag, HOST, SpaceOptions(locations=False))
    assert plain and all(s.fired != (FUSION,) for s in plain)


def test_a_packed_operand_is_packed_once_for_all_tiles_of_rows() -> None:
    dag = attention(2, 10, 12, 8, False)
    (packed,) = [s for s in fused(dag) if s.name.endswith("anchors1+K.packed")]
    schedule = packed.state.schedule
    assert schedule["K.packed"].location == ("out", "b")
    for name in ("S", "top", "E", "total"):
        assert schedule[name].location == ("out", "i.0")


@pytest.mark.parametrize("masked", [False, True])
def test_nan_and_infinities_go_where_numpy_has_them(masked: bool) -> None:
    dag = attention(2, 10, 12, 8, False, masked)
    rng = np.random.default_rng(3)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in dag.inputs}
    arrays["Q"][1, 0, 2], arrays["K"][4, 1, 3] = np.nan, np.inf
    arrays["V"][3, 1, 5], arrays["V"][7, 0, 1] = -np.inf, np.nan
    if masked:
        arrays["M"][8:] = -np.inf  # of keys that do not count
    with np.errstate(all="ignore"):
        want = dag.evaluate(arrays)["out"]
    assert np.isnan(want).any() and np.isfinite(want).any()
    s = fused(dag)[1]
    rows = s.sample(500, rng)
    ok = legal(s.program, population_columns(s.holes, rows), len(rows), HOST)
    program = s.fill(rows[ok][0])
    got = Kernel(program, HOST)(*(arrays[p.name] for p in dag.inputs))
    np.testing.assert_allclose(got, want, rtol=1e-4)
    np.testing.assert_allclose(interpret(program, arrays)["out"], want, rtol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_tiles_in_halos_are_whole(stride: int) -> None:
    """Register tiles have at most two sizes, all of them legal, and rows at borders are right."""
    dag = residual(9, 4, stride, True)
    ways = dict(fuse_anchors(constants_evaluated(State(dag)), HOST))
    s = Sketch("f0-anchors1", annotate(ways["-anchors1"], HOST))
    rng = np.random.default_rng(0)
    rows = s.sample(4000, rng)
    ok = legal(s.program, population_columns(s.holes, rows), len(rows), HOST)
    assert ok.mean() > 0.5
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in dag.inputs}
    (want,) = dag.evaluate(arrays).values()
    tall = 0
    for row in rows[ok][:12]:
        program = s.fill(row)
        got = interpret(program, arrays)
        (name,) = (b.name for b in program.params if b.role == "output")
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)
        own = [
            lp
            for x, around in stores_under(program.body)
            for lp in around
            if x.stage == lp.axis[0] == "expand" and lp.note("register") is not NO_NOTE
        ]
        assert all(isinstance(lp.extent, Const) or full_and_tail(lp) for lp in own), program
        tall += any(lp.axis[1] in "ij" for lp in own)
    assert tall


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_that_windows_share_are_computed_once(stride: int) -> None:
    """Unless they are in different blocks, which threads may compute."""
    size = 9
    dag = residual(size, 4, stride, True)
    found = [s for s in fused(dag) if "-rolled" in s.name]
    assert found
    rng = np.random.default_rng(0)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in dag.inputs}
    (want,) = dag.evaluate(arrays).values()
    for s in found:
        rows = s.sample(3000, rng)
        ok = legal(s.program, population_columns(s.holes, rows), len(rows), HOST)
        assert ok.mean() > 0.1
        least = np.inf
        for row in rows[ok][:16]:
            program = s.fill(row)
            counts: Counter[str] = Counter()
            got = interpret(program, arrays, counts)
            (name,) = (b.name for b in program.params if b.role == "output")
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-4)
            least = min(least, counts["expand"])
        assert least == size * size * 2 * 4 * (1 + 4)  # start values and products


def test_rows_of_a_copy_are_not_kept() -> None:
    """The pad of an input that windows read costs little, and tiles of the rows gain more."""
    assert all("-rolled" not in s.name for s in fused(residual(6, 8, 1, False)))
    assert all("-rolled" in s.name for s in fused(residual(6, 4, 1, True)))


@pytest.mark.parametrize("case", ["divided", "strided"])
def test_regions_follow_from_structure_alone(case: str) -> None:
    """Filled programs are those lowered with the values, also where a region then starts at 0."""
    for s in fused(CASES[case]()):
        rows = s.sample(300, np.random.default_rng(1))
        ok = legal(s.program, population_columns(s.holes, rows), len(rows), HOST)
        for row in rows[ok][:6]:
            assert str(s.fill(row)) == str(lower(s.state.fill(s.values(row))))


@pytest.mark.parametrize(("size", "stride"), [(8, 2), (7, 1)])
def test_nan_and_infinities_stay_in_their_windows(size: int, stride: int) -> None:
    """At corners and edges, where tiles move back into the tensor, too."""
    dag = residual(size, 4, stride, True)
    rng = np.random.default_rng(5)
    arrays = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in dag.inputs}
    x = arrays["X"]
    x[0, 0, 0, 0], x[0, -1, -1, 1], x[0, size // 2, 0, 2] = np.nan, np.inf, -np.inf
    x[0, 1, -1, 3], x[0, -1, 1, 0] = 1e-42, 1e30
    with np.errstate(all="ignore"):
        (want,) = dag.evaluate(arrays).values()
    assert np.isnan(want).any() and np.isfinite(want).any()
    for s in fused(dag)[:2]:
        rows = s.sample(600, rng)
        ok = legal(s.program, population_columns(s.holes, rows), len(rows), HOST)
        got = Kernel(s.fill(rows[ok][0]), HOST)(*(arrays[p.name] for p in dag.inputs))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
