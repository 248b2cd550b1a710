"""Operators that move elements: transpose, concat, pad, slice, expand, reshape, identity.

Attributes have an entry for each axis, counted from the front, and no negative ones. A reshape is a
view: partition makes no kernel of it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import (
    Arrays,
    Op,
    Orders,
    Placed,
    Types,
    follows,
    named,
    same_shape,
)
from ansorlite.graph.types import (
    Array,
    Attrs,
    TensorType,
    axes_in_range,
    broadcast,
    integer,
    ints,
    literal,
    pairs,
    same_dtype,
)
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

Pads = Sequence[tuple[int, int]]
Shape = tuple[int, ...]
SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def spatial_names(rank: int) -> tuple[str, ...]:
    """Names of `rank` spatial axes, or a ModelError beyond three."""
    if rank not in SPATIAL:
        raise ModelError(f"{rank} spatial axes: only 1, 2 and 3 are supported")
    return SPATIAL[rank]


# ---- transpose ----------------------------------------------------------------------------------


def _transpose_type(attrs: Attrs, types: Types) -> TensorType:
    (x,), perm = types, ints(attrs, "perm")
    if sorted(perm) != list(range(x.rank)):
        raise ModelError(f"perm {perm} is no permutation of the {x.rank} axes of {x}")
    return TensorType(tuple(x.shape[p] for p in perm), x.dtype)


def _transpose(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(xs[0].transpose(ints(attrs, "perm")))


def transpose(x: Tensor, perm: Sequence[int], name: str = "transpose") -> Tensor:
    """Axis d of the result is axis perm[d] of x."""
    inverse = [list(perm).index(d) for d in range(len(perm))]
    shape = [x.shape[p] for p in perm]
    return te.compute(shape, lambda *i: x[tuple(i[d] for d in inverse)], name=name)


def _moves_nothing(attrs: Attrs, types: Types, result: TensorType) -> bool:
    return list(ints(attrs, "perm")) == list(range(types[0].rank))


# ---- concat -------------------------------------------------------------------------------------


def _concat_type(attrs: Attrs, types: Types) -> TensorType:
    axis, first = integer(attrs, "axis"), types[0]
    axes_in_range((axis,), first.rank)
    for t in types[1:]:
        other = (*t.shape[:axis], first.shape[axis], *t.shape[axis + 1 :])
        if t.rank != first.rank or other != first.shape:
            raise ModelError(f"cannot concatenate {first} and {t} along axis {axis}")
    total = sum(t.shape[axis] for t in types)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return TensorType(shape, same_dtype(types))


def _concat(attrs: Attrs, xs: Arrays) -> Array:
    return np.concatenate(xs, axis=integer(attrs, "axis"))


MOST_BLOCKS = 64  # of a concatenation that is written out block by block
LEAST_BLOCK = 8  # elements


def concat_blocks(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """Operands as [*before, blocks, size, *after], where a size divides all of their extents.

    Then which operand an element comes from depends on its block alone.
    """
    shapes, axis = tuple(t.shape for t in types), integer(attrs, "axis")
    size = math.gcd(*(s[axis] for s in shapes))
    if size == 0 or size * math.prod(shapes[0][axis + 1 :]) < LEAST_BLOCK:
        return (shapes,)
    if sum(s[axis] for s in shapes) // size > MOST_BLOCKS:
        return (shapes,)
    return tuple((*s[:axis], s[axis] // size, size, *s[axis + 1 :]) for s in shapes), shapes


def _concat_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    """The blocks of operands as `concat_blocks` has them are written out one after the other."""
    axis = integer(attrs, "axis")
    joined = concat(xs, axis)
    after = math.prod(joined.shape[axis + 1 :])
    if joined.shape[axis] > MOST_BLOCKS or after < LEAST_BLOCK or joined.shape[axis] == 1:
        return joined
    assert isinstance(joined.op, te.ComputeOp)
    return concat(xs, axis, attrs={"simplify_const_indices": (joined.op.axes[axis].name,)})


def concat(
    xs: Sequence[Tensor],
    axis: int,
    name: str = "concat",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """The tensors one after the other along `axis`."""
    starts = [sum(x.shape[axis] for x in xs[:d]) for d in range(len(xs))]
    first = xs[0].shape
    shape = (*first[:axis], sum(x.shape[axis] for x in xs), *first[axis + 1 :])

    def element(*i: Any) -> Expr:
        parts = [
            x[(*i[:axis], i[axis] - start, *i[axis + 1 :])]
            for x, start in zip(xs, starts, strict=True)
        ]
        value = parts[-1]
        for part, end in zip(parts[-2::-1], starts[:0:-1], strict=True):
            value = te.select(i[axis] < end, part, value)
        return value

    return te.compute(shape, element, name=name, attrs=attrs)


def _concat_layout(attrs: Attrs, types: Types, orders: Orders) -> Placed:
    """All operands in the order that moves the fewest elements."""
    perm = orders.common
    return Placed((perm,) * len(types), perm, {"axis": perm.index(integer(attrs, "axis"))})


# ---- pad, slice ---------------------------------------------------------------------------------


def _pad_type(attrs: Attrs, types: Types) -> TensorType:
    (x,), widths = types, pairs(attrs, "pads")
    if len(widths) != x.rank:
        raise ModelError(f"pads {widths} need one pair per axis of {x}")
    shape = tuple(n + lo + hi for n, (lo, hi) in zip(x.shape, widths, strict=True))
    if any(lo < 0 or hi < 0 for lo, hi in widths):
        raise ModelError(f"pads {widths} are negative: use slice")
    return TensorType(shape, x.dtype)


def _pad(attrs: Attrs, xs: Arrays) -> Array:
    return np.pad(xs[0], pairs(attrs, "pads"), constant_values=literal(attrs, "value"))


def pad(x: Tensor, widths: Pads, value: float = 0.0, name: str = "pad") -> Tensor:
    """x with `widths` elements of `value` around it; x itself where all widths are 0."""
    if not any(lo or hi for lo, hi in widths):
        return x
    shape = [n + lo + hi for n, (lo, hi) in zip(x.shape, widths, strict=True)]

    def element(*i: Any) -> Expr:
        inside = []
        for at, n, (lo, hi) in zip(i, x.shape, widths, strict=True):
            inside += [at >= lo] * (lo > 0) + [at < lo + n] * (hi > 0)
        source = x[tuple(at - lo for at, (lo, _) in zip(i, widths, strict=True))]
        chosen = te.select(te.all(*inside), source, te.const(value, source.dtype))
        # integers are computed with in int32, and stored as the data are
        return chosen if source.dtype == x.dtype else te.cast(chosen, str(x.dtype))

    names = ("n", *spatial_names(len(shape) - 2), "c") if 3 <= len(shape) <= 5 else ()
    return te.compute(shape, named(names, element), name=name)


def _slice_type(attrs: Attrs, types: Types) -> TensorType:
    """Element i of an axis is element start + i*step of the operand, i < size."""
    (x,) = types
    starts, sizes, steps = ints(attrs, "starts"), ints(attrs, "sizes"), ints(attrs, "steps")
    if not len(starts) == len(sizes) == len(steps) == x.rank:
        raise ModelError(f"slice of {x} needs a start, size and step per axis")
    for n, start, size, step in zip(x.shape, starts, sizes, steps, strict=True):
        last = start + (size - 1) * step
        if size > 0 and not (0 <= start < n and 0 <= last < n):
            raise ModelError(f"slice {start}..{last} leaves extent {n} of {x}")
    return TensorType(sizes, x.dtype)


def _slice(attrs: Attrs, xs: Arrays) -> Array:
    rows = zip(ints(attrs, "starts"), ints(attrs, "sizes"), ints(attrs, "steps"), strict=True)
    at = np.ix_(*(start + np.arange(size) * step for start, size, step in rows))
    return np.asarray(xs[0][at])


def slice_(
    x: Tensor,
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int],
    name: str = "slice",
) -> Tensor:
    """Element i of an axis is element start + i*step of x."""
    rows = list(zip(starts, steps, strict=True))
    return te.compute(
        sizes,
        lambda *i: x[tuple(s + at * t for at, (s, t) in zip(i, rows, strict=True))],
        name=name,
    )


def _slice_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    return slice_(xs[0], ints(attrs, "starts"), ints(attrs, "sizes"), ints(attrs, "steps"))


def _slices_all(attrs: Attrs, types: Types, result: TensorType) -> bool:
    return types[0].shape == result.shape and set(ints(attrs, "steps")) <= {1}


# ---- expand, reshape, identity ------------------------------------------------------------------


def _expand_type(attrs: Attrs, types: Types) -> TensorType:
    (x,), shape = types, ints(attrs, "shape")
    if broadcast([x.shape, shape]) != shape:
        raise ModelError(f"cannot expand {x} to {list(shape)}")
    return TensorType(shape, x.dtype)


def _expand(attrs: Attrs, xs: Arrays) -> Array:
    return np.broadcast_to(xs[0], ints(attrs, "shape"))


def expand(x: Tensor, shape: Sequence[int], name: str = "expand") -> Tensor:
    """x broadcast to `shape`."""
    missing = len(shape) - len(x.shape)

    def element(*i: Any) -> Expr:
        own = zip(i[missing:], x.shape, shape[missing:], strict=True)
        return x[tuple(at if n == full else 0 for at, n, full in own)]

    return te.compute(shape, element, name=name)


def _expand_layout(attrs: Attrs, types: Types, orders: Orders) -> Placed:
    """The operand's order; the axes that are new come first."""
    (perm,), shape = orders.operands, ints(attrs, "shape")
    missing = len(shape) - len(perm)
    out = (*range(missing), *(p + missing for p in perm))
    return Placed((perm,), out, {"shape": tuple(shape[p] for p in out)})


def _reshape_type(attrs: Attrs, types: Types) -> TensorType:
    (x,), shape = types, ints(attrs, "shape")
    if math.prod(shape) != x.size:
        raise ModelError(f"cannot reshape {x} ({x.size} elements) to {list(shape)}")
    return TensorType(shape, x.dtype)


def _reshape(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(xs[0].reshape(ints(attrs, "shape")))


# The pass `layout.channels_last` itself places transpose and reshape.
OPS = (
    Op(
        "transpose",
        "injective",
        _transpose_type,
        _transpose,
        attrs=("perm",),
        tensor=lambda attrs, xs: transpose(xs[0], ints(attrs, "perm")),
        identity=_moves_nothing,
        traits=("reads_once", "keeps_not_negative"),
    ),
    Op(
        "concat",
        "injective",
        _concat_type,
        _concat,
        attrs=("axis",),
        arity=(1, 1 << 16),
        tensor=_concat_tensor,
        views=concat_blocks,
        layout=_concat_layout,
        identity=lambda attrs, types, result: len(types) == 1,
        traits=("reads_once",),
    ),
    Op(
        "pad",
        "injective",
        _pad_type,
        _pad,
        attrs=("pads", "value"),
        tensor=lambda attrs, xs: pad(xs[0], pairs(attrs, "pads"), literal(attrs, "value")),
        layout=follows(per_axis=("pads",)),
        identity=same_shape,
        traits=("reads_once",),
    ),
    Op(
        "slice",
        "injective",
        _slice_type,
        _slice,
        attrs=("starts", "sizes", "steps"),
        tensor=_slice_tensor,
        layout=follows(per_axis=("starts", "sizes", "steps")),
        identity=_slices_all,
        traits=("reads_once",),
    ),
    Op(
        "expand",
        "injective",
        _expand_type,
        _expand,
        attrs=("shape",),
        tensor=lambda attrs, xs: expand(xs[0], ints(attrs, "shape")),
        layout=_expand_layout,
        identity=same_shape,
    ),
    Op(
        "reshape",
        "view",
        _reshape_type,
        _reshape,
        attrs=("shape",),
        identity=same_shape,
        traits=("keeps_not_negative",),
    ),
    Op(
        "identity",
        "source",
        lambda attrs, types: types[0],
        lambda attrs, xs: np.asarray(xs[0]),
        identity=lambda attrs, types, result: True,
    ),
)
