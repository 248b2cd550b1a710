"""The main loop of a supervised worker process: read a request, call the handler, send the answer.

Flow: `measure.worker.Worker` starts `main` in a fresh interpreter and exchanges messages with it
over one private socket. A message is a length (8 bytes, big-endian) and so many bytes of pickle.
The first message names a factory "module:function" and its arguments; the factory returns the
handler of all later requests. The process ends when the socket closes or its parent dies, and
ignores Ctrl-C. This module imports the standard library only, so that the start is fast.
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
COLLECT_EVERY = 8  # requests: the objects that are new
COLLECT_ALL_EVERY = 128  # requests: all objects
LENGTH = struct.Struct(">Q")


def main(fd: int, parent_pid: int, tied_to_thread: bool) -> None:
    """Serve requests that arrive on the socket `fd` until it closes; never returns.

    `tied_to_thread`: the thread that started this process is the main thread of its process. Only
    then Linux's death signal, which is sent when that thread ends, may be used.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Candidates crash often; writing a core file for each would take seconds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if tied_to_thread and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # RuntimeError: the process may start no thread. The socket and the death signal still end it.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=_watch_parent, args=(parent_pid,), daemon=True).start()
    channel = socket.socket(fileno=fd)
    # Children of the handler must not hold the socket open: its end tells the parent of our end.
    channel.set_inheritable(False)
    status = 1
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        status = _serve(channel)
    _flush()
    os._exit(status)  # no interpreter shutdown: native libraries may crash in it


def _watch_parent(parent_pid: int) -> None:
    # for systems without the death signal, and for a parent that died before the signal was set
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
    # Objects loaded so far stay. The collector runs only before some answers: otherwise it takes a
    # tenth of every build, and could run while a kernel is timed in this or another process.
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
            gc.collect(0 if served % COLLECT_ALL_EVERY else 2)
        _flush()
        send(channel, answer)
    return 0


def _flush() -> None:
    """Write out printed text, which error messages of a crash quote; a full disk is ignored."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def load_entry(entry: str) -> Callable[..., Any]:
    """The function named by "module:function"; raises UsageError if there is none."""
    module, _, name = entry.partition(":")
    found = getattr(importlib.import_module(module), name, None) if name else None
    if not callable(found):
        raise UsageError(f"{entry!r} names no function: write it as 'module:function'")
    return found  # type: ignore[no-any-return]


def describe(error: BaseException) -> str:
    """One line for an exception: its text, and for others than AnsorliteError type and place."""
    if isinstance(error, AnsorliteError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def send(channel: socket.socket, message: bytes) -> None:
    """Send one message; the socket's time-out holds for the whole message."""
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
        except ConnectionResetError:  # the other side was killed before it read all messages
            return None
        if count == 0:
            return None
        filled += count
    return bytes(buffer)
