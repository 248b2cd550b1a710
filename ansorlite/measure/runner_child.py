"""The inside of the runner process: check and time kernels on the data of their task.

Flow: `LocalRunner` sends ("prepare", key, spec, None) once, then ("run", key, image, best), and in
the end ("race", key, images, seconds). The first makes random inputs, runs the plain reference
kernel on them and checks sampled outputs of it against numpy. The second loads a kernel, runs it
once on poisoned outputs, compares with the reference, and only then takes the time. The third does
the same for several kernels, which then run in turn. Out: `PrepareResult`, `MeasureResult`s; times
in seconds.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx
import numpy as np

from ansorlite.calls import Array
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.loader import NativeFunction, load_image
from ansorlite.codegen.openmp import max_threads
from ansorlite.errors import MeasureError
from ansorlite.measure.canary import local_canary
from ansorlite.measure.compare import Expected, describe
from ansorlite.measure.inputs import random_inputs
from ansorlite.measure.memory import GuardedBuffer, guarded_copy, guarded_empty
from ansorlite.measure.race import ranked, run_turns
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.rotation import rotated
from ansorlite.measure.runner import CheckSpec, PrepareResult, Reference
from ansorlite.measure.timing import TimingPolicy, time_kernel
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.evaluate import evaluate_points

Answer = tuple[PrepareResult, Reference] | MeasureResult | list[MeasureResult] | None
SAMPLES = 1000
MAX_PACKED = 8  # packed constants kept a task: most candidates of a round share a layout
AGAIN = 3  # times at most that a turn of a race is taken where the machine is disturbed
TURN_S = 0.005  # of a race: its median counts, not the lowest
FLUSH_BYTES = 1 << 26  # at least, where the last cache is small or unknown


@dataclass
class TaskData:
    """What is kept of a task between its kernels; `packed` holds constants by name and layout."""

    dag: ComputeDAG
    inputs: dict[str, GuardedBuffer]
    outputs: dict[str, GuardedBuffer]
    expected: dict[str, Expected]
    packed: dict[Param, GuardedBuffer] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        buffers = [*self.inputs.values(), *self.outputs.values(), *self.packed.values()]
        return sum(b.size_bytes for b in buffers) + sum(e.nbytes for e in self.expected.values())


def serve(policy: TimingPolicy, memory_bytes: int) -> Callable[[Any], Any]:
    """The handler of the runner's requests; a run of an unknown task is answered with None."""
    tasks: OrderedDict[str, TaskData] = OrderedDict()
    flush = _make_flush() if policy.cold else None
    canary = local_canary(max_threads())

    def handle(request: tuple[Any, ...]) -> Answer:
        match request:
            case ("prepare", key, spec, known):
                tasks[key], result, reference = _prepare(spec, known)
                while len(tasks) > 1 and sum(t.nbytes for t in tasks.values()) > memory_bytes:
                    tasks.popitem(last=False)
                return result, reference
            case ("run", key, image, best_latency_s):
                if key not in tasks:
                    return None
                tasks.move_to_end(key)
                return _run(tasks[key], image, policy, best_latency_s, flush, canary.disturbed)
            case ("race", key, images, budget_s):
                if key not in tasks:
                    return None
                return _race(tasks[key], images, policy, budget_s, flush, canary.disturbed)
        raise MeasureError(f"the runner does not understand {request!r}")

    return handle


def _prepare(spec: CheckSpec, known: Reference | None) -> tuple[TaskData, PrepareResult, Reference]:
    start, error, latency_s = time.perf_counter(), 0.0, None
    if known is not None:  # made and checked by a predecessor of this process
        values = random_inputs(spec.dag, spec.seed, positive=known.positive)
        reference = known
    else:
        values, reference, latency_s = make_reference(spec)
        error = max(_check_samples(spec, values, n, x) for n, x in reference.outputs.items())
    outputs = reference.outputs
    task = TaskData(
        spec.dag,
        {name: guarded_copy(x, read_only=True) for name, x in values.items()},
        {name: guarded_empty(x.shape, x.dtype) for name, x in outputs.items()},
        {name: Expected(x, spec.tolerance(x.dtype.name)) for name, x in outputs.items()},
    )
    spent_s = time.perf_counter() - start
    return task, PrepareResult(True, "", spent_s, error, latency_s), reference


def make_reference(spec: CheckSpec) -> tuple[dict[str, Array], Reference, float]:
    """Inputs, what the reference kernel makes of them, and the seconds of that one run."""
    values = random_inputs(spec.dag, spec.seed)
    outputs, seconds = _run_reference(spec, values)
    if all(np.isfinite(x).all() for x in outputs.values()):
        return values, Reference(outputs, False), seconds
    # NaN equals NaN in a comparison and shows nothing: logarithms and roots want positive inputs
    values = random_inputs(spec.dag, spec.seed, positive=True)
    outputs, seconds = _run_reference(spec, values)
    return values, Reference(outputs, True), seconds


def _run_reference(spec: CheckSpec, values: dict[str, Array]) -> tuple[dict[str, Array], float]:
    given = _viewed(spec.meant, values)
    inputs = {name: guarded_copy(x, read_only=True) for name, x in given.items()}
    outputs = {op.name: guarded_empty(op.shape, op.dtype) for op in spec.meant.outputs}
    buffers = _bind(TaskData(spec.meant, inputs, outputs, {}), spec.reference)
    _, seconds = _run_poisoned(load_image(spec.reference), buffers)
    shapes = {op.name: op.shape for op in spec.dag.outputs}
    return {name: b.array.reshape(shapes[name]) for name, b in outputs.items()}, seconds


def _viewed(dag: ComputeDAG, values: dict[str, Array]) -> dict[str, Array]:
    """The arrays in the shapes that the inputs of another form of their computation have."""
    return {op.name: values[op.name].reshape(op.shape) for op in dag.inputs}


def _check_samples(spec: CheckSpec, values: dict[str, Array], name: str, x: Array) -> float:
    """Compare some 1,000 elements with numpy, the first and the last among them."""
    rng = np.random.default_rng([spec.seed, SAMPLES])
    flat = np.unique(np.append(rng.integers(0, x.size, SAMPLES), (0, x.size - 1)))
    shape = spec.meant.by_name[name].shape
    # A first digit that is always 0: numpy has no answer for a tensor without dimensions.
    points = np.array(np.unravel_index(flat, (1, *shape)), dtype=np.int64).T[:, 1:]
    given = _viewed(spec.meant, values)
    exact = evaluate_points(spec.meant, given, name, points)
    expected = Expected(exact, spec.tolerance(x.dtype.name))
    deviation = expected.compare(x.reshape(-1)[flat])
    if deviation.n_wrong:
        index = tuple(int(i) for i in points[deviation.index[0]])
        raise MeasureError(
            f"the reference kernel {spec.reference.symbol} is wrong, so nothing can be checked"
            f" against it: {describe(name, deviation, expected, index)} (sampled)"
        )
    return deviation.max_error


def _run(
    task: TaskData,
    image: KernelImage,
    policy: TimingPolicy,
    best_latency_s: float | None,
    flush: Callable[[], None] | None,
    disturbed: Callable[[], bool],
) -> MeasureResult:
    start = time.perf_counter()
    function, buffers = load_image(image), _bind(task, image)
    args, first_s = _run_poisoned(function, buffers)
    max_error, error = _compare(task)
    check_s = time.perf_counter() - start
    if error:
        return MeasureResult(Status.WRONG_OUTPUT, error=error, check_s=check_s, max_error=max_error)

    repeat = _repeat(function, args, image, policy)
    start = time.perf_counter()
    timing = time_kernel(repeat, policy, best_latency_s, flush, first_s, disturbed)
    run_s = time.perf_counter() - start
    start = time.perf_counter()
    max_error, error = _compare(task)
    check_s += time.perf_counter() - start
    if error:
        error = f"right at first, wrong after more runs (a race between threads?): {error}"
        return MeasureResult(
            Status.WRONG_OUTPUT, error=error, run_s=run_s, check_s=check_s, max_error=max_error
        )
    return MeasureResult(
        Status.OK, timing.latency_s, timing.times_s, "", 0.0, run_s, check_s, max_error
    )


def _race(
    task: TaskData,
    images: Sequence[KernelImage],
    policy: TimingPolicy,
    budget_s: float,
    flush: Callable[[], None] | None,
    disturbed: Callable[[], bool],
) -> list[MeasureResult]:
    """Turns of about `TURN_S` each; the outputs are checked before and after them."""
    results, contenders, again = [], [], []
    for image in images:
        start = time.perf_counter()
        function, buffers = load_image(image), _bind(task, image)
        args, first_s = _run_poisoned(function, buffers)
        max_error, error = _compare(task)
        status = Status.WRONG_OUTPUT if error else Status.OK
        check_s = time.perf_counter() - start
        results.append(
            MeasureResult(status, first_s, (first_s,), error, 0.0, 0.0, check_s, max_error)
        )
        contenders.append(
            _turn(_repeat(function, args, image, policy), first_s, flush, disturbed)
            if not error
            else _out
        )
        again.append((function, buffers))
    standings = run_turns(contenders, budget_s)
    for k, (function, buffers) in enumerate(again):
        if standings[k] is not None:
            _run_poisoned(function, buffers)
            _, error = _compare(task)
            if error:
                results[k] = MeasureResult(Status.WRONG_OUTPUT, error=error)
    return ranked(results, standings)


def _out() -> None:
    """The turn of a contender that failed."""


def _turn(
    repeat: Callable[[int], float],
    first_s: float,
    flush: Callable[[], None] | None,
    disturbed: Callable[[], bool],
) -> Callable[[], float | None]:
    """Seconds a call of some calls that take about `TURN_S`, of one after a flush.

    After a disturbance it is that contender's turn again, since it may have been hit alone.
    """
    inner = 1
    if flush is None and first_s < TURN_S:
        once_s = min(repeat(1) for _ in range(AGAIN))  # one that was disturbed says nothing
        inner = max(1, round(TURN_S / max(once_s, 1e-7)))

    def turn() -> float | None:
        for _ in range(AGAIN):
            if flush is not None:
                flush()
            seconds = repeat(inner) / inner
            if not disturbed():
                break
        return seconds

    return turn


def _repeat(
    function: NativeFunction, args: Any, image: KernelImage, policy: TimingPolicy
) -> Callable[[int], float]:
    """Seconds that n calls take."""
    calls = rotated(function, args, image) if policy.fresh_constants else None

    def repeat(n: int) -> float:
        begin = time.perf_counter_ns()
        if calls is None:
            function.repeat(args, n)
        else:
            calls.run(n)
        return (time.perf_counter_ns() - begin) * 1e-9

    return repeat


def _run_poisoned(function: NativeFunction, buffers: Sequence[GuardedBuffer]) -> tuple[Any, float]:
    """Run once, every writable buffer poisoned before: (the kernel's arguments, seconds)."""
    for buffer in buffers:
        if buffer.array.flags.writeable:
            buffer.poison()
    args = function.pointer_array([b.array for b in buffers])
    start = time.perf_counter()
    function.repeat(args, 1)  # and not `call`: whatever the first use of `repeat` costs, it is paid
    return args, time.perf_counter() - start


def _compare(task: TaskData) -> tuple[float, str]:
    """The largest error over all outputs, and the first wrong one in words."""
    worst, text = 0.0, ""
    for name, expected in task.expected.items():
        deviation = expected.compare(task.outputs[name].array)
        worst = max(worst, deviation.max_error)
        if deviation.n_wrong and not text:
            text = describe(name, deviation, expected)
    return worst, text


def _bind(task: TaskData, image: KernelImage) -> list[GuardedBuffer]:
    """The buffers that the kernel's pointers are to point to."""
    missing = set(task.outputs) - {p.name for p in image.params if p.role == "output"}
    if missing:
        raise MeasureError(f"kernel {image.symbol} does not write {', '.join(sorted(missing))}")
    return [_buffer(task, p, image.symbol) for p in image.params]


def _buffer(task: TaskData, param: Param, kernel: str) -> GuardedBuffer:
    match param.role:
        case "workspace":
            return guarded_empty(param.stored_shape, param.dtype)
        case "output":
            found = task.outputs.get(param.name)
        case _:
            found = task.inputs.get(param.name)
            if param.layout or found is None:
                return _packed(task, param, kernel)
    if found is None or (found.array.shape, found.array.dtype) != (
        param.stored_shape,
        np.dtype(param.dtype),
    ):
        has = f"{found.array.dtype}{list(found.array.shape)}" if found else "no such tensor"
        raise MeasureError(
            f"kernel {kernel} has {param.role} {param.name} as {param.dtype}"
            f"{list(param.stored_shape)}, the task has {has}"
        )
    return found


def _packed(task: TaskData, param: Param, kernel: str) -> GuardedBuffer:
    """A constant in the kernel's layout, or a stage that is computed from constants alone."""
    if param not in task.packed:
        if len(task.packed) >= MAX_PACKED:
            task.packed.pop(next(iter(task.packed)))
        x = _value(task, param.name, kernel)
        packed = param.layout.pack(x) if param.layout else x
        task.packed[param] = guarded_copy(packed, read_only=True)
    return task.packed[param]


def _value(task: TaskData, name: str, kernel: str) -> Array:
    values = {name: buffer.array for name, buffer in task.inputs.items()}
    if name in values:
        return values[name]
    if name not in task.dag.by_name:
        raise MeasureError(f"kernel {kernel} reads {name}, which the task does not have")
    needed = {name} | nx.ancestors(task.dag.graph, name)
    part = ComputeDAG.from_ops([op for op in task.dag.ops if op.name in needed], (name,))
    return part.evaluate(values)[name]


def _make_flush() -> Callable[[], None]:
    """A function that pushes everything else out of the caches that the cores share."""
    words = np.zeros(max(2 * Target.detect().l3_bytes, FLUSH_BYTES) // 8, dtype=np.int64)

    def flush() -> None:
        np.add(words, 1, out=words)

    return flush
