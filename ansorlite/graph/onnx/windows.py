"""Readers of operators whose windows slide over spatial axes: convolutions and pools.

`auto_pad` and `output_shape` become paddings here; results are channels first.
"""

from collections.abc import Callable
from typing import Any

from ansorlite.errors import ModelError
from ansorlite.graph.onnx import movement
from ansorlite.graph.onnx.context import Context, OnnxNode, Reader

Pool = Callable[[Context, OnnxNode], str | tuple[str, ...]]


def numbers(n: OnnxNode, name: str, count: int, least: int = 1) -> tuple[int, ...]:
    """The attribute `name`: `count` whole numbers, each (and by default) at least `least`."""
    found = tuple(int(v) for v in n.attrs.get(name, (least,) * count))
    if len(found) != count or any(v < least for v in found):
        raise ModelError(f"{name} {list(found)}: {count} numbers of at least {least} are needed")
    return found


def conv_window(c: Context, n: OnnxNode, kernel: tuple[int, ...]) -> dict[str, Any]:
    """strides, dilations and pads of a window over data of the node's first operand."""
    return _window(n, c.shape(c.operand(n, 0))[2:], kernel)


def _window(n: OnnxNode, spatial: tuple[int, ...], kernel: tuple[int, ...]) -> dict[str, Any]:
    """strides, dilations and pads of a window over data with these spatial extents."""
    rank = len(kernel)
    if rank != len(spatial):
        raise ModelError(f"a kernel of {rank} extents over {len(spatial)} spatial axes")
    strides, dilations = numbers(n, "strides", rank), numbers(n, "dilations", rank)
    auto = n.attrs.get("auto_pad", "NOTSET")
    flat = numbers(n, "pads", 2 * rank, least=0)
    pads = tuple(zip(flat[:rank], flat[rank:], strict=True))
    if auto == "VALID":
        pads = ((0, 0),) * rank
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = ()
        for size, k, s, d in zip(spatial, kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            small, large = total // 2, total - total // 2
            pads += ((small, large) if auto == "SAME_UPPER" else (large, small),)
    elif auto != "NOTSET":
        raise ModelError(f"auto_pad {auto!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    return {"strides": strides, "dilations": dilations, "pads": pads, "layout": "channels_first"}


def conv(c: Context, n: OnnxNode) -> str:
    return convolved(c, n, c.shape(c.operand(n, 0))[2:], c.operands(n))


def convolved(c: Context, n: OnnxNode, spatial: tuple[int, ...], operands: list[str]) -> str:
    """The convolution of data, weights and maybe bias, with the node's attributes."""
    kernel = c.shape(operands[1])[2:]
    if tuple(n.attrs.get("kernel_shape", kernel)) != kernel:
        raise ModelError(f"kernel_shape {n.attrs['kernel_shape']} but weights of {list(kernel)}")
    groups = int(n.attrs.get("group", 1))
    return c.emit("conv", operands, groups=groups, **_window(n, spatial, kernel))


def conv_transpose(c: Context, n: OnnxNode) -> str:
    """With groups or dilations it is a convolution of spread data with the reversed kernel."""
    x, w = c.operand(n, 0), c.operand(n, 1)
    if len(c.shape(x)) < 3 or len(c.shape(w)) < 3:
        raise ModelError(f"data {c.type(x)} and weights {c.type(w)} need spatial axes")
    data, (ci, co, *kernel) = c.shape(x), c.shape(w)
    groups = int(n.attrs.get("group", 1))
    if groups < 1 or len(kernel) != len(data) - 2 or data[1] != ci or ci % groups:
        raise ModelError(f"weights {list(c.shape(w))} with {groups} groups for data {list(data)}")
    strides, dilations, pads = _transposed_window(n, data[2:], tuple(kernel))
    if groups == 1 and {*dilations} == {1}:
        layout = "channels_first"
        out = c.emit("conv_transpose", [x, w], strides=strides, pads=pads, layout=layout)
    else:
        x = with_zeros_between(c, x, strides)
        around = tuple(
            (d * (k - 1) - lo, d * (k - 1) - hi)
            for k, d, (lo, hi) in zip(kernel, dilations, pads, strict=True)
        )
        x = movement.padded(c, x, ((0, 0), (0, 0), *around), 0.0)
        rank, per = len(kernel), ci // groups
        shape = (ci, co, *kernel)
        starts, steps = (0, 0, *(k - 1 for k in kernel)), (1, 1, *(-1,) * rank)
        w = c.emit("slice", [w], starts=starts, sizes=shape, steps=steps)
        w = c.emit("reshape", [w], shape=(groups, per, co, *kernel))
        w = c.emit("transpose", [w], perm=(0, 2, 1, *range(3, 3 + rank)))
        w = c.emit("reshape", [w], shape=(groups * co, per, *kernel))
        out = c.emit(
            "conv",
            [x, w],
            strides=(1,) * rank,
            pads=((0, 0),) * rank,
            dilations=dilations,
            groups=groups,
            layout="channels_first",
        )
    if not c.has(n, 2):
        return out
    bias = c.emit("reshape", [c.operand(n, 2)], shape=(co * groups, *(1,) * len(kernel)))
    return c.emit("add", [out, bias])


def _transposed_window(
    n: OnnxNode, spatial: tuple[int, ...], kernel: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """(strides, dilations, pads); `output_padding` is subtracted from the padding at the end."""
    rank = len(kernel)
    strides, dilations = numbers(n, "strides", rank), numbers(n, "dilations", rank)
    extra = numbers(n, "output_padding", rank, least=0)
    flat = numbers(n, "pads", 2 * rank, least=0)
    auto = n.attrs.get("auto_pad", "NOTSET")
    same = auto in ("SAME_UPPER", "SAME_LOWER")
    if auto not in ("NOTSET", "VALID") and not same:
        raise ModelError(f"auto_pad {auto!r} is none of NOTSET, VALID, SAME_UPPER, SAME_LOWER")
    wanted = n.attrs.get("output_shape")
    if wanted is not None and (len(wanted) < rank or min(wanted) < 1):
        raise ModelError(f"output_shape {wanted} for {rank} spatial axes")
    if wanted is None and same:
        wanted = [e * s for e, s in zip(spatial, strides, strict=True)]
    if wanted is None:
        if auto == "VALID":
            flat = (0,) * 2 * rank
        ends = zip(flat[:rank], flat[rank:], extra, strict=True)
        return strides, dilations, tuple((lo, hi - more) for lo, hi, more in ends)
    pads: tuple[tuple[int, int], ...] = ()
    rows = zip(spatial, kernel, strides, dilations, extra, tuple(wanted)[-rank:], strict=True)
    for e, k, s, d, more, out in rows:
        total = (e - 1) * s + more + (k - 1) * d + 1 - int(out)
        small, large = total // 2, total - total // 2
        lo, hi = (small, large) if auto == "SAME_UPPER" else (large, small)
        if total < 0:  # what the windows do not reach stands at the end
            lo, hi = 0, total
        pads += ((lo, hi - more),)
    return strides, dilations, pads


def with_zeros_between(c: Context, x: str, strides: tuple[int, ...]) -> str:
    """`stride - 1` zeros after every element of a spatial axis but the last."""
    for axis, s in enumerate(strides, 2):
        if s > 1:
            shape = c.shape(x)
            x = c.emit("reshape", [x], shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
            widths = tuple((0, s - 1 if d == axis + 1 else 0) for d in range(len(shape) + 1))
            x = c.emit("pad", [x], pads=widths, value=0.0)
            x = c.emit("reshape", [x], shape=(*shape[:axis], shape[axis] * s, *shape[axis + 1 :]))
            x = movement.padded(
                c, x, tuple((0, 1 - s if d == axis else 0) for d in range(len(shape))), 0
            )
    return x


def pool(op: str) -> Pool:
    """A pool; that of maxima has their places as its second output."""

    def convert(c: Context, n: OnnxNode) -> str | tuple[str, ...]:
        x = c.operand(n, 0)
        out = pooled(c, n, x, op)
        if op != "max_pool" or len(n.outputs) < 2 or not n.outputs[1]:
            return out
        attrs = _pool_attrs(c, n, x, op)
        attrs["column_major"] = bool(n.attrs.get("storage_order", 0))
        return out, c.emit("max_pool_places", [x], **attrs)

    return convert


def pooled(c: Context, n: OnnxNode, x: str, op: str) -> str:
    """The pool `op` of data with channels first, with the node's attributes."""
    return c.emit(op, [x], **_pool_attrs(c, n, x, op))


def _pool_attrs(c: Context, n: OnnxNode, x: str, op: str) -> dict[str, Any]:
    n.attrs["kernel_shape"]  # there is no default
    kernel = numbers(n, "kernel_shape", len(n.attrs["kernel_shape"]))
    attrs = _window(n, c.shape(x)[2:], kernel)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, attrs["dilations"], strict=True)]
    if any(max(pair) >= span for pair, span in zip(attrs["pads"], spans, strict=True)):
        raise ModelError(f"pads {attrs['pads']} are not smaller than the windows {spans}")
    ceil = bool(n.attrs.get("ceil_mode", 0)) and n.attrs.get("auto_pad", "NOTSET") != "VALID"
    attrs |= {"kernel": kernel, "ceil_mode": ceil}
    if op == "avg_pool":
        attrs["count_include_pad"] = bool(n.attrs.get("count_include_pad", 0))
    return attrs


def lp_pool(c: Context, n: OnnxNode) -> str:
    """The p-norm of each window: the sum of the powers of its elements, without padding."""
    kernel = numbers(n, "kernel_shape", len(n.attrs["kernel_shape"]))
    ceil = bool(n.attrs.get("ceil_mode", 0)) and n.attrs.get("auto_pad", "NOTSET") != "VALID"
    attrs = {**conv_window(c, n, kernel), "kernel": kernel, "ceil_mode": ceil}
    x, p = c.operand(n, 0), int(n.attrs.get("p", 2))
    return _root(c, c.emit("sum_pool", [_power(c, x, p)], **attrs), p)


def global_lp_pool(c: Context, n: OnnxNode) -> str:
    x, p = c.operand(n, 0), int(n.attrs.get("p", 2))
    if len(c.shape(x)) < 3:
        raise ModelError(f"{c.type(x)} has no spatial axes")
    axes = tuple(range(2, len(c.shape(x))))
    return _root(c, c.emit("reduce_sum", [_power(c, x, p)], axes=axes, keepdims=True), p)


def _power(c: Context, x: str, p: int) -> str:
    if p < 1:
        raise ModelError(f"the norm p={p}: at least 1")
    if p == 2:
        return c.emit("mul", [x, x])
    size = c.emit("abs", [x])
    return size if p == 1 else c.emit("pow", [size, c.scalar(p, x)])


def _root(c: Context, x: str, p: int) -> str:
    if p == 1:
        return x
    return c.emit("sqrt", [x]) if p == 2 else c.emit("pow", [x, c.scalar(1 / p, x)])


def causal_conv(c: Context, n: OnnxNode) -> tuple[str, str]:
    """A convolution of each channel behind the state: (result, the last elements as next state)."""
    x, w = c.operand(n, 0), c.operand(n, 1)
    if len(c.shape(x)) != 3 or len(c.shape(w)) != 3:
        raise ModelError(f"data {c.type(x)} and weights {c.type(w)}: 3 axes each")
    (batch, channels, _), size = c.shape(x), c.shape(w)[2]
    if c.has(n, 3):
        state = c.operand(n, 3)
        if c.shape(state) != (batch, channels, size - 1):
            raise ModelError(f"past_state {c.type(state)}: [{batch}, {channels}, {size - 1}]")
        x = c.emit("concat", [state, x], axis=2) if size > 1 else x
    else:
        x = movement.padded(c, x, ((0, 0), (0, 0), (size - 1, 0)), 0)
    operands = [x, w, *([c.operand(n, 2)] if c.has(n, 2) else [])]
    window: dict[str, Any] = {
        "strides": (1,),
        "dilations": (1,),
        "pads": ((0, 0),),
        "layout": "channels_first",
    }
    out = c.emit("conv", operands, groups=channels, **window)
    activation = n.attrs.get("activation", "none")
    if activation in ("silu", "swish"):
        out = c.emit("mul", [out, c.emit("sigmoid", [out])])
    elif activation != "none":
        raise ModelError(f"activation {activation!r} is none of none, silu, swish")
    starts, sizes = (0, 0, c.shape(x)[2] - size + 1), (batch, channels, size - 1)
    return out, c.emit("slice", [x], starts=starts, sizes=sizes, steps=(1, 1, 1))


def global_pool(op: str) -> Reader:
    def convert(c: Context, n: OnnxNode) -> str:
        x = c.operand(n, 0)
        if len(c.shape(x)) < 3:
            raise ModelError(f"{c.type(x)} has no spatial axes")
        return c.emit(op, [x], axes=tuple(range(2, len(c.shape(x)))), keepdims=True)

    return convert
