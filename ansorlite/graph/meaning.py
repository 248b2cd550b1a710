"""What each operator means, in numpy: the reference that passes and kernels are held against.

In: attributes and arrays. Out: an array of the operands' dtype. Sums accumulate in float64 and are
rounded once. Convolutions and pools add up one shifted view per kernel offset, so that a network
of a few GFLOP takes seconds.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.graph import shapes
from ansorlite.graph.types import (
    Array,
    Attrs,
    integer,
    ints,
    literal,
    number,
    pairs,
    text,
    type_of,
)
from ansorlite.ir.logic import combiner_identity

Arrays = tuple[Any, ...]
Float = npt.NDArray[np.floating[Any]]


def _wide(x: Array) -> Any:
    """Floating-point arrays as float64; integers stay."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def relu(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(np.maximum(xs[0], xs[0].dtype.type(0)))


def leaky_relu(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    with np.errstate(all="ignore"):
        return np.asarray(np.where(x < 0, x * x.dtype.type(number(attrs, "alpha")), x))


def bound(value: float, dtype: str) -> float:
    """A limit as a number of the dtype; of integers one beyond their range is the range's end."""
    if dtype.startswith("float"):
        return value
    info = np.iinfo(dtype)
    if math.isinf(value):
        return int(info.max if value > 0 else info.min)
    return min(max(int(value), int(info.min)), int(info.max))


def clip(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    low, high = (bound(literal(attrs, k), str(x.dtype)) for k in ("min", "max"))
    return np.asarray(np.minimum(np.maximum(x, x.dtype.type(low)), x.dtype.type(high)))


def sigmoid(attrs: Attrs, xs: Arrays) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray((1.0 / (1.0 + np.exp(-_wide(xs[0])))).astype(xs[0].dtype))


def erf(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    flat = np.fromiter(map(math.erf, x.ravel().tolist()), dtype=np.float64, count=x.size)
    return flat.reshape(x.shape).astype(x.dtype)


def divide(attrs: Attrs, xs: Arrays) -> Array:
    """Integers truncate towards zero, as in ONNX; an integer divided by zero is zero."""
    a, b = xs
    with np.errstate(all="ignore"):
        if a.dtype.kind == "f":
            return np.asarray(a / b)
        down = a // b  # numpy's: towards minus infinity, 0 for a divisor of 0
        up = (down * b != a) & ((a < 0) != (b < 0)) & (b != 0)
        return np.asarray(down + up.astype(a.dtype))


def modulo(attrs: Attrs, xs: Arrays) -> Array:
    """The rest with the sign of the divisor, or with `fmod` of the dividend; modulo 0 it is 0."""
    with np.errstate(all="ignore"):
        return np.asarray((np.fmod if attrs["fmod"] else np.mod)(*xs))


def power(attrs: Attrs, xs: Arrays) -> Array:
    """Of integers to a negative power the integer part: 1 and -1 stay, the others become 0."""
    x, y = xs
    with np.errstate(all="ignore"):
        if x.dtype.kind == "f":
            return np.asarray(np.power(x, y))
        odd = (y % 2 != 0) & (x == -1)
        below = np.where(odd, -1, np.abs(x) == 1).astype(x.dtype)
        return np.asarray(np.where(y < 0, below, np.power(x, np.maximum(y, 0))))


def round_even(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(np.round(xs[0]))


def where(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(np.where(*xs))


def cast(attrs: Attrs, xs: Arrays) -> Array:
    """Fractions are cut off; numbers become conditions by being unequal to zero."""
    with np.errstate(all="ignore"):
        return np.asarray(xs[0].astype(text(attrs, "dtype")))


def _channels_last(attrs: Attrs, x: Array) -> Array:
    return np.moveaxis(x, 1, -1) if text(attrs, "layout") == "channels_first" else x


def _channels_back(attrs: Attrs, x: Array) -> Array:
    return np.moveaxis(x, -1, 1) if text(attrs, "layout") == "channels_first" else x


def _shifted(
    x: Array, attrs: Attrs, kernel: Sequence[int], out: Sequence[int], fill: float
) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each kernel offset the [n, *out, c] view of padded `x` [n, *spatial, c] under it."""
    strides, dilations, pad = ints(attrs, "strides"), ints(attrs, "dilations"), pairs(attrs, "pads")
    widths = [(0, 0)]
    for n, o, k, s, d, (lo, _) in zip(
        x.shape[1:-1], out, kernel, strides, dilations, pad, strict=True
    ):
        widths.append((lo, max(0, (o - 1) * s + (k - 1) * d + 1 - n - lo)))
    padded = np.pad(x, [*widths, (0, 0)], constant_values=fill)
    for offset in itertools.product(*(range(k) for k in kernel)):
        at = [
            slice(k * d, k * d + (o - 1) * s + 1, s)
            for k, d, o, s in zip(offset, dilations, out, strides, strict=True)
        ]
        yield offset, padded[(slice(None), *at)]


def conv(attrs: Attrs, xs: Arrays) -> Array:
    x, w = xs[0], xs[1]
    if text(attrs, "layout") == "channels_first":
        w = np.moveaxis(w, (0, 1), (-1, -2))
    out = _channels_last(attrs, np.empty(shapes.conv(attrs, tuple(map(type_of, xs))).shape, "b"))
    groups, (ci, co) = integer(attrs, "groups"), w.shape[-2:]
    data, w = _wide(_channels_last(attrs, x)), _wide(w)
    acc = np.zeros((math.prod(out.shape[:-1]), groups, co // groups), data.dtype)
    for offset, view in _shifted(data, attrs, w.shape[:-2], out.shape[1:-1], 0.0):
        rows = view.reshape(len(acc), groups, ci)
        part = w[offset].reshape(ci, groups, co // groups)
        if ci == 1:
            acc += rows * part[0]
        else:
            for g in range(groups):
                acc[:, g] += rows[:, g] @ part[:, g]
    if len(xs) > 2:
        acc += _wide(xs[2]).reshape(groups, co // groups)
    return _channels_back(attrs, acc.reshape(out.shape).astype(x.dtype))


def conv_transpose(attrs: Attrs, xs: Arrays) -> Array:
    """Every element of the data adds its multiple of the kernel to the result."""
    x, w = xs
    first = text(attrs, "layout") == "channels_first"
    w = _wide(np.moveaxis(w, (0, 1), (-2, -1)) if first else w)
    out = _channels_last(
        attrs, np.empty(shapes.conv_transpose(attrs, tuple(map(type_of, xs))).shape, "b")
    )
    data, strides, pad = (
        _wide(_channels_last(attrs, x)),
        ints(attrs, "strides"),
        pairs(attrs, "pads"),
    )
    *kernel, _, co = w.shape
    rows = list(zip(data.shape[1:-1], kernel, strides, strict=True))
    ends = [
        max(o + lo, (n - 1) * s + k)
        for o, (lo, _), (n, k, s) in zip(out.shape[1:-1], pad, rows, strict=True)
    ]
    low = [max(0, -lo) for lo, _ in pad]
    acc = np.zeros(
        (data.shape[0], *(e + b for e, b in zip(ends, low, strict=True)), co), data.dtype
    )
    for offset in itertools.product(*(range(k) for k in kernel)):
        at = [
            slice(b + k, b + k + (n - 1) * s + 1, s)
            for b, k, (n, _, s) in zip(low, offset, rows, strict=True)
        ]
        acc[(slice(None), *at)] += data @ w[offset]
    cut = [
        slice(lo + b, lo + b + o) for o, (lo, _), b in zip(out.shape[1:-1], pad, low, strict=True)
    ]
    return _channels_back(attrs, acc[(slice(None), *cut)].astype(x.dtype))


def _pool_shape(attrs: Attrs, x: Array) -> tuple[int, ...]:
    shape = shapes.pool(attrs, (type_of(x),)).shape
    return tuple(shape[a] for a in shapes.spatial_axes(attrs, len(shape)))


def max_pool(attrs: Attrs, xs: Arrays) -> Array:
    """Maximum of the elements inside the data; a window without any gives -inf."""
    (x,) = xs
    data, spatial = _channels_last(attrs, x), _pool_shape(attrs, x)
    low = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    acc = np.full((x.shape[0], *spatial, data.shape[-1]), low, x.dtype)
    for _, view in _shifted(data, attrs, ints(attrs, "kernel"), spatial, low):
        np.maximum(acc, view, out=acc)
    return _channels_back(attrs, acc)


def sum_pool(attrs: Attrs, xs: Arrays) -> Array:
    """Sum of the elements inside the data."""
    (x,) = xs
    data, spatial = _wide(_channels_last(attrs, x)), _pool_shape(attrs, x)
    acc = np.zeros((x.shape[0], *spatial, data.shape[-1]), data.dtype)
    for _, view in _shifted(data, attrs, ints(attrs, "kernel"), spatial, 0.0):
        acc += view
    return _channels_back(attrs, acc.astype(x.dtype))


def window_counts(attrs: Attrs, spatial: Sequence[int], out: Sequence[int]) -> Float:
    """float64[*out]: how many elements an average pool divides by, over data of extents `spatial`.

    Padding counts with `count_include_pad`; what `ceil_mode` adds beyond the padding never does.
    """
    total: Float = np.ones((), np.float64)
    rows = zip(
        spatial,
        out,
        ints(attrs, "kernel"),
        ints(attrs, "strides"),
        ints(attrs, "dilations"),
        pairs(attrs, "pads"),
        strict=True,
    )
    for n, o, k, s, d, (lo, hi) in rows:
        at = np.arange(o) * s - lo
        first, last = (-lo, n + hi) if attrs["count_include_pad"] else (0, n)
        count = np.minimum(-((at - last) // d), k) - np.maximum(-((at - first) // d), 0)
        total = total[..., None] * np.maximum(count, 1)
    return total


def avg_pool(attrs: Attrs, xs: Arrays) -> Array:
    (x,) = xs
    out = _pool_shape(attrs, x)
    spatial = [x.shape[a] for a in shapes.spatial_axes(attrs, x.ndim)]
    counts = window_counts(attrs, spatial, out)
    first = text(attrs, "layout") == "channels_first"
    wide = _wide(sum_pool(attrs, (_wide(x),))) / (counts if first else counts[..., None])
    return np.asarray(wide.astype(x.dtype))


def batch_norm(attrs: Attrs, xs: Arrays) -> Array:
    x = xs[0]
    column = (-1,) + (1,) * (x.ndim - 2)
    scale, bias, mean, var = (_wide(v).reshape(column) for v in xs[1:])
    out = (_wide(x) - mean) / np.sqrt(var + number(attrs, "epsilon")) * scale + bias
    return np.asarray(out.astype(x.dtype))


def matmul(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray((_wide(xs[0]) @ _wide(xs[1])).astype(xs[0].dtype))


def gemm(attrs: Attrs, xs: Arrays) -> Array:
    a = xs[0].T if attrs["trans_a"] else xs[0]
    b = xs[1].T if attrs["trans_b"] else xs[1]
    alpha, beta = number(attrs, "alpha"), number(attrs, "beta")
    out = _wide(a) @ _wide(b)
    out = out if alpha == 1.0 else alpha * out
    if len(xs) > 2 and beta != 0.0:
        out = out + (_wide(xs[2]) if beta == 1.0 else beta * _wide(xs[2]))
    return np.asarray(out.astype(xs[0].dtype))


def softmax(attrs: Attrs, xs: Arrays) -> Array:
    axes, wide = ints(attrs, "axes"), _wide(xs[0])
    if not wide.size:
        return np.asarray(xs[0])
    e = np.exp(wide - wide.max(axis=axes, keepdims=True))
    return np.asarray((e / e.sum(axis=axes, keepdims=True)).astype(xs[0].dtype))


def lrn(attrs: Attrs, xs: Arrays) -> Array:
    """x / (bias + alpha/size * sum of squares over `size` neighbours along `axis`) ** beta."""
    (x,), size = xs, integer(attrs, "size")
    wide = np.moveaxis(_wide(x), integer(attrs, "axis"), -1)
    padded = np.pad(wide * wide, [(0, 0)] * (x.ndim - 1) + [((size - 1) // 2, size // 2)])
    n = wide.shape[-1]
    total = sum(padded[..., k : k + n] for k in range(size))
    base = number(attrs, "bias") + number(attrs, "alpha") / size * total
    out = wide / np.power(base, number(attrs, "beta"))
    return np.asarray(np.moveaxis(out, -1, integer(attrs, "axis")).astype(x.dtype))


def reduce_sum(attrs: Attrs, xs: Arrays) -> Array:
    (x,), keep = (_wide(xs[0]),), bool(attrs["keepdims"])
    return np.asarray(x.sum(axis=ints(attrs, "axes"), keepdims=keep, dtype=x.dtype)).astype(
        xs[0].dtype
    )


def reduce_mean(attrs: Attrs, xs: Arrays) -> Array:
    """The mean; of integers the sum divided by their number, towards zero."""
    (x,), axes = xs, ints(attrs, "axes")
    count = math.prod(x.shape[a] for a in axes)
    total = _wide(x).sum(axis=axes, keepdims=bool(attrs["keepdims"]), dtype=_wide(x).dtype)
    if x.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.asarray(np.asarray(total / np.float64(count)).astype(x.dtype))
    return divide({}, (np.asarray(total), np.asarray(count, x.dtype)))


def _extreme(fn: Any, combiner: str, attrs: Attrs, x: Array) -> Array:
    """Over no element it is what the combiner starts from: the other end of the dtype."""
    start = combiner_identity(combiner, str(x.dtype)).value
    keep = bool(attrs["keepdims"])
    if x.size:
        return np.asarray(fn(x, axis=ints(attrs, "axes"), keepdims=keep))
    return np.asarray(fn(x, axis=ints(attrs, "axes"), keepdims=keep, initial=start))


def reduce_max(attrs: Attrs, xs: Arrays) -> Array:
    return _extreme(np.max, "max", attrs, xs[0])


def reduce_min(attrs: Attrs, xs: Arrays) -> Array:
    return _extreme(np.min, "min", attrs, xs[0])


def identity(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(xs[0])


def reshape(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(xs[0].reshape(ints(attrs, "shape")))


def expand(attrs: Attrs, xs: Arrays) -> Array:
    return np.broadcast_to(xs[0], ints(attrs, "shape"))


def transpose(attrs: Attrs, xs: Arrays) -> Array:
    return np.asarray(xs[0].transpose(ints(attrs, "perm")))


def concat(attrs: Attrs, xs: Arrays) -> Array:
    return np.concatenate(xs, axis=integer(attrs, "axis"))


def pad(attrs: Attrs, xs: Arrays) -> Array:
    return np.pad(xs[0], pairs(attrs, "pads"), constant_values=literal(attrs, "value"))


def slice_(attrs: Attrs, xs: Arrays) -> Array:
    rows = zip(ints(attrs, "starts"), ints(attrs, "sizes"), ints(attrs, "steps"), strict=True)
    at = np.ix_(*(start + np.arange(size) * step for start, size, step in rows))
    return np.asarray(xs[0][at])


def take(attrs: Attrs, xs: Arrays) -> Array:
    """Indices beyond the axis give its first or last element."""
    x, indices = xs
    n = x.shape[integer(attrs, "axis")]
    at = np.clip(np.where(indices < 0, indices + n, indices), 0, n - 1)
    return np.asarray(np.take(x, at, axis=integer(attrs, "axis")))


def resample(attrs: Attrs, xs: Arrays) -> Array:
    x, indices, weights = xs
    axis = integer(attrs, "axis")
    taken = take({"axis": 0}, (_wide(np.moveaxis(x, axis, 0)), indices.ravel()))
    taken = taken.reshape(*indices.shape, *taken.shape[1:])
    factors = _wide(weights).reshape(*indices.shape, *(1,) * (x.ndim - 1))
    return np.asarray(np.moveaxis((taken * factors).sum(axis=1), 0, axis).astype(x.dtype))
