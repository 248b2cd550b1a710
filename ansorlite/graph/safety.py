"""Where arithmetic with constants may be rewritten (part of step `passes`).

In: the constants' values and the nodes around them. Out: whether the rewritten form differs from
the original by rounding alone. A rewrite may not make zero, infinity or NaN of a finite result, nor
the other way round, and may not let terms cancel that did not cancel before. Bounds are powers of
two, far from the ends of float32's exponents.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.graph.build import Rewriter

Values = npt.NDArray[Any]  # constants of a graph, any dtype

LARGEST_FACTOR = 2.0**20
SMALLEST_FACTOR = 2.0**-32
LARGEST_TERM = 2.0**100  # vanishes when added to float32's largest number
SMALLEST_PRODUCT = 2.0**-100  # added to such a product, one that underflows vanishes anyhow
CANCELLED = 2.0**10  # how many times its result a term may be
DEPTH = 8  # nodes that are looked through for a sign


def _tiny(c: Values) -> float:
    return float(np.finfo(str(c.dtype)).tiny)


def reciprocal(c: Values, exact: bool = False) -> Values | None:
    """1 / c if x * (1 / c) is x / c to rounding, that is, if 1 / c is a normal number; else None.

    With `exact` only the reciprocals of powers of two, which are no approximation.
    """
    with np.errstate(all="ignore"):
        inverse = (1 / c.astype(np.float64)).astype(c.dtype)
        fits = np.isfinite(inverse) & (np.abs(inverse) >= _tiny(c))
    if exact:
        fits &= np.abs(np.frexp(c.astype(np.float64))[0]) == 0.5
    return inverse if bool(np.all(fits)) else None


def merges_factors(a: Values, b: Values) -> bool:
    """Whether (x * a) * b is x * (a * b) for every x: both shrink x, or both enlarge it."""
    if a.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        product, small, large = np.abs(a * b), np.abs(a), np.abs(b)
        finite = np.isfinite(small) & np.isfinite(large) & np.isfinite(product)
        same = ((small <= 1) & (large <= 1)) | ((small >= 1) & (large >= 1))
        whole = (product >= _tiny(a)) | (small == 0) | (large == 0)
    return bool(np.all(finite & same & whole))


def merges_terms(b: Values, c: Values, rounded: bool) -> bool:
    """Whether (x + b) + c is x + (b + c); `rounded` if x is a rounded sum, as of a convolution.

    For any x both have to have one sign, and a sum without an error.
    """
    if b.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        total = b + c
        limit = LARGEST_TERM
        fits = (np.abs(b) <= limit) & (np.abs(c) <= limit)
        if not rounded:
            part = total - b  # Knuth's sum without an error: what was lost is 0
            lost = (b - (total - part)) + (c - part)
            fits &= (b * c >= 0) & (lost == 0)
    return bool(np.all(fits))


def scales_weight(w: Values, s: Values) -> bool:
    """Whether sum(x * w) * s is sum(x * (w * s)): both of moderate size, nothing lost below.

    `s` has w's rank, and extent 1 along each axis on which it does not vary.
    """
    if w.dtype.kind != "f":
        return True
    with np.errstate(all="ignore"):
        size, factor = np.abs(w), np.abs(s)
        fits = (factor == 0) | ((factor >= SMALLEST_FACTOR) & (factor <= LARGEST_FACTOR))
        if not (np.all(fits) and np.all(size <= LARGEST_FACTOR)):
            return False
        product = size * factor
        low = (product < _tiny(w)) & (size != 0) & (factor != 0)
        if not np.any(low):
            return True
        shared = tuple(d for d, n in enumerate(np.shape(s)) if n == 1)
        most = product.max(axis=shared, keepdims=True)
    return bool(np.all(~low | (most >= SMALLEST_PRODUCT)))


def scales_term(b: Values, s: Values) -> bool:
    """Whether b * s is finite."""
    with np.errstate(all="ignore"):
        return b.dtype.kind != "f" or bool(np.all(np.isfinite(b * s)))


def folds_norm(parts: tuple[Values, ...], epsilon: float, rounded: bool) -> bool:
    """Whether (x - mean) * s + bias is x * s + (bias - mean * s), s = scale / sqrt(var + epsilon).

    Where the mean is many deviations away from zero, a difference that was exact would cancel;
    not so for a rounded sum x, which has an error of that size already.
    """
    scale, bias, mean, var = (p.astype(np.float64) for p in parts)
    with np.errstate(all="ignore"):
        s = scale / np.sqrt(var + epsilon)
        moved = np.abs(mean * s)
        fits = np.isfinite((bias - mean * s).astype(parts[0].dtype)) & (np.abs(s) <= LARGEST_FACTOR)
        fits &= (np.abs(s) >= SMALLEST_FACTOR) | (scale == 0)
        if not rounded:
            fits &= moved <= CANCELLED * np.maximum(np.abs(scale), np.abs(bias))
    return bool(np.all(fits))


def is_sum(r: Rewriter, value: str) -> bool:
    """Whether the value, or what it is a view of, is a sum of products or elements."""
    node = r.builder.producers.get(value)
    while node is not None and node.op in ("reshape", "transpose"):
        node = r.builder.producers.get(node.inputs[0])
    return node is not None and "rounded_sum" in node.operator.traits


def never_minus_zero(r: Rewriter, value: str) -> bool:
    """Whether value + 0.0 is the value: -0.0 + 0.0 is 0.0."""
    if not r.dtype(value).startswith("float") or is_sum(r, value):
        return True
    node = r.builder.producers.get(value)
    if node is None:
        return False
    known = r.known(node.inputs[-1])
    if node.op == "add" and known is not None:  # x + c is -0.0 for c = -0.0 alone
        return not bool(np.any((known == 0) & np.signbit(known)))
    return "not_negative" in node.operator.traits


def never_negative(r: Rewriter, value: str, depth: int = DEPTH) -> bool:
    """Whether the value is 0.0, positive or NaN whatever the inputs are."""
    node = r.builder.producers.get(value)
    known: Values | None = r.known(value)
    if known is not None:
        return bool(np.all((known >= 0) & ~np.signbit(known)))
    if node is None or depth == 0:
        return False
    if "not_negative" in node.operator.traits:
        return True
    if node.op == "mul" and node.inputs[0] == node.inputs[1]:
        return True
    if "keeps_not_negative" in node.operator.traits:
        return all(never_negative(r, v, depth - 1) for v in node.inputs)
    return False
