"""Readers of attention: Attention (multi-head, grouped, one key for all), RotaryEmbedding.

In: a `Context` and an `OnnxNode`. Out: matrix products, a softmax and arithmetic, which partition
fuses as it does the same operators written out. Queries of heads that share keys and values stand
below each other in one matrix, so that no key is copied. Masks are a bias of 0 and -infinity.
"""

import math
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.conditions import cast_to
from ansorlite.graph.onnx.context import Context, OnnxNode

WIDE = ("float32", "float64")  # what a softmax may be computed in


def _heads(c: Context, x: str, count: int, what: str) -> str:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]."""
    shape = c.shape(x)
    if len(shape) == 4:
        return x
    if len(shape) != 3 or count < 1 or shape[2] % count:
        raise ModelError(f"the {what} {c.type(x)} for {count} heads: 3 or 4 axes, whole heads")
    x = c.emit("reshape", [x], shape=(*shape[:2], count, shape[2] // count))
    return c.emit("transpose", [x], perm=(0, 2, 1, 3))


def attention(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """softmax(q k^T * scale + bias) v over heads, with keys and values of the past in front."""
    flat = len(c.shape(c.operand(n, 0))) == 3
    q_heads, kv_heads = (int(n.attrs.get(k, 0)) for k in ("q_num_heads", "kv_num_heads"))
    q = _heads(c, c.operand(n, 0), q_heads, "query")
    k = _heads(c, c.operand(n, 1), kv_heads, "key")
    v = _heads(c, c.operand(n, 2), kv_heads, "value")
    if c.has(n, 4) != c.has(n, 5):
        raise ModelError("past_key and past_value: give both or none")
    if c.has(n, 4):
        k = c.emit("concat", [c.operand(n, 4), k], axis=2)
        v = c.emit("concat", [c.operand(n, 5), v], axis=2)
    batch, heads, rows, size = c.shape(q)
    shared, columns = c.shape(k)[1:3]
    fits = c.shape(k) == (batch, shared, columns, size)
    if not fits or c.shape(v)[:3] != (batch, shared, columns) or heads % max(shared, 1):
        raise ModelError(f"query {c.type(q)}, key {c.type(k)} and value {c.type(v)} do not fit")
    scale = float(n.attrs.get("scale", 1 / math.sqrt(size)))
    below = (batch, shared, heads // shared * rows)
    full = (batch, heads, rows, columns)
    left = _shaped(c, c.emit("mul", [q, c.scalar(scale, q)]), (*below, size))
    right = c.emit("transpose", [k], perm=(0, 1, 3, 2))
    scores = _shaped(c, c.emit("matmul", [left, right]), full)
    shown = [scores]
    cap = float(n.attrs.get("softcap", 0.0))
    if cap > 0:
        bent = c.emit("tanh", [c.emit("div", [scores, c.scalar(cap, scores)])])
        scores = c.emit("mul", [bent, c.scalar(cap, scores)])
    shown.append(scores)
    bias = _bias(c, n, rows, columns, c.type(q).dtype)
    if bias is not None:
        scores = c.emit("add", [scores, bias])
        if c.shape(scores) != full:
            raise ModelError(f"the mask {c.type(c.operand(n, 3))} does not broadcast to {full}")
    shown.append(scores)
    wanted = c.dtypes.get(int(n.attrs.get("softmax_precision", 0)), "")
    weights = cast_to(c, scores, wanted) if wanted in WIDE else scores
    weights = c.emit("softmax", [weights], axes=(3,))
    weights = _without_masked_rows(c, weights, bias)
    weights = cast_to(c, weights, c.type(q).dtype)
    shown.append(weights)
    mode = int(n.attrs.get("qk_matmul_output_mode", 0))
    if mode not in range(4):
        raise ModelError(f"qk_matmul_output_mode {mode} is none of 0, 1, 2, 3")
    out = c.emit("matmul", [_shaped(c, weights, (*below, columns)), v])
    out = _shaped(c, out, (batch, heads, rows, c.shape(v)[3]))
    if flat:
        out = c.emit("transpose", [out], perm=(0, 2, 1, 3))
        out = c.emit("reshape", [out], shape=(batch, rows, heads * c.shape(v)[3]))
    return out, k, v, shown[mode]


def _shaped(c: Context, x: str, shape: tuple[int, ...]) -> str:
    return x if c.shape(x) == shape else c.emit("reshape", [x], shape=shape)


def _bias(c: Context, n: OnnxNode, rows: int, columns: int, dtype: str) -> str | None:
    """What is added to the scores: the mask, and -infinity where a key may not be attended."""
    mask = c.operand(n, 3) if c.has(n, 3) else None
    allowed: list[str] = []
    if mask is not None:
        mask = _widened(c, mask, columns)
        if c.type(mask).dtype == "bool":
            allowed, mask = [mask], None
    padding = c.operand(n, 6) if c.has(n, 6) else None
    past = c.shape(c.operand(n, 4))[2] if c.has(n, 4) else 0
    left, right = (int(n.attrs.get(k, -1)) for k in ("left_window_size", "right_window_size"))
    if min(left, right) < -1:
        raise ModelError(f"window sizes {left} and {right}: at least -1 each")
    right = 0 if n.attrs.get("is_causal", 0) else right
    c.room([rows, columns])
    at = np.arange(columns, dtype=np.int64)
    apart: Any = at[None, :] - np.arange(rows, dtype=np.int64)[:, None]  # key - query
    if padding is not None:
        if c.shape(padding) != (c.shape(c.operand(n, 0))[0],):
            raise ModelError(f"nonpad_kv_seqlen {c.type(padding)} has no element a batch entry")
        padding = c.emit("reshape", [padding], shape=(c.shape(padding)[0], 1, 1, 1))
        allowed.append(c.emit("less", [c.constant(at), padding]))
    for limit, sign in ((right, 1), (left, -1)):
        if limit < 0:
            continue
        if padding is not None and not c.has(n, 4):  # the offset is that of a batch entry
            offset = c.emit("sub", [padding, c.scalar(rows, padding)])
            gap = c.emit("sub", [c.constant(apart), offset])
            gap = c.emit("neg", [gap]) if sign < 0 else gap
            allowed.append(c.emit("less_equal", [gap, c.scalar(limit, gap)]))
        else:
            allowed.append(c.constant((apart - past) * sign <= limit))
    if not allowed:
        return mask
    whole = allowed[0]
    for one in allowed[1:]:
        whole = c.emit("logical_and", [whole, one])
    never = c.constant(np.asarray(-np.inf, dtype))
    none = c.constant(np.asarray(0, dtype))
    bias = c.emit("where", [whole, none, never])
    return bias if mask is None else c.emit("add", [mask, bias])


def _widened(c: Context, mask: str, columns: int) -> str:
    """The mask with the columns that are missing at its end, which no query attends."""
    shape = c.shape(mask)
    if not shape or shape[-1] >= columns:
        return mask
    lacking = (*shape[:-1], columns - shape[-1])
    condition = c.type(mask).dtype == "bool"
    fill = np.full(lacking, False if condition else -np.inf, c.type(mask).dtype)
    return c.emit("concat", [mask, c.constant(fill)], axis=len(shape) - 1)


def _without_masked_rows(c: Context, weights: str, bias: str | None) -> str:
    """Zeros in the rows of queries that may attend no key, where there can be any."""
    if bias is None:
        return weights
    known = c.builder.constants.get(bias)
    if known is not None and not np.any(np.max(known, axis=-1) == -np.inf):
        return weights
    top = c.emit("reduce_max", [bias], axes=(len(c.shape(bias)) - 1,), keepdims=True)
    nobody = c.emit("equal", [top, c.scalar(-math.inf, top)])
    return c.emit("where", [nobody, c.scalar(0, weights), weights])


# ---- rotary positions ---------------------------------------------------------------------------


def rotary_embedding(c: Context, n: OnnxNode) -> str:
    """Pairs of elements turned by the angle of their position; the rest of a head stays."""
    x, heads = c.operand(n, 0), int(n.attrs.get("num_heads", 0))
    shape = c.shape(x)
    if len(shape) == 3:
        if heads < 1 or shape[2] % heads:
            raise ModelError(f"data {c.type(x)} for num_heads={heads}: whole heads are needed")
        x = c.emit("reshape", [x], shape=(*shape[:2], heads, shape[2] // heads))
    elif len(shape) != 4:
        raise ModelError(f"data {c.type(x)} has not 3 or 4 axes")
    full = c.shape(x)
    turned = int(n.attrs.get("rotary_embedding_dim", 0)) or full[3]
    if turned % 2 or not 0 < turned <= full[3]:
        raise ModelError(f"rotary_embedding_dim {turned} of heads of {full[3]}: even, no larger")
    length = full[1] if len(shape) == 3 else full[2]
    cos, sin = (_angles(c, n, k, full[0], length, turned // 2) for k in (1, 2))
    if len(shape) == 3:
        broadcast: tuple[int, ...] = (full[0], length, 1, turned // 2)
    else:
        broadcast = (full[0], 1, length, turned // 2)
    cos, sin = (c.emit("reshape", [v], shape=broadcast) for v in (cos, sin))

    def part(value: str, start: int, size: int, step: int = 1) -> str:
        lead = c.shape(value)[:-1]
        starts, steps = (*(0,) * len(lead), start), (*(1,) * len(lead), step)
        return c.emit("slice", [value], starts=starts, sizes=(*lead, size), steps=steps)

    half, mixed = turned // 2, bool(n.attrs.get("interleaved", 0))
    a = part(x, 0, half, 2 if mixed else 1)
    b = part(x, 1 if mixed else half, half, 2 if mixed else 1)
    real = c.emit("sub", [c.emit("mul", [cos, a]), c.emit("mul", [sin, b])])
    imaginary = c.emit("add", [c.emit("mul", [sin, a]), c.emit("mul", [cos, b])])
    if mixed:
        pairs = [c.emit("reshape", [v], shape=(*full[:3], half, 1)) for v in (real, imaginary)]
        out = c.emit("reshape", [c.emit("concat", pairs, axis=4)], shape=(*full[:3], turned))
        parts = [out]
    else:
        parts = [real, imaginary]
    if turned < full[3]:
        parts.append(part(x, turned, full[3] - turned))
    out = c.emit("concat", parts, axis=3) if len(parts) > 1 else parts[0]
    return _shaped(c, out, shape)


def _angles(c: Context, n: OnnxNode, k: int, batch: int, length: int, half: int) -> str:
    """Operand k, the cosines or sines: [batch, length, half], by position where there are ids."""
    table = c.operand(n, k)
    if not c.has(n, 3):
        if c.shape(table) != (batch, length, half):
            raise ModelError(f"{c.type(table)} is no table of [{batch}, {length}, {half}]")
        return table
    ids = c.operand(n, 3)
    if len(c.shape(table)) != 2 or c.shape(table)[1] != half or c.shape(ids) != (batch, length):
        raise ModelError(f"table {c.type(table)}, positions {c.type(ids)}: [.., {half}], [b, s]")
    flat = c.emit("reshape", [ids], shape=(batch * length,))
    return c.emit("take", [table, flat], axis=0)
