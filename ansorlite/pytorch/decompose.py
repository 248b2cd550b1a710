"""What torch writes out by other operators before a graph is read.

`table` has torch's own decompositions without the operators that have readers, and with those that
torch lacks: the fused layers that its transformer modules call outside of training.
"""

import math
from typing import Any

from ansorlite.pytorch.table import READERS


def table(torch: Any, given: Any) -> Any:
    """The decompositions to use, from torch's own table `given`."""
    for op in [op for op in given if str(op) in READERS]:
        del given[op]
    aten = torch.ops.aten

    def attention(
        query: Any,
        key: Any,
        value: Any,
        embed_dim: int,
        heads: int,
        qkv_weight: Any,
        qkv_bias: Any,
        proj_weight: Any,
        proj_bias: Any,
        mask: Any = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> tuple[Any, Any]:
        fn = torch.nn.functional
        weights, biases = qkv_weight.chunk(3), qkv_bias.chunk(3)
        rows = zip((query, key, value), weights, biases, strict=True)
        parts = [fn.linear(x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2) for x, w, b in rows]
        q, k, v = parts
        scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(embed_dim // heads))
        if mask is not None:
            if mask_type == 1:  # of keys: [batch, keys]
                mask = mask[:, None, None, :]
            scores = scores.masked_fill(mask.bool(), -math.inf)
        attended = scores.softmax(-1)
        out = fn.linear((attended @ v).transpose(1, 2).flatten(2), proj_weight, proj_bias)
        if need_weights and average_attn_weights:
            attended = attended.mean(1)
        return out, attended

    def encoder_layer(
        x: Any,
        embed_dim: int,
        heads: int,
        qkv_weight: Any,
        qkv_bias: Any,
        proj_weight: Any,
        proj_bias: Any,
        use_gelu: bool,
        norm_first: bool,
        epsilon: float,
        weight_1: Any,
        bias_1: Any,
        weight_2: Any,
        bias_2: Any,
        up_weight: Any,
        up_bias: Any,
        down_weight: Any,
        down_bias: Any,
        mask: Any = None,
        mask_type: int | None = None,
    ) -> Any:
        fn = torch.nn.functional
        activation = fn.gelu if use_gelu else fn.relu

        def attended(y: Any) -> Any:
            of_heads = embed_dim, heads, qkv_weight, qkv_bias, proj_weight, proj_bias
            return attention(y, y, y, *of_heads, mask, False, True, mask_type)[0]

        def fed(y: Any) -> Any:
            return fn.linear(activation(fn.linear(y, up_weight, up_bias)), down_weight, down_bias)

        def first(y: Any) -> Any:
            return fn.layer_norm(y, (embed_dim,), weight_1, bias_1, epsilon)

        def second(y: Any) -> Any:
            return fn.layer_norm(y, (embed_dim,), weight_2, bias_2, epsilon)

        if norm_first:
            x = x + attended(first(x))
            return x + fed(second(x))
        x = first(x + attended(x))
        return second(x + fed(x))

    def bucketize(x: Any, bounds: Any, *, out_int32: bool = False, right: bool = False) -> Any:
        x = x.unsqueeze(-1)
        below = (bounds <= x) if right else (bounds < x)
        return below.sum(-1, dtype=torch.int32 if out_int32 else torch.int64)

    def cdist(a: Any, b: Any, p: float, mode: int | None = None) -> Any:
        return torch.linalg.vector_norm(a.unsqueeze(-2) - b.unsqueeze(-3), p, -1)

    given[aten.bucketize.Tensor] = bucketize
    given[aten._cdist_forward.default] = cdist
    given[aten._native_multi_head_attention.default] = attention
    given[aten._transformer_encoder_layer_fwd.default] = encoder_layer
    return given
