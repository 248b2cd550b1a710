"""Products of bfloat16 beyond `low_precision`: of two activations, transposed, in single channels.

Data is stored as the bits of bfloat16, uint16, and sums are float32. `product_bf16` multiplies two
activations, `conv_transpose_bf16` has packed weights, `conv_read_bf16` multiplies in float32 what
it reads: in groups, and for an odd number of channels, where the search decides between that and
pairs over a row of pixels or over one channel more.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops import conv, conv_transpose, matmul
from ansorlite.graph.ops.low_precision import BF16, weights
from ansorlite.graph.ops.movement import spatial_names
from ansorlite.graph.ops.op import Arrays, Op, Perm, TensorFn, Types, named
from ansorlite.graph.ops.windows import padded_type, window
from ansorlite.graph.types import Array, Attrs, TensorType, integer, ints, pairs
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor


def _floats(types: Types) -> Types:
    """The types of the numbers that operands of bits are."""
    for t in types:
        if t.dtype not in (BF16.stored, "float32"):
            raise ModelError(f"{t} is neither bits of bfloat16 nor float32")
    return tuple(TensorType(t.shape, "float32") for t in types)


def _read(x: Array) -> Array:
    return BF16.data(x) if np.asarray(x).dtype == BF16.stored else x


# ---- products of two activations ----------------------------------------------------------------


def _product(
    a: Tensor,
    b: Tensor,
    perm_a: Perm | None = None,
    perm_b: Perm | None = None,
    order: Perm | None = None,
) -> Tensor:
    """[.., m, k] x [.., k, n], both bits, behind transposes: pairs along k, the last with a zero.

    The pairs of the right operand are a stage of their own, [.., k / 2, n].
    """
    view_b = tuple(b.shape[p] for p in perm_b or range(len(b.shape)))
    k = view_b[-2]

    def pair(read: Callable[[Any], Expr], n: Any) -> Expr:
        second = read(2 * n + 1)
        if k % 2:
            second = te.select(2 * n + 1 < k, second, te.const(0, second.dtype))
        return te.pack(read(2 * n), te.cast(second, BF16.stored) if k % 2 else second)

    def words(*at: Expr) -> Expr:
        def read(n: Any) -> Expr:
            logical, stored = [*at[:-2], n, at[-1]], list[Any]([0] * len(at))
            for place, axis in enumerate(perm_b or range(len(at))):
                stored[axis] = logical[place]
            return b[tuple(stored)]

        return pair(read, at[-2])

    lead = tuple(f"b{d}" for d in range(len(view_b) - 2))
    shape = (*view_b[:-2], -(-k // 2), view_b[-1])
    right = te.compute(shape, named((*lead, "k", "j"), words), name="words")

    def term(x: Callable[[Any], Expr], y: Callable[[Any], Expr], n: Any) -> Expr:
        return te.dot_bfloat16(pair(x, n), y(n))

    return matmul.batch_matmul(a, right, perm_a, None, order, term=term, depth=2)


def _product_transposed(
    xs: Sequence[Tensor], perms: Sequence[Perm | None], order: Perm | None
) -> Tensor:
    return _product(xs[0], xs[1], perms[0], perms[1], order)


# ---- transposed convolutions --------------------------------------------------------------------


def _transposed_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    def term(x: Tensor, at: Sequence[Any], c: Any, weight: Callable[[], Expr]) -> Expr:
        return te.dot_bfloat16(BF16.words(x, tuple(at), c), weight())

    strides, pads = ints(attrs, "strides"), pairs(attrs, "pads")
    return conv_transpose.conv_transpose_nhwc(xs[0], xs[1], strides, pads, term=term)


def _transposed_in_float32(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    def term(x: Tensor, at: Sequence[Any], c: Any, weight: Callable[[], Expr]) -> Expr:
        return te.bfloat16_value(x[(*at, c)]) * weight()

    strides, pads = ints(attrs, "strides"), pairs(attrs, "pads")
    return conv_transpose.conv_transpose_nhwc(xs[0], weights(xs[1]), strides, pads, term=term)


def _transposed_meaning(attrs: Attrs, xs: Arrays) -> Array:
    return conv_transpose._meaning(attrs, (BF16.data(xs[0]), BF16.unpacked(xs[1])))


# ---- convolutions in float32 of stored bfloat16 --------------------------------------------------


def _read_type(attrs: Attrs, types: Types) -> TensorType:
    x = types[0]
    if x.dtype != BF16.stored:
        raise ModelError(f"{x} is no bits of bfloat16")
    return conv._type(attrs, _floats(types))


def _read_forms(attrs: Attrs, types: Types) -> tuple[TensorFn, ...]:
    """For weights of bfloat16: pairs of neighbours in a row of pixels, and of channels."""
    x, w = types[0].shape, types[1].shape
    if integer(attrs, "groups") != 1 or types[1].dtype != BF16.stored:
        return ()
    ci, stride, dilation = x[-1], ints(attrs, "strides")[-1], ints(attrs, "dilations")[-1]
    in_rows = (stride * ci) % 2 == 0 and dilation == 1 and w[-3] > 1
    return (*((_in_rows,) if in_rows else ()), *((_with_a_channel,) if ci % 2 else ()))


def _in_rows(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    """Pixels and channels of a row as one axis: a window is a run of it, summed in pairs."""
    x, w = xs
    *kernel, ci, co = w.shape
    taps = kernel[-1] * ci
    lows = pairs(attrs, "pads")
    plain = ints(attrs, "strides"), lows, ints(attrs, "dilations")
    _, out, ks, under = window(x, kernel, *plain)
    n = -(-taps // 2)
    step = ints(attrs, "strides")[-1] * ci  # even: each window begins with a pair
    spatial = [
        (o - 1) * s + (k - 1) * d + 1
        for o, s, k, d in zip(out, plain[0], kernel, plain[2], strict=True)
    ]
    length = (out[-1] - 1) * step + 2 * n

    def border(b: Expr, *at: Expr) -> Expr:
        *lead, run = at
        where = [*(i - lo for i, (lo, _) in zip(lead, lows, strict=False)), run // ci - lows[-1][0]]
        inside = [te.all(i >= 0, i < e) for i, e in zip(where, x.shape[1:-1], strict=True)]
        value = te.select(te.all(*inside), x[(b, *where, run % ci)], te.const(0, x.dtype))
        return te.cast(value, str(x.dtype))

    axes = spatial_names(len(kernel))
    rows = te.compute((x.shape[0], *spatial[:-1], length), named(("n", *axes), border), name="rows")

    def packed(*at: Expr) -> Expr:
        *lead, word, o = at

        def bits(t: Any) -> Expr:
            value = w[(*lead, t // ci, t % ci, o)]
            if taps % 2:
                value = te.cast(te.select(t < taps, value, te.const(0, BF16.stored)), BF16.stored)
            return value

        return te.pack(bits(2 * word), bits(2 * word + 1))

    shape = (*kernel[:-1], n, co)
    names = (*(f"k{a}" for a in axes[:-1]), "word", "co")
    words = te.compute(shape, named(names, packed), name="words")
    c = te.reduce_axis(n, name="word")

    def element(b: Expr, *at: Expr) -> Expr:
        place = under(at[:-1])[:-1]
        first = at[-2] * step + 2 * c
        pair = te.pack(rows[(b, *place, first)], rows[(b, *place, first + 1)])
        return te.sum(te.dot_bfloat16(pair, words[(*ks[:-1], c, at[-1])]), axis=[*ks[:-1], c])

    return te.compute((x.shape[0], *out, co), named(("n", *axes, "co"), element), name="conv")


def _with_a_channel(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    """One channel of zeros more, so that channels are pairs."""
    x, w = xs
    *kernel, ci, co = w.shape
    strides, pads = ints(attrs, "strides"), pairs(attrs, "pads")
    padded, out, ks, under = window(x, kernel, strides, pads, ints(attrs, "dilations"))
    axes = spatial_names(len(kernel))

    def more(b: Expr, *at: Expr) -> Expr:
        value = te.select(at[-1] < ci, padded[(b, *at)], te.const(0, x.dtype))
        return te.cast(value, str(x.dtype))

    shape = (*padded.shape[:-1], ci + 1)
    wide = te.compute(shape, named(("n", *axes, "c"), more), name="wide")

    def packed(*at: Expr) -> Expr:
        *lead, word, o = at
        second = w[(*lead, 2 * word + 1, o)]
        last = te.select(2 * word + 1 < ci, second, te.const(0, BF16.stored))
        return te.pack(w[(*lead, 2 * word, o)], te.cast(last, BF16.stored))

    names = (*(f"k{a}" for a in axes), "word", "co")
    words = te.compute((*kernel, (ci + 1) // 2, co), named(names, packed), name="words")
    c = te.reduce_axis((ci + 1) // 2, name="ci")

    def element(b: Expr, *at: Expr) -> Expr:
        data = BF16.words(wide, (b, *under(at[:-1])), c)
        return te.sum(te.dot_bfloat16(data, words[(*ks, c, at[-1])]), axis=[*ks, c])

    return te.compute((x.shape[0], *out, co), named(("n", *axes, "co"), element), name="conv")


def _numbers(w: Tensor) -> Tensor:
    """float32 of weights of bits."""
    names = (*(f"k{d}" for d in range(len(w.shape) - 2)), "c", "co")
    element = named(names, lambda *at: te.bfloat16_value(w[at]))
    return te.compute(w.shape, element, name="floats")


def _read_tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    x, w = xs
    if w.dtype == BF16.stored:
        w = _numbers(w)
    if len(x.shape) > 2:
        return conv._tensor(attrs, (x, w))
    k = te.reduce_axis(w.shape[0], name="k")  # a product of pixels and weights

    def element(i: Expr, j: Expr) -> Expr:
        return te.sum(te.bfloat16_value(x[i, k]) * w[k, j], axis=k)

    return te.compute((x.shape[0], w.shape[1]), element, name="conv")


OPS = (
    Op(
        "product_bf16",
        "anchor",
        lambda attrs, types: matmul._matmul_type(attrs, _floats(types)),
        lambda attrs, xs: matmul._matmul(attrs, (_read(xs[0]), _read(xs[1]))),
        arity=(2, 2),
        tensor=lambda attrs, xs: _product(xs[0], xs[1]),
        views=matmul._matmul_views,
        transposed=_product_transposed,
        names=("data", "weight"),
        traits=("rounded_sum",),
        work=matmul._matmul_work,
    ),
    Op(
        "conv_transpose_bf16",
        "anchor",
        lambda attrs, types: conv_transpose._type(attrs, BF16.plain(types)),
        _transposed_meaning,
        attrs=("strides", "pads", "layout"),
        arity=(2, 2),
        tensor=_transposed_tensor,
        in_float32=_transposed_in_float32,
        names=("data", "weight"),
        traits=("rounded_sum",),
        work=lambda attrs, types, result: conv_transpose._work(attrs, BF16.plain(types), result),
    ),
    Op(
        "conv_read_bf16",
        "anchor",
        _read_type,
        lambda attrs, xs: conv._meaning(attrs, (BF16.data(xs[0]), _read(xs[1]))),
        attrs=("strides", "pads", "dilations", "groups", "layout"),
        arity=(2, 2),
        tensor=_read_tensor,
        views=conv._views,
        forms=_read_forms,
        names=("data", "weight"),
        traits=("rounded_sum",),
        work=conv._work,
        padded=padded_type,
    ),
)
