"""The handler in the runner's process: checks and times kernels on the data of their task.

`LocalRunner` sends these kinds of requests:
- ("prepare", key, spec, known reference or None): make random inputs, run the plain reference
  kernel on them, check samples of its outputs against numpy -> (`PrepareResult`, `Reference`).
- ("run", key, image, best latency or None): load a kernel, run it once on poisoned outputs, compare
  them with the reference, then time the kernel -> `MeasureResult`.
- ("race", key, images, seconds): check several kernels, then run them in turn -> `MeasureResult`s.
- ("reference",): multiply-adds per second now -> float; ("peak",): the machine's limits -> `Peak`.
Times are in seconds.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ansorlite.calls import Array
from ansorlite.codegen.image import KernelImage, Param
from ansorlite.codegen.kernel import derive
from ansorlite.codegen.loader import NativeFunction, SharedJit, load_image
from ansorlite.codegen.openmp import max_threads
from ansorlite.errors import MeasureError
from ansorlite.measure.buffers import Buffers
from ansorlite.measure.canary import local_canary
from ansorlite.measure.compare import Expected, ExpectedBfloat16, describe
from ansorlite.measure.inputs import NormalNumbers, Source, bfloat16_outputs, draw, sources
from ansorlite.measure.memory import GuardedBuffer, guarded_empty, guarded_hole
from ansorlite.measure.peak import Peak, measure_peak
from ansorlite.measure.race import ranked, run_turns
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.rotation import rotated, warm_up
from ansorlite.measure.runner import CheckSpec, PrepareResult, Reference
from ansorlite.measure.timing import TimingPolicy, time_kernel
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG
from ansorlite.te.points import evaluate_points

Answer = tuple[PrepareResult, Reference] | MeasureResult | list[MeasureResult] | float | Peak | None
SAMPLES = 1000  # elements of each output of the reference that are compared with numpy
FEWEST_SAMPLES, SAMPLED_TERMS = 200, 1 << 19  # of long sums
TURN_TRIES = 3  # a turn of a race is repeated up to so many times on a disturbed machine
TURN_S = 0.005  # length of a turn; longer than a repeat of `timing`, since the median counts
FLUSH_BYTES = 1 << 26  # least bytes of a flush, where the last-level cache is small or unknown


@dataclass
class TaskData:
    """The data of a task that its kernels share.

    Tasks share the memory of inputs with equal `sources`, and of outputs of one size.
    """

    spec: CheckSpec
    sources: dict[str, Source]
    inputs: dict[str, GuardedBuffer]
    outputs: dict[str, GuardedBuffer]
    expected: dict[str, Expected]

    @property
    def dag(self) -> ComputeDAG:
        return self.spec.dag

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers and expected outputs."""
        buffers = [*self.inputs.values(), *self.outputs.values()]
        held = sum(e.nbytes for e in self.expected.values())
        return sum(b.size_bytes for b in buffers) + held


def serve(policy: TimingPolicy, memory_bytes: int) -> Callable[[Any], Any]:
    """The handler of the runner's requests; the answer is None where the task has no data here.

    The least recently used tasks are dropped when all data exceeds `memory_bytes`.
    """
    tasks: OrderedDict[str, TaskData] = OrderedDict()
    flush = _make_flush() if policy.cold else None
    buffers, numbers, jit = Buffers(), NormalNumbers(), SharedJit()
    canary = local_canary(max_threads(), policy.patience_s)
    if policy.fresh_constants:
        warm_up()

    def handle(request: tuple[Any, ...]) -> Answer:
        try:
            return answer(request)
        finally:
            buffers.settle()

    def answer(request: tuple[Any, ...]) -> Answer:
        match request:
            case ("prepare", key, spec, known):
                data = Data(buffers, numbers, tuple(tasks.values()))
                tasks[key], result, reference = _prepare(spec, known, data)
                while len(tasks) > 1 and sum(t.nbytes for t in tasks.values()) > memory_bytes:
                    tasks.popitem(last=False)
                return result, reference
            case ("run", key, image, best_latency_s):
                if key not in tasks:
                    return None
                tasks.move_to_end(key)
                return _run(
                    tasks[key], image, jit, buffers, policy, best_latency_s, flush, canary.disturbed
                )
            case ("race", key, images, budget_s):
                if key not in tasks:
                    return None
                return _race(tasks[key], images, buffers, policy, budget_s, flush, canary.disturbed)
            case ("reference",):
                return canary.rate()
            case ("peak",):
                return measure_peak(Target.detect())
        raise MeasureError(f"the runner does not understand {request!r}")

    return handle


@dataclass(frozen=True)
class Data:
    """What the data of a new task are made of: `tasks` may have some of them already."""

    buffers: Buffers
    numbers: NormalNumbers
    tasks: Collection[TaskData] = ()


def _prepare(
    spec: CheckSpec, known: Reference | None, data: Data
) -> tuple[TaskData, PrepareResult, Reference]:
    """Data of a task; its reference may be known, of another form or another process."""
    start, error, latency_s = time.perf_counter(), 0.0, None
    if known is not None:
        inputs = _inputs(spec, data, known.positive)
        shapes = {op.name: op.shape for op in spec.dag.outputs}
        outputs = {name: x.reshape(shapes[name]) for name, x in known.outputs.items()}
        reference = Reference(outputs, known.positive)
    else:
        inputs, reference, latency_s = make_reference(spec, data)
        error = max(_check_samples(spec, inputs, n, x) for n, x in reference.outputs.items())
    task = TaskData(
        spec,
        sources(spec.meant, spec.seed, positive=reference.positive),
        _viewed(spec.dag, inputs),
        _outputs(spec.dag, data.tasks),
        {name: _expected(spec, name, x) for name, x in reference.outputs.items()},
    )
    spent_s = time.perf_counter() - start
    return task, PrepareResult(True, "", spent_s, error, latency_s), reference


def _outputs(dag: ComputeDAG, tasks: Collection[TaskData]) -> dict[str, GuardedBuffer]:
    """A buffer for each output, in memory of the same output of a task, since one runs at a time.

    All kernels of a task have the same memory, because its place may favour some.
    """
    found: dict[str, GuardedBuffer] = {}
    for k, op in enumerate(dag.outputs):
        others = (list(t.outputs.values())[k] for t in tasks if len(t.outputs) > k)
        size = math.prod(op.shape)
        alike = (b for b in others if b.array.dtype == op.dtype and b.array.size == size)
        buffer = next(alike, None) or guarded_empty(op.shape, op.dtype)
        found[op.name] = replace(buffer, array=buffer.array.reshape(op.shape))
    return found


def _expected(spec: CheckSpec, name: str, reference: Array) -> Expected:
    """The reference of an output, prepared for comparisons of its kind."""
    if name in bfloat16_outputs(spec.dag):
        return ExpectedBfloat16(reference, spec.tolerance("float32"))
    return Expected(reference, spec.tolerance(reference.dtype.name))


def make_reference(
    spec: CheckSpec, data: Data
) -> tuple[dict[str, GuardedBuffer], Reference, float]:
    """(inputs, outputs of the reference kernel, seconds of its single run)."""
    inputs = _inputs(spec, data)
    outputs, seconds = _run_reference(spec, inputs, data.buffers)
    if all(np.isfinite(x).all() for x in outputs.values()):
        return inputs, Reference(outputs, False), seconds
    # NaN in the reference would hide errors. Logarithms and roots need positive inputs.
    inputs = _inputs(spec, data, positive=True)
    outputs, seconds = _run_reference(spec, inputs, data.buffers)
    return inputs, Reference(outputs, True), seconds


def _inputs(spec: CheckSpec, data: Data, positive: bool = False) -> dict[str, GuardedBuffer]:
    """Random inputs of the computation that is meant: the same for all of its forms."""
    found: dict[str, GuardedBuffer] = {}
    wanted = sources(spec.meant, spec.seed, positive=positive)
    for op in spec.meant.inputs:
        source = wanted[op.name]
        known = (t.inputs[n] for t in data.tasks for n, s in t.sources.items() if s == source)
        buffer = next(known, None)
        if buffer is None:
            buffer = guarded_empty(op.shape, op.dtype)
            draw(source, buffer.array.reshape(-1), data.numbers)
            buffer.protect()
        found[op.name] = replace(buffer, array=buffer.array.reshape(op.shape))
    return found


def _run_reference(
    spec: CheckSpec, inputs: dict[str, GuardedBuffer], buffers: Buffers
) -> tuple[dict[str, Array], float]:
    outputs = {op.name: guarded_empty(op.shape, op.dtype) for op in spec.meant.outputs}
    meant = replace(spec, dag=spec.meant, meaning=None)
    bound = _bind(TaskData(meant, {}, inputs, outputs, {}), spec.reference, buffers)
    _, seconds = _run_poisoned(load_image(spec.reference), bound)
    shapes = {op.name: op.shape for op in spec.dag.outputs}
    return {name: b.array.reshape(shapes[name]) for name, b in outputs.items()}, seconds


def _viewed(dag: ComputeDAG, inputs: dict[str, GuardedBuffer]) -> dict[str, GuardedBuffer]:
    """The inputs in the shapes of `dag`, a form of the same computation."""
    named = ((op, inputs[op.name]) for op in dag.inputs)
    return {op.name: replace(b, array=b.array.reshape(op.shape)) for op, b in named}


def _check_samples(spec: CheckSpec, inputs: dict[str, GuardedBuffer], name: str, x: Array) -> float:
    """Largest error of random elements, the first and the last, compared with numpy.

    There are `SAMPLES` of them, of long sums fewer. Raises MeasureError for a wrong element.
    """
    rng = np.random.default_rng([spec.seed, SAMPLES])
    n = min(SAMPLES, max(FEWEST_SAMPLES, SAMPLED_TERMS // spec.reduction_length))
    flat = np.unique(np.append(rng.integers(0, x.size, n), (0, x.size - 1)))
    shape = spec.meant.by_name[name].shape
    # An extra first axis of extent 1, because unravel_index needs at least one axis.
    points = np.array(np.unravel_index(flat, (1, *shape)), dtype=np.int64).T[:, 1:]
    given = {name: b.array for name, b in _viewed(spec.meant, inputs).items()}
    exact = evaluate_points(spec.meant, given, name, points)
    expected = _expected(spec, name, exact)
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
    jit: SharedJit,
    buffers: Buffers,
    policy: TimingPolicy,
    best_latency_s: float | None,
    flush: Callable[[], None] | None,
    disturbed: Callable[[], bool],
) -> MeasureResult:
    start = time.perf_counter()
    function, bound = load_image(image, jit=jit), _bind(task, image, buffers)
    args, first_s = _run_poisoned(function, bound)
    max_error, error = _compare(task)
    check_s = time.perf_counter() - start
    if error:
        return MeasureResult(Status.WRONG_OUTPUT, error=error, check_s=check_s, max_error=max_error)

    repeats = _Repeats(function, args, image, policy)
    start = time.perf_counter()
    timing = time_kernel(repeats, policy, best_latency_s, flush, first_s, disturbed)
    run_s = time.perf_counter() - start
    start = time.perf_counter()
    repeats.settle()
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
    buffers: Buffers,
    policy: TimingPolicy,
    budget_s: float,
    flush: Callable[[], None] | None,
    disturbed: Callable[[], bool],
) -> list[MeasureResult]:
    """Check the kernels, run them in turns of about `TURN_S`, check them again."""
    results, contenders, loaded = [], [], []
    for image in images:
        start = time.perf_counter()
        function, bound = load_image(image), _bind(task, image, buffers)
        args, first_s = _run_poisoned(function, bound)
        max_error, error = _compare(task)
        status = Status.WRONG_OUTPUT if error else Status.OK
        check_s = time.perf_counter() - start
        results.append(
            MeasureResult(status, first_s, (first_s,), error, 0.0, 0.0, check_s, max_error)
        )
        contenders.append(
            _turn(_Repeats(function, args, image, policy), first_s, flush, disturbed)
            if not error
            else _failed_turn
        )
        loaded.append((function, bound))
    standings = run_turns(contenders, budget_s)
    for k, (function, bound) in enumerate(loaded):
        if standings[k] is not None:
            _run_poisoned(function, bound)
            _, error = _compare(task)
            if error:
                results[k] = MeasureResult(Status.WRONG_OUTPUT, error=error)
    return ranked(results, standings)


def _failed_turn() -> None:
    """The turn of a contender whose check failed: it has no time."""


def _turn(
    repeat: Callable[[int], float],
    first_s: float,
    flush: Callable[[], None] | None,
    disturbed: Callable[[], bool],
) -> Callable[[], float | None]:
    """A turn: runs about `TURN_S` of calls (with `flush` one call), returns seconds per call.

    A turn on a disturbed machine is repeated, because the disturbance may hit this contender only.
    """
    inner = 1
    if flush is None and first_s < TURN_S:
        once_s = min(repeat(1) for _ in range(TURN_TRIES))  # the lowest: others may be disturbed
        inner = max(1, round(TURN_S / max(once_s, 1e-7)))

    def turn() -> float | None:
        for _ in range(TURN_TRIES):
            if flush is not None:
                flush()
            seconds = repeat(inner) / inner
            if not disturbed():
                break
        return seconds

    return turn


class _Repeats:
    """Call with a number of calls: the seconds that they take together."""

    def __init__(
        self, function: NativeFunction, args: Any, image: KernelImage, policy: TimingPolicy
    ) -> None:
        self._function, self._args = function, args
        self._turns = rotated(function, args, image) if policy.fresh_constants else None
        self._foreign = False  # outputs are of other constants

    def __call__(self, n: int) -> float:
        begin = time.perf_counter_ns()
        if self._turns is None:
            self._function.repeat(self._args, n)
        else:
            self._turns.run(n)
            self._foreign = True
        return (time.perf_counter_ns() - begin) * 1e-9

    def settle(self) -> None:
        """Leave the outputs of the task's own constants."""
        if self._foreign:
            self._function.repeat(self._args, 1)
            self._foreign = False


def _run_poisoned(function: NativeFunction, buffers: Sequence[GuardedBuffer]) -> tuple[Any, float]:
    """Poison every writable buffer, run once; returns (the kernel's arguments, seconds)."""
    for buffer in buffers:
        if buffer.array.flags.writeable:
            buffer.poison()
    args = function.pointer_array([b.array for b in buffers])
    start = time.perf_counter()
    function.repeat(args, 1)  # not `call`: the first use of `repeat` compiles it
    return args, time.perf_counter() - start


def _compare(task: TaskData) -> tuple[float, str]:
    """(largest error over all outputs, text of the first wrong element or "")."""
    worst, text = 0.0, ""
    for name, expected in task.expected.items():
        deviation = expected.compare(task.outputs[name].array)
        worst = max(worst, deviation.max_error)
        if deviation.n_wrong and not text:
            text = describe(name, deviation, expected)
    return worst, text


def _bind(task: TaskData, image: KernelImage, buffers: Buffers) -> list[GuardedBuffer]:
    """The buffers for the kernel's pointers; raises MeasureError where one does not fit."""
    missing = set(task.outputs) - {p.name for p in image.params if p.role == "output"}
    if missing:
        raise MeasureError(f"kernel {image.symbol} does not write {', '.join(sorted(missing))}")
    return [_buffer(task, p, image, buffers) for p in image.params]


def _buffer(task: TaskData, param: Param, image: KernelImage, buffers: Buffers) -> GuardedBuffer:
    kernel = image.symbol
    match param.role:
        case "workspace":
            return buffers.scratch(param.stored_shape, param.dtype)
        case "output":
            found = task.outputs.get(param.name)
        case _:
            found = task.inputs.get(param.name)
            if param.layout or found is None:
                return _constant(task, param, image, buffers)
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


def _constant(task: TaskData, param: Param, image: KernelImage, buffers: Buffers) -> GuardedBuffer:
    """A constant in the kernel's layout, or a stage computed from constants only."""
    if param.name in image.unread:
        return guarded_hole(param.stored_shape, param.dtype)
    if param.layout is None:
        return _derived(task, param, image, buffers)
    key = (_origin(task, param, image), param.shape, param.layout)
    found = buffers.kept(key)
    if found is None:
        known = task.inputs.get(param.name) or _derived(task, param, image, buffers)
        found = buffers.scratch(param.stored_shape, known.array.dtype)
        param.layout.pack_to(found.array, known.array)
        buffers.keep(key, found)
    return found


def _origin(task: TaskData, param: Param, image: KernelImage) -> Hashable:
    """What decides about the elements of a constant, in any task."""
    if param.name in task.sources:
        return task.sources[param.name]
    if param.role == "derived" and image.bound is not None:
        read = [b.name for b in image.bound.params if b.role == "constant"]
        return image.bound, param.name, tuple(task.sources[name] for name in read)
    return task.dag.workload_key, param.name, tuple(task.sources.items())


def _derived(task: TaskData, param: Param, image: KernelImage, buffers: Buffers) -> GuardedBuffer:
    """A stage computed from constants only, in the shape of its tensor."""
    name, values = param.name, {name: buffer.array for name, buffer in task.inputs.items()}
    if name not in task.dag.by_name:
        raise MeasureError(f"kernel {image.symbol} reads {name}, which the task does not have")
    key = (_origin(task, param, image), param.shape, None)
    found = buffers.kept(key)
    if found is not None:
        return found
    if param.role == "derived" and image.bound is not None:
        # Natively: numpy takes tenths of a second for the weights of a large layer.
        made: dict[str, GuardedBuffer] = {}

        def empty(p: Param) -> Array:
            made[p.name] = buffers.scratch(p.shape, p.dtype)
            return made[p.name].array

        derive(image.bound, Target.detect(), values, empty)
        for p in image.params:
            if p.role == "derived" and p.name not in image.unread:
                buffers.keep((_origin(task, p, image), p.shape, None), made[p.name])
        found = buffers.kept(key)
    if found is None:
        needed = task.dag.above(name)
        part = ComputeDAG.from_ops([op for op in task.dag.ops if op.name in needed], (name,))
        found = buffers.kept_copy(key, part.evaluate(values)[name])
    return found


def _make_flush() -> Callable[[], None]:
    """A function that evicts all other data from the last-level cache by writing a large array."""
    words = np.zeros(max(2 * Target.detect().l3_bytes, FLUSH_BYTES) // 8, dtype=np.int64)

    def flush() -> None:
        np.add(words, 1, out=words)

    return flush
