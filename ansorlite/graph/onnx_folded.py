"""ONNX operators that are always computed at import: constants, shapes, ranges.

In: constant operands (the shape of any value is constant). Out: a constant. A ModelError tells
which operand depends on the network's input.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx_context import Context, Converter, OnnxNode

_SCALARS: dict[str, Callable[[Any], Any]] = {
    "value": np.asarray,
    "value_float": lambda v: np.asarray(v, np.float32),
    "value_floats": lambda v: np.asarray(v, np.float32),
    "value_int": lambda v: np.asarray(v, np.int64),
    "value_ints": lambda v: np.asarray(v, np.int64),
}


def constant(c: Context, n: OnnxNode) -> str:
    for key, make in _SCALARS.items():
        if key in n.attrs:
            return c.constant(make(n.attrs[key]))
    raise ModelError(f"a constant of kind {', '.join(n.attrs) or 'none'} is not supported")


def constant_of_shape(c: Context, n: OnnxNode) -> str:
    value = np.asarray(n.attrs.get("value", np.zeros(1, np.float32))).ravel()[0]
    return c.constant(np.full([int(v) for v in c.required(n, 0)], value))


def shape(c: Context, n: OnnxNode) -> str:
    full = c.shape(c.operand(n, 0))
    part = full[n.attrs.get("start", 0) : n.attrs.get("end", len(full))]
    return c.constant(np.asarray(part, np.int64))


def size(c: Context, n: OnnxNode) -> str:
    return c.constant(np.asarray(c.type(c.operand(n, 0)).size, np.int64))


def numpy(fn: Callable[..., Any]) -> Converter:
    """fn of the constant operands."""

    def convert(c: Context, n: OnnxNode) -> str:
        return c.constant(fn(*(c.required(n, k) for k in range(len(n.inputs)))))

    return convert


FOLDED: dict[str, Converter] = {
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "Range": numpy(lambda first, last, step: np.arange(first, last, step, dtype=first.dtype)),
    "Shape": shape,
    "Size": size,
}
