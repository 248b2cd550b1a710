"""Running sums along an axis.

A kernel of two levels: sums of blocks of about sqrt(n) elements, sums of the blocks before each,
and sums inside a block, so that n elements take n * sqrt(n) additions. Terms are left out, not
multiplied by zero: NaN and infinities reach the elements behind (or before) them only.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Op, Types, each_element, follows, wide
from ansorlite.graph.types import Array, Attrs, TensorType, axes_in_range, integer
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

ONE_LEVEL = 32  # elements of an axis that one level sums up


def _cumsum_type(attrs: Attrs, types: Types) -> TensorType:
    (x,) = types
    axes_in_range((integer(attrs, "axis"),), x.rank)
    if x.dtype == "bool":
        raise ModelError(f"{x} are conditions: cast them to sum them up")
    return x


def _cumsum(attrs: Attrs, xs: Arrays) -> Array:
    """The sum up to each element, or from each on (`reverse`), without itself (`exclusive`)."""
    (x,), axis = xs, integer(attrs, "axis")
    data = np.flip(x, axis) if attrs["reverse"] else x
    with np.errstate(all="ignore"):
        full = np.cumsum(wide(data), axis=axis, dtype=wide(data).dtype)
        if attrs["exclusive"] and x.shape[axis]:
            before = np.zeros_like(np.take(full, [0], axis=axis))
            most = np.take(full, np.arange(x.shape[axis] - 1), axis=axis)
            full = np.concatenate([before, most], axis=axis)
        full = np.flip(full, axis) if attrs["reverse"] else full
        return np.asarray(full.astype(x.dtype))


def _block(n: int) -> int:
    """Elements of a block."""
    return n if n <= ONE_LEVEL else math.isqrt(n - 1) + 1


def cumsum(x: Tensor, axis: int, exclusive: bool, reverse: bool, name: str = "cumsum") -> Tensor:
    """The sum of the elements up to each one along `axis`, in one stage or in four."""
    shape, zero = tuple(x.shape), te.const(0, x.dtype)
    n, block = shape[axis], _block(shape[axis])
    blocks = -(-n // block)

    def counts(k: Expr, i: Expr, itself: bool) -> Expr:
        """Whether the sum at position i has the term at position k."""
        low, high = (i, k) if reverse else (k, i)
        return low <= high if itself else low < high

    def at(i: Sequence[Any], place: Any) -> tuple[Any, ...]:
        return (*i[:axis], place, *i[axis + 1 :])

    def inside(i: Any, k: Any, b: Any, *conditions: Expr) -> Expr:
        """Element k of block b, where there is one and the conditions hold."""
        place = b * block + k
        ends = [place < n] * (n % block != 0)
        return te.select(te.all(*conditions, *ends), x[at(i, place)], zero)

    k = te.reduce_axis(block, name="k")
    if blocks == 1:
        return te.compute(
            shape,
            lambda *i: te.sum(
                te.select(counts(k, i[axis], not exclusive), x[at(i, k)], zero), axis=k
            ),
            name=name,
        )
    few = (*shape[:axis], blocks, *shape[axis + 1 :])
    total = te.compute(few, lambda *i: te.sum(inside(i, k, i[axis]), axis=k), name=f"{name}_blocks")
    c = te.reduce_axis(blocks, name="c")
    start = te.compute(
        few,
        lambda *i: te.sum(te.select(counts(c, i[axis], False), total[at(i, c)], zero), axis=c),
        name=f"{name}_starts",
    )
    j = te.reduce_axis(block, name="k")
    part = te.compute(
        shape,
        lambda *i: te.sum(
            inside(i, j, i[axis] // block, counts(j, i[axis] % block, not exclusive)), axis=j
        ),
        name=f"{name}_inside",
    )
    return te.compute(shape, lambda *i: start[at(i, i[axis] // block)] + part[i], name=name)


def _cumsum_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    return cumsum(xs[0], integer(attrs, "axis"), bool(attrs["exclusive"]), bool(attrs["reverse"]))


def _cumsum_work(attrs: Attrs, types: Types, result: TensorType) -> int:
    axis = integer(attrs, "axis")
    return each_element(attrs, types, result) * (_block(result.shape[axis]) if result.size else 1)


OPS = (
    Op(
        "cumsum",
        "anchor",
        _cumsum_type,
        _cumsum,
        attrs=("axis", "exclusive", "reverse"),
        tensor=_cumsum_tensor,
        layout=follows(axis=("axis",)),
        work=_cumsum_work,
    ),
)
