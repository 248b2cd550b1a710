"""Reader of Einsum: any equation of ONNX as transposes, sums and matrix products.

In: an equation such as "b i j, b j k -> b i k" without its spaces, and operands. Out: operands are
contracted from left to right. Labels that occur once are summed at once, repeated labels of one
operand are a diagonal, an ellipsis stands for as many labels as an operand has further axes.
"""

import math
from collections.abc import Sequence

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode

Labels = tuple[str, ...]  # of axes: a letter, or "..3" for the third axis from the end of "..."


def einsum(c: Context, n: OnnxNode) -> str:
    equation, values = "".join(str(n.attrs["equation"]).split()), c.operands(n)
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(values):
        raise ModelError(f"equation {equation} has {len(terms)} terms for {len(values)} operands")
    labels = [_labels(equation, t, len(c.shape(v))) for t, v in zip(terms, values, strict=True)]
    dots = max((tuple(x for x in own if len(x) > 1) for own in labels), key=len)
    if arrow:
        out = _labels(equation, right, None, dots)
    else:
        plain = [x for own in labels for x in own if len(x) == 1]
        out = (*dots, *sorted(x for x in {*plain} if plain.count(x) == 1))
    extents = _extents(c, equation, values, labels)
    if {*out} - {*extents} or len({*out}) != len(out):
        raise ModelError(f"equation {equation}: the result names an axis twice, or one of none")
    parts = [_simple(c, v, own, extents) for v, own in zip(values, labels, strict=True)]
    value, own = parts[0]
    value, own = _summed(c, value, own, _still(parts[1:], out))
    for k, (other, named) in enumerate(parts[1:], 1):
        kept = _still(parts[k + 1 :], out)
        other, named = _summed(c, other, named, {*own, *kept})
        value, own = _summed(c, value, own, {*named, *kept})
        value, own = _product(c, value, own, other, named, kept)
    value, own = _summed(c, value, own, {*out})
    present = tuple(x for x in out if x in own)
    value = _moved(c, value, own, present)
    full = tuple(extents[x] for x in out)
    ones = tuple(extents[x] if x in present else 1 for x in out)
    if c.shape(value) != ones:
        value = c.emit("reshape", [value], shape=ones)
    return value if ones == full else c.emit("expand", [value], shape=full)


def _labels(equation: str, term: str, rank: int | None, dots: Labels = ()) -> Labels:
    """The labels of a term; `rank` gives the number of axes of an ellipsis, or `dots` does."""
    before, ellipsis, after = term.partition("...")
    if not all(x.isascii() and x.isalpha() for x in before + after):
        raise ModelError(f"equation {equation}: term {term!r} has other signs than letters and ...")
    count = len(before) + len(after)
    if rank is not None:
        if rank < count or (rank > count and not ellipsis):
            raise ModelError(f"equation {equation}: term {term!r} for an operand of {rank} axes")
        dots = tuple(f"..{k}" for k in range(rank - count, 0, -1))
    return (*before, *(dots if ellipsis else ()), *after)


def _extents(
    c: Context, equation: str, values: Sequence[str], labels: Sequence[Labels]
) -> dict[str, int]:
    """The extent of each label; axes of extent 1 broadcast."""
    found: dict[str, int] = {}
    for v, own in zip(values, labels, strict=True):
        for label, extent in zip(own, c.shape(v), strict=True):
            if found.setdefault(label, extent) == 1:
                found[label] = extent
            elif extent not in (1, found[label]):
                raise ModelError(
                    f"equation {equation}: axis {label} has extents {found[label]} and {extent}"
                )
    return found


def _still(parts: Sequence[tuple[str, Labels]], out: Labels) -> set[str]:
    """Labels that later operands or the result have."""
    return {x for _, own in parts for x in own} | {*out}


def _simple(c: Context, value: str, labels: Labels, extents: dict[str, int]) -> tuple[str, Labels]:
    """The operand with each label once, axes that broadcast left out."""
    while (repeated := next((x for x in labels if labels.count(x) > 1), None)) is not None:
        a, b = [d for d, x in enumerate(labels) if x == repeated][:2]
        rest = [d for d in range(len(labels)) if d not in (a, b)]
        if c.shape(value)[a] != c.shape(value)[b]:
            raise ModelError(f"the diagonal of axes {a} and {b} of {c.type(value)}: unequal")
        value, size = c.emit("transpose", [value], perm=(*rest, a, b)), c.shape(value)[a]
        lead = c.shape(value)[:-2]
        value = c.emit("reshape", [value], shape=(*lead, size * size))
        starts, steps = (0,) * (len(lead) + 1), (*(1,) * len(lead), size + 1)
        value = c.emit("slice", [value], starts=starts, sizes=(*lead, size), steps=steps)
        labels = (*(labels[d] for d in rest), repeated)
    kept = [d for d, x in enumerate(labels) if c.shape(value)[d] == extents[x]]
    if len(kept) < len(labels):
        value = c.emit("reshape", [value], shape=tuple(c.shape(value)[d] for d in kept))
    return value, tuple(labels[d] for d in kept)


def _summed(c: Context, value: str, labels: Labels, kept: set[str]) -> tuple[str, Labels]:
    """The sum over labels that nothing needs any more."""
    axes = tuple(d for d, x in enumerate(labels) if x not in kept)
    if not axes:
        return value, labels
    value = c.emit("reduce_sum", [value], axes=axes, keepdims=False)
    return value, tuple(x for x in labels if x in kept)


def _moved(c: Context, value: str, labels: Labels, order: Labels) -> str:
    if labels == order:
        return value
    return c.emit("transpose", [value], perm=tuple(labels.index(x) for x in order))


def _product(
    c: Context, a: str, own: Labels, b: str, named: Labels, kept: set[str]
) -> tuple[str, Labels]:
    """The product of two operands, summed over the labels that both have and nothing needs."""
    both = [x for x in own if x in named]
    inner = tuple(x for x in both if x not in kept)
    batch = tuple(x for x in both if x in kept)
    left, right = (tuple(x for x in p if x not in both) for p in (own, named))
    size = {x: e for v, p in ((a, own), (b, named)) for x, e in zip(p, c.shape(v), strict=True)}
    labels = (*batch, *left, *right)

    def extents(part: Labels) -> tuple[int, ...]:
        return tuple(size[x] for x in part)

    if not inner:
        a = c.emit(
            "reshape",
            [_moved(c, a, own, (*batch, *left))],
            shape=(*extents(batch), *extents(left), *(1,) * len(right)),
        )
        b = c.emit(
            "reshape",
            [_moved(c, b, named, (*batch, *right))],
            shape=(*extents(batch), *(1,) * len(left), *extents(right)),
        )
        return c.emit("mul", [a, b]), labels
    m, k, j = (math.prod(extents(p)) for p in (left, inner, right))
    a = _moved(c, a, own, (*batch, *left, *inner))
    b = _moved(c, b, named, (*batch, *inner, *right))
    a = c.emit("reshape", [a], shape=(*extents(batch), m, k))
    b = c.emit("reshape", [b], shape=(*extents(batch), k, j))
    out = c.emit("matmul", [a, b])
    return c.emit("reshape", [out], shape=extents(labels)), labels
