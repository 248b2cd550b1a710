"""The plain schedule: a fixed, valid program for any DAG, and the reference for all candidates.

Every stage at root, outer loops parallel, vectors along the contiguous axis, sums in float64. The
plain schedule is the first trial of every task, except of very expensive tasks, so that a valid
result exists; outputs of candidates are checked against its outputs (see `search.reference`).
"""

from dataclasses import replace

from ansorlite.ir.expr import Load, cast
from ansorlite.schedule.holes import Hole
from ansorlite.schedule.state import State
from ansorlite.space.annotate import annotate
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.tensor import ComputeOp, Operation

PLAIN = "plain"  # name of the plain schedule in records, where sketch names stand
_TILE_VECTORS = 2


def with_double_sums(dag: ComputeDAG) -> ComputeDAG:
    """rewrite: C = sum(x) in float32 -> C.f64 = sum(float64(x)); C = float32(C.f64)."""
    ops: list[Operation] = []
    for op in dag.ops:
        if isinstance(op, ComputeOp) and op.combiner == "sum" and op.dtype == "float32":
            wide = replace(op, name=f"{op.name}.f64", body=cast(op.body, "float64"), attrs=())
            load = Load(wide.name, tuple(a.var for a in op.axes), "float64")
            body = cast(load, "float32")
            ops += [wide, replace(op, reduce_axes=(), combiner=None, body=body, attrs=())]
        else:
            ops.append(op)
    return ComputeDAG.from_ops(ops, dag.output_names)


def plain_state(dag: ComputeDAG, target: Target) -> State:
    """The complete state of the plain schedule of `with_double_sums(dag)`."""
    state = annotate(State(with_double_sums(dag)), target)
    return state.fill({h.name: fixed_choice(h, target) for h in state.holes})


def fixed_choice(hole: Hole, target: Target) -> tuple[int, ...]:
    """The choice made without search: full vectors, all loops parallel, no unrolling."""
    match hole.kind:
        case "parallel" | "lanes":
            return hole.options[-1]
        case "unroll" | "factor" | "prefetch" | "stream":
            return hole.options[0]
        case "tile":
            most = _TILE_VECTORS * target.lanes("float32")
            # A vector of small elements may be longer than any tile that fits.
            fitting = [o for o in hole.options if o[-1] <= most] or [min(hole.options)]
            return max(fitting, key=lambda o: (o[-1] % target.lanes("float32") == 0, o[-1]))
