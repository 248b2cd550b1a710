"""Readers of operators that are always computed at import: constants, shapes, sets of elements.

In: constant operands (the shape of any value is constant). Out: a constant. A ModelError tells
which operand depends on the network's input.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import LOWS, Context, OnnxNode, axis_of
from ansorlite.graph.types import DTYPES, Array
from ansorlite.names import brief

_SCALARS: dict[str, Callable[[Any], Any]] = {
    "value": np.asarray,
    "sparse_value": np.asarray,
    "value_float": lambda v: np.asarray(v, np.float32),
    "value_floats": lambda v: np.asarray(v, np.float32),
    "value_int": lambda v: np.asarray(v, np.int64),
    "value_ints": lambda v: np.asarray(v, np.int64),
}


def constant(c: Context, n: OnnxNode) -> str:
    for key, make in _SCALARS.items():
        if key in n.attrs:
            return c.store(make(n.attrs[key]), n.outputs[0])
    raise ModelError(f"a constant of kind {', '.join(n.attrs) or 'none'} is not supported")


def constant_of_shape(c: Context, n: OnnxNode) -> str:
    value = np.asarray(n.attrs.get("value", np.zeros(1, np.float32))).ravel()
    extents = c.numbers(n, 0)
    if len(value) != 1 or any(e < 0 for e in extents):
        raise ModelError(f"a shape {extents} of {len(value)} values: extents >= 0, one value")
    c.room(extents, value.dtype)
    if str(value.dtype) in LOWS:
        c.lows[n.outputs[0]], value = str(value.dtype), value.astype(np.float32)
    return c.constant(np.full(extents, value[0]))


def shape(c: Context, n: OnnxNode) -> str:
    full = c.shape(c.operand(n, 0))
    part = full[n.attrs.get("start", 0) : n.attrs.get("end", len(full))]
    return c.constant(np.asarray(part, np.int64))


def size(c: Context, n: OnnxNode) -> str:
    return c.constant(np.asarray(c.type(c.operand(n, 0)).size, np.int64))


def eye_like(c: Context, n: OnnxNode) -> str:
    """Ones on the diagonal `k`, zeros elsewhere, in the shape of the operand."""
    x = c.type(c.operand(n, 0))
    if x.rank != 2:
        raise ModelError(f"{x} is no matrix")
    dtype = c.dtypes.get(int(n.attrs["dtype"]), "undefined") if "dtype" in n.attrs else x.dtype
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype} is not supported, only {', '.join(DTYPES)}")
    c.room(x.shape, dtype)
    k = max(-x.shape[0], min(int(n.attrs.get("k", 0)), x.shape[1]))
    return c.constant(np.eye(x.shape[0], x.shape[1], k=k, dtype=dtype))


def _alone(c: Context, n: OnnxNode, k: int, reason: str) -> Array:
    """The array of operand k, which must be constant since the size of the result depends on it."""
    array = c.known(n, k)
    if array is None:
        raise ModelError(
            f"operand {brief(n.inputs[k])} depends on the input, and the number of {reason} on its "
            "values: only constants have a known number"
        )
    return array


def non_zero(c: Context, n: OnnxNode) -> str:
    """Positions of the elements that are not zero, [rank, number], of a constant."""
    x = _alone(c, n, 0, "elements that are not zero")
    c.room([x.ndim, x.size])
    return c.constant(np.argwhere(x).T.astype(np.int64))


def compress(c: Context, n: OnnxNode) -> str:
    """The slices along an axis, or the elements, for which a constant condition holds."""
    x, flags = c.operand(n, 0), _alone(c, n, 1, "slices that are kept")
    axis = 0
    if "axis" in n.attrs:
        axis = axis_of(int(n.attrs["axis"]), len(c.shape(x)))
    else:
        x = c.emit("reshape", [x], shape=(c.type(x).size,))
    kept = np.flatnonzero(flags)
    if kept.size and kept[-1] >= c.shape(x)[axis]:
        raise ModelError(f"condition {kept[-1]} holds, but axis {axis} of {c.type(x)} ends before")
    return c.emit("take", [x, c.constant(kept.astype(np.int64))], axis=axis)


def unique(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """Distinct elements or slices of a constant, their first places, all places, their numbers."""
    x = _alone(c, n, 0, "distinct elements")
    axis = axis_of(int(n.attrs["axis"]), x.ndim) if "axis" in n.attrs else None
    c.room([x.size], cost=64)
    found, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.ravel()
    if not n.attrs.get("sorted", 1):
        order = np.argsort(first)
        inverse = np.argsort(order)[inverse]
        found, first, counts = np.take(found, order, axis or 0), first[order], counts[order]
    places = (
        c.constant(v.astype(np.int64), f"{n.outputs[0]}.{k}")
        for k, v in (("first", first), ("inverse", inverse), ("counts", counts))
    )
    return (c.constant(found), *places)


def range_(c: Context, n: OnnxNode) -> str:
    ends = [c.required(n, k) for k in range(3)]
    if any(e.size != 1 for e in ends):
        raise ModelError("start, limit and delta need one element each")
    first, last, step = (e.item() for e in ends)
    if not all(map(math.isfinite, (first, last, step))) or step == 0:
        raise ModelError(f"a range from {first} to {last} by {step} has no end")
    count = max(0, math.ceil((Fraction(last) - Fraction(first)) / Fraction(step)))
    dtype = ends[0].dtype
    if count >= 1 << 62:
        raise ModelError(f"a range from {first} to {last} by {step} has more than 2^62 elements")
    c.room([count], dtype)
    wide = np.arange(count, dtype=np.float64 if dtype.kind == "f" else np.int64)
    return c.constant((first + wide * step).astype(dtype))


READERS: dict[str, Callable[[Context, OnnxNode], str | tuple[str, ...]]] = {
    "Constant": constant,
    "Compress": compress,
    "ConstantOfShape": constant_of_shape,
    "EyeLike": eye_like,
    "NonZero": non_zero,
    "Range": range_,
    "Shape": shape,
    "Size": size,
    "Unique": unique,
}
