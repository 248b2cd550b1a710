"""Random layers of networks, for a cost model that is to know tasks of networks it has not seen.

In: a random generator. Out: a `Graph` of one layer with what follows it (bias, activation,
residual), in the sizes of common networks: convolutions, depthwise, grouped and transposed ones,
dense layers, products of batches, softmax, norms, means, pools, chains of elementwise operators.
Weights are random; the layout is channels first, as in an imported file.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from ansorlite.graph.ir import Graph
from ansorlite.workloads.layers import Net

T = TypeVar("T")
IMAGES = (7, 8, 10, 12, 13, 14, 16, 19, 20, 24, 26, 28, 32, 38, 40, 48, 52, 56, 64, 80, 96, 112)
CHANNELS = (8, 12, 16, 24, 32, 40, 48, 64, 72, 80, 96, 120, 128, 144, 160, 192, 240, 256, 288, 320)
WIDE = (*CHANNELS, 384, 480, 512, 576, 640, 672, 768, 960, 1024, 1152, 1280, 1536)
WIDTHS = (64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096)
ROWS = (1, 2, 4, 8, 16, 32, 49, 50, 64, 77, 96, 128, 196, 197, 200, 256, 384, 512, 1024)
PLACES = (49, 64, 77, 100, 128, 160, 196, 197, 256, 320, 384, 512, 577, 784, 1024, 1500, 2048)
LONG_ROWS = (784, 1024, 1280, 1536, 1568, 2048, 3136, 4096)
LARGEST_VALUES = 1 << 22  # elements of a layer's data


def _one(rng: np.random.Generator, values: tuple[T, ...]) -> T:
    return values[int(rng.integers(len(values)))]


def _image(net: Net, rng: np.random.Generator, channels: int) -> str:
    """Data [1, channels, h, w]: few channels have large images, as in networks."""
    size = _one(rng, tuple(n for n in IMAGES if n * n * channels <= LARGEST_VALUES // 4))
    wide = size if rng.random() < 0.8 else _one(rng, IMAGES[: IMAGES.index(size) + 1])
    return net.builder.input("x", (1, channels, size, wide))


def _activated(net: Net, rng: np.random.Generator, x: str) -> str:
    kinds = ("relu", "relu", "none", "none", "relu6", "silu", "gelu", "sigmoid")
    return _as_told(net, _one(rng, kinds), x)


def _as_told(net: Net, kind: str, x: str) -> str:
    """An activation by its name."""
    b = net.builder
    match kind:
        case "relu":
            return net.relu(x)
        case "relu6":
            return net.relu6(x)
        case "silu":
            return b.emit("mul", [x, b.emit("sigmoid", [x])])
        case "gelu":
            return net.gelu(x)
        case "sigmoid":
            return b.emit("sigmoid", [x])
    return x


def _ended(net: Net, rng: np.random.Generator, x: str) -> Graph:
    """A batch norm, maybe a residual, maybe an activation."""
    b = net.builder
    if rng.random() < 0.9:
        x = net.norm(x, "norm")
    if rng.random() < 0.25:
        x = b.emit("add", [x, b.input("residual", b.shape(x))])
    return b.finish([_activated(net, rng, x)])


def pointwise(net: Net, rng: np.random.Generator) -> Graph:
    x = _image(net, rng, _one(rng, WIDE))
    stride = 2 if rng.random() < 0.1 else 1
    return _ended(net, rng, net.conv(x, "conv", _one(rng, WIDE), 1, stride))


def convolution(net: Net, rng: np.random.Generator) -> Graph:
    first = rng.random() < 0.12  # images have three channels
    if first:
        x = net.builder.input("x", (1, 3, 160, _one(rng, (128, 160, 192, 224, 320))))
    else:
        x = _image(net, rng, _one(rng, CHANNELS[1:]))
    kernel = _one(rng, (3, 3, 3, 3, 3, 5, 7))
    stride = 2 if first or rng.random() < 0.25 else 1
    channels = _one(rng, CHANNELS[1:] if kernel == 3 and not first else CHANNELS[:12])
    return _ended(net, rng, net.conv(x, "conv", channels, kernel, stride))


def one_axis(net: Net, rng: np.random.Generator) -> Graph:
    """A window along one of two axes, or a convolution over one axis or three."""
    kind = int(rng.integers(4))
    if kind < 2:
        x = _image(net, rng, _one(rng, CHANNELS[2:]))
        length = _one(rng, (3, 5, 7))
        kernel = (1, length) if kind else (length, 1)
        return _ended(net, rng, net.conv(x, "conv", _one(rng, CHANNELS[2:]), kernel))
    b = net.builder
    if kind == 2:
        x = b.input("x", (1, _one(rng, WIDTHS[:8]), _one(rng, (32, 64, 100, 128, 256, 500))))
        return _ended(net, rng, net.conv(x, "conv", _one(rng, WIDTHS[:8]), (_one(rng, (3, 5, 7)),)))
    n = _one(rng, (7, 14, 28))
    x = b.input("x", (1, _one(rng, (16, 32, 64, 128)), _one(rng, (4, 8, 16)), n, n))
    return _ended(net, rng, net.conv(x, "conv", _one(rng, (16, 32, 64, 128)), 3))


def depthwise(net: Net, rng: np.random.Generator) -> Graph:
    channels = _one(rng, WIDE[2:])
    x = _image(net, rng, channels)
    kernel, stride = _one(rng, (3, 3, 3, 5, 5, 7)), 2 if rng.random() < 0.3 else 1
    return _ended(net, rng, net.conv(x, "conv", channels, kernel, stride, channels))


def grouped(net: Net, rng: np.random.Generator) -> Graph:
    groups, width = _one(rng, (2, 4, 8, 16, 32)), _one(rng, (4, 8, 16, 32))
    x = _image(net, rng, groups * width)
    return _ended(net, rng, net.conv(x, "conv", groups * width, 3, 1, groups))


def transposed(net: Net, rng: np.random.Generator) -> Graph:
    x = _image(net, rng, _one(rng, CHANNELS[4:]))
    kernel = _one(rng, (2, 4))
    y = net.conv_transpose(x, "up", _one(rng, CHANNELS[2:]), kernel, 2, kernel // 2 - 1)
    return _ended(net, rng, y)


def dense(net: Net, rng: np.random.Generator) -> Graph:
    b = net.builder
    x = b.input("x", (_one(rng, ROWS), _one(rng, WIDTHS)))
    y = net.linear(x, "dense", _one(rng, WIDTHS))
    if rng.random() < 0.25:
        y = b.emit("add", [y, b.input("residual", b.shape(y))])
    return b.finish([_activated(net, rng, y)])


def products(net: Net, rng: np.random.Generator) -> Graph:
    """Products of a batch of matrices, as the heads of attention have them."""
    b = net.builder
    heads, size, width = _one(rng, (1, 4, 6, 8, 12, 16)), _one(rng, ROWS[5:]), _one(rng, (32, 64))
    size = min(size, 512)
    if rng.random() < 0.5:
        x, y = b.input("x", (heads, size, width)), b.input("y", (heads, width, size))
        z = b.emit("matmul", [x, y])
        return b.finish([b.emit("mul", [z, net.scalar(0.125)]) if rng.random() < 0.6 else z])
    x, y = b.input("x", (heads, size, size)), b.input("y", (heads, size, width))
    return b.finish([b.emit("matmul", [x, y])])


def softmax(net: Net, rng: np.random.Generator) -> Graph:
    b = net.builder
    shape = (
        _one(rng, (1, 4, 8, 12)),
        _one(rng, ROWS[4:-1]),
        _one(rng, (10, 49, 64, 128, 197, 256)),
    )
    x = b.input("x", shape)
    x = b.emit("div", [x, net.scalar(8.0)]) if rng.random() < 0.4 else x
    return b.finish([b.emit("softmax", [x], axes=(2,))])


def layer_norm(net: Net, rng: np.random.Generator) -> Graph:
    b = net.builder
    x = b.input("x", (1, _one(rng, ROWS[2:]), _one(rng, WIDTHS[:13])))
    if rng.random() < 0.5:
        x = b.emit("add", [x, b.input("residual", b.shape(x))])
    return b.finish([net.layer_norm(x, "norm")])


def reduction(net: Net, rng: np.random.Generator) -> Graph:
    b = net.builder
    x = _image(net, rng, _one(rng, WIDE[4:]))
    axes = _one(rng, ((2, 3), (2, 3), (1,), (3,)))
    op = _one(rng, ("reduce_mean", "reduce_mean", "reduce_sum", "reduce_max"))
    return b.finish([b.emit(op, [x], axes=axes, keepdims=True)])


def pool(net: Net, rng: np.random.Generator) -> Graph:
    x = _image(net, rng, _one(rng, WIDE[2:]))
    kernel = _one(rng, (2, 3, 3, 5))
    y = net.builder.emit(
        "max_pool",
        [x],
        kernel=(kernel,) * 2,
        strides=(_one(rng, (1, 2)),) * 2,
        pads=((kernel // 2, kernel // 2),) * 2,
        dilations=(1, 1),
        ceil_mode=False,
        layout="channels_first",
    )
    return net.builder.finish([y])


def chain(net: Net, rng: np.random.Generator) -> Graph:
    """Elementwise operators one after the other, one of them with a second operand."""
    b = net.builder
    x = _image(net, rng, _one(rng, WIDE))
    c = b.shape(x)[1]
    for _ in range(int(rng.integers(1, 4))):
        match _one(rng, ("scale", "add", "activated")):
            case "scale":
                x = b.emit("mul", [x, net.param(rng.uniform(0.5, 1.5, (c, 1, 1)), "scale")])
            case "add":
                x = b.emit("add", [x, b.input(f"other{len(b.inputs)}", b.shape(x))])
            case _:
                x = _activated(net, rng, x)
    return b.finish([b.emit("relu", [x])])


def wide_convolution(net: Net, rng: np.random.Generator) -> Graph:
    """3 x 3, of many channels and small images."""
    channels = _one(rng, (128, 160, 192, 224, 256, 320, 384, 448, 512, 640))
    size = _one(rng, tuple(n for n in (*IMAGES[:14], 56) if n * n * channels <= 1 << 18))
    x = net.builder.input("x", (1, channels, size, size))
    same = rng.random() < 0.7
    others = tuple(n for n in (64, 96, 128, 192, 256, 384, 512) if n * channels <= 1 << 18)
    return _ended(net, rng, net.conv(x, "conv", channels if same else _one(rng, others), 3))


def downsampling(net: Net, rng: np.random.Generator) -> Graph:
    """Of half the size and, mostly, of twice the channels."""
    channels = _one(rng, (32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512))
    size = 2 * _one(rng, tuple(n for n in IMAGES if 4 * n * n * channels <= 1 << 20))
    x = net.builder.input("x", (1, channels, size, size))
    to = channels * _one(rng, (1, 2, 2, 2)) if rng.random() < 0.85 else _one(rng, CHANNELS[6:])
    return _ended(net, rng, net.conv(x, "conv", to, _one(rng, (3, 3, 3, 3, 1)), 2))


def first_convolution(net: Net, rng: np.random.Generator) -> Graph:
    """Of an image of three channels."""
    size = _one(rng, (192, 224, 224, 256, 288, 320, 384, 416))
    x = net.builder.input("x", (1, 3, size, size))
    kernel = _one(rng, (3, 3, 5, 6, 7, 7))
    return _ended(net, rng, net.conv(x, "conv", _one(rng, (16, 24, 32, 48, 64, 96)), kernel, 2))


def wide_transposed(net: Net, rng: np.random.Generator) -> Graph:
    channels = _one(rng, (64, 96, 128, 192, 256, 384, 512))
    size = _one(
        rng, tuple(n for n in (4, 5, 6, 7, 8, 12, 14, 16, 28, 32) if n * n * channels < 1 << 17)
    )
    x, kernel = net.builder.input("x", (1, channels, size, size)), _one(rng, (2, 3, 4, 4, 4))
    to = _one(rng, (3, 32, 64, 96, 128, 192, 256))
    return _ended(net, rng, net.conv_transpose(x, "up", to, kernel, 2, kernel // 2 - (kernel != 3)))


def long_dense(net: Net, rng: np.random.Generator) -> Graph:
    """A product of many rows, as of long sequences."""
    b = net.builder
    x = b.input("x", (1, _one(rng, LONG_ROWS), _one(rng, (192, 256, 320, 384, 512, 640, 768))))
    width = b.shape(x)[-1]
    kind = int(rng.integers(4))
    if kind == 0:  # widened, as between attentions
        return b.finish([net.gelu(net.linear(x, "widen", 4 * width))])
    if kind == 1:
        x = b.input("wide", (1, b.shape(x)[1], 4 * width))
        y = net.linear(x, "narrow", width)
        return b.finish([b.emit("add", [y, b.input("residual", b.shape(y))])])
    y = net.linear(x, "project", width)
    return b.finish([b.emit("add", [y, b.input("residual", b.shape(y))]) if kind == 2 else y])


def projections(net: Net, rng: np.random.Generator) -> Graph:
    """Queries, keys and values of a sequence as one product, or keys and values."""
    b = net.builder
    rows = _one(rng, (128, 196, 256, 384, 512, *LONG_ROWS))
    width = _one(rng, (192, 256, 320, 384, 512, 640, 768, 1024))
    x = b.input("x", (1, rows, width))
    return b.finish([net.linear(x, "project", width * _one(rng, (2, 3, 3, 3)))])


def signal(net: Net, rng: np.random.Generator) -> Graph:
    """A convolution over time, as sound and sensor data begin with; half of them skip places."""
    stride, kernel = _one(rng, (1, 2)), _one(rng, (3, 3, 3, 5, 7))
    channels = _one(rng, (80, 128, 256, 320, 384, 512)[1 if stride == 2 else 0 :])
    b = net.builder
    x = b.input("x", (1, channels, _one(rng, (1000, 1500, 2000, 3000, 4000))))
    out = channels if stride == 2 else _one(rng, (256, 320, 384, 512))
    y = net.conv(x, "conv", out, (kernel,), stride)
    y = net.gelu(y) if rng.random() < 0.7 else b.emit("relu", [y])
    return b.finish([b.emit("transpose", [y], perm=(0, 2, 1))])


Layer = Callable[[Net, np.random.Generator], Graph]
# What is drawn, and how often: as networks spend their time, and a little of everything else.
LAYERS: tuple[tuple[Layer, float], ...] = (
    (pointwise, 0.15),
    (convolution, 0.17),
    (one_axis, 0.05),
    (depthwise, 0.12),
    (grouped, 0.03),
    (transposed, 0.06),
    (dense, 0.14),
    (products, 0.1),
    (softmax, 0.06),
    (layer_norm, 0.04),
    (reduction, 0.02),
    (pool, 0.02),
    (chain, 0.04),
)


# Layers that these are far from, and that take much of the time of some networks.
LARGE_LAYERS: tuple[tuple[Layer, float], ...] = (
    (wide_convolution, 0.4),
    (downsampling, 0.35),
    (first_convolution, 0.12),
    (wide_transposed, 0.13),
)


def attention(net: Net, rng: np.random.Generator) -> Graph:
    """The heads of attention without a mask, of queries, keys and values side by side."""
    return _attention(net, rng, masked=False)


def masked_attention(net: Net, rng: np.random.Generator) -> Graph:
    """The same with numbers that are added to all heads' scores."""
    return _attention(net, rng, masked=True)


def _attention(net: Net, rng: np.random.Generator, masked: bool) -> Graph:
    b = net.builder
    size, depth = _one(rng, PLACES), _one(rng, (32, 64, 64, 64, 80, 128))
    heads = _one(rng, tuple(n for n in (2, 3, 4, 6, 8, 12, 16) if n == 2 or n * size < 6000))
    q, k, v = (b.input(name, (1, size, heads, depth)) for name in "qkv")
    query = b.emit("transpose", [q], perm=(0, 2, 1, 3))
    key = b.emit("transpose", [k], perm=(0, 2, 3, 1))
    scores = b.emit("div", [b.emit("matmul", [query, key]), net.scalar(float(np.sqrt(depth)))])
    if masked:
        scores = b.emit("add", [scores, b.input("mask", (1, 1, 1, size))])
    shares = b.emit("softmax", [scores], axes=(3,))
    y = b.emit("matmul", [shares, b.emit("transpose", [v], perm=(0, 2, 1, 3))])
    return b.finish([b.emit("transpose", [y], perm=(0, 2, 1, 3))])


def inverted_residual(net: Net, rng: np.random.Generator) -> Graph:
    """Its expansion and depthwise convolution, of which the wide tensor is the larger part."""
    channels = _one(rng, (16, 24, 32, 40, 48, 56, 64, 80, 96, 112))
    wide = channels * _one(rng, (3, 4, 6, 6))
    sizes = (14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112)
    size = _one(rng, tuple(n for n in sizes if n * n * wide <= LARGEST_VALUES // 2))
    b = net.builder  # data as between the layers of a network: channels last
    x = b.emit("transpose", [b.input("x", (1, size, size, channels))], perm=(0, 3, 1, 2))
    kind = _one(rng, ("relu6", "relu6", "silu", "relu"))
    x = _as_told(net, kind, net.norm(net.conv(x, "expand", wide, 1), "expanded"))
    kernel, stride = _one(rng, (3, 3, 5)), _one(rng, (1, 1, 2))
    x = net.norm(net.conv(x, "depthwise", wide, kernel, stride, wide), "filtered")
    return b.finish([b.emit("transpose", [_as_told(net, kind, x)], perm=(0, 2, 3, 1))])


def separable(net: Net, rng: np.random.Generator) -> Graph:
    """A depthwise convolution and the product of its channels, to fewer ones or as many or more."""
    narrow = rng.random() < 0.7  # the end of an inverted residual
    channels = _one(rng, (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192))
    wide = channels * _one(rng, (1, 3, 4, 6, 6) if narrow else (1, 2))
    sizes = (7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112)
    size = _one(rng, tuple(n for n in sizes if n * n * wide <= LARGEST_VALUES // 2))
    b = net.builder  # channels last, as above
    x = b.emit("transpose", [b.input("x", (1, size, size, wide))], perm=(0, 3, 1, 2))
    kind = _one(rng, ("relu6", "relu6", "silu", "relu"))
    kernel, stride = _one(rng, (3, 3, 5)), _one(rng, (1, 1, 2)) if size > 8 else 1
    x = net.norm(net.conv(x, "depthwise", wide, kernel, stride, wide), "filtered")
    to = channels if narrow else wide * _one(rng, (1, 2))
    y = net.norm(net.conv(_as_told(net, kind, x), "project", to, 1), "projected")
    if not narrow:
        y = _as_told(net, kind, y)
    elif rng.random() < 0.6:
        other = b.emit("transpose", [b.input("other", (1, *b.shape(y)[2:], to))], perm=(0, 3, 1, 2))
        y = b.emit("add", [other, y])
    return b.finish([b.emit("transpose", [y], perm=(0, 2, 3, 1))])


# Products of many rows, which take seconds to search.
LONG_LAYERS: tuple[tuple[Layer, float], ...] = ((long_dense, 1.0),)
PROJECTIONS: tuple[tuple[Layer, float], ...] = ((projections, 1.0),)
SIGNALS: tuple[tuple[Layer, float], ...] = ((signal, 1.0),)


# Chains of kernels that one kernel may compute in their place (`graph.cuts`).
CHAINS: tuple[tuple[Layer, float], ...] = ((attention, 0.65), (masked_attention, 0.35))
RESIDUALS: tuple[tuple[Layer, float], ...] = ((inverted_residual, 0.5), (separable, 0.5))


def drawn_layer(rng: np.random.Generator, layers: Sequence[tuple[Layer, float]] = LAYERS) -> Graph:
    """A random layer of these kinds."""
    share = np.array([s for _, s in layers])
    make = layers[int(rng.choice(len(layers), p=share / share.sum()))][0]
    return make(Net(make.__name__, int(rng.integers(1 << 31))), rng)
