"""Files that are written whole or not at all.

In: a path and a text. Out: the file with that text; whoever reads it, and whatever ends this
process while it writes, there is the old file or the new one, never a part. Raises OSError.
"""

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text; what exists and is no regular file (a terminal, a pipe) is written to."""
    data = text.encode("utf-8", "backslashreplace")
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = Path(os.path.realpath(path))  # a link stays one
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
