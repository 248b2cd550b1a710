"""Random small ComputeDAGs for the property tests, with bounds on the size of their values.

One to five stages: plain ones (random index expressions into any sources: transposed, shifted,
strided, dilated, reversed, guarded, wrapped, gathered reads; reductions over any axes) and chains
that the sketch rules look for (matmul, padded convolution, softmax, elementwise tails, diamonds).
In: a `Choose`, which picks one of n: hypothesis (`dags()`, shrinks) or a seeded stream
(`seeded_dag(rng)`, fast and varied). Out: a `Case`.

Values are multiples of a power of two as long as nothing rounds them, so that most outputs are
exact in float32 whatever the order of summation; comparisons and casts use such values only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from ansorlite import te
from ansorlite.ir.expr import Expr, is_float, is_int, wrap

Choose = Callable[[int], int]  # n -> one of 0 .. n-1; 0 is the simplest
Axes = list[tuple[Expr, int]]  # variable and extent

EXTENTS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17, 23, 24, 29, 32, 37, 40)
POINTS = 1500  # at most so many evaluations of a body a stage
FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Known:
    """A tensor or a scalar expression: |values| <= bound; multiples of `step`, 0 if rounded."""

    what: Any
    bound: float
    step: float

    @property
    def exact(self) -> bool:
        return self.step > 0 and self.bound / self.step < 1 << 22


@dataclass(frozen=True)
class Case:
    """A DAG; `bounds` and `exact` of its outputs; `inputs(seed)` draws values for placeholders."""

    dag: te.ComputeDAG
    bounds: dict[str, float]
    exact: dict[str, bool]
    gathers: dict[str, int]  # index tensors -> the extent that they index

    def inputs(self, seed: int) -> dict[str, npt.NDArray[Any]]:
        rng = np.random.default_rng(seed)
        return {p.name: self._values(p, rng) for p in self.dag.inputs}

    def _values(self, p: te.Placeholder, rng: np.random.Generator) -> npt.NDArray[Any]:
        shape = tuple(int(str(e)) for e in p.shape)
        if p.name in self.gathers:
            return np.asarray(rng.integers(0, self.gathers[p.name], shape), p.dtype)
        if p.dtype == "bool":
            return np.asarray(rng.integers(0, 2, shape), bool)
        values = rng.integers(-8, 9, shape)
        return np.asarray(values / 4 if p.dtype in FLOATS else values, p.dtype)

    def check(self, got: dict[str, Any], want: dict[str, Any], what: str) -> None:
        """Fail unless the outputs agree, to rounding where they are rounded."""
        assert set(got) == set(want)
        for name, x in want.items():
            y = got[name]
            assert y.dtype == x.dtype and y.shape == x.shape, what
            if self.exact[name] or not is_float(self.dag.by_name[name].body):  # type: ignore
                np.testing.assert_array_equal(y, x, err_msg=f"{name}: {what}")
            else:
                atol = 2e-5 * max(1.0, self.bounds[name])
                np.testing.assert_allclose(y, x, rtol=1e-5, atol=atol, err_msg=f"{name}: {what}")


@dataclass
class _Builder:
    """The DAG so far."""

    choose: Choose
    tensors: list[Known] = field(default_factory=list)  # computed ones
    sources: list[Known] = field(default_factory=list)  # placeholders, to be read again
    gathers: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.choose(len(options))]

    def chance(self, percent: int) -> bool:
        """True in some `percent` of cases; shrinks to False."""
        return self.choose(100) >= 100 - percent

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        left = list(items)
        return [left.pop(self.choose(len(left))) for _ in range(len(left))]

    def name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def placeholder(self, shape: Sequence[int], dtype: str, constant: bool = False) -> Known:
        x = te.placeholder(shape, dtype=dtype, name=self.name("X"), constant=constant)
        known = Known(x, *_input_range(dtype))
        self.sources.append(known)
        return known

    def extents(self, rank: int, points: int) -> list[int]:
        out: list[int] = []
        for _ in range(rank):
            out.append(self.pick([n for n in EXTENTS if n <= points]))
            points //= out[-1]
        return out

    def add(self, shape: Sequence[int], fn: Any, bound: float, step: float, **attrs: Any) -> Known:
        known = Known(te.compute(shape, fn, name=self.name("T"), attrs=attrs), bound, step)
        self.tensors.append(known)
        return known


def _input_range(dtype: str) -> tuple[float, float]:
    return {"bool": (1.0, 1.0), "int32": (8.0, 1.0), "int64": (8.0, 1.0)}.get(dtype, (2.0, 0.25))


# ---- scalar expressions -------------------------------------------------------------------------


def _as(x: Known, dtype: str) -> Known:
    """The value in another dtype; what is not exact becomes a constant where that matters."""
    e: Expr = x.what
    if e.dtype == dtype:
        return x
    if not is_float_name(dtype) and is_float(e) and not x.exact:
        return Known(wrap(1, None) if dtype != "bool" else te.const(True, "bool"), 1, 1)
    if dtype == "bool":
        return Known(te.not_equal(e, te.const(0, e.dtype)), 1, 1)
    step = x.step if is_float_name(dtype) else 1.0
    return Known(te.cast(e, dtype), x.bound, step)


def is_float_name(dtype: str) -> bool:
    return dtype in FLOATS


def _small(x: Known, limit: float) -> Known:
    """The value kept within +-limit (or the power of two below)."""
    e: Expr = x.what
    limit = 2.0 ** np.floor(np.log2(limit))
    if x.bound <= limit or e.dtype == "bool":
        return x
    if is_int(e):
        return Known(e % 7, 6, 1)
    return Known(te.maximum(te.minimum(e, limit), -limit), limit, min(x.step, limit))


def _unary(b: _Builder, x: Known) -> Known:
    e: Expr = x.what
    if e.dtype == "bool":
        return Known(te.logical_not(e), 1, 1)
    if is_int(e):
        kind = b.pick(["abs", "floordiv", "mod", "negative"])
        if kind == "floordiv":
            return Known(e // b.pick([2, 3, 5]), x.bound, 1)
        if kind == "mod":
            c = b.pick([2, 3, 5])
            return Known(e % c, c, 1)
        return Known(te.abs(e) if kind == "abs" else -e, x.bound, 1)
    kind = b.pick(["relu", "abs", "leaky", "floor", "exp", "tanh", "sigmoid", "erf", "log", "sqrt"])
    match kind:
        case "relu":
            return Known(te.maximum(e, te.const(0, e.dtype)), x.bound, x.step)
        case "abs":
            return Known(te.abs(e), x.bound, x.step)
        case "leaky":
            return Known(te.select(e > 0, e, e * 0.5), x.bound, x.step / 2)
        case "floor":
            return Known(te.floor(e), x.bound + 1, 1) if x.exact else x
        case "exp":
            return Known(te.exp(_small(x, 4).what), 55, 0)
        case "log":
            return Known(te.log(te.abs(e) + 1), 1 + np.log(x.bound + 1), 0)
        case "sqrt":
            return Known(te.sqrt(te.abs(e) + 1), 1 + np.sqrt(x.bound + 1), 0)
        case _:
            return Known({"tanh": te.tanh, "sigmoid": te.sigmoid, "erf": te.erf}[kind](e), 1, 0)


def _binary(b: _Builder, x: Known, y: Known) -> Known:
    """Of two values of one dtype."""
    p, q = x.what, y.what
    step = min(x.step, y.step)
    if p.dtype == "bool":
        made = {"and": te.all, "or": te.any, "max": te.maximum, "min": te.minimum}
        return Known(made[b.pick(list(made))](p, q), 1, 1)
    kinds = ["add", "mul", "sub", "max", "min"] + ([] if is_int(p) else ["div"])
    match b.pick(kinds):
        case "add":
            return _small(Known(p + q, x.bound + y.bound, step), 4096)
        case "sub":
            return _small(Known(p - q, x.bound + y.bound, step), 4096)
        case "mul":
            x, y = _small(x, 64), _small(y, 64)
            return Known(x.what * y.what, x.bound * y.bound, x.step * y.step)
        case "div":
            return Known(p / (te.abs(_small(y, 8).what) + 1), x.bound, 0)
        case "max":
            return Known(te.maximum(p, q), max(x.bound, y.bound), step)
        case _:
            return Known(te.minimum(p, q), max(x.bound, y.bound), step)


def _join(b: _Builder, values: list[Known], dtype: str, axes: Axes) -> Known:
    """One value of `dtype` out of all of them."""
    out = _as(values[0], dtype)
    for v in values[1:]:
        out = _binary(b, out, _as(v, dtype))
    if b.chance(35):
        out = _unary(b, out)
    if axes and b.chance(15):
        var, extent = b.pick(axes)
        other = te.const(b.pick([0, 1]), dtype)
        cond = b.pick([var < extent // 2 + 1, te.equal(var % 2, 0), var >= extent // 2])
        out = Known(te.select(cond, out.what, other), max(1, out.bound), min(out.step, 1))
    return out


# ---- reads --------------------------------------------------------------------------------------


def _affine(b: _Builder, axes: Axes) -> tuple[Expr, int, int]:
    """An index expression and the interval of its values."""
    if not axes:
        return wrap(0), 0, 0
    var, n = b.pick(axes)
    kind = b.pick(["plain"] * 6 + ["shifted", "reversed", "strided", "window", "part", "const"])
    match kind:
        case "shifted":
            c = b.pick([1, -1, 2, -2])
            return var + c, c, n - 1 + c
        case "reversed":
            return n - 1 - var, 0, n - 1
        case "strided":
            s = b.pick([2, 3])
            return var * s, 0, (n - 1) * s
        case "window":
            other, m = b.pick(axes)
            s, d, c = b.pick([1, 2]), b.pick([1, 2, 3]), b.pick([0, -1])
            return var * s + other * d + c, c, (n - 1) * s + (m - 1) * d + c
        case "part":
            q = b.pick([2, 3])
            return (var // q, 0, (n - 1) // q) if b.chance(50) else (var % q, 0, min(n, q) - 1)
        case "const":
            c = b.pick([0, 1])
            return wrap(c), c, c
        case _:
            return var, 0, n - 1


def _fit(b: _Builder, index: tuple[Expr, int, int], n: int, guards: list[Expr]) -> Expr:
    """The index kept within [0, n): as it is, guarded by a condition, or wrapped around."""
    e, lo, hi = index
    if lo < 0 or hi >= n:
        if b.chance(30):
            return e % n
        guards += ([e >= 0] if lo < 0 else []) + ([e < n] if hi >= n else [])
    return e


def _load(b: _Builder, x: Known, indices: list[Expr], guards: list[Expr]) -> Known:
    value = x.what[tuple(indices)]
    if guards:
        outside = te.const(b.pick([0, 0, 1]), value.dtype)
        return Known(te.select(te.all(*guards), value, outside), max(1, x.bound), min(1, x.step))
    return Known(value, x.bound, x.step)


def _read(b: _Builder, axes: Axes, dtype: str, old: Sequence[Known]) -> Known:
    """A read of a tensor that exists, or of a new placeholder whose shape fits."""
    guards: list[Expr] = []
    if old and b.chance(60):
        x = b.pick(old)
        own = [_fit(b, _affine(b, axes), n, guards) for n in x.what.shape]
        return _load(b, x, own, guards)
    plain = b.chance(70)
    rank = b.pick([0, 1, 2, 2, 2, 3, 3, 4])
    if plain and axes:
        order = b.shuffled(axes)[: b.pick([2, 1, 3, 4, 2, 2])]
        found = [(var, 0, n - 1) for var, n in order]
    else:
        found = [_affine(b, axes) for _ in range(rank)]
    shape: list[int] = []
    for index in found:
        room = max(1, 20_000 // max(1, int(np.prod(shape))))
        shape.append(max(1, min(index[2] + 1, room)))
    gather = bool(shape) and b.chance(4)
    own = [_fit(b, i, n, guards) for i, n in zip(found[gather:], shape[gather:], strict=True)]
    if gather:  # the first index comes from a tensor
        where = b.placeholder([axes[0][1]] if axes else [1], b.pick(["int32", "int64"]))
        b.gathers[where.what.name] = shape[0]
        b.sources.remove(where)
        place = where.what[axes[0][0] if axes else 0]
        own.insert(0, te.minimum(te.maximum(place, 0), shape[0] - 1))
    return _load(b, b.placeholder(shape, dtype, constant=b.chance(30)), own, guards)


# ---- stages -------------------------------------------------------------------------------------


def _plain(b: _Builder) -> None:
    """Any number of axes, any reads, perhaps reduced over any of the axes."""
    rank = b.pick([2, 2, 3, 1, 0, 2, 3, 4, 5])
    shape = b.extents(rank, POINTS)
    left = max(2, POINTS // max(1, int(np.prod(shape))))
    inner = b.extents(b.pick([0, 0, 1, 1, 2, 3]), left)
    reduces = [te.reduce_axis(n, f"r{d}") for d, n in enumerate(inner)]
    dtype = b.pick(["float32"] * 8 + ["float64", "int32", "int64", "bool"])
    combiner = b.pick(["sum", "sum", "sum", "max", "min"])
    out: list[Known] = []

    def body(*axes: Expr) -> Expr:
        every = [*zip(axes, shape, strict=True), *zip(reduces, inner, strict=True)]
        every = b.shuffled(every)
        old = [*b.tensors[-3:], *b.sources[-2:]]
        source = dtype if b.chance(90) else "float32"
        reads = [_read(b, every, source, old) for _ in range(b.pick([1, 2, 2, 3]))]
        value = _join(b, reads, dtype, every)
        if not reduces:
            out.append(value)
            return value.what
        op = "max" if combiner == "sum" and dtype == "bool" else combiner
        n = int(np.prod(inner)) if op == "sum" else 1
        value = _small(value, 4096 / n) if dtype != "bool" else value
        out.append(Known(None, value.bound * n, value.step))
        return {"sum": te.sum, "max": te.max, "min": te.min}[op](value.what, axis=reduces)

    t = te.compute(shape, body, name=b.name("T"))
    b.tensors.append(Known(t, out[0].bound, out[0].step))


def _elementwise(b: _Builder) -> None:
    """A tail on the last tensor, with a bias, a residual or nothing."""
    x = b.tensors[-1] if b.tensors else b.placeholder(b.extents(2, POINTS), "float32")
    shape = x.what.shape
    peers = [t for t in b.tensors[:-1] if t.what.shape == shape]
    kind = b.pick(["unary", "bias", "residual"])
    out: list[Known] = []
    bias = b.placeholder(shape[-1:], x.what.dtype, b.chance(50)) if kind == "bias" else None

    def body(*i: Expr) -> Expr:
        value = Known(x.what[i], x.bound, x.step)
        if bias is not None:
            value = _binary(b, value, Known(bias.what[i[-1:]], bias.bound, bias.step))
        elif kind == "residual" and peers:
            y = b.pick(peers)
            value = _binary(b, value, _as(Known(y.what[i], y.bound, y.step), x.what.dtype))
        else:
            value = _unary(b, value)
        out.append(value)
        return value.what

    t = te.compute(shape, body, name=b.name("T"))
    b.tensors.append(Known(t, out[0].bound, out[0].step))


def _float_tensor(b: _Builder, rank: int) -> Known:
    """The last tensor if it is float and of this rank, else a new placeholder."""
    if b.tensors and b.tensors[-1].what.dtype in FLOATS and len(b.tensors[-1].what.shape) == rank:
        last = b.tensors[-1]
        if last.bound <= 64:
            return last
    return b.placeholder(b.extents(rank, 400), b.pick(["float32"] * 5 + ["float64"]))


def _matmul(b: _Builder) -> None:
    """C[i, j] = sum over k of A[i, k] B[k, j] (or B[j, k])."""
    a = _float_tensor(b, 2)
    n, k = a.what.shape
    m = b.pick([x for x in EXTENTS if x * n * k <= 3 * POINTS or x == 1])
    turned = b.chance(30)
    w = b.placeholder((m, k) if turned else (k, m), a.what.dtype, b.chance(50))
    r = te.reduce_axis(k, "k")

    def body(i: Expr, j: Expr) -> Expr:
        return te.sum(a.what[i, r] * (w.what[j, r] if turned else w.what[r, j]), axis=r)

    b.add((n, m), body, a.bound * w.bound * k, a.step * w.step)


def _conv(b: _Builder) -> None:
    """A padded, strided, dilated convolution with channels last; a stage pads."""
    x = _float_tensor(b, 3)
    h, w, ci = x.what.shape
    p, s, d = b.pick([1, 0, 2]), b.pick([1, 2]), b.pick([1, 1, 2])
    kh, kw = b.pick([3, 1, 2]), b.pick([3, 1])
    ho, wo = (h + 2 * p - d * (kh - 1) - 1) // s + 1, (w + 2 * p - d * (kw - 1) - 1) // s + 1
    if ho < 1 or wo < 1:
        return _elementwise(b)
    if p:
        inside = lambda i, j: te.all(i >= p, i < h + p, j >= p, j < w + p)  # noqa: E731
        pad = lambda i, j, c: te.select(inside(i, j), x.what[i - p, j - p, c], 0.0)  # noqa: E731
        x = b.add((h + 2 * p, w + 2 * p, ci), pad, x.bound, x.step)
    co = b.pick([n for n in EXTENTS if n * ho * wo * kh * kw * ci <= 4 * POINTS or n == 1])
    weights = b.placeholder((kh, kw, ci, co), x.what.dtype, b.chance(70))
    rh, rw, rc = te.reduce_axis(kh, "rh"), te.reduce_axis(kw, "rw"), te.reduce_axis(ci, "rc")

    def body(i: Expr, j: Expr, c: Expr) -> Expr:
        value = x.what[i * s + rh * d, j * s + rw * d, rc]
        return te.sum(value * weights.what[rh, rw, rc, c], axis=[rh, rw, rc])

    bound = x.bound * weights.bound * kh * kw * ci
    b.add((ho, wo, co), body, bound, x.step * weights.step)


def _softmax(b: _Builder) -> None:
    """exp(x - max) / sum: two reductions and a stage with two readers."""
    x = _float_tensor(b, 2)
    n, m = x.what.shape
    k, k2 = te.reduce_axis(m, "k"), te.reduce_axis(m, "k2")
    top = b.add((n,), lambda i: te.max(x.what[i, k], axis=k), x.bound, x.step)
    ex = b.add((n, m), lambda i, j: te.exp(x.what[i, j] - top.what[i]), 1.0, 0)
    total = b.add((n,), lambda i: te.sum(ex.what[i, k2], axis=k2), m, 0)
    b.add((n, m), lambda i, j: ex.what[i, j] / total.what[i], 1.0, 0)


_STAGES = (_plain, _plain, _plain, _elementwise, _elementwise, _matmul, _conv, _softmax)


def random_case(choose: Choose, max_stages: int = 5) -> Case:
    """A DAG of up to `max_stages` computed stages."""
    b = _Builder(choose)
    wanted = 1 + choose(max_stages)
    while len(b.tensors) < wanted:
        stage = b.pick(_STAGES)
        chain = {_softmax: 4, _conv: 2}.get(stage, 1)
        (stage if len(b.tensors) + chain <= max_stages else _plain)(b)
    read = {id(s) for t in b.tensors for s in t.what.inputs}
    outputs = [t for t in b.tensors if id(t.what) not in read or (len(read) > 1 and b.chance(10))]
    dag = te.ComputeDAG([t.what for t in outputs])
    names = dag.output_names
    return Case(
        dag,
        {n: t.bound for n, t in zip(names, outputs, strict=True)},
        {n: t.exact for n, t in zip(names, outputs, strict=True)},
        {p.name: b.gathers[p.name] for p in dag.inputs if p.name in b.gathers},
    )


@st.composite
def dags(draw: Callable[[st.SearchStrategy[int]], int], max_stages: int = 5) -> Case:
    """The strategy: cases that hypothesis shrinks."""
    return random_case(lambda n: draw(st.integers(0, n - 1)), max_stages)


def seeded_dag(rng: np.random.Generator, max_stages: int = 5) -> Case:
    """A case of a seeded stream."""
    return random_case(lambda n: int(rng.integers(n)), max_stages)
