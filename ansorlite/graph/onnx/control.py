"""Readers of control flow: If, Loop, Scan, whose bodies are graphs of the model.

An If whose condition is known takes one branch; else both are computed and the condition selects.
Loops have known trip counts. A Scan, or a long Loop, becomes a `loop` of kernels; where its body
does not allow that, and for short Loops, the steps are written out one after the other.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ansorlite.errors import ModelError
from ansorlite.graph.onnx.context import Context, OnnxNode, Unsupported, axis_of
from ansorlite.graph.onnx.read import MOST_NODES
from ansorlite.graph.onnx.recurrent import recur
from ansorlite.names import brief

SHORT = 32  # steps of a Loop that are written out: what depends on the step's number is folded
MOST_STEPS = 1024  # steps that are written out


def if_(c: Context, n: OnnxNode) -> tuple[str, ...]:
    known = c.known(n, 0)
    if c.type(c.operand(n, 0)).size != 1:
        raise ModelError(f"the condition is {c.type(c.operand(n, 0))}, not one element")
    if known is not None:
        taken = n.attrs["then_branch" if known.item() else "else_branch"]
        return tuple(_counted(n, c.inside(c, taken, ())))
    before, branches, faults = len(c.builder.producers), list[Sequence[str]](), list[ModelError]()
    for branch in BRANCHES:
        try:
            branches.append(_counted(n, c.inside(c, n.attrs[branch], ())))
        except Unsupported:
            raise
        except ModelError as error:
            faults.append(error)
            branches.append(())
    if len(faults) == len(BRANCHES):
        raise faults[0]
    if faults:
        return _only(c, n, branches[0] or branches[1], not branches[0])
    _refuse_indices(c, before)
    condition = c.emit("reshape", [c.operand(n, 0)], shape=())
    out = []
    for k, (a, b) in enumerate(zip(*branches, strict=True)):
        if a in c.sequences or b in c.sequences:
            raise ModelError(f"output {k} is a sequence, and the condition depends on the input")
        if c.type(a) != c.type(b):
            raise ModelError(
                f"output {k} is {c.type(a)} or {c.type(b)}, and the condition depends on the "
                "input: export the model with a fixed condition"
            )
        out.append(a if a == b else c.emit("where", [condition, a, b]))
    return tuple(out)


BRANCHES = ("then_branch", "else_branch")


def _only(c: Context, n: OnnxNode, values: Sequence[str], otherwise: bool) -> tuple[str, ...]:
    """The results of the one branch that these sizes allow; a condition that takes the other is an
    error of the call.

    They are taken from the one row that there is, at 0 for the branch and at 1 for the other.
    """
    taken = c.operand(n, 0) if otherwise else c.emit("logical_not", [c.operand(n, 0)])
    at = c.emit("reshape", [c.emit("cast", [taken], dtype="int64")], shape=(1,))
    out = []
    for v in values:
        if v in c.sequences:
            raise ModelError("an output is a sequence, and the condition depends on the input")
        row = c.emit("reshape", [v], shape=(1, *c.shape(v)))
        name = f"{n.name}, whose other branch does not fit the sizes,"
        row = c.builder.emit("take", [row, at], n.name, name, axis=0)
        out.append(c.emit("reshape", [row], shape=c.shape(v)))
    return tuple(out)


def _counted(n: OnnxNode, values: Sequence[str]) -> Sequence[str]:
    if len(values) < len(n.outputs):
        raise ModelError(f"a branch gives {len(values)} of {len(n.outputs)} outputs")
    return values[: len(n.outputs)]


def _refuse_indices(c: Context, before: int) -> None:
    """Raise a ModelError where nodes from number `before` on check indices at run time.

    Both branches are computed, but only the chosen one may complain of its indices.
    """
    for node in list(c.builder.producers.values())[before:]:
        if c.builder.has_computed_indices(node):
            raise ModelError(
                "the condition depends on the input, and a branch takes elements at computed "
                f"indices (node {brief(node.name)}): export the model with a fixed condition"
            )


# ---- Loop ---------------------------------------------------------------------------------------


def loop(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """A loop with a known number of steps, whose condition stays true or is known at each step."""
    body, count = n.attrs["body"], len(n.inputs) - 2
    states = [c.operand(n, k) for k in range(2, len(n.inputs))]
    if len(body.input) != count + 2 or len(body.output) <= count:
        raise ModelError(f"its body takes {len(body.input)} values for {count} states")
    most = MOST_STEPS + 1
    if c.has(n, 0):
        trips = c.known(n, 0)
        if trips is None or trips.size != 1:
            raise ModelError(
                f"its trip count {brief(n.inputs[0])} depends on the input: export the model with "
                "a fixed count"
            )
        most = max(0, int(trips.item()))
    if c.has(n, 1) and not _known_flag(c, c.operand(n, 1)):
        most = 0
    if c.has(n, 0) and most > SHORT:
        try:
            return _native_loop(c, n, states, most)
        except ModelError:
            if most > MOST_STEPS:
                raise
    rows: list[Sequence[str]] = []
    for t in range(most):
        if t == MOST_STEPS:
            raise ModelError(f"it has more than {MOST_STEPS} steps: export the model unrolled")
        given = [c.constant(np.int64(t), "step"), c.constant(np.bool_(True), "condition")]
        proceed, *made = c.inside(c, body, [*given, *states])
        states = made[:count]
        rows.append(made[count:])
        _check_growth(c)
        if not _known_flag(c, proceed):
            break
    scans = _stacked(c, rows) if rows else _no_steps(c, body, states)
    return (*states, *scans)


def _known_flag(c: Context, value: str) -> bool:
    known = c.builder.constants.get(value)
    if known is None or known.size != 1:
        raise ModelError(
            "its condition depends on the input, and so does the number of its steps: export the "
            "model with a fixed count"
        )
    return bool(known.item())


def _check_growth(c: Context) -> None:
    if len(c.builder.producers) > MOST_NODES:
        raise ModelError(f"written out it makes more than {MOST_NODES} nodes")


def _stacked(c: Context, rows: Sequence[Sequence[str]]) -> list[str]:
    """The results of all steps along a new first axis, output by output."""
    out = []
    for column in zip(*rows, strict=True):
        one = [c.emit("reshape", [v], shape=(1, *c.shape(v))) for v in column]
        out.append(one[0] if len(one) == 1 else c.emit("concat", one, axis=0))
    return out


def _no_steps(c: Context, body: Any, states: Sequence[str]) -> list[str]:
    """Scan outputs without elements; their types are those that one step would make."""
    given = [c.constant(np.int64(0), "step"), c.constant(np.bool_(True), "condition")]
    made = c.inside(c, body, [*given, *states])[1 + len(states) :]
    return [c.constant(np.zeros((0, *c.shape(v)), c.type(v).dtype)) for v in made]


def _native_loop(c: Context, n: OnnxNode, states: list[str], times: int) -> tuple[str, ...]:
    body = n.attrs["body"]
    captured = [v for v in dict.fromkeys(_free(body)) if v in c.values]

    def step(inside: Context, now: list[str], own: list[str], rows: list[str]) -> list[str]:
        inside.values.update(zip(captured, own, strict=True))
        true = inside.constant(np.bool_(True), "condition")
        proceed, *made = inside.inside(inside, body, [rows[0], true, *now])
        if not _known_flag(inside, proceed):
            raise ModelError("its condition ends it before its trip count")
        return list(made)

    numbers = c.constant(np.arange(times, dtype=np.int64), "steps")
    fixed = [c.values[v] for v in captured]
    made = recur(c, times, False, states, fixed, [numbers], step)
    last = [_element(c, v, times - 1) for v in made[: len(states)]]
    return (*last, *made[len(states) :])


def _free(graph: Any) -> Iterator[str]:
    """Names that a body reads from outside, those of inner bodies too."""
    own = {v.name for v in (*graph.input, *graph.initializer)}
    for node in graph.node:
        inner = (g for a in node.attribute for g in (*a.graphs, a.g))
        for v in (*node.input, *(v for g in inner for v in _free(g))):
            if v and v not in own:
                yield v
        own.update(node.output)
    yield from (v.name for v in graph.output if v.name not in own)


# ---- Scan ---------------------------------------------------------------------------------------


def scan(c: Context, n: OnnxNode) -> tuple[str, ...]:
    """States and scanned inputs; the results of all steps are stacked along an axis."""
    if n.opset < 9:
        raise ModelError("Scan of opset 8 has batches of its own: convert the model to opset 9")
    body, scanned = n.attrs["body"], int(n.attrs["num_scan_inputs"])
    count = len(n.inputs) - scanned
    if not 0 < scanned <= len(n.inputs) or len(body.input) != len(n.inputs):
        raise ModelError(f"its body takes {len(body.input)} values, {len(n.inputs)} are given")
    kinds = len(body.output) - count
    if kinds < 0:
        raise ModelError(f"its body gives {len(body.output)} values for {count} states")
    axes = _listed(n, "scan_input_axes", scanned)
    backwards = _listed(n, "scan_input_directions", scanned)
    states = [c.operand(n, k) for k in range(count)]
    sources = []
    for k in range(scanned):
        x = c.operand(n, count + k)
        x = _moved(c, x, axis_of(axes[k], len(c.shape(x))), 0)
        sources.append(_turned(c, x) if backwards[k] else x)
    times = c.shape(sources[0])[0]
    if any(c.shape(v)[0] != times for v in sources):
        raise ModelError(f"its inputs have {[c.shape(v)[0] for v in sources]} steps")
    if times == 0:
        raise ModelError("it scans inputs without elements: give them one step at least")
    try:
        made = _native_scan(c, body, states, sources, times)
    except ModelError:
        if times > MOST_STEPS:
            raise
        made = _written_scan(c, body, states, sources, times)
    out_axes = _listed(n, "scan_output_axes", kinds)
    out_backwards = _listed(n, "scan_output_directions", kinds)
    out = made[:count]
    for v, axis, back in zip(made[count:], out_axes, out_backwards, strict=True):
        v = _turned(c, v) if back else v
        out.append(_moved(c, v, 0, axis_of(axis, len(c.shape(v)))))
    return tuple(out)


def _native_scan(
    c: Context, body: Any, states: list[str], sources: list[str], times: int
) -> list[str]:
    captured = [v for v in dict.fromkeys(_free(body)) if v in c.values]

    def step(inside: Context, now: list[str], own: list[str], rows: list[str]) -> list[str]:
        inside.values.update(zip(captured, own, strict=True))
        return list(inside.inside(inside, body, [*now, *rows]))

    fixed = [c.values[v] for v in captured]
    made = recur(c, times, False, states, fixed, sources, step)
    count = len(states)
    return [*(_element(c, v, times - 1) for v in made[:count]), *made[count:]]


def _written_scan(
    c: Context, body: Any, states: list[str], sources: list[str], times: int
) -> list[str]:
    rows: list[Sequence[str]] = []
    count = len(states)
    for t in range(times):
        made = c.inside(c, body, [*states, *(_element(c, v, t) for v in sources)])
        states = list(made[:count])
        rows.append(made[count:])
        _check_growth(c)
    return [*states, *_stacked(c, rows)]


def _listed(n: OnnxNode, name: str, count: int) -> list[int]:
    given = [int(v) for v in n.attrs.get(name, [0] * count)]
    if len(given) != count:
        raise ModelError(f"{name} has {len(given)} entries, not {count}")
    return given


def _moved(c: Context, x: str, source: int, target: int) -> str:
    """x with axis `source` at place `target`."""
    order = [d for d in range(len(c.shape(x))) if d != source]
    order.insert(target, source)
    return x if order == sorted(order) else c.emit("transpose", [x], perm=tuple(order))


def _turned(c: Context, x: str) -> str:
    """x with its first axis from the end."""
    shape = c.shape(x)
    starts = (shape[0] - 1, *(0 for _ in shape[1:]))
    steps = (-1, *(1 for _ in shape[1:]))
    return c.emit("slice", [x], starts=starts, sizes=shape, steps=steps)


def _element(c: Context, x: str, k: int) -> str:
    """Element k of the first axis."""
    shape = c.shape(x)
    starts, ones = (k, *(0 for _ in shape[1:])), (1,) * len(shape)
    one = c.emit("slice", [x], starts=starts, sizes=(1, *shape[1:]), steps=ones)
    return c.emit("reshape", [one], shape=shape[1:])


READERS = {"If": if_, "Loop": loop, "Scan": scan}
