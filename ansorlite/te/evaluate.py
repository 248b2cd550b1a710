"""The meaning of a ComputeDAG in numpy: the reference that everything else is checked against.

In: arrays by placeholder name. Out: output arrays, or their values at sampled points. Every
operation is rounded to its own dtype, so that overflow and NaN appear where they do in a kernel;
sums of floats are accumulated in float64 and rounded where they are stored. Integers are exact
modulo 2^64, and wrapped to their width by casts and stores; see `ansorlite.te` for the rules.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from ansorlite.errors import ModelError
from ansorlite.ir.deep import with_room
from ansorlite.ir.expr import COMPARE, Const, Expr, Load, Op, Poly, Var, is_float, is_int
from ansorlite.ir.literals import BITS, least, rounded, wrapped
from ansorlite.ir.traverse import below
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import ComputeOp, Placeholder

Array = npt.NDArray[Any]
_CHUNK = 1 << 23  # elements evaluated at once

_erf = np.vectorize(__import__("math").erf, otypes=[np.float64])


def check_inputs(dag: ComputeDAG, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Arrays by name with the right shape and dtype, or a ModelError that names the input."""
    out: dict[str, Array] = {}
    for op in dag.inputs:
        if op.name not in inputs:
            raise ModelError(f"no value is given for input {op.name}")
        x = np.asarray(inputs[op.name])
        if x.shape != op.shape:
            raise ModelError(f"input {op.name} has shape {x.shape}, expected {op.shape}")
        if x.dtype != np.dtype(op.dtype):
            raise ModelError(f"input {op.name} has dtype {x.dtype}, expected {op.dtype}")
        out[op.name] = x
    return out


def evaluate_dag(dag: ComputeDAG, inputs: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """All outputs by name; see `ComputeDAG.evaluate`."""
    values = check_inputs(dag, inputs)
    for op in dag.computes:
        values[op.name] = evaluate_op(op, values)
    return {n: values[n] for n in dag.output_names}


def evaluate_op(op: ComputeOp, values: Mapping[str, Array]) -> Array:
    """One operation for all its elements, in chunks of the first axis where it is large."""
    shape = op.shape
    sizes = [*shape, *(int(a.extent.value) for a in op.reduce_axes if isinstance(a.extent, Const))]
    rank = len(sizes)
    grids = [
        np.arange(n).reshape([-1 if d == k else 1 for k in range(rank)])
        for d, n in enumerate(sizes)
    ]
    names = [a.name for a in op.axes + op.reduce_axes]
    rows = max(1, _CHUNK // max(1, int(np.prod(sizes[1:], dtype=np.int64)))) if shape else 1
    out = np.empty(shape, dtype=op.dtype)
    for start in range(0, sizes[0] if shape else 1, rows):
        env = dict(zip(names, grids, strict=True))
        if shape:
            env[names[0]] = grids[0][start : start + rows]
        full = [min(rows, shape[0] - start), *sizes[1:]] if shape else sizes
        value = np.broadcast_to(_body(op, env, values), full)
        if op.combiner:
            value = _combine(op, value, tuple(range(len(shape), rank)))
        with np.errstate(all="ignore"):  # values beyond the stored dtype become infinite
            out[(slice(start, start + rows),) if shape else ()] = np.asarray(value).astype(op.dtype)
    return out


def _combine(op: ComputeOp, value: Array, axis: tuple[int, ...]) -> Array:
    with np.errstate(all="ignore"):
        if op.combiner == "sum":
            wide = np.float64 if op.dtype.startswith("float") else np.int64
            return np.asarray(np.sum(value, axis=axis, dtype=wide))
        value = value.astype(op.dtype)
        return np.asarray((np.max if op.combiner == "max" else np.min)(value, axis=axis))


def evaluate_points(
    dag: ComputeDAG, inputs: Mapping[str, npt.ArrayLike], output: str, indices: npt.ArrayLike
) -> Array:
    """dtype[n]: elements of `output` at integer indices[n, rank], evaluated on demand.

    They are those of `ComputeDAG.evaluate`. Stages that the output reads are evaluated only where
    they are needed.
    """
    arrays = check_inputs(dag, inputs)
    points = np.asarray(indices, dtype=np.int64)
    op = dag.by_name[output]
    places = [points[:, d] for d in range(points.shape[1])]
    # Each stage asks those that it reads: chains of hundreds need room.
    result = with_room(len(dag.ops), lambda: _points(dag, op.name, places, arrays, {}))
    return np.broadcast_to(result, (points.shape[0],)).astype(op.dtype)


def _points(
    dag: ComputeDAG,
    name: str,
    index: list[Array],
    arrays: Mapping[str, Array],
    memo: dict[str, Array],
) -> Array:
    op = dag.by_name[name]
    if isinstance(op, Placeholder):
        return arrays[name][tuple(index)]
    shape = np.broadcast_shapes(*(np.shape(i) for i in index)) if index else ()
    inner = [int(a.extent.value) for a in op.reduce_axes if isinstance(a.extent, Const)]
    wanted = int(np.prod(shape, dtype=np.int64)) * int(np.prod(inner, dtype=np.int64))
    size = int(np.prod(op.shape, dtype=np.int64))
    if name in memo or wanted * 4 > size * int(np.prod(inner, dtype=np.int64)):
        if name not in memo:  # nearly everything is needed: evaluate the stage once
            for read in _reads(op):
                if isinstance(dag.by_name[read], ComputeOp) and read not in memo:
                    every = np.indices(dag.by_name[read].shape, sparse=True)
                    memo[read] = np.asarray(_points(dag, read, list(every), arrays, memo))
            memo[name] = evaluate_op(op, {**arrays, **memo})
        return memo[name][tuple(index)]
    if wanted > _CHUNK and shape:
        flat = [np.broadcast_to(i, shape).reshape(-1) for i in index]
        step: int = max(1, int(_CHUNK // np.prod(inner, dtype=np.int64)))
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

    value = np.broadcast_to(_body(op, env, read_with(dag, read)), (*shape, *inner))
    if op.combiner:
        value = _combine(op, value, tuple(range(len(shape), len(shape) + len(inner))))
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(op.dtype)


def read_with(dag: ComputeDAG, read: Any) -> dict[str, Any]:
    """A view of the DAG's tensors as functions of index arrays."""
    return {op.name: _Lazy(op.name, op.shape, read) for op in dag.ops}


class _Lazy:
    def __init__(self, name: str, shape: tuple[int, ...], read: Any) -> None:
        self.name, self.shape, self.read = name, shape, read

    def __getitem__(self, idx: tuple[Array, ...]) -> Array:
        return np.asarray(self.read(self.name, list(idx)))


def _reads(op: ComputeOp) -> list[str]:
    from ansorlite.ir.traverse import loads

    return list(dict.fromkeys(x.tensor for x in loads(op.body)))


# Functions that numpy has in float64 to the last place, but not in float32.
_SMOOTH: dict[str, Any] = {
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": lambda x: sigmoid(np.asarray(x)),
    "pow": np.power,
}
_UNARY: dict[str, Any] = {
    "sqrt": np.sqrt,
    "abs": np.abs,
    "floor": np.floor,
    "not": np.logical_not,
}
_BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.logical_and,
    "or": np.logical_or,
    **COMPARE,
}


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, e) / (1 + e))


def cast_array(x: Array, dtype: str) -> Array:
    """Values cast as `ir.literals.converted` casts one."""
    if dtype not in BITS or x.dtype.kind != "f":
        return x.astype(dtype)
    low = least(dtype)
    fits = (x >= low) & (x < -float(low))
    return np.where(fits, np.where(fits, x, 0).astype(dtype), np.asarray(low, dtype))


def _body(op: ComputeOp, env: Mapping[str, Array], values: Mapping[str, Any]) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(_value(op.body, env, values))


def _value(e: Expr, env: Mapping[str, Array], values: Mapping[str, Any]) -> Any:
    """An array of the expression's dtype, but int64 for all integers."""
    done: dict[Expr, Any] = {}
    for x in below(e):
        done[x] = _settled(x, env, values, done)
    return _settled(e, env, values, done)


def _settled(
    e: Expr, env: Mapping[str, Array], values: Mapping[str, Any], done: Mapping[Expr, Any]
) -> Any:
    if done and e in done:
        return done[e]
    match e:
        case Const():
            if is_int(e):
                return np.asarray(wrapped(e.value, "int64"), np.int64)
            return np.asarray(rounded(e.value, e.dtype) if is_float(e) else e.value, e.dtype)
        case Var():
            return env[e.name]
        case Poly():
            total = np.int64(0)
            for m, c in e.terms:
                atoms = (_settled(a, env, values, done) for a in m)
                total = total + reduce(np.multiply, atoms, np.int64(wrapped(c, "int64")))
            return total
        case Load():
            source = values[e.tensor]
            idx = [np.asarray(_settled(i, env, values, done)) for i in e.indices]
            # A guarded read may lie outside: its value is never used, so clip the index.
            x = source[tuple(np.clip(i, 0, n - 1) for i, n in zip(idx, source.shape, strict=True))]
            return x.astype(np.int64) if is_int(e) else x
        case Op():
            return _apply(e, [_settled(a, env, values, done) for a in e.args])
        case _:
            raise ModelError(f"{e} has no value")


def _apply(e: Op, args: list[Any]) -> Any:
    match e.name:
        case "select":
            return np.where(*args)
        case "cast":
            x = cast_array(np.asarray(args[0]), e.dtype)
            return x.astype(np.int64) if is_int(e) else x
        case "floordiv":
            return args[0] // args[1]
        case "ceildiv":
            return args[0] // args[1] + (args[0] % args[1] != 0)
        case "mod":
            return args[0] % args[1]
        case name if name in _SMOOTH:
            wide = [np.asarray(a, np.float64) for a in args]
            return np.asarray(_SMOOTH[name](*wide)).astype(e.dtype)
        case name if name in _UNARY:
            return _UNARY[name](args[0])
        case name if name in _BINARY:
            return reduce(_BINARY[name], args)
        case name:
            raise ModelError(f"operation {name} has no meaning in numpy")
