"""Dispatch of mathematical functions by the names that expressions have: `emit_math`.

In: an IRBuilder, a name, and values of type `float`, `double` or a vector of these. Out:
the value of the function. The functions are in `codegen.vector_math` and `codegen.trigonometry`;
those of double call libm, one element at a time.
"""

import math
from collections.abc import Callable, Sequence

from ansorlite.codegen import ir_text as ir
from ansorlite.codegen import trigonometry as t
from ansorlite.codegen import vector_math as v
from ansorlite.codegen.vector_math import B, V
from ansorlite.errors import BuildError
from ansorlite.ir.expr import Const, Op
from ansorlite.target import Target

# te's name -> the emitting function and its number of arguments.
FUNCTIONS: dict[str, tuple[Callable[..., V], int]] = {
    "exp": (v.exp, 1),
    "log": (v.log, 1),
    "tanh": (v.tanh, 1),
    "erf": (v.erf, 1),
    "erf_plus_1": (v.erf_plus_1, 1),
    "sigmoid": (v.sigmoid, 1),
    "tanh_plus_1": (v.tanh_plus_1, 1),
    "pow": (v.power, 2),
    "fmod": (v.remainder, 2),
    "sqrt": (v.sqrt, 1),
    "floor": (v.floor, 1),
    "abs": (v.absolute, 1),
    "bfloat16": (v.bfloat16, 1),
    "sin": (t.sin, 1),
    "cos": (t.cos, 1),
    "tan": (t.tan, 1),
    "asin": (t.asin, 1),
    "acos": (t.acos, 1),
    "atan": (t.atan, 1),
    "sinh": (t.sinh, 1),
    "cosh": (t.cosh, 1),
    "asinh": (t.asinh, 1),
    "acosh": (t.acosh, 1),
    "atanh": (t.atanh, 1),
}
# Functions that call libm's function of the same name on double (error about 1 ulp).
LIBM = (
    *("exp", "log", "tanh", "erf", "pow", "fmod", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "asinh", "acosh", "atanh"),
)
PLUS_1 = {"erf": "erf_plus_1", "tanh": "tanh_plus_1"}  # as float functions of their own


def emit_math(
    builder: B,
    name: str,
    args: Sequence[V],
    target: Target | None = None,
    most: float = math.inf,
) -> V:
    """The value of the function `name` (a key of `FUNCTIONS`) on `args`, all of one type.

    The type is float, double or a vector of these. Instructions that only some CPUs have are used
    where the `target` is named; the argument of "exp" is at most `most`. Raises BuildError for
    another name, a wrong number of arguments or another type.
    Example: `emit_math(builder, "tanh", [x])`.
    """
    function, arity = FUNCTIONS.get(name, (None, 0))
    types = ", ".join(str(a.type) for a in args)
    if function is None:
        raise BuildError(f"no code for {name}({types}): known are {', '.join(FUNCTIONS)}")
    if len(args) != arity or any(a.type != args[0].type for a in args):
        raise BuildError(f"{name} takes {arity} arguments of one type, not ({types})")
    scalar = args[0].type.element
    if scalar not in (ir.FLOAT, ir.DOUBLE):
        raise BuildError(f"{name}({types}): only float and double, cast first")
    if scalar is ir.DOUBLE and name in LIBM:
        return v.libm(builder, name, args)
    if scalar is ir.DOUBLE and name in PLUS_1.values():
        return builder.fadd(v.libm(builder, name.removesuffix("_plus_1"), args), args[0].type(1.0))
    if name != "exp":
        return function(builder, *args)
    scales = target is not None and _scales(target)
    return v.exp(builder, args[0], scales, most)


def as_one(e: Op) -> Op:
    """1 + erf(x) and 1 + tanh(x), of a GELU, as one function: faster, and nothing cancels."""
    if e.name == "add" and e.dtype == "float32":
        for x, y in (e.args, e.args[::-1]):
            if isinstance(x, Const) and x.value == 1.0 and isinstance(y, Op) and y.name in PLUS_1:
                return Op(PLUS_1[y.name], y.args, e.dtype)
    return e


def _scales(target: Target) -> bool:
    """Whether one instruction multiplies vectors by powers of two."""
    return target.has("avx512vl") and not {"-avx512f", "-avx512vl"} & {*target.features.split(",")}
