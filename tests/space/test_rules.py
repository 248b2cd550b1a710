"""Conditions and effects of the sketch rules, one by one (Ansor, table 1)."""

from collections.abc import Callable

import pytest
from space_cases import HOST, TARGET, check, conv_bn_relu, matmul, max_pool, row_minimum, softmax

from ansorlite import te
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import (
    Annotate,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FollowSplit,
    Rfactor,
    Split,
)
from ansorlite.space.rules import (
    SKETCH_RULES,
    Outcome,
    SketchRule,
    add_cache_write,
    add_rfactor,
    always_inline,
    fusible_consumer,
    multi_level_tiling,
    multi_level_tiling_with_fusion,
    simplify_const_tensor,
    skip_stage,
    tile,
)
from ansorlite.space.sketch import sketches


def state_of(*outputs: te.Tensor) -> State:
    return State(te.ComputeDAG(list(outputs)))


def ask(rule: SketchRule, state: State, stage: str) -> Outcome | None:
    names = [s.name for s in state.schedule.stages]
    return rule(state, names.index(stage), TARGET)


def test_the_order_is_ansors() -> None:
    assert (
        always_inline,
        simplify_const_tensor,
        add_rfactor,
        add_cache_write,
        multi_level_tiling_with_fusion,
        multi_level_tiling,
        skip_stage,
    ) == SKETCH_RULES


@pytest.mark.parametrize("rule", SKETCH_RULES[:-1])
def test_placeholders_are_left_alone(rule: SketchRule) -> None:
    assert ask(rule, state_of(matmul(512, 512, 512)), "A") is None


# ---- AlwaysInline -------------------------------------------------------------------------------

Body = Callable[[te.Tensor, te.Expr, te.Expr], te.Expr]
INLINED: dict[str, tuple[Body, bool]] = {
    "arithmetic": (lambda x, i, j: x[i, j] * 2.0 + 1.0, True),
    "a broadcast": (lambda x, i, j: x[i, 0] + 1.0, True),
    "a shift": (lambda x, i, j: x[i + 1, j] - x[i, j], True),
    "tanh": (lambda x, i, j: te.tanh(x[i, j]), True),
    "a maximum": (lambda x, i, j: te.maximum(x[i, j], 0.0), True),
    "nothing read": (lambda x, i, j: te.cast(i + j, "float32"), True),
    "exp": (lambda x, i, j: te.exp(x[i, j]), False),
    "a branch": (lambda x, i, j: te.select(i < 3, x[i, j], 0.0), False),
    "a transposition": (lambda x, i, j: x[j, i], False),
    "one axis twice": (lambda x, i, j: x[i, i] + x[j, j], False),
    "a stride": (lambda x, i, j: x[i * 2, j], False),
}


@pytest.mark.parametrize("name", INLINED)
def test_stages_that_are_always_inlined(name: str) -> None:
    body, inlined = INLINED[name]
    x = te.placeholder((16, 16), name="X")
    y = te.compute((8, 8), lambda i, j: body(x, i, j), name="Y")
    state = state_of(te.relu(y, name="Z"))
    outcome = ask(always_inline, state, "Y")
    assert (outcome is not None) == inlined
    if outcome is not None:
        ((after, position),) = outcome.successors
        assert after.steps == (ComputeInline("Y"),) and outcome.skip_rest
        assert position == [s.name for s in state.schedule.stages].index("Y") - 1
    assert ask(always_inline, state, "Z") is None  # an output
    assert ask(always_inline, state_of(y), "Y") is None


def test_reductions_are_not_inlined() -> None:
    assert ask(always_inline, state_of(softmax(64, 64)), "top") is None


# ---- HasFusibleConsumer -------------------------------------------------------------------------


def consumer_of(shape: tuple[int, ...], body: Callable[..., te.Expr], more: bool = False) -> State:
    """A matmul C (64 x 64) and its reader D; with `more` C has a second reader."""
    c = matmul(64, 64, 64)
    d = te.compute(shape, lambda *i: body(c, *i), name="D")
    return state_of(d, te.relu(c, name="E")) if more else state_of(d)


def test_fusible_consumers() -> None:
    same = (64, 64)

    def found(state: State) -> str | None:
        consumer = fusible_consumer(state, state.schedule["C"])
        return consumer.name if consumer else None

    assert found(consumer_of(same, lambda c, i, j: c[i, j] + 1.0)) == "D"
    assert found(consumer_of(same, lambda c, i, j: c[i, j] * c[i, j])) == "D"
    assert found(consumer_of(same, lambda c, i, j: c[i, j], more=True)) is None
    assert found(consumer_of(same, lambda c, i, j: c[j, i])) is None
    assert found(consumer_of(same, lambda c, i, j: c[i, j] + c[i, 0])) is None
    assert found(consumer_of((64, 32), lambda c, i, j: c[i, j])) is None
    r = te.reduce_axis(64, "q")
    assert found(consumer_of((64,), lambda c, i: te.sum(c[i, r], axis=r))) is None
    assert found(state_of(matmul(64, 64, 64))) is None


def test_consumers_are_found_through_inlined_stages() -> None:
    state = state_of(conv_bn_relu(28, 64)).apply(ComputeInline("shifted"), ComputeInline("scaled"))
    consumer = fusible_consumer(state, state.schedule["conv"])
    assert consumer is not None and consumer.name == "relu"


def test_an_output_has_no_fusible_consumer() -> None:
    c = matmul(64, 64, 64)
    state = state_of(c, te.relu(c, name="D"))
    assert fusible_consumer(state, state.schedule["C"]) is None


# ---- MultiLevelTiling, with fusion --------------------------------------------------------------


def test_tiling_follows_the_structure() -> None:
    state = tile(state_of(matmul(512, 512, 512)), "C", TARGET)
    order = [it.name for it in state.schedule["C"].iters]
    assert order == ["i.0", "j.0", "i.1", "j.1", "k.0", "i.2", "j.2", "k.1", "i.3", "j.3"]
    assert {h.name: h.width for h in state.holes} == {"C.i": 3, "C.j": 3, "C.k": 1}


def test_axes_of_one_element_are_not_split() -> None:
    state = tile(state_of(conv_bn_relu(28, 64)), "conv", TARGET)
    assert [h.name for h in state.holes] == [
        f"conv.{a}" for a in ["y", "z", "co", "kh", "kw", "ci"]
    ]
    assert state.schedule["conv"].iters[0].name == "n"


def test_axes_that_stay_whole() -> None:
    a, b = te.placeholder((64, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis(64, "k")
    c = te.compute(
        (64, 64),
        lambda i, j: te.sum(a[i, k] * b[k, j], axis=k),
        name="C",
        attrs={"no_split_at_inner": ("i", "k")},
    )
    state = state_of(te.relu(c, name="D"))
    order = [it.name for it in tile(state, "C", TARGET).schedule["C"].iters]
    assert order == ["j.0", "j.1", "j.2", "k", "i", "j.3"]
    outcome = ask(multi_level_tiling_with_fusion, state, "C")
    assert outcome is not None
    follower = outcome.successors[0][0].schedule["D"]
    assert [it.name for it in follower.iters] == ["i1.0", "i1.1", "i1.2", "i0", "i1.3"]


def test_tiling_needs_data_reuse() -> None:
    for tensor, stage in (
        (max_pool(56, 64), "pool"),
        (row_minimum(64, 64), "low"),
        (softmax(64, 64), "out"),
    ):
        state = state_of(tensor)
        for rule in (multi_level_tiling, multi_level_tiling_with_fusion, add_cache_write):
            assert ask(rule, state, stage) is None
    x, y = te.placeholder((64,), name="X"), te.placeholder((64,), name="Y")
    outer = te.compute((64, 64), lambda i, j: x[i] + y[j], name="outer")
    assert ask(multi_level_tiling, state_of(outer), "outer") is not None


def test_tiling_is_done_once() -> None:
    state = tile(state_of(te.relu(matmul(64, 64, 64), name="D")), "C", TARGET)
    assert ask(multi_level_tiling, state, "C") is None
    assert ask(multi_level_tiling_with_fusion, state, "C") is None


def test_fusion_after_one_or_two_levels() -> None:
    state = state_of(te.relu(matmul(512, 512, 512), name="D"))
    outcome = ask(multi_level_tiling_with_fusion, state, "C")
    assert outcome is not None and not outcome.skip_rest
    places = [s.steps[-1] for s, _ in outcome.successors]
    assert places == [ComputeAt("C", "D", "i1.0"), ComputeAt("C", "D", "i1.1")]
    for after, _ in outcome.successors:
        assert FollowSplit("D", "C") in after.steps
        assert [it.name for it in after.schedule["D"].iters] == [
            f"i{d}.{level}" for level in range(4) for d in range(2)
        ]


# ---- AddCacheWrite ------------------------------------------------------------------------------


def test_a_cache_is_added_where_nothing_can_be_fused() -> None:
    state = state_of(matmul(512, 512, 512))
    outcome = ask(add_cache_write, state, "C")
    assert outcome is not None and not outcome.skip_rest
    ((after, position),) = outcome.successors
    assert after.steps == (CacheWrite("C"),)
    assert after.schedule.stages[position].name == "C.cache"  # visited next
    assert ask(add_cache_write, after, "C.cache") is None
    fused = ask(multi_level_tiling_with_fusion, after, "C.cache")
    assert fused is not None and fused.skip_rest
    assert ask(add_cache_write, state_of(te.relu(matmul(64, 64, 64), name="D")), "C") is None


# ---- AddRfactor ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "stage", "factored"),
    [
        (matmul(8, 8, 512), "C", True),  # 64 <= 512 and 64 <= 16 * 20 cores
        (matmul(16, 20, 512), "C", True),  # 320 elements
        (matmul(16, 21, 512), "C", False),  # more than 16 a core
        (matmul(8, 8, 63), "C", False),  # more elements than summands
        (matmul(8, 8, 64), "C", True),
        (row_minimum(1536, 21), "low", True),  # without reuse the reduction alone decides
        (row_minimum(1536, 20), "low", False),
        (max_pool(56, 64), "pool", False),  # 9 <= 20 cores
    ],
)
def test_rfactor_where_there_is_little_to_share(
    tensor: te.Tensor, stage: str, factored: bool
) -> None:
    assert (ask(add_rfactor, state_of(tensor), stage) is not None) == factored


def test_both_parts_of_the_reduction_are_kept_in_turn() -> None:
    state = state_of(matmul(8, 8, 512))
    outcome = ask(add_rfactor, state, "C")
    assert outcome is not None and not outcome.skip_rest
    names = [s.name for s in state.schedule.stages]
    for (after, position), keep in zip(outcome.successors, ("outer", "inner"), strict=True):
        assert after.steps == (Rfactor("C", "k", "C.rf.k:1", keep),)
        assert position == names.index("C") - 1  # C.rf itself is not visited
        assert after.schedule.stages[position + 1].name == "C.rf"
        assert ask(add_rfactor, after, "C.rf") is None
    outer, inner = (after.holes[0].options for after, _ in outcome.successors)
    assert (512,) in outer and max(inner) == (64,)
    order = [it.name for it in outcome.successors[1][0].schedule["C.rf"].iters]
    assert order == ["i", "j", "k_o", "k_i"]


def test_several_reduction_axes() -> None:
    """The outer part is cut from the first axis, the inner one from the last; never from units."""
    x = te.placeholder((1, 30, 40, 1), name="X")
    names = ("a", "b", "c", "d")
    axes = [te.reduce_axis(n, name) for n, name in zip((1, 30, 40, 1), names, strict=True)]
    total = te.compute((), lambda: te.sum(x[tuple(axes)], axis=axes), name="total")
    outcome = ask(add_rfactor, state_of(total), "total")
    assert outcome is not None
    assert [s.steps[0] for s, _ in outcome.successors] == [
        Rfactor("total", "b", "total.rf.b:1", "outer"),
        Rfactor("total", "c", "total.rf.c:1", "inner"),
    ]


# ---- SimplifyComputeWithConstTensor -------------------------------------------------------------


def test_constant_indices_are_unrolled() -> None:
    """As in Winograd's transforms: B is constant in its first index and unrolled along k."""
    x, b = te.placeholder((4, 32, 16), name="X"), te.placeholder((4, 4), name="B", constant=True)
    k = te.reduce_axis(4, "k")
    v = te.compute(
        (4, 32, 16),
        lambda e, p, c: te.sum(x[k, p, c] * b[k, e], axis=k),
        name="V",
        attrs={"simplify_const_indices": ("e", "k")},
    )
    outcome = ask(simplify_const_tensor, state_of(v), "V")
    assert outcome is not None and outcome.skip_rest
    ((after, _),) = outcome.successors
    stage = after.schedule["V"]
    assert [it.name for it in stage.iters] == ["p.0", "c.0", "p.1", "c.1", "e", "k"]
    assert {s.iterator for s in after.steps if isinstance(s, Annotate)} == {"e", "k"}
    assert {s.axis for s in after.steps if isinstance(s, Split)} == {"p", "c"}
    assert ask(multi_level_tiling, state_of(v), "V") is None
    assert ask(simplify_const_tensor, state_of(matmul(64, 64, 64)), "C") is None


@pytest.mark.parametrize("last", [1, 2, 3, 5, 7, 8, 11, 17])
def test_vectors_of_any_contiguous_axis(last: int) -> None:
    """An axis without whole vectors is computed element by element."""
    parts = [te.placeholder((2, n, 6, last), name=f"x{n}") for n in (2, 3)]
    joined = te.compute(
        (2, 5, 6, last),
        lambda a, b, c, d: te.select(b < 2, parts[0][a, b, c, d], parts[1][a, b - 2, c, d]),
        name="joined",
        attrs={"simplify_const_indices": ("b",)},
    )
    dag = te.ComputeDAG([joined])
    found = sketches(dag, HOST)
    assert found
    for sketch in found:
        check(dag, sketch, 2)


def test_skip_goes_on_with_the_stage_before() -> None:
    state = state_of(matmul(64, 64, 64))
    outcome = skip_stage(state, 2, TARGET)
    assert outcome is not None and outcome.successors == ((state, 1),)
