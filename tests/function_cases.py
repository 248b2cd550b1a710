"""Vectorised functions for tests: a module that applies one, exact values, errors.

A function of `codegen.functions` is compiled into a kernel over one chunk of inputs and compared
with float64 numpy (math.erf for erf), whose own error is far below a float's last place.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen.functions import FUNCTIONS, emit_math
from ansorlite.target import Target

N = 1 << 17
Array = np.ndarray[Any, np.dtype[Any]]


def module_text(
    name: str,
    scalar: ir.Type,
    lanes: int,
    n: int,
    target: Target | None = None,
    most: float = math.inf,
) -> str:
    """IR of `out[i] = name(in[i], ...)`, i from 0 to n in steps of `lanes`; no in[i] > `most`."""
    module = ir.Module(name="vector_math")
    pointer, i64 = ir.PTR, ir.I64
    function = ir.Function(module, ir.FunctionType(ir.VOID, [pointer]), name="kernel")
    arity = FUNCTIONS[name][1]
    kind = ir.vector(scalar, lanes) if lanes > 1 else scalar
    entry = function.append_basic_block("entry")
    loop, done = function.append_basic_block("loop"), function.append_basic_block("done")
    b = ir.IRBuilder(entry)
    slots = [b.gep(function.args[0], i64(i), pointer) for i in range(arity + 1)]
    pointers = [b.load(slot, pointer) for slot in slots]
    b.branch(loop)
    b.position_at_end(loop)
    i = b.phi(i64)
    at = [b.gep(p, i, scalar) for p in pointers]
    args = [b.load(p, kind, align=4) for p in at[:arity]]
    b.store(emit_math(b, name, args, target, most), at[arity], align=4)
    step = b.add(i, i64(lanes))
    i.add_incoming(i64(0), entry)
    i.add_incoming(step, b.block)
    b.cbranch(b.icmp_signed("<", step, i64(n)), loop, done)
    b.position_at_end(done)
    b.ret_void()
    return str(module)


def ulps(got: Array, exact: Array) -> float:
    """The largest error in units in the last place of the exact results; inf where one is odd."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    special = ~np.isfinite(rounded)
    same = (got[special] == rounded[special]) | (
        np.isnan(got[special]) & np.isnan(rounded[special])
    )
    if not same.all() or not np.isfinite(got[~special]).all():
        return math.inf
    unit = np.spacing(np.abs(rounded[~special])).astype(np.float64)
    return float((np.abs(got[~special].astype(np.float64) - exact[~special]) / unit).max())


def sample(low: float, high: float, seed: int = 0) -> Array:
    """N floats: half uniform in [low, high], half any bit pattern that is a number."""
    rng = np.random.default_rng(seed)
    uniform = rng.uniform(low, high, N // 2).astype(np.float32)
    bits = rng.integers(0, 2**32, N // 2, dtype=np.uint32).view(np.float32)
    return np.concatenate([uniform, np.where(np.isfinite(bits), bits, np.float32(0.5))])


def sigmoid64(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


erf64 = np.vectorize(math.erf, otypes=[np.float64])


def erf_plus_1(x: Array) -> Array:
    return np.vectorize(math.erfc, otypes=[np.float64])(-x)


def tanh_plus_1(x: Array) -> Array:
    return 2 * sigmoid64(2 * x)


# name, exact function, interval of interest, bound in ulp that its docstring states
UNARY: list[tuple[str, Callable[[Array], Array], float, float, float]] = [
    ("exp", np.exp, -104.5, 89.0, 1.0),
    ("log", np.log, 0.0, 4.0, 1.5),
    ("tanh", np.tanh, -10.0, 10.0, 3.0),
    ("erf", erf64, -4.5, 4.5, 1.5),
    ("sigmoid", sigmoid64, -104.5, 30.0, 2.5),
    ("tanh_plus_1", tanh_plus_1, -52.0, 20.0, 2.5),
    ("sqrt", np.sqrt, 0.0, 10.0, 0.5),
    ("floor", np.floor, -100.0, 100.0, 0.0),
    ("abs", np.abs, -100.0, 100.0, 0.0),
    ("sin", np.sin, -5000.0, 5000.0, 0.51),
    ("cos", np.cos, -5000.0, 5000.0, 0.51),
    ("tan", np.tan, -5000.0, 5000.0, 0.51),
    ("asin", np.arcsin, -1.0, 1.0, 0.51),
    ("acos", np.arccos, -1.0, 1.0, 0.51),
    ("atan", np.arctan, -4.0, 4.0, 0.51),
    ("sinh", np.sinh, -92.0, 92.0, 0.51),
    ("cosh", np.cosh, -92.0, 92.0, 0.51),
    ("asinh", np.arcsinh, -4.0, 4.0, 0.51),
    ("acosh", np.arccosh, 1.0, 4.0, 0.51),
    ("atanh", np.arctanh, -1.0, 1.0, 0.51),
]
