"""Figures of a machine that outlive a process: one JSON file a kind, an entry a target.

They lie in ANSORLITE_CACHE_DIR (else `$XDG_CACHE_HOME/ansorlite`, else ~/.cache/ansorlite) and only
save time: a file that is damaged, absent or cannot be written is no error. A folder that cannot be
written is told once. In and out: plain JSON objects by fingerprint.
"""

import contextlib
import json
import os
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from ansorlite.files import write_whole
from ansorlite.settings import cache_dir

MOST_BYTES = 1 << 24  # a file of figures has some kilobytes


def kept_file(name: str) -> Path | None:
    """Where the figures called `name` are kept; None where there is no place for them."""
    folder = cache_dir(os.environ)
    return None if folder is None else folder / f"{name}.json"


def read_kept(path: Path | None) -> dict[str, dict[str, Any]]:
    """The file's entries; whatever is damaged or absent counts as not measured yet."""
    try:
        if path is None or not path.is_file() or path.stat().st_size > MOST_BYTES:
            return {}
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(entries, dict):
        return {}
    return {key: e for key, e in entries.items() if isinstance(e, dict)}


def keep(path: Path | None, entries: dict[str, dict[str, Any]]) -> None:
    """Replace the file in one step, so that readers never see half of it."""
    if path is None:
        _cannot_keep("no home directory is known")
        return
    text = json.dumps(entries, indent=1, sort_keys=True) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        write_whole(path, text)
    except OSError as error:
        _cannot_keep(f"{path.parent}: {error.strerror}")


def _remove_stale(path: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
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
def _cannot_keep(why: str) -> None:
    warnings.warn(
        f"what is measured of this machine cannot be kept ({why}), so every process measures it "
        "again: set ANSORLITE_CACHE_DIR to a directory that can be written to",
        UserWarning,
        stacklevel=4,
    )
