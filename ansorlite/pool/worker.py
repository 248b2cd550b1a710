"""A device's process: it joins a pool, measures what tuners ask, and joins again.

In: a `Device`, or many pretended ones, and the address of a scheduler. dask's worker registers the
device, sends heartbeats with its state and listens for tuners; measuring happens in `pool.session`.
When the scheduler is lost, dask's worker ends and another one takes its place as soon as the
scheduler is back.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any

from ansorlite.errors import AnsorliteError, MachineError, UsageError
from ansorlite.pool.device import Device
from ansorlite.pool.scheduler import use_settings
from ansorlite.pool.session import Session, welcome
from ansorlite.pool.wire import SILENCE_S, Pool, cancelled, greet, log

AGAIN_S = 1.0  # time between two tries to join


class Host:
    """Keeps one device in a pool until it is drained or stopped."""

    def __init__(self, device: Device, pool: Pool, host: str = "") -> None:
        self.device, self.pool = device, pool
        self.joined = asyncio.Event()
        self._host = host
        self._sessions: set[Session] = set()
        self._drained = asyncio.Event()

    async def stay(self, stop: asyncio.Event) -> None:
        """Join, and join again, until `stop` or drained.

        Raises MachineError where the first try to join fails, UsageError where the name is taken.
        """
        device, ends = self.device, [stop, self._drained]
        try:
            await device.join()
            while not any(e.is_set() for e in ends):
                try:
                    worker = await self._join()
                except (AnsorliteError, OSError) as error:
                    if not self.joined.is_set():
                        raise
                    log.warning("%s: cannot join: %s; trying again", device.name, error)
                    await _first_of([*ends], AGAIN_S)
                    continue
                log.info("%s joined %s as %s", device.name, self.pool.address, worker.address)
                self.joined.set()
                lost = asyncio.ensure_future(worker.finished())
                await _first_of([lost, *ends])
                if not lost.done():
                    await self._leave(worker)
                else:
                    log.warning("%s: the scheduler is lost; joining again", device.name)
                lost.cancel()
        finally:
            device.close()

    async def _join(self) -> Any:
        from distributed import Worker, WorkerPlugin

        class SaysGoodBye(WorkerPlugin):  # type: ignore[misc]
            """Ends the sessions before dask's worker closes their connections."""

            async def teardown(plugin, worker: Any) -> None:
                await self._end_sessions("it lost its scheduler")

        device, pool = self.device, self.pool
        own_host = await greet(pool, name=device.name, uid=device.uid)
        worker = Worker(
            pool.address,
            nthreads=1,
            name=device.name,
            host=self._host or own_host,  # where tuners find the device
            protocol=pool.address.partition(":")[0],
            security=pool.certificates.security() if pool.certificates else None,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            local_directory=tempfile.gettempdir(),
            startup_information={"pool": lambda _: device.facts()},
            metrics={"pool": lambda _: device.state()},
            death_timeout=SILENCE_S,
            plugins=(SaysGoodBye(),),
        )
        worker.handlers.update(pool_session=self._session, pool_drain=self._drain)
        try:
            await worker
        except Exception as error:
            with contextlib.suppress(Exception):
                await worker.close()
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if "name taken" in str(cause):
                raise UsageError(
                    f"a device called {device.name} is in the pool already: choose another --name"
                ) from error
            raise MachineError(f"cannot join {pool.address}: {cause}") from error
        return worker

    async def _session(self, comm: Any, version: str, tuner: str, limits: bytes) -> Any:
        from distributed.core import Status

        session = await welcome(self.device, comm, version, tuner, limits)
        if session is not None:
            self._sessions.add(session)
            try:
                await session.serve()
            finally:
                self._sessions.discard(session)
        comm.abort()
        return Status.dont_reply

    async def _drain(self) -> int:
        """Take no more trials, finish the one that runs, then leave; returns trials handed back."""
        self.device.draining = True
        log.info("%s is drained", self.device.name)
        back = self.device.waiting

        async def leave() -> None:
            async with self.device.lock:
                await self._end_sessions("it is drained")
            self._drained.set()

        self._leaving = asyncio.ensure_future(leave())
        return back

    async def _end_sessions(self, why: str) -> None:
        """End all sessions and wait until they said good-bye, a short time at most."""
        for session in list(self._sessions):
            session.end(why)
        for _ in range(100):
            if not self._sessions:
                break
            await asyncio.sleep(0.02)

    async def _leave(self, worker: Any) -> None:
        await self._end_sessions("it leaves the pool")
        with contextlib.suppress(Exception):
            await worker.close(timeout=2, executor_wait=False, reason="pool-leave")


async def _first_of(ends: Sequence[Any], timeout_s: float | None = None) -> None:
    """Wait until an event is set or a future done, at most `timeout_s`."""
    waiting = [asyncio.ensure_future(e.wait()) if isinstance(e, asyncio.Event) else e for e in ends]
    await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for w, e in zip(waiting, ends, strict=True):
        if w is not e:
            w.cancel()


async def serve_devices(
    devices: Sequence[Device], pool: Pool, stop: asyncio.Event, host: str = ""
) -> None:
    """Keep devices in a pool until `stop`; the first error of one ends all."""
    use_settings()
    _keep_off_measuring(devices)
    hosts = [asyncio.ensure_future(Host(d, pool, host).stay(stop)) for d in devices]
    try:
        await asyncio.gather(*hosts)
    finally:
        await cancelled(hosts)


def _keep_off_measuring(devices: Sequence[Device]) -> None:
    """Bind this thread, which runs the loop, to the cores that do not measure."""
    cores = {c for d in devices for c in d.loop_cores}
    measuring = {c for d in devices for c in d.cores}
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    elif measuring:
        log.warning(
            "the event loop shares the cores that measure: --reserve-core N keeps core N for it"
        )
