"""Products of numbers that lie in pairs and fours: bfloat16, and integers of 8 bits.

bfloat16 is stored as its 16 bits, uint16, and summed in float32; uint8 times int8 is summed in
int32. A product reads neighbours along the axis that is summed as one number of 32 bits: data as it
lies in memory, constant weights as int32 [.., n / depth, columns], packed by `graph.precision`.
Data of convolutions is channels last; the attribute `border`, as it is stored, is what they see
around the data, or a third operand. `conv_u8` is of bytes one by one, with groups.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops import conv, matmul
from ansorlite.graph.ops.movement import pad, spatial_names
from ansorlite.graph.ops.op import Arrays, Form, Op, Shape, ShapeFn, TensorFn, Types, named
from ansorlite.graph.ops.windows import padded_type, window, window_extents
from ansorlite.graph.types import Array, Attrs, TensorType, integer, ints, pairs
from ansorlite.ir.expr import Expr
from ansorlite.ir.literals import wrapped
from ansorlite.ir.packed import bits_of, float_of
from ansorlite.te.tensor import Tensor

WORDS = "int32"  # the dtype of data whose numbers lie in words already


@dataclass(frozen=True)
class Kind:
    """How numbers lie in 32 bits: `depth` of them, data stored as `stored`, weights as `weights`.

    `data` and `weight` give the numbers of arrays; `dot` the sum of products of two words.
    """

    name: str
    stored: str
    weights: str
    result: str
    data: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    dot: Callable[[Any, Any], Expr]

    @property
    def depth(self) -> int:
        return 4 // np.dtype(self.stored).itemsize

    def singles(self, x: Array) -> Array:
        """The numbers of data, which may be words."""
        if x.dtype == WORDS:
            x = np.ascontiguousarray(x).view(self.stored).reshape(*x.shape[:-1], -1)
        return self.data(x)

    def unpacked(self, words: Array) -> Array:
        """int32 [.., n / depth, columns] -> numbers [.., n, columns]."""
        parts = np.ascontiguousarray(words).view(self.weights).reshape(*words.shape, self.depth)
        rows = np.moveaxis(parts, -1, -2)
        return self.weight(rows.reshape(*words.shape[:-2], -1, words.shape[-1]))

    def plain(self, types: Types) -> Types:
        """The types of the product of single numbers that a product of this kind stands for."""
        x, w = types[:2]
        if x.dtype == WORDS:
            x = TensorType((*x.shape[:-1], self.depth * x.shape[-1]), self.stored)
        if x.dtype != self.stored or w.dtype != "int32" or w.rank < 2:
            raise ModelError(f"{x} and {w} are no data and weights of {self.name}")
        rows = self.depth * w.shape[-2]
        full = (*w.shape[:-2], rows, w.shape[-1])
        return TensorType(x.shape, self.result), TensorType(full, self.result)

    def words(self, x: Tensor, at: Sequence[Expr], k: Expr) -> Expr:
        """Word k of the last axis."""
        if x.dtype == WORDS:
            return x[(*at, k)]
        return te.pack(*(x[(*at, self.depth * k + d)] for d in range(self.depth)))


def _packed(x: Array, dtype: str) -> Array:
    """numbers [.., n, columns] of a stored dtype -> int32 [.., n / depth, columns]."""
    depth = 4 // np.dtype(dtype).itemsize
    rows = x.astype(dtype).reshape(*x.shape[:-2], -1, depth, x.shape[-1])
    words = np.ascontiguousarray(np.moveaxis(rows, -2, -1)).view(np.int32)
    return np.asarray(words[..., 0])


def _whole(x: Array) -> Array:
    return np.asarray(x, np.int32)


BF16 = Kind("bf16", "uint16", "uint16", "float32", float_of, float_of, te.dot_bfloat16)
U8S8 = Kind("u8s8", "uint8", "int8", "int32", _whole, _whole, te.dot_int8)
KINDS = (BF16, U8S8)


def packed_weights(kind: Kind, w: Array) -> Array:
    """Constant weights [.., n, columns] as the words of a kind; n is a multiple of its depth."""
    return _packed(bits_of(w) if kind is BF16 else w, kind.weights)


# ---- matrix products ----------------------------------------------------------------------------


def _dense(kind: Kind, x: Tensor, w: Tensor, name: str) -> Tensor:
    """[m, k] x words [k / depth, n] -> [m, n]."""
    k = te.reduce_axis(w.shape[0], name="k")

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(kind.dot(kind.words(x, (i,), k), w[k, j]), axis=k)

    return te.compute((x.shape[0], w.shape[1]), element, name=name)


def _matmul_views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """[.., m, k] x [k, n] as one matrix product."""
    x, w = types
    return (((x.size // x.shape[-1], x.shape[-1]), w.shape),)


def _matmul_in_float32(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    def term(a: Callable[[Any], Expr], b: Callable[[Any], Expr], k: Any) -> Expr:
        return te.bfloat16_value(a(k)) * b(k)

    return matmul.batch_matmul(xs[0], weights(xs[1]), name="dense", term=term)


def _matmul(kind: Kind) -> Op:
    def meaning(attrs: Attrs, xs: Arrays) -> Array:
        return matmul._matmul(attrs, (kind.data(xs[0]), kind.unpacked(xs[1])))

    return Op(
        f"matmul_{kind.name}",
        "anchor",
        lambda attrs, types: matmul._matmul_type(attrs, kind.plain(types)),
        meaning,
        arity=(2, 2),
        tensor=lambda attrs, xs: _dense(kind, xs[0], xs[1], "dense"),
        views=_matmul_views,
        names=("data", "weight"),
        in_float32=_matmul_in_float32 if kind is BF16 else None,
        traits=("rounded_sum",) if kind is BF16 else (),
        work=lambda attrs, types, result: matmul._matmul_work(attrs, kind.plain(types), result),
    )


# ---- convolutions -------------------------------------------------------------------------------


def _conv_type(kind: Kind) -> ShapeFn:
    def shape(attrs: Attrs, types: Types) -> TensorType:
        if len(types) > 2 and (types[2].size, types[2].dtype) != (1, kind.stored):
            raise ModelError(f"the border {types[2]} is no number of {kind.stored}")
        return conv._type({**attrs, "groups": 1}, kind.plain(types))

    return shape


def _conv_meaning(kind: Kind) -> Callable[[Attrs, Arrays], Array]:
    def meaning(attrs: Attrs, xs: Arrays) -> Array:
        x, w = kind.singles(xs[0]), kind.unpacked(xs[1])
        plain = {**attrs, "groups": 1}
        if len(xs) > 2:  # with the border written out
            around = [(0, 0), *pairs(attrs, "pads"), (0, 0)]
            number = kind.data(np.asarray(xs[2]).reshape(()))
            x = np.pad(x, around, constant_values=number)
            plain["pads"] = ((0, 0),) * (x.ndim - 2)
        elif border := integer(attrs, "border"):
            around = [(0, 0), *pairs(attrs, "pads"), (0, 0)]
            x = np.pad(x, around, constant_values=kind.data(np.asarray(border, kind.stored)))
            plain["pads"] = ((0, 0),) * (x.ndim - 2)
        return conv._meaning(plain, (x, w))

    return meaning


def _conv_tensor(kind: Kind) -> TensorFn:
    def tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
        x, w = xs[:2]
        if len(x.shape) == 2:
            return _dense(kind, x, w, "conv")
        *kernel, words, co = w.shape
        strides, dilations = ints(attrs, "strides"), ints(attrs, "dilations")
        pads = pairs(attrs, "pads")
        if len(xs) > 2:
            x = _bordered(kind, x, xs[2], pads)
            pads = ((0, 0),) * len(kernel)
        fill = integer(attrs, "border")
        if x.dtype == WORDS:  # the number in each place of a word
            places = range(0, 32, 32 // kind.depth)
            fill = wrapped(sum(fill << place for place in places), WORDS)
        padded, out, ks, under = window(x, kernel, strides, pads, dilations, fill)
        c = te.reduce_axis(words, name="ci")

        def element(n: Expr, *at: Expr) -> Expr:
            data = kind.words(padded, (n, *under(at[:-1])), c)
            return te.sum(kind.dot(data, w[(*ks, c, at[-1])]), axis=[*ks, c])

        names = ("n", *spatial_names(len(kernel)), "co")
        return te.compute((x.shape[0], *out, co), named(names, element), name="conv")

    return tensor


def _bordered(kind: Kind, x: Tensor, border: Tensor, pads: Sequence[tuple[int, int]]) -> Tensor:
    """The data with the border's number around it, in each place of a word."""
    number: Expr = border[(0,)]
    if x.dtype == WORDS:
        number = te.pack(*[number] * kind.depth)
    extents = [e + sum(p) for e, p in zip(x.shape[1:-1], pads, strict=True)]

    def element(n: Expr, *at: Expr) -> Expr:
        where = [i - lo for i, (lo, _) in zip(at[:-1], pads, strict=True)]
        inside = [te.all(i >= 0, i < e) for i, e in zip(where, x.shape[1:-1], strict=True)]
        value = te.select(te.all(*inside), x[(n, *where, at[-1])], number)
        return te.cast(value, str(x.dtype))

    names = ("n", *spatial_names(len(extents)), "c")
    return te.compute((x.shape[0], *extents, x.shape[-1]), named(names, element), name="pad")


def _conv_views(kind: Kind) -> Callable[[Attrs, Types], tuple[tuple[Shape, ...], ...]]:
    def views(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
        """A 1x1 convolution that reads every pixel is a matrix product of pixels and weights."""
        x, w = types[0].shape, types[1].shape
        border = tuple((1,) for _ in types[2:])
        pointwise = len(conv._views({**attrs, "groups": 1}, kind.plain(types))) > 1
        whole = (x, w, *border)
        return (((math.prod(x[:-1]), x[-1]), w[-2:], *border), whole) if pointwise else (whole,)

    return views


def _conv(kind: Kind) -> Op:
    return Op(
        f"conv_{kind.name}",
        "anchor",
        _conv_type(kind),
        _conv_meaning(kind),
        attrs=("strides", "pads", "dilations", "layout", "border"),
        arity=(2, 3),
        tensor=_conv_tensor(kind),
        views=_conv_views(kind),
        forms=_winograd if kind is BF16 else lambda attrs, types: (),
        in_float32=_conv_in_float32 if kind is BF16 else None,
        names=("data", "weight", "border"),
        traits=("rounded_sum",) if kind is BF16 else (),
        work=lambda attrs, types, result: conv._work(attrs, kind.plain(types), result),
        padded=padded_type,
    )


def _single_type(attrs: Attrs, types: Types) -> TensorType:
    """uint8 [n, *s, c] and int32 weights [*k, c / groups, co] -> int32."""
    x, w = types
    if (x.dtype, w.dtype) != ("uint8", "int32"):
        raise ModelError(f"{x} and {w} are no uint8 and int32")
    return conv._type(attrs, (TensorType(x.shape, "int32"), w))


def _single_meaning(attrs: Attrs, xs: Arrays) -> Array:
    x, plain = np.asarray(xs[0], np.int32), dict(attrs)
    if border := integer(attrs, "border"):
        x = np.pad(x, [(0, 0), *pairs(attrs, "pads"), (0, 0)], constant_values=border)
        plain["pads"] = ((0, 0),) * (x.ndim - 2)
    return conv._meaning(plain, (x, xs[1]))


def _single_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, plain = xs[0], dict(attrs)
    if border := integer(attrs, "border"):
        x = pad(x, [(0, 0), *pairs(attrs, "pads"), (0, 0)], border)
        plain["pads"] = ((0, 0),) * (len(x.shape) - 2)
    return conv._tensor(plain, (x, xs[1]))


SINGLE = Op(
    "conv_u8",
    "anchor",
    _single_type,
    _single_meaning,
    attrs=("strides", "pads", "dilations", "groups", "layout", "border"),
    arity=(2, 2),
    tensor=_single_tensor,
    views=conv._views,
    names=("data", "weight"),
    work=conv._work,
    padded=padded_type,
)


def _rows_type(attrs: Attrs, types: Types) -> TensorType:
    """uint8 [n, h, w, c] and words [rows / 4, kw, c] of int8, one kernel a channel -> int32."""
    x, w = types
    (rows, columns), depth = ints(attrs, "kernel"), U8S8.depth
    if (
        x.dtype != "uint8"
        or x.rank != 4
        or w != TensorType((-(-rows // depth), columns, x.shape[3]), WORDS)
    ):
        raise ModelError(f"{x} and {w} are no channels and kernels of {rows} x {columns} bytes")
    window_type = TensorType(x.shape, "int32")
    return TensorType(
        (x.shape[0], *window_extents(attrs, window_type, (rows, columns)), x.shape[3]), "int32"
    )


def _rows_meaning(attrs: Attrs, xs: Arrays) -> Array:
    rows, columns = ints(attrs, "kernel")
    w = np.stack([U8S8.unpacked(xs[1][:, k]) for k in range(columns)], 1)[:rows, :, None]
    plain = {k: v for k, v in attrs.items() if k != "kernel"} | {"groups": w.shape[-1]}
    return _single_meaning(plain, (xs[0], w))


def _rows_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    """Four rows of a window side by side in a word; words of a column serve all windows over it."""
    x, w = xs
    n, height, width, channels = x.shape
    (sh, sw), (dh, dw) = ints(attrs, "strides"), ints(attrs, "dilations")
    (top, _), (left, _) = pairs(attrs, "pads")
    rows, columns = ints(attrs, "kernel")
    known = TensorType(x.shape, "int32")
    oh, ow = window_extents(attrs, known, (rows, columns))
    border = te.const(integer(attrs, "border"), x.dtype)
    wide = (ow - 1) * sw + (columns - 1) * dw + 1

    def element(b: Expr, i: Expr, j: Expr, k: int, c: Expr) -> Expr:
        if k >= rows:
            return te.const(0, "int32")
        row, column = i * sh + (k * dh - top), j - left
        tests = [row >= 0] * (k * dh < top) + [column >= 0] * (left > 0)
        tests += [row < height] * ((oh - 1) * sh + k * dh - top >= height)
        tests += [column < width] * (wide - left > width)
        value = x[b, row, column, c]
        if tests:
            value = te.select(te.all(*tests), te.cast(value, x.dtype), border)
        return te.cast(value, "int32")

    def part(m: int) -> Tensor:
        def word(n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
            depth = range(U8S8.depth)
            return te.pack(*(element(n, h, w, U8S8.depth * m + d, c) for d in depth))

        return te.compute((n, oh, wide, channels), word, name="rows")

    parts = [part(m) for m in range(w.shape[0])]
    k = te.reduce_axis(columns, name="kw")

    def total(n: Expr, h: Expr, v: Expr, c: Expr) -> Expr:
        at = n, h, v * sw + k * dw, c
        value = te.dot_int8(parts[0][at], w[0, k, c])
        for m, other in enumerate(parts[1:], 1):
            value = value + te.dot_int8(other[at], w[m, k, c])
        return te.sum(value, axis=k)

    names = ("n", "h", "w", "c")
    return te.compute((n, oh, ow, channels), named(names, total), name="conv")


ROWS = Op(
    "rows_u8s8",
    "anchor",
    _rows_type,
    _rows_meaning,
    attrs=("strides", "pads", "dilations", "kernel", "layout", "border"),
    arity=(2, 2),
    tensor=_rows_tensor,
    names=("data", "weight"),
    work=lambda attrs, types, result: result.size * 2 * math.prod(ints(attrs, "kernel")),
    padded=padded_type,
)


def packed_rows(w: Array) -> Array:
    """int8 weights [kh, kw, 1, c] as words of four rows [kh / 4, kw, c]."""
    more = -w.shape[0] % U8S8.depth
    rows = np.pad(w[:, :, 0], [(0, more), (0, 0), (0, 0)])
    words = [packed_weights(U8S8, rows[:, k]) for k in range(rows.shape[1])]
    return np.stack(words, 1)


def _words_type(attrs: Attrs, types: Types) -> TensorType:
    """uint8 [n, c, *s] of at most four channels -> int32 [n, *s, 1], bytes of 0 for what lacks."""
    (x,) = types
    if x.dtype != U8S8.stored or x.rank < 3 or not 1 <= x.shape[1] <= U8S8.depth:
        raise ModelError(f"{x} has no channels of bytes that fill a word: one to four")
    return TensorType((x.shape[0], *x.shape[2:], 1), WORDS)


def _words(attrs: Attrs, xs: Arrays) -> Array:
    x = np.moveaxis(xs[0], 1, -1)
    more = [(0, 0)] * (x.ndim - 1) + [(0, U8S8.depth - x.shape[-1])]
    return np.ascontiguousarray(np.pad(x, more)).view(WORDS)


def _words_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    (x,) = xs

    def element(n: Expr, *at: Expr) -> Expr:
        found = [x[(n, c, *at[:-1])] for c in range(x.shape[1])]
        return te.pack(*found, *[te.const(0, WORDS)] * (U8S8.depth - len(found)))

    names = ("n", *spatial_names(len(x.shape) - 2), "c")
    return te.compute((x.shape[0], *x.shape[2:], 1), named(names, element), name="words")


def _winograd(attrs: Attrs, types: Types) -> tuple[Form, ...]:
    """Winograd's: of the numbers that data and weights are in float32, and in bfloat16 again.

    Transforms of tiles of 2 x 2 results add four numbers, so rounding after them costs about as
    much as rounding the data did; with larger tiles it would cost ten times as much.
    """
    if len(types) > 2:
        return ()
    plain = {**attrs, "groups": 1}

    def widened(form: Form) -> Form:
        def tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
            return form({**attrs, "groups": 1}, (_floats(xs[0]), weights(xs[1])))

        return replace(form, tensor=tensor, error=lambda w: form.error(BF16.unpacked(w)))

    wide = BF16.plain(types)
    forms = *conv.fast_forms(plain, wide, BF16.depth), *conv.bf16_forms(plain, wide)
    return tuple(map(widened, forms))


def _conv_in_float32(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    window = ints(attrs, "strides"), pairs(attrs, "pads"), ints(attrs, "dilations")
    return conv.conv_nhwc(xs[0], weights(xs[1]), *window)


def _floats(x: Tensor) -> Tensor:
    """float32 of bfloat16."""
    names = ("n", *spatial_names(len(x.shape) - 2), "c")
    element = named(names, lambda *at: te.bfloat16_value(x[at]))
    return te.compute(x.shape, element, name="floats")


def weights(w: Tensor) -> Tensor:
    """float32 [*k, n, columns] of packed weights [*k, n / 2, columns]."""
    *kernel, words, columns = w.shape

    def element(*at: Expr) -> Expr:
        *k, c, o = at
        return te.bfloat16_value(te.shift_right(w[(*k, c // 2, o)], c % 2 * 16))

    names = (*(f"k{d}" for d in range(len(kernel))), "c", "co")
    shape = (*kernel, 2 * words, columns)
    return te.compute(shape, named(names, element), name="weights")


# ---- elements -----------------------------------------------------------------------------------


def _to(wanted: str, made: str) -> ShapeFn:
    def shape(attrs: Attrs, types: Types) -> TensorType:
        if types[0].dtype != wanted:
            raise ModelError(f"{types[0]} is not {wanted}")
        return TensorType(types[0].shape, made)

    return shape


OPS = (
    Op(
        "to_bf16",
        "elementwise",
        _to("float32", BF16.stored),
        lambda attrs, xs: bits_of(xs[0]).reshape(np.shape(xs[0])),
        element=lambda attrs, xs: te.cast(te.bfloat16_bits(xs[0]), BF16.stored),
    ),
    Op(
        "from_bf16",
        "elementwise",
        _to(BF16.stored, "float32"),
        lambda attrs, xs: float_of(xs[0]),
        element=lambda attrs, xs: te.bfloat16_value(xs[0]),
        traits=("widens",),
    ),
    *map(_matmul, KINDS),
    *map(_conv, KINDS),
    SINGLE,
    ROWS,
    Op("words", "injective", _words_type, _words, tensor=_words_tensor, traits=("reads_once",)),
)
