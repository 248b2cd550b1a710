"""Reductions over axes: sums, extremes and, before the passes, means.

The attribute `axes` has the axes in any order, `keepdims` leaves them with extent 1.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from ansorlite import te
from ansorlite.graph.ops.arithmetic import divide
from ansorlite.graph.ops.op import Arrays, Index, Meaning, Op, Orders, Placed, Trait, Types, wide
from ansorlite.graph.types import Array, Attrs, TensorType, axes_in_range, ints
from ansorlite.ir.expr import Expr
from ansorlite.ir.logic import combiner_identity
from ansorlite.te.tensor import ReduceAxis, Tensor

COMBINERS: dict[str, Callable[..., Expr]] = {"sum": te.sum, "max": te.max, "min": te.min}


def _reduce_type(attrs: Attrs, types: Types) -> TensorType:
    (x,), axes = types, ints(attrs, "axes")
    axes_in_range(axes, x.rank)
    if attrs["keepdims"]:
        shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    else:
        shape = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    return TensorType(shape, x.dtype)


def _sum(attrs: Attrs, xs: Arrays) -> Array:
    (x,), keep = (wide(xs[0]),), bool(attrs["keepdims"])
    return np.asarray(x.sum(axis=ints(attrs, "axes"), keepdims=keep, dtype=x.dtype)).astype(
        xs[0].dtype
    )


def _mean(attrs: Attrs, xs: Arrays) -> Array:
    """The mean; of integers the sum divided by their number, towards zero."""
    (x,), axes = xs, ints(attrs, "axes")
    count = math.prod(x.shape[a] for a in axes)
    total = wide(x).sum(axis=axes, keepdims=bool(attrs["keepdims"]), dtype=wide(x).dtype)
    if x.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.asarray(np.asarray(total / np.float64(count)).astype(x.dtype))
    return divide(np.asarray(total), np.asarray(count, x.dtype))


def _extreme(fn: Any, combiner: str) -> Meaning:
    """The extreme element; over no element the combiner's identity, the other end of the dtype."""

    def meaning(attrs: Attrs, xs: Arrays) -> Array:
        (x,), keep = xs, bool(attrs["keepdims"])
        if x.size:
            return np.asarray(fn(x, axis=ints(attrs, "axes"), keepdims=keep))
        start = combiner_identity(combiner, str(x.dtype)).value
        return np.asarray(fn(x, axis=ints(attrs, "axes"), keepdims=keep, initial=start))

    return meaning


def reduced(
    shape: Sequence[int], axes: Sequence[int]
) -> tuple[tuple[int, ...], list[int], tuple[ReduceAxis, ...]]:
    """Extents of the result (at least one), axes that stay, and the reduction axes."""
    kept = [d for d in range(len(shape)) if d not in axes]
    names = ("k",) if len(axes) == 1 else tuple(f"k{d}" for d in axes)
    ks = tuple(te.reduce_axis(shape[d], name=n) for d, n in zip(axes, names, strict=True))
    return tuple(shape[d] for d in kept) or (1,), kept, ks


def merged(
    rank: int, kept: Sequence[int], at: Sequence[Any], axes: Sequence[int], ks: Sequence[ReduceAxis]
) -> Index:
    """The operand's index: `at` along the axes `kept`, the reduction axes along `axes`."""
    index: list[Any] = [0] * rank
    for d, i in zip(kept, at, strict=False):
        index[d] = i
    for d, k in zip(axes, ks, strict=True):
        index[d] = k
    return tuple(index)


def reduce(x: Tensor, combiner: str, axes: Sequence[int], name: str = "reduce") -> Tensor:
    """x combined over `axes`, which leave the shape; a full reduction has shape [1]."""
    shape, kept, ks = reduced(x.shape, axes)
    combine, rank = COMBINERS[combiner], len(x.shape)
    return te.compute(
        shape, lambda *i: combine(x[merged(rank, kept, i, axes, ks)], axis=ks), name=name
    )


def _layout(attrs: Attrs, types: Types, orders: Orders) -> Placed:
    perm, axes = orders.operands[0], ints(attrs, "axes")
    out = perm
    if not attrs["keepdims"]:
        kept = sorted(p for p in perm if p not in axes)
        out = tuple(kept.index(p) for p in perm if p not in axes)
    return Placed((perm,), out, {"axes": tuple(sorted(perm.index(a) for a in axes))})


def _reduction(combiner: Literal["sum", "max", "min"], meaning: Meaning, *traits: Trait) -> Op:
    return Op(
        f"reduce_{combiner}",
        "anchor",
        _reduce_type,
        meaning,
        attrs=("axes", "keepdims"),
        tensor=lambda attrs, xs: reduce(xs[0], combiner, ints(attrs, "axes")),
        combiner=combiner,
        layout=_layout,
        traits=("reads_once", "keeps_not_negative", *traits),
    )


OPS = (
    _reduction("sum", _sum, "rounded_sum"),
    _reduction("max", _extreme(np.max, "max")),
    _reduction("min", _extreme(np.min, "min")),
    Op(
        "reduce_mean",
        "source",
        _reduce_type,
        _mean,
        attrs=("axes", "keepdims"),
        layout=_layout,
        traits=("keeps_not_negative",),
    ),
)
