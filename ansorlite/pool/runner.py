"""Measuring on the devices of a pool: one more `Runner`, with which search works as with any.

In: the address of a pool's scheduler and which devices to take. Out: `MeasureResult`s, each with
the name of its device. Kernels of a round are measured side by side, on devices of one fingerprint.
The network runs in a thread of its own; times are in seconds.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import ansorlite
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import MachineError, MeasureError, UsageError
from ansorlite.measure.peak import Peak
from ansorlite.measure.result import MeasureResult
from ansorlite.measure.runner import CheckSpec, PrepareResult
from ansorlite.measure.timing import TimingPolicy
from ansorlite.pool.device import Limits
from ansorlite.pool.links import Dispatcher, Kind, Trial
from ansorlite.pool.wire import ask, cancelled, greet, pack, pool_at
from ansorlite.target import Target

AHEAD = 3  # trials at hand for each device
TICK_S = 0.2  # time between two looks at the budget
PEAK_S = 60.0  # for an answer to the question after the machine's limits


class RemoteRunner:
    """Measures on devices of a pool (see ansorlite/pool/README.md).

    `address` is "tls://host:8786", or "tcp://127.0.0.1:8786" for a pool of this machine without
    certificates; `cert_dir` holds the member's certificates. `target` chooses the devices: a
    fingerprint, a `Target`, or the name of a CPU such as "cortex-a76"; without it all devices have
    to be of one kind. At most `devices` are used. Limits and `policy` are those of `LocalRunner`;
    for networks `policy=TimingPolicy(fresh_constants=True)` measures as `auto_schedule` does.
    Raises MachineError where the pool does not answer or has no such device, UsageError for an
    argument without a meaning.

    Example::

        with al.RemoteRunner("tls://farm:8786", target="cortex-a76") as runner:
            task = al.workload("C2D:2", target=runner.target)
            result = al.tune(task, runner=runner)
    """

    def __init__(
        self,
        address: str,
        target: str | Target | None = None,
        *,
        cert_dir: str | Path | None = None,
        devices: int | None = None,
        timeout_s: float = 10.0,
        prepare_timeout_s: float = 60.0,
        policy: TimingPolicy | None = None,
    ) -> None:
        if devices is not None and devices < 1:
            raise UsageError(f"devices is {devices}: give at least 1")
        if not (timeout_s > 0 and prepare_timeout_s > 0):
            raise UsageError(
                f"time limits of runs are {timeout_s} s and {prepare_timeout_s} s:"
                " give positive numbers"
            )
        self._pool = pool_at(address, cert_dir)
        self._prepared: set[str] = set()
        self._peak: tuple[Peak | None] | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="pool", daemon=True)
        self._thread.start()
        try:
            self._call(greet(self._pool))
            found = self._call(ask(self._pool, "pool_devices"))
            info = chosen(found, target, self._pool.address)
            self.target = Target.from_json(info["target"])
            limits = Limits(policy, timeout_s, prepare_timeout_s)
            self._dispatcher = self._call(self._dispatch(limits, devices))
        except BaseException:
            self._end()
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _dispatch(self, limits: Limits, devices: int | None) -> Dispatcher:
        made = Dispatcher(self._pool, self.target.fingerprint, limits, devices)
        self._looking = asyncio.ensure_future(made.look())
        return made

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # ---- the protocol ---------------------------------------------------------------------------

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        """Make a task's data and reference on one device; others follow with their first trial."""
        image, own = spec.reference, self.target
        if (image.triple, image.cpu) != (own.triple, own.cpu):
            return PrepareResult(
                False,
                f"the task is for {image.cpu} ({image.triple}), the devices are {own.cpu} "
                f"({own.triple}): give the task the runner's target",
            )
        packed = pack(spec)
        self._loop.call_soon_threadsafe(self._dispatcher.specs.__setitem__, task_key, packed)
        found: PrepareResult = self._one("prepare", task_key, packed)
        if found.ok:
            self._prepared.add(task_key)
        return found

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        """Check and time one kernel on one device; waits as long as none is free.

        Raises MeasureError if the task was not prepared.
        """
        self._check_prepared(task_key)
        found: MeasureResult = self._one(
            "run", task_key, pack(image), best_s=best_latency_s, name=image.symbol
        )
        return found

    def race(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]:
        """Run kernels in turn for about `budget_s`, all on one device; see `LocalRunner.race`."""
        self._check_prepared(task_key)
        fields = {"budget_s": budget_s, "n_images": len(images), "name": "a race"}
        found: list[MeasureResult] = self._one("race", task_key, pack(list(images)), **fields)
        return found

    def run_all(
        self,
        task_key: str,
        images: Sequence[KernelImage],
        best_latency_s: Callable[[], float | None] = lambda: None,
        go_on: Callable[[], bool] = lambda: True,
    ) -> Generator[tuple[int, MeasureResult], None, None]:
        """(number, result) of the images as they are measured; see `measure.runner.SideBySide`."""
        self._check_prepared(task_key)
        answers: queue.SimpleQueue[tuple[int, MeasureResult | None]] = queue.SimpleQueue()
        open_trials: dict[int, Trial] = {}
        rest = iter(enumerate(images))

        def begin() -> bool:
            """Put one more trial into the queue."""
            k, image = next(rest, (-1, None))
            if image is None:
                return False
            trial = Trial(
                "run",
                task_key,
                pack(image),
                lambda result, k=k: answers.put((k, result)),  # type: ignore[misc]
                best_latency_s(),
                name=image.symbol,
            )
            open_trials[k] = trial
            self._loop.call_soon_threadsafe(self._dispatcher.put, trial)
            return True

        def give_up() -> None:
            """Those that wait for a device are not begun."""
            for trial in self._dispatcher.drop(list(open_trials.values())):
                trial.answer(None)

        try:
            more = True
            while True:
                while more and go_on() and len(open_trials) < AHEAD * self._dispatcher.width:
                    more = begin()
                if not open_trials:
                    if more and go_on():
                        continue
                    return
                try:
                    k, result = answers.get(timeout=TICK_S)
                except queue.Empty:
                    if not go_on():
                        more = False
                        self._loop.call_soon_threadsafe(give_up)
                    continue
                del open_trials[k]
                if result is not None:
                    yield k, result
        finally:
            left = list(open_trials.values())
            if left and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._dispatcher.forget, left)

    def peak(self) -> Peak | None:
        """The limits of one device; None where it tells none."""
        if self._peak is None:
            self._peak = (self._one("peak", "", b""),)
        return self._peak[0]

    def close(self) -> None:
        """End all sessions, which frees the devices; a second call does nothing."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(RuntimeError):
            self._call(self._close())
        self._end()

    async def _close(self) -> None:
        await cancelled([self._looking])
        await self._dispatcher.close()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _one(self, kind: Kind, task_key: str, what: bytes, **fields: Any) -> Any:
        """The answer to one trial."""
        if self._loop.is_closed():
            raise MeasureError("the runner was closed: make a new one")
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        trial = Trial(kind, task_key, what, answers.put, **fields)
        self._loop.call_soon_threadsafe(self._dispatcher.put, trial)
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    return answers.get(timeout=TICK_S)
        except BaseException:
            self._loop.call_soon_threadsafe(self._dispatcher.forget, [trial])
            raise

    def _check_prepared(self, task_key: str) -> None:
        if task_key not in self._prepared:
            raise MeasureError(f"task {task_key} was not prepared: call prepare first")


def chosen(
    found: Sequence[Mapping[str, Any]], target: str | Target | None, address: str
) -> Mapping[str, Any]:
    """One of the devices that `target` is meant by, all of which have one fingerprint.

    Raises MachineError where there is none, UsageError where there are several kinds.
    """
    wanted = target.fingerprint if isinstance(target, Target) else target
    own = [info for info in found if info.get("version") == ansorlite.__version__]
    if found and not own:
        there = ", ".join(sorted({info.get("version") or "none" for info in found}))
        raise MachineError(
            f"the devices of {address} have ansorlite {there}, this is {ansorlite.__version__}: "
            "install one version on all"
        )
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for info in own:
        kinds.setdefault(info["fingerprint"], []).append(info)
    there = ", ".join(f"{k} ({len(v)})" for k, v in sorted(kinds.items()))
    if not kinds:
        raise MachineError(
            f"the pool {address} has no device: start `ansorlite pool worker` on one"
        )
    fit = [k for k, alike in kinds.items() if wanted in (None, k, alike[0]["target"]["cpu"])]
    if not fit:
        raise MachineError(f"the pool {address} has no device {wanted}: there are {there}")
    if len(fit) > 1:
        raise UsageError(
            f"the pool {address} has devices of several kinds: name one as target, of {there}"
        )
    return kinds[fit[0]][0]
