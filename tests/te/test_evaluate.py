"""The numpy meaning of a ComputeDAG, against numpy written directly, whole and at single points."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.te import evaluate
from ansorlite.te import points as points_module

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
RNG = np.random.default_rng(11)


def _draw(dag: te.ComputeDAG) -> Arrays:
    """Values for all inputs: floats of both signs, small integers, booleans."""
    arrays: Arrays = {}
    for op in dag.inputs:
        shape = op.shape
        if op.dtype.startswith("float"):
            arrays[op.name] = RNG.standard_normal(shape).astype(op.dtype)
        elif op.dtype == "bool":
            arrays[op.name] = RNG.random(shape) < 0.5
        else:
            arrays[op.name] = RNG.integers(-9, 10, shape).astype(op.dtype)
    return arrays


A = te.placeholder((4, 6), name="A")
B = te.placeholder((6, 5), name="B")
D = te.placeholder((4, 6), dtype="float64", name="D")
N = te.placeholder((4, 6), dtype="int32", name="N")
L = te.placeholder((4, 6), dtype="int64", name="L")
T = te.placeholder((4, 6), dtype="bool", name="T")
S = te.placeholder((), name="S")
X = te.placeholder((2, 7, 6, 3), name="X")
W = te.placeholder((3, 3, 3, 4), name="W")
K, R = te.reduce_axis(6, name="k"), te.reduce_axis(4, name="r")


def _pad_conv() -> list[te.Tensor]:
    pad = te.compute(
        (2, 9, 8, 3),
        lambda n, h, w, c: te.select(
            te.all(h >= 1, h < 8, w >= 1, w < 7), X[n, h - 1, w - 1, c], 0.0
        ),
        name="pad",
    )
    kh, kw, ci = (te.reduce_axis(3, name=n) for n in ("kh", "kw", "ci"))
    conv = te.compute(
        (2, 4, 3, 4),
        lambda n, h, w, co: te.sum(
            pad[n, 2 * h + kh, 2 * w + kw, ci] * W[kh, kw, ci, co], axis=[kh, kw, ci]
        ),
        name="conv",
    )
    return [conv]


def _conv_by_loops(v: Arrays) -> Array:
    x = np.pad(v["X"].astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = np.zeros((2, 4, 3, 4))
    for n, h, w, co in np.ndindex(out.shape):
        window = x[n, 2 * h : 2 * h + 3, 2 * w : 2 * w + 3]
        out[n, h, w, co] = (window * v["W"][..., co]).sum()
    return out


def _softmax() -> list[te.Tensor]:
    high = te.compute((4,), lambda i: te.max(A[i, K], axis=K), name="high")
    e = te.compute((4, 6), lambda i, j: te.exp(A[i, j] - high[i]), name="e")
    total = te.compute((4,), lambda i: te.sum(e[i, K], axis=K), name="total")
    return [te.compute((4, 6), lambda i, j: e[i, j] / total[i], name="soft"), high]


def _softmax_numpy(v: Arrays) -> list[Array]:
    high = v["A"].max(1)
    e = np.exp(v["A"].astype(np.float64) - high[:, None])
    return [e / e.sum(1, keepdims=True), high]


def _diamond() -> list[te.Tensor]:
    low = te.compute((4, 6), lambda i, j: A[i, j] + A[i, 5 - j], name="low")
    return [te.compute((4, 6), lambda i, j: low[i, j] * low[3 - i, j] - low[i, j], name="out")]


def _diamond_numpy(v: Arrays) -> Array:
    low = v["A"].astype(np.float64) + v["A"][:, ::-1]
    return low * low[::-1] - low


def _map(source: te.Tensor, fn: Callable[[Any], Any]) -> list[te.Tensor]:
    return [te.compute((4, 6), lambda i, j: fn(source[i, j]), name="out")]


Case = tuple[Callable[[], list[te.Tensor]], Callable[[Arrays], Any]]
CASES: dict[str, Case] = {
    "matmul": (
        lambda: [te.compute((4, 5), lambda i, j: te.sum(A[i, K] * B[K, j], axis=K))],
        lambda v: v["A"].astype(np.float64) @ v["B"],
    ),
    "padded strided convolution": (_pad_conv, _conv_by_loops),
    "softmax": (_softmax, _softmax_numpy),
    "the same tensor twice": (_diamond, _diamond_numpy),
    "row maximum": (lambda: [te.compute((4,), lambda i: te.max(A[i, K], axis=K))],
                    lambda v: v["A"].max(1)),
    "column minimum": (lambda: [te.compute((6,), lambda j: te.min(A[R, j], axis=R))],
                       lambda v: v["A"].min(0)),
    "integer minimum": (lambda: [te.compute((4,), lambda i: te.min(N[i, K] * 2, axis=K))],
                        lambda v: v["N"].min(1) * 2),
    "integer sum": (lambda: [te.compute((6,), lambda j: te.sum(L[R, j] - j, axis=R))],
                    lambda v: (v["L"] - np.arange(6)).sum(0)),
    "any and all": (
        lambda: [te.compute((4,), lambda i: te.max(T[i, K], axis=K), name="any"),
                 te.compute((4,), lambda i: te.min(T[i, K], axis=K), name="all")],
        lambda v: [v["T"].any(1), v["T"].all(1)],
    ),
    "rank 0 sum": (lambda: [te.compute((), lambda: te.sum(A[R, K], axis=[R, K]))],
                   lambda v: v["A"].astype(np.float64).sum()),
    "rank 0 input": (lambda: [te.compute((4, 6), lambda i, j: A[i, j] * S[()])],
                     lambda v: v["A"] * v["S"]),
    "rank 0 to rank 0": (lambda: [te.compute((), lambda: te.exp(S[()]) + A[1, 2])],
                         lambda v: np.exp(v["S"]) + v["A"][1, 2]),
    "no input": (lambda: [te.compute((3, 4), lambda i, j: i * 10 + j)],
                 lambda v: np.add.outer(np.arange(3) * 10, np.arange(4))),
    "constant in an axis": (lambda: [te.compute((3, 6), lambda i, j: A[2, j])],
                            lambda v: np.tile(v["A"][2], (3, 1))),
    "reduction of a constant": (lambda: [te.compute((3,), lambda i: te.sum(te.const(2.0), axis=K))],
                                lambda v: np.full(3, 12.0)),
    "transpose": (lambda: [te.compute((6, 4), lambda i, j: A[j, i])], lambda v: v["A"].T),
    "comparison": (lambda: _map(A, lambda x: x >= 0), lambda v: v["A"] >= 0),
    "not equal": (lambda: _map(N, lambda x: te.not_equal(x, 3)), lambda v: v["N"] != 3),
    "logic": (
        lambda: [te.compute((4, 6), lambda i, j: te.any(
            te.all(T[i, j], N[i, j] > 0), te.logical_not(T[i, j])))],
        lambda v: v["T"] & (v["N"] > 0) | ~v["T"],
    ),
    "select": (lambda: [te.compute((4, 6), lambda i, j: te.select(T[i, j], A[i, j], -j))],
               lambda v: np.where(v["T"], v["A"], -np.arange(6))),
    "guarded read": (
        lambda: [te.compute((6,), lambda i: te.select(i >= 3, A[i - 3, 0], -1.0))],
        lambda v: np.concatenate([[-1] * 3, v["A"][:3, 0]]),
    ),
    "gather": (
        lambda: [te.compute((4, 6), lambda i, j: A[te.minimum(te.maximum(N[i, j], 0), 3), j])],
        lambda v: v["A"][np.clip(v["N"], 0, 3), np.arange(6)],
    ),
    "division": (lambda: _map(N, lambda x: x // 4 * 100 + x % 4),
                 lambda v: v["N"] // 4 * 100 + v["N"] % 4),
    "rounding up": (lambda: _map(N, lambda x: te.ceildiv(x, 4)), lambda v: -(-v["N"] // 4)),
    "integer extremes": (lambda: _map(N, lambda x: te.maximum(te.minimum(x, 3), -2, x - 5)),
                         lambda v: np.maximum(np.clip(v["N"], -2, 3), v["N"] - 5)),
    "integer absolute": (lambda: _map(L, te.abs), lambda v: np.abs(v["L"])),
    "cast to int": (lambda: _map(A, lambda x: te.cast(x * 10.0, "int32")),
                    lambda v: (v["A"].astype(np.float64) * 10).astype(np.int32)),
    "cast to bool": (lambda: _map(N, lambda x: te.cast(x, "bool")), lambda v: v["N"] != 0),
    "cast of bool": (lambda: _map(T, lambda x: te.cast(x, "float32") - 0.5),
                     lambda v: v["T"] - 0.5),
    "mixed types": (
        lambda: [te.compute((4, 6), lambda i, j: A[i, j] * N[i, j] + D[i, j] - L[i, j])],
        lambda v: v["A"] * v["N"].astype(np.float32) + v["D"] - v["L"],
    ),
    "exp log": (lambda: _map(A, lambda x: te.log(te.exp(x) + 1.0)),
                lambda v: np.log1p(np.exp(v["A"].astype(np.float64)))),
    "sqrt abs": (lambda: _map(A, lambda x: te.sqrt(te.abs(x))), lambda v: np.sqrt(np.abs(v["A"]))),
    "tanh": (lambda: _map(A, te.tanh), lambda v: np.tanh(v["A"])),
    "erf": (lambda: _map(A, te.erf), lambda v: np.vectorize(math.erf)(v["A"])),
    "sigmoid": (lambda: _map(A, lambda x: te.sigmoid(x * 300.0)),
                lambda v: 0.5 + 0.5 * np.tanh(150.0 * v["A"].astype(np.float64))),
    "floor": (lambda: _map(A, lambda x: te.floor(x * 3.0)), lambda v: np.floor(v["A"] * 3)),
    "pow": (lambda: _map(A, lambda x: te.pow(x, 3.0)), lambda v: v["A"].astype(np.float64) ** 3),
    "min max": (lambda: _map(A, lambda x: te.minimum(te.maximum(x, -0.5), 0.5)),
                lambda v: np.clip(v["A"], -0.5, 0.5)),
    "relu": (lambda: [te.relu(A)], lambda v: np.maximum(v["A"], 0)),
    "reciprocal": (lambda: _map(D, lambda x: 1 / x), lambda v: 1 / v["D"]),
}  # fmt: skip


def _every_index(shape: tuple[int, ...]) -> Array:
    return np.array(list(np.ndindex(shape)), dtype=np.int64).reshape(math.prod(shape), len(shape))


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    """The whole output, all its points at once, and a few points alone."""
    make, numpy_code = CASES[name]
    dag = te.ComputeDAG(make())
    arrays = _draw(dag)
    wanted = numpy_code(arrays)
    for op, want in zip(dag.outputs, wanted if isinstance(wanted, list) else [wanted], strict=True):
        got = dag.evaluate(arrays)[op.name]
        assert got.dtype == np.dtype(op.dtype)
        assert got.shape == np.shape(want)
        tolerance = {"float32": 1e-6, "float64": 1e-14}.get(op.dtype, 0)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
        where = _every_index(got.shape)
        all_points = te.evaluate_points(dag, arrays, op.name, where)
        assert (all_points.dtype, all_points.shape) == (got.dtype, (len(where),))
        np.testing.assert_allclose(all_points, np.ravel(want), rtol=tolerance, atol=tolerance)
        some = RNG.integers(0, len(where), 3)
        few = te.evaluate_points(dag, arrays, op.name, where[some])
        np.testing.assert_allclose(few, all_points[some], rtol=tolerance, atol=tolerance)


def test_every_point_alone_of_a_chain() -> None:
    """One point needs few of the padded elements; they are evaluated on demand."""
    dag = te.ComputeDAG(_pad_conv())
    arrays = _draw(dag)
    whole = dag.evaluate(arrays)["conv"]
    for at in _every_index(whole.shape)[::7]:
        (value,) = te.evaluate_points(dag, arrays, "conv", [at])
        assert value == pytest.approx(whole[tuple(at)], rel=1e-6, abs=1e-6)


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = te.ComputeDAG(_pad_conv())
    arrays = _draw(dag)
    whole = dag.evaluate(arrays)["conv"]
    where = _every_index(whole.shape)[::3]
    points = te.evaluate_points(dag, arrays, "conv", where[:10])
    monkeypatch.setattr(evaluate, "CHUNK", 50)
    monkeypatch.setattr(points_module, "CHUNK", 50)
    np.testing.assert_array_equal(dag.evaluate(arrays)["conv"], whole)
    np.testing.assert_array_equal(te.evaluate_points(dag, arrays, "conv", where[:10]), points)


def test_sums_are_in_double_precision() -> None:
    n = 100_000
    a = te.placeholder((n,), name="A")
    k = te.reduce_axis(n)
    dag = te.ComputeDAG([te.compute((), lambda: te.sum(a[k], axis=k), name="C")])
    values = np.full(n, 0.1, dtype=np.float32)
    want = n * float(np.float32(0.1))
    assert float(dag.evaluate({"A": values})["C"]) == pytest.approx(want, rel=6e-8)
    points = te.evaluate_points(dag, {"A": values}, "C", np.zeros((2, 0), dtype=int))
    assert points.tolist() == [float(np.float32(want))] * 2


def test_stages_are_rounded_where_they_are_stored() -> None:
    a = te.placeholder((1,), name="A")
    third = te.compute((1,), lambda i: a[i] / 3.0, name="third")
    dag = te.ComputeDAG([te.compute((1,), lambda i: te.cast(third[i], "float64"), name="C")])
    ones = {"A": np.ones(1, dtype=np.float32)}
    assert dag.evaluate(ones)["C"].tolist() == [float(np.float32(1 / 3))]
    assert te.evaluate_points(dag, ones, "C", [[0]]).tolist() == [float(np.float32(1 / 3))]


def test_values_beyond_the_stored_type_are_infinite() -> None:
    a = te.placeholder((5,), name="A")
    dag = te.ComputeDAG([te.compute((5,), lambda i: te.exp(a[i]) * 1e30, name="C")])
    arrays = {"A": np.array([100, 0, -1, 1, 2], dtype=np.float32)}
    assert dag.evaluate(arrays)["C"][0] == np.inf
    assert te.evaluate_points(dag, arrays, "C", [[0]]).tolist() == [np.inf]


def test_intermediate_stages_are_outputs_if_listed() -> None:
    dag = te.ComputeDAG(_softmax())
    assert list(dag.evaluate(_draw(dag))) == ["soft", "high"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"A": None}, "no value is given for input A"),
        ({"A": np.zeros((4, 7), np.float32)}, r"input A has shape \(4, 7\), expected \(4, 6\)"),
        ({"A": np.zeros((4, 6))}, "input A has dtype float64, expected float32"),
    ],
)
def test_wrong_inputs(change: dict[str, Any], message: str) -> None:
    dag = te.ComputeDAG(CASES["matmul"][0]())
    arrays = {k: v for k, v in {**_draw(dag), **change}.items() if v is not None}
    with pytest.raises(ModelError, match=message):
        dag.evaluate(arrays)
    with pytest.raises(ModelError, match=message):
        te.evaluate_points(dag, arrays, dag.output_names[0], [[0, 0]])
