"""The networks of Ansor's evaluation (OSDI'20), and ResNet-18: `NETWORKS` by name.

In: a name, a batch size, a seed. Out: a `Graph` like that of an imported ONNX file: channels first,
batch norms not folded, logits as output. Architectures are those of torchvision (ResNet v1.5: the
3x3 convolution of a bottleneck has the stride). `layers` has the layers, `transformers` has BERT.
"""

from collections.abc import Callable
from numbers import Integral

from ansorlite.errors import ModelError
from ansorlite.graph.ir import Graph

from .layers import Net
from .transformers import bert

# (blocks per stage, whether blocks are bottlenecks: 1x1, 3x3, 1x1 with 4 times the channels)
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
# Scale of the last batch norm of a residual branch: without it, sums grow from block to block.
BRANCH_SCALE = 0.3


def resnet(name: str, batch: int, seed: int, size: int = 224, classes: int = 1000) -> Graph:
    """ResNet v1.5 with basic or bottleneck blocks: data [batch, 3, size, size] -> logits."""
    blocks, bottleneck = RESNETS[name]
    net = Net(name, seed)
    data = net.builder.input("data", (batch, 3, size, size))
    x = net.relu(net.norm(net.conv(data, "conv1", 64, 7, 2), "bn1"))
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


def _residual(net: Net, x: str, at: str, channels: int, stride: int, bottleneck: bool) -> str:
    """relu(branch(x) + x) in 2-D or 3-D; a 1x1 convolution adapts x where the shape changes."""
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
    net = Net(name, seed)
    data = net.builder.input("data", (batch, 3, size, size))
    x = net.relu6(net.norm(net.conv(data, "conv1", 32, 3, 2), "bn1"))
    at = 1
    for expansion, channels, count, first in INVERTED:
        for k in range(count):
            x = _inverted(net, x, f"block{at}", expansion, channels, first if k == 0 else 1)
            at += 1
    x = net.relu6(net.norm(net.conv(x, "conv_last", 1280, 1), "bn_last"))
    return net.classifier(x, "fc", classes)


def _inverted(net: Net, x: str, at: str, expansion: int, channels: int, stride: int) -> str:
    """Expand 1x1, depthwise 3x3, project 1x1 without activation; adds x if shapes agree."""
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


def resnet_3d(name: str, batch: int, seed: int, size: int = 112, classes: int = 400) -> Graph:
    """3D-ResNet-18 (r3d_18): data [batch, 3, size/7, size, size] -> logits; 16 frames of 112x112.

    Every convolution of a block is 3x3x3. The first convolution of the network has a stride in
    height and width only.
    """
    net = Net(name, seed)
    data = net.builder.input("data", (batch, 3, max(1, size // 7), size, size))
    x = net.relu(net.norm(net.conv(data, "conv1", 64, (3, 7, 7), (1, 2, 2)), "bn1"))
    for stage, count in enumerate(RESNETS["resnet18"][0]):
        for k in range(count):
            stride = 2 if stage > 0 and k == 0 else 1
            x = _residual(net, x, f"layer{stage + 1}.{k}", 64 << stage, stride, False)
    return net.classifier(x, "fc", classes)


def dcgan(name: str, batch: int, seed: int, size: int = 64) -> Graph:
    """DCGAN's generator: data [batch, 100, 1, 1] -> images [batch, 3, size, size] in (-1, 1).

    Channels halve from 512 at 4x4 pixels to 64 before the last layer (Radford et al., 2015).
    """
    net = Net(name, seed)
    b = net.builder
    x = b.input("data", (batch, 100, 1, 1))
    x = net.relu(net.norm(net.conv_transpose(x, "conv1", 512, 4, 1, 0), "bn1"))
    channels, at = 256, 2
    while b.shape(x)[2] * 2 < size:
        x = net.relu(net.norm(net.conv_transpose(x, f"conv{at}", channels, 4, 2, 1), f"bn{at}"))
        channels, at = channels // 2, at + 1
    x = net.conv_transpose(x, f"conv{at}", 3, 4, 2, 1)
    return b.finish([b.emit("tanh", [x], "image")])


NETWORKS: dict[str, Callable[..., Graph]] = {
    "resnet18": resnet,
    "resnet50": resnet,
    "mobilenet_v2": mobilenet_v2,
    "resnet18_3d": resnet_3d,
    "dcgan": dcgan,
    "bert_base": bert,
}


def network(name: str, batch: int = 1, seed: int = 0) -> Graph:
    """The network of that name with random weights; equal seeds give equal weights.

    Image networks map data float32 [batch, 3, 224, 224] to logits [batch, 1000]; the functions in
    `NETWORKS` document inputs and outputs of the others. Raises ModelError for an unknown name and
    for a batch below 1. Example: `al.network("resnet50", batch=16)`.
    """
    if name not in NETWORKS:
        raise ModelError(f"there is no network {name!r}: choose one of {', '.join(NETWORKS)}")
    if not isinstance(batch, Integral) or batch < 1:
        raise ModelError(f"batch of network {name} is {batch!r}: give an integer, at least 1")
    return NETWORKS[name](name, int(batch), seed)
