"""Layers of networks with random parameters, appended to a `GraphBuilder`.

In: names of values, numbers of channels, kernel extents. Out: names of values. The layout is
channels first, as in the graph of an imported ONNX file. Weights are He-normal; statistics of batch
norms are random, in a range that keeps activations from vanishing and overflowing. Used by
`networks` and `transformers`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph


class Net:
    """A network under construction; `rng` draws all parameters in the order of the calls."""

    def __init__(self, name: str, seed: int) -> None:
        self.builder = GraphBuilder(name)
        self.rng = np.random.default_rng(seed)

    def param(self, array: Any, name: str) -> str:
        return self.builder.constant(np.asarray(array, np.float32), name)

    def scalar(self, value: float, name: str = "scalar") -> str:
        return self.param(value, name)

    def conv(
        self,
        x: str,
        name: str,
        channels: int,
        kernel: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        groups: int = 1,
    ) -> str:
        """A convolution without bias; its padding keeps the extents at stride 1."""
        full = self.builder.shape(x)
        rank, ci = len(full) - 2, full[1] // groups
        extents = (kernel,) * rank if isinstance(kernel, int) else tuple(kernel)
        strides = (stride,) * rank if isinstance(stride, int) else tuple(stride)
        std = np.sqrt(2.0 / (ci * np.prod(extents)))
        shape = (channels, ci, *extents)
        weight = self.param(self.rng.standard_normal(shape) * std, f"{name}.weight")
        return self.builder.emit(
            "conv",
            [x, weight],
            name,
            strides=strides,
            pads=tuple((k // 2, k // 2) for k in extents),
            dilations=(1,) * rank,
            groups=groups,
            layout="channels_first",
        )

    def conv_transpose(
        self, x: str, name: str, channels: int, kernel: int, stride: int, padding: int
    ) -> str:
        """A transposed convolution over two spatial axes, without bias."""
        ci = self.builder.shape(x)[1]
        std = np.sqrt(2.0 * stride * stride / (ci * kernel * kernel))
        shape = (ci, channels, kernel, kernel)
        weight = self.param(self.rng.standard_normal(shape) * std, f"{name}.weight")
        return self.builder.emit(
            "conv_transpose",
            [x, weight],
            name,
            strides=(stride,) * 2,
            pads=((padding, padding),) * 2,
            layout="channels_first",
        )

    def norm(self, x: str, name: str, scale: float = 1.0) -> str:
        """A batch norm with statistics like those of a trained network, scaled by `scale`."""
        c, rng = self.builder.shape(x)[1], self.rng
        statistics = [
            self.param(rng.uniform(0.8, 1.2, c) * scale, f"{name}.scale"),
            self.param(rng.normal(0.0, 0.1, c), f"{name}.bias"),
            self.param(rng.normal(0.0, 0.1, c), f"{name}.mean"),
            self.param(rng.uniform(0.8, 1.2, c), f"{name}.var"),
        ]
        return self.builder.emit("batch_norm", [x, *statistics], name, epsilon=1e-5)

    def relu(self, x: str) -> str:
        return self.builder.emit("relu", [x], f"{x}.relu")

    def relu6(self, x: str) -> str:
        return self.builder.emit("clip", [x], f"{x}.relu6", min=0.0, max=6.0)

    def linear(self, x: str, name: str, channels: int, gain: float = 1.0) -> str:
        """A dense layer over the last axis: matrix product and bias."""
        ci = self.builder.shape(x)[-1]
        std = gain / np.sqrt(ci)
        weight = self.param(self.rng.standard_normal((ci, channels)) * std, f"{name}.weight")
        bias = self.param(self.rng.normal(0.0, 0.02, channels), f"{name}.bias")
        out = self.builder.emit("matmul", [x, weight], f"{name}.product")
        return self.builder.emit("add", [out, bias], name)

    def layer_norm(self, x: str, name: str, epsilon: float = 1e-12) -> str:
        """Layer normalisation over the last axis, in the primitive operators of an ONNX export."""
        b, c = self.builder, self.builder.shape(x)[-1]
        last = (len(b.shape(x)) - 1,)
        scale = self.param(self.rng.uniform(0.8, 1.2, c), f"{name}.scale")
        bias = self.param(self.rng.normal(0.0, 0.1, c), f"{name}.bias")
        centred = b.emit("sub", [x, b.emit("reduce_mean", [x], axes=last, keepdims=True)])
        square = b.emit("pow", [centred, self.scalar(2.0)])
        variance = b.emit("reduce_mean", [square], axes=last, keepdims=True)
        root = b.emit("sqrt", [b.emit("add", [variance, self.scalar(epsilon)])])
        out = b.emit("mul", [b.emit("div", [centred, root]), scale])
        return b.emit("add", [out, bias], name)

    def gelu(self, x: str) -> str:
        """x * (1 + erf(x / sqrt(2))) / 2"""
        b = self.builder
        e = b.emit("erf", [b.emit("div", [x, self.scalar(float(np.sqrt(2.0)))])])
        out = b.emit("mul", [x, b.emit("add", [e, self.scalar(1.0)])])
        return b.emit("mul", [out, self.scalar(0.5)], f"{x}.gelu")

    def classifier(self, x: str, name: str, classes: int) -> Graph:
        """Global average pooling and a dense layer; returns the finished graph."""
        b = self.builder
        batch, ci, *spatial = b.shape(x)
        axes = tuple(range(2, 2 + len(spatial)))
        x = b.emit("reduce_mean", [x], "pool", axes=axes, keepdims=True)
        x = b.emit("reshape", [x], "flatten", shape=(batch, ci))
        weight = self.rng.standard_normal((classes, ci)) * np.sqrt(1.0 / ci)
        params = [
            self.param(weight, f"{name}.weight"),
            self.param(np.zeros(classes), f"{name}.bias"),
        ]
        y = b.emit("gemm", [x, *params], name, trans_a=False, trans_b=True, alpha=1.0, beta=1.0)
        return b.finish([y])
