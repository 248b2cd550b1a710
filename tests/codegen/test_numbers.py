"""Extreme values of each dtype give the results of numpy and ONNX, one computation per table row.

Each row is computed by the numpy meaning, the interpreter and native code, with vectors of several
widths and a remainder after the whole vectors.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from native import run_native

from ansorlite import te
from ansorlite.codegen.build import kernel_assembly
from ansorlite.errors import AnsorliteError
from ansorlite.ir.expr import Expr
from ansorlite.ir.interpret import interpret
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import Annotate, Split
from ansorlite.space.plain import plain_state
from ansorlite.target import Target

Array = npt.NDArray[Any]
HOST = Target.detect()
NAN, INF = float("nan"), float("inf")
LOW, HIGH = -(2**31), 2**31 - 1
LOW64, HIGH64 = -(2**63), 2**63 - 1
N = 37

# name -> (function of elements, [(dtype, values), ...], values wanted)
ROWS: dict[str, tuple[Callable[..., Expr], list[tuple[str, list[Any]]], list[Any]]] = {
    "max": (te.maximum, [("float32", [NAN, 1, 1, -INF]), ("float32", [1, NAN, 2, NAN])],
            [NAN, NAN, 2, NAN]),
    "min": (te.minimum, [("float64", [NAN, 1, 1, INF]), ("float64", [1, NAN, 2, NAN])],
            [NAN, NAN, 1, NAN]),
    "relu": (lambda x: te.maximum(x, 0.0), [("float32", [NAN, -INF, INF, -1])], [NAN, 0, INF, 0]),
    "clip": (lambda x: te.minimum(te.maximum(-1.0, x), 1.0), [("float32", [NAN, -INF, INF, 0.5])],
             [NAN, -1, 1, 0.5]),
    "clip by tensors": (lambda x, lo, hi: te.minimum(te.maximum(x, lo), hi),
                        [("float32", [NAN, 1, 1]), ("float32", [0, NAN, 0]),
                         ("float32", [2, 2, NAN])], [NAN, NAN, NAN]),
    "compare": (lambda x, y: te.cast(x < y, "int32") + 2 * te.cast(te.equal(x, y), "int32")
                + 4 * te.cast(te.not_equal(x, y), "int32"),
                [("float32", [NAN, NAN, 1, 0.0]), ("float32", [NAN, 1, NAN, -0.0])], [4, 4, 4, 2]),
    "to int32": (lambda x: te.cast(x, "int32"),
                 [("float32", [NAN, INF, -INF, 3e9, -3e9, 2.0**31, -(2.0**31), -1.9])],
                 [LOW, LOW, LOW, LOW, LOW, LOW, LOW, -1]),
    "to int64": (lambda x: te.cast(x, "int64"), [("float64", [NAN, INF, 1e19, 2.0**62, -0.9])],
                 [LOW64, LOW64, LOW64, 2**62, 0]),
    "to bool": (lambda x: te.cast(x, "bool"), [("float32", [NAN, 0.0, -0.0, 1e-45])],
                [True, False, False, True]),
    "narrowed": (lambda x: te.cast(x, "int32"), [("int64", [2**31, 2**32 + 5, -(2**31) - 1])],
                 [LOW, 5, HIGH]),
    "product wraps before max": (lambda x, y: te.maximum(x * y, 7),
                                 [("int32", [2**30, 65536, 3]), ("int32", [4, 65536, 5])],
                                 [7, 7, 15]),
    "sum wraps before a comparison": (lambda x: te.select(x + 1 > x, 1, 0),
                                      [("int32", [HIGH, 5, LOW])], [0, 1, 1]),
    "max of successors": (lambda x: te.maximum(x, x + 1), [("int32", [HIGH, 5])], [HIGH, 6]),
    "product wraps before division": (lambda x: (x * 8) // 8, [("int32", [2**28, 3, -5])],
                                      [-(2**28), 3, -5]),
    "sum wraps before mod": (lambda x: (x + 1) % 10, [("int32", [HIGH, 8])], [2, 9]),
    "wraps before a float": (lambda x: te.cast(x * x, "float32"), [("int32", [65536, 3])], [0, 9]),
    "wraps before int64": (lambda x: te.cast(x + x, "int64"), [("int32", [2**30, 3])], [LOW, 6]),
    "select wraps": (lambda x: te.maximum(te.select(x > 0, x * 2, x), 1),
                     [("int32", [2**30, 3, -4])], [1, 6, 1]),
    "abs": (lambda x: te.abs(x), [("int32", [LOW, -3])], [LOW, 3]),
    "abs, then max": (lambda x: te.maximum(te.abs(x), 0), [("int32", [LOW, -3])], [0, 3]),
    "int64 is exact": (lambda x, y: te.maximum(x * y + 1, x),
                       [("int64", [2**53 + 1, 2**40, HIGH64]), ("int64", [1, 2**20, 2])],
                       [2**53 + 2, 2**60 + 1, HIGH64]),
    "division by zero": (lambda x, y: x // y, [("int32", [7, LOW, LOW, -7]),
                                              ("int32", [0, -1, 0, 2])], [0, LOW, 0, -4]),
    "64-bit division": (lambda x, y: x // y, [("int64", [LOW64, LOW64, 9]), ("int64", [-1, 0, -2])],
                        [LOW64, 0, -5]),
    "quotient rounded up": (lambda x, y: te.ceildiv(x, y),
                            [("int64", [LOW64, LOW64, 9, 9]), ("int64", [2, -1, 0, -2])],
                            [-(2**62), LOW64, 0, -4]),
    "remainder by zero": (lambda x, y: x % y,
                          [("int32", [7, LOW, -7, 7]), ("int32", [0, -1, 3, -3])], [0, 0, 2, -2]),
    "by a negative number": (lambda x: x // -3 + 100 * (x % -3), [("int32", [7, LOW])],
                             [-203, 715827882 - 200]),
    "no folding of zeros": (lambda x: x * 0.0, [("float32", [NAN, INF, 2])], [NAN, NAN, 0]),
    "no folding of differences": (lambda x: x - x, [("float32", [NAN, INF, 2])], [NAN, NAN, 0]),
    "no folding of quotients": (lambda x: x / x, [("float32", [0, INF, 2])], [NAN, NAN, 1]),
    "overflow": (lambda x: te.sqrt(x * x), [("float32", [1e30, 1e-30, 3])], [INF, 0, 3]),
    "constants are floats": (lambda x: te.cast(te.equal(x, te.const(0.1) + te.const(0.2)), "int32"),
                             [("float32", [np.float32(0.1) + np.float32(0.2), 0.25])], [1, 0]),
    "constant out of range": (lambda x: te.minimum(x, te.const(1e39)), [("float32", [INF, 1])],
                              [INF, 1]),
    "floor": (lambda x: te.floor(x), [("float32", [NAN, INF, -INF, -0.5])], [NAN, INF, -INF, -1]),
    "exp": (te.exp, [("float32", [NAN, INF, -INF, 1000, -1000])], [NAN, INF, 0, INF, 0]),
    "log": (te.log, [("float32", [NAN, INF, 0.0, -0.0, -1])], [NAN, INF, -INF, -INF, NAN]),
    "tanh": (te.tanh, [("float32", [NAN, INF, -INF])], [NAN, 1, -1]),
    "erf": (te.erf, [("float32", [NAN, INF, -INF])], [NAN, 1, -1]),
    "sigmoid": (te.sigmoid, [("float32", [NAN, INF, -INF])], [NAN, 1, 0]),
    "pow": (te.pow, [("float32", [NAN, 1, 0, -8, INF]), ("float32", [0, NAN, -1, 0.5, -1])],
            [1, 1, INF, NAN, 0]),
    "stored in 8 bits": (lambda x: te.cast(x, "int8"),
                         [("float32", [NAN, INF, 300.7, -129.5, 3e9, -1.9])],
                         [0, 0, 44, 127, 0, -1]),
    "stored without sign": (lambda x: te.cast(x, "uint8"), [("int32", [256, -1, HIGH, LOW, 7])],
                            [0, 255, 255, 0, 7]),
    "from 8 bits": (lambda x, y: x * y + x, [("int8", [-128, 127, -1]), ("uint8", [255, 255, 0])],
                    [-32768, 32512, -1]),
    "8 bits as floats": (lambda x, y: te.cast(x, "float32") / te.cast(y, "float32"),
                         [("int8", [-128, 127]), ("uint8", [128, 254])], [-1, 0.5]),
    "16 bits, then max": (lambda x, y: te.maximum(x, y), [("int16", [-32768, 5]),
                                                         ("uint16", [65535, 4])], [65535, 5]),
    "32 bits without sign": (lambda x: te.cast(x // 2, "uint32"), [("uint32", [2**32 - 1, 7])],
                             [2**31 - 1, 3]),
    "from half": (lambda x: x * 2.0, [("float16", [65504, NAN, -INF, 6e-8])],
                  [131008, NAN, -INF, np.float32(np.float16(6e-8)) * 2]),
    "to half": (lambda x: te.cast(x, "float16"),
                [("float32", [65519, 65520, NAN, 2049, 2051, 1e-8, -2.9e-8, 6e-8])],
                [65504, INF, NAN, 2048, 2052, 0, -0.0, np.float16(6e-8)]),
    "double to half": (lambda x: te.cast(x, "float16"),
                       [("float64", [1e300, 0.1, 1 + 2**-11 + 2**-40])],
                       [INF, np.float16(0.1), 1]),
    "half to int": (lambda x: te.cast(x, "uint8"), [("float16", [255.9, 1.5, NAN])], [255, 1, 0]),
    "bfloat16": (te.bfloat16, [("float32", [1.00390625, 1.01171875, NAN, -INF, 3.4e38, 1e-40])],
                 [1, 1.015625, NAN, -INF, INF, 2.0**-133]),
    "sin": (te.sin, [("float32", [NAN, INF, -INF, 0.0])], [NAN, NAN, NAN, 0]),
    "acosh": (te.acosh, [("float32", [NAN, INF, 0.5, 1])], [NAN, INF, NAN, 0]),
    "atanh": (te.atanh, [("float32", [NAN, 1, -1, 2, 0.0])], [NAN, INF, -INF, NAN, 0]),
    "atan": (te.atan, [("float32", [NAN, INF, -INF])],
             [NAN, np.float32(np.pi / 2), np.float32(-np.pi / 2)]),
    "sinh": (te.sinh, [("float32", [NAN, INF, -INF, 1000])], [NAN, INF, -INF, INF]),
    "fmod": (te.fmod, [("float32", [7.5, -7.5, INF, 1, NAN]), ("float32", [2, 2, 1, INF, 1])],
             [1.5, -1.5, NAN, 1, NAN]),
    "fmod by zero": (te.fmod, [("float64", [1, 5]), ("float64", [0, -3])], [NAN, 2]),
    "not a number": (lambda x: te.not_equal(x, x), [("float32", [NAN, INF, 0.0])],
                     [True, False, False]),
    "bits of both": (te.bitwise_and, [("int32", [LOW, -1, 12, 5]), ("int32", [-1, HIGH, 10, LOW])],
                     [LOW, HIGH, 8, 0]),
    "bits of one": (te.bitwise_or, [("int64", [LOW64, 12]), ("int64", [1, 10])], [LOW64 + 1, 14]),
    "bits of a sum that wraps": (lambda x: te.bitwise_xor(x + 1, x), [("int32", [HIGH, 7, -1])],
                                 [-1, 15, -1]),
    "bits moved left": (te.shift_left,
                        [("int32", [1, 3, 5, -1, 7]), ("int32", [31, 31, 32, -1, 2])],
                        [LOW, LOW, 0, 0, 28]),
    "bits of int64 moved left": (te.shift_left, [("int64", [1, 3, 5]), ("int64", [63, 64, 2])],
                                 [LOW64, 0, 20]),
    "bits moved right": (te.shift_right,
                         [("int32", [LOW, -5, 5, -1, 9]), ("int32", [31, 40, 99, -1, 1])],
                         [-1, -1, 0, -1, 4]),
    "divided by zero": (lambda x, y: x / y, [("float32", [1, -1, 0]), ("float32", [0, 0, 0])],
                        [INF, -INF, NAN]),
}  # fmt: skip


def _targets() -> list[Target]:
    """Vectors of several widths, and on x86 a machine without masks."""
    plain = [replace(HOST, vector_bytes=n) for n in (16, 32, 64)]
    older = replace(HOST, features=HOST.features + ",-avx512f", vector_bytes=32)
    return [*plain, older] if HOST.triple.startswith("x86") else plain


def everywhere(dag: te.ComputeDAG, inputs: dict[str, Array], want: Array) -> None:
    """All levels give the one output that is wanted."""
    (name,) = dag.output_names
    np.testing.assert_array_equal(dag.evaluate(inputs)[name], want)
    if want.ndim == 1:
        points = np.arange(want.size)[:, None]
        exact = te.evaluate_points(dag, inputs, name, points)
        assert exact.dtype == want.dtype
        np.testing.assert_array_equal(exact, want)
    for target in _targets():
        program = lower(plain_state(dag, target))
        np.testing.assert_array_equal(interpret(program, inputs)[name], want)
        np.testing.assert_array_equal(run_native(program, inputs, target)[name], want)


def everywhere_natively(dag: te.ComputeDAG, want: Array) -> None:
    """Without the interpreter, and with a loop that is no vector loop too."""
    (name,) = dag.output_names
    np.testing.assert_array_equal(dag.evaluate({})[name], want)
    for program in (lower(State(dag)), lower(plain_state(dag, HOST))):
        np.testing.assert_array_equal(run_native(program, {}, HOST)[name], want)


@pytest.mark.parametrize("row", ROWS)
def test_values(row: str) -> None:
    fn, operands, values = ROWS[row]
    xs = [te.placeholder((N,), dtype, name=f"x{k}") for k, (dtype, _) in enumerate(operands)]
    dag = te.ComputeDAG([te.compute((N,), lambda i: fn(*(x[i] for x in xs)), name="y")])
    inputs = {
        x.name: np.resize(np.array(v, dtype), N) for x, (dtype, v) in zip(xs, operands, strict=True)
    }
    everywhere(dag, inputs, np.resize(np.array(values, dag.outputs[0].dtype), N))


@pytest.mark.parametrize("columns", [1, 2, 5, 16, 37, 64, 100])
@pytest.mark.parametrize("combiner", [te.max, te.min])
def test_a_nan_at_any_place_survives_a_reduction(combiner: Any, columns: int) -> None:
    """Along and across the vectors, in whole vectors, partial ones and remainders."""
    x = te.placeholder((columns, columns), name="x")
    k = te.reduce_axis(columns, "k")
    values = np.random.default_rng(columns).standard_normal((columns, columns)).astype(np.float32)
    np.fill_diagonal(values, np.nan)
    values[0, 0] = 1.0
    values[-1, :] = np.inf
    reduce = np.max if combiner is te.max else np.min
    for axis, dag in (
        (1, te.ComputeDAG([te.compute((columns,), lambda i: combiner(x[i, k], k), name="y")])),
        (0, te.ComputeDAG([te.compute((columns,), lambda i: combiner(x[k, i], k), name="y")])),
    ):
        everywhere(dag, {"x": values}, reduce(values, axis=axis))


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_nan_survives_partial_vectors(lanes: int) -> None:
    """One row in several accumulators of vectors, which are combined across their lanes."""
    n = 200
    x, k = te.placeholder((n,), name="x"), te.reduce_axis(n, "k")
    dag = te.ComputeDAG([te.compute((1,), lambda i: te.max(x[k], k), name="y")])
    program = lower(State(dag).apply(Annotate("y", "k", "lanes", lanes)))
    for at in (0, 1, lanes - 1, 63, 64, 150, 198, 199):
        values = np.linspace(-1, 1, n).astype(np.float32)
        values[at] = np.nan
        got = run_native(program, {"x": values}, HOST)["y"]
        assert np.isnan(got).all(), at


@pytest.mark.parametrize(
    ("combiner", "reduce"), [(te.max, np.max), (te.min, np.min), (te.sum, np.sum)]
)
def test_integers_are_reduced_at_their_width(combiner: Any, reduce: Any) -> None:
    x = te.placeholder((3, 40), "int32", name="x")
    k = te.reduce_axis(40, "k")
    values = np.full((3, 40), 2**30, np.int32)
    values[1] = np.arange(40) * 100_000_007 % 2**31
    dag = te.ComputeDAG([te.compute((3,), lambda i: combiner(x[i, k] * 3, k), name="y")])
    want = reduce(values * np.int32(3), axis=1).astype(np.int32)
    everywhere(dag, {"x": values}, want)


def test_a_sum_of_products_with_a_literal_zero() -> None:
    x, k = te.placeholder((3, 20), name="x"), te.reduce_axis(20, "k")
    dag = te.ComputeDAG([te.compute((3,), lambda i: te.sum(x[i, k] * 0.0, k), name="y")])
    values = np.ones((3, 20), np.float32)
    values[0, 3], values[2, 19] = np.inf, np.nan
    everywhere(dag, {"x": values}, np.float32([NAN, 0, NAN]))
    tuned = lower(State(dag).apply(Annotate("y", "k", "lanes", 8)))
    np.testing.assert_array_equal(run_native(tuned, {"x": values}, HOST)["y"], [NAN, 0, NAN])


def test_int64_sums_are_exact() -> None:
    x, k = te.placeholder((2, 9), "int64", name="x"), te.reduce_axis(9, "k")
    dag = te.ComputeDAG([te.compute((2,), lambda i: te.sum(x[i, k], k), name="y")])
    values = np.full((2, 9), 2**60 + 1, np.int64)
    everywhere(dag, {"x": values}, values.sum(axis=1))


def test_indices_are_exact_and_keep_their_normal_form() -> None:
    """What is made of loop variables alone is no value that wraps."""
    x = te.placeholder((64,), "int32", name="x")
    y = te.compute((64,), lambda i: x[(i * 8 + 8) // 8 - 1] + te.maximum(i, i + 1), name="y")
    assert str(te.ComputeDAG([y]).by_name["y"]) == "y[i<64] = i + x[i] + 1"
    z = te.compute((64,), lambda i: (x[i] * 8) // 8, name="z")
    assert str(te.ComputeDAG([z]).by_name["z"]) == "z[i<64] = int32(x[i]*8) // 8"


def test_indices_beyond_32_bits_are_exact_as_values() -> None:
    """Of scalars and of lanes; only a store or a cast to the narrow type wraps them."""
    n = 2**17 + 3

    def value(i: Expr) -> Expr:
        large = te.cast(i * i, "float64") + te.cast(te.maximum(i * i - 1, 0), "float64")
        return large + te.cast(i * i < i * i + 5, "float64")

    dag = te.ComputeDAG([te.compute((n,), value, name="y")])
    i = np.arange(n)
    want = (i * i + np.maximum(i * i - 1, 0) + 1).astype(np.float64)
    everywhere_natively(dag, want)


def test_one_instruction_where_an_operand_is_a_number() -> None:
    x = te.placeholder((64,), name="x")
    y = te.compute((64,), lambda i: te.minimum(te.maximum(x[i], 0.0), 6.0), name="y")
    target = Target.cross("x86-avx2")
    steps = Split("y", "i", (8,)), Annotate("y", "i.1", "lanes", 8)
    text = kernel_assembly(lower(State(te.ComputeDAG([y])).apply(*steps)), target)
    assert "vmaxps" in text and "vminps" in text and "vcmp" not in text


def test_constants_that_divide_nothing_are_refused() -> None:
    x = te.placeholder((4,), "int32", name="x")
    with pytest.raises(AnsorliteError, match="by zero"):
        te.compute((4,), lambda i: x[i] // 0)


def test_large_angles_where_code_has_branches() -> None:
    """Inside a reduction by lanes, in both branches of a select, and as literals."""
    x, y = te.placeholder((7, 37), name="x"), te.placeholder((37, 13), name="y")
    k = te.reduce_axis(37, "k")
    s = te.compute((7, 13), lambda i, j: te.sum(te.sin(x[i, k] * 1e10) * y[k, j], k), name="s")
    out = te.compute(
        (7, 13),
        lambda i, j: (
            te.select(s[i, j] > 0, te.cos(s[i, j]), te.tan(x[i, j] * 1e9)) + te.sin(te.const(1e9))
        ),
        name="out",
    )
    dag, rng = te.ComputeDAG([out]), np.random.default_rng(1)
    inputs = {p.name: rng.standard_normal(p.shape).astype(np.float32) for p in dag.inputs}
    want = dag.evaluate(inputs)["out"]
    plain = lower(plain_state(dag, HOST))
    np.testing.assert_allclose(interpret(plain, inputs)["out"], want, rtol=1e-4, atol=1e-4)
    by_lanes = lower(State(dag).apply(Annotate("s", "k", "lanes", 8)))
    for program in (plain, by_lanes):
        got = run_native(program, inputs, HOST)["out"]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
