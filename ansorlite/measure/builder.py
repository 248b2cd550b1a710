"""Compile candidates in parallel processes.

Flow: search -> requests -> `PoolBuilder.build` -> `BuildOutcome`s in the same order, each with a
`KernelImage` or with the reason why there is none -> runner. Times are in seconds. A request is
whatever the entry function `entry(request, shared)` understands. `shared` maps keys to the objects
given to `share`: what many requests need (a sketch's program) travels once to each worker and is
named in the requests by its key.
"""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Protocol, Self

from ansorlite.codegen.image import KernelImage
from ansorlite.errors import UsageError
from ansorlite.measure.child import load_entry
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.worker import Reply, Worker
from ansorlite.settings import settings
from ansorlite.target import Target

BUILD_ENTRY = "ansorlite.codegen.build:build_request"


@dataclass(frozen=True)
class BuildOutcome:
    """One build: `image` is None unless the status is OK; `build_s` is the worker's time."""

    status: Status
    image: KernelImage | None = None
    error: str = ""
    build_s: float = 0.0

    def as_result(self) -> MeasureResult:
        """The measurement that a failed build amounts to."""
        return MeasureResult(self.status, error=self.error, build_s=self.build_s)


class Builder(Protocol):
    """Whatever turns requests into kernel images; a failure is an outcome, not an exception."""

    def share(self, key: str, value: object) -> None: ...
    def unshare(self, key: str) -> None: ...
    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]: ...
    def close(self) -> None: ...


class PoolBuilder:
    """Builds in `n_workers` processes (default: one a processor), which start at once, unwaited.

    A request that takes longer than `timeout_s` is BUILD_TIMEOUT; one that raises or takes the
    process down with it (an LLVM assertion) is BUILD_ERROR. Where somebody else killed or stopped
    the process, the request is built again, once. Each process is replaced after `max_tasks`
    builds, because LLVM leaks some 95 KiB in each.
    """

    def __init__(
        self,
        n_workers: int | None = None,
        *,
        timeout_s: float = 15.0,
        max_tasks: int = 300,
        entry: str = BUILD_ENTRY,
    ) -> None:
        if n_workers is not None and n_workers < 1:
            raise UsageError(f"{n_workers} processes cannot build anything: at least 1")
        if not timeout_s > 0:
            raise UsageError(f"no build ends within {timeout_s} s: give it some seconds")
        n_workers = n_workers or settings().build_workers or Target.detect().cores
        # numpy would start a BLAS thread a core in every worker, for nothing
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._timeout_s = timeout_s
        self._shared: dict[str, tuple[int, bytes]] = {}  # serial number and pickle
        self._serial = 0
        self._shipped: dict[Worker, tuple[int, dict[str, int]]] = {}  # child's generation, serials
        self._workers = [
            Worker(f"{__name__}:serve", (entry,), name=f"builder {k}", env=env, max_tasks=max_tasks)
            for k in range(n_workers)
        ]
        self.warm_up()

    def warm_up(self) -> None:
        """Start the workers that are not running; returns at once."""
        for worker in self._workers:
            worker.start()

    def share(self, key: str, value: object) -> None:
        """Make `value` known to the entry function as `shared[key]`, from the next build on.

        A key that is given again has the new value from then on.
        """
        packed = pickle.dumps(value, protocol=5)
        if key not in self._shared or self._shared[key][1] != packed:
            self._serial += 1
            self._shared[key] = (self._serial, packed)

    def unshare(self, key: str) -> None:
        """Forget a shared object, here and in the workers."""
        self._shared.pop(key, None)

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        """Build all requests; afterwards no worker is busy, not even with its start.

        What is measured next has the machine for itself. Raises MachineError if workers cannot
        start; whatever a request does is an outcome.
        """
        self.warm_up()
        outcomes: dict[int, BuildOutcome] = {}
        waiting = deque(range(len(requests)))
        busy: dict[Worker, int] = {}
        again: set[int] = set()
        try:
            while waiting or busy or any(w.starting for w in self._workers):
                for worker in self._workers:
                    if (reply := worker.poll()) is not None:
                        k = busy.pop(worker)
                        if reply.outside and k not in again:
                            again.add(k)
                            waiting.appendleft(k)
                        else:
                            outcomes[k] = _outcome(reply)
                    if waiting and worker.idle:
                        busy[worker] = waiting.popleft()
                        # packed by itself: a request that cannot be unpacked costs no news
                        packed = pickle.dumps(requests[busy[worker]], protocol=5)
                        worker.submit((packed, *self._news(worker)), self._timeout_s)
                self._wait_for_news()
        except BaseException:
            for worker in busy:  # nobody will ask for their answers
                worker.close()
            raise
        return [outcomes[k] for k in range(len(requests))]

    def close(self) -> None:
        """Kill the workers; a later build starts new ones."""
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _news(self, worker: Worker) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """Shared objects that the worker lacks, and keys that it may forget."""
        generation, known = self._shipped.get(worker, (0, {}))
        if generation != worker.generation:
            known = {}
        serials = {key: serial for key, (serial, _) in self._shared.items()}
        self._shipped[worker] = (worker.generation, serials)
        new = {k: packed for k, (n, packed) in self._shared.items() if known.get(k) != n}
        return new, tuple(known.keys() - serials.keys())

    def _wait_for_news(self) -> None:
        watched = [w for w in self._workers if w.deadline is not None]
        if watched:
            left = [s for w in watched if (s := w.remaining_s()) is not None]
            wait([w.fileno() for w in watched], min(left, default=None))


def _outcome(reply: Reply) -> BuildOutcome:
    match reply.kind:
        case "value":
            return BuildOutcome(Status.OK, reply.value, "", reply.seconds)
        case "timeout":
            return BuildOutcome(Status.BUILD_TIMEOUT, None, reply.error, reply.seconds)
        case _:
            return BuildOutcome(Status.BUILD_ERROR, None, reply.error, reply.seconds)


class SharedObjects(Mapping[str, Any]):
    """Inside a worker: the shared objects, each unpickled when it is first asked for."""

    def __init__(self) -> None:
        self._packed: dict[str, bytes] = {}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = pickle.loads(self._packed[key])
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def update(self, new: Mapping[str, bytes], gone: Sequence[str]) -> None:
        for key in (*gone, *new):
            self._packed.pop(key, None)
            self._values.pop(key, None)
        self._packed.update(new)


def serve(entry: str) -> Callable[[tuple[bytes, Mapping[str, bytes], Sequence[str]]], Any]:
    """Inside a worker: the handler of build requests."""
    build = load_entry(entry)
    shared = SharedObjects()

    def handle(message: tuple[bytes, Mapping[str, bytes], Sequence[str]]) -> Any:
        request, new, gone = message
        shared.update(new, gone)
        return build(pickle.loads(request), shared)

    return handle
