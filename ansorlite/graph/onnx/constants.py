"""Readers of operators that are always computed at import: constants, shapes, ranges.

In: constant operands (the shape of any value is constant). Out: a constant. A ModelError tells
which operand depends on the network's input.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader

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
            return c.builder.constant(make(n.attrs[key]), n.outputs[0])
    raise ModelError(f"a constant of kind {', '.join(n.attrs) or 'none'} is not supported")


def constant_of_shape(c: Context, n: OnnxNode) -> str:
    value = np.asarray(n.attrs.get("value", np.zeros(1, np.float32))).ravel()
    extents = c.numbers(n, 0)
    if len(value) != 1 or any(e < 0 for e in extents):
        raise ModelError(f"a shape {extents} of {len(value)} values: extents >= 0, one value")
    c.room(extents, value.dtype)
    return c.constant(np.full(extents, value[0]))


def shape(c: Context, n: OnnxNode) -> str:
    full = c.shape(c.operand(n, 0))
    part = full[n.attrs.get("start", 0) : n.attrs.get("end", len(full))]
    return c.constant(np.asarray(part, np.int64))


def size(c: Context, n: OnnxNode) -> str:
    return c.constant(np.asarray(c.type(c.operand(n, 0)).size, np.int64))


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


READERS: dict[str, Reader] = {
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Shape": shape,
    "Size": size,
}
