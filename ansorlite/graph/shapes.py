"""Shape inference: one function per kind of operator.

In: attributes and the `TensorType`s of the operands. Out: the `TensorType` of the result. Raises
`ModelError` naming the offending extents; `GraphBuilder` and `verify` add the node. Spatial extents
follow ONNX: floor((n + pads - dilation*(k-1) - 1) / stride) + 1, or the ceiling with `ceil_mode`.
"""

import math
from collections.abc import Sequence

from ansorlite.errors import ModelError
from ansorlite.graph.types import DTYPES, Attrs, TensorType, integer, ints, number, pairs, text

Types = tuple[TensorType, ...]


def same_dtype(types: Types) -> str:
    dtypes = sorted({t.dtype for t in types})
    if len(dtypes) != 1:
        raise ModelError(f"operands have different dtypes {', '.join(dtypes)}: cast one of them")
    return dtypes[0]


def elementwise(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of all operands, as in numpy."""
    return TensorType(broadcast([t.shape for t in types]), same_dtype(types))


def broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape that all of `shapes` broadcast to, as in numpy; of any size."""
    rank = max(map(len, shapes))
    full = [1] * rank
    for shape in shapes:
        for axis, n in enumerate(shape, rank - len(shape)):
            if n != 1 and full[axis] not in (1, n):
                listed = " and ".join(str(list(s)) for s in shapes[:4])
                raise ModelError(f"shapes {listed} do not broadcast")
            full[axis] = n if full[axis] == 1 else full[axis]
    return tuple(full)


def integers(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of operands of one dtype, which must be an integer's."""
    full = elementwise(attrs, types)
    if not full.dtype.startswith("int"):
        raise ModelError(f"operands are {full.dtype}, not integers")
    return full


def compare(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of two operands of one dtype, as conditions."""
    return TensorType(elementwise(attrs, types).shape, "bool")


def logic(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of conditions."""
    if any(t.dtype != "bool" for t in types):
        raise ModelError(f"operands {', '.join(map(str, types))} are not all conditions")
    return elementwise(attrs, types)


def where(attrs: Attrs, types: Types) -> TensorType:
    """The broadcast of a condition and of two operands of one dtype."""
    logic(attrs, types[:1])
    full = elementwise(attrs, tuple(TensorType(t.shape) for t in types))
    return TensorType(full.shape, same_dtype(types[1:]))


def cast(attrs: Attrs, types: Types) -> TensorType:
    dtype = text(attrs, "dtype")
    if dtype not in DTYPES:
        raise ModelError(f"cast to {dtype} is not supported, only to {', '.join(DTYPES)}")
    return TensorType(types[0].shape, dtype)


def window_extent(
    n: int, kernel: int, stride: int, dilation: int, pad: tuple[int, int], ceil_mode: bool = False
) -> int:
    """Number of windows along one axis; a window never starts in the padding after the data."""
    if min(kernel, stride, dilation) < 1:
        raise ModelError(
            f"a window of {kernel} with stride {stride} and dilation {dilation}: at least 1 each"
        )
    room = n + sum(pad) - dilation * (kernel - 1) - 1
    out = (-(-room // stride) if ceil_mode else room // stride) + 1
    if ceil_mode and (out - 1) * stride >= n + pad[0]:
        out -= 1
    if out < 1:
        raise ModelError(
            f"a window of {kernel} (dilation {dilation}) does not fit extent {n} with padding {pad}"
        )
    return out


def spatial_axes(attrs: Attrs, rank: int) -> tuple[int, ...]:
    """The axes of a data tensor that a window slides over."""
    first = text(attrs, "layout") == "channels_first"
    return tuple(range(2, rank)) if first else tuple(range(1, rank - 1))


def channel_axis(attrs: Attrs, rank: int) -> int:
    return 1 if text(attrs, "layout") == "channels_first" else rank - 1


def _data_shape(attrs: Attrs, batch: int, spatial: Sequence[int], channels: int) -> tuple[int, ...]:
    if text(attrs, "layout") == "channels_first":
        return (batch, channels, *spatial)
    return (batch, *spatial, channels)


def _windows(attrs: Attrs, x: TensorType, kernel: Sequence[int]) -> tuple[int, ...]:
    axes = spatial_axes(attrs, x.rank)
    strides, dilations, pad = ints(attrs, "strides"), ints(attrs, "dilations"), pairs(attrs, "pads")
    lengths = {len(kernel), len(strides), len(dilations), len(pad), len(axes)}
    if len(lengths) != 1 or not axes:
        raise ModelError(
            f"data {x} needs {len(axes)} kernel extents, strides, dilations and pads, got "
            f"{len(kernel)}, {len(strides)}, {len(dilations)} and {len(pad)}"
        )
    ceil = bool(attrs.get("ceil_mode", False))
    return tuple(
        window_extent(x.shape[a], k, s, d, p, ceil)
        for a, k, s, d, p in zip(axes, kernel, strides, dilations, pad, strict=True)
    )


def conv(attrs: Attrs, types: Types) -> TensorType:
    """data [n, c, *s] and weight [co, c/g, *k], or channels last [n, *s, c] and [*k, c/g, co]."""
    x, w = types[0], types[1]
    if w.rank != x.rank or x.rank < 3:
        raise ModelError(f"data {x} and weight {w} need the same rank, at least 3")
    groups, first = integer(attrs, "groups"), text(attrs, "layout") == "channels_first"
    channels = x.shape[channel_axis(attrs, x.rank)]
    co, ci = (w.shape[0], w.shape[1]) if first else (w.shape[-1], w.shape[-2])
    kernel = w.shape[2:] if first else w.shape[:-2]
    if groups < 1 or channels != ci * groups or co % groups:
        raise ModelError(
            f"weight {w} with {groups} groups wants {ci * groups} input channels and output "
            f"channels divisible by {groups}; data {x} has {channels}, the weight {co}"
        )
    if len(types) > 2 and types[2].shape != (co,):
        raise ModelError(f"bias {types[2]} must have {co} elements")
    return TensorType(
        _data_shape(attrs, x.shape[0], _windows(attrs, x, kernel), co), same_dtype(types)
    )


def conv_transpose(attrs: Attrs, types: Types) -> TensorType:
    """data [n, c, *s] and weight [c, co, *k], or channels last [n, *s, c] and [*k, c, co].

    Extents are (s - 1) * stride + k less the padding, which may be negative after the data.
    """
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
    return TensorType(_data_shape(attrs, x.shape[0], out, co), same_dtype(types))


def pool(attrs: Attrs, types: Types) -> TensorType:
    (x,) = types
    if x.rank < 3:
        raise ModelError(f"data {x} has no spatial axes")
    channels = x.shape[channel_axis(attrs, x.rank)]
    spatial = _windows(attrs, x, ints(attrs, "kernel"))
    return TensorType(_data_shape(attrs, x.shape[0], spatial, channels), x.dtype)


def batch_norm(attrs: Attrs, types: Types) -> TensorType:
    """data [n, c, ...] and four vectors of c elements."""
    x = types[0]
    for t in types[1:]:
        if x.rank < 2 or t.shape != (x.shape[1],):
            raise ModelError(f"statistics {t} do not match axis 1 of data {x}")
    return TensorType(x.shape, same_dtype(types))


def matmul(attrs: Attrs, types: Types) -> TensorType:
    """[..., m, k] x [..., k, n] with broadcast leading axes."""
    a, b = types
    if a.rank < 2 or b.rank < 2 or a.shape[-1] != b.shape[-2]:
        raise ModelError(f"cannot multiply matrices {a} and {b}: inner extents differ")
    lead = elementwise({}, (TensorType(a.shape[:-2]), TensorType(b.shape[:-2]))).shape
    return TensorType((*lead, a.shape[-2], b.shape[-1]), same_dtype(types))


def gemm(attrs: Attrs, types: Types) -> TensorType:
    """alpha * op(a) x op(b) + beta * c for matrices a, b and c that broadcasts to the product."""
    a, b = types[0], types[1]
    if a.rank != 2 or b.rank != 2:
        raise ModelError(f"gemm needs matrices, got {a} and {b}")
    factors = number(attrs, "alpha"), number(attrs, "beta")
    if not a.dtype.startswith("float") and any(f != int(f) for f in factors):
        raise ModelError(
            f"a product of {a.dtype} times {factors[0]} plus {factors[1]} times another"
        )
    left = a.shape[::-1] if attrs["trans_a"] else a.shape
    right = b.shape[::-1] if attrs["trans_b"] else b.shape
    out = matmul(attrs, (TensorType(left, a.dtype), TensorType(right, b.dtype)))
    if len(types) > 2 and elementwise({}, (out, types[2])).shape != out.shape:
        raise ModelError(f"operand c {types[2]} does not broadcast to {out}")
    return out


def same(attrs: Attrs, types: Types) -> TensorType:
    return types[0]


def axes_in_range(axes: Sequence[int], rank: int) -> None:
    if any(not 0 <= a < rank for a in axes) or len(set(axes)) != len(axes):
        raise ModelError(f"axes {tuple(axes)} are not distinct axes of rank {rank}")


def softmax(attrs: Attrs, types: Types) -> TensorType:
    axes_in_range(ints(attrs, "axes"), types[0].rank)
    return types[0]


def lrn(attrs: Attrs, types: Types) -> TensorType:
    axes_in_range((integer(attrs, "axis"),), types[0].rank)
    if integer(attrs, "size") < 1:
        raise ModelError(f"a window of {attrs['size']} channels")
    return types[0]


def reduce(attrs: Attrs, types: Types) -> TensorType:
    (x,), axes = types, ints(attrs, "axes")
    axes_in_range(axes, x.rank)
    if attrs["keepdims"]:
        shape = tuple(1 if d in axes else n for d, n in enumerate(x.shape))
    else:
        shape = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    return TensorType(shape, x.dtype)


def reshape(attrs: Attrs, types: Types) -> TensorType:
    (x,), shape = types, ints(attrs, "shape")
    if math.prod(shape) != x.size:
        raise ModelError(f"cannot reshape {x} ({x.size} elements) to {list(shape)}")
    return TensorType(shape, x.dtype)


def expand(attrs: Attrs, types: Types) -> TensorType:
    (x,), shape = types, ints(attrs, "shape")
    if elementwise({}, (TensorType(x.shape), TensorType(shape))).shape != shape:
        raise ModelError(f"cannot expand {x} to {list(shape)}")
    return TensorType(shape, x.dtype)


def transpose(attrs: Attrs, types: Types) -> TensorType:
    (x,), perm = types, ints(attrs, "perm")
    if sorted(perm) != list(range(x.rank)):
        raise ModelError(f"perm {perm} is no permutation of the {x.rank} axes of {x}")
    return TensorType(tuple(x.shape[p] for p in perm), x.dtype)


def concat(attrs: Attrs, types: Types) -> TensorType:
    axis, first = integer(attrs, "axis"), types[0]
    axes_in_range((axis,), first.rank)
    for t in types[1:]:
        other = (*t.shape[:axis], first.shape[axis], *t.shape[axis + 1 :])
        if t.rank != first.rank or other != first.shape:
            raise ModelError(f"cannot concatenate {first} and {t} along axis {axis}")
    total = sum(t.shape[axis] for t in types)
    shape = (*first.shape[:axis], total, *first.shape[axis + 1 :])
    return TensorType(shape, same_dtype(types))


def pad(attrs: Attrs, types: Types) -> TensorType:
    (x,), pad_pairs = types, pairs(attrs, "pads")
    if len(pad_pairs) != x.rank:
        raise ModelError(f"pads {pad_pairs} need one pair per axis of {x}")
    shape = tuple(n + lo + hi for n, (lo, hi) in zip(x.shape, pad_pairs, strict=True))
    if any(lo < 0 or hi < 0 for lo, hi in pad_pairs):
        raise ModelError(f"pads {pad_pairs} are negative: use slice")
    return TensorType(shape, x.dtype)


def slice_(attrs: Attrs, types: Types) -> TensorType:
    """Element i of an axis is element start + i*step of the operand, i < size."""
    (x,) = types
    starts, sizes, steps = ints(attrs, "starts"), ints(attrs, "sizes"), ints(attrs, "steps")
    if not len(starts) == len(sizes) == len(steps) == x.rank:
        raise ModelError(f"slice of {x} needs a start, size and step per axis")
    for n, start, size, step in zip(x.shape, starts, sizes, steps, strict=True):
        last = start + (size - 1) * step
        if size > 0 and not (0 <= start < n and 0 <= last < n):
            raise ModelError(f"slice {start}..{last} leaves extent {n} of {x}")
    return TensorType(sizes, x.dtype)


def take(attrs: Attrs, types: Types) -> TensorType:
    """Element i of `axis` is element indices[i] of the operand; negative ones count from the end"""
    x, indices = types
    axis = integer(attrs, "axis")
    axes_in_range((axis,), x.rank)
    if indices.rank != 1 or indices.dtype not in ("int32", "int64"):
        raise ModelError(f"indices {indices} are no vector of integers")
    if x.shape[axis] == 0 and indices.size:
        raise ModelError(f"there is nothing to take along axis {axis} of {x}")
    return TensorType((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]), x.dtype)


def resample(attrs: Attrs, types: Types) -> TensorType:
    """Element i of `axis` is the sum of elements indices[i, t] of x times weights[i, t]."""
    x, indices, weights = types
    axis = integer(attrs, "axis")
    axes_in_range((axis,), x.rank)
    if indices.rank != 2 or weights.shape != indices.shape:
        raise ModelError(f"indices {indices} and weights {weights} are no equal matrices")
    if indices.dtype not in ("int32", "int64"):
        raise ModelError(f"indices {indices} are no integers")
    dtype = same_dtype((x, weights))
    return TensorType((*x.shape[:axis], indices.shape[0], *x.shape[axis + 1 :]), dtype)
