"""Random inputs: equal in every process, of moderate size, and valid as indices."""

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from ansorlite import te
from ansorlite.ir.expr import Expr
from ansorlite.measure import inputs
from ansorlite.measure.inputs import (
    SMALL_INT,
    NormalNumbers,
    draw,
    index_limits,
    random_inputs,
    sources,
)

N_TABLE, N_INDEX, WIDTH = 11, 40, 3


def clamped(at: Expr, n: int) -> Expr:
    return te.minimum(te.maximum(at, 0), n - 1)


def gather(index: Callable[[Expr, Expr], Expr], dtype: str = "int32") -> te.ComputeDAG:
    """out[i, j] = table[index(ids[i], j), j], where there is such a row"""
    table = te.placeholder((N_TABLE, WIDTH), name="table")
    ids = te.placeholder((N_INDEX,), dtype=dtype, name="ids")

    def row(i: Expr, j: Expr) -> Expr:
        at = index(ids[i], j)
        return te.select(te.all(at >= 0, at < N_TABLE), table[at, j], 0.0)

    out = te.compute((N_INDEX, WIDTH), row, name="out")
    return te.ComputeDAG([out])


def test_floats_are_about_within_one() -> None:
    a = te.placeholder((100, 100), name="a")
    b = te.placeholder((10_000,), dtype="float64", name="b", constant=True)
    dag = te.ComputeDAG([te.compute((10_000,), lambda i: a[i // 100, i % 100] + b[i])])
    values = random_inputs(dag, seed=3)
    for name, dtype in (("a", "float32"), ("b", "float64")):
        x = values[name]
        assert x.dtype == dtype and abs(x.mean()) < 0.02 and 0.3 < x.std() < 0.36
    assert not np.array_equal(values["a"].reshape(-1), values["b"].astype(np.float32))
    positive = random_inputs(dag, seed=3, positive=True)
    assert min(x.min() for x in positive.values()) > 0


def test_the_seed_decides_and_names_do_not() -> None:
    def values(name: str, seed: int) -> list[np.ndarray]:
        a = te.placeholder((50,), name=name)
        b = te.placeholder((50,), dtype="bool", name="mask")
        dag = te.ComputeDAG([te.relu(te.compute((50,), lambda i: te.select(b[i], a[i], 0.0)))])
        return list(random_inputs(dag, seed).values())

    first, renamed, other = values("a", 0), values("x", 0), values("a", 1)
    for x, y, z in zip(first, renamed, other, strict=True):
        assert np.array_equal(x, y) and not np.array_equal(x, z)


def test_numbers_drawn_once_are_those_of_each_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "BLOCK", 7)
    monkeypatch.setattr(inputs, "MOST_NUMBERS", 30)

    def dag_of(n: int) -> te.ComputeDAG:
        a, b = te.placeholder((n,), name="a"), te.placeholder((n, 2), name="b", dtype="float16")
        return te.ComputeDAG([te.compute((n,), lambda i: a[i] + te.cast(b[i, 1], "float32"))])

    numbers = NormalNumbers()
    for n, positive in ((10, False), (25, True), (3, False), (40, False), (30, False), (1, False)):
        dag = dag_of(n)
        want = random_inputs(dag, 5, positive=positive)
        for name, source in sources(dag, 5, positive=positive).items():
            got = np.empty(want[name].size, want[name].dtype)
            draw(source, got, numbers)
            assert np.array_equal(got, want[name].reshape(-1))


def test_equal_sources_give_equal_elements_in_any_shape() -> None:
    def dag(shape: tuple[int, ...], other: str = "float32") -> te.ComputeDAG:
        a = te.placeholder(shape, name="a")
        b = te.placeholder((4,), name="b", dtype=other)
        zero = (0,) * len(shape)
        return te.ComputeDAG([te.compute((4,), lambda i: a[zero] + te.cast(b[i], "float32"))])

    one, two, three = dag((6, 4)), dag((24,)), dag((24,), "int8")
    assert sources(one, 1) == sources(two, 1) != sources(two, 2)
    assert sources(three, 1)["a"] == sources(two, 1)["a"] != sources(two, 1, positive=True)["a"]
    assert sources(three, 1)["b"] != sources(two, 1)["b"]
    x, y = (random_inputs(d, 1)["a"] for d in (one, two))
    assert np.array_equal(x.reshape(-1), y)


def test_the_same_in_another_process_with_another_hash_seed() -> None:
    script = (
        "import zlib; from ansorlite import te; from ansorlite.measure.inputs import *;"
        "a = te.placeholder((50,), name='a'); b = te.placeholder((50,), 'int32', 'b');"
        "d = te.ComputeDAG([te.compute((50,), lambda i: a[i] + te.cast(b[i], 'float32'))]);"
        "print([zlib.crc32(x.tobytes()) for x in random_inputs(d, 5).values()])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and said.pop().startswith("[")


def test_integers_are_small_of_both_signs() -> None:
    a = te.placeholder((200,), dtype="int64", name="a")
    x = random_inputs(te.ComputeDAG([te.compute((200,), lambda i: a[i] * 2)]), 0)["a"]
    assert x.dtype == np.int64 and (x.min(), x.max()) == (-SMALL_INT, SMALL_INT)


@pytest.mark.parametrize(
    ("index", "limit"),
    [
        (lambda x, j: x, N_TABLE),
        (lambda x, j: clamped(x + j, N_TABLE), N_TABLE),
        (lambda x, j: clamped(2 * x + 1, N_TABLE), N_TABLE),
        (lambda x, j: te.minimum(te.maximum(x, 0), N_TABLE - 1), N_TABLE),
        (lambda x, j: clamped(te.select(x < 0, x + N_TABLE, x), N_TABLE), N_TABLE),
    ],
)
def test_indices_stay_inside_and_use_the_whole_range(
    index: Callable[[Expr, Expr], Expr], limit: int
) -> None:
    dag = gather(index)
    assert index_limits(dag) == {"ids": limit}
    x = random_inputs(dag, 0)["ids"]
    assert (x.min(), x.max()) == (0, limit - 1)


def test_a_cast_index_and_one_through_a_stage() -> None:
    assert index_limits(gather(lambda x, j: te.cast(x, "int32"), "int64")) == {"ids": N_TABLE}
    table = te.placeholder((N_TABLE,), name="table")
    ids = te.placeholder((N_INDEX,), dtype="int32", name="ids")
    tidy = te.compute((N_INDEX,), lambda i: clamped(ids[i], N_TABLE), name="tidy")
    dag = te.ComputeDAG([te.compute((N_INDEX,), lambda i: table[tidy[i]], name="out")])
    assert index_limits(dag) == {"ids": N_TABLE}


def test_the_smallest_of_several_tables_counts() -> None:
    small, large = te.placeholder((5,), name="s"), te.placeholder((50,), name="l")
    ids = te.placeholder((N_INDEX,), dtype="int32", name="ids")
    out = te.compute(
        (N_INDEX,), lambda i: small[clamped(ids[i], 5)] + large[clamped(ids[i], 50)], name="out"
    )
    assert index_limits(te.ComputeDAG([out])) == {"ids": 5}
