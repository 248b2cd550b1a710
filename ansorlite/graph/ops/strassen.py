"""Matrix products with seven multiplications of halves instead of eight (Strassen, 1969).

rewrite: x [m, k] times w [k, n] -> inverse(transform(x) * transform(w)), halves of all three axes

Rows are halved by pairing neighbours, so that what a pair shares is of one sample as far as
possible; the other axes are cut in the middle. The weights' transform depends on constants only, so
it is evaluated when the kernel is bound. A sum of seven products has errors in units of the largest
results of its pair, and an infinity or NaN spreads over its pair of rows.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ansorlite import te
from ansorlite.graph.ops.bilinear import Algorithm, floats
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

LEAST = 256  # elements of the summed axis and of rows of the weights, and half as many rows
# Multiply-adds in the time of writing and reading an element of transformed data or of a product.
ELEMENT = 8.0
HOPE = 0.98  # times the multiply-adds of the plain form: more is too much


def fast_dense(x: Tensor, w: Tensor, name: str = "dense") -> Tensor:
    """[m, k] x [k, n] -> [m / 2, 2, 2, n / 2], where m is odd [m, 2, n / 2]: views of [m, n].

    k and n are even.
    """
    (m, k), n = x.shape, w.shape[1]
    rows, depth, columns = -(-m // 2), k // 2, n // 2

    def data(a: Any, i: Any, c: Any) -> Expr:
        # The last row of an odd number is its own neighbour, of which no result is taken.
        pair = 2 * i, 2 * i + 1 if m % 2 == 0 else te.minimum(2 * i + 1, m - 1)
        quarters = [x[row, c + g * depth] for row in pair for g in (0, 1)]
        return chosen(a, combinations(floats(SEVEN.data), quarters))

    def weight(a: Any, c: Any, j: Any) -> Expr:
        quarters = [w[c + g * depth, j + f * columns] for g in (0, 1) for f in (0, 1)]
        return chosen(a, combinations(floats(SEVEN.weight), quarters))

    listed = {UNROLLED: ("a",)}
    v = te.compute((SEVEN.products, rows, depth), data, name=f"{name}_data", attrs=listed)
    u = te.compute((SEVEN.products, depth, columns), weight, name=f"{w.name}_seven", attrs=listed)
    axis = te.reduce_axis(depth, name="c")
    products = te.compute(
        (SEVEN.products, rows, columns),
        lambda a, i, j: te.sum(v[a, i, axis] * u[a, axis, j], axis=axis),
        name=f"{name}_products",
    )

    def quarter(i: Any, h: Any, f: Any, j: Any) -> Expr:
        found = combinations(floats(SEVEN.inverse), [products[a, i, j] for a in range(7)])
        return chosen(h, [chosen(f, found[:2]), chosen(f, found[2:])])

    if m % 2 == 0:
        both = {UNROLLED: ("h", "f")}
        return te.compute((rows, 2, 2, columns), quarter, name=name, attrs=both)
    return te.compute(
        (m, 2, columns),
        lambda i, f, j: quarter(i // 2, i % 2, f, j),
        name=name,
        attrs={UNROLLED: ("f",)},
    )


def product_forms(rows: int, depth: int, columns: int) -> tuple[Form, ...]:
    """Forms of [rows, depth] x [depth, columns]: Strassen's where it saves time."""
    if depth % 2 or columns % 2 or min(depth, columns, 2 * rows) < LEAST:
        return ()
    pairs = -(-rows // 2)
    sums = SEVEN.products * pairs * (depth // 2) * (columns // 2)
    moved = SEVEN.products * pairs * (depth // 2 + columns // 2)
    if sums + ELEMENT * moved > HOPE * rows * depth * columns:
        return ()
    return (Form(_tensor, _error, matrices=True),)


def _tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
    return fast_dense(xs[0], xs[1])


def _error(weights: Array) -> float:
    """Expected largest error of a result, in units of the largest result."""
    depth, columns = (extent // 2 for extent in weights.shape[-2:])
    halves = weights.reshape(2, depth, 2, columns).swapaxes(1, 2)
    return error_of((SEVEN,), halves.reshape(4, depth, columns))
