"""Floating-point work of an operation: as written, and the part that every program must execute.

In: a `ComputeOp`; for the second figure also the operations of the DAG by name. Out: numbers of
floating-point operations. `op_flop`, the work as written, is the base of reported GFLOP/s.
`least_flop` leaves out summands that are zero because of padding, and counts once the
subexpressions that several values of an always-unrolled axis share. A pad, and a tensor with zeros
inserted between its elements (transposed convolution), has the form `p[i, j] = select(test(i) and
test(j) and .., x[i - a, ..], 0)`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ansorlite.ir.expr import Const, Expr, Load, Op, is_float
from ansorlite.ir.literals import WIDE
from ansorlite.ir.logic import UNARY, conjuncts
from ansorlite.ir.packed import DOTS, PACKED
from ansorlite.ir.ranges import Evaluator
from ansorlite.ir.traverse import loads, substitute, walk
from ansorlite.te.tensor import Axis, ComputeOp, Operation

Mask = npt.NDArray[np.bool_]

_FLOP_OPS = {"add", "sub", "mul", "div", "min", "max", "pow"}
_FLOP_OPS |= {"fmod", *UNARY}


def body_flop(op: ComputeOp) -> int:
    """Floating-point operations of one evaluation of the body, including the combiner."""
    return sum(map(_counts, walk(op.body))) + _combines(op)


def op_flop(op: ComputeOp) -> float:
    """Floating-point operations as written: elements times reduction steps times the body."""
    return _points(op) * body_flop(op)


def least_flop(op: ComputeOp, by_name: Mapping[str, Operation]) -> float:
    """The part of `op_flop` that every program must execute."""
    unrolled = set(op.attr("simplify_const_indices", ()))
    if not unrolled:
        return op_flop(op) * kept_share(op, by_name)
    axes = [a for a in op.axes + op.reduce_axes if a.name in unrolled]
    each = _shared(op.body, tuple((a.name, _extent(a.extent)) for a in axes))
    return _points(op) * (each + _combines(op))


@lru_cache(maxsize=256)
def _shared(body: Expr, unrolled: tuple[tuple[str, int], ...]) -> float:
    """Operations a point of a body where those that several points share are counted once."""
    values = list(itertools.product(*(range(n) for _, n in unrolled)))
    names = [name for name, _ in unrolled]
    distinct = {
        e
        for at in values
        for e in walk(substitute(body, dict(zip(names, map(Const, at), strict=True))))
        if _counts(e)
    }
    return len(distinct) / len(values)


def _counts(e: Expr) -> int:
    """Operations that a node counts as: of floats, and of products of packed numbers."""
    if isinstance(e, Op) and e.name in DOTS:
        return 2 * PACKED[e.name].depth - 1
    return int(isinstance(e, Op) and e.name in _FLOP_OPS and is_float(e))


def _combines(op: ComputeOp) -> int:
    """Operations of the combiner per reduction step: of floats, and of packed products."""
    return 1 if op.combiner and (is_float(op.body) or dot_of(op)) else 0


def dot_of(op: Operation) -> str:
    """The operation on packed numbers that `op` is a sum of, such as "dot_bf16"; else ""."""
    if not isinstance(op, ComputeOp) or op.combiner != "sum" or not isinstance(op.body, Op):
        return ""
    return op.body.name if op.body.name in DOTS else ""


def _points(op: ComputeOp) -> float:
    """Number of evaluations of the body."""
    return float(math.prod(_extent(a.extent) for a in op.axes + op.reduce_axes))


def elements_read(ops: Sequence[Operation]) -> dict[str, float]:
    """Elements of each tensor that the operations read at most, each element counted once.

    A tensor of which few elements are looked up by computed indices is read in part.
    """
    found: dict[str, float] = {}
    sizes = {op.name: float(math.prod(op.shape)) for op in ops}
    for op in ops:
        if isinstance(op, ComputeOp):
            for x in dict.fromkeys(loads(op.body)):
                found[x.tensor] = found.get(x.tensor, 0.0) + _points(op)
    return {name: min(n, sizes.get(name, n)) for name, n in found.items()}


class Pad(NamedTuple):
    """`select(cond, x, fill)`; elements of few bytes are widened and stored in theirs again."""

    cond: Expr
    x: Load
    fill: Const


def pad_of(op: ComputeOp) -> Pad | None:
    """The parts of a pad; None for any other operation."""
    body = op.body
    if isinstance(body, Op) and body.name == "cast" and body.dtype in WIDE:
        body = body.args[0]
    if op.combiner or not (isinstance(body, Op) and body.name == "select"):
        return None
    cond, x, fill = body.args
    if isinstance(x, Op) and x.name == "cast" and x.dtype == WIDE.get(op.dtype):
        x = x.args[0]
    if not isinstance(x, Load) or not isinstance(fill, Const) or loads(cond):
        return None
    return Pad(cond, x, fill) if x.dtype == op.dtype else None


def pad_tests(op: ComputeOp) -> tuple[Expr, ...] | None:
    """The conditions under which a pad reads its source; None for any other operation."""
    pad = pad_of(op)
    return None if pad is None else conjuncts(pad.cond)


def kept_share(op: ComputeOp, by_name: Mapping[str, Operation]) -> float:
    """Share (0 to 1) of the summands that may be nonzero; 1 for operations that are not sums.

    A product with a padding zero is zero. Exact for one padded factor whose dimensions are indexed
    by disjoint axes, as in every convolution; otherwise a lower bound.
    """
    if op.combiner != "sum":
        return 1.0
    lost = 0.0
    for x in _factors(op.body):
        if isinstance(x, Load):
            lost += 1.0 - _inside(x, op, _masks(by_name[x.tensor], by_name))
    return max(0.0, 1.0 - lost)


def _factors(e: Expr) -> list[Expr]:
    """The factors of a product, left to right."""
    out: list[Expr] = []
    stack = [e]
    while stack:
        x = stack.pop()
        if isinstance(x, Op) and x.name == "mul":
            stack.extend(reversed(x.args))
        else:
            out.append(x)
    return out


def _masks(op: Operation, by_name: Mapping[str, Operation]) -> list[Mask]:
    """Per dimension, a mask bool[extent] of positions that may be nonzero.

    All True except for pads. The source of a pad may be a pad too, whose zeros appear in the
    result. Conditions over several axes, such as the condition of a triangle, are assumed to hold,
    so that the skipped part counts as work.
    """
    masks = [np.ones(n, np.bool_) for n in op.shape]
    tests = pad_tests(op) if isinstance(op, ComputeOp) else None
    if not isinstance(op, ComputeOp) or tests is None:
        return masks
    assert isinstance(op.body, Op)
    _, x, fill = op.body.args
    if not isinstance(x, Load) or not isinstance(fill, Const) or fill.value != 0:
        return masks
    source = _masks(by_name[x.tensor], by_name)
    for a, mask in zip(op.axes, masks, strict=True):
        value = Evaluator({a.name: np.arange(len(mask))})
        for test in tests:
            if test.free == {a.name}:
                mask &= value(test)
        for index, zeros in zip(x.indices, source, strict=True):
            if index.free == {a.name}:  # where the tests fail, the index may be outside the source
                mask &= zeros[np.clip(value(index), 0, len(zeros) - 1)]
    return masks


def _inside(x: Load, reader: ComputeOp, masks: Sequence[Mask]) -> float:
    """Lower bound of the share of a reader's iterations that read a possibly nonzero element."""
    axes = {a.name: a for a in reader.axes + reader.reduce_axes}
    shares: dict[frozenset[str], float] = {}
    lost = 0.0
    for index, mask in zip(x.indices, masks, strict=True):
        if mask.all():
            continue
        names = frozenset(index.free)
        share = _share(index, mask, [axes[n] for n in sorted(names)])
        if any(names & counted for counted in shares):  # dimensions share an axis: add the losses
            lost += 1.0 - share
        else:
            shares[names] = share
    return max(0.0, float(np.prod(list(shares.values()), initial=1.0)) - lost)


def _share(index: Expr, mask: Mask, axes: Sequence[Axis]) -> float:
    """Share of the iterations over `axes` for which `index` hits a True position of `mask`."""
    *few, longest = sorted(axes, key=lambda a: _extent(a.extent)) or [Axis("", Const(1))]
    along = np.arange(_extent(longest.extent))
    hits = points = 0
    for at in np.ndindex(*(_extent(a.extent) for a in few)):
        env = {a.name: v for a, v in zip(few, at, strict=True)} | {longest.name: along}
        found = np.broadcast_to(mask[np.clip(Evaluator(env)(index), 0, len(mask) - 1)], along.shape)
        hits, points = hits + int(found.sum()), points + len(along)
    return hits / max(1, points)


def _extent(e: Expr) -> int:
    assert isinstance(e, Const), "a DAG's extents are numbers"
    return int(e.value)
