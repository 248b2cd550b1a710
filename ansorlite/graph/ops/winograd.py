"""Winograd's convolution F(m x m, r x r) over the last two spatial axes, as tensor expressions.

rewrite: conv(x, w) of stride 1 -> inverse(sum over ci of transform(x) * transform(w))

A tile of m x m results takes (m+r-1)^2 products a channel pair instead of (m r)^2 (Lavin and Gray,
2015). Transforms are written out term by term, without the zeros of their matrices: the axes that
count the terms are unrolled (`simplify_const_indices`), and common terms are computed once. The
weights' transform depends on constants only, so it is evaluated when the kernel is bound. A third
spatial axis stays a reduction of the products. Rounding errors grow with m and with the largest
element of a tile, over which an outlier, infinity or NaN spreads. Transformed data and weights may
be stored as bfloat16 and multiplied in pairs of channels, with sums in float32.
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.movement import Pads, pad, spatial_names
from ansorlite.graph.ops.op import named
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

UNROLLED = "simplify_const_indices"
Matrix = tuple[tuple[float, ...], ...]
POINTS = tuple(Fraction(*p) for p in ((0, 1), (1, 1), (-1, 1), (2, 1), (-2, 1), (1, 2), (-1, 2)))


def _product(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, lowest power first."""
    out = [Fraction(1)]
    for root in roots:
        up = [Fraction(0), *out]
        out = [u - root * c for u, c in zip(up, [*out, Fraction(0)], strict=True)]
    return out


@lru_cache(maxsize=16)
def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """(B^T [n, n], G [n, r], A^T [m, n]) with n = m + r - 1, by the Toom-Cook construction.

    y = A^T ((G g) * (B^T d)) is the correlation of n elements d with r weights g, m results.
    """
    n = m + r - 1
    if m < 1 or r < 1 or n - 1 > len(POINTS):
        raise ModelError(f"F({m}, {r}) needs {n - 1} points: at most {len(POINTS)} are known")
    points = POINTS[: n - 1]
    data, weight = list[list[Fraction]](), list[list[Fraction]]()
    for i, at in enumerate(points):
        others = [p for k, p in enumerate(points) if k != i]
        scale = Fraction(1)
        for p in others:
            scale *= at - p
        sign = -1 if scale < 0 else 1  # so that results are not subtracted without need
        data.append([sign * c for c in _product(others)] + [Fraction(0)])
        weight.append([sign * at**j / scale for j in range(r)])
    data.append(_product(points))
    weight.append([Fraction(int(j == r - 1)) for j in range(r)])
    inverse = [[at**i for at in points] + [Fraction(int(i == m - 1))] for i in range(m)]

    def floats(rows: list[list[Fraction]]) -> Matrix:
        return tuple(tuple(float(v) for v in row) for row in rows)

    return floats(data), floats(weight), floats(inverse)


def _combined(row: Sequence[float], terms: Sequence[Expr]) -> Expr:
    """The sum of terms times their factors; zeros are left out, ones not multiplied by."""
    total: Expr | None = None
    # A positive term first; the remaining terms are added or subtracted.
    order = sorted(range(len(row)), key=lambda k: row[k] < 0)
    for k in order:
        factor, term = row[k], terms[k]
        if factor == 0:
            continue
        size = term if abs(factor) == 1 else term * te.const(abs(factor), term.dtype)
        if total is None:
            total = size if factor > 0 else -size
        else:
            total = total + size if factor > 0 else total - size
    return te.const(0.0, terms[0].dtype) if total is None else total


def _combinations(matrix: Matrix, terms: Sequence[Expr]) -> list[Expr]:
    """matrix x terms, an expression a row."""
    return [_combined(row, terms) for row in matrix]


def _chosen(at: Any, values: Sequence[Expr]) -> Expr:
    """values[at], as a chain of tests that unrolling decides."""
    out = values[-1]
    for k in reversed(range(len(values) - 1)):
        out = te.select(te.equal(at, k), values[k], out)
    return out


def is_winograd(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether the convolution has a Winograd form: square window, stride 1, dilation 1."""
    square = len(kernel) in (2, 3) and kernel[-1] == kernel[-2] and 2 <= kernel[-1] <= 5
    return square and {*strides} == {1} and {*dilations} == {1}


def winograd_conv_nhwc(
    x: Tensor,
    w: Tensor,
    pads: Pads,
    m: int,
    name: str = "conv",
    joined: bool = True,
    bf16: bool = False,
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co], in tiles of m x m results.

    Rows are transformed first, then columns, so that columns of neighbouring tiles are shared.
    Without `joined` the result is [n, (d), h/m, m, w/m, m, co], a view of the same where m divides.
    With `bf16` what is multiplied is rounded to bfloat16; ci is even then.
    Raises ModelError unless the window is square over the last two of two or three axes.
    """
    *kernel, _, co = w.shape
    if not is_winograd(kernel, (1,), (1,)):
        raise ModelError(f"a window of {kernel} has no Winograd form")
    r, rank = kernel[-1], len(kernel)
    out = [e - k + 1 + sum(p) for e, k, p in zip(x.shape[1:-1], kernel, pads, strict=True)]
    if min(out) < 1:
        raise ModelError(f"a window of {kernel} does not fit {list(x.shape)} with padding {pads}")
    data_t, weight_t, inverse_t = matrices(m, r)
    tiles = [-(-e // m) for e in out[-2:]]
    widths = [(0, 0), *pads[:-2]]
    for e, (lo, _), t in zip(x.shape[-3:-1], pads[-2:], tiles, strict=True):
        widths.append((lo, max(0, t * m + r - 1 - e - lo)))
    u = _transformed_weight(w, weight_t)
    v = _transformed_data(pad(x, [*widths, (0, 0)]), data_t, tiles, m, name, bf16)
    if bf16:
        u = _pairs(u)
    products = _products(v, u, [*out[:-2], *tiles], f"{name}_products")
    tiled = _inverse(products, inverse_t, name, f"{name}_tiles" if joined else name)
    if not joined:
        return tiled

    def whole(n: Any, *at: Any) -> Expr:
        *ds, y, z, o = at
        return tiled[(n, *ds, y // m, y % m, z // m, z % m, o)]

    names = ("n", *spatial_names(rank), "co")
    return te.compute((x.shape[0], *out, co), named(names, whole), name=name)


def _depth_names(rank: int) -> tuple[str, ...]:
    """Names of the spatial axes that are not transformed: none, or d."""
    return spatial_names(rank)[:-2]


def _transformed_weight(w: Tensor, matrix: Matrix) -> Tensor:
    """G w G^T: weight [(kd), r, r, ci, co] -> [n, n, (kd), ci, co] for G [n, r]."""
    *kernel, ci, co = w.shape
    size, r = len(matrix), kernel[-1]
    ks = tuple(f"k{d}" for d in _depth_names(len(kernel)))

    def rows(a: Any, *at: Any) -> Expr:
        *kd, j, c, o = at
        return _chosen(a, _combinations(matrix, [w[(*kd, i, j, c, o)] for i in range(r)]))

    half = te.compute(
        (size, *kernel[:-2], r, ci, co),
        named(("a", *ks, "j", "ci", "co"), rows),
        name=f"{w.name}_rows",
        attrs={UNROLLED: ("a",)},
    )

    def columns(a: Any, b: Any, *at: Any) -> Expr:
        *kd, c, o = at
        return _chosen(b, _combinations(matrix, [half[(a, *kd, j, c, o)] for j in range(r)]))

    return te.compute(
        (size, size, *kernel[:-2], ci, co),
        named(("a", "b", *ks, "ci", "co"), columns),
        name=f"{w.name}_winograd",
        attrs={UNROLLED: ("a", "b")},
    )


def _pairs(u: Tensor) -> Tensor:
    """float32 [*a, ci, co] -> pairs of bfloat16, int32 [*a, ci / 2, co]."""
    *axes, ci, co = u.shape

    def pair(*at: Any) -> Expr:
        *a, c, o = at
        return te.pack(*(te.bfloat16_bits(u[(*a, 2 * c + k, o)]) for k in range(2)))

    names = (*(f"a{k}" for k in range(len(axes))), "c", "co")
    return te.compute((*axes, ci // 2, co), named(names, pair), name=f"{u.name}_pairs")


def _transformed_data(
    padded: Tensor, matrix: Matrix, tiles: Sequence[int], m: int, name: str, bf16: bool
) -> Tensor:
    """B^T d B of each tile: data [batch, (d), h, w, ci] -> [n, n, batch, (d), *tiles, ci].

    B^T is [n, n], and tiles of n x n elements begin every m elements. With `bf16` its bits.
    """
    batch, *depth, _, width, ci = padded.shape
    size, d_names = len(matrix), _depth_names(len(depth) + 2)

    def rows(a: Any, n: Any, *at: Any) -> Expr:
        *ds, y, z, c = at
        terms = [padded[(n, *ds, y * m + i, z, c)] for i in range(size)]
        return _chosen(a, _combinations(matrix, terms))

    half = te.compute(
        (size, batch, *depth, tiles[0], width, ci),
        named(("a", "n", *d_names, "h", "w", "c"), rows),
        name=f"{name}_rows",
        attrs={UNROLLED: ("a",)},
    )

    def columns(a: Any, b: Any, n: Any, *at: Any) -> Expr:
        *ds, y, z, c = at
        terms = [half[(a, n, *ds, y, z * m + j, c)] for j in range(size)]
        value = _chosen(b, _combinations(matrix, terms))
        return te.cast(te.bfloat16_bits(value), "uint16") if bf16 else value

    return te.compute(
        (size, size, batch, *depth, *tiles, ci),
        named(("a", "b", "n", *d_names, "h", "w", "c"), columns),
        name=f"{name}_data",
        attrs={UNROLLED: ("a", "b")},
    )


def _products(v: Tensor, u: Tensor, places: Sequence[int], name: str) -> Tensor:
    """Sums over ci and the depth of the kernel: [n, n, batch, *places, co], a matrix product each.

    `v` is the transformed data [n, n, batch, (d), *tiles, ci], `u` the transformed weight, both of
    float32, or bits of bfloat16 and pairs of them; `places` are the extents of the result, tiles
    for the last two axes.
    """
    size, _, *kernel_depth, ci, co = u.shape
    d_names = _depth_names(len(places))
    over = tuple(
        te.reduce_axis(k, name=f"k{d}") for k, d in zip(kernel_depth, d_names, strict=True)
    )
    c = te.reduce_axis(ci, name="ci")

    def product(a: Any, b: Any, n: Any, *at: Any) -> Expr:
        *ds, y, z, o = at
        tile = (a, b, n, *(d + k for d, k in zip(ds, over, strict=True)), y, z)
        weight = u[(a, b, *over, c, o)]
        if u.dtype == "float32":
            return te.sum(v[(*tile, c)] * weight, axis=[*over, c])
        data = te.pack(*(v[(*tile, 2 * c + k)] for k in range(2)))
        return te.sum(te.dot_bfloat16(data, weight), axis=[*over, c])

    return te.compute(
        (size, size, v.shape[2], *places, co),
        named(("a", "b", "n", *d_names, "h", "w", "co"), product),
        name=name,
    )


def _inverse(products: Tensor, matrix: Matrix, name: str, name_tiles: str) -> Tensor:
    """A^T p A of each tile: [n, n, batch, (d), *tiles, co] -> [batch, (d), h, m, w, m, co]."""
    size, _, batch, *places, co = products.shape
    m, d_names = len(matrix), _depth_names(len(places))
    *depth, high, wide = places

    def rows(n: Any, *at: Any) -> Expr:
        *ds, y, z, b, i, o = at
        terms = [products[(a, b, n, *ds, y, z, o)] for a in range(size)]
        return _chosen(i, _combinations(matrix, terms))

    half = te.compute(
        (batch, *places, size, m, co),
        named(("n", *d_names, "h", "w", "b", "i", "co"), rows),
        name=f"{name}_inverse",
        attrs={UNROLLED: ("i",)},
    )

    def columns(n: Any, *at: Any) -> Expr:
        *ds, y, i, z, j, o = at
        terms = [half[(n, *ds, y, z, b, i, o)] for b in range(size)]
        return _chosen(j, _combinations(matrix, terms))

    return te.compute(
        (batch, *depth, high, m, wide, m, co),
        named(("n", *d_names, "h", "i", "w", "j", "co"), columns),
        name=name_tiles,
        attrs={UNROLLED: ("i", "j")},
    )
