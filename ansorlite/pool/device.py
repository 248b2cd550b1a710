"""A device of a pool: the cores that measure, what they are, and how they are now.

In: what `ansorlite pool worker` was told. Out: a `Device`, whose `call` runs a function on the one
thread that measures; child processes that this thread starts have its cores (see
`measure.runner.LocalRunner`). A pretended device waits for some milliseconds instead and makes a
latency up, so that pools of hundreds of devices can be tried on one machine.
"""

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ansorlite
from ansorlite.codegen.image import KernelImage
from ansorlite.errors import UsageError
from ansorlite.measure.peak import Peak
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import CheckSpec, LocalRunner, PrepareResult
from ansorlite.measure.timing import TimingPolicy
from ansorlite.target import Target

REFERENCE_S = 120.0  # time between two timings of the reference kernel while a device measures
SUSPECT_S = 5.0  # the same while the device is slower than when it joined
SUSPECT = 1.03  # so many times slower
THERMAL = Path("/sys/class/thermal")

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a tuner asks of a device's runner; see `LocalRunner`."""

    policy: TimingPolicy | None = None
    timeout_s: float = 10.0
    prepare_timeout_s: float = 60.0


class DeviceRunner(Protocol):
    """What runs on a device's thread."""

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult: ...
    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult: ...
    def race(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]: ...
    def reference(self) -> float: ...
    def peak(self) -> Peak | None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Device:
    """One device: it measures one kernel at a time.

    `rate_joined` and `rate` are operations per second of the reference kernel, when the device
    joined and last.
    """

    name: str
    target: Target
    cores: tuple[int, ...] = ()
    loop_cores: tuple[int, ...] = ()
    rate_joined: float = 0.0
    rate: float = 0.0
    measuring: str = ""  # task and tuner
    waiting: int = 0  # trials in the queue
    measured: int = 0
    last_error: str = ""
    draining: bool = False
    uid: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.lock = asyncio.Lock()  # whoever has it measures; those who wait are served in order
        self._timed_at = 0.0
        self._executor = ThreadPoolExecutor(1, "measure", self._pin)

    def _pin(self) -> None:
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)  # of this thread and of what it starts

    async def call(self, what: Callable[..., T], *args: Any) -> T:
        """The value of a function that runs on the measuring thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, what, *args)

    def runner(self, limits: Limits) -> DeviceRunner:
        """A new runner with a child process of its own; to be called on the measuring thread."""
        return LocalRunner(
            limits.timeout_s,
            prepare_timeout_s=limits.prepare_timeout_s,
            n_threads=self.target.cores,
            policy=limits.policy,
        )

    async def join(self) -> None:
        """Time the reference kernel for the first time."""
        self.rate = self.rate_joined = await self.call(self._first_rate)
        self._timed_at = time.monotonic()

    def _first_rate(self) -> float:
        runner = self.runner(Limits())
        try:
            return runner.reference()
        finally:
            runner.close()

    @property
    def drift(self) -> float:
        """How many times slower the reference kernel is than when the device joined."""
        return self.rate_joined / self.rate if self.rate else 1.0

    def reference_due(self) -> bool:
        """Is the reference kernel to be timed before the next trial?"""
        every_s = SUSPECT_S if self.drift > SUSPECT else REFERENCE_S
        return time.monotonic() - self._timed_at > every_s

    def referenced(self, rate: float) -> None:
        """Note the rate of the reference kernel now."""
        self.rate, self._timed_at = rate, time.monotonic()

    def facts(self) -> dict[str, Any]:
        """What does not change, for the scheduler."""
        return {
            "uid": self.uid,
            "version": ansorlite.__version__,
            "fingerprint": self.target.fingerprint,
            "target": self.target.to_json(),
            "cores": list(self.cores),
            "loop_cores": list(self.loop_cores),
            "host": socket.gethostname(),
        }

    def state(self) -> dict[str, Any]:
        """How the device is now, for the scheduler."""
        return {
            "rate": self.rate,
            "rate_joined": self.rate_joined,
            "drift": self.drift,
            "measuring": self.measuring,
            "waiting": self.waiting,
            "measured": self.measured,
            "last_error": self.last_error,
            "draining": self.draining,
            "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            "temperature_c": temperature_c(),
        }

    def close(self) -> None:
        """End the measuring thread."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass
class PretendedDevice(Device):
    """Takes `trial_s` a trial and measures nothing; `slower` is what its reference kernel shows."""

    trial_s: float = 0.0
    slower: float = 1.0

    async def call(self, what: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(self.trial_s if what.__name__ in ("run", "race") else 0.0)
        return what(*args)

    def runner(self, limits: Limits) -> DeviceRunner:
        return PretendedRunner(self.slower)


class PretendedRunner:
    """A runner that measures nothing: a latency follows from the object code alone.

    `slower`: all latencies are so many times as long.
    """

    def __init__(self, slower: float = 1.0) -> None:
        self.slower = slower

    def prepare(self, task_key: str, spec: CheckSpec) -> PrepareResult:
        return PrepareResult(True)

    def run(
        self, task_key: str, image: KernelImage, best_latency_s: float | None = None
    ) -> MeasureResult:
        digest = sha256(image.object_bytes).digest()
        latency_s = self.slower * 1e-4 * (1.0 + int.from_bytes(digest[:4], "big") / 2**32)
        return MeasureResult(Status.OK, latency_s, (latency_s,))

    def race(
        self, task_key: str, images: Sequence[KernelImage], budget_s: float
    ) -> list[MeasureResult]:
        return [self.run(task_key, image) for image in images]

    def reference(self) -> float:
        return 1e9 / self.slower

    def peak(self) -> Peak | None:
        return None

    def abort(self) -> None:
        pass

    def close(self) -> None:
        pass


def this_device(name: str = "", cores: str = "", reserve: int | None = None) -> Device:
    """The device that this machine is.

    `cores` are those that measure ("0-3", "0,2"), by default all; `reserve` is kept for the event
    loop. Without it the loop has the cores that do not measure; where all measure, it shares them.
    Raises UsageError for cores that this process may not use.
    """
    usable = _usable_cores()
    chosen = parse_cores(cores) if cores else usable
    for core in (*chosen, *([] if reserve is None else [reserve])):
        if core not in usable:
            listed = ",".join(map(str, usable))
            raise UsageError(f"core {core} may not be used by this process: choose of {listed}")
    if reserve is not None:
        chosen = [c for c in chosen if c != reserve]
        if not chosen:
            raise UsageError(f"core {reserve} is kept for the loop, and none is left to measure")
    rest = [c for c in usable if c not in chosen]
    loop = [reserve] if reserve is not None else rest
    host = Target.detect()
    target = replace(host, cores=min(len(chosen), host.cores))
    return Device(name or socket.gethostname(), target, tuple(chosen), tuple(loop))


def _usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def parse_cores(text: str) -> list[int]:
    """The cores of a text such as "0-3,6"; UsageError for other texts."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ends = [first, last] if dash else [first]
        if not all(e.isascii() and e.isdecimal() and len(e) < 6 for e in ends):
            raise UsageError(f"{text!r} names no cores: write 0-3, or 0,2")
        low, high = int(ends[0]), int(ends[-1])
        if high < low:
            raise UsageError(f"cores {part} in {text!r} run backwards: write {high}-{low}")
        found.update(range(low, high + 1))
    return sorted(found)


def temperature_c() -> float | None:
    """The highest temperature that the system tells, in degrees Celsius; None without any."""
    found = []
    for file in THERMAL.glob("thermal_zone*/temp"):
        try:
            found.append(int(file.read_text()) / 1000)
        except (OSError, ValueError):
            continue
    return max(found, default=None)
