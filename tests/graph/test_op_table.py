"""The table of operators: for a case of each, expression and meaning agree in any layout.

A new operator needs one line in `CASES`. The worked example of `graph.ops` runs as it is written.
"""

import importlib
import pkgutil
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from ansorlite.errors import ModelError
from ansorlite.graph import ops
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph, Step, evaluate
from ansorlite.graph.ops.op import Op
from ansorlite.graph.ops.table import OPERATORS
from ansorlite.graph.partition import evaluate_partition, partition
from ansorlite.graph.passes import optimize

IMAGE = (2, 4, 5, 6)
WINDOW: dict[str, Any] = {
    "strides": (1, 2),
    "pads": ((1, 0), (1, 1)),
    "dilations": (1, 1),
    "layout": "channels_first",
}
POOL = {**WINDOW, "kernel": (2, 3), "ceil_mode": False}
AXES: dict[str, Any] = {"axes": (1, 3), "keepdims": False}


class Case(NamedTuple):
    """Shapes of the operands (a dtype before others than float32), and attributes."""

    operands: tuple[Any, ...] = (IMAGE,)
    attrs: Mapping[str, Any] = {}


def _step() -> Step:
    """The body of a loop: a new state, and a value that no kernel computes."""
    b = GraphBuilder("step")
    state, fixed, row = b.input("s", (2, 3)), b.input("f", (3,)), b.input("r", (2, 3))
    new = b.emit("tanh", [b.emit("add", [b.emit("mul", [state, fixed]), row])])
    return Step(b.finish([new, b.emit("reshape", [state], shape=(6,))]))


INDICES = ("int64", (3,))
FLAGS = ("bool", IMAGE)
INTEGERS = ("int64", IMAGE)
CASES: dict[str, Case] = {
    **{n: Case() for n in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "erf", "neg", "abs")},
    **{n: Case() for n in ("floor", "ceil", "round", "sign", "identity")},
    **{n: Case() for n in ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh")},
    **{n: Case() for n in ("acosh", "atanh")},
    **{n: Case((INTEGERS, INTEGERS)) for n in ("bit_and", "bit_or", "bit_xor")},
    "bit_shift": Case((INTEGERS, INTEGERS), {"left": True}),
    "cumsum": Case(attrs={"axis": 2, "exclusive": True, "reverse": True}),
    **{n: Case((IMAGE, IMAGE)) for n in ("add", "sub", "mul", "div", "maximum", "minimum")},
    **{n: Case((IMAGE, (6,))) for n in ("pow", "equal", "less", "less_equal")},
    **{n: Case((FLAGS, FLAGS)) for n in ("logical_and", "logical_or")},
    "logical_not": Case((FLAGS,)),
    "leaky_relu": Case(attrs={"alpha": 0.1}),
    "clip": Case(attrs={"min": 0.7, "max": 1.2}),
    "mod": Case((("int64", IMAGE), ("int64", IMAGE)), {"fmod": False}),
    "where": Case((FLAGS, IMAGE, (4, 1, 1))),
    "cast": Case(attrs={"dtype": "int32"}),
    "conv": Case((IMAGE, (6, 2, 2, 3), (6,)), {**WINDOW, "groups": 2}),
    "conv_transpose": Case(
        (IMAGE, (4, 3, 3, 2)),
        {"strides": (2, 1), "pads": ((1, 0), (0, 0)), "layout": "channels_first"},
    ),
    "matmul": Case((IMAGE, (6, 3))),
    "gemm": Case(
        ((5, 3), (4, 5), (4,)), {"trans_a": True, "trans_b": True, "alpha": 0.5, "beta": 2.0}
    ),
    "max_pool": Case(attrs=POOL),
    "sum_pool": Case(attrs=POOL),
    "avg_pool": Case(attrs={**POOL, "count_include_pad": True}),
    **{n: Case(attrs=AXES) for n in ("reduce_sum", "reduce_max", "reduce_min", "reduce_mean")},
    "softmax": Case(attrs={"axes": (1,)}),
    "lrn": Case(attrs={"axis": 1, "size": 3, "alpha": 0.1, "beta": 0.75, "bias": 1.0}),
    "batch_norm": Case((IMAGE, (4,), (4,), (4,), (4,)), {"epsilon": 1e-5}),
    "transpose": Case(attrs={"perm": (2, 0, 3, 1)}),
    "concat": Case((IMAGE, (2, 1, 5, 6)), {"axis": 1}),
    "pad": Case(attrs={"pads": ((0, 0), (1, 2), (0, 0), (3, 0)), "value": 2.0}),
    "slice": Case(
        attrs={"starts": (0, 3, 1, 0), "sizes": (2, 2, 3, 6), "steps": (1, -2, 1, 1)},
    ),
    "expand": Case(((4, 1, 6),), {"shape": IMAGE}),
    "reshape": Case(attrs={"shape": (2, 2, 2, 30)}),
    "bfloat16": Case(),
    "to_bf16": Case(),
    "from_bf16": Case((("uint16", IMAGE),)),
    "matmul_bf16": Case((("uint16", IMAGE), ("int32", (3, 5)))),
    "conv_bf16": Case(
        (("uint16", (2, 5, 6, 4)), ("int32", (2, 3, 2, 6))),
        {**WINDOW, "layout": "channels_last", "border": 0},
    ),
    "product_bf16": Case((("uint16", IMAGE), ("uint16", (2, 4, 6, 3)))),
    "conv_transpose_bf16": Case(
        (("uint16", (2, 5, 6, 4)), ("int32", (3, 2, 2, 3))),
        {"strides": (2, 1), "pads": ((1, 0), (0, 0)), "layout": "channels_last"},
    ),
    "conv_read_bf16": Case(
        (("uint16", (2, 5, 6, 4)), (2, 3, 2, 6)),
        {**WINDOW, "groups": 2, "layout": "channels_last"},
    ),
    "matmul_u8s8": Case((("uint8", (2, 4, 8)), ("int32", (2, 5)))),
    "conv_u8s8": Case(
        (("uint8", (2, 5, 6, 4)), ("int32", (2, 3, 1, 6)), ("uint8", (1,))),
        {**WINDOW, "layout": "channels_last", "border": 0},
    ),
    "conv_u8": Case(
        (("uint8", (2, 5, 6, 4)), ("int32", (2, 3, 2, 6))),
        {**WINDOW, "layout": "channels_last", "groups": 2, "border": 7},
    ),
    "rows_u8s8": Case(
        (("uint8", (2, 7, 6, 4)), ("int32", (2, 3, 4))),
        {**WINDOW, "layout": "channels_last", "kernel": (5, 3), "border": 7},
    ),
    "words": Case((("uint8", (2, 3, 5, 6)),)),
    "requantize": Case((IMAGE, (1,), (4, 1, 1)), {"dtype": "uint8"}),
    "quantize": Case((IMAGE, (4, 1, 1), (1,)), {"dtype": "int8"}),
    "dequantize": Case((("uint8", IMAGE), (4, 1, 1), ("uint8", ()))),
    "quantization_range": Case(),
    "rescale": Case((("int32", IMAGE), ("int32", (4, 1, 1)), (1,), (1,), (4, 1, 1))),
    "part": Case(attrs={"start": 7, "shape": (3, 5)}),
    "loop": Case(
        ((2, 3), (3,), (4, 2, 3)),
        {"body": _step(), "times": 4, "states": 1, "scanned": 1, "reverse": True},
    ),
    "take": Case((IMAGE, INDICES), {"axis": 1}),
    "take_along": Case((IMAGE, ("int64", (2, 3, 5, 2))), {"axis": 1, "checked": True}),
    "gather_nd": Case(((2, 4, 5, 6), ("int64", (2, 3)), ("int64", (2, 3)))),
    "scatter_nd": Case(
        ((20, 3), (6, 3), ("int64", (6,)), ("int64", (6,))), {"shape": (4, 5), "reduction": "max"}
    ),
    "scatter_along": Case(
        (IMAGE, ("int64", (2, 3, 4, 6)), (2, 3, 4, 6)), {"axis": 1, "reduction": "none"}
    ),
    "top_places": Case(attrs={"axis": 2, "count": 3, "largest": True}),
    "grid_sample": Case(
        (IMAGE, (2, 3, 2, 2)),
        {"mode": "cubic", "padding": "reflection", "align": False, "scaled": True},
    ),
    "roi_align": Case(
        (IMAGE, (3, 4), ("int64", (3,))),
        {"size": (2, 3), "samples": (2, 1), "scale": 2.0, "shift": 0.5, "mode": "avg"},
    ),
    "max_pool_places": Case(attrs={**POOL, "column_major": True}),
    "resample": Case((IMAGE, ("int64", (3, 2)), (3, 2)), {"axis": 2}),
}


def value(operand: Any, rng: np.random.Generator) -> Any:
    dtype, shape = operand if isinstance(operand[0], str) else ("float32", operand)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if "int" in dtype:
        return rng.integers(1, 4, shape).astype(dtype)
    return rng.uniform(0.5, 1.5, shape).astype(dtype)


def built(name: str, case: Case, stored_last: bool) -> tuple[Graph, list[Any]]:
    """The operator on inputs; with `stored_last` on data that a pool leaves channels last."""
    b, rng = GraphBuilder(name), np.random.default_rng(0)
    arrays = [value(x, rng) for x in case.operands]
    values = [b.input(f"x{k}", x.shape, str(x.dtype)) for k, x in enumerate(arrays)]
    if stored_last:
        one = {**WINDOW, "strides": (1, 1), "pads": ((0, 0), (0, 0)), "kernel": (1, 1)}
        values[0] = b.emit("max_pool", values[:1], ceil_mode=False, **one)
    return b.finish([b.emit(name, values, **case.attrs)]), arrays


def check(name: str, case: Case, stored_last: bool) -> None:
    graph, arrays = built(name, case, stored_last)
    (want,) = evaluate(graph, arrays)
    (got,) = evaluate_partition(partition(optimize(graph)), arrays)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPERATORS)
def test_the_expression_computes_the_meaning(name: str) -> None:
    check(name, CASES[name], stored_last=False)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.operands[0] == IMAGE])
def test_operators_follow_data_that_lies_channels_last(name: str) -> None:
    check(name, CASES[name], stored_last=True)


def test_every_operator_has_a_case_and_every_file_is_in_the_table() -> None:
    assert set(CASES) == set(OPERATORS)
    files = [m.name for m in pkgutil.iter_modules(ops.__path__)]
    modules = [importlib.import_module(f"{ops.__name__}.{name}") for name in files]
    found: list[Op] = [op for m in modules for op in getattr(m, "OPS", ())]
    assert len(found) == len(OPERATORS)
    assert {op.name: op for op in found} == OPERATORS


@pytest.mark.parametrize("op", OPERATORS.values(), ids=lambda op: op.name)
def test_entries_are_complete(op: Op) -> None:
    """An expression of the kind that partition looks for, and none where there is no kernel."""
    assert (op.element is not None) == (op.kind == "elementwise")
    assert (op.tensor is not None) == (op.kind in ("anchor", "injective"))
    assert not op.combiner or op.combiner == op.name.removeprefix("reduce_")
    assert op.indices is None or op.arity[0] > 1
    assert all(f"        {trait}" in (Op.__doc__ or "") for trait in op.traits)


def test_the_worked_example_is_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    doc = ops.__doc__ or ""
    code = doc[doc.index("    import numpy") : doc.index("Its layout is the default")]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(code), names)
    (entry,) = names["OPS"]
    monkeypatch.setitem(OPERATORS, entry.name, entry)
    for stored_last in (False, True):
        check(entry.name, Case(attrs={"groups": 2}), stored_last)
    with pytest.raises(ModelError, match="make no 3 groups"):
        built(entry.name, Case(attrs={"groups": 3}), stored_last=False)
