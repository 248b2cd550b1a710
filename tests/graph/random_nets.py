"""Random small networks, channels first, from operators that follow each other in real networks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph

Draw = Callable[[Any], Any]


class Net:
    """A growing network: `values` are those that later layers may read."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.b = GraphBuilder("random")
        self.rng = np.random.default_rng(draw(st.integers(0, 1000)))
        shape = (
            draw(st.integers(1, 2)),
            draw(st.sampled_from([2, 4, 6])),
            draw(st.integers(3, 7)),
            draw(st.integers(3, 7)),
        )
        self.values = [self.b.input("x", shape)]

    def pick(self, rank: int = 4) -> str:
        """A value, the latest ones more often."""
        fitting = [v for v in self.values if len(self.b.shape(v)) == rank]
        back = min(self.draw(st.sampled_from([0, 0, 0, 1, 2])), len(fitting) - 1)
        return fitting[-1 - back]

    def param(self, *shape: int, low: float = -1.0) -> str:
        return self.b.constant(self.rng.uniform(low, 1.0, shape).astype(np.float32), "w")

    def window(self, x: str, kernel: tuple[int, int]) -> dict[str, Any]:
        draw = self.draw
        dilation = draw(st.sampled_from([1, 1, 2]))
        if any(
            (k - 1) * dilation + 1 > n for k, n in zip(kernel, self.b.shape(x)[2:], strict=True)
        ):
            dilation = 1
        half = max(k // 2 for k in kernel)
        pads = tuple((draw(st.integers(0, half)), draw(st.integers(0, half))) for _ in kernel)
        return {
            "strides": (draw(st.integers(1, 2)), draw(st.integers(1, 3))),
            "dilations": (dilation, dilation),
            "pads": pads,
            "layout": "channels_first",
        }

    def kernel(self, x: str) -> tuple[int, int]:
        h, w = self.b.shape(x)[2:]
        return self.draw(st.integers(1, min(3, h))), self.draw(st.integers(1, min(3, w)))


def conv(net: Net) -> str:
    x = net.pick()
    c = net.b.shape(x)[1]
    groups = net.draw(st.sampled_from([g for g in (1, 1, 2, c) if c % g == 0]))
    co = groups * net.draw(st.integers(1, 3))
    kernel = net.kernel(x)
    operands = [x, net.param(co, c // groups, *kernel)]
    if net.draw(st.booleans()):
        operands.append(net.param(co))
    return net.b.emit("conv", operands, groups=groups, **net.window(x, kernel))


def conv_transpose(net: Net) -> str:
    x = net.pick()
    _, c, h, w = net.b.shape(x)
    kernel = net.kernel(x)
    small = max(h, w) <= 7
    pads = tuple((0, net.draw(st.integers(-1, 0))) for _ in kernel)
    return net.b.emit(
        "conv_transpose",
        [x, net.param(c, net.draw(st.integers(1, 3)), *kernel)],
        strides=(net.draw(st.integers(2, 3)), 2) if small else (1, 1),
        pads=pads if small else ((0, 0), (0, 0)),
        layout="channels_first",
    )


def take(net: Net) -> str:
    """Rows, columns or channels by index, some twice, some counted from the end."""
    x = net.pick()
    axis = net.draw(st.integers(1, 3))
    n = net.b.shape(x)[axis]
    index = net.rng.integers(-n, n, net.draw(st.integers(1, n + 1)))
    return net.b.emit("take", [x, net.b.constant(index, "index")], axis=axis)


def masked(net: Net) -> str:
    """Elements below a bound, or outside of a mask, are replaced."""
    x = net.pick()
    bound = net.b.constant(np.asarray(0.25, np.float32), "bound")
    if net.draw(st.booleans()):
        return net.b.emit("where", [net.b.emit("less", [x, bound]), bound, x])
    mask = net.b.constant(net.rng.random(net.b.shape(x)[2:]) < 0.5, "mask")
    return net.b.emit("where", [mask, x, bound])


def pointwise(net: Net) -> str:
    x = net.pick()
    co = net.draw(st.sampled_from([2, 4]))
    return net.b.emit(
        "conv",
        [x, net.param(co, net.b.shape(x)[1], 1, 1)],
        groups=1,
        strides=(1, 1),
        dilations=(1, 1),
        pads=((0, 0), (0, 0)),
        layout="channels_first",
    )


def batch_norm(net: Net) -> str:
    x = net.pick()
    c = net.b.shape(x)[1]
    params = [net.param(c), net.param(c), net.param(c), net.param(c, low=0.5)]
    return net.b.emit("batch_norm", [x, *params], epsilon=1e-3)


def activation(net: Net) -> str:
    op = net.draw(st.sampled_from(["relu", "sigmoid", "tanh", "leaky_relu", "clip", "neg", "abs"]))
    attrs: dict[str, Any] = {"leaky_relu": {"alpha": 0.1}, "clip": {"min": -0.5, "max": 1.0}}.get(
        op, {}
    )
    return net.b.emit(
        op, [net.pick(net.draw(st.sampled_from([4, 4, 2])) if has2(net) else 4)], **attrs
    )


def has2(net: Net) -> bool:
    return any(len(net.b.shape(v)) == 2 for v in net.values)


def swish(net: Net) -> str:
    """x * sigmoid(x): paths that part and meet again."""
    x = net.pick()
    return net.b.emit("mul", [x, net.b.emit("sigmoid", [x])])


def squeeze_excite(net: Net) -> str:
    x = net.pick()
    mean = net.b.emit("reduce_mean", [x], axes=(2, 3), keepdims=True)
    return net.b.emit("mul", [net.b.emit("sigmoid", [mean]), x])


def constant_operand(net: Net) -> str:
    x = net.pick()
    c, h, w = net.b.shape(x)[1:]
    shape = net.draw(
        st.sampled_from([(c, 1, 1), (), (1, c, 1, 1), (h, w), (w,), (1, c, h, w), (1,)])
    )
    op = net.draw(st.sampled_from(["add", "sub", "mul", "div", "maximum"]))
    pair = [x, net.param(*shape, low=0.5)]
    if op != "div" and net.draw(st.booleans()):
        pair.reverse()
    return net.b.emit(op, pair)


def binary(net: Net) -> str:
    x = net.pick()
    same = [v for v in net.values if net.b.shape(v) == net.b.shape(x)]
    other = net.draw(st.sampled_from(same))
    return net.b.emit(net.draw(st.sampled_from(["add", "mul", "sub", "minimum"])), [x, other])


def pool(net: Net) -> str:
    x = net.pick()
    kernel = net.kernel(x)
    attrs = net.window(x, kernel) | {"kernel": kernel, "ceil_mode": net.draw(st.booleans())}
    op = net.draw(st.sampled_from(["max_pool", "avg_pool"]))
    if op == "avg_pool":
        attrs["count_include_pad"] = net.draw(st.booleans())
    else:
        attrs["pads"] = ((0, 0), (0, 0))  # so that no window is empty
    return net.b.emit(op, [x], **attrs)


def reduction(net: Net) -> str:
    x = net.pick()
    axes = net.draw(st.sampled_from([(1,), (2, 3), (1, 2, 3), (0,), (3,)]))
    op = net.draw(st.sampled_from(["reduce_mean", "reduce_sum", "reduce_max", "reduce_min"]))
    return net.b.emit(op, [x], axes=axes, keepdims=True)


def softmax(net: Net) -> str:
    return net.b.emit("softmax", [net.pick()], axes=net.draw(st.sampled_from([(1,), (3,), (2, 3)])))


def normalised(net: Net) -> str:
    """(x - mean) / sqrt(variance + epsilon), maybe scaled and shifted by what the row tells."""
    x = net.pick(net.draw(st.sampled_from([4, 4, 2])) if has2(net) else 4)
    rank = len(net.b.shape(x))
    axes = net.draw(st.sampled_from([(1,), (2, 3), (1, 2, 3), (3,)])) if rank == 4 else (1,)
    mean = net.b.emit("reduce_mean", [x], axes=axes, keepdims=True)
    centred = net.b.emit("sub", [x, mean])
    square = net.b.emit("mul", [centred, centred])
    variance = net.b.emit("reduce_mean", [square], axes=axes, keepdims=True)
    epsilon = net.b.constant(np.asarray(0.5, np.float32), "epsilon")
    root = net.b.emit("sqrt", [net.b.emit("add", [variance, epsilon])])
    y = net.b.emit("div", [centred, root])
    if net.draw(st.booleans()):
        high = net.b.emit("reduce_max", [y], axes=axes, keepdims=True)
        y = net.b.emit("sub", [y, net.b.emit("tanh", [high])])
    return net.b.emit("mul", [y, net.param(net.b.shape(x)[-1])])


def lrn(net: Net) -> str:
    size = net.draw(st.integers(1, 4))
    return net.b.emit("lrn", [net.pick()], axis=1, size=size, alpha=0.2, beta=0.7, bias=1.0)


def concat(net: Net) -> str:
    x = net.pick()
    n, _, h, w = net.b.shape(x)
    fitting = [
        v for v in net.values if len(s := net.b.shape(v)) == 4 and (s[0], *s[2:]) == (n, h, w)
    ]
    return net.b.emit("concat", [x, net.draw(st.sampled_from(fitting))], axis=1)


def pad(net: Net) -> str:
    widths = tuple((net.draw(st.integers(0, 1)), net.draw(st.integers(0, 1))) for _ in range(2))
    value = net.draw(st.sampled_from([0.0, 0.5]))
    return net.b.emit("pad", [net.pick()], pads=((0, 0), (0, 0), *widths), value=value)


def slice_(net: Net) -> str:
    x = net.pick()
    n, c, h, w = net.b.shape(x)
    return net.b.emit(
        "slice", [x], starts=(0, c - 1, 0, 0), sizes=(n, c, h, -(-w // 2)), steps=(1, -1, 1, 2)
    )


def transposed(net: Net) -> str:
    perm = net.draw(st.permutations(range(4)))
    y = net.b.emit("transpose", [net.pick()], perm=tuple(perm))
    if net.draw(st.booleans()):
        y = net.b.emit("tanh", [y])
        y = net.b.emit("transpose", [y], perm=tuple(perm.index(d) for d in range(4)))
    return y


def shuffle(net: Net) -> str:
    x = net.pick()
    n, c, h, w = net.b.shape(x)
    g = net.draw(st.sampled_from([d for d in (1, 2, 3) if c % d == 0]))
    y = net.b.emit("reshape", [x], shape=(n, g, c // g, h, w))
    y = net.b.emit("transpose", [y], perm=(0, 2, 1, 3, 4))
    return net.b.emit("reshape", [y], shape=(n, c, h, w))


def attention(net: Net) -> str:
    """softmax(q k^T) v over the pixels, with the transposes around it."""
    x = net.pick()
    n, c, h, w = net.b.shape(x)
    rows = net.b.emit("reshape", [x], shape=(n, c, h * w))
    q = net.b.emit("transpose", [rows], perm=(0, 2, 1))
    scores = net.b.emit("matmul", [q, rows])
    scores = net.b.emit("mul", [scores, net.b.constant(np.asarray(0.3, np.float32))])
    y = net.b.emit("matmul", [net.b.emit("softmax", [scores], axes=(2,)), q])
    back = net.b.emit("transpose", [y], perm=(0, 2, 1))
    return net.b.emit("reshape", [back], shape=(n, c, h, w))


def flat_dense(net: Net) -> str:
    """Flatten channels-first data into a dense layer."""
    x = net.pick()
    n, c, h, w = net.b.shape(x)
    y = net.b.emit("reshape", [x], shape=(n, c * h * w))
    flags = {"trans_a": False, "trans_b": net.draw(st.booleans())}
    weight = net.param(3, c * h * w) if flags["trans_b"] else net.param(c * h * w, 3)
    return net.b.emit("gemm", [y, weight, net.param(3)], alpha=0.5, beta=2.0, **flags)


def last_axis_dense(net: Net) -> str:
    """A matrix product over the last axis, which is not the channels'."""
    x = net.pick()
    return net.b.emit("matmul", [x, net.param(net.b.shape(x)[-1], net.draw(st.integers(1, 3)))])


LAYERS = (
    conv,
    conv,
    conv,
    pointwise,
    conv_transpose,
    take,
    masked,
    batch_norm,
    batch_norm,
    activation,
    activation,
    swish,
    squeeze_excite,
    constant_operand,
    binary,
    binary,
    pool,
    reduction,
    softmax,
    normalised,
    lrn,
    concat,
    pad,
    slice_,
    transposed,
    shuffle,
    attention,
    flat_dense,
    last_axis_dense,
)


@st.composite
def nets(draw: Draw, most: int = 9) -> Graph:
    """A network of up to `most` layers with one or two outputs."""
    net = Net(draw)
    for layer in draw(st.lists(st.sampled_from(LAYERS), min_size=1, max_size=most)):
        net.values.append(layer(net))
    outputs = [net.values[-1]]
    if draw(st.booleans()):
        outputs.append(draw(st.sampled_from(net.values[1:])))
    return net.b.finish(outputs)
