"""Access analysis: predicates on operations that the sketch rules test.

In: `ComputeOp`s of a ComputeDAG or of a schedule (in a schedule, inlined stages have been
substituted into their readers). Out: the predicates of the Ansor paper (OSDI'20), section 4.1, with
the exact conditions of Ansor's implementation, and the axes suited to vectors.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ansorlite.ir.expr import Const, Expr, Load, Op, Var, integer, is_float, terms_of
from ansorlite.ir.packed import DOTS
from ansorlite.ir.ranges import coefficient
from ansorlite.ir.traverse import loads, walk
from ansorlite.te.tensor import Axis, ComputeOp

SHORT_REDUCTION = 8  # elements: one vector of floats
ONE = integer(1)


@dataclass(frozen=True)
class Access:
    """Properties of one read. `simple`: every index is a constant or one axis plus a constant.

    `missing`: some axis of the reader appears in no index. `duplicated`: an axis appears in two
    indices. `same_order`: the axes appear in the order of the reader's axes.
    """

    simple: bool
    missing: bool
    duplicated: bool
    same_order: bool


def access_of(op: ComputeOp, load: Load) -> Access:
    """The `Access` of `load`, a read in the body of `op`."""
    names = [a.name for a in op.axes]
    positions: list[int] = []
    simple = True
    for i in load.indices:
        terms = terms_of(i)
        movers = [(m, c) for m, c in terms.items() if m]
        if not movers:
            continue
        axis = movers[0][0][0]
        shift = len(movers) == 1 and movers[0][1] == 1 and len(movers[0][0]) == 1
        if shift and isinstance(axis, Var) and axis.name in names:
            positions.append(names.index(axis.name))
        else:
            simple = False
    return Access(
        simple,
        len(set(positions)) < len(names),
        len(set(positions)) < len(positions),
        positions == sorted(positions),
    )


def distinct_loads(op: ComputeOp) -> list[Load]:
    """The reads of an operation without duplicates, in order of appearance."""
    return list(dict.fromkeys(loads(op.body)))


def is_strictly_inlineable(op: ComputeOp) -> bool:
    """Condition of the rule AlwaysInline (paper, section 4.1: IsStrictInlinable).

    True for an operation without reduction, `exp` and `select` whose reads are all simple, in axis
    order and without a duplicated axis. An operation that reads no tensor is always inlineable.
    """
    if op.combiner:
        return False
    reads = distinct_loads(op)
    if not reads:
        return True
    if any(isinstance(e, Op) and e.name in ("exp", "select") for e in walk(op.body)):
        return False
    found = [access_of(op, x) for x in reads]
    return all(a.simple and a.same_order and not a.duplicated for a in found)


def has_data_reuse(op: ComputeOp) -> bool:
    """Condition of multi-level tiling (paper, section 4.1: HasDataReuse).

    Counts the tensors that `op` reads and whose indices leave out some spatial axis of extent > 1.
    True for two such tensors, or for one if `op` has a reduction.
    """
    if op.attr("simplify_const_indices"):
        return False
    wide = {a.name for a in op.axes if a.extent != ONE}
    moving: dict[str, set[str]] = {}
    for x in loads(op.body):
        moving.setdefault(x.tensor, set()).update(*(i.free for i in x.indices), set())
    missing = sum(1 for used in moving.values() if wide - used)
    return missing >= 2 or (missing >= 1 and bool(op.reduce_axes))


def extent(axis: Axis) -> int:
    """The extent as a number; 2 stands for an extent that depends on holes."""
    return int(axis.extent.value) if isinstance(axis.extent, Const) else 2


def has_more_reduction_parallel(op: ComputeOp, cores: int) -> bool:
    """Condition of rfactor (paper, section 4.1: HasMoreReductionParallel).

    True where the spatial loops alone offer too little parallelism for `cores` cores: with data
    reuse, if the spatial size is at most the reduction size and at most 16 iterations a core;
    otherwise if the reduction has more iterations than there are cores.
    """
    if not op.combiner:
        return False
    spatial = math.prod(extent(a) for a in op.axes)
    reduction = math.prod(extent(a) for a in op.reduce_axes)
    if has_data_reuse(op):
        return spatial <= reduction and spatial <= 16 * cores
    return reduction > 1 and reduction > cores


def elementwise_match(consumer: ComputeOp, producer: ComputeOp) -> bool:
    """True if the shapes are equal and the consumer reads the producer once, at its own indices."""
    if consumer.extents != producer.extents:
        return False
    reads = [x for x in distinct_loads(consumer) if x.tensor == producer.name]
    if len(reads) != 1:
        return False
    return reads[0].indices == tuple(a.var for a in consumer.axes)


def common_outer_axes(consumer: ComputeOp, producer: ComputeOp) -> int:
    """Number of leading dimensions of equal extent that all reads index by the consumer's axis."""
    reads = [x for x in distinct_loads(consumer) if x.tensor == producer.name]
    n = 0
    for d, (a, b) in enumerate(zip(consumer.axes, producer.axes, strict=False)):
        if a.extent != b.extent or any(not _shifted(x.indices[d], a.name) for x in reads):
            break
        n += 1
    return n


def _shifted(index: Expr, axis: str) -> bool:
    movers = {m: c for m, c in terms_of(index).items() if m}
    return movers == {(Var(axis),): 1}


def contiguous_axis(op: ComputeOp) -> Axis | None:
    """The axis best vectorised for the memory accesses; None if no access is contiguous.

    Along an axis an access is contiguous (the axis moves only the last index, with stride 1),
    invariant, or scattered. The axes are ranked by: fewest scattered accesses; most contiguous
    accesses; spatial before reduction (a spatial axis needs no horizontal reduction); contiguous
    store. Reductions shorter than `SHORT_REDUCTION` are used only if no other axis qualifies.
    """
    place = _contiguous_place(op)
    return None if place is None else (*op.axes, *op.reduce_axes)[place]


@lru_cache(maxsize=1 << 12)
def _contiguous_place(op: ComputeOp) -> int | None:
    """The number of the axis, spatial ones first."""
    indices = [x.indices for x in distinct_loads(op)] + [tuple(a.var for a in op.axes)]
    ranked: list[tuple[tuple[int, int, bool, bool], int]] = []
    long: list[tuple[tuple[int, int, bool, bool], int]] = []
    for k, a in enumerate(op.axes + op.reduce_axes):
        kinds = [_along(i, a.name) for i in indices]
        if a.extent != ONE and "contiguous" in kinds:
            spatial = k < len(op.axes)
            stored = kinds[-1] == "contiguous"
            rank = -kinds.count("scattered"), kinds.count("contiguous"), spatial, stored
            ranked.append((rank, k))
            if spatial or extent(a) >= SHORT_REDUCTION:
                long.append((rank, k))
    return max(long or ranked, key=lambda x: x[0], default=(None, None))[1]


def transposed_axis(op: ComputeOp, along: Axis) -> Axis | None:
    """The axis along which a copy reads contiguously, if it stores contiguously along `along`.

    None if `op` is not a plain copy or has no such axis of extent > 1.
    """
    if op.combiner or not isinstance(op.body, Load):
        return None
    for a in op.axes:
        if a != along and extent(a) > 1 and _along(op.body.indices, a.name) == "contiguous":
            return a
    return None


def _along(indices: tuple[Expr, ...], axis: str) -> Literal["invariant", "contiguous", "scattered"]:
    """Movement of an access with these indices along an axis."""
    if all(axis not in i.free for i in indices):
        return "invariant"
    step = coefficient(indices[-1], axis)
    last = step == ONE and all(axis not in i.free for i in indices[:-1])
    return "contiguous" if last else "scattered"


def operation_counts(op: ComputeOp) -> tuple[tuple[str, int], ...]:
    """Operations of one evaluation of the body, as sorted (class, count) pairs.

    Classes: mad, addsub, mul, div, minmax, math, compare, select. A product that is summed counts
    as one mad. Index arithmetic is not counted.
    """
    return _operation_counts(op.body, op.combiner)


@lru_cache(maxsize=1 << 12)
def _operation_counts(body: Expr, combiner: str | None) -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}

    def add(name: str, n: int = 1) -> None:
        counts[name] = counts.get(name, 0) + n

    for e in walk(body):
        if not isinstance(e, Op):
            continue
        if e.name in ("lt", "le", "eq", "ne", "and", "or", "not"):
            add("compare")
        elif e.name == "select":
            add("select")
        elif is_float(e) and e.name != "cast":
            classes = {"add": "addsub", "sub": "addsub", "mul": "mul", "div": "div"}
            classes |= {"min": "minmax", "max": "minmax"}
            add(classes.get(e.name, "math"))
    if combiner == "sum":
        if isinstance(body, Op) and body.name in ("mul", *DOTS):
            add("math" if body.name in DOTS and is_float(body) else "mul", -1)
            add("mad")
        else:
            add("addsub")
    elif combiner:
        add("minmax")
    return tuple(sorted((k, n) for k, n in counts.items() if n))
