"""The operator set of graphs: one table, one entry per operator.

An entry has the kind (what partition may do with it), shape inference, the meaning in numpy and the
tensor expression. Operators of kind "source" only occur before the passes, which rewrite them into
the others. All operators have one result. Convolutions and pools carry `layout`: networks arrive
channels first (n, c, spatial), passes make them channels last (n, spatial, c).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ansorlite import te
from ansorlite.graph import expressions as ex
from ansorlite.graph import meaning, shapes
from ansorlite.graph.types import Array, Attrs, TensorType

Kind = Literal["source", "elementwise", "anchor", "injective", "view"]
Views = Callable[[Attrs, shapes.Types], tuple[tuple[ex.Shape, ...], ...]]


@dataclass(frozen=True)
class Operator:
    """One operator; `scalar` for element-wise kinds, `tensor` for anchors and injective ones.

    `forms` are other ways to compute it, among which the search decides by measuring.
    """

    kind: Kind
    infer: Callable[[Attrs, shapes.Types], TensorType]
    meaning: Callable[[Attrs, tuple[Any, ...]], Array]
    scalar: ex.ScalarFn | None = None
    tensor: ex.TensorFn | None = None
    views: Views = ex.as_they_are
    forms: ex.Forms = ex.no_other
    arity: tuple[int, int] = (1, 1)
    attrs: tuple[str, ...] = ()


def _unary(meaning: Callable[..., Array], scalar: ex.ScalarFn, *attrs: str) -> Operator:
    return Operator("elementwise", shapes.elementwise, meaning, scalar=scalar, attrs=attrs)


def _numpy(fn: Callable[..., Any]) -> Callable[[Attrs, tuple[Any, ...]], Array]:
    def call(attrs: Attrs, xs: tuple[Any, ...]) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*xs))

    return call


def _binary(meaning: Callable[..., Array], scalar: ex.ScalarFn) -> Operator:
    return Operator("elementwise", shapes.elementwise, meaning, scalar=scalar, arity=(2, 2))


def _compare(meaning: Callable[..., Any], scalar: ex.ScalarFn) -> Operator:
    return Operator("elementwise", shapes.compare, _numpy(meaning), scalar=scalar, arity=(2, 2))


def _logic(meaning: Callable[..., Any], scalar: ex.ScalarFn, count: int) -> Operator:
    return Operator(
        "elementwise", shapes.logic, _numpy(meaning), scalar=scalar, arity=(count, count)
    )


def _reduce(kind: Kind, meaning: Callable[..., Array], tensor: ex.TensorFn | None) -> Operator:
    return Operator(kind, shapes.reduce, meaning, tensor=tensor, attrs=("axes", "keepdims"))


_CONV = ("strides", "pads", "dilations", "groups", "layout")
_POOL = ("kernel", "strides", "pads", "dilations", "ceil_mode", "layout")
_LRN = ("axis", "size", "alpha", "beta", "bias")

OPERATORS: dict[str, Operator] = {
    # element by element; operands broadcast as in numpy
    "relu": _unary(meaning.relu, ex.relu),
    "leaky_relu": _unary(meaning.leaky_relu, ex.leaky_relu, "alpha"),
    "clip": _unary(meaning.clip, ex.clip, "min", "max"),
    "sigmoid": _unary(meaning.sigmoid, ex.unary(te.sigmoid)),
    "tanh": _unary(_numpy(np.tanh), ex.unary(te.tanh)),
    "exp": _unary(_numpy(np.exp), ex.unary(te.exp)),
    "log": _unary(_numpy(np.log), ex.unary(te.log)),
    "sqrt": _unary(_numpy(np.sqrt), ex.unary(te.sqrt)),
    "erf": _unary(meaning.erf, ex.unary(te.erf)),
    "neg": _unary(_numpy(np.negative), ex.unary(lambda x: -x)),
    "abs": _unary(_numpy(np.abs), ex.unary(te.abs)),
    "floor": _unary(_numpy(np.floor), ex.unary(te.floor)),
    "ceil": _unary(_numpy(np.ceil), ex.ceil),
    "round": _unary(meaning.round_even, ex.round_even),
    "sign": _unary(_numpy(np.sign), ex.sign),
    "add": _binary(_numpy(np.add), ex.binary(lambda a, b: a + b)),
    "sub": _binary(_numpy(np.subtract), ex.binary(lambda a, b: a - b)),
    "mul": _binary(_numpy(np.multiply), ex.binary(lambda a, b: a * b)),
    "div": _binary(meaning.divide, ex.divide),
    "mod": Operator(
        "elementwise",
        shapes.integers,
        meaning.modulo,
        scalar=ex.modulo,
        arity=(2, 2),
        attrs=("fmod",),
    ),
    "pow": _binary(meaning.power, ex.power),
    "maximum": _binary(_numpy(np.maximum), ex.binary(te.maximum)),
    "minimum": _binary(_numpy(np.minimum), ex.binary(te.minimum)),
    "equal": _compare(np.equal, ex.binary(te.equal)),
    "less": _compare(np.less, ex.binary(lambda a, b: a < b)),
    "less_equal": _compare(np.less_equal, ex.binary(lambda a, b: a <= b)),
    "logical_and": _logic(np.logical_and, ex.binary(te.all), 2),
    "logical_or": _logic(np.logical_or, ex.binary(te.any), 2),
    "logical_not": _logic(np.logical_not, ex.unary(te.logical_not), 1),
    "where": Operator("elementwise", shapes.where, meaning.where, scalar=ex.where, arity=(3, 3)),
    "cast": Operator("elementwise", shapes.cast, meaning.cast, scalar=ex.cast, attrs=("dtype",)),
    # anchors: a group of its own, element-wise consumers fuse into it
    "conv": Operator(
        "anchor",
        shapes.conv,
        meaning.conv,
        tensor=ex.conv,
        views=ex.conv_views,
        forms=ex.conv_forms,
        arity=(2, 3),
        attrs=_CONV,
    ),
    "conv_transpose": Operator(
        "anchor",
        shapes.conv_transpose,
        meaning.conv_transpose,
        tensor=ex.conv_transpose,
        arity=(2, 2),
        attrs=("strides", "pads", "layout"),
    ),
    "matmul": Operator(
        "anchor",
        shapes.matmul,
        meaning.matmul,
        tensor=ex.matmul,
        views=ex.matmul_views,
        arity=(2, 2),
    ),
    "max_pool": Operator("anchor", shapes.pool, meaning.max_pool, tensor=ex.max_pool, attrs=_POOL),
    "sum_pool": Operator("anchor", shapes.pool, meaning.sum_pool, tensor=ex.sum_pool, attrs=_POOL),
    "reduce_sum": _reduce("anchor", meaning.reduce_sum, ex.reduce("sum")),
    "reduce_max": _reduce("anchor", meaning.reduce_max, ex.reduce("max")),
    "reduce_min": _reduce("anchor", meaning.reduce_min, ex.reduce("min")),
    "softmax": Operator(
        "anchor", shapes.softmax, meaning.softmax, tensor=ex.softmax, attrs=("axes",)
    ),
    "resample": Operator(
        "anchor",
        shapes.resample,
        meaning.resample,
        tensor=ex.resample,
        arity=(3, 3),
        attrs=("axis",),
    ),
    "lrn": Operator("anchor", shapes.lrn, meaning.lrn, tensor=ex.lrn, attrs=_LRN),
    # data movement
    "transpose": Operator(
        "injective", shapes.transpose, meaning.transpose, tensor=ex.transpose, attrs=("perm",)
    ),
    "concat": Operator(
        "injective",
        shapes.concat,
        meaning.concat,
        tensor=ex.concat,
        arity=(1, 1 << 16),
        attrs=("axis",),
    ),
    "pad": Operator("injective", shapes.pad, meaning.pad, tensor=ex.pad, attrs=("pads", "value")),
    "slice": Operator(
        "injective",
        shapes.slice_,
        meaning.slice_,
        tensor=ex.slice_,
        attrs=("starts", "sizes", "steps"),
    ),
    "expand": Operator(
        "injective", shapes.expand, meaning.expand, tensor=ex.expand, attrs=("shape",)
    ),
    "take": Operator(
        "injective", shapes.take, meaning.take, tensor=ex.take, arity=(2, 2), attrs=("axis",)
    ),
    "reshape": Operator("view", shapes.reshape, meaning.reshape, attrs=("shape",)),
    # only before the passes
    "identity": Operator("source", shapes.same, meaning.identity),
    "batch_norm": Operator(
        "source", shapes.batch_norm, meaning.batch_norm, arity=(5, 5), attrs=("epsilon",)
    ),
    "gemm": Operator(
        "source",
        shapes.gemm,
        meaning.gemm,
        arity=(2, 3),
        attrs=("trans_a", "trans_b", "alpha", "beta"),
    ),
    "avg_pool": Operator(
        "source", shapes.pool, meaning.avg_pool, attrs=(*_POOL, "count_include_pad")
    ),
    "reduce_mean": _reduce("source", meaning.reduce_mean, None),
}
