"""Matrix products by seven products of halves: values, errors, and their choice in networks."""

import numpy as np
import pytest

from ansorlite import te
from ansorlite.codegen.build import build_program
from ansorlite.codegen.image import KernelImage
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, evaluate
from ansorlite.graph.kernels import plain_image
from ansorlite.graph.module import CompiledModule
from ansorlite.graph.ops import strassen
from ansorlite.graph.ops.conv_forms import UNIT
from ansorlite.graph.ops.strassen import SEVEN, fast_dense
from ansorlite.graph.partition import partition, tasks
from ansorlite.graph.passes import optimize
from ansorlite.measure.compare import relative_error
from ansorlite.search.promise import promising
from ansorlite.space.sketch import SpaceOptions, sketches
from ansorlite.target import Target
from ansorlite.task import SearchTask

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def fast(x: np.ndarray, w: np.ndarray, levels: int = 1) -> np.ndarray:
    tensors = te.placeholder(x.shape, name="x"), te.placeholder(w.shape, name="w")
    found = te.ComputeDAG([fast_dense(*tensors, levels=levels)]).evaluate({"x": x, "w": w})["dense"]
    return found.reshape(x.shape[0], w.shape[1])


@pytest.mark.parametrize(
    ("levels", "m", "k", "n"),
    [(1, 2, 2, 2), (1, 6, 8, 10), (1, 7, 4, 6), (1, 1, 2, 4), (2, 8, 4, 12), (2, 7, 8, 4)],
)
def test_it_means_a_matrix_product(levels: int, m: int, k: int, n: int) -> None:
    x, w = normal(m, k), normal(k, n)
    assert relative_error(fast(x, w, levels), x.astype(np.float64) @ w) < 5e-6


def test_seven_products_of_quarters_make_a_product() -> None:
    data, weight, inverse = (np.array(m, np.float64) for m in SEVEN.matrices)
    a, b = RNG.integers(-9, 9, (2, 2)), RNG.integers(-9, 9, (2, 2))
    got = inverse @ ((data @ a.reshape(4)) * (weight @ b.reshape(4)))
    np.testing.assert_array_equal(got.reshape(2, 2), a @ b)
    assert SEVEN.gain == pytest.approx(6**0.5)  # of the first and the last quarter


@pytest.mark.parametrize("levels", [1, 2])
def test_errors_follow_the_weights(levels: int) -> None:
    w = normal(64, 96)
    form = strassen.product_forms(1024, 1024, 1024)[levels - 1]
    expected = 2 * UNIT[False] * SEVEN.gain**levels
    assert form.error(w) == pytest.approx(expected, rel=0.1)
    assert form.error(0 * w) == 0.0
    w[:32, :48] *= 1000  # added to small sums and taken away again; in units of the largest result
    assert form.error(w) == pytest.approx(expected, rel=0.4)
    w[5, 7] = np.nan
    assert form.error(w) == np.inf


@pytest.mark.parametrize(("levels", "spread"), [(1, (2, 3)), (2, (0, 1, 2, 3))])
def test_an_infinity_spreads_over_its_group_of_rows_alone(
    levels: int, spread: tuple[int, ...]
) -> None:
    """What is documented of NaN and infinities: the other rows are as in the plain form."""
    x, w = normal(8, 8), normal(8, 4)
    x[3, 2] = np.inf
    with np.errstate(all="ignore"):
        got, want = fast(x, w, levels), x @ w
    assert not np.isfinite(want[3]).any()
    assert not np.isfinite(got[3]).any()
    rest = [k for k in range(8) if k not in spread]
    np.testing.assert_allclose(got[rest], want[rest], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "count"),
    [
        (128, 768, 3072, 2),
        (197, 768, 768, 2),  # the last row of an odd number is repeated
        (1500, 512, 512, 2),
        (1500, 512, 514, 1),
        (1, 1024, 1024, 0),  # one row: nothing to pair
        (128, 767, 768, 0),
        (3136, 64, 256, 0),  # what is written and read on the way costs more
    ],
)
def test_which_products_have_the_form(rows: int, depth: int, columns: int, count: int) -> None:
    assert len(strassen.product_forms(rows, depth, columns)) == count


def layers(kind: str) -> Graph:
    """One product of a kind, with a bias and more behind it."""
    b = GraphBuilder("net")
    if kind == "pixels":
        x = b.input("x", (1, 8, 6, 4))
        y = b.emit(
            "conv",
            [x, b.constant(normal(12, 8, 1, 1))],
            strides=(1, 1),
            pads=((0, 0),) * 2,
            dilations=(1, 1),
            groups=1,
            layout="channels_first",
        )
        y = b.emit("add", [y, b.constant(normal(12, 1, 1))])
        return b.finish([b.emit("relu", [b.emit("add", [y, b.constant(normal(1, 12, 6, 4))])])])
    rows = 7 if kind == "odd" else 6
    x = b.input("x", (2, rows, 8))
    y = b.emit("matmul", [x, b.constant(normal(8, 12))])
    y = b.emit("add", [y, b.constant(normal(12))])
    if kind == "mask":
        y = b.emit("mul", [y, b.constant(normal(2, rows, 1))])
    if kind == "shared":  # by both samples: no view of the merged rows
        y = b.emit("mul", [y, b.constant(normal(rows, 1))])
    return b.finish([b.emit("relu", [y])])


@pytest.mark.parametrize("kind", ["pixels", "rows", "odd", "mask", "shared"])
def test_it_is_a_form_of_layers_and_agrees_natively(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strassen, "LEAST", 2)  # layers this small are faster as written
    monkeypatch.setattr(strassen, "HOPE", 100.0)
    target = Target.detect()
    graph = layers(kind)
    parts = partition(optimize(graph))
    found = tasks(parts)
    with_forms = [k for k, t in enumerate(found) if t.others]
    if kind == "shared":
        assert not with_forms
        return
    (at,) = with_forms
    assert len(found[at].others) == 2
    images: list[KernelImage] = [plain_image(SearchTask(t.dag, target)) for t in found]
    x = normal(*graph.types["x"].shape)
    (want,) = evaluate(graph, [x])
    for number, other in enumerate(found[at].others, 1):
        meant = SearchTask(other, target, meaning=found[at].dag)
        sketch = sketches(other, target, SpaceOptions(max_sketches=4))[0]
        row = sketch.sample(1, np.random.default_rng(0))[0]
        for image in (plain_image(meant), build_program(sketch.fill(row), target)):
            images[at] = image
            chosen = [number * int(k == at) for k in range(len(found))]
            got = CompiledModule(parts, images, chosen)(x)
            assert relative_error(np.asarray(got), want) < 1e-5


def test_other_uses_of_a_product_have_no_other_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products of two results of the network, behind transposes, and where none may err."""
    monkeypatch.setattr(strassen, "LEAST", 2)
    monkeypatch.setattr(strassen, "HOPE", 100.0)
    assert not any(t.others for t in tasks(partition(optimize(layers("rows")), form_rtol=1e-9)))
    b = GraphBuilder("net")
    x, y = b.input("x", (6, 8)), b.input("y", (8, 12))
    graph = b.finish([b.emit("matmul", [b.emit("relu", [x]), b.emit("relu", [y])])])
    assert not any(t.others for t in tasks(partition(optimize(graph))))
    b = GraphBuilder("net")
    x = b.input("x", (4, 6, 2, 8))
    moved = b.emit("transpose", [x], perm=(0, 2, 1, 3))
    graph = b.finish([b.emit("relu", [b.emit("matmul", [moved, b.constant(normal(8, 12))])])])
    assert not any("transpose" in s.name and s.others for s in partition(optimize(graph)).subgraphs)


def test_a_form_that_saves_few_operations_is_measured_where_it_moves_little() -> None:
    target = Target.cross("x86-avx512", cores=2)

    def hopeful(m: int, k: int, n: int, levels: int = 1) -> bool:
        x, w = te.placeholder((m, k), name="x"), te.placeholder((k, n), name="w", constant=True)
        axis = te.reduce_axis(k, name="k")
        plain = te.ComputeDAG(
            [te.compute((m, n), lambda i, j: te.sum(x[i, axis] * w[axis, j], axis=axis), "dense")]
        )
        made = te.ComputeDAG([fast_dense(x, w, levels=levels)])
        other = SearchTask(made, target, "", plain, 1e-3)
        return other in promising([SearchTask(plain, target), other])

    assert hopeful(256, 1024, 4096)
    assert not hopeful(4096, 64, 256)
    assert hopeful(1500, 384, 1536, 2)
    assert not hopeful(128, 768, 3072, 2)  # few rows, whose weights come from memory
