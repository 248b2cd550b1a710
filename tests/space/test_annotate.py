"""Annotation holes: loops that may be parallel, vectorised or unrolled, and their options."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from space_cases import TARGET, conv_bn_relu, matmul, row_minimum, softmax

from ansorlite import te
from ansorlite.schedule.holes import reduce_options, tile_options
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import ComputeAt
from ansorlite.space.annotate import UNROLL_STEPS, annotate, lanes_hole, parallel_limit
from ansorlite.space.plain import plain_state
from ansorlite.space.rules import derive
from ansorlite.task import SearchTask
from ansorlite.te.access import contiguous_axis

Options = dict[str, tuple[tuple[int, ...], ...]]


def annotated(*outputs: te.Tensor, at: ComputeAt | None = None) -> State:
    """The naive state of a DAG with annotation holes."""
    state = State(te.ComputeDAG(list(outputs)))
    return annotate(state.apply(at) if at else state, TARGET)


def options(state: State) -> Options:
    return {h.name: h.options for h in state.holes}


def notes(state: State, stage: str) -> set[str]:
    return {f"{it} {key}" for it, key, _ in state.schedule[stage].notes}


def test_untiled_stages_run_along_their_contiguous_axis() -> None:
    x = te.placeholder((64, 100), name="X")
    state = annotated(te.compute((64, 100), lambda i, j: te.exp(x[i, j]), name="Y"))
    found = options(state)
    assert found["Y.lanes"] == ((4,), (8,)) and found["Y.parallel"] == ((0,), (1,), (2,))
    assert (100,) in found["Y.j"] and (7,) not in found["Y.j"]
    assert [it.name for it in state.schedule["Y"].iters] == ["i", "j.0", "j.1"]
    assert notes(state, "Y") == {"j.1 lanes", "i parallel", "j.0 parallel"}


def test_most_accesses_decide_which_axis_is_contiguous() -> None:
    x, y = te.placeholder((64, 32), name="X"), te.placeholder((64, 32), name="Y")
    t = te.compute((32, 64), lambda i, j: te.exp(x[j, i]) + y[j, i], name="T")
    assert {n for n in notes(annotated(t), "T") if "lanes" in n} == {"i.1 lanes"}


AXES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., te.Expr], str]] = {
    # shape, reduced extents, what is summed or (without any) computed, the axis
    "rows": ((64,), (512,), lambda x, y, z, i, k: x[i, k], "k"),
    "rows less their mean": ((64,), (512,), lambda x, y, z, i, k: x[i, k] - z[i], "k"),
    "columns": ((64,), (512,), lambda x, y, z, j, k: x[k, j], "j"),
    "a product": ((64, 64), (64,), lambda x, y, z, i, j, k: x[i, k] * y[k, j], "j"),
    "a product with a vector": ((64,), (512,), lambda x, y, z, i, k: x[i, k] * z[k], "k"),
    "short rows": ((64,), (7,), lambda x, y, z, i, k: x[i, k], "i"),
    "windows": ((64,), (3,), lambda x, y, z, i, k: z[i + k], "i"),
    "strided windows": ((64,), (3,), lambda x, y, z, i, k: z[i * 2 + k], "i"),
    "a diagonal": ((64, 64), (), lambda x, y, z, i, j: x[i, i] + y[i, j], "j"),
    "a scalar": ((), (5,), lambda x, y, z, k: z[k], "k"),
    "nothing contiguous": ((), (5,), lambda x, y, z, k: x[k, 0], ""),
}


@pytest.mark.parametrize("name", AXES)
def test_the_axis_along_which_vectors_serve_best(name: str) -> None:
    shape, reduced, body, expected = AXES[name]
    x, y = te.placeholder((512, 512), name="X"), te.placeholder((512, 512), name="Y")
    z = te.placeholder((512,), name="Z")
    ks = [te.reduce_axis(n, "k") for n in reduced]
    names = [n for n in body.__code__.co_varnames if n in "ij"]

    def element(*axes: te.Expr) -> te.Expr:
        value = body(x, y, z, *axes, *ks)
        return te.sum(value, axis=ks) if ks else value

    t = te.compute(shape, element, name="T")
    axis = contiguous_axis(te.ComputeDAG([t]).computes[-1])
    found = axis.name if axis else ""
    assert found == (f"i{names.index(expected)}" if expected in ("i", "j") else expected)


def test_reductions_along_memory_are_vectors_of_partial_sums() -> None:
    state = annotated(row_minimum(16, 100))
    assert notes(state, "low") == {"k lanes", "i parallel"}
    assert "low.unroll" not in options(state)
    assert [it.name for it in state.schedule["low"].iters] == ["i", "k"]


def test_reductions_across_memory_keep_a_register_tile() -> None:
    x = te.placeholder((100, 64), name="X")
    k = te.reduce_axis(100, "k")
    state = annotated(te.compute((64,), lambda j: te.sum(x[k, j], axis=k), name="Y"))
    assert notes(state, "Y") == {"j.1 lanes", "j.1 register", "k unroll", "j.0 parallel"}
    assert [it.name for it in state.schedule["Y"].iters] == ["j.0", "k", "j.1"]
    assert options(state)["Y.unroll"] == UNROLL_STEPS


def test_register_tiles_and_their_followers() -> None:
    dag = te.ComputeDAG([conv_bn_relu(28, 64)])
    states = [annotate(s, TARGET) for s, _ in derive(State(dag), TARGET)]
    fused = next(s for s in states if s.schedule["conv"].location != "root")
    register = {f"{a}.3 register" for a in ("y", "z", "co")}
    unroll = {f"{a}.{level} unroll" for a in ("kh", "kw", "ci") for level in (0, 1)}
    assert notes(fused, "conv") == register | {"co.3 lanes", "ci.1 prefetch"} | unroll
    assert {n for n in notes(fused, "relu") if "lanes" in n} == {"i3.3 lanes"}
    assert options(fused)["conv.lanes"] == ((4,), (8,))  # one hole for both


@pytest.mark.parametrize(
    ("dtype", "n", "expected"),
    [
        ("float32", 512, [4, 8]),
        ("float64", 512, [2, 4]),
        ("bool", 512, [16, 32]),
        ("float32", 5, [4, 8]),
        ("float32", 3, [4]),
        ("float32", 1, [1]),
    ],
)
def test_vector_lengths(dtype: str, n: int, expected: list[int]) -> None:
    assert lanes_hole("C", n, dtype, TARGET).options == tuple((v,) for v in expected)
    wide = replace(TARGET, vector_bytes=64)
    assert max(lanes_hole("C", 512, "float32", wide).options) == (16,)


def test_parallel_loops_stop_at_reductions_and_attach_points() -> None:
    state = State(te.ComputeDAG([softmax(64, 32)]))
    limits = {s.name: parallel_limit(state, s) for s in state.schedule.stages if s.iters}
    assert limits == {"top": 1, "ex": 2, "total": 1, "out": 2}
    state = state.apply(ComputeAt("total", "out", "i"))
    assert parallel_limit(state, state.schedule["out"]) == 1
    ready = annotate(state, TARGET)
    assert options(ready)["out.parallel"] == ((0,), (1,))
    assert "total.parallel" not in options(ready)


def test_depths_that_add_loops_of_one_iteration_are_no_options() -> None:
    x = te.placeholder((1, 8, 1, 8), name="X")
    y = te.compute((1, 8, 1, 8), lambda a, b, c, d: te.exp(x[a, b, c, d]), name="Y")
    assert options(annotated(y))["Y.parallel"] == ((0,), (2,), (4,))


def test_a_loop_that_holds_a_stage_is_no_vector() -> None:
    x = te.placeholder((8, 8), name="X")
    y = te.compute((8, 8), lambda i, j: te.exp(x[i, j]), name="Y")
    z = te.compute((8, 8), lambda i, j: te.exp(y[i, j]), name="Z")
    state = annotated(z, at=ComputeAt("Y", "Z", "j"))
    assert not any("lanes" in n for n in notes(state, "Z"))


def test_a_follower_of_another_dtype_shares_the_hole() -> None:
    """Sums in float64, cast behind: one vector length, that of the sums."""
    x, y = te.placeholder((32, 48), name="X"), te.placeholder((48, 64), name="Y")
    k = te.reduce_axis(48, "k")
    total = te.compute(
        (32, 64),
        lambda i, j: te.sum(te.cast(x[i, k] * y[k, j], "float64"), axis=k),
        name="S",
    )
    dag = te.ComputeDAG([te.compute((32, 64), lambda i, j: te.cast(total[i, j], "float32"))])
    found = [annotate(s, TARGET) for s, _ in derive(State(dag), TARGET)]
    fused = [s for s in found if s.schedule["S"].location != "root"]
    assert fused and all(options(s)["S.lanes"] == ((2,), (4,)) for s in fused)


def test_scalars_need_no_annotation() -> None:
    x = te.placeholder((), name="X")
    assert annotated(te.compute((), lambda: x[()] * 2.0, name="Y")).holes == ()
    assert annotated(te.compute((1, 1), lambda i, j: x[()] * 2.0, name="Y")).holes == ()


# ---- tables of tile factors ---------------------------------------------------------------------


def test_tables_of_the_prototype() -> None:
    """The numbers of DESIGN.md's feasibility spike for three inner levels."""
    exact = [o for o in tile_options(512, 3, 512) if 512 % (o[0] * o[1] * o[2]) == 0]
    assert len(exact) == 220
    assert (1, 1, 1) in tile_options(509, 3) and (1, 1, 509) in tile_options(509, 3, 509)


@pytest.mark.parametrize("n", [1, 7, 13, 56, 100, 509, 512])
def test_tiles_cover_the_axis_and_waste_little(n: int) -> None:
    for factors in tile_options(n, 3):
        register = factors[-1]
        tiles = -(-n // register)
        assert tiles % (factors[0] * factors[1]) == 0  # outer levels are exact
        assert tiles * register - n <= tiles * register / 8 or tiles > 4
    assert all(t <= 64 for *_, t in tile_options(n, 3))
    assert (n,) in reduce_options(n, 1) or n > 1024


@pytest.mark.parametrize("n", [7, 56, 197, 1500])
def test_blocks_may_end_with_a_part(n: int) -> None:
    """There are more than four of them, and all options of exact blocks beside."""
    options = tile_options(n, 2, partial=True)
    assert set(tile_options(n, 2)) <= set(options) and list(options) == sorted(set(options))
    for block, register in set(options) - set(tile_options(n, 2)):
        assert -(-n // register) % block and -(-n // register) / block > 4
    assert n < 1500 or {(4, 6), (8, 4)} <= set(options)
    assert tile_options(n, 1, partial=True) == tile_options(n, 1)
    assert len(tile_options(4096, 3, partial=True)) <= 4096


def test_tables_are_bounded_and_can_be_searched_by_value() -> None:
    table = tile_options(4096, 3)
    assert len(table) <= 4096 and list(table) == sorted(set(table))
    assert table[0] == (1, 1, 1)
    state = annotated(matmul(64, 64, 64))
    for h in state.holes:
        assert [h.find(o) for o in h.options] == list(range(len(h.options)))
        assert h.find((-1,) * h.width) is None


def test_the_plain_schedule_of_elements_smaller_than_floats() -> None:
    """Their vectors are longer than the tiles that it would take."""
    x = te.placeholder((9, 70), name="X")
    task = SearchTask([te.compute((9, 70), lambda i, j: x[i, j] < 0.5, name="Y")])
    for vector_bytes in (16, 32, 64):
        target = replace(task.target, vector_bytes=vector_bytes)
        state = plain_state(task.dag, target)
        assert not state.holes and lower(state).body
