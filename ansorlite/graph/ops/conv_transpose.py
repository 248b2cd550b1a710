"""Transposed convolutions: data [n, c, *s] and weight [c, co, *k]; extents (s - 1) * stride + k.

Channels last: data [n, *s, c] and weight [*k, c, co]. The padding is taken off the result; after
the data it may be negative. The ONNX reader writes groups and dilations as a convolution.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.conv_forms import Layer, best_axes, form_of
from ansorlite.graph.ops.movement import Pads, pad, spatial_names
from ansorlite.graph.ops.op import Arrays, Form, Op, Orders, Placed, Types, named, wide
from ansorlite.graph.ops.windows import (
    channel_axis,
    channels_back,
    channels_last,
    check_channels_last,
    data_shape,
    spatial_axes,
    windows_attrs,
    windows_perm,
)
from ansorlite.graph.types import (
    Array,
    Attrs,
    TensorType,
    ints,
    pairs,
    same_dtype,
    text,
    type_of,
)
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor


def _type(attrs: Attrs, types: Types) -> TensorType:
    x, w = types
    if w.rank != x.rank or x.rank < 3:
        raise ModelError(f"data {x} and weight {w} need the same rank, at least 3")
    first = text(attrs, "layout") == "channels_first"
    channels = x.shape[channel_axis(attrs, x.rank)]
    ci, co = (w.shape[0], w.shape[1]) if first else (w.shape[-2], w.shape[-1])
    if channels != ci:
        raise ModelError(f"weight {w} wants {ci} input channels; data {x} has {channels}")
    axes, kernel = spatial_axes(attrs, x.rank), w.shape[2:] if first else w.shape[:-2]
    strides, pad = ints(attrs, "strides"), pairs(attrs, "pads")
    if not len(strides) == len(pad) == len(axes) or min(strides) < 1:
        raise ModelError(f"data {x} needs {len(axes)} strides and pads")
    rows = zip(axes, kernel, strides, pad, strict=True)
    out = tuple((x.shape[a] - 1) * s + k - sum(p) for a, k, s, p in rows)
    if min(out) < 1:
        raise ModelError(f"extents {list(out)} of the result: the padding is too much")
    return TensorType(data_shape(attrs, x.shape[0], out, co), same_dtype(types))


def _meaning(attrs: Attrs, xs: Arrays) -> Array:
    """For each element of the data, that element times the kernel is added to the result."""
    x, w = xs
    result = np.empty(_type(attrs, tuple(map(type_of, xs))).shape, "b")
    spatial = channels_last(attrs, result).shape[1:-1]
    first = text(attrs, "layout") == "channels_first"
    w = wide(np.moveaxis(w, (0, 1), (-2, -1)) if first else w)
    data, strides, pad = wide(channels_last(attrs, x)), ints(attrs, "strides"), pairs(attrs, "pads")
    *kernel, _, co = w.shape
    rows = list(zip(data.shape[1:-1], kernel, strides, strict=True))
    ends = [
        max(o + lo, (n - 1) * s + k)
        for o, (lo, _), (n, k, s) in zip(spatial, pad, rows, strict=True)
    ]
    low = [max(0, -lo) for lo, _ in pad]
    whole = (e + b for e, b in zip(ends, low, strict=True))
    acc = np.zeros((data.shape[0], *whole, co), data.dtype)
    for offset in itertools.product(*(range(k) for k in kernel)):
        at = [
            slice(b + k, b + k + (n - 1) * s + 1, s)
            for b, k, (n, _, s) in zip(low, offset, rows, strict=True)
        ]
        acc[(slice(None), *at)] += data @ w[offset]
    cut = [slice(lo + b, lo + b + o) for o, (lo, _), b in zip(spatial, pad, low, strict=True)]
    return channels_back(attrs, acc[(slice(None), *cut)].astype(x.dtype))


# ---- expression ---------------------------------------------------------------------------------


class _Axis(NamedTuple):
    """One spatial axis, its result cut into tiles of `stride` elements, one for each phase.

    Element `tile * stride + phase` of the result reads taps `(phase + low) % stride + stride * j`
    of the kernel, j below `taps`, at data elements `tile + (phase + low) // stride - j`.
    """

    name: str
    extent: int  # of the data
    kernel: int
    stride: int
    low: int  # padding before the data
    out: int

    @property
    def taps(self) -> int:
        """Taps of the kernel of each phase; some phases have one less."""
        return -(-self.kernel // self.stride)

    @property
    def tiles(self) -> int:
        return -(-self.out // self.stride)

    @property
    def padding(self) -> tuple[int, int]:
        """Elements before and after the data that some phase reads."""
        before = max(0, self.taps - 1 - self.low // self.stride)
        last = self.tiles - 1 + (self.stride - 1 + self.low) // self.stride
        return before, max(0, last + 1 - self.extent)

    def tap(self, phase: Any, j: Any) -> Any:
        return (phase + self.low) % self.stride + self.stride * j

    def place(self, tile: Any, phase: Any, j: Any) -> Any:
        return tile + (phase + self.low) // self.stride - j


# (data, place, channel, weight) -> their product; what is read first is the first operand
Term = Callable[[Tensor, Sequence[Any], Any, Callable[[], Expr]], Expr]


def plain_term(x: Tensor, at: Sequence[Any], c: Any, weight: Callable[[], Expr]) -> Expr:
    return x[(*at, c)] * weight()


def conv_transpose_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    name: str = "conv",
    guarded: bool = False,
    term: Term = plain_term,
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co], out = (s-1)*stride - pads + k.

    Element h of the result sums data[(h + pad - k) / stride] * weight[k] where that is a whole
    number. Elements of one remainder h mod stride ("phase") use the same taps of the kernel, so
    the weights are regrouped by phase and no product with a zero between elements is left. Phases
    with fewer taps leave out the last ones. With `guarded`, products with elements outside of the
    data are left out; otherwise they are weights times 0. `term` is the product of data at a place
    and a channel and of the weight of this channel, which may stand for several.
    """
    *kernel, _, co = w.shape
    rows = list(zip(x.shape[1:-1], kernel, strides, pads, strict=True))
    out = [(n - 1) * s - lo - hi + k for n, k, s, (lo, hi) in rows]
    if min(out) < 1:
        raise ModelError(f"transposed convolution of extents {out}: its padding is too much")
    axes = [
        _Axis(a, n, k, s, lo, o)
        for a, (n, k, s, (lo, _)), o in zip(spatial_names(len(kernel)), rows, out, strict=True)
    ]
    phased = _phases(x, _weight_phases(w, axes), axes, f"{name}_phases", guarded, term)

    def joined(n: Any, *at: Any) -> Expr:
        cut = [e for h, a in zip(at[:-1], axes, strict=True) for e in (h // a.stride, h % a.stride)]
        return phased[(n, *cut, at[-1])]

    names = ("n", *(a.name for a in axes), "co")
    return te.compute((x.shape[0], *out, co), named(names, joined), name=name)


def _weight_phases(w: Tensor, axes: Sequence[_Axis]) -> Tensor:
    """weight [*k, ci, co] -> [*phases, *taps, ci, co]; zeros where a phase has fewer taps."""
    rank = len(axes)

    def element(*at: Any) -> Expr:
        phases, js = at[:rank], at[rank : 2 * rank]
        where = [a.tap(p, j) for a, p, j in zip(axes, phases, js, strict=True)]
        value = w[(*where, *at[2 * rank :])]
        zero = te.const(0.0 if w.dtype.startswith("float") else 0, w.dtype)
        inside = [i < a.kernel for i, a in zip(where, axes, strict=True) if a.kernel % a.stride]
        return te.select(te.all(*inside), value, zero) if inside else value

    names = (*(f"p{a.name}" for a in axes), *(f"k{a.name}" for a in axes), "ci", "co")
    shape = (*(a.stride for a in axes), *(a.taps for a in axes), *w.shape[-2:])
    return te.compute(shape, named(names, element), name=f"{w.name}_phases")


def _phases(
    x: Tensor, w: Tensor, axes: Sequence[_Axis], name: str, guarded: bool, term: Term
) -> Tensor:
    """data [n, *s, ci] and weight [*phases, *taps, ci, co] -> [n, tile, phase, ..., co]."""
    rank, (ci, co) = len(axes), w.shape[-2:]
    source = x if guarded else pad(x, [(0, 0), *(a.padding for a in axes), (0, 0)])
    ks = tuple(te.reduce_axis(a.taps, name=f"k{a.name}") for a in axes)
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        tiles, phases = at[: 2 * rank : 2], at[1 : 2 * rank : 2]
        under, tests = [], []
        for a, tile, phase, j in zip(axes, tiles, phases, ks, strict=True):
            place = a.place(tile, phase, j)
            tests += [a.tap(phase, j) < a.kernel] if a.kernel % a.stride else []
            tests += [place >= 0, place < a.extent] if guarded else []
            under.append(place if guarded else place + a.padding[0])
        product = term(source, (n, *under), c, lambda: w[(*phases, *ks, c, at[-1])])
        if tests:
            product = te.select(te.all(*tests), product, te.const(0.0, product.dtype))
        return te.sum(product, [*ks, c])

    names = tuple(e for a in axes for e in (a.name, f"p{a.name}"))
    shape = [e for a in axes for e in (a.tiles, a.stride)]
    return te.compute((x.shape[0], *shape, co), named(("n", *names, "co"), element), name=name)


def _tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    check_channels_last(attrs)
    strides, pads = ints(attrs, "strides"), pairs(attrs, "pads")
    guarded = bool(attrs.get("guarded"))
    return conv_transpose_nhwc(xs[0], xs[1], strides, pads, guarded=guarded)


def _forms(attrs: Attrs, types: Types) -> tuple[Form, ...]:
    """By fast algorithms for the phases of the stride."""
    x, w = types
    *kernel, ci, co = w.shape
    strides, low = ints(attrs, "strides"), tuple(lo for lo, _ in pairs(attrs, "pads"))
    out = _type(attrs, (TensorType(x.shape), TensorType(w.shape))).shape[1:-1]
    layer = Layer(tuple(kernel), strides, (1,) * len(kernel), out, (ci, co), low)
    nothing = ((0, 0),) * len(kernel)
    return tuple(form_of(layer, axes, nothing, out=out) for axes in best_axes(layer))


def _guard(attrs: Attrs, known: Sequence[Array | None]) -> Attrs:
    """Products outside of the data are left out, as in ONNX's reference: 0 * inf is NaN.

    For weights that are known and finite, zeros give the same result and are faster.
    """
    w = known[1]
    if w is not None and bool(np.isfinite(w).all()):
        return attrs
    return {**attrs, "guarded": True}


def _layout(attrs: Attrs, types: Types, orders: Orders) -> Placed | None:
    if attrs["layout"] == "channels_last":
        return None
    data = windows_perm(orders, types[0].rank)
    return Placed((data, (*data[1:-1], 0, 1)), data, windows_attrs(attrs, data))


def _scaled_by(attrs: Attrs, types: Types) -> tuple[int, int]:
    rank = types[0].rank
    first = text(attrs, "layout") == "channels_first"
    return channel_axis(attrs, rank), 1 if first else rank - 1


def _work(attrs: Attrs, types: Types, result: TensorType) -> int:
    x, w = types
    return x.size + w.size + x.size * (w.size // (min(w.shape) or 1))


OPS = (
    Op(
        "conv_transpose",
        "anchor",
        _type,
        _meaning,
        attrs=("strides", "pads", "layout"),
        arity=(2, 2),
        tensor=_tensor,
        forms=_forms,
        refine=_guard,
        layout=_layout,
        scaled_by=_scaled_by,
        traits=("rounded_sum",),
        work=_work,
    ),
)
