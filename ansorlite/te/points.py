"""Numpy evaluation of sampled elements of a computation, on demand.

In: a ComputeDAG, arrays by placeholder name, and the indices of some elements of an output. Out:
these elements, equal to the result of `ComputeDAG.evaluate`, without evaluating whole
intermediate tensors where few of their elements are needed.
"""

from collections.abc import Callable, Mapping
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
        return arrays[name][tuple(index)]
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
        return memo[name][tuple(index)]
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
