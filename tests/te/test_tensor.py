"""Writing tensor expressions: names of axes and tensors, reductions, every error with its text."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import AnsorliteError, ModelError
from ansorlite.ir.logic import combiner_identity
from ansorlite.te.tensor import placeholder

A = te.placeholder((8, 6), name="A")
V = te.placeholder((6,), name="V")
N = te.placeholder((8,), dtype="int32", name="N")
K = te.reduce_axis(6, name="k")


def _axes(tensor: te.Tensor) -> list[str]:
    op = tensor.op
    assert isinstance(op, te.ComputeOp)
    return [a.name for a in op.axes]


def test_axes_take_the_names_of_the_lambda() -> None:
    assert _axes(te.compute((8, 6), lambda row, col: A[row, col])) == ["row", "col"]
    assert _axes(te.compute((8, 6), lambda *i: A[i])) == ["i0", "i1"]
    assert _axes(te.compute((8, 6), lambda n, *i: A[(n, *i)])) == ["n", "i1"]
    assert _axes(te.compute((8, 6), lambda _, j: V[j])) == ["i", "j"]
    assert _axes(te.compute((8, 6), lambda _i, i: V[i])) == ["i", "i_1"]
    assert _axes(te.compute((), lambda: V[0])) == []


def test_printing() -> None:
    c = te.compute((8,), lambda i: te.sum(A[i, K] * V[K], axis=K), name="C", attrs={"b": ("i",)})
    assert str(A) == "A = placeholder([8, 6], float32)"
    assert str(te.placeholder((), "int64", "W", constant=True)) == "W = constant([], int64)"
    assert str(c) == "C[i<8] = sum(#0[i, k] * #1[k]; k<6)  # b=('i',)"
    assert (c.shape, c.dtype, c.name) == ((8,), "float32", "C")
    assert [t.name for t in c.inputs] == ["A", "V"]


def test_inputs_count_by_their_first_use() -> None:
    """Integer arithmetic sorts its terms, by names among others; the inputs must not follow."""
    m = te.placeholder((8,), dtype="int32", name="M")
    for first, second in ((N, m), (m, N)):
        c = te.compute((8,), _difference(first, second))
        assert c.inputs == (first, second)
        assert str(c) == "compute[i<8] = #0[i] - #1[i]"


def _difference(a: te.Tensor, b: te.Tensor) -> Callable[[Any], Any]:
    return lambda i: a[i] - b[i]


def test_one_tensor_read_twice_is_one_input() -> None:
    c = te.compute((8, 6), lambda i, j: A[i, j] + V[j] + A[7 - i, j])
    assert c.inputs == (A, V)


def test_tensors_of_one_name_stay_apart() -> None:
    other = te.placeholder((8, 6), name="A")
    c = te.compute((8, 6), lambda i, j: A[i, j] - other[i, j])
    assert len(c.inputs) == 2
    assert "#0[i, j] - #1[i, j]" in str(c)
    ints = [te.placeholder((8,), dtype="int32", name="X") for _ in range(2)]
    assert te.compute((8,), lambda i: ints[1][i] - ints[0][i]).inputs == (ints[1], ints[0])


def test_reductions() -> None:
    i, j = te.reduce_axis(8, "i"), te.reduce_axis(6, "j")
    op = te.compute((), lambda: te.max(A[i, j], axis=[i, j]), name="M").op
    assert isinstance(op, te.ComputeOp)
    assert (op.combiner, [str(a.extent) for a in op.reduce_axes], op.shape) == (
        "max",
        ["8", "6"],
        (),
    )
    assert str(op) == "M[] = max(#0[i, j]; i<8, j<6)"


@pytest.mark.parametrize(
    ("combiner", "dtype", "value"),
    [
        ("sum", "float32", 0.0),
        ("sum", "int64", 0),
        ("max", "float64", -np.inf),
        ("min", "float32", np.inf),
        ("max", "int32", -(2**31)),
        ("min", "int32", 2**31 - 1),
        ("max", "int64", -(2**63)),
        ("min", "int64", 2**63 - 1),
        ("max", "bool", False),
        ("min", "bool", True),
    ],
)
def test_combiner_identity(combiner: str, dtype: str, value: Any) -> None:
    identity = combiner_identity(combiner, dtype)
    assert (identity.value, identity.dtype) == (value, dtype)


ERRORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: te.placeholder((4,), dtype="float8"), "dtype 'float8' of X is none of float32"),
    (lambda: te.placeholder((4, 0), name="A"), "dimension 1 of A is 0: it must be a positive"),
    (lambda: te.placeholder((4, 2.0), name="A"), "dimension 1 of A is 2.0"),  # type: ignore[arg-type]
    (lambda: te.placeholder((True,), name="A"), "dimension 0 of A is True"),
    (lambda: te.placeholder((4,), name=""), "'' is no valid tensor name"),
    (lambda: te.placeholder((4,), name="a b"), "'a b' is no valid tensor name"),
    (lambda: te.compute((4,), lambda i: i, name="A[0]"), "no valid tensor name"),
    (lambda: te.compute((4, -1), lambda i, j: i, name="C"), "dimension 1 of C is -1"),
    (lambda: te.reduce_axis(0), "dimension 0 of reduce axis k is 0"),
    (lambda: te.reduce_axis(4, name="a:b"), "no valid tensor name"),
    (lambda: A[1], "A has 2 dimensions, indexed with 1 indices"),
    (lambda: A[1, 2, 3], "A has 2 dimensions, indexed with 3 indices"),
    (lambda: A[1, 2.0], "index 2.0 of A is float32, not an integer"),
    (lambda: te.compute((6,), lambda i: A[i, V[i]]), "of A is float32, not an integer"),
    (lambda: te.sum(A[0, K], axis=te.const(1, "int32")), "te.sum needs reduce axes made by"),
    (lambda: te.max(A[0, K], axis=[]), "te.max needs reduce axes"),
    (lambda: te.max(te.sum(V[K], axis=K), axis=K), "reductions do not nest"),
    (lambda: te.sum(V[K] > 0, axis=K), "te.sum of booleans: cast them first"),
    (lambda: te.compute((8, 6), lambda i: A[i, 0]), "takes 1 indices, the shape has 2 dimensions"),
    (lambda: te.compute((8,), lambda i, j: A[i, j]), "takes 2 indices, the shape has 1 dim"),
    (lambda: te.compute((), lambda i: V[i]), "takes 1 indices, the shape has 0 dimensions"),
    (
        lambda: te.compute((6,), lambda k: te.sum(V[K], axis=K), name="C"),
        "C: axis name k is used twice: rename the reduce axis",
    ),
    (lambda: te.compute((2,), lambda i: te.sum(V[K], axis=[K, K])), "axis name k is used twice"),
    (lambda: te.compute((8,), lambda i: A[i, K], name="C"), "C uses k, not among its axes"),
    (
        lambda: te.compute((8,), lambda i: te.sum(A[i, K], axis=K) + 1.0, name="C"),
        "C: a reduction must be the whole right-hand side",
    ),
    (lambda: te.compute((8,), lambda i: A[te.sum(N[K], axis=K), 0]), "must be the whole right"),
    (lambda: te.compute((9, 6), lambda i, j: A[i, j], name="C"),
     "C reads A from 0 to 8 in dimension 0 of extent 8 (index i): clamp the index by te.minimum"),
    (lambda: te.compute((6,), lambda j: A[7, j - 1]), "reads A from -1 to 4 in dimension 1"),
    (lambda: te.compute((3,), lambda i: te.sum(V[i * 2 + K], axis=K)), "reads V from 0 to 9"),
    (lambda: te.compute((4,), lambda i: V[-1]), "reads V from -1 to -1"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(ERRORS)), ids=[text[:40] for _, text in ERRORS])
def test_errors_of_tensor_expressions(case: int) -> None:
    make, text = ERRORS[case]
    with pytest.raises(ModelError) as caught:
        make()
    assert text in str(caught.value)


def test_python_comparisons_are_no_conditions() -> None:
    with pytest.raises(AnsorliteError, match=r"te\.equal"):
        te.compute((8,), lambda i: te.select(i == 0, A[i, 0], 0.0))


def test_guarded_and_indirect_reads_may_seem_to_leave_the_tensor() -> None:
    te.compute((8,), lambda i: te.select(i < 6, V[i], 0.0))
    te.compute((8,), lambda i: te.select(te.all(i >= 2, V[i - 2] > 0), V[i - 2], 0.0))
    te.compute((8,), lambda i: V[te.minimum(te.maximum(N[i], 0), 5)])
    te.compute((8,), lambda i: V[te.minimum(i, 5)])
    te.compute((8,), lambda i: V[i // 2])


def test_shapes_may_be_numpy_integers() -> None:
    shape = np.array([2, 3])
    assert placeholder(tuple(shape)).shape == (2, 3)
    assert all(isinstance(n, int) and n.value == n for n in placeholder(tuple(shape)).shape)


def test_relu_and_elementwise() -> None:
    assert str(te.relu(A)) == "A.relu[i0<8, i1<6] = max(#0[i0, i1], 0.0)"
    assert str(te.relu(N, name="R")) == "R[i0<8] = max(#0[i0], 0)"
    assert str(te.elementwise(V, te.exp, "E")) == "E[i0<6] = exp(#0[i0])"
