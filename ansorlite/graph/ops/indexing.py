"""Operators that read elements at positions that are data: take, resample.

A position below 0 counts from the end. A kernel clamps positions to the axis; `graph.indices` has
the caller told of those that leave it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Op, Types, follows, wide
from ansorlite.graph.types import Array, Attrs, TensorType, axes_in_range, integer, same_dtype
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor


def clamped(at: Expr, extent: int) -> Expr:
    """The position `at`, negative ones counted from the end, clamped to 0 .. extent - 1."""
    first, last = te.const(0, at.dtype), te.const(extent - 1, at.dtype)
    at = te.select(at < first, at + te.const(extent, at.dtype), at)
    return te.minimum(te.maximum(at, first), last)


def along_axis(attrs: Attrs, types: Types) -> tuple[tuple[int, int, int], ...]:
    """An entry's `indices`: operand 1 holds positions along the attribute `axis` of operand 0."""
    axis = integer(attrs, "axis")
    return ((1, axis, types[0].shape[axis]),)


# ---- take ---------------------------------------------------------------------------------------


def _take_type(attrs: Attrs, types: Types) -> TensorType:
    """Element i of `axis` is element indices[i] of the operand."""
    x, indices = types
    axis = integer(attrs, "axis")
    axes_in_range((axis,), x.rank)
    if indices.rank != 1 or indices.dtype not in ("int32", "int64"):
        raise ModelError(f"indices {indices} are no vector of integers")
    if x.shape[axis] == 0 and indices.size:
        raise ModelError(f"there is nothing to take along axis {axis} of {x}")
    return TensorType((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]), x.dtype)


def _taken(x: Any, indices: Any, axis: int) -> Array:
    """x at `indices` along the axis; positions beyond the axis read its first or last element."""
    n = x.shape[axis]
    at = np.clip(np.where(indices < 0, indices + n, indices), 0, n - 1)
    return np.asarray(np.take(x, at, axis=axis))


def take(x: Tensor, indices: Tensor, axis: int, name: str = "take") -> Tensor:
    """Element i of `axis` is element indices[i] of x, from the end where negative; clamped."""

    def element(*i: Any) -> Expr:
        return x[(*i[:axis], clamped(indices[i[axis]], x.shape[axis]), *i[axis + 1 :])]

    shape = (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :])
    return te.compute(shape, element, name=name)


# ---- resample -----------------------------------------------------------------------------------


def _resample_type(attrs: Attrs, types: Types) -> TensorType:
    """Element i of `axis` is the sum of elements indices[i, t] of x times weights[i, t]."""
    x, indices, weights = types
    axis = integer(attrs, "axis")
    axes_in_range((axis,), x.rank)
    if indices.rank != 2 or weights.shape != indices.shape:
        raise ModelError(f"indices {indices} and weights {weights} are no equal matrices")
    if indices.dtype not in ("int32", "int64"):
        raise ModelError(f"indices {indices} are no integers")
    dtype = same_dtype((x, weights))
    return TensorType((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]), dtype)


def _resample(attrs: Attrs, xs: Arrays) -> Array:
    x, indices, weights = xs
    axis = integer(attrs, "axis")
    taken = _taken(wide(np.moveaxis(x, axis, 0)), indices.ravel(), 0)
    taken = taken.reshape(*indices.shape, *taken.shape[1:])
    factors = wide(weights).reshape(*indices.shape, *(1,) * (x.ndim - 1))
    return np.asarray(np.moveaxis((taken * factors).sum(axis=1), 0, axis).astype(x.dtype))


def resample(
    x: Tensor, indices: Tensor, weights: Tensor, axis: int, name: str = "resample"
) -> Tensor:
    """Element i of `axis` is the sum over t of x[indices[i, t]] * weights[i, t]."""
    t = te.reduce_axis(indices.shape[1], name="t")

    def element(*i: Any) -> Expr:
        at = clamped(indices[i[axis], t], x.shape[axis])
        return te.sum(x[(*i[:axis], at, *i[axis + 1 :])] * weights[i[axis], t], axis=t)

    shape = (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :])
    return te.compute(shape, element, name=name)


def _resample_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    return resample(xs[0], xs[1], xs[2], integer(attrs, "axis"))


def _resample_work(attrs: Attrs, types: Types, result: TensorType) -> int:
    taps = types[1].shape[1] if types[1].rank == 2 else 1
    return sum(t.size for t in types) + result.size * taps


OPS = (
    Op(
        "take",
        "injective",
        _take_type,
        lambda attrs, xs: _taken(xs[0], xs[1], integer(attrs, "axis")),
        attrs=("axis",),
        arity=(2, 2),
        tensor=lambda attrs, xs: take(xs[0], xs[1], integer(attrs, "axis")),
        layout=follows(axis=("axis",)),
        indices=along_axis,
    ),
    Op(
        "resample",
        "anchor",
        _resample_type,
        _resample,
        attrs=("axis",),
        arity=(3, 3),
        tensor=_resample_tensor,
        layout=follows(axis=("axis",)),
        work=_resample_work,
    ),
)
