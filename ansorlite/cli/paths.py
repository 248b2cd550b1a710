"""Paths on the command line, checked before hours of work begin: can they be written or read?

In: a `Path` as it was typed. Out: the same with ~ expanded, or a UsageError that names the path and
the reason. Nothing is written, and nothing is left behind.
"""

import os
import stat
from pathlib import Path

from ansorlite.errors import UsageError


def writable(path: Path, *others: str | Path | None) -> Path:
    """The path with ~ expanded, if a file can be written there; checked before the work begins.

    A file that does not exist yet is not left behind. Raises UsageError, also where the file is one
    of `others`, the files that the command reads or writes besides.
    """
    path = _expanded(path)
    for other in others:
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise UsageError(f"cannot write {path}: the command uses that file for something else")
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        _try_to_create(path)
        return path
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    if stat.S_ISDIR(kind):
        raise UsageError(f"cannot write {path}: it is a directory, name a file")
    if not os.access(path, os.W_OK):
        raise UsageError(f"cannot write {path}: Permission denied")
    return path


def folder(path: Path) -> Path:
    """The path with ~ expanded, if it is a folder for new files, or one can be made there.

    Raises UsageError.
    """
    path = _expanded(path)
    above = path
    while not os.path.lexists(above) and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise UsageError(f"cannot write to {path}: {above} is no directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write to {path}: no right to make files in {above}")
    return path


def readable(path: Path) -> Path:
    """The path with ~ expanded, if the file can be read. Raises UsageError."""
    path = _expanded(path)
    if path.is_dir():
        raise UsageError(f"cannot read {path}: it is a directory, name a file")
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}") from error
    return path


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:
        raise UsageError(f"{path}: no home directory is known, name a full path") from None


def _try_to_create(path: Path) -> None:
    if path.is_symlink():
        raise UsageError(f"cannot write {path}: it is a link to a file that is not there")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        path.unlink()
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(f"cannot write {path}: {reason}")
