"""Convolutions by fast algorithms along some of their spatial axes, as tensor expressions.

rewrite: conv(x, w) -> inverse(sum over ci of transform(x) * transform(w))

Along an axis with an `Algorithm` (Winograd's F(m, r), or one for strides, phases, long kernels) the
data of each tile is transformed; other axes stay as written (Lavin and Gray, 2015). Transforms are
written out term by term, without the zeros of their matrices: the axes that count the terms are
unrolled (`simplify_const_indices`), and common terms are computed once. The weights' transform
depends on constants only, so it is evaluated when the kernel is bound. An outlier, infinity or NaN
spreads over its tile. Transformed data and weights may be stored as bfloat16 and multiplied in
pairs of channels, with sums in float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ansorlite import te
from ansorlite.errors import ModelError
from ansorlite.graph.ops.bilinear import Algorithm, Matrix, correlation, floats
from ansorlite.graph.ops.combinations import UNROLLED, chosen, combinations
from ansorlite.graph.ops.movement import Pads, pad, spatial_names
from ansorlite.graph.ops.op import named
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

Axes = Sequence[Algorithm | None]  # an algorithm for each spatial axis; None: as written


def matrices(m: int, r: int) -> tuple[Matrix, Matrix, Matrix]:
    """(B^T [n, n], G [n, r], A^T [m, n]) of F(m, r), n = m + r - 1.

    y = A^T ((G g) * (B^T d)) is the correlation of n elements d with r weights g, m results.
    """
    found = correlation(m, r)
    return floats(found.data), floats(found.weight), floats(found.inverse)


# ---- convolutions -------------------------------------------------------------------------------


def is_winograd(kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> bool:
    """Whether the convolution has F(m x m, r x r): square window, stride 1, dilation 1."""
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
    """F(m x m, r x r) over the last two axes: data [n, *s, ci], weight [*k, ci, co], stride 1.

    The result is [n, *out, co]; without `joined` [n, (d), h/m, m, w/m, m, co], a view of the same
    where m divides. Raises ModelError unless the window is square over the last two of two or three
    axes.
    """
    *kernel, _, _ = w.shape
    if not is_winograd(kernel, (1,), (1,)):
        raise ModelError(f"a window of {kernel} has no Winograd form")
    square = (correlation(m, kernel[-1]),) * 2
    axes = (*(None,) * (len(kernel) - 2), *square)
    return fast_conv_nhwc(x, w, pads, axes, name=name, joined=joined, bf16=bf16)


@dataclass(frozen=True)
class _Axis:
    """One spatial axis of a convolution. A `place` is a tile and a phase of the dilation."""

    name: str
    algorithm: Algorithm | None
    out: int  # results
    stride: int = 1
    dilation: int = 1

    @property
    def places(self) -> int:
        known = self.algorithm
        return self.out if known is None else self.dilation * -(-self.out // self.size)

    @property
    def size(self) -> int:
        """Results from the first of a tile to the first of the next one in the same phase."""
        assert self.algorithm is not None
        return self.algorithm.results * self.dilation

    def read(self, place: Any, k: Any) -> Any:
        """The element of the padded data that is number k of a place."""
        if self.algorithm is None:
            return place * self.stride + k * self.dilation
        step, d = self.algorithm.step, self.dilation
        if d == 1:
            return place * step + k
        return place // d * (step * d) + place % d + k * d

    @property
    def extent(self) -> int:
        """Of the padded data."""
        assert self.algorithm is not None
        tiles = self.places // self.dilation
        span = (tiles - 1) * self.algorithm.step + self.algorithm.span
        return span * self.dilation

    def cut(self, at: Any) -> tuple[Any, ...]:
        """(place, number in the tile) of a result; the place alone for an axis as written."""
        if self.algorithm is None:
            return (at,)
        m, d = self.algorithm.results, self.dilation
        if d == 1:
            return at // m, at % m
        return at // (m * d) * d + at % d, at // d % m


def fast_conv_nhwc(
    x: Tensor,
    w: Tensor,
    pads: Pads,
    algorithms: Axes,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    name: str = "conv",
    joined: bool = True,
    bf16: bool = False,
    out: Sequence[int] = (),
) -> Tensor:
    """data [n, *s, ci] and weight [*k, ci, co] -> [n, *out, co] by an algorithm for each axis.

    An axis without one is as written, with its stride; the stride of an algorithm is its own. The
    first axes are transformed first, so that neighbouring tiles share what is alike in them.
    Without `joined` the result is [n, .. tiles, m, .., co], a view of the same where m divides and
    there is no dilation. With `bf16` what is multiplied is rounded to bfloat16; ci is even then.
    `out` are extents of the result other than a convolution's, such as a transposed one's. Raises
    ModelError for an algorithm of another number of taps, and for a window larger than its data.
    """
    *kernel, _, co = w.shape
    rank = len(kernel)
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    for taps, known in zip(kernel, algorithms, strict=True):
        if known is not None and known.taps != taps:
            raise ModelError(f"an algorithm of {known.taps} taps for a kernel of {kernel}")
    out = out or [
        (e + sum(p) - d * (k - 1) - 1) // s + 1
        for e, k, p, s, d in zip(x.shape[1:-1], kernel, pads, strides, dilations, strict=True)
    ]
    if min(out) < 1:
        raise ModelError(f"a window of {kernel} does not fit {list(x.shape)} with padding {pads}")
    rows = zip(spatial_names(rank), algorithms, out, strides, dilations, strict=True)
    axes = [_Axis(*row) for row in rows]
    widths = [(0, 0)]
    for a, e, (lo, hi) in zip(axes, x.shape[1:-1], pads, strict=True):
        start = 0 if a.algorithm is None else a.algorithm.start
        after = hi if a.algorithm is None else max(0, a.extent - e - lo + start)
        widths.append((lo - start, after))
    u = _transformed_weight(w, axes)
    v = _transformed_data(pad(x, [*widths, (0, 0)]), axes, name, bf16)
    if bf16:
        u = _pairs(u)
    products = _products(v, u, axes, f"{name}_products")
    tiled = _inverse(products, axes, name, f"{name}_tiles" if joined else name)
    if not joined:
        return tiled

    def whole(n: Any, *at: Any) -> Expr:
        cut = (i for a, place in zip(axes, at[:-1], strict=True) for i in a.cut(place))
        return tiled[(n, *cut, at[-1])]

    names = ("n", *spatial_names(rank), "co")
    return te.compute((x.shape[0], *out, co), named(names, whole), name=name)


def _fast(axes: Sequence[_Axis]) -> list[tuple[int, Algorithm]]:
    """The axes that are transformed, and their algorithms."""
    return [(k, a.algorithm) for k, a in enumerate(axes) if a.algorithm is not None]


def _shared(known: Algorithm) -> bool:
    """Whether sums that several terms share are written once; F(2, 3) and F(4, 3) have few."""
    return known.span > 6 or known.products != known.span


def _letters(count: int) -> tuple[str, ...]:
    return ("a", "b", "e")[:count]


def _transformed_weight(w: Tensor, axes: Sequence[_Axis]) -> Tensor:
    """Weight [*k, ci, co] -> [*products of fast axes, *k of the other axes, ci, co]."""
    fast, kernel = _fast(axes), list(w.shape[:-2])
    rest = list(range(len(kernel)))
    made, done = w, list[int]()
    for number, (axis, known) in enumerate(fast):
        matrix, place = floats(known.weight), rest.index(axis)
        rest.remove(axis)
        last = number == len(fast) - 1

        def element(
            *at: Any,
            source: Tensor = made,
            before: int = number,
            place: int = place,
            matrix: Matrix = matrix,
        ) -> Expr:
            front, i, back = at[:before], at[before], at[before + 1 :]
            terms = [
                source[(*front, *back[:place], j, *back[place:])] for j in range(len(matrix[0]))
            ]
            return chosen(i, combinations(matrix, terms))

        done.append(known.products)
        letters = _letters(number + 1)
        made = te.compute(
            (*done, *(kernel[k] for k in rest), *w.shape[-2:]),
            named((*letters, *(f"k{axes[k].name}" for k in rest), "ci", "co"), element),
            name=f"{w.name}_winograd" if last else f"{w.name}_{_STEPS[number]}",
            attrs={UNROLLED: letters},
        )
    return made


_STEPS = ("rows", "columns")  # names of the first transforms of several


def _pairs(u: Tensor) -> Tensor:
    """float32 [*a, ci, co] -> pairs of bfloat16, int32 [*a, ci / 2, co]."""
    *axes, ci, co = u.shape

    def pair(*at: Any) -> Expr:
        *a, c, o = at
        return te.pack(*(te.bfloat16_bits(u[(*a, 2 * c + k, o)]) for k in range(2)))

    names = (*(f"a{k}" for k in range(len(axes))), "c", "co")
    return te.compute((*axes, ci // 2, co), named(names, pair), name=f"{u.name}_pairs")


# (numbers of products done, batch, places, channel) -> a value on the way
Read = Callable[[Sequence[Any], Any, Sequence[Any], Any], Expr]


def _transformed_data(padded: Tensor, axes: Sequence[_Axis], name: str, bf16: bool) -> Tensor:
    """Data [batch, *s, ci] -> [*products of fast axes, batch, *places, ci].

    An axis as written keeps the extent of the padded data. With `bf16` the bits of the result.
    """
    fast, extents = _fast(axes), list(padded.shape[1:-1])
    done, made = list[int](), padded
    for number, (axis, known) in enumerate(fast):
        last = number == len(fast) - 1
        extents[axis] = axes[axis].places
        done.append(known.products)
        value = _along(axes[axis], axis, known, made)
        letters = _letters(number + 1)

        def element(
            *at: Any, value: Read = value, count: int = number + 1, low: bool = bf16 and last
        ) -> Expr:
            found = value(at[:count], at[count], at[count + 1 : -1], at[-1])
            return te.cast(te.bfloat16_bits(found), "uint16") if low else found

        made = te.compute(
            (*done, padded.shape[0], *extents, padded.shape[-1]),
            named((*letters, "n", *(a.name for a in axes), "c"), element),
            name=f"{name}_data" if last else f"{name}_{_STEPS[number]}",
            attrs={UNROLLED: letters},
        )
    return made


def _along(own: _Axis, axis: int, known: Algorithm, source: Tensor) -> Read:
    """The data transform of a tensor along one axis."""

    def value(front: Sequence[Any], n: Any, s: Sequence[Any], c: Any) -> Expr:
        *done, i = front
        terms = [
            source[(*done, n, *s[:axis], own.read(s[axis], k), *s[axis + 1 :], c)]
            for k in range(known.span)
        ]
        return chosen(i, combinations(floats(known.data), terms, _shared(known)))

    return value


def _products(v: Tensor, u: Tensor, axes: Sequence[_Axis], name: str) -> Tensor:
    """Sums over ci and the kernel's other axes: [*products, batch, *places, co], matrix products.

    `v` and `u` are transformed data and weight, both of float32, or bits of bfloat16 and pairs of
    them.
    """
    count = len(_fast(axes))
    *kernel, ci, co = u.shape[count:]
    slow = [a for a in axes if a.algorithm is None]
    over = tuple(te.reduce_axis(k, name=f"k{a.name}") for k, a in zip(kernel, slow, strict=True))
    c = te.reduce_axis(ci, name="ci")

    def product(*at: Any) -> Expr:
        terms, n, places, o = at[:count], at[count], at[count + 1 : -1], at[-1]
        taps = iter(over)
        read = [
            place if a.algorithm else a.read(place, next(taps))
            for a, place in zip(axes, places, strict=True)
        ]
        tile, weight = (*terms, n, *read), u[(*terms, *over, c, o)]
        if u.dtype == "float32":
            return te.sum(v[(*tile, c)] * weight, axis=[*over, c])
        data = te.pack(*(v[(*tile, 2 * c + k)] for k in range(2)))
        return te.sum(te.dot_bfloat16(data, weight), axis=[*over, c])

    names = (*_letters(count), "n", *(a.name for a in axes), "co")
    shape = (*v.shape[: count + 1], *(a.places for a in axes), co)
    return te.compute(shape, named(names, product), name=name)


# (numbers of products to come, results done, batch, places, channel) -> a value on the way
Made = Callable[[Sequence[Any], Sequence[Any], Any, Sequence[Any], Any], Expr]


def _inverse(products: Tensor, axes: Sequence[_Axis], name: str, name_tiles: str) -> Tensor:
    """[*products, batch, *places, co] -> [batch, *(place, result) of each axis, co].

    Stages between are [batch, *places, products of axes to come, results of those done, co].
    """
    fast = _fast(axes)
    batch, *places, co = products.shape[len(fast) :]
    rank, inner = len(places), ("i", "j", "k")[: len(fast)]
    made = products
    for number, (_, known) in enumerate(fast):
        value = _back(known, made, number == 0)
        listed = inner[: number + 1]
        if number == len(fast) - 1:
            break
        left = _letters(len(fast))[number + 1 :]

        def between(*at: Any, value: Made = value, cut: int = rank + 1 + len(left)) -> Expr:
            return value(at[rank + 1 : cut], at[cut:-1], at[0], at[1 : rank + 1], at[-1])

        to_come = [k.products for _, k in fast[number + 1 :]]
        results = [k.results for _, k in fast[: number + 1]]
        made = te.compute(
            (batch, *places, *to_come, *results, co),
            named(("n", *(a.name for a in axes), *left, *listed, "co"), between),
            name=f"{name}_inverse{number or ''}",
            attrs={UNROLLED: listed},
        )
    letters = iter(inner)
    pairs = [(a.name,) if a.algorithm is None else (a.name, next(letters)) for a in axes]

    def tile(n: Any, *at: Any) -> Expr:
        own = iter(at[:-1])
        cut = [(next(own),) if len(pair) == 1 else (next(own), next(own)) for pair in pairs]
        results = [i for _, *rest in cut for i in rest]
        return value([], results, n, [place for place, *_ in cut], at[-1])

    shape = [
        e
        for a in axes
        for e in ((a.places,) if a.algorithm is None else (a.places, a.algorithm.results))
    ]
    return te.compute(
        (batch, *shape, co),
        named(("n", *(x for pair in pairs for x in pair), "co"), tile),
        name=name_tiles,
        attrs={UNROLLED: listed},
    )


def _back(known: Algorithm, source: Tensor, is_first: bool) -> Made:
    """The inverse transform along the first of the axes to come; `is_first` reads products."""

    def value(left: Sequence[Any], done: Sequence[Any], n: Any, s: Sequence[Any], o: Any) -> Expr:
        *before, i = done
        places = [
            (k, *left, n, *s, o) if is_first else (n, *s, k, *left, *before, o)
            for k in range(known.products)
        ]
        return chosen(
            i, combinations(floats(known.inverse), [source[at] for at in places], _shared(known))
        )

    return value
