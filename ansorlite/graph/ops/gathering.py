"""Gathers and scatters by positions that are data: take_along, gather_nd, scatter_nd, ...

A position below 0 counts from the end. Kernels clamp positions to the axis, scatter_along drops
those beyond; `graph.indices` has the caller told of both. A scatter is written from the view of the
result: each element looks for the updates whose position is its own, so that no two iterations
write one element. That takes (places of the result) x (updates) comparisons, which the importer
bounds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.indexing import along_axis, clamped
from ansorlite.graph.ops.op import Arrays, Op, Orders, Placed, Types, wide
from ansorlite.graph.ops.ranking import counting
from ansorlite.graph.types import (
    Array,
    Attrs,
    TensorType,
    axes_in_range,
    integer,
    ints,
    same_dtype,
    text,
)
from ansorlite.ir.expr import Expr
from ansorlite.ir.logic import combiner_identity
from ansorlite.te.tensor import Tensor

REDUCTIONS = ("none", "add", "mul", "max", "min")
MOST_INDICES = 8  # axes that a gather_nd or scatter_nd indexes
_AT: dict[str, Any] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _inside(at: Any, extent: int) -> Any:
    """Positions from the front, clamped to the axis."""
    at = at.astype(np.int64)
    return np.clip(np.where(at < 0, at + extent, at), 0, extent - 1)


def _check_positions(types: Types) -> None:
    for t in types:
        if t.dtype not in ("int32", "int64"):
            raise ModelError(f"indices {t} are no integers")


def _some(extent: int, what: str) -> None:
    if extent == 0:
        raise ModelError(f"there is nothing to index along {what}")


# ---- take_along ---------------------------------------------------------------------------------


def _along_type(attrs: Attrs, types: Types) -> TensorType:
    """Element i of the result is x[.., indices[i], ..] along `axis`, at i along the other axes."""
    x, indices = types
    axis = integer(attrs, "axis")
    axes_in_range((axis,), x.rank)
    _check_positions((indices,))
    fits = x.rank == indices.rank and all(
        d == axis or i <= n for d, (n, i) in enumerate(zip(x.shape, indices.shape, strict=True))
    )
    if not fits:
        raise ModelError(f"indices {indices} are beyond data {x}: equal ranks, no larger extents")
    if indices.size:
        _some(x.shape[axis], f"axis {axis} of {x}")
    return TensorType(indices.shape, x.dtype)


def _along(attrs: Attrs, xs: Arrays) -> Array:
    x, indices = xs
    axis = integer(attrs, "axis")
    part = x[tuple(slice(None if d == axis else n) for d, n in enumerate(indices.shape))]
    return np.asarray(np.take_along_axis(part, _inside(indices, x.shape[axis]), axis))


def take_along(x: Tensor, indices: Tensor, axis: int, name: str = "take_along") -> Tensor:
    """x[.., indices[i], ..] along `axis`, clamped; the result has the shape of `indices`."""

    def element(*i: Any) -> Expr:
        return x[(*i[:axis], clamped(indices[i], x.shape[axis]), *i[axis + 1 :])]

    return te.compute(indices.shape, element, name=name)


def _checked_along(attrs: Attrs, types: Types) -> tuple[tuple[int, int, int], ...]:
    return along_axis(attrs, types) if attrs["checked"] else ()


def _along_layout(attrs: Attrs, types: Types, orders: Orders) -> Placed:
    """All operands in the order of the data."""
    perm = orders.operands[0]
    return Placed((perm,) * len(types), perm, {"axis": perm.index(integer(attrs, "axis"))})


# ---- gather_nd ----------------------------------------------------------------------------------


def _gather_nd_type(attrs: Attrs, types: Types) -> TensorType:
    """x [b, n1, .., nk, r] at k matrices of positions [b, q]: [b, q, r]."""
    x, *at = types
    first = at[0]
    _check_positions(tuple(at))
    if x.rank != len(at) + 2 or any(t.shape != (x.shape[0], *first.shape[1:]) for t in at):
        raise ModelError(f"data {x} and {len(at)} index matrices {first} do not fit together")
    if first.rank != 2:
        raise ModelError(f"indices {first} are no matrix")
    for d, n in enumerate(x.shape[1:-1], 1):
        if first.size:
            _some(n, f"axis {d} of {x}")
    return TensorType((*first.shape, x.shape[-1]), x.dtype)


def _gather_nd(attrs: Attrs, xs: Arrays) -> Array:
    x, *at = xs
    places = [_inside(i, n) for i, n in zip(at, x.shape[1:-1], strict=True)]
    return np.asarray(x[(np.arange(x.shape[0])[:, None], *places)])


def _gather_nd_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, *at = xs

    def element(b: Any, q: Any, r: Any) -> Expr:
        places = [clamped(i[b, q], n) for i, n in zip(at, x.shape[1:-1], strict=True)]
        return x[(b, *places, r)]

    return te.compute((*at[0].shape, x.shape[-1]), element, name="gather_nd")


def _gather_nd_indices(attrs: Attrs, types: Types) -> tuple[tuple[int, int, int], ...]:
    return tuple((k, k - 1, types[0].shape[k]) for k in range(1, len(types)))


# ---- scatter ------------------------------------------------------------------------------------


def _check_reduction(attrs: Attrs, dtype: str) -> None:
    reduction = text(attrs, "reduction")
    if reduction not in REDUCTIONS:
        raise ModelError(f"reduction {reduction!r} is none of {', '.join(REDUCTIONS)}")
    if dtype == "bool" and reduction != "none":
        raise ModelError(f"reduction {reduction} of conditions")


def _nd_type(attrs: Attrs, types: Types) -> TensorType:
    """x [n, r] with updates [q, r] at rows, each numbered by its positions in `shape`."""
    x, updates, *at = types
    shape = ints(attrs, "shape")
    _check_positions(tuple(at))
    rows = int(np.prod(shape, dtype=np.int64))
    if x.rank != 2 or updates.rank != 2 or x.shape != (rows, updates.shape[1]):
        raise ModelError(f"updates {updates} for data {x} of rows {list(shape)}")
    if len(at) != len(shape) or any(t.shape != updates.shape[:1] for t in at):
        raise ModelError(f"{len(at)} index vectors for {len(shape)} axes and updates {updates}")
    _check_reduction(attrs, x.dtype)
    if updates.size:
        _some(rows, f"rows of {x}")
    return TensorType(x.shape, same_dtype((x, updates)))


def scattered(x: Array, places: Any, updates: Array, reduction: str) -> Array:
    """x with `updates` at `places`, the last where several have one place; or all combined."""
    out = np.array(wide(x))
    if reduction == "none":
        out[places] = updates
    else:
        _AT[reduction].at(out, places, wide(updates))
    return np.asarray(out.astype(x.dtype))


def _nd(attrs: Attrs, xs: Arrays) -> Array:
    x, updates, *at = xs
    shape = ints(attrs, "shape")
    places = [_inside(i, n) for i, n in zip(at, shape, strict=True)]
    rows = np.ravel_multi_index(tuple(places), shape)
    return scattered(x, rows, updates, text(attrs, "reduction"))


def _merged(reduction: str, old: Expr, new: Expr) -> Expr:
    if reduction in ("max", "min"):
        return te.maximum(old, new) if reduction == "max" else te.minimum(old, new)
    return old * new if reduction == "mul" else old + new


def _scatter(
    x: Tensor,
    count: int,
    here: Callable[[Any, Sequence[Any]], Expr],
    update: Callable[[Any, Sequence[Any]], Expr],
    which: Sequence[int],
    reduction: str,
) -> Tensor:
    """`x` with `count` updates for each element: `update(q, i)` counts where `here(q, i)`.

    `which` are the axes on which `here` depends: the search for the last update runs over those.
    """
    dtype, names = x.dtype, tuple(f"i{d}" for d in range(len(x.shape)))
    if reduction == "none":
        q, exact = te.reduce_axis(count, name="q"), counting(count)
        nobody = te.const(-1, exact)

        def newest(*i: Any) -> Expr:
            at = dict(zip(which, i, strict=True))
            whole = [at.get(d, 0) for d in range(len(names))]
            found = te.select(here(q, whole), te.cast(q, exact), nobody)
            return te.max(found, axis=q)

        last = te.compute([x.shape[d] for d in which], newest, name="last")

        def chosen(*i: Any) -> Expr:
            own = last[tuple(i[d] for d in which)]
            # The place is clamped: an element that has no update reads the first, and drops it.
            at = te.minimum(te.maximum(te.cast(own, "int64"), 0), count - 1)
            return te.select(own >= te.const(0, exact), update(at, i), x[i])

        return te.compute(x.shape, chosen, name="scatter")
    if reduction == "mul":
        one = te.const(1, dtype)
        half, values = count, None
        while values is None or half > 1:
            full, half = half, -(-half // 2)
            values = _halved(x.shape, full, half, values, here, update, one)
        product = values
        return te.compute(x.shape, lambda *i: x[i] * product[(0, *i)], name="scatter")
    q = te.reduce_axis(count, name="q")
    combine = {"add": te.sum, "max": te.max, "min": te.min}[reduction]
    none = te.const(0, dtype) if reduction == "add" else combiner_identity(reduction, dtype)
    total = te.compute(
        x.shape,
        lambda *i: combine(te.select(here(q, i), update(q, i), none), axis=q),
        name="updates",
    )
    return te.compute(x.shape, lambda *i: _merged(reduction, x[i], total[i]), name="scatter")


def _halved(
    shape: Sequence[int],
    full: int,
    half: int,
    values: Tensor | None,
    here: Callable[[Any, Sequence[Any]], Expr],
    update: Callable[[Any, Sequence[Any]], Expr],
    one: Expr,
) -> Tensor:
    """Factors [full, *shape] multiplied in pairs: [half, *shape]."""

    def factor(q: Any, i: Sequence[Any]) -> Expr:
        if values is not None:
            return values[(q, *i)]
        return te.select(here(q, i), update(q, i), one)

    def element(q: Any, *i: Any) -> Expr:
        if half == full:
            return factor(q, i)
        # The second half is shorter where the number is odd: its last factor is then 1.
        other = te.minimum(q + half, full - 1)
        second = te.select(q + half < full, factor(other, i), one)
        return factor(q, i) * second

    return te.compute((half, *shape), element, name="factors")


def _nd_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, updates, *at = xs
    shape, count = ints(attrs, "shape"), updates.shape[0]

    def row(q: Any) -> Expr:
        total: Any = te.const(0, "int64")
        for i, n in zip(at, shape, strict=True):
            total = total * te.const(n, "int64") + clamped(te.cast(i[q], "int64"), n)
        return te.cast(total, "int64")

    rows = te.compute((count,), row, name="rows")
    return _scatter(
        x,
        count,
        lambda q, i: te.equal(rows[q], i[0]),
        lambda q, i: updates[q, i[1]],
        (0,),
        text(attrs, "reduction"),
    )


def _nd_indices(attrs: Attrs, types: Types) -> tuple[tuple[int, int, int], ...]:
    return tuple((k + 2, k, n) for k, n in enumerate(ints(attrs, "shape")))


def _scatter_along_type(attrs: Attrs, types: Types) -> TensorType:
    """x with updates[i] at x[.., indices[i], ..] along `axis`."""
    x, indices, updates = types
    _along_type(attrs, (x, indices))
    if indices.shape != updates.shape:
        raise ModelError(f"indices {indices} and updates {updates} have different shapes")
    _check_reduction(attrs, x.dtype)
    return TensorType(x.shape, same_dtype((x, updates)))


def _scatter_along(attrs: Attrs, xs: Arrays) -> Array:
    x, indices, updates = xs
    axis = integer(attrs, "axis")
    places: Any = list(np.indices(indices.shape))
    extent = x.shape[axis]
    places[axis] = np.where(indices < 0, indices.astype(np.int64) + extent, indices)
    kept = (places[axis] >= 0) & (places[axis] < extent)
    at = tuple(p[kept] for p in places)
    return scattered(x, at, updates[kept], text(attrs, "reduction"))


def _scatter_along_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, indices, updates = xs
    axis, extents = integer(attrs, "axis"), indices.shape

    def source(q: Any, i: Sequence[Any]) -> tuple[Any, ...]:
        rows = enumerate(zip(i, extents, x.shape, strict=True))
        cut = [at if n == full else te.minimum(at, n - 1) for _, (at, n, full) in rows]
        return (*cut[:axis], q, *cut[axis + 1 :])

    def here(q: Any, i: Sequence[Any]) -> Expr:
        at = indices[source(q, i)]
        short = [d for d, n in enumerate(extents) if d != axis and n < x.shape[d]]
        # An index is compared as it is: with the place from the front and from the end.
        same = te.any(te.equal(at, i[axis]), te.equal(at, i[axis] - x.shape[axis]))
        return te.all(same, *(i[d] < extents[d] for d in short))

    return _scatter(
        x,
        extents[axis],
        here,
        lambda q, i: updates[source(q, i)],
        tuple(range(len(x.shape))),
        text(attrs, "reduction"),
    )


OPS = (
    Op(
        "take_along",
        "injective",
        _along_type,
        _along,
        attrs=("axis", "checked"),
        arity=(2, 2),
        tensor=lambda attrs, xs: take_along(xs[0], xs[1], integer(attrs, "axis")),
        layout=_along_layout,
        indices=_checked_along,
    ),
    Op(
        "gather_nd",
        "injective",
        _gather_nd_type,
        _gather_nd,
        arity=(2, 1 + MOST_INDICES),
        tensor=_gather_nd_tensor,
        indices=_gather_nd_indices,
    ),
    Op(
        "scatter_nd",
        "anchor",
        _nd_type,
        _nd,
        attrs=("shape", "reduction"),
        arity=(3, 2 + MOST_INDICES),
        tensor=_nd_tensor,
        indices=_nd_indices,
        work=lambda attrs, types, result: result.size + types[1].shape[0] * result.shape[0],
    ),
    Op(
        "scatter_along",
        "anchor",
        _scatter_along_type,
        _scatter_along,
        attrs=("axis", "reduction"),
        arity=(3, 3),
        tensor=_scatter_along_tensor,
        layout=_along_layout,
        indices=along_axis,
        work=lambda attrs, types, result: (
            result.size * (1 + types[1].shape[integer(attrs, "axis")])
        ),
    ),
)
