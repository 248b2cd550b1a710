"""Numpy evaluation of single operations: the reference that all other results are compared with.

In: an operation, and the arrays that the operation reads, by name. Out: the array of its elements.
Every operation rounds to its own dtype, so overflow and NaN appear where a kernel has them; sums of
floats accumulate in float64 and are rounded when stored. Integers are exact modulo 2^64 and wrapped
to their width by casts and stores; `ansorlite.te` states the rules. `te.dag` evaluates whole
computations, `te.points` sampled elements.
"""

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.ir.expr import COMPARE, Const, Expr, Load, Op, Poly, Var, is_float, is_int
from ansorlite.ir.literals import BITS, WIDE, least, rounded, wrapped
from ansorlite.ir.packed import PACKED, bits_of, float_of
from ansorlite.ir.traverse import below
from ansorlite.te.tensor import ComputeOp, Placeholder

Array = npt.NDArray[Any]
CHUNK = 1 << 23  # elements evaluated at once

_erf = np.vectorize(math.erf, otypes=[np.float64])


def check_inputs(
    placeholders: Sequence[Placeholder], inputs: Mapping[str, npt.ArrayLike]
) -> dict[str, Array]:
    """Input arrays by name; ModelError names an input that is missing, misshapen or mistyped."""
    out: dict[str, Array] = {}
    for op in placeholders:
        if op.name not in inputs:
            raise ModelError(f"no value is given for input {op.name}")
        x = np.asarray(inputs[op.name])
        if x.shape != op.shape:
            raise ModelError(f"input {op.name} has shape {x.shape}, expected {op.shape}")
        if x.dtype != np.dtype(op.dtype):
            raise ModelError(f"input {op.name} has dtype {x.dtype}, expected {op.dtype}")
        out[op.name] = x
    return out


def evaluate_op(op: ComputeOp, values: Mapping[str, Array]) -> Array:
    """dtype[shape]: all elements of one operation, in chunks of the first axis where it is large.

    `values` holds the arrays that the operation reads, by name.
    """
    shape = op.shape
    sizes = [*shape, *(int(a.extent.value) for a in op.reduce_axes if isinstance(a.extent, Const))]
    rank = len(sizes)
    grids = [
        np.arange(n).reshape([-1 if d == k else 1 for k in range(rank)])
        for d, n in enumerate(sizes)
    ]
    names = [a.name for a in op.axes + op.reduce_axes]
    rows = max(1, CHUNK // max(1, int(np.prod(sizes[1:], dtype=np.int64)))) if shape else 1
    out = np.empty(shape, dtype=op.dtype)
    for start in range(0, sizes[0] if shape else 1, rows):
        env = dict(zip(names, grids, strict=True))
        if shape:
            env[names[0]] = grids[0][start : start + rows]
        full = [min(rows, shape[0] - start), *sizes[1:]] if shape else sizes
        value = np.broadcast_to(body_value(op, env, values), full)
        if op.combiner:
            value = combine(op, value, tuple(range(len(shape), rank)))
        with np.errstate(all="ignore"):  # values beyond the range of the dtype become infinite
            out[(slice(start, start + rows),) if shape else ()] = np.asarray(value).astype(op.dtype)
    return out


def combine(op: ComputeOp, value: Array, axis: tuple[int, ...]) -> Array:
    """The reduction of `value` over the axes `axis`, before rounding to the dtype."""
    with np.errstate(all="ignore"):
        if op.combiner == "sum":
            wide = np.float64 if op.dtype.startswith("float") else np.int64
            return np.asarray(np.sum(value, axis=axis, dtype=wide))
        value = value.astype(op.dtype)
        return np.asarray((np.max if op.combiner == "max" else np.min)(value, axis=axis))


# Functions that numpy evaluates accurately in float64, but not in float32.
_SMOOTH: dict[str, Any] = {
    "exp": lambda x, most=None: np.exp(x),
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: sigmoid(np.asarray(x)),
    "pow": np.power,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
_UNARY: dict[str, Any] = {
    "sqrt": np.sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "bfloat16": lambda x: to_bfloat16(np.asarray(x)),
    "not": np.logical_not,
}
_BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "fmod": np.fmod,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shift_left": np.left_shift,
    "shift_right": np.right_shift,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    **COMPARE,
}


def to_bfloat16(x: Array) -> Array:
    """float32: the nearest numbers whose last 16 bits are 0, halves to even; NaN stays NaN."""
    return np.asarray(float_of(bits_of(x)).reshape(np.shape(x)).astype(x.dtype))


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def cast_array(x: Array, dtype: str) -> Array:
    """The array cast to `dtype` with the rules of `ir.literals.converted`."""
    if dtype in WIDE and str(x.dtype) != WIDE[dtype]:
        x = cast_array(x, WIDE[dtype])
    if dtype not in BITS or x.dtype.kind != "f":
        return x.astype(dtype)
    low = least(dtype)
    fits = (x >= low) & (x < -float(low))
    return np.where(fits, np.where(fits, x, 0).astype(dtype), np.asarray(low, dtype))


def body_value(op: ComputeOp, env: Mapping[str, Array], values: Mapping[str, Any]) -> Array:
    """The body of an operation for index arrays `env`, with arrays (or views) `values` by name."""
    with np.errstate(all="ignore"):
        return np.asarray(_expression_value(op.body, env, values))


def _expression_value(e: Expr, env: Mapping[str, Array], values: Mapping[str, Any]) -> Any:
    """An array of the dtype of the expression, but int64 for all integers."""
    done: dict[Expr, Any] = {}
    for x in below(e):
        done[x] = _node_value(x, env, values, done)
    return _node_value(e, env, values, done)


def _node_value(
    e: Expr, env: Mapping[str, Array], values: Mapping[str, Any], done: Mapping[Expr, Any]
) -> Any:
    """The value of one node, with memoised values of nodes below."""
    if done and e in done:
        return done[e]
    match e:
        case Const():
            if is_int(e):
                return np.asarray(wrapped(e.value, "int64"), np.int64)
            return np.asarray(rounded(e.value, e.dtype) if is_float(e) else e.value, e.dtype)
        case Var():
            return env[e.name]
        case Poly():
            total = np.int64(0)
            for m, c in e.terms:
                atoms = (_node_value(a, env, values, done) for a in m)
                total = total + reduce(np.multiply, atoms, np.int64(wrapped(c, "int64")))
            return total
        case Load():
            source = values[e.tensor]
            idx = [np.asarray(_node_value(i, env, values, done)) for i in e.indices]
            # A guarded read may lie outside the tensor; the value is then unused, so the index is
            # clipped.
            x = source[tuple(np.clip(i, 0, n - 1) for i, n in zip(idx, source.shape, strict=True))]
            return x.astype(np.int64) if is_int(e) else x
        case Op():
            return _apply(e, [_node_value(a, env, values, done) for a in e.args])
        case _:
            raise ModelError(f"{e} has no value")


def _apply(e: Op, args: list[Any]) -> Any:
    """The value of an operation from the values of its operands."""
    match e.name:
        case "select":
            return np.where(*args)
        case "cast":
            x = cast_array(np.asarray(args[0]), e.dtype)
            return x.astype(np.int64) if is_int(e) else x
        case "floordiv":
            return args[0] // args[1]
        case "ceildiv":
            return args[0] // args[1] + (args[0] % args[1] != 0)
        case "mod":
            return args[0] % args[1]
        case name if name in PACKED:
            return PACKED[name].array(*args)
        case name if name in _SMOOTH:
            wide = [np.asarray(a, np.float64) for a in args]
            return np.asarray(_SMOOTH[name](*wide)).astype(e.dtype)
        case name if name in _UNARY:
            return _UNARY[name](args[0])
        case name if name in _BINARY:
            return reduce(_BINARY[name], args)
        case name:
            raise ModelError(f"operation {name} has no definition in numpy")
