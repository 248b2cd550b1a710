"""Run candidates in a process of their own, checked and timed.

Flow: builder -> `KernelImage` -> `LocalRunner.run` -> `MeasureResult` -> search. Before the first
run of a task, `prepare` gives its `CheckSpec`: what the outputs have to be. The runner's process
holds the task's data (see `measure.runner_child`); when a candidate hangs or crashes, the process
is killed, replaced and prepared again. One kernel runs at a time. Times are in seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import numpy.typing as npt

from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MeasureError, UsageError
from ansorlite.measure.compare import default_tolerance
from ansorlite.measure.race import pooled
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.timing import TimingPolicy
from ansorlite.measure.worker import Reply, Worker
from ansorlite.settings import settings
from ansorlite.target import Target
from ansorlite.te.dag import ComputeDAG

CHILD_ENTRY = "ansorlite.measure.runner_child:serve"
MEMORY_BYTES = 4 << 30
ATTEMPTS = 3  # to have a task's data and a run of it in the same process
HEATS = 3
HEAT_S = 0.8  # least seconds of a heat, where there are several
CRASH_HINT = (
    " (every buffer lies between guard pages and inputs are read-only: an access outside"
    " a buffer, or a write to an input)"
)


@dataclass(frozen=True)
class CheckSpec:
    """How the outputs of a task's kernels are checked.

    Inputs are random, from `seed`. `reference` is the plain schedule with float64 accumulators;
    it is itself checked against numpy on sampled elements. `reduction_length` is the number of
    terms of the longest sum; `rtol` replaces the tolerance that follows from it (see
    `measure.compare`), for algorithms that lose digits by design, such as Winograd's. For these
    `meaning` is the computation that the reference is of, in the same inputs and outputs or views.
    """

    dag: ComputeDAG
    seed: int
    reference: KernelImage
    reduction_length: int = 1
    rtol: float | None = None
    meaning: ComputeDAG | None = None

    @property
    def meant(self) -> ComputeDAG:
        return self.meaning or self.dag

    def tolerance(self, dtype: str) -> float:
        """Relative tolerance for an output of `dtype`; 0 for integers."""
        default = default_tolerance(dtype, self.reduction_length)
        return default if self.rtol is None or default == 0 else self.rtol


@dataclass(frozen=True)
class PrepareResult:
    """Whether a task can be measured; `max_error` is the reference's largest sampled error.

    `latency_s` is what its one run took, where it was run.
    """

    ok: bool
    error: str = ""
    prepare_s: float = 0.0
    max_error: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True)
class Reference:
    """Checked outputs of a task's reference kernel; `positive` says from what inputs."""

    outputs: dict[str, npt.NDArray[Any]]
    positive: bool


class Runner(Protocol):
    """Whatever measures kernel images; a failure is a result, not an exception."""

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult: ...
    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult: ...
    def close(self) -> None: ...


class LocalRunner:
    """Measures on this machine, in one process that starts at once, unwaited.

    A run may take `timeout_s` for everything: loading, checking and timing. Kernels use
    `n_threads` (default: ANSORLITE_NUM_THREADS, else the processors we may use). Of the data of
    tasks, at most about `memory_bytes` are kept; what was dropped is made again when needed.
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
    ) -> None:
        if n_threads is not None and n_threads < 1:
            raise UsageError(f"{n_threads} threads cannot run anything: at least 1")
        if not (timeout_s > 0 and prepare_timeout_s > 0):
            raise UsageError("no kernel runs within 0 s: give it some seconds")
        self.n_threads = n_threads or settings().num_threads or Target.detect().cores
        self._timeout_s = timeout_s
        self._prepare_timeout_s = prepare_timeout_s
        # with the reference, so that a process that replaces another need not compute it again
        self._tasks: dict[str, tuple[CheckSpec, Reference]] = {}
        env = thread_variables(self.n_threads)
        initargs = (policy or TimingPolicy(), memory_bytes)
        self._worker = Worker(CHILD_ENTRY, initargs, name="runner", env=env, max_tasks=max_tasks)
        self._worker.start()

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        """Make a task's inputs and reference outputs; to be called before `run`, once is enough.

        Not ok where the reference kernel fails or disagrees with numpy.
        """
        return self._prepare(task_key, spec, None)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        """Check and time one kernel; timing ends early if it is clearly slower than the best.

        Raises MeasureError if the task was not prepared, MachineError if no process can start.
        """
        self._check_prepared(task_key)
        request = ("run", task_key, image, best_latency_s)
        return _result(self._ask(task_key, request, self._timeout_s))

    def race(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]:
        """Run kernels in turn for about `budget_s`: results whose latencies rank them.

        See `measure.race`. A long race has `HEATS`, each but the first in a new process, since
        where memory lies in one is luck that lasts. A time-out or a crash of one is the result of
        all.
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
        """The answer to a request about a task, whose data may have to be made again for it."""
        for _ in range(ATTEMPTS):
            reply = self._call(request, limit_s)
            if reply.kind != "value" or reply.value is not None:
                return reply
            # a new process, or dropped for space
            ready = self._prepare(task_key, *self._tasks[task_key])
            if not ready.ok:
                return Reply("error", None, ready.error, ready.prepare_s)
        text = f"the data of task {task_key} was lost {ATTEMPTS} times in a row"
        return Reply("error", None, text)

    def _call(self, request: tuple[Any, ...], limit_s: float) -> Reply:
        """One answer; asks once more where somebody else killed or stopped the process."""
        reply = self._worker.call(request, limit_s)
        return self._worker.call(request, limit_s) if reply.outside else reply

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


def thread_variables(n_threads: int) -> dict[str, str]:
    """Environment of the runner: the threads of kernels, and none of numpy's own beside them."""
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
