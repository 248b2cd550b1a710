"""The tuner's side of a pool: trials go to whichever device is free, and come back once.

In: `Trial`s, from the tuner's thread. Out: their answers, through a callback, in the order in which
they end. A `Link` is the session with one device (see `pool.session`); `Dispatcher` has the queue,
asks the scheduler which devices there are, and gives trials of lost devices to others. All of this
runs in one event loop. Times are in seconds.
"""

import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import ansorlite
from ansorlite.errors import MachineError
from ansorlite.measure.result import MeasureResult, Status
from ansorlite.measure.runner import PrepareResult
from ansorlite.pool.device import SUSPECT_S, Limits
from ansorlite.pool.reference import Rates, Verdict, verdicts
from ansorlite.pool.wire import (
    PING_S,
    SILENCE_S,
    Pool,
    ask,
    cancelled,
    connect_to,
    log,
    pack,
    unpack,
)

LOOK_S = 1.0  # time between two looks at the list of devices
KILLS = 2  # workers that a candidate may kill
PATIENCE_S = 30.0  # for devices that are held back, while there is no other
WAITING_S = 30.0  # time between two lines that say that there is no device
SECOND_TRIES_S = (1.0, 2.0, 5.0, 10.0)  # pauses before a device is tried again

End = tuple[str, bool]  # why a session ended, and whether the device's process died
GONE: End = "its process died, or the connection broke", True
Kind = Literal["prepare", "run", "race", "peak"]


@dataclass
class Trial:
    """One thing to be done on one device; `answer` gets the result, in the loop's thread.

    `killed` names those workers that died while it ran, `lost_by` all that were lost with it.
    """

    kind: Kind
    task: str
    what: bytes
    answer: Callable[[Any], None]
    best_s: float | None = None
    budget_s: float = 0.0
    n_images: int = 1
    name: str = ""
    killed: list[str] = field(default_factory=list)
    lost_by: set[str] = field(default_factory=set)
    id: int = 0

    def message(self, factor: float) -> dict[str, Any]:
        """As it travels; latencies are in the device's own, slower seconds."""
        best_s = None if self.best_s is None else self.best_s * factor
        return {
            "do": self.kind,
            "id": self.id,
            "task": self.task,
            "name": self.name,
            "what": self.what,
            "best_s": best_s,
            "budget_s": self.budget_s,
        }

    def failed(self, error: str) -> Any:
        """The answer where the trial cannot be done."""
        match self.kind:
            case "prepare":
                return PrepareResult(False, error)
            case "race":
                return [MeasureResult(Status.RUN_ERROR, error=error)] * self.n_images
            case "run":
                return MeasureResult(Status.RUN_ERROR, error=error)
        return None


class Link:
    """The session with one device; `trials` are those given to it, the running one first."""

    def __init__(self, dispatcher: "Dispatcher", name: str, address: str) -> None:
        self.name, self.address = name, address
        self.trials: dict[int, Trial] = {}
        self.started: int | None = None
        self.prepared: set[str] = set()
        self.unfit: dict[str, str] = {}  # task -> why this device cannot prepare it
        self.rates = Rates(0.0, 0.0)
        self.ready = False
        self._heard_at = self._timed_at = time.monotonic()
        self._dispatcher = dispatcher
        self._outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._preparing: dict[int, str] = {}

    async def run(self) -> None:
        """Talk to the device until one side ends it; its trials then go back."""
        d, why, died = self._dispatcher, "", False
        comm = None
        try:
            comm = await connect_to(self.address, d.pool.connection_args)
            await comm.write(
                {
                    "op": "pool_session",
                    "reply": False,
                    "version": ansorlite.__version__,
                    "tuner": f"{socket.gethostname()}:{os.getpid()}",
                    "limits": pack(d.limits),
                }
            )
            parts = [
                asyncio.ensure_future(part(comm)) for part in (self._read, self._write, self._watch)
            ]
            try:
                await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
                why, died = next(
                    (p.result() for p in parts if p.done() and not p.exception()), GONE
                )
            finally:
                comm.abort()
                await cancelled(parts)
        except (MachineError, OSError) as error:
            why = str(error)
        finally:
            if comm is not None:
                comm.abort()
            self.ready = False
            d.lost(self, why or "the tuner ends", died)

    def give(self, trial: Trial, spec: bytes | None) -> None:
        """Send a trial; before the first one of a task its data are prepared."""
        if trial.kind == "prepare":
            self.prepared.add(trial.task)
        elif spec is not None and trial.task not in self.prepared:
            self.prepared.add(trial.task)
            number = self._dispatcher.number()
            self._preparing[number] = trial.task
            made = Trial("prepare", trial.task, spec, lambda _: None, name=trial.name, id=number)
            self._outbox.put_nowait(made.message(1.0))
        self.trials[trial.id] = trial
        self._outbox.put_nowait(trial.message(self._dispatcher.verdict(self).factor))

    def time_again(self) -> None:
        """Have the reference kernel timed, if that was not asked lately."""
        if time.monotonic() - self._timed_at > SUSPECT_S:
            self._timed_at = time.monotonic()
            number = self._dispatcher.number()
            self._outbox.put_nowait({"do": "reference", "id": number})

    async def _write(self, comm: Any) -> End:
        while True:
            try:
                message = await asyncio.wait_for(self._outbox.get(), PING_S)
            except TimeoutError:
                message = {"do": "ping"}
            try:
                await comm.write(message)
            except OSError:
                return GONE

    async def _watch(self, comm: Any) -> End:
        """Ends when nothing was heard of the device for too long."""
        while (silent_s := time.monotonic() - self._heard_at) < SILENCE_S:
            await asyncio.sleep(SILENCE_S - silent_s)
        # A stopped or frozen machine; of a network that is cut the scheduler is not heard, either.
        near = self._dispatcher.scheduler_is_near
        return f"nothing was heard for {SILENCE_S:.0f} s", near

    async def _read(self, comm: Any) -> End:
        while True:
            try:
                message = await comm.read()
            except (OSError, EOFError):
                return GONE
            self._heard_at = time.monotonic()
            match message["say"]:
                case "device":
                    self.rates = Rates(message["rate_joined"], message["rate"])
                    self.ready = True
                    self._dispatcher.welcome(self)
                case "start":
                    self.started = message["id"]
                case "done":
                    if message["rate"] != self.rates.now:
                        self.rates = replace(self.rates, now=message["rate"])
                        self._dispatcher.judge()
                    self._done(message["id"], unpack(message["answer"]))
                case "bye":
                    self.started = None  # that the session ends is no fault of the trial
                    return message["why"], False

    def _done(self, number: int, answer: Any) -> None:
        self.started = None
        task = self._preparing.pop(number, None)
        if task is not None:
            if not answer.ok:
                self.unfit[task] = answer.error
                log.warning("%s cannot measure task %s: %s", self.name, task, answer.error)
            return
        trial = self.trials.pop(number, None)
        if trial is not None and answer is None and trial.kind in ("run", "race"):
            self.unfit.setdefault(trial.task, f"{self.name} lacks the data of task {trial.task}")
            self._dispatcher.put_back(trial)
        elif trial is not None:
            if isinstance(answer, PrepareResult) and not answer.ok:
                self.prepared.discard(trial.task)
            self._dispatcher.done(self, trial, answer)
        else:
            self._dispatcher.feed()  # of the reference kernel


class Dispatcher:
    """The trials of one tuner and its links to the devices of one fingerprint."""

    def __init__(self, pool: Pool, fingerprint: str, limits: Limits, n_devices: int | None) -> None:
        self.pool, self.limits = pool, limits
        self.specs: dict[str, bytes] = {}
        self._fingerprint, self._n_devices = fingerprint, n_devices
        self._waiting: deque[Trial] = deque()
        self._links: dict[str, Link] = {}  # by address
        self._tasks: set[asyncio.Task[None]] = set()
        self._numbers = 0
        self._verdicts: dict[str, Verdict] = {}
        self._joined: dict[str, float] = {}  # rates of all devices of the fingerprint
        self._told: dict[str, str] = {}  # what was said of devices, so that it is said once
        self._pauses: dict[str, tuple[int, float]] = {}  # name -> tries, not before
        self._seen_at = time.monotonic()
        self._idle_since: float | None = None
        self._waits_since: float | None = None
        self._closing = False

    # ---- devices --------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Devices that measure now, at least 1."""
        return max(1, sum(link.ready for link in list(self._links.values())))

    @property
    def scheduler_is_near(self) -> bool:
        """Did the scheduler answer in the time in which a device fell silent?"""
        return time.monotonic() - self._seen_at < SILENCE_S / 2

    async def look(self) -> None:
        """Link to devices as they come, for as long as the tuner lives."""
        near = True
        while True:
            try:
                found = await ask(self.pool, "pool_devices")
                self._seen_at = time.monotonic()
                if not near:
                    log.warning("the scheduler %s is back", self.pool.address)
                near = True
                self._link(found)
            except MachineError as error:
                if near:
                    log.warning("the scheduler is lost: %s; linked devices go on", error)
                near = False
            for link in self._links.values():
                if link.ready and self.verdict(link).held_back:
                    link.time_again()
            self._tell_of_waiting()
            self.feed()
            await asyncio.sleep(LOOK_S)

    def _link(self, found: Iterable[Mapping[str, Any]]) -> None:
        wanted = self._fingerprint, ansorlite.__version__
        alike = [x for x in found if (x.get("fingerprint"), x.get("version")) == wanted]
        self._joined = {info["name"]: info["rate_joined"] for info in alike}
        for info in alike:
            full = self._n_devices is not None and len(self._links) >= self._n_devices
            name, address = info["name"], info["address"]
            early = self._pauses.get(name, (0, 0.0))[1] > time.monotonic()
            if full or early or info["draining"] or address in self._links:
                continue
            if any(link.name == name for link in self._links.values()):
                continue  # the same device at its former address
            link = self._links[address] = Link(self, name, address)
            self._start(link.run())

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def welcome(self, link: Link) -> None:
        """A device is ready."""
        log.info("%s measures", link.name)
        self._pauses.pop(link.name, None)
        self.judge()
        self.feed()

    def lost(self, link: Link, why: str, died: bool) -> None:
        """A session ended: its trials go back to the head of the queue.

        Where the device's process died, the trial that ran may be the cause.
        """
        self._links.pop(link.address, None)
        if self._closing:
            return
        tries = self._pauses.get(link.name, (0, 0.0))[0]
        pause_s = SECOND_TRIES_S[min(tries, len(SECOND_TRIES_S) - 1)]
        self._pauses[link.name] = tries + 1, time.monotonic() + pause_s
        n = len(link.trials)
        log.warning("%s is lost: %s; %d trials are asked of others", link.name, why, n)
        for number, trial in reversed(list(link.trials.items())):
            if number == link.started:
                trial.lost_by.add(link.name)
                if died:
                    trial.killed.append(link.name)
            if len(trial.killed) >= KILLS:
                names = " and ".join(trial.killed)
                error = f"it killed {KILLS} workers ({names}) while it ran: it is not tried again"
                log.warning("%s: %s", trial.name or trial.kind, error)
                trial.answer(trial.failed(error))
            else:
                self._waiting.appendleft(trial)
        link.trials.clear()
        self.judge()
        self.feed()

    def put_back(self, trial: Trial) -> None:
        """A trial that a device cannot do goes to others."""
        self._waiting.appendleft(trial)
        self.feed()

    # ---- the reference kernel -------------------------------------------------------------------

    def verdict(self, link: Link) -> Verdict:
        return self._verdicts.get(link.name, Verdict())

    def judge(self) -> None:
        """Compare the devices by their reference kernels, and tell what changed."""
        ready = [link for link in self._links.values() if link.ready]
        others = [r for name, r in self._joined.items() if name not in {x.name for x in ready}]
        self._verdicts = verdicts({link.name: link.rates for link in ready}, others)
        for name, v in self._verdicts.items():
            kind = v.words.rpartition(",")[2]
            if kind != self._told.get(name, ""):
                self._told[name] = kind
                log.warning("%s %s", name, v.words or "is as fast as usual again")

    def _usable(self) -> list[Link]:
        """Devices that may be asked: those not held back, or all, if patience with them ends."""
        ready = [link for link in self._links.values() if link.ready]
        good = [link for link in ready if not self.verdict(link).held_back]
        if good or not ready:
            self._waits_since = None
            return good
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        return ready if now - self._waits_since > PATIENCE_S else []

    # ---- trials ---------------------------------------------------------------------------------

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def put(self, trial: Trial) -> None:
        """Add a trial to the queue."""
        trial.id = self.number()
        self._waiting.append(trial)
        self.feed()

    def drop(self, trials: Iterable[Trial]) -> list[Trial]:
        """Take trials back that wait for a device; those that were given to one are not dropped."""
        wanted = {id(t) for t in trials}
        gone = [t for t in self._waiting if id(t) in wanted]
        self._waiting = deque(t for t in self._waiting if id(t) not in wanted)
        return gone

    def forget(self, trials: Iterable[Trial]) -> None:
        """Nobody waits for these: answers are not told, lost ones not asked of others."""
        self.drop(trials)
        for trial in trials:
            trial.answer = _ignore
            for link in self._links.values():
                link.trials.pop(trial.id, None)

    def feed(self) -> None:
        """Give waiting trials to free devices, the least busy first.

        While many wait, a device has one more at hand than the one that runs.
        """
        while self._waiting:
            usable = self._usable()
            depth = 2 if len(self._waiting) > len(usable) else 1
            free = sorted(
                (link for link in usable if len(link.trials) < depth), key=lambda x: len(x.trials)
            )
            if not any(self._give(link, usable) for link in free):
                return

    def _give(self, link: Link, usable: list[Link]) -> bool:
        for n, trial in enumerate(self._waiting):
            if trial.task in link.unfit:
                if all(trial.task in x.unfit for x in usable):
                    del self._waiting[n]
                    trial.answer(trial.failed(link.unfit[trial.task]))
                    return True
                continue
            if link.name in trial.lost_by and any(x.name not in trial.lost_by for x in usable):
                continue  # another one may do better
            del self._waiting[n]
            link.give(trial, self.specs.get(trial.task))
            return True
        return False

    def done(self, link: Link, trial: Trial, answer: Any) -> None:
        """Tell an answer, in the seconds of a usual device."""
        factor = self.verdict(link).factor
        if isinstance(answer, MeasureResult):
            answer = _told_by(link.name, answer, factor)
        elif isinstance(answer, list):
            answer = [_told_by(link.name, r, factor) for r in answer]
        trial.answer(answer)
        self.feed()

    def _tell_of_waiting(self) -> None:
        now = time.monotonic()
        if not self._waiting or any(link.ready for link in self._links.values()):
            self._idle_since = None
        elif self._idle_since is None or now - self._idle_since > WAITING_S:
            if self._idle_since is not None:
                log.warning(
                    "%d trials wait: no device %s is in the pool",
                    len(self._waiting),
                    self._fingerprint,
                )
            self._idle_since = now

    async def close(self) -> None:
        """End all sessions, which frees the devices."""
        self._closing = True
        self._waiting.clear()
        await cancelled(self._tasks)


def _ignore(answer: Any) -> None:
    """The answer of a trial that nobody waits for."""


def _told_by(name: str, result: MeasureResult, factor: float) -> MeasureResult:
    latency_s = None if result.latency_s is None else result.latency_s / factor
    times_s = tuple(t / factor for t in result.times_s)
    return replace(result, latency_s=latency_s, times_s=times_s, device=name)
