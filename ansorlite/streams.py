"""Printing on the three standard streams, which may be closed, full or of a narrow encoding.

In: text with names that come from files (networks, nodes, logs). Out: the same text with control
characters escaped, so that no name moves a terminal's cursor or hides a line. `tell` prints
progress and diagnoses: a line that cannot be written is dropped, and the run goes on. `put` prints
results: a result that cannot be written is an error.
"""

import contextlib
import fcntl
import io
import os
import sys
from typing import TextIO, cast

from ansorlite.errors import MachineError
from ansorlite.names import shown

FIRST_FREE = 3  # descriptor after those of the standard streams
_TABS = str.maketrans({"\n": " ", "\r": " ", "\t": " "})


def printable(text: str) -> str:
    """`names.shown` of text of several lines: newlines and tabs stay."""
    return shown(text, keep="\n\t")


def one_line(text: str) -> str:
    """`printable`, and newlines and tabs become single spaces: for names and errors."""
    return " ".join(printable(text).translate(_TABS).split())


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print a line on `stream` (standard error), if anybody can read it; never fails."""
    stream = sys.stderr if stream is None else stream
    # OSError: full, or a terminal that is gone; ValueError: closed
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            print(_encoded_as(printable(text), stream), file=stream, flush=True)


def put(text: str, end: str = "\n") -> None:
    """Print a result on standard output, if there is one.

    Raises MachineError where it cannot be written, BrokenPipeError where its reader went away.
    """
    if sys.stdout is None:
        return
    try:
        print(_encoded_as(printable(text), sys.stdout), end=end, flush=True)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise MachineError(f"cannot write to standard output: {reason}") from error


def _encoded_as(text: str, stream: TextIO) -> str:
    """The text with escapes for what the stream's encoding does not have."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def occupy_standard_descriptors() -> None:
    """Open /dev/null for each standard stream that is closed when the process starts.

    Otherwise the next file that is opened, such as a tuning log, would get the descriptor of the
    stream, and C libraries would print into the file.
    """
    for fd in range(FIRST_FREE):
        try:
            os.fstat(fd)
        except OSError:
            with contextlib.suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened != fd:
                    os.dup2(opened, fd)
                    os.close(opened)


def above_standard(fd: int) -> int:
    """The descriptor, moved above those of the standard streams where it is one of them."""
    if fd >= FIRST_FREE:
        return fd
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE)
    os.close(fd)
    return moved


def drop_unwritten() -> OSError | ValueError | None:
    """Flush the standard streams; text that cannot be written is dropped, so that exit is quiet.

    Returns the error of standard output, None if all was written.
    """
    reason = None
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            reason = error if stream is sys.stdout else reason
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
    return reason


class Tolerant:
    """A stream for progress: text that cannot be written is dropped, whatever the reason."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(_encoded_as(text, self._stream))
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"


def progress_stream(stream: TextIO | None = None) -> TextIO:
    """`stream`, by default standard error, made tolerant; one to nowhere if that was closed."""
    stream = sys.stderr if stream is None else stream
    return cast(TextIO, Tolerant(io.StringIO() if stream is None else stream))
