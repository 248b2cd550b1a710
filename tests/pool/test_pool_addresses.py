"""Addresses, cores and certificates: what a pool is told, and what is refused."""

import datetime
import stat
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

from ansorlite.errors import UsageError
from ansorlite.pool import certificates, device
from ansorlite.pool.certificates import find_certificates, make_pool
from ansorlite.pool.wire import is_loopback, pack, pool_at, unpack


@pytest.fixture(autouse=True)
def no_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_pool(tmp_path / "pool")
    return tmp_path / "pool"


def test_addresses(folder: Path) -> None:
    assert pool_at("localhost").address == "tcp://localhost:8786"
    assert pool_at("127.0.0.1:9").address == "tcp://127.0.0.1:9"
    assert pool_at("tcp://[::1]:9").address == "tcp://[::1]:9"
    assert pool_at("farm:9", folder).address == "tls://farm:9"
    assert pool_at("tls://farm", folder).address == "tls://farm:8786"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("farm:8786", "another machine"),
        ("192.0.2.1", "another machine"),
        ("tls://localhost", "TLS needs the certificates"),
        ("http://localhost", "no address of a pool"),
        ("localhost:x", "no address of a pool"),
        ("localhost:0", "no address of a pool"),
        ("localhost:99999", "no address of a pool"),
        ("", "no address of a pool"),
        ("localhost:8786/status", "no address of a pool"),
    ],
)
def test_wrong_addresses(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        pool_at(text)


def test_with_certificates_nothing_is_spoken_in_the_clear(folder: Path) -> None:
    with pytest.raises(UsageError, match="speaks tls"):
        pool_at("tcp://127.0.0.1:8786", folder)


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.8.0.1", "::1")))
    assert not any(map(is_loopback, ("farm", "192.0.2.1", "0.0.0.0", "localhost.example")))


def test_the_default_folder_counts_where_it_has_certificates(tmp_path: Path) -> None:
    assert find_certificates(None) is None
    make_pool(tmp_path / "config" / "ansorlite" / "pool")
    assert find_certificates(None) is not None
    assert pool_at("farm").address == "tls://farm:8786"


def test_the_bundle_has_no_key_of_the_authority(folder: Path) -> None:
    with tarfile.open(folder / "join.tar") as tar:
        assert sorted(tar.getnames()) == ["ca.pem", "member-key.pem", "member.pem"]
        assert all(m.mode == 0o600 and not m.uname for m in tar.getmembers())
    modes = {f.name: stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()}
    assert len(modes) == 5 and set(modes.values()) == {0o600}


def test_a_pool_is_not_overwritten(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has ca.pem already"):
        make_pool(folder)


def test_certificates_that_are_damaged_missing_or_mixed_up(folder: Path, tmp_path: Path) -> None:
    make_pool(tmp_path / "other")
    known = {f: (folder / f).read_bytes() for f in ("ca.pem", "member.pem", "member-key.pem")}

    def refused(name: str, text: bytes | None, words: str) -> None:
        (folder / name).write_bytes(text) if text is not None else (folder / name).unlink()
        with pytest.raises(UsageError, match=words):
            find_certificates(folder)
        (folder / name).write_bytes(known[name])

    refused("member.pem", None, r"lacks member.pem")
    refused("ca.pem", b"?", r"ca.pem is no certificate")
    refused("member-key.pem", b"?", r"member-key.pem is no key")
    refused("ca.pem", (tmp_path / "other" / "ca.pem").read_bytes(), "not of the authority")
    other_key = (tmp_path / "other" / "member-key.pem").read_bytes()
    refused("member-key.pem", other_key, "is not the key of")
    with pytest.raises(UsageError, match=r"lacks ca\.pem"):
        find_certificates(tmp_path / "nowhere")


def test_certificates_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pool(tmp_path / "pool", days=1)
    now = datetime.datetime.now(datetime.UTC)

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Later":
            later = now + datetime.timedelta(days=2)
            return cls.fromtimestamp(later.timestamp(), tz)

    find_certificates(tmp_path / "pool")
    monkeypatch.setattr(certificates.datetime, "datetime", Later)
    with pytest.raises(UsageError, match=r"ca.pem ended on 20"):
        find_certificates(tmp_path / "pool")


def test_messages_are_compressed() -> None:
    thing = {"zeros": bytes(100_000)}
    assert unpack(pack(thing)) == thing and len(pack(thing)) < 1000


@pytest.mark.parametrize("text", ["", "x", "3-1", "1-", "-2", "1,,2", "1-2-3", "²"])
def test_wrong_lists_of_cores(text: str) -> None:
    with pytest.raises(UsageError, match=r"names no cores|run backwards"):
        device.parse_cores(text)


def test_cores_of_the_loop_and_of_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.parse_cores("0-2,7,1") == [0, 1, 2, 7]
    monkeypatch.setattr(device, "_usable_cores", lambda: [0, 1, 2, 3])

    def cores(*options: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
        found = device.this_device("d", *options)  # type: ignore[arg-type]
        return found.cores, found.loop_cores

    assert cores() == ((0, 1, 2, 3), ())
    assert cores("", 3) == ((0, 1, 2), (3,))
    assert cores("1-2") == ((1, 2), (0, 3))
    assert cores("0-3", 0) == ((1, 2, 3), (0,))
    assert device.this_device("d", "2").target.cores == 1
    with pytest.raises(UsageError, match="core 4 may not be used by this process"):
        cores("3-4")
    with pytest.raises(UsageError, match="none is left to measure"):
        cores("1", 1)
