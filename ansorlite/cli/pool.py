"""The command `ansorlite pool`: make, run and look at a pool of devices.

In: parsed arguments. Out: the exit status; what was made, and the table of devices, on standard
output; the log of scheduler and workers on standard error. dask.distributed is imported when a
command runs.
"""

import argparse
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansorlite.cli.options import Command, count, positive
from ansorlite.cli.paths import folder
from ansorlite.errors import UsageError
from ansorlite.streams import put

if TYPE_CHECKING:
    import asyncio

    from ansorlite.pool.device import Device
    from ansorlite.pool.runner import RemoteRunner

MOST_PORT, MOST_PRETENDED = 65535, 1000
MS = 1e-3


def port(text: str) -> int:
    """A number of a port; 0 is any that is free."""
    number = count(text)
    if number > MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: at most {MOST_PORT}")
    return number


def milliseconds(text: str) -> float:
    """A number of milliseconds >= 0, as seconds."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of milliseconds >= 0")
    return value * MS


def pool_options(p: argparse.ArgumentParser) -> None:
    actions = p.add_subparsers(title="actions", required=True, metavar="ACTION")

    def action(name: str, act: Callable[[argparse.Namespace], int], what: str) -> Any:
        sub = actions.add_parser(name, help=what, description=what)
        sub.set_defaults(act=act)
        return sub

    init = action("init", _init, "make an authority and the join bundle of a new pool")
    init.add_argument("dir", type=Path, nargs="?", metavar="DIR", help="default: see pool/README")
    init.add_argument("--days", type=positive, metavar="N", default=1825, help="validity (1825)")

    scheduler = action("scheduler", _scheduler, "run the scheduler, on loopback without TLS")
    scheduler.add_argument("--port", type=port, metavar="P", default=8786, help="default 8786")
    scheduler.add_argument("--host", metavar="A", default="", help="address to listen on (all)")
    scheduler.add_argument(
        "--dashboard", type=port, metavar="P", default=8787, help="on loopback; default 8787"
    )
    _certificates(scheduler)

    worker = action("worker", _worker, "let this machine measure for a pool")
    worker.add_argument("on", metavar="HOST:PORT", help="where the scheduler is")
    worker.add_argument("--name", metavar="N", default="", help="of the device (the host's name)")
    worker.add_argument("--cores", metavar="LIST", default="", help="that measure, such as 0-3")
    worker.add_argument(
        "--reserve-core", type=count, metavar="N", help="a core for the event loop alone"
    )
    worker.add_argument("--host", metavar="A", default="", help="own address that tuners reach")
    worker.add_argument(
        "--pretend", type=milliseconds, metavar="MS", help="measure nothing, take MS a trial"
    )
    worker.add_argument("--count", type=positive, metavar="N", help="pretended devices (1)")
    _certificates(worker)

    status = action("status", _status, "the devices: what they are and what they do")
    drain = action("drain", _drain, "let a device finish its trial and leave")
    for asking in (status, drain):
        if asking is drain:
            drain.add_argument("name", metavar="NAME")
        asking.add_argument("--on", metavar="HOST:PORT", default="localhost")
        _certificates(asking)


def _certificates(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--cert-dir", type=Path, metavar="D", help="certificates (~/.config/ansorlite/pool)"
    )


def pool(args: argparse.Namespace) -> int:
    status: int = args.act(args)
    return status


def _init(args: argparse.Namespace) -> int:
    from ansorlite.pool.certificates import default_folder, make_pool

    where = folder(args.dir or default_folder())
    bundle = make_pool(where, args.days)
    put(f"{bundle}: unpack it on each machine of the pool, in {default_folder()} or for --cert-dir")
    put("members run each other's code: give the bundle to nobody whom you do not trust")
    put(f"{where / 'ca-key.pem'} stays here")
    return 0


def _scheduler(args: argparse.Namespace) -> int:
    from ansorlite.pool.certificates import find_certificates
    from ansorlite.pool.scheduler import serve_scheduler
    from ansorlite.pool.wire import dask_or_error, is_loopback

    dask_or_error()
    known = find_certificates(args.cert_dir)
    if known is None and args.host and not is_loopback(args.host):
        raise UsageError(
            f"without certificates the scheduler listens on loopback only, not on {args.host}: "
            "make some with `ansorlite pool init`"
        )

    async def serve(stop: "asyncio.Event") -> None:
        await serve_scheduler(known, args.host, args.port, args.dashboard, stop)

    return _until_told(serve)


def _worker(args: argparse.Namespace) -> int:
    from ansorlite.pool.wire import pool_at
    from ansorlite.pool.worker import serve_devices

    where = pool_at(args.on, args.cert_dir)

    async def serve(stop: "asyncio.Event") -> None:
        await serve_devices(_devices(args), where, stop, args.host)

    return _until_told(serve)


def _devices(args: argparse.Namespace) -> "list[Device]":
    from ansorlite.pool.device import PretendedDevice, this_device

    own = this_device(args.name, args.cores, args.reserve_core)
    if args.pretend is None:
        if args.count is not None:
            raise UsageError("--count is of pretended devices: give --pretend MS, too")
        return [own]
    n = args.count or 1
    if n > MOST_PRETENDED:
        raise UsageError(f"--count is {n}: at most {MOST_PRETENDED} devices a process")
    names = [own.name] if n == 1 else [f"{own.name}-{k}" for k in range(n)]
    return [PretendedDevice(name, own.target, trial_s=args.pretend) for name in names]


def _status(args: argparse.Namespace) -> int:
    import asyncio

    from ansorlite.pool.status import devices_of, status_text
    from ansorlite.pool.wire import pool_at

    where = pool_at(args.on, args.cert_dir)
    put(status_text(asyncio.run(devices_of(where)), where.address))
    return 0


def _drain(args: argparse.Namespace) -> int:
    import asyncio

    from ansorlite.pool.status import drain
    from ansorlite.pool.wire import pool_at

    put(asyncio.run(drain(pool_at(args.on, args.cert_dir), args.name)))
    return 0


def _until_told(serve: "Callable[[asyncio.Event], Awaitable[None]]") -> int:
    """Run a service until it ends or a signal comes; a second signal ends the process at once."""
    import asyncio  # 40 ms that other commands need not take

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def told(number: int) -> None:
            stop.set()
            loop.remove_signal_handler(number)

        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, told, number)
        await serve(stop)

    with log_shown(logging.INFO):
        asyncio.run(main())
    return 0


@contextlib.contextmanager
def runner_of(
    args: argparse.Namespace, fresh_constants: bool = False
) -> "Iterator[RemoteRunner | None]":
    """The runner on the pool that `--on` names, None without; closed at the end.

    `fresh_constants` as in `measure.timing`. Raises UsageError for options that need `--on`.
    """
    if args.on is None:
        for name in ("devices", "cert_dir"):
            if getattr(args, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} goes with --on HOST:PORT: give both")
        yield None
        return
    from ansorlite.measure.timing import TimingPolicy
    from ansorlite.pool.runner import RemoteRunner

    policy = TimingPolicy(fresh_constants=fresh_constants)
    with (
        log_shown(logging.WARNING),
        RemoteRunner(
            args.on, args.target, cert_dir=args.cert_dir, devices=args.devices, policy=policy
        ) as runner,
    ):
        yield runner


@contextlib.contextmanager
def log_shown(level: int) -> Iterator[None]:
    """Write the log of the pool to standard error, with dates."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    own = logging.getLogger("ansorlite.pool")
    before = own.level
    own.addHandler(handler)
    own.setLevel(level)
    try:
        yield
    finally:
        own.removeHandler(handler)
        own.setLevel(before)


COMMANDS = (
    Command(
        "pool",
        pool,
        pool_options,
        "measure on other machines: a pool of devices",
        (
            ("ansorlite pool init", "certificates; copy join.tar to each machine"),
            ("ansorlite pool scheduler", "one machine of the pool"),
            ("ansorlite pool worker farm:8786 --cores 0-3", "each device"),
            ("ansorlite pool status --on farm:8786", "the devices and what they do"),
            ("ansorlite pool drain rpi5 --on farm:8786", "let a device leave"),
        ),
    ),
)
