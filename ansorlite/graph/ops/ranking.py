"""Positions of the largest or smallest elements of an axis: top_places.

NaN is greater than every number, as in numpy's order; of equal elements the one that stands first
comes first. A kernel counts for each element how many stand before it in the order, which takes
extent^2 comparisons a row (of one place extent); the importer bounds their number.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Op, Orders, Placed, Types
from ansorlite.graph.types import Array, Attrs, TensorType, axes_in_range, integer
from ansorlite.ir.expr import Expr, is_float
from ansorlite.te.tensor import Tensor


def _type(attrs: Attrs, types: Types) -> TensorType:
    """int64: the positions along `axis` of the `count` largest (smallest) elements, in order."""
    (x,), axis, count = types, integer(attrs, "axis"), integer(attrs, "count")
    axes_in_range((axis,), x.rank)
    if not 0 <= count <= x.shape[axis]:
        raise ModelError(f"{count} elements of axis {axis} of {x}")
    return TensorType((*x.shape[:axis], count, *x.shape[axis + 1 :]), "int64")


def _meaning(attrs: Attrs, xs: Arrays) -> Array:
    axis, count = integer(attrs, "axis"), integer(attrs, "count")
    rows = np.moveaxis(xs[0], axis, -1)
    if attrs["largest"]:  # the reverse of the order of the reversed rows keeps equals in order
        places = rows.shape[-1] - 1 - np.argsort(rows[..., ::-1], axis=-1, kind="stable")
        places = places[..., ::-1]
    else:
        places = np.argsort(rows, axis=-1, kind="stable")
    return np.ascontiguousarray(np.moveaxis(places[..., :count], -1, axis), np.int64)


def _before(a: Expr, b: Expr, first: Expr, largest: bool) -> Expr:
    """Whether a stands before b, `first` if a has the lower position."""
    less = b < a if largest else a < b
    same = te.equal(a, b)
    if is_float(a):
        a_nan, b_nan = te.not_equal(a, a), te.not_equal(b, b)
        ahead = (a_nan, te.logical_not(b_nan)) if largest else (te.logical_not(a_nan), b_nan)
        less = te.any(less, te.all(*ahead))
        same = te.any(same, te.all(a_nan, b_nan))
    return te.any(less, te.all(same, first))


def counting(extent: int) -> str:
    """A floating-point dtype that has all whole numbers to `extent`: kernels select integers one by
    one, but floating-point numbers by vectors.
    """
    return "float32" if extent <= 1 << 24 else "float64"


def first_place(x: Tensor, axis: int, largest: bool) -> Tensor:
    """int64: the position along `axis` of the first largest (smallest) element."""
    extent, floats = x.shape[axis], x.dtype.startswith("float")
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    k, j = (te.reduce_axis(extent, name=n) for n in ("k", "j"))
    highest = te.const(math.inf, x.dtype) if floats else None

    def best(*i: Any) -> Expr:
        value = x[(*i[:axis], k, *i[axis + 1 :])]
        if largest:
            return te.max(value, axis=k)
        if highest is not None:  # NaN stands behind infinity
            value = te.select(te.not_equal(value, value), highest, value)
        return te.min(value, axis=k)

    top = te.compute(shape, best, name="top")
    exact = counting(extent)
    nowhere = te.const(extent, exact)

    def place(*i: Any) -> Expr:
        value = x[(*i[:axis], j, *i[axis + 1 :])]
        here = te.equal(value, top[i])
        if floats and largest:
            here = te.any(here, te.not_equal(value, value))
        return te.min(te.select(here, te.cast(j, exact), nowhere), axis=j)

    places = te.compute(shape, place, name="place")

    def found(*i: Any) -> Expr:  # of NaN alone the first is the smallest
        return te.cast(te.select(places[i] < nowhere, places[i], te.const(0, exact)), "int64")

    return te.compute(shape, found, name="top_places")


def top_places(x: Tensor, axis: int, count: int, largest: bool) -> Tensor:
    """int64: positions along `axis` of the `count` largest (smallest) elements, in order."""
    if count == 1:
        return first_place(x, axis, largest)
    extent = x.shape[axis]
    exact = counting(extent)
    one, none = te.const(1, exact), te.const(0, exact)
    k = te.reduce_axis(extent, name="k")

    def rank(*i: Any) -> Expr:
        other = x[(*i[:axis], k, *i[axis + 1 :])]
        ahead = _before(other, x[i], k < i[axis], largest)
        return te.sum(te.select(ahead, one, none), axis=k)

    ranks = te.compute(x.shape, rank, name="rank")
    j = te.reduce_axis(extent, name="j")

    def place(*i: Any) -> Expr:
        own = te.equal(ranks[(*i[:axis], j, *i[axis + 1 :])], te.cast(i[axis], exact))
        return te.max(te.select(own, te.cast(j, exact), none), axis=j)

    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    places = te.compute(shape, place, name="place")
    return te.compute(shape, lambda *i: te.cast(places[i], "int64"), name="top_places")


def _tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    axis, count = integer(attrs, "axis"), integer(attrs, "count")
    return top_places(xs[0], axis, count, bool(attrs["largest"]))


def _layout(attrs: Attrs, types: Types, orders: Orders) -> Placed:
    perm = orders.operands[0]
    return Placed((perm,), perm, {"axis": perm.index(integer(attrs, "axis"))})


OPS = (
    Op(
        "top_places",
        "anchor",
        _type,
        _meaning,
        attrs=("axis", "count", "largest"),
        tensor=_tensor,
        layout=_layout,
        work=lambda attrs, types, result: (
            types[0].size * (1 + types[0].shape[integer(attrs, "axis")])
        ),
    ),
)
