"""Products of bfloat16 with sums in float32, and the way from float32 to bfloat16 and back.

bfloat16 is stored as its 16 bits, uint16. A product reads neighbours along the axis that is summed
as one number of 32 bits: data as it lies in memory, constant weights as int32 [.., n / 2, columns],
packed by `graph.precision`. Data of convolutions is channels last.
"""

from collections.abc import Sequence

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops import conv, matmul
from ansorlite.graph.ops.movement import spatial_names
from ansorlite.graph.ops.op import Arrays, Op, Shape, ShapeFn, TensorFn, Types, named
from ansorlite.graph.ops.windows import padded_type, window
from ansorlite.graph.types import Array, Attrs, TensorType, ints, pairs
from ansorlite.ir.expr import Expr
from ansorlite.ir.packed import bits_of, float_of
from ansorlite.te.tensor import Tensor

STORED = "uint16"


def _to(wanted: str, made: str) -> ShapeFn:
    def shape(attrs: Attrs, types: Types) -> TensorType:
        if types[0].dtype != wanted:
            raise ModelError(f"{types[0]} is not {wanted}")
        return TensorType(types[0].shape, made)

    return shape


def _unpacked(words: Array) -> Array:
    """int32 [.., n / 2, columns] -> float32 [.., n, columns]."""
    halves = np.ascontiguousarray(words).view(np.uint16).reshape(*words.shape, 2)
    rows = np.moveaxis(halves, -1, -2)
    return np.asarray(float_of(rows.reshape(*words.shape[:-2], -1, words.shape[-1])))


def _as_floats(types: Types) -> Types:
    """The types of the product in float32 that a product of bfloat16 stands for."""
    x, w = types[:2]
    if x.dtype != STORED or w.dtype != "int32" or w.rank < 2:
        raise ModelError(f"{x} and {w} are no bfloat16 and packed weights")
    return TensorType(x.shape), TensorType((*w.shape[:-2], 2 * w.shape[-2], w.shape[-1]))


def _words(x: Tensor, at: Sequence[Expr], k: Expr) -> Expr:
    """Elements 2k and 2k + 1 of the last axis as one number."""
    return te.pack(x[(*at, 2 * k)], x[(*at, 2 * k + 1)])


# ---- matrix products ----------------------------------------------------------------------------


def _matmul_type(attrs: Attrs, types: Types) -> TensorType:
    return matmul._matmul_type(attrs, _as_floats(types))


def _matmul(attrs: Attrs, xs: Arrays) -> Array:
    return matmul._matmul(attrs, (float_of(xs[0]), _unpacked(xs[1])))


def dense_bf16(x: Tensor, w: Tensor, name: str = "dense") -> Tensor:
    """uint16 [m, k] x int32 [k / 2, n] -> float32 [m, n]."""
    k = te.reduce_axis(w.shape[0], name="k")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(te.dot_bfloat16(_words(x, (i,), k), w[k, j]), axis=k)

    return te.compute((x.shape[0], w.shape[1]), element, name=name)


def _matmul_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    return dense_bf16(xs[0], xs[1])


def _matmul_views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """[.., m, k] x [k, n] as one matrix product."""
    x, w = types
    return (((x.size // x.shape[-1], x.shape[-1]), w.shape),)


# ---- convolutions -------------------------------------------------------------------------------


def _conv_type(attrs: Attrs, types: Types) -> TensorType:
    return conv._type({**attrs, "groups": 1}, _as_floats(types))


def _conv(attrs: Attrs, xs: Arrays) -> Array:
    return conv._meaning({**attrs, "groups": 1}, (float_of(xs[0]), _unpacked(xs[1])))


def _conv_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, w = xs
    if len(x.shape) == 2:
        return dense_bf16(x, w, name="conv")
    *kernel, words, co = w.shape
    strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
    padded, out, ks, under = window(x, kernel, strides, pairs(attrs, "pads"), dilations)
    c = te.reduce_axis(words, name="ci")

    def element(n: Expr, *at: Expr) -> Expr:
        data = _words(padded, (n, *under(at[:-1])), c)
        return te.sum(te.dot_bfloat16(data, w[(*ks, c, at[-1])]), axis=[*ks, c])

    names = ("n", *spatial_names(len(kernel)), "co")
    return te.compute((x.shape[0], *out, co), named(names, element), name="conv")


def _conv_views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """A 1x1 convolution that reads every pixel is a matrix product of pixels and weights."""
    x, w = types[0].shape, types[1].shape
    floats = conv._views({**attrs, "groups": 1}, _as_floats(types))
    pointwise = len(floats) > 1
    return (((types[0].size // x[-1], x[-1]), w[-2:]), (x, w)) if pointwise else ((x, w),)


def _conv_forms(attrs: Attrs, types: Types) -> tuple[TensorFn, ...]:
    """Winograd's, in float32, of the numbers that data and weights are."""
    x, w = _as_floats(types)
    others = conv._forms({**attrs, "groups": 1}, (x, w))

    def widened(form: TensorFn) -> TensorFn:
        return lambda attrs, xs: form({**attrs, "groups": 1}, (_floats(xs[0]), _weights(xs[1])))

    return tuple(map(widened, others))


def _floats(x: Tensor) -> Tensor:
    """float32 of bfloat16."""
    names = ("n", *spatial_names(len(x.shape) - 2), "c")
    element = named(names, lambda *at: te.bfloat16_value(x[at]))
    return te.compute(x.shape, element, name="floats")


def _weights(w: Tensor) -> Tensor:
    """float32 [*k, n, columns] of packed weights [*k, n / 2, columns]."""
    *kernel, words, columns = w.shape

    def element(*at: Expr) -> Expr:
        *k, c, o = at
        return te.bfloat16_value(te.shift_right(w[(*k, c // 2, o)], c % 2 * 16))

    names = (*(f"k{d}" for d in range(len(kernel))), "c", "co")
    shape = (*kernel, 2 * words, columns)
    return te.compute(shape, named(names, element), name="weights")


# ---- elements -----------------------------------------------------------------------------------


def _bits_element(attrs: Attrs, xs: Sequence[Expr]) -> Expr:
    return te.cast(te.bfloat16_bits(xs[0]), STORED)


OPS = (
    Op(
        "to_bf16",
        "elementwise",
        _to("float32", STORED),
        lambda attrs, xs: bits_of(xs[0]).reshape(np.shape(xs[0])),
        element=_bits_element,
    ),
    Op(
        "from_bf16",
        "elementwise",
        _to(STORED, "float32"),
        lambda attrs, xs: float_of(xs[0]),
        element=lambda attrs, xs: te.bfloat16_value(xs[0]),
    ),
    Op(
        "matmul_bf16",
        "anchor",
        _matmul_type,
        _matmul,
        arity=(2, 2),
        tensor=_matmul_tensor,
        views=_matmul_views,
        names=("data", "weight"),
        traits=("rounded_sum",),
        work=lambda attrs, types, result: matmul._matmul_work(attrs, _as_floats(types), result),
    ),
    Op(
        "conv_bf16",
        "anchor",
        _conv_type,
        _conv,
        attrs=("strides", "pads", "dilations", "layout"),
        arity=(2, 2),
        tensor=_conv_tensor,
        views=_conv_views,
        forms=_conv_forms,
        names=("data", "weight"),
        traits=("rounded_sum",),
        work=lambda attrs, types, result: conv._work(attrs, _as_floats(types), result),
        padded=padded_type,
    ),
)
