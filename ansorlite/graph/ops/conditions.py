"""Conditions element by element: comparisons, logic, selection, casts.

Conditions have dtype bool. Operands broadcast as in numpy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.elementwise import broadcast_type, by_element, by_numpy
from ansorlite.graph.ops.op import Arrays, Op, Types
from ansorlite.graph.types import DTYPES, Array, Attrs, TensorType, same_dtype, text
from ansorlite.ir.expr import Expr
from ansorlite.te.evaluate import cast_array


def _compare_type(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of two operands of one dtype, as conditions."""
    return TensorType(broadcast_type(attrs, types).shape, "bool")


def _logic_type(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of conditions."""
    if any(t.dtype != "bool" for t in types):
        raise ModelError(f"operands {', '.join(map(str, types))} are not all conditions")
    return broadcast_type(attrs, types)


def _where_type(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of a condition and of two operands of one dtype."""
    _logic_type(attrs, types[:1])
    full = broadcast_type(attrs, tuple(TensorType(t.shape) for t in types))
    return TensorType(full.shape, same_dtype(types[1:]))


def _cast_type(attrs: Attrs, types: Types) -> TensorType:
    dtype = text(attrs, "dtype")
    if dtype not in DTYPES:
        raise ModelError(f"cast to {dtype} is not supported, only to {', '.join(DTYPES)}")
    return TensorType(types[0].shape, dtype)


def _cast(attrs: Attrs, xs: Arrays) -> Array:
    """Fractions are cut off; numbers become conditions by being unequal to zero."""
    with np.errstate(all="ignore"):
        return np.asarray(cast_array(xs[0], text(attrs, "dtype")))


def _cast_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    (x,), dtype = xs, text(attrs, "dtype")
    if dtype == "bool" and x.dtype != "bool":
        return te.not_equal(x, te.const(0, x.dtype))
    return te.cast(x, dtype)


def _compare(name: str, fn: Callable[..., Any], element: Callable[[Expr, Expr], Expr]) -> Op:
    return Op(
        name,
        "elementwise",
        _compare_type,
        by_numpy(fn),
        arity=(2, 2),
        element=by_element(element),
    )


def _logic(name: str, fn: Callable[..., Any], element: Callable[..., Expr], count: int) -> Op:
    return Op(
        name,
        "elementwise",
        _logic_type,
        by_numpy(fn),
        arity=(count, count),
        element=by_element(element),
    )


OPS = (
    _compare("equal", np.equal, te.equal),
    _compare("less", np.less, lambda a, b: a < b),
    _compare("less_equal", np.less_equal, lambda a, b: a <= b),
    _logic("logical_and", np.logical_and, te.all, 2),
    _logic("logical_or", np.logical_or, te.any, 2),
    _logic("logical_not", np.logical_not, te.logical_not, 1),
    Op(
        "where",
        "elementwise",
        _where_type,
        by_numpy(np.where),
        arity=(3, 3),
        element=by_element(te.select),
    ),
    Op("cast", "elementwise", _cast_type, _cast, attrs=("dtype",), element=_cast_element),
)
