"""`Op`: one operator, an entry of `table.OPERATORS`.

Below: the signatures of an entry's functions, their defaults, and helpers that entries of several
topics use. Functions get the node's attributes, and types, arrays or tensors of its operands in
order. `graph.ops` says how to add an operator.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from ansorlite.graph.types import Array, Attr, Attrs, TensorType, integer, ints
from ansorlite.ir.expr import Expr
from ansorlite.te.tensor import Tensor

Types = tuple[TensorType, ...]
Arrays = tuple[Any, ...]
Shape = tuple[int, ...]
Perm = tuple[int, ...]  # an order of axes, as numpy.transpose takes it
Index = tuple[Any, ...]

ShapeFn = Callable[[Attrs, Types], TensorType]
Meaning = Callable[[Attrs, Arrays], Array]
ElementFn = Callable[[Attrs, Sequence[Expr]], Expr]
TensorFn = Callable[[Attrs, Sequence[Tensor]], Tensor]
Views = Callable[[Attrs, Types], tuple[tuple[Shape, ...], ...]]
Forms = Callable[[Attrs, Types], tuple[TensorFn, ...]]
Transposed = Callable[[Sequence[Tensor], Sequence[Perm | None], Perm | None], Tensor]
Refine = Callable[[Attrs, Sequence[Array | None]], Attrs]
Work = Callable[[Attrs, Types, TensorType], int]
Indexed = Callable[[Attrs, Types], tuple[tuple[int, int, int], ...]]

Kind = Literal["source", "elementwise", "anchor", "injective", "view", "loop"]
Trait = Literal[
    "commutative",
    "reads_once",
    "rounded_sum",
    "not_negative",
    "keeps_not_negative",
    "integer_sum",
    "integer_product",
    "widens",
    "dequantizes",
    "reads_windows",
    "scalars_apart",
]


class Orders(NamedTuple):
    """How operands lie in memory: each value v is stored as transpose(v, perm).

    `operands` has the perm of each operand. `common` is the perm that moves the fewest elements if
    all operands of the result's rank must lie in the same order.
    """

    operands: tuple[Perm, ...]
    common: Perm


class Placed(NamedTuple):
    """An operator on operands that are stored as transpose(v, perm), `operands` perm by perm.

    The result is stored by the perm `result`; `attrs` are the attributes that change.
    """

    operands: tuple[Perm, ...]
    result: Perm
    attrs: Mapping[str, Attr] = {}


Layout = Callable[[Attrs, Types, Orders], Placed | None]


def no_error(weights: Array) -> float:
    return 0.0


@dataclass(frozen=True)
class Form:
    """Another way to compute a result, which may lose digits.

    `error` of the weights is what the largest error of a result is expected to be, in units of the
    largest result. With `bf16` numbers are rounded to bfloat16 on the way. With `matrices` operands
    are in the first of the operator's `views`, else in the shapes of the graph.
    """

    tensor: TensorFn
    error: Callable[[Array], float] = no_error
    bf16: bool = False
    matrices: bool = False

    def __call__(self, attrs: Attrs, xs: Sequence[Tensor]) -> Tensor:
        return self.tensor(attrs, xs)


# ---- defaults of an entry -----------------------------------------------------------------------


def as_they_are(attrs: Attrs, types: Types) -> tuple[tuple[Shape, ...], ...]:
    """The operands in the shapes of the graph; scalars as one element."""
    return (tuple(t.shape or (1,) for t in types),)


def no_other_form(attrs: Attrs, types: Types) -> tuple[TensorFn, ...]:
    return ()


def in_graph_order(attrs: Attrs, types: Types, orders: Orders) -> Placed | None:
    """Operands and result in the order of axes that the graph declares."""
    return None


def never(attrs: Attrs, types: Types, result: TensorType) -> bool:
    return False


def unchanged(attrs: Attrs, known: Sequence[Array | None]) -> Attrs:
    return attrs


def each_element(attrs: Attrs, types: Types, result: TensorType) -> int:
    """One operation for each element of the operands and of the result."""
    return result.size + sum(t.size for t in types)


@dataclass(frozen=True)
class Op:
    """One operator. All have one result; `arity` bounds the number of operands.

    Every operator:

    - `kind`: how partition treats the operator. "elementwise". "anchor": a kernel of its own, which
      element-wise readers join. "injective": each result element is one operand element. "view":
      no kernel, another name for the same elements, or for some that lie side by side. "loop": the
      kernels of the attribute `body`, again and again. "source": rewritten by the passes.
    - `shape`: the type of the result; raises ModelError for operands that do not fit.
    - `meaning`: the result in numpy, the reference of passes and kernels. Sums accumulate in
      float64 and are rounded once.
    - `attrs`: the names of the attributes; all are required.

    Kernels ("elementwise" has `element`, "anchor" and "injective" have `tensor`):

    - `element`: the expression of one element.
    - `tensor`: the expression of all elements.
    - `views`: the shapes in which `tensor` reads its operands, best first; each is a row-major view
      of the graph's value.
    - `forms`: other ways to compute the result, among which the search decides by measuring.
    - `in_float32`: the same in arithmetic of float32, a form where precision is to be chosen.
    - `transposed`: `tensor` for operands behind transposes: tensors before the transpose, the perm
      of each (or None), and the perm in which the result is written (or None).
    - `names`: of the operands' placeholders, "data" by default. The last name of an element-wise
      operator is for a constant operand; all its other operands are "other".
    - `refine`: attributes for the kernel, given the arrays of constant operands.
    - `combiner`: "sum", "max" or "min" of a reduction over the attribute `axes`.

    Passes:

    - `layout`: the orders of axes in which the operator runs; None: in the graph's order.
    - `identity`: whether the result is the first operand.
    - `scaled_by`: (axis of the result, axis of operand 1) if a factor along the one may be
      multiplied into the other.
    - `indices`: the operands that hold positions, each with the axis that it indexes and the
      axis's extent; a module checks the positions.
    - `traits`: facts that rewrites and fusion use:
        commutative         a op b is b op a
        reads_once          no element of the operand is read twice: its producers may join
        rounded_sum         a sum with rounding errors, never -0.0
        not_negative        never below 0.0, never -0.0 (NaN is possible)
        keeps_not_negative  not below 0.0 where no operand is
        integer_sum         of integers, the expression is a polynomial: the numbers of terms add
        integer_product     likewise: the numbers of terms multiply
        widens              as cheap as reading: whatever reads it may compute it again
        scalars_apart       constants of one element are operands of the kernel, no literals
        reads_windows       pools: elements that are cheap to convert may be converted again
        dequantizes         the result has more bytes than what is read: left to the reader

    Limits (`graph.limits`):

    - `work`: element operations of one evaluation.
    - `padded`: the type of the data with padding.
    - `free_window`: the file gives the window's size as a number that no stored data bounds.
    """

    name: str
    kind: Kind
    shape: ShapeFn
    meaning: Meaning
    attrs: tuple[str, ...] = ()
    arity: tuple[int, int] = (1, 1)
    element: ElementFn | None = None
    tensor: TensorFn | None = None
    views: Views = as_they_are
    forms: Forms = no_other_form
    in_float32: TensorFn | None = None
    transposed: Transposed | None = None
    names: tuple[str, ...] = ()
    refine: Refine = unchanged
    combiner: Literal["", "sum", "max", "min"] = ""
    layout: Layout = in_graph_order
    identity: Callable[[Attrs, Types, TensorType], bool] = never
    scaled_by: Callable[[Attrs, Types], tuple[int, int] | None] | None = None
    indices: Indexed | None = None
    traits: tuple[Trait, ...] = ()
    work: Work = each_element
    padded: Callable[[Attrs, TensorType], TensorType] | None = None
    free_window: bool = False


# ---- parts of entries ---------------------------------------------------------------------------


def follows(
    axis: Sequence[str] = (), axes: Sequence[str] = (), per_axis: Sequence[str] = ()
) -> Layout:
    """A layout for operators along axes of operand 0, which may lie in any order.

    The attributes `axis` name one axis, `axes` several, `per_axis` have an entry for each axis. The
    other operands stay in the graph's order, and the result lies as operand 0.
    """

    def layout(attrs: Attrs, types: Types, orders: Orders) -> Placed:
        perm = orders.operands[0]
        moved: dict[str, Attr] = {k: perm.index(integer(attrs, k)) for k in axis}
        moved |= {k: tuple(sorted(perm.index(a) for a in ints(attrs, k))) for k in axes}
        for k in per_axis:
            rows: Any = attrs[k]
            moved[k] = tuple(rows[p] for p in perm)
        plain = (tuple(range(t.rank)) for t in types[1:])
        return Placed((perm, *plain), perm, moved)

    return layout


def same_shape(attrs: Attrs, types: Types, result: TensorType) -> bool:
    """An `identity`: for operators that do nothing where the shape stays."""
    return types[0].shape == result.shape


def times(cost: int) -> Work:
    """`cost` operations for each element of the operands and of the result."""
    return lambda attrs, types, result: each_element(attrs, types, result) * cost


def wide(x: Array) -> Any:
    """Floating-point arrays as float64; integers stay."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def named(names: Sequence[str], fn: Callable[..., Expr]) -> Callable[..., Expr]:
    """`fn` with `names` as its parameters: `te.compute` takes the names of the axes from them.

    Without names `fn` stays as it is.
    """
    if not names:
        return fn
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    setattr(fn, "__signature__", signature)  # noqa: B010 (a function has no such static attribute)
    return fn
