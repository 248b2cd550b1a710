"""Tensor expressions: the definition of a computation, without a schedule.

In: Python functions of index variables. Out: `Tensor`s whose `op` is a frozen `Placeholder` or
`ComputeOp`; `te.dag.ComputeDAG` sorts the operations of several tensors. A reduction must be the
whole body of a compute.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ansorlite.errors import ModelError
from ansorlite.ir.deep import MAX_DEPTH, MAX_SIZE, Piece
from ansorlite.ir.expr import Const, Expr, Load, Op, Var, is_int, widened, wrap
from ansorlite.ir.extremum import maximum
from ansorlite.ir.known import ANYTHING, DTYPE_RANGES, Known, end, reads
from ansorlite.ir.literals import WIDE
from ansorlite.ir.logic import select
from ansorlite.ir.ranges import Interval
from ansorlite.ir.traverse import loads, rename_loads, transform, walk

Combiner = Literal["sum", "max", "min"]
# Schedules name the holes of stage C: `C.i` for axis i, and `C.` with one of these names.
ANNOTATIONS = ("parallel", "lanes", "unroll", "prefetch", "stream")
DERIVED_ENDINGS = (".cache", ".rf", ".packed", ".turned", ".f64")  # suffixes of derived stages
MAX_ELEMENTS = 1 << 44  # elements of a tensor; byte offsets then fit an int64
DTYPES = ("float32", "float64", "int32", "int64", "bool", *WIDE)


@dataclass(frozen=True)
class Axis:
    """A named range [0, extent); the extent is a `Const`, or depends on holes in a schedule."""

    name: str
    extent: Expr

    @property
    def var(self) -> Var:
        """The index variable of the axis."""
        return Var(self.name, "axis")


@dataclass(frozen=True)
class Placeholder:
    """An input tensor. `constant`: the values are known before the first run (weights)."""

    name: str
    extents: tuple[Expr, ...]
    dtype: str
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as ints, as numpy takes them; ModelError where one depends on holes."""
        return _ints(self.name, self.extents)

    def __str__(self) -> str:
        dims = ", ".join(map(str, self.extents))
        kind = "constant" if self.constant else "placeholder"
        return f"{self.name} = {kind}([{dims}], {self.dtype})"


@dataclass(frozen=True)
class ComputeOp:
    """`name[axes] = combiner(body over reduce_axes)`; without combiner `name[axes] = body`.

    `attrs` are sorted (name, value) pairs, see `compute`.
    """

    name: str
    axes: tuple[Axis, ...]
    reduce_axes: tuple[Axis, ...]
    combiner: Combiner | None
    body: Expr
    attrs: tuple[tuple[str, Any], ...] = ()

    @property
    def dtype(self) -> str:
        """dtype of the elements."""
        return self.body.dtype

    @property
    def extents(self) -> tuple[Expr, ...]:
        """One expression a dimension; of stages that schedules derive, maybe over holes."""
        return tuple(a.extent for a in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents as ints, as numpy takes them; ModelError where one depends on holes."""
        return _ints(self.name, self.extents)

    def attr(self, name: str, default: Any = None) -> Any:
        """The value of an attribute, or `default`."""
        return dict(self.attrs).get(name, default)

    def __str__(self) -> str:
        body = str(self.body)
        if self.combiner:
            over = ", ".join(f"{a.name}<{a.extent}" for a in self.reduce_axes)
            body = f"{self.combiner}({body}; {over})"
        dims = ", ".join(f"{a.name}<{a.extent}" for a in self.axes)
        attrs = "".join(f"  # {k}={v}" for k, v in self.attrs)
        return f"{self.name}[{dims}] = {body}{attrs}"


Operation = Placeholder | ComputeOp


class Extent(int):
    """A known extent: an int, with the `value` that the expression of a known extent has, too."""

    __slots__ = ()

    @property
    def value(self) -> int:
        return int(self)


def _ints(name: str, extents: tuple[Expr, ...]) -> tuple[int, ...]:
    found = tuple(Extent(e.value) for e in extents if isinstance(e, Const))
    if len(found) < len(extents):
        raise ModelError(f"the shape of {name} depends on holes: {', '.join(map(str, extents))}")
    return found


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor of a computation; `t[i, j]` with one index per dimension is an element access.

    `inputs` are the tensors that `op` reads: a load `#d` in the body reads `inputs[d]`. `shape` is
    a tuple of ints. Indexing with a wrong number of indices, or with an index that is not an
    integer, raises ModelError.
    """

    op: Operation
    inputs: tuple["Tensor", ...] = ()
    shape: tuple[int, ...] = field(init=False)
    # Interval of integer elements, computed on demand.
    values: Interval | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", self.op.shape)

    @property
    def name(self) -> str:
        """Name of the operation; a ComputeDAG makes names unique."""
        return self.op.name

    @property
    def dtype(self) -> str:
        """dtype of the elements."""
        return self.op.dtype

    def __getitem__(self, indices: Any) -> Expr:
        idx = indices if isinstance(indices, tuple) else (indices,)
        if len(idx) != len(self.shape):
            raise ModelError(
                f"{self.name} has {len(self.shape)} dimensions, indexed with {len(idx)} indices"
            )
        return widened(TensorLoad(self, tuple(wrap(i) for i in idx)))

    def __str__(self) -> str:
        return str(self.op)


_SERIAL = itertools.count()


class TensorLoad(Load):
    """A load in a compute under construction; keeps a reference to the tensor."""

    __slots__ = ("serial", "source")

    def __init__(self, source: Tensor, indices: tuple[Expr, ...]) -> None:
        for i in indices:
            if i.dtype not in ("int32", "int64"):
                raise ModelError(f"index {i} of {source.name} is {i.dtype}, not an integer")
        super().__init__(source.name, indices, source.dtype)
        self.source, self.serial = source, next(_SERIAL)
        # Two tensors may have the same name until the DAG makes names unique, so `id` tells them
        # apart.
        self._seal((self.tensor, indices, id(source)), self.dtype, indices)

    def pieces(self) -> list[Piece]:
        return [*super().pieces(), f"@{id(self.source)}"]

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Load, (self.tensor, self.indices, self.dtype)


class Reduction(Expr):
    """The value of `te.sum`, `te.max` and `te.min`; legal only as the whole body of a compute."""

    __slots__ = ("axes", "combiner", "value")

    def __init__(self, combiner: Combiner, value: Expr, axes: tuple[Axis, ...]) -> None:
        self.combiner, self.value, self.axes = combiner, value, axes
        self._seal((combiner, value), value.dtype, (value,))

    def pieces(self) -> list[Piece]:
        return [f"{self.combiner}(", self.value, ")"]

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return Reduction, (self.combiner, self.value, self.axes)


def _check_shape(shape: Sequence[int], name: str) -> tuple[Expr, ...]:
    """The extents as constants; ModelError unless the shape has positive ints and fits memory."""
    if isinstance(shape, str | Expr) or not hasattr(shape, "__iter__"):
        raise ModelError(f"the shape of {name} is {shape!r}: write a tuple of extents")
    for d, n in enumerate(shape):
        if isinstance(n, bool) or not hasattr(n, "__index__") or int(n) < 1:
            raise ModelError(f"dimension {d} of {name} is {n!r}: it must be a positive integer")
    if math.prod(int(n) for n in shape) > MAX_ELEMENTS:
        raise ModelError(
            f"{name} has {math.prod(int(n) for n in shape)} elements, more than {MAX_ELEMENTS}: "
            "no memory can hold them"
        )
    return tuple(Const(int(n)) for n in shape)


def _check_name(name: str) -> str:
    """The name itself; ModelError if it is empty, has a reserved character or a reserved suffix."""
    if not name or any(c in name for c in " []()@:,#>"):
        raise ModelError(f"{name!r} is no valid tensor name: use letters, digits, '_', '.'")
    if name.endswith(DERIVED_ENDINGS):
        raise ModelError(
            f"{name!r} is no valid tensor name: {', '.join(DERIVED_ENDINGS)} are reserved "
            "endings of stages that schedules make"
        )
    return name


def placeholder(
    shape: Sequence[int], dtype: str = "float32", name: str = "X", constant: bool = False
) -> Tensor:
    """An input tensor. Example: `te.placeholder((64, 32), name="A")`.

    `constant=True` promises that the values are known before the first run (weights), so that their
    layout may be changed in advance. Dtypes: float32, float64, int32, int64, bool; and int8,
    uint8, int16, uint16, uint32, float16, whose elements are read as int32, int64 (uint32) or
    float32. Raises ModelError for any other dtype and for a bad shape or name.
    """
    if dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} of {name} is none of {', '.join(DTYPES)}")
    return Tensor(Placeholder(_check_name(name), _check_shape(shape, name), dtype, constant))


class ReduceAxis(Var):
    """A reduction axis; as an expression it is its own index."""

    __slots__ = ("extent",)

    def __init__(self, name: str, extent: Expr) -> None:
        super().__init__(name, "axis")
        self.extent = extent

    def made_of(self) -> tuple[Any, tuple[Any, ...]]:
        return ReduceAxis, (self.name, self.extent)


def reduce_axis(extent: int, name: str = "k") -> ReduceAxis:
    """An axis to reduce over; in a compute the axis stands for its index variable.

    Example: `k = te.reduce_axis(32, "k")`. Raises ModelError for a bad extent or a reserved name.
    """
    if name in ANNOTATIONS:
        raise ModelError(f"{name!r} is a reserved name of loop annotations: rename the axis")
    return ReduceAxis(_check_name(name), _check_shape((extent,), f"reduce axis {name}")[0])


def reduction(combiner: Combiner, value: Any, axis: Any) -> Expr:
    """The reduction of `value` over one reduce axis or a sequence of reduce axes."""
    given = (axis,) if isinstance(axis, Expr) else tuple(axis)
    if not given or not all(isinstance(a, ReduceAxis) for a in given):
        raise ModelError(f"te.{combiner} needs reduce axes made by te.reduce_axis, got {axis!r}")
    axes = tuple(Axis(a.name, a.extent) for a in given)
    expr = widened(wrap(value))
    if isinstance(expr, Reduction):
        raise ModelError("reductions do not nest: give all axes to one te.sum/max/min")
    if combiner == "sum" and expr.dtype == "bool":
        raise ModelError("te.sum of booleans: cast them first")
    return Reduction(combiner, expr, axes)


def _axis_names(fn: Callable[..., Any], n: int, taken: set[str]) -> list[str]:
    """`n` unique axis names from the parameters of `fn`; `*i` gives i0, i1, ..."""
    if not callable(fn):
        raise ModelError(f"te.compute takes a function of the indices, got {fn!r}")
    params = list(inspect.signature(fn).parameters.values())
    names = [p.name for p in params if p.kind != p.VAR_POSITIONAL]
    if len(names) < n and params and params[-1].kind == params[-1].VAR_POSITIONAL:
        names += [f"i{d}" for d in range(len(names), n)]
    if len(names) != n:
        raise ModelError(f"the lambda takes {len(names)} indices, the shape has {n} dimensions")
    out: list[str] = []
    for name in names:
        unique, k = name.strip("_") or "i", 1
        while unique in taken or unique in out:
            unique, k = f"{name}_{k}", k + 1
        out.append(unique)
    return out


def compute(
    shape: Sequence[int],
    fn: Callable[..., Any],
    name: str = "compute",
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """The tensor of `shape` whose element at (i, j, ...) is `fn(i, j, ...)`.

    Example: `te.compute((64,), lambda i: A[i] + 1.0, "B")`. The parameter names of `fn` become the
    axis names. Raises ModelError for a bad shape, name or function, for an expression that is too
    deep or too large, and for an index that may lie outside its tensor.

    `attrs` are hints for the sketch rules, each a tuple of axis names: `simplify_const_indices`
    (axes to unroll because a constant tensor is indexed by these axes, as in Winograd transforms),
    `no_split_at_inner` (axes not split at the innermost level), `always_unroll_inner` (axes whose
    innermost loop is unrolled, so that conditions on the axis become constants and zero terms
    vanish).
    """
    extents = _check_shape(shape, _check_name(name))
    names = _axis_names(fn, len(extents), set(ANNOTATIONS))
    axes = tuple(Axis(a, e) for a, e in zip(names, extents, strict=True))
    value = fn(*(a.var for a in axes))
    body = wrap(value)
    reduce_axes: tuple[Axis, ...] = ()
    combiner: Combiner | None = None
    if isinstance(body, Reduction):
        combiner, reduce_axes, body = body.combiner, body.axes, body.value
    _check_size(body, name)
    used = {a.name for a in axes}
    for a in reduce_axes:
        if a.name in used:
            raise ModelError(f"{name}: axis name {a.name} is used twice: rename the reduce axis")
        used.add(a.name)
    plain, sources = _collect(body, name)
    if body.free - used:
        raise ModelError(f"{name} uses {', '.join(sorted(body.free - used))}, not among its axes")
    wrong = _outside(name, plain, axes + reduce_axes, sources)
    if wrong and _outside(name, plain := _in_turn(plain), axes + reduce_axes, sources):
        raise ModelError(wrong)
    known = tuple(sorted((attrs or {}).items()))
    return Tensor(ComputeOp(name, axes, reduce_axes, combiner, plain, known), sources)


def _check_size(body: Expr, name: str) -> None:
    """ModelError if an expression is too deep or too large to compile."""
    if body.depth > MAX_DEPTH:
        raise ModelError(
            f"{name} is an expression {body.depth} operations deep, more than {MAX_DEPTH}: compute "
            "a part of the expression as a separate tensor"
        )
    if body.size > MAX_SIZE:
        raise ModelError(
            f"{name} has {body.size} operations when written out, more than {MAX_SIZE}: compute "
            "the repeated part as a separate tensor"
        )


def _outside(name: str, body: Expr, axes: Sequence[Axis], sources: Sequence[Tensor]) -> str | None:
    """The reason why an index may lie outside its tensor; None if all indices are proven inside."""
    tensors = {f"#{d}": t for d, t in enumerate(sources)}
    known = Known(_ends(axes), lambda x: _values(tensors[x.tensor]))
    texts = {key: t.name for key, t in tensors.items()}
    for load, here in reads(body, known):
        source = tensors[load.tensor]
        for e in (x for i in load.indices for x in walk(i) if isinstance(x, Op)):
            divides = e.name in ("floordiv", "ceildiv", "mod")
            if divides and not isinstance(e.args[1], Const) and not here.positive(e.args[1]):
                return (
                    f"{name} reads {source.name} at {rename_loads(e, texts)}: the divisor may be 0 "
                    "or less; keep it positive by te.maximum(.., 1)"
                )
        for d, (index, n) in enumerate(zip(load.indices, source.shape, strict=True)):
            found = here.index(index, n)
            if found.kind != "inside":
                text = rename_loads(index, texts)
                return (
                    f"{name} reads {source.name} from {end(found.low)} to {end(found.high)} in "
                    f"dimension {d} of extent {n} (index {text}): clamp the index by te.minimum "
                    "and te.maximum, or guard the read by te.select"
                )
    return None


def _ends(axes: Sequence[Axis]) -> dict[str, Interval]:
    """Interval of each axis variable."""
    return {a.name: (0, int(a.extent.value) - 1) for a in axes if isinstance(a.extent, Const)}


def _values(t: Tensor) -> Interval:
    """Interval of the integers that a tensor may hold; for a compute, the interval of its body."""
    if t.values is None:
        op, sources = t.op, {f"#{d}": s for d, s in enumerate(t.inputs)}
        found = DTYPE_RANGES.get(t.dtype, ANYTHING)
        if isinstance(op, ComputeOp) and is_int(op.body) and op.combiner != "sum":
            known = Known(_ends(op.axes + op.reduce_axes), lambda x: _values(sources[x.tensor]))
            found = known.interval(op.body)
        object.__setattr__(t, "values", found)
    assert t.values is not None
    return t.values


def _in_turn(e: Expr) -> Expr:
    """Short-circuit evaluation of conditions that read a tensor: `all(a, t[i])` tests a, then t[i].

    All operands of `and` and `or` are evaluated, but only one branch of a select is.
    """
    memo: dict[Expr, Expr] = {}

    def leaf(x: Expr) -> Expr | None:
        if not isinstance(x, Op) or x.name not in ("and", "or") or not loads(x):
            return None
        *parts, value = (transform(a, leaf, memo) for a in x.args)
        for part in reversed(parts):
            if x.name == "and":
                value = select(part, value, Const(False, "bool"))
            else:
                value = select(part, Const(True, "bool"), value)
        return value

    return transform(e, leaf, memo)


def _collect(body: Expr, name: str) -> tuple[Expr, tuple[Tensor, ...]]:
    """The body with tensor loads replaced by loads `#d`, and the distinct tensors read, in order d.

    Tensors are numbered in the order of their first indexing (`serial`), because the normal form of
    integer sums does not keep the written order and the workload key must not depend on names.
    """
    read = sorted((e for e in walk(body) if isinstance(e, TensorLoad)), key=lambda e: e.serial)
    sources = list({id(e.source): e.source for e in read}.values())
    number = {id(s): d for d, s in enumerate(sources)}

    def leaf(e: Expr) -> Expr | None:
        if isinstance(e, Reduction):
            raise ModelError(f"{name}: a reduction must be the whole right-hand side")
        if isinstance(e, TensorLoad):
            idx = tuple(transform(i, leaf, memo) for i in e.indices)
            return Load(f"#{number[id(e.source)]}", idx, e.dtype)
        return None

    memo: dict[Expr, Expr] = {}
    return transform(body, leaf, memo), tuple(sources)


def elementwise(x: Tensor, fn: Callable[[Expr], Expr], name: str) -> Tensor:
    """`fn` applied to every element of `x`. Example: `te.elementwise(x, te.exp, "y")`."""
    return compute(x.shape, lambda *i: fn(x[i]), name)


def relu(x: Tensor, name: str | None = None) -> Tensor:
    """Element-wise max(x, 0)."""
    return elementwise(x, lambda v: maximum(v, Const(0, v.dtype)), name or f"{x.name}.relu")
