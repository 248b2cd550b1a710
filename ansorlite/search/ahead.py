"""Builds that go on in the background while the caller searches or trains.

In: shared programs and requests, as a `Builder` takes them. Out: a `Batch`, whose `outcomes` are
waited for before anything is measured, so that kernels have the machine to themselves. A thread of
its own does nothing but wait for the builder's processes, which take requests in the order in which
they were begun, whatever their batches; a builder without `serve` builds batch after batch.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from ansorlite.codegen.build import BuildRequest
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.object_cache import compiled
from ansorlite.errors import MachineError
from ansorlite.ir.program import Program
from ansorlite.measure.builder import Builder, BuildOutcome, Wanted
from ansorlite.target import Target


class Batch:
    """Requests that are being built; `outcomes` waits for them and gives them in order."""

    def __init__(self, n: int) -> None:
        self._made: list[BuildOutcome | None] = [None] * n
        self._left = n
        self._found: Future[list[BuildOutcome]] = Future()
        if not n:
            self._found.set_result([])

    @property
    def done(self) -> bool:
        """Do `outcomes` wait no longer?"""
        return self._found.done()

    @property
    def is_lost(self) -> bool:
        """Will there be no outcomes?"""
        return self._found.done() and self._found.exception() is not None

    def outcomes(self) -> list[BuildOutcome]:
        """Raises what the builder raised."""
        return self._found.result()

    def image(self, k: int) -> KernelImage | None:
        """That of a request, if it is built by now."""
        made = self._made[k]
        return None if made is None else made.image

    def told(self, k: int, outcome: BuildOutcome) -> None:
        """The outcome of a request, from the thread that builds."""
        self._made[k] = outcome
        self._left -= 1
        if not self._left and not self._found.done():
            self._found.set_result([o for o in self._made if o is not None])

    def failed(self, error: BaseException) -> None:
        """No more outcomes will come."""
        if not self._found.done():
            self._found.set_exception(error)


class BuildsAhead:
    """One builder, used here by one thread at a time."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._serve: Callable[[deque[Wanted], int], None] | None = getattr(builder, "serve", None)
        self._thread: ThreadPoolExecutor | None = None
        self._wanted: deque[Wanted] = deque()
        self._open: deque[Batch] = deque()  # begun, and maybe not built
        self._woken, self._wake = -1, -1  # ends of a pipe
        # Seconds of builds that ended, and since when others go on
        self._building: tuple[float, float | None] = 0.0, None

    def built_s(self) -> float:
        """Seconds in which builds went on in the background so far."""
        before_s, since = self._building
        return before_s + (0.0 if since is None else time.perf_counter() - since)

    def begin(self, programs: Mapping[str, Program], requests: Sequence[Any]) -> Batch:
        """Share the programs by key and build the requests, after those begun before."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "builds")
            self._woken, self._wake = os.pipe()
        batch = Batch(len(requests))
        self._open.append(batch)
        if self._serve is None:
            self._thread.submit(self._built, batch, programs, list(requests))
            return batch
        for k, request in enumerate(requests):
            shared = programs if k == 0 else {}
            self._wanted.append(Wanted(request, partial(batch.told, k), shared))
        os.write(self._wake, b"!")
        self._thread.submit(self._served)
        return batch

    def build(
        self, programs: Mapping[str, Program], requests: Sequence[Any], *, forget: bool = False
    ) -> list[BuildOutcome]:
        """The same at once; with `forget` the builder keeps none of the programs.

        Nothing is being built when it returns.
        """
        if self._thread is None:
            batch = Batch(len(requests))
            self._built(batch, programs, requests)
        else:
            batch = self.begin(programs, requests)
            self.settle()
        if forget:
            for key in programs:
                self._builder.unshare(key)
        return batch.outcomes()

    def forget(self) -> None:
        """Leave out what is not built yet; whoever waits for it gets a MachineError."""
        if self._serve is not None and self._thread is not None:
            self._wanted.clear()
            self._give_up(MachineError("not built: it was not needed any more"))

    def settle(self) -> None:
        """Wait until all that was begun is built, and no process is building or starting."""
        if self._thread is not None:
            self._thread.submit(lambda: None).result()

    def compiled(self, programs: Sequence[tuple[Program, Target]]) -> list[KernelImage]:
        """Object code of concrete programs, which is kept on disk (`codegen.object_cache`).

        Raises BuildError for a program that cannot be compiled.
        """
        shared = {f"compiled/{k}": program for k, (program, _) in enumerate(programs)}
        wanted = zip(shared, programs, strict=True)
        requests = [BuildRequest(key, {}, target, kept=True) for key, (_, target) in wanted]
        outcomes = self.build(shared, requests, forget=True)
        return [
            compiled(program, target) if o.image is None else o.image  # that raises, or has time
            for o, (program, target) in zip(outcomes, programs, strict=True)
        ]

    def close(self) -> None:
        """Give up what was begun. A builder with a `stop` ends soon; another one is not awaited."""
        if self._thread is None:
            return
        ready = all(b.done for b in self._open)
        stop = None if ready else getattr(self._builder, "stop", None)
        if stop is not None:
            stop()
        self._thread.shutdown(wait=stop is not None or ready, cancel_futures=True)
        self._give_up(MachineError("the builds were given up"))
        os.close(self._woken)
        os.close(self._wake)
        self._thread = None
        if stop is not None:
            self._builder.close()  # its owner may use it again

    # ---- in the thread, once there is one -------------------------------------------------------

    def _served(self) -> None:
        assert self._serve is not None
        try:
            with self._timed():
                self._serve(self._wanted, self._woken)
        except BaseException as error:
            self._wanted.clear()
            self._give_up(error)
        self._drop_done()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        before_s, began = self._building[0], time.perf_counter()
        self._building = before_s, began
        try:
            yield
        finally:
            self._building = before_s + time.perf_counter() - began, None

    def _built(
        self, batch: Batch, programs: Mapping[str, Program], requests: Sequence[Any]
    ) -> None:
        try:
            for key, program in programs.items():
                self._builder.share(key, program)
            with self._timed():
                for k, outcome in enumerate(self._builder.build(requests)):
                    batch.told(k, outcome)
        except BaseException as error:
            batch.failed(error)
        self._drop_done()

    def _give_up(self, error: BaseException) -> None:
        for batch in list(self._open):  # another thread may begin one meanwhile
            batch.failed(error)

    def _drop_done(self) -> None:
        while self._open and self._open[0].done:
            self._open.popleft()
