"""Readers of aten's layers: products, convolutions, pools, normalisations, attention, resizing.

Data is channels first, as torch has it. Results that only training reads (saved statistics,
positions of maxima) are None: a node that reads one is refused.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import resize
from ansorlite.pytorch.context import Context, Result, Value

Reader = Callable[..., Result]
MOST_EXTENT = 1 << 14  # of an axis that is resized: its weights are found from a square matrix


# ---- products -----------------------------------------------------------------------------------


def matmul(c: Context, a: Value, b: Value) -> Value:
    return c.by_onnx("MatMul", a, b)


def addmm(c: Context, bias: Value, a: Value, b: Value, beta: float, alpha: float) -> Value:
    factors = {"alpha": float(alpha), "beta": float(beta)}
    return c.emit("gemm", [a, b, bias], trans_a=False, trans_b=False, **factors)


def baddbmm(c: Context, bias: Value, a: Value, b: Value, beta: float, alpha: float) -> Value:
    dtype, out = c.dtype(), c.emit("matmul", [a, b])
    out = out if alpha == 1 else c.emit("mul", [out, c.cast(alpha, dtype)])
    if beta == 0:
        return out
    bias = bias if beta == 1 else c.emit("mul", [bias, c.cast(beta, dtype)])
    return c.emit("add", [out, bias])


def linear(c: Context, x: Value, weight: Value, bias: Value | None) -> Value:
    turned = c.emit("transpose", [weight], perm=(1, 0)) if c.rank(weight) == 2 else weight
    out = c.by_onnx("MatMul", x, turned)
    return out if bias is None else c.emit("add", [out, bias])


# ---- windows ------------------------------------------------------------------------------------


def _each(values: Any, count: int) -> tuple[int, ...]:
    """One number for each spatial axis; a single one counts for all."""
    found = tuple(int(v) for v in (values if isinstance(values, list | tuple) else [values]))
    return found * count if len(found) == 1 else found


def convolution(
    c: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    rank = c.rank(weight) - 2
    pads = _each(padding, rank)
    attrs: dict[str, Any] = {
        "strides": _each(stride, rank),
        "pads": pads + pads,
        "dilations": _each(dilation, rank),
        "group": groups,
    }
    if transposed:
        attrs["output_padding"] = _each(output_padding, rank)
    operands = [x, weight] if bias is None else [x, weight, bias]
    return c.by_onnx("ConvTranspose" if transposed else "Conv", *operands, **attrs)


def _pooled(c: Context, op: str, x: Value, rank: int, **attrs: Any) -> Value:
    """A pool over the last `rank` axes; data without a batch is one image."""
    shape = c.shape(x)
    alone = len(shape) == rank + 1
    out = c.by_onnx(op, c.reshape(x, (1, *shape)) if alone else x, **attrs)
    return c.reshape(out, c.shape(out)[1:]) if alone else out


def max_pool(rank: int) -> Reader:
    def convert(
        c: Context, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
    ) -> Result:
        pads, size = _each(padding, rank), _each(kernel, rank)
        attrs = {
            "kernel_shape": size,
            "strides": _each(stride, rank) if stride else size,
            "pads": pads + pads,
            "dilations": _each(dilation, rank),
            "ceil_mode": int(ceil),
        }
        return _pooled(c, "MaxPool", x, rank, **attrs), None

    return convert


def avg_pool(rank: int) -> Reader:
    def convert(
        c: Context,
        x: Value,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil: bool,
        count_padding: bool,
        divisor: int | None = None,
    ) -> Value:
        pads, size = _each(padding, rank), _each(kernel, rank)
        if divisor is not None and (any(pads) or ceil):
            raise ModelError("divisor_override with padding or ceil_mode is not supported")
        attrs = {
            "kernel_shape": size,
            "strides": _each(stride, rank) if stride else size,
            "pads": pads + pads,
            "ceil_mode": int(ceil),
            "count_include_pad": int(count_padding),
        }
        out = _pooled(c, "AveragePool", x, rank, **attrs)
        if divisor is None:
            return out
        return c.emit("mul", [out, c.cast(math.prod(size) / divisor, c.dtype())])

    return convert


def adaptive_avg_pool(rank: int) -> Reader:
    """Windows from floor(i * n / out) to ceil((i + 1) * n / out), axis by axis."""

    def convert(c: Context, x: Value, sizes: Any) -> Value:
        first = c.rank(x) - rank
        wanted = c.result_shape()[first:]
        if {*wanted} == {1}:
            return c.emit("reduce_mean", [x], axes=tuple(range(first, c.rank(x))), keepdims=True)
        spatial = c.shape(x)[first:]
        if all(n % out == 0 for n, out in zip(spatial, wanted, strict=True)):
            size = tuple(n // out for n, out in zip(spatial, wanted, strict=True))
            return _pooled(c, "AveragePool", x, rank, kernel_shape=size, strides=size)
        for axis, (n, out) in enumerate(zip(spatial, wanted, strict=True), first):
            begin = np.arange(out) * n // out
            count = -(-(np.arange(out) + 1) * n // out) - begin
            taps = np.arange(int(count.max()))
            at = np.minimum(begin[:, None] + taps, n - 1).astype(np.int64)
            weights = np.where(taps < count[:, None], 1 / count[:, None], 0.0)
            x = _resampled(c, x, axis, at, weights)
        return x

    return convert


def adaptive_max_pool(rank: int) -> Reader:
    def convert(c: Context, x: Value, sizes: Any) -> Result:
        wanted, spatial = _each(sizes, rank), c.shape(x)[c.rank(x) - rank :]
        if any(n % out for n, out in zip(spatial, wanted, strict=True)):
            raise ModelError(f"{list(wanted)} windows of {list(spatial)}: they do not divide it")
        size = tuple(n // out for n, out in zip(spatial, wanted, strict=True))
        return _pooled(c, "MaxPool", x, rank, kernel_shape=size, strides=size), None

    return convert


# ---- normalisations -----------------------------------------------------------------------------


def _vector(c: Context, x: Value | None, count: int, value: float, dtype: str) -> Value:
    return c.constant(np.full(count, value, dtype)) if x is None else c.cast(x, dtype)


def batch_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value,
    var: Value,
    momentum: float,
    epsilon: float,
) -> Result:
    n, dtype = c.shape(x)[1], c.type(x).dtype
    scale, shift = _vector(c, weight, n, 1, dtype), _vector(c, bias, n, 0, dtype)
    operands = [x, scale, shift, c.cast(mean, dtype), c.cast(var, dtype)]
    return c.emit("batch_norm", operands, epsilon=float(epsilon)), None, None


def batch_norm_of_data(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    epsilon: float,
) -> Result:
    """Normalised by the data's own statistics, over all axes but the channels'."""
    n, rank, dtype = c.shape(x)[1], c.rank(x), c.type(x).dtype
    axes = tuple(d for d in range(rank) if d != 1)
    out = _normalised(c, x, axes, epsilon)
    column = (n, *(1,) * (rank - 2))
    for op, vector in (("mul", weight), ("add", bias)):
        if vector is not None:
            out = c.emit(op, [out, c.reshape(c.cast(vector, dtype), column)])
    return out, None, None


def _normalised(c: Context, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    mean = c.emit("reduce_mean", [x], axes=axes, keepdims=True)
    centred = c.emit("sub", [x, mean])
    square = c.emit("mul", [centred, centred])
    variance = c.emit("reduce_mean", [square], axes=axes, keepdims=True)
    shifted = c.emit("add", [variance, c.cast(epsilon, c.type(x).dtype)])
    return c.emit("div", [centred, c.emit("sqrt", [shifted])])


def layer_norm(
    c: Context,
    x: Value,
    shape: Sequence[int],
    weight: Value | None,
    bias: Value | None,
    epsilon: float,
) -> Result:
    axes = tuple(range(c.rank(x) - len(shape), c.rank(x)))
    out, dtype = _normalised(c, x, axes, epsilon), c.type(x).dtype
    for op, vector in (("mul", weight), ("add", bias)):
        out = out if vector is None else c.emit(op, [out, c.cast(vector, dtype)])
    return out, None, None


def group_norm(
    c: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    batch: int,
    channels: int,
    spatial: int,
    groups: int,
    epsilon: float,
) -> Result:
    shape, dtype = c.shape(x), c.type(x).dtype
    split = c.reshape(x, (batch, groups, channels // groups * spatial))
    out = c.reshape(_normalised(c, split, (2,), epsilon), shape)
    column = (channels, *(1,) * (len(shape) - 2))
    for op, vector in (("mul", weight), ("add", bias)):
        if vector is not None:
            out = c.emit(op, [out, c.reshape(c.cast(vector, dtype), column)])
    return out, None, None


def softmax(c: Context, x: Value, dim: int, *options: Any) -> Value:
    x = c.cast(x, c.dtype())
    if not c.rank(x):
        return c.constant(np.ones((), c.dtype()))
    return c.emit("softmax", [x], axes=(c.axis(dim, c.rank(x)),))


def log_softmax(c: Context, x: Value, dim: int, *options: Any) -> Value:
    x = c.cast(x, c.dtype())
    if not c.rank(x):
        return c.constant(np.zeros((), c.dtype()))
    return c.by_onnx("LogSoftmax", x, axis=c.axis(dim, c.rank(x)))


def safe_softmax(c: Context, x: Value, dim: int, *options: Any) -> Value:
    """A softmax that is 0 where all elements are -inf."""
    x = c.cast(x, c.dtype())
    axis = c.axis(dim, c.rank(x))
    top = c.emit("reduce_max", [x], axes=(axis,), keepdims=True)
    dtype = c.type(x).dtype
    none = c.emit("equal", [top, c.cast(-np.inf, dtype)])
    return c.emit("where", [none, c.cast(0, dtype), c.emit("softmax", [x], axes=(axis,))])


# ---- attention ----------------------------------------------------------------------------------


def attention(
    c: Context,
    q: Value,
    k: Value,
    v: Value,
    dropout: float,
    causal: bool,
    mask: Value | None,
    scale: float | None,
) -> Result:
    """softmax(q k' * scale + mask) v; rows that a mask of data rules out are 0."""
    if dropout:
        raise ModelError("attention with dropout is for training: call eval() of the module")
    dtype, rank = c.type(q).dtype, c.rank(q)
    k, v = (_for_each_head(c, x, c.shape(q)[1]) for x in (k, v))
    turned = c.emit("transpose", [k], perm=(*range(rank - 2), rank - 1, rank - 2))
    factor = 1 / math.sqrt(c.shape(q)[-1]) if scale is None else scale
    scores = c.emit("mul", [c.emit("matmul", [q, turned]), c.cast(factor, dtype)])
    low = c.cast(-np.inf, dtype)
    if causal:
        rows, columns = c.shape(scores)[-2:]
        c.room((rows, columns), "bool")
        allowed = c.constant(np.tril(np.ones((rows, columns), np.bool_)))
        scores = c.emit("where", [allowed, scores, low])
    if mask is not None and c.type(mask).dtype == "bool":
        scores = c.emit("where", [mask, scores, low])
    elif mask is not None:
        scores = c.emit("add", [scores, c.cast(mask, dtype)])
    known = None if mask is None else c.known(mask)
    if mask is None or (known is not None and _leaves_all(known)):
        weights = c.emit("softmax", [scores], axes=(rank - 1,))
    else:
        top = c.emit("reduce_max", [scores], axes=(rank - 1,), keepdims=True)
        plain = c.emit("softmax", [scores], axes=(rank - 1,))
        weights = c.emit("where", [c.emit("equal", [top, low]), c.cast(0, dtype), plain])
    return c.emit("matmul", [weights, v]), None


def _for_each_head(c: Context, x: Value, heads: int) -> Value:
    """Keys or values [batch, groups, rows, n], those of a group repeated for its heads."""
    batch, groups, *rest = c.shape(x)
    if groups == heads:
        return x
    split = c.reshape(x, (batch, groups, 1, *rest))
    full = c.emit("expand", [split], shape=(batch, groups, heads // groups, *rest))
    return c.reshape(full, (batch, heads, *rest))


def _leaves_all(mask: Any) -> bool:
    """Whether a constant mask leaves something of every row."""
    kept = mask if mask.dtype == np.bool_ else mask > -np.inf
    return bool(np.all(np.any(kept, axis=-1)))


# ---- resizing -----------------------------------------------------------------------------------


def _resampled(c: Context, x: Value, axis: int, at: Any, weights: Any) -> Value:
    operands = [x, c.constant(at), c.constant(weights.astype(c.type(x).dtype))]
    return c.emit("resample", operands, axis=axis)


def upsample(rank: int, exact: bool = False, corners: bool = False) -> Reader:
    """Resizing of the last `rank` axes, each on its own.

    The sources of an axis are what torch's own operator makes of it: positions where it chooses
    the nearest element, else weights, from unit vectors. The arguments behind the size are
    `align_corners` with `corners`, then a scale for each axis, or the list of scales.
    """

    def convert(c: Context, x: Value, size: Any, *rest: Any) -> Value:
        target, shape, out = c.node.target, c.shape(x), c.result_shape()
        align, scales = (rest[:1], rest[1:]) if corners else ((), rest)
        listed = target._overloadname == "vec"
        if listed:
            scales = tuple(scales[0]) if scales[0] is not None else (None,) * rank
        places: dict[int, Any] = {}
        for k, axis in enumerate(range(len(shape) - rank, len(shape))):
            n = shape[axis]
            factor = scales[k]
            if out[axis] == n and factor is None:
                continue
            probe = _probed(c, n, out[axis], rank, align, factor, exact)
            if exact:
                places[axis] = np.rint(probe[0]).astype(np.int64)
            else:
                x = _resampled(c, x, axis, *_taps(probe))
        return Value(resize.nearest(c.onnx(), x, places)) if places else x

    return convert


def _probed(c: Context, n: int, out: int, rank: int, align: Any, factor: Any, exact: bool) -> Any:
    """float64[rows, out]: rows of n elements resized by the node's operator.

    The other axes have two equal elements: of one element torch's antialiasing makes nonsense.
    """
    torch, target = c.torch, c.node.target
    if n > MOST_EXTENT:
        raise ModelError(f"an axis of {n} elements is too long to resize: at most {MOST_EXTENT}")
    c.room((n, n * 2 ** (rank - 1)), "float32")
    rows = torch.arange(n, dtype=torch.float32)[None] if exact else torch.eye(n)
    others = (2,) * (rank - 1)
    image = rows.reshape(1, -1, n, *(1,) * (rank - 1)).expand(1, -1, n, *others)
    operator = getattr(target._overloadpacket, "default")  # noqa: B009 (untyped, by name)
    result = operator(image.contiguous(), [out, *others], *align, factor, *(None,) * (rank - 1))
    return result[(..., *(0,) * (rank - 1))].reshape(len(rows), out).double().numpy()


def _taps(weights: Any) -> tuple[Any, Any]:
    """(int64[out, taps], float64[out, taps]): sources and weights from float64[n, out]."""
    taps = max(1, int(np.count_nonzero(weights, axis=0).max()))
    at = np.argsort(weights == 0, axis=0, kind="stable")[:taps].T
    return at.astype(np.int64), np.take_along_axis(weights.T, at, axis=1)


def grid_sample(
    c: Context, x: Value, grid: Value, mode: int, padding: int, align_corners: bool
) -> Value:
    options = {
        "mode": ("linear", "nearest", "cubic")[mode],
        "padding_mode": ("zeros", "border", "reflection")[padding],
        "align_corners": int(align_corners),
    }
    return c.by_onnx("GridSample", x, grid, **options)


def pixel_shuffle(c: Context, x: Value, factor: int) -> Value:
    return c.by_onnx("DepthToSpace", x, blocksize=factor, mode="CRD")


def pixel_unshuffle(c: Context, x: Value, factor: int) -> Value:
    return c.by_onnx("SpaceToDepth", x, blocksize=factor, mode="CRD")
