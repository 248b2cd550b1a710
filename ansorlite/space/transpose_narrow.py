"""Vectorise another axis where the contiguous axis is too narrow for a vector.

A convolution with three output channels fills three lanes of a vector, while a row of its pixels
fills all lanes. In: a state before the sketch rules. Out: the state in which such a stage and its
operands are stored with a wide axis last, so that the rules vectorise that axis; the result is
copied back to the original layout.
"""

from ansorlite.ir.expr import Load
from ansorlite.ir.traverse import loads
from ansorlite.schedule.stage import Stage
from ansorlite.schedule.state import State
from ansorlite.schedule.steps import CacheRead, Transpose
from ansorlite.target import Target
from ansorlite.te.access import extent, has_data_reuse
from ansorlite.te.tensor import Axis


def transpose_narrow(state: State, target: Target) -> State | None:
    """The state with all narrow stages transposed; None if there is none."""
    before = state
    for name in [s.name for s in state.schedule.stages]:
        s = state.schedule[name]
        if s.has_loops and s.compute.combiner and has_data_reuse(s.compute):
            axis = _wide_axis(s, target)
            if axis is not None and not state.schedule.is_constant(name):
                state = _transpose_stage(state, s, axis)
    return None if state is before else state


def _wide_axis(s: Stage, target: Target) -> Axis | None:
    """The last axis that fills a vector, if the contiguous axis fills at most half a vector."""
    axes = s.compute.axes
    lanes = target.lanes(s.compute.dtype)
    if not axes or 2 * extent(axes[-1]) > lanes:
        return None
    return next((a for a in reversed(axes[:-1]) if extent(a) >= lanes), None)


def _transpose_stage(state: State, s: Stage, axis: Axis) -> State:
    """The state with `s` transposed to `axis` last; operands that move along `axis` too.

    Inputs, and tensors with other readers, are transposed in a copy.
    """
    for tensor in dict.fromkeys(x.tensor for x in loads(s.compute.body)):
        source = state.schedule[tensor]
        dim = _dimension(state.schedule[s.name], tensor, axis)
        alone = [r.name for r in state.schedule.readers(tensor)] == [s.name]
        copied = state.schedule.has(f"{tensor}.packed")  # packed for another reader
        if dim is None or copied or state.schedule.is_constant(tensor):
            continue
        if not (source.has_loops and alone and tensor not in state.schedule.outputs):
            state = state.apply(CacheRead(tensor, s.name))
            source = state.schedule[f"{tensor}.packed"]
        state = state.apply(Transpose(source.name, _last(source, dim)))
    d = [a.name for a in s.compute.axes].index(axis.name)
    return state.apply(Transpose(s.name, _last(s, d)))


def _last(s: Stage, dim: int) -> tuple[str, ...]:
    """The axes with axis number `dim` last."""
    names = [a.name for a in s.compute.axes]
    return (*names[:dim], *names[dim + 1 :], names[dim])


def _dimension(reader: Stage, tensor: str, axis: Axis) -> int | None:
    """The one dimension of a tensor that an axis moves; None if ambiguous, absent or the last."""
    found = {
        tuple(d for d, i in enumerate(x.indices) if axis.name in i.free)
        for x in _loads_of(reader, tensor)
    }
    if len(found) != 1:
        return None
    (dims,) = found
    last = len(_loads_of(reader, tensor)[0].indices) - 1
    return dims[0] if len(dims) == 1 and dims[0] != last else None


def _loads_of(reader: Stage, tensor: str) -> list[Load]:
    """The reads of a tensor."""
    return [x for x in loads(reader.compute.body) if x.tensor == tensor]
