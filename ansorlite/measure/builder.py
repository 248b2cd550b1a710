"""Compiles candidates in parallel processes.

Flow: search -> requests -> `PoolBuilder.build` -> `BuildOutcome`s in the same order, each with a
`KernelImage` or an error -> runner. Times are in seconds. The entry function `entry(request,
shared)` defines the form of a request. `shared` maps keys to the objects given to `share`: an
object that many requests use (a sketch's program) is sent to each worker once, and requests name it
by its key.
"""

import gc
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Protocol, Self

from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MachineError, UsageError
from ansorlite.measure.child import load_entry
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.worker import Reply, Worker
from ansorlite.settings import settings
from ansorlite.target import Target

BUILD_ENTRY = "ansorlite.codegen.build:build_request"
YOUNG_OBJECTS = 20_000  # made since the last garbage collection of a worker
NICER = 10  # priority levels below the process that searches, for which all others wait
LOOK_S = 0.2  # a build that goes on in a thread looks so often whether it is to stop


@dataclass(frozen=True)
class BuildOutcome:
    """One build: `image` is None unless the status is OK; `build_s` are the worker's seconds."""

    status: Status
    image: KernelImage | None = None
    error: str = ""
    build_s: float = 0.0

    def as_result(self) -> MeasureResult:
        """The `MeasureResult` of a candidate whose build failed."""
        return MeasureResult(self.status, error=self.error, build_s=self.build_s)


@dataclass(frozen=True)
class Wanted:
    """A request for `PoolBuilder.serve`: objects to share first, and who is told the outcome."""

    request: Any
    done: Callable[[BuildOutcome], None]
    shared: Mapping[str, object] = field(default_factory=dict)


class Builder(Protocol):
    """Protocol: turns requests into kernel images; a failed build is an outcome, no exception."""

    def share(self, key: str, value: object) -> None: ...
    def unshare(self, key: str) -> None: ...
    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]: ...
    def close(self) -> None: ...


@dataclass
class _Batch:
    """Requests that are built together; all but `requests` hold their numbers."""

    requests: list[Any] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    busy: dict[Worker, int] = field(default_factory=dict)
    outcomes: dict[int, BuildOutcome] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)

    @property
    def open(self) -> bool:
        return bool(self.waiting or self.busy)

    def in_order(self) -> list[BuildOutcome]:
        return [self.outcomes[k] for k in range(len(self.requests))]


class PoolBuilder:
    """Builds in `n_workers` processes, by default one per core.

    They start in the background, `at_once` or with the first build.

    A build longer than `timeout_s` is BUILD_TIMEOUT. A build that raises, or ends its process (an
    LLVM assertion), is BUILD_ERROR. If another process or the system killed or stopped the worker,
    the request is built once more. A worker is replaced after `max_tasks` builds, because LLVM
    leaks about 95 KiB per build. Raises UsageError for `n_workers` below 1 or a `timeout_s` that is
    not positive.

    Example::

        with PoolBuilder() as builder:
            builder.share("program", program)
            outcomes = builder.build([BuildRequest("program", values, target)])
    """

    def __init__(
        self,
        n_workers: int | None = None,
        *,
        timeout_s: float = 15.0,
        max_tasks: int = 1000,
        entry: str = BUILD_ENTRY,
        at_once: bool = True,
    ) -> None:
        if n_workers is not None and n_workers < 1:
            raise UsageError(f"n_workers is {n_workers}: give at least 1")
        if not timeout_s > 0:
            raise UsageError(f"timeout_s of builds is {timeout_s}: give a positive number")
        n_workers = n_workers or settings().build_workers or Target.detect().cores
        # Otherwise numpy starts one BLAS thread per core in each worker, which has no use for them.
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._timeout_s = timeout_s
        self._shared: dict[str, tuple[int, bytes]] = {}  # serial number and pickle
        self._serial = 0
        self._stopped = False
        self._ahead = _Batch()
        self._shipped: dict[Worker, tuple[int, dict[str, int]]] = {}  # child's generation, serials
        self._workers = [
            Worker(f"{__name__}:serve", (entry,), name=f"builder {k}", env=env, max_tasks=max_tasks)
            for k in range(n_workers)
        ]
        if at_once:
            self.warm_up()

    @property
    def n_workers(self) -> int:
        """Processes that build side by side."""
        return len(self._workers)

    def warm_up(self, most: int | None = None) -> None:
        """Start the workers, or the first `most`, that do not run; returns without waiting."""
        for worker in self._workers[:most]:
            worker.start()

    def pause(self) -> None:
        """Stop the workers where they are, also from another thread; `resume` lets them go on."""
        for worker in self._workers:
            worker.pause()

    def resume(self) -> None:
        """Let paused workers go on."""
        for worker in self._workers:
            worker.resume()

    def share(self, key: str, value: object) -> None:
        """Give the entry function `value` as `shared[key]`, from the next build on.

        A second value for a key replaces the first.
        """
        packed = pickle.dumps(value, protocol=5)
        if key not in self._shared or self._shared[key][1] != packed:
            self._serial += 1
            self._shared[key] = (self._serial, packed)

    def unshare(self, key: str) -> None:
        """Forget a shared object, here and in the workers."""
        self._shared.pop(key, None)

    def build(self, requests: Sequence[Any]) -> list[BuildOutcome]:
        """Build all requests; returns outcomes in the order of the requests.

        Returns only when no worker is building or starting, so that later measurements have the
        machine to themselves. Raises MachineError where workers cannot start; a failed request is
        an outcome.
        """
        self.warm_up()
        batch = _Batch(list(requests), deque(range(len(requests))))
        with self._given_up(batch):
            while batch.open or any(w.starting for w in self._workers):
                self._step(batch)
                self._wait_for_replies()
        return batch.in_order()

    def serve(self, wanted: deque[Wanted], woken: int) -> None:
        """Build all that is `wanted`, also what is appended meanwhile; outcomes are told at once.

        `woken` is a file descriptor that can be read once something was appended. Returns, as
        `build` does, only when no worker is building or starting.
        """
        self.warm_up()
        batch, done = _Batch(), dict[int, Callable[[BuildOutcome], None]]()
        with self._given_up(batch):
            while wanted or batch.open or any(w.starting for w in self._workers):
                while wanted:
                    one = wanted.popleft()
                    for key, value in one.shared.items():
                        self.share(key, value)
                    done[len(batch.requests)] = one.done
                    batch.waiting.append(len(batch.requests))
                    batch.requests.append(one.request)
                self._step(batch)
                for k in list(batch.outcomes):
                    done.pop(k)(batch.outcomes.pop(k))
                self._wait_for_replies(woken)

    def begin(self, request: Any) -> None:
        """Have a request built while the caller does something else; `finish` gives its outcome.

        Workers take up requests when they are idle at this call or at the next one.
        """
        self.warm_up()
        self._ahead.requests.append(request)
        self._ahead.waiting.append(len(self._ahead.requests) - 1)
        with self._given_up(self._ahead):
            self._step(self._ahead)

    def finish(self) -> list[BuildOutcome]:
        """The outcomes of all requests begun since the last call, in their order."""
        batch, self._ahead = self._ahead, _Batch()
        with self._given_up(batch):
            while batch.open:
                self._step(batch)
                if batch.open:
                    self._wait_for_replies()
        return batch.in_order()

    def _step(self, batch: "_Batch") -> None:
        """Take the answers that are there, and give idle workers what waits."""
        for worker in self._workers:
            if (reply := worker.poll()) is not None:
                k = batch.busy.pop(worker)
                if reply.outside and k not in batch.repeated:
                    batch.repeated.add(k)
                    batch.waiting.appendleft(k)
                else:
                    batch.outcomes[k] = _outcome(reply)
            if batch.waiting and worker.idle:
                batch.busy[worker] = batch.waiting.popleft()
                # A separate pickle: a bad request must not lose updates of shared objects.
                packed = pickle.dumps(batch.requests[batch.busy[worker]], protocol=5)
                worker.submit((packed, *self._updates(worker)), self._timeout_s)

    @contextmanager
    def _given_up(self, batch: "_Batch") -> Iterator[None]:
        """Close the workers of a batch whose answers will not be read, where the body fails."""
        try:
            yield
        except BaseException:
            for worker in batch.busy:
                worker.close()
            raise

    def stop(self) -> None:
        """From another thread: a `build` in progress fails soon; `close` is to follow."""
        self._stopped = True

    def close(self) -> None:
        """Kill the workers; a later build starts new ones."""
        self._stopped = False
        for worker in self._workers:  # all of them end at the same time
            worker.interrupt()
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

    def _updates(self, worker: Worker) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """(shared objects that the worker lacks, pickled, by key; keys that it has to forget)."""
        generation, known = self._shipped.get(worker, (0, {}))
        if generation != worker.generation:
            known = {}
        serials = {key: serial for key, (serial, _) in self._shared.items()}
        self._shipped[worker] = (worker.generation, serials)
        new = {k: packed for k, (n, packed) in self._shared.items() if known.get(k) != n}
        return new, tuple(known.keys() - serials.keys())

    def _wait_for_replies(self, woken: int | None = None) -> None:
        if self._stopped:
            raise MachineError("the builder was stopped: make a new one")
        watched = [w for w in self._workers if w.deadline is not None]
        if watched:
            left = [s for w in watched if (s := w.remaining_s()) is not None]
            files = [w.fileno() for w in watched]
            ready = wait([*files, *([] if woken is None else [woken])], min([LOOK_S, *left]))
            if woken in ready:
                os.read(woken, 1 << 12)


def _outcome(reply: Reply) -> BuildOutcome:
    match reply.kind:
        case "value":
            return BuildOutcome(Status.OK, reply.value, "", reply.seconds)
        case "timeout":
            return BuildOutcome(Status.BUILD_TIMEOUT, None, reply.error, reply.seconds)
        case _:
            return BuildOutcome(Status.BUILD_ERROR, None, reply.error, reply.seconds)


class SharedObjects(Mapping[str, Any]):
    """Inside a worker: the shared objects by key, each unpickled at its first use."""

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
        """Forget the keys `gone`, then add or replace the pickled objects `new`."""
        for key in (*gone, *new):
            self._packed.pop(key, None)
            self._values.pop(key, None)
        self._packed.update(new)


def serve(entry: str) -> Callable[[tuple[bytes, Mapping[str, bytes], Sequence[str]]], Any]:
    """Inside a worker: the handler of build requests."""
    with suppress(OSError):
        os.nice(NICER)
    build = load_entry(entry)
    shared = SharedObjects()
    # What was imported stays, and a build needs most of its objects until its end.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)

    def handle(message: tuple[bytes, Mapping[str, bytes], Sequence[str]]) -> Any:
        request, new, gone = message
        shared.update(new, gone)
        return build(pickle.loads(request), shared)

    return handle
