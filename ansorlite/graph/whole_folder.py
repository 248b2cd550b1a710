"""A folder that exists with all of its files, or not at all.

In: the path of the folder. Out: a temporary folder to fill, which takes that path in one step when
the caller's block ends without an exception. After an exception, Ctrl-C, TERM, HUP or on a full
disk nothing is left. A killed process (KILL) leaves its temporary folder, which goes when the
folder is written again.
"""

import fcntl
import os
import re
import secrets
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ansorlite.errors import AnsorliteError

STEM = 40  # characters of the folder's name in that of the temporary folder
SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def whole_folder(target: Path, last: str) -> Iterator[Path]:
    """Yields a temporary folder to fill, which becomes `target` at the end.

    Where a new folder cannot take the place of an empty one (a mount point, the working directory)
    the files move into that, the one called `last` after all others. Raises AnsorliteError where
    `target` holds anything, or for an OSError.
    """
    try:
        place = target.resolve()  # of a link: what the link names
    except (OSError, ValueError, RuntimeError) as error:
        raise AnsorliteError(f"{target} is no name for a folder: {error}") from None
    try:
        with _unwound_by_signals():
            created = _missing(place.parent)
            try:
                with _scratch(place) as scratch:
                    yield scratch
                    _to_disk(scratch)
                    _settle(scratch, place, last)
            except BaseException:
                for folder in created:
                    _without_error(folder.rmdir)
                raise
    except _StoppedError as stopped:
        os.kill(os.getpid(), stopped.number)  # the signal's own action, now that all is tidy
        raise AnsorliteError(f"writing {target} was stopped: {stopped}") from None
    except (OSError, MemoryError) as error:
        why = getattr(error, "strerror", None) or str(error) or "out of memory"
        raise AnsorliteError(f"cannot write the folder {target}: {why}") from error


def _missing(folder: Path) -> list[Path]:
    """The folders that have to be made for `folder` to be there, innermost first."""
    return [f for f in (folder, *folder.parents) if not f.exists()]


@contextmanager
def _scratch(place: Path) -> Iterator[Path]:
    """A new folder beside `place`, or in the empty folder `place`, locked while in use."""
    stem = f".{place.name[:STEM]}.saving-"
    fixed = _is_fixed(place)
    above = place if fixed else place.parent
    above.mkdir(parents=True, exist_ok=True)
    for folder in (above, place):
        if folder.is_dir():
            _remove_abandoned(folder, stem)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise AnsorliteError(
            f"{place} is there already: name a new folder, so that nothing is lost"
        )
    scratch, lock = None, -1
    try:
        while lock < 0:
            scratch = above / f"{stem}{secrets.token_hex(8)}"
            scratch.mkdir()
            lock = _locked(scratch)
        assert scratch is not None
        yield scratch
    finally:
        if scratch is not None:
            _removed(scratch)
        if lock >= 0:
            os.close(lock)


def _is_fixed(place: Path) -> bool:
    """Whether `place` is a folder that no other can take the place of."""
    if not place.is_dir():
        return False
    writable = os.access(place.parent, os.W_OK | os.X_OK)
    return os.path.ismount(place) or place.samefile(".") or not writable


def _locked(scratch: Path) -> int:
    """A descriptor that locks the folder; -1 where another process took it for an abandoned one."""
    try:
        lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return -1
    _without_error(fcntl.flock, lock, fcntl.LOCK_EX)  # file systems without locks have no others
    if scratch.exists():
        return lock
    os.close(lock)
    return -1


def _remove_abandoned(above: Path, stem: str) -> None:
    """Remove temporary folders of processes that are no more."""
    pattern = re.compile(re.escape(stem) + "[0-9a-f]{16}")
    for folder in [f for f in above.iterdir() if pattern.fullmatch(f.name)]:
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _removed(folder)
        except OSError:  # in use, or a file system without locks
            continue
        finally:
            os.close(lock)


def _removed(folder: Path) -> None:
    """Remove a folder; a child that is dying may still add to it."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return


def _to_disk(folder: Path) -> None:
    """Wait until every file is on the disk: only now a full one may be told."""
    for path in (*folder.iterdir(), folder):
        file = os.open(path, os.O_RDONLY)
        try:
            if path == folder:  # some file systems cannot
                _without_error(os.fsync, file)
            else:
                os.fsync(file)
        finally:
            os.close(file)


def _settle(scratch: Path, place: Path, last: str) -> None:
    if scratch.parent != place:
        if place.exists():
            scratch.chmod(place.stat().st_mode & 0o7777)
        scratch.rename(place)  # over an empty folder, too
    else:
        names = sorted((f.name for f in scratch.iterdir()), key=lambda name: name == last)
        moved: list[Path] = []
        try:
            for name in names:
                moved.append(place / name)
                (scratch / name).rename(place / name)
        except BaseException:
            for path in moved:
                _without_error(path.unlink)
            raise
    above = os.open(place.parent, os.O_RDONLY)
    try:
        _without_error(os.fsync, above)
    finally:
        os.close(above)


def _without_error(function: object, *args: object) -> None:
    """Call a function whose failure does not matter."""
    assert callable(function)
    try:
        function(*args)
    except OSError:
        return


# ---- signals ------------------------------------------------------------------------------------


class _StoppedError(BaseException):
    """A signal that ends the process arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """Within, signals that would end the process at once raise _StoppedError.

    Handlers of the caller's own stay. Python runs handlers in the main thread: in others nothing
    changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [n for n in SIGNALS if signal.getsignal(n) is signal.SIG_DFL]

    def stop(number: int, frame: FrameType | None) -> None:
        for n in taken:
            signal.signal(n, signal.SIG_IGN)  # once is enough: what follows tidies
        raise _StoppedError(number)

    for n in taken:
        signal.signal(n, stop)
    try:
        yield
    finally:
        for n in taken:
            signal.signal(n, signal.SIG_DFL)
