"""BERT as a graph: token ids -> hidden states of the last layer.

In: name, batch, seed and sizes. Out: a `Graph` like that of an imported ONNX export of the encoder,
with normalisation and activation in primitive operators. Sizes are those of BERT-base (Devlin et
al., 2018): 12 layers of width 768 with 12 heads. All ids belong to one segment, without padding.
"""

import numpy as np

from ansorlite.graph.ir import Graph

from .layers import Net


def bert(
    name: str,
    batch: int,
    seed: int,
    size: int = 128,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
) -> Graph:
    """ids int64 [batch, size] -> hidden states float32 [batch, size, width]; post-norm, GELU."""
    net = Net(name, seed)
    b = net.builder
    ids = b.input("ids", (batch, size), "int64")
    rng = net.rng
    words = net.param(rng.standard_normal((vocabulary, width), np.float32) * 0.5, "words")
    flat = b.emit("reshape", [ids], shape=(batch * size,))
    x = b.emit("take", [words, flat], "embedded", axis=0)
    x = b.emit("reshape", [x], shape=(batch, size, width))
    x = b.emit("add", [x, net.param(rng.normal(0.0, 0.5, (size, width)), "places")])
    x = net.layer_norm(x, "embeddings")
    for k in range(layers):
        x = _layer(net, x, f"layer{k}", heads)
    return b.finish([x])


def _layer(net: Net, x: str, at: str, heads: int) -> str:
    """Self-attention and two dense layers; each part is added to its input and normalised."""
    width = net.builder.shape(x)[-1]
    y = net.linear(_attention(net, x, f"{at}.attention", heads), f"{at}.project", width)
    x = net.layer_norm(net.builder.emit("add", [y, x]), f"{at}.norm1")
    y = net.gelu(net.linear(x, f"{at}.widen", 4 * width))
    y = net.linear(y, f"{at}.narrow", width)
    return net.layer_norm(net.builder.emit("add", [y, x]), f"{at}.norm2")


def _attention(net: Net, x: str, at: str, heads: int) -> str:
    b = net.builder
    batch, size, width = b.shape(x)
    split = (batch, size, heads, width // heads)

    def part(name: str, perm: tuple[int, ...]) -> str:
        y = b.emit("reshape", [net.linear(x, f"{at}.{name}", width)], shape=split)
        return b.emit("transpose", [y], f"{at}.{name}.heads", perm=perm)

    query, key = part("query", (0, 2, 1, 3)), part("key", (0, 2, 3, 1))
    value = part("value", (0, 2, 1, 3))
    scores = b.emit("matmul", [query, key], f"{at}.scores")
    scale = net.scalar(float(np.sqrt(width // heads)))
    shares = b.emit("softmax", [b.emit("div", [scores, scale])], f"{at}.shares", axes=(3,))
    y = b.emit("matmul", [shares, value], f"{at}.context")
    y = b.emit("transpose", [y], perm=(0, 2, 1, 3))
    return b.emit("reshape", [y], at, shape=(batch, size, width))
