"""A pool in this process for tests: scheduler and devices in the loop of a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansorlite.pool.certificates import find_certificates
from ansorlite.pool.device import Device, PretendedDevice
from ansorlite.pool.scheduler import start_scheduler
from ansorlite.pool.wire import Pool
from ansorlite.pool.worker import Host
from ansorlite.target import Target

WAIT_S = 30.0


class LocalPool:
    """Scheduler and devices; `cert_dir` for TLS."""

    def __init__(self, cert_dir: Path | None = None) -> None:
        self.cert_dir = cert_dir
        self.certificates = find_certificates(cert_dir) if cert_dir else None
        self.hosts: dict[str, Host] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._stays: dict[str, Any] = {}
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.scheduler = self.call(start_scheduler(self.certificates, "127.0.0.1", 0, None))
        self.port: int = self.scheduler.port

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(WAIT_S)

    @property
    def address(self) -> str:
        return f"{'tls' if self.certificates else 'tcp'}://127.0.0.1:{self.port}"

    @property
    def pool(self) -> Pool:
        return Pool(self.address, self.certificates)

    def add(self, *devices: Device) -> None:
        """Let devices join, and wait until they have."""

        async def join() -> None:
            for d in devices:
                host, stop = Host(d, self.pool), asyncio.Event()
                self.hosts[d.name], self._stops[d.name] = host, stop
                self._stays[d.name] = asyncio.ensure_future(host.stay(stop))
            for d in devices:
                joined = asyncio.ensure_future(self.hosts[d.name].joined.wait())
                both = [joined, self._stays[d.name]]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if self._stays[d.name].done():
                    self._stays[d.name].result()

        self.call(join())

    def restart(self) -> None:
        """End the scheduler and start another one at its address."""

        async def again() -> None:
            await self.scheduler.close()
            for host in self.hosts.values():
                host.joined.clear()
            self.scheduler = await start_scheduler(self.certificates, "127.0.0.1", self.port, None)

        self.call(again())

    def stop(self, name: str) -> None:
        """End a device."""

        async def end() -> None:
            self._stops.pop(name).set()
            await self._stays.pop(name)

        self.call(end())

    def close(self) -> None:
        for name in list(self._stops):
            self.stop(name)
        self.call(self.scheduler.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_S)
        self.loop.close()


@contextmanager
def local_pool(*devices: Device, cert_dir: Path | None = None) -> Iterator[LocalPool]:
    pool = LocalPool(cert_dir)
    try:
        pool.add(*devices)
        yield pool
    finally:
        pool.close()


def pretended(n: int, trial_s: float = 0.0, slower: Sequence[float] = ()) -> list[Device]:
    """So many devices of this machine's target."""
    factors = [*slower, *[1.0] * (n - len(slower))]
    target = Target.detect()
    return [
        PretendedDevice(f"device{k}", target, trial_s=trial_s, slower=factors[k]) for k in range(n)
    ]
