"""Reads of a tensor expression are proven to stay inside, or refused where they may not."""

from collections.abc import Callable

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

V = te.placeholder((100,), name="V")
M = te.placeholder((12, 10), name="M")
AT = te.placeholder((100,), "int32", "AT")
FAR = te.placeholder((100,), "int64", "FAR")
Body = Callable[[Expr], Expr]


def clamped(at: Expr, n: int = 100) -> Expr:
    return te.minimum(te.maximum(at, 0), n - 1)


CLAMPED = te.compute((100,), lambda i: clamped(AT[i]), name="CLAMPED")
K = te.reduce_axis(100, "k")
LARGEST = te.compute((), lambda: te.max(CLAMPED[K], axis=K), name="LARGEST")

INSIDE: dict[str, Body] = {
    "a quotient": lambda i: V[i // 2 + 50],
    "a remainder": lambda i: V[(i * 7 + 3) % 100],
    "what a quotient leaves over": lambda i: V[i - i // 4 * 4],
    "rolled": lambda i: te.select(i < 30, V[i + 70], V[i - 30]),
    "a square": lambda i: V[te.minimum(i, 9) * te.minimum(i, 9)],
    "guarded in the square": lambda i: te.select(i * i < 100, V[i * i], 0.0),
    "guarded": lambda i: te.select(te.all(i >= 3, i - 3 < 90), V[i - 3], 0.0),
    "guarded by any": lambda i: te.select(te.any(i < 3, i >= 60), 0.0, V[i - 3]),
    "guarded by not": lambda i: te.select(te.logical_not(i >= 50), V[i + 50], 0.0),
    "guarded by equality": lambda i: te.select(te.equal(i, 7), V[i + 90], 0.0),
    "guarded twice": lambda i: te.select(i < 50, te.select(i >= 10, V[i * 2 - 20], 0.0), 0.0),
    "in the other branch": lambda i: te.select(i < 60, 0.0, V[i - 60]),
    "a distance": lambda i: V[te.abs(i - 50)],
    "clamped": lambda i: V[clamped(i * 3 - 20)],
    "mirrored": lambda i: V[te.select(i < 50, 49 - i, i - 50)],
    "strided with zeros between": lambda i: te.select(
        te.all(te.equal(i % 2, 0), i // 2 < 40), V[i // 2], 0.0
    ),
    "two of two": lambda i: M[i // 10, i % 10],
    "a place clamped": lambda i: V[clamped(AT[i])],
    "a place that a stage clamps": lambda i: V[CLAMPED[i]],
    "a place that is the largest": lambda i: V[LARGEST[()]],
    "a place that is tested": lambda i: te.select(te.all(AT[i] >= 0, AT[i] < 100), V[AT[i]], 0.0),
    "a place counted from the end": lambda i: V[
        clamped(te.select(FAR[i] < 0, FAR[i] + 100, FAR[i]))
    ],
    "a place from a test": lambda i: V[te.cast(V[i] > 0.5, "int32")],
    "read after its test": lambda i: te.select(te.all(i >= 2, V[i - 2] > 0.0), V[i - 2], 0.0),
    "divided by what is positive": lambda i: V[i // te.maximum(AT[i], 1)],
    "divided where it is positive": lambda i: te.select(AT[i] > 0, V[i % AT[i]], 0.0),
}

OUTSIDE: dict[str, tuple[Body, str]] = {
    "a sum": (lambda i: V[i + 1], r"reads V from 1 to 100 in dimension 0 of extent 100 \(index i "),
    "a quotient": (lambda i: V[i // 2 + 60], "from 60 to 109"),
    "a square": (lambda i: V[i * i], "from 0 to 9801"),
    "a difference": (lambda i: V[i - 1], "from -1 to 98"),
    "a wide guard": (lambda i: te.select(i < 1000, V[i + 50], 0.0), "from 50 to 149"),
    "a guard of the other side": (lambda i: te.select(i < 60, V[i - 60], 0.0), "from -60 to -1"),
    "a guard of the other branch": (lambda i: te.select(i < 60, 0.0, V[i + 1]), "from 61 to 100"),
    "a guard by any": (lambda i: te.select(te.any(i < 3, i > 5), V[i + 50], 0.0), "reads V"),
    "a mirror": (lambda i: V[te.abs(i - 50) * 3], "from 0 to 150"),
    "the last dimension": (lambda i: M[i // 10, i % 11], "in dimension . of extent 1"),
    "a place": (lambda i: V[AT[i]], r"\(index AT\[i\]\): clamp the index by te.minimum"),
    "a place of 64 bits": (lambda i: V[FAR[i]], "from anywhere to anywhere"),
    "a place clamped on one side": (lambda i: V[te.maximum(AT[i], 0)], "from 0 to 2147483647"),
    "a place tested by a flag": (lambda i: te.select(V[i] > 0.0, V[AT[i]], 0.0), "reads V"),
    "a place of the index": (lambda i: V[clamped(AT[i + 1])], "reads AT from 1 to 100"),
    "in a test": (lambda i: te.select(V[i + 1] > 0.0, 1.0, 0.0), "reads V"),
    "before its test": (
        lambda i: te.select(te.all(V[i - 2] > 0.0, i >= 2), V[i - 2], 0.0),
        "from -2 to 97",
    ),
    "divided by a tensor": (lambda i: V[clamped(i // AT[i])], "the divisor may be 0 or less"),
    "the remainder by a tensor": (lambda i: V[clamped(i % AT[i])], "te.maximum"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_reads_that_stay_inside_are_taken(name: str) -> None:
    """And numpy, which is asked for every element, agrees."""
    y = te.compute((100,), INSIDE[name], name="Y")
    assert isinstance(y, Tensor)
    rng = np.random.default_rng(0)
    dag = te.ComputeDAG([y])
    inputs = {
        p.name: rng.integers(-5, 120, [int(str(e)) for e in p.shape]).astype(p.dtype)
        for p in dag.inputs
    }
    assert dag.evaluate(inputs)["Y"].shape == (100,)


@pytest.mark.parametrize("name", OUTSIDE)
def test_reads_that_may_leave_the_tensor_are_refused(name: str) -> None:
    body, text = OUTSIDE[name]
    with pytest.raises(ModelError, match=text):
        te.compute((100,), body, name="Y")


def test_large_guarded_windows_are_proven_without_looking_at_each_point() -> None:
    x = te.placeholder((5000, 5000), name="x")
    r, s = te.reduce_axis(5, "r"), te.reduce_axis(5, "s")

    def inside(i: Expr) -> Expr:
        return te.all(i >= 0, i < 5000)

    def window(i: Expr, j: Expr) -> Expr:
        a, b = i + r - 2, j + s - 2
        return te.sum(te.select(te.all(inside(a), inside(b)), x[a, b], 0.0), axis=[r, s])

    te.compute((5000, 5000), window)
    flat = te.placeholder((25_000_000,), name="flat")
    te.compute((5000, 5000), lambda i, j: flat[i * 5000 + j])
    te.compute((25_000_000,), lambda i: x[i // 5000, i % 5000])
    with pytest.raises(ModelError, match="from 0 to 25004999"):
        te.compute((5001, 5000), lambda i, j: flat[i * 5000 + j])


def test_shapes_that_are_none() -> None:
    for make, text in (
        (lambda: te.placeholder(5), "the shape of X is 5: write a tuple"),  # type: ignore[arg-type]
        (lambda: te.placeholder("ab"), "write a tuple of extents"),  # type: ignore[arg-type]
        (lambda: te.placeholder((1 << 40, 1 << 40)), "no memory can hold them"),
        (lambda: te.placeholder((2.0,)), "positive integer"),  # type: ignore[arg-type]
        (lambda: te.reduce_axis(0), "dimension 0 of reduce axis k is 0"),
        (lambda: te.compute((3,), 5), "te.compute takes a function"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ModelError, match=text):
            make()
