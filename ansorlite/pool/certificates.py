"""The certificates of a pool: who has one is a member, who has none gets no further than TLS.

`make_pool` writes an authority and one join bundle: ca.pem, member.pem and member-key.pem, also
packed as join.tar. Every machine of the pool has a copy of these three files in its certificate
folder; ca-key.pem, with which more bundles could be made, stays where it was written. In: folders.
Out: `Certificates`, checked, or a UsageError that names the file.
"""

import datetime
import io
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansorlite.errors import MissingExtra, UsageError

AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca-key.pem"
MEMBER, MEMBER_KEY = "member.pem", "member-key.pem"
BUNDLE = "join.tar"
DAYS = 1825  # validity by default
NAME = "ansorlite pool"


@dataclass(frozen=True)
class Certificates:
    """A folder with the files of a member of a pool."""

    folder: Path

    def security(self) -> Any:
        """dask's `Security`: both sides of a connection show a certificate of the authority."""
        from distributed.security import Security

        ca, cert, key = (str(self.folder / f) for f in (AUTHORITY, MEMBER, MEMBER_KEY))
        roles = {
            f"tls_{role}_{what}": path
            for role in ("scheduler", "worker", "client")
            for what, path in (("cert", cert), ("key", key))
        }
        return Security(tls_ca_file=ca, require_encryption=True, **roles)


def default_folder(env: Mapping[str, str] = os.environ) -> Path:
    """Where certificates are looked for without `--cert-dir`: ~/.config/ansorlite/pool."""
    base = Path(env.get("XDG_CONFIG_HOME") or "~/.config")
    return (base if base.is_absolute() else Path("~/.config").expanduser()) / "ansorlite" / "pool"


def find_certificates(cert_dir: str | Path | None) -> Certificates | None:
    """The certificates of a folder, by default those of `default_folder` if it has any.

    Raises UsageError where the folder named lacks a file, or a certificate is damaged, is out of
    date or is of another authority; MissingExtra without the library `cryptography`.
    """
    folder = default_folder() if cert_dir is None else Path(cert_dir).expanduser()
    files = [folder / f for f in (AUTHORITY, MEMBER, MEMBER_KEY)]
    missing = [f.name for f in files if not f.is_file()]
    if cert_dir is None and len(missing) == len(files):
        return None
    if missing:
        raise UsageError(
            f"{folder} lacks {', '.join(missing)}: make certificates with `ansorlite pool init`, "
            f"or unpack the {BUNDLE} of the pool there"
        )
    _check(folder)
    return Certificates(folder)


def make_pool(folder: Path, days: int = DAYS) -> Path:
    """Make the authority and the join bundle of a new pool in a folder; returns the bundle.

    The keys are readable by their owner alone. Raises UsageError where the folder has a pool.
    """
    crypto = _cryptography()
    x509, hashes, ec = crypto.x509, crypto.hashes, crypto.ec
    there = [f for f in (AUTHORITY, AUTHORITY_KEY, MEMBER, MEMBER_KEY) if (folder / f).exists()]
    if there:
        raise UsageError(
            f"{folder} has {there[0]} already: a new authority would lock its members out, so name "
            "another folder, or remove that one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    begins, ends = now - datetime.timedelta(hours=1), now + datetime.timedelta(days=days)

    def certificate(name: str, key: Any, issuer: str, signer: Any, is_ca: bool) -> Any:
        own, by = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, issuer)
        )
        purposes = [x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            x509.CertificateBuilder()
            .subject_name(own)
            .issuer_name(by)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(is_ca, 0 if is_ca else None), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False
            )
        )
        if not is_ca:
            made = made.add_extension(x509.ExtendedKeyUsage(purposes), False)
        return made.sign(signer, hashes.SHA256())

    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = certificate(f"{NAME} authority", ca_key, f"{NAME} authority", ca_key, True)
    member = certificate(f"{NAME} member", key, f"{NAME} authority", ca_key, False)
    pem = crypto.serialization.Encoding.PEM
    texts = {
        AUTHORITY: authority.public_bytes(pem),
        AUTHORITY_KEY: crypto.private(ca_key),
        MEMBER: member.public_bytes(pem),
        MEMBER_KEY: crypto.private(key),
    }
    for name, text in texts.items():
        _write(folder / name, text)
    bundle = folder / BUNDLE
    bundle.unlink(missing_ok=True)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in (AUTHORITY, MEMBER, MEMBER_KEY):
            tar.add(folder / name, arcname=name, filter=_anonymous)
    _write(bundle, packed.getvalue())
    return bundle


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o600
    return info


def _write(path: Path, text: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(text)


def _check(folder: Path) -> None:
    crypto = _cryptography()
    found = []
    for name in (AUTHORITY, MEMBER):
        try:
            found.append(crypto.x509.load_pem_x509_certificate((folder / name).read_bytes()))
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder / name} is no certificate: {error}") from error
        ends = found[-1].not_valid_after_utc
        if ends < datetime.datetime.now(datetime.UTC):
            raise UsageError(
                f"{folder / name} ended on {ends:%Y-%m-%d}: make a new pool with `ansorlite pool "
                f"init` and give its {BUNDLE} to all members"
            )
    authority, member = found
    try:
        member.verify_directly_issued_by(authority)
    except (ValueError, TypeError, crypto.InvalidSignature) as error:
        raise UsageError(
            f"{folder / MEMBER} is not of the authority {folder / AUTHORITY}: unpack one {BUNDLE} "
            "there, not parts of two"
        ) from error
    try:
        key = crypto.serialization.load_pem_private_key((folder / MEMBER_KEY).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{folder / MEMBER_KEY} is no key: {error}") from error
    if key.public_key() != member.public_key():
        raise UsageError(f"{folder / MEMBER_KEY} is not the key of {folder / MEMBER}")


class _Cryptography:
    """The parts of the library that are used here."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self.x509: Any = x509
        self.hashes: Any = hashes
        self.serialization: Any = serialization
        self.ec: Any = ec
        self.InvalidSignature = InvalidSignature

    def private(self, key: Any) -> bytes:
        """The key as PEM."""
        s = self.serialization
        text: bytes = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
        return text


def _cryptography() -> _Cryptography:
    try:
        return _Cryptography()
    except ImportError:
        raise MissingExtra("cryptography", "pool") from None
