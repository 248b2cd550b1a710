"""Tasks are made ready in the runner's process while the caller searches.

In: tasks whose references are being built. Out: `PrepareResult`s, which a task waits for before its
first kernel runs. A thread of its own waits for the reference of each task and has the runner make
inputs and expected outputs, one task after the other. Nothing is timed meanwhile: whoever runs a
kernel calls `settle` first. Other runners than `LocalRunner` prepare when they are asked.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ansorlite.measure.runner import CheckSpec, LocalRunner, PrepareResult, Runner


class PreparesAhead:
    """One runner, used by one thread at a time: the caller's, or the one that prepares."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._thread: ThreadPoolExecutor | None = None
        self._begun: dict[str, Future[PrepareResult | None]] = {}
        self._turn = threading.Lock()  # held while the runner prepares a task

    def begin(self, key: str, spec: Callable[[], CheckSpec | None]) -> None:
        """Prepare a task after those begun before; `spec` may wait, None leaves the task out."""
        if not isinstance(self._runner, LocalRunner) or key in self._begun:
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "prepares")
        self._begun[key] = self._thread.submit(self._prepared, key, spec)

    def ready(self, key: str, spec: CheckSpec) -> PrepareResult:
        """The result of a task that was begun, or of `prepare` now. Raises what the runner did."""
        begun = self._begun.pop(key, None)
        known = None if begun is None else begun.result()
        return known or self.settled.prepare(key, spec)

    @property
    def settled(self) -> Runner:
        """The runner, which prepares nothing any more: tasks that wait are left out."""
        for key, begun in list(self._begun.items()):
            if begun.cancel():
                del self._begun[key]
        for begun in self._begun.values():
            begun.exception()  # waits
        return self._runner

    @contextmanager
    def held(self) -> Iterator[None]:
        """No task is being prepared during the body; they go on afterwards."""
        with self._turn:
            yield

    def close(self) -> None:
        """Give up what was begun; a task that is being prepared fails."""
        if self._thread is None:
            return
        for begun in self._begun.values():
            begun.cancel()
        if self._turn.locked() and isinstance(self._runner, LocalRunner):
            self._runner.abort()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._thread = None
        self._begun.clear()

    def _prepared(self, key: str, spec: Callable[[], CheckSpec | None]) -> PrepareResult | None:
        known = spec()
        if known is None:
            return None
        with self._turn:
            return self._runner.prepare(key, known)
