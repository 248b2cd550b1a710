"""Runs candidates in a separate process: checks their outputs and measures their latency.

Flow: builder -> `KernelImage` -> `LocalRunner.run` -> `MeasureResult` -> search. Before the first
run of a task, `prepare` gives the runner a `CheckSpec`, from which the expected outputs follow. The
runner's process holds the task's data (see `measure.runner_child`). When a candidate hangs or
crashes, the process is killed, replaced and prepared again. One kernel runs at a time. Times are in
seconds.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import numpy.typing as npt

from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MeasureError, UsageError
from ansorlite.measure.compare import default_tolerance
from ansorlite.measure.peak import Peak
from ansorlite.measure.race import pooled
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.timing import TimingPolicy
from ansorlite.measure.worker import Reply, Worker
from ansorlite.settings import settings
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG

CHILD_ENTRY = "ansorlite.measure.runner_child:serve"
MEMORY_BYTES = 4 << 30
ATTEMPTS = 3  # tries to prepare a task's data and answer a request in the same process
HEATS = 3  # parts of a long race
HEAT_S = 0.8  # least seconds of each heat, where a race has several
CRASH_HINT = (
    " (usual causes: an access outside a buffer, or a write to an input; buffers lie between"
    " guard pages and inputs are read-only)"
)


@dataclass(frozen=True)
class CheckSpec:
    """How the outputs of a task's kernels are checked.

    Inputs are random, from `seed`. `reference` is the kernel of the plain schedule with float64
    accumulators; its outputs are checked against numpy on sampled elements. `reduction_length` is
    the number of terms of the longest sum; the tolerance follows from it (see `measure.compare`)
    unless `rtol` is given, for algorithms that lose digits by design, such as Winograd's. For such
    algorithms `meaning` is the computation of the reference, with the same inputs and outputs up to
    their shapes.
    """

    dag: ComputeDAG
    seed: int
    reference: KernelImage
    reduction_length: int = 1
    rtol: float | None = None
    meaning: ComputeDAG | None = None

    @property
    def meant(self) -> ComputeDAG:
        """The computation of the reference: `meaning`, or `dag` without one."""
        return self.meaning or self.dag

    def means_the_same(self, other: "CheckSpec") -> bool:
        """Is the other of the same computation, maybe in another form, on the same inputs?"""
        one, two = self.meant, other.meant
        return (self.seed, one.workload_key, one.output_names, _names(one)) == (
            other.seed,
            two.workload_key,
            two.output_names,
            _names(two),
        )

    def tolerance(self, dtype: str) -> float:
        """Relative tolerance for an output of `dtype`; 0 for integers."""
        default = default_tolerance(dtype, self.reduction_length)
        return default if self.rtol is None or default == 0 else self.rtol


@dataclass(frozen=True)
class PrepareResult:
    """Whether a task can be measured; `max_error` is the reference's largest error on samples.

    `latency_s` is the time of the reference's single run, None where its outputs were known.
    """

    ok: bool
    error: str = ""
    prepare_s: float = 0.0
    max_error: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True)
class Reference:
    """Checked outputs of a task's reference kernel; `positive`: its float inputs were positive."""

    outputs: dict[str, npt.NDArray[Any]]
    positive: bool


class Runner(Protocol):
    """Protocol: measures kernel images; a failed run is a result, not an exception."""

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult: ...
    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult: ...
    def close(self) -> None: ...


@runtime_checkable
class SideBySide(Protocol):
    """A runner that measures several kernels of a task at once, on devices of its own."""

    def run_all(
        self,
        task_key: str,
        images: Sequence[KernelImage],
        best_latency_s: Callable[[], float | None],
        go_on: Callable[[], bool],
    ) -> Generator[tuple[int, MeasureResult], None, None]:
        """(number, result) of the images as they are measured; begins no more once not `go_on()`.

        `best_latency_s` is asked before each, see `Runner.run`.
        """
        ...

    def peak(self) -> Peak | None:
        """The limits of the devices; None where they tell none."""
        ...


class LocalRunner:
    """Measures on this machine, in one process that starts in the background.

    The process starts `at_once`, or with the first request. A run may take `timeout_s` in total:
    loading, checking and timing. Kernels use `n_threads` (default: ANSORLITE_NUM_THREADS, else all
    processors that this process may use). The process keeps about `memory_bytes` of the tasks'
    data, and computes dropped data again when needed.
    Raises UsageError for `n_threads` below 1 or a time limit that is not positive.

    Example::

        with LocalRunner() as runner:
            runner.prepare(task.workload_key, spec)
            result = runner.run(task.workload_key, image)
    """

    def __init__(
        self,
        timeout_s: float = 10.0,
        *,
        prepare_timeout_s: float = 60.0,
        n_threads: int | None = None,
        policy: TimingPolicy | None = None,
        max_tasks: int = 2000,
        memory_bytes: int = MEMORY_BYTES,
        at_once: bool = True,
    ) -> None:
        if n_threads is not None and n_threads < 1:
            raise UsageError(f"n_threads is {n_threads}: give at least 1")
        if not (timeout_s > 0 and prepare_timeout_s > 0):
            raise UsageError(
                f"time limits of runs are {timeout_s} s and {prepare_timeout_s} s:"
                " give positive numbers"
            )
        self.n_threads = n_threads or settings().num_threads or Target.detect().cores
        self._timeout_s = timeout_s
        self._prepare_timeout_s = prepare_timeout_s
        self._aborted = False
        # With the reference, so that a replaced process need not compute it again.
        self._tasks: dict[str, tuple[CheckSpec, Reference]] = {}
        env = thread_variables(self.n_threads)
        initargs = (policy or TimingPolicy(), memory_bytes)
        self._worker = Worker(CHILD_ENTRY, initargs, name="runner", env=env, max_tasks=max_tasks)
        if at_once:
            self._worker.start()

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        """Make a task's inputs and reference outputs; call it once before `run`.

        Forms of one computation have one reference.

        The result is not ok where the reference kernel fails or disagrees with numpy.
        """
        known = (own for s, own in self._tasks.values() if s.means_the_same(spec))
        return self._prepare(task_key, spec, next(known, None))

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        """Check and time one kernel; a kernel clearly slower than `best_latency_s` ends early.

        Raises MeasureError if the task was not prepared, MachineError if no process can start.
        """
        self._check_prepared(task_key)
        request = ("run", task_key, image, best_latency_s)
        return _result(self._ask(task_key, request, self._timeout_s))

    def race(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]:
        """Run kernels in turn for about `budget_s`; the latencies of the results rank them.

        See `measure.race`. A long race consists of `HEATS` heats, each but the first in a new
        process, because the placement of memory in a process favours some kernels for as long as
        the process lives. A time-out or a crash during a heat is the result of all its kernels.
        """
        self._check_prepared(task_key)
        n = max(1, min(HEATS, int(budget_s / HEAT_S)))
        heats = [self._heat(task_key, images, budget_s / n)]
        while len(heats) < n and any(r.ok for r in heats[-1]):
            self._worker.close()
            heats.append(self._heat(task_key, images, budget_s / n))
        return pooled(heats)

    def _heat(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]:
        request = ("race", task_key, list(images), budget_s)
        limit_s = self._timeout_s * len(images) + 4 * budget_s
        reply = self._ask(task_key, request, limit_s)
        if reply.kind == "value":
            found: list[MeasureResult] = reply.value
            return found
        return [_failed(reply) for _ in images]

    def _check_prepared(self, task_key: str) -> None:
        if task_key not in self._tasks:
            raise MeasureError(f"task {task_key} was not prepared: call prepare first")

    def _ask(self, task_key: str, request: tuple[Any, ...], limit_s: float) -> Reply:
        """The answer to a request about a task; prepares the task again where its data is lost."""
        for _ in range(ATTEMPTS):
            reply = self._call(request, limit_s)
            if reply.kind != "value" or reply.value is not None:
                return reply
            # The data is not there: the process is new, or dropped the data to save memory.
            ready = self._prepare(task_key, *self._tasks[task_key])
            if not ready.ok:
                return Reply("error", None, ready.error, ready.prepare_s)
        text = f"the data of task {task_key} was lost {ATTEMPTS} times in a row"
        return Reply("error", None, text)

    def _call(self, request: tuple[Any, ...], limit_s: float) -> Reply:
        """One answer; a second try where the system or a user killed or stopped the process."""
        reply = self._worker.call(request, limit_s)
        again = reply.outside and not self._aborted
        return self._worker.call(request, limit_s) if again else reply

    def reference(self) -> float:
        """Multiply-adds per second on the runner's threads now; MeasureError where that fails."""
        found: float = self._figure("reference")
        return found

    def peak(self) -> Peak:
        """The machine's limits (see `measure.peak`); MeasureError where that fails."""
        found: Peak = self._figure("peak")
        return found

    def _figure(self, what: str) -> Any:
        reply = self._call((what,), self._prepare_timeout_s)
        if reply.kind != "value":
            raise MeasureError(f"cannot measure the machine: {reply.error}")
        return reply.value

    def abort(self) -> None:
        """Kill the process, from another thread: what it does fails. `close` is to follow."""
        self._aborted = True
        self._worker.interrupt()

    def close(self) -> None:
        """Kill the process; a later run starts a new one."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _prepare(self, task_key: str, spec: CheckSpec, known: Reference | None) -> PrepareResult:
        request = ("prepare", task_key, spec, known)
        reply = self._call(request, self._prepare_timeout_s)
        if reply.kind == "value":
            result, reference = reply.value
            assert isinstance(result, PrepareResult) and isinstance(reference, Reference)
            self._tasks[task_key] = (spec, reference)
            return result
        error = reply.error + _hint(reply.error)
        if reply.kind != "error":
            error = f"cannot run the reference kernel {spec.reference.symbol}: {error}"
        return PrepareResult(False, error, reply.seconds)


def _names(dag: ComputeDAG) -> list[str]:
    return [op.name for op in dag.inputs]


def thread_variables(n_threads: int) -> dict[str, str]:
    """Environment of the runner's process: `n_threads` for kernels, one for numpy's BLAS."""
    n = str(n_threads)
    numpy = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {**numpy, "ANSORLITE_NUM_THREADS": n, "OMP_NUM_THREADS": n}


def _result(reply: Reply) -> MeasureResult:
    if reply.kind != "value":
        return _failed(reply)
    result: Any = reply.value
    assert isinstance(result, MeasureResult)
    return result


def _failed(reply: Reply) -> MeasureResult:
    if reply.kind == "timeout":
        return MeasureResult(Status.RUN_TIMEOUT, error=reply.error, run_s=reply.seconds)
    error = reply.error + _hint(reply.error)
    return MeasureResult(Status.RUN_ERROR, error=error, run_s=reply.seconds)


def _hint(error: str) -> str:
    return CRASH_HINT if error.startswith(("killed by SIGSEGV", "killed by SIGBUS")) else ""
