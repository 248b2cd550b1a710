"""Operators element by element: activations, functions of one element, extremes.

Operands broadcast as in numpy. Arithmetic is in `arithmetic`, conditions and casts in `conditions`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.graph.ops.op import Arrays, ElementFn, Meaning, Op, Trait, Types, times, wide
from ansorlite.graph.types import (
    Array,
    Attrs,
    TensorType,
    broadcast,
    literal,
    number,
    same_dtype,
)
from ansorlite.ir.expr import Expr
from ansorlite.te.evaluate import to_bfloat16

Scalars = Sequence[Expr]


def broadcast_type(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of all operands, as in numpy, of their one dtype."""
    return TensorType(broadcast([t.shape for t in types]), same_dtype(types))


def by_numpy(fn: Callable[..., Any]) -> Meaning:
    """The numpy function `fn` of the operands as a meaning, without its warnings."""

    def call(attrs: Attrs, xs: Arrays) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*xs))

    return call


def _widely(fn: Callable[[Any], Any]) -> Meaning:
    """The numpy function `fn` as a meaning, computed in float64 and rounded once."""
    return by_numpy(lambda x: np.asarray(fn(wide(x))).astype(x.dtype))


def by_element(fn: Callable[..., Expr]) -> ElementFn:
    """A function of the operands' elements that needs no attribute."""
    return lambda attrs, xs: fn(*xs)


def _relu(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(np.maximum(xs[0], xs[0].dtype.type(0)))


def _leaky_relu(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    with np.errstate(all="ignore"):
        return np.asarray(np.where(x < 0, x * x.dtype.type(number(attrs, "alpha")), x))


def _leaky_relu_element(attrs: Attrs, xs: Scalars) -> Expr:
    """max(x, alpha * x) for 0 < alpha <= 1; not for alpha of 0, since infinity times 0 is NaN."""
    x, alpha = xs[0], number(attrs, "alpha")
    return te.maximum(x, x * alpha) if 0 < alpha <= 1 else te.select(x < 0, x * alpha, x)


def bound(value: float, dtype: str) -> float:
    """A limit of `clip` as a number of the dtype; integer limits are cut to the dtype's range."""
    if dtype.startswith("float"):
        return value
    info = np.iinfo(dtype)
    if math.isinf(value):
        return int(info.max if value > 0 else info.min)
    return min(max(int(value), int(info.min)), int(info.max))


def _clip(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    low, high = (bound(literal(attrs, k), str(x.dtype)) for k in ("min", "max"))
    return np.asarray(np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high)))


def _clip_element(attrs: Attrs, xs: Scalars) -> Expr:
    x, low, high = xs[0], literal(attrs, "min"), literal(attrs, "max")
    if low != -math.inf:
        x = te.maximum(x, te.const(low, x.dtype))
    return te.minimum(x, te.const(high, x.dtype)) if high != math.inf else x


def _clips_nothing(attrs: Attrs, types: Types, result: TensorType) -> bool:
    return (attrs["min"], attrs["max"]) == (-math.inf, math.inf)


def _sigmoid(attrs: Attrs, xs: Arrays) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray((1.0 / (1.0 + np.exp(-wide(xs[0])))).astype(xs[0].dtype))


def _erf(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    flat = np.fromiter(map(math.erf, x.ravel().tolist()), dtype=np.float64, count=x.size)
    return flat.reshape(x.shape).astype(x.dtype)


def round_even(x: Expr) -> Expr:
    """The nearest whole number, halves to the even one; -0.3 becomes -0.0."""
    low = te.floor(x)
    rest = x - low
    tie = te.floor((low + 1.0) * 0.5) * 2.0
    whole = te.select(rest < 0.5, low, te.select(rest > 0.5, low + 1.0, tie))
    return te.select(te.abs(x) <= 0.5, x * 0.0, whole)


def _sign(x: Expr) -> Expr:
    """-1, 0 or 1; NaN stays, and both zeros give 0."""
    one, minus, zero = (te.const(v, x.dtype) for v in (1, -1, 0))
    return te.select(x > zero, one, te.select(x < zero, minus, x + zero))


# Trigonometric and hyperbolic functions and their inverses: name in `te`, numpy's function.
ANGLES: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("sin", np.sin),
    ("cos", np.cos),
    ("tan", np.tan),
    ("asin", np.arcsin),
    ("acos", np.arccos),
    ("atan", np.arctan),
    ("sinh", np.sinh),
    ("cosh", np.cosh),
    ("asinh", np.arcsinh),
    ("acosh", np.arccosh),
    ("atanh", np.arctanh),
)


def _unary(
    name: str, meaning: Meaning, element: Callable[[Expr], Expr], *traits: Trait, cost: int = 1
) -> Op:
    """An operator of one operand without attributes."""
    return Op(
        name,
        "elementwise",
        broadcast_type,
        meaning,
        element=by_element(element),
        traits=traits,
        work=times(cost),
    )


def _extreme(name: str, fn: Callable[..., Any], element: Callable[[Expr, Expr], Expr]) -> Op:
    return Op(
        name,
        "elementwise",
        broadcast_type,
        by_numpy(fn),
        arity=(2, 2),
        element=by_element(element),
        traits=("commutative",),
    )


OPS = (
    _unary("relu", _relu, lambda x: te.maximum(x, te.const(0, x.dtype))),
    Op(
        "leaky_relu",
        "elementwise",
        broadcast_type,
        _leaky_relu,
        attrs=("alpha",),
        element=_leaky_relu_element,
    ),
    Op(
        "clip",
        "elementwise",
        broadcast_type,
        _clip,
        attrs=("min", "max"),
        element=_clip_element,
        identity=_clips_nothing,
    ),
    _unary("sigmoid", _sigmoid, te.sigmoid, "not_negative", cost=16),
    _unary("tanh", by_numpy(np.tanh), te.tanh, cost=16),
    _unary("exp", by_numpy(np.exp), te.exp, "not_negative", cost=8),
    _unary("log", by_numpy(np.log), te.log, cost=8),
    _unary("bfloat16", lambda attrs, xs: to_bfloat16(xs[0]), te.bfloat16, cost=4),
    _unary("sqrt", by_numpy(np.sqrt), te.sqrt, "keeps_not_negative"),
    _unary("erf", _erf, te.erf, cost=64),
    *(_unary(name, _widely(fn), getattr(te, name), cost=16) for name, fn in ANGLES),
    _unary("neg", by_numpy(np.negative), lambda x: -x, "integer_sum"),
    _unary("abs", by_numpy(np.abs), te.abs, "not_negative"),
    _unary("floor", by_numpy(np.floor), te.floor),
    _unary("ceil", by_numpy(np.ceil), lambda x: -te.floor(-x)),
    _unary("round", by_numpy(np.round), round_even),
    _unary("sign", by_numpy(np.sign), _sign),
    _extreme("maximum", np.maximum, te.maximum),
    _extreme("minimum", np.minimum, te.minimum),
)
