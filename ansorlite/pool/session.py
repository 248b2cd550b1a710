"""The device's side of a session: what one tuner asks is measured, in order, one at a time.

In: a connection. Out: messages on it. Each session has a runner, and thus a child process, of its
own; the device's lock lets the sessions of several tuners take turns. When the connection breaks,
or the tuner is silent, the child is killed and the device is free at once. Nothing that a kernel
does reaches this process.
"""

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import ansorlite
from ansorlite.errors import AnsorliteError, MeasureError
from ansorlite.measure.result import MeasureResult
from ansorlite.pool.device import Device, DeviceRunner, Limits
from ansorlite.pool.wire import PING_S, SILENCE_S, cancelled, log, pack, unpack


class Session:
    """One tuner at one device."""

    def __init__(self, device: Device, comm: Any, tuner: str, limits: Limits) -> None:
        self.device, self.tuner = device, tuner
        self._comm, self._limits = comm, limits
        self._asked: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._heard_at = time.monotonic()
        self._runner: DeviceRunner | None = None
        self._bye = ""
        self._ended = asyncio.Event()

    async def serve(self) -> None:
        """Measure until the tuner goes, or `end` is called."""
        work = asyncio.ensure_future(self._work())
        others = [asyncio.ensure_future(part()) for part in (self._read, self._ping, self._wait)]
        parts = [work, *others]
        try:
            await self._say("device", **self.device.facts(), **self.device.state())
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass
        finally:
            why = self._bye or next((w for p in parts if p.done() and (w := _why(p))), "it went")
            self.device.waiting -= len(self._asked)
            await cancelled([work])  # first: what the end does to a trial is not to be told
            if self._runner is not None:
                self._runner.abort()
            if self._bye:
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(self._say("bye", why=self._bye), PING_S)
            await cancelled(others)  # a read that is cancelled closes the connection
            if self._runner is not None:
                with contextlib.suppress(RuntimeError):  # the device's thread has ended
                    await self.device.call(self._runner.close)
            self._comm.abort()
            log.info("%s: session of %s ended: %s", self.device.name, self.tuner, why)

    def end(self, why: str) -> None:
        """End the session and tell the tuner why."""
        self._bye = why
        self._ended.set()

    async def _wait(self) -> str:
        await self._ended.wait()
        return self._bye

    async def _read(self) -> str:
        while True:
            try:
                message = await self._comm.read()
            except (OSError, EOFError):
                return "the connection broke"
            self._heard_at = time.monotonic()
            if message["do"] == "ping":
                continue
            self._asked.append(message)
            self.device.waiting += 1
            self._news.set()

    async def _ping(self) -> str:
        while True:
            await asyncio.sleep(PING_S)
            silent_s = time.monotonic() - self._heard_at
            if silent_s > SILENCE_S:
                return f"nothing was heard for {silent_s:.0f} s"
            await self._say("alive")

    async def _work(self) -> str:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._asked:
                why = await self._turn()
                if why:
                    return why

    async def _turn(self) -> str:
        """Serve the first of what is asked; a text ends the session."""
        device = self.device
        async with device.lock:
            if device.draining:
                self.end("it is drained")
                return self._bye
            message = self._asked.popleft()
            device.waiting -= 1
            device.measuring = f"{message.get('name') or message['do']} for {self.tuner}"
            try:
                runner = await self._ready()
                await self._say("start", id=message["id"])
                answer = await self._answer(runner, message)
            except AnsorliteError as error:
                # Not of the trial: a child does not start, or the machine lacks something.
                device.last_error = str(error)
                self.end(str(error))
                return str(error)
            finally:
                device.measuring = ""
        await self._say("done", id=message["id"], answer=pack(answer), rate=device.rate)
        return ""

    async def _answer(self, runner: DeviceRunner, message: dict[str, Any]) -> Any:
        """What the runner says; None where the device lacks the data of the task."""
        device = self.device
        try:
            answer = await device.call(*_request(runner, message))
        except MeasureError as error:
            device.last_error = str(error)
            return None
        if message["do"] == "reference":
            device.referenced(answer)
        elif isinstance(answer, MeasureResult):
            device.measured += 1
            device.last_error = answer.error or device.last_error
        return answer

    async def _ready(self) -> DeviceRunner:
        """The session's runner, on a device whose reference kernel was timed lately."""
        device = self.device
        if self._runner is None:
            self._runner = await device.call(device.runner, self._limits)
        if device.reference_due():
            before = device.drift
            device.referenced(await device.call(self._runner.reference))
            if abs(device.drift - before) > 0.03:
                log.warning(
                    "%s: the reference kernel takes %.2f times as long as at joining",
                    device.name,
                    device.drift,
                )
        return self._runner

    async def _say(self, what: str, **fields: Any) -> None:
        await self._comm.write({"say": what, **fields})


def _request(runner: DeviceRunner, message: dict[str, Any]) -> tuple[Any, ...]:
    """(function of the runner, its arguments) for what is asked."""
    match message["do"]:
        case "prepare":
            return runner.prepare, message["task"], unpack(message["what"])
        case "run":
            return runner.run, message["task"], unpack(message["what"]), message["best_s"]
        case "race":
            return runner.race, message["task"], unpack(message["what"]), message["budget_s"]
        case "reference":
            return (runner.reference,)
        case "peak":
            return (runner.peak,)
    raise AnsorliteError(f"a device does not understand {message['do']!r}")


def _why(part: "asyncio.Future[str]") -> str:
    if part.cancelled():
        return ""
    error = part.exception()
    if error is None:
        return part.result()
    if not isinstance(error, OSError):
        log.error("a session failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


async def welcome(
    device: Device, comm: Any, version: str, tuner: str, limits: bytes
) -> Session | None:
    """The session of a tuner; None, and a word to the tuner, where there is to be none."""
    refusal = ""
    if version != ansorlite.__version__:
        refusal = (
            f"it has ansorlite {ansorlite.__version__}, the tuner {version}: install one version"
        )
    if device.draining:
        refusal = "it is drained"
    if refusal:
        with contextlib.suppress(OSError):
            await comm.write({"say": "bye", "why": refusal})
            await comm.close()
        return None
    log.info("%s: session of %s begins", device.name, tuner)
    return Session(device, comm, tuner, unpack(limits))
