"""The scheduler of a pool: dask's, with settings for devices that measure.

It knows which devices there are and how they are, and forgets those that are silent. Measurements
do not pass through it: a tuner asks it for devices and talks to these directly. In: a port and
certificates. Out: a process that serves until it is told to end. Without certificates it listens on
loopback only.
"""

import asyncio
import contextlib
import errno
import logging
from typing import Any

import ansorlite
from ansorlite.errors import MachineError
from ansorlite.pool.certificates import Certificates
from ansorlite.pool.wire import PORT, SILENCE_S, dask_or_error, log
from ansorlite.settings import settings

LOOPBACK = "127.0.0.1"
DASHBOARD = 8787
SETTINGS = {
    "distributed.scheduler.worker-ttl": f"{SILENCE_S:g}s",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.active-memory-manager.start": False,
    # A profiler or a monitor that wakes up often would disturb the measurements.
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.memory.monitor-interval": "10s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.admin.system-monitor.disk": False,
    "distributed.admin.system-monitor.gil.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.diagnostics.nvml": False,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.timeouts.tcp": "12s",
    "distributed.comm.tls.min-version": 1.3,
}


def use_settings() -> None:
    """Give dask the settings of a pool, in a process of the pool's own."""
    dask_or_error()
    import dask
    import distributed  # noqa: F401

    dask.config.set(SETTINGS)
    # What matters of dask's news is told by this package, in its own words.
    level = logging.INFO if settings().debug else logging.CRITICAL
    logging.getLogger("distributed").setLevel(level)


async def start_scheduler(
    certificates: Certificates | None,
    host: str = "",
    port: int = PORT,
    dashboard: int | None = DASHBOARD,
) -> Any:
    """A running scheduler; port 0 takes any. MachineError where it cannot listen.

    The dashboard is on loopback, as it has no certificates; None leaves it out.
    """
    use_settings()
    from distributed import Scheduler

    secure = certificates is not None
    try:
        scheduler = Scheduler(
            protocol="tls" if secure else "tcp",
            host=(host or "0.0.0.0") if secure else LOOPBACK,
            port=port,
            security=certificates.security() if certificates else None,
            dashboard=dashboard is not None,
            dashboard_address=f"{LOOPBACK}:{dashboard or 0}",
        )
        _add_handlers(scheduler)
        await scheduler
    except (OSError, RuntimeError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        taken = getattr(cause, "errno", None) == errno.EADDRINUSE
        why = "another program listens there, choose --port" if taken else str(cause)
        raise MachineError(f"cannot listen on port {port}: {why}") from error
    return scheduler


def _add_handlers(scheduler: Any) -> None:
    async def hello(version: str, name: str = "", uid: str = "") -> None:
        """Note who comes; earlier connections of a device that joins again are forgotten."""
        if version != ansorlite.__version__:
            log.warning("a member has version %s, this is %s", version, ansorlite.__version__)
        for address, ws in list(scheduler.workers.items()):
            if name and ws.name == name and ws.extra.get("pool", {}).get("uid") == uid:
                log.info("%s joins again", name)
                with contextlib.suppress(OSError):
                    await scheduler.remove_worker(address, stimulus_id="pool-rejoin", close=False)

    async def devices() -> list[dict[str, Any]]:
        return [_described(ws) for ws in scheduler.workers.values()]

    scheduler.handlers.update(pool_hello=hello, pool_devices=devices)


def _described(ws: Any) -> dict[str, Any]:
    """A device: what it is (told at joining) and how it is (told with each heartbeat)."""
    fixed, now = ws.extra.get("pool", {}), ws.metrics.get("pool", {})
    return {"name": str(ws.name), "address": ws.address, "seen": ws.last_seen, **fixed, **now}


async def serve_scheduler(
    certificates: Certificates | None,
    host: str,
    port: int,
    dashboard: int | None,
    stop: asyncio.Event,
) -> None:
    """Run a scheduler until `stop`."""
    scheduler = await start_scheduler(certificates, host, port, dashboard)
    log.info("scheduler at %s", scheduler.address)
    if certificates is None:
        log.warning(
            "no certificates: listening on loopback only, where any user of this machine can run "
            "code as you; `ansorlite pool init` makes certificates"
        )
    if dashboard is not None:
        log.info("dashboard at http://%s:%s/status", LOOPBACK, scheduler.http_server.port)
    try:
        await stop.wait()
    finally:
        await scheduler.close()
