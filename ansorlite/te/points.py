"""Numpy evaluation of sampled elements of a computation, on demand.

In: a ComputeDAG, arrays by placeholder name, and the indices of some elements of an output. Out:
these elements, equal to the result of `ComputeDAG.evaluate`, without evaluating whole
intermediate tensors where few of their elements are needed.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.ir.deep import with_deep_stack
from ansorlite.ir.expr import Const
from ansorlite.ir.traverse import loads
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.evaluate import CHUNK, Array, body_value, check_inputs, combine, evaluate_op
from ansorlite.te.tensor import ComputeOp, Placeholder

Read = Callable[[str, list[Array]], Array]  # (tensor name, index arrays) -> elements


def evaluate_points(
    dag: ComputeDAG, inputs: Mapping[str, npt.ArrayLike], output: str, indices: npt.ArrayLike
) -> Array:
    """dtype[n]: elements of `output` at int indices[n, rank], evaluated on demand.

    Equal to the elements of `ComputeDAG.evaluate`. Intermediate tensors are evaluated only where
    needed. Example: `te.evaluate_points(dag, {"A": a, "B": b}, "C", [[0, 0], [3, 5]])`. Raises
    ModelError for wrong inputs.
    """
    arrays = check_inputs(dag.inputs, inputs)
    points = np.asarray(indices, dtype=np.int64)
    op = dag.by_name[output]
    places = [points[:, d] for d in range(points.shape[1])]
    # The recursion is as deep as the longest chain of operations, which may have hundreds.
    result = with_deep_stack(len(dag.ops), lambda: _points(dag, op.name, places, arrays, {}))
    return np.broadcast_to(result, (points.shape[0],)).astype(op.dtype)


def _points(
    dag: ComputeDAG,
    name: str,
    index: list[Array],
    arrays: Mapping[str, Array],
    memo: dict[str, Array],
) -> Array:
    """Elements of one tensor at index arrays that broadcast; large results in chunks."""
    op = dag.by_name[name]
    if isinstance(op, Placeholder):
        return gathered(arrays[name], index)
    shape = np.broadcast_shapes(*(np.shape(i) for i in index)) if index else ()
    inner = [int(a.extent.value) for a in op.reduce_axes if isinstance(a.extent, Const)]
    wanted = int(np.prod(shape, dtype=np.int64)) * int(np.prod(inner, dtype=np.int64))
    size = int(np.prod(op.shape, dtype=np.int64))
    if name in memo or wanted * 4 > size * int(np.prod(inner, dtype=np.int64)):
        # a quarter or more of the elements is needed: evaluate the whole tensor once
        if name not in memo:
            for read in dict.fromkeys(x.tensor for x in loads(op.body)):
                if isinstance(dag.by_name[read], ComputeOp) and read not in memo:
                    every = np.indices(dag.by_name[read].shape, sparse=True)
                    memo[read] = np.asarray(_points(dag, read, list(every), arrays, memo))
            memo[name] = evaluate_op(op, {**arrays, **memo})
        return gathered(memo[name], index)
    if wanted > CHUNK and shape:
        flat = [np.broadcast_to(i, shape).reshape(-1) for i in index]
        step: int = max(1, int(CHUNK // np.prod(inner, dtype=np.int64)))
        parts = [
            _points_once(dag, op, [f[s : s + step] for f in flat], arrays, memo)
            for s in range(0, flat[0].size, step)
        ]
        return np.concatenate(parts).reshape(shape)
    return _points_once(dag, op, index, arrays, memo)


def _points_once(
    dag: ComputeDAG,
    op: ComputeOp,
    index: list[Array],
    arrays: Mapping[str, Array],
    memo: dict[str, Array],
) -> Array:
    """Elements of one operation at index arrays, evaluated at once."""
    inner = [int(a.extent.value) for a in op.reduce_axes if isinstance(a.extent, Const)]
    shape = np.broadcast_shapes(*(np.shape(i) for i in index)) if index else ()
    env = {
        a.name: np.reshape(i, (*np.shape(i), *(1 for _ in inner)))
        for a, i in zip(op.axes, index, strict=True)
    }
    for d, a in enumerate(op.reduce_axes):
        env[a.name] = np.arange(inner[d]).reshape([-1 if k == d else 1 for k in range(len(inner))])

    def read(name: str, idx: list[Array]) -> Array:
        return _points(dag, name, idx, arrays, memo)

    value = np.broadcast_to(body_value(op, env, _readers(dag, read)), (*shape, *inner))
    if op.combiner:
        value = combine(op, value, tuple(range(len(shape), len(shape) + len(inner))))
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(op.dtype)


def _readers(dag: ComputeDAG, read: Read) -> dict[str, Any]:
    """Views of all tensors that evaluate elements when indexed."""
    return {op.name: _Lazy(op.name, op.shape, read) for op in dag.ops}


class _Lazy:
    """A view of one tensor: indexing calls `read`."""

    def __init__(self, name: str, shape: tuple[int, ...], read: Read) -> None:
        self.name, self.shape, self.read = name, shape, read

    def __getitem__(self, idx: tuple[Array, ...]) -> Array:
        return np.asarray(self.read(self.name, list(idx)))


def gathered(x: Array, index: Sequence[Array]) -> Array:
    """`x[tuple(index)]`, in the order of memory where an index runs through a whole dimension.

    The index arrays broadcast. The sum of a convolution or a matrix product runs through several
    dimensions of its operands. The first of these dimensions, or the last, are taken as they are,
    so that rows are read as a whole instead of elements far from each other.
    """
    bad = any(i.size and (i.min() < 0 or i.max() >= n) for i, n in zip(index, x.shape, strict=True))
    if bad or not index or not x.flags.c_contiguous:
        return np.asarray(x[tuple(index)])
    rank = max(i.ndim for i in index)
    at = [i.reshape((1,) * (rank - i.ndim) + i.shape) for i in index]
    axes = [_own_axis(at, d, n) for d, n in enumerate(x.shape)]
    first = next((d for d, a in enumerate(axes) if a is None), x.ndim)
    last = x.ndim - next((d for d, a in enumerate(reversed(axes)) if a is None), x.ndim)
    leads = math.prod(x.shape[:first]) > math.prod(x.shape[last:])
    whole = range(first) if leads else range(last, x.ndim)
    rest = [d for d in range(x.ndim) if d not in whole]
    place = np.zeros((1,) * rank, np.int64)
    for d in rest:
        place = place * x.shape[d] + at[d]
    sizes = [x.shape[d] for d in whole]
    if leads:
        taken = x.reshape(math.prod(sizes), -1).take(place.reshape(-1), axis=1)
    else:
        taken = x.reshape(-1, math.prod(sizes)).take(place.reshape(-1), axis=0)
    taken = taken.reshape([*sizes, *place.shape] if leads else [*place.shape, *sizes])
    # Axes of `taken`: those of `place`, and one for each whole dimension, which replaces the axis
    # of extent 1 that its index runs along.
    start, begin = (len(sizes), 0) if leads else (0, rank)
    order = list(range(start, start + rank))
    unused = [order[axes[d] or 0] for d in whole]
    for k, d in enumerate(whole):
        order[axes[d] or 0] = begin + k
    extents = [taken.shape[a] for a in order]
    return taken.transpose([*order, *unused]).reshape(extents)


def _own_axis(index: Sequence[Array], d: int, n: int) -> int | None:
    """The axis along which index d is 0, 1, .. n - 1 and no other index varies; None without one.

    All index arrays have the same rank.
    """
    long = [a for a, extent in enumerate(index[d].shape) if extent != 1]
    if len(long) != 1 or index[d].size != n:
        return None
    alone = all(i.shape[long[0]] == 1 for k, i in enumerate(index) if k != d)
    runs = alone and np.array_equal(index[d].reshape(-1), np.arange(n))
    return long[0] if runs else None
