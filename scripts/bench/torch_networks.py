"""Networks of a usual size that PyTorch exports to ONNX, with random weights, for benchmarks.

In: a name of `NETWORKS` and a path, as arguments of the module. Out: the ONNX file, with static
shapes and batch 1. Architectures follow the papers: EfficientNet-B0 (Tan and Le, 2019), DeepLabV3
on MobileNetV2 (Chen et al., 2017), U-Net (Ronneberger et al., 2015), ViT-B/16 (Dosovitskiy et al.,
2020), the encoder of Whisper tiny (Radford et al., 2022). Needs torch and onnxscript.
"""

import math
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as fn


def conv(
    ci: int,
    co: int,
    kernel: int,
    stride: int = 1,
    act: Callable[[], nn.Module] | None = None,
    groups: int = 1,
    dilation: int = 1,
) -> nn.Sequential:
    """Convolution, batch norm, activation; the padding keeps the extents at stride 1."""
    pad = dilation * (kernel // 2)
    layers = [
        nn.Conv2d(ci, co, kernel, stride, pad, dilation, groups, bias=False),
        nn.BatchNorm2d(co),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


# ---- EfficientNet, MobileNetV2, DeepLab ---------------------------------------------------------


class Squeeze(nn.Module):  # type: ignore[misc]
    """Channels weighted by two dense layers of their means."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = fn.adaptive_avg_pool2d(x, 1)
        return x * torch.sigmoid(self.up(fn.silu(self.down(mean))))


class Inverted(nn.Module):  # type: ignore[misc]
    """Expand, depthwise, (squeeze), project; with the input added where shapes agree."""

    def __init__(
        self,
        ci: int,
        co: int,
        wider: int,
        kernel: int,
        stride: int,
        dilation: int = 1,
        act: Callable[[], nn.Module] = nn.ReLU6,
        squeeze: bool = False,
    ) -> None:
        super().__init__()
        wide = ci * wider
        layers: list[nn.Module] = [conv(ci, wide, 1, 1, act)] if wider != 1 else []
        layers.append(conv(wide, wide, kernel, stride, act, wide, dilation))
        layers += [Squeeze(wide, max(1, ci // 4))] if squeeze else []
        self.body = nn.Sequential(*layers, conv(wide, co, 1))
        self.adds = stride == 1 and ci == co

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.body(x)
        return x + y if self.adds else y


def stages(
    rows: Sequence[tuple[int, ...]], act: Callable[[], nn.Module], squeeze: bool = False
) -> tuple[list[nn.Module], int]:
    """(layers, channels) of a stem and stages of inverted residuals.

    A row has expansion, channels, blocks, stride of the first block, kernel and dilation.
    """
    layers: list[nn.Module] = [conv(3, 32, 3, 2, act)]
    ci = 32
    for wider, co, blocks, first, kernel, dilation in rows:
        for k in range(blocks):
            stride = first if k == 0 else 1
            layers.append(Inverted(ci, co, wider, kernel, stride, dilation, act, squeeze))
            ci = co
    return layers, ci


class EfficientNet(nn.Module):  # type: ignore[misc]
    """B0, of width and depth 1."""

    STAGES = (
        (1, 16, 1, 1, 3, 1),
        (6, 24, 2, 2, 3, 1),
        (6, 40, 2, 2, 5, 1),
        (6, 80, 3, 2, 3, 1),
        (6, 112, 3, 1, 5, 1),
        (6, 192, 4, 2, 5, 1),
        (6, 320, 1, 1, 3, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        layers, ci = stages(self.STAGES, nn.SiLU, squeeze=True)
        self.body = nn.Sequential(*layers, conv(ci, 1280, 1, 1, nn.SiLU))
        self.head = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(x).mean((2, 3)))
        return y


class DeepLab(nn.Module):  # type: ignore[misc]
    """V3 at output stride 16 with rates of 6, 12 and 18, 21 classes, on MobileNetV2."""

    STAGES = (
        (1, 16, 1, 1, 3, 1),
        (6, 24, 2, 2, 3, 1),
        (6, 32, 3, 2, 3, 1),
        (6, 64, 4, 2, 3, 1),
        (6, 96, 3, 1, 3, 1),
        (6, 160, 3, 1, 3, 2),
        (6, 320, 1, 1, 3, 2),
    )

    def __init__(self) -> None:
        super().__init__()
        layers, ci = stages(self.STAGES, nn.ReLU6)
        self.body = nn.Sequential(*layers)
        self.parts = nn.ModuleList([conv(ci, 256, 1, 1, nn.ReLU)])
        self.parts.extend(conv(ci, 256, 3, 1, nn.ReLU, 1, rate) for rate in (6, 12, 18))
        self.mean = conv(ci, 256, 1, 1, nn.ReLU)
        self.joined = conv(5 * 256, 256, 1, 1, nn.ReLU)
        self.head = nn.Sequential(conv(256, 256, 3, 1, nn.ReLU), nn.Conv2d(256, 21, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        mean = self.mean(fn.adaptive_avg_pool2d(y, 1))
        parts = [part(y) for part in self.parts]
        parts.append(fn.interpolate(mean, y.shape[2:], mode="bilinear", align_corners=False))
        y = self.head(self.joined(torch.cat(parts, 1)))
        return fn.interpolate(y, x.shape[2:], mode="bilinear", align_corners=False)


# ---- U-Net --------------------------------------------------------------------------------------


class UNet(nn.Module):  # type: ignore[misc]
    """Four levels of 64 to 512 channels and 1024 below, padded, two classes."""

    def __init__(self, first: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [first << k for k in range(levels + 1)]
        self.down = nn.ModuleList(
            self.twice(ci, co) for ci, co in zip([3, *widths], widths, strict=False)
        )
        back = list(reversed(widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(ci, co, 2, 2) for ci, co in pairwise(back))
        self.merge = nn.ModuleList(self.twice(2 * co, co) for co in back[1:])
        self.head = nn.Conv2d(first, 2, 1)

    @staticmethod
    def twice(ci: int, co: int) -> nn.Sequential:
        return nn.Sequential(conv(ci, co, 3, 1, nn.ReLU), conv(co, co, 3, 1, nn.ReLU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for k, level in enumerate(self.down):
            x = level(x if k == 0 else fn.max_pool2d(x, 2))
            kept.append(x)
        for up, merge, left in zip(self.up, self.merge, reversed(kept[:-1]), strict=True):
            x = merge(torch.cat([left, up(x)], 1))
        y: torch.Tensor = self.head(x)
        return y


# ---- transformers -------------------------------------------------------------------------------


class Block(nn.Module):  # type: ignore[misc]
    """Attention and two dense layers, each normalised before and added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, size, width = x.shape
        y, split = self.norm1(x), (n, size, self.heads, width // self.heads)
        q, k, v = (f(y).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        shares = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(split[-1]), -1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(n, size, width))
        return x + self.narrow(fn.gelu(self.widen(self.norm2(x))))


class ViT(nn.Module):  # type: ignore[misc]
    """B/16 of pictures of 224 x 224: 196 patches and a class token, 12 blocks of width 768."""

    def __init__(self, width: int = 768, heads: int = 12, blocks: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.1)
        self.body = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(y.shape[0], -1, -1), y], 1) + self.places
        out: torch.Tensor = self.head(self.norm(self.body(y)[:, 0]))
        return out


class Whisper(nn.Module):  # type: ignore[misc]
    """The encoder of the tiny size: 3000 frames of 80 bands, 1500 places of width 384."""

    def __init__(self, width: int = 384, heads: int = 6, blocks: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, 2, 1)
        self.places = nn.Parameter(torch.randn(1, 1500, width) * 0.1)
        self.body = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = fn.gelu(self.second(fn.gelu(self.first(x)))).transpose(1, 2) + self.places
        out: torch.Tensor = self.norm(self.body(y))
        return out


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "efficientnet_b0": (EfficientNet, (1, 3, 224, 224)),
    "deeplab_v3": (DeepLab, (1, 3, 257, 257)),
    "unet": (UNet, (1, 3, 128, 128)),
    "vit_b16": (ViT, (1, 3, 224, 224)),
    "whisper_tiny_encoder": (Whisper, (1, 80, 3000)),
}


def write(name: str, path: Path) -> None:
    """Export a network; statistics of its batch norms are those of random data."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    module, x = make(), torch.randn(shape)
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    with torch.no_grad():
        module.eval()
        for norm in norms:
            norm.momentum = None  # all of the data counts alike
            norm.train()
        if norms:
            module(torch.randn((4, *shape[1:])))
        module.eval()
        torch.onnx.export(module, (x,), str(path), dynamo=True, external_data=False)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
