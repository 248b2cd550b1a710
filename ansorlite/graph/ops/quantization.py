"""Quantisation element by element: numbers to integers of few bytes by a scale, and back.

Scales are float32, rounding is to the nearest, halves to the even number, and values beyond the
integers' range become its ends; NaN becomes the zero point. Results of `quantize` are the same to
the bit wherever they are computed; `requantize` is its other form, with a factor for the scale.
Operands broadcast as in numpy.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Op, Placed, Trait, Types, times
from ansorlite.graph.types import Array, Attrs, TensorType, broadcast, text
from ansorlite.ir.expr import Expr
from ansorlite.ir.literals import range_of
from ansorlite.te.evaluate import cast_array
from ansorlite.te.tensor import Tensor

STORED = ("int8", "uint8", "int16", "uint16")
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
        whole = np.where(np.isnan(inside), np.float32(0), np.round(inside))
        return cast_array(np.asarray(whole + zero), dtype)


def _quantize_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    (x, scale, zero), dtype = xs, text(attrs, "dtype")
    low, high = (te.const(float(v)) for v in range_of(dtype))
    scaled = x if scale == te.const(1.0) else x / scale
    whole = te.nearest(scaled, low - zero, high - zero)
    return te.cast(whole + te.cast(zero, "int32"), dtype)


def _requantize_type(attrs: Attrs, types: Types) -> TensorType:
    """x * factor, rounded, + point, all of float32, as bytes; x itself without a factor."""
    dtype = text(attrs, "dtype")
    if dtype not in STORED or any(t.dtype != "float32" for t in types):
        raise ModelError(f"{', '.join(map(str, types))} cannot be rounded to {dtype}: only float32")
    if _shape(types) != types[0].shape:
        raise ModelError(f"the steps {', '.join(map(str, types[1:]))} are more than {types[0]}")
    return TensorType(types[0].shape, dtype)


def _requantize(attrs: Attrs, xs: Arrays) -> Array:
    x, point, *factor = xs
    with np.errstate(all="ignore"):
        scaled = x * factor[0] if factor else x
    return _quantize(attrs, (scaled, np.float32(1), point))


def _requantize_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    x, point, *factor = xs
    return _quantize_element(attrs, (x * factor[0] if factor else x, te.const(1.0), point))


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


# ---- by the range of the data -------------------------------------------------------------------


def _range_type(attrs: Attrs, types: Types) -> TensorType:
    """float32[2]: scale and zero point for which the range of x and 0 takes all of uint8."""
    (x,) = types
    if x.dtype != "float32" or not x.size:
        raise ModelError(f"{x} has no range: float32 of at least one element")
    return TensorType((2,), "float32")


def _range(attrs: Attrs, xs: Arrays) -> Array:
    low, high = np.minimum(xs[0].min(), np.float32(0)), np.maximum(xs[0].max(), np.float32(0))
    with np.errstate(all="ignore"):
        step = np.where(high == low, np.float32(1), (high - low) / np.float32(STEPS))
        return np.stack([step, np.clip(np.round(-low / step), 0, STEPS)]).astype(np.float32)


def _range_views(attrs: Attrs, types: Types) -> tuple[tuple[tuple[int, ...], ...], ...]:
    (x,) = types
    columns = x.shape[-1] if x.rank else 1
    return (((x.size // columns, columns),),)


def _range_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    """-least and greatest of each column, then of all, then scale and point."""
    (x,) = xs
    rows, columns = x.shape
    r, c = te.reduce_axis(rows, "r"), te.reduce_axis(columns, "c")

    def end(e: Expr, j: Expr) -> Expr:
        return te.max(x[r, j] * te.cast(2 * e - 1, "float32"), axis=r)

    ends = te.compute((2, columns), end, name="ends")
    both = te.compute((2,), lambda e: te.max(ends[e, c], axis=c), name="both")

    def element(p: Expr) -> Expr:
        low, high = te.maximum(both[0], 0.0), te.maximum(both[1], 0.0)
        width = low + high
        step = te.select(te.equal(width, 0.0), te.const(1.0), width / STEPS)
        point = te.cast(te.nearest(low / step, te.const(0.0), te.const(STEPS)), "float32")
        return te.select(te.equal(p, 0), step, point)

    return te.compute((2,), element, name="range")


def _rescale_type(attrs: Attrs, types: Types) -> TensorType:
    """(total - sums * point) * (step * factor): int32, then float32, of products of bytes."""
    total, sums, *scales = types
    if (total.dtype, sums.dtype) != ("int32", "int32") or {t.dtype for t in scales} != {"float32"}:
        raise ModelError(f"{', '.join(map(str, types))} are no sums and scales")
    if _shape(types) != total.shape:
        raise ModelError(f"the scales {', '.join(map(str, types[1:]))} are more than {total}")
    return TensorType(total.shape, "float32")


def _rescale(attrs: Attrs, xs: Arrays) -> Array:
    total, sums, point, step, factor = xs
    shift = (sums.astype(np.int64) * cast_array(point, "int32")).astype(np.int32)
    with np.errstate(all="ignore"):
        return np.asarray((total - shift).astype(np.float32) * (step * factor))


def _rescale_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    total, sums, point, step, factor = xs
    return te.cast(total - sums * te.cast(point, "int32"), "float32") * (step * factor)


def _scaled(
    name: str,
    shape: Any,
    meaning: Any,
    element: Any,
    count: int,
    attrs: tuple[str, ...] = (),
    least: int = 0,
    traits: tuple[Trait, ...] = (),
) -> Op:
    return Op(
        name,
        "elementwise",
        shape,
        meaning,
        attrs=attrs,
        arity=(least or count, count),
        element=element,
        traits=traits,
        work=times(4),
    )


OPS = (
    _scaled("quantize", _quantize_type, _quantize, _quantize_element, 3, ("dtype",)),
    _scaled(
        "requantize",
        _requantize_type,
        _requantize,
        _requantize_element,
        3,
        ("dtype",),
        least=2,
        traits=("scalars_apart",),
    ),
    _scaled(
        "dequantize",
        _dequantize_type,
        _dequantize,
        _dequantize_element,
        3,
        traits=("scalars_apart", "dequantizes"),
    ),
    _scaled("rescale", _rescale_type, _rescale, _rescale_element, 5, traits=("scalars_apart",)),
    Op(
        "quantization_range",
        "anchor",
        _range_type,
        _range,
        tensor=_range_tensor,
        views=_range_views,
        names=("data",),
        layout=lambda attrs, types, orders: Placed((orders.operands[0],), (0,)),
        work=times(2),
    ),
)
