"""Image networks as graphs: ResNet-18, ResNet-50, MobileNetV2 (224x224 pixels, 1000 classes).

In: a name, a batch size, a seed. Out: a `Graph` as an ONNX file of the network would import:
channels first, batch norms not folded, logits as output. Architectures are those of torchvision
(ResNet v1.5: the 3x3 convolution of a bottleneck has the stride). Weights are He-normal, batch norm
statistics random such that activations neither vanish nor overflow.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.build import GraphBuilder
from ansorlite.graph.ir import Graph

# Blocks per stage, and channels expansion of the block's last convolution.
RESNETS: dict[str, tuple[tuple[int, ...], bool]] = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet50": ((3, 4, 6, 3), True),
}
# MobileNetV2: expansion, output channels, blocks, stride of the first block.
INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# A residual branch is scaled down, else the sum grows from block to block.
BRANCH_SCALE = 0.3


class _Net:
    """Layers with random parameters on a `GraphBuilder`."""

    def __init__(self, name: str, batch: int, seed: int, size: int) -> None:
        self.builder = GraphBuilder(name)
        self.rng = np.random.default_rng(seed)
        self.x = self.builder.input("data", (batch, 3, size, size))

    def param(self, array: Any, name: str) -> str:
        return self.builder.constant(np.asarray(array, np.float32), name)

    def conv(
        self, x: str, name: str, channels: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        """Convolution without bias, padded to keep the extent at stride 1."""
        ci = self.builder.shape(x)[1] // groups
        shape = (channels, ci, kernel, kernel)
        std = np.sqrt(2.0 / (ci * kernel * kernel))
        weight = self.param(self.rng.standard_normal(shape) * std, f"{name}.weight")
        half = kernel // 2
        return self.builder.emit(
            "conv",
            [x, weight],
            name,
            strides=(stride, stride),
            pads=((half, half), (half, half)),
            dilations=(1, 1),
            groups=groups,
            layout="channels_first",
        )

    def norm(self, x: str, name: str, scale: float = 1.0) -> str:
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

    def classifier(self, x: str, name: str, classes: int) -> Graph:
        """Global average pooling and a dense layer; ends the graph."""
        b = self.builder
        batch, ci = b.shape(x)[:2]
        x = b.emit("reduce_mean", [x], "pool", axes=(2, 3), keepdims=True)
        x = b.emit("reshape", [x], "flatten", shape=(batch, ci))
        weight = self.rng.standard_normal((classes, ci)) * np.sqrt(1.0 / ci)
        params = [
            self.param(weight, f"{name}.weight"),
            self.param(np.zeros(classes), f"{name}.bias"),
        ]
        y = b.emit("gemm", [x, *params], name, trans_a=False, trans_b=True, alpha=1.0, beta=1.0)
        return b.finish([y])


def resnet(name: str, batch: int, seed: int, size: int = 224, classes: int = 1000) -> Graph:
    """ResNet v1.5 with basic or bottleneck blocks: data [batch, 3, size, size] -> logits."""
    blocks, bottleneck = RESNETS[name]
    net = _Net(name, batch, seed, size)
    x = net.relu(net.norm(net.conv(net.x, "conv1", 64, 7, 2), "bn1"))
    x = net.builder.emit(
        "max_pool",
        [x],
        "maxpool",
        kernel=(3, 3),
        strides=(2, 2),
        pads=((1, 1), (1, 1)),
        dilations=(1, 1),
        ceil_mode=False,
        layout="channels_first",
    )
    for stage, count in enumerate(blocks):
        for k in range(count):
            stride = 2 if stage > 0 and k == 0 else 1
            x = _residual(net, x, f"layer{stage + 1}.{k}", 64 << stage, stride, bottleneck)
    return net.classifier(x, "fc", classes)


def _residual(net: _Net, x: str, at: str, channels: int, stride: int, bottleneck: bool) -> str:
    """relu(branch(x) + x), with a projection of x where the shape changes."""
    kernels = (1, 3, 1) if bottleneck else (3, 3)
    last = channels * 4 if bottleneck else channels
    y = x
    for k, kernel in enumerate(kernels):
        final = k == len(kernels) - 1
        step = stride if k == (1 if bottleneck else 0) else 1
        y = net.conv(y, f"{at}.conv{k + 1}", last if final else channels, kernel, step)
        y = net.norm(y, f"{at}.bn{k + 1}", BRANCH_SCALE if final else 1.0)
        y = y if final else net.relu(y)
    if stride != 1 or net.builder.shape(x)[1] != last:
        x = net.norm(net.conv(x, f"{at}.downsample", last, 1, stride), f"{at}.downsample.bn")
    return net.relu(net.builder.emit("add", [y, x], f"{at}.add"))


def mobilenet_v2(name: str, batch: int, seed: int, size: int = 224, classes: int = 1000) -> Graph:
    """MobileNetV2 of width 1.0: data [batch, 3, size, size] -> logits."""
    net = _Net(name, batch, seed, size)
    x = net.relu6(net.norm(net.conv(net.x, "conv1", 32, 3, 2), "bn1"))
    at = 1
    for expansion, channels, count, first in INVERTED:
        for k in range(count):
            x = _inverted(net, x, f"block{at}", expansion, channels, first if k == 0 else 1)
            at += 1
    x = net.relu6(net.norm(net.conv(x, "conv_last", 1280, 1), "bn_last"))
    return net.classifier(x, "fc", classes)


def _inverted(net: _Net, x: str, at: str, expansion: int, channels: int, stride: int) -> str:
    """Expand 1x1, depthwise 3x3, project 1x1 without activation; a sum where shapes allow."""
    ci = net.builder.shape(x)[1]
    y = x
    if expansion != 1:
        y = net.relu6(net.norm(net.conv(y, f"{at}.expand", ci * expansion, 1), f"{at}.bn1"))
    wide = ci * expansion
    y = net.relu6(net.norm(net.conv(y, f"{at}.depthwise", wide, 3, stride, wide), f"{at}.bn2"))
    residual = stride == 1 and ci == channels
    y = net.conv(y, f"{at}.project", channels, 1)
    y = net.norm(y, f"{at}.bn3", BRANCH_SCALE if residual else 0.5)
    return net.builder.emit("add", [x, y], f"{at}.add") if residual else y


NETWORKS: dict[str, Callable[..., Graph]] = {
    "resnet18": resnet,
    "resnet50": resnet,
    "mobilenet_v2": mobilenet_v2,
}


def network(name: str, batch: int = 1, seed: int = 0) -> Graph:
    """The network of that name with random weights: float32 data [batch, 3, 224, 224] -> logits
    [batch, 1000]. A ModelError lists the names where `name` is none of them."""
    if name not in NETWORKS:
        raise ModelError(f"there is no network {name!r}: choose one of {', '.join(NETWORKS)}")
    if batch < 1:
        raise ModelError(f"batch of network {name} is {batch}, must be at least 1")
    return NETWORKS[name](name, batch, seed)
