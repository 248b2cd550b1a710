"""Normalisations: softmax, local response and, before the passes, batch normalisation.

Other normalisations (layer, instance, group) are written by their readers as reductions with
arithmetic between, which `graph.fuse` joins to one kernel.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.movement import pad
from ansorlite.graph.ops.op import Arrays, Index, Op, Types, follows, times, wide
from ansorlite.graph.ops.reduce import merged, reduced
from ansorlite.graph.types import (
    Array,
    Attrs,
    TensorType,
    axes_in_range,
    integer,
    ints,
    number,
    same_dtype,
)
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

# ---- softmax ------------------------------------------------------------------------------------


def _softmax_type(attrs: Attrs, types: Types) -> TensorType:
    axes_in_range(ints(attrs, "axes"), types[0].rank)
    return types[0]


def _softmax(attrs: Attrs, xs: Arrays) -> Array:
    axes, x = ints(attrs, "axes"), wide(xs[0])
    if not x.size:
        return np.asarray(xs[0])
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return np.asarray((e / e.sum(axis=axes, keepdims=True)).astype(xs[0].dtype))


def softmax(x: Tensor, axes: Sequence[int], name: str = "softmax") -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over `axes`, in four stages."""
    shape, kept, ks = reduced(x.shape, axes)
    rank = len(x.shape)
    high = te.compute(
        shape, lambda *i: te.max(x[merged(rank, kept, i, axes, ks)], axis=ks), name=f"{name}_max"
    )

    def rows(i: Sequence[Any]) -> Index:
        return tuple(i[d] for d in kept) or (0,)

    def power(*i: Any) -> Expr:
        return te.exp(x[i] - high[rows(i)], most=0.0)

    e = te.compute(x.shape, power, name=f"{name}_exp")
    _, _, js = reduced(x.shape, axes)
    total = te.compute(
        shape, lambda *i: te.sum(e[merged(rank, kept, i, axes, js)], axis=js), name=f"{name}_sum"
    )
    return te.compute(x.shape, lambda *i: e[i] / total[rows(i)], name=name)


# ---- local response -----------------------------------------------------------------------------


def _lrn_type(attrs: Attrs, types: Types) -> TensorType:
    axes_in_range((integer(attrs, "axis"),), types[0].rank)
    if integer(attrs, "size") < 1:
        raise ModelError(f"a window of {attrs['size']} channels")
    return types[0]


def _lrn(attrs: Attrs, xs: Arrays) -> Array:
    """x / (bias + alpha/size * sum of squares over `size` neighbours along `axis`) ** beta."""
    (x,), size = xs, integer(attrs, "size")
    data = np.moveaxis(wide(x), integer(attrs, "axis"), -1)
    padded = np.pad(data * data, [(0, 0)] * (x.ndim - 1) + [((size - 1) // 2, size // 2)])
    n = data.shape[-1]
    total = sum(padded[..., k : k + n] for k in range(size))
    base = number(attrs, "bias") + number(attrs, "alpha") / size * total
    out = data / np.power(base, number(attrs, "beta"))
    return np.asarray(np.moveaxis(out, -1, integer(attrs, "axis")).astype(x.dtype))


def lrn(x: Tensor, axis: int, size: int, alpha: float, beta: float, bias: float) -> Tensor:
    """x / (bias + alpha/size * sum of squares over `size` neighbours along `axis`) ** beta."""
    low = (size - 1) // 2
    widths = [(low, size // 2) if d == axis else (0, 0) for d in range(len(x.shape))]
    padded = pad(x, widths)
    k = te.reduce_axis(size, name="k")

    def near(i: Sequence[Any]) -> Expr:
        return padded[(*i[:axis], i[axis] + k, *i[axis + 1 :])]

    total = te.compute(x.shape, lambda *i: te.sum(near(i) * near(i), axis=k), name="squares")
    scale = alpha / size
    return te.compute(x.shape, lambda *i: x[i] / te.pow(total[i] * scale + bias, beta), name="lrn")


def _lrn_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    alpha, beta, bias = (number(attrs, k) for k in ("alpha", "beta", "bias"))
    return lrn(xs[0], integer(attrs, "axis"), integer(attrs, "size"), alpha, beta, bias)


# ---- batch normalisation ------------------------------------------------------------------------


def _batch_norm_type(attrs: Attrs, types: Types) -> TensorType:
    """data [n, c, ...] and four vectors of c elements."""
    x = types[0]
    for t in types[1:]:
        if x.rank < 2 or t.shape != (x.shape[1],):
            raise ModelError(f"statistics {t} do not match axis 1 of data {x}")
    return TensorType(x.shape, same_dtype(types))


def _batch_norm(attrs: Attrs, xs: Arrays) -> Array:
    x = xs[0]
    column = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, var = (wide(v).reshape(column) for v in xs[1:])
    out = (wide(x) - mean) / np.sqrt(var + number(attrs, "epsilon")) * scale + bias
    return np.asarray(out.astype(x.dtype))


OPS = (
    Op(
        "softmax",
        "anchor",
        _softmax_type,
        _softmax,
        attrs=("axes",),
        tensor=lambda attrs, xs: softmax(xs[0], ints(attrs, "axes")),
        layout=follows(axes=("axes",)),
        traits=("not_negative",),
        work=times(16),
    ),
    Op(
        "lrn",
        "anchor",
        _lrn_type,
        _lrn,
        attrs=("axis", "size", "alpha", "beta", "bias"),
        tensor=_lrn_tensor,
        layout=follows(axis=("axis",)),
        work=lambda attrs, types, result: result.size * integer(attrs, "size"),
        free_window=True,
    ),
    Op(
        "batch_norm",
        "source",
        _batch_norm_type,
        _batch_norm,
        attrs=("epsilon",),
        arity=(5, 5),
    ),
)
