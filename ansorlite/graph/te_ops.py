"""Operators as tensor expressions, channels last: what the search gets to see.

In: `Tensor`s and plain ints. Out: the result's `Tensor`; padding is a stage of its own and only
there if needed. Used by `partition` and by the workloads. Axis names are the field's: n, d, h, w,
c (co, ci for convolutions), kd, kh, kw. Paddings are one (before, after) pair per spatial axis.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.shapes import window_extent
from ansorlite.ir.expr import Expr
from ansorlite.ir.logic import combiner_identity
from ansorlite.te.tensor import ReduceAxis, Tensor

Pads = Sequence[tuple[int, int]]
Index = tuple[Any, ...]
SPATIAL = {1: ("w",), 2: ("h", "w"), 3: ("d", "h", "w")}


def named(names: Sequence[str], fn: Callable[..., Expr]) -> Callable[..., Expr]:
    """`fn` with `names` as its parameters: `te.compute` takes the names of the axes from them.

    Without names `fn` stays as it is.
    """
    if not names:
        return fn
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    setattr(fn, "__signature__", signature)  # noqa: B010 (a function has no such static attribute)
    return fn


def spatial_names(rank: int) -> tuple[str, ...]:
    """Names of `rank` spatial axes, or a ModelError beyond three."""
    if rank not in SPATIAL:
        raise ModelError(f"{rank} spatial axes: only 1, 2 and 3 are supported")
    return SPATIAL[rank]


def pad(x: Tensor, widths: Pads, value: float = 0.0, name: str = "pad") -> Tensor:
    """x with `widths` elements of `value` around it; x itself where all widths are 0."""
    if not any(lo or hi for lo, hi in widths):
        return x
    shape = [n + lo + hi for n, (lo, hi) in zip(x.shape, widths, strict=True)]

    def element(*i: Any) -> Expr:
        inside = []
        for at, n, (lo, hi) in zip(i, x.shape, widths, strict=True):
            inside += [at >= lo] * (lo > 0) + [at < lo + n] * (hi > 0)
        source = x[tuple(at - lo for at, (lo, _) in zip(i, widths, strict=True))]
        return te.select(te.all(*inside), source, te.const(value, x.dtype))

    names = ("n", *spatial_names(len(shape) - 2), "c") if 3 <= len(shape) <= 5 else ()
    return te.compute(shape, named(names, element), name=name)


def _window(
    x: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    fill: float = 0.0,
    ceil_mode: bool = False,
) -> tuple[Tensor, tuple[int, ...], tuple[ReduceAxis, ...], Callable[[Sequence[Any]], Index]]:
    """Padded data, output extents, reduction axes and the data index under an output index."""
    rows = list(zip(x.shape[1:-1], kernel, strides, dilations, pads, strict=True))
    out = tuple(window_extent(n, k, s, d, p, ceil_mode) for n, k, s, d, p in rows)
    widths = [(0, 0)]
    for (n, k, s, d, (lo, _)), o in zip(rows, out, strict=True):
        widths.append((lo, max(0, (o - 1) * s + (k - 1) * d + 1 - n - lo)))
    padded = pad(x, [*widths, (0, 0)], fill)
    names = spatial_names(len(kernel))
    axes = tuple(te.reduce_axis(k, name=f"k{n}") for k, n in zip(kernel, names, strict=True))

    def under(at: Sequence[Any]) -> Index:
        moved = zip(at, axes, strides, dilations, strict=True)
        return tuple(i * s + k * d for i, k, s, d in moved)

    return padded, out, axes, under


# (batch, place in the output, channel of the data, index of the weight) -> their product
Tap = Callable[[Any, Sequence[Any], Any, Index], Expr]


def _taps(
    x: Tensor,
    w: Tensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    guarded: bool,
) -> tuple[tuple[int, ...], tuple[ReduceAxis, ...], Tap]:
    """Output extents, reduction axes, and the products of a convolution.

    Weights over the border meet zeros there; with `guarded` they meet nothing, which is another
    thing for infinite ones and NaN.
    """
    padded, out, ks, under = _window(x, kernel, strides, pads, dilations)
    if not guarded:
        return out, ks, lambda n, at, c, index: padded[(n, *under(at), c)] * w[index]
    lows = [lo for lo, _ in pads]

    def product(n: Any, at: Sequence[Any], c: Any, index: Index) -> Expr:
        where = [i - lo for i, lo in zip(under(at), lows, strict=True)]
        inside = [te.all(i >= 0, i < e) for i, e in zip(where, x.shape[1:-1], strict=True)]
        return te.select(te.all(*inside), x[(n, *where, c)] * w[index], te.const(0.0, x.dtype))

    return out, ks, product


def conv_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co], any of 1, 2, 3 spatial axes."""
    *kernel, ci, co = w.shape
    out, ks, tap = _taps(x, w, kernel, strides, pads, dilations, guarded)
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        return te.sum(tap(n, at[:-1], c, (*ks, c, at[-1])), axis=[*ks, c])

    names = ("n", *spatial_names(len(kernel)), "co")
    return te.compute((x.shape[0], *out, co), named(names, element), name=name)


def grouped_conv_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, g*ci] and weight [*k, ci, g, co] -> [n, *out, g, co] (g*co channels)."""
    *kernel, ci, groups, co = w.shape
    out, ks, tap = _taps(x, w, kernel, strides, pads, dilations, guarded)
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        *s, g, o = at
        return te.sum(tap(n, s, g * ci + c, (*ks, c, g, o)), axis=[*ks, c])

    names = ("n", *spatial_names(len(kernel)), "g", "co")
    return te.compute((x.shape[0], *out, groups, co), named(names, element), name=name)


def depthwise_conv_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, c] and weight [*k, c] -> [n, *out, c]; weight [*k, c, m] -> [n, *out, c, m]."""
    rank = len(x.shape) - 2
    kernel, rest = w.shape[:rank], w.shape[rank:]
    out, ks, tap = _taps(x, w, kernel, strides, pads, dilations, guarded)

    def element(n: Any, *at: Any) -> Expr:
        s, channel = at[:rank], at[rank:]
        return te.sum(tap(n, s, channel[0], (*ks, *channel)), axis=ks)

    names = ("n", *spatial_names(rank), "c", "m")[: rank + 1 + len(rest)]
    return te.compute((x.shape[0], *out, *rest), named(names, element), name=name)


def conv_transpose_nhwc(
    x: Tensor,
    w: Tensor,
    strides: Sequence[int],
    pads: Pads,
    name: str = "conv",
    guarded: bool = False,
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co], out = (s-1)*stride - pads + k.

    Element h of the result sums data[(h + pad - k) / stride] * weight[k] where that is a whole
    number. Elements of one remainder h mod stride ("phase") use the same taps of the kernel, so
    the weights are regrouped by phase and no product with a zero between elements is left. Phases
    that have fewer taps than others leave the last ones out; with `guarded`, weights over the
    border meet nothing instead of zeros (see `_taps`).
    """
    *kernel, ci, co = w.shape
    rank = len(kernel)
    rows = list(zip(x.shape[1:-1], kernel, strides, pads, strict=True))
    out = [(n - 1) * s - lo - hi + k for n, k, s, (lo, hi) in rows]
    if min(out) < 1:
        raise ModelError(f"transposed convolution of extents {out}: its padding is too much")
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    tiles = [-(-o // s) for o, s in zip(out, strides, strict=True)]

    def tap(phase: Any, k: Any, s: int, lo: int) -> Any:
        return (phase + lo) % s + s * k

    def regrouped(*at: Any) -> Expr:
        phases, ks = at[:rank], at[rank : 2 * rank]
        where = [
            tap(a, j, s, lo) for a, j, (_, _, s, (lo, _)) in zip(phases, ks, rows, strict=True)
        ]
        value = w[(*where, *at[2 * rank :])]
        inside = [i < k for i, k, s in zip(where, kernel, strides, strict=True) if k % s]
        return te.select(te.all(*inside), value, te.const(0.0, w.dtype)) if inside else value

    names = spatial_names(rank)
    weight_names = (*(f"p{a}" for a in names), *(f"k{a}" for a in names), "ci", "co")
    by_phase = te.compute(
        (*strides, *taps, ci, co), named(weight_names, regrouped), name=f"{w.name}_phases"
    )
    widths = [(0, 0)]
    for (n, _, s, (lo, _)), j, t in zip(rows, taps, tiles, strict=True):
        before = max(0, j - 1 - lo // s)
        last = t - 1 + (s - 1 + lo) // s + before
        widths.append((before, max(0, last + 1 - before - n)))
    padded = pad(x, [*widths, (0, 0)])
    ks = tuple(te.reduce_axis(j, name=f"k{a}") for j, a in zip(taps, names, strict=True))
    c = te.reduce_axis(ci, name="ci")

    def element(n: Any, *at: Any) -> Expr:
        tile, phases = at[: 2 * rank : 2], at[1 : 2 * rank : 2]
        under, tests = [], []
        for t, a, j, (e, k, s, (lo, _)), (before, _) in zip(
            tile, phases, ks, rows, widths[1:], strict=True
        ):
            place = t + (a + lo) // s - j
            tests += [tap(a, j, s, lo) < k] if k % s else []
            tests += [place >= 0, place < e] if guarded else []
            under.append(place if guarded else place + before)
        source = x if guarded else padded
        product = source[(n, *under, c)] * by_phase[(*phases, *ks, c, at[-1])]
        if tests:
            product = te.select(te.all(*tests), product, te.const(0.0, x.dtype))
        return te.sum(product, [*ks, c])

    shape = [e for pair in zip(tiles, strides, strict=True) for e in pair]
    tile_names = tuple(e for a in names for e in (a, f"p{a}"))
    phased = te.compute(
        (x.shape[0], *shape, co), named(("n", *tile_names, "co"), element), name=f"{name}_phases"
    )

    def joined(n: Any, *at: Any) -> Expr:
        cut = [e for h, s in zip(at[:-1], strides, strict=True) for e in (h // s, h % s)]
        return phased[(n, *cut, at[-1])]

    return te.compute((x.shape[0], *out, co), named(("n", *names, "co"), joined), name=name)


def conv2d_nhwc(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """data [n, h, w, ci] and weight [kh, kw, ci, co] with the same stride, padding both ways."""
    return conv_nhwc(x, w, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def grouped_conv2d_nhwc(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """data [n, h, w, g*ci] and weight [kh, kw, ci, g, co] -> [n, oh, ow, g, co]."""
    return grouped_conv_nhwc(x, w, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def depthwise_conv2d_nhwc(
    x: Tensor, w: Tensor, stride: int = 1, padding: int = 0, dilation: int = 1
) -> Tensor:
    """data [n, h, w, c] and weight [kh, kw, c] -> [n, oh, ow, c]."""
    return depthwise_conv_nhwc(x, w, (stride,) * 2, ((padding, padding),) * 2, (dilation,) * 2)


def dense(x: Tensor, w: Tensor, name: str = "dense") -> Tensor:
    """[m, k] x [k, n] -> [m, n]."""
    k = te.reduce_axis(x.shape[1], name="k")
    shape = (x.shape[0], w.shape[1])
    return te.compute(shape, lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name=name)


def batch_matmul(
    a: Tensor,
    b: Tensor,
    perm_a: Sequence[int] | None = None,
    perm_b: Sequence[int] | None = None,
    perm_out: Sequence[int] | None = None,
    name: str = "matmul",
) -> Tensor:
    """[..., m, k] x [..., k, n] with broadcast leading axes -> [..., m, n].

    With `perm_a` (`perm_b`) the operand is transpose(a, perm_a), read where it lies; with
    `perm_out` the result is transpose(product, perm_out).
    """
    view_a = tuple(a.shape[p] for p in perm_a or range(len(a.shape)))
    view_b = tuple(b.shape[p] for p in perm_b or range(len(b.shape)))
    if view_a[-1] != view_b[-2]:
        raise ModelError(f"cannot multiply {list(view_a)} and {list(view_b)}: inner extents differ")
    lead = max(len(view_a), len(view_b)) - 2
    full_a = (1,) * (lead + 2 - len(view_a)) + view_a
    full_b = (1,) * (lead + 2 - len(view_b)) + view_b
    batch = tuple(max(p, q) for p, q in zip(full_a[:lead], full_b[:lead], strict=True))
    k = te.reduce_axis(view_a[-1], name="k")

    def read(x: Tensor, perm: Sequence[int] | None, view: tuple[int, ...], at: Any) -> Expr:
        lead_at = at[len(at) - len(view) : -2]
        whole = zip(view[:-2], batch[lead - len(lead_at) :], lead_at, strict=True)
        logical = [*(i if n == full else 0 for n, full, i in whole), *at[-2:]]
        stored: list[Any] = [0] * len(view)
        for position, axis in enumerate(perm or range(len(view))):
            stored[axis] = logical[position]
        return x[tuple(stored)]

    order = tuple(perm_out or range(lead + 2))

    def element(*at: Any) -> Expr:
        *lead_at, i, j = (at[order.index(d)] for d in range(lead + 2))
        left = read(a, perm_a, view_a, (*lead_at, i, k))
        return te.sum(left * read(b, perm_b, view_b, (*lead_at, k, j)), axis=k)

    names = (*(("b",) if lead == 1 else tuple(f"b{d}" for d in range(lead))), "i", "j")
    shape = (*batch, view_a[-2], view_b[-1])
    placed = tuple(shape[d] for d in order), [names[d] for d in order]
    return te.compute(placed[0], named(placed[1], element), name=name)


def pool_nhwc(
    x: Tensor,
    combiner: str,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Pads,
    dilations: Sequence[int],
    ceil_mode: bool = False,
    name: str = "pool",
) -> Tensor:
    """data [n, *s, c] -> [n, *out, c]: "max" or "sum" of each window; padding does not count."""
    fill = combiner_identity("max", x.dtype).value if combiner == "max" else 0
    padded, out, ks, under = _window(x, kernel, strides, pads, dilations, fill, ceil_mode)

    def element(n: Any, *at: Any) -> Expr:
        value = padded[(n, *under(at[:-1]), at[-1])]
        return te.max(value, axis=ks) if combiner == "max" else te.sum(value, axis=ks)

    names = ("n", *spatial_names(len(kernel)), "c")
    return te.compute((x.shape[0], *out, x.shape[-1]), named(names, element), name=name)


def max_pool2d(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """data [n, h, w, c] -> [n, oh, ow, c]."""
    pads = ((padding, padding),) * 2
    return pool_nhwc(x, "max", (kernel,) * 2, (stride,) * 2, pads, (1, 1))


def avg_pool2d(x: Tensor, kernel: int, stride: int, padding: int = 0) -> Tensor:
    """data [n, h, w, c] -> [n, oh, ow, c]; padding counts as zeros."""
    pads = ((padding, padding),) * 2
    total = pool_nhwc(x, "sum", (kernel,) * 2, (stride,) * 2, pads, (1, 1))
    return te.compute(total.shape, lambda n, h, w, c: total[n, h, w, c] * (1.0 / kernel**2), "mean")


def global_avg_pool(x: Tensor) -> Tensor:
    """data [n, *s, c] -> [n, c]."""
    total = reduce(x, "sum", range(1, len(x.shape) - 1))
    count = math.prod(x.shape[1:-1])
    return te.compute(total.shape, lambda n, c: total[n, c] * (1.0 / count), name="mean")


COMBINERS: dict[str, Callable[..., Expr]] = {"sum": te.sum, "max": te.max, "min": te.min}


def _reduced(
    shape: Sequence[int], axes: Sequence[int]
) -> tuple[tuple[int, ...], list[int], tuple[ReduceAxis, ...]]:
    """Extents of the result (at least one), axes that stay, and the reduction axes."""
    kept = [d for d in range(len(shape)) if d not in axes]
    names = ("k",) if len(axes) == 1 else tuple(f"k{d}" for d in axes)
    ks = tuple(te.reduce_axis(shape[d], name=n) for d, n in zip(axes, names, strict=True))
    return tuple(shape[d] for d in kept) or (1,), kept, ks


def _merge(
    rank: int, kept: Sequence[int], at: Sequence[Any], axes: Sequence[int], ks: Sequence[ReduceAxis]
) -> Index:
    index: list[Any] = [0] * rank
    for d, i in zip(kept, at, strict=False):
        index[d] = i
    for d, k in zip(axes, ks, strict=True):
        index[d] = k
    return tuple(index)


def reduce(x: Tensor, combiner: str, axes: Sequence[int], name: str = "reduce") -> Tensor:
    """x combined over `axes`, which leave the shape; a full reduction has shape [1]."""
    shape, kept, ks = _reduced(x.shape, axes)
    combine, rank = COMBINERS[combiner], len(x.shape)
    return te.compute(
        shape, lambda *i: combine(x[_merge(rank, kept, i, axes, ks)], axis=ks), name=name
    )


def softmax(x: Tensor, axes: Sequence[int], name: str = "softmax") -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over `axes`, in four stages."""
    shape, kept, ks = _reduced(x.shape, axes)
    rank = len(x.shape)
    high = te.compute(
        shape, lambda *i: te.max(x[_merge(rank, kept, i, axes, ks)], axis=ks), name=f"{name}_max"
    )

    def rows(i: Sequence[Any]) -> Index:
        return tuple(i[d] for d in kept) or (0,)

    e = te.compute(x.shape, lambda *i: te.exp(x[i] - high[rows(i)]), name=f"{name}_exp")
    _, _, js = _reduced(x.shape, axes)
    total = te.compute(
        shape, lambda *i: te.sum(e[_merge(rank, kept, i, axes, js)], axis=js), name=f"{name}_sum"
    )
    return te.compute(x.shape, lambda *i: e[i] / total[rows(i)], name=name)


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


def transpose(x: Tensor, perm: Sequence[int], name: str = "transpose") -> Tensor:
    """Axis d of the result is axis perm[d] of x."""
    inverse = [list(perm).index(d) for d in range(len(perm))]
    shape = [x.shape[p] for p in perm]
    return te.compute(shape, lambda *i: x[tuple(i[d] for d in inverse)], name=name)


def concat(xs: Sequence[Tensor], axis: int, name: str = "concat") -> Tensor:
    """The tensors one after the other along `axis`."""
    starts = [sum(x.shape[axis] for x in xs[:d]) for d in range(len(xs))]
    first = xs[0].shape
    shape = (*first[:axis], sum(x.shape[axis] for x in xs), *first[axis + 1 :])

    def element(*i: Any) -> Expr:
        parts = [
            x[(*i[:axis], i[axis] - start, *i[axis + 1 :])]
            for x, start in zip(xs, starts, strict=True)
        ]
        value = parts[-1]
        for part, end in zip(parts[-2::-1], starts[:0:-1], strict=True):
            value = te.select(i[axis] < end, part, value)
        return value

    return te.compute(shape, element, name=name)


def slice_(
    x: Tensor,
    starts: Sequence[int],
    sizes: Sequence[int],
    steps: Sequence[int],
    name: str = "slice",
) -> Tensor:
    """Element i of an axis is element start + i*step of x."""
    rows = list(zip(starts, steps, strict=True))
    return te.compute(
        sizes,
        lambda *i: x[tuple(s + at * t for at, (s, t) in zip(i, rows, strict=True))],
        name=name,
    )


def expand(x: Tensor, shape: Sequence[int], name: str = "expand") -> Tensor:
    """x broadcast to `shape`."""
    missing = len(shape) - len(x.shape)

    def element(*i: Any) -> Expr:
        own = zip(i[missing:], x.shape, shape[missing:], strict=True)
        return x[tuple(at if n == full else 0 for at, n, full in own)]

    return te.compute(shape, element, name=name)


def _clamped(at: Expr, extent: int) -> Expr:
    """A position from the end where it is negative; never outside of the extent."""
    first, last = te.const(0, at.dtype), te.const(extent - 1, at.dtype)
    at = te.select(at < first, at + te.const(extent, at.dtype), at)
    return te.minimum(te.maximum(at, first), last)


def take(x: Tensor, indices: Tensor, axis: int, name: str = "take") -> Tensor:
    """Element i of `axis` is element indices[i] of x, from the end where negative; clamped."""

    def element(*i: Any) -> Expr:
        return x[(*i[:axis], _clamped(indices[i[axis]], x.shape[axis]), *i[axis + 1 :])]

    shape = (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :])
    return te.compute(shape, element, name=name)


def resample(
    x: Tensor, indices: Tensor, weights: Tensor, axis: int, name: str = "resample"
) -> Tensor:
    """Element i of `axis` is the sum over t of x[indices[i, t]] * weights[i, t]."""
    t = te.reduce_axis(indices.shape[1], name="t")

    def element(*i: Any) -> Expr:
        at = _clamped(indices[i[axis], t], x.shape[axis])
        return te.sum(x[(*i[:axis], at, *i[axis + 1 :])] * weights[i[axis], t], axis=t)

    shape = (*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :])
    return te.compute(shape, element, name=name)
