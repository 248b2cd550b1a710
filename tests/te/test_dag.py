"""`ComputeDAG`: order, names, graph, workload keys, FLOP counts."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.ir.expr import Const, Var
from ansorlite.te.tensor import Axis, ComputeOp


def matmul(
    n: int = 8,
    dtype: str = "float32",
    names: str = "ABCk",
    constant: bool = False,
    attrs: dict[str, Any] | None = None,
    value: Callable[[Any, Any], Any] = lambda a, b: a * b,
) -> te.Tensor:
    """[4, n] x [n, 5]; names of the tensors A, B, C and of the reduce axis."""
    a = te.placeholder((4, n), dtype=dtype, name=names[0])
    b = te.placeholder((n, 5), dtype=dtype, name=names[1], constant=constant)
    k = te.reduce_axis(n, name=names[3])
    return te.compute(
        (4, 5), lambda i, j: te.sum(value(a[i, k], b[k, j]), axis=k), name=names[2], attrs=attrs
    )


def key(*tensors: te.Tensor) -> str:
    return te.ComputeDAG(tensors).workload_key


# ---- order and names ----------------------------------------------------------------------------


def test_printed() -> None:
    dag = te.ComputeDAG([te.relu(matmul(), name="R")])
    assert str(dag) == (
        "A = placeholder([4, 8], float32)\n"
        "B = placeholder([8, 5], float32)\n"
        "C[i<4, j<5] = sum(A[i, k] * B[k, j]; k<8)\n"
        "R[i0<4, i1<5] = max(C[i0, i1], 0.0)\n"
        "return R\n"
    )


def test_producers_come_first() -> None:
    c = matmul()
    low = te.compute((4, 5), lambda i, j: c[i, j] * 2.0, name="low")
    high = te.compute((4, 5), lambda i, j: low[i, j] + c[i, j], name="high")
    dag = te.ComputeDAG([high, c])
    assert [op.name for op in dag.ops] == ["A", "B", "C", "low", "high"]
    assert dag.output_names == ("high", "C")
    assert [op.name for op in dag.outputs] == ["high", "C"]
    assert [op.name for op in dag.inputs] == ["A", "B"]
    assert [op.name for op in dag.computes] == ["C", "low", "high"]
    assert {name: sorted(own) for name, own in dag.reads.items()} == {
        "A": [], "B": [], "C": ["A", "B"], "low": ["C"], "high": ["C", "low"]
    }  # fmt: skip
    assert dag.above("low") == {"A", "B", "C", "low"} and dag.above("A") == {"A"}


def test_equal_names_get_numbers() -> None:
    x, y = te.placeholder((3,), name="X"), te.placeholder((3,), name="X")
    taken = te.placeholder((3,), name="X_1")
    z = te.compute((3,), lambda i: x[i] - taken[i] * y[i], name="X")
    dag = te.ComputeDAG([z])
    assert [op.name for op in dag.ops] == ["X", "X_1", "X_2", "X_3"]
    assert str(dag.by_name["X_3"]) == "X_3[i<3] = X[i] - (X_1[i] * X_2[i])"
    assert dag.evaluate({"X": _f([1, 2, 3]), "X_1": _f([1, 1, 1]), "X_2": _f([4, 5, 6])})[
        "X_3"
    ].tolist() == [-3, -3, -3]


def _f(values: list[float]) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float32)


def test_deep_chains_need_no_stack() -> None:
    t = te.placeholder((2,), name="X")
    for _ in range(3000):
        t = te.relu(t, name="R")
    assert len(te.ComputeDAG([t]).ops) == 3001


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: te.ComputeDAG([]), "at least one output tensor"),
        (lambda: te.ComputeDAG([te.placeholder((2,), name="A")]), "output A is a placeholder"),
        (lambda: (lambda c: te.ComputeDAG([c, c]))(matmul()), "an output is listed twice: C, C"),
    ],
)
def test_errors(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        make()


def test_shapes_are_tuples_of_ints_as_numpy_takes_them() -> None:
    dag = te.ComputeDAG([matmul()])
    assert [op.shape for op in dag.ops] == [(4, 8), (8, 5), (4, 5)]
    assert all(isinstance(n, int) for op in dag.ops for n in op.shape)
    assert np.zeros(dag.inputs[0].shape).shape == (4, 8)


def test_a_shape_that_depends_on_holes_is_an_error_and_its_extents_are_expressions() -> None:
    rows = Axis("i", Var("tile", "hole") * 4)
    op = ComputeOp("C", (rows, Axis("j", Const(5))), (), None, Const(0.0, "float32"))
    assert [str(e) for e in op.extents] == ["tile*4", "5"]
    with pytest.raises(ModelError, match=r"the shape of C depends on holes: tile\*4, 5"):
        _ = op.shape


# ---- workload keys ------------------------------------------------------------------------------


def test_names_do_not_matter() -> None:
    for dtype in ("float32", "int32"):
        keys = {key(matmul(dtype=dtype, names=names)) for names in ("ABCk", "ZYXw", "BACr", "XXXk")}
        assert len(keys) == 1


def test_axis_names_do_not_matter() -> None:
    a = te.placeholder((4, 4), dtype="int32", name="A")
    one = te.compute((4, 4), lambda i, j: te.minimum(i * 3 + j, a[i, j], j), attrs={"x": ("i",)})
    two = te.compute((4, 4), lambda q, b: te.minimum(q * 3 + b, a[q, b], b), attrs={"x": ("q",)})
    assert key(one) == key(two)


def test_everything_else_matters() -> None:
    a = te.placeholder((4, 8), name="A")
    k = te.reduce_axis(8)
    tensors = {
        "plain": matmul(),
        "extent": matmul(n=9),
        "dtype": matmul(dtype="float64"),
        "integers": matmul(dtype="int32"),
        "constant": matmul(constant=True),
        "attrs": matmul(attrs={"always_unroll_inner": ("i",)}),
        "other axis": matmul(attrs={"always_unroll_inner": ("j",)}),
        "other attr": matmul(attrs={"no_split_at_inner": ("i",)}),
        "body": matmul(value=lambda x, y: x * y * 2.0),
        "literal": matmul(value=lambda x, y: x * y * 3.0),
        "order": matmul(value=lambda x, y: y * x),
        "relu": te.relu(matmul()),
        "sum": te.compute((4,), lambda i: te.sum(a[i, k], axis=k)),
        "max": te.compute((4,), lambda i: te.max(a[i, k], axis=k)),
        "min": te.compute((4,), lambda i: te.min(a[i, k], axis=k)),
        "literal f32": te.compute((4,), lambda i: te.const(1.0, "float32")),
        "literal f64": te.compute((4,), lambda i: te.const(1.0, "float64")),
    }
    keys = {name: key(t) for name, t in tensors.items()}
    assert len(set(keys.values())) == len(keys), keys


def test_outputs_and_their_order_matter() -> None:
    c = matmul()
    r = te.relu(c)
    assert len({key(r), key(r, c), key(c, r)}) == 3


CHILD = """
from test_dag import key, matmul
from ansorlite import te
x = te.placeholder((4,), dtype="int32"), te.placeholder((4,), dtype="int32")
both = te.compute((4,), lambda i: x[1][i] * x[0][i] - te.maximum(x[0][i], x[1][i]))
print(key(matmul()), key(matmul(dtype="int64")), key(both), str(te.ComputeDAG([both])))
"""


def test_other_processes_agree() -> None:
    here = Path(__file__).parent
    said = set()
    for seed in ("0", "7", "99"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{here}:{here.parents[1]}"}
        said.add(subprocess.run([sys.executable, "-c", CHILD], env=env, check=True,
                                capture_output=True, text=True).stdout)  # fmt: skip
    (text,) = said
    assert text.split()[0] == key(matmul())


def test_pickle() -> None:
    dag = te.ComputeDAG([te.relu(matmul(attrs={"no_split_at_inner": ("i",)}))])
    back = pickle.loads(pickle.dumps(dag))
    assert back == dag and hash(back) == hash(dag)
    assert (str(back), back.workload_key, back.flop) == (str(dag), dag.workload_key, dag.flop)


def test_from_ops() -> None:
    dag = te.ComputeDAG([te.relu(matmul())])
    again = te.ComputeDAG.from_ops(dag.ops, dag.output_names)
    assert again == dag and again.workload_key == dag.workload_key


# ---- floating-point operations ------------------------------------------------------------------

A = te.placeholder((4, 6), name="A")
N = te.placeholder((4, 6), dtype="int32", name="N")
K = te.reduce_axis(6, name="k")
FLOP: dict[str, tuple[te.Tensor, float]] = {
    "matmul": (matmul(), 2 * 4 * 5 * 8),
    "float64": (matmul(dtype="float64"), 2 * 4 * 5 * 8),
    "integers are free": (matmul(dtype="int32"), 0),
    "matmul + relu": (te.relu(matmul()), 2 * 4 * 5 * 8 + 4 * 5),
    "row maximum": (te.compute((4,), lambda i: te.max(A[i, K], axis=K)), 4 * 6),
    "sum of squares": (te.compute((4,), lambda i: te.sum(A[i, K] * A[i, K], axis=K)), 2 * 4 * 6),
    "polynomial": (te.compute((4, 6), lambda i, j: A[i, j] * A[i, j] * 3.0 - 1.0), 3 * 24),
    "functions": (te.compute((4, 6), lambda i, j: te.exp(te.sqrt(A[i, j]) / 2.0)), 3 * 24),
    "copy": (te.compute((6, 4), lambda i, j: A[j, i]), 0),
    "index arithmetic": (te.compute((2, 6), lambda i, j: A[i * 2 + 1, 5 - j]), 0),
    "pad": (te.compute((6, 6), lambda i, j: te.select(i < 4, A[te.minimum(i, 3), j], 0.0)), 0),
    "integer stage": (te.compute((4, 6), lambda i, j: N[i, j] * 3 + 1), 0),
    "cast": (te.compute((4, 6), lambda i, j: te.cast(N[i, j], "float32") * 0.5), 24),
    "any": (te.compute((4,), lambda i: te.max(A[i, K] > 0, axis=K)), 0),
}


@pytest.mark.parametrize("name", FLOP)
def test_flop(name: str) -> None:
    tensor, flop = FLOP[name]
    assert te.ComputeDAG([tensor]).flop == flop
