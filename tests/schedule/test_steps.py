"""Steps one by one: the effect of each on a schedule, and the errors of illegal steps."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ansorlite import te
from ansorlite.errors import ScheduleError
from ansorlite.ir.interpret import interpret
from ansorlite.schedule.holes import Hole, row_values, values_row
from ansorlite.schedule.lower import fill, lower
from ansorlite.schedule.pads import PadInPlace
from ansorlite.schedule.state import State, state_from_json
from ansorlite.schedule.steps import (
    STEPS,
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    EvaluateAtBind,
    FollowSplit,
    LayoutRewrite,
    Reorder,
    Rfactor,
    Split,
    Step,
    StoreAt,
    Transpose,
    step_from_json,
    step_to_json,
)
from ansorlite.te.dag import ComputeDAG


def chain() -> ComputeDAG:
    """A scaled matmul with relu: X, W -> S = 2 X, C = S W, D = relu(C); S2 = 3 W is an output."""
    x = te.placeholder((6, 8), name="X")
    w = te.placeholder((8, 10), name="W")
    s = te.compute((6, 8), lambda i, k: x[i, k] * 2.0, name="S")
    r = te.reduce_axis(8, name="r")
    c = te.compute((6, 10), lambda i, j: te.sum(s[i, r] * w[r, j], axis=r), name="C")
    d = te.compute((6, 10), lambda i, j: te.maximum(c[i, j], 0.0), name="D")
    other = te.compute((8, 10), lambda i, j: w[i, j] * 3.0, name="S2")
    return te.ComputeDAG([d, other])


def apply(*steps: Step) -> State:
    return State(chain()).apply(*steps)


ILLEGAL: list[tuple[list[Step], str]] = [
    # which stage, axis or iterator
    ([Split("E", "i", (2,))], "there is no stage E (there are: X, S, W, C, D, S2)"),
    ([Split("X", "i", (2,))], "X is a placeholder: it has no loops"),
    ([Split("C", "k", (2,))], "stage C has no axis k (it has: i, j, r)"),
    ([Annotate("C", "i.0", "lanes", 4)], "C has no iterator i.0 (it has: i j r)"),
    # Split
    (
        [Split("C", "i", (2,)), Split("C", "i", (3,))],
        "cannot split i of C: it is split already, give all levels in one step",
    ),
    ([Split("C", "i", (2, 0))], "cannot split i of C by factor 0"),
    (
        [ComputeAt("C", "D", "i"), Split("D", "i", (2,))],
        "cannot split i of D: a stage is attached to it",
    ),
    (
        [Split("C", "i", (2,)), FollowSplit("D", "C"), Split("C", "j", (5,))],
        "cannot split j of C: D follows its loops",
    ),
    (
        [Split("C", "i", (2,)), FollowSplit("D", "C"), Split("D", "j", (5,))],
        "cannot split j of D: it follows C",
    ),
    (
        [CacheRead("W", "C"), LayoutRewrite("W.packed", "C"), Split("C", "j", (5,))],
        "cannot split j of C: W.packed follows its loops",
    ),
    # FollowSplit, Reorder
    ([Rfactor("C", "r", 2, "outer"), FollowSplit("C.rf", "D")], "C.rf cannot follow D: 3 axes"),
    ([FollowSplit("X", "C")], "X is a placeholder"),
    ([Reorder("C", ("i", "r"))], "cannot reorder C to i r: its iterators are i j r"),
    (
        [Split("C", "i", (2,)), Reorder("C", ("i", "j", "r"))],
        "cannot reorder C to i j r: its iterators are i.0 i.1 j r",
    ),
    (
        [ComputeAt("C", "D", "j"), ComputeAt("S", "D", "i"), Reorder("D", ("j", "i"))],
        "cannot attach S to D at i: C reads it outside of that loop",
    ),
    # ComputeAt
    ([ComputeAt("C", "D", "k")], "D has no iterator k (it has: i j)"),
    ([ComputeAt("D", "S2", "i")], "cannot attach D: it is an output"),
    ([ComputeAt("X", "S", "i")], "cannot attach X: it has no loops of its own"),
    ([ComputeInline("S"), ComputeAt("S", "C", "i")], "cannot attach S: it has no loops of its own"),
    ([ComputeAt("S", "D", "i")], "cannot attach S to D at i: C reads it outside of that loop"),
    (
        [ComputeAt("C", "D", "i"), ComputeAt("S", "D", "j")],
        "cannot attach S to D at j: C reads it outside of that loop",
    ),
    # ComputeInline
    ([ComputeInline("C")], "cannot inline C: it is a reduction"),
    ([ComputeInline("D")], "cannot inline D: it is an output"),
    ([ComputeInline("X")], "X is a placeholder"),
    # CacheWrite, CacheRead
    ([Split("C", "i", (2,)), CacheWrite("C")], "cannot cache C: it is scheduled already"),
    ([ComputeAt("C", "D", "i"), CacheWrite("C")], "cannot cache C: it is scheduled already"),
    (
        [ComputeAt("S", "C", "i"), CacheWrite("C")],
        "cannot attach S to C at i: C.cache reads it outside of that loop",
    ),
    ([CacheRead("X", "C")], "cannot cache X for C: it is not read"),
    (
        [CacheRead("W", "C"), CacheRead("W", "S2")],
        "there is a stage W.packed already",
    ),
    (
        [ComputeAt("S", "C", "i"), CacheRead("S", "C")],
        "cannot attach S to C at i: S.packed reads it outside of that loop",
    ),
    # Transpose
    ([Transpose("C", ("i", "r"))], "cannot transpose C to i r: its axes are i j"),
    ([Split("C", "i", (2,)), Transpose("C", ("j", "i"))], "cannot transpose C: it is scheduled"),
    (
        [ComputeAt("S", "C", "i"), Transpose("C", ("j", "i"))],
        "cannot transpose C: stages are attached to it",
    ),
    ([Transpose("X", ("j", "i"))], "X is a placeholder"),
    # Rfactor
    ([Rfactor("C", "i", 2, "outer")], "cannot rfactor C: i is not reduced"),
    ([Rfactor("D", "i", 2, "outer")], "cannot rfactor D: i is not reduced"),
    (
        [Split("C", "i", (2,)), Rfactor("C", "r", 2, "outer")],
        "cannot rfactor C: it is scheduled already",
    ),
    ([Rfactor("C", "r", 2, "middle")], "rfactor of C keeps 'middle': outer or inner"),
    ([Rfactor("C", "r", 0, "outer")], "cannot rfactor r of C by factor 0"),
    ([Rfactor("C", "r", 3, "inner")], "cannot rfactor r of C: 3 does not divide extent 8"),
    (
        [ComputeAt("S", "C", "i"), Rfactor("C", "r", 2, "outer")],
        "cannot attach S to C at i: C.rf reads it outside of that loop",
    ),
    # LayoutRewrite
    (
        [LayoutRewrite("W", "C")],
        "cannot rewrite the layout of W: C is not the only reader",
    ),
    # Annotate
    ([Annotate("C", "i", "colour", 1)], "cannot annotate C.i: key 'colour'"),
]


@pytest.mark.parametrize(("steps", "message"), ILLEGAL)
def test_illegal_steps(steps: list[Step], message: str) -> None:
    state = apply(*steps[:-1])
    with pytest.raises(ScheduleError, match=re.escape(message)):
        state.apply(steps[-1])


def test_a_stage_moved_inline_leaves_its_place() -> None:
    steps = (ComputeAt("S", "C", "r"), ComputeInline("S"))
    assert "S (inlined)" in str(apply(*steps).schedule)


def test_stages_attached_to_an_inlined_stage() -> None:
    x = te.placeholder((6,), name="X")
    a = te.compute((6,), lambda i: x[i] + 1.0, name="A")
    b = te.compute((6,), lambda i: a[i] * 2.0, name="B")
    c = te.compute((6,), lambda i: b[i] - 1.0, name="C")
    state = State(te.ComputeDAG([c])).apply(ComputeAt("A", "B", "i"))
    with pytest.raises(ScheduleError, match="cannot inline B: A is attached to it"):
        state.apply(ComputeInline("B"))


def reads(fn: Callable[..., Any], shape: tuple[int, ...] = (8, 12)) -> State:
    """C[i, j] = sum over r of what `fn` reads of a constant W at i, j and r."""
    w = te.placeholder(shape, name="W", constant=True)
    r = te.reduce_axis(12, name="r")
    c = te.compute((8, 10), lambda i, j: te.sum(fn(w, i, j, r), axis=r), name="C")
    return State(te.ComputeDAG([c]))


@pytest.mark.parametrize(
    ("fn", "shape", "message"),
    [
        (
            lambda w, i, j, r: w[i, r] * w[i, j + 2],
            (8, 12),
            "C reads it in 2 different ways",
        ),
        (
            lambda w, i, j, r: w[i, r * 1 - 0 + j],
            (8, 40),
            "W: index j + r in C is not an axis",
        ),
        (
            lambda w, i, j, r: w[i, i] * 1.0,
            (8, 8),
            "W: index i in C is not an axis of its own",
        ),
        (lambda w, i, j, r: w[i, j], (8, 12), "axis j of C has extent 10, dimension 1 of W has 12"),
    ],
)
def test_layouts_that_are_no_tiling_of_the_reader(
    fn: Callable[..., Any], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        reads(fn, shape).apply(LayoutRewrite("W", "C"))


def test_rfactor_needs_free_names() -> None:
    w = te.placeholder((8, 4), name="W")
    r, r_o = te.reduce_axis(8, name="r"), te.reduce_axis(4, name="r_o")
    c = te.compute((), lambda: te.sum(w[r, r_o], axis=[r, r_o]), name="C")
    with pytest.raises(ScheduleError, match="cannot rfactor r of C: it has an axis r_o already"):
        State(te.ComputeDAG([c])).apply(Rfactor("C", "r", 2, "outer"))


# ---- holes and states ---------------------------------------------------------------------------

TILE = Hole("C.i", "C", "tile", ((1, 1), (2, 1), (3, 2)))


def with_hole() -> State:
    return State(chain()).open(TILE).apply(Split("C", "i", TILE.columns))


def test_a_hole_is_opened_once_with_one_table() -> None:
    state = with_hole()
    assert state.open(TILE).holes == (TILE,)
    with pytest.raises(ScheduleError, match=r"hole C\.i is opened twice with different options"):
        state.open(Hole("C.i", "C", "tile", ((1, 1),)))


def test_filling_needs_every_value() -> None:
    state = with_hole()
    with pytest.raises(ScheduleError, match=r"no values are given for hole C\.i"):
        state.fill({})
    with pytest.raises(ScheduleError, match=r"hole C\.i takes 2 values, got \(3,\)"):
        state.fill({"C.i": (3,)})
    with pytest.raises(ScheduleError, match=r"no values are given for C\.i:1, C\.i:2"):
        fill(lower(state), {})
    assert state.fill({"C.i": (3, 2)}).steps == (Split("C", "i", (3, 2)),)


def test_columns_of_holes_that_are_not_open() -> None:
    state = State(chain()).apply(Split("C", "i", ("C.i:1",)))
    with pytest.raises(ScheduleError, match=r"no value is given for C\.i:1"):
        state.fill({})
    with pytest.raises(ScheduleError, match=r"uses C\.i:1, which no loop or hole defines"):
        lower(state)


def test_rows_and_values() -> None:
    holes = (TILE, Hole("C.unroll", "C", "unroll", ((0,), (16,))))
    values = row_values(holes, [2, 1])
    assert values == {"C.i": (3, 2), "C.unroll": (16,)}
    assert values_row(holes, values).tolist() == [2, 1]
    with pytest.raises(ScheduleError, match=r"a row has shape \(1,\), the sketch has 2 holes"):
        row_values(holes, [2])
    with pytest.raises(ScheduleError, match=r"no values are given for hole C\.unroll"):
        values_row(holes, {"C.i": (3, 2)})
    with pytest.raises(ScheduleError, match=r"hole C\.i has no option \(3, 3\)"):
        values_row(holes, {**values, "C.i": (3, 3)})


# ---- JSON ---------------------------------------------------------------------------------------

EXAMPLES: tuple[Step, ...] = (
    Split("C", "i", (2, "C.i:1")),
    FollowSplit("D", "C"),
    Reorder("C", ("i", "j", "r")),
    ComputeAt("C", "D", "i"),
    StoreAt("C", "D", "i.0"),
    ComputeInline("S"),
    PadInPlace("P", ("i", "j")),
    EvaluateAtBind("W"),
    CacheWrite("C"),
    CacheRead("W", "C"),
    Transpose("C", ("j", "i")),
    Rfactor("C", "r", "C.rf.r:1", "inner"),
    LayoutRewrite("W", "C"),
    Annotate("C", "i", "parallel", "C.parallel:1>0"),
)


def test_every_step_survives_json() -> None:
    assert {type(s) for s in EXAMPLES} == set(STEPS)
    for step in EXAMPLES:
        data = step_to_json(step)
        assert data["step"] == step.tag and step_from_json(data) == step


def test_unknown_steps_and_fields() -> None:
    with pytest.raises(ScheduleError, match="unknown schedule step 'fuse_all'"):
        step_from_json({"step": "fuse_all"})
    with pytest.raises(ScheduleError, match=r"step cache_write has fields .*colour.*, not "):
        step_from_json({"step": "cache_write", "stage": "C", "colour": 1})
    with pytest.raises(ScheduleError, match="unknown schedule step '5'"):
        step_from_json({"step": 5})


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ({"step": "cache_write", "stage": 5}, "stage of step cache_write is '5'"),
        ({"step": "cache_write", "stage": None}, "stage"),
        ({"step": "cache_write", "stage": ["C"]}, "stage"),
        ({"step": "split", "stage": "C", "axis": "i", "factors": 4}, "factors"),
        ({"step": "split", "stage": "C", "axis": "i", "factors": [2.0]}, "factors"),
        ({"step": "split", "stage": "C", "axis": "i", "factors": [True]}, "factors"),
        ({"step": "split", "stage": "C", "axis": "i", "factors": [[2]]}, "factors"),
        ({"step": "reorder", "stage": "C", "order": "ij"}, "order"),
        ({"step": "reorder", "stage": "C", "order": ["i", 1]}, "order"),
        ({"step": "annotate", "stage": "C", "iterator": "i", "key": {}, "value": 1}, "key"),
    ],
)
def test_fields_of_another_type(step: dict[str, Any], field: str) -> None:
    with pytest.raises(ScheduleError, match=f"field {field}"):
        step_from_json(step)


def test_a_state_read_from_json_is_checked_when_it_is_used() -> None:
    with pytest.raises(ScheduleError, match="there is no stage E"):
        _ = state_from_json(chain(), [{"step": "compute_inline", "stage": "E"}]).schedule


# ---- lowering -----------------------------------------------------------------------------------


def test_a_stage_attached_to_a_loop_that_is_fixed_outside() -> None:
    """C is attached inside D's tile, so its own outer loops do not exist."""
    steps = (
        Split("C", "i", (2,)),
        FollowSplit("D", "C"),
        ComputeAt("S", "C", "i.0"),
        ComputeAt("C", "D", "i.0"),
    )
    message = "C reads S, which is not computed before it: attached to C at i.0, a loop that is not"
    with pytest.raises(ScheduleError, match=re.escape(message)):
        lower(apply(*steps))


def test_loops_out_of_order_are_refused() -> None:
    steps = (Split("C", "i", (4,)), Reorder("C", ("i.1", "i.0", "j", "r")))
    with pytest.raises(ScheduleError, match=r"extent of C\.i\.1 uses C\.i\.0"):
        lower(apply(*steps))


def test_parallel_loops_are_outermost_and_spatial() -> None:
    with pytest.raises(ScheduleError, match=r"loop C\.j is parallel but is a reduction or not"):
        lower(apply(Annotate("C", "j", "parallel", 1)))
    steps = (Reorder("C", ("r", "i", "j")), Annotate("C", "r", "parallel", 1))
    with pytest.raises(ScheduleError, match=r"loop C\.r is parallel but is a reduction or not"):
        lower(apply(*steps))


LEGAL: dict[str, tuple[Step, ...]] = {
    "attached to a reduction loop": (ComputeAt("S", "C", "r"),),
    "two stages at one loop": (ComputeAt("C", "D", "i"), ComputeAt("S", "D", "i")),
    "one inside the other": (ComputeAt("C", "D", "i"), ComputeAt("S", "C", "j")),
    "reduction outermost": (Reorder("C", ("r", "i", "j")),),
    "reduction between tiles": (
        Split("C", "i", (4,)),
        Split("C", "r", (3,)),
        Reorder("C", ("i.0", "r.0", "j", "i.1", "r.1")),
    ),
    "a follower attached halfway": (
        Split("C", "i", (2, 2)),
        Split("C", "j", (3,)),
        FollowSplit("D", "C"),
        Reorder("D", ("i.0", "j.0", "i.1", "i.2", "j.1")),
        ComputeAt("C", "D", "i.1"),
    ),
    "cached": (CacheWrite("C"), ComputeAt("C.cache", "C", "i")),
    "read from a copy": (CacheRead("W", "C"), ComputeAt("W.packed", "C", "j")),
    "factored, outer part kept": (Rfactor("C", "r", 2, "outer"), ComputeAt("C.rf", "C", "j")),
    "factored, inner part kept": (Rfactor("C", "r", 4, "inner"), ComputeAt("C.rf", "C", "i")),
    "transposed": (
        Transpose("S", ("k", "i")),
        Transpose("C", ("j", "i")),
        Transpose("D", ("j", "i")),
        ComputeAt("S", "C", "i"),
    ),
    "a copy transposed": (CacheRead("W", "C"), Transpose("W.packed", ("d1", "d0"))),
    "packed as it is read": (
        Split("C", "j", (4,)),
        Reorder("C", ("j.0", "i", "r", "j.1")),
        CacheRead("W", "C"),
        LayoutRewrite("W.packed", "C"),
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_schedules_mean_the_same(name: str) -> None:
    dag = chain()
    rng = np.random.default_rng(0)
    inputs = {"X": rng.integers(-4, 5, (6, 8)), "W": rng.integers(-4, 5, (8, 10))}
    arrays = {k: v.astype("float32") for k, v in inputs.items()}
    expected = dag.evaluate(arrays)
    got = interpret(lower(State(dag).apply(*LEGAL[name])), arrays)
    for output, value in expected.items():
        np.testing.assert_array_equal(got[output], value)


def test_what_is_inlined_keeps_the_width_of_its_type() -> None:
    """The absolute value of the least integer is that integer again, wherever it is used."""
    x = te.placeholder((4,), "int32", name="x")
    y = te.compute((4,), lambda i: te.abs(x[i]), name="y")
    z = te.compute((4,), lambda i: te.maximum(y[i], 7), name="z")
    dag = te.ComputeDAG([z])
    program = lower(State(dag).apply(ComputeInline("y")))
    values = {"x": np.array([-(2**31), -5, 3, 2**31 - 1], np.int32)}
    out = interpret(program, values)["z"]
    np.testing.assert_array_equal(out, dag.evaluate(values)["z"])
    np.testing.assert_array_equal(out, [7, 7, 7, 2**31 - 1])
