"""Who has no certificate of the pool gets no further than the handshake: nothing is unpickled."""

import pickle
import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

import msgpack
from pool_cases import LocalPool, local_pool, pretended

from ansorlite.errors import MachineError, UsageError
from ansorlite.pool.certificates import make_pool
from ansorlite.pool.runner import RemoteRunner

WAIT_S = 5.0


class Marker:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pools")
    for name in ("own", "other"):
        make_pool(root / name)
    return {name: root / name for name in ("own", "other")}


@pytest.fixture(scope="module")
def pool(folders: dict[str, Path]) -> Iterator[LocalPool]:
    with local_pool(*pretended(1), cert_dir=folders["own"]) as found:
        yield found


def ports(pool: LocalPool) -> list[int]:
    """Those of the scheduler and of the device."""
    (worker,) = pool.scheduler.workers
    return [pool.port, int(worker.rpartition(":")[2])]


def message(path: Path) -> bytes:
    """Frames as dask writes them, with a pickle that leaves a mark."""
    pickled = pickle.dumps(Marker(path))
    head = {"op": "pool_hello", "version": pickled, "__Pickled__": 0, "pickled-obj": pickled}
    frames = [msgpack.packb(head), pickled, pickled]
    body = struct.pack("Q", len(frames)) + b"".join(struct.pack("Q", len(f)) for f in frames)
    body += b"".join(frames)
    return struct.pack("Q", len(body)) + body


def refused(channel: socket.socket, text: bytes) -> bool:
    """Is the connection ended, with nothing but an alert of TLS said?"""
    channel.settimeout(WAIT_S)
    said = b""
    try:
        for _ in range(3):
            channel.sendall(text)
        while data := channel.recv(4096):
            said += data
    except TimeoutError:
        return False
    except OSError:
        pass
    return b"handshake" not in said and b"pickle" not in said and len(said) < 64


def test_a_client_in_the_clear_is_refused(pool: LocalPool, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for port in ports(pool):
        for text in (message(mark), pickle.dumps(Marker(mark)), b"GET / HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), WAIT_S) as channel:
                assert refused(channel, text)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Marker(mark)))
    assert mark.exists()  # it would have been seen


@pytest.mark.parametrize("whose", [None, "other"])
def test_a_client_without_a_certificate_of_the_pool_is_refused(
    pool: LocalPool, folders: dict[str, Path], tmp_path: Path, whose: str | None
) -> None:
    mark = tmp_path / "mark"
    context = ssl.create_default_context(cafile=str(folders["own"] / "ca.pem"))
    context.check_hostname = False
    if whose:
        own = folders[whose]
        context.load_cert_chain(own / "member.pem", own / "member-key.pem")
    for port in ports(pool):
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as raw:
            try:
                with context.wrap_socket(raw) as channel:
                    assert refused(channel, message(mark))
            except ssl.SSLError:
                pass  # refused within the handshake
    assert not mark.exists()


def test_old_versions_of_tls_are_refused(pool: LocalPool, folders: dict[str, Path]) -> None:
    context = ssl.create_default_context(cafile=str(folders["own"] / "ca.pem"))
    context.check_hostname = False
    own = folders["own"]
    context.load_cert_chain(own / "member.pem", own / "member-key.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", pool.port), WAIT_S) as raw,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(raw)


def test_runners_of_others_are_told_why(
    pool: LocalPool, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("ansorlite.pool.wire.CONNECT_S", 0.5)
    with pytest.raises(MachineError, match=r"cannot connect to tls://.*check --cert-dir"):
        RemoteRunner(pool.address, cert_dir=folders["other"])
    with pytest.raises(UsageError, match="TLS needs the certificates"):
        RemoteRunner(pool.address)
    with pytest.raises(MachineError, match="cannot connect to tcp://"):
        RemoteRunner(f"127.0.0.1:{pool.port}")
    assert len(pool.scheduler.workers) == 1  # it goes on serving its own
    with RemoteRunner(pool.address, cert_dir=folders["own"]) as runner:
        assert runner.target


def test_all_that_listens_beyond_loopback_speaks_tls(folders: dict[str, Path]) -> None:
    """Scheduler and worker open a port each; the pages for people are on loopback."""
    psutil = pytest.importorskip("psutil")
    with local_pool(*pretended(1), cert_dir=folders["own"]):
        found = [c for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
        assert found and all(c.laddr.ip in ("127.0.0.1", "::1") for c in found)
    with local_pool(*pretended(1)) as clear:  # without certificates nothing else is there
        found = [c for c in psutil.Process().net_connections("inet") if c.status == "LISTEN"]
        assert clear.address.startswith("tcp://127.0.0.1:")
        assert all(c.laddr.ip in ("127.0.0.1", "::1") for c in found)
