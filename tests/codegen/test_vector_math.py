"""Vectorised functions: errors in units in the last place, special values, both vector forms.

Every function is compiled into a kernel over one chunk of inputs and compared with float64 numpy
(math.erf for erf), whose own error is far below a float's last place.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from function_cases import UNARY, Array, N, erf_plus_1, module_text, sample, ulps
from native import run_native

from ansorlite import te
from ansorlite.calls import aligned_copy, aligned_empty
from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.compile import assembly, compile_module
from ansorlite.codegen.functions import FUNCTIONS, emit_math
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.loader import load_image
from ansorlite.errors import BuildError
from ansorlite.ir.expr import Expr
from ansorlite.ir.interpret import interpret
from ansorlite.presets import PRESETS
from ansorlite.schedule.lower import lower
from ansorlite.schedule.state import State
from ansorlite.target import Target
from ansorlite.te.evaluate import evaluate_op

HOST = Target.detect()
VECTOR = 16  # wider than a register on most targets: LLVM splits it


def evaluate(
    name: str,
    inputs: list[Array],
    lanes: int = VECTOR,
    target: Target = HOST,
    most: float = math.inf,
) -> Array:
    """The emitted function on arrays of one length, a multiple of `lanes`."""
    n, dtype = inputs[0].size, str(inputs[0].dtype)
    scalar = ir.FLOAT if dtype == "float32" else ir.DOUBLE
    params = tuple(Param(f"p{i}", (n,), dtype, "input") for i in range(len(inputs) + 1))
    code = compile_module(module_text(name, scalar, lanes, n, target, most), target)
    kernel = load_image(KernelImage(code, "kernel", params, target.triple, target.cpu))
    out = aligned_empty((n,), dtype)
    out[:] = 12345.0
    kernel.run([*map(aligned_copy, inputs), out])
    return out


ODD = ("sin", "tan", "asin", "atan", "sinh", "asinh", "atanh")
CALLING = ("fmod", "sin", "cos", "tan")  # libm's functions, but for fmod only where |x| is large
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.2e-38, 3.4e38, -3.4e38, 2.0],
    np.float32,
)


def without_fma() -> Target:
    return replace(HOST, features=HOST.features + ",-fma,-fma4,-avx512f")


@pytest.mark.parametrize(("name", "exact", "low", "high", "bound"), UNARY, ids=lambda v: str(v)[:9])
def test_error_is_below_the_stated_bound(
    name: str, exact: Callable[[Array], Array], low: float, high: float, bound: float
) -> None:
    special = np.resize(SPECIAL, VECTOR)
    x = np.concatenate([sample(low, high), sample(-1.5, 1.5, 1), special])
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
    targets = [HOST] if HOST.arch != "x86_64" else [HOST, without_fma()]
    for target in targets:
        assert ulps(evaluate(name, [x], target=target), expected) <= bound
    few = np.concatenate([x[:240], special])
    with np.errstate(all="ignore"):
        assert ulps(evaluate(name, [few], lanes=1), exact(few.astype(np.float64))) <= bound


@pytest.mark.parametrize("name", ["tanh", "erf", "sqrt", "floor", *ODD])
def test_zero_keeps_its_sign(name: str) -> None:
    x = np.resize(np.array([-0.0, 0.0], np.float32), VECTOR)
    assert (np.signbit(evaluate(name, [x])) == np.signbit(x)).all()


@pytest.mark.parametrize("name", ["tanh", "erf", *ODD])
def test_accurate_near_zero(name: str) -> None:
    exact = {n: f for n, f, *_ in UNARY}[name]
    x = np.geomspace(1e-44, 0.1, N).astype(np.float32)
    assert ulps(evaluate(name, [x]), exact(x.astype(np.float64))) <= 2.5


@pytest.mark.parametrize("lanes", [1, VECTOR])
def test_1_plus_erf_is_as_exact_as_what_a_gelu_needs(lanes: int) -> None:
    """Half a place of 1 everywhere, two places from 0 on, three digits down to -4.2; then less."""
    special = np.resize(np.array([-np.inf, np.inf, np.nan, -8.0, -3e38, 3e38], np.float32), VECTOR)
    x = np.concatenate([sample(-9.0, 4.5), sample(-1.0, 1.0, 1), special])
    exact = erf_plus_1(x.astype(np.float64))
    for target in [HOST] if HOST.arch != "x86_64" else [HOST, without_fma()]:
        got = evaluate("erf_plus_1", [x], lanes, target)
        assert ulps(got[x >= 0], exact[x >= 0]) <= 2.0
        assert (np.isnan(got) == np.isnan(x)).all() and (got[x <= -8] == 0).all()
        low = np.isfinite(x) & (x < 0)
        wrong = np.abs(got[low] - exact[low])
        assert wrong.max() <= 2.0**-22
        assert (wrong / exact[low])[x[low] >= -4.2].max() <= 2.0**-9
        order = np.argsort(x[low])
        assert (np.diff(got[low][order]) >= -(2.0**-22)).all() and (got[low] >= 0).all()


def plus_1(function: Callable[[Expr], Expr], x: te.Tensor, i: Expr) -> Expr:
    return function(x[i]) + 1.0


def test_1_plus_erf_in_a_kernel_is_one_function() -> None:
    for function, exact in ((te.erf, erf_plus_1), (te.tanh, lambda x: 1 + np.tanh(x))):
        x = te.placeholder((64,), name="X")
        y = te.compute((64,), partial(plus_1, function, x), name="Y")
        program = lower(State(te.ComputeDAG([y])))
        values = np.linspace(-5.0, 3.0, 64, dtype=np.float32)
        for got in (interpret(program, {"X": values}), run_native(program, {"X": values}, HOST)):
            np.testing.assert_allclose(got["Y"], exact(values.astype(np.float64)), atol=2.5e-7)
        # The sum itself is 0 from here on; the function is not.
        small = run_native(program, {"X": np.full(64, -4.0, np.float32)}, HOST)["Y"]
        assert (small > 0).all()


def test_exp_and_sigmoid_underflow_gradually() -> None:
    x = np.linspace(-103.9, -87.4, N).astype(np.float32)
    for name in ("exp", "sigmoid"):
        got = evaluate(name, [x])
        assert (got > 0).all() and (np.diff(got.astype(np.float64)) >= 0).all()
        assert ulps(got, np.exp(x.astype(np.float64))) <= 1.0
        few, more = (evaluate(name, [x], lanes) for lanes in (4, 8))
        np.testing.assert_array_equal(few, more)
        # 16 lanes may find the power of two in a table: as exact, but other last bits.
        assert ulps(few, np.exp(x.astype(np.float64))) <= 1.0


@pytest.mark.parametrize("lanes", [1, 4, 8, VECTOR])
def test_exp_of_what_is_known_to_be_small_is_as_accurate(lanes: int) -> None:
    special = np.resize(np.array([-np.inf, np.nan, 0.0, -0.0, -3e38, 40.0], np.float32), VECTOR)
    x = np.minimum(np.concatenate([sample(-104.5, 40.0), sample(-1.0, 0.0, 1), special]), 40.0)
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype(np.float64))
    for target in [HOST] if HOST.arch != "x86_64" else [HOST, without_fma()]:
        assert ulps(evaluate("exp", [x], lanes, target, most=40.0), expected) <= 1.0
    anything = evaluate("exp", [x], lanes)
    np.testing.assert_array_equal(evaluate("exp", [x], lanes, most=40.0), anything)


@pytest.mark.parametrize("lanes", [1, 8, VECTOR])
def test_exp_of_negative_numbers(lanes: int) -> None:
    """The stated errors; 0 where the result would be subnormal, or the number itself."""
    special = np.resize(np.array([-np.inf, np.nan, 0.0, -0.0, -3e38, -1e-45], np.float32), VECTOR)
    x = np.minimum(np.concatenate([sample(-110.0, 0.0), sample(-16.0, 0.0, 1), special]), 0.0)
    with np.errstate(all="ignore"):
        exact = np.exp(x.astype(np.float64))
    for target in [HOST] if HOST.arch != "x86_64" else [HOST, without_fma()]:
        got = evaluate("exp", [x], lanes, target, most=0.0)
        near, far = x >= -16.0, (x < -16.0) & (x >= -87.336)
        assert ulps(got[near], exact[near]) <= 1.5 and ulps(got[far], exact[far]) <= 5.0
        tiny = x < -87.336
        assert (np.abs(got[tiny] - exact[tiny]) <= 2.0**-125).all() and (got[tiny] >= 0).all()
        assert (got[x == -np.inf] == 0).all() and (got[x == 0] == 1).all()
        np.testing.assert_array_equal(np.isnan(got), np.isnan(x))


def test_a_promise_about_exp_means_the_same_everywhere() -> None:
    x = te.placeholder((19,), name="X")
    low = te.compute((19,), lambda i: te.exp(te.minimum(x[i], 0.5), most=0.5), name="Y")
    program = lower(State(te.ComputeDAG([low])))
    values = np.linspace(-110.0, 3.0, 19, dtype=np.float32)
    expected = np.exp(np.minimum(values, 0.5).astype(np.float64)).astype(np.float32)
    assert isinstance(low.op, te.ComputeOp)
    for got in (
        evaluate_op(low.op, {"#0": values}),
        interpret(program, {"X": values})["Y"],
        run_native(program, {"X": values}, HOST)["Y"],
    ):
        np.testing.assert_allclose(got, expected, rtol=2e-7, atol=1e-45)


def test_pow_error_is_below_the_stated_bound() -> None:
    rng = np.random.default_rng(2)
    x = np.abs(sample(0.0, 4.0))
    y = np.concatenate([rng.uniform(-40, 40, N // 2), rng.uniform(-1, 1, N // 2)])
    y = y.astype(np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    assert ulps(evaluate("pow", [x, y]), exact) <= 0.52
    whole = np.rint(y)
    with np.errstate(all="ignore"):
        exact = np.power(-x.astype(np.float64), whole.astype(np.float64))
    assert ulps(evaluate("pow", [-x, whole]), exact) <= 0.52


def test_pow_special_cases_are_those_of_c() -> None:
    inf, nan = np.inf, np.nan
    some = [0.0, 0.5, 1.0, 2.0, 2.5, 3.0, 16777216.0, 3e38, 1e-45, inf]
    values = np.array([*some, *(-v for v in some), nan], np.float32)
    x, y = (g.ravel() for g in np.meshgrid(values, values))
    pad = -x.size % VECTOR
    x, y = np.pad(x, (0, pad)), np.pad(y, (0, pad))
    with np.errstate(all="ignore"):
        # Some of numpy's own float32 kernels are off by one place.
        expected = np.power(x.astype(np.float64), y.astype(np.float64)).astype(np.float32)
    got = evaluate("pow", [x, y])
    np.testing.assert_array_equal(got, expected)
    zero_or_inf = (expected == 0) | np.isinf(expected)
    assert (np.signbit(got) == np.signbit(expected))[zero_or_inf].all()


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "name", [n for n, (_, arity) in FUNCTIONS.items() if arity == 1 and n != "bfloat16"]
)
def test_double(name: str, lanes: int) -> None:
    exact = {n: f for n, f, *_ in UNARY}.get(name, erf_plus_1)
    x = np.random.default_rng(3).uniform(-20, 20, 400)
    x[:4] = [0.0, -0.0, np.inf, -np.inf]
    with np.errstate(all="ignore"):
        got = evaluate(name, [x], lanes=lanes)
        np.testing.assert_allclose(got, exact(x), rtol=1e-15, atol=name.endswith("_1") * 2e-16)


def test_double_pow() -> None:
    rng = np.random.default_rng(4)
    x, y = rng.uniform(0, 9, 400), rng.uniform(-9, 9, 400)
    np.testing.assert_allclose(evaluate("pow", [x, y], lanes=4), np.power(x, y), rtol=1e-15)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_calls_and_no_pointer_casts_in_float_code(preset: str) -> None:
    for name in FUNCTIONS.keys() - {*CALLING}:
        text = module_text(name, ir.FLOAT, VECTOR, 1024)
        assert "inttoptr" not in text and "ptrtoint" not in text
        code = assembly(text, Target.cross(preset))
        calls = [
            line for line in code.splitlines() if line.split()[:1] in (["call"], ["callq"], ["bl"])
        ]
        assert calls == [], (name, calls)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_any_size(name: str) -> None:
    """On both sides of the angle from which libm's functions are called, in one vector too."""
    rng = np.random.default_rng(5)
    x = (10.0 ** rng.uniform(-3, 38.5, N) * rng.choice([-1, 1], N)).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = {"sin": np.sin, "cos": np.cos, "tan": np.tan}[name](x.astype(np.float64))
    assert ulps(evaluate(name, [x]), exact) <= 0.51
    quarters = (np.arange(N, dtype=np.float64) * (math.pi / 2)).astype(np.float32)
    exact = {"sin": np.sin, "cos": np.cos, "tan": np.tan}[name](quarters.astype(np.float64))
    assert ulps(evaluate(name, [quarters]), exact) <= 0.51


def test_remainder_is_exact() -> None:
    x, y = sample(-1e3, 1e3, 6), sample(-3.0, 3.0, 7)
    special = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-45, 3.4e38])
    x[:64], y[:64] = (g.ravel() for g in np.meshgrid(special, special))
    with np.errstate(all="ignore"):
        exact = np.fmod(x, y)
    np.testing.assert_array_equal(evaluate("fmod", [x, y]), exact)
    assert (np.signbit(evaluate("fmod", [x, y])) == np.signbit(exact))[~np.isnan(exact)].all()


def test_unsupported_functions_are_named() -> None:
    module = ir.Module()
    b = ir.IRBuilder(
        ir.Function(module, ir.FunctionType(ir.VOID, []), name="f").append_basic_block("entry")
    )
    one = ir.FLOAT(1.0)
    with pytest.raises(BuildError, match=r"no code for gamma\(float\)"):
        emit_math(b, "gamma", [one])
    with pytest.raises(BuildError, match="pow takes 2 arguments"):
        emit_math(b, "pow", [one])
    with pytest.raises(BuildError, match="cast first"):
        emit_math(b, "exp", [ir.I32(1)])
