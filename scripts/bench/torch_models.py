"""Small random networks of PyTorch for `scripts/torch_exports.py`: what users export.

`ARCHITECTURES` has for each a function that makes the module, and the inputs: their shapes, where
letters are sizes that may be free, and what they hold. Weights are random and large enough that
every part of a network shows in its results. Imports torch; some need the package transformers.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as fn

from ansorlite.errors import MissingExtra

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Given:
    """An input: extents (numbers, or expressions of sizes such as 'past + 1') and a kind."""

    shape: Shape
    kind: str = "normal"  # normal, mask, corner (of an image), lengths, steps, or tokens


@dataclass(frozen=True)
class Architecture:
    """A network: its inputs by name, example sizes, and those that a free export is run with."""

    make: Callable[[], nn.Module]
    inputs: Mapping[str, Given]
    example: Mapping[str, int]
    other: Mapping[str, int]
    outputs: tuple[str, ...] = ("result",)

    def extents(self, name: str, sizes: Mapping[str, Any]) -> tuple[Any, ...]:
        """The shape of an input with these sizes, which are numbers or dimensions of torch."""
        shape = self.inputs[name].shape
        return tuple(eval(e, {}, dict(sizes)) if isinstance(e, str) else e for e in shape)

    def values(self, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
        """Random tensors for all inputs."""
        rng = torch.Generator().manual_seed(seed)
        return {
            name: _values(given.kind, self.extents(name, sizes), rng)
            for name, given in self.inputs.items()
        }

    def module(self) -> Any:
        """The network in evaluation mode, with the same random weights each time."""
        torch.manual_seed(0)
        module: Any = self.make().eval()
        with torch.no_grad():
            for p in module.parameters():
                if p.dim() > 1:
                    p.normal_(0, 1 / math.sqrt(math.prod(p.shape[1:])))
                else:
                    p.add_(torch.empty_like(p).uniform_(-0.2, 0.2))
            for name, b in module.named_buffers():
                if name.endswith(("running_mean", "running_var")):
                    b.add_(torch.empty_like(b).uniform_(-0.2, 0.2))
        return module


def _values(kind: str, shape: tuple[int, ...], rng: torch.Generator) -> Any:
    def below(top: int, count: tuple[int, ...]) -> Any:
        return torch.randint(0, top, count, generator=rng)

    match kind:
        case "normal":
            return torch.randn(shape, generator=rng)
        case "mask":  # of tokens: ones, then zeros
            kept = 1 + below(shape[1], (shape[0], 1))
            return (torch.arange(shape[1])[None] < kept).long()
        case "corner":  # of images: ones in a rectangle
            rows, columns = (n // 2 + 1 + below(n // 2, (shape[0], 1, 1)) for n in shape[1:])
            inside = torch.arange(shape[1])[:, None] < rows
            return (inside & (torch.arange(shape[2]) < columns)).long()
        case "lengths":  # of rows that are packed, longest first
            return torch.arange(9, 9 - shape[0], -1)
        case "steps":
            return below(1000, shape)
    return below(TOKENS, shape)


TOKENS = 96


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MissingExtra("transformers", "pip install transformers") from None
    return transformers


# ---- of the package transformers ----------------------------------------------------------------


class Gpt2(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.GPT2Config(
            vocab_size=TOKENS, n_positions=64, n_embd=32, n_layer=2, n_head=4, use_cache=False
        )
        self.inner = hf.GPT2LMHeadModel(config)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask).logits


class LlamaStep(nn.Module):  # type: ignore[misc]
    """One token after `past` others: keys and values of the layers are inputs and results."""

    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.LlamaConfig(
            vocab_size=TOKENS,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
        self.inner = hf.LlamaForCausalLM(config)
        self.cache = hf.DynamicCache

    def forward(
        self,
        input_ids: Any,
        attention_mask: Any,
        key_0: Any,
        value_0: Any,
        key_1: Any,
        value_1: Any,
    ) -> Any:
        cache = self.cache([(key_0, value_0), (key_1, value_1)])
        found = self.inner(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        layers = found.past_key_values.layers
        return found.logits, *(x for layer in layers for x in (layer.keys, layer.values))


class DistilBert(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.DistilBertConfig(
            vocab_size=TOKENS,
            max_position_embeddings=64,
            dim=32,
            n_layers=2,
            n_heads=4,
            hidden_dim=64,
        )
        self.inner = hf.DistilBertModel(config)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class Vit(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            num_labels=10,
        )
        self.inner = hf.ViTForImageClassification(config)

    def forward(self, pixel_values: Any) -> Any:
        return self.inner(pixel_values=pixel_values).logits


class VitOfAnySize(Vit):
    """Positions are resized to the picture."""

    def forward(self, pixel_values: Any) -> Any:
        return self.inner(pixel_values=pixel_values, interpolate_pos_encoding=True).logits


class WhisperEncoder(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        config = hf.WhisperConfig(
            vocab_size=TOKENS,
            num_mel_bins=20,
            encoder_layers=2,
            encoder_attention_heads=4,
            encoder_ffn_dim=64,
            d_model=32,
            max_source_positions=24,
        )
        self.inner = hf.models.whisper.modeling_whisper.WhisperEncoder(config)

    def forward(self, input_features: Any) -> Any:
        return self.inner(input_features).last_hidden_state


class Detr(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        hf = _transformers()
        backbone = hf.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16, 16, 32],
            depths=[1, 1, 1, 1],
            layer_type="basic",
            out_features=["stage4"],
        )
        config = hf.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            num_labels=5,
            num_queries=6,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
        )
        self.inner = hf.DetrForObjectDetection(config)

    def forward(self, pixel_values: Any, pixel_mask: Any) -> Any:
        found = self.inner(pixel_values=pixel_values, pixel_mask=pixel_mask)
        return found.logits, found.pred_boxes


# ---- of torch alone -----------------------------------------------------------------------------


class Tagger(nn.Module):  # type: ignore[misc]
    """A class for each token, by two layers of LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, 24)
        self.layers = nn.LSTM(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(40, 7)

    def forward(self, words: Any) -> Any:
        steps, (last, _) = self.layers(self.words(words))
        return fn.log_softmax(self.head(steps), -1), last


class PackedTagger(nn.Module):  # type: ignore[misc]
    """The same of rows of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Tagger()

    def forward(self, words: Any, lengths: Any) -> Any:
        rnn, inner = nn.utils.rnn, self.inner
        packed = rnn.pack_padded_sequence(inner.words(words), lengths, batch_first=True)
        steps, (last, _) = inner.layers(packed)
        padded, _ = rnn.pad_packed_sequence(steps, batch_first=True, total_length=words.shape[1])
        return fn.log_softmax(inner.head(padded), -1), last


class KeywordSpotter(nn.Module):  # type: ignore[misc]
    """Spectra of sound -> one of some words: convolutions, GRU, attention over the frames."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(20, 24, 5, padding=2), nn.BatchNorm1d(24), nn.ReLU())
        self.gru = nn.GRU(24, 32, num_layers=2, batch_first=True)
        self.query = nn.Linear(32, 32)
        self.head = nn.Sequential(nn.Linear(32, 24), nn.Hardswish(), nn.Linear(24, 12))

    def forward(self, spectra: Any) -> Any:
        frames, last = self.gru(self.front(spectra).transpose(1, 2))
        query = self.query(last[-1])
        weights = torch.softmax(torch.einsum("btc,bc->bt", frames, query) / 32**0.5, dim=1)
        return self.head(torch.einsum("bt,btc->bc", weights, frames)).softmax(-1)


def _twice(inputs: int, outputs: int) -> nn.Module:
    layers = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Unet(nn.Module):  # type: ignore[misc]
    """Segmentation: one level grows by a transposed convolution, one by a bilinear resize."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down_1, self.down_2 = _twice(3, 8), _twice(8, 16), _twice(16, 16)
        self.up_1, self.grow = _twice(32, 16), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up_2, self.head = _twice(16, 8), nn.Conv2d(8, 4, 1)

    def forward(self, image: Any) -> Any:
        a = self.first(image)
        b = self.down_1(fn.max_pool2d(a, 2))
        c = self.down_2(fn.max_pool2d(b, 2))
        grown = fn.interpolate(c, size=b.shape[2:], mode="bilinear", align_corners=True)
        d = self.grow(self.up_1(torch.cat([b, grown], 1)))
        rows, columns = a.shape[2] - d.shape[2], a.shape[3] - d.shape[3]
        d = fn.pad(d, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return torch.sigmoid(self.head(self.up_2(torch.cat([a, d], 1))))


class TimedResidual(nn.Module):  # type: ignore[misc]
    """Two convolutions, between them the embedding of the time is added to the channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(32, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        y = self.conv_1(fn.silu(self.norm_1(x))) + self.time(fn.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_2(fn.silu(self.norm_2(y)))


class CrossAttention(nn.Module):  # type: ignore[misc]
    """Places of an image look at tokens of a text; then a gated layer (GEGLU)."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(4, channels, eps=1e-6)
        self.to_query = nn.Linear(channels, channels, bias=False)
        self.to_pairs = nn.Linear(context, 2 * channels, bias=False)
        self.out, self.norm_2 = nn.Linear(channels, channels), nn.LayerNorm(channels)
        self.gated, self.last = nn.Linear(channels, 4 * channels), nn.Linear(2 * channels, channels)

    def forward(self, x: Any, context: Any) -> Any:
        batch, channels, height, width = x.shape
        y = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        keys, values = self.to_pairs(context).chunk(2, dim=-1)
        parts = (self.to_query(y), keys, values)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        y = y + self.out(fn.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        a, gate = self.gated(self.norm_2(y)).chunk(2, dim=-1)
        y = y + self.last(a * fn.gelu(gate))
        return x + y.reshape(batch, height, width, channels).permute(0, 3, 1, 2)


class DiffusionBlock(nn.Module):  # type: ignore[misc]
    """Noise of an image at a time, given a text: one level down and up again, with a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.first = nn.Conv2d(4, 16, 3, padding=1)
        self.down, self.shrink = TimedResidual(16, 16), nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.middle, self.attention = TimedResidual(16, 16), CrossAttention(16, 24, 2)
        self.grow, self.up = nn.Conv2d(16, 16, 3, padding=1), TimedResidual(32, 16)
        self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, sample: Any, timestep: Any, context: Any) -> Any:
        rates = torch.exp(-math.log(10000) * torch.arange(8, dtype=torch.float32) / 8)
        angles = timestep[:, None].float() * rates[None]
        time = self.time(torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1))
        kept = self.down(self.first(sample), time)
        y = self.attention(self.middle(self.shrink(kept), time), context)
        y = self.grow(fn.interpolate(y, scale_factor=2.0, mode="nearest"))
        y = self.up(torch.cat([y, kept], dim=1), time)
        return self.last(fn.silu(self.norm(y)))


# ---- what is run --------------------------------------------------------------------------------

TOKENS_AND_MASK = {
    "input_ids": Given(("batch", "length"), "tokens"),
    "attention_mask": Given(("batch", "length"), "mask"),
}
CACHE = Given(("batch", 2, "past", 8))
CACHES = ("key_0", "value_0", "key_1", "value_1")
IMAGE = ("batch", 3, "height", "width")

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        Gpt2, TOKENS_AND_MASK, {"batch": 2, "length": 11}, {"batch": 3, "length": 17}
    ),
    "llama step": Architecture(
        LlamaStep,
        {
            "input_ids": Given(("batch", 1), "tokens"),
            "attention_mask": Given(("batch", "past + 1"), "mask"),
            **dict.fromkeys(CACHES, CACHE),
        },
        {"batch": 2, "past": 9},
        {"batch": 3, "past": 14},
        outputs=("logits", *(f"new_{name}" for name in CACHES)),
    ),
    "distilbert": Architecture(
        DistilBert, TOKENS_AND_MASK, {"batch": 2, "length": 11}, {"batch": 3, "length": 17}
    ),
    "vit": Architecture(
        Vit, {"pixel_values": Given(("batch", 3, 32, 32))}, {"batch": 2}, {"batch": 3}
    ),
    "vit, any size": Architecture(
        VitOfAnySize,
        {"pixel_values": Given(("batch", 3, "8 * rows", "8 * columns"))},
        {"batch": 2, "rows": 6, "columns": 5},
        {"batch": 1, "rows": 7, "columns": 3},
    ),
    "whisper encoder": Architecture(
        WhisperEncoder, {"input_features": Given(("batch", 20, 48))}, {"batch": 2}, {"batch": 3}
    ),
    "lstm tagger": Architecture(
        Tagger,
        {"words": Given(("batch", "length"), "tokens")},
        {"batch": 2, "length": 9},
        {"batch": 3, "length": 13},
        outputs=("classes", "last"),
    ),
    "lstm tagger, packed": Architecture(
        PackedTagger,
        {
            "words": Given(("batch", "length"), "tokens"),
            "lengths": Given(("batch",), "lengths"),
        },
        {"batch": 2, "length": 9},
        {"batch": 3, "length": 13},
        outputs=("classes", "last"),
    ),
    "gru keywords": Architecture(
        KeywordSpotter,
        {"spectra": Given(("batch", 20, "frames"))},
        {"batch": 2, "frames": 31},
        {"batch": 3, "frames": 40},
    ),
    "u-net": Architecture(
        Unet,
        {"image": Given(IMAGE)},
        {"batch": 2, "height": 25, "width": 30},
        {"batch": 1, "height": 33, "width": 20},
    ),
    "detr": Architecture(
        Detr,
        {"pixel_values": Given(IMAGE), "pixel_mask": Given(("batch", "height", "width"), "corner")},
        {"batch": 2, "height": 96, "width": 64},
        {"batch": 1, "height": 64, "width": 128},
        outputs=("logits", "boxes"),
    ),
    "diffusion block": Architecture(
        DiffusionBlock,
        {
            "sample": Given(("batch", 4, "2 * rows", "2 * columns")),
            "timestep": Given(("batch",), "steps"),
            "context": Given(("batch", "tokens", 24)),
        },
        {"batch": 2, "rows": 6, "columns": 5, "tokens": 7},
        {"batch": 3, "rows": 4, "columns": 7, "tokens": 9},
    ),
}
