"""The inside of a supervised worker process: read a request, call the handler, send the answer.

Flow: `measure.worker.Worker` starts `main` in a fresh interpreter and talks to it over one private
socket; messages are a length (8 bytes, big-endian) and that many bytes of pickle. The first one
names a factory "module:function" and its arguments; what the factory returns is called with every
later request. The process ends when the socket closes or its parent dies, and ignores Ctrl-C.
Only the standard library is imported here, so that the start costs little more than Python's own.
"""

import contextlib
import ctypes
import gc
import importlib
import itertools
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from ansorlite.errors import AnsorliteError, UsageError

PR_SET_PDEATHSIG = 1
PARENT_CHECK_S = 1.0
COLLECT_EVERY = 8  # requests
LENGTH = struct.Struct(">Q")


def main(fd: int, parent_pid: int, tied_to_thread: bool) -> None:
    """Serve requests that arrive on the socket `fd` until it closes; never returns.

    `tied_to_thread` says that the thread that started us lives as long as its process, which
    is what Linux's death signal takes for "parent".
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # crashing candidates are routine here: writing a core file for each would take seconds
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if tied_to_thread and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # RuntimeError: no thread is allowed here; the closed socket and the death signal are left
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    channel = socket.socket(fileno=fd)
    # what the handler starts must not keep the socket open: closing it is how our death is noticed
    channel.set_inheritable(False)
    status = 1
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        status = _serve(channel)
    _flush()
    os._exit(status)  # no teardown: native libraries may crash in it, and nothing is worth saving


def _watch_parent(parent_pid: int) -> None:
    # covers what the death signal does not: other systems, and a parent that died before it was set
    while os.getppid() == parent_pid:
        time.sleep(PARENT_CHECK_S)
    os._exit(1)


def _serve(channel: socket.socket) -> int:
    first = receive(channel)
    if first is None:
        return 0
    try:
        entry, initargs = pickle.loads(first)
        handler: Callable[[Any], Any] = load_entry(entry)(*initargs)
    except BaseException as error:
        send(channel, pickle.dumps(("failed", describe(error))))
        return 1
    send(channel, pickle.dumps(("ready", None)))
    # What is loaded now stays; cycles are looked for before an answer only, so that the collector
    # takes no tenth of every build and never runs while anything is timed, here or elsewhere.
    gc.freeze()
    gc.disable()
    for served in itertools.count(1):
        message = receive(channel)
        if message is None:
            break
        try:
            answer = pickle.dumps(("value", handler(pickle.loads(message))), protocol=5)
        except BaseException as error:
            answer = pickle.dumps(("error", describe(error)))
        if served % COLLECT_EVERY == 0:
            gc.collect()
        _flush()
        send(channel, answer)
    return 0


def _flush() -> None:
    """What was printed counts where a child crashes; where it has no room, it is lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def load_entry(entry: str) -> Callable[..., Any]:
    """The function that "module:function" names.

    Raises UsageError if there is none.
    """
    module, _, name = entry.partition(":")
    found = getattr(importlib.import_module(module), name, None) if name else None
    if not callable(found):
        raise UsageError(f"{entry!r} names no function: write it as 'module:function'")
    return found  # type: ignore[no-any-return]


def describe(error: BaseException) -> str:
    """One line for `error`: our own errors say all in their text, others need type and place."""
    if isinstance(error, AnsorliteError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def send(channel: socket.socket, message: bytes) -> None:
    """Send one message; obeys the socket's time-out for the whole of it."""
    channel.sendall(LENGTH.pack(len(message)) + message)


def receive(channel: socket.socket, deadline: float | None = None) -> bytes | None:
    """The next message, or None if the other side has closed.

    Raises TimeoutError once `time.monotonic()` passes `deadline`.
    """
    header = _receive_exactly(channel, LENGTH.size, deadline)
    if header is None:
        return None
    return _receive_exactly(channel, LENGTH.unpack(header)[0], deadline)


def _receive_exactly(channel: socket.socket, size: int, deadline: float | None) -> bytes | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    filled = 0
    while filled < size:
        if deadline is not None:
            channel.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            count = channel.recv_into(view[filled:])
        except ConnectionResetError:  # the other side was killed with messages of ours unread
            return None
        if count == 0:
            return None
        filled += count
    return bytes(buffer)
