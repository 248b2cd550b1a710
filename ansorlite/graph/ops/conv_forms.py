"""Which forms by fast algorithms a convolution has: along which axes, in tiles of how many results.

In: taps, strides, dilations and extents. Out: `Form`s, the most promising first. Every axis has a
few algorithms, and all combinations are weighed by products and by elements that are transformed.
Forms that err too much have no place here: `Form.error` is compared with what the caller allows.
Measuring decides among those that are left.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.ops.bilinear import Algorithm, floats, gain, strided, transposed
from ansorlite.graph.ops.movement import Pads
from ansorlite.graph.ops.op import Form
from ansorlite.graph.ops.winograd import Axes, fast_conv_nhwc
from ansorlite.graph.types import Array, Attrs
from ansorlite.te.tensor import Tensor

LEAST_CHANNELS = 16  # of input and output: with fewer the transforms cost more than they save
TILES = (2, 3, 4, 5, 6)  # results of a tile along an axis
MOST_FORMS = 2  # beside those of square tiles
MOST_PRODUCTS = 100  # of a tile: all are written out
# Errors grow by so much at most: 46 is F(6 x 6, 3 x 3). Of bfloat16 little can be lost.
MOST_GAIN, MOST_BF16_GAIN = 64.0, 2.5
HOPE, BETTER = 0.9, 0.95  # times the cost of the plain form, of known ones: more is too much
ELEMENT = 20.0  # multiply-adds in the time that transforming and moving one element takes
COPIED = 10.0  # likewise, of an element of the result that is moved again
LOADED = 16.0  # likewise, of an element of a weight that comes from memory
UNIT = {False: 2.0**-24, True: 2.0**-9}  # of roundings, without and with bfloat16
MOST_KERNELS = 1024  # of the weights, by which errors are expected
SPREAD = 2.0  # the largest error of a result, in units of the largest result, over the mean one


@dataclass(frozen=True)
class Layer:
    """A convolution over axes with `taps`, of `out` results each."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    out: tuple[int, ...]
    channels: tuple[int, int]  # of input and output
    low: tuple[int, ...] | None = None  # padding in front, of a transposed one

    @property
    def is_transposed(self) -> bool:
        return self.low is not None

    def options(self, axis: int) -> list[Algorithm | None]:
        """Ways to compute along an axis that save products."""
        taps, stride, out = self.taps[axis], self.strides[axis], self.out[axis]
        found: list[Algorithm | None] = [] if self.is_transposed else [None]
        written = out * taps / (stride if self.is_transposed else 1)
        for m in TILES if taps > 1 and out > 1 else ():
            for made in self._made(axis, m):
                saves = made.products * _places(made, out, self.dilations[axis]) < written
                if saves and made not in found:
                    found.append(made)
        return found

    def _made(self, axis: int, m: int) -> Iterator[Algorithm]:
        """Algorithms in tiles of m; of long kernels as a whole and in halves."""
        taps, stride = self.taps[axis], self.strides[axis]
        with suppress(ModelError):  # gaps between results, or not enough points
            if self.low is not None:
                yield transposed(m, taps, stride, self.low[axis])
                return
            yield strided(m, taps, stride)
        if taps > 4:
            with suppress(ModelError):
                yield strided(m, taps, stride, -(-taps // 2))

    def cost(self, axes: Axes) -> float:
        """Multiply-adds, or what takes as long, of a form."""
        ci, co = self.channels
        fast = [a for a in axes if a is not None]
        rows = list(zip(axes, self.out, self.dilations, self.taps, strict=True))
        places = math.prod(o if a is None else _places(a, o, d) for a, o, d, _ in rows)
        products = math.prod(a.products for a in fast)
        slow = math.prod(k for a, _, _, k in rows if a is None)
        copied = COPIED * math.prod(self.out) * co if self.is_copied(axes) else 0.0
        sums = products * slow * ci * co * max(places, LOADED)
        return sums + places * products * ELEMENT * (ci + co) + copied

    def is_copied(self, axes: Axes) -> bool:
        """Whether the tiles are no view of the result."""
        rows = zip(axes, self.out, self.dilations, strict=True)
        return any(a is not None and (d > 1 or o % a.results) for a, o, d in rows)

    def plain_cost(self) -> float:
        """Likewise, of the convolution as written; a transposed one by phases."""
        ci, co = self.channels
        taps = math.prod(self.taps)
        phases = math.prod(self.strides) if self.is_transposed else 1
        return float(max(math.prod(self.out) / phases, LOADED) * taps * ci * co)


def _places(made: Algorithm, out: int, dilation: int) -> int:
    return dilation * -(-out // (made.results * dilation))


@lru_cache(maxsize=256)
def best_axes(
    layer: Layer, bf16: bool = False, but: tuple[Axes, ...] = (), faster: float = 1.0
) -> list[Axes]:
    """The algorithms of the most promising forms, best first; few of them, better than `but`.

    The plain form's products are so many times `faster` than those of the forms. A form that
    differs from a better one in the tile of one axis alone is left out.
    """
    if min(layer.channels) < LEAST_CHANNELS:
        return []
    most = MOST_BF16_GAIN if bf16 else MOST_GAIN
    limit = min([HOPE * layer.plain_cost() / faster, *(BETTER * layer.cost(axes) for axes in but)])
    weighed = []
    for axes in itertools.product(*(layer.options(k) for k in range(len(layer.taps)))):
        fast = [a for a in axes if a is not None]
        if not fast or math.prod(a.products for a in fast) > MOST_PRODUCTS:
            continue
        cost = layer.cost(axes)
        if cost < limit and gain(fast) <= most:
            weighed.append((cost, axes))
    found: list[Axes] = []
    for _, axes in sorted(weighed, key=lambda w: w[0]):
        if axes in but or (_fast(axes) > 1 and any(_differ(axes, a) < 2 for a in found)):
            continue
        found.append(axes)
        if len(found) == MOST_FORMS:
            break
    return found


def _differ(first: Axes, second: Axes) -> int:
    return sum(a is not b for a, b in zip(first, second, strict=True))


def _fast(axes: Axes) -> int:
    return sum(a is not None for a in axes)


def error_of(axes: Axes, weights: Array, bf16: bool = False) -> float:
    """Expected largest error of a result, in units of the largest result.

    Of weights [*k, ci, co], some of which are looked at, and data of mean 0; infinite for weights
    that are not finite.
    """
    if not np.isfinite(weights).all():
        return math.inf
    rank = len(axes)
    kernels = weights.reshape(*weights.shape[:rank], -1)
    kernels = kernels[..., :: -(-kernels.shape[-1] // MOST_KERNELS)].astype(np.float64)
    transformed, errors, terms = kernels, list[Array](), list[Array]()
    for k, known in enumerate(axes):
        taps = kernels.shape[k]
        if known is None:
            errors.append(np.ones((1, taps)))
            terms.append(np.ones((1, taps)))
            continue
        data, weight, inverse = (np.array(floats(m)) for m in known.matrices)
        transformed = np.moveaxis(np.tensordot(weight, transformed, (1, k)), 0, k)
        errors.append(inverse**2 * (data**2).sum(1))
        product = np.einsum("ik,kj,kl->ijl", inverse, weight, data)
        terms.append(np.round((product**2).sum(2)))
    wrong, right = (transformed**2).mean(-1), (kernels**2).mean(-1)
    for k in range(rank):
        wrong = np.moveaxis(np.tensordot(errors[k], wrong, (1, k)), 0, k)
        right = np.moveaxis(np.tensordot(terms[k], right, (1, k)), 0, k)
    grown = np.sqrt(np.max(wrong) / np.max(right)) if np.max(right) > 0 else 0.0
    return float(SPREAD * UNIT[bf16] * grown)


def form_of(
    layer: Layer,
    axes: Axes,
    pads: Pads,
    bf16: bool = False,
    out: Sequence[int] = (),
) -> Form:
    """The form with these algorithms; of data [n, *s, ci] and weight [*k, ci, co]."""
    window = layer.strides, layer.dilations
    copied = layer.is_copied(axes)

    def tensor(attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
        return fast_conv_nhwc(xs[0], xs[1], pads, axes, *window, "conv", copied, bf16, out)

    return Form(tensor, lambda weights: error_of(axes, weights, bf16), bf16)
