"""Quantisation element by element: numbers to integers of few bytes by a scale, and back.

Scales are float32, rounding is to the nearest, halves to the even number, and values beyond the
integers' range become its ends. Results are the same to the bit wherever they are computed: there
is no other form of the quotient. Operands broadcast as in numpy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Op, Types, times
from ansorlite.graph.types import Array, Attrs, TensorType, broadcast, text
from ansorlite.ir.expr import Expr
from ansorlite.ir.literals import range_of
from ansorlite.te.evaluate import cast_array

STORED = ("int8", "uint8", "int16", "uint16")
# A float32 plus this number, minus it again, is rounded to a whole number if it is below 2^22.
ROUNDER = float(3 << 22)
STEPS = 255.0  # between the least and the greatest uint8


def _shape(types: Types) -> tuple[int, ...]:
    return broadcast([t.shape for t in types])


def _quantize_type(attrs: Attrs, types: Types) -> TensorType:
    """x / scale + zero, all of float32, as integers of the attribute `dtype`."""
    dtype = text(attrs, "dtype")
    if dtype not in STORED or any(t.dtype != "float32" for t in types):
        listed = ", ".join(map(str, types))
        raise ModelError(f"{listed} cannot be quantised to {dtype}: only float32 to {STORED}")
    return TensorType(_shape(types), dtype)


def _quantize(attrs: Attrs, xs: Arrays) -> Array:
    (x, scale, zero), dtype = xs, text(attrs, "dtype")
    low, high = map(np.float32, range_of(dtype))
    with np.errstate(all="ignore"):
        inside = np.minimum(np.maximum(x / scale, low - zero), high - zero)
        return cast_array(np.asarray(np.round(inside) + zero), dtype)


def _quantize_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    (x, scale, zero), dtype = xs, text(attrs, "dtype")
    low, high = (te.const(float(v)) for v in range_of(dtype))
    inside = te.minimum(te.maximum(x / scale, low - zero), high - zero)
    return te.cast(((inside + ROUNDER) - ROUNDER) + zero, dtype)


def _dequantize_type(attrs: Attrs, types: Types) -> TensorType:
    """(x - zero) * scale for integers x and zero of one dtype and float32 scales."""
    x, scale, zero = types
    if x.dtype not in (*STORED, "int32") or zero.dtype != x.dtype or scale.dtype != "float32":
        raise ModelError(f"{x} cannot be scaled by {scale} from {zero}: an integer and a float32")
    return TensorType(_shape(types), "float32")


def _dequantize(attrs: Attrs, xs: Arrays) -> Array:
    x, scale, zero = xs
    with np.errstate(all="ignore"):
        whole = x.astype(np.int32) - zero.astype(np.int32)
        return np.asarray(whole.astype(np.float32) * scale)


def _dequantize_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    x, scale, zero = xs
    return te.cast(x - zero, "float32") * scale


def _step_type(attrs: Attrs, types: Types) -> TensorType:
    """The scale by which numbers from operand 0 to operand 1 become uint8."""
    if any(t.dtype != "float32" for t in types):
        raise ModelError(f"the ends {types[0]} and {types[1]} are not float32")
    return TensorType(_shape(types), "float32")


def _step(attrs: Attrs, xs: Arrays) -> Array:
    low, high = xs
    with np.errstate(all="ignore"):
        return np.asarray(np.where(high == low, np.float32(1), (high - low) / np.float32(STEPS)))


def _step_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    low, high = xs
    return te.select(te.equal(high, low), te.const(1.0), (high - low) / STEPS)


def _scaled(
    name: str, shape: Any, meaning: Any, element: Any, count: int, attrs: tuple[str, ...] = ()
) -> Op:
    return Op(
        name,
        "elementwise",
        shape,
        meaning,
        attrs=attrs,
        arity=(count, count),
        element=element,
        work=times(4),
    )


OPS = (
    _scaled("quantize", _quantize_type, _quantize, _quantize_element, 3, ("dtype",)),
    _scaled("dequantize", _dequantize_type, _dequantize, _dequantize_element, 3),
    _scaled("quantization_step", _step_type, _step, _step_element, 2),
)
