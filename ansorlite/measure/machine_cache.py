"""A cache on disk for figures of the machine: one JSON file per kind, one entry per target.

The folder is ANSORLITE_CACHE_DIR, else `$XDG_CACHE_HOME/ansorlite`, else ~/.cache/ansorlite. The
cache only saves time: a damaged, absent or read-only file is no error, and a folder without write
access gives one warning. In and out: plain JSON objects by the target's fingerprint.
"""

import contextlib
import json
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from ansorlite.files import write_whole
from ansorlite.settings import cache_dir, cache_is_off

MOST_BYTES = 1 << 24  # a larger file is not read; an intact file has some kilobytes


def cache_file(name: str) -> Path | None:
    """The file for figures of the kind `name` ("peak", "calibration"); None without a folder."""
    folder = cache_dir(os.environ)
    return None if folder is None else folder / f"{name}.json"


def read_cache(path: Path | None) -> dict[str, dict[str, Any]]:
    """The file's entries by fingerprint; a damaged or absent file or entry is left out."""
    try:
        if path is None or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return {}
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {key: e for key, e in entries.items() if isinstance(e, dict)}


def write_cache(path: Path | None, entries: dict[str, dict[str, Any]]) -> None:
    """Replace the file atomically: a reader sees the old or the new contents, never a part."""
    if path is None:
        if not cache_is_off(os.environ):
            _warn_unwritable("no home directory is known")
        return
    text = json.dumps(entries, indent=1, sort_keys=True) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        write_whole(path, text)
    except OSError as error:
        _warn_unwritable(f"{path.parent}: {error.strerror}")


def _remove_stale(path: Path) -> None:
    """Remove temporary files of processes that were killed while writing."""
    for scratch in path.parent.glob(f"{path.name}.*"):
        number = scratch.name.rpartition(".")[2]
        if number.isascii() and number.isdecimal() and not _alive(int(number)):
            with contextlib.suppress(OSError):
                scratch.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


@cache
def _warn_unwritable(why: str) -> None:
    warnings.warn(
        f"figures of this machine cannot be cached ({why}), so every process measures them "
        "again: set ANSORLITE_CACHE_DIR to a directory with write access",
        UserWarning,
        stacklevel=4,
    )
