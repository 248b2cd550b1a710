"""Addresses, connections and messages of a pool, on dask's communication layer.

Tuner and device exchange small dicts over one connection, the session: what is asked ("do") and
what is answered ("say"). Objects travel as compressed pickles, and only after the handshake of TLS.
Both sides send something every `PING_S` seconds; who is silent for `SILENCE_S` is given up. Times
are in seconds.
"""

import asyncio
import ipaddress
import logging
import pickle
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ansorlite
from ansorlite.errors import MachineError, MissingExtra, UsageError
from ansorlite.pool.certificates import Certificates, find_certificates

log = logging.getLogger("ansorlite.pool")

PORT = 8786
PING_S, SILENCE_S = 2.0, 10.0
CONNECT_S = 10.0  # for a connection
ANSWER_S = 20.0  # for an answer that needs no measurement
LEVEL = 1  # of zlib: object code shrinks to a third, at 100 MB/s


def pack(thing: object) -> bytes:
    """A compressed pickle."""
    return zlib.compress(pickle.dumps(thing, protocol=5), LEVEL)


def unpack(packed: bytes) -> Any:
    """The inverse of `pack`; members of a pool trust each other."""
    return pickle.loads(zlib.decompress(packed))


def dask_or_error() -> None:
    """Raise MissingExtra where dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise MissingExtra("distributed", "pool") from None


@dataclass(frozen=True)
class Pool:
    """Where a pool is: the address of its scheduler, and the certificates of a member."""

    address: str
    certificates: Certificates | None = None

    @cached_property
    def connection_args(self) -> dict[str, Any]:
        """What dask's `connect` needs."""
        if self.certificates is None:
            return {}
        found: dict[str, Any] = self.certificates.security().get_connection_args("client")
        return found


def pool_at(text: str, cert_dir: str | Path | None = None) -> Pool:
    """The pool at "host", "host:port", "tls://host:port" or "tcp://127.0.0.1:port".

    With certificates (see `find_certificates`) TLS is spoken; without, only a scheduler on this
    machine is. Raises UsageError otherwise.
    """
    dask_or_error()
    scheme, host, port = _parts(text)
    if scheme == "tcp" and cert_dir is not None:
        raise UsageError(f"{text}: with certificates a pool speaks tls, write tls://{host}:{port}")
    known = None if scheme == "tcp" else find_certificates(cert_dir)
    if known is None and scheme == "tls":
        raise UsageError(
            f"{text}: TLS needs the certificates of the pool, name their folder (--cert-dir, "
            "cert_dir); `ansorlite pool init` makes them"
        )
    if known is None and not is_loopback(host):
        raise UsageError(
            f"{text} is another machine, and without certificates only a pool on this one is "
            "spoken to: name their folder (--cert-dir, cert_dir)"
        )
    shown = f"[{host}]" if ":" in host else host
    return Pool(f"{'tcp' if known is None else 'tls'}://{shown}:{port}", known)


def _parts(text: str) -> tuple[str, str, int]:
    """(scheme or "", host, port) of an address."""
    scheme, found, rest = text.partition("://")
    scheme, rest = (scheme, rest) if found else ("", text)
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    alone = host is not None and parts.netloc == rest
    if not alone or scheme not in ("", "tls", "tcp") or port == 0:
        raise UsageError(f"{text!r} is no address of a pool: write HOST:PORT, such as farm:{PORT}")
    assert host is not None
    return scheme, host, PORT if port is None else port


def host_of(address: str) -> str:
    """The host of an address, without brackets."""
    return _parts(address)[1]


def is_loopback(host: str) -> bool:
    """Is that a name or an address of this machine alone?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def cancelled(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel tasks and wait for their end; what they raise is dropped.

    One cancellation may not be enough: `asyncio.wait_for` loses one that comes with its result.
    """
    known = list(tasks)
    while left := [t for t in known if not t.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=0.1)
    await asyncio.gather(*known, return_exceptions=True)


async def connect_to(address: str, args: dict[str, Any]) -> Any:
    """A connection; MachineError that says why there is none."""
    from distributed.comm import connect

    try:
        return await connect(address, timeout=CONNECT_S, **args)
    except (OSError, ValueError, RuntimeError) as error:
        raise MachineError(f"cannot connect to {address}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The words of the innermost cause: dask wraps errors of sockets several times."""
    while isinstance(error.__cause__, Exception) and str(error.__cause__):
        error = error.__cause__
    text = str(error) or type(error).__name__
    lower = text.lower()
    if "certificate" in lower or "alert" in lower or "ssl" in lower:
        return f"{text} (no certificate of this pool, or no pool: check --cert-dir)"
    return text


async def ask(pool: Pool, op: str, address: str = "", **fields: Any) -> Any:
    """The answer of the scheduler, or of the worker at `address`; MachineError without one."""
    return (await _asked(pool, op, address or pool.address, fields))[0]


async def greet(pool: Pool, **fields: Any) -> str:
    """Greet the scheduler; returns this machine's address on the way to it. MachineError as `ask`.

    The fields `name` and `uid` are those of a device that joins.
    """
    fields = {"version": ansorlite.__version__, **fields}
    return (await _asked(pool, "pool_hello", pool.address, fields))[1]


async def _asked(pool: Pool, op: str, where: str, fields: dict[str, Any]) -> tuple[Any, str]:
    """(answer, own address) of one question over a connection of its own."""
    from distributed.core import send_recv

    comm = await connect_to(where, pool.connection_args)
    try:
        own = host_of(comm.local_address)
        answer = send_recv(comm, op=op, close=True, **fields)
        return await asyncio.wait_for(answer, ANSWER_S), own
    except (OSError, TimeoutError) as error:
        raise MachineError(
            f"no answer from {where}: {_reason(error)}; is that an ansorlite pool, and are these "
            "its certificates?"
        ) from error
    finally:
        comm.abort()
