"""Builds that go on in the background while the caller searches or trains.

In: shared programs and requests, as a `Builder` takes them. Out: a `Batch`, whose `outcomes` are
waited for before anything is measured, so that kernels have the machine to themselves. Batches are
built one after the other in a thread of their own, which does nothing but wait for the builder's
processes. Without a batch in work, `build` uses the builder directly.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ansorlite.codegen.build import BuildRequest
from ansorlite.codegen.image import KernelImage
from ansorlite.codegen.object_cache import compiled
from ansorlite.ir.program import Program
from ansorlite.measure.builder import Builder, BuildOutcome
from ansorlite.target import Target


class Batch:
    """Requests that are being built; `outcomes` waits for them and gives them in order."""

    def __init__(self, found: "Future[list[BuildOutcome]]") -> None:
        self._found = found

    @property
    def done(self) -> bool:
        """Do `outcomes` wait no longer?"""
        return self._found.done()

    def outcomes(self) -> list[BuildOutcome]:
        """Raises what the builder raised."""
        return self._found.result()


class BuildsAhead:
    """One builder, used here by one thread at a time."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._thread: ThreadPoolExecutor | None = None
        self._last: Batch | None = None

    def begin(self, programs: Mapping[str, Program], requests: Sequence[Any]) -> Batch:
        """Share the programs by key and build the requests, after the batches begun before."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "builds")
        self._last = Batch(self._thread.submit(self._built, programs, list(requests), ()))
        return self._last

    def build(
        self, programs: Mapping[str, Program], requests: Sequence[Any], *, forget: bool = False
    ) -> list[BuildOutcome]:
        """The same at once; with `forget` the builder keeps none of the programs."""
        gone = tuple(programs) if forget else ()
        if self._thread is None:
            return self._built(programs, requests, gone)
        return self._thread.submit(self._built, programs, requests, gone).result()

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

    def _built(
        self, programs: Mapping[str, Program], requests: Sequence[Any], gone: Sequence[str]
    ) -> list[BuildOutcome]:
        for key, program in programs.items():
            self._builder.share(key, program)
        outcomes = self._builder.build(requests)
        for key in gone:
            self._builder.unshare(key)
        return outcomes

    def close(self) -> None:
        """Give up what was begun. A builder with a `stop` ends soon; another one is not awaited."""
        if self._thread is None:
            return
        stop = None
        if self._last is not None and not self._last.done:
            stop = getattr(self._builder, "stop", None)
        if stop is not None:
            stop()
        ends = stop is not None or self._last is None or self._last.done
        self._thread.shutdown(wait=ends, cancel_futures=True)
        if stop is not None:
            self._builder.close()  # its owner may use it again
