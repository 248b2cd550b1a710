"""Atomic writing of files, and reading of files of arrays that may be damaged.

In: a path and a text or bytes. Out: the file with that content. A reader sees the old or the new
contents, never a part, also when this process is killed while it writes. Raises OSError.
"""

import contextlib
import io
import os
import zipfile
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: str | bytes) -> None:
    """Write bytes, or text as UTF-8, to a new file that then replaces `path`.

    A path that is no regular file (a terminal, a pipe) is written directly. Example:
    `write_whole(Path("report.html"), page)`.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))  # replace the file behind a link, not the link
    scratch = path.with_name(f"{path.name[:200]}.{os.getpid()}")
    try:
        scratch.write_bytes(data)
        if path.exists():
            scratch.chmod(path.stat().st_mode & 0o7777)
        scratch.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise


def arrays_of(data: bytes, most_bytes: int) -> dict[str, Any] | None:
    """The arrays of an npz file's bytes, by name; None where these are damaged or too many.

    Nothing is unpickled: an array of objects counts as damage.
    """
    import numpy as np

    try:
        with zipfile.ZipFile(io.BytesIO(data)) as found:
            if sum(entry.file_size for entry in found.infolist()) > most_bytes:
                return None
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception:  # zlib, zipfile and numpy raise many kinds for damaged bytes
        return None
