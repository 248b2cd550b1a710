"""Readers of attention and rotary positions of `com.microsoft`, which transformer optimisers write.

In: a `Context` and an `OnnxNode`. Out: matrix products over heads, masks and softmax, for networks
of static shapes; what depends on lengths that only a run knows is refused.
"""

import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode

MASKED = -10000.0  # added where a mask says no, unless the attribute mask_filter_value says else


def _heads(c: Context, x: str, heads: int) -> str:
    """[batch, sequence, heads * width] -> [batch, heads, sequence, width]."""
    batch, length, width = c.shape(x)
    if heads < 1 or width % heads:
        raise ModelError(f"{c.type(x)} has no {heads} heads: {width} is no multiple")
    x = c.emit("reshape", [x], shape=(batch, length, heads, width // heads))
    return c.emit("transpose", [x], perm=(0, 2, 1, 3))


def _together(c: Context, x: str) -> str:
    """[batch, heads, sequence, width] -> [batch, sequence, heads * width]."""
    batch, heads, length, width = c.shape(x)
    x = c.emit("transpose", [x], perm=(0, 2, 1, 3))
    return c.emit("reshape", [x], shape=(batch, length, heads * width))


def _part(c: Context, x: str, axis: int, start: int, size: int) -> str:
    shape = c.shape(x)
    axis %= len(shape)
    starts = tuple(start if d == axis else 0 for d in range(len(shape)))
    sizes = tuple(size if d == axis else e for d, e in enumerate(shape))
    return c.emit("slice", [x], starts=starts, sizes=sizes, steps=(1,) * len(shape))


def attend(c: Context, q: str, k: str, v: str, n: OnnxNode, masks: list[str], causal: bool) -> str:
    """softmax(q @ k^T * scale + masks) @ v over [batch, heads, sequence, width]."""
    width, (rows, total) = c.shape(q)[-1], (c.shape(q)[2], c.shape(k)[2])
    scale = float(n.attrs.get("scale", 0.0)) or 1 / math.sqrt(width)
    product = c.emit("matmul", [q, c.emit("transpose", [k], perm=(0, 1, 3, 2))])
    scores = c.emit("mul", [product, c.scalar(scale, product)])
    for mask in masks:
        scores = c.emit("add", [scores, mask])
    if causal:
        c.room([rows, total], np.float32)
        later = np.triu(np.ones((rows, total), np.bool_), total - rows + 1)
        least = c.scalar(float(np.finfo(np.float32).min), scores)
        scores = c.emit("where", [c.constant(later), least, scores])
    return c.emit("matmul", [c.emit("softmax", [scores], axes=(3,)), v])


def _mask(c: Context, n: OnnxNode, k: int, batch: int, rows: int, total: int) -> str:
    """The mask operand k as numbers to add: lengths [batch], or a flag for each key."""
    mask, shape = c.operand(n, k), c.shape(c.operand(n, k))
    no = float(n.attrs.get("mask_filter_value", MASKED))
    if shape == (batch,):
        places = c.constant(np.arange(total, dtype=np.int32))
        keep = c.emit("less", [places, c.emit("reshape", [mask], shape=(batch, 1))])
        shape = (batch, total)
    elif shape in ((batch, total), (batch, rows, total)):
        keep = c.emit("cast", [mask], dtype="bool")
    else:
        raise ModelError(
            f"the mask {c.type(mask)} is none of [batch], [batch, keys], [batch, queries, keys] "
            f"for {batch} x {rows} queries and {total} keys"
        )
    zero, least = c.constant(np.float32(0)), c.constant(np.float32(no))
    added = c.emit("where", [keep, zero, least])
    full = (batch, 1, 1, total) if len(shape) == 2 else (batch, 1, rows, total)
    return c.emit("reshape", [added], shape=full)


def _refuse(c: Context, n: OnnxNode, operands: dict[int, str], attrs: tuple[str, ...]) -> None:
    for k, what in operands.items():
        if c.has(n, k):
            raise ModelError(f"{what} (operand {k}) is not supported")
    for key in attrs:
        if n.attrs.get(key, 0):
            raise ModelError(f"the attribute {key} is not supported")


def attention(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """Self-attention of operand 0, projected by weights of queries, keys and values together."""
    _refuse(c, n, {6: "the length of the past"}, ("do_rotary", "past_present_share_buffer"))
    x, w = c.operand(n, 0), c.operand(n, 1)
    batch, rows, _ = c.shape(x)
    heads, whole = int(n.attrs["num_heads"]), c.shape(w)[1]
    sizes = [int(v) for v in n.attrs.get("qkv_hidden_sizes", [whole // 3] * 3)]
    if len(sizes) != 3 or sum(sizes) != whole:
        raise ModelError(f"{whole} columns of weights are no three parts {sizes}")
    projected = c.emit("matmul", [x, w])
    if c.has(n, 2):
        projected = c.emit("add", [projected, c.operand(n, 2)])
    starts = (0, sizes[0], sizes[0] + sizes[1])
    parts = [_part(c, projected, -1, a, size) for a, size in zip(starts, sizes, strict=True)]
    q, k, v = (_heads(c, p, heads) for p in parts)
    if c.has(n, 4):
        past = c.operand(n, 4)
        own = (1, *c.shape(past)[1:])
        before = [_part(c, past, 0, d, 1) for d in (0, 1)]
        before = [c.emit("reshape", [p], shape=own[1:]) for p in before]
        k, v = (c.emit("concat", [p, own], axis=2) for p, own in zip(before, (k, v), strict=True))
    total = c.shape(k)[2]
    masks = [_mask(c, n, 3, batch, rows, total)] if c.has(n, 3) else []
    masks += [c.operand(n, 5)] if c.has(n, 5) else []
    causal = bool(n.attrs.get("unidirectional", 0))
    out = _together(c, attend(c, q, k, v, n, masks, causal))
    if len(n.outputs) < 2:
        return (out,)
    shape = (1, *c.shape(k))
    both = [c.emit("reshape", [p], shape=shape) for p in (k, v)]
    return out, c.emit("concat", both, axis=0)


def multi_head_attention(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """Attention of queries to keys and values of operands 0 to 2, in any packing."""
    _refuse(c, n, {8: "the length of the past", 9: "cache indirection"}, ())
    heads, q = int(n.attrs["num_heads"]), c.operand(n, 0)
    if len(c.shape(q)) == 5:  # [batch, sequence, heads, 3, width]
        q, k, v = (_unpacked(c, c.operand(n, 0), d) for d in range(3))
    elif len(c.shape(c.operand(n, 1))) == 5:  # [batch, sequence, heads, 2, width]
        k, v = (_unpacked(c, c.operand(n, 1), d) for d in range(2))
        q = _heads(c, _biased(c, n, q, 0), heads)
    else:
        k, v = c.operand(n, 1), c.operand(n, 2)
        start, size = c.shape(q)[2], c.shape(k)[-1]
        q = _heads(c, _biased(c, n, q, 0), heads)
        if len(c.shape(k)) == 3:
            k = _heads(c, _biased(c, n, k, start), heads)
            v = _heads(c, _biased(c, n, v, start + size), heads)
    if c.has(n, 6):
        k, v = (c.emit("concat", [c.operand(n, d), p], axis=2) for d, p in ((6, k), (7, v)))
    batch, _, rows, _ = c.shape(q)
    masks = [_mask(c, n, 4, batch, rows, c.shape(k)[2])] if c.has(n, 4) else []
    masks += [c.operand(n, 5)] if c.has(n, 5) else []
    causal = bool(n.attrs.get("unidirectional", 0))
    return _together(c, attend(c, q, k, v, n, masks, causal)), k, v


def _biased(c: Context, n: OnnxNode, x: str, start: int) -> str:
    """x plus its part of the biases of queries, keys and values, if there are any."""
    if not c.has(n, 3):
        return x
    return c.emit("add", [x, _part(c, c.operand(n, 3), 0, start, c.shape(x)[-1])])


def _unpacked(c: Context, x: str, k: int) -> str:
    """[batch, sequence, heads, parts, width] -> part k as [batch, heads, sequence, width]."""
    batch, length, heads, _, width = c.shape(x)
    x = c.emit("reshape", [_part(c, x, 3, k, 1)], shape=(batch, length, heads, width))
    return c.emit("transpose", [x], perm=(0, 2, 1, 3))


def rotary_embedding(c: Context, n: OnnxNode) -> str:
    """Pairs of elements turned by the angles of their positions."""
    x, ids, cos, sin = (c.operand(n, k) for k in range(4))
    flat = len(c.shape(x)) == 3
    width = int(n.attrs.get("rotary_embedding_dim", 0)) or 2 * c.shape(cos)[1]
    heads = int(n.attrs.get("num_heads", 0))
    whole = c.shape(x)
    if flat:
        batch, length, hidden = whole
        each = hidden // heads if heads else width
        x = c.emit("reshape", [x], shape=(batch, length, hidden // each, each))
    else:
        x = c.emit("transpose", [x], perm=(0, 2, 1, 3))
        batch, length = c.shape(x)[:2]
    if c.shape(ids) in ((1,), ()):
        ids = c.emit("add", [c.emit("reshape", [ids], shape=(1,)), c.constant(np.arange(length))])
        ids = c.emit("reshape", [ids], shape=(1, length))
    turn = []
    for table in (cos, sin):
        rows = c.emit("reshape", [ids], shape=(c.type(ids).size,))
        rows = c.emit("take", [table, rows], axis=0)
        turn.append(c.emit("reshape", [rows], shape=(*c.shape(ids), 1, c.shape(table)[1])))
    out = rotated(c, x, turn[0], turn[1], width, bool(n.attrs.get("interleaved", 0)))
    if flat:
        return c.emit("reshape", [out], shape=whole)
    return c.emit("transpose", [out], perm=(0, 2, 1, 3))


def rotated(c: Context, x: str, cos: str, sin: str, width: int, interleaved: bool) -> str:
    """The first `width` elements of the last axis turned in pairs; the others as they are."""
    full, half = c.shape(x), width // 2
    turned = x if width == full[-1] else _part(c, x, -1, 0, width)
    if interleaved:
        pairs = c.emit("reshape", [turned], shape=(*full[:-1], half, 2))
        a, b = (
            c.emit("reshape", [_part(c, pairs, -1, k, 1)], shape=(*full[:-1], half)) for k in (0, 1)
        )
    else:
        a, b = (_part(c, turned, -1, k * half, half) for k in (0, 1))
    left = c.emit("sub", [c.emit("mul", [a, cos]), c.emit("mul", [b, sin])])
    right = c.emit("add", [c.emit("mul", [a, sin]), c.emit("mul", [b, cos])])
    if interleaved:
        parts = [c.emit("reshape", [p], shape=(*full[:-1], half, 1)) for p in (left, right)]
        out = c.emit(
            "reshape", [c.emit("concat", parts, axis=len(full))], shape=(*full[:-1], width)
        )
    else:
        out = c.emit("concat", [left, right], axis=len(full) - 1)
    if width == full[-1]:
        return out
    rest = _part(c, x, -1, width, full[-1] - width)
    return c.emit("concat", [out, rest], axis=len(full) - 1)


READERS: dict[str, Any] = {
    "com.microsoft.Attention": attention,
    "com.microsoft.MultiHeadAttention": multi_head_attention,
    "com.microsoft.RotaryEmbedding": rotary_embedding,
}
