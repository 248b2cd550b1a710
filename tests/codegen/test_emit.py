"""Native code of hand-scheduled programs against numpy: expressions, memory, loops, one by one."""

import multiprocessing
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from native import Arrays, run_native

from ansorlite import te
from ansorlite.codegen.build import build_program, kernel_assembly, llvm_ir
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
    CacheRead,
    ComputeAt,
    LayoutRewrite,
    Reorder,
    Split,
    Step,
)
from ansorlite.space.sketch import sketches
from ansorlite.target import Target

FLOATS, INTS = ("float32", "float64"), ("int32", "int64")
Body = Callable[..., Any]


def values(dag: te.ComputeDAG, seed: int = 0) -> Arrays:
    """Small whole numbers for every input (quarters for floats), so that sums are exact."""
    rng = np.random.default_rng(seed)
    out: Arrays = {}
    for p in dag.inputs:
        x = rng.integers(0 if p.dtype == "bool" else -9, 2 if p.dtype == "bool" else 10, _ints(p))
        out[p.name] = np.asarray(x / 4 if p.dtype in FLOATS else x, p.dtype)
    return out


def _ints(p: te.Placeholder) -> list[int]:
    return [int(str(e)) for e in p.shape]


def check(*outputs: te.Tensor, steps: tuple[Step, ...] = (), inputs: Arrays | None = None) -> None:
    """Native outputs equal numpy's to the last bit."""
    dag = te.ComputeDAG(list(outputs))
    arrays = {**values(dag), **(inputs or {})}
    program = lower(State(dag).apply(*steps))
    got = run_native(program, arrays, Target())
    for name, want in dag.evaluate(arrays).items():
        assert got[name].dtype == want.dtype
        np.testing.assert_array_equal(got[name], want, err_msg=str(program))


def in_vectors(stage: str, axis: str, lanes: int) -> tuple[Step, ...]:
    return (Annotate(stage, axis, "lanes", lanes),)


# ---- dtypes -------------------------------------------------------------------------------------


def matmul(dtype: str, combiner: Body = te.sum) -> te.Tensor:
    a, b = te.placeholder((13, 9), dtype, "A"), te.placeholder((9, 22), dtype, "B")
    k = te.reduce_axis(9, "k")
    return te.compute((13, 22), lambda i, j: combiner(a[i, k] * b[k, j], axis=k), name="C")


REGISTER_TILE: tuple[Step, ...] = (
    Split("C", "i", (4,)),
    Split("C", "j", (8,)),
    Split("C", "k", (4,)),
    Reorder("C", ("i.0", "j.0", "k.0", "k.1", "i.1", "j.1")),
    Annotate("C", "i.0", "parallel", 1),
    Annotate("C", "j.0", "parallel", 1),
    Annotate("C", "k.1", "unroll", 64),
    Annotate("C", "i.1", "register", 1),
    Annotate("C", "j.1", "register", 1),
    Annotate("C", "j.1", "lanes", 4),
)


@pytest.mark.parametrize("dtype", FLOATS + INTS)
@pytest.mark.parametrize("combiner", [te.sum, te.max, te.min])
def test_register_tiles_of_every_dtype(dtype: str, combiner: Body) -> None:
    check(matmul(dtype, combiner), steps=REGISTER_TILE)
    check(matmul(dtype, combiner))


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("combiner", [te.max, te.min])
def test_reductions_of_booleans(combiner: Body, lanes: int) -> None:
    """any() and all() along rows and columns."""
    x = te.placeholder((19, 37), "bool", "X")
    r = te.reduce_axis(37, "r")
    rows = te.compute((19,), lambda i: combiner(x[i, r], axis=r), name="rows")
    check(rows, steps=in_vectors("rows", "r", lanes))
    r = te.reduce_axis(19, "r")
    columns = te.compute((37,), lambda i: combiner(x[r, i], axis=r), name="columns")
    order = (Reorder("columns", ("r", "i")),)
    check(columns, steps=(*order, *in_vectors("columns", "i", lanes)))


BOOLEANS: dict[str, Body] = {
    "and": lambda p, q, x, i: te.all(p[i], q[i]),
    "or": lambda p, q, x, i: te.any(p[i], q[i], x[i] > 0),
    "not": lambda p, q, x, i: te.logical_not(p[i]),
    "maximum": lambda p, q, x, i: te.maximum(p[i], q[i]),
    "minimum": lambda p, q, x, i: te.minimum(p[i], q[i]),
    "equal": lambda p, q, x, i: te.equal(p[i], q[i]),
    "different": lambda p, q, x, i: te.not_equal(p[i], q[i]),
    "select": lambda p, q, x, i: te.select(p[i], q[i], te.const(True, "bool")),
    "of an index": lambda p, q, x, i: te.select(i % 3 < 1, p[i], te.equal(i, 7)),
    "of numbers": lambda p, q, x, i: te.select(x[i] >= 0.5, x[i] < 1.5, te.not_equal(x[i], -1.0)),
    "a cast": lambda p, q, x, i: te.cast(x[i], "bool"),
    "a cast index": lambda p, q, x, i: te.cast(i % 2, "bool"),
}


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", BOOLEANS)
def test_booleans(name: str, lanes: int) -> None:
    p, q = te.placeholder((27,), "bool", "P"), te.placeholder((27,), "bool", "Q")
    x = te.placeholder((27,), name="X")
    y = te.compute((27,), lambda i: BOOLEANS[name](p, q, x, i), name="Y")
    assert y.dtype == "bool"
    check(y, steps=in_vectors("Y", "i", lanes))


INTEGERS: dict[str, Body] = {
    "arithmetic": lambda x, y, i: x[i] * 3 - y[i] * x[i] + 7,
    "floor of a negative quotient": lambda x, y, i: x[i] // 4,
    "divided by a negative number": lambda x, y, i: x[i] // -3,
    "ceiling": lambda x, y, i: te.ceildiv(x[i], te.const(4, x.dtype)),
    "remainder of a negative number": lambda x, y, i: x[i] % 4,
    "divided by a variable": lambda x, y, i: x[i] // (te.abs(y[i]) + 1),
    "remainder by a variable": lambda x, y, i: x[i] % (te.abs(y[i]) + 1),
    "minimum": lambda x, y, i: te.minimum(x[i], y[i]),
    "maximum of three": lambda x, y, i: te.maximum(te.maximum(x[i], y[i]), -2),
    "absolute": lambda x, y, i: te.abs(x[i]),
    "of the index": lambda x, y, i: x[i] + te.cast(i * i - 3 * i, x.dtype),
    "select": lambda x, y, i: te.select(x[i] < y[i], x[i], y[i] * 2),
    "select of a constant": lambda x, y, i: te.select(te.equal(x[i] % 2, 0), 1, 0) + y[i],
}


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", INTEGERS)
def test_integers(name: str, dtype: str, lanes: int) -> None:
    x, y = te.placeholder((23,), dtype, "X"), te.placeholder((23,), dtype, "Y")
    z = te.compute((23,), lambda i: INTEGERS[name](x, y, i), name="Z")
    check(z, steps=in_vectors("Z", "i", lanes))


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("new", FLOATS + INTS)
@pytest.mark.parametrize("old", [*FLOATS, *INTS, "bool"])
def test_casts(old: str, new: str, lanes: int) -> None:
    """Alone, and inside arithmetic of the new type."""
    x, y = te.placeholder((13,), old, "X"), te.placeholder((13,), new, "Y")
    z = te.compute((13,), lambda i: te.cast(x[i], new), name="Z")
    check(z, steps=in_vectors("Z", "i", lanes))
    z = te.compute((13,), lambda i: te.minimum(te.cast(x[i], new), y[i]) * 2 + y[i], name="Z")
    check(z, steps=in_vectors("Z", "i", lanes))


def test_wide_integers() -> None:
    x = te.placeholder((5,), "int64", "X")
    r = te.reduce_axis(5, "r")
    big = np.asarray([2**40, -(2**41), 3, 2**33 + 1, -1])
    check(te.compute((), lambda: te.sum(x[r] * 4, axis=r), name="Y"), inputs={"X": big})


@pytest.mark.parametrize("lanes", [1, 8])
def test_rectifying_keeps_nan(lanes: int) -> None:
    x = te.placeholder((16,), name="X")
    data = np.arange(-8, 8, dtype="float32")
    data[3] = np.nan
    check(te.relu(x, name="Y"), steps=in_vectors("Y", "i0", lanes), inputs={"X": data})


def test_infinities() -> None:
    x = te.placeholder((3, 8), name="X")
    r = te.reduce_axis(8, "r")
    data = np.full((3, 8), -np.inf, "float32")
    data[1, 2] = np.inf
    data[2, 5] = 1.0
    for combiner in (te.max, te.min):
        y = _rows(x, combiner, r)
        check(y, inputs={"X": data})
        check(y, inputs={"X": data}, steps=in_vectors("Z", "r", 4))


# ---- unrolled copies ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*INTS, "float32"])
def test_unrolled_copies_have_values_of_their_own(dtype: str) -> None:
    """Casts and selects of what an unrolled loop reads differ from copy to copy."""
    x = te.placeholder((4, 6), name="X")
    r = te.reduce_axis(6, "r")

    def term(i: te.Expr) -> te.Expr:
        chosen = te.select(x[i, r] > 0, x[i, r] * 4, te.cast(r, "float32"))
        return te.cast(chosen, dtype) * 3

    y = te.compute((4,), lambda i: te.sum(term(i), axis=r), name="Y")
    order = (Reorder("Y", ("r", "i")), Annotate("Y", "r", "unroll", 64))
    check(y, steps=(*order, Annotate("Y", "i", "register", 1)))
    check(y, steps=(*order, Annotate("Y", "i", "register", 1), Annotate("Y", "i", "lanes", 4)))


def _compile_a_long_chain() -> None:
    """64 maxima in one loop body, each taking the one before twice."""
    x = te.placeholder((16, 4096), name="X")
    r = te.reduce_axis(4096, "r")
    y = te.compute((16,), lambda i: te.max(x[i, r], axis=r), name="Y")
    steps = (Reorder("Y", ("r", "i")), Annotate("Y", "r", "unroll", 256))
    tile = (Annotate("Y", "i", "register", 1), Annotate("Y", "i", "lanes", 8))
    state = State(te.ComputeDAG([y])).apply(Split("Y", "r", (64,)), *_renamed(steps), *tile)
    build_program(lower(state), Target())


def _renamed(steps: tuple[Reorder, Annotate]) -> tuple[Step, ...]:
    """The same for a reduction that is split."""
    return Reorder("Y", ("r.0", "r.1", "i")), Annotate("Y", "r.1", "unroll", steps[1].value)


def test_long_chains_of_maxima_compile() -> None:
    """LLVM 22's search for CRC loops would take 2 ** 64 steps."""
    child = multiprocessing.get_context("spawn").Process(target=_compile_a_long_chain)
    child.start()
    child.join(60)
    alive = child.is_alive()
    child.kill()
    child.join()
    assert not alive and child.exitcode == 0


# ---- memory -------------------------------------------------------------------------------------


def inside(at: te.Expr, n: int = 20) -> te.Expr:
    """A place that is read from a tensor, kept inside of what it indexes."""
    return te.minimum(te.maximum(at, 0), n - 1)


READS: dict[str, tuple[tuple[int, ...], Body]] = {
    "contiguous": ((30,), lambda x, at, i: x[i + 3]),
    "reversed": ((30,), lambda x, at, i: x[29 - i]),
    "strided": ((60,), lambda x, at, i: x[i * 2 + 1]),
    "a column": ((20, 7), lambda x, at, i: x[i, 5]),
    "a diagonal": ((20, 20), lambda x, at, i: x[i, i]),
    "one element": ((20,), lambda x, at, i: x[7]),
    "a quotient": ((20,), lambda x, at, i: x[i // 3]),
    "a remainder": ((20,), lambda x, at, i: x[(i * 7) % 20]),
    "a place from a tensor": ((20,), lambda x, at, i: x[inside(at[i])]),
    "a row from a tensor": ((20, 20), lambda x, at, i: x[inside(at[i]), i]),
    "a column from a tensor": ((20, 20), lambda x, at, i: x[i, inside(at[i])]),
    "one row from a tensor": ((20, 20), lambda x, at, i: x[inside(at[4]), i]),
    "a place from two tensors": ((40,), lambda x, at, i: x[inside(at[i] + at[0], 40)]),
}


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("name", READS)
def test_reads(name: str, dtype: str, lanes: int) -> None:
    shape, body = READS[name]
    x = te.placeholder(shape, dtype, "X")
    at = te.placeholder((20,), "int32", "at")
    y = te.compute((20,), lambda i: body(x, at, i), name="Y")
    places = np.random.default_rng(1).integers(0, 20, 20).astype("int32")
    check(y, steps=in_vectors("Y", "i", lanes), inputs={"at": places})


def test_places_of_64_bits() -> None:
    x, at = te.placeholder((20,), name="X"), te.placeholder((9,), "int64", "at")
    y = te.compute((9,), lambda i: x[inside(at[i])], name="Y")
    check(y, steps=in_vectors("Y", "i", 4), inputs={"at": np.arange(9)[::-1].copy()})


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64"])
def test_scattered_stores(dtype: str) -> None:
    """Vectors along an axis that is not the last of the result."""
    x = te.placeholder((9, 21), dtype, "X")
    y = te.compute((21, 9), lambda i, j: x[j, i], name="Y")
    check(y, steps=(Reorder("Y", ("j", "i")), *in_vectors("Y", "i", 8)))


FAR = 1 << 30  # elements: whatever is read so far away is nobody's memory
GUARDED: dict[str, Body] = {
    "by the vector loop": lambda x, at, p, i, j: te.select(j < 1, x[j * FAR], 0.5),
    "in the middle of a vector": lambda x, at, p, i, j: te.select(
        j < 5, x[j + (j // 5) * FAR], 0.5
    ),
    "by an outer loop": lambda x, at, p, i, j: te.select(i < 1, x[i * FAR + j], 0.5),
    "by both": lambda x, at, p, i, j: te.select(te.all(i < 1, j < 1), x[(i + j) * FAR], 0.5),
    "on both sides": lambda x, at, p, i, j: te.select(
        i < 5, x[(i // 5) * FAR + j], x[(5 - i) * FAR + j]
    ),
    "within another": lambda x, at, p, i, j: te.select(
        i < 1, te.select(j < 1, x[(i + j) * FAR], 0.5), 1.5
    ),
    "by a tensor": lambda x, at, p, i, j: te.select(
        te.all(p[j], at[j] >= 0, at[j] < 13), x[at[j]], 0.5
    ),
    "in arithmetic": lambda x, at, p, i, j: te.abs(te.select(j < 1, x[j * FAR], 0.5)) * 4.0 + 1.0,
    "of integers": lambda x, at, p, i, j: te.cast(
        te.select(j < 1, te.cast(x[j * FAR], "int32") * 2, j) + i, "float32"
    ),
    "of booleans": lambda x, at, p, i, j: te.cast(
        te.select(te.any(j < 1, i < 1), p[j // (13 * (i + 1)) * FAR], te.const(True, "bool")),
        "float32",
    ),
}


def _run_guarded(name: str) -> None:
    x, p = te.placeholder((13,), name="X"), te.placeholder((13,), "bool", "P")
    at = te.placeholder((13,), "int32", "at")
    y = te.compute((6, 13), lambda i, j: GUARDED[name](x, at, p, i, j), name="Y")
    allowed = np.arange(13) % 3 > 0
    places = np.where(allowed, np.arange(13)[::-1], FAR).astype("int32")
    for lanes in (1, 8):
        check(y, steps=in_vectors("Y", "j", lanes), inputs={"P": allowed, "at": places})


@pytest.mark.parametrize("name", GUARDED)
def test_guarded_reads_are_not_executed(name: str) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_run_guarded, args=(name,))
    child.start()
    child.join(60)
    assert child.exitcode == 0


# ---- loops --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64])
def test_remainders_of_vectors(n: int) -> None:
    """Elementwise, and partial accumulators of a reduction along the vector."""
    x, y = te.placeholder((n,), name="X"), te.placeholder((3, n), name="Y")
    for lanes in (2, 8):
        z = te.compute((n,), lambda i: x[i] * 2.0 + 1.0, name="Z")
        check(z, steps=in_vectors("Z", "i", lanes))
        for combiner in (te.sum, te.max, te.min):
            r = te.reduce_axis(n, "r")
            z = _rows(y, combiner, r)
            check(z, steps=in_vectors("Z", "r", lanes))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
@pytest.mark.parametrize("n", [3, 5, 6, 7, 13])
def test_masked_lanes(dtype: str, n: int) -> None:
    """Remainders are whole vectors with lanes masked: kept in registers, selected, gathered."""
    x = te.placeholder((4, n), name="X", dtype=dtype)
    y = te.placeholder((9, n), name="Y", dtype=dtype)
    k = te.reduce_axis(9, "k")
    combine = te.max if dtype == "bool" else te.sum
    tile = te.compute((4, n), lambda i, j: combine(y[k, j], axis=k), name="Z")
    register = (Annotate("Z", "i", "register", 1), Annotate("Z", "j", "register", 1))
    check(tile, steps=(Reorder("Z", ("k", "i", "j")), *register, *in_vectors("Z", "j", 8)))
    zero = te.const(0, dtype)
    cases: tuple[Body, ...] = (
        lambda i, j: te.select(i > 1, x[i, j], zero),
        lambda i, j: te.select(j > 1, x[i, j], y[i, j]),
        lambda i, j: x[i, n - 1 - j],
        lambda i, j: te.cast(x[i, j], "float32") * te.cast(j, "float32"),
    )
    for body in cases:
        check(te.compute((4, n), body, name="Z"), steps=in_vectors("Z", "j", 8))


def test_remainders_are_read_at_once() -> None:
    """Seven floats a row: one masked load for each step of a register tile, none put together."""
    a, b = te.placeholder((4, 9), name="A"), te.placeholder((9, 7), name="B")
    k = te.reduce_axis(9, "k")
    c = te.compute((4, 7), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    steps = (
        Reorder("C", ("k", "i", "j")),
        Annotate("C", "i", "register", 1),
        Annotate("C", "j", "register", 1),
        *in_vectors("C", "j", 8),
    )
    program = lower(State(te.ComputeDAG([c])).apply(*steps))
    text = kernel_assembly(program, Target.cross("x86-avx2"))
    assert "vmaskmovps" in text and "vinsertf128" not in text
    check(c, steps=steps)


def _rows(y: te.Tensor, combiner: Body, r: te.Expr) -> te.Tensor:
    return te.compute((3,), lambda i: combiner(y[i, r], axis=r), name="Z")


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(13, 22), (7, 9), (24, 17), (1, 40)])
def test_clamped_parallel_loops(shape: tuple[int, int], depth: int) -> None:
    """Tiles that do not divide their axes, their loops shared by threads: no grain is left out."""
    x = te.placeholder(shape, name="X")
    y = te.compute(shape, lambda i, j: x[i, j] * 2.0, name="Y")
    loops = ("i.0", "j.0", "i.1", "j.1", "i.2", "j.2")
    steps = [Split("Y", "i", (2, 3)), Split("Y", "j", (3, 2)), Reorder("Y", loops)]
    check(y, steps=(*steps, *(Annotate("Y", loop, "parallel", 1) for loop in loops[:depth])))


@pytest.mark.parametrize("extent", [100, 130, 300])
def test_large_local_buffers(extent: int) -> None:
    """40 KB stay on the stack, more goes to the heap, for each thread its own."""
    x = te.placeholder((4, extent + 2, extent), name="X")
    p = te.compute(x.shape, lambda n, i, j: x[n, i, j] + 1.0, name="P")
    y = te.compute(
        (4, extent, extent), lambda n, i, j: p[n, i, j] + p[n, i + 2, extent - 1 - j], name="Y"
    )
    steps = (Annotate("Y", "n", "parallel", 1), ComputeAt("P", "Y", "n"))
    check(y, steps=steps)
    program = lower(State(te.ComputeDAG([y])).apply(*steps))
    text = llvm_ir(program, Target(), optimized=False)
    assert ("malloc" in text) == (extent > 127) == ("free" in text)


def test_several_large_buffers_at_one_place() -> None:
    x = te.placeholder((160, 160), name="X")
    a = _opposite(x, "A")
    b = _opposite(a, "B")
    check(_opposite(b, "C"), steps=(ComputeAt("B", "C", "i"), ComputeAt("A", "C", "i")))


def _opposite(x: te.Tensor, name: str) -> te.Tensor:
    """Elements of a row and of a column: all of x is needed for each row."""
    return te.compute(x.shape, lambda i, j: x[i, j] - x[j, 159 - i], name=name)


def test_scalars() -> None:
    x, y = te.placeholder((), name="X"), te.placeholder((7, 5), name="Y")
    double = te.compute((), lambda: x[()] * 2.0, name="double")
    check(double)
    r, s = te.reduce_axis(7, "r"), te.reduce_axis(5, "s")
    total = te.compute((), lambda: te.sum(y[r, s] * double[()], axis=[r, s]), name="total")
    check(total)
    check(total, steps=in_vectors("total", "s", 4))
    check(te.compute((3,), lambda i: total[()] + y[i, 0], name="spread"))
    check(te.compute((), lambda: te.const(2.5), name="constant"))


def test_packed_operands() -> None:
    """A constant packed ahead of time, and an operand packed by the kernel; tiles are inexact."""
    a, b = te.placeholder((13, 9), name="A"), te.placeholder((9, 22), name="B", constant=True)
    k = te.reduce_axis(9, "k")
    c = te.compute((13, 22), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    check(c, steps=(*REGISTER_TILE, LayoutRewrite("B", "C")))
    copied = (CacheRead("A", "C"), LayoutRewrite("A.packed", "C"))
    check(c, steps=(*REGISTER_TILE, LayoutRewrite("B", "C"), *copied))


def test_workspace_is_shared_by_nests() -> None:
    """Root temporaries lie one after the other, each aligned."""
    x = te.placeholder((5, 7), name="X")
    p = te.compute((5, 7), lambda i, j: x[i, j] > 0, name="P")
    q = te.compute((5, 7), lambda i, j: te.cast(x[i, j] * 4, "int64"), name="Q")
    z = te.compute((7, 5), lambda i, j: te.select(p[j, i], q[j, i], -q[j, 6 - i]), name="Z")
    check(z)


@pytest.mark.parametrize(("factor", "fused"), [(0.125, True), (-4.0, True), (0.3, False)])
def test_only_what_a_product_does_not_round_is_subtracted_with_it(
    factor: float, fused: bool
) -> None:
    """x * c - max(x * c) is 0 at the maximum, whatever c is; scores are scaled by 1/8, mostly."""
    x, m = te.placeholder((64,), name="X"), te.placeholder((64,), name="M")
    y = te.compute((64,), lambda i: x[i] * factor - m[i], name="Y")
    z = te.compute((64,), lambda i: m[i] - x[i] * factor, name="Z")
    scaled = np.random.default_rng(0).normal(size=64).astype(np.float32)
    inputs = {"X": scaled, "M": np.float32(factor) * scaled}
    for out in (y, z):
        steps = in_vectors(out.name, "i", 16)
        check(out, steps=steps, inputs=inputs)
        check(out, steps=steps, inputs={"X": scaled, "M": scaled[::-1].copy()})
        program = lower(State(te.ComputeDAG([out])).apply(*steps))
        text = kernel_assembly(program, Target.cross("x86-avx512"))
        assert any(name in text for name in ("vfmadd", "vfmsub", "vfnmadd")) == fused


# ---- other machines -----------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["x86-avx512", "aarch64-neon", "x86-avx2"])
def test_cross_compiling(preset: str) -> None:
    """Matmul, softmax and a padded convolution, every structure, with that target's vectors."""
    target = Target.cross(preset, cores=4)
    rng = np.random.default_rng(0)
    x, y = te.placeholder((9, 20), name="X"), te.placeholder((20, 35), name="Y", constant=True)
    k, r = te.reduce_axis(20, "k"), te.reduce_axis(35, "r")
    c = te.compute((9, 35), lambda i, j: te.sum(x[i, k] * y[k, j], axis=k), name="C")
    e = te.compute((9, 35), lambda i, j: te.exp(c[i, j]), name="E")
    total = te.compute((9,), lambda i: te.sum(e[i, r], axis=r), name="total")
    out = te.compute((9, 35), lambda i, j: te.select(i < 4, e[i, j] / total[i], 0.0), name="out")
    dag = te.ComputeDAG([out])
    for sketch in sketches(dag, target)[::4]:
        image = build_program(sketch.fill(sketch.sample(1, rng)[0]), target)
        assert image.triple == target.triple and image.object_bytes[:4] == b"\x7fELF"
        assert [p.role for p in image.params][:3] == ["input", "constant", "output"]
