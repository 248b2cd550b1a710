"""Matrix products with seven multiplications of halves instead of eight (Strassen, 1969).

rewrite: x [m, k] times w [k, n] -> inverse(transform(x) * transform(w)), parts of all three axes

Rows are halved by pairing neighbours, so that what a pair shares is of one sample as far as
possible; the other axes are cut in the middle. The weights' transform depends on constants only, so
it is evaluated when the kernel is bound. A sum of seven products has errors in units of the largest
results of its pair, and an infinity or NaN spreads over its pair of rows. Of two levels (49
products of quarters in place of 64) all of that holds for groups of four rows.
"""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ansorlite import te
from ansorlite.graph.ops.bilinear import Algorithm, Exact, floats
from ansorlite.graph.ops.combinations import UNROLLED, chosen, combinations
from ansorlite.graph.ops.conv_forms import error_of
from ansorlite.graph.ops.op import Form
from ansorlite.graph.types import Array, Attrs
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

# Quarters are numbered 2 * (half of the first axis) + (half of the second one).
_DATA = (
    (1, 0, 0, 1),
    (0, 0, 1, 1),
    (1, 0, 0, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (-1, 0, 1, 0),
    (0, 1, 0, -1),
)
_WEIGHT = (
    (1, 0, 0, 1),
    (1, 0, 0, 0),
    (0, 1, 0, -1),
    (-1, 0, 1, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (0, 0, 1, 1),
)
_INVERSE = (
    (1, 0, 0, 1, -1, 0, 1),
    (0, 0, 1, 0, 1, 0, 0),
    (0, 1, 0, 1, 0, 0, 0),
    (1, -1, 1, 0, 0, 1, 0),
)


def _exact(rows: Sequence[Sequence[int]]) -> tuple[tuple[Fraction, ...], ...]:
    return tuple(tuple(Fraction(v) for v in row) for row in rows)


SEVEN = Algorithm(_exact(_DATA), _exact(_WEIGHT), _exact(_INVERSE), step=4)


@lru_cache(maxsize=4)
def nested(levels: int) -> Algorithm:
    """7 ** levels products of 4 ** levels parts: the seven ones are computed in the same way.

    Parts of a matrix are numbered by quarters, the outermost first.
    """
    if levels == 1:
        return SEVEN
    pairs = zip(SEVEN.matrices, nested(levels - 1).matrices, strict=True)
    data, weight, inverse = (_kronecker(outer, inner) for outer, inner in pairs)
    return Algorithm(data, weight, inverse, step=4**levels)


def _kronecker(outer: Exact, inner: Exact) -> Exact:
    return tuple(tuple(a * b for a in p for b in q) for p in outer for q in inner)


def _part(first: int, second: int, levels: int) -> int:
    """The number of the part at these places of both axes, each cut into 2 ** levels."""
    bits = range(levels)
    return sum((2 * (first >> b & 1) + (second >> b & 1)) << 2 * b for b in bits)


def _places(levels: int) -> list[tuple[int, int]]:
    """The places of parts along both axes, in their order."""
    both = itertools.product(range(1 << levels), range(1 << levels))
    return sorted(both, key=lambda p: _part(p[0], p[1], levels))


LEVELS = (1, 2)
LEAST = 256  # elements of the summed axis and of rows of the weights, and half as many rows
# Multiply-adds in the time of writing and reading an element of transformed data or of a product.
ELEMENT = 8.0
HOPE = 0.98  # times the multiply-adds of the plain form: more is too much


def fast_dense(x: Tensor, w: Tensor, name: str = "dense", levels: int = 1) -> Tensor:
    """[m, k] x [k, n] -> [m / s, s, s, n / s], a view of [m, n], in s = 2 ** levels parts an axis.

    s divides k and n; where it does not divide m the last row is repeated for [m, s, n / s].
    """
    known, s = nested(levels), 2**levels
    (m, k), n = x.shape, w.shape[1]
    rows, depth, columns = -(-m // s), k // s, n // s
    places = _places(levels)

    def data(a: Any, i: Any, c: Any) -> Expr:
        # Past the last row it comes again, of which no result is taken.
        own = [te.minimum(s * i + h, m - 1) if m % s and h else s * i + h for h in range(s)]
        parts = [x[own[h], c + g * depth] for h, g in places]
        return chosen(a, combinations(floats(known.data), parts))

    def weight(a: Any, c: Any, j: Any) -> Expr:
        parts = [w[c + g * depth, j + f * columns] for g, f in places]
        return chosen(a, combinations(floats(known.weight), parts))

    listed = {UNROLLED: ("a",)}
    v = te.compute((known.products, rows, depth), data, name=f"{name}_data", attrs=listed)
    u = te.compute((known.products, depth, columns), weight, name=f"{w.name}_seven", attrs=listed)
    axis = te.reduce_axis(depth, name="c")
    products = te.compute(
        (known.products, rows, columns),
        lambda a, i, j: te.sum(v[a, i, axis] * u[a, axis, j], axis=axis),
        name=f"{name}_products",
    )

    def part(i: Any, h: Any, f: Any, j: Any) -> Expr:
        made = [products[a, i, j] for a in range(known.products)]
        found = combinations(floats(known.inverse), made)
        of_rows = [[found[_part(r, c, levels)] for c in range(s)] for r in range(s)]
        return chosen(h, [chosen(f, row) for row in of_rows])

    both = {UNROLLED: ("h", "f")}
    if m % s == 0:
        return te.compute((rows, s, s, columns), part, name=name, attrs=both)
    if levels > 1:  # all rows of a group share what is read, so that they are computed together
        tiles = te.compute((rows, s, s, columns), part, name=f"{name}_tiles", attrs=both)
        whole = (m, s, columns)
        return te.compute(whole, lambda i, f, j: tiles[i // s, i % s, f, j], name=name)
    return te.compute(
        (m, s, columns),
        lambda i, f, j: part(i // s, i % s, f, j),
        name=name,
        attrs={UNROLLED: ("f",)},
    )


def product_forms(rows: int, depth: int, columns: int) -> tuple[Form, ...]:
    """Forms of [rows, depth] x [depth, columns]: Strassen's where it saves time."""
    return tuple(
        Form(partial(_tensor, levels), partial(_error, levels), matrices=True)
        for levels in LEVELS
        if _hopes(rows, depth, columns, levels)
    )


def _hopes(rows: int, depth: int, columns: int, levels: int) -> bool:
    s = 1 << levels
    if depth % s or columns % s:
        return False
    if min(depth, columns, 2 * rows) < LEAST:
        return False
    products, own = nested(levels).products, -(-rows // s)
    sums = products * own * (depth // s) * (columns // s)
    moved = products * own * (depth // s + columns // s)
    return sums + ELEMENT * moved <= HOPE * rows * depth * columns


def _tensor(levels: int, attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    return fast_dense(xs[0], xs[1], levels=levels)


def _error(levels: int, weights: Array) -> float:
    """Expected largest error of a result, in units of the largest result."""
    s = 2**levels
    depth, columns = (extent // s for extent in weights.shape[-2:])
    cut = weights.reshape(s, depth, s, columns)
    parts = np.stack([cut[g, :, f] for g, f in _places(levels)])
    return error_of((nested(levels),), parts)
