"""Recurrences: `loop` runs a body of kernels once a time step; `part` names a piece of a value.

A loop has states, which the body computes from the states before, and may give more values at each
step. The loop's one result is a vector: all values of the first state by time step, then those of
the second, and so on. No step overwrites another, so a step's kernels find their operands a fixed
distance from the step before. Readers of the result take `part`s of it, which are no copies.
"""

import math

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.ops.op import Arrays, Op, Types
from ansorlite.graph.types import Array, Attrs, TensorType, body, integer, ints, same_dtype

# ---- loop ---------------------------------------------------------------------------------------


def _loop_type(attrs: Attrs, types: Types) -> TensorType:
    """`times` values of each result of the body, one after the other.

    The operands are the `states` before the first step, values that stay, and `scanned` arrays that
    have an element of the body's type for each time step.
    """
    step, times, states = body(attrs), integer(attrs, "times"), integer(attrs, "states")
    fixed = len(step.takes) - integer(attrs, "scanned")
    if times < 1 or not 0 <= states <= fixed:
        raise ModelError(f"{times} steps with {states} states for a body of {fixed}")
    wanted = [
        t if k < fixed else TensorType((times, *t.shape), t.dtype) for k, t in enumerate(step.takes)
    ]
    if len(types) != len(wanted):
        raise ModelError(f"a loop of {len(wanted)} operands has {len(types)}")
    for k, (given, want) in enumerate(zip(types, wanted, strict=True)):
        if given != want:
            raise ModelError(f"operand {k} of the loop is {given}, its body takes {want}")
    if step.gives[:states] != step.takes[:states]:
        raise ModelError(f"the body makes {step.gives} of the states {step.takes[:states]}")
    return TensorType((times * sum(t.size for t in step.gives),), same_dtype(step.gives))


def _loop(attrs: Attrs, xs: Arrays) -> Array:
    step, times, states = body(attrs), integer(attrs, "times"), integer(attrs, "states")
    fixed = len(xs) - integer(attrs, "scanned")
    out = [np.empty((times, *t.shape), t.dtype) for t in step.gives]
    now = tuple(xs[:states])
    for t in reversed(range(times)) if attrs["reverse"] else range(times):
        made = step.run((*now, *xs[states:fixed], *(np.asarray(x[t]) for x in xs[fixed:])))
        for history, value in zip(out, made, strict=True):
            history[t] = value
        now = made[:states]
    return np.concatenate([history.reshape(-1) for history in out])


def _loop_work(attrs: Attrs, types: Types, result: TensorType) -> int:
    return integer(attrs, "times") * body(attrs).work


# ---- part ---------------------------------------------------------------------------------------


def _part_type(attrs: Attrs, types: Types) -> TensorType:
    (x,), start, shape = types, integer(attrs, "start"), ints(attrs, "shape")
    if not 0 <= start <= start + math.prod(shape) <= x.size:
        raise ModelError(f"elements from {start} on as {list(shape)} leave the {x.size} of {x}")
    return TensorType(shape, x.dtype)


def _part(attrs: Attrs, xs: Arrays) -> Array:
    start, shape = integer(attrs, "start"), ints(attrs, "shape")
    return np.asarray(xs[0].reshape(-1)[start : start + math.prod(shape)].reshape(shape))


OPS = (
    Op(
        "loop",
        "loop",
        _loop_type,
        _loop,
        attrs=("body", "times", "states", "scanned", "reverse"),
        arity=(1, 64),
        work=_loop_work,
    ),
    Op(
        "part",
        "view",
        _part_type,
        _part,
        attrs=("start", "shape"),
        identity=lambda attrs, types, result: types[0] == result,
        traits=("keeps_not_negative",),
    ),
)
