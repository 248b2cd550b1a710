"""Atomic writing of text files.

In: a path and a text. Out: the file with that text. A reader sees the old or the new contents,
never a part, also when this process is killed while it writes. Raises OSError.
"""

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write UTF-8 text to a new file that then replaces `path`.

    A path that is no regular file (a terminal, a pipe) is written directly. Example:
    `write_whole(Path("report.html"), page)`.
    """
    data = text.encode("utf-8", "backslashreplace")
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
